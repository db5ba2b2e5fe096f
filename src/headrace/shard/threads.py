"""A shard for plain threads: a lock around the core, the sync outside it.

Whoever calls does the work in its own thread: decide, append and fold under the lock, then waits for the sync without
it, so that many threads share one. Nothing runs in the background; what is due is done when somebody calls, and a
thread that waits for messages wakes up for it.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, RLock
from typing import Any, TypeVar

from headrace.clock import Clock
from headrace.errors import Closed, HeadraceError
from headrace.limits import UNDURABLE_BYTES_MAX
from headrace.shard.core import Core, Done

__all__ = ["ThreadHost"]

_T = TypeVar("_T")
_NAP_MAX_NS = 3_600 * 1_000_000_000


class ThreadHost:
    """Runs operations on a core for any number of threads."""

    def __init__(self, core: Core, clock: Clock) -> None:
        self.core = core
        self._journal = core.journal
        self._clock = clock
        self._lock = RLock()
        self._ready = Condition(self._lock)
        self._waiting = 0
        self._closed = False
        self._saving = False

    def run(self, operation: Callable[..., Done], *arguments: Any) -> Any:
        """Do it, wait until it is durable, return its reply; a refusal is raised."""
        return self.finish(self.begin(operation, *arguments))

    def publish_value(
        self, operation: Callable[[str, str, bytes], _T | None], namespace: str, topic: str, value: bytes
    ) -> _T | None:
        """``run`` in line, for the call that is made a message: an operation that answers with what it did up to where
        the journal ends, or with None, when it did nothing and it has to be done another way. Each thread has one under
        way: that is limit enough to what is not durable."""
        core, journal = self.core, self._journal
        with self._lock:
            if self._closed:
                self._check_open()
            reply = operation(namespace, topic, value)
            position = journal.end_position
            if self._waiting:
                self._notify()
        if reply is not None:
            journal.wait_durable(position)
            if position >= core.snapshot_at:
                self._save_snapshot()
        return reply

    def begin(self, operation: Callable[..., Done], *arguments: Any) -> Done:
        """Do it, without waiting."""
        journal = self._journal
        if journal.end_position - journal.durable_position > UNDURABLE_BYTES_MAX:
            journal.wait_durable(journal.end_position)
        with self._lock:
            if self._closed:
                self._check_open()
            done = operation(*arguments)
            if self.core.woken:
                self._notify()
        return done

    def finish(self, done: Done) -> Any:
        """Wait until what ``begin`` did is durable."""
        reply, position = done
        core = self.core
        if position:
            core.journal.wait_durable(position)
        if isinstance(reply, HeadraceError):
            raise reply
        if position >= core.snapshot_at:
            self._save_snapshot()
        return reply

    def run_until(self, operation: Callable[[], Done], wait_ns: int, give_up: Callable[[], bool] | None = None) -> Any:
        """Repeat an operation until its reply is not empty, ``wait_ns`` have passed, or ``give_up`` says so when
        somebody called ``wake``."""
        deadline_ns = self._clock.monotonic_ns() + wait_ns
        while True:
            with self._lock:
                self._check_open()
                done = operation()
                self._notify()
                if not done.reply and wait_ns > 0:
                    left_ns = deadline_ns - self._clock.monotonic_ns()
                    if left_ns > 0 and not (give_up is not None and give_up()):
                        self._nap(left_ns)
                        continue
            return self.finish(done)

    def _nap(self, left_ns: int) -> None:
        """Sleep until somebody made something ready, or something is due."""
        wake_ns = self.core.wake_at_ns()
        if wake_ns is not None:
            left_ns = min(left_ns, max(wake_ns - self.core.clock.now_ns(), 0) + 1_000_000)
        self._waiting += 1
        try:
            self._ready.wait(min(left_ns, _NAP_MAX_NS) / 1e9)
        finally:
            self._waiting -= 1

    def wake(self) -> None:
        """Have everybody who waits look again: time was moved, or somebody gives up."""
        with self._lock:
            self._ready.notify_all()

    def pause(self, wait_ns: int) -> None:
        """Let time pass, unless the broker is closed meanwhile."""
        until_ns = self._clock.monotonic_ns() + wait_ns
        with self._lock:
            while not self._closed:
                left_ns = until_ns - self._clock.monotonic_ns()
                if left_ns <= 0:
                    return
                self._ready.wait(min(left_ns, _NAP_MAX_NS) / 1e9)

    def _notify(self) -> None:
        woken = self.core.woken
        if woken:
            woken.clear()
            if self._waiting:
                self._ready.notify_all()

    def look(self, question: Callable[[Core], _T]) -> _T:
        """Ask the state something that changes nothing."""
        with self._lock:
            self._check_open()
            self.core.tick()
            return question(self.core)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the broker is closed; open it again")

    def _save_snapshot(self) -> None:
        with self._lock:
            if self._saving or self._closed or not self.core.snapshot_due():
                return
            self._saving = True
            position, data = self.core.take_snapshot()
        try:
            self.core.save_snapshot(position, data)
        finally:
            self._saving = False

    def close(self) -> None:
        """Make everything durable and let go of the journal."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._ready.notify_all()
        self.core.journal.close()
