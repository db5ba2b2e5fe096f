"""``headrace schedule``: messages that are not due yet."""

from __future__ import annotations

from typing import Any

import click

from headrace.cli.browse import message_columns
from headrace.cli.output import count, displayed
from headrace.cli.place import Place, located
from headrace.cli.topic import agreed
from headrace.cli.values import MESSAGE_ID, MOMENT, SPAN, from_epoch
from headrace.limits import BROWSE_MESSAGES_MAX

__all__ = ["schedule"]

_IDS = click.argument("ids", metavar="[ID]...", nargs=-1, type=MESSAGE_ID)
_KEY = click.option("--key", metavar="TEXT", help="All of this key.")
_TAG = click.option("--tag", metavar="TEXT", help="All whose header 'tag' says this.")


@click.group()
def schedule() -> None:
    """Messages that are not due yet."""


@schedule.command("list")
@click.argument("topic")
@click.option("--group", metavar="GROUP", help="Also this group's retries that wait for their backoff.")
@click.option(
    "--limit", type=click.IntRange(1, BROWSE_MESSAGES_MAX), default=100, metavar="N", help="At most so many (100)."
)
@located
def list_(place: Place, topic: str, group: str | None, limit: int) -> None:
    """What is scheduled, the next first."""
    with place.open() as broker:
        found = broker.call("schedule.list", topic=topic, group=group, limit=limit)
        place.output.table(found, message_columns("scheduled"))
        if not place.output.json:
            total = broker.call("schedule.count", topic=topic)["scheduled"]
            place.output.line(f"{count(total)} scheduled")


@schedule.command()
@click.argument("topic")
@click.argument("message_id", metavar="ID", type=MESSAGE_ID)
@located
def show(place: Place, topic: str, message_id: int) -> None:
    """One scheduled message."""
    with place.open() as broker:
        found = broker.call("schedule.show", topic=topic, id=message_id)
    due = from_epoch(found["due_ns"])
    place.output.value(found, f"message {found['id']} in {topic} is due {due}: {displayed(found['value'], 300)}")


@schedule.command()
@click.argument("topic")
@_IDS
@_KEY
@_TAG
@click.option("--yes", is_flag=True, help="Do not ask.")
@located
def cancel(place: Place, topic: str, ids: tuple[int, ...], key: str | None, tag: str | None, yes: bool) -> None:
    """Take messages out of the schedule; they are never delivered."""
    which = _which(ids, key, tag)
    with place.open() as broker:
        if not ids:
            agreed(yes, f"cancel everything in {topic} with {'key' if key is not None else 'tag'} {key or tag}", broker)
        done = broker.call("schedule.cancel", topic=topic, **which)
        place.output.value(done, f"cancelled {count(done['cancelled'])}")


@schedule.command()
@click.argument("topic")
@_IDS
@_KEY
@_TAG
@click.option("--deliver-at", type=MOMENT, metavar="TIME", help="Due then.")
@click.option("--delay", type=SPAN, metavar="SPAN", help="Due after this, from now.")
@located
def move(
    place: Place,
    topic: str,
    ids: tuple[int, ...],
    key: str | None,
    tag: str | None,
    deliver_at: int | None,
    delay: int | None,
) -> None:
    """Give scheduled messages another time."""
    which = _which(ids, key, tag)
    if (deliver_at is None) == (delay is None):
        raise click.UsageError("say when: --deliver-at TIME or --delay SPAN")
    with place.open() as broker:
        done = broker.call("schedule.move", topic=topic, deliver_at_ns=deliver_at, delay_ns=delay, **which)
        place.output.value(done, f"moved {count(done['moved'])} to {from_epoch(done['due_ns'])}")


def _which(ids: tuple[int, ...], key: str | None, tag: str | None) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    if ids:
        chosen["ids"] = list(ids)
    if key is not None:
        chosen["key"] = key.encode()
    if tag is not None:
        chosen["tag"] = tag
    if len(chosen) != 1:
        raise click.UsageError("say which: their ids, --key or --tag (one of them)")
    return chosen
