"""Once over every kill: of the driver between the sink's commit and Spark's, of the broker, of an executor.

The log into a topic: every input is there once. The queue into files that replace themselves: every input is there
once, nothing is settled that Spark has not committed, and nothing is lost.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from integration.server_process import ServerProcess
from spark.conftest import SETTINGS, World
from spark.driver_process import DriverProcess
from spark.test_log_batch import numbered

ROWS = 3_000
BATCH = 800


def written(spark: Any, directory: Path) -> list[bytes]:
    return [bytes(row.value) for row in spark.read.parquet(f"{directory}/batch=*").collect()]


def queries(world: World, where: Path, into: str) -> tuple[str, str, str, list[dict[str, Any]]]:
    """A log query and a queue query over topics with a few thousand messages each."""
    log, queue, out = world.topic("log", partitions=2), world.topic("queue", partitions=2), world.topic(into)
    for topic in (log, queue):
        for partition in range(2):
            world.publish(topic, numbered(partition * ROWS, (partition + 1) * ROWS), partition=partition)
    more = {"server": world.url, "maxOffsetsPerTrigger": str(2 * BATCH)}
    return (
        log,
        queue,
        out,
        [
            {
                "source": {**more, "subscribe": log, "startingOffsets": "earliest"},
                "sink": {"server": world.url, "topic": out},
                "checkpoint": str(where / "log"),
            },
            {
                "source": {**more, "subscribe": queue, "view": "queue", "groupId": "workers"},
                "sink": str(where / "files"),
                "checkpoint": str(where / "queue"),
            },
        ],
    )


def go_on(spark: Any, query: dict[str, Any]) -> Any:
    """The same query in this session, from its checkpoint to its end."""
    from spark.spark_child import start

    if isinstance(query["sink"], dict):
        frame = spark.readStream.format("headrace").options(**query["source"]).load()
        writer = frame.select("value").writeStream.format("headrace").options(**query["sink"])
        return writer.option("checkpointLocation", query["checkpoint"]).trigger(availableNow=True).start()
    return start(spark, {name: value for name, value in query.items() if name != "stop"}, 0)


@pytest.mark.feature("N08")
@pytest.mark.parametrize("seed", [1, 2])
def test_a_driver_that_is_killed_between_two_commits_changes_nothing(
    spark: Any, world: World, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    _, queue, out, asked = queries(world, tmp_path, "out")
    for query, place in zip(asked, chance.sample(["before", "between"], 2), strict=True):
        query["stop"] = [place, chance.randrange(3)]
    driver = DriverProcess(asked, master="local[2]", conf=SETTINGS, log=tmp_path / "driver.log")
    try:
        driver.await_stops()
        leased = world.books(queue, "workers")
        place, number = asked[1]["stop"]
        # What Spark has committed are the batches before this one; not one row more is settled.
        assert leased["acked"] == number * 2 * BATCH
        assert len(list((tmp_path / "files").glob("batch=*"))) == number + (place == "between")
    finally:
        driver.kill()
    for query in asked:
        go_on(spark, query).awaitTermination()
    assert Counter(world.values(out)) == Counter(numbered(0, 2 * ROWS))
    assert Counter(written(spark, tmp_path / "files")) == Counter(numbered(0, 2 * ROWS))
    books = world.books(queue, "workers")
    assert (books["acked"], books["leased"], books["ready"], books["redelivered"]) == (2 * ROWS, 0, 0, 0)


@pytest.fixture
def mortal(data_dir: Path) -> Iterator[Callable[[], World]]:
    """A broker that can be killed and comes back at the same place: each call is the next life."""
    lives: list[World] = []

    def live() -> World:
        port: tuple[str, ...] = ()
        if lives:
            port = ("--native-port", lives[-1].url.rpartition(":")[2])
        lives.append(World(ServerProcess(data_dir / "data", *port)))
        return lives[-1]

    yield live
    lives[-1].server.stop()
    for life in lives:
        life.hr.close()
        life.way.close()


@pytest.mark.feature("N08")
def test_a_broker_that_is_killed_again_and_again_changes_nothing(
    spark: Any, mortal: Callable[[], World], tmp_path: Path
) -> None:
    chance = random.Random(7)
    world = mortal()
    _, queue, out, asked = queries(world, tmp_path, "out")
    for query in asked:
        query["source"]["maxOffsetsPerTrigger"] = "600"
    kills = {number: chance.choice(["before", "between"]) for number in chance.sample(range(1, 9), 3)}
    due: SimpleQueue[bool] = SimpleQueue()
    lives = [world]

    def killer() -> None:
        while due.get():
            lives[-1].server.kill()
            lives.append(mortal())

    def each(rows: Any, batch: int) -> None:
        if kills.get(batch) == "before":
            due.put(True)
        rows.select("value").write.mode("overwrite").parquet(f"{tmp_path}/files/batch={batch}")
        if kills.pop(batch, None) == "between":
            due.put(True)

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        frame = spark.readStream.format("headrace").options(**asked[1]["source"]).load()
        writer = frame.writeStream.foreachBatch(each).option("checkpointLocation", asked[1]["checkpoint"])
        running = [go_on(spark, asked[0]), writer.trigger(availableNow=True).start()]
        for query in running:
            query.awaitTermination()
    finally:
        due.put(False)
        thread.join()
    assert len(lives) == 4
    world = lives[-1]
    assert Counter(world.values(out)) == Counter(numbered(0, 2 * ROWS))
    assert Counter(written(spark, tmp_path / "files")) == Counter(numbered(0, 2 * ROWS))
    books = world.books(queue, "workers")
    assert (books["acked"], books["leased"], books["ready"]) == (2 * ROWS, 0, 0)
