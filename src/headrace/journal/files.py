"""The file layer: the few calls the disk journal makes, so that a simulated disk can stand in for the real one.

Rules the journal keeps and a file layer may rely on: a handle is an int; reads and writes name their offset; a
write may be short and is continued by ``write_all``; a name is durable only after ``sync_directory``; every failure is
an ``OSError``. What a call promises is what POSIX promises, not what a friendly file system adds.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NO_ROOM_ERRORS", "FileLayer", "RealFiles", "write_all"]

NO_ROOM_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The disk is full, the quota is, or a file would pass the process's limit: all go away by making room."""
_BUFFERS_MAX: Final = 1024
"""IOV_MAX on Linux."""


class FileLayer(Protocol):
    """What the disk journal needs of a file system."""

    def make_directory(self, path: str) -> None:
        """Create the directory and its parents where missing, durably."""
        ...

    def names(self, directory: str) -> list[str]:
        """The names in the directory."""
        ...

    def room_bytes(self, directory: str) -> int:
        """How much could still be allocated there."""
        ...

    def lock(self, path: str) -> int:
        """Create the file if missing and hold it exclusively; ``BlockingIOError`` when somebody else does."""
        ...

    def open(self, path: str) -> int:
        """Open an existing file for reading and writing."""
        ...

    def create(self, path: str) -> int:
        """Create an empty file, replacing what has the name."""
        ...

    def allocate(self, handle: int, size_bytes: int) -> None:
        """Grow the file to this size and make sure that writing inside it needs no further room."""
        ...

    def size(self, handle: int) -> int:
        """The file's size in bytes."""
        ...

    def read(self, handle: int, size_bytes: int, offset: int) -> bytes:
        """Up to so many bytes; fewer only at the end of the file."""
        ...

    def write(self, handle: int, buffers: Sequence[bytes], offset: int) -> int:
        """Write the buffers one after the other; returns how many bytes were taken, which may be too few."""
        ...

    def sync_data(self, handle: int) -> None:
        """fdatasync: data and size."""
        ...

    def sync(self, handle: int) -> None:
        """fsync."""
        ...

    def close(self, handle: int) -> None:
        """Close the handle; gives up its lock."""
        ...

    def rename(self, old_path: str, new_path: str) -> None:
        """Give the file another name, replacing what has it."""
        ...

    def remove(self, path: str) -> None:
        """Delete the name."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make created, renamed and deleted names durable."""
        ...


class RealFiles:
    """The operating system's files."""

    __slots__ = ()

    def make_directory(self, path: str) -> None:
        missing = []
        at = os.path.abspath(path)
        while not os.path.isdir(at):
            missing.append(at)
            at = os.path.dirname(at)
        for new in reversed(missing):
            try:
                os.mkdir(new)
            except FileExistsError:
                if not os.path.isdir(new):
                    raise
            self.sync_directory(os.path.dirname(new))

    def names(self, directory: str) -> list[str]:
        return os.listdir(directory)

    def room_bytes(self, directory: str) -> int:
        stat = os.statvfs(directory)
        return stat.f_bavail * stat.f_frsize

    def lock(self, path: str) -> int:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def create(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)

    def allocate(self, handle: int, size_bytes: int) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, size_bytes)
        else:
            os.ftruncate(handle, size_bytes)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def read(self, handle: int, size_bytes: int, offset: int) -> bytes:
        data = os.pread(handle, size_bytes, offset)
        while len(data) < size_bytes:
            more = os.pread(handle, size_bytes - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def write(self, handle: int, buffers: Sequence[bytes], offset: int) -> int:
        if len(buffers) == 1:
            return os.pwrite(handle, buffers[0], offset)
        return os.pwritev(handle, buffers[:_BUFFERS_MAX], offset)

    def sync_data(self, handle: int) -> None:
        _fdatasync(handle)

    def sync(self, handle: int) -> None:
        os.fsync(handle)

    def close(self, handle: int) -> None:
        os.close(handle)

    def rename(self, old_path: str, new_path: str) -> None:
        os.replace(old_path, new_path)

    def remove(self, path: str) -> None:
        os.remove(path)

    def sync_directory(self, path: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


_fdatasync = getattr(os, "fdatasync", os.fsync)


def write_all(files: FileLayer, handle: int, buffers: Sequence[bytes], offset: int) -> int:
    """Write every byte, going on after short writes; returns how many there were. No progress is an error."""
    taken = files.write(handle, buffers[:_BUFFERS_MAX], offset)
    if len(buffers) == 1 and taken == len(buffers[0]):
        return taken  # as nearly always
    left = list(buffers)
    written = 0
    at = 0
    while True:
        if taken <= 0 and left[at]:
            raise OSError(errno.EIO, "a write took no bytes")
        written += taken
        while at < len(left) and taken >= len(left[at]):
            taken -= len(left[at])
            at += 1
        if taken:
            left[at] = left[at][taken:]
        if at == len(left):
            return written
        taken = files.write(handle, left[at : at + _BUFFERS_MAX], offset + written)
