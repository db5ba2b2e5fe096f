"""The one background thread of a sync client: sends acks that were gathered, renews leases.

It sleeps until a consumer has something for it, in real time, whatever clock the broker runs under. A consumer that is
dropped without being closed is forgotten, and its leases run out as they should.
"""

from __future__ import annotations

from threading import Condition, Thread
from typing import Protocol
from weakref import WeakSet

from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.limits import CLIENT_SETTLE_LINGER_NS, SECOND_NS

__all__ = ["Keeper", "Kept"]


class Kept(Protocol):
    """What the keeper looks after."""

    def keep(self, now_ns: int) -> int | None:
        """Do what is due; when to come again, None: when `Keeper.attend` is called."""
        ...


class Keeper:
    """See the head of this file."""

    def __init__(self, clock: Clock) -> None:
        self.now_ns = clock.monotonic_ns
        self._kept: WeakSet[Kept] = WeakSet()
        self._change = Condition()
        self._thread: Thread | None = None
        self._wake_ns: int | None = None
        self._closed = False

    def add(self, kept: Kept) -> None:
        with self._change:
            self._kept.add(kept)

    def remove(self, kept: Kept) -> None:
        with self._change:
            self._kept.discard(kept)

    def attend(self, at_ns: int) -> None:
        """Come by at this time at the latest."""
        wake_ns = self._wake_ns
        if wake_ns is not None and wake_ns <= at_ns:
            return
        with self._change:
            self._wake_ns = at_ns if self._wake_ns is None else min(at_ns, self._wake_ns)
            if self._thread is None and not self._closed:
                self._thread = Thread(target=self._run, name="headrace-keeper", daemon=True)
                self._thread.start()
            self._change.notify()

    def kept(self) -> list[Kept]:
        """Everything it looks after."""
        with self._change:
            return list(self._kept)

    def _run(self) -> None:
        while True:
            now_ns = self._sleep()
            if now_ns is None:
                return
            soonest_ns: int | None = None
            for each in self.kept():
                try:
                    again_ns = each.keep(now_ns)
                except HeadraceError:
                    again_ns = now_ns + 10 * CLIENT_SETTLE_LINGER_NS  # its owner will meet the error; try again
                if again_ns is not None:
                    soonest_ns = again_ns if soonest_ns is None else min(soonest_ns, again_ns)
            if soonest_ns is not None:
                with self._change:
                    self._wake_ns = soonest_ns if self._wake_ns is None else min(soonest_ns, self._wake_ns)

    def _sleep(self) -> int | None:
        """Until something is due; the time then, None at the end."""
        with self._change:
            while not self._closed:
                now_ns = self.now_ns()
                if self._wake_ns is None:
                    self._change.wait()
                elif self._wake_ns > now_ns:
                    self._change.wait((self._wake_ns - now_ns) / SECOND_NS)
                else:
                    self._wake_ns = None
                    return now_ns
            return None

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=5)
