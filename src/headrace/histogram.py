"""Counting how large things are, for a twentieth of a microsecond each: fixed bounds, plain integers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

__all__ = ["SECONDS_BOUNDS_NS", "SIZE_BOUNDS_BYTES", "Histogram"]

_MS_NS: Final = 1_000_000
SECONDS_BOUNDS_NS: Final = tuple(
    int(ms * _MS_NS)
    for ms in (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 60_000, 300_000)
)
"""From a good disk's sync to the backlog of a lunch break."""
SIZE_BOUNDS_BYTES: Final = tuple(256 * 4**power for power in range(11))
"""256 bytes to 256 MiB."""


class Histogram:
    """How many were at most so large, bound by bound; the last count is of those above every bound.

    >>> seen = Histogram((10, 100))
    >>> seen.observe(7); seen.observe(70, times=2); seen.observe(700)
    >>> seen.counts, seen.total, seen.count
    ([1, 2, 1], 847, 4)
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0

    def observe(self, value: int, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, part: float) -> float | None:
        """About where the given part of all lies (linear inside its bucket; the last bound when above all of them).

        >>> seen = Histogram((10, 20))
        >>> for value in (2, 4, 12, 14): seen.observe(value)
        >>> seen.quantile(0.5), seen.quantile(0.75)
        (10.0, 15.0)
        """
        count = self.count
        if not count:
            return None
        wanted, below, low = part * count, 0, 0
        for bound, here in zip(self.bounds, self.counts, strict=False):
            if here and below + here >= wanted:
                return low + (bound - low) * (wanted - below) / here
            below += here
            low = bound
        return float(self.bounds[-1])
