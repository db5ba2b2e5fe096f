"""Exactly once over cut connections: a naive client that keeps to the standard, a server whose session is stored.

The wire loses everything that is under way when it is cut; the broker commits late and in any order; the client
resends on every reconnect. Whatever the schedule: QoS 1 arrives at least once, QoS 2 exactly once, in both directions,
and nothing waits for ever.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from headrace.wire.mqtt import (
    Acked,
    ConnAck,
    Connect,
    Failed,
    Failure,
    OutgoingMessage,
    PubAck,
    PubComp,
    Publish,
    Published,
    PubRec,
    PubRel,
    Recorded,
    Released,
    Sent,
    ServerSession,
    SessionLimits,
    SessionState,
    build,
    parse,
)

SCHEDULES = int(os.environ.get("HEADRACE_SEEDS") or 150)
MESSAGES = 12


class World:
    def __init__(self, seed: int, version: int, holds: bool) -> None:
        self.rng = random.Random(seed)
        self.version = version
        self.limits = SessionLimits(receive_maximum=4, inflight_max=3, outgoing_bytes_max=400, holds_qos2=holds)
        # the client's memory
        self.to_publish = [(f"c{n}", self.rng.randrange(1, 3)) for n in range(MESSAGES)]
        self.sent: dict[int, tuple[str, int, str]] = {}  # packet id → name, qos, stage
        self.client_received: set[int] = set()
        self.client_got: list[tuple[str, int]] = []
        self.client_id_next = 0
        # the broker's memory
        self.to_deliver = [(f"s{n}", self.rng.randrange(1, 3)) for n in range(MESSAGES)]
        self.stored: list[tuple[str, int]] = []
        self.done: list[str] = []
        self.state: SessionState | None = None
        self.session: ServerSession | None = None
        self.pending: list[tuple[str, int, str, int]] = []
        self.up = b""
        self.down = b""

    def connect(self) -> None:
        state = self.state
        session = self.session = ServerSession(now_ns=0, limits=self.limits)
        window = self.rng.choice((1, 2, 10))
        properties: Any = {"receive_maximum": window} if self.version == 5 else None
        session.receive_bytes(build(Connect("c", self.version, False, properties=properties), self.version), 0)
        session.events()
        assert session.accept(0, state=state)
        self.take_events()
        self.up = self.down = b""
        for packet_id, (name, qos, stage) in sorted(self.sent.items(), key=lambda item: int(item[1][0][1:])):
            if stage == "released":
                self.put(PubRel(packet_id))
            else:
                self.put(Publish("t", name.encode(), qos, False, True, packet_id))

    def cut(self) -> None:
        """The wire is cut: bytes under way are lost. Commits under way end first, as `unanswered_count` asks for."""
        session = self.session
        if session is None:
            return
        session.connection_lost(0)
        while self.pending:
            self.commit_one()
        self.take_events()
        plain = msgspec.msgpack.encode(session.export_state().to_plain())
        self.state = SessionState.from_plain(msgspec.msgpack.decode(plain))
        self.session = None

    def put(self, packet: Any) -> None:
        self.up += build(packet, self.version)

    # -- the broker ---------------------------------------------------------------------------------------------------

    def take_events(self) -> None:
        assert self.session is not None
        for event in self.session.events():
            match event:
                case Published(message=message, handle=handle):
                    self.pending.append(("publish", handle, message.payload.decode(), message.qos))
                case Released(packet_id=packet_id) if self.limits.holds_qos2:
                    self.pending.append(("complete", packet_id, "", 0))
                case Recorded(packet_id=packet_id) if self.limits.holds_qos2:
                    self.pending.append(("release", packet_id, "", 0))
                case Acked(token=token, reason=reason):
                    assert reason in (0, 0x92)
                    self.done.append(token)
                case Failed():
                    raise AssertionError(event)

    def commit_one(self) -> None:
        assert self.session is not None
        what, handle, name, qos = self.pending.pop(self.rng.randrange(len(self.pending)))
        match what:
            case "publish":
                self.stored.append((name, qos))
                self.session.ack_publish(handle)
            case "complete":
                self.session.complete_publish(handle)
            case _:
                self.session.release_publish(handle)
        self.take_events()

    def deliver_one(self) -> None:
        assert self.session is not None
        name, qos = self.to_deliver[0]
        sent = self.session.send_publish(OutgoingMessage("t", name.encode()), qos, 0, token=name)
        assert sent in (Sent.SENT, Sent.QUEUED)
        self.to_deliver.pop(0)

    # -- the client ---------------------------------------------------------------------------------------------------

    def client_publish(self) -> None:
        if len(self.sent) >= 4:
            return
        name, qos = self.to_publish.pop(0)
        while self.client_id_next % 6 + 1 in self.sent:
            self.client_id_next += 1
        packet_id = self.client_id_next % 6 + 1
        self.sent[packet_id] = (name, qos, "sent")
        self.put(Publish("t", name.encode(), qos, False, False, packet_id))

    def client_read(self) -> None:
        assert self.session is not None
        self.down += b"".join(self.session.outgoing())
        while self.down:
            packet, stop = parse(self.down, 0, self.version)
            assert not isinstance(packet, Failure), packet
            self.down = self.down[stop:]
            match packet:
                case ConnAck():
                    pass
                case Publish(qos=2, packet_id=packet_id, payload=payload):
                    if packet_id not in self.client_received:
                        self.client_received.add(packet_id)
                        self.client_got.append((payload.decode(), 2))
                    self.put(PubRec(packet_id))
                case Publish(packet_id=packet_id, payload=payload):
                    self.client_got.append((payload.decode(), 1))
                    self.put(PubAck(packet_id))
                case PubRel(packet_id=packet_id):
                    self.client_received.discard(packet_id)
                    self.put(PubComp(packet_id))
                case PubAck(packet_id=packet_id):
                    assert self.sent.pop(packet_id)[1] == 1
                case PubRec(packet_id=packet_id):
                    name, qos, _ = self.sent[packet_id]
                    self.sent[packet_id] = (name, qos, "released")
                    self.put(PubRel(packet_id))
                case PubComp(packet_id=packet_id):
                    self.sent.pop(packet_id, None)

    def step(self, quiet: bool) -> None:
        if self.session is None:
            self.connect()
            return
        chance = self.rng.random()
        if not quiet and chance < 0.04:
            self.cut()
        elif chance < 0.2 and self.to_publish:
            self.client_publish()
        elif chance < 0.35 and self.to_deliver:
            self.deliver_one()
        elif chance < 0.55 and self.pending:
            self.commit_one()
        elif chance < 0.75 and self.up and self.session.wants_bytes:
            size = self.rng.choice((1, 5, 1000))
            data, self.up = self.up[:size], self.up[size:]
            self.session.receive_bytes(data, 0)
            self.take_events()
        else:
            self.client_read()

    def is_settled(self) -> bool:
        return not (
            self.to_publish or self.to_deliver or self.sent or self.pending or self.up or len(self.done) < MESSAGES
        )


@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("version", [4, 5])
def test_qos_2_is_exactly_once_over_cut_connections(version: int, holds: bool) -> None:
    for seed in range(SCHEDULES):
        world = World(seed, version, holds)
        steps = 0
        while not world.is_settled():
            world.step(quiet=steps > 1500)
            steps += 1
            assert steps < 6000, f"seed {seed}: something waits for ever"
        for side, names in (("c", Counter(world.stored)), ("s", Counter(world.client_got))):
            assert {name for name, _ in names} == {f"{side}{n}" for n in range(MESSAGES)}, f"seed {seed}"
            assert all(count == 1 for (_, qos), count in names.items() if qos == 2), f"seed {seed}: {names}"
        for qos in (1, 2):
            order = [int(name[1:]) for name, got in dict.fromkeys(world.client_got) if got == qos]
            assert order == sorted(order), f"seed {seed}: QoS {qos} out of order"


def test_the_checker_notices_a_broken_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: a session that forgets which identifiers it has received."""
    export = ServerSession.export_state

    def forgetful(self: ServerSession) -> SessionState:
        state = export(self)
        state.received = []
        return state

    monkeypatch.setattr(ServerSession, "export_state", forgetful)
    with pytest.raises(AssertionError, match="seed"):
        test_qos_2_is_exactly_once_over_cut_connections(5, True)
