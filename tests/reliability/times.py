"""R8: how late a delay is when nothing is wrong. R12, R13: how long a server takes to come back."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Final

from headrace.batch import Batch, Message
from integration.native_peer import Peer
from reliability.broker import BrokerProcess
from reliability.report import Report

__all__ = ["lateness", "recovery", "restart"]

RATE: Final = 1000
LATE_S: Final = 0.050
RECOVERED_S: Final = 3.0
WITH_SNAPSHOT_S: Final = 1.0
CONFIRMED_S: Final = 0.5


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def lateness(directory: Path, seed: int, scale: float = 1) -> Report:
    """R8; ``scale`` 1 is 30 s of 1,000 delayed messages a second."""
    report = Report("R8", f"lateness of a delay at {RATE}/s", f"p99 <= {LATE_S * 1000:g} ms, none early", seed)
    with BrokerProcess(directory) as broker:
        asyncio.run(_lateness(broker, random.Random(seed), max(2.0, 30 * scale), report))
    return report


async def _lateness(broker: BrokerProcess, rng: random.Random, seconds: float, report: Report) -> None:
    producer, consumer = await Peer.open(broker.address()), await Peer.open(broker.address())
    await producer.call("topic.create", topic="late", settings={"ordering": "none"})
    subscription = await consumer.subscribe("late", messages=10_000, size_bytes=1 << 24)
    due_ns: dict[bytes, int] = {}
    late: list[float] = []
    step_s, sent = 0.02, 0
    total = int(seconds * RATE)

    async def receive() -> None:
        while len(late) < total:
            pushed = await consumer.pushed()
            came_ns = time.monotonic_ns()
            for buffer in pushed.batches:
                batch = Batch.decode(bytes(buffer))
                # Since when it may come: its delay counts from when the server got it, which is a little later.
                late.extend((came_ns - due_ns[value]) / 1e9 for value in batch.values())
            consumer.begin(consumer.session.send_ack(subscription, [run[:4] for run in pushed.runs]))
            consumer.session.send_credit(subscription, pushed.count, pushed.size_bytes)
            consumer.flush()

    receiving = asyncio.create_task(receive())
    begin = time.monotonic()
    while sent < total:
        await asyncio.sleep(max(0.0, begin + sent / RATE - time.monotonic()))
        messages = []
        now_ns = time.monotonic_ns()
        for _ in range(min(int(RATE * step_s), total - sent)):
            value, delay_ns = b"%d" % sent, rng.randrange(500, 3000) * 1_000_000
            due_ns[value] = now_ns + delay_ns
            messages.append(Message(value, delay_ns=delay_ns))
            sent += 1
        await producer.publish("late", messages)
    async with asyncio.timeout(60):
        await receiving
    await producer.close()
    await consumer.close()
    report.tried["delayed"] = total
    report.figures = {f"p{share * 100:g} ms": round(percentile(late, share) * 1000, 1) for share in (0.5, 0.99, 1)}
    early = [value for value in late if value < 0]
    report.hold(not early, f"{len(early)} came early, by up to {-min(early, default=0) * 1000:.1f} ms")
    report.in_time(percentile(late, 0.99) <= LATE_S, f"p99 is {percentile(late, 0.99) * 1000:.1f} ms")


def recovery(directory: Path, seed: int, scale: float = 1) -> Report:
    """R12; ``scale`` 1 is 1,000,000 messages, of which some are settled."""
    count = max(10_000, int(1_000_000 * scale))
    report = Report("R12", f"recovery of {count:,} messages after a kill", f"<= {RECOVERED_S:g} s at 1,000,000", seed)
    broker = BrokerProcess(directory).start()
    try:
        asyncio.run(_fill(broker, count))
        broker.kill()
        broker.restart_seconds.clear()
        broker.start()
        report.figures["ready, s"] = round(broker.restart_seconds[-1], 2)
        report.figures["of these idle start, s"] = round(_idle_start(directory / "idle"), 2)
        took_s = broker.restart_seconds[-1]
        report.in_time(took_s <= RECOVERED_S * max(1.0, scale), f"it took {took_s:.2f} s")
        kept = asyncio.run(_count(broker))
        report.hold(kept == count, f"{kept} of {count} are there")
        report.tried["messages"] = count
    finally:
        broker.kill()
    return report


async def _fill(broker: BrokerProcess, count: int) -> None:
    peer = await Peer.open(broker.address())
    values = [bytes(200)] * 1000
    for _ in range(count // 1000):
        await peer.publish("big", values)
    await peer.close()


async def _count(broker: BrokerProcess) -> int:
    peer = await Peer.open(broker.address())
    shown = await peer.call("group.show", topic="big", group="default")
    await peer.close()
    return int(shown["ready"])


def _idle_start(directory: Path) -> float:
    with BrokerProcess(directory) as broker:
        return broker.restart_seconds[-1]


def restart(directory: Path, seed: int, scale: float = 1) -> Report:
    """R13; ``scale`` 1 is 20 kills with a small backlog."""
    report = Report("R13", "from the start of the process to the first confirm", f"<= {CONFIRMED_S:g} s (median)", seed)
    took: list[float] = []
    broker = BrokerProcess(directory).start()
    try:
        for _ in range(max(3, round(20 * scale))):
            asyncio.run(_fill(broker, 1000))
            broker.kill()
            began = time.monotonic()
            broker.start()
            asyncio.run(_publish_one(broker))
            took.append(time.monotonic() - began)
            report.tried["restarts"] += 1
    finally:
        broker.kill()
    report.figures = {"median s": round(percentile(took, 0.5), 2), "max s": round(max(took), 2)}
    report.in_time(percentile(took, 0.5) <= CONFIRMED_S, f"the median is {percentile(took, 0.5):.2f} s")
    return report


async def _publish_one(broker: BrokerProcess) -> None:
    peer = await Peer.open(broker.address())
    await peer.publish("big", [b"first"])
    await peer.close()
