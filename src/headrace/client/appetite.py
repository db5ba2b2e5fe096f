"""How many messages a loop over a consumer asks for at a time.

What lies in a consumer's hands is kept from the others, and what it asks for costs a round trip however little it is.
So the amount follows the handler: it doubles while what came was handled within ``CLIENT_APPETITE_NS``, and halves once
that took four times as long. A slow handler keeps a few messages, a quick one is served by the hundred, and either way
a few hundredths of a second of work wait here. Should a quick handler become slow while much waits, what is beyond the
first few is given back when its leases would have to be renewed (``hand``). A program that has not asked for so long
that all was given back begins with one.
"""

from __future__ import annotations

from headrace.client.arguments import whole
from headrace.limits import CLIENT_APPETITE_NS, CLIENT_PREFETCH_DEFAULT, CLIENT_PREFETCH_GROWN, PREFETCH_MAX

__all__ = ["Appetite"]


class Appetite:
    """See the head of this file.

    >>> appetite = Appetite()
    >>> appetite.came(8, 0)
    >>> appetite.next(1_000), appetite.next(2_000)
    (16, 16)
    """

    __slots__ = ("_came_ns", "_count", "_least", "_most", "_size", "prefetch")

    def __init__(self, prefetch: int | None = None) -> None:
        self.prefetch = CLIENT_PREFETCH_DEFAULT if prefetch is None else whole("prefetch", prefetch, 1, PREFETCH_MAX)
        self._least = self._size = self._most = self.prefetch - self.prefetch // 2  # the port holds the other half
        self._count = 0
        self._came_ns = 0
        if prefetch is None:
            self.grow()

    @property
    def keeps(self) -> int | None:
        """How many may wait here for long; None: as many as were asked for."""
        return None if self._most == self._least else self._least

    def shrink(self) -> None:
        """It was too much."""
        self._size = self._least
        self._count = 0

    def grow(self) -> None:
        """From now on it may; without a ``prefetch`` it does anyway."""
        self._most = max(self._least, CLIENT_PREFETCH_GROWN)

    def came(self, count: int, now_ns: int) -> None:
        """A fetch brought so many."""
        self._count = count
        self._came_ns = now_ns

    def next(self, now_ns: int, *, rested: bool = False) -> int:
        """All of it is handed out: how many to ask for. ``rested``: the program did something else meanwhile."""
        if rested:
            self._count = 0
            return 1
        if self._count >= self._least:
            took_ns = now_ns - self._came_ns
            if took_ns <= CLIENT_APPETITE_NS:
                self._size = min(2 * self._size, self._most)
            elif took_ns > 4 * CLIENT_APPETITE_NS:
                self._size = max(self._size // 2, self._least)
        self._count = 0
        return self._size
