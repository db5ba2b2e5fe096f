"""What was leased, for doors: as runs of receipts, in portions that fit, or to be given back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headrace.calls import LeasedBatch, Run

__all__ = ["DeliveredRun", "delivered_runs", "mean_bytes", "pieces", "released", "within"]

DeliveredRun = tuple[int, int, int, int, int]
"""Partition, lease id, first offset, count, attempt."""


def delivered_runs(leased: LeasedBatch) -> list[DeliveredRun]:
    """The runs whose messages are those of the batch, in its order."""
    offsets, attempts = leased.batch.offsets(), leased.attempts
    partition, lease_id = leased.partition, leased.lease_id
    if isinstance(offsets, range) and not attempts:
        return [(partition, lease_id, offsets.start, len(offsets), 1)]
    runs: list[DeliveredRun] = []
    first = offsets[0]
    expected, attempt = first, attempts.get(first, 1)
    for offset in offsets:
        its = attempts.get(offset, 1)
        if offset != expected or its != attempt:
            runs.append((partition, lease_id, first, expected - first, attempt))
            first, attempt = offset, its
        expected = offset + 1
    runs.append((partition, lease_id, first, expected - first, attempt))
    return runs


def released(leased: Iterable[LeasedBatch]) -> list[Run]:
    """Receipts of everything that was leased, to give it back."""
    return [Run(*run[:4]) for one in leased for run in delivered_runs(one)]


def pieces(leased: Iterable[LeasedBatch], soft_bytes: int, hard_bytes: int) -> Iterator[list[LeasedBatch]]:
    """The same messages in portions of about ``soft_bytes`` of batches, each at most ``hard_bytes``.

    A message that is larger than that alone comes as a portion of its own: whoever sends it will see that it does not
    fit.
    """
    portion: list[LeasedBatch] = []
    size = 0
    for one in leased:
        for part in _fitting(one, hard_bytes):
            part_bytes = part.batch.size_bytes
            if portion and size + part_bytes > soft_bytes:
                yield portion
                portion, size = [], 0
            portion.append(part)
            size += part_bytes
    if portion:
        yield portion


def mean_bytes(leased: Sequence[LeasedBatch]) -> int:
    """Bytes of one message, on average, at least 1."""
    return max(1, sum(one.batch.size_bytes for one in leased) // sum(one.batch.count for one in leased))


def within(leased: Sequence[LeasedBatch], bytes_max: int) -> tuple[list[LeasedBatch], list[LeasedBatch]]:
    """The first messages that stay within ``bytes_max`` (at least one), and the rest."""
    if sum(one.batch.size_bytes for one in leased) <= bytes_max:
        return list(leased), []
    first, *rest = pieces(leased, bytes_max, bytes_max)
    return first, [one for portion in rest for one in portion]


def _fitting(leased: LeasedBatch, hard_bytes: int) -> Iterator[LeasedBatch]:
    batch = leased.batch
    if batch.size_bytes <= hard_bytes or batch.count == 1:
        yield leased
        return
    middle = batch.count // 2
    for start, stop in ((0, middle), (middle, batch.count)):
        half = LeasedBatch(
            leased.partition, leased.lease_id, batch.slice(start, stop), leased.deadline_ns, leased.attempts
        )
        yield from _fitting(half, hard_bytes)
