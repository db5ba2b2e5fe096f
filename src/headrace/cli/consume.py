"""``headrace consume``: print messages and settle what was printed, or replay without a group.

A message is acked when its line has left this process: lines are written and flushed in slices, and what could not be
written whole (somebody closed the pipe) is given back. Until then it is leased; when the reader is slower than the
lease, others may get it too, and the end of the command says how many that were.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.output import Output, Progress, count
from headrace.cli.place import Broker, Place, located
from headrace.cli.values import MOMENT, PLACE, SPAN, by_partition
from headrace.errors import Closed, HeadraceError, LeaseLost
from headrace.limits import SECOND_NS
from headrace.names import DEFAULT_GROUP

if TYPE_CHECKING:
    from headrace.batch import Batch
    from headrace.calls import ConsumerPort, LeasedBatch, Run, Settle

__all__ = ["consume"]

_ROUND_NS: Final = SECOND_NS // 4
"""One wait for messages, so that Ctrl-C is noticed."""
_RECEIVE_MAX: Final = 1_000
"""Messages leased at a time: what is printed within a moment."""
_SLICE_BYTES: Final = 32 * 1024
"""Written and flushed at a time; half of what a pipe holds."""

Shape = Callable[["Batch", dict[int, int], int], list[bytes]]


@click.command()
@click.argument("topic")
@click.option("--group", metavar="GROUP", help="As this group; made on first use (default).")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many.")
@click.option("--follow", "-f", is_flag=True, help="Wait for more, until Ctrl-C.")
@click.option("--wait", type=SPAN, metavar="SPAN", help="Wait so long for more before ending (0).")
@click.option("--ack", is_flag=True, help="What is printed is done (this is the default).")
@click.option("--nack", is_flag=True, help="What is printed has failed: it comes again, or dies.")
@click.option("--no-ack", is_flag=True, help="What is printed is given back when the command ends.")
@click.option("--error", metavar="TEXT", default="", help="With --nack: kept with the attempt.")
@click.option("--lease", type=SPAN, metavar="SPAN", help="How long others wait for what is being printed.")
@click.option("--consumer", metavar="NAME", help="This consumer's name (host and process).")
@click.option("--from-time", type=MOMENT, metavar="TIME", help="Replay what was published since, such as -1h.")
@click.option("--to-time", type=MOMENT, metavar="TIME", help="Replay what was published before.")
@click.option(
    "--from-offset", "places", type=PLACE, multiple=True, metavar="P:N", help="Replay partition P from N; repeatable."
)
@click.option("--include-deleted", is_flag=True, help="Replay also what retention let go of, out of the archive.")
@located
def consume(
    place: Place,
    topic: str,
    group: str | None,
    limit: int | None,
    from_time: int | None,
    to_time: int | None,
    places: tuple[tuple[int, int], ...],
    include_deleted: bool,
    ack: bool,
    nack: bool,
    no_ack: bool,
    **how: Any,
) -> None:
    """Print a topic's messages and ack them; with --from-… replay them, without a group.

    Without --follow it ends when nothing is ready. A line is the message's value, with --json all of the message.
    """
    if ack + nack + no_ack > 1:
        raise click.UsageError("--ack, --nack and --no-ack are three ends of a message; give one of them")
    if how["follow"] and how["wait"] is not None:
        raise click.UsageError("--follow waits for ever; leave out --wait")
    how["verb"] = "nack" if nack else "release" if no_ack else "ack"
    replaying = from_time is not None or to_time is not None or bool(places) or include_deleted
    if replaying:
        _refuse_with_replay(group, how)
    if how["verb"] == "release" and how["follow"]:
        raise click.UsageError("--no-ack with --follow would print the same again after each lease; use browse")
    if how["error"] and how["verb"] != "nack":
        raise click.UsageError("--error is kept with a --nack; give both")
    with place.open() as broker:
        if replaying:
            offsets = by_partition(places, "--from-offset")
            lines = _Replay(broker, topic, from_time, to_time, offsets, include_deleted=include_deleted)
            lines.print(_shape(place.output.json, leased=False), limit)
        else:
            _consume(broker, topic, group or DEFAULT_GROUP, limit, _shape(place.output.json, leased=True), how)


def _refuse_with_replay(group: str | None, how: dict[str, Any]) -> None:
    wrong = [f"--{name}" for name in ("follow", "wait", "lease", "consumer", "error") if how[name]]
    wrong += ["--group"] if group is not None else []
    wrong += [f"--{'no-ack' if how['verb'] == 'release' else how['verb']}"] if how["verb"] != "ack" else []
    if wrong:
        raise click.UsageError(
            f"{wrong[0]} with --from-… or --to-time: a replay reads the log without a group and ends; to deliver it "
            "again use `headrace group seek`"
        )


# -- as a member of a group --------------------------------------------------------------------------------------------


def _consume(broker: Broker, topic: str, group: str, limit: int | None, shape: Shape, how: dict[str, Any]) -> None:
    broker.call("topic.show", topic=topic)  # a name with a slip in it must not become a topic
    with broker.hints(topic):
        consumer = broker.port.consumer(
            broker.namespace,
            topic,
            group,
            consumer=how["consumer"] or f"{socket.gethostname()}-{os.getpid()}",
            lease_ns=how["lease"],
            prefetch=min(_RECEIVE_MAX, limit or _RECEIVE_MAX),
        )
    printer = _Printer(consumer, shape, how["verb"], how["error"])
    with broker.deferring():
        try:
            with Progress("consumed", shown=None if _piped() else False) as progress:
                while limit is None or printer.printed < limit:
                    most = _RECEIVE_MAX if limit is None else min(_RECEIVE_MAX, limit - printer.printed)
                    leased = _receive(broker, consumer, most, None if how["follow"] else how["wait"] or 0)
                    if not leased:
                        break
                    printer.print(leased)
                    progress.at(printer.printed)
        finally:
            printer.end()


def _piped() -> bool:
    return not sys.stdout.isatty()


def _receive(broker: Broker, consumer: ConsumerPort, most: int, wait_ns: int | None) -> list[LeasedBatch]:
    """Some messages; none after ``wait_ns`` (None: wait for ever)."""
    while True:
        broker.pause()
        round_ns = _ROUND_NS if wait_ns is None else min(wait_ns, _ROUND_NS)
        leased = consumer.receive(most, round_ns)
        if leased:
            return leased
        if wait_ns is not None:
            wait_ns -= round_ns
            if wait_ns <= 0:
                return []


class _Printer:
    """Prints what is leased and settles what is printed."""

    def __init__(self, consumer: ConsumerPort, shape: Shape, verb: str, error: str) -> None:
        self.printed = 0
        self._consumer = consumer
        self._shape = shape
        self._verb = verb
        self._error = error
        self._kept: list[Run] = []
        self._lost: list[HeadraceError] = []

    def print(self, leased: Sequence[LeasedBatch]) -> None:
        for one in leased:
            lines = self._shape(one.batch, dict(one.attempts), one.partition)
            at = 0
            try:
                for part in _slices(lines):
                    _write(part)
                    at += len(part)
            finally:
                self.printed += at
                self._settle(_runs(one, at))

    def _settle(self, runs: list[Run]) -> None:
        from headrace.calls import Settle

        if not runs:
            return
        if self._verb == "release":
            self._kept += runs
        elif self._verb == "nack":
            self._send(Settle(nack=[(run, None, self._error) for run in runs]))
        else:
            self._send(Settle(ack=runs))

    def _send(self, order: Settle) -> None:
        try:
            self._consumer.settle_soon(order)
        except LeaseLost as lost:
            self._lost.append(lost)

    def end(self) -> None:
        """Confirm what was settled, give back the rest, leave the group."""
        try:
            try:
                self._consumer.flush()
            except LeaseLost as lost:
                self._lost.append(lost)
        finally:
            try:
                self._consumer.close()
            except LeaseLost as lost:
                self._lost.append(lost)
            except Closed:
                pass  # the connection is gone, and with it the leases; the error under way says so
        if self._lost:
            Output.note(
                f"some messages were printed after their lease had ended and may come again: {self._lost[0].message}"
            )


def _runs(leased: LeasedBatch, printed: int) -> list[Run]:
    """Receipts of the first messages of a leased batch."""
    from headrace.calls import Run

    offsets = leased.batch.offsets()
    if isinstance(offsets, range):
        return [Run(leased.partition, leased.lease_id, offsets.start, printed)] if printed else []
    runs: list[Run] = []
    first = length = 0
    for offset in offsets[:printed]:
        if length and offset == first + length:
            length += 1
            continue
        if length:
            runs.append(Run(leased.partition, leased.lease_id, first, length))
        first, length = offset, 1
    if length:
        runs.append(Run(leased.partition, leased.lease_id, first, length))
    return runs


def _slices(lines: list[bytes]) -> Iterator[list[bytes]]:
    """Lines that are written in one go."""
    first = size_bytes = 0
    for i, line in enumerate(lines):
        size_bytes += len(line) + 1
        if size_bytes >= _SLICE_BYTES:
            yield lines[first : i + 1]
            first, size_bytes = i + 1, 0
    if first < len(lines):
        yield lines[first:]


def _write(lines: list[bytes]) -> None:
    out = sys.stdout.buffer
    out.write(b"\n".join(lines) + b"\n")
    out.flush()


# -- as a replay -------------------------------------------------------------------------------------------------------


class _Replay:
    """The log between two places, partition by partition, up to its end at this moment."""

    def __init__(
        self,
        broker: Broker,
        topic: str,
        from_time: int | None,
        to_time: int | None,
        offsets: dict[int, int],
        *,
        include_deleted: bool = False,
    ) -> None:
        self._broker = broker
        self._names: dict[str, Any] = {"topic": topic}
        if include_deleted:
            self._names["include_deleted"] = True
        ranges = self._kept(topic, from_time, to_time)
        if include_deleted:
            ranges = self._ever(from_time, to_time)
        for partition in offsets:
            if partition not in ranges:
                raise click.UsageError(
                    f"--from-offset: topic {topic!r} has no partition {partition}; it has {len(ranges)}"
                )
        self._ranges = [
            (partition, max(first, offsets.get(partition, 0)), end)
            for partition, (first, end) in ranges.items()
            if not offsets or partition in offsets
        ]

    def _kept(self, topic: str, from_time: int | None, to_time: int | None) -> dict[int, tuple[int, int]]:
        """From where to where, by partition."""
        ends = self._broker.call("topic.offsets", topic=topic, time_ns=to_time)["partitions"]
        begins = self._broker.call("topic.offsets", topic=topic, time_ns=from_time)["partitions"]
        return {
            begin["partition"]: (
                begin.get("at", begin["start"]),
                end.get("at", end["end"]) if to_time is not None else end["end"],
            )
            for begin, end in zip(begins, ends, strict=True)
        }

    def _ever(self, from_time: int | None, to_time: int | None) -> dict[int, tuple[int, int]]:
        """The same with what lies in the archive: told by whoever reads it."""
        read = self._broker.call("read", from_time_ns=from_time, to_time_ns=to_time, limit=1, **self._names)
        result, batches = read
        ranges, at = {}, 0
        for part in result["parts"]:
            taken = sum(batch.count for batch in batches[at : at + part["batches"]])
            at += part["batches"]
            ranges[part["partition"]] = part["next_offset"] - taken, part["end_offset"]
        return ranges

    def print(self, shape: Shape, limit: int | None) -> None:
        total = sum(max(0, end - first) for _, first, end in self._ranges)
        printed = 0
        with Progress("read", total=min(total, limit or total), shown=None if _piped() else False) as progress:
            for partition, batch in self._batches(limit):
                for part in _slices(shape(batch, {}, partition)):
                    _write(part)
                printed += batch.count
                progress.at(printed)
        if not printed and sys.stderr.isatty():
            Output.note(f"nothing was published there ({count(total)} messages)")

    def _batches(self, limit: int | None) -> Iterator[tuple[int, Batch]]:
        for partition, at, end in self._ranges:
            while at < end and (limit is None or limit > 0):
                self._broker.pause()
                result, batches = self._broker.call(
                    "read", partition=partition, from_offset=at, to_offset=end, limit=limit, **self._names
                )
                for batch in batches:
                    if limit is not None:
                        limit -= batch.count
                    yield partition, batch
                reached = result["parts"][0]["next_offset"]
                if reached <= at:
                    break  # what was here is gone: retention
                at = reached


# -- lines -------------------------------------------------------------------------------------------------------------


def _shape(json: bool, *, leased: bool) -> Shape:
    from headrace.cli.lines import json_lines, terminal_lines, value_lines

    if json:
        return lambda batch, attempts, partition: json_lines(batch, attempts, partition=partition, leased=leased)
    chosen = value_lines if _piped() else terminal_lines
    return lambda batch, attempts, _partition: chosen(batch, attempts)
