"""``headrace topic``: make, look at, change and remove topics."""

from __future__ import annotations

import sys
from typing import Any

import click

from headrace.cli.output import ago, count
from headrace.cli.place import Broker, Place, located
from headrace.clock import SystemClock
from headrace.config.sources import parse_assignments
from headrace.errors import InvalidArgument

__all__ = ["GROUP_COLUMNS", "agreed", "flat", "given_settings", "setting_text", "topic"]

_SET = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting, such as retry.max_retries=3; repeatable."
)
_YES = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group()
def topic() -> None:
    """Make, look at, change and remove topics."""


@topic.command()
@click.argument("name")
@click.option(
    "--partitions", type=click.IntRange(1), metavar="N", help="Partitions (1): parallel logs, one order each."
)
@click.option(
    "--ordering",
    type=click.Choice(["none", "key", "partition", "strict"], case_sensitive=False),
    metavar="none|key|partition|strict",
    help="What stays in order (key).",
)
@_SET
@located
def create(place: Place, name: str, partitions: int | None, ordering: str | None, settings: tuple[str, ...]) -> None:
    """Make a topic. One that exists is an error."""
    given = given_settings(settings)
    if partitions is not None:
        given["partitions"] = partitions
    if ordering is not None:
        given["ordering"] = ordering
    with place.open(create=True) as broker:
        info = broker.call("topic.create", topic=name, settings=given)
        place.output.value(info, f"topic {name} with {_partitions(info)}")


@topic.command("list")
@click.option("--all", "everywhere", is_flag=True, help="Of every namespace.")
@located
def list_(place: Place, everywhere: bool) -> None:
    """The topics of the namespace."""
    with place.open() as broker:
        topics = broker.call_all("topic.list", namespace=None) if everywhere else broker.call("topic.list")
    now_ns = SystemClock().wall_ns()
    columns: dict[str, Any] = {"namespace": lambda one: one["namespace"]} if everywhere else {}
    columns |= {
        "topic": lambda one: one["topic"],
        "partitions": lambda one: one["partitions"],
        "ordering": lambda one: one["settings"]["ordering"],
        "published": lambda one: one["published"],
        "groups": lambda one: ", ".join(one["groups"]),
        "age": lambda one: ago(one["created_ns"], now_ns),
    }
    place.output.table(topics, columns)


@topic.command()
@click.argument("name")
@located
def show(place: Place, name: str) -> None:
    """A topic and its groups."""
    with place.open() as broker:
        info = broker.call("topic.show", topic=name)
        groups = broker.call("group.list", topic=name)
    out = place.output
    if out.json:
        out.value({**info, "groups": groups})
        return
    out.line(f"topic {info['topic']}, {_partitions(info)}, {count(info['published'])} published")
    changed = {key: value for key, value in flat(info["settings"]) if key in ("ordering", "partitions", "lease")}
    out.line("settings  " + ", ".join(f"{key}={value}" for key, value in changed.items()) + "  (all: topic config)")
    out.table(groups, GROUP_COLUMNS)


GROUP_COLUMNS: dict[str, Any] = {
    "group": lambda one: one["group"] + (" (paused)" if one["paused"] else ""),
    "ready": lambda one: one["ready"],
    "scheduled": lambda one: one["scheduled"],
    "leased": lambda one: one["leased"],
    "acked": lambda one: one["acked"],
    "dead": lambda one: one["dead"],
    "expired": lambda one: one["expired"],
    "consumers": lambda one: len(one["consumers"]),
}


@topic.command()
@click.argument("name")
@_SET
@located
def config(place: Place, name: str, settings: tuple[str, ...]) -> None:
    """Show a topic's settings, or change those given with --set."""
    given = given_settings(settings)
    with place.open() as broker:
        info = (
            broker.call("topic.config", topic=name, settings=given) if given else broker.call("topic.show", topic=name)
        )
    if place.output.json:
        place.output.value(info["settings"])
        return
    for key, value in flat(info["settings"]):
        if not given or key in given:
            place.output.line(f"{key} = {setting_text(value)}")


@topic.command()
@click.argument("name")
@click.option("--group", metavar="GROUP", help="Only what waits for this group.")
@_YES
@located
def purge(place: Place, name: str, group: str | None, yes: bool) -> None:
    """Drop every message that waits, for all groups and for good (or for one group)."""
    with place.open() as broker:
        whom = f"for group {group}" if group is not None else "for all groups, for good"
        agreed(yes, f"drop what waits in topic {name} {whom}", broker)
        result = broker.call("topic.purge", topic=name, group=group)
        place.output.value(result, f"dropped {count(result['dropped'])}")


@topic.command()
@click.argument("name")
@_YES
@located
def delete(place: Place, name: str, yes: bool) -> None:
    """Remove a topic with its messages and groups."""
    with place.open() as broker:
        broker.call("topic.show", topic=name)
        agreed(yes, f"remove topic {name} with its messages and groups", broker)
        place.output.value(broker.call("topic.delete", topic=name), f"removed topic {name}")


def given_settings(settings: tuple[str, ...]) -> dict[str, Any]:
    """``--set`` as a call takes it."""
    try:
        return {one.key: one.value for one in parse_assignments(settings)}
    except InvalidArgument as wrong:
        raise click.UsageError(wrong.message) from None


def setting_text(value: Any) -> str:
    """A setting as --set takes it.

    >>> setting_text(True), setting_text(None), setting_text("30s")
    ('true', 'none', '30s')
    """
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def agreed(yes: bool, what: str, broker: Broker) -> None:
    """Ask somebody who can answer; a script has said what it wants."""
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    with broker.interruptible():
        click.confirm(f"{what}?", abort=True, err=True)


def _partitions(info: Any) -> str:
    return "1 partition" if info["partitions"] == 1 else f"{info['partitions']} partitions"


def flat(settings: Any, prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in settings.items():
        if isinstance(value, dict):
            found += flat(value, f"{prefix}{key}.")
        else:
            found.append((prefix + key, value))
    return found
