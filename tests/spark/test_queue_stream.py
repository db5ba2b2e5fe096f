"""The queue as a stream: leased with a micro-batch, settled by Spark's commit and by nothing before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from headrace.spark import settle
from spark.conftest import Drained, World
from spark.test_log_batch import numbered

Drain = Callable[..., Drained]
Stream = Callable[..., Any]


@pytest.mark.feature("N08")
def test_what_spark_has_committed_is_acked_and_the_books_balance(stream: Stream, drain: Drain, world: World) -> None:
    topic = world.topic(partitions=2)
    for partition in range(2):
        world.publish(topic, numbered(0, 150), partition=partition)
    frame = stream(subscribe=topic, view="queue", groupId="workers", maxOffsetsPerTrigger="120")
    found = drain(frame)
    assert Counter(found.values) == Counter(numbered(0, 150) * 2)
    assert [len(found.batches[number]) for number in sorted(found.batches)] == [120, 120, 60]
    assert {row.attempt for row in found.rows} == {1}
    assert all(row.lease_id for row in found.rows)
    books = world.books(topic, "workers")
    assert (books["acked"], books["leased"], books["ready"], books["lag"]) == (300, 0, 0, 0)
    world.publish(topic, [b"more"])
    assert drain(frame).values == [b"more"]
    assert world.books(topic, "workers")["acked"] == 301


def test_a_batch_whose_work_fails_is_not_acked_and_comes_again(stream: Stream, drain: Drain, world: World) -> None:
    topic = world.topic()
    world.publish(topic, numbered(0, 10))
    frame = stream(subscribe=topic, view="queue", groupId="workers", maxOffsetsPerTrigger="4")
    tried: list[list[bytes]] = []

    def fail_once(batch: Any, number: int) -> None:
        tried.append([bytes(row.value) for row in batch.collect()])
        if number == 1 and len(tried) == 2:
            raise RuntimeError("the work failed")

    with pytest.raises(Exception, match="the work failed"):
        drain(frame, work=fail_once)
    books = world.books(topic, "workers")
    assert (books["acked"], books["leased"]) == (4, 4)
    found = drain(frame, work=fail_once)
    assert tried[2] == tried[1]
    assert found.values == numbered(4, 10)
    assert {row.attempt for row in found.rows} == {1}  # leased once, read twice
    assert world.books(topic, "workers")["acked"] == 10


def test_rows_are_nacked_rejected_and_released_within_their_batch(stream: Stream, drain: Drain, world: World) -> None:
    topic = world.topic(**{"retry.initial_backoff": "0s"})
    world.publish(topic, numbered(0, 8))
    options = {"server": world.url, "subscribe": topic, "groupId": "workers"}

    def judge(batch: Any, number: int) -> None:
        if number == 0:
            assert (
                settle(batch.where("cast(cast(value as string) as int) = 1"), "nack", error="no luck", **options) == 1
            )
            assert (
                settle(batch.where("cast(cast(value as string) as int) in (2, 3)"), "reject", error="bad", **options)
                == 2
            )
            assert settle(batch.where("cast(cast(value as string) as int) = 4"), "release", **options) == 1

    frame = stream(subscribe=topic, view="queue", groupId="workers")
    first = drain(frame, work=judge)
    again = drain(frame)
    seen = [(bytes(row.value), row.attempt) for row in first.rows + again.rows]
    assert Counter(value for value, _ in seen) == Counter([*numbered(0, 8), b"00001", b"00004"])
    assert dict(seen[8:]) == {b"00001": 2, b"00004": 1}  # giving back does not count
    books = world.books(topic, "workers")
    assert (books["acked"], books["dead"], books["leased"], books["ready"]) == (6, 2, 0, 0)
    with pytest.raises(Exception, match="acks come with Spark's commit"):
        settle(None, "ack", **options)  # type: ignore[arg-type]


def test_two_queries_share_a_group_as_consumers_do(stream: Stream, drain: Drain, world: World) -> None:
    topic = world.topic()
    world.publish(topic, numbered(0, 20))
    frame = stream(subscribe=topic, view="queue", groupId="workers", maxOffsetsPerTrigger="5")
    other: list[bytes] = []

    def meanwhile(_batch: Any, number: int) -> None:
        if number == 0:
            with world.hr.topic(topic).consumer(group="workers") as consumer:
                taken = consumer.receive(5, wait="30s")
                other.extend(delivery.value for delivery in taken)
                consumer.ack(taken)

    found = drain(frame, work=meanwhile)
    assert len(other) == 5
    assert sorted(found.values + other) == numbered(0, 20)
    assert world.books(topic, "workers")["acked"] == 20


def test_a_batch_is_leased_for_as_long_as_is_asked(stream: Stream, drain: Drain, world: World) -> None:
    topic = world.topic()
    world.publish(topic, [b"long work"])
    found = drain(stream(subscribe=topic, view="queue", groupId="workers", lease="90s"))
    events = world.call("trace", id=found.rows[0].id)["events"]
    [granted] = [event for event in events if event["event"] == "DELIVERED"]
    assert granted["until_ns"] - granted["at_ns"] == pytest.approx(90 * 10**9, abs=10**9)
