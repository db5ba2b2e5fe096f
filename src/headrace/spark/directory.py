"""A data directory that no server has open, as Spark's processes use it: looked at by many, written to by one.

Looking changes nothing (``journal/onlooker.py``); the state that was recovered is kept and used again as long as the
directory is as it was. Between two uses nothing is held, so that a server may start. Writing holds the directory as a
server would, from the first row of a task to its last: tasks take turns.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from headrace.broker.broker import Broker
from headrace.broker.embedded import SEALED, EmbeddedPort, open_core, open_port
from headrace.clock import SystemClock
from headrace.config import SealConfig
from headrace.journal import DiskJournal
from headrace.journal.onlooker import Onlooker, held_shared

__all__ = ["Directory", "open_for_writing"]

Seen: TypeAlias = list[tuple[str, int, int]]


class Directory:
    """A data directory, looked at."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._files: Onlooker | None = None
        self._port: EmbeddedPort | None = None
        self._seen: Seen = []

    @contextmanager
    def port(self) -> Iterator[EmbeddedPort]:
        """The broker as the directory has it now, for as long as nobody may write to it."""
        with held_shared(self.path):
            seen = self._look()
            if self._port is None or seen != self._seen:
                self.close()
                self._port, self._seen = self._opened(), seen
            yield self._port

    def _look(self) -> Seen:
        """What tells whether anything was written: journal files are allocated whole, but the mark of what is durable
        and the times change with every writer."""
        found = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name != "lock" and entry.is_file():
                    stat = entry.stat()
                    found.append((entry.name, stat.st_size, stat.st_mtime_ns))
        return sorted(found)

    def _opened(self) -> EmbeddedPort:
        files = Onlooker()
        clock = SystemClock()
        journal = DiskJournal.open(self.path, files=files, clock=clock)
        config = SealConfig(enabled=False, location=f"{self.path}/{SEALED}")
        core = open_core(self.path, clock=clock, journal=journal, seal=config)
        self._files = files
        return EmbeddedPort(Broker(core, auto_create=False), clock, config)

    def close(self) -> None:
        """Let go of what was recovered."""
        if self._port is not None:
            self._port.close()
            self._port = None
        if self._files is not None:
            self._files.release()
            self._files = None


def open_for_writing(path: str) -> Any:
    """The broker of a directory, for this process alone until it is closed."""
    return open_port(path)
