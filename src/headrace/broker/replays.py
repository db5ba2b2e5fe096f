"""Handing out again what had a certain outcome in a group: the call ``group.replay``.

"Everything that worker 7 acked between two and four o'clock" is a question to the events, sealed or not: they say which
offsets had which outcome, when, at which consumer. Those messages are published once more, for that group alone, with
fresh attempts and a header that says where they come from; the log keeps the first ones for everybody else. With ``to``
they go to another topic instead. A filter (``where``) may have

    outcome         acked (unless it says otherwise), failed, dead, expired or delivered
    consumer        at which consumer
    reason · error (a part of the text)        of what failed or died
    min_attempts    had failed so often, or died, that this was at least that attempt
    from_time_ns, to_time_ns                   when it came to that, the end not included
    key_prefix · header · ids                  of the messages

What retention has let go of meanwhile cannot be handed out; the report counts it as ``left``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Final

from pyroaring import BitMap64

from headrace.batch import Batch
from headrace.broker.broker import Broker
from headrace.broker.history import Columns, History
from headrace.broker.portions import Aside, Work, portioned
from headrace.broker.redriving import Pending, Run, redriven
from headrace.broker.scanning import scanned
from headrace.broker.selection import content_test
from headrace.delivery import Partition, Topic
from headrace.limits import EVENT_ROWS_MAX
from headrace.shard.core import Done

__all__ = ["OUTCOMES", "Replays"]

OUTCOMES: Final = {
    "acked": "acked",
    "failed": "retried",
    "dead": "died",
    "expired": "expired",
    "delivered": "leased",
}
"""What a caller says, and the event that it means."""
Test = Callable[[Batch, int], bool]


class Replays:
    """The call over a broker."""

    def __init__(self, broker: Broker, history: History) -> None:
        self.broker = broker
        self.core = broker.core
        self.history = history

    def calls(self) -> Mapping[str, Callable[..., Done]]:
        return {"group.replay": self.replay}

    @portioned
    def replay(
        self,
        topic: str,
        group: str = "default",
        namespace: str = "default",
        where: Mapping[str, Any] | None = None,
        to: str | None = None,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> Work:
        """Hand messages out once more that had an outcome in a group, at most ``rate`` a second.

        {"matched", "redriven", "left", "topic", "group", "to", "dry_run", "by_consumer", "by_reason", "by_partition",
        "sample": ids}; the counts by consumer and reason are of events, where one message may have several.
        """
        wanted = where or {}
        run = Run(rate, ("consumer", "reason", "partition"), dry_run, topic=topic, group=group, to=to)
        found = self.broker.find_topic(namespace, topic)
        gid = self.broker.find_group(namespace, topic, group).gid
        chosen = _Chosen(group, wanted, run)
        yield from self._look(found, wanted, chosen)
        how: dict[str, Any] = {"keep": True}
        if to is None:
            how["gid"] = gid
        elif not dry_run:
            how["tid"] = self.broker.topic(namespace, to).tid
        for partition in list(found.partitions):
            yield from self._again(partition, chosen.offsets.get(partition.index, BitMap64()), wanted, run, how)
        return run.report()

    def _again(
        self, partition: Partition, offsets: BitMap64, where: Mapping[str, Any], run: Run, how: Mapping[str, Any]
    ) -> Generator[int, Any, None]:
        """Hand out what was chosen of a partition, as far as it is there and its content fits."""
        there = BitMap64()
        there.add_range(partition.start, max(partition.start, partition.end))
        there -= partition.gone
        run.left += len(offsets - there)
        test, pending = _test(where), Pending()

        def take(offset: int, batch: Batch, index: int) -> bool:
            if test is None or test(batch, index):
                run.count(batch, index)
                run.tallies["partition"].add(str(partition.index))
                pending.append((offset, len(batch.value_view(index))))
            return True

        for wait in scanned(self.core.log(partition.pid), offsets & there, take):
            if run.dry:
                pending.clear()
            yield from redriven(self.broker, partition, pending, run, **how)
            yield wait
        if not run.dry:
            yield from redriven(self.broker, partition, pending, run, **how)

    def _look(self, topic: Topic, where: Mapping[str, Any], chosen: _Chosen) -> Generator[int | Aside, Any, None]:
        """Go through the events of a topic, from where they may speak of what is wanted."""
        journal = self.core.journal
        now_at = journal.end_position
        if journal.durable_position < now_at:
            yield lambda: journal.wait_durable(now_at)  # what happened a moment ago counts, too
        at = 0
        if "from_time_ns" in where and "min_attempts" not in where:  # (earlier failures count, too)
            files = self.core.manifest.events.get(topic.tid, ())
            early = [file.end_position for file in files if file.last_ns < where["from_time_ns"]]
            late = [file.first_position for file in files if file.last_ns >= where["from_time_ns"]]
            at = min([max(early, default=0), *late])
        until_ns = where.get("to_time_ns")
        while True:
            columns, following, end = yield from self.history.portion(topic.tid, at, EVENT_ROWS_MAX)
            chosen.take(columns)
            if following >= end or following <= at:
                return
            if until_ns is not None and columns["at_ns"] and columns["at_ns"][-1] >= until_ns:
                return
            at = following
            yield 0


class _Chosen:
    """The offsets by partition whose events are as the filter wants them."""

    def __init__(self, group: str, where: Mapping[str, Any], run: Run) -> None:
        self.offsets: dict[int, BitMap64] = {}
        self._group = group
        self._event = OUTCOMES[where.get("outcome", "acked")]
        self._where = where
        self._run = run
        self._failures = max(0, where.get("min_attempts", 1) - 1)
        self._failed: dict[int, list[BitMap64]] = {}  # by partition: those that failed once, twice, …

    def take(self, columns: Columns) -> None:
        """Look at rows of the events table, in their order."""
        names = ("event", "group", "partition", "first_offset", "last_offset", "offsets", "at_ns")
        for row, (event, group, index, first, last, listed, at_ns) in enumerate(
            zip(*(columns[name] for name in names), strict=True)
        ):
            if group != self._group or index is None or first is None:
                continue
            if event == "sought":
                self._failed.pop(index, None)
                continue
            if event not in (self._event, "retried"):
                continue
            span = BitMap64(listed) if listed is not None else BitMap64()
            if listed is None and last is not None:
                span.add_range(first, last + 1)
            if event == self._event and self._fits(columns, row, at_ns):
                self._choose(index, span)
                for name in ("consumer", "reason"):
                    if columns[name][row] is not None:
                        self._run.tallies[name].add(columns[name][row], len(span))
            if event == "retried" and self._failures:
                self._note_failed(index, span)

    def _choose(self, index: int, span: BitMap64) -> None:
        if self._failures:
            levels = self._failed.get(index, [])
            span = span & levels[self._failures - 1] if len(levels) >= self._failures else BitMap64()
        self.offsets.setdefault(index, BitMap64()).__ior__(span)

    def _note_failed(self, index: int, span: BitMap64) -> None:
        levels = self._failed.setdefault(index, [])
        if len(levels) < self._failures:
            levels.append(BitMap64())
        for number in range(len(levels) - 1, 0, -1):
            levels[number] |= levels[number - 1] & span
        levels[0] |= span

    def _fits(self, columns: Columns, row: int, at_ns: int) -> bool:
        where = self._where
        if not where.get("from_time_ns", 0) <= at_ns < where.get("to_time_ns", at_ns + 1):
            return False
        if any(name in where and columns[name][row] != where[name] for name in ("consumer", "reason")):
            return False
        return "error" not in where or where["error"] in (columns["error"][row] or "")


def _test(where: Mapping[str, Any]) -> Test | None:
    """What a message's own content has to be like."""
    content, ids = content_test(where), where.get("ids")
    if ids is None:
        return content
    return lambda batch, index: batch.base_id + batch.delta(index) in ids and (content is None or content(batch, index))
