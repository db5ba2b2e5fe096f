"""Delivery workloads: the life of a message through a shard, without sockets.

Everything runs through ``Core.execute`` (decide, append, fold) with a memory journal, so that the figure is the cost of
the rules and not of a disk; what is about the disk says so. Rates are per second of processor time of one core, the
best of some rounds.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

from bench.machine import MIB, Machine
from bench.registry import Figure, workload
from bench.timing import cpu_rate, stopwatch
from headrace import delivery as d
from headrace.batch import Batch, encode_columns
from headrace.clock import ManualClock, SystemClock
from headrace.config import GroupConfig, TopicConfig
from headrace.journal import DiskJournal, MemoryJournal
from headrace.limits import TICK_WORK_MAX
from headrace.shard import Core
from headrace.shard.loop import LoopHost

VALUE: Final = b"x" * 200
BATCH: Final = 1000
DAY_NS: Final = 24 * 3600 * 1_000_000_000
MS_NS: Final = 1_000_000
SECOND_NS: Final = 1_000_000_000
LEASE_NS: Final = 3600 * SECOND_NS

TEN_MILLION: Final = 10_000_000
MILLION: Final = 1_000_000


class Shard:
    """A core with one topic of one partition, and groups to lease from."""

    def __init__(self, groups: int = 1, journal: Any = None, clock: Any = None, **settings: Any) -> None:
        self.core = Core(MemoryJournal() if journal is None else journal, SystemClock() if clock is None else clock)
        execute = self.core.execute
        config = TopicConfig(max_in_flight=MILLION, **{"ordering": "none", **settings})
        execute(d.CreateTopic("default", "bench", config))
        (self.topic,) = self.core.state.topics.values()
        self.pid = self.topic.partitions[0].pid
        for number in range(groups - len(self.topic.groups)):
            execute(d.CreateGroup(self.topic.tid, f"g{number}", GroupConfig()))
        self.gids = [group.gid for group in self.topic.groups.values()]
        self.gid = self.gids[0]

    def publish(self, batch: Batch, times: int = 1) -> None:
        execute, pid = self.core.execute, self.pid
        for _ in range(times):
            reply = execute(d.Publish(pid, batch)).reply
            if not isinstance(reply, d.PublishDone):
                raise TypeError(f"publish refused: {reply!r}")

    def lease_and_ack(self, count: int, most: int) -> int:
        """Lease ``most`` and ack them in one go, until ``count`` are done or nothing is left."""
        execute, gid = self.core.execute, self.gid
        lease, settle, receipts = d.LeaseUpTo, d.SettleMany, d.Receipts
        done = 0
        while done < count:
            grants = execute(lease(gid, "c", most, LEASE_NS)).reply
            if not grants:
                break
            execute(settle(gid, [receipts(g.pid, g.lease_id, g.span.first, g.span.count, g.span.bits) for g in grants]))
            for grant in grants:
                done += grant.span.count
        return done


def values(count: int = BATCH) -> list[bytes]:
    return [VALUE] * count


def plain() -> Batch:
    return encode_columns(values())


@workload("delivery/lease_ack")
def lease_ack(machine: Machine) -> dict[str, Figure]:
    """One partition, one group, ordering none."""

    def hundred() -> int:
        return shard.lease_and_ack(200_000, 100)

    def single() -> int:
        execute, gid = shard.core.execute, shard.gid
        for _ in range(20_000):
            (grant,) = execute(d.LeaseUpTo(gid, "c", 1, LEASE_NS)).reply
            execute(d.SettleMany(gid, (d.Receipts(grant.pid, grant.lease_id, grant.span.first),)))
        return 20_000

    shard = Shard()
    shard.publish(plain(), 1500)
    figures = {"lease 100 + ack 100": Figure(cpu_rate(hundred, 5), "msg/s")}
    shard = Shard()
    shard.publish(plain(), 500)
    figures["lease 1 + ack 1, one call each"] = Figure(cpu_rate(single, 10), "msg/s")
    figures["lease 1 + ack 1, 64 callers at once"] = Figure(
        cpu_rate(lambda: _many_singles(shard, 20_000, 64), 5), "msg/s"
    )
    return figures


def _many_singles(shard: Shard, count: int, callers: int) -> int:
    """Each of ``callers`` leases one message and acks it; what they ask in the same moment runs together."""
    execute_many, gid = shard.core.execute_many, shard.gid
    done = 0
    while done < count:
        granted = execute_many([d.LeaseUpTo(gid, "c", 1, LEASE_NS) for _ in range(callers)])
        grants = [reply[0] for reply, _ in granted if reply]
        if not grants:
            break
        execute_many([d.SettleMany(gid, [d.Receipts(g.pid, g.lease_id, g.span.first)]) for g in grants])
        done += len(grants)
    return done


@workload("delivery/publish")
def publish(machine: Machine) -> dict[str, Figure]:
    """Into a topic with one group, memory journal."""
    batch, one = plain(), encode_columns([VALUE])

    def many() -> int:
        shard = Shard()
        shard.publish(batch, 500)
        return 500 * BATCH

    def single() -> int:
        shard = Shard()
        shard.publish(one, 20_000)
        return 20_000

    return {
        "publish 1000": Figure(cpu_rate(many, 3), "msg/s"),
        "publish 1": Figure(cpu_rate(single, 3), "msg/s"),
    }


@workload("delivery/keys")
def keys(machine: Machine) -> dict[str, Figure]:
    """Ordering by key over 10,000 keys, and the same with random priorities."""
    rng = random.Random(1)
    names = [b"key-%05d" % number for number in range(10_000)]
    keyed = [encode_columns(values(), keys=rng.choices(names, k=BATCH)) for _ in range(200)]
    mixed = [
        encode_columns(values(), keys=rng.choices(names, k=BATCH), priorities=rng.choices(range(10), k=BATCH))
        for _ in range(200)
    ]

    def run(batches: Sequence[Batch], most: int) -> float:
        best = 0.0
        for _ in range(3):
            shard = Shard(ordering="key")
            for batch in batches:
                shard.publish(batch)
            with stopwatch() as watch:
                done = shard.lease_and_ack(MILLION, most)
            best = max(best, done / watch.cpu)
        return best

    return {
        "lease 100 + ack 100": Figure(run(keyed, 100), "msg/s"),
        "lease 100 + ack 100, random priorities": Figure(run(mixed, 100), "msg/s"),
    }


@workload("delivery/priorities")
def priorities(machine: Machine) -> dict[str, Figure]:
    """A million ready messages of random priorities: all of them leased, held, and then acked as they were leased."""
    rng = random.Random(2)
    batches = [encode_columns(values(), priorities=rng.choices(range(10), k=BATCH)) for _ in range(100)]
    shard = Shard()
    for _ in range(10):
        for batch in batches:
            shard.publish(batch)
    execute, gid = shard.core.execute, shard.gid
    grants = []
    with stopwatch() as first:
        grants += execute(d.LeaseUpTo(gid, "c", 100, LEASE_NS)).reply
    with stopwatch() as watch:
        while granted := execute(d.LeaseUpTo(gid, "c", 100, LEASE_NS)).reply:
            grants += granted
    leased = sum(grant.span.count for grant in grants)
    if leased != MILLION:
        raise RuntimeError(f"{leased} messages were leased")
    with stopwatch() as acking:
        for grant in grants:
            span = grant.span
            execute(d.SettleMany(gid, (d.Receipts(grant.pid, grant.lease_id, span.first, span.count, span.bits),)))
    return {
        "lease 100": Figure(MILLION / (first.cpu + watch.cpu), "msg/s"),
        "lease 100 + ack 100": Figure(MILLION / (first.cpu + watch.cpu + acking.cpu), "msg/s"),
        "first lease, which looks at all of them": Figure(first.cpu * 1e3, "ms"),
    }


# -- time --------------------------------------------------------------------------------------------------------------


@workload("delivery/schedule")
def schedule(machine: Machine) -> dict[str, Figure]:
    """A million messages at random times within a day: published, half of them cancelled, the others coming due."""
    rng = random.Random(3)
    clock = ManualClock()
    shard = Shard(clock=clock)
    core = shard.core
    start_ns = core.clock.now_ns()
    batches = [
        encode_columns(values(), deliver_ats_ns=[start_ns + SECOND_NS + rng.randrange(DAY_NS) for _ in range(BATCH)])
        for _ in range(1000)
    ]
    with stopwatch() as watch:
        for batch in batches:
            shard.publish(batch)
    scheduling = MILLION / watch.cpu
    held = _scheduled_bytes(core.state.partitions[shard.pid])
    wanted = [rng.sample(range(first, first + BATCH), BATCH // 2) for first in range(0, MILLION, BATCH)]
    spans = [d.span_of(offsets) for offsets in wanted]
    with stopwatch() as watch:
        for span in spans:
            core.execute(d.Cancel(shard.pid, span))
    cancelling = MILLION / 2 / watch.cpu
    singles = [d.Span(offset, 1) for offset in core.state.partitions[shard.pid].scheduled[:50_000]]
    with stopwatch() as watch:
        for span in singles:
            core.execute(d.Cancel(shard.pid, span))
    one_by_one = len(singles) / watch.cpu
    left = len(core.state.partitions[shard.pid].scheduled)
    with stopwatch() as watch:
        # The clock goes on in steps in which about as much comes due as one tick does.
        while core.state.partitions[shard.pid].scheduled:
            clock.advance(DAY_NS // (left // (TICK_WORK_MAX // 2)))
            core.tick()
    firing = left / watch.cpu
    return {
        "schedule": Figure(scheduling, "msg/s"),
        "cancel, 500 of 1000 in one call": Figure(cancelling, "msg/s"),
        "cancel, one a call": Figure(one_by_one, "msg/s"),
        "fire": Figure(firing, "msg/s"),
        "memory of a scheduled message": Figure(held / MILLION, "B"),
    }


def _scheduled_bytes(partition: Any) -> int:
    due = partition.schedule
    buckets = sum(sys.getsizeof(bucket) + 120 for bucket in due._buckets.values()) + sys.getsizeof(due._buckets)
    return buckets + sys.getsizeof(due._current) + len(partition.scheduled.serialize())


@workload("delivery/lateness")
def lateness(machine: Machine) -> dict[str, Figure]:
    """How long after its millisecond a delayed message is ready, on an idle event loop and the machine's own clock."""
    late_us = sorted(asyncio.run(_lateness(count=2000, span_ns=2 * SECOND_NS)))
    return {
        "p50": Figure(late_us[len(late_us) // 2], "us"),
        "p99": Figure(late_us[len(late_us) * 99 // 100], "us"),
        "earliest": Figure(late_us[0], "us", note="below 0 would be early"),
    }


async def _lateness(count: int, span_ns: int) -> list[float]:
    shard = Shard()
    core = shard.core
    host = LoopHost(core)
    now_ns = core.clock.now_ns
    first_ns = now_ns() + SECOND_NS // 4
    rng = random.Random(4)
    due_ns = [first_ns + rng.randrange(span_ns) for _ in range(count)]
    for at in range(0, count, BATCH):
        batch = encode_columns(values(), deliver_ats_ns=due_ns[at : at + BATCH])
        await host.run(lambda batch=batch: core.execute(d.Publish(shard.pid, batch)))
    late: list[float] = []
    everything = asyncio.Event()

    def watch(facts: Sequence[Any], batches: Sequence[Batch], position: int) -> None:
        at_ns = now_ns()
        for fact in facts:
            if isinstance(fact, d.Due):
                late.extend((at_ns - due_ns[offset]) / 1000 for offset in fact.offsets)
        if len(late) == count:
            everything.set()

    core.observer = watch
    await everything.wait()
    await host.close()
    return late


# -- many --------------------------------------------------------------------------------------------------------------


@workload("delivery/fanout")
def fanout(machine: Machine) -> dict[str, Figure]:
    """One stream of publishes of 100, and ten groups that lease and ack all of it in hundreds."""
    batch = encode_columns(values(100))

    def run() -> int:
        shard = Shard(groups=10)
        execute, pid = shard.core.execute, shard.pid
        lease, settle, receipts = d.LeaseUpTo, d.SettleMany, d.Receipts
        deliveries = 0
        for _ in range(300):
            execute(d.Publish(pid, batch))
            for gid in shard.gids:
                (grant,) = execute(lease(gid, "c", 100, LEASE_NS)).reply
                execute(settle(gid, [receipts(grant.pid, grant.lease_id, grant.span.first, grant.span.count)]))
                deliveries += grant.span.count
        return deliveries

    return {"10 groups": Figure(cpu_rate(run, 5), "deliveries/s")}


@workload("delivery/backlog")
def backlog(machine: Machine) -> dict[str, Figure]:
    """What a lease and an ack cost with ten million waiting, beside ten thousand."""
    batch = plain()

    def cost_us(waiting: int, most: int) -> float:
        shard = Shard(journal=Forgetful())
        shard.publish(batch, waiting // BATCH)
        shard.lease_and_ack(most, most)
        count = 50 * most
        rate = cpu_rate(lambda: shard.lease_and_ack(count, most), 3)
        return most / rate * 1e6

    figures = {}
    for most in (1, 100):
        few, many = cost_us(10_000 + 200 * most, most), cost_us(TEN_MILLION, most)
        figures[f"lease {most} + ack {most}, 10 million waiting"] = Figure(many, "us")
        figures[f"lease {most} + ack {most}, 10 thousand waiting"] = Figure(few, "us")
        figures[f"lease {most} + ack {most}, ratio"] = Figure(many / few, "x")
    return figures


class Forgetful(MemoryJournal):
    """A journal that lets go of everything at once: what is measured is the state's memory, not the journal's."""

    __slots__ = ()

    def append(self, kind: int, *buffers: Any, reserve: bool = False) -> int:
        position = super().append(kind, *buffers, reserve=reserve)
        self.truncate_before(self.commit())
        return position


MEMORY_OF_A_BACKLOG: Final = """
import gc, os, sys
from collections import deque
from pathlib import Path
from headrace import delivery as d
from headrace.batch import encode_columns
from headrace.clock import SystemClock
from headrace.config import TopicConfig
from headrace.journal import DiskJournal
from headrace.shard import Core

def rss_bytes():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

directory, count, size, value_bytes = sys.argv[1], *map(int, sys.argv[2:])
core = Core(DiskJournal.open(directory), SystemClock())
core.execute(d.CreateTopic("default", "bench", TopicConfig()))
(pid,), (gid,) = core.state.partitions, core.state.groups
value = os.urandom(value_bytes)
empty = rss_bytes()
waiting = deque()
for _ in range(count // size):
    waiting.append(core.execute(d.Publish(pid, encode_columns([value] * size))).position)
    core.journal.commit_soon()
    if len(waiting) > 64:
        core.journal.wait_durable(waiting.popleft())
core.journal.commit()
core.execute(d.LeaseUpTo(gid, "c", 100, 10**9))
assert core.state.groups[gid].unsettled_count == count // size * size
print(rss_bytes() - empty)
"""


@workload("delivery/memory")
def memory(machine: Machine) -> dict[str, Figure]:
    """What ten million messages of 1 KB that wait on a disk journal add to the process; ten gigabytes are written."""

    def added(count: int, size: int, value_bytes: int) -> float:
        with machine.directory() as directory:
            arguments = [str(directory), str(count), str(size), str(value_bytes)]
            ran = subprocess.run(
                [sys.executable, "-c", MEMORY_OF_A_BACKLOG, *arguments], capture_output=True, text=True, check=True
            )
        return int(ran.stdout) / MIB

    return {
        "10,000,000 ready, published in batches of 1,000": Figure(added(TEN_MILLION, BATCH, 1024), "MiB"),
        "1,000,000 ready, published one by one": Figure(added(MILLION, 1, 200), "MiB", note="values of 200 B"),
    }


# -- recovery ----------------------------------------------------------------------------------------------------------

HALF_SETTLED: Final = """
import os, signal, sys
from headrace import delivery as d
from headrace.batch import encode_columns
from headrace.clock import SystemClock
from headrace.config import TopicConfig
from headrace.journal import DiskJournal
from headrace.shard import Core

directory, count, size, snapshot = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "snapshot"
core = Core(DiskJournal.open(directory), SystemClock())
execute = core.execute
execute(d.CreateTopic("default", "bench", TopicConfig(max_in_flight=count)))
(pid,), (gid,) = core.state.partitions, core.state.groups
batch = encode_columns([b"x" * 200] * size)
for _ in range(count // size):
    execute(d.Publish(pid, batch))
core.journal.commit()
for _ in range(count // 200):
    (grant,) = execute(d.LeaseUpTo(gid, "c", 100)).reply
    for offset in grant.span:
        execute(d.SettleMany(gid, [d.Receipts(pid, grant.lease_id, offset)]))
    core.journal.commit_soon()
core.journal.commit()
if snapshot:
    core.journal.save_snapshot(*core.take_snapshot())
os.kill(os.getpid(), signal.SIGKILL)
"""


@workload("delivery/recovery")
def recovery(machine: Machine) -> dict[str, Figure]:
    """A shard of a million messages, half of them acked one by one, whose process was killed: until it can work."""

    def seconds(size: int, how: str) -> float:
        with machine.directory() as directory:
            command = [sys.executable, "-c", HALF_SETTLED, str(directory), str(MILLION), str(size), how]
            ended = subprocess.run(command, check=False)
            if ended.returncode != -signal.SIGKILL:
                raise RuntimeError(f"the writer ended with {ended.returncode} before it could be killed")
            with stopwatch() as watch:
                journal = DiskJournal.open(directory)
                core = Core(journal, SystemClock())
            (group,) = core.state.groups.values()
            if group.unsettled_count != MILLION // 2 or core.backlog_drift():
                raise RuntimeError(f"recovered {group.unsettled_count} unsettled messages")
            journal.close()
        return watch.wall

    return {
        "published in batches of 100": Figure(seconds(100, "journal"), "s"),
        "published one by one": Figure(seconds(1, "journal"), "s"),
        "from a snapshot": Figure(seconds(100, "snapshot"), "s"),
    }
