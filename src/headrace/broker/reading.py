"""The log itself, without a group: the calls ``read``, ``log.segments``, ``log.seal``, and the log as Arrow tables.

A partition's log has up to three parts: what retention let go of and an archive kept, what was sealed, what is in the
journal. Sealed parts are read where they hold nobody up; the journal's part is read by the shard's owner, who sees
whether sealing went on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.batch import Batch
from headrace.broker.broker import Broker
from headrace.broker.portions import Aside, Work, portioned
from headrace.delivery import Partition
from headrace.errors import InvalidArgument
from headrace.limits import READ_BATCHES_MAX, READ_BYTES_MAX
from headrace.shard.core import Core, Done

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.shard.sealing import Sealer

__all__ = ["Reading"]

Off = Generator[int | Aside, Any, int]


class Reading:
    """The calls over a broker; ``sealer`` is set by the host."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.core = broker.core
        self.sealer: Sealer | None = None

    def calls(self) -> Mapping[str, Callable[..., Done]]:
        return {"read": self.read, "log.segments": self.segments, "log.seal": self.seal}

    # -- messages ------------------------------------------------------------------------------------------------------

    @portioned
    def read(
        self,
        topic: str,
        namespace: str = "default",
        partition: int | None = None,
        from_offset: int | None = None,
        to_offset: int | None = None,
        from_time_ns: int | None = None,
        to_time_ns: int | None = None,
        limit: int = 10_000,
        include_deleted: bool = False,
    ) -> Work:
        """The messages of a stretch: the result says where to go on, they come as batches.

        {"parts": [{"partition", "batches", "next_offset", "end_offset"}]}: so many of the batches are of that
        partition; reading on from ``next_offset`` until it reaches ``end_offset`` gives the rest. With
        ``include_deleted`` also what retention has let go of, as far as an archive has it.
        """
        found = self.broker.find_topic(namespace, topic)
        if partition is not None and not 0 <= partition < len(found.partitions):
            raise InvalidArgument(f"partition {partition}: topic {topic!r} has {len(found.partitions)}")
        taken = _Taken(limit)
        parts: list[dict[str, Any]] = []
        for each in list(found.partitions):
            if partition is not None and each.index != partition:
                continue
            first = max(from_offset if from_offset is not None else 0, self._start(each, include_deleted))
            end = each.end if to_offset is None else min(to_offset, each.end)
            if from_time_ns is not None:
                first = max(first, (yield from self._offset_at(each, from_time_ns, include_deleted)))
            if to_time_ns is not None:
                end = min(end, (yield from self._offset_at(each, to_time_ns, include_deleted)))
            before = len(taken.batches)
            at = yield from self._read(each, first, end, taken, include_deleted)
            count = len(taken.batches) - before
            parts.append({"partition": each.index, "batches": count, "next_offset": at, "end_offset": max(end, at)})
        return {"parts": parts}, taken.batches

    def _start(self, partition: Partition, include_deleted: bool) -> int:
        log = self.core.log(partition.pid)
        if include_deleted:
            places = self.core.cold.places(partition.pid, archived=True)
            if places:
                return places[0][0].first
        return log.start

    def _offset_at(self, partition: Partition, time_ns: int, include_deleted: bool) -> Off:
        """The first offset appended at or after a time."""
        cold = self.core.cold
        places = cold.places(partition.pid, archived=include_deleted)
        if places and places[-1][0].last_ns >= time_ns:
            found = yield lambda: cold.offset_since(places, time_ns)
            if isinstance(found, int):
                return found
        return self.core.log(partition.pid).offset_at(time_ns)

    def _read(self, partition: Partition, first: int, end: int, taken: _Taken, include_deleted: bool) -> Off:
        """Take the messages of [first, end) as far as there is room; where to go on."""
        core, pid = self.core, partition.pid
        log = core.log(pid)
        at = first
        while at < min(end, log.journal_start) and not taken.is_full():
            stop = min(end, log.journal_start)
            places = core.cold.places(pid, archived=include_deleted)
            at = yield partial(_take_sealed, core, taken, places, at, stop)
            if not taken.is_full() and at < stop:
                at = stop  # nothing lies between: it was let go of, and no archive has it
        if at < end and not taken.is_full():
            at = taken.take(log.batches(at, end), at, end)
        return at

    def tables(
        self,
        namespace: str,
        topic: str,
        run: Callable[[Callable[[], Done]], Any],
        *,
        partition: int = 0,
        from_offset: int = 0,
        to_offset: int | None = None,
        columns: Sequence[str] | None = None,
        include_deleted: bool = False,
    ) -> Iterator[pa.Table]:
        """A stretch of a partition as tables of the schema of docs/reference/tables.md, a row group at a time, without
        any work a message. ``run`` does an operation on the shard. For this process only."""
        from headrace.log import parquet

        core = self.core
        found = run(lambda: Done(self.broker.find_topic(namespace, topic), 0))
        if not 0 <= partition < len(found.partitions):
            raise InvalidArgument(f"partition {partition}: topic {topic!r} has {len(found.partitions)}")
        mine = found.partitions[partition]
        at = max(from_offset, run(lambda: Done(self._start(mine, include_deleted), 0)))
        end = run(lambda: Done(mine.end, 0)) if to_offset is None else to_offset
        while at < end:
            places, live_from = run(lambda: Done(_places(core, mine.pid, include_deleted), 0))
            for segment, store in places:
                if segment.end > at and segment.first < end:
                    yield from core.cold.tables(segment, max(at, segment.first), min(end, segment.end), columns, store)
                    at = segment.end
            at = max(at, live_from)
            batches = run(partial(_some, core, mine.pid, at, end))
            if not batches:
                return
            table = parquet.messages_table(batches)
            cut = max(0, at - batches[0].base_offset)
            last = batches[-1].base_offset + batches[-1].count
            table = table.slice(cut, table.num_rows - cut - max(0, last - end))
            yield table if columns is None else table.select(list(columns))
            at = last

    # -- files ---------------------------------------------------------------------------------------------------------

    def segments(self, topic: str, namespace: str = "default", include_deleted: bool = False) -> Done:
        """The sealed files of a topic, and from where on the journal has the rest.

        {"location", "archive", "segments": [{"partition", "first", "end", "first_ns", "last_ns", "first_id", "last_id",
        "rows", "size_bytes", "raw_bytes", "uri", "archived"}], "events": [{"uri", "rows", "first_position",
        "end_position", "first_ns", "last_ns", "size_bytes", "archived"}], "starts", "live_from", "ends": {partition:
        offset}}. A ``uri`` is to be taken literally: what looks like percent-encoding in it is part of the file's name.
        Rows below ``starts`` are gone.
        """
        found = self.broker.find_topic(namespace, topic)
        manifest, cold = self.core.manifest, self.core.cold
        segments: list[dict[str, Any]] = []
        for each in found.partitions:
            for segment, store in cold.places(each.pid, archived=include_deleted):
                place = store or cold.store
                segments.append(
                    {
                        "partition": each.index,
                        "first": segment.first,
                        "end": segment.end,
                        "first_ns": segment.first_ns,
                        "last_ns": segment.last_ns,
                        "first_id": segment.first_id,
                        "last_id": segment.last_id,
                        "rows": segment.count,
                        "size_bytes": segment.size_bytes,
                        "raw_bytes": segment.raw_bytes,
                        "uri": place.uri_of(segment.path) if place is not None else segment.path,
                        "archived": store is not None,
                    }
                )
        events = [(file, cold.store) for file in manifest.events.get(found.tid, ())]
        if include_deleted:
            events = [*((file, cold.archive) for file in manifest.archived_events.get(found.tid, ())), *events]
        logs = {str(each.index): self.core.log(each.pid) for each in found.partitions}
        return Done(
            {
                "location": cold.store.uri if cold.store is not None else None,
                "archive": cold.archive.uri if cold.archive is not None else None,
                "segments": segments,
                "events": [
                    {
                        "uri": place.uri_of(file.path) if place is not None else file.path,
                        "rows": file.rows,
                        "first_position": file.first_position,
                        "end_position": file.end_position,
                        "first_ns": file.first_ns,
                        "last_ns": file.last_ns,
                        "size_bytes": file.size_bytes,
                        "archived": place is cold.archive and place is not cold.store,
                    }
                    for file, place in events
                ],
                "starts": {index: log.start for index, log in logs.items()},
                "live_from": {index: max(log.journal_start, log.start) for index, log in logs.items()},
                "ends": {index: log.end for index, log in logs.items()},
            },
            self.core.journal.end_position,
        )

    @portioned
    def seal(self) -> Work:
        """Seal everything that is durable now. {"messages", "files", "file_bytes", "trimmed", "sealed_to"}."""
        sealer = self.sealer
        if sealer is None or sealer.store is None:
            raise InvalidArgument(
                "the log is not sealed here: seal.enabled is false, pyarrow is missing, or nothing is kept on a disk"
            )
        done = yield lambda: sealer.round(everything=True)
        return {
            "messages": done.messages,
            "files": len(done.files),
            "file_bytes": done.file_bytes,
            "trimmed": done.trimmed,
            "sealed_to": done.sealed_to,
        }


class _Taken:
    """What was read so far, and how much more may be."""

    def __init__(self, limit: int) -> None:
        self.batches: list[Batch] = []
        self._left = limit
        self._bytes = 0

    def is_full(self) -> bool:
        return self._left <= 0 or self._bytes >= READ_BYTES_MAX or len(self.batches) >= READ_BATCHES_MAX

    def take(self, batches: Iterator[Batch], first: int, end: int) -> int:
        """Take the parts of batches in [first, end) as far as there is room; where to go on."""
        at = first
        if self.is_full():
            return at
        for batch in batches:
            a = max(0, first - batch.base_offset)
            b = min(batch.count, end - batch.base_offset, a + self._left)
            part = batch if (a, b) == (0, batch.count) else batch.slice(a, b)
            self.batches.append(part)
            self._left -= part.count
            self._bytes += part.size_bytes
            at = batch.base_offset + b
            if self.is_full():
                break
        return at


def _take_sealed(core: Core, taken: _Taken, places: Sequence[Any], first: int, end: int) -> int:
    return taken.take(core.cold.stretch(places, first, end), first, end)


def _places(core: Core, pid: int, archived: bool) -> tuple[list[tuple[Any, Any]], int]:
    return core.cold.places(pid, archived=archived), core.log(pid).journal_start


def _some(core: Core, pid: int, first: int, end: int) -> Done:
    """So many of the journal's batches as make a good table."""
    batches: list[Batch] = []
    size_bytes = 0
    for batch in core.log(pid).batches(first, end):
        batches.append(batch)
        size_bytes += batch.size_bytes
        if size_bytes >= READ_BYTES_MAX:
            break
    return Done(batches, 0)
