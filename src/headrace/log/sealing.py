"""A stretch of journal becomes files: messages by partition, facts by topic. Reads frames, gives back bytes; no file is
written here and no state is asked.

    Plan      what is to be sealed, as the owner of the shard sees it: from where to where, which offsets of which
              partitions are still wanted, who is who
    seal      frames → the files and the manifest entry they need

A file holds one partition (messages) or one topic (events) and one UTC day; its path says so in ``name=value`` levels
that any Parquet tool reads as columns:

    messages/ns=…/topic=…/partition=0/date=2026-11-19/00000000000000000000-00000000000000032767.parquet    by offsets
    events/ns=…/topic=…/date=2026-11-19/00000000000000004096-00000000000067108864.parquet                  by positions

Row groups are cut by rows and bytes. What is gathered over all partitions is bounded: beyond it the fullest partition
is written as a (smaller) row group.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google_crc32c import value as crc32c

from headrace.batch import Batch
from headrace.delivery import Published, decode_facts
from headrace.journal import Frame
from headrace.limits import EVENT_GROUP_ROWS, ROW_GROUP_BYTES, ROW_GROUP_ROWS, SEAL_BUFFER_BYTES
from headrace.log.events import EventRows, Names, TopicEvents
from headrace.log.frames import FACTS
from headrace.log.manifest import Carry, EventSegment, Sealed, Segment
from headrace.log.store import encoded

if TYPE_CHECKING:
    from headrace.log.parquet import TableFile

__all__ = ["NewFile", "Plan", "day_of", "events_path", "messages_path", "seal"]

_DAY_NS: Final = 86_400 * 1_000_000_000
_OPEN_END: Final = (1 << 62) - 1
"""Where a fact ends that speaks of everything from an offset on: a group that starts over."""
Pace = Callable[[], None]
"""Called between pieces of work: may sleep, may raise to give up."""


class Plan(NamedTuple):
    """What is to be sealed."""

    start: int
    up_to: int
    names: Names
    wanted: Mapping[int, int]  # pid -> first offset that is still there
    skipped: frozenset[int]  # topics whose history is not kept
    carry: Carry
    taken: frozenset[str]  # paths that are in use, by files of partitions of the same name that are gone
    at_ns: int
    ends: Mapping[int, int]  # pid -> where its log ends


class NewFile(NamedTuple):
    path: str
    content: bytes


def day_of(at_ns: int) -> str:
    """The UTC day of a time, as paths say it."""
    return datetime.fromtimestamp(at_ns // 1_000_000_000, UTC).strftime("%Y-%m-%d")


def messages_path(namespace: str, topic: str, partition: int, day: str, first: int, last: int) -> str:
    place = f"messages/ns={encoded(namespace)}/topic={encoded(topic)}/partition={partition}/date={day}"
    return f"{place}/{first:020d}-{last:020d}.parquet"


def events_path(namespace: str, topic: str, day: str, first: int, end: int) -> str:
    return f"events/ns={encoded(namespace)}/topic={encoded(topic)}/date={day}/{first:020d}-{end:020d}.parquet"


def free_path(path: str, number: int, taken: frozenset[str]) -> str:
    """The path, or one beside it where a file of another partition (or topic) has it."""
    return path if path not in taken else f"{path.removesuffix('.parquet')}-{number}.parquet"


def seal(frames: Iterable[Frame], plan: Plan, pace: Pace) -> tuple[list[NewFile], Sealed]:
    """Read the frames of ``[start, up_to)``; the files, and the entry that makes them live."""
    stretch = _Stretch(plan, pace)
    for frame in frames:
        if frame.position >= plan.up_to:
            break
        if frame.kind == FACTS:
            stretch.add(frame)
    return stretch.finish()


class _Stretch:
    def __init__(self, plan: Plan, pace: Pace) -> None:
        self._plan = plan
        self._pace = pace
        self._parts: dict[int, _PartitionFile] = {}
        self._held_bytes = 0
        self._rows = EventRows(plan.names, plan.carry, plan.skipped)
        self._events: dict[int, _EventFiles] = {}
        self._files: list[NewFile] = []
        self._segments: list[Segment] = []
        self._frames = 0

    def add(self, frame: Frame) -> None:
        facts, batches = decode_facts(frame.body)
        self._rows.add(facts, batches, frame.position)
        number = 0
        for fact in facts:
            if type(fact) is Published:
                self._add_batch(fact.pid, batches[number])
                number += 1
        self._frames += 1
        if not self._frames % _FRAMES_A_PACE:
            self._drain_events(EVENT_GROUP_ROWS)
            self._pace()

    def _add_batch(self, pid: int, batch: Batch) -> None:
        first = self._plan.wanted.get(pid)
        end = batch.base_offset + batch.count
        if first is None or end <= first:
            return
        if batch.base_offset < first:
            batch = batch.slice(first - batch.base_offset, batch.count)
        part = self._parts.get(pid)
        if part is None:
            part = self._parts[pid] = _PartitionFile(pid)
        if part.day and not part.covers(batch):
            self._end_file(part)
        self._held_bytes += part.hold(batch)
        if part.rows_held >= ROW_GROUP_ROWS or part.bytes_held >= ROW_GROUP_BYTES:
            self._write_group(part)
        elif self._held_bytes > SEAL_BUFFER_BYTES:
            self._write_group(max(self._parts.values(), key=lambda each: each.bytes_held))

    def _write_group(self, part: _PartitionFile) -> None:
        self._held_bytes -= part.bytes_held
        part.write_group()
        self._pace()

    def _end_file(self, part: _PartitionFile) -> None:
        self._write_group(part)
        place = self._plan.names.places[part.pid]
        path = messages_path(place.namespace, place.topic, place.partition, part.day, part.first, part.end - 1)
        path = free_path(path, part.pid, self._plan.taken)
        file, segment = part.finish(path)
        self._files.append(file)
        self._segments.append(segment)
        self._rows.sealed(part.pid, segment.first, segment.end - 1, self._plan.at_ns, self._plan.up_to - 1)

    def _drain_events(self, rows_min: int) -> None:
        for tid, rows in self._rows.topics.items():
            if rows.rows >= rows_min:
                files = self._events.get(tid)
                if files is None:
                    files = self._events[tid] = _EventFiles()
                files.take(rows)

    def finish(self) -> tuple[list[NewFile], Sealed]:
        from headrace.log import parquet

        plan = self._plan
        for part in self._parts.values():
            if part.day:
                self._end_file(part)
        self._drain_events(1)
        events: list[EventSegment] = []
        for tid, files in self._events.items():
            namespace, topic = plan.names.topics[tid]
            pids = {place.partition: pid for pid, place in plan.names.places.items() if place.tid == tid}
            for file in files.finish():
                path = events_path(namespace, topic, file.day, plan.start, plan.up_to)
                path = free_path(path, tid, plan.taken)
                content = file.finish()
                self._files.append(NewFile(path, content))
                events.append(
                    EventSegment(
                        path,
                        tid,
                        file.rows,
                        plan.start,
                        plan.up_to,
                        file.first_ns,
                        file.last_ns,
                        len(content),
                        crc32c(content),
                        tuple(
                            sorted(
                                (pids[index], first, min(last, plan.ends[pids[index]] - 1))
                                for index, (first, last) in file.spans.items()
                                if index in pids
                            )
                        ),
                        parquet.footer_crc(content),
                    )
                )
        carry = self._rows.carry()
        return self._files, Sealed(plan.up_to, self._segments, events, plan.at_ns, carry)


_FRAMES_A_PACE: Final = 256
"""Frames between looks at the clock: with small frames about a millisecond of work."""


class _PartitionFile:
    """The messages of one partition and day: some written as row groups, some held for the next one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.day = ""
        self.first = self.end = 0
        self.bytes_held = self.rows_held = 0
        self._day_ends_ns = 0
        self._held: list[Batch] = []
        self._file: TableFile | None = None
        self._first_id = self._last_id = self._first_ns = self._last_ns = self._raw_bytes = 0

    def covers(self, batch: Batch) -> bool:
        """Whether a batch goes into the same file: on the same day, and right behind what is there."""
        return batch.append_time_ns < self._day_ends_ns and batch.base_offset == self.end

    def hold(self, batch: Batch) -> int:
        if not self.day:
            self.day = day_of(batch.append_time_ns)
            self._day_ends_ns = (batch.append_time_ns // _DAY_NS + 1) * _DAY_NS
            self.first = batch.base_offset
            self._first_id, self._first_ns = batch.base_id, batch.append_time_ns
        self.end = batch.base_offset + batch.count
        self._last_id = batch.base_id + batch.count - 1
        self._last_ns = batch.append_time_ns
        self._held.append(batch)
        self.rows_held += batch.count
        self.bytes_held += batch.size_bytes
        self._raw_bytes += batch.size_bytes
        return batch.size_bytes

    def write_group(self) -> None:
        if not self._held:
            return
        from headrace.log import parquet

        if self._file is None:
            self._file = parquet.TableFile(parquet.MESSAGES, {})
        self._file.add(parquet.messages_table(self._held))
        self._held = []
        self.bytes_held = self.rows_held = 0

    def finish(self, path: str) -> tuple[NewFile, Segment]:
        """The whole file; this one begins anew."""
        from headrace.log import parquet

        content = (self._file or parquet.TableFile(parquet.MESSAGES, {})).finish()
        segment = Segment(
            path,
            self.pid,
            self.first,
            self.end,
            self._first_id,
            self._last_id,
            self._first_ns,
            self._last_ns,
            len(content),
            self._raw_bytes,
            crc32c(content),
            parquet.footer_crc(content),
        )
        self.__init__(self.pid)  # type: ignore[misc]
        return NewFile(path, content), segment


class _DayFile:
    def __init__(self, day: str) -> None:
        from headrace.log import parquet

        self.day = day
        self.first_ns = self.last_ns = 0
        self.spans: dict[int, tuple[int, int]] = {}  # by the index of the partition
        self._file = parquet.TableFile(parquet.EVENTS, {})

    def add(self, columns: dict[str, list[Any]]) -> None:
        from headrace.log import parquet

        first_ns, last_ns = min(columns["at_ns"]), max(columns["at_ns"])
        self.first_ns = min(self.first_ns, first_ns) if self._file.rows else first_ns
        self.last_ns = max(self.last_ns, last_ns)
        spans = self.spans
        for index, first, last in zip(
            columns["partition"], columns["first_offset"], columns["last_offset"], strict=True
        ):
            if index is not None and first is not None:
                if last is None:
                    last = _OPEN_END
                low, high = spans.get(index, (first, last))
                spans[index] = (min(low, first), max(high, last))
        self._file.add(parquet.events_table(columns))

    @property
    def rows(self) -> int:
        return self._file.rows

    def finish(self) -> bytes:
        """The whole file."""
        return self._file.finish()


class _EventFiles:
    """The rows of one topic, a file a day."""

    def __init__(self) -> None:
        self._days: dict[int, _DayFile] = {}

    def take(self, rows: TopicEvents) -> None:
        """Write the rows that were gathered; they are gathered anew."""
        columns = rows.columns
        at_ns = columns["at_ns"]
        days = {rows.first_ns // _DAY_NS, rows.last_ns // _DAY_NS}
        if len(days) == 1:
            self._file(days.pop()).add(columns)
        else:
            numbers = array("q", (at // _DAY_NS for at in at_ns))
            for number in sorted(set(numbers)):
                chosen = [row for row, day in enumerate(numbers) if day == number]
                self._file(number).add({name: [column[row] for row in chosen] for name, column in columns.items()})
        rows.clear()

    def _file(self, number: int) -> _DayFile:
        file = self._days.get(number)
        if file is None:
            file = self._days[number] = _DayFile(day_of(number * _DAY_NS))
        return file

    def finish(self) -> Iterator[_DayFile]:
        for _, file in sorted(self._days.items()):
            yield file
