"""Room that is certain before it is needed: the preallocated files of a journal.

There is always one spare, the reserve: settlements may take it, ordinary appends may not, so that on a full disk what
was published can still be settled, which in the end makes room. A file is allocated and synced before it counts. On a
disk that is small or filling up, new files are made smaller than configured, so that the last of it is used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from headrace.errors import StorageFull
from headrace.journal.files import NO_ROOM_ERRORS
from headrace.journal.segment import OpenFile
from headrace.limits import (
    JOURNAL_FILE_BYTES_MIN,
    JOURNAL_FILE_ROOM_BYTES_MIN,
    JOURNAL_FILE_ROOM_FRACTION,
    JOURNAL_SPARES_MAX,
)

if TYPE_CHECKING:
    from headrace.journal.contract import JournalStats
    from headrace.journal.files import FileLayer

__all__ = ["Room"]


class Room:
    """The spares of one journal. Every failure but a full disk comes out as ``OSError``."""

    __slots__ = ("_directory", "_file_size_bytes", "_io", "_made", "_stats", "spares")

    def __init__(self, io: FileLayer, directory: str, file_size_bytes: int, stats: JournalStats) -> None:
        self._io = io
        self._directory = directory
        self._file_size_bytes = file_size_bytes
        self._stats = stats
        self._made = 0
        self.spares: list[OpenFile] = []

    def add_spare(self) -> None:
        """Make one more, or raise ``StorageFull``."""
        self.spares.append(self._allocate(self._next_size_bytes()))

    def take(self, need_bytes: int, *, reserve: bool) -> OpenFile:
        """A file for this many bytes; only with ``reserve`` it may be the last spare."""
        for at in range(len(self.spares) - 1, 0, -1):
            if self.spares[at].size_bytes >= need_bytes:
                return self.spares.pop(at)
        try:
            size_bytes = need_bytes if need_bytes > self._file_size_bytes else self._next_size_bytes()
            return self._allocate(max(need_bytes, size_bytes))
        except StorageFull:
            if reserve and self.spares and self.spares[0].size_bytes >= need_bytes:
                return self.spares.pop(0)
            raise

    def recycle(self, file: OpenFile, handle: int) -> bool:
        """Keep a dropped file as a spare: its blocks are written already, which makes syncs into it cheaper."""
        if len(self.spares) >= JOURNAL_SPARES_MAX or file.size_bytes != self._file_size_bytes:
            return False
        path = self._next_path()
        self._io.rename(file.path, path)
        self.spares.append(OpenFile(-1, file.size_bytes, path, handle, named=False))
        self._stats.files_recycled += 1
        return True

    def _next_path(self) -> str:
        self._made += 1
        return f"{self._directory}/spare-{self._made:08d}"

    def _next_size_bytes(self) -> int:
        """The configured size, or a fair part of what is left."""
        part = max(self._io.room_bytes(self._directory) // JOURNAL_FILE_ROOM_FRACTION, JOURNAL_FILE_ROOM_BYTES_MIN)
        return min(self._file_size_bytes, part - part % JOURNAL_FILE_BYTES_MIN)

    def _allocate(self, size_bytes: int) -> OpenFile:
        io = self._io
        path = self._next_path()
        handle = -1
        try:
            handle = io.create(path)
            io.allocate(handle, size_bytes)
            io.sync(handle)
        except OSError as error:
            if error.errno not in NO_ROOM_ERRORS:
                raise
            if handle >= 0:
                io.close(handle)
                io.remove(path)
            raise StorageFull(
                f"no room for {size_bytes} more bytes in {self._directory}: {os.strerror(error.errno or 0)}; "
                "settlements go on, publishing resumes when there is room"
            ) from error
        self._stats.files_created += 1
        return OpenFile(-1, size_bytes, path, handle, named=False)
