"""The server itself: is it alive, is it ready, what does it count, what can it do."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.frontends.http import shapes
from headrace.frontends.http.answers import Declined
from headrace.frontends.http.request import Request
from headrace.frontends.http.routes import ANSWERED, Route

__all__ = ["ROUTES"]


def health(request: Request) -> None:
    """Alive: it answers, and its storage does."""
    failure = request.door.broker.host.failure
    if failure is None:
        request.answer_json(shapes.Health("ok"))
    else:
        request.answer_json(shapes.Health("failed", failure.message), 503)


def ready(request: Request) -> None:
    """Whether to send work here. While it recovers nothing listens."""
    failure = request.door.broker.host.failure
    if failure is not None:
        request.answer_json(shapes.Health("failed", failure.message), 503)
    elif request.door.draining:
        request.answer_json(shapes.Health("draining"), 503)
    else:
        request.answer_json(shapes.Health("ready"))


async def metrics(request: Request, _: Any) -> Any:
    """What Prometheus reads, collected in portions."""
    source = request.door.site.metrics
    if source is None:
        raise Declined(404, "metrics are switched off (metrics.enabled)")
    from headrace.broker.metrics import CONTENT_TYPE

    pieces: list[bytes] = []
    for piece in source.expose():
        pieces.append(piece.encode())
        await asyncio.sleep(0)
    request.answer(b"".join(pieces), content_type=CONTENT_TYPE.encode())
    return ANSWERED


def openapi(request: Request) -> None:
    """What there is, for programs."""
    request.answer(request.door.openapi())


ROUTES = [
    Route(
        method="GET", path="/health", summary="Is it alive", tag="server", verb=None, hot=health,
        answer=shapes.Health, while_draining=True,
    ),
    Route(
        method="GET", path="/ready", summary="Does it take work", tag="server", verb=None, hot=ready,
        answer=shapes.Health, while_draining=True,
    ),
    Route(
        method="GET", path="/metrics", summary="What Prometheus reads", tag="server", verb="admin", everywhere=True,
        cold=metrics, answer=str, media=("text/plain",), while_draining=True,
    ),
    Route(
        method="GET", path="/openapi.json", summary="This document", tag="server", verb=None, hot=openapi,
        answer=dict[str, Any], while_draining=True,
    ),
]  # fmt: skip
