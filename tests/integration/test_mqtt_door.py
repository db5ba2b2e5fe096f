"""Ordinary MQTT over real sockets, the door in this process: clause by clause what a client may rely on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace.config import MqttConfig, ServerConfig
from headrace.frontends.mqtt import MqttDoor
from headrace.pubsub import Bounds
from headrace.wire.mqtt import (
    CodecLimits,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SessionLimits,
    Will,
    build,
)
from integration.mqtt_peer import OpenDoor, Peer, close_door, door_in_memory, until

BOTH = pytest.mark.parametrize("version", [4, 5])


@pytest.fixture
async def open_door() -> AsyncIterator[OpenDoor]:
    opened: list[MqttDoor] = []

    async def open_one(**options: object) -> MqttDoor:
        opened.append(await door_in_memory(**options))
        return opened[-1]

    yield open_one
    for door in opened:
        await close_door(door)


@pytest.fixture
async def address(open_door: OpenDoor) -> str:
    return (await open_door()).address


# -- messages ----------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.feature("F017", "F183")
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_message_reaches_a_subscriber_with_the_lower_qos(address: str, version: int, qos: int) -> None:
    reader = await Peer.connect(address, "reader", version)
    await reader.subscribe("sensors/+/temperature", 1, wanted=1)
    writer = await Peer.connect(address, "writer", version)
    await writer.publish("sensors/attic/temperature", b"21", qos)
    message = await reader.message()
    assert (message.topic, message.payload, message.qos) == ("sensors/attic/temperature", b"21", min(qos, 1))
    assert not message.retain
    await reader.nothing()


async def test_qos_2_is_delivered_once_however_often_the_client_sends_it(address: str) -> None:
    reader = await Peer.connect(address, "reader")
    await reader.subscribe("t", 2, wanted=2)
    writer = await Peer.connect(address, "writer")
    publish = Publish("t", b"once", 2, packet_id=9)
    writer.send(publish)
    assert (await writer.expect(PubRec)).packet_id == 9
    writer.send(Publish("t", b"once", 2, dup=True, packet_id=9))
    await writer.expect(PubRec)
    writer.send(PubRel(9))
    await writer.expect(PubComp)
    assert (await reader.message()).payload == b"once"
    await reader.nothing()


async def test_a_publish_nobody_wants_says_so_in_5(address: str) -> None:
    peer = await Peer.connect(address)
    answer = await peer.publish("nobody", b"x", 1)
    assert isinstance(answer, PubAck)
    assert answer.reason == 0x10


async def test_one_copy_for_overlapping_subscriptions_with_all_their_identifiers(address: str) -> None:
    peer = await Peer.connect(address)
    await peer.subscribe("a/#", 0, subscription_identifiers=[7])
    await peer.subscribe("a/+", 2, subscription_identifiers=[8])
    await peer.subscribe("+/b", 1)
    await peer.publish("a/b", b"x", 0)
    message = await peer.message()
    assert sorted((message.properties or {})["subscription_identifiers"]) == [7, 8]
    await peer.nothing()


async def test_what_a_client_published_itself_does_not_come_back_with_no_local(address: str) -> None:
    peer = await Peer.connect(address, "self")
    await peer.subscribe("a/#", 0, no_local=True)
    await peer.publish("a/b", b"mine")
    await peer.nothing()
    await peer.subscribe("a/b", 0)
    await peer.publish("a/b", b"mine again")
    assert (await peer.message()).payload == b"mine again"
    await peer.nothing()


async def test_a_leading_wildcard_does_not_reach_names_with_a_dollar(address: str) -> None:
    peer = await Peer.connect(address)
    await peer.subscribe("#", 1)
    answer = await peer.publish("$SYS/fake", b"x", 1)
    assert isinstance(answer, PubAck)
    assert answer.reason >= 0x80
    await peer.nothing()


async def test_properties_of_a_message_travel_in_order(address: str) -> None:
    reader = await Peer.connect(address, "r")
    await reader.subscribe("t")
    writer = await Peer.connect(address, "w")
    said = {
        "payload_format_indicator": 1,
        "content_type": "text/plain",
        "response_topic": "answers",
        "correlation_data": b"\x00\x01",
        "user_properties": [("b", "2"), ("a", "1"), ("b", "3")],
    }
    await writer.publish("t", b"x", **said)
    assert (await reader.message()).properties == said


async def test_an_alias_stands_for_a_topic_both_ways(address: str) -> None:
    reader = await Peer.connect(address, "r", topic_alias_maximum=5)
    await reader.subscribe("a/long/topic/name")
    writer = await Peer.connect(address, "w")
    await writer.publish("a/long/topic/name", b"1", topic_alias=3)
    await writer.publish("", b"2", topic_alias=3)
    first, second = await reader.message(), await reader.message()
    assert (first.topic, second.topic) == ("a/long/topic/name", "")
    assert first.properties == second.properties == {"topic_alias": 1}


async def test_a_message_expires_in_its_session(open_door: OpenDoor) -> None:
    door = await open_door()
    reader = await Peer.connect(door.address, "r", session_expiry_interval=100)
    await reader.subscribe("t", 1)
    await reader.leave()
    writer = await Peer.connect(door.address, "w")
    await writer.publish("t", b"short", 1, message_expiry_interval=1)
    await writer.publish("t", b"long", 1, message_expiry_interval=100)
    real = door.now_ns
    door.now_ns = lambda: real() + 30_000_000_000
    reader = await Peer.connect(door.address, "r", clean_start=False, session_expiry_interval=100)
    message = await reader.message()
    assert message.payload == b"long"
    assert 60 <= (message.properties or {})["message_expiry_interval"] <= 71
    await reader.nothing()


# -- retained ----------------------------------------------------------------------------------------------------------


@BOTH
async def test_the_last_retained_message_greets_a_subscriber(address: str, version: int) -> None:
    writer = await Peer.connect(address, "w", version)
    await writer.publish("events/user/created", b"old", 1, retain=True)
    await writer.publish("events/user/created", b"new", 1, retain=True)
    reader = await Peer.connect(address, "r", version)
    await reader.subscribe("events/#", 1)
    message = await reader.message()
    assert (message.payload, message.retain, message.qos) == (b"new", True, 1)
    await writer.publish("events/user/created", b"", 1, retain=True)
    assert (await reader.message()).payload == b""
    late = await Peer.connect(address, "late", version)
    await late.subscribe("events/#", 1)
    await late.nothing()


async def test_retain_handling_and_retain_as_published(address: str) -> None:
    writer = await Peer.connect(address, "w")
    await writer.publish("t", b"kept", 1, retain=True)
    reader = await Peer.connect(address, "r")
    await reader.subscribe("t", 0, retain_handling=2)
    await reader.subscribe("t", 0, retain_handling=1, retain_as_published=True)
    await reader.nothing()
    await writer.publish("t", b"again", 1, retain=True)
    assert (await reader.message()).retain
    await reader.subscribe("t", 0, retain_handling=0)
    message = await reader.message()
    assert (message.payload, message.retain) == (b"again", True)


async def test_retained_messages_are_bounded_and_the_publisher_is_told(open_door: OpenDoor) -> None:
    door = await open_door(bounds=Bounds(retained_messages_max=2))
    peer = await Peer.connect(door.address)
    for name in ("a", "b"):
        await peer.publish(name, b"x", 1, retain=True)
    answer = await peer.publish("c", b"x", 1, retain=True)
    assert isinstance(answer, PubAck)
    assert answer.reason == 0x97
    assert len(door.exchange.retained) == 2


async def test_many_retained_messages_arrive_at_the_pace_of_the_client(open_door: OpenDoor) -> None:
    door = await open_door(session_limits=SessionLimits(holds_qos2=True, queue_messages_max=4, outgoing_bytes_max=4096))
    writer = await Peer.connect(door.address, "w")
    for n in range(200):
        writer.send(Publish(f"many/{n}", bytes(500), retain=True))
    await writer.nothing()
    for client_id, expiry in (("passing", 0), ("lasting", 100)):
        reader = await Peer.connect(door.address, client_id, receive_maximum=2, session_expiry_interval=expiry)
        for qos in (0, 1):
            await reader.subscribe("many/+", qos)
            found = {(await reader.message()).topic for _ in range(200)}
            assert len(found) == 200
        await reader.nothing()


# -- sessions ----------------------------------------------------------------------------------------------------------


@BOTH
async def test_a_session_keeps_what_came_while_its_client_was_away(address: str, version: int) -> None:
    lasting = {"session_expiry_interval": 100} if version == 5 else {}
    reader = await Peer.connect(address, "r", version, clean_start=False, **lasting)
    assert reader.connack is not None
    assert not reader.connack.session_present
    await reader.subscribe("t/#", 2)
    await reader.close()
    writer = await Peer.connect(address, "w", version)
    for qos in (0, 1, 2):
        await writer.publish("t/x", b"%d" % qos, qos)
    reader = await Peer.connect(address, "r", version, clean_start=False, **lasting)
    assert reader.connack is not None
    assert reader.connack.session_present
    assert [(await reader.message()).payload for _ in range(2)] == [b"1", b"2"]
    await writer.publish("t/x", b"live", 1)
    assert (await reader.message()).payload == b"live"
    await reader.nothing()


async def test_what_was_not_acknowledged_comes_again_marked(address: str) -> None:
    reader = await Peer.connect(address, "r", session_expiry_interval=100)
    await reader.subscribe("t", 2)
    writer = await Peer.connect(address, "w")
    await writer.publish("t", b"one", 1)
    await writer.publish("t", b"two", 2)
    first, second = await reader.message(ack=False), await reader.message(ack=False)
    reader.send(PubRec(second.packet_id))
    assert (await reader.expect(PubRel)).packet_id == second.packet_id
    await reader.close()
    reader = await Peer.connect(address, "r", clean_start=False, session_expiry_interval=100)
    seen = [await reader.receive() for _ in range(2)]
    again = next(packet for packet in seen if isinstance(packet, Publish))
    assert (again.payload, again.dup, again.packet_id) == (b"one", True, first.packet_id)
    assert PubRel(second.packet_id) in seen
    reader.send(PubAck(again.packet_id), PubComp(second.packet_id))
    await reader.nothing()


async def test_a_half_received_qos_2_message_is_not_delivered_again_after_a_reconnect(address: str) -> None:
    reader = await Peer.connect(address, "r")
    await reader.subscribe("t", 2)
    writer = await Peer.connect(address, "w", session_expiry_interval=100)
    writer.send(Publish("t", b"once", 2, packet_id=5))
    await writer.expect(PubRec)
    await writer.close()
    writer = await Peer.connect(address, "w", clean_start=False, session_expiry_interval=100)
    writer.send(Publish("t", b"once", 2, dup=True, packet_id=5))
    await writer.expect(PubRec)
    writer.send(PubRel(5))
    assert (await writer.expect(PubComp)).reason == 0
    assert (await reader.message()).payload == b"once"
    await reader.nothing()


async def test_a_clean_start_forgets(address: str) -> None:
    reader = await Peer.connect(address, "r", session_expiry_interval=100)
    await reader.subscribe("t", 1)
    await reader.leave()
    reader = await Peer.connect(address, "r", clean_start=True)
    assert reader.connack is not None
    assert not reader.connack.session_present
    writer = await Peer.connect(address, "w")
    answer = await writer.publish("t", b"x", 1)
    assert isinstance(answer, PubAck)
    assert answer.reason == 0x10
    await reader.nothing()


@BOTH
async def test_a_second_connection_takes_the_client_id_over(address: str, version: int) -> None:
    first = await Peer.connect(address, "same", version)
    second = await Peer.connect(address, "same", version)
    packets = await first.ended()
    if version == 5:
        assert [packet.reason for packet in packets if isinstance(packet, Disconnect)] == [0x8E]
    await second.nothing()


async def test_sessions_end_when_nobody_comes_back(open_door: OpenDoor) -> None:
    door = await open_door()
    reader = await Peer.connect(door.address, "r", session_expiry_interval=5)
    await reader.subscribe("t", 1)
    await reader.leave()
    await until(lambda: door.exchange.clients["r"].link is None)
    door.exchange.on_due(door.now_ns() + 4_000_000_000)
    assert "r" in door.exchange.clients
    door.exchange.on_due(door.now_ns() + 6_000_000_000)
    assert "r" not in door.exchange.clients


async def test_the_server_names_clients_without_a_name_and_bounds_sessions(open_door: OpenDoor) -> None:
    door = await open_door(bounds=Bounds(session_expiry_s_max=60, sessions_max=2))
    peer = await Peer.connect(door.address, "", session_expiry_interval=3600)
    assert peer.connack is not None
    said = peer.connack.properties or {}
    assert said["assigned_client_identifier"]
    assert said["session_expiry_interval"] == 60
    await Peer.connect(door.address, "two")
    third = await Peer.connect(door.address, "three")
    assert third.connack is not None
    assert third.connack.reason == 0x97


# -- wills -------------------------------------------------------------------------------------------------------------


@BOTH
async def test_the_will_of_a_client_that_breaks_off_is_published_and_that_of_one_that_leaves_is_not(
    address: str, version: int
) -> None:
    reader = await Peer.connect(address, "r", version)
    await reader.subscribe("wills/#", 1)
    broken = await Peer.connect(address, "broken", version, will=Will("wills/broken", b"gone", 1))
    leaving = await Peer.connect(address, "leaving", version, will=Will("wills/leaving", b"gone", 1))
    await leaving.leave()
    await broken.close()
    message = await reader.message()
    assert (message.topic, message.payload, message.qos) == ("wills/broken", b"gone", 1)
    await reader.nothing()


async def test_a_will_waits_for_its_delay_and_not_if_the_client_comes_back(open_door: OpenDoor) -> None:
    door = await open_door()
    reader = await Peer.connect(door.address, "r")
    await reader.subscribe("wills/#")
    will = Will("wills/x", b"late", properties={"will_delay_interval": 10})
    peer = await Peer.connect(door.address, "x", will=will, session_expiry_interval=100)
    await peer.close()
    await until(lambda: door.exchange.clients["x"].link is None)
    door.exchange.on_due(door.now_ns() + 9_000_000_000)
    await reader.nothing()
    peer = await Peer.connect(door.address, "x", will=will, clean_start=False, session_expiry_interval=100)
    door.exchange.on_due(door.now_ns() + 11_000_000_000)
    await reader.nothing()
    await peer.close()
    await until(lambda: door.exchange.clients["x"].link is None)
    door.exchange.on_due(door.now_ns() + 11_000_000_000)
    assert (await reader.message()).payload == b"late"
    door.exchange.on_due(door.now_ns() + 12_000_000_000)
    await reader.nothing()


async def test_a_delayed_will_is_due_when_its_session_ends(open_door: OpenDoor) -> None:
    door = await open_door()
    reader = await Peer.connect(door.address, "r")
    await reader.subscribe("wills/#")
    will = Will("wills/x", b"end", retain=True, properties={"will_delay_interval": 1000})
    peer = await Peer.connect(door.address, "x", will=will, session_expiry_interval=100)
    await peer.close()
    await until(lambda: door.exchange.clients["x"].link is None)
    await Peer.connect(door.address, "x", clean_start=True)
    assert (await reader.message()).payload == b"end"
    assert door.exchange.retained.get("wills/x") is not None


# -- shared subscriptions ----------------------------------------------------------------------------------------------


async def received(peers: list[Peer]) -> list[list[bytes]]:
    """What each got, acknowledged, until a ping comes back."""
    found: list[list[bytes]] = []
    for peer in peers:
        mine: list[bytes] = []
        peer.send(PingReq())
        while not isinstance(packet := await peer.receive(), PingResp):
            assert isinstance(packet, Publish)
            mine.append(packet.payload)
            if packet.qos:
                peer.send(PubAck(packet.packet_id))
        found.append(mine)
    return found


@BOTH
@pytest.mark.feature("F017")
async def test_a_shared_subscription_shares_fairly_beside_ordinary_ones(address: str, version: int) -> None:
    members = [await Peer.connect(address, f"m{n}", version) for n in range(3)]
    for member in members:
        await member.subscribe("$share/web/api/responses", 1)
    other = await Peer.connect(address, "other", version)
    await other.subscribe("api/#", 1)
    writer = await Peer.connect(address, "w", version)
    for n in range(9):
        await writer.publish("api/responses", b"%d" % n, 1)
    shares = await received(members)
    assert [len(share) for share in shares] == [3, 3, 3]
    assert sorted(payload for share in shares for payload in share) == [b"%d" % n for n in range(9)]
    assert len((await received([other]))[0]) == 9


async def test_nothing_is_left_with_a_member_that_went_away(open_door: OpenDoor) -> None:
    door = await open_door()
    gone = await Peer.connect(door.address, "gone", session_expiry_interval=100)
    stays = await Peer.connect(door.address, "stays")
    for member in (gone, stays):
        await member.subscribe("$share/g/t", 1)
    writer = await Peer.connect(door.address, "w")
    for n in range(6):
        await writer.publish("t", b"%d" % n, 1)
    for _ in range(3):
        await gone.message(ack=False)
    await gone.close()
    found = set()
    while len(found) < 6:
        found.add((await stays.message()).payload)
    await writer.publish("t", b"after", 1)
    assert (await stays.message()).payload == b"after"
    back = await Peer.connect(door.address, "gone", clean_start=False, session_expiry_interval=100)
    await back.nothing()


async def test_with_every_member_away_messages_wait_for_the_first_to_come(address: str) -> None:
    first = await Peer.connect(address, "first", session_expiry_interval=100)
    second = await Peer.connect(address, "second", session_expiry_interval=100)
    for member in (first, second):
        await member.subscribe("$share/g/t", 1)
        await member.leave()
    writer = await Peer.connect(address, "w")
    for n in range(4):
        await writer.publish("t", b"%d" % n, 1)
    second = await Peer.connect(address, "second", clean_start=False, session_expiry_interval=100)
    assert [(await second.message()).payload for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    first = await Peer.connect(address, "first", clean_start=False)
    await first.nothing()


async def test_unsubscribing_from_a_share_takes_exactly_that_share(address: str) -> None:
    peer = await Peer.connect(address)
    await peer.subscribe("$share/g/t", 0)
    assert (await peer.unsubscribe("$share/h/t")).reasons == (0x11,)
    assert (await peer.unsubscribe("t")).reasons == (0x11,)
    await peer.publish("t", b"still")
    assert (await peer.message()).payload == b"still"
    assert (await peer.unsubscribe("$share/g/t")).reasons == (0,)
    await peer.publish("t", b"no more")
    await peer.nothing()


# -- limits and bad input ----------------------------------------------------------------------------------------------


async def test_the_clients_window_is_kept(address: str) -> None:
    reader = await Peer.connect(address, "r", receive_maximum=2)
    await reader.subscribe("t", 1)
    writer = await Peer.connect(address, "w")
    for n in range(5):
        await writer.publish("t", b"%d" % n, 1)
    first = await reader.message(ack=False)
    await reader.message(ack=False)
    await reader.nothing()
    reader.send(PubAck(first.packet_id))
    assert (await reader.message(ack=False)).payload == b"2"
    await reader.nothing()


async def test_a_message_larger_than_the_client_takes_is_left_out(address: str) -> None:
    reader = await Peer.connect(address, "r", maximum_packet_size=100)
    await reader.subscribe("t", 1)
    writer = await Peer.connect(address, "w")
    await writer.publish("t", bytes(200), 1)
    await writer.publish("t", b"fits", 1)
    assert (await reader.message()).payload == b"fits"


async def test_too_large_a_packet_ends_only_its_own_connection(open_door: OpenDoor) -> None:
    door = await open_door(session_limits=SessionLimits(holds_qos2=True, packet=CodecLimits(packet_bytes_max=1000)))
    good = await Peer.connect(door.address, "good")
    bad = await Peer.connect(door.address, "bad")
    bad.send_raw(b"\x30\xff\xff\x7f")
    packets = await bad.ended()
    assert [packet.reason for packet in packets if isinstance(packet, Disconnect)] == [0x95]
    await good.nothing()


async def test_a_subscriber_that_never_reads_is_bounded_and_then_cut(open_door: OpenDoor) -> None:
    door = await open_door(
        session_limits=SessionLimits(holds_qos2=True, queue_messages_max=50, outgoing_bytes_max=100_000)
    )
    deaf = await Peer.connect(door.address, "deaf")
    await deaf.subscribe("#", 1)
    deaf.reader._transport.pause_reading()  # type: ignore[attr-defined]
    ears = await Peer.connect(door.address, "ears")
    await ears.subscribe("#", 0)
    writer = await Peer.connect(door.address, "w")
    payload = bytes(50_000)
    for qos in (0, 1):
        for _ in range(300):
            await writer.publish("t", payload, qos)
            assert (await ears.message()).payload == payload
    await until(lambda: "deaf" not in door.exchange.clients)
    await ears.nothing()


async def test_a_silent_client_and_one_that_never_connects_are_cut(open_door: OpenDoor) -> None:
    door = await open_door()
    silent = await Peer.connect(door.address, "silent", keep_alive_s=10)
    dripping = await Peer.open(door.address)
    dripping.send_raw(build(Connect("x"), 5)[:5])
    await silent.nothing()
    real = door.now_ns
    door.now_ns = lambda: real() + 16_000_000_000
    door._on_time()
    assert await dripping.ended() == []
    assert [packet.reason for packet in await silent.ended() if isinstance(packet, Disconnect)] == [0x8D]
    await until(lambda: not door.connections)


async def test_connections_beyond_the_limit_are_refused_and_room_is_found_again(open_door: OpenDoor) -> None:
    door = await open_door(connections_max=1)
    first = await Peer.connect(door.address)
    second = await Peer.open(door.address)
    assert await second.ended() == []
    await first.leave()
    await until(lambda: not door.connections)
    await (await Peer.connect(door.address)).nothing()


async def test_a_stop_tells_clients_of_5_and_publishes_wills(open_door: OpenDoor) -> None:
    door = await open_door()
    peer = await Peer.connect(door.address, "x", will=Will("w", b"gone", retain=True))
    draining = asyncio.create_task(door.drain(5_000_000_000))
    assert [packet.reason for packet in await peer.ended() if isinstance(packet, Disconnect)] == [0x8B]
    await draining
    assert door.exchange.retained.get("w") is not None


# -- settings ----------------------------------------------------------------------------------------------------------


async def test_the_server_may_shorten_the_keep_alive_and_says_so(open_door: OpenDoor) -> None:
    config = ServerConfig(journal="memory", mqtt=MqttConfig(keep_alive_max_ns=30 * 10**9))
    door = await open_door(config=config)
    for asked, told in ((0, 30), (60, 30), (20, None)):
        peer = await Peer.connect(door.address, f"k{asked}", keep_alive_s=asked)
        assert peer.connack is not None
        assert (peer.connack.properties or {}).get("server_keep_alive") == told


async def test_the_session_expiry_is_shortened_and_the_client_told(open_door: OpenDoor) -> None:
    config = ServerConfig(journal="memory", mqtt=MqttConfig(session_expiry_max_ns=60 * 10**9, receive_maximum=7))
    door = await open_door(config=config)
    peer = await Peer.connect(door.address, "s", session_expiry_interval=3600)
    assert peer.connack is not None
    properties = peer.connack.properties or {}
    assert (properties["session_expiry_interval"], properties["receive_maximum"]) == (60, 7)


async def test_a_slow_consumer_loses_messages_or_its_connection_as_it_is_set(open_door: OpenDoor) -> None:
    for policy, is_cut in (("drop", False), ("disconnect", True)):
        config = ServerConfig(journal="memory", mqtt=MqttConfig(queue_messages=20, slow_consumer=policy))
        door = await open_door(config=config)
        slow = await Peer.connect(door.address, "slow", receive_maximum=1, session_expiry_interval=3600)
        await slow.subscribe("t", 1)
        writer = await Peer.connect(door.address, "writer")
        for n in range(60):
            await writer.publish("t", b"%d" % n, 1)
        if is_cut:
            last = (await slow.ended())[-1]
            assert isinstance(last, Disconnect)
            assert last.reason == 0x97
        else:
            got: set[int] = set()
            await slow.nothing_but_messages(got)
            assert 0 in got
            assert len(got) < 60
            assert door.exchange.dropped_count > 0


async def test_response_information_is_given_to_who_asks_for_it(address: str) -> None:
    peer = await Peer.connect(address, "asker", request_response_information=1)
    assert peer.connack is not None
    assert (peer.connack.properties or {})["response_information"] == "reply/asker"
    quiet = await Peer.connect(address, "quiet", request_problem_information=0)
    answer = await quiet.publish("$SYS/x", b"x", 1)
    assert isinstance(answer, PubAck)
    assert answer.reason >= 0x80
    assert not answer.properties


async def test_enhanced_authentication_is_refused(address: str) -> None:
    peer = await Peer.connect(address, "scram", authentication_method="SCRAM-SHA-1")
    assert peer.connack is not None
    assert peer.connack.reason == 0x8C


@pytest.mark.parametrize("topic", ["$SYS/x", "$queue/", "$queue/q/$ack", "$admin/queue/create", "$share/g/t"])
async def test_a_will_to_a_name_with_a_dollar_is_refused(address: str, topic: str) -> None:
    peer = await Peer.connect(address, "w", will=Will(topic, b"x"))
    assert peer.connack is not None
    assert peer.connack.reason >= 0x80


async def test_what_a_member_had_when_it_unsubscribed_is_its_own_to_finish(address: str) -> None:
    member = await Peer.connect(address, "member", session_expiry_interval=3600)
    await member.subscribe("$share/g/t", 1)
    writer = await Peer.connect(address, "writer")
    await writer.publish("t", b"begun", 1)
    assert (await member.message(ack=False)).payload == b"begun"
    await member.unsubscribe("$share/g/t")
    await member.close()
    member = await Peer.connect(address, "member", clean_start=False, session_expiry_interval=3600)
    message = await member.message()
    assert (message.payload, message.dup) == (b"begun", True)
