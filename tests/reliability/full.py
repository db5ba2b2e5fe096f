"""R10: a small disk that fills up again and again under a server that seals and lets go. Publishes are refused with
``storage_full``, settlements and reads go on, and within seconds of space coming back publishes do too.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Final

from headrace.errors import HeadraceError, StorageFull
from headrace.wire import native
from integration.native_peer import Peer
from reliability.broker import BrokerProcess, verify
from reliability.power import PowerDisk, why_not
from reliability.report import Report
from reliability.workload import GROUP, TOPIC, Ledger, Load, make_topic, settle

__all__ = ["full_disks"]

MIB: Final = 1 << 20
DISK_BYTES: Final = 400 * MIB
RESUME_S: Final = 5.0
BODY_BYTES: Final = 20_000
ROUND_S: Final = 60


def full_disks(directory: Path, seed: int, scale: float = 1) -> Report:
    """R10; ``scale`` 1 is 50 rounds."""
    report = Report("R10", "a full disk, sealing to Parquet meanwhile", f"0 lost, resumes in {RESUME_S:g} s", seed)
    report.skipped = why_not()
    if report.skipped:
        return report
    try:
        disk = PowerDisk(directory, size_bytes=DISK_BYTES)
    except OSError as error:
        report.skipped = f"no loop device can be mounted here: {error}"
        return report
    try:
        asyncio.run(_rounds(directory, disk, random.Random(seed), max(2, round(50 * scale)), report))
    finally:
        disk.remove()
    return report


async def _rounds(directory: Path, disk: PowerDisk, rng: random.Random, rounds: int, report: Report) -> None:
    ledger = Ledger()
    resumed: list[float] = []
    broker = BrokerProcess(
        directory / "server",
        data=disk.mounted / "data",
        settings=("seal.behind=1MiB", "seal.interval=1s", "seal.share=1"),
    )
    broker.start()
    ballast = disk.mounted / "ballast"
    try:
        # Settled messages are let go of, half of the rounds after they were sealed: that is what makes room again.
        await make_topic(broker, retain_acked=True, retention_bytes="20MiB")
        for number in range(rounds):
            peer = await Peer.open(broker.address())
            _fill(ballast, disk, rng.randrange(MIB // 4, 8 * MIB))
            load = Load(broker, ledger, seed=number, size_bytes=BODY_BYTES)
            full = await _until_full(load, peer, report)
            if not full:
                report.violate(f"round {number}: the disk is full and publishes go on")
            # What is there can be read and settled.
            scope = native.Scope("", TOPIC, GROUP, "c")
            for _ in range(3):
                leased = await peer.lease(TOPIC, 30)
                if leased.runs:
                    try:
                        await settle(peer, scope, leased.runs, leased.batches, ledger)
                        report.tried["settled while full"] += leased.count
                    except HeadraceError as error:
                        report.violate(f"round {number}: settling on a full disk: {error.code} {error.message}")
            if number % 10 == 9:
                broker.kill()
                await asyncio.to_thread(broker.start)
                peer = await Peer.open(broker.address())
            ballast.unlink()
            came_back = time.monotonic()
            while True:
                try:
                    await load.publish_once(peer, 1)
                    break
                except StorageFull:
                    if time.monotonic() - came_back > ROUND_S:
                        report.violate(f"round {number}: no publish for {ROUND_S} s after space came back")
                        break
                    await asyncio.sleep(0.02)
            resumed.append(time.monotonic() - came_back)
            report.in_time(
                resumed[-1] <= RESUME_S, f"round {number}: publishes went on {resumed[-1]:.1f} s after space was there"
            )
            report.tried["rounds"] += 1
            await peer.abandon()
            await ledger.drain(broker)
        report.hold(broker.stop() == 0, "the server did not stop cleanly")
        ok, said = verify(broker.data)
        report.hold(ok, f"verify: {said[:400]}")
    finally:
        broker.kill()
        report.violations += ledger.violations
        report.tried.update(ledger.counts)
        sealed = sum(1 for _ in broker.data.rglob("*.parquet"))
        report.figures["parquet files in the end"] = sealed
        if resumed:
            report.figures["publishes after space came back, s"] = (
                f"p50 {sorted(resumed)[len(resumed) // 2]:.2f} max {max(resumed):.2f}"
            )


def _fill(ballast: Path, disk: PowerDisk, left_bytes: int) -> None:
    """Take all of the disk but ``left_bytes``."""
    import os

    found = os.statvfs(disk.mounted)
    size = found.f_bavail * found.f_frsize - left_bytes
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(4096, size))


async def _until_full(load: Load, peer: Peer, report: Report) -> bool:
    began = time.monotonic()
    while time.monotonic() - began < ROUND_S:
        try:
            await load.publish_once(peer, 20)
        except StorageFull:
            report.tried["refused"] += 1
            return True
    return False
