"""The native door over real sockets, in this process: what clients may do, and what they may not do to others."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from headrace import errors, limits
from headrace.batch import Message
from headrace.broker import Broker
from headrace.broker.aio import LoopBroker
from headrace.broker.arguments import TAKES
from headrace.broker.embedded import open_core
from headrace.config import ServerConfig
from headrace.frontends import DoorSite, open_listener
from headrace.frontends.native import NativeDoor
from headrace.frontends.native import connection as connection_room
from headrace.wire import native
from integration.native_peer import Peer, batch_of, scope_of, values_of

MS = 1_000_000
OpenDoor = Callable[..., Awaitable[NativeDoor]]


@pytest.fixture
async def open_door() -> AsyncIterator[OpenDoor]:
    """Opens a door over a broker in memory; the port is free, everything ends with the test."""
    opened: list[NativeDoor] = []

    async def open_one(*, bounds: native.Limits | None = None, authenticate: Any = None, **options: Any) -> NativeDoor:
        broker = LoopBroker(Broker(open_core(":memory:")))
        listener = open_listener("127.0.0.1", 0, name="native")
        door = NativeDoor(
            DoorSite(broker, listener, ServerConfig(), authenticate=authenticate), bounds=bounds, **options
        )
        await door.start()
        opened.append(door)
        return door

    yield open_one
    for door in opened:
        await door.close()
        await door.site.broker.close()


async def raw(door: NativeDoor, *, recv_bytes: int | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A socket without a session."""
    host, _, port = door.address.rpartition(":")
    return await asyncio.open_connection(host, int(port), **({"limit": recv_bytes} if recv_bytes else {}))


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop go round until something is so."""
    async with asyncio.timeout(60):
        while True:
            if holds():
                return
            await asyncio.sleep(0)


async def read_close(reader: asyncio.StreamReader) -> native.Close:
    """The server's CLOSE, then the end."""
    with suppress(ConnectionError):
        async with asyncio.timeout(60):
            data = await reader.read(1 << 20)
            while more := await reader.read(1 << 20):
                data += more
    packet, end = native.decode(data)  # type: ignore[misc] # whole, or the test fails here
    assert isinstance(packet, native.Close)
    assert end == len(data)
    return packet


# -- publish, lease, settle --------------------------------------------------------------------------------------------


@pytest.mark.feature("F001", "F002", "F003", "F014", "F028")
async def test_published_messages_are_pulled_and_acked(open_door: OpenDoor) -> None:
    door = await open_door()
    peer = await Peer.open(door.address)
    first = await peer.publish("orders", [Message(b"a", key=b"k", headers={"h": "v"}, priority=1)])
    many = await peer.publish("orders", [b"b", b"c"])
    assert [place[1] for place in (*first.places(), *many.places())] == [0, 1, 2]
    leased = await peer.lease("orders", 1)
    assert values_of(leased) == [b"a"]
    rest = await peer.lease("orders", 10)
    assert values_of(rest) == [b"b", b"c"]
    assert not (await peer.ack(scope_of("orders"), [*leased.runs, *rest.runs])).refusals
    assert (await peer.lease("orders", 10)).runs == []
    again = await peer.ack(scope_of("orders"), leased.runs)
    assert not again.refusals, "a second ack says ok"
    await peer.close()


async def test_every_verb_of_a_settle_and_what_is_refused_comes_back_by_receipt(open_door: OpenDoor) -> None:
    door = await open_door()
    peer = await Peer.open(door.address)
    await peer.publish("t", [b"%d" % i for i in range(6)])
    leased = await peer.lease("t", 6)
    ((partition, lease, first, count, _),) = leased.runs
    assert count == 6
    scope = scope_of("t")

    def run(offset: int, lease_id: int = lease) -> list[native.ReceiptRun]:
        return [(partition, lease_id, first + offset, 1)]

    settled = await peer.ask(
        peer.session.send_settle(
            [
                native.Action(native.Verb.ACK, scope, run(0)),
                native.Action(native.Verb.NACK, scope, run(1), span_ns=0, error="boom"),
                native.Action(native.Verb.RELEASE, scope, run(2)),
                native.Action(native.Verb.REJECT, scope, run(3), error="never"),
                native.Action(native.Verb.EXTEND, scope, run(4), span_ns=60_000 * MS),
                native.Action(native.Verb.ACK, scope, run(5, lease + 1000)),
            ]
        )
    )
    assert settled.refusals == [(5, errors.ROWS[errors.LeaseLost].native, partition, lease + 1000, first + 5, 1)]
    again = await peer.lease("t", 10)
    assert sorted(values_of(again)) == [b"1", b"2"]
    assert {run[2] - first: run[4] for run in again.runs} == {1: 2, 2: 1}, "a nack counts, a release does not"
    assert values_of(await peer.lease("dlq/t", 10)) == [b"3"]
    await peer.close()


async def test_an_atomic_settle_publishes_with_its_acks_or_does_nothing(open_door: OpenDoor) -> None:
    door = await open_door()
    peer = await Peer.open(door.address)
    await peer.publish("in", [b"x"])
    leased = await peer.lease("in", 1)
    runs = [run[:4] for run in leased.runs]
    effect = native.PublishEffect("", "out", -1, batch_of([b"y"]))
    stale = [(partition, lease + 1000, first, count) for partition, lease, first, count in runs]
    with pytest.raises(errors.LeaseLost):
        await peer.ask(peer.session.send_settle([native.Action(native.Verb.ACK, scope_of("in"), stale)], [effect]))
    settled = await peer.ask(peer.session.send_settle([native.Action(native.Verb.ACK, scope_of("in"), runs)], [effect]))
    assert [place[1] for place in settled.published[0].places()] == [0]
    assert values_of(await peer.lease("out", 10)) == [b"y"]
    await peer.close()


async def test_a_pull_waits_for_its_first_message(open_door: OpenDoor) -> None:
    door = await open_door()
    consumer, producer = await Peer.open(door.address), await Peer.open(door.address)
    await producer.call("topic.create", topic="t")
    waiting = consumer.begin(consumer.session.send_lease(scope_of("t"), 5, wait_ns=60_000 * MS))
    await producer.publish("t", [b"late"])
    async with asyncio.timeout(30):
        assert values_of(await waiting) == [b"late"]
    await consumer.close()
    await producer.close()


@pytest.mark.feature("F018")
async def test_a_message_above_the_topics_limit_is_refused_and_the_connection_stands(open_door: OpenDoor) -> None:
    door = await open_door()
    peer = await Peer.open(door.address)
    with pytest.raises(errors.PayloadTooLarge):
        await peer.publish("t", [bytes(limits.MESSAGE_BYTES_DEFAULT + 1)])
    await peer.publish("t", [bytes(limits.MESSAGE_BYTES_DEFAULT)])
    await peer.close()


async def test_a_damaged_batch_is_refused_and_the_connection_stands(open_door: OpenDoor) -> None:
    door = await open_door()
    peer = await Peer.open(door.address)
    damaged = bytearray(batch_of([b"value"]))
    damaged[-1] ^= 1
    with pytest.raises(errors.HeadraceError):
        await peer.ask(peer.session.send_publish("t", bytes(damaged)))
    await peer.publish("t", [b"good"])
    await peer.close()


# -- push --------------------------------------------------------------------------------------------------------------


@pytest.mark.feature("F027", "F029")
async def test_pushes_stay_within_the_credit_and_go_on_with_more(open_door: OpenDoor) -> None:
    door = await open_door()
    peer = await Peer.open(door.address)
    number = await peer.subscribe("t", messages=3)
    await peer.publish("t", [b"%d" % i for i in range(10)])
    got: list[bytes] = []
    runs: list[native.DeliveredRun] = []
    while len(got) < 3:
        packet = await peer.pushed()
        got += values_of(packet)
        runs += packet.runs
    await peer.call("topic.list")  # a round trip later there is still no more
    assert peer.deliveries.empty()
    peer.session.send_credit(number, 100, 1 << 20)
    peer.flush()
    while len(got) < 10:
        packet = await peer.pushed()
        got += values_of(packet)
        runs += packet.runs
    assert got == [b"%d" % i for i in range(10)]
    assert not (await peer.ack(number, runs)).refusals
    await peer.close()


async def test_pulls_and_pushes_of_one_consumer_arrive_in_the_order_of_the_log(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = await open_door()
    producer, peer = await Peer.open(door.address), await Peer.open(door.address)
    values = [b"%d" % i for i in range(4000)]
    await producer.publish("t", values)
    got: list[bytes] = []
    events = native.ClientSession.events

    def overheard(session: native.ClientSession) -> list[native.Event]:
        found = events(session)
        for event in found:
            if isinstance(event, native.Deliveries | native.Leased):
                got.extend(values_of(event))
        return found

    monkeypatch.setattr(native.ClientSession, "events", overheard)
    number = peer.session.send_consume(scope_of("t"), credit_messages=2000, credit_bytes=60 << 20)
    replies = [peer.begin(number)]
    replies += [peer.begin(peer.session.send_lease(number, 100)) for _ in range(5)]
    await asyncio.gather(*replies)
    while len(got) < 4000:
        peer.session.send_credit(number, 500, 0)
        await peer.ask(peer.session.send_lease(number, 100))
    assert got == values
    await producer.close()
    await peer.close()


async def test_credit_in_bytes_is_passed_by_one_push_at_most(open_door: OpenDoor) -> None:
    door = await open_door()
    producer, peer = await Peer.open(door.address), await Peer.open(door.address)
    for i in range(40):
        await producer.publish("t", [bytes([i]) * 100_000])
    number = await peer.subscribe("t", messages=40, size_bytes=1)
    first = await peer.pushed()
    await peer.call("topic.list")
    assert peer.deliveries.empty()
    assert first.size_bytes < 2 * limits.PUSH_PORTION_BYTES
    got = values_of(first)
    while len(got) < 40:
        peer.session.send_credit(number, 0, 1_000_000)
        peer.flush()
        got += values_of(await peer.pushed())
    assert got == [bytes([i]) * 100_000 for i in range(40)]
    await producer.close()
    await peer.close()


@pytest.mark.feature("F030", "F094")
async def test_an_unsubscribed_consumer_gives_back_what_it_held_uncounted(open_door: OpenDoor) -> None:
    door = await open_door()
    peer = await Peer.open(door.address)
    number = await peer.subscribe("t", messages=5)
    await peer.publish("t", [b"x"])
    held = await peer.pushed()
    assert held.runs[0][4] == 1
    await peer.ask(peer.session.send_unsubscribe(number))
    again = await peer.lease("t", 5, consumer="other")
    assert values_of(again) == [b"x"]
    assert again.runs[0][4] == 1
    lost = await peer.ack(number, held.runs)
    assert [refusal[1] for refusal in lost.refusals] == [errors.ROWS[errors.LeaseLost].native]
    await peer.close()


async def test_leases_of_a_connection_that_broke_come_back_at_once_and_counted(open_door: OpenDoor) -> None:
    door = await open_door()
    broken, other = await Peer.open(door.address), await Peer.open(door.address)
    await other.publish("t", [b"x", b"y"])
    await other.call("group.config", topic="t", group="default", settings={"retry.initial_backoff": "0s"})
    await broken.subscribe("t", messages=1, consumer="pushed to")
    await broken.pushed()
    await broken.lease("t", 1, consumer="pulling")
    await broken.abandon()
    leased = await other.lease("t", 10, consumer="b", wait_ns=30_000 * MS)
    runs = list(leased.runs)
    while sum(run[3] for run in runs) < 2:
        runs += (await other.lease("t", 10, consumer="b", wait_ns=30_000 * MS)).runs
    assert [run[4] for run in runs for _ in range(run[3])] == [2, 2]
    await other.close()


async def test_leases_of_a_connection_that_said_goodbye_come_back_uncounted(open_door: OpenDoor) -> None:
    door = await open_door()
    leaving, other = await Peer.open(door.address), await Peer.open(door.address)
    await other.publish("t", [b"x"])
    await leaving.lease("t", 1, consumer="a")
    await leaving.close()
    leased = await other.lease("t", 1, consumer="b", wait_ns=30_000 * MS)
    assert [run[4] for run in leased.runs] == [1]
    await other.close()


async def test_a_deleted_topic_ends_its_subscriptions_with_the_reason(open_door: OpenDoor) -> None:
    door = await open_door()
    peer = await Peer.open(door.address)
    number = await peer.subscribe("t")
    await peer.call("topic.delete", topic="t")
    async with asyncio.timeout(30):
        ended = await peer.ended.get()
    assert ended.subscription == number
    assert ended.code == errors.ROWS[errors.UnknownGroup].native
    await peer.publish("t", [b"the connection stands"])
    await peer.close()


@pytest.mark.feature("F031")
async def test_one_connection_subscribes_to_many_topics(open_door: OpenDoor) -> None:
    door = await open_door()
    peer = await Peer.open(door.address)
    numbers = {await peer.subscribe(f"t{i}"): f"t{i}" for i in range(20)}
    for topic in numbers.values():
        await peer.publish(topic, [topic.encode()])
    got = {packet.subscription: values_of(packet) for packet in [await peer.pushed() for _ in numbers]}
    assert got == {number: [topic.encode()] for number, topic in numbers.items()}
    await peer.close()


@pytest.mark.feature("F036")
async def test_nothing_is_pushed_once_the_credit_is_withdrawn_until_there_is_some_again(open_door: OpenDoor) -> None:
    door = await open_door()
    peer, other = await Peer.open(door.address), await Peer.open(door.address)
    number = await peer.subscribe("t", messages=10)
    await peer.publish("t", [b"0", b"1"])
    got = [*values_of(await peer.pushed())]
    while len(got) < 2:
        got += values_of(await peer.pushed())
    peer.session.send_withdraw(number)
    await peer.publish("t", [b"2", b"3"])
    assert values_of(await other.lease("t", 10, consumer="other", wait_ns=60_000 * MS)) == [b"2", b"3"]
    assert peer.deliveries.empty()
    peer.session.withdrawn(number)
    peer.session.send_credit(number, 1, 0)
    await peer.publish("t", [b"4", b"5"])
    assert values_of(await peer.pushed()) == [b"4"]
    await peer.call("topic.list")
    assert peer.deliveries.empty()
    await peer.close()
    await other.close()


async def test_what_the_server_can_do_besides_is_told_to_who_asks(open_door: OpenDoor) -> None:
    door = await open_door()
    peer = await Peer.open(door.address, features=["time travel", "withdraw", "held"])
    assert sorted((await peer.welcomed).features) == ["held", "withdraw"]
    await peer.close()


async def test_a_lease_the_group_does_not_grant_is_told_when_subscribing_and_when_that_changes(
    open_door: OpenDoor,
) -> None:
    door = await open_door()
    peer = await Peer.open(door.address)
    await peer.call("topic.create", topic="t", settings={"max_lease": "1m"})
    with pytest.raises(errors.InvalidArgument, match="max_lease"):
        await peer.subscribe("t", lease_ns=61_000 * MS)
    number = await peer.subscribe("t", lease_ns=60_000 * MS)
    await peer.call("topic.config", topic="t", settings={"max_lease": "50s", "lease": "10s"})
    await peer.publish("t", [b"x"])
    async with asyncio.timeout(60):
        ended = await peer.ended.get()
    assert ended.subscription == number
    error = native.error_of(ended)
    assert isinstance(error, errors.InvalidArgument)
    assert "max_lease" in str(error)
    await peer.close()


@pytest.mark.parametrize(
    "held",
    [7, [7], [[0, 1]], [[0, 1, 2, "x"]], [[0, 1, -1, 1]], [[0, 1, 1 << 62, 1]], [[0, 1, 0, 0]], [[0, 1, 0, 1 << 60]]],
)
async def test_what_a_consumer_says_it_holds_must_make_sense(open_door: OpenDoor, held: Any) -> None:
    door = await open_door()
    peer = await Peer.open(door.address)
    with pytest.raises(errors.InvalidArgument, match="held"):
        await peer.subscribe("t", options={"held": held})
    many = [[0, 1, n, 1] for n in range(limits.HELD_RUNS_MAX + 1)]
    with pytest.raises(errors.LimitExceeded, match="held"):
        await peer.subscribe("t", options={"held": many})
    await peer.subscribe("t", options={"held": many[1:]})
    await peer.close()


async def test_a_group_with_auto_ack_needs_no_settle(open_door: OpenDoor) -> None:
    door = await open_door()
    peer = await Peer.open(door.address)
    await peer.subscribe("t", group="once", options={"auto_ack": True})
    await peer.publish("t", [b"x"])
    await peer.pushed()
    info = await peer.call("group.show", topic="t", group="once")
    assert info["lag"] == 0
    await peer.close()


# -- who may come in ---------------------------------------------------------------------------------------------------


class Reader:
    """May consume in one namespace."""

    name = "reader"

    def refusal(self, verb: str, namespace: str, topic: str) -> errors.HeadraceError | None:
        if verb == "consume" and namespace == "shop":
            return None
        return errors.NotAllowed(f"reader may not {verb} {topic!r} in {namespace!r}")


def authenticate(token: str | None, namespace: str) -> Reader:
    if token != "good":
        raise errors.Unauthenticated("the token is not known")
    return Reader()


@pytest.mark.parametrize("token", [None, "bad"])
async def test_without_a_good_token_nobody_comes_in(open_door: OpenDoor, token: str | None) -> None:
    door = await open_door(authenticate=authenticate)
    with pytest.raises(errors.Unauthenticated):
        await Peer.open(door.address, token=token)
    assert door.site.broker.core.state.topics == {}


async def test_each_request_is_checked_for_its_verb_and_namespace(open_door: OpenDoor) -> None:
    door = await open_door(authenticate=authenticate)
    door.site.broker.broker.create_topic("shop", "t", door.site.config.topic_defaults)
    peer = await Peer.open(door.address, token="good", namespace="shop")
    assert (await peer.lease("t", 1)).runs == []
    await peer.call("topic.list")
    scope = native.Scope("other", "t", "default", "c")
    refused = [
        peer.session.send_publish("t", batch_of([b"x"])),
        peer.session.send_lease(scope, 1),
        peer.session.send_consume(scope, credit_messages=1, credit_bytes=1),
        peer.session.send_settle([native.Action(native.Verb.ACK, scope, [(0, 1, 0, 1)])]),
        peer.session.send_settle(
            [native.Action(native.Verb.ACK, scope_of("t"), [(0, 1, 0, 1)])],
            [native.PublishEffect("", "t", -1, batch_of([b"x"]))],
        ),
        peer.session.send_call("topic.delete", native.pack({"topic": "t"})),
        peer.session.send_call("topic.list", native.pack({"namespace": "other"})),
    ]
    for reply in [peer.begin(number) for number in refused]:
        with pytest.raises(errors.NotAllowed):
            await reply
    await peer.close()


# -- limits ------------------------------------------------------------------------------------------------------------


async def test_a_connection_too_many_is_told_and_room_is_made_by_one_that_goes(open_door: OpenDoor) -> None:
    door = await open_door(connections_max=2)
    first, second = await Peer.open(door.address), await Peer.open(door.address)
    with pytest.raises(errors.Overloaded):
        await Peer.open(door.address)
    await first.close()
    await until(lambda: len(door.connections) == 1)
    third = await Peer.open(door.address)
    await third.publish("t", [b"x"])
    await second.close()
    await third.close()


async def test_more_subscriptions_than_allowed_are_refused_one_by_one(open_door: OpenDoor) -> None:
    door = await open_door(bounds=native.Limits(subscriptions_max=2))
    peer = await Peer.open(door.address)
    await peer.subscribe("a")
    await peer.subscribe("b")
    with pytest.raises(errors.LimitExceeded):
        await peer.subscribe("c")
    await peer.close()


async def test_more_requests_than_announced_end_the_connection(open_door: OpenDoor) -> None:
    door = await open_door(bounds=native.Limits(requests_max=4))
    peer = await Peer.open(door.address)
    peer.session.welcome = native.WelcomeBody(*_with_more_requests(peer.session.welcome))
    for _ in range(5):
        with suppress(asyncio.CancelledError):
            peer.begin(peer.session.send_lease(scope_of("t"), 1, wait_ns=60_000 * MS)).add_done_callback(_look)
    closed = await peer.end()
    assert isinstance(closed.error, errors.LimitExceeded)


def _with_more_requests(welcome: native.WelcomeBody | None) -> list[Any]:
    assert welcome is not None
    return [1000 if name == "requests_max" else getattr(welcome, name) for name in welcome.__struct_fields__]


def _look(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "zeros": bytes(64),
    "noise": bytes(range(256)) * 4,
    "a frame of 4 GiB": struct.pack("<IBBI", 0xFFFF_FFFF, 2, 0, 0) + b"HRN1",
    "a publish before hello": struct.pack("<IBBI", 100, 16, 0, 1) + bytes(94),
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_ends_its_own_connection_with_a_reason(open_door: OpenDoor, name: str) -> None:
    door = await open_door()
    good = await Peer.open(door.address)
    reader, writer = await raw(door)
    writer.write(GARBAGE[name])
    close = await read_close(reader)
    assert close.code in {errors.ROWS[kind].native for kind in (errors.Malformed, errors.ProtocolViolation)} | {
        errors.ROWS[errors.PayloadTooLarge].native,
        errors.ROWS[errors.LimitExceeded].native,
    }
    writer.close()
    await good.publish("t", [b"others go on"])
    await good.close()


async def test_a_large_frame_claimed_after_the_hello_is_refused_before_it_comes(open_door: OpenDoor) -> None:
    door = await open_door(bounds=native.Limits(frame_bytes_max=limits.NATIVE_FRAME_BYTES_MIN))
    peer = await Peer.open(door.address)
    peer.writer.write(struct.pack("<IBBI", limits.NATIVE_FRAME_BYTES_MIN + 1, 16, 0, 1))
    closed = await peer.end()
    assert closed.error is not None
    assert closed.error.code in {"payload_too_large", "limit_exceeded", "malformed", "protocol_violation"}


async def test_who_never_says_hello_is_dropped_and_so_is_who_drips_it(open_door: OpenDoor) -> None:
    door = await open_door(bounds=native.Limits(hello_timeout_ns=300 * MS))
    silent, _w1 = await raw(door)
    dripping, drip = await raw(door)
    hello = b"".join(native.encode(native.Hello(native.HelloBody(1, 1, "slow"))))

    async def drip_on() -> None:
        with suppress(ConnectionError):
            for byte in hello[:-1]:
                drip.write(bytes([byte]))
                await drip.drain()
                await asyncio.sleep(0.05)

    task = asyncio.create_task(drip_on())
    for reader in (silent, dripping):
        assert (await read_close(reader)).code == errors.ROWS[errors.TimedOut].native
    await task
    _w1.close()
    drip.close()


async def test_a_frame_that_does_not_end_is_dropped(open_door: OpenDoor) -> None:
    door = await open_door(bounds=native.Limits(frame_timeout_ns=200 * MS, frame_rate_min=1 << 30))
    peer = await Peer.open(door.address)
    batch = batch_of([bytes(1000)])
    frame = b"".join(native.encode(native.Publish(1, "", "t", -1, 0, batch)))
    peer.writer.write(frame[:-1])
    closed = await peer.end()
    assert isinstance(closed.error, errors.TimedOut)
    assert door.site.broker.core.state.topics == {}


async def test_half_frames_of_many_connections_are_bounded_together(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BEGUN_FRAMES_BYTES_MAX", 1_000_000)
    door = await open_door()
    peers = [await Peer.open(door.address) for _ in range(4)]
    batch = batch_of([bytes(400_000)])
    frame = b"".join(native.encode(native.Publish(1, "", "t", -1, 0, batch)))
    for peer in peers:
        peer.writer.write(frame[:-1])
        await peer.writer.drain()
    first = await peers[0].end()
    assert isinstance(first.error, errors.Overloaded)
    await asyncio.wait([asyncio.shield(peers[1].closed)], timeout=0)
    peers[3].writer.write(frame[-1:])
    other = await Peer.open(door.address)
    leased = await other.lease("t", 1, wait_ns=30_000 * MS)
    assert len(values_of(leased)[0]) == 400_000
    for peer in (*peers[1:], other):
        await peer.close()


async def test_a_peer_that_does_not_read_is_no_longer_written_to_and_others_are_served(open_door: OpenDoor) -> None:
    door = await open_door()
    producer = await Peer.open(door.address)
    for _ in range(60):
        await producer.publish("t", [bytes(250_000)] * 4)
    reader, writer = await raw(door, recv_bytes=1 << 10)
    session = native.ClientSession(client="stuck", now_ns=0)
    for buffer in session.outgoing():
        writer.write(bytes(buffer))
    size = int.from_bytes(await reader.readexactly(4), "little")
    welcome = await reader.readexactly(size)
    session.receive_bytes(size.to_bytes(4, "little") + welcome, 0)
    session.send_consume(scope_of("t", consumer="stuck"), credit_messages=10_000, credit_bytes=60 << 20)
    for buffer in session.outgoing():
        writer.write(bytes(buffer))
    stuck = await stuck_connection(door)
    unsent = stuck._transport.get_write_buffer_size()
    assert unsent <= limits.WRITE_BYTES_HIGH + 3 * limits.PUSH_PORTION_BYTES
    leased = await producer.lease("t", 10, group="default", consumer="quick")
    assert leased.runs, "the stuck one did not take everything"
    await producer.publish("u", [b"x"])
    await producer.close()
    writer.transport.abort()


async def test_one_delivery_much_larger_than_the_write_buffer_arrives_whole_and_in_order(open_door: OpenDoor) -> None:
    door = await open_door()
    producer, peer = await Peer.open(door.address), await Peer.open(door.address)
    values = [bytes([i]) * 250_000 for i in range(60)]
    for at in range(0, 60, 4):
        await producer.publish("t", values[at : at + 4])
    number = await peer.subscribe("t", messages=60, size_bytes=60 << 20)
    got: list[bytes] = []
    runs: list[native.DeliveredRun] = []
    while len(got) < 60:
        packet = await peer.pushed()
        assert packet.size_bytes < 2 * limits.PUSH_PORTION_BYTES
        got += values_of(packet)
        runs += packet.runs
    assert got == values
    assert not (await peer.ack(number, runs)).refusals
    await producer.close()
    await peer.close()


async def stuck_connection(door: NativeDoor) -> Any:
    """The connection whose peer does not read, once the door has noticed."""
    await until(lambda: any(connection._writing_paused for connection in door.connections))
    return next(connection for connection in door.connections if connection._writing_paused)


@pytest.mark.feature("F092")
async def test_a_silent_peer_is_pinged_and_then_given_up(open_door: OpenDoor) -> None:
    bounds = native.Limits(heartbeat_ns=50 * MS, heartbeat_ns_min=10 * MS)
    door = await open_door(bounds=bounds)
    good = await Peer.open(door.address)
    reader, writer = await raw(door)
    writer.write(b"".join(native.encode(native.Hello(native.HelloBody(1, 1, "dead")))))
    async with asyncio.timeout(60):
        data = b""
        while more := await reader.read(1 << 16):
            data += more
    kinds = []
    place = 0
    while place < len(data):
        packet, place = native.decode(data, place)  # type: ignore[misc] # whole frames only
        kinds.append(type(packet))
    assert kinds[0] is native.Welcome
    assert kinds[-2:] == [native.Ping, native.Close]
    await good.publish("t", [b"who answers is kept"])
    await good.close()
    writer.close()


async def test_two_thousand_connects_leave_nothing_behind(open_door: OpenDoor) -> None:
    door = await open_door()
    steady = await Peer.open(door.address)
    for _ in range(20):
        sockets = await asyncio.gather(*(raw(door) for _ in range(100)))
        for _, writer in sockets[:50]:
            writer.close()
        for _, writer in sockets[50:]:
            writer.transport.abort()
        await steady.publish("t", [b"x"])
    await until(lambda: len(door.connections) == 1)
    assert door._begun == {}
    await steady.close()


async def test_publishers_are_slowed_and_not_refused_while_the_disk_is_behind(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.shard.loop.UNDURABLE_BYTES_HIGH", 1_000_000)
    door = await open_door()
    host = door.site.broker.host
    journal = host.core.journal
    peer = await Peer.open(door.address)
    await peer.publish("t", [b"first"])
    commit = type(host)._commit
    monkeypatch.setattr(type(host), "_commit", lambda self: setattr(self, "_commit_planned", False))
    replies = [peer.begin(peer.session.send_publish("t", batch_of([bytes(100_000)]))) for _ in range(200)]
    await until(lambda: host.busy)
    (connection,) = door.connections
    await until(lambda: not connection._reading)
    for _ in range(100):
        await asyncio.sleep(0)
    assert journal.end_position - journal.durable_position < 3_000_000, "what one more read brought, not 20 MB"
    monkeypatch.setattr(type(host), "_commit", commit)
    host._plan_commit()
    async with asyncio.timeout(60):
        for number, reply in enumerate(await asyncio.gather(*replies)):
            assert reply.places()[0][1] == number + 1
    assert connection._reading
    await peer.close()


# -- calls -------------------------------------------------------------------------------------------------------------


async def test_calls_answer_in_their_namespace_and_name_what_is_wrong(open_door: OpenDoor) -> None:
    door = await open_door()
    peer = await Peer.open(door.address, namespace="shop")
    created = await peer.call("topic.create", topic="t", settings={"partitions": 3})
    assert created["namespace"] == "shop"
    assert created["partitions"] == 3
    with pytest.raises(errors.AlreadyExists):
        await peer.call("topic.create", topic="t")
    with pytest.raises(errors.InvalidArgument, match=r"topic\.creat"):
        await peer.call("topic.creat", topic="t")
    with pytest.raises(errors.InvalidArgument, match="settigns"):
        await peer.call("topic.create", topic="u", settigns={})
    with pytest.raises(errors.UnknownTopic):
        await peer.call("topic.show", topic="t", namespace="default")
    await peer.close()


async def test_calls_beyond_those_under_way_wait_and_all_are_answered(open_door: OpenDoor) -> None:
    door = await open_door()
    peer = await Peer.open(door.address)
    replies = [peer.begin(peer.session.send_call("topic.list")) for _ in range(500)]
    async with asyncio.timeout(60):
        assert {type(reply) for reply in await asyncio.gather(*replies)} == {native.Result}
    await peer.close()


async def test_a_read_answers_with_batches(open_door: OpenDoor) -> None:
    door = await open_door()
    peer = await Peer.open(door.address)
    await peer.publish("t", [b"a", b"b"])
    reply = await peer.ask(peer.session.send_call("read", native.pack({"topic": "t"})))
    assert native.unpack(reply.result)["parts"][0]["end_offset"] == 2
    assert values_of(native.Leased(0, 0, 0, (), reply.attachments)) == [b"a", b"b"]
    await peer.close()


@pytest.mark.parametrize("method", TAKES)
async def test_a_wrong_argument_of_a_call_is_refused_and_the_connection_stands(
    open_door: OpenDoor, method: str
) -> None:
    door = await open_door()
    peer = await Peer.open(door.address)
    for name in TAKES[method]:
        for wrong in ([[[]]], {"x": [[]]}, True, -1, 1.5, (1 << 64) - 1, b"\xff", "", [], None):
            try:
                await peer.call(method, **{name: wrong})
            except errors.InvalidArgument as refused:
                assert wrong != [[[]]] or name in refused.message
            except (errors.UnknownTopic, errors.UnknownGroup):
                assert wrong != [[[]]]
    assert await peer.call("namespace.list") == ["default"]
    await peer.close()


# -- faults of the server's own ----------------------------------------------------------------------------------------


class _Log:
    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def error(self, event: str, *, peer: str, exc_info: BaseException) -> None:
        assert event == "a request failed"
        self.errors.append(exc_info)

    def info(self, event: str, **more: Any) -> None:
        raise AssertionError(f"{event}: {more}")


def _broken(*_: Any, **__: Any) -> Any:
    raise KeyError("a fault of ours")


_REQUESTS: dict[str, tuple[str, Callable[[Peer], Awaitable[Any]]]] = {
    "publish": ("publish_then", lambda peer: peer.publish("t", [b"a"])),
    "pull": ("lease_then", lambda peer: peer.lease("t", 1)),
    "settle": ("settle_then", lambda peer: peer.ack(scope_of("t"), [(0, 1, 0, 1, 1)])),
    "call": ("call", lambda peer: peer.call("topic.list")),
    "subscribe": ("subscribe", lambda peer: peer.subscribe("t")),
}


@pytest.mark.parametrize("name", _REQUESTS)
async def test_a_fault_of_the_servers_ends_the_one_request_it_came_up_in(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    log = _Log()
    monkeypatch.setattr(connection_room, "_log", log)
    door = await open_door()
    peer = await Peer.open(door.address)
    await peer.publish("t", [b"kept"])
    waiting = peer.begin(peer.session.send_lease(scope_of("quiet"), 1, wait_ns=60 * 10**9))
    await peer.call("namespace.list")  # the pull was taken in before
    method, ask = _REQUESTS[name]
    with monkeypatch.context() as broken:
        broken.setattr(type(door.site.broker), method, _broken)
        failures = await asyncio.gather(*(ask(peer) for _ in range(limits.CALLS_MAX * 2)), return_exceptions=True)
    assert {type(each) for each in failures} == {errors.Closed}
    assert "internal error ended this request" in str(failures[0])
    assert [type(each) for each in log.errors] == [KeyError] * len(failures), "each is told once"
    await peer.publish("quiet", [b"others go on"])
    async with asyncio.timeout(60):
        assert values_of(await waiting) == [b"others go on"]
    assert values_of(await peer.lease("t", 10)) == [b"kept"]
    (connection,) = door.connections
    assert connection._lease_bytes == connection._calls == 0
    assert not connection.pushes
    assert await peer.call("namespace.list") == ["default"]
    await peer.close()


async def test_a_request_that_waited_for_room_and_fails_is_answered_and_makes_room(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_room, "_log", _Log())
    door = await open_door()
    peer = await Peer.open(door.address)
    go_on = asyncio.Event()

    async def slow(*_: Any) -> Any:
        await go_on.wait()
        raise KeyError("a fault of ours")

    with monkeypatch.context() as broken:
        broken.setattr(type(door.site.broker), "call", slow)
        asked = [peer.begin(peer.session.send_call("topic.list")) for _ in range(limits.CALLS_MAX + 1)]
        (connection,) = door.connections
        await until(lambda: bool(connection._line))
        broken.setattr(type(connection), "_call", _broken)
        go_on.set()
        failures = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(each) for each in failures} == {errors.Closed}
    assert await peer.call("namespace.list") == ["default"]
    await peer.close()
