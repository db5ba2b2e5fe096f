"""What a Python program gets: the client over the network to a server process, and the broker inside the process.

Client and server share the machine's cores, values have 200 bytes, everything is durable unless the name says memory.
Rates are wall time, the best of a few rounds (processor time where nothing is waited for: the broker in memory);
latencies stand beside what a bare sync took in the same run. Every
workload counts what came back, so that a figure of something lost cannot be read.
"""

from __future__ import annotations

import gc
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import headrace
from bench.machine import Machine, RoundTrips, preallocated
from bench.registry import workload
from bench.server_workloads import MIB, Server, serving
from bench.targets import Figure
from bench.timing import cpu_rate

VALUE = os.urandom(200)
ROUNDS = 3
DRIP_PER_S = 2_000
GROUPS = 10
PARTITIONS = 10
BATCH_CURVE = (1, 10, 50, 100, 200, 500, 1000)
CURVE_SECONDS = 0.7


@contextmanager
def connected(machine: Machine) -> Iterator[tuple[headrace.Headrace, Server, Path]]:
    """A server process on an empty directory, and a client of it."""
    with machine.directory() as directory, serving(directory / "data") as server:
        with headrace.connect(url_of(server)) as hr:
            yield hr, server, directory
        server.stop()


def url_of(server: Server) -> str:
    host, port = server.address()
    return f"headrace://{host}:{port}"


def rate(count: int, work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """So many a second of wall time: the best round."""
    best = 0.0
    for _ in range(rounds):
        gc.collect()
        began = time.perf_counter()
        work()
        best = max(best, count / (time.perf_counter() - began))
    return best


def counted(count: int, work: Callable[[], object]) -> Callable[[], int]:
    """Work that says how much it did."""

    def do() -> int:
        work()
        return count

    return do


def quantiles_us(spans_ns: list[int]) -> tuple[float, float]:
    spans_ns.sort()
    return statistics.median(spans_ns) / 1e3, spans_ns[len(spans_ns) * 99 // 100] / 1e3


class Syncs:
    """A bare write and sync of 200 bytes, between the rounds of a latency."""

    def __init__(self, directory: Path) -> None:
        self._file = preallocated(directory / "probe", 8 * MIB)
        self.spans_ns: list[int] = []

    def measure(self, times: int) -> None:
        for n in range(times):
            began = time.perf_counter_ns()
            os.pwrite(self._file, VALUE, n * len(VALUE))
            os.fdatasync(self._file)
            self.spans_ns.append(time.perf_counter_ns() - began)

    def close(self) -> None:
        os.close(self._file)


# -- publishing over the network ---------------------------------------------------------------------------------------


@workload("sdk/publish_many")
def publish_many(machine: Machine) -> dict[str, Figure]:
    """One producer process, lists of 20,000 values."""
    count = machine.scaled(400_000)
    values = [os.urandom(200) for _ in range(20_000)]
    with connected(machine) as (hr, _, _):
        topic = hr.topic("many")
        topic.publish_many(values)

        def work() -> None:
            for _ in range(count // len(values)):
                topic.publish_many(values)

        found = rate(count, work)
        assert topic.depth() == len(values) + ROUNDS * (count // len(values)) * len(values)
    return {"publish_many": Figure(found, "msg/s")}


@workload("sdk/publisher")
def publisher(machine: Machine) -> dict[str, Figure]:
    """Single publishes through the batching publisher, every receipt asked for."""
    count = machine.scaled(100_000)
    with connected(machine) as (hr, _, _):
        topic = hr.topic("single")
        topic.publish(VALUE)

        def plain() -> None:
            with topic.publisher() as publisher:
                receipts = [publisher.publish(VALUE) for _ in range(count)]
            assert receipts[-1].result().offset >= count

        def asked() -> None:
            with topic.publisher() as publisher:
                receipts = [publisher.publish(VALUE, "user-1") for _ in range(count)]
                places = [receipt.result() for receipt in receipts]
            assert places[-1].offset - places[0].offset == count - 1

        return {
            "single publishes": Figure(rate(count, plain), "msg/s"),
            "with a key, each receipt read": Figure(rate(count, asked), "msg/s"),
        }


@workload("sdk/publish_one")
def publish_one(machine: Machine) -> dict[str, Figure]:
    """One durable publish at a time, in turns with a bare write and sync and a bare round trip."""
    rounds, each = 20, machine.scaled(100)
    spans: list[int] = []
    with connected(machine) as (hr, _, directory):
        topic = hr.topic("one")
        syncs, trips = Syncs(directory), RoundTrips()
        for _ in range(50):
            topic.publish(VALUE)
        gc.collect()
        for _ in range(rounds):
            for _ in range(each):
                began = time.perf_counter_ns()
                topic.publish(VALUE)
                spans.append(time.perf_counter_ns() - began)
            syncs.measure(each)
            trips.measure(each)
        syncs.close()
        trips.close()
    p50, p99 = quantiles_us(spans)
    sync50, sync99 = quantiles_us(syncs.spans_ns)
    trip50, _ = quantiles_us(trips.spans_ns)
    return {
        "p50": Figure(p50, "us", note=f"a bare round trip: {trip50:.0f}"),
        "p99": Figure(p99, "us", note=f"a bare sync: p50 {sync50:.0f}, p99 {sync99:.0f}"),
        "p50 beside sync and round trip": Figure(p50 / (sync50 + trip50), "x"),
    }


@workload("sdk/publish_threads")
def publish_threads(machine: Machine) -> dict[str, Figure]:
    """Eight threads of one client, each waiting for every publish: they share syncs."""
    threads, each = 8, machine.scaled(1_000)
    with connected(machine) as (hr, _, _):
        topic = hr.topic("threads")
        topic.publish(VALUE)

        def work() -> None:
            crew = [
                threading.Thread(target=lambda: [topic.publish(VALUE) for _ in range(each)]) for _ in range(threads)
            ]
            for thread in crew:
                thread.start()
            for thread in crew:
                thread.join()

        found = rate(threads * each, work)
        assert topic.depth() == 1 + ROUNDS * threads * each
    return {"eight threads, one at a time each": Figure(found, "msg/s")}


@workload("sdk/batch_curve")
def batch_curve(machine: Machine) -> dict[str, Figure]:
    """One publish_many after another, each waited for, by the size of the list."""
    figures = {}
    with connected(machine) as (hr, _, _):
        topic = hr.topic("curve")
        topic.publish(VALUE)
        for size in BATCH_CURVE:
            values = [VALUE] * size
            done, began = 0, time.perf_counter()
            while (took := time.perf_counter() - began) < CURVE_SECONDS:
                topic.publish_many(values)
                done += size
            figures[f"lists of {size}"] = Figure(done / took, "msg/s")
    return figures


# -- consuming over the network ----------------------------------------------------------------------------------------


def _backlog(topic: Any, count: int) -> None:
    values = [VALUE] * min(count, 20_000)
    for _ in range(count // len(values)):
        topic.publish_many(values)


@workload("sdk/consume")
def consume(machine: Machine) -> dict[str, Figure]:
    """A backlog, message by message: a Python object, its value read, its own ack; all acks confirmed in the end."""
    count = machine.scaled(200_000)
    with connected(machine) as (hr, _, _):
        topic = hr.topic("backlog")
        _backlog(topic, count)
        figures = {}
        for name, prefetch in (("as it comes", None), ("prefetch 1,000", 1_000)):
            best = 0.0
            for n in range(ROUNDS):
                group, seen, size = f"{prefetch}-{n}", 0, 0
                with topic.consumer(group, prefetch=prefetch) as consumer:
                    gc.collect()
                    began = time.perf_counter()
                    for d in consumer:
                        size += len(d.value)
                        d.ack()
                        seen += 1
                        if seen == count:
                            break
                    consumer.flush()
                    best = max(best, count / (time.perf_counter() - began))
                assert size == count * len(VALUE)
                assert topic.group(group).info()["acked"] == count
            figures[f"consume and ack, {name}"] = Figure(best, "msg/s")
    return figures


@workload("sdk/consume_arrow")
def consume_arrow(machine: Machine) -> dict[str, Figure]:
    """The same as columns: receive_arrow, to_arrow, ack."""
    count = machine.scaled(1_000_000)
    with connected(machine) as (hr, _, _):
        topic = hr.topic("backlog")
        _backlog(topic, count)
        best = 0.0
        for n in range(ROUNDS):
            seen = 0
            with topic.consumer(f"g{n}", prefetch=1) as consumer:
                consumer.receive_arrow(10, wait="10s").to_arrow()
                gc.collect()
                began = time.perf_counter()
                while seen < count - 10:
                    rows = consumer.receive_arrow(10_000, wait="10s")
                    assert len(rows)
                    seen += rows.to_arrow().num_rows
                    rows.ack()
                best = max(best, seen / (time.perf_counter() - began))
            assert seen == count - 10
    return {"consume and ack as Arrow": Figure(best, "msg/s")}


@workload("sdk/receive_one")
def receive_one(machine: Machine) -> dict[str, Figure]:
    """One message of the ready queue at a time: ask, get."""
    count = machine.scaled(4_000)
    spans: list[int] = []
    with connected(machine) as (hr, _, _):
        topic = hr.topic("ready")
        topic.publish_many([VALUE] * (count + 50))
        with topic.consumer("one", prefetch=1) as consumer:
            consumer.ack(consumer.receive(50, wait="10s"))
            for _ in range(count):
                began = time.perf_counter_ns()
                (d,) = consumer.receive(wait="10s")
                spans.append(time.perf_counter_ns() - began)
                d.ack()
    p50, p99 = quantiles_us(spans)
    return {"p50": Figure(p50, "us"), "p99": Figure(p99, "us")}


# -- from publish to handler -------------------------------------------------------------------------------------------


@workload("sdk/end_to_end")
def end_to_end(machine: Machine) -> dict[str, Figure]:
    """2,000 messages a second, durable, from before the publish to inside the handler that acks."""
    count = machine.scaled(20_000)
    spans: list[int] = []
    with connected(machine) as (hr, server, directory):
        syncs = Syncs(directory)
        syncs.measure(500)
        with headrace.connect(url_of(server)) as other:
            _drip(hr, other, count, spans)
        syncs.measure(500)
        syncs.close()
    assert len(spans) == count
    p50, p99 = quantiles_us(spans[count // 10 :])
    sync50, sync99 = quantiles_us(syncs.spans_ns)
    return {
        "p50": Figure(p50 / 1e3, "ms"),
        "p99": Figure(p99 / 1e3, "ms", note=f"a bare sync: p50 {sync50 / 1e3:.2f} ms, p99 {sync99 / 1e3:.2f} ms"),
        "a bare sync, p99": Figure(sync99 / 1e3, "ms"),
    }


def _drip(hr: headrace.Headrace, other: headrace.Headrace, count: int, spans: list[int]) -> None:
    """Publish at a steady rate in one thread, handle in another."""
    topic = hr.topic("drip")
    with other.topic("drip").consumer("handler") as consumer:

        def handle() -> None:
            for d in consumer:
                now_ns = time.perf_counter_ns()
                spans.append(now_ns - int.from_bytes(d.value[:8], "big"))
                d.ack()
                if len(spans) == count:
                    return

        handler = threading.Thread(target=handle)
        handler.start()
        tail = VALUE[8:]
        with topic.publisher() as publisher:
            began = time.perf_counter_ns()
            for n in range(count):
                wait_ns = began + n * 1_000_000_000 // DRIP_PER_S - time.perf_counter_ns()
                if wait_ns > 0:
                    time.sleep(wait_ns / 1e9)
                publisher.publish(time.perf_counter_ns().to_bytes(8, "big") + tail)
        handler.join()
        consumer.flush()


@workload("sdk/partitions")
def partitions(machine: Machine) -> dict[str, Figure]:
    """A producer and a consumer for each partition, in order within the partition, all at once until all is acked."""
    count = machine.scaled(100_000)
    figures = {}
    for number in (1, PARTITIONS):
        with connected(machine) as (hr, server, _):
            topic = hr.topic("spread", partitions=number, ordering="partition")
            topic.publish_many([VALUE])
            figures[f"{number} partitions, {number} consumers"] = Figure(
                _through(topic, url_of(server), number, count), "msg/s", note="published, delivered, acked"
            )
    return figures


def _through(topic: Any, url: str, number: int, count: int) -> float:
    """So many messages through a topic while they are published."""
    taken = 0
    done = threading.Condition()

    def work() -> None:
        nonlocal taken
        with headrace.connect(url) as hr, hr.topic(topic.name).consumer("spread", prefetch=1_000) as consumer:
            while True:
                ds = consumer.receive(500, wait="200ms")
                for d in ds:
                    d.ack()
                with done:
                    taken += len(ds)
                    done.notify_all()
                    if taken > count:
                        return

    crew = [threading.Thread(target=work) for _ in range(number)]
    for thread in crew:
        thread.start()
    with done:
        assert done.wait_for(lambda: taken == 1, 60)
    began = time.perf_counter()
    values = [VALUE] * 1_000
    for n in range(count // len(values)):
        topic.publish_many(values, partition=n % number)
    with done:
        assert done.wait_for(lambda: taken > count, 60)
    took = time.perf_counter() - began
    for thread in crew:
        thread.join()
    return count / took


@workload("sdk/fanout")
def fanout(machine: Machine) -> dict[str, Figure]:
    """Ten groups that each get every message, as Python objects."""
    count = machine.scaled(50_000)
    with connected(machine) as (hr, _, _):
        topic = hr.topic("wide")
        consumers = [topic.consumer(f"g{n}", prefetch=1) for n in range(GROUPS)]
        topic.publish_many([VALUE])
        for consumer in consumers:
            consumer.ack(consumer.receive(wait="10s"))
        values = [VALUE] * min(count, 10_000)
        gc.collect()
        began = time.perf_counter()
        for _ in range(count // len(values)):
            topic.publish_many(values)
            for consumer in consumers:
                got = 0
                while got < len(values):
                    ds = consumer.receive(len(values) - got, wait="10s")
                    assert ds
                    got += len(ds)
                    consumer.ack(ds)
        took = time.perf_counter() - began
        for consumer in consumers:
            consumer.close()
    return {"delivered to 10 groups": Figure(count * GROUPS / took, "msg/s")}


# -- the broker inside the process -------------------------------------------------------------------------------------


@workload("embedded/memory")
def embedded_memory(machine: Machine) -> dict[str, Figure]:
    """No disk, no server."""
    count = machine.scaled(100_000)
    with headrace.open(":memory:", topic_defaults={"max_depth": 0}) as hr:
        one, many, piped, taken = (hr.topic(name) for name in ("one", "many", "piped", "taken"))
        values = [os.urandom(200) for _ in range(1_000)]

        def single() -> None:
            for _ in range(count):
                one.publish(VALUE)

        def batches() -> None:
            for _ in range(5 * count // len(values)):
                many.publish_many(values)

        def pipelined() -> None:
            with piped.publisher() as publisher:
                for _ in range(count):
                    publisher.publish(VALUE)

        figures = {
            "publish one by one": Figure(cpu_rate(counted(count, single)), "msg/s"),
            "publish in batches of 1,000": Figure(cpu_rate(counted(5 * count, batches)), "msg/s"),
            "publish one by one, through a publisher": Figure(cpu_rate(counted(count, pipelined)), "msg/s"),
        }
        assert (one.depth(), many.depth(), piped.depth()) == (ROUNDS * count, ROUNDS * 5 * count, ROUNDS * count)
        _backlog(taken, count)

        def consume(group: str) -> None:
            seen = 0
            with taken.consumer(group, prefetch=1_000) as consumer:
                for d in consumer.until_idle():
                    with d:
                        seen += len(d.value)
            assert seen == count * len(VALUE)

        def consume_many(group: str) -> None:
            seen = 0
            with taken.consumer(group) as consumer:
                while ds := consumer.receive(1_000, wait=0):
                    seen += sum(len(d.value) for d in ds)
                    consumer.ack(ds)
            assert seen == count * len(VALUE)

        groups = iter(range(2 * ROUNDS))
        figures["consume in batches"] = Figure(
            cpu_rate(counted(count, lambda: consume_many(f"g{next(groups)}"))), "msg/s"
        )
        figures["consume with a block each"] = Figure(
            cpu_rate(counted(count, lambda: consume(f"g{next(groups)}"))), "msg/s"
        )
    return figures


@workload("embedded/disk")
def embedded_disk(machine: Machine) -> dict[str, Figure]:
    """Durable, without a server."""
    count = machine.scaled(500_000)
    with machine.directory() as directory, headrace.open(directory / "data") as hr:
        topic = hr.topic("many")
        values = [os.urandom(200) for _ in range(1_000)]

        def work() -> None:
            for _ in range(count // len(values)):
                topic.publish_many(values)

        figures = {"publish_many of 1,000": Figure(rate(count, work), "msg/s")}
        spans = []
        for _ in range(machine.scaled(2_000)):
            began = time.perf_counter_ns()
            topic.publish(VALUE)
            spans.append(time.perf_counter_ns() - began)
        syncs = Syncs(directory)
        syncs.measure(500)
        syncs.close()
    p50, p99 = quantiles_us(spans)
    sync50, _ = quantiles_us(syncs.spans_ns)
    figures["publish one, p50"] = Figure(p50, "us", note=f"a bare sync {sync50:.0f}")
    figures["publish one, p99"] = Figure(p99, "us")
    return figures
