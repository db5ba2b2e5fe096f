"""All routes, by what they are about."""

from __future__ import annotations

from headrace.frontends.http import events, faces, groups, node, queues, replay, schedules, topics
from headrace.frontends.http.routes import Route

__all__ = ["all_routes"]


def all_routes() -> list[Route]:
    """Every route of the door, in the order of the document."""
    return [
        *replay.ROUTES,
        *groups.ROUTES,
        *events.ROUTES,
        *topics.ROUTES,
        *schedules.ROUTES,
        *faces.ROUTES,
        *queues.ROUTES,
        *node.ROUTES,
    ]
