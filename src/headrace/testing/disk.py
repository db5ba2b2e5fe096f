"""A simulated disk: the file layer of the journal in memory, with every crash image POSIX allows.

What is kept for each file: its content as processes see it (the cache), its content on the medium, and for each 4-KiB
page written since the last sync every version it had. Pages that a failed sync called clean are kept apart: they may
have reached the medium or not, a later sync does not write them, only a later write makes them dirty again. For each
directory: its names now, its names on the medium, and the operations since the last directory sync.

``crash`` builds one image: each unsynced page is any one of its versions, the pages of the last write may be torn at
512-byte sectors, an unsynced size is old or new. Names follow one of two rules:

    strict   each unsynced creation, removal, and each half of a rename lasts or not, independently. A rename over an
             existing name leaves the old or the new file, never none
    ext4     the operations last in order up to any point, and any fsync makes all earlier ones last

``kill`` is the milder end: the process is gone, locks and handles with it, the cache stays.

Faults are set for the n-th write or sync call: an error, a short write, a power cut, a sync that fails once and after
which the unsynced pages are called clean (what Linux does). Damage at rest is done to the bytes directly.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

__all__ = ["Fault", "PowerCut", "SimulatedDisk"]

PAGE_BYTES: Final = 4096
SECTOR_BYTES: Final = 512
_ROOM_BYTES_DEFAULT: Final = 1 << 40


class PowerCut(BaseException):
    """Unwinds what was running when the power was cut; not an error anybody handles."""


class Fault(NamedTuple):
    """What happens instead of one call, or to it: ``short`` writes take half of what was asked, at least one byte."""

    error: int = errno.EIO
    short: bool = False
    power_cut: bool = False


@dataclass(eq=False, slots=True)
class _Inode:
    cache: bytearray = field(default_factory=bytearray)
    medium: bytearray = field(default_factory=bytearray)
    versions: dict[int, list[bytes]] = field(default_factory=dict)
    lost: dict[int, list[bytes]] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    last_write: range = range(0)

    def settle(self) -> None:
        """Only what is dirty goes to the medium: pages that a failed sync called clean stay away from it."""
        size = len(self.cache)
        del self.medium[size:]
        self.medium.extend(bytes(size - len(self.medium)))
        for page in self.versions:
            at = page * PAGE_BYTES
            self.medium[at : at + PAGE_BYTES] = self.cache[at : at + PAGE_BYTES]
            self.lost.pop(page, None)
        self.forget()

    def lose(self) -> None:
        """A sync failed: what was dirty is called clean, and how much of it was written nobody knows."""
        for page, versions in self.versions.items():
            self.lost.setdefault(page, []).extend(versions)
        self.versions.clear()
        self.last_write = range(0)

    def damage(self) -> None:
        self.medium[:] = self.cache
        self.lost.clear()
        self.forget()

    def forget(self) -> None:
        self.versions.clear()
        self.sizes.clear()
        self.last_write = range(0)

    def touch(self, start: int, stop: int) -> None:
        for page in range(start // PAGE_BYTES, (stop + PAGE_BYTES - 1) // PAGE_BYTES):
            self.versions.setdefault(page, []).append(bytes(self.cache[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]))

    def image(self, rng: Random) -> bytearray:
        size = rng.choice([len(self.medium), *self.sizes]) if self.sizes else len(self.medium)
        result = bytearray(self.medium[:size]).ljust(size, b"\0")
        for page in {**self.lost, **self.versions}:
            at = page * PAGE_BYTES
            if at >= size:
                continue
            old = bytes(self.medium[at : at + PAGE_BYTES])
            choices = [old, *self.lost.get(page, ()), *self.versions.get(page, ())]
            chosen = rng.randrange(len(choices))
            content = bytearray(choices[chosen])
            if chosen and (page in self.last_write or rng.random() < 0.1):
                _tear(content, choices[chosen - 1], rng)
            result[at : at + PAGE_BYTES] = content[: size - at].ljust(min(PAGE_BYTES, size - at), b"\0")
        return result


def _tear(content: bytearray, older: bytes, rng: Random) -> None:
    older = older.ljust(len(content), b"\0")
    for at in range(0, len(content), SECTOR_BYTES):
        if rng.random() < 0.5:
            content[at : at + SECTOR_BYTES] = older[at : min(at + SECTOR_BYTES, len(content))]


class _NameChange(NamedTuple):
    """One half of an operation on a directory; ``inode`` None takes the name away."""

    name: str
    inode: _Inode | None


@dataclass(slots=True)
class _Directory:
    names: dict[str, _Inode] = field(default_factory=dict)
    medium: dict[str, _Inode] = field(default_factory=dict)
    changes: list[_NameChange] = field(default_factory=list)

    def change(self, name: str, inode: _Inode | None) -> None:
        self.changes.append(_NameChange(name, inode))
        _apply(self.names, name, inode)

    def settle(self) -> None:
        self.medium = dict(self.names)
        self.changes.clear()


def _apply(names: dict[str, _Inode], name: str, inode: _Inode | None) -> None:
    if inode is None:
        names.pop(name, None)
    else:
        names[name] = inode


class SimulatedDisk:
    """A file layer whose power can be cut.

    >>> import random
    >>> disk = SimulatedDisk()
    >>> disk.make_directory("/d")
    >>> handle = disk.create("/d/f")
    >>> disk.write(handle, [b"hello"], 0)
    5
    >>> disk.crash(random.Random(1)).names("/d")
    []
    """

    def __init__(self, *, rule: Literal["strict", "ext4"] = "strict", room_bytes: int = _ROOM_BYTES_DEFAULT) -> None:
        self.rule = rule
        self.room_total_bytes = room_bytes
        self.faults: dict[int, Fault] = {}
        self.calls = 0
        """Write and sync calls so far; ``faults`` is keyed by this number, from 1."""
        self.failed_calls = 0
        self._directories: dict[str, _Directory] = {}
        self._handles: dict[int, _Inode] = {}
        self._locks: dict[int, _Inode] = {}
        self._next_handle = 3

    # -- the file layer ------------------------------------------------------------------------------------------------

    def make_directory(self, path: str) -> None:
        self._directories.setdefault(path, _Directory())

    def names(self, directory: str) -> list[str]:
        return sorted(self._directories[directory].names)

    def room_bytes(self, directory: str) -> int:
        return self.room_total_bytes - self._used_bytes()

    def lock(self, path: str) -> int:
        directory, name = self._split(path)
        inode = directory.names.get(name)
        if inode is None:
            inode = _Inode()
            directory.change(name, inode)
        if inode in self._locks.values():
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)
        handle = self._open(inode)
        self._locks[handle] = inode
        return handle

    def open(self, path: str) -> int:
        return self._open(self._inode(path))

    def create(self, path: str) -> int:
        directory, name = self._split(path)
        # Truncating a file in place and naming a new one are the same to a crash: neither is synced.
        inode = _Inode()
        directory.change(name, inode)
        return self._open(inode)

    def allocate(self, handle: int, size_bytes: int) -> None:
        inode = self._handles[handle]
        self._call()
        self._grow(inode, size_bytes)

    def size(self, handle: int) -> int:
        return len(self._handles[handle].cache)

    def read(self, handle: int, size_bytes: int, offset: int) -> bytes:
        return bytes(self._handles[handle].cache[offset : offset + size_bytes])

    def write(self, handle: int, buffers: Sequence[bytes], offset: int) -> int:
        inode = self._handles[handle]
        data = b"".join(buffers)
        if self._call().short:
            data = data[: max(1, len(data) // 2)]
        self._grow(inode, offset + len(data))
        inode.cache[offset : offset + len(data)] = data
        inode.touch(offset, offset + len(data))
        inode.last_write = range(offset // PAGE_BYTES, (offset + len(data) + PAGE_BYTES - 1) // PAGE_BYTES)
        return len(data)

    def sync_data(self, handle: int) -> None:
        inode = self._handles[handle]
        try:
            self._call()
        except OSError:
            inode.lose()
            raise
        inode.settle()

    def sync(self, handle: int) -> None:
        self.sync_data(handle)
        if self.rule == "ext4":
            for directory in self._directories.values():
                directory.settle()

    def close(self, handle: int) -> None:
        del self._handles[handle]
        self._locks.pop(handle, None)

    def rename(self, old_path: str, new_path: str) -> None:
        old_directory, old_name = self._split(old_path)
        new_directory, new_name = self._split(new_path)
        inode = self._inode(old_path)
        new_directory.change(new_name, inode)
        old_directory.change(old_name, None)

    def remove(self, path: str) -> None:
        directory, name = self._split(path)
        self._inode(path)
        directory.change(name, None)

    def sync_directory(self, path: str) -> None:
        self._call()
        for known, directory in self._directories.items():
            if known == path or self.rule == "ext4":
                directory.settle()

    # -- the end of the process ----------------------------------------------------------------------------------------

    def kill(self) -> SimulatedDisk:
        """The disk after the process was killed: all it wrote is seen, nothing more became durable."""
        self._handles.clear()
        self._locks.clear()
        self.faults.clear()
        return self

    def crash(self, rng: Random) -> SimulatedDisk:
        """A disk as it may be after the power was cut now; this one goes on."""
        after = SimulatedDisk(rule=self.rule, room_bytes=self.room_total_bytes)
        images: dict[_Inode, _Inode] = {}
        for path, directory in self._directories.items():
            names = dict(directory.medium)
            for change in self._lasting(directory.changes, rng):
                _apply(names, change.name, change.inode)
            result = _Directory()
            for name, inode in names.items():
                if inode not in images:
                    content = inode.image(rng)
                    images[inode] = _Inode(cache=content, medium=bytearray(content))
                result.names[name] = images[inode]
            result.settle()
            after._directories[path] = result
        return after

    def _lasting(self, changes: list[_NameChange], rng: Random) -> list[_NameChange]:
        if self.rule == "ext4":
            return changes[: rng.randint(0, len(changes))]
        kept_share = rng.choice((0.0, 0.5, 0.5, 0.9, 1.0))
        return [change for change in changes if rng.random() < kept_share]

    # -- damage at rest ------------------------------------------------------------------------------------------------

    def content(self, path: str) -> bytes:
        """The bytes of a file."""
        return bytes(self._inode(path).cache)

    def overwrite(self, path: str, offset: int, data: bytes) -> None:
        """Change bytes behind the back of everybody."""
        inode = self._inode(path)
        inode.cache[offset : offset + len(data)] = data
        inode.damage()

    def flip_bit(self, path: str, bit: int) -> None:
        """Flip one bit, counted from the beginning of the file."""
        at, shift = divmod(bit, 8)
        self.overwrite(path, at, bytes([self._inode(path).cache[at] ^ 1 << shift]))

    def zero_sector(self, path: str, sector: int) -> None:
        """Lose the content of one sector."""
        size = len(self._inode(path).cache)
        at = sector * SECTOR_BYTES
        self.overwrite(path, at, bytes(max(0, min(SECTOR_BYTES, size - at))))

    def truncate(self, path: str, size_bytes: int) -> None:
        """Lose the end of a file."""
        inode = self._inode(path)
        del inode.cache[size_bytes:]
        inode.damage()

    def swap(self, path: str, other_path: str) -> None:
        """Exchange two files."""
        directory, name = self._split(path)
        other_directory, other_name = self._split(other_path)
        inode, other = self._inode(path), self._inode(other_path)
        directory.change(name, other)
        other_directory.change(other_name, inode)
        directory.settle()
        other_directory.settle()

    def lose(self, path: str) -> None:
        """Lose a file."""
        directory, name = self._split(path)
        self._inode(path)
        directory.change(name, None)
        directory.settle()

    def copy(self) -> SimulatedDisk:
        """The same content on another disk, all of it durable."""
        after = SimulatedDisk(rule=self.rule, room_bytes=self.room_total_bytes)
        for path, directory in self._directories.items():
            result = _Directory()
            for name, inode in directory.names.items():
                result.names[name] = _Inode(cache=bytearray(inode.cache), medium=bytearray(inode.cache))
            result.settle()
            after._directories[path] = result
        return after

    # -- inside --------------------------------------------------------------------------------------------------------

    def _call(self) -> Fault:
        self.calls += 1
        fault = self.faults.get(self.calls)
        if fault is None:
            return _NO_FAULT
        if fault.short:
            return fault
        if fault.power_cut:
            raise PowerCut
        self.failed_calls += 1
        raise OSError(fault.error, os.strerror(fault.error))

    def _grow(self, inode: _Inode, size_bytes: int) -> None:
        missing = size_bytes - len(inode.cache)
        if missing <= 0:
            return
        if self._used_bytes() + missing > self.room_total_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        inode.cache.extend(bytes(missing))
        inode.sizes.append(size_bytes)

    def _used_bytes(self) -> int:
        seen: set[_Inode] = set()
        for directory in self._directories.values():
            seen.update(directory.names.values())
        return sum(len(inode.cache) for inode in seen)

    def _open(self, inode: _Inode) -> int:
        self._next_handle += 1
        self._handles[self._next_handle] = inode
        return self._next_handle

    def _split(self, path: str) -> tuple[_Directory, str]:
        directory, _, name = path.rpartition("/")
        if directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._directories[directory], name

    def _inode(self, path: str) -> _Inode:
        directory, name = self._split(path)
        if name not in directory.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return directory.names[name]


_NO_FAULT: Final = Fault()
