"""What the journal does on this disk, beside what the disk does without it.

Each function takes an empty directory on a real disk and returns its figures by name. Probes measure the machine in the
same terms, so that ratios mean something: a file that is written for the first time ("fresh") and one whose blocks and
pages are there ("warm") differ severalfold on most machines, and the journal meets both: fresh while it only grows,
warm once files that were let go are used again.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Final

import google_crc32c

from headrace.journal import DiskJournal, MemoryJournal

KIB: Final = 1024
MIB: Final = 1024 * KIB
MESSAGE_BYTES: Final = 200
BATCH_MESSAGES: Final = 1000
BATCH_OVERHEAD_BYTES: Final = 8 * BATCH_MESSAGES
"""About what offsets and the header of a batch add."""
IN_FLIGHT_BATCHES: Final = 64
SINGLES: Final = 1_000_000
BATCHES: Final = 3000
ALTERNATIONS: Final = 10
CALLS_PER_TURN: Final = 300
FILE_BYTES: Final = 64 * MIB

Figures = dict[str, float]


# -- the journal -------------------------------------------------------------------------------------------------------


def durable_singles(directory: str | os.PathLike[str]) -> Figures:
    """200-byte frames from one thread, a bounded number in flight, group-committed."""
    body = os.urandom(MESSAGE_BYTES)
    with DiskJournal.open(directory) as journal:
        append = journal.append
        marks: deque[int] = deque()
        started = time.perf_counter()
        for number in range(SINGLES):
            position = append(1, body)
            if not number & 255:
                journal.commit_soon()
                if not number & 4095:
                    marks.append(position)
                    if len(marks) > 4:
                        journal.wait_durable(marks.popleft())
        journal.commit()
        span = time.perf_counter() - started
        stats = journal.stats
        return {
            "messages per second": SINGLES / span,
            "overhead bytes per message": (stats.bytes - SINGLES * MESSAGE_BYTES) / SINGLES,
            "frames per commit": stats.frames / stats.commits,
            "mean fsync us": stats.fsync_total_ns / stats.fsyncs / 1e3,
        }


def durable_batches(directory: str | os.PathLike[str]) -> Figures:
    """Frames of 1,000 × 200 B, pipelined: into fresh files, and into recycled ones that were let go behind."""
    body = os.urandom(BATCH_MESSAGES * MESSAGE_BYTES + BATCH_OVERHEAD_BYTES)
    with DiskJournal.open(Path(directory) / "fresh") as journal:
        fresh = _batches(journal, body, BATCHES, let_go=False)
    with DiskJournal.open(Path(directory) / "recycled") as journal:
        _batches(journal, body, 4 * FILE_BYTES // len(body), let_go=True)
        recycled = _batches(journal, body, BATCHES, let_go=True)
    return {
        "messages per second": BATCH_MESSAGES / recycled,
        "MiB per second": len(body) / recycled / MIB,
        "fresh messages per second": BATCH_MESSAGES / fresh,
        "fresh MiB per second": len(body) / fresh / MIB,
    }


def _batches(journal: DiskJournal, body: bytes, count: int, *, let_go: bool) -> float:
    """Seconds per batch."""
    waiting: deque[int] = deque()
    started = time.perf_counter()
    for number in range(count):
        waiting.append(journal.append(1, body))
        journal.commit_soon()
        if len(waiting) > IN_FLIGHT_BATCHES:
            journal.wait_durable(waiting.popleft())
        if let_go and number % 256 == 255:
            journal.truncate_before(journal.durable_position)
    journal.commit()
    return (time.perf_counter() - started) / count


def one_at_a_time(directory: str | os.PathLike[str]) -> Figures:
    """Append and commit of one 200-byte frame, in turns with a bare pwrite + fdatasync: both meet the same noise."""
    body = os.urandom(MESSAGE_BYTES)
    ours: list[int] = []
    bare: list[int] = []
    handle = _preallocated(Path(directory) / "bare", FILE_BYTES)
    place = 0
    with DiskJournal.open(Path(directory) / "journal") as journal:
        for _ in range(ALTERNATIONS):
            for _ in range(CALLS_PER_TURN):
                started_ns = time.perf_counter_ns()
                journal.append(1, body)
                journal.commit()
                ours.append(time.perf_counter_ns() - started_ns)
            for _ in range(CALLS_PER_TURN):
                started_ns = time.perf_counter_ns()
                os.pwrite(handle, body, place)
                os.fdatasync(handle)
                bare.append(time.perf_counter_ns() - started_ns)
                place += MESSAGE_BYTES
    os.close(handle)
    return {
        "p50 us": statistics.median(ours) / 1e3,
        "p99 us": sorted(ours)[len(ours) * 99 // 100] / 1e3,
        "bare p50 us": statistics.median(bare) / 1e3,
        "bare p99 us": sorted(bare)[len(bare) * 99 // 100] / 1e3,
        "p50 ratio": statistics.median(ours) / statistics.median(bare),
    }


def recovery_singles(directory: str | os.PathLike[str]) -> Figures:
    """Open and read a journal of 1,000,000 single-message frames whose process was killed."""
    return _recovery(directory, frame_bytes=MESSAGE_BYTES, frames=SINGLES)


def recovery_batches(directory: str | os.PathLike[str]) -> Figures:
    """The same messages in frames of 100."""
    return _recovery(directory, frame_bytes=100 * MESSAGE_BYTES, frames=SINGLES // 100)


WRITER: Final = """
import os, signal, sys
from headrace.journal import DiskJournal
journal = DiskJournal.open(sys.argv[1])
body = os.urandom(int(sys.argv[2]))
for number in range(int(sys.argv[3])):
    journal.append(1, body)
    if not number % 1000:
        journal.commit()
journal.commit()
os.kill(os.getpid(), signal.SIGKILL)
"""


def _recovery(directory: str | os.PathLike[str], *, frame_bytes: int, frames: int) -> Figures:
    subprocess.run([sys.executable, "-c", WRITER, str(directory), str(frame_bytes), str(frames)], check=False)
    started = time.perf_counter()
    with DiskJournal.open(directory) as journal:
        reading = journal.read()
        next(reading)
        first = time.perf_counter() - started
        count = 1 + sum(1 for _ in reading)
        span = time.perf_counter() - started
    assert count == frames
    return {"seconds to the first frame": first, "seconds to the last frame": span}


def memory_singles() -> Figures:
    """Append, commit and wait of one 200-byte frame without a disk."""
    journal, body, count = MemoryJournal(), os.urandom(MESSAGE_BYTES), 200_000
    started = time.perf_counter()
    for _ in range(count):
        position = journal.append(1, body)
        journal.commit()
        journal.wait_durable(position)
    return {"ns per message": (time.perf_counter() - started) / count * 1e9}


# -- the machine -------------------------------------------------------------------------------------------------------


def probe_fdatasync(directory: str | os.PathLike[str]) -> Figures:
    """Median of pwrite + fdatasync into a preallocated file, by size."""
    figures: Figures = {}
    handle = _preallocated(Path(directory) / "probe", FILE_BYTES)
    for name, size in (("200 B", 200), ("4 KiB", 4 * KIB), ("64 KiB", 64 * KIB), ("1 MiB", MIB)):
        block = os.urandom(size)
        spans = []
        for number in range(min(300, FILE_BYTES // size)):
            started_ns = time.perf_counter_ns()
            os.pwrite(handle, block, number * size)
            os.fdatasync(handle)
            spans.append(time.perf_counter_ns() - started_ns)
        figures[f"{name} p50 us"] = statistics.median(spans) / 1e3
        figures[f"{name} p99 us"] = sorted(spans)[len(spans) * 99 // 100] / 1e3
    os.close(handle)
    return figures


def probe_bandwidth(directory: str | os.PathLike[str]) -> Figures:
    """Sequential writes with one fdatasync per MiB: growing new files, and over a file that was written before."""
    block = os.urandom(MIB)
    count = 512
    handle = os.open(Path(directory) / "growing", os.O_RDWR | os.O_CREAT, 0o644)
    fresh = _sequential(handle, block, count, wrap=count)
    os.close(handle)
    handle = _preallocated(Path(directory) / "warm", FILE_BYTES)
    for number in range(FILE_BYTES // MIB):
        os.pwrite(handle, block, number * MIB)
    os.fsync(handle)
    warm = _sequential(handle, block, count, wrap=FILE_BYTES // MIB)
    os.close(handle)
    return {"fresh MiB per second": fresh, "warm MiB per second": warm}


def _sequential(handle: int, block: bytes, count: int, *, wrap: int) -> float:
    started = time.perf_counter()
    for number in range(count):
        os.pwrite(handle, block, number % wrap * len(block))
        os.fdatasync(handle)
    return count * len(block) / MIB / (time.perf_counter() - started)


def probe_memcpy() -> Figures:
    """One core, 16 MiB blocks."""
    source, target = memoryview(os.urandom(16 * MIB)), memoryview(bytearray(16 * MIB))
    started = time.perf_counter()
    for _ in range(64):
        target[:] = source
    return {"GB per second": 64 * len(source) / 1e9 / (time.perf_counter() - started)}


def probe_crc32c() -> Figures:
    """One core, by block size."""
    figures: Figures = {}
    for name, size, count in (("200 B", 200, 200_000), ("64 KiB", 64 * KIB, 5000)):
        block = os.urandom(size)
        started = time.perf_counter()
        for _ in range(count):
            google_crc32c.value(block)
        figures[f"{name} GB per second"] = count * size / 1e9 / (time.perf_counter() - started)
    return figures


def _preallocated(path: Path, size_bytes: int) -> int:
    """A file whose blocks are allocated as the journal's are, synced."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.posix_fallocate(handle, 0, size_bytes)
    os.fsync(handle)
    return handle
