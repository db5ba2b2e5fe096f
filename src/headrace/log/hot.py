"""The batches kept decoded: those written last, and those read last from the journal, each within a budget of bytes.

The two are apart so that somebody who reads yesterday does not push out what was published a moment ago.
"""

from __future__ import annotations

from collections import OrderedDict

from headrace.batch import Batch

__all__ = ["HotTail"]

_OFFSET_BITS = 63
"""A batch is found by one number, its partition above its first offset: a pair would be one more object to keep."""
_READ_SHARE = 4
"""One part in so many of the budget is for what was read."""


class HotTail:
    """Batches of all partitions of a shard by partition and first offset, up to a number of bytes."""

    __slots__ = ("_batches", "_budget", "_bytes", "_read", "_read_bytes", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._budget = bytes_max - bytes_max // _READ_SHARE
        self._batches: OrderedDict[int, Batch] = OrderedDict()
        self._bytes = 0
        self._read: OrderedDict[int, Batch] = OrderedDict()
        self._read_bytes = 0

    @property
    def size_bytes(self) -> int:
        """What is held now."""
        return self._bytes + self._read_bytes

    def put(self, pid: int, batch: Batch) -> None:
        """Keep a batch that was just written; the oldest make room."""
        batches = self._batches
        batches[pid << _OFFSET_BITS | batch.base_offset] = batch
        held = self._bytes + batch.size_bytes
        if held > self._budget:
            pop_oldest = batches.popitem
            while held > self._budget and len(batches) > 1:
                held -= pop_oldest(False)[1].size_bytes
        self._bytes = held

    def put_read(self, pid: int, batch: Batch) -> None:
        """Keep a batch that was just read; the one read longest ago makes room."""
        key = pid << _OFFSET_BITS | batch.base_offset
        read = self._read
        if key in read or key in self._batches:
            return
        read[key] = batch
        held = self._read_bytes + batch.size_bytes
        budget = self.bytes_max // _READ_SHARE
        while held > budget and len(read) > 1:
            held -= read.popitem(last=False)[1].size_bytes
        self._read_bytes = held

    def get(self, pid: int, base_offset: int) -> Batch | None:
        """The batch that begins at an offset, if it is held."""
        key = pid << _OFFSET_BITS | base_offset
        batch = self._batches.get(key)
        return self._read.get(key) if batch is None else batch
