"""Where the exchange's facts become durable: a journal of its own beside the shard's.

    note, note … then(callback)  ──► end of the round: one frame ──► one sync for all ──► callbacks, in order

The queues are the shard's and survive by its journal; this one holds what ordinary MQTT promises: sessions that outlive
their connection, what is kept for them, retained messages, wills. The two never have to agree: a QoS 2 publish to a
queue is noted in the shard's journal together with its message.

A full disk: what would need a note is refused (``has_room``), what was noted already is held and written as soon as
there is room, and whoever waits for it waits. A failed write or sync is final: nobody is answered any more, and the
server is told, which stops.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from headrace import limits
from headrace.diagnostics import logger
from headrace.errors import Corrupt, HeadraceError
from headrace.pubsub import Exchange, Recovery, facts_of
from headrace.pubsub import facts as f

if TYPE_CHECKING:
    from headrace.journal import Journal

__all__ = ["JournalLedger"]

_log = logger("mqtt")
_FACTS: Final = 1
"""The kind of our frames."""
_AGAIN_S: Final = 0.2
"""Between two looks whether a full disk has room again."""


class JournalLedger:
    """A ``Ledger`` over a journal, in the loop that made it. ``on_failure`` is told once."""

    def __init__(self, journal: Journal, on_failure: Callable[[HeadraceError], None]) -> None:
        self._journal = journal
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._facts: list[f.Fact] = []
        self._callbacks: list[Callable[[], None]] = []
        self._line: deque[tuple[int, list[Callable[[], None]]]] = deque()
        self._planned = False
        self._is_full = False
        self._failed = False
        self._closed = False
        self._exchange: Exchange | None = None
        self._saving: asyncio.Future[None] | None = None
        self._saved_at = journal.first_position
        self._saved_bytes = 0
        self._calm = asyncio.Event()
        journal.on_durable(self._durable_elsewhere)

    # -- the past ------------------------------------------------------------------------------------------------------

    def recover(self, exchange: Exchange, now_ns: int) -> None:
        """Make an empty exchange what it was; from here on its facts come here."""
        journal = self._journal
        recovery = Recovery(exchange)
        start = journal.first_position
        saved = journal.load_snapshot()
        if saved is not None:
            start, data = saved
            self._saved_at, self._saved_bytes = start, len(data)
            _fold(recovery, data, f"the snapshot of MQTT sessions at position {start}")
        for frame in journal.read(start):
            _fold(recovery, bytes(frame.body), f"the frame of MQTT sessions at position {frame.position}")
        exchange.ledger = self
        self._exchange = exchange
        recovery.finish(now_ns)

    # -- the ledger ----------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether more may be begun."""
        journal = self._journal
        return not self._is_full and journal.end_position - journal.durable_position < limits.UNDURABLE_BYTES_MAX

    def note(self, fact: f.Fact) -> None:
        """Write it down at the end of this round."""
        self._facts.append(fact)
        self._plan()

    def then(self, callback: Callable[[], None]) -> None:
        """Call back when everything noted so far is durable; at once when it is."""
        if not self._facts and not self._line and not self._callbacks and not self._failed:
            journal = self._journal
            if journal.durable_position >= journal.end_position:
                callback()
                return
        self._callbacks.append(callback)
        self._plan()

    def _plan(self) -> None:
        if not self._planned and not self._is_full:
            self._planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._planned = False
        if self._failed or self._closed:
            return
        try:
            self._append()
        except HeadraceError as error:
            if error.code == "storage_full":
                self._hold(error)
            else:
                self._fail(error)

    def _append(self) -> None:
        """This round's facts as a frame (or several, when they are many); its callbacks wait in line for it."""
        journal = self._journal
        facts = self._facts
        while facts:
            count = _fitting(facts)
            journal.append(_FACTS, f.encode(facts[:count]), reserve=True)
            del facts[:count]
        callbacks, self._callbacks = self._callbacks, []
        if callbacks:
            self._line.append((journal.end_position, callbacks))
        if journal.durable_position >= journal.end_position:
            self._durable(None)
        else:
            journal.commit_soon()

    def _hold(self, error: HeadraceError) -> None:
        if not self._is_full:
            _log.error("no room for MQTT sessions; what needs some is refused", reason=error.message)
        self._is_full = True
        self._loop.call_later(_AGAIN_S, self._try_again)

    def _try_again(self) -> None:
        was_full, self._is_full = self._is_full, False
        self._flush()
        if was_full and not self._is_full:
            _log.info("there is room for MQTT sessions again")

    # -- commits -------------------------------------------------------------------------------------------------------

    def _durable_elsewhere(self, position: int, error: HeadraceError | None) -> None:
        """Called in the thread that committed."""
        try:
            self._loop.call_soon_threadsafe(self._durable, error)
        except RuntimeError:
            return  # the loop is gone, and whoever waited with it

    def _durable(self, error: HeadraceError | None) -> None:
        if error is not None:
            self._fail(error)
            return
        durable, line = self._journal.durable_position, self._line
        while line and line[0][0] <= durable:
            for callback in line.popleft()[1]:
                callback()
        if not line and not self._facts and not self._callbacks:
            self._calm.set()
        elif line and not self._closed:
            self._journal.commit_soon()
        self._save_if_due()

    def _fail(self, error: HeadraceError) -> None:
        if not self._failed:
            self._failed = True
            self._line.clear()
            self._callbacks.clear()
            self._calm.set()
            self._on_failure(error)

    # -- snapshots and the end -----------------------------------------------------------------------------------------

    def _save_if_due(self) -> None:
        grown = self._journal.end_position - self._saved_at
        due = grown >= max(limits.MQTT_LEDGER_SNAPSHOT_BYTES, 2 * self._saved_bytes)
        if due and self._saving is None and not self._closed and not self._facts and self._exchange is not None:
            position = self._saved_at = self._journal.end_position
            data = f.encode(list(facts_of(self._exchange)))
            self._saved_bytes = len(data)
            self._saving = self._loop.run_in_executor(None, self._save, position, data)
            self._saving.add_done_callback(self._saved)

    def _save(self, position: int, data: bytes) -> None:
        journal = self._journal
        journal.wait_durable(position)
        journal.save_snapshot(position, data)
        journal.truncate_before(position)

    def _saved(self, saving: asyncio.Future[None]) -> None:
        self._saving = None
        error = None if saving.cancelled() else saving.exception()
        if isinstance(error, HeadraceError):
            if error.code == "storage_full":
                _log.warning("no room for a snapshot of MQTT sessions", reason=error.message)
            else:
                self._fail(error)

    async def close(self) -> None:
        """Everything noted becomes durable; the journal is let go of."""
        self._flush()
        while (self._line or self._callbacks) and not self._failed and not self._is_full:
            self._calm.clear()
            await self._calm.wait()
        self._closed = True
        if self._saving is not None:
            await asyncio.wait([self._saving])
        await self._loop.run_in_executor(None, self._journal.close)


def _fitting(facts: list[f.Fact]) -> int:
    """How many of the first go into one frame; one at least."""
    size_bytes = 0
    for index, fact in enumerate(facts[: limits.MQTT_LEDGER_FACTS_MAX]):
        message = getattr(fact, "message", None)
        if message is not None:
            size_bytes += len(message.payload)
            if size_bytes > limits.MQTT_LEDGER_FRAME_BYTES and index:
                return index
    return min(len(facts), limits.MQTT_LEDGER_FACTS_MAX)


def _fold(recovery: Recovery, body: bytes, what: str) -> None:
    try:
        facts = f.decode(body)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{what} cannot be read: {error}") from error
    for fact in facts:
        recovery.fold(fact)
