"""Any packet survives the trip, cut anywhere; any bytes leave the sessions bounded and closed at most once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.wire.native import (
    BY_POLICY,
    DUPLICATE,
    Action,
    Call,
    CancelEffect,
    ClientSession,
    Close,
    Closed,
    Consume,
    Credit,
    Deliveries,
    Ended,
    Error,
    GoAway,
    Lease,
    Leased,
    Limits,
    Ping,
    Publish,
    Published,
    PublishEffect,
    Result,
    Scope,
    ServerSession,
    Settle,
    Settled,
    Subscribed,
    Unsubscribe,
    Verb,
    decode,
    encode,
)

CORPUS = Path(__file__).parents[1] / "corpus" / "native"

u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
number = st.integers(1, 2**32 - 1)
retry = st.integers(-1, 2**62)
name = st.text(max_size=60)
text = st.text(max_size=200)
data = st.binary(max_size=300)
scopes = st.builds(Scope, name, name, name, name)
runs = st.lists(st.tuples(u32, u64, u64, st.integers(1, 1000)), min_size=1, max_size=5)
delivered = st.lists(st.tuples(u32, u64, u64, st.integers(1, 2**32 - 1), number), min_size=1, max_size=5)
batches = st.lists(data, min_size=1, max_size=4)


@st.composite
def published(draw: st.DrawFn, correlation: st.SearchStrategy[int] = number, relaxed: bool = True) -> Published:
    """Any legal split of a batch over parts, duplicates included."""
    part_count = draw(st.integers(0, 4))
    where = draw(st.lists(st.sampled_from([*range(part_count), DUPLICATE]), max_size=12))
    parts = [(draw(u32), where.count(part), draw(u64), draw(u64)) for part in range(part_count)]
    duplicates = [(i, draw(u32), draw(u64), draw(u64)) for i, part in enumerate(where) if part == DUPLICATE]
    indexes = tuple(where) if part_count > 1 else ()
    flag = draw(st.booleans()) if relaxed else False
    return Published(draw(correlation), len(where), parts, indexes, duplicates, flag)


@st.composite
def actions(draw: st.DrawFn) -> Action:
    verb = draw(st.sampled_from(Verb))
    span_ns = draw(st.integers(BY_POLICY if verb == Verb.NACK else 0, 2**63 - 1))
    return Action(verb, draw(number | scopes), draw(runs), span_ns, draw(text))


effects = st.builds(PublishEffect, name, name, st.integers(-1, 2**31 - 1), data) | st.builds(
    CancelEffect, name, name, st.lists(u64, max_size=5).map(tuple)
)
packets: st.SearchStrategy[Any] = st.one_of(
    st.builds(Ping, u64),
    st.builds(Error, number, st.integers(1, 2**16 - 1), text, retry),
    st.builds(Close, u16, text, retry),
    st.builds(GoAway, u64, text),
    st.builds(Publish, number, name, name, st.integers(-1, 2**31 - 1), st.integers(0, 1), data),
    published(),
    st.builds(Consume, number, scopes, u64, u32, u64, data),
    st.builds(Subscribed, number, u64, data),
    st.builds(Unsubscribe, number, number),
    st.builds(Ended, u32, number, u16, text, retry),
    st.builds(Credit, u32, u32, u64),
    st.builds(Credit, u32, st.just(0), st.just(0), st.just(True)),
    st.builds(Lease, number, number | scopes, number, u32, u64, u64),
    st.builds(Deliveries, number, u64, delivered, batches),
    st.builds(Leased, number, u32, u64, delivered, batches),
    st.builds(Settle, number, st.lists(actions(), min_size=1, max_size=4)),
    st.builds(
        Settle, number, st.lists(actions(), max_size=2), st.lists(effects, min_size=1, max_size=3), st.just(True)
    ),
    st.builds(
        Settled,
        number,
        st.lists(st.tuples(u16, u16, u32, u64, u64, u32), max_size=3),
        st.lists(published(st.just(0), relaxed=False), max_size=2),
    ),
    st.builds(Call, number, name, data, st.lists(data, max_size=3)),
    st.builds(Result, number, data, st.lists(data, max_size=3)),
)


def corpus_frames() -> list[bytes]:
    frames = []
    for path in sorted(CORPUS.glob("*.txt")):
        rows = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        frames.append(b"".join(bytes.fromhex(re.split(r" {2,}", row, maxsplit=1)[0]) for row in rows))
    return frames


FRAMES = corpus_frames()


def opened() -> tuple[ClientSession, ServerSession]:
    client, server = ClientSession(client="fuzz", now_ns=0), ServerSession(now_ns=0)
    server.receive_bytes(b"".join(client.outgoing()), 0)
    server.send_welcome(server="headrace", server_id="n1")
    client.receive_bytes(b"".join(server.outgoing()), 0)
    client.send_consume(Scope("", "t", "g"), credit_messages=1000, credit_bytes=1 << 20)
    server.receive_bytes(b"".join(client.outgoing()), 0)
    server.send_subscribed(1, 10**9)
    client.receive_bytes(b"".join(server.outgoing()), 0)
    for session in (client, server):
        session.events()
    for _ in range(8):
        client.send_call("x")
    client.outgoing()
    return client, server


@given(packets)
def test_packet_survives_the_trip_whole_and_cut(packet: Any) -> None:
    frame = b"".join(encode(packet))
    assert decode(frame) == (packet, len(frame))
    assert decode(frame + b"\x01") == (packet, len(frame))
    for size in {0, 3, 4, 9, len(frame) - 1} - {len(frame)}:
        assert not isinstance(decode(frame[:size]), tuple)


@settings(max_examples=max(300, settings.default.max_examples))
@given(
    st.lists(st.sampled_from(FRAMES) | packets.map(lambda packet: b"".join(encode(packet))), min_size=1, max_size=6),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6),
    st.integers(1, 400),
    st.booleans(),
)
def test_mutated_bytes_never_raise_and_never_grow_the_buffer(
    frames: list[bytes], flips: list[tuple[float, int]], piece_bytes: int, to_open: bool
) -> None:
    stream = bytearray(b"".join(frames))[:20_000]
    for where, value in flips:
        stream[int(where * len(stream))] = value
    sessions: tuple[ClientSession | ServerSession, ...] = (
        opened() if to_open else (ClientSession(client="fuzz", now_ns=0), ServerSession(Limits(), now_ns=0))
    )
    for session in sessions:
        seen = []
        for step, at in enumerate(range(0, len(stream), piece_bytes)):
            session.receive_bytes(bytes(stream[at : at + piece_bytes]), step)
            seen += session.events()
            assert session.buffered_bytes <= len(stream)
            assert sum(map(len, session.outgoing())) <= 64 * 1024 + 2 * piece_bytes
        closed = [event for event in seen if isinstance(event, Closed)]
        assert closed == ([] if session.close_planned is None else [session.close_planned])
        if closed:
            assert seen[-1] is closed[0]
            assert session.buffered_bytes == 0
        session.on_due(10**12)
        session.receive_eof(10**12)
        assert session.close_planned is not None


@given(st.binary(max_size=2000))
def test_noise_never_raises(noise: bytes) -> None:
    for session in (*opened(), ServerSession(now_ns=0)):
        session.receive_bytes(noise, 0)
        session.receive_eof(0)
        assert session.close_planned is not None
