"""A shard for an event loop: operations run at once, replies leave when they are durable.

The loop's thread is the one owner of the core. An operation decides, appends and folds; its callback is put in line
with the position it needs. Once a round of the loop the journal is told to commit: everything that came in meanwhile,
from all connections, shares one sync, and the callbacks whose position it covers run in order. One timer wakes the
shard for what is due.

A lone caller: handing a sync to the commit thread and back costs two switches between threads, which is as much as a
quick disk takes for the sync itself. So a small round that only one reply waits for is committed here, in the loop, as
long as the disk is quick; after a slow sync the thread does it for a while. With two or more waiting it is always the
thread, so that the next round gathers meanwhile.

Back-pressure: while the disk is behind, the host is ``busy``. A door that can stop reading does so until ``when_eased``
calls back; a caller that goes on regardless is answered Overloaded at a limit well above.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any

from headrace.errors import Closed, HeadraceError, Overloaded
from headrace.limits import (
    COMMIT_ELSEWHERE_ROUNDS,
    COMMIT_HERE_BYTES_MAX,
    COMMIT_HERE_NS_MAX,
    PENDING_REPLIES_HIGH,
    PENDING_REPLIES_MAX,
    UNDURABLE_BYTES_HIGH,
    UNDURABLE_BYTES_MAX,
)
from headrace.shard.core import Core, Done

__all__ = ["LoopHost"]

Callback = Callable[[Any], None]


class LoopHost:
    """Runs operations on a core inside an event loop. ``on_ready`` is told which groups may have something ready;
    ``on_failure`` is told once when the storage has failed."""

    def __init__(
        self,
        core: Core,
        *,
        on_ready: Callable[[set[int]], None] | None = None,
        on_failure: Callable[[HeadraceError], None] | None = None,
    ) -> None:
        self.core = core
        self.failure: HeadraceError | None = None
        self._loop = asyncio.get_running_loop()
        self._on_ready = on_ready
        self._on_failure = on_failure
        self._line: deque[tuple[int, Callback, Any]] = deque()
        self._easing: list[Callable[[], None]] = []
        self._commit_planned = False
        self._gathering = False
        self._committing_here = False
        self._releasing = False
        self._afterwards: list[Callable[[], None]] = []
        self._rounds_elsewhere = 0
        self._thread_id = get_ident()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._saving: asyncio.Future[None] | None = None
        self._closed = False
        self._idle: asyncio.Event = asyncio.Event()
        core.journal.on_durable(self._durable_elsewhere)
        self._rearm()

    # -- back-pressure ---------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether the disk is so far behind that nobody should ask for more."""
        journal = self.core.journal
        return (
            journal.end_position - journal.durable_position > UNDURABLE_BYTES_HIGH
            or len(self._line) > PENDING_REPLIES_HIGH
        )

    def when_eased(self, callback: Callable[[], None]) -> None:
        """Call back once, when the host is no longer ``busy`` (or has failed)."""
        self._easing.append(callback)
        self._plan_commit()

    def _ease(self) -> None:
        easing, self._easing = self._easing, []
        for callback in easing:
            callback()

    # -- operations ------------------------------------------------------------------------------------------------

    def then(self, operation: Callable[[], Done], callback: Callback) -> None:
        """Do it now; call back with the reply (or the error, as a value) once it is durable."""
        if self.failure is not None or self._closed:
            callback(self.failure or Closed("the broker is closed"))
            return
        journal = self.core.journal
        if (
            len(self._line) >= PENDING_REPLIES_MAX
            or journal.end_position - journal.durable_position > UNDURABLE_BYTES_MAX
        ):
            callback(Overloaded(f"{len(self._line)} calls wait for the disk; try again in a moment"))
            self._plan_commit()
            return
        try:
            reply, position = operation()
        except HeadraceError as error:
            if error.code == "storage_failed":
                self._fail(error)
            elif journal.end_position > journal.durable_position:
                self._plan_commit()  # part of it may have happened: a topic made for a batch that was refused
            callback(error)
            return
        line = self._line
        if position <= journal.durable_position and not line:
            callback(reply)
        else:
            line.append((position, callback, reply))
            if not self._commit_planned:
                self._plan_commit()
        self._settle_down()

    async def run(self, operation: Callable[[], Done]) -> Any:
        """Do it, and return the reply once it is durable; a refusal is raised."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self.then(operation, lambda reply: None if future.done() else future.set_result(reply))
        reply = await future
        if isinstance(reply, HeadraceError):
            raise reply
        return reply

    def _settle_down(self) -> None:
        """After every operation: tell who may be served, and be woken in time."""
        core = self.core
        woken = core.woken
        if woken:
            core.woken = set()
            if self._on_ready is not None:
                self._on_ready(woken)
        if self._timer is None or core.state.look_at_ns < self._timer_ns:
            self._rearm()

    # -- commits ---------------------------------------------------------------------------------------------------

    def gather(self) -> None:
        """Plan no commit until ``commit_gathered``: whoever calls holds all that can come in with this round."""
        self._gathering = True

    def commit_gathered(self) -> None:
        """Commit what came in meanwhile, now and not at the end of the round."""
        self._gathering = False
        if self._commit_planned:
            self._commit()

    def _plan_commit(self) -> None:
        if not self._commit_planned:
            self._commit_planned = True
            if not self._gathering:
                self._loop.call_soon(self._commit)

    def _commit(self) -> None:
        self._commit_planned = False
        if self._closed or self.failure is not None:
            return
        journal = self.core.journal
        if not self._line and journal.end_position == journal.durable_position:
            return  # it was gathered and committed before its turn came
        try:
            if len(self._line) == 1 and self._rounds_elsewhere <= 0 and self._little():
                self._commit_here()
            else:
                self._rounds_elsewhere -= 1
                journal.commit_soon()
        except HeadraceError as error:
            self._fail(error)

    def _little(self) -> bool:
        journal = self.core.journal
        return journal.end_position - journal.durable_position <= COMMIT_HERE_BYTES_MAX

    def _commit_here(self) -> None:
        journal = self.core.journal
        now_ns = self.core.clock.now_ns  # the loop's own clock counts whole milliseconds
        began_ns = now_ns()
        self._committing_here = True
        try:
            journal.wait_durable(journal.end_position)
        finally:
            self._committing_here = False
        if now_ns() - began_ns > COMMIT_HERE_NS_MAX:
            self._rounds_elsewhere = COMMIT_ELSEWHERE_ROUNDS
        self._durable(None)

    def _durable_elsewhere(self, position: int, error: HeadraceError | None) -> None:
        """Called in the thread that committed."""
        if self._committing_here and get_ident() == self._thread_id:
            return  # `_commit_here` goes on by itself
        try:
            self._loop.call_soon_threadsafe(self._durable, error)
        except RuntimeError:
            return  # the loop is gone: whoever waited is too

    def _durable(self, error: HeadraceError | None) -> None:
        if error is not None:
            self._fail(error)
            return
        durable = self.core.journal.durable_position
        line = self._line
        self._releasing = True
        try:
            while line and line[0][0] <= durable:
                _, callback, reply = line.popleft()
                callback(reply)
            while self._afterwards:
                afterwards, self._afterwards = self._afterwards, []
                for write in afterwards:
                    write()
        finally:
            self._releasing = False
            for write in self._afterwards:  # a callback failed: the others are not forgotten
                self._loop.call_soon(write)
            self._afterwards.clear()
        if line:
            self._plan_commit()
        else:
            self._idle.set()
        if self._easing and not self.busy:
            self._ease()
        if self.core.snapshot_due() and self._saving is None and not self._closed:
            self._save_snapshot()

    def afterwards(self, callback: Callable[[], None]) -> None:
        """Call back once the replies that a commit lets go of have all been handed out; at the end of this round of the
        loop when none are being handed out. For a door that writes what was answered, one write a connection."""
        if self._releasing:
            self._afterwards.append(callback)
        else:
            self._loop.call_soon(callback)

    def fail(self, error: HeadraceError) -> None:
        """A journal beside this one has failed, and so has the server: the same as if it were this one."""
        self._fail(error)

    def _fail(self, error: HeadraceError) -> None:
        if self.failure is not None:
            return
        self.failure = error
        line, self._line = self._line, deque()
        for _, callback, _ in line:
            callback(error)
        self._ease()
        self._idle.set()
        if self._on_failure is not None:
            self._on_failure(error)

    # -- time ------------------------------------------------------------------------------------------------------

    def _rearm(self) -> None:
        wake_ns = self.core.wake_at_ns()
        if wake_ns is None or (self._timer is not None and self._timer_ns <= wake_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = wake_ns
        delay_ns = max(0, wake_ns - self.core.clock.now_ns())
        self._timer = self._loop.call_later(delay_ns / 1e9, self._tick)

    def tick(self) -> None:
        """Do what is due now, because time was moved."""
        if self._timer is not None:
            self._timer.cancel()
        self._tick()

    def _tick(self) -> None:
        self._timer = None
        if self._closed or self.failure is not None:
            return
        try:
            self.core.tick()
        except HeadraceError as error:
            self._fail(error)
            return
        journal = self.core.journal
        if journal.end_position != journal.durable_position:
            self._plan_commit()
        self._settle_down()

    # -- snapshots and the end -------------------------------------------------------------------------------------

    def _save_snapshot(self) -> None:
        position, data = self.core.take_snapshot()
        self._saving = self._loop.run_in_executor(None, self.core.save_snapshot, position, data)
        self._saving.add_done_callback(self._snapshot_saved)

    def _snapshot_saved(self, saving: asyncio.Future[None]) -> None:
        self._saving = None
        error = None if saving.cancelled() else saving.exception()
        if isinstance(error, HeadraceError):
            self._fail(error)

    async def drain(self) -> None:
        """Wait until every reply has left."""
        while self._line and self.failure is None:
            self._idle.clear()
            self._plan_commit()
            await self._idle.wait()

    async def close(self) -> None:
        """Drain, then let go of the journal."""
        if self._closed:
            return
        await self.drain()
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._saving is not None:
            await asyncio.wait([self._saving])
        await self._loop.run_in_executor(None, self.core.journal.close)
