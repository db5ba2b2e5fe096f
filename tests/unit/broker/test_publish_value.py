"""A value with no properties goes past batches, commands and outcomes; nobody may be able to tell."""

from __future__ import annotations

import random
from threading import Thread
from typing import Any

import pytest

import headrace
from headrace.batch import Message, encode_plain
from headrace.calls import BY_KEY, place_of
from headrace.clock import ManualClock
from headrace.config import NamespaceConfig, TopicConfig
from headrace.delivery import ChangeNamespace, snapshot
from headrace.errors import Closed, InvalidArgument, PayloadTooLarge, QueueFull, QuotaExceeded, StorageFull
from headrace.journal import MemoryJournal
from unit.broker.harness import SECOND, World

MS = 1_000_000


def twins(**topic: Any) -> tuple[World, World]:
    worlds = World(clock=ManualClock()), World(clock=ManualClock())
    for world in worlds:
        world.port.broker.create_topic("default", "t", TopicConfig(**topic))
    return worlds


def alike(lean: World, usual: World) -> None:
    for world in (lean, usual):
        world.journal.commit()
    assert [*lean.journal.read()] == [*usual.journal.read()]
    assert snapshot(lean.core.state) == snapshot(usual.core.state)
    for pid, log in lean.core.logs.items():
        assert log.dump() == usual.core.logs[pid].dump()
        first = log.batch_at(0)
        assert first is not None
        assert first.values() == usual.core.logs[pid].batch_at(0).values()  # type: ignore[union-attr]
        assert [*lean.core.recent.blocks(pid, 0)] == [*usual.core.recent.blocks(pid, 0)]


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_values_leave_the_same_journal_state_and_index_as_batches_of_one(partitions: int, seed: int) -> None:
    rng = random.Random(seed)
    lean, usual = twins(partitions=partitions, max_depth=40, max_message_bytes=2_000, message_ttl_ns=5 * SECOND)
    for _ in range(80):
        value, key = rng.randbytes(rng.choice((0, 1, 200, 2_000, 2_001))), rng.choice((None, None, None, b"k"))
        lean_way = outcome(lambda v=value, k=key: lean.port.publish_value("default", "t", v, k))
        usual_way = outcome(
            lambda v=value, k=key: place_of(usual.port.publish("default", "t", BY_KEY, encode_plain(v, k)))
        )
        assert lean_way == usual_way
        if rng.random() < 0.3:
            for world in (lean, usual):
                world.settle("t", world.lease("t", 2), "ack")
        span_ns = rng.choice((0, 0, 300_000, MS, SECOND))
        lean.clock.advance(span_ns)
        usual.clock.advance(span_ns)
    alike(lean, usual)


def outcome(do: Any) -> Any:
    try:
        return do()
    except headrace.HeadraceError as error:
        return type(error), error.message


def test_a_group_with_a_filter_is_asked_about_values_too() -> None:
    lean, usual = twins()
    options = {"filter": {"headers": {"shop": "eu"}}}
    for world in (lean, usual):
        world.port.broker.create_group("default", "t", "eu", options)
    lean.port.publish_value("default", "t", b"v", None)
    usual.port.publish("default", "t", BY_KEY, encode_plain(b"v"))
    alike(lean, usual)
    assert lean.lease("t", group="eu") == []


def test_what_is_due_is_done_first() -> None:
    world = World()
    world.publish("t", [Message(b"short", ttl_ns=SECOND)])
    world.clock.advance(SECOND)
    world.port.publish_value("default", "t", b"v", None)
    assert [leased.batch.values() for leased in world.lease("t", 9)] == [[b"v"]]


def test_refusals_are_those_of_publish() -> None:
    world = World()
    world.port.broker.create_topic("default", "t", TopicConfig(max_depth=1, max_message_bytes=10))
    with pytest.raises(PayloadTooLarge, match=r"a message of 11 bytes: topic 't' takes up to 10"):
        world.port.publish_value("default", "t", bytes(11), None)
    world.port.publish_value("default", "t", b"one", None)
    with pytest.raises(QueueFull, match="max_depth of 1"):
        world.port.publish_value("default", "t", b"two", None)
    with pytest.raises(InvalidArgument, match="topic name"):
        world.port.publish_value("default", "a\x00b", b"v", None)
    world.core.execute(ChangeNamespace("default", NamespaceConfig(messages_per_minute=1)))
    world.port.publish_value("default", "other", b"v", None)
    with pytest.raises(QuotaExceeded):
        world.port.publish_value("default", "other", b"v", None)
    world.port.close()
    with pytest.raises(Closed):
        world.port.publish_value("default", "t", b"v", None)


class FullJournal(MemoryJournal):
    full = False

    def append(self, kind: int, *buffers: Any, reserve: bool = False) -> int:
        if self.full and not reserve:
            raise StorageFull("no room")
        return super().append(kind, *buffers, reserve=reserve)


def test_a_full_disk_refuses_a_value_and_leaves_no_trace() -> None:
    journal = FullJournal()
    world = World(journal)
    world.port.publish_value("default", "t", b"one", None)
    before, end = snapshot(world.core.state), journal.end_position
    journal.full = True
    with pytest.raises(StorageFull):
        world.port.publish_value("default", "t", b"two", None)
    assert (snapshot(world.core.state), journal.end_position) == (before, end)
    journal.full = False
    _, _, offset, duplicate = world.port.publish_value("default", "t", b"three", None)
    assert (offset, duplicate) == (1, False)


def test_a_value_wakes_who_waits_for_it() -> None:
    with headrace.open(":memory:") as hr:
        topic = hr.topic("t")
        with topic.consumer("g") as consumer:
            got: list[bytes] = []
            waiter = Thread(target=lambda: got.extend(d.value for d in consumer.receive(1, wait="60s")))
            waiter.start()
            topic.publish(b"v")
            waiter.join(60)
            assert got == [b"v"]
