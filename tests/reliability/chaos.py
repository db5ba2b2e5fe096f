"""R5, R6, R7: order, times, tries and duplicates on a real server that is killed, paused, cut off and lied to about
the time, with producers that repeat themselves and consumers that settle late, twice, wrongly or never.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Final

import headrace
from headrace.batch import Batch, Message
from headrace.errors import HeadraceError
from headrace.wire import native
from integration.native_peer import Peer
from reliability.broker import BrokerProcess, verify
from reliability.history import NEVER, Entry, Given, History, Sent, TopicRules
from reliability.report import Report

__all__ = ["Chaos", "chaos"]

MS: Final = 1_000_000
S: Final = 1000 * MS
HOUR: Final = 3600 * S
LEASE: Final = 1500 * MS
BACKOFF: Final = 200 * MS
BACKOFF_MAX: Final = 800 * MS
RETRIES: Final = 2
TOPICS: Final = tuple(
    TopicRules(name, on_dead, RETRIES, LEASE, BACKOFF, ("default", "other"))
    for name, on_dead in (("goes-on", "continue"), ("holds", "hold"), ("follows", "follow"))
)
QUIET_S: Final = 5


class Chaos:
    """One play, of so many seconds."""

    def __init__(self, directory: Path, seed: int, seconds: float, *, kills: bool = True, producers: int = 3) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.seconds = seconds
        self.kills = kills
        self.producers = producers
        self.broker = BrokerProcess(directory, skewed=True)
        self.history = History(TOPICS)
        self.report = Report(
            "R5 R6 R7",
            "order, times, double leases, tries and duplicates, among pauses, kills and clock jumps",
            "0",
            seed,
        )
        self.peers: set[Peer] = set()
        self.publishing = True
        self.disturbed = True
        self.over = False
        self.seen_at = time.monotonic()
        self.start_skew_ns = 0
        self.cut_ns: dict[Peer, int] = {}

    def run(self) -> Report:
        with self.broker:
            asyncio.run(self._play())
            self._read_dead_letters()
            stopped = self.broker.stop()
            self.report.hold(stopped == 0, f"the server ended with {stopped}")
        ok, said = verify(self.broker.data)
        self.report.hold(ok, f"verify: {said[:600]}")
        self.report.violations += self.history.judge()
        self.report.tried.update(self.history.counts)
        return self.report

    async def _play(self) -> None:
        peer = await Peer.open(self.broker.address())
        for rules in TOPICS:
            await peer.call(
                "topic.create",
                topic=rules.name,
                settings={
                    "on_dead": rules.on_dead,
                    "lease": "1500ms",
                    "partitions": 2,
                    "retry.max_retries": RETRIES,
                    "retry.initial_backoff": "200ms",
                    "retry.max_backoff": "800ms",
                    "retry.total_timeout": "none",
                },
            )
            await peer.call("group.create", topic=rules.name, group="other", settings={})
        await peer.close()
        producers = [asyncio.create_task(self._produce(number)) for number in range(self.producers)]
        consumers = [
            asyncio.create_task(self._consume(rules, group, number))
            for rules in TOPICS
            for group in rules.groups
            for number in range(3)
        ]
        try:
            await self._disturb()
            self.publishing = False
            await asyncio.gather(*producers)
            self.disturbed = False
            self.seen_at = time.monotonic()
            while time.monotonic() - self.seen_at < QUIET_S:
                for task in consumers:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.1)
        finally:
            self.over = True
            for task in (*producers, *consumers):
                task.cancel()
            await asyncio.gather(*producers, *consumers, return_exceptions=True)
            for peer in list(self.peers):
                await peer.abandon()

    # -- what happens to the server ------------------------------------------------------------------------------------

    async def _disturb(self) -> None:
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            await asyncio.sleep(self.random.uniform(0.1, 0.8))
            what = self.random.choice(("kill", "pause", "jump", "jump", "cut", "cut", "kill in a pause"))
            if what.startswith("kill") and not self.kills:
                continue
            self.report.tried[what.split()[0] + "s"] += 1
            if what == "pause" or what == "kill in a pause":
                self.broker.pause()
                await asyncio.sleep(self.random.choice((0.05, 0.5, 2.5)))
                if what == "pause":
                    self.broker.go_on()
            if what.startswith("kill"):
                self.broker.kill()
                # A clock that is ahead of the one of the life before cannot be told, at a start, from time that has
                # passed; so it may start later and later only. While the server lives it may do what it likes.
                if self.random.random() < 0.2:
                    self.start_skew_ns = -HOUR
                self.broker.set_clock(self.start_skew_ns)
                await asyncio.to_thread(self.broker.start)
            elif what == "jump":
                self.broker.set_clock(self.random.choice((0, HOUR, -HOUR)))
            elif what == "cut":
                for peer in self.random.sample(sorted(self.peers, key=id), len(self.peers) // 2):
                    self.cut_ns.setdefault(peer, time.monotonic_ns())
                    peer.writer.transport.abort()

    async def _connect(self, name: str) -> Peer:
        while True:
            try:
                peer = await Peer.open(self.broker.address(), client=name)
            except (OSError, HeadraceError, TimeoutError):
                await asyncio.sleep(0.02)
                continue
            self.peers.add(peer)
            return peer

    # -- producers -----------------------------------------------------------------------------------------------------

    async def _produce(self, number: int) -> None:
        chance = random.Random(f"{self.seed}/producer/{number}")
        counters: dict[str, int] = {}
        peer = await self._connect(f"producer-{number}")
        batches = 0
        while self.publishing:
            topic = chance.choice(TOPICS).name
            batch: list[tuple[Sent, Message]] = []
            for _ in range(chance.randint(1, 12)):
                delayed = chance.random() < 0.15
                # On their own, what is delayed has no key: its place in the order is where its time is.
                key = f"-{number}" if delayed else f"{topic[0]}{number}k{chance.randrange(40)}"
                counters[key] = counters.get(key, 0) + 1
                text = f"{key}:{counters[key]}"
                delay_ns = chance.choice((1, 100, 700, 2500)) * MS if delayed else 0
                sent = Sent(topic, text, time.monotonic_ns(), delay_ns)
                message = Message(
                    text.encode(),
                    key=None if delayed else key.encode(),
                    delay_ns=delay_ns or None,
                    dedup_id=text.encode(),
                )
                batch.append((sent, message))
                self.history.sends(sent)
            times = 2 if chance.random() < 0.1 else 1
            while times:
                try:
                    published = await peer.publish(topic, [message for _, message in batch])
                except (HeadraceError, OSError, TimeoutError):
                    self.report.tried["repeated publishes"] += 1
                    await self._leave(peer)
                    peer = await self._connect(f"producer-{number}")
                    continue
                now_ns = time.monotonic_ns()
                for (sent, _), (partition, offset, message_id, _) in zip(batch, published.places(), strict=True):
                    self.history.confirms(sent, (partition, offset, message_id), now_ns)
                times -= 1
            batches += 1
            await asyncio.sleep(chance.uniform(0, 0.02))
        await self._leave(peer)

    async def _leave(self, peer: Peer) -> None:
        self.peers.discard(peer)
        await peer.abandon()

    # -- consumers -----------------------------------------------------------------------------------------------------

    async def _consume(self, rules: TopicRules, group: str, number: int) -> None:
        chance = random.Random(f"{self.seed}/{rules.name}/{group}/{number}")
        while not self.over:
            name = f"{group}-{number}-{chance.randrange(1000)}"
            peer = await self._connect(name)
            hands: list[tuple[Entry, Given]] = []
            try:
                if number == 0:
                    await self._take_pushed(rules, group, name, peer, chance, hands)
                else:
                    await self._take_pulled(rules, group, name, peer, chance, hands)
            except (HeadraceError, OSError, TimeoutError):
                pass
            # A connection that is cut ends its leases; one that ended with the server ends none.
            gone_ns = self.cut_ns.get(peer, NEVER if peer.closed.done() else time.monotonic_ns())
            for _, given in hands:
                given.gone_ns = min(given.gone_ns, gone_ns)
            await self._leave(peer)

    async def _take_pulled(
        self,
        rules: TopicRules,
        group: str,
        name: str,
        peer: Peer,
        chance: random.Random,
        hands: list[tuple[Entry, Given]],
    ) -> None:
        scope = native.Scope("", rules.name, group, name)
        for _ in range(chance.randint(5, 200)):
            wait_ns = chance.choice((0, 5, 200)) * MS
            asked_ns = time.monotonic_ns()
            leased = await peer.ask(peer.session.send_lease(scope, chance.randint(1, 30), wait_ns=wait_ns))
            got = self._note(rules, group, name, leased.runs, leased.batches, asked_ns, hands)
            if got:
                await self._settle(peer, scope, rules, got, chance)
            else:
                await asyncio.sleep(0.01)

    async def _take_pushed(
        self,
        rules: TopicRules,
        group: str,
        name: str,
        peer: Peer,
        chance: random.Random,
        hands: list[tuple[Entry, Given]],
    ) -> None:
        # Credit is given anew each round, so that nothing can have been leased before the round began.
        subscription = await peer.subscribe(rules.name, group=group, consumer=name, messages=0, size_bytes=0)
        for _ in range(chance.randint(5, 200)):
            asked_ns = time.monotonic_ns()
            messages = chance.randint(1, 20)
            peer.session.send_credit(subscription, messages, 1 << 20)
            peer.flush()
            while messages:
                pushed = await peer.pushed()
                got = self._note(rules, group, name, pushed.runs, pushed.batches, asked_ns, hands)
                messages -= len(got)
                await self._settle(peer, subscription, rules, got, chance)

    def _note(
        self,
        rules: TopicRules,
        group: str,
        consumer: str,
        runs: object,
        batches: object,
        asked_ns: int,
        hands: list[tuple[Entry, Given]],
    ) -> list[tuple[Entry, Given, tuple[int, int, int, int]]]:
        came_ns = time.monotonic_ns()
        got = []
        flat = [
            (partition, lease_id, first + i, attempt)
            for partition, lease_id, first, count, attempt in runs  # type: ignore[attr-defined]
            for i in range(count)
        ]
        messages = [
            (batch, i)
            for buffer in batches
            for batch in [Batch.decode(bytes(buffer))]
            for i in range(batch.count)  # type: ignore[attr-defined]
        ]
        for (partition, lease_id, offset, attempt), (batch, i) in zip(flat, messages, strict=True):
            given = Given(lease_id, attempt, consumer, asked_ns, came_ns, asked_ns + rules.lease_ns)
            text = batch.value(i).decode()
            place = (partition, offset, batch.base_id + batch.delta(i))
            entry = self.history.gives(rules.name, group, text, place, given)
            if entry is not None:
                got.append((entry, given, (partition, lease_id, offset, 1)))
                hands.append((entry, given))
        if got:
            self.seen_at = time.monotonic()
        return got

    async def _settle(
        self,
        peer: Peer,
        scope: int | native.Scope,
        rules: TopicRules,
        got: list[tuple[Entry, Given, tuple[int, int, int, int]]],
        chance: random.Random,
    ) -> None:
        """Do with each what comes to mind; at the end of the play everything is acked at once."""
        if not self.disturbed:
            await self._send(peer, scope, "ack", got)
            return
        by_verb: dict[str, list[tuple[Entry, Given, tuple[int, int, int, int]]]] = {}
        for one in got:
            poison = one[0].sent.number % 29 == 0
            verb = chance.choices(
                ("ack", "nack", "nack at once", "reject", "release", "extend", "forget", "late"),
                (0, 10, 5, 0, 2, 0, 1, 0) if poison else (100, 3, 3, 0.3, 3, 2, 0.5, 0.5),
            )[0]
            by_verb.setdefault(verb, []).append(one)
        for verb, those in by_verb.items():
            match verb:
                case "forget":
                    self.report.tried["forgotten"] += len(those)
                case "late":
                    await asyncio.sleep(LEASE / S + 0.1)
                    self.report.tried["late acks"] += len(those)
                    await self._send(peer, scope, "ack", those)
                case "extend":
                    await self._send(peer, scope, "extend", those)
                    await asyncio.sleep(chance.uniform(0, 2))
                    await self._send(peer, scope, "ack", those)
                case "ack" if chance.random() < 0.05:
                    await self._send(peer, scope, "ack", those)
                    self.report.tried["double acks"] += len(those)
                    await self._send(peer, scope, "ack", those, again=True)
                case _:
                    await self._send(peer, scope, verb, those)

    async def _send(
        self,
        peer: Peer,
        scope: int | native.Scope,
        verb: str,
        those: list[tuple[Entry, Given, tuple[int, int, int, int]]],
        *,
        again: bool = False,
    ) -> None:
        runs = [run for _, _, run in those]
        now_ns = time.monotonic_ns()
        kind, _, how = verb.partition(" ")
        code = {
            "ack": native.Verb.ACK,
            "nack": native.Verb.NACK,
            "reject": native.Verb.REJECT,
            "release": native.Verb.RELEASE,
            "extend": native.Verb.EXTEND,
        }[kind]
        span_ns = 0 if how or kind != "nack" else native.BY_POLICY
        if kind == "extend":
            span_ns = 3 * S
        if kind != "extend":
            for _, given, _ in those:
                given.verb, given.verb_ns = kind, min(given.verb_ns, now_ns)
                if span_ns == native.BY_POLICY:
                    given.again_ns = now_ns + min(BACKOFF << (given.attempt - 1), BACKOFF_MAX)
        settled = await peer.ask(peer.session.send_settle([native.Action(code, scope, runs, span_ns, kind)]))
        answered_ns = time.monotonic_ns()
        refused = {
            (partition, lease_id, first + i)
            for _, _, partition, lease_id, first, count in settled.refusals
            for i in range(count)
        }
        for _, given, (partition, lease_id, offset, _) in those:
            if (partition, lease_id, offset) in refused:
                if again and given.sure:
                    self.history.violations.append(f"ack: the second ack of {given} was refused, the first was not")
                if kind != "extend":
                    given.verb, given.verb_ns, given.again_ns = "", NEVER, 0
            elif kind == "extend":
                given.holds_until_ns = max(given.holds_until_ns, now_ns + span_ns)
            elif kind == given.verb:
                given.answered_ns = min(given.answered_ns, answered_ns)
                self.history.counts["settled"] += 1

    # -- the end -------------------------------------------------------------------------------------------------------

    def _read_dead_letters(self) -> None:
        with headrace.connect(self.broker.url) as client:
            for rules in TOPICS:
                for letter in client.topic(f"dlq/{rules.name}").read():
                    self.history.dies(letter)


def chaos(directory: Path, seed: int, scale: float = 1) -> Report:
    """R5, R6 and R7."""
    return Chaos(directory, seed, 120 * scale).run()
