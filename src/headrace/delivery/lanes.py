"""Ready messages of one group in one partition, by priority lane.

Within a lane order is by due time, then offset. Most messages are due the moment they are appended, so the order of
``main``, a bitmap, is the order of offsets. The others are the exception and are kept apart:

    front   only where order is by partition: given back or retried, before everything, by (ms, late, offset)
    late    delayed messages and retries whose time has come, by (ms, offset). They come due in the order of time, so
            adding one is nearly always an append; ``late_set`` says who is still here.

A message appended in the same millisecond as a late one comes before it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import lt

from pyroaring import BitMap64

from headrace.delivery.offsets import EMPTY, Span, span_of

__all__ = ["Lane"]


class Lane:
    __slots__ = ("_hint", "front", "late", "late_set", "main")

    def __init__(self) -> None:
        self.main = BitMap64()
        self.front: list[tuple[int, bool, int]] = []  # (ms, whether it was late, offset)
        self.late: deque[tuple[int, int]] = deque()
        self.late_set = BitMap64()
        self._hint = 0  # no offset of main is below this

    def __len__(self) -> int:
        return len(self.main) + len(self.front) + len(self.late_set)

    def __bool__(self) -> bool:
        return bool(self.main) or bool(self.late_set) or bool(self.front)

    def __contains__(self, offset: int) -> bool:
        return offset in self.main or offset in self.late_set or any(offset == entry[2] for entry in self.front)

    # -- putting in ----------------------------------------------------------------------------------------------

    def add_main(self, span: Span) -> None:
        if span.bits is None:
            self.main.add_range(span.first, span.first + span.count)
        else:
            self.main |= span.bits
        self._hint = min(self._hint, span.first)

    def add_one(self, offset: int) -> None:
        self.main.add(offset)
        self._hint = min(self._hint, offset)

    def add_late(self, at_ms: int, offset: int) -> None:
        late, entry = self.late, (at_ms, offset)
        if not late or entry > late[-1]:
            late.append(entry)
        else:
            at = bisect_left(late, entry)
            if late[at] != entry:  # else it was taken out, and its place is still here
                late.insert(at, entry)
        self.late_set.add(offset)

    def add_front(self, at_ms: int, offset: int, *, late: bool) -> None:
        insort(self.front, (at_ms, late, offset))

    # -- looking -------------------------------------------------------------------------------------------------

    def head(self, appended_ms: Callable[[int], int]) -> tuple[int, int] | None:
        """The next message as (ms, offset); None of an empty lane."""
        if self.front:
            at_ms, _, offset = self.front[0]
            return at_ms, offset
        self._settle_late()
        late = self.late[0] if self.late else None
        if not self.main:
            return late
        offset = self.main.next_set_bit(self._hint)
        own = (appended_ms(offset), offset)
        return own if late is None or own[0] <= late[0] else late

    def peek(self, most: int, first_after: Callable[[int], int]) -> tuple[Span, Sequence[int]]:
        """The next ``most`` messages, left where they are; and their order, where it is not that of offsets."""
        main = self.main
        if not self.front and not self.late:
            first = self._hint
            if first not in main:
                if not main:
                    return EMPTY, ()
                first = self._hint = main.next_set_bit(first)
            if most == 1 or main.contains_range(first, first + most):
                return Span(first, most), ()
            return span_of(main[:most]), ()
        order = self._peek_merged(most, first_after)
        return span_of(order), () if all(map(lt, order, order[1:])) else order

    def _peek_merged(self, most: int, first_after: Callable[[int], int]) -> list[int]:
        chosen = [entry[2] for entry in self.front[:most]]
        self._settle_late()
        main = self.main
        i = 0
        for at_ms, offset in self.late:
            room = most - len(chosen)
            if room <= 0:
                break
            if offset not in self.late_set:
                continue
            # What was appended up to and in that millisecond goes first.
            limit = first_after(at_ms)
            before = main.rank(limit - 1) if main and limit else 0
            if before > i:
                taken = main[i : min(before, i + room)]
                chosen += taken
                i += len(taken)
                room = most - len(chosen)
                if room <= 0:
                    break
            chosen.append(offset)
        room = most - len(chosen)
        if room > 0 and main:
            chosen += main[i : i + room]
        return chosen

    def ordered(self, first_after: Callable[[int], int]) -> Iterator[tuple[int, int]]:
        """Front and late messages with their ms, in order (main is in order by itself)."""
        yield from ((at_ms, offset) for at_ms, _, offset in self.front)
        yield from ((at_ms, offset) for at_ms, offset in self.late if offset in self.late_set)

    # -- taking out ----------------------------------------------------------------------------------------------

    def remove(self, span: Span) -> Span:
        """Take out what is here of ``span``; what was."""
        main = self.main
        if not self.front and not self.late:
            if span.bits is None:
                if span.count == 1:
                    if span.first in main:
                        main.discard(span.first)
                        return span
                    return EMPTY
                if main.contains_range(span.first, span.first + span.count):
                    main.remove_range(span.first, span.first + span.count)
                    return span
            elif span.bits.issubset(main):
                main -= span.bits
                return span
        wanted = span.bitmap()
        found = wanted & main
        if found:
            main -= found
        if self.front:
            kept = [entry for entry in self.front if entry[2] not in wanted]
            if len(kept) != len(self.front):
                found.update([entry[2] for entry in self.front if entry[2] in wanted])
                self.front = kept
        late = wanted & self.late_set
        if late:
            self.late_set -= late
            found |= late
            self._settle_late()
        return span_of(found)

    def remove_known(self, span: Span) -> None:
        """Take out a span known to be wholly here."""
        if self.front or self.late:
            self.remove(span)
            return
        if span.bits is None:
            first, count = span.first, span.count
            if count == 1:
                self.main.discard(first)
            else:
                self.main.remove_range(first, first + count)
            if first == self._hint:
                self._hint = first + count
        else:
            self.main -= span.bits

    def _settle_late(self) -> None:
        late, here = self.late, self.late_set
        while late and late[0][1] not in here:
            late.popleft()
