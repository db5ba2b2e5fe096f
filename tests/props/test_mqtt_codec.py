"""Any packet comes back from its bytes; any bytes give a value, never an exception."""

from __future__ import annotations

import os
import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.wire.mqtt import (
    NEED_MORE,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Failed,
    Failure,
    OutgoingMessage,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    Published,
    PubRec,
    PubRel,
    ServerSession,
    SessionLimits,
    State,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
    build,
    parse,
)
from headrace.wire.mqtt.properties import TABLE, WILL
from headrace.wire.mqtt.reasons import ALLOWED

INPUTS = int(os.environ.get("HEADRACE_SEEDS") or 3000)
"""Mutated inputs of each fuzz test; `HEADRACE_SEEDS=500000` makes it two million."""
EXAMPLES = max(200, settings().max_examples)

content = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
names = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=12)
topics = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="+#"), min_size=1, max_size=20
)
levels = st.sampled_from(["a", "b", "+", "", "ü", "$x"])
filters = st.builds(
    lambda parts, end: "/".join([*parts, *end]), st.lists(levels, max_size=4), st.sampled_from([["z"], ["#"], ["+"]])
)
packet_ids = st.integers(1, 65535)
binary = st.binary(max_size=20)

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.integers(0, 1),
    "u16": st.integers(1, 0xFFFF),
    "u32": st.integers(1, 0xFFFFFFFF),
    "varint": st.lists(st.integers(1, 268_435_455), min_size=1, max_size=3),
    "text": content,
    "name": topics,
    "binary": binary,
    "pair": st.lists(st.tuples(content, content), min_size=1, max_size=3),
}


def properties(kind: int, version: int, **required: st.SearchStrategy[Any]) -> st.SearchStrategy[Properties | None]:
    if version == 4:
        return st.none()
    optional = {
        row.name: VALUES[row.type] for row in TABLE.values() if kind in row.packets and row.name not in required
    }
    if kind == 8:
        optional["subscription_identifiers"] = st.lists(st.integers(1, 268_435_455), min_size=1, max_size=1)
    if kind == 1:
        del optional["authentication_data"]
    return st.fixed_dictionaries(required, optional=optional).map(lambda found: found or None)  # type: ignore[arg-type, return-value]


def reasons(kind: int, version: int) -> st.SearchStrategy[int]:
    return st.sampled_from(sorted(ALLOWED[kind])) if version == 5 else st.just(0)


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    will = draw(
        st.none() | st.builds(Will, topics, binary, st.integers(0, 2), st.booleans(), properties(WILL, version))
    )
    user_name = draw(st.none() | names)
    password = draw(st.none() | binary) if version == 5 or user_name is not None else None
    return Connect(
        draw(names),
        version,
        draw(st.booleans()),
        draw(st.integers(0, 65535)),
        user_name,
        password,
        will,
        draw(properties(1, version)),
    )


@st.composite
def publishes(draw: st.DrawFn, version: int) -> Publish:
    qos = draw(st.integers(0, 2))
    dup = draw(st.booleans()) if qos else False
    packet_id = draw(packet_ids) if qos else 0
    return Publish(
        draw(topics),
        draw(st.binary(max_size=300)),
        qos,
        draw(st.booleans()),
        dup,
        packet_id,
        draw(properties(3, version)),
    )


def acks(make: Any, kind: int, version: int) -> st.SearchStrategy[Any]:
    return st.builds(make, packet_ids, reasons(kind, version), properties(kind, version))


def packets(version: int) -> st.SearchStrategy[Packet]:
    five = version == 5
    subscriptions = st.builds(
        Subscription,
        filters,
        st.integers(0, 2),
        st.booleans() if five else st.just(False),
        st.booleans() if five else st.just(False),
        st.integers(0, 2) if five else st.just(0),
    )
    suback = st.sampled_from(sorted(ALLOWED[9]) if five else [0, 1, 2, 0x80])
    kinds: list[st.SearchStrategy[Any]] = [
        connects(version),
        st.builds(
            ConnAck,
            st.booleans() if five else st.just(False),
            st.just(0) if five else st.integers(0, 5),
            properties(2, version),
        ),
        publishes(version),
        acks(PubAck, 4, version),
        acks(PubRec, 5, version),
        acks(PubRel, 6, version),
        acks(PubComp, 7, version),
        st.builds(
            Subscribe, packet_ids, st.lists(subscriptions, min_size=1, max_size=4).map(tuple), properties(8, version)
        ),
        st.builds(SubAck, packet_ids, st.lists(suback, min_size=1, max_size=4).map(tuple), properties(9, version)),
        st.builds(
            Unsubscribe, packet_ids, st.lists(filters, min_size=1, max_size=4).map(tuple), properties(10, version)
        ),
        st.builds(
            UnsubAck,
            packet_ids,
            st.lists(reasons(11, version), min_size=1, max_size=4).map(tuple) if five else st.just(()),
            properties(11, version),
        ),
        st.just(PingReq()),
        st.just(PingResp()),
        st.builds(Disconnect, reasons(14, version), properties(14, version)),
    ]
    if five:
        kinds.append(st.builds(Auth, reasons(15, 5), properties(15, 5, authentication_method=content)))
    return st.one_of(kinds)


anything = st.one_of(*(st.tuples(st.just(version), packets(version)) for version in (4, 5)))


@settings(max_examples=EXAMPLES, deadline=None)
@given(anything, st.binary(max_size=5))
def test_every_packet_comes_back_from_its_bytes(versioned: tuple[int, Packet], tail: bytes) -> None:
    version, packet = versioned
    data = build(packet, version)
    assert parse(data, 0, version) == (packet, len(data))
    assert parse(data + tail, 0, version) == (packet, len(data))
    for cut in {0, 1, len(data) // 2, len(data) - 1}:
        assert parse(data[:cut], 0, version)[0] is NEED_MORE


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.one_of(*(st.tuples(st.just(version), publishes(version)) for version in (4, 5))),
    st.lists(st.integers(1, 300), max_size=3),
    st.none() | st.integers(0, 100),
    st.integers(0, 3),
    st.booleans(),
)
def test_shared_frames_say_what_a_whole_packet_says(
    versioned: tuple[int, Publish], identifiers: list[int], expiry_s: int | None, alias: int, send_topic: bool
) -> None:
    version, packet = versioned
    message = OutgoingMessage(packet.topic, packet.payload, packet.properties)
    expected = dict(message.properties or {})
    if version == 5:
        expected |= {"topic_alias": alias} if alias else {}
        expected |= {"subscription_identifiers": identifiers} if identifiers else {}
        expected |= {"message_expiry_interval": expiry_s} if expiry_s is not None else {}
    hidden = version == 5 and alias and not send_topic
    for _ in range(2):  # the second time from what was kept
        frames = message.frames(
            version,
            packet.qos,
            retain=packet.retain,
            dup=packet.dup,
            packet_id=packet.packet_id,
            subscription_identifiers=tuple(identifiers),
            expiry_s=expiry_s,
            alias=alias,
            send_topic=send_topic or not alias,
        )
        again, _ = parse(b"".join(frames), 0, version)
        assert isinstance(again, Publish)
        assert again.topic == ("" if hidden else packet.topic)
        assert (again.payload, again.qos, again.retain) == (packet.payload, packet.qos, packet.retain)
        assert (again.dup, again.packet_id, again.properties or {}) == (packet.dup, packet.packet_id, expected)


def test_large_payloads_are_not_copied() -> None:
    payload = bytes(100_000)
    message = OutgoingMessage("a", payload)
    assert message.frames(4, 0)[1] is payload
    assert message.frames(4, 1, packet_id=1)[1] is payload


# -- mutation fuzzing --------------------------------------------------------------------------------------------------


def seeds(version: int) -> list[bytes]:
    user: Properties | None = {"user_properties": [("a", "b"), ("c", "d")]} if version == 5 else None
    return [
        build(packet, version)
        for packet in (
            Connect("ann", version, True, 10, "u", b"p", Will("w", b"bye", 1, True, user), user),
            Publish("a/b", b"payload", properties=user),
            Publish("a/b", b"payload", 1, packet_id=1, properties=user),
            Publish("a/b", b"payload", 2, packet_id=2),
            PubAck(1, properties=user),
            PubRec(1),
            PubRel(2),
            PubComp(2),
            Subscribe(3, (Subscription("a/+/#", 1), Subscription("$share/g/x", 2)), user),
            Unsubscribe(4, ("a/+", "b"), user),
            PingReq(),
            Disconnect(0, user),
        )
    ]


def mutate(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        where = rng.randrange(len(out)) if out else 0
        match rng.randrange(7):
            case 0 if out:
                out[where] ^= 1 << rng.randrange(8)
            case 1 if out:
                out[where] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 2:
                del out[where : where + rng.randrange(1, 5)]
            case 3:
                out[where:where] = rng.randbytes(rng.randrange(1, 5))
            case 4:
                out += rng.choice(others)
            case 5:
                out[where:where] = out[where : where + rng.randrange(1, 9)]
            case _:
                out = out[:where] + bytearray(rng.choice(others)[rng.randrange(4) :])
    return bytes(out)


@pytest.mark.parametrize("version", [4, 5])
def test_no_bytes_make_the_codec_raise(version: int) -> None:
    rng = random.Random(version)
    pool = seeds(version)
    for _ in range(INPUTS):
        data = mutate(rng, rng.choice(pool), pool)
        pos = 0
        while pos < len(data):
            packet, stop = parse(data, pos, version)
            if packet is NEED_MORE:
                assert stop > len(data)
                break
            if isinstance(packet, Failure):
                assert 0x80 <= packet.reason <= 0xA2
                assert packet.clause
                assert packet.detail
                break
            assert stop > pos
            again, _ = parse(build(packet, version), 0, version)
            assert again == packet
            pos = stop


def play(rng: random.Random, version: int, limits: SessionLimits) -> ServerSession:
    """One connection that says mostly sensible things, with bytes mutated before or after CONNECT."""
    pool = seeds(version)
    session = ServerSession(now_ns=0, limits=limits)
    stream = pool[0] if rng.random() < 0.8 else mutate(rng, pool[0], pool)
    for _ in range(rng.randrange(12)):
        piece = rng.choice(pool[1:])
        stream += piece if rng.random() < 0.7 else mutate(rng, piece, pool)
    now_ns, failures, disconnects = 0, 0, 0
    while stream:
        size = rng.choice((1, 3, 20, 400))
        now_ns += rng.randrange(1_000_000)
        session.receive_bytes(stream[:size], now_ns)
        stream = stream[size:]
        if rng.random() < 0.5:
            session.send_publish(OutgoingMessage("t", b"x" * rng.randrange(50)), rng.randrange(3), now_ns)
        for event in session.events():
            match event:
                case Failed():
                    failures += 1
                    assert session.close_planned
                case Published(handle=handle) if handle:
                    session.ack_publish(handle, rng.choice((0, 0, 0, 0x97)))
                case _:
                    name = type(event).__name__
                    if name == "Connected":
                        session.accept(now_ns, assigned_client_id="x")
                    elif name == "Subscribed":
                        session.send_suback(event.packet.packet_id, [0] * len(event.packet.subscriptions))  # type: ignore[union-attr]
                    elif name == "Unsubscribed":
                        session.send_unsuback(event.packet.packet_id, [0] * len(event.packet.topic_filters))  # type: ignore[union-attr]
                    elif name == "Disconnected":
                        disconnects += 1
        session.next_due_ns()
        session.on_due(now_ns)
        if rng.random() < 0.7:
            session.outgoing()
        session.export_state()
        assert failures <= 1
        assert disconnects <= 1
    assert session.close_planned == (session.state is State.CLOSED)
    return session


@pytest.mark.parametrize("version", [4, 5])
def test_no_bytes_make_a_session_raise(version: int) -> None:
    limits = SessionLimits(
        receive_maximum=4, inflight_max=4, requests_max=3, queue_messages_max=5, outgoing_bytes_max=300
    )
    for seed in range(INPUTS // 2):
        play(random.Random(seed), version, limits)


def test_half_sent_packets_cost_no_more_than_was_sent() -> None:
    sessions = [ServerSession(now_ns=0) for _ in range(500)]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for session in sessions:
            session.receive_bytes(b"\x10\x80\x80\x03" + bytes(16), 0)  # a CONNECT of 48 KiB, says its length
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / len(sessions) < 600
