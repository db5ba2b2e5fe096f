"""A driver of its own, to be killed: queries that stop at a named place and wait there.

    python spark_child.py JSON

    {"master", "conf", "tell": port, "queries": [{"source": {…}, "sink": {…} or "directory", "checkpoint",
    "stop": ["before", 1]}]}

A query with a sink of options writes into a topic, one with a directory writes Parquet in ``foreachBatch``, a batch
replacing itself. ``before``: a batch is planned and nothing of it written; ``between``: the sink has it, Spark has not
yet committed. Who stops calls the port and waits there.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

from headrace.spark import session
from headrace.spark.sink import StreamSink
from headrace.spark.source import HeadraceSource


def stop_here(port: int, name: str) -> None:
    """In whichever process: say so and wait to be killed; who is still there when the test has gone ends."""
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(f"{name} {os.getpid()}\n".encode())
        line.recv(1)
    os._exit(1)


class StoppingSink(StreamSink):
    """The sink as it is, until the batch it stops at."""

    stop: tuple[str, int, int] = ("", -1, 0)

    def write(self, iterator: Any) -> Any:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        batch = int(task.getLocalProperty("streaming.sql.batchId") or -1)
        if (self.stop[0], batch) == ("before", self.stop[1]) and task.partitionId() == task.attemptNumber() == 0:
            stop_here(self.stop[2], "before")
        return super().write(iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 # Spark's name
        if self.stop[0] == "between" and batchId == self.stop[1]:
            stop_here(self.stop[2], "between")


class StoppingSource(HeadraceSource):
    """Its option ``stopat`` is not for the sink."""

    @classmethod
    def name(cls) -> str:
        return "stopping"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 # Spark's name
        place, batch, port = self.options.pop("stopat").split(":")
        sink = StoppingSink(self._writing, schema)
        sink.stop = (place, int(batch), int(port))
        return sink


def start(spark: Any, asked: dict[str, Any], port: int) -> Any:
    frame = spark.readStream.format("headrace").options(**asked["source"]).load()
    place, number = asked.get("stop", ("", -1))
    if isinstance(asked["sink"], dict):
        writer = frame.select("value").writeStream.format("stopping")
        writer = writer.options(**asked["sink"], stopat=f"{place}:{number}:{port}")
    else:

        def each(rows: Any, batch: int) -> None:
            if (place, number) == ("before", batch):
                stop_here(port, place)
            target = Path(asked["sink"]) / f"batch={batch}"
            shutil.rmtree(target, ignore_errors=True)
            rows.select("value").write.parquet(str(target))
            if (place, number) == ("between", batch):
                stop_here(port, place)

        writer = frame.writeStream.foreachBatch(each)
    return writer.option("checkpointLocation", asked["checkpoint"]).trigger(availableNow=True).start()


def main() -> None:
    asked = json.loads(sys.argv[1])
    spark = session("child", master=asked["master"], conf=asked["conf"])
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(StoppingSource)
    places = spark.sparkContext.range(2, numSlices=2).map(lambda _: __import__("headrace").__file__).collect()
    sys.stdout.write(json.dumps({"headrace": places}) + "\n")
    sys.stdout.flush()
    for query in [start(spark, each, asked["tell"]) for each in asked["queries"]]:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
