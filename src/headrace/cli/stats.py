"""``headrace stats``: what waits, what moves."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.output import count, size
from headrace.cli.place import Broker, Place, located
from headrace.cli.values import SPAN
from headrace.limits import SECOND_NS

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["stats"]

_STATES: Final = ("ready", "scheduled", "leased", "dead")
_WIDE: Final = 100
"""Columns of a console that holds everything."""
_PIPED: Final = 160
"""Columns of a pipe, unless $COLUMNS says otherwise."""


@click.command()
@click.argument("topic", required=False)
@click.option("--watch", "-w", is_flag=True, help="Again and again, with rates, until Ctrl-C.")
@click.option("--every", type=SPAN, default=SECOND_NS, metavar="SPAN", help="With --watch: how often (1s).")
@located
def stats(place: Place, topic: str | None, watch: bool, every: int) -> None:
    """Counts of every topic and group of the namespace, or of one topic."""
    if watch and every < SECOND_NS // 10:
        raise click.UsageError("--every is at least 100ms")
    with place.open() as broker:
        if not watch:
            _print(place, broker.call("stats", topic=topic))
        elif place.output.json:
            _watch_json(place, broker, topic, every)
        else:
            _watch(broker, topic, every)


def _print(place: Place, found: Any) -> None:
    if place.output.json:
        place.output.value(found)
        return
    topics = sorted(found["topics"], key=lambda one: str(one["topic"]))
    rows = [{**group, "topic": each["topic"]} for each in topics for group in each["groups"]]
    columns: dict[str, Any] = {"topic": lambda one: one["topic"], "group": lambda one: one["group"]}
    for name in ("published", *_STATES, "acked", "expired", "delivered", "redelivered", "consumers"):
        columns[name] = lambda one, name=name: one[name]
    place.output.table(rows, columns)
    if not rows:
        place.output.line("no topics")
    place.output.line(_journal(found["journal"]))


def _journal(journal: Any) -> str:
    kept = journal["end_position"] - journal["first_position"]
    return (
        f"journal {size(kept)}, {count(journal['commits'])} commits, {count(journal['fsyncs'])} syncs since the start"
    )


def _watch_json(place: Place, broker: Broker, topic: str | None, every_ns: int) -> None:
    while True:
        place.output.value(broker.call("stats", topic=topic))
        sys.stdout.flush()
        _rest(broker, every_ns)


def _watch(broker: Broker, topic: str | None, every_ns: int) -> None:
    from rich.console import Console
    from rich.live import Live

    before: Any = None
    if not sys.stdout.isatty():
        console = Console(width=None if "COLUMNS" in os.environ else _PIPED)
        while True:
            found = broker.call("stats", topic=topic)
            console.print(_table(found, before, console.width))
            sys.stdout.flush()
            before = found
            _rest(broker, every_ns)
    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            found = broker.call("stats", topic=topic)
            live.update(_table(found, before, console.width), refresh=True)
            before = found
            _rest(broker, every_ns)


def _rest(broker: Broker, span_ns: int) -> None:
    with broker.interruptible():
        time.sleep(span_ns / 1e9)


def _table(found: Any, before: Any, width: int = 120) -> Table:
    """The state now, and what moved each second since the state before; narrow consoles get fewer columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    seconds = (found["now_ns"] - before["now_ns"]) / 1e9 if before is not None else 0.0
    earlier = {
        (each["namespace"], each["topic"], group["group"]): group
        for each in (before["topics"] if before is not None else ())
        for group in each["groups"]
    }
    rates = {"in/s": "published", "out/s": "delivered", "acked/s": "acked"}
    more: tuple[str, ...] = ()
    if width >= _WIDE:
        rates["again/s"] = "redelivered"
        more = ("consumers",)
    table = Table(box=box.SIMPLE_HEAD, caption=_journal(found["journal"]), caption_justify="left", padding=(0, 1, 0, 0))
    for title in ("topic", "group"):
        table.add_column(title, overflow="ellipsis", no_wrap=True)
    for title in (*_STATES, *rates, *more):
        table.add_column(title, justify="right", no_wrap=True)
    for each in sorted(found["topics"], key=lambda one: str(one["topic"])):
        for group in each["groups"]:
            old = earlier.get((each["namespace"], each["topic"], group["group"]))
            table.add_row(
                Text(each["topic"]),
                Text(group["group"]),
                *(count(group[name]) for name in _STATES),
                *(_rate(group, old, name, seconds) for name in rates.values()),
                *(count(group[name]) for name in more),
                style="red" if group["dead"] else None,
            )
    return table


def _rate(group: Any, old: Any, name: str, seconds: float) -> str:
    return "" if old is None or seconds <= 0 else count(max(0, group[name] - old[name]) / seconds)
