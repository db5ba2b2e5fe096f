"""R9: the write and sync calls of a running server fail, one after another in turn, by strace. After the failure
nothing is confirmed that the next life does not have, and the server ends within a second.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

from reliability.broker import BrokerProcess, verify
from reliability.report import Report
from reliability.workload import Ledger, Load, make_topic

__all__ = ["failed_calls"]

CALLS: Final = "pwrite64,pwritev,fdatasync,fsync"
END_S: Final = 1.0
STRACE_S: Final = 1.0
"""What strace itself may add to the end of a process it follows, on a loaded machine."""


def why_not() -> str:
    if shutil.which("strace") is None:
        return "strace is not there"
    tried = subprocess.run(
        ["strace", "-o", "/dev/null", "-e", "inject=fsync:error=EIO", "true"], capture_output=True, check=False
    )
    return "" if tried.returncode == 0 else f"strace cannot follow here: {tried.stderr.decode().strip()[:80]}"


def failed_calls(directory: Path, seed: int, scale: float = 1) -> Report:
    """R9; ``scale`` 1 is 200 calls."""
    report = Report(
        "R9",
        "each of the first write and sync calls fails once",
        f"0 confirmed afterwards, the end in {END_S:g} s",
        seed,
    )
    report.skipped = why_not()
    if not report.skipped:
        asyncio.run(_rounds(directory, random.Random(seed), max(8, round(200 * scale)), report))
    return report


async def _rounds(directory: Path, rng: random.Random, rounds: int, report: Report) -> None:
    ledger = Ledger()
    ends: list[float] = []
    stride = max(1, 50 // max(1, rounds // 4))  # fewer rounds are spread over the same calls
    broker = BrokerProcess(directory, settings=("seal.behind=256KiB", "seal.interval=1s"))
    broker.start()
    try:
        await make_topic(broker)
        for number in range(rounds):
            kind = ("fdatasync", "pwritev,pwrite64", "fdatasync", "fsync,fdatasync,pwrite64,pwritev")[number % 4]
            error = rng.choice(("EIO", "EIO", "EROFS", "EDQUOT"))
            trace = directory / "strace"
            trace.unlink(missing_ok=True)
            strace = subprocess.Popen(
                [
                    *("strace", "-f", "-o", str(trace), "-p", str(broker.pid), "-e", f"trace={CALLS}"),
                    *("-e", f"inject={kind}:error={error}:when={1 + number // 4 * stride}"),
                ],
                stderr=subprocess.PIPE,
            )
            try:
                assert strace.stderr is not None
                await asyncio.to_thread(strace.stderr.readline)  # "attached"
                async with Load(broker, ledger, seed=rng.randrange(1 << 30), consumers=1) as load:
                    failed_ns = await _failure(trace, broker)
                    if failed_ns is None:
                        report.tried["not reached"] += 1
                        continue
                    report.tried[f"{kind.split(',')[0]} {error}"] += 1
                    ended = await _end(broker)
                if not ended:
                    report.violate(f"round {number} ({kind} {error}): up 10 s after the failure, {dict(load.refusals)}")
                else:
                    took_s = (ended - failed_ns) / 1e9
                    ends.append(took_s)
                    report.in_time(
                        took_s <= END_S + STRACE_S, f"round {number}: the server ended {took_s:.2f} s after the failure"
                    )
                    assert broker.process is not None
                    report.hold(
                        broker.process.returncode == 1, f"round {number}: exit code {broker.process.returncode}"
                    )
            finally:
                strace.terminate()
                strace.wait()
                strace.stderr.close() if strace.stderr else None
            broker.kill()
            await asyncio.to_thread(broker.start)
            if number % 4 == 3 or number == rounds - 1:
                await ledger.drain(broker)
        broker.stop()
        ok, said = verify(broker.data)
        report.hold(ok, f"verify: {said[:400]}")
    finally:
        broker.kill()
        report.violations += ledger.violations
        report.tried.update(ledger.counts)
        if ends:
            report.figures["end after the failure, s"] = f"p50 {sorted(ends)[len(ends) // 2]:.2f} max {max(ends):.2f}"


async def _failure(trace: Path, broker: BrokerProcess) -> int | None:
    """When strace made a call fail."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if trace.exists() and "(INJECTED)" in trace.read_text(errors="replace"):
            return time.monotonic_ns()
        if not broker.is_up:
            return time.monotonic_ns()
        await asyncio.sleep(0.01)
    return None


async def _end(broker: BrokerProcess) -> int:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not broker.is_up:
            return time.monotonic_ns()
        await asyncio.sleep(0.01)
    return 0
