"""R14: hours at half of peak, with kills: memory, descriptors and disk stay where they are.

Half of peak is taken by measurement: a few seconds flat out, then half of that rate. Kills come in the first third; the
last life goes on for two thirds of the time, and its second half says whether memory still grows: before, caches fill.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Final

from headrace.errors import HeadraceError
from headrace.limits import SEAL_DOOMED_NS
from headrace.wire import native
from integration.native_peer import Peer
from reliability.broker import BrokerProcess, verify
from reliability.report import Report
from reliability.workload import GROUP, TOPIC, Ledger, Load, make_topic, settle

__all__ = ["soak"]

MIB: Final = 1 << 20
SLOPE_MIB_H: Final = 1.0
DISK_TIMES: Final = 2.0
BODY_BYTES: Final = 1000
BATCH: Final = 50
SLOPE_FROM_S: Final = 600
"""Below, the slope is that of caches that fill."""
CACHES_MIB: Final = 320
"""What a life takes besides: pyarrow once something is sealed (some 160 MiB), a journal file that is being turned into
columns, the hot tail and the cold cache (96 MiB)."""
KEPT_BYTES: Final = 64 * MIB
LOOK_S: Final = 1.0
RESERVED_BYTES: Final = 256 * MIB
"""Besides sealed files, which stay for SEAL_DOOMED_NS after they were let go of, for their last readers. Journal files
are 64 MiB each and made before they are needed: the one being written, the spare, what waits to be sealed, and what is
kept until the next snapshot covers it. It does not grow with what lives."""


def soak(directory: Path, seed: int, scale: float = 1) -> Report:
    """R14; ``scale`` 1 is 15 minutes."""
    report = Report(
        "R14",
        "a soak at half of peak, with kills",
        f"<= {SLOPE_MIB_H:g} MiB/h, descriptors flat, disk <= 2 x live",
        seed,
    )
    broker = BrokerProcess(directory, settings=("seal.behind=16MiB", "seal.interval=2s"))
    try:
        asyncio.run(_soak(broker, random.Random(seed), max(9.0, 900 * scale), report))
        report.hold(broker.stop() == 0, "the server did not stop cleanly")
        ok, said = verify(broker.data)
        report.hold(ok, f"verify: {said[:400]}")
    finally:
        broker.kill()
    return report


async def _peak(broker: BrokerProcess, ledger: Ledger) -> float:
    async with Load(broker, ledger, seed=0, producers=2, consumers=2, size_bytes=BODY_BYTES):
        before, began = ledger.counts["acked"], time.monotonic()
        await asyncio.sleep(4)
        return (ledger.counts["acked"] - before) / (time.monotonic() - began)


async def _soak(broker: BrokerProcess, rng: random.Random, seconds: float, report: Report) -> None:
    ledger = Ledger()
    broker.start()
    await make_topic(broker, retention_bytes="64MiB", partitions=2)
    rate = await _peak(broker, ledger) / 2
    report.figures["rate /s"] = round(rate)
    lengths = [seconds / 6, seconds / 6, seconds * 2 / 3]
    descriptors: list[int] = []
    disk: list[int] = []
    for life, length in enumerate(lengths):
        memory: list[tuple[float, int]] = []
        tasks = [asyncio.create_task(_publish(broker, ledger, rate)), asyncio.create_task(_consume(broker, ledger))]
        end = time.monotonic() + length
        while time.monotonic() < end:
            await asyncio.sleep(LOOK_S)
            memory.append((time.monotonic(), broker.memory_bytes()))
            descriptors.append(broker.descriptors())
            disk.append(broker.disk_bytes())
            for task in tasks:
                if task.done():
                    task.result()
        if life < len(lengths) - 1:
            broker.kill()
            report.tried["kills"] += 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        settled = memory[len(memory) // 2 :]
        slope = _slope(settled)
        report.figures[f"life {life}"] = (
            f"{memory[0][1] / MIB:.1f}, {settled[0][1] / MIB:.1f}, {settled[-1][1] / MIB:.1f} MiB, {slope:+.1f} MiB/h"
        )
        if life < len(lengths) - 1:
            await asyncio.to_thread(broker.start)
    await ledger.drain(broker)
    report.violations += ledger.violations
    report.tried.update(ledger.counts)
    report.tried["seconds"] = round(seconds)
    report.figures["descriptors"] = f"{min(descriptors)} to {max(descriptors)}"
    report.figures["disk MiB, at most"] = round(max(disk) / MIB)
    grown = (settled[-1][1] - memory[0][1]) / MIB
    if seconds >= SLOPE_FROM_S:
        report.hold(slope <= SLOPE_MIB_H, f"memory grew by {slope:.1f} MiB/h in the end")
    report.hold(grown <= CACHES_MIB, f"memory grew by {grown:.0f} MiB in the last life")
    report.hold(max(descriptors) - min(descriptors) <= 12, f"{min(descriptors)} to {max(descriptors)} descriptors")
    leaving = rate * BODY_BYTES * min(seconds, SEAL_DOOMED_NS / 1e9)
    most = DISK_TIMES * KEPT_BYTES + RESERVED_BYTES + leaving
    report.figures["of these on their way out MiB"] = round(leaving / MIB)
    report.hold(max(disk) <= most, f"{max(disk) / MIB:.0f} MiB on the disk, {most / MIB:.0f} are expected at most")


def _slope(memory: list[tuple[float, int]]) -> float:
    """MiB an hour, by least squares."""
    if len(memory) < 2:
        return 0.0
    mean_at = sum(at for at, _ in memory) / len(memory)
    mean = sum(size for _, size in memory) / len(memory)
    spread = sum((at - mean_at) ** 2 for at, _ in memory)
    return sum((at - mean_at) * (size - mean) for at, size in memory) / spread * 3600 / MIB


async def _publish(broker: BrokerProcess, ledger: Ledger, rate: float) -> None:
    peer = await Peer.open(broker.address())
    load = Load(broker, ledger, seed=0, size_bytes=BODY_BYTES)
    try:
        began, sent = time.monotonic(), 0
        while True:
            await asyncio.sleep(max(0.0, began + sent / rate - time.monotonic()))
            await load.publish_once(peer, BATCH)
            sent += BATCH
    except (HeadraceError, OSError, TimeoutError):
        if broker.is_up:
            raise
    finally:
        await peer.abandon()


async def _consume(broker: BrokerProcess, ledger: Ledger) -> None:
    peer = await Peer.open(broker.address())
    scope = native.Scope("", TOPIC, GROUP, "c")
    try:
        while True:
            leased = await peer.ask(peer.session.send_lease(scope, 200, wait_ns=200_000_000))
            if leased.runs:
                await settle(peer, scope, leased.runs, leased.batches, ledger)
    except (HeadraceError, OSError, TimeoutError):
        if broker.is_up:
            raise
    finally:
        await peer.abandon()
