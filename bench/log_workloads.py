"""The log's cold side: sealing, what it takes on the disk and from publishers, and how soon the past answers.

Messages are JSON of about 200 bytes, each another one, in batches of 1,000. What waits for nothing is measured in
processor time; what somebody waits for, in wall time. Questions to the past are asked with nothing held in memory of
what was sealed (the system's page cache is warm, as it is on a server that just sealed), and every replay counts what
came back.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from bench.machine import MIB, Machine
from bench.registry import Figure, workload
from bench.timing import stopwatch
from headrace.batch import Batch, encode_columns
from headrace.broker.broker import Broker
from headrace.broker.embedded import EmbeddedPort, open_core, tell_logging
from headrace.calls import Run, Settle
from headrace.client.handles import Headrace
from headrace.clock import SystemClock
from headrace.config import SealConfig, TopicConfig
from headrace.limits import SECOND_NS
from headrace.shard.sealing import Sealer

BATCH: Final = 1_000
MILLION: Final = 1_000_000
DISTINCT: Final = 100
"""Batches that differ; they come again after more than a row group."""
WINDOW: Final = 32
TURNS: Final = 3
ASKED: Final = 15
PUBLISH_SECONDS: Final = 4


@cache
def batches() -> tuple[Batch, ...]:
    """JSON of about 200 bytes a message: an order, with the words and numbers orders have."""
    draw = random.Random(7)
    found = []
    for _ in range(DISTINCT):
        values = []
        for _ in range(BATCH):
            order = {
                "order_id": draw.randrange(10**9),
                "customer": f"customer-{draw.randrange(10**6):06d}",
                "status": draw.choice(("created", "paid", "packed", "shipped", "returned")),
                "amount_cents": draw.randrange(100, 100_000),
                "currency": draw.choice(("EUR", "USD", "GBP")),
                "items": draw.randrange(1, 9),
                "country": draw.choice(("DE", "FR", "US", "GB", "NL", "SE")),
                "note": draw.choice(("", "leave at the door", "gift", "fragile", "call first")),
                "created_at": f"2026-11-{draw.randrange(1, 29):02d}T{draw.randrange(24):02d}:{draw.randrange(60):02d}Z",
            }
            values.append(json.dumps(order).encode())
        found.append(encode_columns(values))
    return tuple(found)


def mean_bytes() -> float:
    sizes = [len(value) for batch in batches() for value in batch.values()]
    return statistics.mean(sizes)


@contextmanager
def opened(path: Path, **seal: Any) -> Iterator[EmbeddedPort]:
    """A broker on a directory whose log is sealed when it is told to."""
    config = SealConfig(**{"behind_bytes": 0, **seal})
    defaults = TopicConfig(max_depth=0, max_delay_ns=0)
    port = EmbeddedPort(Broker(open_core(path, seal=config), topic_defaults=defaults), SystemClock(), config)
    try:
        yield port
    finally:
        port.close()


def publish(port: EmbeddedPort, count: int, topic: str = "orders") -> None:
    """Durably, a bounded number of batches under way."""
    made = batches()
    waiting: deque[Any] = deque()
    for number in range(count // BATCH):
        waiting.append(port.publish_begin("default", topic, 0, made[number % DISTINCT]))
        port.broker.core.journal.commit_soon()
        if len(waiting) >= WINDOW:
            waiting.popleft().result()
    while waiting:
        waiting.popleft().result()


def sealed_bytes(port: EmbeddedPort) -> int:
    """What the live files take, those of events included."""
    manifest = port.broker.core.manifest
    return sum(file.size_bytes for file in (*manifest.live_segments(), *manifest.live_events()))


@workload("log/seal")
def seal(machine: Machine) -> dict[str, Figure]:
    """Journal to Parquet, zstd: how fast a core does it, and what is left on the disk."""
    count = machine.scaled(2 * MILLION) // BATCH * BATCH
    rates, walls = [], []
    size_bytes = left_bytes = 0
    for _ in range(TURNS):
        with machine.directory() as directory, opened(directory) as port:
            publish(port, BATCH)
            port.sealer.round(everything=True)  # what is imported at first use is there
            publish(port, count)
            with stopwatch() as watch:
                done = port.sealer.round(everything=True)
            if done.messages != count:
                raise RuntimeError(f"{done.messages} of {count} messages were sealed")
            rates.append(count / watch.cpu)
            walls.append(count / watch.wall)
            size_bytes = sealed_bytes(port)
            left_bytes = port.broker.core.journal.end_position - port.broker.core.manifest.sealed_to
    return {
        "sealed a second of processor": Figure(max(rates), "msg/s"),
        "sealed a second": Figure(statistics.median(walls), "msg/s"),
        "on the disk beside the values": Figure(size_bytes / (count * mean_bytes()), "x"),
        "on the disk, a message": Figure(size_bytes / count, "B", note=f"values of {mean_bytes():.0f} B"),
        "journal left unsealed": Figure(left_bytes / MIB, "MiB"),
    }


@workload("log/publish_while_sealing")
def publish_while_sealing(machine: Machine) -> dict[str, Figure]:
    """Publishing with and without a sealer at work, in turns; there is more to seal than it gets done meanwhile."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    worked = 0
    with machine.directory() as directory, opened(directory, interval_ns=SECOND_NS) as port:
        core = port.broker.core
        publish(port, machine.scaled(3 * MILLION))
        for _ in range(TURNS):
            rates[False].append(_published_a_second(port))
            sealer = Sealer(core, port.host.run, port.sealer._config, SystemClock(), tell_logging)
            before = core.manifest.sealed_to
            sealer.start()
            sealer.nudge()
            rates[True].append(_published_a_second(port))
            sealer.stop()
            worked += core.manifest.sealed_to - before
    if not worked:
        raise RuntimeError("nothing was sealed meanwhile")
    without, with_it = max(rates[False]), max(rates[True])
    return {
        "publish beside without sealing": Figure(with_it / without, "x"),
        "publish while sealing": Figure(with_it, "msg/s"),
        "publish without": Figure(without, "msg/s"),
        "sealed meanwhile, a turn": Figure(worked / TURNS / MIB, "MiB"),
    }


def _published_a_second(port: EmbeddedPort) -> float:
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < PUBLISH_SECONDS:
        publish(port, 200 * BATCH)
        done += 200 * BATCH
    return done / (time.perf_counter() - began)


@workload("log/past")
def past(machine: Machine) -> dict[str, Figure]:
    """Ten million messages sealed: replays, the first message of a time, traces."""
    count = machine.scaled(10 * MILLION) // BATCH * BATCH
    half = count // 2
    with machine.directory() as directory, opened(directory) as port:
        publish(port, count)
        port.sealer.round(everything=True)
        lived = _lived(port)
        figures = {
            "replay as Arrow": _replayed_as_arrow(port, half),
            "replay as deliveries": _replayed_as_deliveries(port, half),
            "first message of a time, sealed": _first_of_a_time(port, count),
            "trace of a recent message": _traced(port, lived, cold=False),
            "trace of a sealed message": _traced(port, _some_ids(port, count), cold=True),
        }
        port.sealer.round(everything=True)
        figures["trace of a sealed message that had a life"] = _traced(port, lived, cold=True)
    return figures


def _lived(port: EmbeddedPort) -> list[int]:
    """Ids of messages that were just leased and acked."""
    consumer = port.consumer("default", "orders", "late", consumer="c", options={"start": "latest"})
    publish(port, BATCH)
    ids: list[int] = []
    for leased in consumer.receive(BATCH, 0):
        ids += leased.batch.ids()
        run = Run(leased.partition, leased.lease_id, leased.batch.base_offset, leased.batch.count)
        consumer.settle(Settle(ack=[run]))
    consumer.close()
    return ids


def _forget(port: EmbeddedPort) -> None:
    """Nothing of the sealed files is held any more."""
    manifest = port.broker.core.manifest
    port.broker.core.cold.forget([file.path for file in (*manifest.live_segments(), *manifest.live_events())])


def _replayed_as_arrow(port: EmbeddedPort, count: int) -> Figure:
    rates = []
    for _ in range(TURNS):
        _forget(port)
        began = time.perf_counter()
        rows = sum(table.num_rows for table in port.tables("default", "orders", from_offset=0, to_offset=count))
        rates.append(rows / (time.perf_counter() - began))
        if rows != count:
            raise RuntimeError(f"{rows} of {count} messages came back")
    return Figure(statistics.median(rates), "msg/s")


def _replayed_as_deliveries(port: EmbeddedPort, count: int) -> Figure:
    orders = Headrace(port, namespace="default", name=None, now_ns=port.now_ns).topic("orders")
    _forget(port)
    began = time.perf_counter()
    read = size_bytes = 0
    for record in orders.read(limit=count):
        read += 1
        size_bytes += len(record.value)
    rate = read / (time.perf_counter() - began)
    if read != count or abs(size_bytes / count / mean_bytes() - 1) > 0.01:
        raise RuntimeError(f"{read} of {count} messages came back")
    return Figure(rate, "msg/s")


def _first_of_a_time(port: EmbeddedPort, count: int) -> Figure:
    """The slowest of some: a time in, a message out."""
    log = port.broker.core.log(0) if 0 in port.broker.core.logs else next(iter(port.broker.core.logs.values()))
    first, last = log.batch_at(0), log.batch_at(count - 1)
    if first is None or last is None:
        raise RuntimeError("the log has no beginning or no end")
    draw, spans = random.Random(3), []
    for _ in range(ASKED):
        _forget(port)
        time_ns = draw.randrange(first.append_time_ns, last.append_time_ns)
        began = time.perf_counter()
        _, found = port.call("read", topic="orders", from_time_ns=time_ns, limit=1)
        spans.append(time.perf_counter() - began)
        if not found or found[0].append_time_ns < time_ns:
            raise RuntimeError("that was not the first message of the time")
    return Figure(max(spans) * 1e3, "ms")


def _some_ids(port: EmbeddedPort, count: int) -> list[int]:
    draw = random.Random(5)
    ids = []
    for _ in range(ASKED):
        _, [batch] = port.call("read", topic="orders", from_offset=draw.randrange(count), limit=1)
        ids.append(batch.base_id)
    return ids


def _traced(port: EmbeddedPort, ids: list[int], *, cold: bool) -> Figure:
    """The slowest of some."""
    spans = []
    for message_id in ids[:: max(1, len(ids) // ASKED)]:
        if cold:
            _forget(port)
        began = time.perf_counter()
        told = port.call("trace", id=message_id)
        spans.append(time.perf_counter() - began)
        if told["events"][0]["event"] != "PUBLISHED":
            raise RuntimeError(f"no beginning: {told['events']}")
    return Figure(max(spans) * 1e3, "ms")


@workload("log/nothing_kept")
def nothing_kept(machine: Machine) -> dict[str, Figure]:
    """A topic that keeps nothing after everybody acked: what of it is ever written twice, and how large it gets."""
    count = machine.scaled(2 * MILLION) // BATCH * BATCH
    with machine.directory() as directory, opened(directory, behind_bytes=64 * MIB) as port:
        port.call("topic.create", topic="orders", settings={"retain_acked": False, "ordering": "none"})
        consumer = port.consumer("default", "orders", "default", consumer="c")
        journal, most, files = port.broker.core.journal, 0, 0
        for _ in range(20):
            publish(port, count // 20)
            while leased := consumer.receive(10_000, 0):
                runs = [Run(one.partition, one.lease_id, one.batch.base_offset, one.batch.count) for one in leased]
                consumer.settle(Settle(ack=runs))
            port.sealer.round()
            most = max(most, journal.end_position - journal.first_position)
            files = max(files, len(list((directory / "log").rglob("*.parquet"))) if (directory / "log").exists() else 0)
        consumer.close()
        written = journal.end_position
    return {
        "Parquet files written": Figure(files, ""),
        "journal at most": Figure(most / MIB, "MiB"),
        "journal written in all": Figure(written / MIB, "MiB"),
    }


@workload("log/scheduled")
def scheduled(machine: Machine) -> dict[str, Figure]:
    """Ten million scheduled over a month: counting, listing, moving and cancelling some, a restart."""
    count = machine.scaled(10 * MILLION) // BATCH * BATCH
    draw = random.Random(11)
    with machine.directory() as directory:
        with opened(directory) as port:
            port.call("topic.create", topic="reminders", settings={"message_ttl": "none"})
            now_ns = port.now_ns()
            for number in range(count // BATCH):
                due = [now_ns + draw.randrange(3_600, 30 * 86_400) * SECOND_NS for _ in range(BATCH)]
                headers: list[dict[str, str | bytes] | None] | None = None
                if number % 1_000 == 0:
                    headers = [{"tag": "campaign"} for _ in range(BATCH)]
                port.publish(
                    "default", "reminders", 0, encode_columns([b"x"] * BATCH, deliver_ats_ns=due, headers=headers)
                )
            tagged = -(-count // BATCH // 1_000) * BATCH
            figures = {
                "count": _slowest(port, "schedule.count"),
                "list the next 100": _slowest(port, "schedule.list", limit=100),
            }
            began = time.perf_counter()
            done = port.call("schedule.cancel", topic="reminders", tag="campaign")["cancelled"]
            figures["cancel by tag"] = Figure(time.perf_counter() - began, "s", note=f"{done:,} of {count:,}")
            if done != tagged:
                raise RuntimeError(f"{done} of {tagged} were cancelled")
            port.call("schedule.move", topic="reminders", ids=_next_ids(port, 100), delay_ns=7_200 * SECOND_NS)
            figures["resident"] = Figure(resident_bytes() / MIB, "MiB")
        began = time.perf_counter()
        with opened(directory) as port:
            figures["restart"] = Figure(time.perf_counter() - began, "s")
            left = port.call("schedule.count", topic="reminders")["scheduled"]
            if left != count - tagged:
                raise RuntimeError(f"{left} of {count - tagged} came back")
    return figures


def _next_ids(port: EmbeddedPort, count: int) -> list[int]:
    return [row["id"] for row in port.call("schedule.list", topic="reminders", limit=count)]


def _slowest(port: EmbeddedPort, method: str, **arguments: Any) -> Figure:
    spans = []
    for _ in range(ASKED):
        began = time.perf_counter()
        port.call(method, topic="reminders", **arguments)
        spans.append(time.perf_counter() - began)
    return Figure(max(spans) * 1e3, "ms")


def resident_bytes() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))
