"""Clients that mean no good, against a real server process: what they cost is bounded, and others do not notice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.wire.mqtt import Connect, Disconnect, PingReq, Publish, Subscribe, Subscription, build
from integration.mqtt_peer import Peer, cut_all, until
from integration.server_process import ServerProcess
from props.test_mqtt_codec import mutate, seeds

MIB = 1 << 20


@pytest.fixture
async def server(data_dir: Path) -> AsyncIterator[ServerProcess]:
    running = ServerProcess(data_dir / "data", doors=("mqtt",))
    yield running
    await cut_all()
    assert running.process.poll() is None, running.rest()[-5:]
    assert running.stop() == 0


async def test_two_thousand_half_packets_are_bounded_and_dropped(server: ServerProcess) -> None:
    """Each says that a large CONNECT comes, and sends a part of it: memory for what came, not for what was said."""
    address = server.ready()["mqtt"]
    witness = await Peer.connect(address, "witness")
    before = server.memory_bytes()
    half = b"\x10\xff\xff\x03" + build(Connect("x" * 200, 5), 5)[2:]
    peers = [await Peer.open(address) for _ in range(2_000)]
    for peer in peers:
        peer.send_raw(half)
    await witness.nothing()
    grown = server.memory_bytes() - before
    assert grown < 2_000 * 16 * 1024, grown
    await asyncio.gather(*(peer.ended() for peer in peers[::50]))  # by the deadline for a CONNECT, not by us
    await witness.nothing()


async def test_a_connect_that_drips_is_dropped(server: ServerProcess) -> None:
    address = server.ready()["mqtt"]
    peer = await Peer.open(address)
    whole = build(Connect("drip" * 50, 5, keep_alive_s=1), 5)
    ended = asyncio.create_task(peer.ended())
    for at in range(len(whole) - 1):
        peer.send_raw(whole[at : at + 1])
        done, _ = await asyncio.wait([ended], timeout=0.25)  # a drop now and then; it ends in the middle of it
        if done:
            break
    assert await ended == []


async def test_who_subscribes_to_everything_and_never_reads_is_bounded_and_cut(server: ServerProcess) -> None:
    address = server.ready()["mqtt"]
    stuck = await Peer.connect(address, "stuck")
    stuck.writer.transport.pause_reading()  # type: ignore[attr-defined]
    stuck.send(Subscribe(1, (Subscription("#", 1),)))
    reader, writer = await Peer.connect(address, "reader"), await Peer.connect(address, "writer")
    await reader.subscribe("load/#", 1)
    body = bytes(20_000)
    before = server.memory_bytes()
    for n in range(1_500):
        await writer.publish(f"load/{n % 7}", body, n % 2)
        assert (await reader.message()).payload == body
    assert server.memory_bytes() - before < 64 * MIB
    stuck.writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert len(await stuck.ended()) < 1_500


async def test_mutated_streams_hurt_nobody(server: ServerProcess) -> None:
    address = server.ready()["mqtt"]
    witness = await Peer.connect(address, "witness")
    await witness.subscribe("witness", 2)
    rng = random.Random(11)
    for version in (4, 5):
        pool = seeds(version)
        for _ in range(150):
            peer = await Peer.open(address, version)
            stream = pool[0] if rng.random() < 0.8 else mutate(rng, pool[0], pool)
            for _ in range(rng.randrange(8)):
                piece = rng.choice(pool[1:])
                stream += piece if rng.random() < 0.6 else mutate(rng, piece, pool)
            peer.send_raw(stream)
            if rng.random() < 0.5:
                peer.writer.write_eof()
                await peer.reader.read()
            await peer.close()
        writer = await Peer.connect(address, "writer")
        await writer.publish("witness", b"still here", 1)
        assert (await witness.message()).payload == b"still here"
    await witness.nothing()
    descriptors = server.descriptors()
    await until(lambda: server.descriptors() <= descriptors)


BREACHES = [
    (b"\x00\x00", 0x81),  # a reserved packet type
    (build(Connect("again", 5), 5), 0x82),  # a second CONNECT
    (b"\x30\x03\x00\x01\x00", 0x81),  # a PUBLISH that ends early
    (b"\x36\x05\x00\x01a\x00\x01", 0x81),  # QoS 3
    (build(Publish("a/+", b""), 5), 0x81),  # a wildcard in a topic
    (b"\x82\x05\x00\x01\x00\x00\x00", 0x81),  # a SUBSCRIBE without a filter's end
    (b"\x62\x02\x00\x00", 0x82),  # identifier 0
    (b"\xf0\x00", 0x82),  # AUTH nobody asked for
    (b"\x30\xff\xff\xff\xff\x01", 0x81),  # a length of five bytes
    (b"\x30\xff\xff\xff\x7f", 0x95),  # 256 MiB
]


async def test_a_breach_is_told_with_its_reason(server: ServerProcess) -> None:
    address = server.ready()["mqtt"]
    for said, reason in BREACHES:
        peer = await Peer.connect(address, "breach")
        peer.send_raw(said)
        (last,) = await peer.ended()
        assert isinstance(last, Disconnect), said
        assert last.reason == reason, said


async def test_a_flood_of_pings_by_who_never_reads_is_not_read_any_more(server: ServerProcess) -> None:
    address = server.ready()["mqtt"]
    witness, flood = await Peer.connect(address, "witness"), await Peer.connect(address, "flood")
    flood.writer.transport.pause_reading()  # type: ignore[attr-defined]
    before = server.memory_bytes()
    for _ in range(60):
        flood.send_raw(build(PingReq(), 5) * 10_000)
        await asyncio.sleep(0)
    for _ in range(20):
        await witness.nothing()
    assert server.memory_bytes() - before < 64 * MIB
