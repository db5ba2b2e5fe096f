"""What a shard knows about one message: its facts, as rows of the events table.

A message's trace is its facts. Those in the journal are found by the coarse index of ``RecentFacts``, those that were
sealed in the events files whose spans hold the message. Reading the files may take a while and needs nobody's turn, so
it is handed out as a function of its own (``sealed_rows``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace import delivery as d
from headrace.batch import Batch
from headrace.limits import TRACE_EVENTS_MAX
from headrace.log import FACTS
from headrace.log.events import EventRows, Names, Place
from headrace.shard.core import Core

__all__ = ["Row", "live_rows", "names_of", "sealed_rows"]

Row = dict[str, Any]


def names_of(state: d.ShardState, tid: int | None = None) -> Names:
    """Who is who now; of one topic, or of all."""
    topics = list(state.topics.values()) if tid is None else [state.topics[tid]]
    places = {
        pid: Place(partition.topic.tid, partition.topic.namespace, partition.topic.name, partition.index)
        for pid, partition in state.partitions.items()
    }
    groups = {group.gid: (topic.tid, group.name) for topic in topics for group in topic.groups.values()}
    return Names(places, {topic.tid: (topic.namespace, topic.name) for topic in topics}, groups)


def live_rows(core: Core, pid: int, offset: int) -> list[Row]:
    """The durable facts of the journal about a message, as rows of the events table, oldest first."""
    tid = core.state.partitions[pid].topic.tid
    wanted = EventRows(names_of(core.state, tid), core.manifest.carry)
    earliest = max(core.log(pid).position_before(offset), core.journal.first_position, core.manifest.sealed_to)
    for start, end in core.recent.blocks(pid, offset):
        if 0 <= end <= earliest:
            continue
        for frame in core.journal.read(max(start, earliest)):
            if 0 <= end <= frame.position:
                break
            if frame.kind == FACTS:
                facts, batches = d.decode_facts(frame.body)
                about, theirs = _about(facts, batches, pid, offset)
                if about:
                    wanted.add(about, theirs, frame.position)
    rows = wanted.topics.get(tid)
    if rows is None:
        return []
    names = list(rows.columns)
    found = [dict(zip(names, values, strict=True)) for values in zip(*rows.columns.values(), strict=True)]
    return [row for row in found if _row_speaks_of(row, core.state.partitions[pid].index, offset)][-TRACE_EVENTS_MAX:]


def sealed_rows(core: Core, pid: int, offset: int, since_ns: int = 0) -> Callable[[], list[Row]] | None:
    """What reads the rows about a message out of the events files; None where no file speaks of it. ``since_ns``: when
    it was published."""
    partition = core.state.partitions[pid]
    files = [
        file
        for file in core.manifest.events.get(partition.topic.tid, ())
        if file.last_ns >= since_ns and file.speaks_of(pid, offset)
    ]
    if not files:
        return None
    cold, index = core.cold, partition.index

    def read() -> list[Row]:
        rows: list[Row] = []
        for file in files:
            rows += cold.events_about(file, index, offset)
        return [row for row in rows if _row_speaks_of(row, index, offset)][-TRACE_EVENTS_MAX:]

    return read


def _row_speaks_of(row: Row, index: int, offset: int) -> bool:
    if row["partition"] != index:
        return False
    if row["offsets"] is not None:
        return offset in row["offsets"]
    first, last = row["first_offset"], row["last_offset"]
    return (first is None or first <= offset) and (last is None or offset <= last)


def _about(
    facts: Sequence[d.Fact], batches: Sequence[Batch], pid: int, offset: int
) -> tuple[list[d.Fact], list[Batch]]:
    """The facts of a frame that speak of a message (a redriven one: with where it went)."""
    about: list[d.Fact] = []
    theirs: list[Batch] = []
    redriven = any(type(fact) is d.Redriven and fact.pid == pid and _speaks_of(fact, offset) for fact in facts)
    for fact, batch in _with_batches(facts, batches):
        if batch is not None:
            mine = fact.pid == pid and batch.base_offset <= offset < batch.base_offset + batch.count
            if mine or redriven:
                about.append(fact)
                theirs.append(batch)
        elif getattr(fact, "pid", None) == pid and _speaks_of(fact, offset):
            about.append(fact)
    return about, theirs


def _with_batches(facts: Sequence[d.Fact], batches: Sequence[Batch]) -> Iterator[tuple[Any, Batch | None]]:
    number = 0
    for fact in facts:
        if type(fact) is d.Published:
            yield fact, batches[number]
            number += 1
        else:
            yield fact, None


def _speaks_of(fact: Any, offset: int) -> bool:
    match fact:
        case d.Died():
            return fact.offset == offset
        case d.Due() | d.BackoffEnded():
            return offset in fact.offsets
        case d.Sought():
            return fact.start <= offset and not 0 <= fact.stop <= offset
    count = getattr(fact, "count", 0)
    if not count or offset < fact.first:
        return False
    return offset < fact.first + count if not fact.bits else offset in (fact.span().bits or ())
