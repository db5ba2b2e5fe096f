"""Limits of each key: how many messages of one key may be leased at a time, and how many a second.

A message that would be next, and whose key has reached its limit, is taken out of its lane and kept here, so that it is
looked at once and stands in nobody's way. It goes back when the key may have one more:

    under ``key_concurrency``   one for each message of the key that leaves *leased* or a lane
    under ``key_rate``          when its time has come (``due``), and one each time

What goes back may be kept out again. Whatever is in here is *ready*: moving between a lane and here is no transition
and needs no fact. The counts are those of the leases and are made anew with the lanes; the rates begin anew then too.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from pyroaring import BitMap64

from headrace.delivery.namespace import Bucket
from headrace.limits import KEY_RATES_MAX

__all__ = ["Throttle"]


class Throttle:
    """Of one group in one partition. Keys are hashes; 0 is no key and has no limit."""

    __slots__ = ("_buckets", "_due", "_timed", "_waiting", "concurrency", "kept", "leased", "rate")

    def __init__(self, concurrency: int, rate: float) -> None:
        self.concurrency = concurrency
        self.rate = rate
        self.kept = BitMap64()
        self.leased: dict[int, int] = {}
        self._waiting: dict[int, deque[int]] = {}
        self._buckets: dict[int, Bucket] = {}
        self._due: list[tuple[int, int]] = []
        self._timed: set[int] = set()

    def allows(self, key: int, more: int, now_ns: int) -> bool:
        """Whether a key that already gets ``more`` may have another one."""
        if not key:
            return True
        if self.concurrency and self.leased.get(key, 0) + more >= self.concurrency:
            return False
        if self.rate and (bucket := self._buckets.get(key)) is not None:
            return bucket.room(self.rate, self.rate, now_ns) > more
        return not self.rate or more < max(1.0, self.rate)

    def keep(self, key: int, offset: int, more: int, now_ns: int) -> None:
        """Keep one out of its lane; ``more`` of its key go before it."""
        self.kept.add(offset)
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = deque()
        waiting.append(offset)
        if self.rate and key not in self._timed:
            self._timed.add(key)
            bucket = self._buckets.get(key) or Bucket()
            wait_ns = bucket.wait_ns(more + 1, self.rate, self.rate, now_ns)
            heappush(self._due, (now_ns + max(wait_ns, 1), key))

    def let_go(self, key: int) -> int | None:
        """The next of a key that is kept, if there is one; it is not kept any more."""
        waiting = self._waiting.get(key)
        found = None
        while waiting and found is None:
            offset = waiting.popleft()
            if offset in self.kept:
                self.kept.discard(offset)
                found = offset
        if waiting is not None and not waiting:
            del self._waiting[key]
        return found

    def due(self, now_ns: int) -> list[int]:
        """Those whose time has come, one of each key; they are not kept any more."""
        found: list[int] = []
        while self._due and self._due[0][0] <= now_ns:
            _, key = heappop(self._due)
            self._timed.discard(key)
            offset = self.let_go(key)
            if offset is None:
                continue
            found.append(offset)
            if key in self._waiting:
                self._timed.add(key)
                heappush(self._due, (now_ns + int(1e9 / self.rate) + 1, key))
        return found

    def wait_ns(self, now_ns: int) -> int:
        """How long until the first of them may go by time alone; 0: none does."""
        return max(1, self._due[0][0] - now_ns) if self._due else 0

    def key_wait_ns(self, key: int, now_ns: int) -> int:
        """How long the rate of a key keeps its next message back; those of it that are kept before it not counted."""
        bucket = self._buckets.get(key)
        return 0 if bucket is None else bucket.wait_ns(1, self.rate, self.rate, now_ns)

    def went_out(self, keys: list[int], at_ns: int) -> None:
        """Messages were leased."""
        leased = self.leased
        for key in keys:
            if key:
                leased[key] = leased.get(key, 0) + 1
                if self.rate:
                    bucket = self._buckets.get(key)
                    if bucket is None:
                        self._forget_idle(at_ns)
                        bucket = self._buckets[key] = Bucket()
                    bucket.spend(1, self.rate, at_ns)

    def came_back(self, key: int) -> None:
        """A message left its lease."""
        left = self.leased.get(key, 0) - 1
        if left > 0:
            self.leased[key] = left
        else:
            self.leased.pop(key, None)

    def _forget_idle(self, now_ns: int) -> None:
        """A bucket that has drained is one that was never used."""
        if len(self._buckets) >= KEY_RATES_MAX:
            self._buckets = {key: one for key, one in self._buckets.items() if one.level(self.rate, now_ns) > 0}
