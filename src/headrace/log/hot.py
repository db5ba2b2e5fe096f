"""Where the batches of one partition lie in the journal.

One entry a batch, in arrays side by side (32 bytes): the batch's first offset, its first id, its append time, and the
position of the journal frame it is in. Offsets, ids and times all rise, so each question is a binary search. The newest
batches are kept decoded within a budget of bytes shared by all partitions of the shard (``HotTail``).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator

from headrace.batch import Batch

__all__ = ["HotTail", "PartitionLog"]

Fetch = Callable[[int], list[Batch]]
"""The batches of the journal frame at a position."""


class HotTail:
    """The batches read or written last, up to a number of bytes."""

    __slots__ = ("_batches", "_bytes", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._bytes = 0
        self._batches: OrderedDict[tuple[int, int], Batch] = OrderedDict()

    def put(self, pid: int, batch: Batch) -> None:
        key = (pid, batch.base_offset)
        if key in self._batches:
            return
        self._batches[key] = batch
        self._bytes += batch.size_bytes
        while self._bytes > self.bytes_max and len(self._batches) > 1:
            self._bytes -= self._batches.popitem(last=False)[1].size_bytes

    def get(self, pid: int, base_offset: int) -> Batch | None:
        return self._batches.get((pid, base_offset))


class PartitionLog:
    __slots__ = ("_append_ms", "_base_ids", "_fetch", "_offsets", "_positions", "_tail", "end", "pid")

    def __init__(self, pid: int, fetch: Fetch, tail: HotTail) -> None:
        self.pid = pid
        self.end = 0
        self._fetch = fetch
        self._tail = tail
        self._offsets = array("Q")
        self._base_ids = array("Q")
        self._append_ms = array("Q")
        self._positions = array("Q")

    @property
    def start(self) -> int:
        """The first offset that can be read."""
        return self._offsets[0] if self._offsets else self.end

    def __len__(self) -> int:
        return len(self._offsets)

    def append(self, batch: Batch, position: int, *, keep: bool = True) -> None:
        """Note a batch and where its frame is."""
        self._offsets.append(batch.base_offset)
        self._base_ids.append(batch.base_id)
        self._append_ms.append(batch.append_time_ns // 1_000_000)
        self._positions.append(position)
        self.end = batch.base_offset + batch.count
        if keep:
            self._tail.put(self.pid, batch)

    def batch_at(self, offset: int) -> Batch | None:
        """The batch that holds an offset."""
        i = bisect_right(self._offsets, offset) - 1
        if i < 0 or offset >= self.end:
            return None
        return self._batch(i)

    def _batch(self, i: int) -> Batch:
        base = self._offsets[i]
        batch = self._tail.get(self.pid, base)
        if batch is None:
            for found in self._fetch(self._positions[i]):
                if found.base_offset == base and found.base_id == self._base_ids[i]:
                    batch = found
                    break
            else:
                raise LookupError(f"frame {self._positions[i]} holds no batch at offset {base}")
            self._tail.put(self.pid, batch)
        return batch

    def batches(self, first: int, end: int) -> Iterator[Batch]:
        """The batches that overlap [first, end), whole, in order."""
        i = max(0, bisect_right(self._offsets, first) - 1)
        while i < len(self._offsets) and self._offsets[i] < end:
            yield self._batch(i)
            i += 1

    def offset_at(self, time_ns: int) -> int:
        """The first offset appended at or after a time (to the millisecond)."""
        i = bisect_left(self._append_ms, time_ns // 1_000_000)
        return self._offsets[i] if i < len(self._offsets) else self.end

    def offset_of_id(self, message_id: int) -> int | None:
        """The offset of a message by its id."""
        i = bisect_right(self._base_ids, message_id) - 1
        if i < 0:
            return None
        offset = self._offsets[i] + message_id - self._base_ids[i]
        following = self._offsets[i + 1] if i + 1 < len(self._offsets) else self.end
        return offset if offset < following else None

    def entries(self) -> Iterator[tuple[int, int, int, int]]:
        """(first offset, first id, append ms, frame position) of each batch."""
        return iter(zip(self._offsets, self._base_ids, self._append_ms, self._positions, strict=True))

    def position_of(self, offset: int) -> int | None:
        """The frame that holds an offset."""
        i = bisect_right(self._offsets, offset) - 1
        return self._positions[i] if i >= 0 else None

    def trim(self, start: int) -> None:
        """Forget the batches that lie wholly before ``start``."""
        i = max(0, bisect_right(self._offsets, start) - 1)
        for entries in (self._offsets, self._base_ids, self._append_ms, self._positions):
            del entries[:i]

    # -- snapshot --------------------------------------------------------------------------------------------------

    def dump(self) -> list[bytes | int]:
        """The index as bytes."""
        columns = (self._offsets, self._base_ids, self._append_ms, self._positions)
        return [self.pid, self.end, *(column.tobytes() for column in columns)]

    def load(self, end: int, *columns: bytes) -> None:
        self.end = end
        own = (self._offsets, self._base_ids, self._append_ms, self._positions)
        for entries, data in zip(own, columns, strict=True):
            entries.frombytes(data)
