"""``headrace browse``: look at messages without taking them."""

from __future__ import annotations

from typing import Any

import click

from headrace.cli.output import ago, displayed
from headrace.cli.place import Place, located
from headrace.clock import SystemClock
from headrace.limits import BROWSE_MESSAGES_MAX
from headrace.names import DEFAULT_GROUP

__all__ = ["browse", "message_columns"]


@click.command()
@click.argument("topic")
@click.option("--group", default=DEFAULT_GROUP, metavar="GROUP", help="As this group has them (default).")
@click.option("--state", type=click.Choice(["ready", "scheduled", "leased", "dead"]), default="ready", help="(ready)")
@click.option(
    "--limit", type=click.IntRange(1, BROWSE_MESSAGES_MAX), default=100, metavar="N", help="At most so many (100)."
)
@located
def browse(place: Place, topic: str, group: str, state: str, limit: int) -> None:
    """Look at messages without taking them, oldest first."""
    with place.open() as broker:
        found = broker.call("browse", topic=topic, group=group, state=state, limit=limit)
    place.output.table(found, message_columns(state))


def message_columns(state: str = "") -> dict[str, Any]:
    """Messages for people."""
    now_ns = SystemClock().wall_ns()
    columns: dict[str, Any] = {
        "id": lambda one: str(one["id"]),
        "place": lambda one: f"{one['partition']}:{one['offset']}",
        "age": lambda one: ago(one["published_ns"], now_ns),
    }
    if state == "scheduled":
        columns["due in"] = lambda one: _until(one.get("due_ns") or one.get("deliver_at_ns"), now_ns)
    if state != "scheduled":
        columns["attempts"] = lambda one: one.get("attempts", 0)
    return columns | {
        "key": lambda one: displayed(one["key"], 24),
        "value": lambda one: displayed(one["value"]),
        "error": lambda one: displayed(one.get("last_error") or "", 40),
    }


def _until(at_ns: int | None, now_ns: int) -> str:
    return "" if at_ns is None else ago(now_ns, max(at_ns, now_ns))
