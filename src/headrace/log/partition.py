"""Where the messages of one partition are, and reading them by offset, by time and by id.

    offsets   0 ───────────── cold ─────────────► journal_start ───────── index ─────────► end
              sealed segments (``Cold`` answers)    frames of the journal, newest ones held in ``HotTail``

The index has one entry a batch, in arrays side by side, 40 bytes: first offset, first id, append time in ms, position
of the journal frame, and how many bytes came before. Offsets, ids and times only rise, so every question is a binary
search.

Ten million messages published one by one would still be 400 MB of that. So entries older than the newest
``INDEX_EXACT_ENTRIES`` are thinned: one stays for each ``INDEX_STRIDE_BYTES`` of journal. Offsets below
``_exact_from`` are found by reading on from their entry's frame, over no more than the stride and one frame. An entry
there is a lower bound: where to begin reading, and an id and a time that nothing below the next entry lies under.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Protocol

from headrace.batch import Batch
from headrace.errors import Corrupt
from headrace.limits import INDEX_EXACT_ENTRIES, INDEX_STRIDE_BYTES
from headrace.log.hot import HotTail

__all__ = ["Cold", "Frames", "NoCold", "PartitionLog"]

_MS_NS = 1_000_000


class Frames(Protocol):
    """The journal, as batches."""

    def batches_at(self, position: int) -> list[Batch]:
        """The batches of the frame at a position, durable or not."""
        ...

    def batches_from(self, position: int) -> Iterator[tuple[int, list[tuple[int, Batch]]]]:
        """(position, batches by partition) of the durable frames from a position on."""
        ...

    def durable_position(self) -> int: ...


class Cold(Protocol):
    """The sealed part of every partition."""

    def start(self, pid: int) -> int | None:
        """The first sealed offset, None where nothing is sealed."""
        ...

    def batch_from(self, pid: int, offset: int) -> Batch | None:
        """The sealed batch that holds an offset, or the first one after it."""
        ...

    def offset_at(self, pid: int, time_ns: int) -> int | None:
        """The first sealed offset appended at or after a time."""
        ...

    def offset_of_id(self, pid: int, message_id: int) -> int | None:
        """The sealed offset of a message."""
        ...


class NoCold:
    """Nothing was ever sealed."""

    __slots__ = ()

    def start(self, pid: int) -> int | None:
        return None

    def batch_from(self, pid: int, offset: int) -> Batch | None:
        return None

    def offset_at(self, pid: int, time_ns: int) -> int | None:
        return None

    def offset_of_id(self, pid: int, message_id: int) -> int | None:
        return None


_NO_COLD = NoCold()


class PartitionLog:
    __slots__ = (
        "_bytes",
        "_exact_from",
        "_first_ids",
        "_frames",
        "_offsets",
        "_positions",
        "_tail",
        "_thin_at",
        "_thinned",
        "_times_ms",
        "cold",
        "end",
        "pid",
        "total_bytes",
        "trimmed_to",
    )

    def __init__(self, pid: int, frames: Frames, tail: HotTail, cold: Cold = _NO_COLD) -> None:
        self.pid = pid
        self.end = 0
        self.trimmed_to = 0
        self.total_bytes = 0  # of everything ever appended
        self.cold = cold
        self._frames = frames
        self._tail = tail
        self._offsets = array("Q")
        self._first_ids = array("Q")
        self._times_ms = array("Q")
        self._positions = array("Q")
        self._bytes = array("Q")
        self._thinned = 0  # entries before this one are thinned
        self._thin_at = 2 * INDEX_EXACT_ENTRIES
        self._exact_from = 0  # offsets below are found by reading on from their entry

    # -- writing ---------------------------------------------------------------------------------------------------

    def append(self, batch: Batch, position: int, *, keep: bool = True) -> None:
        """Note a batch and where its frame is."""
        offsets = self._offsets
        offsets.append(batch.base_offset)
        self._first_ids.append(batch.base_id)
        self._times_ms.append(batch.append_time_ns // _MS_NS)
        self._positions.append(position)
        self._bytes.append(self.total_bytes)
        self.total_bytes += batch.size_bytes
        self.end = batch.base_offset + batch.count
        if keep:
            self._tail.put(self.pid, batch)
        if len(offsets) >= self._thin_at:
            self._thin()

    def _thin(self) -> None:
        """Keep one old entry for each stride of journal."""
        positions = self._positions
        durable = self._frames.durable_position()
        start = self._thinned
        stop = len(positions) - INDEX_EXACT_ENTRIES
        while stop > start and positions[stop] >= durable:
            stop -= INDEX_EXACT_ENTRIES  # what is not durable yet can only be read by its own position
        if stop > start:
            kept: list[int] = []
            last = positions[start - 1] if start else -INDEX_STRIDE_BYTES
            for i in range(start, stop):
                if positions[i] - last >= INDEX_STRIDE_BYTES:
                    kept.append(i)
                    last = positions[i]
            if len(kept) < stop - start:
                self._exact_from = self._offsets[stop]
                for column in self._columns():
                    column[start:stop] = array("Q", [column[i] for i in kept])
            self._thinned = start + len(kept)
        self._thin_at = len(positions) + INDEX_EXACT_ENTRIES

    def _columns(self) -> tuple[array[int], ...]:
        return self._offsets, self._first_ids, self._times_ms, self._positions, self._bytes

    # -- where it begins and ends ------------------------------------------------------------------------------------

    @property
    def start(self) -> int:
        """The first offset that can be read."""
        cold = self.cold.start(self.pid)
        first = self.journal_start if cold is None else cold
        return max(first, self.trimmed_to)

    @property
    def journal_start(self) -> int:
        """The first offset whose message is in the journal."""
        return self._offsets[0] if self._offsets else self.end

    @property
    def first_position(self) -> int | None:
        """The journal position from which on this partition needs it."""
        return self._positions[0] if self._positions else None

    def position_before(self, offset: int) -> int:
        """A journal position at or before the frame of an offset; 0 where the journal does not hold it."""
        i = bisect_right(self._offsets, offset) - 1
        return self._positions[i] if i >= 0 else 0

    @property
    def journal_bytes(self) -> int:
        """The size of the batches that are in the journal."""
        return self.total_bytes - self._bytes[0] if self._bytes else 0

    def bytes_before(self, offset: int) -> int:
        """The size of the journal's batches before an offset, to the entry."""
        i = bisect_right(self._offsets, offset) - 1
        return self._bytes[i] - self._bytes[0] if i > 0 else 0

    def offset_after_bytes(self, size_bytes: int) -> int:
        """The first offset of the journal with at least so many bytes before it (``end`` where there is none)."""
        if not self._bytes or size_bytes <= 0:
            return self.journal_start
        i = bisect_left(self._bytes, self._bytes[0] + size_bytes)
        return self._offsets[i] if i < len(self._offsets) else self.end

    def offset_before_bytes(self, size_bytes: int) -> int:
        """The last first-of-an-entry with no more than so many bytes before it."""
        if not self._bytes or size_bytes <= 0:
            return self.journal_start
        if size_bytes >= self.journal_bytes:
            return self.end
        return self._offsets[bisect_right(self._bytes, self._bytes[0] + size_bytes) - 1]

    def entry_offset_at(self, time_ns: int) -> int:
        """An offset at or before the first one of the journal appended at a time, from the index alone."""
        if not self._times_ms:
            return self.end
        return self._offsets[max(0, bisect_left(self._times_ms, time_ns // _MS_NS) - 1)]

    def outlived_to(self, time_ns: int) -> int:
        """As far as the index alone can tell, everything of the journal below this was appended before a time."""
        i = bisect_left(self._times_ms, time_ns // _MS_NS)
        if i == 0 or self._offsets[i - 1] < self._exact_from:
            return self._offsets[max(0, i - 1)] if self._offsets else self.end
        return self._offsets[i] if i < len(self._offsets) else self.end

    def __len__(self) -> int:
        """Entries of the index."""
        return len(self._offsets)

    # -- reading -------------------------------------------------------------------------------------------------------

    def batch_at(self, offset: int) -> Batch | None:
        """The batch that holds an offset."""
        if offset >= self.end or offset < self.trimmed_to:
            return None
        batch = self.batch_from(offset)
        return batch if batch is not None and batch.base_offset <= offset else None

    def batch_from(self, offset: int) -> Batch | None:
        """The batch that holds an offset, or the first one after it."""
        batch = self._tail.get(self.pid, offset)
        if batch is not None:
            return batch
        offsets = self._offsets
        i = bisect_right(offsets, offset) - 1
        if i < 0:
            found = self.cold.batch_from(self.pid, offset)
            if found is not None or not offsets:
                return found
            i, offset = 0, offsets[0]
        if offset >= self.end:
            return None
        if offset < self._exact_from:
            return self._read_on(i, offset)
        base = offsets[i]
        batch = self._tail.get(self.pid, base)
        if batch is None:
            for found in self._frames.batches_at(self._positions[i]):
                if found.base_offset == base and found.base_id == self._first_ids[i]:
                    batch = found
                    break
            else:
                raise Corrupt(f"the frame at {self._positions[i]} holds no batch of partition {self.pid} at {base}")
            self._tail.put_read(self.pid, batch)
        return batch

    def _read_on(self, i: int, offset: int) -> Batch:
        """Read from an entry's frame on to the batch that holds an offset."""
        pid, tail = self.pid, self._tail
        for _, batches in self._frames.batches_from(self._positions[i]):
            for owner, batch in batches:
                if owner != pid or batch.base_offset + batch.count <= self._offsets[i]:
                    continue
                if batch.base_offset > offset:
                    break
                tail.put_read(pid, batch)
                if offset < batch.base_offset + batch.count:
                    return batch
        raise Corrupt(f"no batch of partition {pid} at offset {offset} after position {self._positions[i]}")

    def batches(self, first: int, end: int) -> Iterator[Batch]:
        """The batches that overlap [first, end), whole, in order."""
        offset = max(first, self.start)
        end = min(end, self.end)
        while offset < end:
            batch = self.batch_from(offset)
            if batch is None or batch.base_offset >= end:
                return
            yield batch
            offset = batch.base_offset + batch.count

    def offset_at(self, time_ns: int) -> int:
        """The first offset appended at or after a time."""
        start = self.start
        cold = self.cold.offset_at(self.pid, time_ns)
        if cold is not None:
            return max(cold, start)
        offset = max(self.entry_offset_at(time_ns), self.journal_start)
        for batch in self.batches(offset, self.end):
            if batch.append_time_ns >= time_ns:
                return max(batch.base_offset, start)
        return self.end

    def offset_of_id(self, message_id: int, *, sealed: bool = True) -> int | None:
        """The offset of a message by its id; without ``sealed`` only where the journal holds it."""
        i = bisect_right(self._first_ids, message_id) - 1
        if i < 0:
            return self._readable(self.cold.offset_of_id(self.pid, message_id)) if sealed else None
        base = self._offsets[i]
        following = self._offsets[i + 1] if i + 1 < len(self._offsets) else self.end
        if base >= self._exact_from:
            offset = base + message_id - self._first_ids[i]
            return self._readable(offset if offset < following else None)
        for batch in self.batches(base, following):
            if batch.base_id <= message_id < batch.base_id + batch.count:
                return self._readable(batch.base_offset + message_id - batch.base_id)
        if i or not sealed:
            return None
        # The first entry after a seal has a lower bound for an id: it may still be a sealed one.
        return self._readable(self.cold.offset_of_id(self.pid, message_id))

    def _readable(self, offset: int | None) -> int | None:
        return offset if offset is not None and offset >= self.trimmed_to else None

    # -- letting go ----------------------------------------------------------------------------------------------------

    def trim(self, start: int) -> None:
        """The partition begins at ``start`` now: forget entries of batches that lie wholly before it."""
        self.trimmed_to = max(self.trimmed_to, start)
        i = len(self._offsets) if start >= self.end else max(0, bisect_right(self._offsets, start) - 1)
        self._drop(i)

    def seal(self, end: int, position: int) -> None:
        """Everything below ``end`` is in sealed segments now, everything else in the journal from ``position`` on."""
        if end >= self.end:
            self._drop(len(self._offsets))
            return
        i = bisect_right(self._offsets, end) - 1
        if i < 0:
            return
        self._drop(i)
        if self._positions[0] < position:
            # The entry stands for batches on both sides: it begins at the first one that is left.
            self._offsets[0] = end
            self._positions[0] = position
            if len(self._offsets) > 1:
                self._exact_from = max(self._exact_from, min(self._offsets[1], self.end))
            else:
                self._exact_from = self.end
            self._thinned = max(self._thinned, 1)

    def _drop(self, count: int) -> None:
        if count:
            for column in self._columns():
                del column[:count]
            self._thinned = max(0, self._thinned - count)
            self._thin_at = max(len(self._offsets) + INDEX_EXACT_ENTRIES, 2 * INDEX_EXACT_ENTRIES)

    # -- snapshot --------------------------------------------------------------------------------------------------

    def dump(self) -> list[bytes | int]:
        """The index as plain values."""
        head = [self.pid, self.end, self.trimmed_to, self.total_bytes, self._thinned, self._exact_from]
        return [*head, *(column.tobytes() for column in self._columns())]

    def load(self, end: int, trimmed_to: int, total_bytes: int, thinned: int, exact_from: int, *data: bytes) -> None:
        """The index as ``dump`` gave it, without the partition."""
        self.end, self.trimmed_to, self.total_bytes = end, trimmed_to, total_bytes
        self._thinned, self._exact_from = thinned, exact_from
        for column, entries in zip(self._columns(), data, strict=True):
            column.frombytes(entries)
        self._thin_at = max(2 * INDEX_EXACT_ENTRIES, len(self._offsets) + INDEX_EXACT_ENTRIES)
