"""Native protocol workloads: what one hot packet costs to build and to parse, on one core, through the sessions."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.wire.native import (
    Action,
    ClientSession,
    Deliveries,
    Leased,
    Publish,
    Published,
    Scope,
    ServerSession,
    Settle,
    Settled,
    Verb,
    decode_frame,
    encode,
)

Figures = dict[str, float | int | str]
_BATCH = bytes(1000 * 216)
_SINGLE = bytes(264)
_RUN = (0, 77, 4000, 100)
_DELIVERED = (0, 77, 4000, 100, 1)
_PACKETS: dict[str, Any] = {
    "publish_1000": Publish(7, "", "orders", -1, 0, _BATCH),
    "publish_1": Publish(7, "", "orders", -1, 0, _SINGLE),
    "published_run": Published(7, 1000, [(3, 1000, 5000, 1 << 40)]),
    "published_6_parts_1000": Published(
        7, 1002, [(part, 167, 5000, 1 << 40) for part in range(6)], tuple(i % 6 for i in range(1002))
    ),
    "deliveries_1_run": Deliveries(5, 30 * 10**9, [_DELIVERED], [_BATCH]),
    "deliveries_8_batches": Deliveries(5, 30 * 10**9, [_DELIVERED], [_SINGLE] * 8),
    "leased_1_run": Leased(7, 5, 30 * 10**9, [_DELIVERED], [_BATCH]),
    "settle_ack_1_run": Settle(7, [Action(Verb.ACK, 5, [_RUN])]),
    "settle_ack_100_runs": Settle(7, [Action(Verb.ACK, 5, [(0, 77, at, 1) for at in range(0, 200, 2)])]),
    "settled": Settled(7),
}


def _best_us(action: Callable[[], object], rounds: int, repeats: int = 5) -> float:
    best_ns = 1 << 62
    for _ in range(repeats):
        start_ns = time.perf_counter_ns()
        for _ in range(rounds):
            action()
        best_ns = min(best_ns, time.perf_counter_ns() - start_ns)
    return round(best_ns / rounds / 1000, 3)


def codec(rounds: int = 20_000) -> list[Figures]:
    """Each hot packet: packet → buffers, and bytes → packet, without a session."""
    figures: list[Figures] = []
    for name, packet in _PACKETS.items():
        frame = memoryview(b"".join(encode(packet)))
        figures.append(
            {
                "workload": f"native_codec_{name}",
                "frame_bytes": len(frame),
                "build_us": _best_us(partial(encode, packet), rounds),
                "parse_us": _best_us(partial(decode_frame, frame, 0, len(frame)), rounds),
            }
        )
    return figures


def _opened() -> tuple[ClientSession, ServerSession]:
    client, server = ClientSession(client="bench", now_ns=0), ServerSession(now_ns=0)
    server.receive_bytes(b"".join(client.outgoing()), 0)
    server.send_welcome(server="headrace", server_id="n1")
    client.receive_bytes(b"".join(server.outgoing()), 0)
    client.events(), server.events()
    return client, server


def _round_trip(
    name: str, ask: Callable[[ClientSession], int], answer: Callable[[ServerSession, int], object]
) -> Figures:
    """One request and its reply through both sessions, the joins of the pretended socket included."""
    client, server = _opened()

    def once() -> None:
        number = ask(client)
        server.receive_bytes(b"".join(client.outgoing()), 0)
        server.events()
        answer(server, number)
        client.receive_bytes(b"".join(server.outgoing()), 0)
        client.events()

    return {"workload": f"native_session_{name}", "us_per_round_trip": _best_us(once, 5_000)}


def sessions() -> list[Figures]:
    """Publishes, pulls and acks through a client session and a server session joined in memory."""
    return [
        _round_trip(
            "publish_1",
            lambda client: client.send_publish("orders", _SINGLE),
            lambda server, number: server.send_published(number, 1, [(0, 1, 5, 9)]),
        ),
        _round_trip(
            "publish_1000",
            lambda client: client.send_publish("orders", _BATCH),
            lambda server, number: server.send_published(number, 1000, [(0, 1000, 5, 9)]),
        ),
        _round_trip(
            "ack_100",
            lambda client: client.send_ack(5, (_RUN,)),
            lambda server, number: server.send_settled(number),
        ),
        _round_trip(
            "lease_100",
            lambda client: client.send_lease(5, 100),
            lambda server, number: server.send_leased(number, (_DELIVERED,), (_SINGLE,), 10**9),
        ),
    ]


def deliveries_with_credit(pushes: int = 20_000) -> Figures:
    """Pushes of 100 messages, each followed by its credit back."""
    client, server = _opened()
    number = client.send_consume(Scope("", "orders", "g"), credit_messages=1000, credit_bytes=1 << 20)
    server.receive_bytes(b"".join(client.outgoing()), 0)
    server.send_subscribed(number, 10**9)
    client.receive_bytes(b"".join(server.outgoing()), 0)

    def once() -> None:
        server.send_deliveries(number, (_DELIVERED,), (_SINGLE,), 10**9)
        client.receive_bytes(b"".join(server.outgoing()), 0)
        client.events()
        client.send_credit(number, 100, len(_SINGLE))
        server.receive_bytes(b"".join(client.outgoing()), 0)
        server.events()

    return {"workload": "native_session_push_100_and_credit", "us_per_push": _best_us(once, pushes // 5)}
