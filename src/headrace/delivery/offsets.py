"""A set of offsets, cheap when it is a run and complete when it is not.

    Span(first, count, None)    the run [first, first + count)
    Span(first, count, bits)    any set; first is its smallest offset, count its size

Runs are what healthy traffic is made of, and every operation on one is O(1); a bitmap is only made where a set has
holes. In facts a span is three fields: first, count, and the bitmap's portable serialisation or b"".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from pyroaring import BitMap64

__all__ = ["EMPTY", "Span", "add", "inside", "runs", "span_of", "subtract", "unpack"]


class Span(msgspec.Struct, frozen=True, gc=False):
    first: int
    count: int
    bits: BitMap64 | None = None

    def __iter__(self) -> Iterator[int]:
        if self.bits is None:
            return iter(range(self.first, self.first + self.count))
        return iter(self.bits)

    @property
    def last(self) -> int:
        """The highest offset (of a span that is not empty)."""
        return self.first + self.count - 1 if self.bits is None else int(self.bits.max())

    def packed(self) -> tuple[int, int, bytes]:
        """As the three fields of a fact."""
        return self.first, self.count, b"" if self.bits is None else self.bits.serialize()

    def bitmap(self) -> BitMap64:
        """As a bitmap of its own, for the caller to keep."""
        if self.bits is not None:
            return self.bits.copy()
        bits = BitMap64()
        bits.add_range(self.first, self.first + self.count)
        return bits


EMPTY = Span(0, 0)


def span_of(offsets: BitMap64 | Iterable[int]) -> Span:
    """The span of a set; a set without holes becomes a run."""
    bits = offsets if isinstance(offsets, BitMap64) else BitMap64(offsets)
    count = len(bits)
    if not count:
        return EMPTY
    first = bits.min()
    return Span(first, count) if bits.max() - first == count - 1 else Span(first, count, bits)


def unpack(first: int, count: int, bits: bytes) -> Span:
    """The span of a fact's three fields."""
    return Span(first, count, BitMap64.deserialize(bits) if bits else None)


def add(target: BitMap64, span: Span) -> None:
    """target ∪= span."""
    if span.bits is None:
        if span.count == 1:
            target.add(span.first)
        else:
            target.add_range(span.first, span.first + span.count)
    else:
        target |= span.bits


def subtract(target: BitMap64, span: Span) -> None:
    """target −= span."""
    if span.bits is None:
        if span.count == 1:
            target.discard(span.first)
        else:
            target.remove_range(span.first, span.first + span.count)
    else:
        target -= span.bits


def inside(target: BitMap64, span: Span) -> bool:
    """Whether every offset of ``span`` is in ``target``."""
    if span.bits is None:
        if span.count == 1:
            return span.first in target
        return target.contains_range(span.first, span.first + span.count)
    return span.bits.issubset(target)


def runs(bits: BitMap64) -> Iterator[tuple[int, int]]:
    """A set as (first, count) runs, in order."""
    first = previous = -2
    for offset in bits:
        if offset != previous + 1:
            if first >= 0:
                yield first, previous - first + 1
            first = offset
        previous = offset
    if first >= 0:
        yield first, previous - first + 1
