"""Looking at a data directory without changing it: files that can be read, and a memory for everything written.

Opening a journal writes (the last commit once more, the durable mark, a spare), so a mere reader gets this layer
instead: what it writes, creates, renames and removes happens in memory and nowhere else, and it reads what it wrote.
Who uses it sees to it that nobody writes to the directory meanwhile (``held_shared``).
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import StorageFailed
from headrace.journal.files import RealFiles
from headrace.journal.hold import refusal

__all__ = ["Onlooker", "held_shared"]


@contextmanager
def held_shared(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Any number of onlookers at a time, and nobody who writes."""
    where = os.fspath(directory)
    try:
        handle = os.open(f"{where}/lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise StorageFailed(f"{where} is not a data directory: there is no lock file in it") from None
    except OSError as error:
        raise refusal(where, error) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, 20, 0).decode("ascii", "replace").strip()
        os.close(handle)
        raise StorageFailed(
            f"data directory {where} is held by another process (process {holder or 'unknown'}); ask that one (the"
            " option server), or stop it"
        ) from None
    try:
        yield
    finally:
        os.close(handle)


class Onlooker(RealFiles):
    """A file layer that changes nothing."""

    __slots__ = ("_gone", "_made", "_patches")

    def __init__(self) -> None:
        self._made: dict[str, int] = {}  # path -> the handle of a file that has no name
        self._gone: set[str] = set()
        self._patches: dict[int, list[tuple[int, bytes]]] = {}  # handles of real files -> what was written over them

    def make_directory(self, path: str) -> None:
        if not Path(path).is_dir():
            raise FileNotFoundError(2, "there is no such directory", path)

    def names(self, directory: str) -> list[str]:
        there = {name for name in os.listdir(directory) if f"{directory}/{name}" not in self._gone}
        return sorted(there | {path.rpartition("/")[2] for path in self._made if path.startswith(f"{directory}/")})

    def lock(self, path: str) -> int:
        """Taken by who uses this layer."""
        return self.open(path)

    def open(self, path: str) -> int:
        if path in self._made:
            return os.dup(self._made[path])
        if path in self._gone:
            raise FileNotFoundError(2, "removed", path)
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._patches[handle] = []
        return handle

    def create(self, path: str) -> int:
        with tempfile.TemporaryFile() as file:
            handle, kept = os.dup(file.fileno()), os.dup(file.fileno())
        if path in self._made:
            os.close(self._made[path])
        self._made[path] = kept
        return handle

    def allocate(self, handle: int, size_bytes: int) -> None:
        os.ftruncate(handle, size_bytes)  # no room is taken

    def read(self, handle: int, size_bytes: int, offset: int) -> bytes:
        data = super().read(handle, size_bytes, offset)
        patches = self._patches.get(handle)
        if not patches:
            return data
        buffer = bytearray(data)
        for at, patch in patches:
            first, end = max(at, offset), min(at + len(patch), offset + len(buffer))
            if first < end:
                buffer[first - offset : end - offset] = patch[first - at : end - at]
        return bytes(buffer)

    def write(self, handle: int, buffers: Sequence[bytes], offset: int) -> int:
        patches = self._patches.get(handle)
        if patches is None:
            return super().write(handle, buffers, offset)
        whole = b"".join(buffers)
        patches.append((offset, whole))
        return len(whole)

    def sync_data(self, handle: int) -> None:
        """Memory."""

    def sync(self, handle: int) -> None:
        """Memory."""

    def sync_directory(self, path: str) -> None:
        """Memory."""

    def close(self, handle: int) -> None:
        self._patches.pop(handle, None)
        super().close(handle)

    def rename(self, old_path: str, new_path: str) -> None:
        handle = self._made.pop(old_path, -1)
        if handle < 0:
            handle = os.open(old_path, os.O_RDONLY | os.O_CLOEXEC)
        self._gone.add(old_path)
        self._gone.discard(new_path)
        if new_path in self._made:
            os.close(self._made[new_path])
        self._made[new_path] = handle

    def remove(self, path: str) -> None:
        if path in self._made:
            os.close(self._made.pop(path))
        self._gone.add(path)

    def release(self) -> None:
        """Let go of what was made."""
        while self._made:
            os.close(self._made.popitem()[1])
