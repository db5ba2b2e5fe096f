"""``headrace group``: the consumer groups of a topic."""

from __future__ import annotations

from typing import Any

import click

from headrace.cli.dlq import CREATE, WHERE_OUTCOME, chosen_by, tell_redriven, there
from headrace.cli.output import count
from headrace.cli.place import Place, located
from headrace.cli.topic import GROUP_COLUMNS, agreed, flat, given_settings, setting_text
from headrace.cli.values import MESSAGE_ID, MOMENT, PLACE, Pair, ParamType, by_partition, from_epoch, name_of_user
from headrace.names import DEFAULT_GROUP

__all__ = ["group"]

_TOPIC = click.argument("topic")
_GROUP = click.argument("name", metavar="[GROUP]", default=DEFAULT_GROUP)


class _Start(ParamType):
    """``earliest``, ``latest`` or a time."""

    name = "earliest|latest|time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in ("earliest", "latest") or not isinstance(value, str):
            return value
        return {"time_ns": MOMENT.convert(value, param, ctx)}


_START = _Start()


@click.group()
def group() -> None:
    """The consumer groups of a topic."""


@group.command("list")
@_TOPIC
@located
def list_(place: Place, topic: str) -> None:
    """The groups of a topic, with what waits for each."""
    with place.open() as broker:
        place.output.table(broker.call("group.list", topic=topic), GROUP_COLUMNS)


@group.command()
@_TOPIC
@_GROUP
@located
def show(place: Place, topic: str, name: str) -> None:
    """A group: counts, settings of its own, consumers."""
    with place.open() as broker:
        _show(place, broker.call("group.show", topic=topic, group=name))


@group.command()
@_TOPIC
@_GROUP
@click.option("--start", type=_START, metavar="earliest|latest|TIME", help="Where it begins (earliest).")
@click.option(
    "--from-offset",
    "places",
    type=PLACE,
    multiple=True,
    metavar="P:N",
    help="Begin partition P at offset N; repeatable.",
)
@click.option("--ephemeral", is_flag=True, help="Vanishes with its last consumer.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting, such as lease=1m; repeatable.")
@located
def create(
    place: Place,
    topic: str,
    name: str,
    start: Any,
    places: tuple[tuple[int, int], ...],
    ephemeral: bool,
    settings: tuple[str, ...],
) -> None:
    """Make a group. One that exists is an error."""
    with place.open() as broker:
        info = broker.call(
            "group.create",
            topic=topic,
            group=name,
            start=_start(start, places) or "earliest",
            durable=not ephemeral,
            settings=given_settings(settings),
        )
        place.output.value(info, f"group {name} of {topic}")


@group.command()
@_TOPIC
@_GROUP
@click.option("--to", "start", type=_START, metavar="earliest|latest|TIME", help="Start over there.")
@click.option(
    "--to-offset", "places", type=PLACE, multiple=True, metavar="P:N", help="Partition P at offset N; repeatable."
)
@click.option("--until", type=MOMENT, metavar="TIME", help="Stop there: what was published later is not delivered.")
@located
def seek(
    place: Place, topic: str, name: str, start: Any, places: tuple[tuple[int, int], ...], until: int | None
) -> None:
    """Start a group over somewhere else; what it settled after that comes again."""
    begin = _start(start, places)
    if begin is None:
        raise click.UsageError("say where to: --to earliest, latest or a time, or --to-offset P:N")
    with place.open() as broker:
        info = broker.call("group.seek", topic=topic, group=name, start=begin, stop_time_ns=until)
        place.output.value(info, f"group {name} of {topic} starts over: {count(info['ready'])} ready")


@group.command()
@_TOPIC
@_GROUP
@click.option(
    "--where",
    "where",
    multiple=True,
    type=Pair("consumer=worker-7"),
    metavar="NAME=VALUE",
    help=f"Only those; repeatable. NAME: {', '.join(WHERE_OUTCOME)}.",
)
@click.option("--id", "ids", multiple=True, type=MESSAGE_ID, metavar="ID", help="Only this one; repeatable.")
@click.option("--to", metavar="TOPIC", help="Publish them there, for every group, not here.")
@CREATE
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="At most so many a second.")
@click.option("--dry-run", is_flag=True, help="Only say what would be handed out.")
@located
def replay(
    place: Place,
    topic: str,
    name: str,
    where: tuple[tuple[str, str], ...],
    ids: tuple[int, ...],
    to: str | None,
    create: bool,
    rate: float | None,
    dry_run: bool,
) -> None:
    """Hand out once more what had an outcome in a group: acked (unless --where outcome= says otherwise), failed, dead,
    expired or delivered; at a consumer, between two times."""
    chosen = chosen_by(where, ids, WHERE_OUTCOME)
    with place.open() as broker:
        there(broker, to, create)
        done = broker.call(
            "group.replay", topic=topic, group=name, where=chosen, to=to, rate=rate, dry_run=dry_run or None
        )
    tell_redriven(place.output, done)


@group.command()
@_TOPIC
@_GROUP
@click.option("--why", default="", metavar="TEXT", help="Kept, and shown to whoever wonders.")
@click.option("--by", metavar="NAME", help="Who pauses it (the name you are logged in with).")
@click.option("--until", type=MOMENT, metavar="TIME", help="Resume by itself then.")
@located
def pause(place: Place, topic: str, name: str, why: str, by: str | None, until: int | None) -> None:
    """Hand out nothing until `group resume`."""
    with place.open() as broker:
        whom = name_of_user() if by is None else by
        info = broker.call("group.pause", topic=topic, group=name, why=why, by=whom, until_ns=until or 0)
        place.output.value(info, f"group {name} of {topic} is paused{_until(info['paused'])}")


@group.command()
@_TOPIC
@_GROUP
@click.option("--by", metavar="NAME", help="Who resumes it (the name you are logged in with).")
@located
def resume(place: Place, topic: str, name: str, by: str | None) -> None:
    """Hand out messages again."""
    with place.open() as broker:
        whom = name_of_user() if by is None else by
        info = broker.call("group.resume", topic=topic, group=name, by=whom)
        place.output.value(info, f"group {name} of {topic} goes on: {count(info['ready'])} ready")


@group.command()
@_TOPIC
@_GROUP
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting to change; repeatable.")
@located
def config(place: Place, topic: str, name: str, settings: tuple[str, ...]) -> None:
    """Show a group's own settings, or change those given with --set."""
    given = given_settings(settings)
    with place.open() as broker:
        method, more = ("group.config", {"settings": given}) if given else ("group.show", {})
        info = broker.call(method, topic=topic, group=name, **more)
    if place.output.json:
        place.output.value(info["settings"])
        return
    for key, value in flat(info["settings"]):
        place.output.line(f"{key} = {setting_text(value)}")
    if not info["settings"]:
        place.output.line("nothing of its own: all as the topic has it")


@group.command()
@_TOPIC
@click.argument("name", metavar="GROUP")
@click.option("--yes", is_flag=True, help="Do not ask.")
@located
def delete(place: Place, topic: str, name: str, yes: bool) -> None:
    """Remove a group with everything it remembers."""
    with place.open() as broker:
        broker.call("group.show", topic=topic, group=name)
        agreed(yes, f"remove group {name} of topic {topic} with everything it remembers", broker)
        place.output.value(broker.call("group.delete", topic=topic, group=name), f"removed group {name} of {topic}")


def _start(start: Any, places: tuple[tuple[int, int], ...]) -> Any:
    if places and start is not None:
        raise click.UsageError("a start and offsets are two places; give one of them")
    if places:
        offsets = by_partition(places, "--from-offset")
        return {"offsets": {str(partition): offset for partition, offset in offsets.items()}}
    return start


def _until(paused: Any) -> str:
    if not paused:
        return ""
    until = f" until {from_epoch(paused['until_ns'])}" if paused.get("until_ns") else ""
    by = f" by {paused['by']}" if paused.get("by") else ""
    return until + by + (f": {paused['why']}" if paused.get("why") else "")


def _show(place: Place, info: Any) -> None:
    out = place.output
    if out.json:
        out.value(info)
        return
    kind = "" if info["durable"] else " (ephemeral)"
    out.line(f"group {info['group']} of {info['topic']}{kind}")
    if info["paused"]:
        out.line(f"paused{_until(info['paused'])}")
    states = ("ready", "scheduled", "leased", "acked", "dead", "expired", "cancelled", "dropped", "filtered")
    out.line(", ".join(f"{name} {count(info[name])}" for name in states if info[name] or name == "ready"))
    out.line(
        f"delivered {count(info['delivered'])}, again {count(info['redelivered'])}, nacked {count(info['nacked'])}"
    )
    if info["oldest_unsettled_ns"] is not None:
        out.line(f"oldest unsettled: published {from_epoch(info['oldest_unsettled_ns'])}")
    if info["consumers"]:
        out.line("consumers " + ", ".join(info["consumers"]))
    for key, value in flat(info["settings"]):
        out.line(f"{key} = {setting_text(value)}")
