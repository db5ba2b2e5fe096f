"""What happens to a simulated shard, drawn from one seed: producers, consumers, operators, and the world against them.

``play(seed, steps)`` runs one life and raises ``Violation`` (or whatever the shard raised) when a promise is broken.
The first half of the draws make the life: how topics are set, how often commits come, what goes wrong. When the steps
are over the faults stop, everything is drained, and nothing may be left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from pyroaring import BitMap64
from xxhash import xxh3_64_intdigest

from headrace import delivery as d
from headrace.config import GroupConfig, RetryConfig, TopicConfig
from headrace.delivery.offsets import Span, span_of
from headrace.errors import HeadraceError
from headrace.testing import Fault
from sim.ledger import MS, Event, Group, Part, Sent, Topic, Violation, Wanted
from sim.world import HalfTick, Stopped, World, batch_of

SECOND: Final = 1000 * MS
HOUR: Final = 3600 * SECOND
KEYS: Final = (None, b"a", b"b", b"c", b"d")
DRAIN_ROUNDS: Final = 3000


@dataclass(slots=True, eq=False)
class Consumer:
    """A client of a group: what it holds receipts for, right or stale."""

    gid: int
    name: str
    held: list[tuple[int, int, int, int]] = field(default_factory=list)  # grant, pid, lease id, offset


@dataclass(slots=True, eq=False)
class Producer:
    """A client that repeats a batch until it has an answer."""

    number: int
    sequence: int = 0
    unsure: list[Sent] = field(default_factory=list)
    done: list[Sent] = field(default_factory=list)


class Play:
    """One life under one seed."""

    def __init__(self, seed: int, **world: Any) -> None:
        rng = self.rng = Random(seed)
        self.calm = rng.random() < 0.3
        options: dict[str, Any] = {
            "memory": rng.random() < 0.2,
            "commit_chance": rng.choice((1.0, 0.6, 0.3, 0.1)),
            "twins": rng.random() < 0.4,
        }
        self.world = World(rng, **(options | world))
        self.consumers: list[Consumer] = []
        self.producers = [Producer(number) for number in range(1, 4)]
        self.values = 0
        self.names = 0
        self.dedup_ids = [b"d%d" % n for n in range(rng.randint(1, 12))]
        self.special = rng.random()
        self.flavour = {name: rng.random() < 0.5 for name in ("keys", "priorities", "delays", "ttls", "dedup", "big")}
        self.tids: list[int] = []
        self.actions = self._weigh()

    # -- the script ------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        self._set_up()
        names, weights = list(self.actions), [weight for _, weight in self.actions.values()]
        for _ in range(steps):
            name = self.rng.choices(names, weights)[0]
            try:
                self.actions[name][0]()
            except Stopped as stopped:
                self._die(stopped.how)
        try:
            self.world.end_faults()
        except Stopped as stopped:
            self._die(stopped.how)
            self.world.end_faults()
        self._drain()

    def _weigh(self) -> dict[str, tuple[Callable[[], None], float]]:
        rng = self.rng
        rare = 0.0 if self.calm else 1.0
        usual: dict[str, tuple[Callable[[], None], float]] = {
            "publish": (self.publish, 10),
            "lease": (self.lease, 14),
            "settle": (self.settle, 14),
            "together": (self.settle_together, 2),
            "time": (self.pass_time, 8),
            "repeat": (self.repeat, 1),
            "commit": (self.world.commit, 3),
            "join": (self.join, 1.5),
            "leave": (self.leave, 1),
            "vanish": (self.vanish, 0.7),
            "group": (self.create_group, 0.7),
            "drop group": (self.delete_group, 0.15),
            "seek": (self.seek, 0.5),
            "pause": (self.pause, 0.4),
            "resume": (self.resume, 0.6),
            "purge": (self.purge, 0.2),
            "cancel": (self.cancel, 0.6),
            "move": (self.move, 0.6),
            "redrive": (self.redrive, 0.8),
            "free key": (self.free_key, 0.6),
            "trim": (self.trim, 0.5),
            "law": (self.world.check_snapshot, 0.7),
            "snapshot": (self.world.save_snapshot, 0.8),
            "truncate": (self.world.truncate, 0.4),
            "cut": (lambda: self._die("cut"), 0.8 * rare),
            "kill": (lambda: self._die("kill"), 0.4 * rare),
            "fault": (self.fault, 0.6 * rare),
            "full": (self.world.fill_disk, 0.25 * rare),
            "room": (self.world.free_disk, 0.8 * rare),
            "jump": (self.jump, 0.4),
        }
        return {name: (do, weight * rng.choice((0.3, 1, 1, 2))) for name, (do, weight) in usual.items()}

    def _die(self, how: str) -> None:
        for consumer in list(self.consumers):
            if self.rng.random() < 0.3:
                self.consumers.remove(consumer)
        if self.rng.random() < 0.5:
            self.world.clock.advance(self.rng.choice((1, 20, 1000, 40_000)) * MS)
        self.world.die(how)
        alive = self.world.ledger.groups
        self.consumers = [consumer for consumer in self.consumers if consumer.gid in alive]
        for producer in self.producers:
            if producer.unsure and self.rng.random() < 0.7:
                for sent in list(producer.unsure):
                    self._send(sent, producer)

    # -- topics ----------------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        for number in range(self.rng.choice((1, 1, 2))):
            self._create_topic(f"t{number}")
            self.world.commit()

    def _create_topic(self, name: str) -> None:
        rng = self.rng
        ordering = rng.choice(("none", "key", "key", "partition", "strict"))
        settings = TopicConfig(
            partitions=1 if ordering == "strict" else rng.choice((1, 1, 2, 4)),
            ordering=ordering,
            on_dead=rng.choice(("continue", "continue", "hold", "follow")),
            lease_ns=rng.choice((100, 1000, 30_000)) * MS,
            retry=RetryConfig(
                max_retries=rng.choice((0, 1, 2, 3, 10)),
                initial_backoff_ns=rng.choice((0, 50, 1000, 5000)) * MS,
                max_backoff_ns=rng.choice((3000, 300_000)) * MS,
                backoff_multiplier=rng.choice((1.0, 2.0, 3.0)),
                total_timeout_ns=rng.choice((0, 2 * SECOND, 60 * SECOND, 3 * HOUR)),
            ),
            dead_letters=rng.random() < 0.85,
            message_ttl_ns=rng.choice((0, 500 * MS, 20 * SECOND, 168 * HOUR, 168 * HOUR)),
            max_depth=rng.choice((0, 8, 30, 10_000)),
            max_delay_ns=rng.choice((10 * SECOND, 168 * HOUR)),
            max_in_flight=rng.choice((3, 100_000, 100_000)),
            dedup_window_ns=rng.choice((SECOND, 300 * SECOND)),
            aging_ns=rng.choice((0, 0, 0, SECOND)),
        )
        self.world.do(d.CreateTopic("default", name, settings), lambda event: self.tids.append(event.reply))

    def _topic(self) -> Topic | None:
        known = [topic for topic in self.world.ledger.topics.values() if not topic.is_dead_letters]
        return self.rng.choice(known) if known else None

    def _any_topic(self) -> Topic | None:
        known = list(self.world.ledger.topics.values())
        return self.rng.choice(known) if known else None

    def _group(self) -> Group | None:
        groups = list(self.world.ledger.groups.values())
        return self.rng.choice(groups) if groups else None

    # -- producers -------------------------------------------------------------------------------------------------

    def _wanted(self) -> Wanted:
        rng, flavour = self.rng, self.flavour
        self.values += 1
        size = rng.choice((0, 0, 20, 20, 500, 5000)) if flavour["big"] else 0
        wanted = Wanted(b"m%d|" % self.values + b"x" * size)
        if flavour["keys"]:
            wanted.key = rng.choice(KEYS)
        if rng.random() < 0.4:
            wanted.headers = {"c": rng.choice(("x", "y")), "n": str(self.values)}
        if flavour["priorities"] and rng.random() < 0.5:
            wanted.priority = rng.randint(0, 9)
        if flavour["delays"] and rng.random() < 0.3:
            span_ns = rng.choice((1, 5, 50, 700, 5000, 60_000)) * MS + rng.choice((0, 0, 1, 500_000))
            if rng.random() < 0.5:
                wanted.delay_ns = span_ns
            else:
                wanted.deliver_at_ns = self.world.now_ns() + rng.choice((span_ns, span_ns, -SECOND))
        if flavour["ttls"] and rng.random() < 0.3:
            if rng.random() < 0.5:
                wanted.ttl_ns = rng.choice((1, 100, 3000, 30_000)) * MS
            else:
                wanted.expires_at_ns = self.world.now_ns() + rng.choice((5, 2000, 90_000)) * MS
        if flavour["dedup"] and rng.random() < 0.4:
            wanted.dedup_id = rng.choice(self.dedup_ids)
        return wanted

    def _sent(self, topic: Topic) -> Sent:
        rng = self.rng
        count = rng.choice((1, 1, 1, 2, 5, rng.randint(1, 12)))
        return Sent(rng.choice(topic.pids), [self._wanted() for _ in range(count)])

    def publish(self) -> None:
        topic = self._topic()
        if topic is None:
            return
        sent = self._sent(topic)
        producer = self.rng.choice(self.producers)
        if self.rng.random() < 0.4:
            producer.sequence += 1
            sent.producer, sent.sequence = producer.number, producer.sequence
            producer.unsure.append(sent)
            self._send(sent, producer)
        else:
            self._send(sent, None)

    def _send(self, sent: Sent, producer: Producer | None) -> None:
        def answered(event: Event) -> None:
            if producer is not None and sent in producer.unsure:
                producer.unsure.remove(sent)
                if not isinstance(event.reply, HeadraceError):
                    producer.done.append(sent)

        self.world.do(d.Publish(sent.pid, batch_of(sent)), answered, sent=[sent])

    def repeat(self) -> None:
        producer = self.rng.choice(self.producers)
        if producer.done:
            self._send(self.rng.choice(producer.done[-5:]), None)

    # -- consumers -------------------------------------------------------------------------------------------------

    def _consumer(self) -> Consumer | None:
        rng = self.rng
        if not self.consumers or rng.random() < 0.08:
            group = self._group()
            if group is None:
                return None
            mine = [consumer for consumer in self.consumers if consumer.gid == group.gid]
            # Several consumers where order is by partition: only in some lives, the ledger knows less there.
            if group.fifo and mine and self.special < 0.7:
                return mine[0]
            name = f"c{rng.randint(1, 3)}" if not group.fifo or self.special >= 0.7 else "c1"
            consumer = Consumer(group.gid, name)
            self.consumers.append(consumer)
            return consumer
        return rng.choice(self.consumers)

    def lease(self) -> None:
        consumer = self._consumer()
        if consumer is None:
            return
        rng = self.rng
        lease_ns = rng.choice((None, None, None, 40 * MS, 5 * SECOND))
        command = d.LeaseUpTo(consumer.gid, consumer.name, rng.choice((1, 1, 2, 5, 20, 100)), lease_ns)
        self.world.do(command, lambda event: self._receive(consumer, event))

    def _receive(self, consumer: Consumer, event: Event) -> None:
        for given in event.given:
            consumer.held += [(given.uid, given.pid, given.lease_id, offset) for offset, _, _ in given.messages]

    def _parts(self, consumer: Consumer) -> list[Part]:
        """Receipts to settle: some of what it holds, grouped by lease, each with a verb."""
        rng = self.rng
        chosen = rng.sample(consumer.held, min(len(consumer.held), rng.choice((1, 2, 4, 20, 100))))
        if rng.random() < 0.8:
            for receipt in chosen:  # the others stay in its hands: acked again later, or too late
                consumer.held.remove(receipt)
        verbs = rng.choice((("ack",), ("ack",), ("nack",), ("ack", "nack", "reject", "release", "extend")))
        found: dict[tuple[int, str], Part] = {}
        for uid, pid, lease_id, offset in sorted(chosen):
            verb = rng.choice(verbs)
            part = found.get((uid, verb))
            if part is None:
                span_ns: int | None = None
                if verb == "nack":
                    span_ns = rng.choice((None, None, 0, 0, 30 * MS, 4 * SECOND))
                elif verb == "extend":
                    span_ns = rng.choice((50 * MS, 10 * SECOND, 100 * HOUR))
                error = rng.choice(("", "boom", "no such user"))
                part = found[uid, verb] = Part(verb, uid, pid, lease_id, [], span_ns, error)
            part.offsets.append(offset)
        return list(found.values())

    def _settle_command(self, consumer: Consumer, parts: list[Part]) -> d.SettleMany:
        command = d.SettleMany(consumer.gid, [], [], [], [], [])
        runs: dict[str, list[Any]] = {
            "ack": command.ack,  # type: ignore[dict-item]
            "nack": command.nack,
            "reject": command.reject,
            "release": command.release,
            "extend": command.extend,
        }
        for part in parts:
            span = span_of(part.offsets)
            receipts = d.Receipts(part.pid, part.lease_id, span.first, span.count, span.bits)
            if part.verb == "nack":
                runs[part.verb].append((receipts, part.span_ns, part.error))
            elif part.verb == "reject":
                runs[part.verb].append((receipts, part.error))
            elif part.verb == "extend":
                runs[part.verb].append((receipts, part.span_ns))
            else:
                runs[part.verb].append(receipts)
        return command

    def settle(self) -> None:
        ready = [consumer for consumer in self.consumers if consumer.held]
        if not ready:
            return
        consumer = self.rng.choice(ready)
        parts = self._parts(consumer)
        self.world.do(self._settle_command(consumer, parts), parts=parts)

    def settle_together(self) -> None:
        """Settle, publish and cancel in one record."""
        ready = [consumer for consumer in self.consumers if consumer.held]
        topic = self._topic()
        if not ready or topic is None:
            return
        consumer = self.rng.choice(ready)
        parts = self._parts(consumer)
        command = self._settle_command(consumer, parts)
        sent: list[Sent] = []
        for _ in range(self.rng.choice((0, 1, 1, 2))):
            one = self._sent(topic)
            if one.pid not in {other.pid for other in sent}:
                sent.append(one)
        command.publish = [(one.pid, batch_of(one)) for one in sent]
        cancels: list[tuple[int, list[int]]] = []
        pid = self.rng.choice(topic.pids)
        scheduled = sorted(self.world.ledger.partitions[pid].scheduled)
        if scheduled and self.rng.random() < 0.5:
            cancels = [(pid, self.rng.sample(scheduled, 1))]
        command.cancel = [(pid, span_of(offsets)) for pid, offsets in cancels]
        self.world.do(command, parts=parts, sent=sent, cancels=cancels)

    def join(self) -> None:
        consumer = self._consumer()
        if consumer is not None:
            self.world.do(d.Join(consumer.gid, consumer.name))

    def leave(self) -> None:
        if self.consumers:
            consumer = self.rng.choice(self.consumers)
            if self.rng.random() < 0.7:
                self.consumers.remove(consumer)
            self.world.do(d.Leave(consumer.gid, consumer.name, self.rng.random() < 0.5))

    def vanish(self) -> None:
        """A client is gone and nobody is told."""
        if self.consumers:
            self.consumers.remove(self.rng.choice(self.consumers))

    # -- operators -------------------------------------------------------------------------------------------------

    def create_group(self) -> None:
        topic = self._any_topic()
        if topic is None or len(topic.gids) >= 4:
            return
        rng, ledger = self.rng, self.world.ledger
        self.names += 1
        durable = rng.random() < 0.7
        settings = GroupConfig(
            filter={"headers": {"c": "x"}} if rng.random() < 0.25 else None,
            concurrency=rng.choice((0, 0, 0, 2)),
            key_concurrency=rng.choice((0, 0, 0, 1, 2)),
            auto_ack=rng.random() < 0.1,
            ordering=rng.choice((None, None, "none", "key", "partition")) if durable else None,
        )
        start = self._start(topic)
        if not durable and topic.settings.ordering in ("partition", "strict"):
            durable = True
        del ledger
        self.world.do(d.CreateGroup(topic.tid, f"g{self.names}", settings, durable, start))

    def _start(self, topic: Topic) -> d.Start:
        rng, ledger = self.rng, self.world.ledger
        choice = rng.random()
        if choice < 0.5:
            return d.Start()
        if choice < 0.7:
            return d.Start(latest=True)
        if choice < 0.85:
            return d.Start(time_ns=self.world.now_ns() - rng.choice((0, 100, 10_000)) * MS)
        return d.Start(
            offsets={index: rng.randint(0, ledger.partitions[pid].end) for index, pid in enumerate(topic.pids)}
        )

    def delete_group(self) -> None:
        groups = [group for group in self.world.ledger.groups.values() if group.name != "default"]
        if groups:
            gid = self.rng.choice(groups).gid
            self.consumers = [consumer for consumer in self.consumers if consumer.gid != gid]
            self.world.do(d.DeleteGroup(gid))

    def seek(self) -> None:
        group = self._group()
        if group is None:
            return
        ledger = self.world.ledger
        start = self._start(group.topic)
        stops = None
        if self.rng.random() < 0.3:
            start = d.Start()
            stops = {}
            for index, pid in enumerate(group.topic.pids):
                partition = ledger.partitions[pid]
                stops[index] = self.rng.randint(partition.start, partition.end + self.rng.choice((0, 4)))
        self.world.do(d.Seek(group.gid, start, stops))

    def pause(self) -> None:
        group = self._group()
        if group is not None:
            until_ns = self.rng.choice((0, self.world.now_ns() + self.rng.choice((10, 5000)) * MS))
            self.world.do(d.PauseGroup(group.gid, "ops", "why not", until_ns))

    def resume(self) -> None:
        group = self._group()
        if group is not None:
            self.world.do(d.ResumeGroup(group.gid, "ops"))

    def purge(self) -> None:
        topic = self._any_topic()
        if topic is not None:
            # Of everything only where the ledger knows what is leased: a message that is stays.
            exact = all(self.world.ledger.groups[gid].exact for gid in topic.gids)
            self.world.do(d.Purge(topic.tid, self.rng.choice((*((-1,) if exact else ()), *topic.gids))))

    def _scheduled(self) -> tuple[int, Span] | None:
        choices = [partition for partition in self.world.ledger.partitions.values() if partition.end]
        if not choices:
            return None
        partition = self.rng.choice(choices)
        pool = sorted(partition.scheduled) or list(range(partition.end))
        chosen = self.rng.sample(pool, min(len(pool), self.rng.randint(1, 3)))
        return partition.pid, span_of(BitMap64(chosen))

    def cancel(self) -> None:
        found = self._scheduled()
        if found is not None:
            self.world.do(d.Cancel(*found))

    def move(self) -> None:
        found = self._scheduled()
        if found is not None:
            by_ns = self.rng.choice((-SECOND, 3 * MS, 500 * MS, 8 * SECOND, 30 * SECOND))
            self.world.do(d.Move(*found, self.world.now_ns() + by_ns))

    def redrive(self) -> None:
        ledger = self.world.ledger
        dead = [topic for topic in ledger.topics.values() if topic.is_dead_letters]
        if not dead:
            return
        pid = self.rng.choice(dead).pids[0]
        letters = [m.stored.offset for m in ledger.partitions[pid].log if not m.gone]
        letters = [offset for offset in letters if offset >= ledger.partitions[pid].start]
        if letters:
            chosen = self.rng.sample(letters, self.rng.randint(1, min(len(letters), 5)))
            self.world.do(d.Redrive(pid, span_of(BitMap64(chosen))))

    def free_key(self) -> None:
        held = [(group.gid, pid, key) for group in self.world.ledger.groups.values() for pid, key in sorted(group.held)]
        if held:
            gid, pid, key = self.rng.choice(held)
            self.world.do(d.FreeKey(gid, pid, xxh3_64_intdigest(key) or 1))

    def trim(self) -> None:
        choices = [partition for partition in self.world.ledger.partitions.values() if partition.end]
        if choices:
            partition = self.rng.choice(choices)
            self.world.do(d.Trim(partition.pid, self.rng.randint(0, partition.end)))

    # -- the world -------------------------------------------------------------------------------------------------

    def pass_time(self) -> None:
        rng = self.rng
        span_ms = rng.choice((1, 3, 10, 60, 400, 2000, 7000, rng.choice((31_000, 120_000, 3_600_000))))
        self.world.pass_time(span_ms * MS)
        if rng.random() < 0.5:
            self.world.tick()

    def jump(self) -> None:
        clock = self.world.clock
        clock.set_wall(clock.wall_ns() + self.rng.choice((-HOUR, HOUR, -50 * MS)))

    def fault(self) -> None:
        kind = self.rng.choice((Fault(power_cut=True), Fault(), Fault(short=True), Fault(28)))
        self.world.fault_soon(kind, 12)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Everything reaches a final state once the faults stop."""
        world = self.world
        self.consumers.clear()
        for group in list(world.ledger.groups.values()):
            world.do(d.ResumeGroup(group.gid, "end"))
        idle = 0
        for _ in range(DRAIN_ROUNDS):
            world.tick()
            if not world.ledger.unfinished():
                return
            idle = 0 if self._drain_once() else idle + 1
            if idle:
                # Longer and longer steps: a lease may have been extended by hours.
                wake_ns = world.core.state.wake_at_ns()
                step_ns = idle * SECOND if idle > 100 else min((wake_ns or 0) - world.now_ns(), idle * SECOND)
                world.pass_time(max(MS, step_ns) // MS * MS)
                if not self._waits():
                    break
        left = world.ledger.unfinished()
        if left:
            raise Violation(f"{len(left)} messages never reach a final state: {left[:5]}")

    def _waits(self) -> bool:
        """Whether time alone can still bring something."""
        for group in self.world.ledger.groups.values():
            for entries in group.open.values():
                for entry in entries.values():
                    if group.fifo or entry.state != "ready":
                        return True
        return bool(self.world.ledger.unfinished())

    def _drain_once(self) -> int:
        world, total = self.world, 0
        for group in list(world.ledger.groups.values()):
            for pid, key in sorted(group.held):
                world.do(d.FreeKey(group.gid, pid, xxh3_64_intdigest(key) or 1))
            names = sorted(group.members) or ["last"] if group.fifo else ["last"]
            for name in names:
                consumer = Consumer(group.gid, name)
                world.do(
                    d.LeaseUpTo(group.gid, name, 100, 20 * SECOND if group.lease_ns > SECOND else None),
                    lambda event, consumer=consumer: self._receive(consumer, event),
                )
                total += len(consumer.held)
                grants: dict[tuple[int, int, int], list[int]] = {}
                for uid, pid, lease_id, offset in consumer.held:
                    grants.setdefault((uid, pid, lease_id), []).append(offset)
                parts = [Part("ack", *grant, offsets) for grant, offsets in grants.items()]
                if parts:
                    world.do(self._settle_command(consumer, parts), parts=parts)
        return total


def play(seed: int, steps: int, **world: Any) -> Counter[str]:
    """One life; what happened in it, by count."""
    life = Play(seed, **world)
    try:
        life.run(steps)
    except HalfTick:
        life.world.ledger.counts["ended early"] += 1
    counts = life.world.ledger.counts
    counts["crashes"] = life.world.crashes
    counts["commands"] = len(life.world.events)
    return counts
