"""A whole shard on a simulated disk: each of its first calls failed once, in turn; and a disk that fills up again and
again. What clients were told is kept beside it and compared with what a new life of the shard hands out.
"""

from __future__ import annotations

import errno
import random

import pytest

from headrace import delivery as d
from headrace.batch import encode_one
from headrace.clock import ManualClock
from headrace.config import TopicConfig
from headrace.errors import StorageFailed, StorageFull
from headrace.journal import DiskJournal
from headrace.shard import Core
from headrace.shard.threads import ThreadHost
from headrace.testing import Fault, SimulatedDisk

WHERE = "/journal"
FILE_BYTES = 64 * 1024
CALLS = 200
ROUNDS = 50
ROOM_BYTES = 1 << 30
HOUR_NS = 3_600 * 1_000_000_000


class Shard:
    """A shard with one topic, and what it has confirmed."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.clock = ManualClock()
        self.published: set[int] = set()
        self.acked: set[int] = set()
        self.unsure: set[int] = set()  # asked for, and not told whether it was done
        self.next = 0
        self.open()

    def open(self) -> None:
        journal = DiskJournal.open(
            WHERE, files=self.disk, file_size_bytes=FILE_BYTES, new_identity=lambda: b"0123456789abcdef"
        )
        core = Core(journal, self.clock)
        self.host = ThreadHost(core, self.clock)
        self.host.core.journal.commit()

    def create(self) -> None:
        core = self.host.core
        if not core.state.topics:
            self.host.run(lambda: core.execute(d.CreateTopic("default", "t", TopicConfig(ordering="none"))))

    def publish(self, size_bytes: int = 300) -> None:
        core, number = self.host.core, self.next
        (pid,) = core.state.partitions
        self.next += 1
        self.unsure.add(number)
        value = b"%d" % number + bytes(size_bytes)
        self.host.run(lambda: core.execute(d.Publish(pid, encode_one(value))))
        self.unsure.discard(number)
        self.published.add(number)

    def publish_for_ever(self, rng: random.Random) -> None:
        while True:
            self.publish(rng.choice((10, 2000)))

    def lease(self, most: int) -> list[tuple[d.Grant, list[int]]]:
        core = self.host.core
        (gid,) = core.state.groups
        (pid,) = core.state.partitions
        grants = self.host.run(lambda: core.execute(d.LeaseUpTo(gid, "c", most, HOUR_NS)))
        found = []
        for grant in grants:
            numbers = []
            for offset in grant.span:
                batch = core.log(pid).batch_at(offset)
                assert batch is not None
                numbers.append(int(bytes(batch.value(offset - batch.base_offset)).split(b"\0")[0]))
            found.append((grant, numbers))
        return found

    def ack(self, grant: d.Grant, numbers: list[int]) -> None:
        core = self.host.core
        (gid,) = core.state.groups
        span = grant.span
        receipts = d.Receipts(grant.pid, grant.lease_id, span.first, span.count, span.bits)
        self.unsure.update(numbers)
        self.host.run(lambda: core.execute(d.SettleMany(gid, [receipts])))
        self.unsure.difference_update(numbers)
        self.acked.update(numbers)

    def check(self) -> None:
        """Everything confirmed and not acked is handed out once, nothing acked is; the books balance."""
        handed: list[int] = []
        acked, unsure = set(self.acked), set(self.unsure)
        for _ in range(3):  # leases of the earlier life are over, then their backoff is
            self.clock.advance(HOUR_NS)
            while found := self.lease(100):
                for grant, numbers in found:
                    handed += numbers
                    self.ack(grant, numbers)
        assert len(handed) == len(set(handed)), "a message was handed out twice"
        assert self.published - acked - unsure <= set(handed), "a confirmed publish is gone"
        assert not acked & set(handed), "a message came back after its ack was confirmed"
        assert set(handed) <= self.published | unsure, "a message that was never sent"
        for backlog in self.host.core.state.backlogs():
            assert not backlog.drift()
            assert not backlog.unsettled_count


@pytest.mark.feature("F004", "F155")
@pytest.mark.parametrize("fault", [errno.EIO, errno.EROFS])
def test_after_any_failed_call_a_shard_confirms_nothing_more_and_nothing_confirmed_is_lost(fault: int) -> None:
    for call in range(1, CALLS + 1):
        rng = random.Random(call)
        disk = SimulatedDisk(rule=rng.choice(("strict", "ext4")))
        disk.faults[call] = Fault(fault)
        shard = None
        try:
            shard = Shard(disk)
            shard.create()
            while disk.calls <= CALLS + 60:
                shard.publish()
                if rng.random() < 0.3:
                    for grant, numbers in shard.lease(5):
                        shard.ack(grant, numbers)
                if rng.random() < 0.02:
                    shard.host.core.save_snapshot(*shard.host.core.take_snapshot())
        except StorageFailed:
            pass
        assert disk.failed_calls == 1, f"call {call} was not reached"
        if shard is None:
            continue  # it failed while it was opened: nothing was confirmed
        calls = disk.calls
        if shard.host.core.state.topics:
            sent = len(shard.published)
            with pytest.raises(StorageFailed):
                shard.publish()
            assert len(shard.published) == sent
        assert disk.calls == calls, f"call {call}: it went on writing"
        shard.disk = disk.crash(rng) if call % 2 else disk.kill()
        try:
            shard.open()
            shard.create()
            shard.check()
        except Exception as error:
            raise AssertionError(f"call {call}: {error!r}") from error


def test_a_disk_that_fills_up_again_and_again_costs_nothing_and_is_taken_up_by_itself() -> None:
    disk = SimulatedDisk(room_bytes=ROOM_BYTES)
    shard = Shard(disk)
    shard.create()
    rng = random.Random(1)
    for number in range(ROUNDS):
        disk.room_total_bytes -= disk.room_bytes(WHERE) - rng.randrange(2 * FILE_BYTES)
        with pytest.raises(StorageFull):
            shard.publish_for_ever(rng)
        shard.unsure.clear()  # a refusal is an answer: it was not done
        for grant, numbers in shard.lease(20):
            shard.ack(grant, numbers)
        disk.room_total_bytes = ROOM_BYTES
        shard.publish()
        if number % 10 == 9:
            shard.disk = disk = disk.crash(rng)
            shard.open()
            shard.clock.advance(2 * HOUR_NS)
    shard.disk = disk.crash(rng)
    shard.open()
    shard.check()
