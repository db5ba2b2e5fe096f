"""What this machine can do at best, measured in the same run as what is compared with it.

Probes (all on the disk of the bench directory):

    sync 200 B p50 us, p99 us        one pwrite + fdatasync into a preallocated file; also 4 KiB, 64 KiB, 1 MiB
    write MiB/s                      sequential pwrite, one fdatasync per MiB, preallocated
    memcpy GB/s   crc32c GB/s        one core, 16 MiB blocks and 64 KiB blocks
    loopback us                      200-byte round trip over TCP to another process, median
    python ns                        one turn of a loop that adds: how fast the interpreter is on this core, now
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import google_crc32c

KIB, MIB = 1024, 1024 * 1024
SYNC_SIZES = {"200 B": 200, "4 KiB": 4 * KIB, "64 KiB": 64 * KIB, "1 MiB": MIB}
SYNC_SECONDS = 1.5
WRITE_SECONDS = 2.0
FILE_BYTES = 256 * MIB

ECHO = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
peer, _ = listener.accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while data := peer.recv(65536):
    peer.sendall(data)
"""


class Machine:
    """The probes, each measured once when first asked for, and directories on a real disk."""

    def __init__(self, base: Path, *, short: bool = False) -> None:
        base.mkdir(parents=True, exist_ok=True)
        self._base = base
        self.short = short
        self.probes: dict[str, float] = {}

    def scaled(self, count: int) -> int:
        """How much of a workload's size this run does: all of it, or a tenth in a short run."""
        return count // 10 if self.short else count

    def measure(self) -> dict[str, float]:
        """Runs every probe."""
        with self.directory() as directory:
            for name, size_bytes in SYNC_SIZES.items():
                spans = sync_spans_ns(directory / "probe", size_bytes)
                self.probes[f"sync {name} p50 us"] = statistics.median(spans) / 1e3
                self.probes[f"sync {name} p99 us"] = spans[int(len(spans) * 0.99)] / 1e3
            self.probes["write MiB/s"] = sequential_write(directory / "probe") / MIB
        self.probes["memcpy GB/s"] = memcpy_rate() / 1e9
        self.probes["crc32c GB/s"] = crc32c_rate() / 1e9
        self.probes["python ns"] = 1e9 / python_rate()
        self.probes["loopback us"] = loopback_ns() / 1e3
        return self.probes

    def probe(self, name: str) -> float:
        """One probe's value; measures all of them when none was measured yet."""
        if not self.probes:
            self.measure()
        return self.probes[name]

    @contextmanager
    def directory(self) -> Iterator[Path]:
        """An empty directory on the disk, gone afterwards."""
        path = Path(tempfile.mkdtemp(dir=self._base))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def sync_spans_ns(path: Path, size_bytes: int) -> list[int]:
    """Sorted times of single pwrite + fdatasync of a size, one after another into a preallocated file."""
    block = os.urandom(size_bytes)
    descriptor = preallocated(path, 64 * MIB)
    spans, place, deadline = [], 0, time.perf_counter() + SYNC_SECONDS
    try:
        while time.perf_counter() < deadline:
            start = time.perf_counter_ns()
            os.pwrite(descriptor, block, place)
            os.fdatasync(descriptor)
            spans.append(time.perf_counter_ns() - start)
            place = (place + size_bytes) % (63 * MIB)
    finally:
        os.close(descriptor)
    return sorted(spans)


def sequential_write(path: Path) -> float:
    """Bytes a second of sequential writes with one fdatasync per MiB."""
    block = os.urandom(MIB)
    descriptor = preallocated(path, FILE_BYTES)
    place = written = 0
    start = time.perf_counter()
    try:
        while time.perf_counter() - start < WRITE_SECONDS:
            os.pwrite(descriptor, block, place)
            os.fdatasync(descriptor)
            written += MIB
            place = (place + MIB) % FILE_BYTES
    finally:
        os.close(descriptor)
    return written / (time.perf_counter() - start)


def preallocated(path: Path, size_bytes: int) -> int:
    """A descriptor of a file whose blocks are written once, so that a sync has no metadata to write."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, size_bytes)
    zeros = bytes(MIB)
    for place in range(0, size_bytes, MIB):
        os.pwrite(descriptor, zeros, place)
    os.fsync(descriptor)
    return descriptor


def memcpy_rate() -> float:
    source, target = memoryview(bytearray(16 * MIB)), memoryview(bytearray(16 * MIB))

    def copy() -> int:
        target[:] = source
        return len(source)

    return rate(copy)


def crc32c_rate() -> float:
    block = os.urandom(64 * KIB)

    def check() -> int:
        google_crc32c.value(block)
        return len(block)

    return rate(check)


def python_rate() -> float:
    def turn() -> int:
        total = 0
        for number in range(10_000):
            total += number
        return 10_000

    return rate(turn)


class RoundTrips:
    """200-byte round trips to another process: where the scheduler puts the two (on one core or on two) makes four
    times a difference, so what is compared with them is measured in turns with them."""

    def __init__(self) -> None:
        self.spans_ns: list[int] = []
        self._echo = subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True)
        assert self._echo.stdout is not None
        self._peer = socket.create_connection(("127.0.0.1", int(self._echo.stdout.readline())))
        self._peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def measure(self, times: int) -> None:
        message = bytes(200)
        for _ in range(times):
            start = time.perf_counter_ns()
            self._peer.sendall(message)
            got = 0
            while got < len(message):
                got += len(self._peer.recv(65536))
            self.spans_ns.append(time.perf_counter_ns() - start)

    def close(self) -> None:
        self._peer.close()
        with self._echo:
            self._echo.wait()


def loopback_ns() -> float:
    """The median of some round trips, now."""
    trips = RoundTrips()
    trips.measure(2000)
    trips.close()
    return statistics.median(trips.spans_ns)


def rate(work: Callable[[], int], seconds: float = 0.5) -> float:
    """How much of what ``work`` counts is done a second; the best of three rounds, because noise only slows."""
    best = 0.0
    for _ in range(3):
        done, start = 0, time.perf_counter()
        while (span := time.perf_counter() - start) < seconds / 3:
            done += work()
        best = max(best, done / span)
    return best
