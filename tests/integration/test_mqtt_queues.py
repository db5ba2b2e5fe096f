"""Durable queues over MQTT 3.1.1 and 5, the door in this process: publish, consume, settle, administer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace.frontends.mqtt import MqttDoor
from headrace.wire.mqtt import Disconnect, PubAck, Publish, Will
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
async def door(open_door: OpenDoor) -> MqttDoor:
    return await open_door()


def said(message: Publish) -> dict[str, str]:
    return dict((message.properties or {}).get("user_properties", []))


def id_of(message: Publish) -> str:
    """How a client of either version learns what it has to settle."""
    return said(message)["message-id"] if message.properties else message.topic.rpartition("/$id/")[2]


async def settle(peer: Peer, queue: str, verb: str, message: Publish, payload: bytes = b"", **more: str) -> PubAck:
    """In the form of the peer's version."""
    properties = [("message-id", id_of(message)), *((name.replace("_", "-"), text) for name, text in more.items())]
    if peer.version == 5:
        answer = await peer.publish(f"$queue/{queue}/${verb}", payload, 1, user_properties=properties)
    else:
        answer = await peer.publish(f"$queue/{queue}/${verb}/{id_of(message)}", payload, 1)
    assert isinstance(answer, PubAck)
    return answer


def books(door: MqttDoor, topic: str, group: str) -> dict[str, Any]:
    return dict(door.site.broker.administration.call("group.show", {"topic": topic, "group": group}).reply)


# -- publishing --------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.feature("F013", "F185", "F194", "F303")
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_publish_is_in_the_queue_when_it_is_acknowledged(door: MqttDoor, version: int, qos: int) -> None:
    peer = await Peer.connect(door.address, "producer", version)
    answer = await peer.publish("$queue/tasks/image-processing", b"work", qos, retain=True)
    assert qos == 0 or getattr(answer, "reason", 1) == 0
    await peer.nothing()
    await until(lambda: ("default", "tasks/image-processing") in door.site.broker.core.state.by_name)
    consumer = await Peer.connect(door.address, "consumer", version)
    await consumer.subscribe("$queue/tasks/image-processing", 1, wanted=1)
    message = await consumer.message()
    assert (message.payload, message.retain) == (b"work", False)


@pytest.mark.feature("F012", "F184", "F193")
async def test_properties_become_the_fields_of_a_message_and_come_back(door: MqttDoor) -> None:
    peer = await Peer.connect(door.address, "p")
    await peer.subscribe("$queue/orders", 1)
    await peer.publish(
        "$queue/orders",
        b"{}",
        1,
        content_type="application/json",
        correlation_data=b"call-1",
        response_topic="$queue/answers",
        user_properties=[("partition-key", "user-1"), ("priority", "high"), ("trace", "abc"), ("ttl", "1h")],
    )
    message = await peer.message()
    properties = message.properties or {}
    told = said(message)
    assert told["partition-key"] == "user-1"
    assert (told["attempt"], told["priority"], told["trace"]) == ("1", "1", "abc")
    assert (told["partition"], told["offset"], told["consumer-group"]) == ("0", "0", "default")
    assert told["correlation-id"] == "call-1"
    assert properties["content_type"] == "application/json"
    assert properties["correlation_data"] == b"call-1"
    assert properties["response_topic"] == "$queue/answers"
    [stored] = door.site.broker.administration.call("browse", {"topic": "orders", "state": "leased"}).reply
    assert stored["headers"] == {
        "trace": "abc",
        "content_type": "application/json",
        "correlation_id": "call-1",
        "reply_to": "answers",
    }
    assert stored["key"] == b"user-1"
    assert stored["expires_at_ns"] - stored["published_ns"] == 3600 * 10**9


async def test_a_dedup_id_stores_once(door: MqttDoor) -> None:
    peer = await Peer.connect(door.address, "p")
    for _ in range(3):
        answer = await peer.publish("$queue/t", b"x", 1, user_properties=[("dedup-id", "only")])
        assert isinstance(answer, PubAck)
        assert answer.reason == 0
    assert books(door, "t", "default")["ready"] == 1


async def test_a_delay_holds_a_message_back(door: MqttDoor) -> None:
    peer = await Peer.connect(door.address, "p")
    await peer.subscribe("$queue/t", 1)
    await peer.publish("$queue/t", b"later", 1, user_properties=[("delay", "1h")])
    await peer.publish("$queue/t", b"soon", 1)
    assert (await peer.message()).payload == b"soon"
    await peer.nothing()
    assert books(door, "t", "default")["scheduled"] == 1


@pytest.mark.parametrize(
    ("topic", "properties", "reason"),
    [
        ("$queue/t", [("delay", "soon")], 0x83),
        ("$queue/t", [("priority", "77")], 0x83),
        ("$queue/t/$group/g", [], 0x83),
        ("$queue/t/$unknown", [], 0x83),
        ("$queue/", [], 0x83),
        ("$elsewhere", [], 0x90),
    ],
)
async def test_what_cannot_be_published_says_why(
    door: MqttDoor, topic: str, properties: list[tuple[str, str]], reason: int
) -> None:
    peer = await Peer.connect(door.address, "p")
    answer = await peer.publish(topic, b"x", 1, user_properties=properties)
    assert isinstance(answer, PubAck)
    assert answer.reason == reason
    assert (answer.properties or {})["reason_string"]
    answer = await peer.publish("$queue/t", b"fine", 1)
    assert isinstance(answer, PubAck)
    assert answer.reason == 0


async def test_one_message_that_is_refused_takes_no_other_with_it(door: MqttDoor) -> None:
    administration = door.site.broker.administration
    administration.call("topic.create", {"topic": "t", "settings": {"max_message_size": "100B", "partitions": 3}})
    peer = await Peer.connect(door.address, "p")
    for n in range(1, 31):
        payload = bytes(200) if n % 10 == 0 else b"%d" % n
        peer.send(
            Publish("$queue/t", payload, 1, packet_id=n, properties={"user_properties": [("partition-key", str(n))]})
        )
    reasons = {}
    for _ in range(30):
        answer = await peer.expect(PubAck)
        reasons[answer.packet_id] = answer.reason
    assert {n for n, reason in reasons.items() if reason} == {10, 20, 30}
    assert books(door, "t", "default")["ready"] == 27


# -- consuming ---------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.feature("F035", "F186", "N10")
async def test_an_ack_is_final_and_may_be_said_twice(door: MqttDoor, version: int) -> None:
    peer = await Peer.connect(door.address, "p", version)
    await peer.subscribe("$queue/t", 1)
    await peer.publish("$queue/t", b"x", 1)
    message = await peer.message()
    assert (await settle(peer, "t", "ack", message)).reason == 0
    assert (await settle(peer, "t", "ack", message)).reason == 0
    assert books(door, "t", "default")["acked"] == 1
    await peer.nothing()


@BOTH
@pytest.mark.feature("F187")
async def test_a_nack_brings_it_back_with_the_next_attempt(door: MqttDoor, version: int) -> None:
    door.site.broker.administration.call("topic.create", {"topic": "t", "settings": {"retry.initial_backoff": "0s"}})
    peer = await Peer.connect(door.address, "p", version)
    await peer.subscribe("$queue/t", 1)
    await peer.publish("$queue/t", b"x", 1)
    first = await peer.message()
    await settle(peer, "t", "nack", first, b"no database")
    again = await peer.message()
    assert id_of(again) == id_of(first)
    if version == 5:
        assert said(again)["attempt"] == "2"
    [info] = door.site.broker.administration.call("browse", {"topic": "t", "state": "leased"}).reply
    assert (info["attempts"], info["last_error"]) == (2, "no database")


@BOTH
@pytest.mark.feature("F188", "F189")
async def test_a_reject_goes_to_the_dead_letters_which_are_a_queue_too(door: MqttDoor, version: int) -> None:
    peer = await Peer.connect(door.address, "p", version)
    await peer.subscribe("$queue/t", 1)
    await peer.publish("$queue/t", b"poison", 1)
    await settle(peer, "t", "reject", await peer.message(), b"cannot be read")
    monitor = await Peer.connect(door.address, "monitor", 5)
    await monitor.subscribe("$queue/dlq/t", 1)
    dead = await monitor.message()
    assert dead.payload == b"poison"
    assert "cannot be read" in said(dead).values()
    assert (await settle(monitor, "dlq/t", "ack", dead)).reason == 0


@BOTH
async def test_a_release_does_not_count_and_an_extension_holds(door: MqttDoor, version: int) -> None:
    peer = await Peer.connect(door.address, "p", version)
    await peer.subscribe("$queue/t", 1)
    await peer.publish("$queue/t", b"x", 1)
    message = await peer.message()
    await settle(peer, "t", "release", message)
    message = await peer.message()
    [info] = door.site.broker.administration.call("browse", {"topic": "t", "state": "leased"}).reply
    assert info["attempts"] == 1
    answer = await settle(peer, "t", "extend", message, b"10m" if version == 4 else b"", by="10m")
    assert answer.reason == 0
    [lease] = door.site.broker.core.state.leases.values()
    assert lease.next_ns() - door.now_ns() > 500 * 10**9
    assert (await settle(peer, "t", "ack", message)).reason == 0


async def test_many_messages_are_settled_at_once(door: MqttDoor) -> None:
    peer = await Peer.connect(door.address, "p")
    for n in range(10):
        await peer.publish("$queue/t", b"%d" % n, 1)
    await peer.subscribe("$queue/t", 1)
    ids = [id_of(await peer.message()) for _ in range(10)]
    await peer.publish("$queue/t/$ack", b"", 1, user_properties=[("message-id", one) for one in ids[:4]])
    await peer.publish("$queue/t/$ack", "\n".join(ids[4:8]).encode(), 1)
    answer = await peer.publish("$queue/t/$ack", b"", 1)
    assert isinstance(answer, PubAck)
    assert answer.reason == 0x83
    assert "2" in (answer.properties or {})["reason_string"]
    await peer.publish(f"$queue/t/$ack/{ids[8]}", b"", 1)
    answer = await peer.publish("$queue/t/$ack", b"", 1)
    assert isinstance(answer, PubAck)
    assert answer.reason == 0
    assert books(door, "t", "default")["acked"] == 10


async def test_a_settlement_that_comes_too_late_changes_nothing(door: MqttDoor) -> None:
    first = await Peer.connect(door.address, "a")
    await first.subscribe("$queue/t", 1)
    await first.publish("$queue/t", b"x", 1)
    message = await first.message()
    await first.unsubscribe("$queue/t")
    second = await Peer.connect(door.address, "b")
    await second.subscribe("$queue/t", 1)
    again = await second.message()
    assert id_of(again) == id_of(message)
    answer = await settle(first, "t", "ack", message)
    assert answer.reason == 0x83
    assert (await settle(second, "t", "ack", again)).reason == 0
    assert books(door, "t", "default")["acked"] == 1


@BOTH
async def test_another_connection_of_the_same_name_may_not_settle_for_others_and_nonsense_is_refused(
    door: MqttDoor, version: int
) -> None:
    peer = await Peer.connect(door.address, "p", version)
    await peer.subscribe("$queue/t", 1)
    await peer.publish("$queue/t", b"x", 1)
    message = await peer.message()
    other = await Peer.connect(door.address, "other", 5)
    for topic in (f"$queue/t/$ack/{id_of(message)}", "$queue/t/$ack/12345", "$queue/t/$ack/zero"):
        answer = await other.publish(topic, b"", 1)
        assert isinstance(answer, PubAck)
        assert answer.reason == 0x83
    assert books(door, "t", "default")["leased"] == 1


@pytest.mark.feature("F083", "F084", "F095")
async def test_the_group_is_named_by_property_by_filter_or_by_the_client(door: MqttDoor) -> None:
    await (await Peer.connect(door.address, "w")).publish("$queue/t", b"for all", 1)
    by_property = await Peer.connect(door.address, "x-1")
    await by_property.subscribe("$queue/t", 1, user_properties=[("consumer-group", "billing")])
    by_filter = await Peer.connect(door.address, "x-2", 4)
    await by_filter.subscribe("$queue/t/$group/shipping", 1)
    by_name = await Peer.connect(door.address, "mailer-eu-3")
    await by_name.subscribe("$queue/t", 1)
    nameless = await Peer.connect(door.address, "")
    await nameless.subscribe("$queue/t", 1)
    for peer in (by_property, by_filter, by_name, nameless):
        assert (await peer.message()).payload == b"for all"
    topic = door.site.broker.core.state.by_name["default", "t"]
    assert set(topic.groups) == {"billing", "shipping", "mailer-eu", "default"}
    assert books(door, "t", "mailer-eu")["consumers"] == ["mailer-eu-3"]


@BOTH
async def test_two_workers_share_and_what_one_leaves_the_other_gets(door: MqttDoor, version: int) -> None:
    door.site.broker.administration.call("topic.create", {"topic": "t", "settings": {"retry.initial_backoff": "0s"}})
    one = await Peer.connect(door.address, "work-1", version)
    two = await Peer.connect(door.address, "work-2", version)
    writer = await Peer.connect(door.address, "writer", version)
    for peer in (one, two):
        await peer.subscribe("$queue/t", 1)
    for n in range(6):
        await writer.publish("$queue/t", b"%d" % n, 1)
    for _ in range(3):
        await one.message(ack=False)
    await one.close()
    assert {(await two.message()).payload for _ in range(6)} == {b"%d" % n for n in range(6)}
    await two.nothing()


async def test_the_receive_maximum_bounds_what_a_client_holds(door: MqttDoor) -> None:
    writer = await Peer.connect(door.address, "w")
    for n in range(5):
        await writer.publish("$queue/t", b"%d" % n, 1)
    reader = await Peer.connect(door.address, "r", receive_maximum=2)
    await reader.subscribe("$queue/t", 1)
    first = await reader.message()
    await reader.message()
    await reader.nothing()
    assert books(door, "t", "default")["leased"] == 2
    await settle(reader, "t", "ack", first)
    assert (await reader.message()).payload == b"2"
    await reader.nothing()


async def test_a_forgotten_message_is_given_to_others_and_its_room_too(door: MqttDoor) -> None:
    door.site.broker.administration.call(
        "topic.create", {"topic": "t", "settings": {"lease": "100ms", "retry.initial_backoff": "0s"}}
    )
    reader = await Peer.connect(door.address, "r")
    await reader.subscribe("$queue/t", 1, user_properties=[("prefetch", "1")])
    await reader.publish("$queue/t", b"x", 1)
    first = await reader.message()
    again = await reader.message()
    assert (id_of(first), said(again)["attempt"]) == (id_of(again), "2")


@BOTH
async def test_a_queue_may_be_settled_by_puback_alone(door: MqttDoor, version: int) -> None:
    door.site.broker.administration.call(
        "topic.create", {"topic": "t", "settings": {"mqtt.settle": "puback", "retry.initial_backoff": "0s"}}
    )
    peer = await Peer.connect(door.address, "p", version)
    await peer.subscribe("$queue/t", 1)
    await peer.publish("$queue/t", b"x", 1)
    message = await peer.message(ack=False)
    assert message.topic == "$queue/t"
    peer.send(PubAck(message.packet_id))
    await until(lambda: books(door, "t", "default")["acked"] == 1)
    if version == 5:
        await peer.publish("$queue/t", b"bad", 1)
        message = await peer.message(ack=False)
        peer.send(PubAck(message.packet_id, 0x80, {"reason_string": "broken"}))
        again = await peer.message()
        assert (again.payload, said(again)["attempt"]) == (b"bad", "2")


async def test_a_message_too_large_for_its_consumer_is_not_leased_to_it_for_ever(door: MqttDoor) -> None:
    door.site.broker.administration.call(
        "topic.create", {"topic": "t", "settings": {"retry.initial_backoff": "0s", "retry.max_retries": 2}}
    )
    peer = await Peer.connect(door.address, "p", maximum_packet_size=300)
    await peer.subscribe("$queue/t", 1)
    other = await Peer.connect(door.address, "o")
    await other.publish("$queue/t", bytes(1000), 1)
    await other.publish("$queue/t", b"fits", 1)
    assert (await peer.message()).payload == b"fits"
    await until(lambda: books(door, "t", "default")["dead"] == 1)


async def test_a_session_that_lasts_takes_its_queues_up_again(door: MqttDoor) -> None:
    peer = await Peer.connect(door.address, "work-1", session_expiry_interval=100)
    await peer.subscribe("$queue/t", 1, subscription_identifiers=[9])
    await peer.publish("$queue/t", b"x", 1)
    first = await peer.message(ack=False)
    await peer.close()
    peer = await Peer.connect(door.address, "work-1", clean_start=False, session_expiry_interval=100)
    again = await peer.message()
    assert id_of(again) == id_of(first)
    assert said(again)["attempt"] == "2"
    assert (again.properties or {})["subscription_identifiers"] == [9]
    assert (await settle(peer, "t", "ack", again)).reason == 0
    assert (await peer.unsubscribe("$queue/t")).reasons == (0,)
    await peer.leave()
    peer = await Peer.connect(door.address, "work-1", clean_start=False, session_expiry_interval=100)
    await peer.publish("$queue/t", b"y", 1)
    await peer.nothing()


async def test_a_filter_with_wildcards_is_no_queue(door: MqttDoor) -> None:
    peer = await Peer.connect(door.address, "p")
    for topic_filter in ("$queue/#", "$queue/+", "$queue/a/$ack", "$queue/a/$group/", "$admin/#", "$nothing/x"):
        suback = await peer.subscribe(topic_filter, 1)
        assert suback.reasons[0] >= 0x80, topic_filter
    old = await Peer.connect(door.address, "o", 4)
    assert (await old.subscribe("$queue/#", 1)).reasons == (0x80,)


async def test_a_will_may_be_work_to_do(door: MqttDoor) -> None:
    peer = await Peer.connect(door.address, "machine", will=Will("$queue/repairs", b"machine is gone", 1))
    await peer.close()
    worker = await Peer.connect(door.address, "worker")
    await worker.subscribe("$queue/repairs", 1)
    assert (await worker.message()).payload == b"machine is gone"


@pytest.mark.feature("F193")
async def test_a_request_over_queues_finds_its_way_back(door: MqttDoor) -> None:
    asker, server = await Peer.connect(door.address, "asker"), await Peer.connect(door.address, "server")
    await server.subscribe("$queue/auth/validate", 1)
    await asker.subscribe("replies/asker", 1)
    await asker.publish(
        "$queue/auth/validate", b"token?", 1, response_topic="replies/asker", correlation_data=b"\xff\x01"
    )
    request = await server.message()
    properties = request.properties or {}
    await server.publish(properties["response_topic"], b"yes", 1, correlation_data=properties["correlation_data"])
    await settle(server, "auth/validate", "ack", request)
    answer = await asker.message()
    assert (answer.payload, (answer.properties or {})["correlation_data"]) == (b"yes", b"\xff\x01")


# -- administering -----------------------------------------------------------------------------------------------------


@pytest.mark.feature("F190", "F191", "F192")
async def test_queues_are_made_changed_and_watched(door: MqttDoor) -> None:
    peer = await Peer.connect(door.address, "admin")
    await peer.subscribe("answers", 0)
    settings = {"topic": "orders", "settings": {"ordering": "none", "retry.max_retries": 3}}
    await peer.publish("$admin/queue/create", json.dumps(settings).encode(), 0, response_topic="answers")
    created = json.loads((await peer.message()).payload)
    assert created["settings"]["ordering"] == "none"
    answer = await peer.publish("$admin/queue/create", json.dumps(settings).encode(), 1)
    assert isinstance(answer, PubAck)
    assert answer.reason == 0x83
    await peer.publish(
        "$admin/queue/orders/config", b'{"retry.max_retries": 7}', 0, response_topic="answers", correlation_data=b"c"
    )
    changed = await peer.message()
    assert json.loads(changed.payload)["settings"]["retry"]["max_retries"] == 7
    assert (changed.properties or {})["correlation_data"] == b"c"
    await peer.subscribe("$admin/queue/orders/stats", 0, user_properties=[("interval", "500ms")])
    figures = await peer.message()
    assert figures.topic == "$admin/queue/orders/stats"
    assert json.loads(figures.payload)["topic"] == "orders"
    await peer.publish("$queue/orders", b"x", 0)
    while json.loads((await peer.message()).payload)["published"] == 0:
        pass
    for topic, payload in (("$admin/queue/create", b"[]"), ("$admin/else", b"{}"), ("$admin/queue/nope/config", b"{}")):
        answer = await refused(peer, topic, payload)
        assert answer.reason >= 0x80


async def refused(peer: Peer, topic: str, payload: bytes) -> PubAck:
    packet_id = peer.packet_id()
    peer.send(Publish(topic, payload, 1, packet_id=packet_id))
    while True:
        packet = await peer.receive()
        if isinstance(packet, PubAck):
            assert packet.packet_id == packet_id
            return packet


# -- the end -----------------------------------------------------------------------------------------------------------


async def test_a_stop_lets_a_consumer_settle_what_it_holds(door: MqttDoor) -> None:
    import asyncio

    peer = await Peer.connect(door.address, "p")
    await peer.subscribe("$queue/t", 1)
    await peer.publish("$queue/t", b"x", 1)
    message = await peer.message()
    idle = await Peer.connect(door.address, "idle")
    draining = asyncio.create_task(door.drain(30_000_000_000))
    assert [packet.reason for packet in await idle.ended() if isinstance(packet, Disconnect)] == [0x8B]
    assert (await settle(peer, "t", "ack", message)).reason == 0
    assert [packet.reason for packet in await peer.ended() if isinstance(packet, Disconnect)] == [0x8B]
    await draining
    assert books(door, "t", "default")["acked"] == 1


async def test_a_group_that_is_deleted_ends_its_consumers(door: MqttDoor) -> None:
    peer = await Peer.connect(door.address, "p")
    await peer.subscribe("$queue/t", 1)
    await door.site.broker.call("topic.delete", {"topic": "t"})
    assert [type(packet) for packet in await peer.ended()] == [Disconnect]
