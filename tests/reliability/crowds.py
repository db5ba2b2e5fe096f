"""R17, R18, R19: what the doors do about clients that never finish, never read, or come and go by the thousand. A
well-behaved client works beside them on the native door all the time and says how it fares.
"""

from __future__ import annotations

import asyncio
import random
import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from headrace.wire import mqtt
from integration.mqtt_peer import Peer as MqttPeer
from integration.native_peer import Peer, scope_of, values_of
from reliability.broker import BrokerProcess
from reliability.report import Report
from reliability.times import percentile

__all__ = ["half_open", "storms", "stuck"]

MIB: Final = 1 << 20
DOORS: Final = ("native", "http", "mqtt")
DROPPED_S: Final = 10.0
SLACK_S: Final = 5.0
"""For five thousand ends to be seen by one loop on a machine that does other things too."""
BEGINNINGS: Final = {
    "native": b"HEADRACE" + bytes(40),
    "http": b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\nX-A: " + b"a" * 100,
    "mqtt": mqtt.build(mqtt.Connect("a-client-with-a-name", 5, True, 30), 5)[:-1],
}


@asynccontextmanager
async def _steady(broker: BrokerProcess) -> AsyncIterator[list[float]]:
    """Publish, lease and ack, round after round; how long each took."""
    peer = await Peer.open(broker.address())
    rounds: list[float] = []

    async def work() -> None:
        number = 0
        while True:
            began = time.monotonic()
            await peer.publish("steady", [b"%d" % number])
            leased = await peer.lease("steady", 10, wait_ns=20_000_000_000)
            assert values_of(leased) == [b"%d" % number], f"round {number}: {values_of(leased)}"
            assert not (await peer.ack(scope_of("steady"), leased.runs)).refusals
            rounds.append(time.monotonic() - began)
            number += 1
            await asyncio.sleep(0.002)

    task = asyncio.create_task(work())
    try:
        yield rounds
        if task.done():
            task.result()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await peer.abandon()


async def _quiet(rounds: list[float], seconds: float) -> float:
    """The p99 of the rounds of the next seconds."""
    start = len(rounds)
    await asyncio.sleep(seconds)
    return percentile(rounds[start:] or [seconds], 0.99)


def _raise_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or soft < hard:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (min(hard, 65_536) if hard != resource.RLIM_INFINITY else 65_536, hard)
        )


# -- R17 ---------------------------------------------------------------------------------------------------------------


def half_open(directory: Path, seed: int, scale: float = 1) -> Report:
    """R17; ``scale`` 1 is 5,000 on each door."""
    report = Report(
        "R17",
        "half-open and dripping clients on native, HTTP and MQTT",
        f"dropped in {DROPPED_S:g} s, memory and descriptors back",
        seed,
    )
    _raise_descriptors()
    count = max(100, int(5000 * scale))
    with BrokerProcess(directory, doors=DOORS) as broker:
        asyncio.run(_half_open(broker, count, report))
    return report


async def _half_open(broker: BrokerProcess, count: int, report: Report) -> None:
    async with _steady(broker) as rounds:
        alone = await _quiet(rounds, 2)
        for door in DOORS:
            descriptors, memory = broker.descriptors(), broker.memory_bytes()
            dropped: list[float] = []
            host, _, port = broker.address(door).rpartition(":")
            start = len(rounds)
            ends = asyncio.gather(*(_one_half_open(door, host, int(port), i, dropped) for i in range(count)))
            most = 0
            while not ends.done():
                most = max(most, broker.memory_bytes())
                await asyncio.sleep(0.1)
            await ends
            report.tried[door] = count
            held = percentile(rounds[start:] or [99.0], 0.99)
            report.figures[door] = (
                f"last dropped after {max(dropped):.1f} s, {(most - memory) / MIB:.0f} MiB meanwhile, "
                f"others' p99 {held * 1000:.0f} ms (alone {alone * 1000:.0f})"
            )
            report.hold(len(dropped) == count, f"{door}: {count - len(dropped)} of {count} were not dropped")
            report.in_time(
                max(dropped) <= DROPPED_S + SLACK_S, f"{door}: the last was dropped after {max(dropped):.1f} s"
            )
            for _ in range(100):
                if broker.descriptors() <= descriptors + 2:
                    break
                await asyncio.sleep(0.1)
            report.hold(
                broker.descriptors() <= descriptors + 2,
                f"{door}: {descriptors} descriptors before, {broker.descriptors()} after",
            )
            grown = broker.memory_bytes() - memory
            report.hold(grown <= 64 * MIB, f"{door}: {grown / MIB:.0f} MiB more than before")


async def _one_half_open(door: str, host: str, port: int, number: int, dropped: list[float]) -> None:
    """Say nothing, half of what there is to say, or a byte a second of it."""
    await asyncio.sleep(number / 2500)
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        dropped.append(0.0)  # refused: as good
        return
    began = time.monotonic()
    beginning = BEGINNINGS[door]
    if number % 3 == 1:
        writer.write(beginning)
    reading = asyncio.ensure_future(reader.read(1 << 16))
    try:
        while True:
            done, _ = await asyncio.wait([reading], timeout=1.0)
            if done:
                if not reading.result():
                    break
                reading = asyncio.ensure_future(reader.read(1 << 16))
            if number % 3 == 2 and not writer.is_closing():
                at = int(time.monotonic() - began) % len(beginning)
                writer.write(beginning[at : at + 1])
            if time.monotonic() - began > 3 * DROPPED_S:
                return
        dropped.append(time.monotonic() - began)
    except OSError:
        dropped.append(time.monotonic() - began)
    finally:
        reading.cancel()
        writer.close()


# -- R18 ---------------------------------------------------------------------------------------------------------------


def stuck(directory: Path, seed: int, scale: float = 1) -> Report:
    """R18; ``scale`` 1 is 1,000,000 messages past ten subscribers that do not read: five native, five MQTT."""
    report = Report("R18", "ten stuck subscribers", "growth <= 64 MiB, others' p99 <= 2 x", seed)
    count = max(20_000, int(1_000_000 * scale))
    with BrokerProcess(directory, doors=DOORS) as broker:
        asyncio.run(_stuck(broker, count, report))
    return report


async def _publish_all(broker: BrokerProcess, count: int, rounds: list[float]) -> tuple[float, int]:
    producer = await Peer.open(broker.address())
    values = [bytes(200)] * 500
    start, most = len(rounds), 0
    for number in range(count // 500):
        await producer.publish("flood", values)
        if number % 20 == 0:
            most = max(most, broker.memory_bytes())
        await asyncio.sleep(0.002)
    await producer.close()
    return percentile(rounds[start:] or [99.0], 0.99), most


async def _stuck(broker: BrokerProcess, count: int, report: Report) -> None:
    async with _steady(broker) as rounds:
        # What a million messages do to memory and to the others without anybody who listens.
        alone, _ = await _publish_all(broker, count // 2, rounds)
        native_peers, mqtt_peers = [], []
        for i in range(5):
            peer = await Peer.open(broker.address())
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined] # a socket's transport
            peer.session.send_consume(
                scope_of("flood", f"g{i}", f"stuck-{i}"), credit_messages=60_000, credit_bytes=60 * MIB
            )
            peer.flush()
            native_peers.append(peer)
            listener = await MqttPeer.connect(broker.address("mqtt"), f"stuck-{i}")
            listener.send(mqtt.Subscribe(1, [mqtt.Subscription("flood", 0 if i % 2 else 1)]))
            await listener.receive()
            listener.writer.transport.pause_reading()  # type: ignore[attr-defined]
            mqtt_peers.append(listener)
        memory = broker.memory_bytes()
        beside, most = await _publish_all(broker, count, rounds)
        grown = max(most, broker.memory_bytes()) - memory
        report.tried["messages"] = count
        report.tried["stuck"] = 10
        report.figures = {
            "growth MiB": round(grown / MIB, 1),
            "others' p99 ms": round(beside * 1000, 1),
            "without them ms": round(alone * 1000, 1),
        }
        report.hold(grown <= 64 * MIB, f"memory grew by {grown / MIB:.0f} MiB")
        report.in_time(
            beside <= 2 * max(alone, 0.005),
            f"the others' p99 is {beside * 1000:.1f} ms, without them {alone * 1000:.1f} ms",
        )
        for peer in native_peers:
            await peer.abandon()
        for listener in mqtt_peers:
            listener.writer.transport.abort()


# -- R19 ---------------------------------------------------------------------------------------------------------------


def storms(directory: Path, seed: int, scale: float = 1) -> Report:
    """R19; ``scale`` 1 is 60 s of connects, as many a second as this machine makes, up to 1,000."""
    report = Report("R19", "connect storms on native, HTTP and MQTT", "memory and descriptors back, others go on", seed)
    _raise_descriptors()
    with BrokerProcess(directory, doors=DOORS) as broker:
        asyncio.run(_storms(broker, random.Random(seed), max(3.0, 60 * scale), report))
    return report


async def _storms(broker: BrokerProcess, rng: random.Random, seconds: float, report: Report) -> None:
    async with _steady(broker) as rounds:
        await _storm(broker, rng, 1.0, report)  # so that what is made once is made
        await asyncio.sleep(1)
        memory, descriptors, start = broker.memory_bytes(), broker.descriptors(), len(rounds)
        began = time.monotonic()
        report.tried.clear()
        await _storm(broker, rng, seconds, report)
        report.figures["connects a second"] = round(sum(report.tried.values()) / (time.monotonic() - began))
        for _ in range(150):
            if broker.descriptors() <= descriptors + 2:
                break
            await asyncio.sleep(0.1)
        grown = broker.memory_bytes() - memory
        report.figures["growth MiB"] = round(grown / MIB, 1)
        report.figures["others' p99 ms"] = round(percentile(rounds[start:] or [99.0], 0.99) * 1000)
        report.hold(
            broker.descriptors() <= descriptors + 2, f"{descriptors} descriptors before, {broker.descriptors()} after"
        )
        report.hold(grown <= 32 * MIB, f"{grown / MIB:.0f} MiB more than before")


async def _storm(broker: BrokerProcess, rng: random.Random, seconds: float, report: Report) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        tick = time.monotonic()
        await asyncio.gather(*(_come_and_go(broker, DOORS[i % 3], rng.random(), report) for i in range(50)))
        await asyncio.sleep(max(0.0, 0.05 - (time.monotonic() - tick)))


async def _come_and_go(broker: BrokerProcess, door: str, chance: float, report: Report) -> None:
    report.tried[door] += 1
    if chance < 0.3:
        host, _, port = broker.address(door).rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.transport.abort()
        return
    match door:
        case "native":
            peer = await Peer.open(broker.address())
            await (peer.close() if chance < 0.7 else peer.abandon())
        case "mqtt":
            client = await MqttPeer.connect(broker.address("mqtt"), f"storm-{int(chance * 1e6)}")
            client.writer.close() if chance < 0.7 else client.writer.transport.abort()
        case _:
            host, _, port = broker.address("http").rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            if chance < 0.7:
                line = await reader.readline()
                assert b" 200 " in line, f"GET /health was answered {line!r}"
            writer.close()
