"""The log as a stream: from a checkpoint on, in batches as large as asked, and seen by the broker."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from headrace.spark.log_stream import LogStream
from headrace.spark.options import ReadOptions
from headrace.spark.rows import Layout
from spark.conftest import Drained, World
from spark.test_log_batch import numbered, trimmed

Drain = Callable[..., Drained]
Stream = Callable[..., Any]


def source(world: World, **options: str) -> LogStream:
    """The driver's side of a stream, without a Spark around it."""
    given = ReadOptions.parse({"server": world.url, **options}, streaming=True)
    return LogStream(given, Layout(["value", "offset"]))


@pytest.mark.feature("N08", "F093")
def test_a_stream_goes_on_from_its_checkpoint_and_the_broker_shows_how_far_it_is(
    stream: Stream, drain: Drain, world: World
) -> None:
    topic = world.topic(partitions=2)
    for partition in range(2):
        world.publish(topic, numbered(0, 250), partition=partition)
    frame = stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="200", groupId="report")
    first = drain(frame)
    assert {number: len(rows) for number, rows in first.batches.items()} == {0: 200, 1: 200, 2: 100}
    assert sorted(first.values) == sorted(numbered(0, 250) * 2)
    assert world.books(topic, "report")["lag"] == 0
    world.publish(topic, numbered(250, 300), partition=0)
    assert world.books(topic, "report")["lag"] == 50
    second = drain(frame)
    assert second.values == numbered(250, 300)
    assert min(second.batches) == 3
    assert drain(frame).rows == []
    assert world.books(topic, "report")["lag"] == 0


def test_a_stream_begins_with_what_is_new_unless_it_is_told_otherwise(
    stream: Stream, drain: Drain, world: World
) -> None:
    topic = world.topic()
    world.publish(topic, numbered(0, 5))
    frame = stream(subscribe=topic)
    assert drain(frame).rows == []
    world.publish(topic, numbered(5, 8))
    assert drain(frame).values == numbered(5, 8)
    places = json.dumps({topic: {"0": 6}})
    assert drain(stream(subscribe=topic, startingOffsets=places), "other").values == numbered(6, 8)
    world.call("group.commit", topic=topic, group="mine", offsets={"0": 7})
    at_group = stream(subscribe=topic, startingOffsets="group", groupId="mine")
    assert drain(at_group, "third").values == numbered(7, 8)


def test_a_stream_starts_at_a_time_of_each_topic(stream: Stream, drain: Drain, world: World) -> None:
    one, two = world.topic(), world.topic()
    world.publish(one, [b"one"])
    world.publish(two, [b"two"])
    times = json.dumps({one: "2001-01-01", two: "2999-01-01"})
    frame = stream(subscribe=f"{one},{two}", startingTimestamp=times)
    assert drain(frame).values == [b"one"]
    world.publish(two, [b"more"])
    assert drain(frame).values == [b"more"]


def test_topics_that_a_pattern_fits_later_are_read_from_their_beginning(
    stream: Stream, drain: Drain, world: World
) -> None:
    one = world.topic("growing")
    world.publish(one, [b"one"])
    frame = stream(subscribePattern="growing-.*", startingOffsets="earliest")
    assert drain(frame).values == [b"one"]
    two = world.topic("growing")
    world.publish(two, [b"two"])
    assert drain(frame).values == [b"two"]
    world.call("topic.delete", topic=one)
    with pytest.raises(Exception, match=f"topic '{one}' was read before and is gone"):
        drain(frame)
    world.publish(two, [b"three"])
    # A gap row has a column of its own: a stream that goes on over losses is another frame over the same checkpoint.
    going_on = stream(subscribePattern="growing-.*", startingOffsets="earliest", failOnDataLoss="false")
    assert drain(going_on).values == [b"three"]


# -- how much at a time ------------------------------------------------------------------------------------------------


def test_a_batch_waits_for_enough_messages_but_not_for_ever(world: World) -> None:
    topic = world.topic()
    patient = source(world, subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger="10")
    start = patient.initialOffset()
    world.publish(topic, numbered(0, 9))
    limit = patient.getDefaultReadLimit()
    assert patient.latestOffset(start, limit) == start
    assert patient.reportLatestOffset() == {topic: {"0": 9}}
    world.publish(topic, numbered(9, 10))
    assert patient.latestOffset(start, limit) == {topic: {"0": 10}}
    hasty = source(
        world, subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger="1000", maxTriggerDelay="1ms"
    )
    assert hasty.latestOffset(start, hasty.getDefaultReadLimit()) == {topic: {"0": 10}}
    assert patient.latestOffset(start, ReadAllAvailable()) == {topic: {"0": 10}}


def test_a_batch_takes_no_more_than_the_rows_and_bytes_it_may(world: World) -> None:
    topic = world.topic(partitions=2)
    for partition in range(2):
        for number in range(10):
            world.publish(topic, [b"%d" % number * 1_000], partition=partition)
    by_rows = source(world, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="5")
    start = by_rows.initialOffset()
    taken = by_rows.latestOffset(start, by_rows.getDefaultReadLimit())[topic]
    assert sum(taken.values()) == 5
    by_bytes = source(world, subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="8KiB")
    limit = by_bytes.getDefaultReadLimit()
    sizes, at = [], start
    while (end := by_bytes.latestOffset(at, limit)) != at:
        sizes.append(sum(end[topic].values()) - sum(at[topic].values()))
        at = end
    assert sum(sizes) == 20
    assert max(sizes) <= 10
    world.seal()
    sealed = by_bytes.latestOffset(start, limit)[topic]
    assert 2 <= sum(sealed.values()) <= 8
    both = source(
        world, subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="1MiB", maxOffsetsPerTrigger="3"
    )
    assert sum(both.latestOffset(start, both.getDefaultReadLimit())[topic].values()) == 3


def test_available_now_stops_at_what_was_there_when_it_began(world: World) -> None:
    topic = world.topic()
    world.publish(topic, numbered(0, 10))
    now = source(world, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="6")
    start = now.initialOffset()
    now.prepareForTriggerAvailableNow()
    world.publish(topic, numbered(10, 20))
    limit = now.getDefaultReadLimit()
    second = now.latestOffset(start, limit)
    third = now.latestOffset(second, limit)
    assert (second, third) == ({topic: {"0": 6}}, {topic: {"0": 10}})
    assert now.latestOffset(third, limit) == third


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_topic_or_view_is_refused(stream: Stream, drain: Drain, world: World) -> None:
    topic, other = world.topic(), world.topic()
    world.publish(topic, [b"1"])
    assert drain(stream(subscribe=topic, startingOffsets="earliest")).values == [b"1"]
    with pytest.raises(Exception, match=f"the checkpoint is of topic '{topic}', and the query reads {other}"):
        drain(stream(subscribe=other, startingOffsets="earliest"))
    with pytest.raises(Exception, match="not a batch of a queue"):
        drain(stream(subscribe=topic, view="queue", groupId="g"))


def test_a_topic_that_was_made_again_is_not_taken_for_the_old_one(stream: Stream, drain: Drain, world: World) -> None:
    topic = world.topic()
    world.publish(topic, numbered(0, 5))
    frame = stream(subscribe=topic, startingOffsets="earliest")
    assert len(drain(frame).rows) == 5
    world.call("topic.delete", topic=topic)
    world.call("topic.create", topic=topic)
    world.publish(topic, [b"new"])
    with pytest.raises(Exception, match="5 was reached before: the topic was deleted and made again"):
        drain(frame)


def test_what_was_let_go_of_before_it_was_read_fails_the_query_or_is_a_row(
    stream: Stream, drain: Drain, world: World, tmp_path: Path
) -> None:
    topic = trimmed(world)
    places = json.dumps({topic: {"0": 0}})
    strict = stream(subscribe=topic, startingOffsets=places)
    with pytest.raises(Exception, match="0 is no longer there"):
        drain(strict, "strict")
    told = drain(stream(subscribe=topic, startingOffsets=places, failOnDataLoss="false"), "told").rows
    assert [(row.offset, row.lost) for row in told if row.lost] == [(0, 10)]
    assert sorted(row.offset for row in told if not row.lost) == list(range(10, 20))
    # The same where the loss happens behind a query's back: its checkpoint says 0, the log begins at 10.
    shutil.copytree(tmp_path / "told", tmp_path / "behind")
    for name in ("offsets/0", "commits/0"):
        (tmp_path / "behind" / name).unlink()
        (tmp_path / "behind" / name).with_name(f".{Path(name).name}.crc").unlink(missing_ok=True)
    again = drain(stream(subscribe=topic, startingOffsets=places, failOnDataLoss="false"), "behind").rows
    assert [(row.offset, row.lost) for row in again if row.lost] == [(0, 10)]
