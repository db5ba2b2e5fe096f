"""What the simulation (tests/sim) found, each as the shortest story that shows it."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.batch import Message, encode
from headrace.clock import ManualClock
from headrace.config import GroupConfig, RetryConfig, TopicConfig
from headrace.delivery import CreateGroup, CreateTopic, LeaseUpTo, Publish, Receipts, SettleMany, restore, snapshot
from headrace.journal import MemoryJournal
from headrace.shard.core import Core

MS = 1_000_000
S = 1000 * MS
START_NS = 1_800_000_000 * S


class Shard:
    """A shard over a memory journal under a manual clock; partition, topic and group are number 1 of their kind."""

    def __init__(self, **topic: Any) -> None:
        self.clock = ManualClock(START_NS)
        self.journal = MemoryJournal()
        self.core = Core(self.journal, self.clock)
        self.do(CreateTopic("default", "t", TopicConfig(**topic)))

    def do(self, command: Any) -> Any:
        reply = self.core.execute(command).reply
        assert self.core.backlog_drift() == 0
        return reply

    def group(self, name: str, durable: bool = True, **settings: Any) -> Any:
        return self.do(CreateGroup(1, name, GroupConfig(**settings), durable))

    def publish(self, *messages: str | Message, pid: int = 1, producer: tuple[int, int] = (0, 0)) -> Any:
        whole = [Message(message.encode()) if isinstance(message, str) else message for message in messages]
        return self.do(Publish(pid, encode(whole, producer_id=producer[0], producer_seq=producer[1])))

    def lease(self, most: int = 1, gid: int = 1, consumer: str = "c", lease_ns: int | None = None) -> list[Receipts]:
        """Receipts, one a message."""
        return [
            Receipts(grant.pid, grant.lease_id, offset)
            for grant in self.do(LeaseUpTo(gid, consumer, most, lease_ns))
            for offset in grant.span
        ]

    def offsets(self, most: int = 100, gid: int = 1, pid: int = 1) -> list[int]:
        return [receipts.first for receipts in self.lease(most, gid) if receipts.pid == pid]

    def settle(self, gid: int = 1, **entries: Any) -> Any:
        return self.do(SettleMany(gid, **entries))

    def wait(self, span_ns: int) -> None:
        """Let time pass and do what is due."""
        self.clock.advance(span_ns)
        for _ in range(1000):
            wake_ns = self.core.tick()
            if wake_ns is None or wake_ns > self.core.clock.now_ns():
                return
        raise AssertionError("what is due is never done")

    def rebuilt(self) -> Core:
        """A shard from the journal alone."""
        self.journal.commit()
        return Core(self.journal, self.clock)


@pytest.mark.feature("F046")
def test_a_message_tried_again_at_once_is_not_in_two_places_where_order_is_by_partition() -> None:
    shard = Shard(ordering="partition", partitions=1)
    shard.publish("a", "b")
    (first,) = shard.lease()
    shard.settle(nack=[(first, 0, "")])
    (again,) = shard.lease()
    assert again.first == 0
    assert shard.offsets() == [1]


def test_who_has_outlived_its_lifetime_does_not_follow_a_dead_message() -> None:
    shard = Shard(on_dead="follow", retry=RetryConfig(max_retries=0), message_ttl_ns=20 * S)
    shard.publish(Message(b"A1", key=b"A", ttl_ns=3600 * S), Message(b"A2", key=b"A"))
    assert shard.offsets(1) == [0]
    shard.publish(Message(b"A3", key=b"A", ttl_ns=3600 * S))
    shard.wait(31 * S)
    (backlog,) = shard.core.state.groups[1].backlogs.values()
    assert list(backlog.dead) == [0, 2]
    assert list(backlog.expired) == [1]
    dead_letters = shard.core.state.by_name["default", "dlq/t"].partitions[0]
    assert dead_letters.end == 2


@pytest.mark.feature("F091")
def test_nobody_was_silent_because_the_shard_was_away() -> None:
    shard = Shard(ordering="partition")
    shard.do(LeaseUpTo(1, "c", 1))
    shard.wait(20 * S)
    shard.do(LeaseUpTo(1, "c", 1))
    shard.wait(20 * S)
    shard.clock.advance(3600 * S)
    again = shard.rebuilt()
    again.tick()
    assert again.state.groups[1].consumers() == ["c"]
    shard.clock.advance(31 * S)
    again.tick()
    assert again.state.groups[1].consumers() == []


def test_a_lease_whose_first_message_to_be_over_is_acked_is_looked_at_when_the_next_one_is() -> None:
    shard = Shard(ordering="none")
    shard.publish("a", "b")
    a, b = shard.lease(2)
    shard.settle(extend=[(a, S)])
    shard.settle(ack=[a])
    live, restored = shard.core.state, restore(snapshot(shard.core.state))
    assert live.wake_at_ns() == restored.wake_at_ns()
    assert live.leases[b.lease_id].bucket == restored.leases[b.lease_id].bucket
