"""An exchange over crashes: what it was is what its facts say, whether they are read one by one or from a snapshot.

Random clients come, subscribe, publish, acknowledge some of what they get and break off; between the steps the server
"crashes": an exchange is rebuilt from all facts, and another from a snapshot at a random place and the facts after it.
Both must be the same, and what was kept for somebody before must be kept for him, or wait in his share, after.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from headrace.pubsub import Exchange, Recovery, facts_of
from headrace.pubsub import facts as f
from headrace.wire.mqtt import (
    Acked,
    Cause,
    Connect,
    Disconnected,
    OutgoingMessage,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Recorded,
    ServerSession,
    SessionLimits,
    Stage,
    Subscription,
    Will,
    build,
    parse,
)

CASES = int(os.environ.get("HEADRACE_SEEDS", "0")) or 60
NAMES = ("ann", "bob", "cid")
TOPICS = ("a", "a/b", "c")
FILTERS = ("a", "a/#", "+/b", "$share/g/c", "$share/g/a/#", "c")
HOUR_S = 3600


class Notes:
    """A ledger in which everything is durable at once, or when told."""

    has_room = True

    def __init__(self) -> None:
        self.facts: list[f.Fact] = []

    def note(self, fact: f.Fact) -> None:
        self.facts.append(fact)

    def then(self, callback: Callable[[], None]) -> None:
        callback()


class Line:
    """A connection: the session, and a client behind it that acknowledges as it is told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.session = ServerSession(now_ns=0, limits=SessionLimits(holds_qos2=True))
        self.unread: list[Any] = []

    def touch(self) -> None: ...

    def end(self, reason: int, text: str) -> None:
        raise AssertionError(text)

    end_now = end


class World:
    """The exchange, its clients, and what must never be lost."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now_ns = 0
        self.notes = Notes()
        self.lines: dict[str, Line] = {}
        self.exchange = self._new()
        self.exchange.ledger = self.notes
        self.number = 0

    def _new(self) -> Exchange:
        return Exchange(publish_will=self._will)

    def _will(self, client: Any, will: Will, now_ns: int) -> None:
        """Only that it is not published twice matters here; see the tests of the door."""

    # -- steps -------------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        name = self.rng.choice(NAMES)
        if name in self.lines:
            return
        clean = self.rng.random() < 0.15
        line = Line(name)
        packet = Connect(name, 5, clean, properties={"session_expiry_interval": HOUR_S})
        line.session.receive_bytes(build(packet, 5), self.now_ns)
        line.session.events()
        will = Will("w", b"bye", 1) if self.rng.random() < 0.3 else None
        found = self.exchange.open(name, "", clean, HOUR_S, will, self.now_ns)
        assert found is not None
        client, goes_on = found
        state, client.state = client.state, None
        assert line.session.accept(self.now_ns, state=state if goes_on else None)
        self.exchange.attach(client, line, None, self.now_ns)
        self.lines[name] = line

    def subscribe(self) -> None:
        client = self._connected()
        if client is not None:
            asked = Subscription(self.rng.choice(FILTERS), self.rng.randrange(3), False, False, 2)
            self.exchange.subscribe(client, asked, self.rng.choice((0, 7)), self.now_ns)

    def unsubscribe(self) -> None:
        client = self._connected()
        if client is not None and client.subscriptions:
            self.exchange.unsubscribe(client, self.rng.choice(list(client.subscriptions)))

    def _connected(self) -> Any:
        name = self.rng.choice(NAMES)
        return self.exchange.find(name) if name in self.lines else None

    def publish(self) -> None:
        self.number += 1
        origin = self._connected()
        qos = self.rng.randrange(3)
        packet_id = 0
        if origin is not None and qos == 2 and origin.received is not None:
            packet_id = self.rng.randrange(1, 5)
            if packet_id in origin.received:
                self.exchange.release(origin, packet_id)
                return
        message = OutgoingMessage(self.rng.choice(TOPICS), b"%d" % self.number, {"user_properties": [("n", "1")]})
        self.exchange.publish(message, qos, self.rng.random() < 0.2, origin, self.now_ns, packet_id)

    def read(self) -> None:
        """One client takes what was sent to it, and answers some of it."""
        name = self.rng.choice(NAMES)
        line = self.lines.get(name)
        if line is None:
            return
        data = b"".join(line.session.outgoing())
        while data:
            packet, end = parse(data, 0, 5)
            data = data[end:]
            if isinstance(packet, Publish) and packet.qos:
                line.unread.append(PubAck(packet.packet_id) if packet.qos == 1 else PubRec(packet.packet_id))
            elif isinstance(packet, PubRel):
                line.unread.append(PubComp(packet.packet_id))
        while line.unread and self.rng.random() < 0.8:
            line.session.receive_bytes(build(line.unread.pop(0), 5), self.now_ns)
        self._react(name)

    def _react(self, name: str) -> None:
        line, client = self.lines[name], self.exchange.find(name)
        assert client is not None
        for event in line.session.events():
            if isinstance(event, Acked):
                self.exchange.finished(client, event.token)
            elif isinstance(event, Recorded):
                self.exchange.recorded(client, event.token)
                line.session.release_publish(event.packet_id)

    def leave(self) -> None:
        name = self.rng.choice(NAMES)
        line = self.lines.pop(name, None)
        client = self.exchange.find(name)
        if line is None or client is None:
            return
        line.session.connection_lost(self.now_ns)
        line.session.events()
        event = Disconnected(Cause.LOST, 0, client.standing_will, HOUR_S)
        self.exchange.disconnected(client, line, event, self.now_ns)

    def crash(self) -> None:
        """From all facts, and from a snapshot somewhere in between: the same."""
        snapshot = list(facts_of(self.exchange))
        before = len(self.notes.facts)
        for _ in range(self.rng.randrange(6)):
            self.step((self.publish, self.read, self.subscribe, self.leave))
        everything = self._rebuilt(self.notes.facts)
        from_snapshot = self._rebuilt([*snapshot, *self.notes.facts[before:]])
        assert _plain(from_snapshot) == _plain(everything)
        again = self._rebuilt(list(facts_of(everything)))
        assert _plain(again) == _plain(everything)
        self._check_kept(everything)
        self.lines.clear()
        notes = Notes()
        notes.facts = list(self.notes.facts)
        self.notes = notes
        self.exchange = self._rebuilt(self.notes.facts, notes)

    def _rebuilt(self, facts: list[f.Fact], ledger: Notes | None = None) -> Exchange:
        exchange = self._new()
        recovery = Recovery(exchange)
        for fact in f.decode(f.encode(list(facts))):
            recovery.fold(fact)
        exchange.ledger = ledger or Notes()
        recovery.finish(self.now_ns)
        return exchange

    def _check_kept(self, rebuilt: Exchange) -> None:
        """What a lasting session still waits for is what it waited for, in its order, nothing twice."""
        for name in NAMES:
            client, found = self.exchange.find(name), rebuilt.find(name)
            assert (client is None) == (found is None)
            if client is None or found is None:
                continue
            own = [(p.mid, p.message.payload) for p in client.kept.values() if p.share is None]
            assert [(p.mid, p.message.payload) for p in found.kept.values() if (p.mid, p.message.payload) in own] == own
            assert found.received == client.received
            state = client.state if client.link is None else client.link.session.export_state()
            assert state is not None
            assert found.state is not None
            past = {e.token.mid for e in state.inflight if e.stage >= Stage.RECORDED}
            assert {e.token.mid for e in found.state.inflight if e.stage is Stage.RELEASED} == past
            if client.link is None:  # what was never sent is not marked as sent
                assert {e.token.mid for e in found.state.inflight} <= {e.token.mid for e in state.inflight}
            packet_ids = [p.packet_id for p in found.kept.values()]
            assert len(set(packet_ids)) == len(packet_ids)
        shared = {
            p.message.payload
            for c in self.exchange.clients.values()
            for p in c.kept.values()
            if p.share is not None and p.share.members
        } | _waiting(self.exchange)
        kept = {p.message.payload for c in rebuilt.clients.values() for p in c.kept.values()}
        assert shared <= kept | _waiting(rebuilt)

    def step(self, among: tuple[Callable[[], None], ...]) -> None:
        self.now_ns += self.rng.randrange(10**9)
        self.rng.choice(among)()


def _waiting(exchange: Exchange) -> set[bytes]:
    return {waiting.message.payload for share in exchange.shares.values() for waiting in share.waiting}


def _plain(exchange: Exchange) -> Any:
    """Everything an exchange remembers, without what only its process knows."""
    clients = {
        name: (
            client.uid,
            client.expiry_s,
            sorted((client.subscriptions or {}).items(), key=lambda item: item[0]),
            sorted(client.received or ()),
            [(p.message.topic, p.message.payload, p.qos, p.retain, p.packet_id) for p in client.kept.values()],
            [(e.packet_id, e.stage, e.qos) for e in client.state.inflight] if client.state else None,
            [(e.packet_id, e.qos) for e in client.state.queued] if client.state else None,
            client.will,
        )
        for name, client in exchange.clients.items()
    }
    waiting = {name: [w.message.payload for w in share.waiting] for name, share in exchange.shares.items()}
    retained = sorted((s.message.topic, s.message.payload, s.qos) for s in exchange.retained.all())
    return clients, waiting, retained, exchange.last_uid, exchange.kept_bytes


def play(cases: int) -> None:
    for seed in range(cases):
        rng = random.Random(seed)
        world = World(rng)
        steps = (
            world.connect,
            world.connect,
            world.subscribe,
            world.unsubscribe,
            *(world.publish,) * 4,
            *(world.read,) * 4,
            world.leave,
        )
        try:
            for _ in range(6):
                for _ in range(30):
                    world.step(steps)
                world.crash()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.feature("F183")
def test_an_exchange_is_what_its_facts_say() -> None:
    play(CASES)


@pytest.mark.parametrize("fold", ["_finished", "_recorded", "_handed", "_unsubscribed", "_released", "_left"])
def test_a_fact_that_is_not_folded_is_noticed(fold: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recovery, fold, lambda self, fact: None)
    with pytest.raises(AssertionError):
        play(40)
