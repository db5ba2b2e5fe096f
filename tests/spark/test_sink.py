"""Rows into topics: what each column means, where a row goes, and each row once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.batch import Message
from spark.conftest import World

Read = Callable[..., Any]


def write(frame: Any, world: World, **options: str) -> None:
    frame.write.format("headrace").options(server=world.url, **options).mode("append").save()


def test_every_column_of_a_row_becomes_what_it_says(spark: Any, world: World) -> None:
    topic, far = world.topic(), world.topic()
    frame = spark.createDataFrame(
        [("a", "k", {"h": "1"}, 2, 1_000), ("b", None, None, None, None)],
        "value string, key string, headers map<string, string>, priority int, ttl_ms bigint",
    )
    write(frame, world, topic=topic)
    messages = {message.value: message for message in world.hr.topic(topic).read()}
    assert set(messages) == {b"a", b"b"}
    a, b = messages[b"a"], messages[b"b"]
    assert (a.key, a.headers, a.priority) == (b"k", {"h": "1"}, 2)
    assert (b.key, dict(b.headers or {}), b.priority) == (None, {}, 5)
    later = spark.sql("select 'x' value, bigint(3600000) delay_ms union all select 'y', 0")
    write(later, world, topic=far)
    at = spark.sql("select 'z' value, current_timestamp() + interval 1 hour deliver_at")
    write(at, world, topic=far)
    books = world.books(far, "default")
    assert (books["scheduled"], books["ready"]) == (2, 1)
    deduplicated = spark.sql("select 'once' value, 'same' dedup_id from range(3)")
    write(deduplicated, world, topic=far)
    assert world.values(far).count(b"once") == 1


def test_rows_go_to_the_topics_they_name_and_where_the_broker_would_put_their_key(
    spark: Any, read: Read, world: World
) -> None:
    one, two, direct = (world.topic(partitions=3) for _ in range(3))
    frame = spark.range(300).selectExpr(
        f"if(id % 2 = 0, '{one}', '{two}') topic", "cast(id as string) value", "concat('k', id % 20) key"
    )
    write(frame, world)
    assert sorted(int(value) for value in world.values(one)) == list(range(0, 300, 2))
    assert sorted(int(value) for value in world.values(two)) == list(range(1, 300, 2))
    world.publish(direct, [Message(b"x", key=b"k%d" % number) for number in range(20)])
    place = {bytes(row.key): row.partition for row in read(subscribe=direct).collect()}
    for row in read(subscribe=f"{one},{two}").collect():
        assert row.partition == place[bytes(row.key)]
    fresh = f"{one}-new"
    write(spark.sql("select 'v' value"), world, topic=fresh)
    assert world.values(fresh) == [b"v"]
    with pytest.raises(Exception, match="does not exist"):
        write(spark.sql("select 'v' value"), world, topic=f"{one}-none", createTopics="false")


@pytest.mark.parametrize(
    ("query", "options", "said"),
    [
        ("select 'v' valu", {"topic": "t"}, "column 'valu' has no meaning in a message; did you mean 'value'"),
        ("select 'k' key", {"topic": "t"}, "there is no column value"),
        ("select 'v' value", {}, "to which topic"),
        ("select 'v' value, bigint(1) delay_ms, now() deliver_at", {"topic": "t"}, "delay_ms and deliver_at"),
        ("select cast(null as string) value", {"topic": "t"}, "1 rows have no value"),
        ("select 'v' value, cast(null as string) topic", {}, "1 rows have no topic"),
        ("select 'v' value, 12 priority", {"topic": "t"}, "must be 0 to 9"),
        ("select 'v' value", {"topic": "t", "idempotnt": "true"}, "did you mean idempotent"),
        ("select struct(1) value", {"topic": "t"}, "must be binary or string"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_refused(
    spark: Any, world: World, query: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(Exception, match=said):
        write(spark.sql(query), world, **options)


def test_a_topic_cannot_be_overwritten(spark: Any, world: World) -> None:
    with pytest.raises(Exception, match="a topic cannot be overwritten"):
        spark.sql("select 'v' value").write.format("headrace").options(server=world.url, topic="t").mode(
            "overwrite"
        ).save()


def test_a_write_with_an_id_is_written_once_however_often_it_is_tried(spark: Any, world: World) -> None:
    topic = world.topic(partitions=2)
    frame = spark.range(0, 10_000, 1, 4).selectExpr("cast(id as string) value", "cast(id % 7 as string) key")
    for _ in range(3):
        write(frame, world, topic=topic, writeId="load-1")
    assert sorted(int(value) for value in world.values(topic)) == list(range(10_000))
    write(frame, world, topic=topic, writeId="load-2")
    assert len(world.values(topic)) == 20_000


@pytest.mark.parametrize("other", ["id + 1", "if(id < 9999, id, 0)", "cut"])
def test_other_rows_under_an_old_number_are_an_error_and_not_lost(spark: Any, world: World, other: str) -> None:
    topic = world.topic(partitions=2)
    rows = spark.range(0, 10_000, 1, 2)
    write(rows.selectExpr("cast(id as string) value"), world, topic=topic, writeId="load", batchRows="1000")
    again = spark.range(0, 4_000, 1, 2).selectExpr("cast(id as string) value")
    if other != "cut":
        again = rows.selectExpr(f"cast({other} as string) value")
    with pytest.raises(Exception, match="must have the same rows in the same order"):
        write(again, world, topic=topic, writeId="load", batchRows="1000")
    assert sorted(int(value) for value in world.values(topic)) == list(range(10_000))


def test_a_batch_that_spark_hands_over_again_after_a_crash_is_there_once(
    stream: Read, world: World, tmp_path: Path
) -> None:
    """A crash between the sink's commit and Spark's own leaves a checkpoint without the last commit."""
    topic, out = world.topic(partitions=2), world.topic(partitions=2)
    for partition in range(2):
        world.publish(topic, [b"%d-%05d" % (partition, number) for number in range(3_000)], partition=partition)
    frame = stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="2000").select("value", "key")

    def run() -> None:
        query = (
            frame.writeStream.format("headrace")
            .options(server=world.url, topic=out, checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    assert len(world.values(out)) == 6_000
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    run()
    assert sorted(world.values(out)) == sorted(world.values(topic))
    # A checkpoint that is gone is another query: it writes all of it once more, and says so by doing it.
    shutil.rmtree(tmp_path / "checkpoint")
    run()
    assert len(world.values(out)) == 12_000


def test_of_two_jobs_on_one_checkpoint_one_is_stopped_and_each_row_is_there_once(
    stream: Read, world: World, tmp_path: Path
) -> None:
    topic, out = world.topic(), world.topic()

    def start() -> Any:
        writer = stream(subscribe=topic, startingOffsets="earliest").select("value").writeStream.format("headrace")
        return writer.options(server=world.url, topic=out, checkpointLocation=str(tmp_path / "one")).start()

    published = [b"%04d" % number for number in range(200)]
    world.publish(topic, published[:100])
    first = start()
    first.processAllAvailable()
    second = start()
    world.publish(topic, published[100:])
    try:
        second.processAllAvailable()
        assert not first.isActive
        assert second.isActive
        assert sorted(world.values(out)) == published
    finally:
        first.stop()
        second.stop()
