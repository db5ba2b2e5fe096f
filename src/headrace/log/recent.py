"""Where in the unsealed journal the facts about a message may be: a coarse index that costs a message next to nothing.

The journal is seen in blocks of ``RECENT_BLOCK_BYTES``. Each block remembers of which stretches of offsets (1,024 wide,
by partition) it speaks. A trace reads the few blocks that may speak of its message instead of the whole journal. A
block whose stretches were too many to keep is always read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from headrace.batch import Batch
from headrace.delivery import BackoffEnded, Died, Due, Fact, Published, Sought
from headrace.limits import RECENT_BLOCK_BYTES, RECENT_STRETCHES_MAX

__all__ = ["RecentFacts"]

_WIDTH_BITS: Final = 10
_PARTITION_BITS: Final = 52


class RecentFacts:
    __slots__ = ("_blocks", "_full_at", "_kept", "_noted", "_open", "_start", "_unbounded", "_waiting")

    def __init__(self, position: int = 0) -> None:
        self._blocks: deque[tuple[int, int, set[int] | None]] = deque()  # start, end, stretches
        self._open: set[int] = set()
        self._noted = -1  # the stretch a published batch was noted with last, and is in the open block
        self._unbounded = False  # the open block speaks of everything from some offset on
        self._waiting: list[Fact] = []  # of the open block, not looked at yet
        self._begin(position)
        self._kept = 0

    def note_alone(self, facts: Sequence[Fact], position: int) -> None:
        """Take in facts that brought no batches; they are looked at when their block is full, or when somebody asks."""
        if position >= self._full_at:
            self._close(position)
        self._waiting += facts

    def note(self, facts: Sequence[Fact], batches: Sequence[Batch], position: int) -> None:
        """Take in the facts of the frame at a position."""
        first = facts[0]
        if len(facts) == 1 and type(first) is Published:
            self.note_published(first.pid, batches[0].base_offset, batches[0].count, position)
            return
        if position >= self._full_at:
            self._close(position)
        self._index(facts, batches)

    def note_published(self, pid: int, base: int, count: int, position: int) -> None:
        """Take in a frame that is one published batch."""
        if position >= self._full_at:
            self._close(position)
        first, last = pid << _PARTITION_BITS | base >> _WIDTH_BITS, (base + count - 1) >> _WIDTH_BITS
        if first == self._noted and base >> _WIDTH_BITS == last:
            return
        self._noted = first
        self._open.add(first)
        if base >> _WIDTH_BITS != last:
            self._open.update(range(first + 1, (pid << _PARTITION_BITS | last) + 1))

    def _index(self, facts: Sequence[Fact], batches: Sequence[Batch]) -> None:
        stretches = self._open
        number = 0
        for fact in facts:
            kind = type(fact)
            if kind is Published:
                batch = batches[number]
                number += 1
                pid, first, last = fact.pid, batch.base_offset, batch.base_offset + batch.count - 1  # type: ignore[union-attr]
            elif kind is Died:
                pid, first, last = fact.pid, fact.offset, fact.offset  # type: ignore[union-attr]
                if fact.to_pid >= 0:  # type: ignore[union-attr]
                    stretches.add(fact.to_pid << _PARTITION_BITS | fact.to_offset >> _WIDTH_BITS)  # type: ignore[union-attr]
            elif kind is Due or kind is BackoffEnded:
                pid = fact.pid  # type: ignore[union-attr]
                stretches.update(pid << _PARTITION_BITS | offset >> _WIDTH_BITS for offset in fact.offsets)  # type: ignore[union-attr]
                continue
            else:
                count = getattr(fact, "count", 0)
                if not count:
                    continue
                pid, first = fact.pid, fact.first  # type: ignore[union-attr]
                if fact.bits:  # type: ignore[union-attr]
                    span = fact.span()  # type: ignore[union-attr]
                    if count <= 1 << _WIDTH_BITS:
                        stretches.update(pid << _PARTITION_BITS | offset >> _WIDTH_BITS for offset in span)
                        continue
                    last = span.last
                else:
                    last = first + count - 1
            low, high = first >> _WIDTH_BITS, last >> _WIDTH_BITS
            stretches.add(pid << _PARTITION_BITS | low)
            if high != low:
                stretches.update(range(pid << _PARTITION_BITS | low + 1, (pid << _PARTITION_BITS | high) + 1))

    def _begin(self, position: int) -> None:
        self._start = position
        self._full_at = position + RECENT_BLOCK_BYTES

    def _look(self) -> None:
        """At what waited."""
        waiting, self._waiting = self._waiting, []
        if not self._unbounded and any(type(fact) is Sought for fact in waiting):
            self._unbounded = True
        try:
            # What most of a journal is made of: one offset, or a few together.
            self._open |= {fact.pid << _PARTITION_BITS | fact.first >> _WIDTH_BITS for fact in waiting}  # type: ignore[union-attr]
            waiting = [fact for fact in waiting if fact.count > 1]  # type: ignore[union-attr]
        except AttributeError:
            pass  # there are others among them
        if waiting:
            self._index(waiting, ())

    def _close(self, position: int) -> None:
        self._look()
        self._blocks.append((self._start, position, None if self._unbounded else self._open))
        self._kept += 0 if self._unbounded else len(self._open)
        self._open = set()
        self._noted = -1
        self._unbounded = False
        self._begin(position)
        if self._kept > RECENT_STRETCHES_MAX:
            for i, (start, end, stretches) in enumerate(self._blocks):
                if stretches is not None:
                    self._kept -= len(stretches)
                    self._blocks[i] = (start, end, None)
                    if self._kept <= RECENT_STRETCHES_MAX // 2:
                        break

    def skip(self, start: int, end: int) -> None:
        """Facts from ``start`` on were not looked at; the first one noted will be at ``end`` or after."""
        if end > start:
            self._blocks.append((start, end, None))
        self._begin(end)

    def blocks(self, pid: int, offset: int) -> Iterator[tuple[int, int]]:
        """(start, end) of the journal's blocks that may speak of a message; the end of the last one is open (-1)."""
        self._look()
        wanted = pid << _PARTITION_BITS | offset >> _WIDTH_BITS
        for start, end, stretches in self._blocks:
            if stretches is None or wanted in stretches:
                yield start, end
        if self._unbounded or wanted in self._open:
            yield self._start, -1

    def forget(self, before: int) -> None:
        """Facts before a position have been sealed."""
        blocks = self._blocks
        while blocks and blocks[0][1] <= before:
            stretches = blocks.popleft()[2]
            self._kept -= len(stretches or ())
