"""The journal of a directory as it lies there, to read from: what a recovery would find, without changing a byte.

Opening a journal settles its end: the last commit is written again, leftovers go, the mark says that it is open. Who
only looks (``headrace verify``) must do none of that. Damage raises ``Corrupt`` where it is reached.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, Self

from headrace.errors import Corrupt, InvalidArgument
from headrace.journal.contract import JournalFile, JournalStats
from headrace.journal.files import FileLayer, RealFiles
from headrace.journal.frame import Frame, seed_of
from headrace.journal.hold import hold
from headrace.journal.layout import FILE_HEADER_BYTES, IDENTITY_FILE_BYTES, decode_identity
from headrace.journal.recovery import file_path, journal_files
from headrace.journal.scan import find_end, scan_frames
from headrace.journal.snapshot import load_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.errors import HeadraceError

__all__ = ["FrozenJournal"]

_WRITES: Final = "this journal is only looked at; open it with DiskJournal to write"


class _File(NamedTuple):
    first_position: int
    path: str
    handle: int


class FrozenJournal:
    """A journal that is not open anywhere else. Everything that would write is refused."""

    def __init__(self, directory: str | os.PathLike[str], *, files: FileLayer | None = None) -> None:
        self._io: FileLayer = RealFiles() if files is None else files
        self._directory = os.fspath(directory)
        self.stats = JournalStats()
        self._files: list[_File] = []
        self._lock_handle = hold(self._io, self._directory)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        io, directory = self._io, self._directory
        handle = io.open(f"{directory}/identity")
        try:
            raw = io.read(handle, IDENTITY_FILE_BYTES, 0)
        finally:
            io.close(handle)
        self._identity = decode_identity(raw, f"{directory}/identity")[0]
        self._seed = seed_of(self._identity.identity)
        oldest = self.first_position = self._identity.oldest_position
        firsts = journal_files(io, directory)
        for at, first_position in enumerate(firsts):
            if at + 1 == len(firsts) or firsts[at + 1] > oldest:  # what lies wholly before it was let go of
                path = file_path(directory, first_position)
                self._files.append(_File(first_position, path, io.open(path)))
        self.end_position = self.durable_position = oldest
        if self._files:
            last = self._files[-1]
            found = find_end(partial(io.read, last.handle), self._seed, last.first_position, io.size(last.handle))
            self.end_position = self.durable_position = found.position

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, from_position: int | None = None) -> Iterator[Frame]:
        start = self.first_position if from_position is None else from_position
        for at, file in enumerate(self._files):
            end = self._files[at + 1].first_position if at + 1 < len(self._files) else self.end_position
            begin = max(start, file.first_position + FILE_HEADER_BYTES)
            if begin < end:
                reading = partial(self._io.read, file.handle)
                yield from scan_frames(reading, self._seed, file.first_position, begin, end, file.path)

    def read_frame(self, position: int) -> Frame:
        at = bisect_right(self._files, position, key=_first_of) - 1
        frame = None
        if at >= 0 and position < self.end_position:
            frame = next(self.read(position), None)
        if frame is None or frame.position != position:
            raise Corrupt(f"{self._directory}: no frame begins at position {position}")
        return frame

    def load_snapshot(self) -> tuple[int, bytes] | None:
        floor = self._identity.snapshot_floor
        return load_snapshot(
            self._io, self._directory, self._identity.identity, floor=floor, durable=self.durable_position
        )

    def files(self) -> list[JournalFile]:
        ends = [*(file.first_position for file in self._files[1:]), self.end_position]
        return [
            JournalFile(file.first_position, end, file.path, end != self.end_position)
            for file, end in zip(self._files, ends, strict=True)
        ]

    def close(self) -> None:
        for file in self._files:
            self._io.close(file.handle)
        self._files = []
        if self._lock_handle >= 0:
            self._io.close(self._lock_handle)
            self._lock_handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what a journal that is open does ------------------------------------------------------------------------------

    def wait_durable(self, position: int, timeout: float | None = None) -> None:
        """Nothing here is not durable."""

    async def durable(self, position: int) -> None:
        """The same."""

    def commit(self) -> int:
        return self.durable_position

    def commit_soon(self) -> None:
        """There is nothing to commit."""

    def on_durable(self, callback: Callable[[int, HeadraceError | None], None]) -> None:
        """Nothing will become durable."""

    def append(self, kind: int, *buffers: bytes | memoryview, reserve: bool = False) -> NoReturn:
        raise InvalidArgument(_WRITES)

    def append_many(self, frames: Sequence[tuple[int, bytes]], *, reserve: bool = False) -> NoReturn:
        raise InvalidArgument(_WRITES)

    def truncate_before(self, position: int) -> NoReturn:
        raise InvalidArgument(_WRITES)

    def save_snapshot(self, position: int, *buffers: bytes | memoryview) -> NoReturn:
        raise InvalidArgument(_WRITES)


def _first_of(file: _File) -> int:
    return file.first_position
