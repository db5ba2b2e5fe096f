"""Spark over the log: files and journal read, streams, writes; beside what Spark does by itself in the same session.

One session on ``local[2]`` for all of them, made by the first. Every figure that is a ratio is measured in turns with
what it is compared to, the best of a few rounds of each.
"""

from __future__ import annotations

import atexit
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import headrace
from bench.machine import Machine
from bench.registry import workload
from bench.server_workloads import Server
from bench.targets import Figure
from headrace.batch import encode_columns
from headrace.broker.broker import Broker
from headrace.broker.embedded import EmbeddedPort, open_core
from headrace.clock import ManualClock
from headrace.config import SealConfig

VALUE_BYTES = 200
BATCH = 4_000
ROUNDS = 3
NARROW = ("offset", "timestamp")


@cache
def session() -> Any:
    from headrace.spark import session

    spark = session(
        "bench",
        master="local[2]",
        conf={"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "3g", "spark.local.dir": "build/bench/spark"},
    )
    spark.sparkContext.setLogLevel("ERROR")
    atexit.register(spark.stop)
    return spark


@contextmanager
def served(directory: Path) -> Iterator[tuple[Server, str]]:
    server = Server(directory / "data")
    try:
        host, port = server.address()
        yield server, f"headrace://{host}:{port}"
    finally:
        if server.process.poll() is None:
            server.stop()


def filled(url: str, topic: str, count: int, *, seal: bool) -> None:
    """So many messages of 200 bytes in one topic, eight batches under way."""
    with headrace.connect(url) as hr:
        hr.port.call("topic.create", topic=topic, settings={"max_depth": 0, "partitions": 2})
        values = [os.urandom(VALUE_BYTES) for _ in range(BATCH)]
        batch = encode_columns(values)
        waiting: list[Any] = []
        for number in range(count // BATCH):
            waiting.append(hr.port.publish_begin("default", topic, number % 2, batch))
            if len(waiting) == 8:
                waiting.pop(0).result()
        for each in waiting:
            each.result()
        if seal:
            hr.port.call("log.seal")


def noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_turns(ways: dict[str, Callable[[], None]], rounds: int = ROUNDS) -> dict[str, float]:
    """The best time of each, taken in turns after one that does not count."""
    best: dict[str, float] = {}
    for number in range(rounds + 1):
        for name, work in ways.items():
            took = seconds(work)
            if number:
                best[name] = min(took, best.get(name, took))
    return best


@workload("spark/sealed")
def sealed(machine: Machine) -> dict[str, Figure]:
    """Sealed messages: as Headrace gives them, beside Spark's own reader over the same files."""
    from headrace.spark import read

    spark, count = session(), machine.scaled(5_000_000)
    with machine.directory() as directory, served(directory) as (_, url):
        filled(url, "sealed", count, seal=True)
        with headrace.connect(url) as hr:
            files = [each["uri"] for each in hr.port.call("log.segments", topic="sealed")["segments"]]
        given = {"server": url, "subscribe": "sealed"}
        source = spark.read.format("headrace").options(**given)
        figures: dict[str, Figure] = {}
        for title, columns in (("all columns", ("*",)), ("two columns", NARROW)):
            chosen = {} if columns == ("*",) else {"columns": ",".join(columns)}
            best = in_turns(
                {
                    "own": lambda columns=columns: noop(spark.read.parquet(*files).select(*columns)),
                    "read": lambda chosen=chosen: noop(read(spark, **given, **chosen)),
                    "format": lambda chosen=chosen: noop(source.options(**chosen).load()),
                }
            )
            figures |= {
                f"{title}": Figure(count / best["read"], "rows/s"),
                f"{title}, beside Spark's Parquet": Figure(best["own"] / best["read"], "x"),
                f'{title}, format("headrace")': Figure(count / best["format"], "rows/s"),
                f"{title}, Spark's Parquet": Figure(count / best["own"], "rows/s"),
            }
        figures |= streamed(spark, given, count, directory)
    return figures


def streamed(spark: Any, given: dict[str, str], count: int, directory: Path) -> dict[str, Figure]:
    """The same as a stream that catches up, a million rows a trigger."""
    frame = (
        spark.readStream.format("headrace")
        .options(**given, startingOffsets="earliest", maxOffsetsPerTrigger="1000000")
        .load()
    )
    spans: list[float] = []
    for number in range(2):
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(directory / f"checkpoint-{number}"))
            .trigger(availableNow=True)
        )
        began = time.perf_counter()
        started = query.start()
        started.awaitTermination()
        spans.append(time.perf_counter() - began)
        rows = sum(progress["numInputRows"] for progress in started.recentProgress)
        assert rows == count, (rows, count)
    return {"AvailableNow, 1,000,000 rows a trigger": Figure(count / min(spans), "rows/s", note="start to end")}


@workload("spark/tail")
def tail(machine: Machine) -> dict[str, Figure]:
    """The live tail, out of the journal, through the server."""
    spark, count = session(), machine.scaled(2_000_000)
    with machine.directory() as directory, served(directory) as (_, url):
        filled(url, "tail", count, seal=False)
        frame = spark.read.format("headrace").options(server=url, subscribe="tail", sealedFiles="false").load()
        narrow = spark.read.format("headrace").options(
            server=url, subscribe="tail", sealedFiles="false", columns="offset,timestamp"
        )
        best = in_turns({"all": lambda: noop(frame), "narrow": lambda: noop(narrow.load())})
    return {
        "all columns": Figure(count / best["all"], "rows/s"),
        "two columns": Figure(count / best["narrow"], "rows/s"),
    }


@workload("spark/write")
def write(machine: Machine) -> dict[str, Figure]:
    """Rows into a topic, durable when the write returns."""
    spark, count = session(), machine.scaled(2_000_000)
    rows = spark.range(0, count, 1, 2).selectExpr(f"repeat(cast(id % 10 as string), {VALUE_BYTES}) value")
    keyed = rows.selectExpr("value", "cast(hash(value) as string) key")
    spans: dict[str, list[float]] = {"rows": [], "keyed": [], "generated": []}
    with machine.directory() as directory, served(directory) as (_, url):
        with headrace.connect(url) as hr:
            for name in ("rows", "keyed"):
                hr.port.call("topic.create", topic=name, settings={"max_depth": 0, "partitions": 2})
        for _ in range(2):
            for name, frame in (("rows", rows), ("keyed", keyed)):
                into = frame.write.format("headrace").options(server=url, topic=name).mode("append")
                spans[name].append(seconds(into.save))
            spans["generated"].append(seconds(lambda: noop(rows)))
        with headrace.connect(url) as hr:
            parts = hr.port.call("topic.offsets", topic="rows")["partitions"]
            assert sum(part["end"] for part in parts) == 2 * count
    return {
        "rows": Figure(count / min(spans["rows"]), "rows/s"),
        "rows with keys": Figure(count / min(spans["keyed"]), "rows/s"),
        "only generated": Figure(count / min(spans["generated"]), "rows/s"),
    }


@workload("spark/latency")
def latency(machine: Machine) -> dict[str, Figure]:
    """From the append to foreachBatch at 1,000 messages a second, beside Spark's rate source."""
    spark, rate, length = session(), 1_000, 9 if machine.short else 18
    with machine.directory() as directory, served(directory) as (_, url):
        filled(url, "latency", 0, seal=False)
        stop = threading.Event()

        def publish() -> None:
            with headrace.connect(url) as hr:
                due = time.perf_counter()
                while not stop.is_set():
                    hr.port.publish("default", "latency", 0, encode_columns([os.urandom(VALUE_BYTES)] * 10))
                    due += 10 / rate
                    stop.wait(max(0.0, due - time.perf_counter()))

        ours = spark.readStream.format("headrace").options(server=url, subscribe="latency", columns="timestamp").load()
        theirs = spark.readStream.format("rate").option("rowsPerSecond", rate).load().select("timestamp")
        publisher = threading.Thread(target=publish)
        publisher.start()
        spans = {
            name: delays(frame, directory / f"latency-{name}", length)
            for name, frame in (("ours", ours), ("rate", theirs))
        }
        stop.set()
        publisher.join()
    p50 = {name: statistics.median(each) for name, each in spans.items()}
    ours_sorted = sorted(spans["ours"])
    return {
        "p50": Figure(p50["ours"] * 1e3, "ms"),
        "p99": Figure(ours_sorted[len(ours_sorted) * 99 // 100] * 1e3, "ms"),
        "p50 of Spark's rate source": Figure(p50["rate"] * 1e3, "ms"),
        "p50 beside Spark's rate source": Figure(p50["ours"] / p50["rate"], "x"),
    }


def delays(frame: Any, checkpoint: Path, length: int) -> list[float]:
    """Seconds from each row's timestamp to when the driver has it; the first third of the time is left out."""
    found: list[float] = []
    from_s = time.time() + length / 3

    def take(batch: Any, _number: int) -> None:
        times = [row[0] for row in batch.selectExpr("unix_micros(timestamp)").collect()]
        now = time.time()  # the wall clock that stamped them
        if now >= from_s:
            found.extend(now - at / 1e6 for at in times)

    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination(length)
    query.stop()
    return found


@workload("spark/window")
def window(machine: Machine) -> dict[str, Figure]:
    """One hour out of ten days: what Spark reads, beside what the hour takes of the files."""
    from headrace.spark import read

    spark, count = session(), machine.scaled(2_000_000)
    hours = 240
    with machine.directory() as directory:
        begin_ns = ten_days(directory / "data", count, hours)
        wanted = [begin_ns + hour * 3_600 * 10**9 for hour in (100, 101)]
        given = {"data_dir": str(directory / "data"), "subscribe": "days"}
        times = {"startingTimestamp": wanted[0] // 10**6, "endingTimestamp": wanted[1] // 10**6}
        files = list((directory / "data" / "log").rglob("messages/**/*.parquet"))
        size = sum(file.stat().st_size for file in files)
        rows = read(spark, **given, **times).count()
        assert rows == count // hours, (rows, count // hours)
        bytes_read = input_bytes(spark, lambda: noop(read(spark, **given, **times)))
        low, high = (f"timestamp_micros({at // 1_000})" for at in wanted)
        filtered = read(spark, **given).where(f"timestamp >= {low} and timestamp < {high}")
        assert filtered.count() == rows
        bytes_filtered = input_bytes(spark, lambda: noop(filtered))
    share = size / hours
    return {
        "data read, by option": Figure(
            bytes_read / share, "x", note=f"{bytes_read:,} B of {size:,} in {len(files)} files"
        ),
        "data read, by filter": Figure(bytes_filtered / share, "x", note=f"{bytes_filtered:,} B"),
    }


def ten_days(path: Path, count: int, hours: int) -> int:
    """A sealed topic with as many messages in every hour of ten days."""
    clock = ManualClock()
    core = open_core(path, clock=clock)
    port = EmbeddedPort(Broker(core), clock, SealConfig())
    port.call("topic.create", topic="days", settings={"max_depth": 0, "retention": "none", "message_ttl": "none"})
    begin_ns = port.now_ns()
    each = count // hours
    batches = [
        encode_columns([os.urandom(VALUE_BYTES) for _ in range(min(BATCH, each - first))])
        for first in range(0, each, BATCH)
    ]
    for _ in range(hours):
        for batch in batches:
            port.publish("default", "days", 0, batch)
        clock.advance(3_600 * 10**9)
    port.call("log.seal")
    port.close()
    return begin_ns


def input_bytes(spark: Any, work: Callable[[], None]) -> int:
    """What Spark's Java process reads for some work that it has done once before: by read(), from wherever."""
    counter = Path(f"/proc/{spark._jvm.java.lang.ProcessHandle.current().pid()}/io")

    def total() -> int:
        return int(counter.read_text().split("rchar:")[1].split()[0])

    work()
    before = total()
    work()
    return total() - before
