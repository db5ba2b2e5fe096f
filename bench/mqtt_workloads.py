"""MQTT workloads: the codec and the session alone, on one core, without sockets. Times are the best of five runs."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from functools import partial

from headrace.wire.mqtt import (
    Connect,
    OutgoingMessage,
    Properties,
    PubAck,
    Publish,
    Published,
    ServerSession,
    build,
    build_publish,
    parse,
)

Figures = dict[str, float | int | str]

_TOPIC = "sensors/building-7/attic/temperature"
_PAYLOAD = bytes(200)
_QUEUE: Properties = {
    "user_properties": [("message-id", "7345612345678901234"), ("attempt", "1"), ("partition-key", "user-17")]
}


def _best_us(action: Callable[[], object], rounds: int, repeats: int = 5) -> float:
    best_ns = 1 << 62
    for _ in range(repeats):
        start_ns = time.perf_counter_ns()
        for _ in range(rounds):
            action()
        best_ns = min(best_ns, time.perf_counter_ns() - start_ns)
    return round(best_ns / rounds / 1000, 3)


def _opened(version: int = 5) -> ServerSession:
    session = ServerSession(now_ns=0)
    session.receive_bytes(build(Connect("bench", version), version), 0)
    session.events()
    session.accept(0)
    session.outgoing()
    return session


def publish_codec(rounds: int = 20_000) -> list[Figures]:
    """One PUBLISH of 200 bytes: bytes to packet, packet to bytes."""
    figures: list[Figures] = []
    for name, version, qos, properties in (
        ("3.1.1 QoS 0", 4, 0, None),
        ("3.1.1 QoS 1", 4, 1, None),
        ("5.0 QoS 1", 5, 1, None),
        ("5.0 QoS 1 with three user properties", 5, 1, _QUEUE),
    ):
        packet_id = 7 if qos else 0
        make = partial(build_publish, _TOPIC, _PAYLOAD, qos, False, False, packet_id, properties, version)
        data = make()
        figures.append(
            {
                "workload": name,
                "parse_us": _best_us(partial(parse, data, 0, version), rounds),
                "build_us": _best_us(make, rounds),
            }
        )
    return figures


def fan_in(messages: int = 20_000) -> list[Figures]:
    """Publishes through a session: 64 KiB reads, events taken, QoS 1 acknowledged, output taken."""
    figures: list[Figures] = []
    for version, qos in ((4, 0), (5, 0), (4, 1), (5, 1)):
        session = _opened(version)
        stream = b"".join(
            build_publish(_TOPIC, _PAYLOAD, qos, False, False, 1 + n % 500 if qos else 0, None, version)
            for n in range(messages)
        )
        seen = 0
        start_ns = time.perf_counter_ns()
        for at in range(0, len(stream), 65_536):
            session.receive_bytes(stream[at : at + 65_536], at)
            for event in session.events():
                assert isinstance(event, Published)
                seen += 1
                if event.handle:
                    session.ack_publish(event.handle)
            session.outgoing()
        spent_ns = time.perf_counter_ns() - start_ns
        assert seen == messages
        figures.append(
            {
                "workload": f"{'3.1.1' if version == 4 else '5.0'} QoS {qos}",
                "messages_per_s": round(messages * 1e9 / spent_ns),
                "us_per_message": round(spent_ns / messages / 1000, 3),
            }
        )
    return figures


def fan_out(messages: int = 400, subscribers: int = 50) -> list[Figures]:
    """One message to 50 sessions, encoded once; QoS 1 with its acknowledgements."""
    figures: list[Figures] = []
    for version, qos in ((4, 0), (5, 0), (5, 1)):
        sessions = [_opened(version) for _ in range(subscribers)]
        start_ns = time.perf_counter_ns()
        for n in range(messages):
            message = OutgoingMessage(_TOPIC, _PAYLOAD, None)
            for session in sessions:
                session.send_publish(message, qos, n)
            if n % 10 == 9:
                for session in sessions:
                    session.outgoing()
        spent_ns = time.perf_counter_ns() - start_ns
        row: Figures = {
            "workload": f"{'3.1.1' if version == 4 else '5.0'} QoS {qos}",
            "deliveries_per_s": round(messages * subscribers * 1e9 / spent_ns),
            "us_per_delivery": round(spent_ns / messages / subscribers / 1000, 3),
        }
        if qos:
            acks = b"".join(build(PubAck(1 + n), version) for n in range(messages))
            start_ns = time.perf_counter_ns()
            for session in sessions:
                session.receive_bytes(acks, 0)
                session.events()
            row["us_per_ack"] = round((time.perf_counter_ns() - start_ns) / messages / subscribers / 1000, 3)
        figures.append(row)
    return figures


def queue_deliveries(messages: int = 10_000) -> Figures:
    """What a durable queue sends: QoS 1, each message to one consumer, three user properties of its own."""
    session = _opened(5)
    window = 500
    spent_ns = 0
    for base in range(0, messages, window):
        start_ns = time.perf_counter_ns()
        for n in range(window):
            properties: Properties = {
                "user_properties": [("message-id", str(base + n)), ("attempt", "1"), ("partition-key", "user-17")]
            }
            session.send_publish(OutgoingMessage(_TOPIC, _PAYLOAD, properties), 1, 0, token=n)
        session.outgoing()
        spent_ns += time.perf_counter_ns() - start_ns
        acks = b"".join(build(PubAck(1 + (base + n) % 65_535), 5) for n in range(window))
        start_ns = time.perf_counter_ns()
        session.receive_bytes(acks, 0)
        assert len(session.events()) == window
        spent_ns += time.perf_counter_ns() - start_ns
    return {"messages_per_s": round(messages * 1e9 / spent_ns), "us_per_message": round(spent_ns / messages / 1000, 3)}


def connections(count: int = 2_000) -> Figures:
    """CONNECT to CONNACK, and what one idle session holds."""
    connect = build(Connect("a-client-id-of-some-length", 5, keep_alive_s=60), 5)
    sessions: list[ServerSession] = []
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(count):
        session = ServerSession(now_ns=0)
        session.receive_bytes(connect, 0)
        session.events()
        session.accept(0)
        session.outgoing()
        sessions.append(session)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    start_ns = time.perf_counter_ns()
    for _ in range(count):
        session = ServerSession(now_ns=0)
        session.receive_bytes(connect, 0)
        session.events()
        session.accept(0)
        session.outgoing()
    spent_ns = time.perf_counter_ns() - start_ns
    return {"connects_per_s": round(count * 1e9 / spent_ns), "bytes_per_session": round((after - before) / count)}


def received_publish() -> Figures:
    """Only the packet object: the floor of any parser that makes one."""
    make = partial(Publish, _TOPIC, _PAYLOAD, 1, False, False, 7, None)
    return {"make_packet_us": _best_us(make, 20_000)}


WORKLOADS = (publish_codec, fan_in, fan_out, queue_deliveries, connections, received_publish)
