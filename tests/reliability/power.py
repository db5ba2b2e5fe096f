"""R2: power cuts under a whole server. Its data lies on a file system of its own (ext4, xfs), on a loop device; the
server is stopped in its tracks, the file system is shut down without its log or caches flushed, and comes back.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import shutil
import signal
import struct
import subprocess
from pathlib import Path
from typing import Final

from reliability.broker import BrokerProcess, verify
from reliability.report import Report
from reliability.workload import Ledger, Load, make_topic

__all__ = ["PowerDisk", "power_cuts", "why_not"]

FS_IOC_SHUTDOWN: Final = 0x8004587D
NO_LOG_FLUSH: Final = 2
MAKE: Final = {"ext4": ("mkfs.ext4", "-q", "-F"), "xfs": ("mkfs.xfs", "-q", "-f")}
SIZE_BYTES: Final = 512 << 20


def why_not(kind: str = "ext4") -> str:
    """Why there can be no such disk here; empty when there can."""
    if os.geteuid() != 0:
        return "only root can mount a file system"
    return "" if shutil.which(MAKE[kind][0]) else f"{MAKE[kind][0]} is not there"


class PowerDisk:
    """A file system whose power can be cut. OSError when it cannot be mounted here."""

    def __init__(self, place: Path, kind: str = "ext4", size_bytes: int = SIZE_BYTES) -> None:
        self._image = place / f"{kind}.image"
        self.mounted = place / kind
        self.mounted.mkdir(parents=True)
        with self._image.open("wb") as image:
            image.truncate(size_bytes)
        self._run(*MAKE[kind], str(self._image))
        self.mount()

    @staticmethod
    def _run(*command: str) -> None:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise OSError(f"{' '.join(command)}: {ran.stderr.strip()}")

    def mount(self) -> None:
        self._run("mount", "-o", "loop", str(self._image), str(self.mounted))

    def cut(self) -> None:
        """From now on nothing reaches the disk any more."""
        handle = os.open(self.mounted, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, FS_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(handle)

    def unmount(self) -> None:
        self._run("umount", str(self.mounted))

    def remove(self) -> None:
        if os.path.ismount(self.mounted):
            self._run("umount", "-l", str(self.mounted))
        self._image.unlink()


def power_cuts(directory: Path, seed: int, scale: float = 1, kind: str = "ext4") -> Report:
    """R2; ``scale`` 1 is 150 cuts of this kind of file system."""
    report = Report(f"R2 {kind}", f"confirmed and lost over power cuts under a server on {kind}", "0 in 300", seed)
    report.skipped = why_not(kind)
    if report.skipped:
        return report
    try:
        disk = PowerDisk(directory, kind)
    except OSError as error:
        report.skipped = f"no loop device can be mounted here: {error}"
        return report
    rng = random.Random(seed)
    try:
        rounds = max(2, round(150 * scale))
        asyncio.run(_rounds(directory, disk, rng, rounds, report))
    finally:
        disk.remove()
    return report


async def _rounds(directory: Path, disk: PowerDisk, rng: random.Random, rounds: int, report: Report) -> None:
    ledger = Ledger()
    broker = BrokerProcess(
        directory / "server", data=disk.mounted / "data", settings=("seal.behind=1MiB", "seal.interval=1s")
    )
    broker.start()
    try:
        await make_topic(broker)
        for number in range(rounds):
            async with Load(broker, ledger, seed=rng.randrange(1 << 30), producers=3, consumers=1 + number % 2):
                await asyncio.sleep(rng.uniform(0.02, 0.5))
                os.kill(broker.pid, signal.SIGSTOP)
                # What the server had said before it stopped is in the sockets, and counts.
                await asyncio.sleep(0.02)
                disk.cut()
                broker.kill()
            disk.unmount()
            disk.mount()
            report.tried["cuts"] += 1
            if number % 10 == 9 or number == rounds - 1:
                ok, said = await asyncio.to_thread(verify, broker.data)
                report.hold(ok, f"cut {number}: verify: {said[:400]}")
            await asyncio.to_thread(broker.start)
            if number % 5 == 4 or number == rounds - 1:
                await ledger.drain(broker)
        broker.stop()
    finally:
        broker.kill()
        report.violations += ledger.violations
        report.tried.update(ledger.counts)
