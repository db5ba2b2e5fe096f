"""A data directory without a server: read by Spark without a byte of it being changed, written to in turns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.spark import read as hybrid
from integration.server_process import ServerProcess
from spark.conftest import Drained


def state_of(directory: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def filled(data_dir: Path) -> Path:
    """A sealed half, a live half, and something settled."""
    with headrace.open(data_dir) as hr:
        orders = hr.topic("orders/eu", partitions=2)
        orders.publish_many([b"%04d" % number for number in range(500)])
        hr.port.call("log.seal")
        orders.publish_many([b"%04d" % number for number in range(500, 1_000)])
        with orders.consumer() as consumer:
            consumer.ack(consumer.receive(10, wait="30s"))
    return data_dir


def test_reading_changes_nothing(spark: Any, filled: Path, drain: Callable[..., Drained]) -> None:
    before = state_of(filled)
    given = {"data_dir": str(filled), "subscribe": "orders/eu"}
    frame = spark.read.format("headrace").options(**given, minPartitions="2").load()
    assert sorted(bytes(row.value) for row in frame.collect()) == [b"%04d" % number for number in range(1_000)]
    assert hybrid(spark, **given).count() == 1_000
    groups = spark.read.format("headrace").options(data_dir=str(filled), table="groups").load()
    assert [(row.group, row.acked) for row in groups.collect()] == [("default", 10)]
    events = spark.read.format("headrace").options(data_dir=str(filled), table="events").load()
    assert events.where("event = 'published'").agg({"count": "sum"}).first()[0] == 1_000
    stream = spark.readStream.format("headrace").options(**given, startingOffsets="earliest").load()
    assert len(drain(stream).rows) == 1_000
    assert state_of(filled) == before
    with headrace.open(filled) as hr:  # and nobody holds it
        hr.topic("orders/eu").publish(b"new")
    assert [bytes(row.value) for row in drain(stream).rows] == [b"new"]


def test_writing_takes_turns(spark: Any, data_dir: Path) -> None:
    with headrace.open(data_dir) as hr:
        hr.topic("out", partitions=2)
    frame = spark.range(0, 5_000, 1, 3).selectExpr("cast(id as string) value")
    frame.write.format("headrace").options(data_dir=str(data_dir), topic="out").mode("append").save()
    with headrace.open(data_dir) as hr:
        assert sorted(int(message.value) for message in hr.topic("out").read()) == list(range(5_000))


def test_a_directory_that_a_server_has_is_left_to_it(spark: Any, filled: Path, tmp_path: Path) -> None:
    def count(directory: Path) -> int:
        return int(spark.read.format("headrace").options(data_dir=str(directory), subscribe="orders/eu").load().count())

    server = ServerProcess(filled)
    try:
        server.ready()
        with pytest.raises(Exception, match=f"is held by another process .process {server.pid}"):
            count(filled)
    finally:
        server.stop()
    assert count(filled) == 1_000
    with pytest.raises(Exception, match="is not a data directory"):
        count(tmp_path)
    with pytest.raises(Exception, match="view=queue needs a server"):
        spark.readStream.format("headrace").options(
            data_dir=str(filled), subscribe="orders/eu", view="queue", groupId="g"
        ).load()
    with pytest.raises(Exception, match="groupId needs a server"):
        spark.readStream.format("headrace").options(data_dir=str(filled), subscribe="orders/eu", groupId="g").load()
