"""What the journal does on this disk, beside what the disk does without it.

A file that is written for the first time ("fresh") and one whose blocks and pages are there ("recycled") differ
severalfold on most machines, and the journal meets both: fresh while it only grows, recycled once files that were let
go are used again. Each is compared with a bare write of the same kind, made in turns with it, so that both meet the
same neighbours.
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

from bench.machine import KIB, MIB, Machine
from bench.registry import Figure, workload
from bench.timing import cpu_rate, stopwatch
from headrace import delivery as d
from headrace.batch import encode_columns, encode_one
from headrace.clock import SystemClock
from headrace.config import TopicConfig
from headrace.journal import DiskJournal, MemoryJournal
from headrace.shard import Core

MESSAGE_BYTES: Final = 200
BATCH_MESSAGES: Final = 1000
BATCH_BODY_BYTES: Final = BATCH_MESSAGES * (MESSAGE_BYTES + 4) + 128
"""A batch of 1,000 messages and the fact that it was published, about."""
IN_FLIGHT_BATCHES: Final = 64
MILLION: Final = 1_000_000
ROUNDS: Final = 4
ALTERNATIONS: Final = 10
CALLS_PER_TURN: Final = 300
FILE_BYTES: Final = 64 * MIB


@workload("journal/batches")
def batches(machine: Machine) -> dict[str, Figure]:
    """Frames of 1,000 × 200 B, pipelined, in turns with bare 1-MiB writes over files of the same kind."""
    body = os.urandom(BATCH_BODY_BYTES)
    count = machine.scaled(1500)
    spans: dict[str, list[float]] = {"recycled": [], "fresh": [], "bare recycled": [], "bare fresh": []}
    cpu = 1e9
    with machine.directory() as directory:
        journal = DiskJournal.open(directory / "recycled")
        _append_batches(journal, body, 4 * FILE_BYTES // len(body), let_go=True)
        warm = _written(directory / "warm", 4 * FILE_BYTES)
        for turn in range(ROUNDS):
            spans["bare recycled"].append(_sequential(warm, count * len(body) // MIB, wrap=4 * FILE_BYTES // MIB))
            with stopwatch() as watch:
                _append_batches(journal, body, count, let_go=True)
            spans["recycled"].append(watch.wall / count)
            cpu = min(cpu, watch.cpu / count)
            growing = os.open(directory / f"growing-{turn}", os.O_RDWR | os.O_CREAT, 0o644)
            spans["bare fresh"].append(_sequential(growing, count * len(body) // MIB, wrap=MILLION))
            os.close(growing)
            with DiskJournal.open(directory / f"fresh-{turn}") as fresh, stopwatch() as watch:
                _append_batches(fresh, body, count, let_go=False)
            spans["fresh"].append(watch.wall / count)
        os.close(warm)
        journal.close()
    seconds = {name: statistics.median(measured) for name, measured in spans.items()}
    rates = {kind: len(body) / MIB / seconds[kind] for kind in ("recycled", "fresh")}
    bare = {kind: 1 / seconds[f"bare {kind}"] for kind in ("recycled", "fresh")}
    return {
        "messages": Figure(BATCH_MESSAGES / seconds["recycled"], "msg/s"),
        "messages a second of processor": Figure(BATCH_MESSAGES / cpu, "msg/s"),
        "bandwidth": Figure(rates["recycled"], "MiB/s", probe="write MiB/s"),
        "share of a bare sequential write": Figure(rates["recycled"] / bare["recycled"], "x"),
        "messages, fresh files": Figure(BATCH_MESSAGES / seconds["fresh"], "msg/s"),
        "share of a bare sequential write, fresh files": Figure(rates["fresh"] / bare["fresh"], "x"),
    }


def _append_batches(journal: DiskJournal, body: bytes, count: int, *, let_go: bool) -> None:
    waiting: deque[int] = deque()
    for number in range(count):
        waiting.append(journal.append(1, body))
        journal.commit_soon()
        if len(waiting) > IN_FLIGHT_BATCHES:
            journal.wait_durable(waiting.popleft())
        if let_go and number % 256 == 255:
            journal.truncate_before(journal.durable_position)
    journal.commit()


def _sequential(handle: int, count: int, *, wrap: int) -> float:
    """Seconds a MiB of writing on and on, with one fdatasync per MiB."""
    block = os.urandom(MIB)
    count = max(count, 8)
    started = time.perf_counter()
    for number in range(count):
        os.pwrite(handle, block, number % wrap * MIB)
        os.fdatasync(handle)
    return (time.perf_counter() - started) / count


def _written(path: Path, size_bytes: int) -> int:
    """A file whose every block was written."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    block = os.urandom(MIB)
    for number in range(size_bytes // MIB):
        os.pwrite(handle, block, number * MIB)
    os.fsync(handle)
    return handle


@workload("journal/singles")
def singles(machine: Machine) -> dict[str, Figure]:
    """200-byte frames from one thread, a bounded number in flight, group-committed."""
    body, count = os.urandom(MESSAGE_BYTES), machine.scaled(MILLION)
    walls, processor = [], []
    for _ in range(3):
        with machine.directory() as directory, DiskJournal.open(directory) as journal:
            with stopwatch() as watch:
                _append_singles(journal, body, count)
            walls.append(count / watch.wall)
            processor.append(count / watch.cpu)
            stats = journal.stats
    return {
        "messages": Figure(statistics.median(walls), "msg/s"),
        "messages a second of processor": Figure(max(processor), "msg/s"),
        "frames a commit": Figure(stats.frames / stats.commits, ""),
        "mean sync": Figure(stats.fsync_total_ns / stats.fsyncs / 1e3, "us"),
    }


def _append_singles(journal: DiskJournal, body: bytes, count: int) -> None:
    append = journal.append
    marks: deque[int] = deque()
    for number in range(count):
        position = append(1, body)
        if not number & 255:
            journal.commit_soon()
            if not number & 4095:
                marks.append(position)
                if len(marks) > 4:
                    journal.wait_durable(marks.popleft())
    journal.commit()


@workload("journal/one_at_a_time")
def one_at_a_time(machine: Machine) -> dict[str, Figure]:
    """Append and commit of one 200-byte frame, in turns with a bare pwrite + fdatasync into a preallocated file."""
    body = os.urandom(MESSAGE_BYTES)
    ours: list[int] = []
    bare: list[int] = []
    place = 0
    with machine.directory() as directory:
        handle = os.open(directory / "bare", os.O_RDWR | os.O_CREAT, 0o644)
        os.posix_fallocate(handle, 0, FILE_BYTES)
        os.fsync(handle)
        with DiskJournal.open(directory / "journal") as journal:
            for _ in range(ALTERNATIONS):
                for _ in range(machine.scaled(CALLS_PER_TURN)):
                    started_ns = time.perf_counter_ns()
                    journal.append(1, body)
                    journal.commit()
                    ours.append(time.perf_counter_ns() - started_ns)
                for _ in range(machine.scaled(CALLS_PER_TURN)):
                    started_ns = time.perf_counter_ns()
                    os.pwrite(handle, body, place)
                    os.fdatasync(handle)
                    bare.append(time.perf_counter_ns() - started_ns)
                    place += MESSAGE_BYTES
        os.close(handle)
    return {
        "p50 beside a bare write and sync": Figure(statistics.median(ours) / statistics.median(bare), "x"),
        "p50": Figure(statistics.median(ours) / 1e3, "us", probe="sync 200 B p50 us"),
        "p99": Figure(sorted(ours)[len(ours) * 99 // 100] / 1e3, "us", probe="sync 200 B p99 us"),
        "bare p50": Figure(statistics.median(bare) / 1e3, "us"),
        "bare p99": Figure(sorted(bare)[len(bare) * 99 // 100] / 1e3, "us"),
    }


WRITER: Final = """
import os, signal, sys
from headrace.journal import DiskJournal
journal = DiskJournal.open(sys.argv[1])
body = os.urandom(int(sys.argv[2]))
for number in range(int(sys.argv[3])):
    journal.append(1, body)
    if not number % 1000:
        journal.commit()
position = journal.commit()
if sys.argv[4] == "snapshot":
    journal.save_snapshot(position, os.urandom(1 << 20))
os.kill(os.getpid(), signal.SIGKILL)
"""


@workload("journal/recovery")
def recovery(machine: Machine) -> dict[str, Figure]:
    """Open and read a journal of 1,000,000 messages whose process was killed."""
    figures = {}
    for name, frame_bytes, messages, how in (
        ("single frames", MESSAGE_BYTES, 1, "journal"),
        ("frames of 100", 100 * MESSAGE_BYTES, 100, "journal"),
        ("from a snapshot", MESSAGE_BYTES, 1, "snapshot"),
    ):
        frames = machine.scaled(MILLION) // messages
        with machine.directory() as directory:
            command = [sys.executable, "-c", WRITER, str(directory), str(frame_bytes), str(frames), how]
            subprocess.run(command, check=False)
            with stopwatch() as opening:
                journal = DiskJournal.open(directory)
                saved = journal.load_snapshot()
                reading = journal.read(saved[0] if saved else None)
                read = sum(1 for _ in (next(reading, None),) if _ is not None)
            with stopwatch() as watch:
                read += sum(1 for _ in reading)
            journal.close()
        if read != (0 if saved else frames):
            raise RuntimeError(f"{read} of {frames} frames came back")
        figures[f"{name}, to the first read"] = Figure(opening.wall, "s")
        if not saved:
            figures[f"{name}, to the last read"] = Figure(opening.wall + watch.wall, "s")
            figures[f"{name}, to the last read, processor"] = Figure(opening.cpu + watch.cpu, "s")
    return figures


@workload("journal/overhead")
def overhead(machine: Machine) -> dict[str, Figure]:
    """Bytes on the disk beside the values: frame, fact and batch together, as a shard writes them."""

    def a_message(count: int) -> float:
        many = 4 * KIB
        with machine.directory() as directory:
            core = Core(DiskJournal.open(directory), SystemClock())
            core.execute(d.CreateTopic("default", "bench", TopicConfig()))
            (pid,) = core.state.partitions
            value = os.urandom(MESSAGE_BYTES)
            batch = encode_one(value) if count == 1 else encode_columns([value] * count)
            before = core.journal.end_position
            for _ in range(many):
                core.execute(d.Publish(pid, batch))
                core.journal.commit_soon()
            core.journal.commit()
            spent = core.journal.end_position - before
            core.journal.close()
        return spent / (many * count) - MESSAGE_BYTES

    return {
        "a message in batches of 1,000": Figure(a_message(BATCH_MESSAGES), "B"),
        "a single message": Figure(a_message(1), "B", note="its own frame and commit record shared by some"),
    }


@workload("journal/memory")
def memory(machine: Machine) -> dict[str, Figure]:
    """Append, commit and wait of one 200-byte frame without a disk."""
    body, count = os.urandom(MESSAGE_BYTES), machine.scaled(200_000)

    def run() -> int:
        journal = MemoryJournal()
        for _ in range(count):
            position = journal.append(1, body)
            journal.commit()
            journal.wait_durable(position)
        return count

    return {"messages a second of processor": Figure(cpu_rate(run), "msg/s")}
