"""A broker in memory under a clock that is moved by hand, and the few verbs tests want to say briefly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.batch import Message, encode
from headrace.broker.broker import Broker
from headrace.broker.embedded import EmbeddedPort
from headrace.broker.portions import Portions
from headrace.calls import BY_KEY, LeasedBatch, Run, Settle
from headrace.clock import ManualClock
from headrace.journal import Journal, MemoryJournal
from headrace.shard.core import Core

SECOND = 1_000_000_000


class World:
    """One broker. Ids are given in the order of publishing."""

    def __init__(self, journal: Journal | None = None, clock: ManualClock | None = None, **core: Any) -> None:
        self.clock = clock or ManualClock()
        self.journal = journal or MemoryJournal()
        self.core = Core(self.journal, self.clock, node_id=1, **core)
        self.port = EmbeddedPort(Broker(self.core), self.clock)

    @property
    def now_ns(self) -> int:
        return self.core.clock.now_ns()

    def call(self, method: str, **arguments: Any) -> Any:
        return self.port.call(method, **arguments)

    def stepped(self, method: str, **arguments: Any) -> tuple[Any, list[int]]:
        """The result of a call, and what it waited between its portions (without waiting)."""
        done = self.port.administration.call(method, arguments)
        waits: list[int] = []
        while isinstance(done.reply, Portions):
            waits.append(done.reply.wait_ns)
            done.reply.run_aside()
            done = done.reply.step()
        self.journal.commit()
        return done.reply, waits

    def publish(self, topic: str, messages: Sequence[Message | bytes], *, partition: int = BY_KEY) -> list[int]:
        batch = encode([each if isinstance(each, Message) else Message(each) for each in messages])
        ids: dict[int, int] = {}
        for part in self.port.publish("default", topic, partition, batch):
            for number, index in enumerate(part.indexes or range(part.count)):
                ids[index] = part.base_id + number
        return [ids[index] for index in sorted(ids)]

    def lease(self, topic: str, most: int = 1, *, group: str = "default", consumer: str = "c1") -> list[LeasedBatch]:
        broker = self.port.broker
        leased: list[LeasedBatch] = self.port.host.run(lambda: broker.lease("default", topic, group, consumer, most))
        return leased

    def settle(self, topic: str, leased: Sequence[LeasedBatch], verb: str, *, group: str = "default") -> None:
        runs = [Run(each.partition, each.lease_id, offset) for each in leased for offset in each.batch.offsets()]
        order = {
            "ack whole": lambda: Settle(
                ack=[Run(each.partition, each.lease_id, each.batch.base_offset, each.batch.count) for each in leased]
            ),
            "ack": lambda: Settle(ack=runs),
            "nack": lambda: Settle(nack=[(run, None, "it broke") for run in runs]),
            "nack now": lambda: Settle(nack=[(run, 0, "it broke") for run in runs]),
            "reject": lambda: Settle(reject=[(run, "not mine") for run in runs]),
            "release": lambda: Settle(release=runs),
            "extend": lambda: Settle(extend=[(run, 60 * SECOND) for run in runs]),
        }[verb]()
        settled = self.port.settle("default", topic, group, order)
        assert not settled.refused, settled.refused

    def wait(self, seconds: float) -> None:
        """Let time pass, and do what is due."""
        self.clock.advance(int(seconds * SECOND))
        self.port.host.look(lambda core: None)

    def close(self) -> None:
        self.port.close()
