"""``headrace trace`` and ``headrace explain``: what happened to a message, and why it is where it is."""

from __future__ import annotations

from typing import Any, Final

import click

from headrace.cli.output import Output, displayed, size, span_text
from headrace.cli.place import Place, located
from headrace.cli.values import MESSAGE_ID, from_epoch
from headrace.names import DEFAULT_GROUP

__all__ = ["explain", "trace"]

_ID: Final = click.argument("message_id", metavar="ID", type=MESSAGE_ID)
_TOLD: Final = ("event", "at_ns")


@click.command()
@_ID
@located
def trace(place: Place, message_id: int) -> None:
    """What happened to a message, event by event."""
    with place.open() as broker:
        found = broker.call("trace", id=message_id)
    if place.output.json:
        place.output.value(found)
    else:
        _tell(place.output, found)


@click.command()
@_ID
@click.option("--group", default=DEFAULT_GROUP, metavar="GROUP", help="In this group (default).")
@located
def explain(place: Place, message_id: int, group: str) -> None:
    """Why a message is, or is not, delivered to a group now."""
    with place.open() as broker:
        found = broker.call("explain", id=message_id, group=group)
    out = place.output
    if out.json:
        out.value(found)
        return
    out.line(f"{_where(found)}: {found['state']} in group {found['group']}")
    for reason in found["reasons"]:
        out.line(f"  {displayed(reason['message'], 300)}")


def _where(found: Any) -> str:
    space = "" if found["namespace"] == "default" else f" of namespace {found['namespace']}"
    return f"message {found['id']} in {found['topic']}{space}, partition {found['partition']}, offset {found['offset']}"


def _tell(out: Output, found: Any) -> None:
    key = f", key {displayed(found['key'])}" if found["key"] is not None else ""
    out.line(f"{_where(found)}, {size(found['size_bytes'])}{key}")
    origin = found["links"]["dead_letter_of"]
    if origin is not None:
        out.line(f"a dead letter: it was message {origin['id']} in {origin['topic']}, group {origin['group']}")
    redriven = found["links"]["redriven_from"]
    if redriven is not None:
        out.line(f"redriven from {redriven['topic']}, partition {redriven['partition']}, offset {redriven['offset']}")
    for event in found["events"]:
        details = [_detail(name, value) for name, value in event.items() if name not in _TOLD and value is not None]
        out.line(f"  {from_epoch(event['at_ns'])[:23].rstrip('Z')}Z  {event['event']:14} {', '.join(details)}".rstrip())
    for group in found["groups"]:
        took = group["publish_to_ack_ns"]
        after = f", publish to ack {span_text(took)}" if took is not None else ""
        attempts = "1 attempt" if group["attempts"] == 1 else f"{group['attempts']} attempts"
        out.line(f"group {group['group']}: {group['state']}, {attempts}{after}")


def _detail(name: str, value: Any) -> str:
    if name == "to":
        return f"to {value['topic']}, partition {value['partition']}, offset {value['offset']}"
    if name.endswith("_ns"):
        return f"{name.removesuffix('_ns')} {from_epoch(value)}"
    return f"{name} {displayed(str(value), 200)}"
