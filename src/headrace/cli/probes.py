"""What the machine under a broker can do: how long a sync takes, a round trip on the loopback; what a disk is."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["MEMORY_FILE_SYSTEMS", "NETWORK_FILE_SYSTEMS", "Spread", "file_system_of", "loopback", "spread_of", "syncs"]

MEMORY_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs"})
NETWORK_FILE_SYSTEMS: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "afs"})
_FILE_BYTES: Final = 1 << 20


class Spread(NamedTuple):
    """How measured spans lie."""

    p50_ns: int
    p99_ns: int
    max_ns: int


def spread_of(spans_ns: Sequence[int]) -> Spread:
    """The median, what 99 of 100 stay below, and the longest."""
    ordered = sorted(spans_ns)
    last = len(ordered) - 1
    return Spread(ordered[last // 2], ordered[last * 99 // 100], ordered[last])


def syncs(directory: Path, *, count: int = 100, size_bytes: int = 4096) -> Spread:
    """Writes into a preallocated file, each followed by an fdatasync, as the journal does it."""
    block = os.urandom(size_bytes)
    handle, name = tempfile.mkstemp(dir=directory, prefix=".probe-")
    spans: list[int] = []
    try:
        os.posix_fallocate(handle, 0, _FILE_BYTES)
        os.pwrite(handle, bytes(_FILE_BYTES), 0)
        os.fsync(handle)
        for i in range(count):
            began = time.perf_counter_ns()
            os.pwrite(handle, block, i * size_bytes % _FILE_BYTES)
            os.fdatasync(handle)
            spans.append(time.perf_counter_ns() - began)
    finally:
        os.close(handle)
        Path(name).unlink()
    return spread_of(spans)


def loopback(*, count: int = 500, size_bytes: int = 200) -> Spread:
    """Round trips over TCP to a thread of this process."""
    listener = socket.create_server(("127.0.0.1", 0))

    def echo() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := peer.recv(1 << 16):
                peer.sendall(data)

    answering = threading.Thread(target=echo, daemon=True)
    answering.start()
    message = bytes(size_bytes)
    spans: list[int] = []
    with listener, socket.create_connection(listener.getsockname()) as caller:
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            began = time.perf_counter_ns()
            caller.sendall(message)
            got = 0
            while got < size_bytes:
                got += len(caller.recv(1 << 16))
            spans.append(time.perf_counter_ns() - began)
    answering.join(5)
    return spread_of(spans)


def file_system_of(path: Path, mounts: str | None = None) -> str:
    """The type of the file system that holds ``path``; empty where the system does not say.

    >>> file_system_of(Path("/data/x"), "a / ext4 rw 0 0\\nb /data tmpfs rw 0 0\\nc /da xfs rw 0 0")
    'tmpfs'
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text()
        except OSError:
            return ""
    best, kind = "", ""
    target = f"{path.resolve()}/"
    for line in mounts.splitlines():
        _, mount_point, found, *_ = line.split(" ")
        prefix = mount_point.rstrip("/") + "/"
        if target.startswith(prefix) and len(prefix) >= len(best):
            best, kind = prefix, found
    return kind
