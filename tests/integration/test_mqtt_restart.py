"""What ordinary MQTT promises over a killed server: sessions, what is kept for them, retained messages, wills."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from headrace.wire.mqtt import (
    Connect,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Will,
)
from integration.mqtt_peer import Peer, cut_all
from integration.server_process import ServerProcess

LONG = 3600


@pytest.fixture
async def serve(data_dir: Path) -> AsyncIterator[Callable[..., ServerProcess]]:
    started: list[ServerProcess] = []

    def start(*arguments: str) -> ServerProcess:
        started.append(ServerProcess(data_dir / "data", *arguments, doors=("mqtt",)))
        return started[-1]

    yield start
    await cut_all()
    for server in started:
        if server.process.poll() is None:
            server.kill()


def address(server: ServerProcess) -> str:
    return str(server.ready()["mqtt"])


@pytest.mark.feature("F183", "F184")
@pytest.mark.parametrize("version", [4, 5])
async def test_a_session_goes_on_after_the_server_was_killed(serve: Callable[..., ServerProcess], version: int) -> None:
    server = serve()
    where = address(server)
    lasting = {"session_expiry_interval": LONG} if version == 5 else {}
    reader = await Peer.connect(where, "reader", version, clean_start=False, **lasting)
    await reader.subscribe("a/#", 2, wanted=2)
    await reader.close()
    writer = await Peer.connect(where, "writer", version)
    for n in range(20):
        await writer.publish(f"a/{n}", b"%d" % n, n % 3)
    server.kill()

    reader = await Peer.connect(address(serve()), "reader", version, clean_start=False, **lasting)
    assert reader.connack is not None
    assert reader.connack.session_present
    got = await reader.messages(13)
    assert [int(message.payload) for message in got] == [n for n in range(20) if n % 3]
    assert not any(message.dup for message in got)
    await reader.nothing()
    writer = await Peer.connect(reader_address(reader), "writer", version)
    await writer.publish("a/again", b"now", 1)
    assert (await reader.message()).payload == b"now"


def reader_address(peer: Peer) -> str:
    host, port = peer.writer.get_extra_info("peername")[:2]
    return f"{host}:{port}"


async def test_a_message_that_may_have_been_sent_comes_again_marked_and_under_its_identifier(
    serve: Callable[..., ServerProcess],
) -> None:
    server = serve()
    where = address(server)
    reader = await Peer.connect(where, "reader", session_expiry_interval=LONG)
    await reader.subscribe("t", 2)
    writer = await Peer.connect(where, "writer")
    await writer.publish("t", b"one", 1)
    await writer.publish("t", b"two", 2)
    one, two = await reader.message(ack=False), await reader.message(ack=False)
    server.kill()

    reader = await Peer.connect(address(serve()), "reader", clean_start=False, session_expiry_interval=LONG)
    again = await reader.messages(2)
    assert [(m.payload, m.packet_id, m.dup) for m in again] == [
        (b"one", one.packet_id, True),
        (b"two", two.packet_id, True),
    ]
    await reader.nothing()


async def test_a_qos_2_message_the_client_has_recorded_is_released_and_not_sent_again(
    serve: Callable[..., ServerProcess],
) -> None:
    server = serve()
    where = address(server)
    reader = await Peer.connect(where, "reader", session_expiry_interval=LONG)
    await reader.subscribe("t", 2)
    writer = await Peer.connect(where, "writer")
    await writer.publish("t", b"x", 2)
    message = await reader.message(ack=False)
    reader.send(PubRec(message.packet_id))
    await reader.expect(PubRel)  # not said before it is durable
    server.kill()

    reader = await Peer.connect(address(serve()), "reader", clean_start=False, session_expiry_interval=LONG)
    assert (await reader.expect(PubRel)).packet_id == message.packet_id
    reader.send(PubComp(message.packet_id))
    await reader.nothing()


async def test_a_half_received_qos_2_message_is_not_delivered_twice(serve: Callable[..., ServerProcess]) -> None:
    server = serve()
    where = address(server)
    reader = await Peer.connect(where, "reader")
    await reader.subscribe("t", 1)
    writer = await Peer.connect(where, "writer", session_expiry_interval=LONG)
    for number in (7, 8):
        writer.send(Publish("t" if number == 7 else "nobody", b"once", 2, packet_id=number))
        await writer.expect(PubRec)
    assert (await reader.message()).payload == b"once"
    await reader.nothing()
    server.kill()

    server = serve()
    where = address(server)
    reader = await Peer.connect(where, "reader")
    await reader.subscribe("t", 1)
    writer = await Peer.connect(where, "writer", clean_start=False, session_expiry_interval=LONG)
    for number in (7, 8):
        writer.send(Publish("t", b"once", 2, dup=True, packet_id=number))
        await writer.expect(PubRec)
        writer.send(PubRel(number))
        assert (await writer.expect(PubComp)).reason == 0
    await reader.nothing()


async def test_retained_messages_are_there_after_a_kill_and_cleared_ones_are_not(
    serve: Callable[..., ServerProcess],
) -> None:
    server = serve()
    writer = await Peer.connect(address(server), "writer")
    said = {"content_type": "text/plain", "user_properties": [("a", "1"), ("a", "2")]}
    await writer.publish("state/a", b"1", 1, retain=True)
    await writer.publish("state/a", b"2", 1, retain=True, **said)
    await writer.publish("state/b", b"gone", 1, retain=True)
    await writer.publish("state/b", b"", 1, retain=True)
    await writer.publish("state/short", b"x", 1, retain=True, message_expiry_interval=LONG)
    server.kill()

    reader = await Peer.connect(address(serve()), "reader")
    await reader.subscribe("state/#", 1)
    first, second = sorted(await reader.messages(2), key=lambda message: message.topic)
    assert (first.topic, first.payload, first.retain, first.properties) == ("state/a", b"2", True, said)
    assert second.topic == "state/short"
    assert 0 < (second.properties or {})["message_expiry_interval"] <= LONG
    await reader.nothing()


async def test_the_will_of_a_client_that_was_connected_is_published_after_the_kill(
    serve: Callable[..., ServerProcess],
) -> None:
    server = serve()
    where = address(server)
    watcher = await Peer.connect(where, "watcher", session_expiry_interval=LONG)
    await watcher.subscribe("gone/#", 1)
    left = await Peer.connect(where, "left", will=Will("gone/left", b"no", 1), session_expiry_interval=LONG)
    left.send(Disconnect(0))
    assert await left.ended() == []
    lasting = await Peer.connect(where, "lasting", will=Will("gone/lasting", b"bye", 1), session_expiry_interval=LONG)
    await lasting.publish("state", b"here", 1, retain=True)  # durable, and so is what was said before
    server.kill()

    server = serve()
    watcher = await Peer.connect(address(server), "watcher", clean_start=False, session_expiry_interval=LONG)
    assert (await watcher.message()).topic == "gone/lasting"
    await watcher.nothing()
    await watcher.publish("state", b"seen", 1, retain=True)  # the acknowledgement is durable with it
    server.kill()
    watcher = await Peer.connect(address(serve()), "watcher", clean_start=False, session_expiry_interval=LONG)
    await watcher.nothing()  # and not twice


async def test_a_shared_subscription_strands_nothing_over_a_kill(serve: Callable[..., ServerProcess]) -> None:
    server = serve()
    where = address(server)
    ann = await Peer.connect(where, "ann", session_expiry_interval=LONG)
    await ann.subscribe("$share/g/jobs", 1)
    bob = await Peer.connect(where, "bob", session_expiry_interval=LONG)
    await bob.subscribe("$share/g/jobs", 1)
    writer = await Peer.connect(where, "writer")
    for n in range(10):
        await writer.publish("jobs", b"%d" % n, 1)
    await ann.message(ack=False)
    server.kill()

    bob = await Peer.connect(address(serve()), "bob", clean_start=False, session_expiry_interval=LONG)
    assert sorted([int((await bob.message()).payload) for _ in range(10)]) == list(range(10))
    await bob.nothing()


async def test_a_session_that_ended_stays_ended(serve: Callable[..., ServerProcess]) -> None:
    server = serve()
    where = address(server)
    peer = await Peer.connect(where, "ann", session_expiry_interval=LONG)
    await peer.subscribe("t", 1)
    await peer.leave()
    peer = await Peer.connect(where, "ann", clean_start=True)
    await peer.leave()
    server.kill()
    peer = await Peer.connect(address(serve()), "ann", clean_start=False, session_expiry_interval=LONG)
    assert peer.connack is not None
    assert not peer.connack.session_present
    assert isinstance(answer := await peer.publish("t", b"x", 1), PubAck)
    assert answer.reason == 0x10


@pytest.mark.feature("F185", "F186")
async def test_a_queue_subscription_goes_on_after_a_kill(serve: Callable[..., ServerProcess]) -> None:
    server = serve("--set", "topic_defaults.lease=1s")
    where = address(server)
    worker = await Peer.connect(where, "worker-1", session_expiry_interval=LONG)
    await worker.subscribe("$queue/jobs", 1)
    writer = await Peer.connect(where, "writer", session_expiry_interval=LONG)
    await writer.publish("$queue/jobs", b"1", 2)
    writer.send(Publish("$queue/jobs", b"2", 2, packet_id=99))
    await writer.expect(PubRec)
    await worker.messages(2)
    server.kill()

    server = serve()
    where = address(server)
    worker = await Peer.connect(where, "worker-1", clean_start=False, session_expiry_interval=LONG)
    writer = await Peer.connect(where, "writer", clean_start=False, session_expiry_interval=LONG)
    writer.send(Publish("$queue/jobs", b"2", 2, dup=True, packet_id=99))
    await writer.expect(PubRec)
    writer.send(PubRel(99))
    await writer.expect(PubComp)
    await writer.publish("$queue/jobs", b"3", 1)
    got = []
    while len(got) < 3:
        message = await worker.message()
        said = dict((message.properties or {})["user_properties"])
        await worker.publish("$queue/jobs/$ack", b"", user_properties=[("message-id", said["message-id"])])
        if message.payload not in got:
            got.append(message.payload)
    assert sorted(got) == [b"1", b"2", b"3"]


async def test_many_kills_lose_no_acknowledged_publish(serve: Callable[..., ServerProcess]) -> None:
    """Four rounds; the reader is away, comes, goes, in the middle of a stream."""
    server = serve()
    where = address(server)
    reader = await Peer.connect(where, "reader", session_expiry_interval=LONG)
    await reader.subscribe("n", 1)
    await reader.close()
    sent, got, number = set(), set(), 0
    for _ in range(4):
        writer = await Peer.connect(where, "writer")
        for _ in range(50):
            answer = await writer.publish("n", b"%d" % number, 1)
            assert isinstance(answer, PubAck)
            sent.add(number)
            number += 1
        reader = await Peer.open(where)
        reader.send(Connect("reader", 5, False, properties={"session_expiry_interval": LONG}))
        await reader.receive()
        for _ in range(20):
            message = await reader.message()
            got.add(int(message.payload))
        await reader.nothing_but_messages(got)
        server.kill()
        server = serve()
        where = address(server)
    reader = await Peer.connect(where, "reader", clean_start=False, session_expiry_interval=LONG)
    await reader.nothing_but_messages(got)
    assert got == sent


async def test_the_journal_of_sessions_is_cut_and_still_says_all(
    serve: Callable[..., ServerProcess], data_dir: Path
) -> None:
    """More than two snapshots' worth of retained updates: what is read at the start stays bounded, nothing is lost."""
    server = serve()
    writer = await Peer.connect(address(server), "writer", session_expiry_interval=LONG)
    body = bytes(500_000)
    for n in range(150):
        await writer.publish(f"r/{n % 4}", b"%03d" % n + body, 1, retain=True)
    assert server.stop() == 0
    kept = sum(path.stat().st_size for path in (data_dir / "data" / "mqtt").iterdir())
    assert kept < 75_000_000
    reader = await Peer.connect(address(serve()), "writer", clean_start=False)
    assert reader.connack is not None
    assert reader.connack.session_present
    await reader.subscribe("r/#", 0)
    assert sorted([(await reader.message()).payload[:3] for _ in range(4)]) == [b"146", b"147", b"148", b"149"]
