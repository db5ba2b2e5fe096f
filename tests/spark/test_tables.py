"""The broker's books, dead letters and facts as tables, compared with what the broker says itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import pytest

from headrace.batch import Message
from spark.conftest import World

Read = Callable[..., Any]


@pytest.fixture(scope="module")
def lived(world: World) -> str:
    """A topic in which messages were acked, tried again and given up; its first half is sealed."""
    topic = world.topic("lived", **{"retry.max_retries": 1, "retry.initial_backoff": "0s"})
    world.publish(topic, [Message(b"%d" % number, key=b"k%d" % number, headers={"own": "1"}) for number in range(6)])
    with world.hr.topic(topic).consumer(lease="5m") as consumer:
        for delivery in consumer.receive(4, wait="30s"):
            if delivery.value == b"3":
                delivery.reject(error="unreadable")
            else:
                delivery.ack()
        consumer.flush()
        world.seal()
        world.publish(topic, [b"6"])
        left = {b"4", b"5", b"6"}
        while left:
            for delivery in consumer.receive(3, wait="30s"):
                if delivery.value == b"5":
                    delivery.nack(error="no luck")
                    left -= {b"5"} if delivery.attempt == 2 else set()
                else:
                    delivery.ack()
                    left -= {delivery.value}
        consumer.flush()
    return topic


def test_topics_groups_and_stats_say_what_the_broker_says(read: Read, world: World, lived: str) -> None:
    (topic,) = read(table="topics", subscribe=lived).collect()
    shown = world.call("topic.show", topic=lived)
    assert (topic.namespace, topic.topic, topic.partitions, topic.messages) == ("default", lived, 1, shown["messages"])
    assert (topic.published, topic.depth, topic.groups) == (shown["published"], shown["depth"], ["default"])
    assert '"partitions"' in topic.settings
    (group,) = read(table="groups", subscribe=lived).collect()
    books = world.books(lived, "default")
    for name in ("lag", "published", "ready", "leased", "scheduled", "acked", "dead", "expired", "delivered", "nacked"):
        assert group[name] == books[name], name
    assert group.published == group.acked + group.dead
    assert not group.paused
    numbers = {
        (row.group, row.metric): row.value
        for row in read(table="stats", subscribe=lived).where("topic is not null").collect()
    }
    assert numbers["default", "acked"] == books["acked"]
    assert numbers[None, "published"] == shown["published"]
    assert lived in {row.topic for row in read(table="topics").collect()}
    assert {row.topic for row in read(table="groups", subscribePattern="lived-.*").collect()} == {lived}


def test_dead_letters_say_where_they_came_from_and_why_they_died(read: Read, lived: str) -> None:
    rows = {bytes(row.value): row for row in read(table="dead_letters", subscribe=lived).collect()}
    assert set(rows) == {b"3", b"5"}
    rejected, tried = rows[b"3"], rows[b"5"]
    assert (rejected.topic, rejected.group, rejected.reason, rejected.error) == (
        lived,
        "default",
        "rejected",
        "unreadable",
    )
    assert (rejected.origin_partition, rejected.origin_offset) == (0, 3)
    assert (tried.reason, tried.error, tried.attempts) == ("max_retries", "no luck", 2)
    assert rejected.first_delivery <= rejected.last_delivery <= rejected.died
    assert rejected.dead_topic == f"dlq/{lived}"
    assert {name: bytes(value) for name, value in rejected.headers.items()} == {"own": b"1"}
    assert read(table="dead_letters", subscribe=lived, startingTimestamp="2999-01-01").count() == 0


@pytest.mark.feature("F132", "F133")
def test_events_are_the_trace_of_every_message_sealed_or_not(read: Read, world: World, lived: str) -> None:
    frame = read(table="events", subscribe=lived)
    rows = frame.collect()
    told = {row.event for row in rows}
    assert {"published", "leased", "acked", "retried", "died", "sealed"} <= told
    assert {row.namespace for row in rows} == {"default"}
    assert {row.topic for row in rows} == {lived}
    assert sum(row["count"] for row in rows if row.event == "published") == 7
    assert sum(row["count"] for row in rows if row.event == "acked") == 5
    (died,) = (row for row in rows if row.event == "died" and row.first_offset == 5)
    assert (died.reason, died.error, died.to_topic) == ("max_retries", "no luck", f"dlq/{lived}")
    consumers = {row.consumer for row in rows if row.event == "leased"}
    assert len(consumers) == 1
    # The other way round: the same rows from the broker alone, and by one message's own trace.
    alone = read(table="events", subscribe=lived, sealedFiles="false").collect()
    key = [(row.position, row.event, row.first_offset) for row in rows]
    assert sorted(map(str, key)) == sorted(str((row.position, row.event, row.first_offset)) for row in alone)
    life = (
        frame.where("event in ('published', 'leased', 'acked', 'retried', 'died')")
        .where("first_offset <= 5 and last_offset >= 5 and (offsets is null or array_contains(offsets, 5))")
        .orderBy("at_ns", "position")
    )
    assert [row.event for row in life.collect()] == ["published", "leased", "retried", "leased", "died"]
    summary = frame.where("first_offset <= 4 and last_offset >= 4 and (offsets is null or array_contains(offsets, 4))")
    attempts = summary.where("event = 'leased'").count()
    begun, ended = (
        summary.where(f"event = '{event}'").agg({"at_ns": "max"}).first()[0] for event in ("published", "acked")
    )
    (message,) = (row for row in read(subscribe=lived, columns="id,offset").collect() if row.offset == 4)
    trace = world.call("trace", id=message.id)
    assert attempts == trace["summary"]["attempts"]
    assert ended > begun


@pytest.mark.feature("N15")
def test_sealed_segments_are_plain_parquet_for_tools_that_know_nothing_of_headrace(
    spark: Any, read: Read, world: World
) -> None:
    topic = world.topic("open/table")
    world.publish(topic, [Message(b"%d" % number, key=b"k") for number in range(2_000)])
    world.seal()
    files = [each["uri"] for each in world.call("log.segments", topic=topic)["segments"]]
    ours = read(subscribe=topic).selectExpr("count(*)", "sum(offset)", "sum(cast(cast(value as string) as bigint))")
    theirs = spark.read.parquet(*files).selectExpr(
        "count(*)", "sum(offset)", "sum(cast(cast(value as string) as bigint))"
    )
    assert tuple(ours.first()) == tuple(theirs.first()) == (2_000, sum(range(2_000)), sum(range(2_000)))
    paths = [uri.removeprefix("file://") for uri in files]
    duck = duckdb.sql('select count(*), sum("offset"), count(key) from read_parquet($1)', params=[paths])
    assert tuple(map(int, duck.fetchall()[0])) == (2_000, sum(range(2_000)), 2_000)


def test_a_table_is_for_batch_reads(stream: Read, world: World, lived: str) -> None:
    with pytest.raises(Exception, match="table=events is for batch reads"):
        stream(table="events", subscribe=lived).writeStream.format("noop").start().processAllAvailable()
