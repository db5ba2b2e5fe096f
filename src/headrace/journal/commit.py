"""Group commit: who writes and syncs the pending round, and who waits.

The rule: one round at a time, no timers. Whoever needs durability while nobody is writing becomes the leader and runs
the round (``run_round``: take what is pending, write, sync, return the new durable position). Who comes later waits;
when the leader is done, those it covered return and one of the others leads the next round, which has gathered in
between. A lone caller therefore syncs at once, in its own thread, and a crowd shares.

Tasks of an event loop must not block: for them one thread, started on first use, is the one who waits.

The first round that fails ends everything: each waiter and each later caller gets ``StorageFailed``.
"""

from __future__ import annotations

import asyncio
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING

from headrace.clock import SystemClock
from headrace.errors import Closed, HeadraceError, StorageFailed, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GroupCommit"]

_CLOCK = SystemClock()


class GroupCommit:
    """Lets threads and tasks share one sync.

    ``durable_position`` is read by anybody and written by leaders only.
    """

    __slots__ = (
        "_callbacks",
        "_closed",
        "_done",
        "_leading",
        "_lock",
        "_run_round",
        "_tasks",
        "_thread",
        "_waiting",
        "_wanted",
        "_work",
        "durable_position",
        "failure",
    )

    def __init__(self, run_round: Callable[[], int], durable_position: int) -> None:
        self._lock = lock = Lock()
        self._run_round = run_round
        self._done = Condition(lock)
        self._work = Condition(lock)
        self._waiting = 0  # for _done
        self._leading = False
        self._closed = False
        self._wanted = durable_position
        self._thread: Thread | None = None
        self._tasks: list[tuple[int, asyncio.Future[None]]] = []
        self._callbacks: list[Callable[[int, HeadraceError | None], None]] = []
        self.durable_position = durable_position
        self.failure: StorageFailed | None = None

    def wait(self, position: int, timeout: float | None = None) -> None:
        """Return when ``position`` is durable, leading rounds as long as nobody else does."""
        deadline_ns = None if timeout is None else _CLOCK.monotonic_ns() + int(timeout * 1e9)
        while (self.durable_position < position or self.failure is not None) and self._must_lead(position, deadline_ns):
            self._lead()

    def _must_lead(self, position: int, deadline_ns: int | None) -> bool:
        with self._lock:
            while True:
                if self.failure is None and self.durable_position >= position:
                    return False
                self._raise_failure()
                if not self._leading:
                    self._leading = True
                    return True
                left_ns = None if deadline_ns is None else deadline_ns - _CLOCK.monotonic_ns()
                if left_ns is not None and left_ns <= 0:
                    raise TimedOut(f"position {position} is not durable yet, only {self.durable_position}")
                self._waiting += 1
                try:
                    self._done.wait(None if left_ns is None else left_ns / 1e9)
                finally:
                    self._waiting -= 1

    def _lead(self) -> None:
        try:
            durable_position = self._run_round()
        except BaseException as error:
            # Whatever interrupted the round, a KeyboardInterrupt included: how much of it was written is unknown.
            failure = error if isinstance(error, StorageFailed) else StorageFailed(f"a commit broke off: {error!r}")
            self._end_round(self.durable_position, failure)
            if isinstance(error, Exception) and error is not failure:
                raise failure from error
            raise
        self._end_round(durable_position, None)

    def _end_round(self, durable_position: int, failure: StorageFailed | None) -> None:
        released: list[asyncio.Future[None]] = []
        with self._lock:
            self.durable_position = durable_position
            self._leading = False
            told = self.failure is not None
            if failure is not None and not told:
                self.failure = failure
            if self._waiting:
                self._done.notify_all()
            if self._wanted > durable_position:
                self._work.notify()
            if self._tasks:
                released, self._tasks = self._split_tasks()
        if released:
            self._release(released, self.failure)
        if not told:
            for callback in self._callbacks:
                callback(durable_position, failure)

    def _split_tasks(self) -> tuple[list[asyncio.Future[None]], list[tuple[int, asyncio.Future[None]]]]:
        if self.failure is not None:
            return [future for _, future in self._tasks], []
        durable = self.durable_position
        return (
            [future for position, future in self._tasks if position <= durable],
            [waiting for waiting in self._tasks if waiting[0] > durable],
        )

    @staticmethod
    def _release(futures: list[asyncio.Future[None]], failure: HeadraceError | None) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for future in futures:
            by_loop.setdefault(future.get_loop(), []).append(future)
        for loop, group in by_loop.items():
            try:
                loop.call_soon_threadsafe(_resolve, group, failure)
            except RuntimeError:
                # The loop was closed under its tasks; nobody waits any more.
                continue

    async def durable(self, position: int) -> None:
        """Return when ``position`` is durable; the commit thread does the waiting."""
        if self.durable_position >= position and self.failure is None:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self.failure is None and self.durable_position >= position:
                return
            self._raise_failure()
            self._tasks.append((position, future))
            self._want(position)
        await future

    def soon(self, position: int) -> None:
        """Have the commit thread make ``position`` durable."""
        with self._lock:
            self._raise_failure()
            self._want(position)

    def on_durable(self, callback: Callable[[int, HeadraceError | None], None]) -> None:
        self._callbacks.append(callback)

    def fail(self, failure: StorageFailed) -> None:
        """End everything from outside a round."""
        with self._lock:
            if self.failure is not None:
                return
            self.failure = failure
            self._done.notify_all()
            released, self._tasks = self._split_tasks()
        self._release(released, failure)
        for callback in self._callbacks:
            callback(self.durable_position, failure)

    def close(self) -> None:
        """Stop the commit thread. What is not durable now is waited for in vain."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
            self._done.notify_all()
            thread, self._thread = self._thread, None
            left, self._tasks = [future for _, future in self._tasks], []
        if thread is not None:
            thread.join()
        self._release(left, Closed("the journal was closed"))

    def _want(self, position: int) -> None:
        self._wanted = max(self._wanted, position)
        if self._thread is None:
            self._thread = Thread(target=self._serve_tasks, name="headrace-commit", daemon=True)
            self._thread.start()
        self._work.notify()

    def _serve_tasks(self) -> None:
        while True:
            with self._lock:
                while not self._closed and (
                    self._leading or self._wanted <= self.durable_position or self.failure is not None
                ):
                    self._work.wait()
                if self._closed:
                    return
                self._leading = True
            try:
                self._lead()
            except HeadraceError:
                # Every waiter was told by _end_round.
                continue

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise StorageFailed(self.failure.message) from self.failure
        if self._closed:
            raise Closed("the journal is closed")


def _resolve(futures: list[asyncio.Future[None]], failure: HeadraceError | None) -> None:
    for future in futures:
        if future.done():
            continue
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(type(failure)(failure.message))
