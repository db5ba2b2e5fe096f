"""When things are due: a calendar of buckets.

An entry is (due in milliseconds, offset). Entries lie unsorted, packed in eight bytes each, in buckets 4,096 ms wide:

    bucket number = due_ms >> 12           entry = (due_ms & 0xFFF) << 52 | offset

Inserting is an append; the earliest bucket alone is sorted, when its turn comes. A hierarchical wheel would move every
entry once per level and needs a horizon; this needs neither, keeps eight bytes an entry whatever the distance, and a
timer years away costs what one a second away does. (Decision record: docs/decisions/0002-calendar-of-buckets.md.)

An index, never the truth: cancelling is removing the offset from the set that says who is scheduled; the entry left
here is passed over when it comes up. ``forget`` counts such leftovers and ``compact`` drops them.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush

__all__ = ["OFFSET_BITS", "DueTimes"]

OFFSET_BITS = 52
_WIDTH_BITS = 12
_OFFSET_MASK = (1 << OFFSET_BITS) - 1
_WIDTH_MASK = (1 << _WIDTH_BITS) - 1
_COMPACT_AFTER = 4096
"""Leftovers under this number are not worth a pass over everything."""


class DueTimes:
    """Entries by due time; see the head of the file."""

    __slots__ = ("_buckets", "_current", "_number", "_order", "count", "leftovers")

    def __init__(self) -> None:
        self._buckets: dict[int, array[int]] = {}
        self._order: list[int] = []  # heap of the bucket numbers in _buckets
        self._number = -1  # the bucket that _current holds
        self._current: list[int] = []  # its entries, sorted descending: the next one is at the end
        self.count = 0
        self.leftovers = 0

    def __len__(self) -> int:
        return self.count

    def add(self, due_ms: int, offset: int) -> None:
        """One more entry."""
        number = due_ms >> _WIDTH_BITS
        packed = (due_ms & _WIDTH_MASK) << OFFSET_BITS | offset
        self.count += 1
        if number == self._number:
            insort(self._current, packed, key=_descending)
            return
        bucket = self._buckets.get(number)
        if bucket is None:
            self._buckets[number] = array("Q", (packed,))
            heappush(self._order, number)
        else:
            bucket.append(packed)

    def add_many(self, entries: Iterable[tuple[int, int]]) -> None:
        """Many entries, each (due_ms, offset)."""
        add = self.add
        for due_ms, offset in entries:
            add(due_ms, offset)

    def next_due_ms(self) -> int | None:
        """When the earliest entry is due (it may be a leftover)."""
        if self._order and (not self._current or self._order[0] < self._number):
            self._open_earliest()
        if not self._current:
            return None
        return self._number << _WIDTH_BITS | self._current[-1] >> OFFSET_BITS

    def pop_due(self, now_ms: int, most: int) -> list[tuple[int, int]]:
        """Take out up to ``most`` entries due by ``now_ms``, earliest first, as (due_ms, offset)."""
        taken: list[tuple[int, int]] = []
        while len(taken) < most:
            due = self.next_due_ms()
            if due is None or due > now_ms:
                break
            base = self._number << _WIDTH_BITS
            current = self._current
            last = now_ms - base
            while current and len(taken) < most:
                packed = current[-1]
                at = packed >> OFFSET_BITS
                if at > last:
                    break
                current.pop()
                taken.append((base | at, packed & _OFFSET_MASK))
        self.count -= len(taken)
        return taken

    def peek_due(self, now_ms: int, most: int) -> list[tuple[int, int]]:
        """What ``pop_due`` would take, left where it is."""
        taken = self.pop_due(now_ms, most)
        self.add_many(reversed(taken))
        return taken

    def forget(self, count: int = 1) -> None:
        """Say that ``count`` entries have become leftovers."""
        self.leftovers += count

    @property
    def crowded(self) -> bool:
        """Whether there are enough leftovers for ``compact`` to be worth it."""
        return self.leftovers >= _COMPACT_AFTER and self.leftovers * 2 >= self.count

    def compact(self, live: Callable[[int, int], bool]) -> None:
        """Drop the leftovers, when there are enough of them to be worth it."""
        if not self.crowded:
            return
        kept = [entry for entry in self.entries() if live(*entry)]
        self.__init__()  # type: ignore[misc]
        self.add_many(kept)

    def entries(self) -> Iterator[tuple[int, int]]:
        """Every entry, earliest first; a bucket is looked at when its turn comes."""
        order = self._order.copy()  # a heap, too
        if self._current:
            heappush(order, self._number)
        while order:
            number = heappop(order)
            base = number << _WIDTH_BITS
            packed_entries = [*self._buckets.get(number, ()), *(self._current if number == self._number else ())]
            for packed in sorted(packed_entries):
                yield base | packed >> OFFSET_BITS, packed & _OFFSET_MASK

    def first(self, live: Callable[[int, int], bool]) -> tuple[int, int] | None:
        """The earliest entry that is live. The leftovers before it are dropped: nobody meets them twice."""
        while (due_ms := self.next_due_ms()) is not None:
            offset = self._current[-1] & _OFFSET_MASK
            if live(due_ms, offset):
                return due_ms, offset
            self._current.pop()
            self.count -= 1
            self.leftovers = max(0, self.leftovers - 1)
        return None

    def _open_earliest(self) -> None:
        if self._current:
            self._buckets[self._number] = array("Q", self._current)
            heappush(self._order, self._number)
        self._number = heappop(self._order)
        self._current = sorted(self._buckets.pop(self._number), reverse=True)


def _descending(packed: int) -> int:
    return -packed
