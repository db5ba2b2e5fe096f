"""``headrace dlq``: the dead letters of a topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from headrace.cli.output import Output, ago, count, displayed
from headrace.cli.place import Broker, Place, located
from headrace.cli.topic import agreed
from headrace.cli.values import MESSAGE_ID, MOMENT, Pair, from_epoch
from headrace.clock import SystemClock
from headrace.errors import NotAllowed, UnknownTopic
from headrace.limits import BROWSE_MESSAGES_MAX

__all__ = ["CREATE", "WHERE_OUTCOME", "chosen_by", "dlq", "tell_redriven", "there"]

_COMMON: Final[dict[str, Callable[[str], Any]]] = {
    "reason": str,
    "error": str,
    "consumer": str,
    "min_attempts": int,
    "key_prefix": str,
    "header": str,
    "from_time": MOMENT.parse,
    "to_time": MOMENT.parse,
}
Readers = Mapping[str, Callable[[str], Any]]
WHERE_OUTCOME: Final[Readers] = {"outcome": str, **_COMMON}
_WHERE: Final[Readers] = {"group": str, **_COMMON}
CREATE: Final = click.option("--create", is_flag=True, help="With --to: make the topic if it is not there.")
_FILTER = click.option(
    "--where",
    "where",
    multiple=True,
    type=Pair("reason=max_retries"),
    metavar="NAME=VALUE",
    help=f"Only those; repeatable. NAME: {', '.join(_WHERE)}.",
)
_IDS = click.option("--id", "ids", multiple=True, type=MESSAGE_ID, metavar="ID", help="Only this one; repeatable.")


@click.group()
def dlq() -> None:
    """The dead letters of a topic: look, redrive, purge."""


@dlq.command("list")
@click.argument("topic")
@_FILTER
@_IDS
@click.option(
    "--limit", type=click.IntRange(1, BROWSE_MESSAGES_MAX), default=100, metavar="N", help="At most so many (100)."
)
@located
def list_(place: Place, topic: str, where: tuple[tuple[str, str], ...], ids: tuple[int, ...], limit: int) -> None:
    """Dead letters, oldest first, with where they came from and why they died."""
    chosen = chosen_by(where, ids)
    with place.open() as broker:
        found = broker.call("dlq.list", topic=topic, where=chosen, limit=limit)
    now_ns = SystemClock().wall_ns()
    place.output.table(
        found,
        {
            "id": lambda one: str(one["id"]),
            "died": lambda one: ago(one["died_ns"], now_ns),
            "group": lambda one: one["origin"]["group"],
            "reason": lambda one: one["reason"],
            "attempts": lambda one: one["attempts"],
            "key": lambda one: displayed(one["key"], 24),
            "value": lambda one: displayed(one["value"], 40),
            "error": lambda one: displayed(one["error"], 60),
        },
    )


@dlq.command()
@click.argument("topic")
@click.argument("message_id", metavar="ID", type=MESSAGE_ID)
@located
def show(place: Place, topic: str, message_id: int) -> None:
    """One dead letter, whole."""
    with place.open() as broker:
        found = broker.call("dlq.show", topic=topic, id=message_id)
    out = place.output
    if out.json:
        out.value(found)
        return
    origin = found["origin"]
    out.line(f"message {found['id']}, was {origin['id']} in {origin['topic']}, group {origin['group']}")
    out.line(f"died {from_epoch(found['died_ns'])} of {found['reason']}, after {count(found['attempts'])} attempts")
    for name in ("consumer", "error"):
        if found[name]:
            out.line(f"last {name}: {displayed(found[name], 1000)}")
    if found["key"] is not None:
        out.line(f"key {displayed(found['key'], 1000)}")
    for name, value in found["headers"].items():
        out.line(f"header {displayed(name, 200)}: {displayed(value, 1000)}")
    out.line(displayed(found["value"], 4096))


@dlq.command()
@click.argument("topic")
@_FILTER
@_IDS
@click.option("--to", metavar="TOPIC", help="Publish them there, not to where they died.")
@CREATE
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="At most so many a second.")
@click.option("--dry-run", is_flag=True, help="Only say what would be redriven.")
@located
def redrive(
    place: Place,
    topic: str,
    where: tuple[tuple[str, str], ...],
    ids: tuple[int, ...],
    to: str | None,
    create: bool,
    rate: float | None,
    dry_run: bool,
) -> None:
    """Publish dead letters again, with fresh attempts."""
    chosen = chosen_by(where, ids)
    with place.open() as broker:
        there(broker, to, create)
        done = broker.call("dlq.redrive", topic=topic, where=chosen, to=to, rate=rate, dry_run=dry_run or None)
    tell_redriven(place.output, done)


@dlq.command()
@click.argument("topic")
@_FILTER
@_IDS
@click.option("--yes", is_flag=True, help="Do not ask.")
@located
def purge(place: Place, topic: str, where: tuple[tuple[str, str], ...], ids: tuple[int, ...], yes: bool) -> None:
    """Drop dead letters, for good."""
    chosen = chosen_by(where, ids)
    with place.open() as broker:
        agreed(yes, f"drop {'those' if chosen else 'all'} dead letters of {topic} for good", broker)
        done = broker.call("dlq.purge", topic=topic, where=chosen)
        place.output.value(done, f"dropped {count(done['dropped'])}")


def there(broker: Broker, to: str | None, create: bool) -> None:
    """Messages leave the place they are in: a name with a slip in it must not become a topic that nobody reads."""
    if to is None or create:
        return
    try:
        broker.call("topic.show", topic=to)
    except UnknownTopic as error:
        raise UnknownTopic(f"--to: {error.message}; --create makes it") from None
    except NotAllowed:
        pass  # who may publish there and not look is told by the call itself


def tell_redriven(out: Output, done: Any) -> None:
    """The report of a redrive, or of a replay."""
    if out.json:
        out.value(done)
        return
    if done["dry_run"]:
        out.line(f"{count(done['matched'])} would be redriven")
    else:
        left = f", {count(done['left'])} left behind" if done["left"] else ""
        out.line(f"redrove {count(done['redriven'])}{left}")
    for name in ("reason", "error", "group", "consumer", "partition"):
        for text, number in done.get(f"by_{name}", {}).items():
            out.line(f"  {count(number):>9}  {name} {displayed(text, 100)}")


def chosen_by(
    pairs: tuple[tuple[str, str], ...], ids: tuple[int, ...], known: Readers = _WHERE
) -> dict[str, Any] | None:
    """The filter as the calls take it; None for all."""
    chosen: dict[str, Any] = {}
    for name, text in pairs:
        read = known.get(name)
        if read is None:
            raise click.UsageError(f"--where has no {name!r}; it can have {', '.join(known)}")
        if name == "header":
            header, colon, value = text.partition(":")
            chosen.setdefault("header", {})[header] = value if colon else None
            continue
        if name in chosen:
            raise click.UsageError(f"--where {name} is given twice")
        try:
            value = read(text)
        except ValueError:
            raise click.UsageError(f"--where {name}={text}: must be a whole number") from None
        chosen[f"{name}_ns" if name.endswith("_time") else name] = value
    if ids:
        chosen["ids"] = list(ids)
    return chosen or None
