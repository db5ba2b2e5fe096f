"""Batch reads of the log by a real Spark from a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.batch import Message
from headrace.spark import read as hybrid
from spark.conftest import World

Read = Callable[..., Any]


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%05d" % number for number in range(first, end)]


def values(frame: Any) -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.select("value").collect())


def test_every_column_of_every_message(read: Read, world: World) -> None:
    topic = world.topic(partitions=2)
    world.publish(
        topic,
        [
            Message(b"one", key=b"k", headers={"a": "1", "b": b"\x00"}, priority=1),
            Message(b"two"),
            Message(b"three", key=b"k2"),
        ],
    )
    rows = {bytes(row.value): row for row in read(subscribe=topic).collect()}
    assert set(rows) == {b"one", b"two", b"three"}
    one, two = rows[b"one"], rows[b"two"]
    assert bytes(one.key) == b"k"
    assert {name: bytes(value) for name, value in one.headers.items()} == {"a": b"1", "b": b"\x00"}
    assert (one.priority, two.priority) == (1, 5)
    assert two.key is None
    assert two.headers is None
    assert {row.namespace for row in rows.values()} == {"default"}
    assert {row.topic for row in rows.values()} == {topic}
    assert len({row.id for row in rows.values()}) == 3
    names = [name for name in read(subscribe=topic).columns if name != "headers"]
    assert read(subscribe=topic, includeHeaders="false").columns == names


@pytest.mark.feature("N08", "F123")
def test_sealed_files_and_the_live_rest_are_one_log_however_they_are_read(
    spark: Any, read: Read, world: World, tmp_path: Path
) -> None:
    topic = world.topic("with/a slash", partitions=2)
    world.publish(topic, [Message(value, key=value[-1:], headers={"n": value}) for value in numbered(0, 3_000)])
    world.seal()
    world.publish(topic, [Message(value, key=value[-1:]) for value in numbered(3_000, 4_000)])
    assert world.call("log.segments", topic=topic)["segments"]
    ways = {
        "the data source": read(subscribe=topic),
        "the broker alone": read(subscribe=topic, sealedFiles="false"),
        "Spark's own reader for the files": hybrid(spark, server=world.url, subscribe=topic),
    }
    tables = {}
    for name, frame in ways.items():
        frame.write.parquet(str(tmp_path / name))
        table = spark.read.parquet(str(tmp_path / name))
        tables[name] = sorted(
            (row.partition, row.offset, bytes(row.value), bytes(row.key), row.id, row.timestamp, bool(row.headers))
            for row in table.collect()
        )
    first, *others = tables.values()
    assert [value for _, _, value, *_ in sorted(first, key=lambda row: row[2])] == numbered(0, 4_000)
    assert all(other == first for other in others)
    plan = ways["Spark's own reader for the files"]._jdf.queryExecution().toString()
    assert "parquet" in plan.lower()
    narrow = hybrid(spark, server=world.url, subscribe=topic, columns="offset,partition")
    assert narrow.columns == ["partition", "offset"]
    assert narrow.count() == 4_000
    assert read(subscribe=topic, columns="value").columns == ["value"]


def test_topics_by_list_by_pattern_and_by_partition(read: Read, world: World) -> None:
    one, two = world.topic("kind-a", partitions=2), world.topic("kind-b")
    for partition in range(2):
        world.publish(one, [b"a%d" % partition], partition=partition)
    world.publish(two, [b"b"])
    assert values(read(subscribe=f"{one}, {two}")) == [b"a0", b"a1", b"b"]
    suffixes = "|".join(name.rpartition("-")[2] for name in (one, two))
    assert values(read(subscribePattern=f"kind-[ab]-({suffixes})")) == [b"a0", b"a1", b"b"]
    assert values(read(assign=json.dumps({one: [1]}))) == [b"a1"]


@pytest.mark.feature("F123", "F124", "F125", "F127")
def test_a_window_by_offset_and_by_time(spark: Any, read: Read, world: World) -> None:
    topic, other = world.topic(), world.topic()
    for value in (b"0", b"1", b"2", b"3"):
        world.publish(topic, [value])
        world.publish(other, [value])
    times = {
        bytes(row.value): row.at
        for row in read(subscribe=topic)
        .selectExpr("value", "date_format(timestamp, \"yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX\") at")
        .collect()
    }
    window = {"startingOffsets": json.dumps({topic: {"0": 1}}), "endingOffsets": json.dumps({topic: {"0": 3}})}
    assert values(read(subscribe=topic, **window)) == [b"1", b"2"]
    assert values(read(subscribe=topic, startingTimestamp=times[b"2"])) == [b"2", b"3"]
    assert values(read(subscribe=topic, startingTimestamp=times[b"1"], endingTimestamp=times[b"3"])) == [b"1", b"2"]
    by_topic = json.dumps({topic: times[b"3"]})
    assert values(read(subscribe=f"{topic},{other}", startingTimestamp=by_topic)) == [b"0", b"1", b"2", b"3", b"3"]
    assert values(read(subscribe=topic, startingOffsets="latest")) == []
    world.seal()
    assert values(read(subscribe=topic, startingTimestamp=times[b"1"], endingTimestamp=times[b"3"])) == [b"1", b"2"]
    assert values(hybrid(spark, server=world.url, subscribe=topic, startingTimestamp=times[b"2"])) == [b"2", b"3"]


@pytest.mark.feature("F128")
def test_what_was_acked_is_still_read(read: Read, world: World) -> None:
    topic = world.topic()
    world.publish(topic, numbered(0, 10))
    with world.hr.topic(topic).consumer() as consumer:
        consumer.ack(consumer.receive(10, wait="30s"))
    assert world.books(topic, "default")["acked"] == 10
    assert values(read(subscribe=topic)) == numbered(0, 10)


def test_a_partition_is_split_for_as_many_tasks_as_are_asked_for(read: Read, world: World) -> None:
    topic = world.topic()
    world.publish(topic, numbered(0, 1_000))
    assert read(subscribe=topic).rdd.getNumPartitions() == 1
    frame = read(subscribe=topic, minPartitions="4")
    assert frame.rdd.getNumPartitions() == 4
    assert values(frame) == numbered(0, 1_000)
    assert read(subscribe=topic, maxRecordsPerPartition="300").rdd.getNumPartitions() == 4


def test_filters_on_place_and_time_reach_the_broker(spark: Any, world: World) -> None:
    topic = world.topic(partitions=2)
    for partition in range(2):
        world.publish(topic, numbered(0, 100), partition=partition)
    frame = hybrid(spark, server=world.url, subscribe=topic)
    assert frame.where("partition = 1 and offset >= 90").count() == 10
    assert frame.where("partition = 1 and offset >= 90").rdd.getNumPartitions() == 1
    assert frame.where("offset between 10 and 19").count() == 20
    assert frame.where(f"topic = '{topic}' and offset < 5 and value = '00003'").count() == 2
    assert frame.where("timestamp < timestamp'2001-01-01'").count() == 0
    assert frame.where("timestamp < timestamp'2999-01-01' and timestamp > timestamp'1901-01-01'").count() == 200


def trimmed(world: World) -> str:
    """A topic of which retention let go of the first ten of twenty, each half in a sealed file."""
    topic = world.topic(retention_bytes=1_000, retention="none")
    for first in (0, 10):
        world.publish(topic, [b"%05d" % number * 20 for number in range(first, first + 10)])
        world.seal()
    world.call("group.commit", topic=topic, group="default", offsets={"0": 20})
    world.seal()
    (part,) = world.call("topic.offsets", topic=topic)["partitions"]
    assert (part["start"], part["end"]) == (10, 20)
    return topic


@pytest.mark.feature("F116", "F126")
def test_what_retention_let_go_of_is_an_error_a_row_that_says_so_or_read_from_the_archive(
    spark: Any, read: Read, world: World
) -> None:
    topic = trimmed(world)
    from_the_first = json.dumps({topic: {"0": 0}})
    with pytest.raises(Exception, match=r"begins at 10, 0 is no longer there \(retention\); there are 10 to 20"):
        read(subscribe=topic, startingOffsets=from_the_first).count()
    for frame in (
        read(subscribe=topic, startingOffsets=from_the_first, failOnDataLoss="false"),
        hybrid(spark, server=world.url, subscribe=topic, startingOffsets=from_the_first, failOnDataLoss="false"),
    ):
        rows = sorted(frame.collect(), key=lambda row: row.offset)
        assert [(row.offset, row.lost, row.value) for row in rows[:1]] == [(0, 10, None)]
        assert [(row.offset, row.lost) for row in rows[1:]] == [(offset, None) for offset in range(10, 20)]
    assert [row.offset for row in read(subscribe=topic).collect()] == list(range(10, 20))
    for frame in (
        read(subscribe=topic, includeDeleted="true"),
        read(subscribe=topic, includeDeleted="true", sealedFiles="false"),
        hybrid(spark, server=world.url, subscribe=topic, includeDeleted="true"),
    ):
        assert sorted(row.offset for row in frame.select("offset").collect()) == list(range(20))
    early = read(subscribe=topic, includeDeleted="true", startingTimestamp="2001-01-01", columns="offset")
    assert sorted(row.offset for row in early.collect()) == list(range(20))


def test_offsets_beyond_the_end_are_named_with_what_exists(read: Read, world: World) -> None:
    topic = world.topic()
    world.publish(topic, numbered(0, 5))
    with pytest.raises(Exception, match="ends at 5, 9 is beyond; there are 0 to 5"):
        read(subscribe=topic, startingOffsets=json.dumps({topic: {"0": 9}})).count()
    with pytest.raises(Exception, match=r"has no partition 3; it has \[0\]"):
        read(subscribe=topic, startingOffsets=json.dumps({topic: {"3": 0}})).count()
    with pytest.raises(Exception, match="has no partition 7"):
        read(assign=json.dumps({topic: [7]})).count()


def test_a_mistake_is_named_with_the_nearest_that_exists(spark: Any, read: Read, world: World) -> None:
    topic = world.topic("orders")
    with pytest.raises(Exception, match=f"did you mean '{topic}'"):
        read(subscribe=f"{topic}x").count()
    with pytest.raises(Exception, match="did you mean maxOffsetsPerTrigger"):
        read(subscribe=topic, maxOffsetPerTrigger="5")
    with pytest.raises(Exception, match="there is no column 'valu'"):
        read(subscribe=topic, columns="valu")
    with pytest.raises(Exception, match="leave schema"):
        spark.read.format("headrace").schema("value binary").options(server=world.url, subscribe=topic).load().count()


def test_a_namespace_is_read_from_alone(read: Read, world: World) -> None:
    topic = world.topic("twice")
    world.publish(topic, [b"mine"])
    with headrace.connect(world.url, namespace="others") as others:
        others.topic(topic).publish(b"theirs")
    assert values(read(subscribe=topic)) == [b"mine"]
    [row] = read(subscribe=topic, namespace="others").collect()
    assert (bytes(row.value), row.namespace) == (b"theirs", "others")
