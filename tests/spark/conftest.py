"""One Spark session and one broker for all tests here: a JVM takes seconds to start and half a gigabyte to keep.

All of them are in one group of xdist, so that one worker of it has the only session.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import headrace
from headrace.batch import Message, encode
from headrace.spark.options import Place
from headrace.spark.reach import Reach
from integration.server_process import ServerProcess

pyspark = pytest.importorskip("pyspark")

HERE = Path(__file__).parent
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
    "spark.sql.streaming.stateStore.maintenanceInterval": "600s",
    "spark.sql.adaptive.enabled": "false",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.timeout(600))
            # Spark leaves sockets to its own processes and threads to the interpreter's end.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from headrace.spark import session

    where = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = os.sys.executable  # type: ignore[attr-defined]
    found = session(
        "headrace-tests",
        master="local[2]",
        conf={**SETTINGS, "spark.sql.warehouse.dir": str(where / "warehouse"), "spark.local.dir": str(where / "local")},
    )
    found.sparkContext.setLogLevel("ERROR")
    yield found
    found.stop()


class World:
    """A real broker, and the few verbs tests want to say briefly. Topics have names nobody else uses."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.url = f"headrace://{server.ready()['native']}"
        self.way = Reach(Place(server=self.url))
        self.hr = headrace.connect(self.url)

    def close(self) -> None:
        self.hr.close()
        self.way.close()
        self.server.stop()

    def seal(self) -> None:
        """Everything published so far becomes Parquet."""
        self.call("log.seal")

    def books(self, topic: str, group: str) -> dict[str, Any]:
        (found,) = (each for each in self.call("group.list", topic=topic) if each["group"] == group)
        return dict(found)

    def call(self, method: str, **arguments: Any) -> Any:
        return self.way.call(method, **arguments)

    def topic(self, name: str = "t", **settings: Any) -> str:
        topic = f"{name}-{uuid4().hex[:8]}"
        self.call("topic.create", topic=topic, settings=settings)
        return topic

    def publish(self, topic: str, messages: list[Any], *, partition: int = -1) -> None:
        for first in range(0, len(messages), 4_096):
            portion = messages[first : first + 4_096]
            batch = encode([each if isinstance(each, Message) else Message(each) for each in portion])
            self.way.do(lambda port, batch=batch: port.publish("default", topic, partition, batch))

    def values(self, topic: str) -> list[bytes]:
        """The values of a topic, partition by partition."""
        found: list[bytes] = []
        for part in self.call("topic.offsets", topic=topic)["partitions"]:
            at = part["start"]
            while at < part["end"]:
                told, batches = self.way.messages("read", topic=topic, partition=part["partition"], from_offset=at)
                found += [value for batch in batches for value in batch.values()]
                at = told["parts"][0]["next_offset"]
        return found


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    where = tmp_path_factory.mktemp("broker")
    found = World(ServerProcess(where / "data", HEADRACE_SEAL__ARCHIVE=str(where / "archive")))
    yield found
    found.close()


@pytest.fixture
def read(spark: Any, world: World) -> Callable[..., Any]:
    """``read(subscribe="orders", …)``: a batch DataFrame."""
    return lambda **options: spark.read.format("headrace").options(server=world.url, **options).load()


class Drained:
    """What a query handed to ``foreachBatch``: batches of rows by number."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Any]] = {}

    def __call__(self, frame: Any, number: int) -> None:
        self.batches[number] = frame.collect()

    @property
    def rows(self) -> list[Any]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    @property
    def values(self) -> list[bytes]:
        return [bytes(row.value) for row in self.rows]


@pytest.fixture
def drain(tmp_path: Path) -> Callable[..., Drained]:
    """``drain(frame)``: run a query over everything there is to its end; again with the same checkpoint to go on."""

    def run(frame: Any, checkpoint: str = "checkpoint", work: Callable[[Any, int], None] | None = None) -> Drained:
        found = Drained()

        def each(batch: Any, number: int) -> None:
            found(batch, number)
            if work is not None:
                work(batch, number)

        query = (
            frame.writeStream.foreachBatch(each)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return found

    return run


@pytest.fixture
def stream(spark: Any, world: World) -> Callable[..., Any]:
    """The same for a streaming one."""
    return lambda **options: spark.readStream.format("headrace").options(server=world.url, **options).load()
