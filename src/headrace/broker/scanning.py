"""Looking through many messages of a partition, portion by portion."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from pyroaring import BitMap64

from headrace.batch import Batch
from headrace.limits import PORTION_BATCHES, PORTION_MESSAGES
from headrace.log import PartitionLog

__all__ = ["scanned"]

Found = Callable[[int, Batch, int], bool]
"""offset, batch, index in the batch → whether to go on."""


def scanned(
    log: PartitionLog, offsets: BitMap64, found: Found, *, worth: Callable[[Batch], bool] | None = None
) -> Generator[int, Any, bool]:
    """Call ``found`` for each message whose offset is in the set, in order; yields between portions.

    ``worth``: whether a batch is looked into at all. False when ``found`` ended it.
    """
    looked, batches = 0, 0
    for first, batch in _batches_of(log, offsets):
        batches += 1
        if worth is None or worth(batch):
            base, end = batch.base_offset, batch.base_offset + batch.count
            for offset in _between(offsets, max(base, first), end):
                looked += 1
                if not found(offset, batch, offset - base):
                    return False
        if looked >= PORTION_MESSAGES or batches >= PORTION_BATCHES:
            looked, batches = 0, 0
            yield 0
    return True


def _batches_of(log: PartitionLog, offsets: BitMap64) -> Iterator[tuple[int, Batch]]:
    """The batches that hold offsets of the set, each with the first of those at or after which it was looked for."""
    count = len(offsets)
    at = 0
    while at < count:
        first = offsets[at]
        batch = log.batch_from(first)
        if batch is None:
            return
        if batch.base_offset > first:  # what lay here is gone
            first = batch.base_offset
        end = batch.base_offset + batch.count
        yield first, batch
        at = int(offsets.rank(end - 1))


def _between(offsets: BitMap64, first: int, end: int) -> Iterator[int]:
    start = int(offsets.rank(first - 1)) if first else 0
    for at in range(start, int(offsets.rank(end - 1))):
        yield offsets[at]
