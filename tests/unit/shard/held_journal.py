"""A journal whose syncs wait until a test lets them go, and whose appends fail when a test says so."""

from __future__ import annotations

from threading import Condition
from typing import Any

from headrace.errors import HeadraceError
from headrace.journal import MemoryJournal

__all__ = ["PATIENCE_S", "HeldJournal"]

PATIENCE_S = 60.0
"""How long a test waits for another thread before it gives up: a loaded machine is slow, a broken shard never comes."""


class HeldJournal(MemoryJournal):
    def __init__(self) -> None:
        super().__init__()
        self.holding = True
        self.refusal: HeadraceError | None = None
        self.reserved: list[bool] = []
        self.waiting = 0
        self.failure: HeadraceError | None = None
        self._changed = Condition()

    def append(self, kind: int, *buffers: Any, reserve: bool = False) -> int:
        if self.refusal is not None:
            raise self.refusal
        self.reserved.append(reserve)
        with self._changed:
            position = super().append(kind, *buffers, reserve=reserve)
            self._changed.notify_all()
        return position

    def commit_soon(self) -> None:
        if not self.holding:
            super().commit()

    def wait_durable(self, position: int, timeout: float | None = None) -> None:
        with self._changed:
            if not self.holding:
                super().commit()
            self.waiting += 1
            self._changed.notify_all()
            try:
                if not self._changed.wait_for(lambda: self.failure or position <= self.durable_position, PATIENCE_S):
                    raise AssertionError("nobody let the sync go")
            finally:
                self.waiting -= 1
            if self.failure is not None:
                raise self.failure

    def until_waiting(self, count: int) -> None:
        """Until so many threads wait for a sync."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.waiting >= count, PATIENCE_S)

    def until_longer(self, end: int) -> None:
        """Until something was appended behind a position."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.end_position > end, PATIENCE_S)

    def let_go(self) -> None:
        """One sync of everything that was appended."""
        with self._changed:
            super().commit()
            self._changed.notify_all()

    def fail(self, error: HeadraceError) -> None:
        """The sync failed."""
        with self._changed:
            self.failure = self.refusal = error
            for callback in self._callbacks:
                callback(self.durable_position, error)
            self._changed.notify_all()

    def close(self) -> None:
        self.holding = False
        if self.failure is None:
            super().close()
