"""Inputs acked, outputs published, schedules made and cancelled: one record, or none of it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace import delivery as d
from headrace.batch import Message, encode
from headrace.clock import ManualClock
from headrace.config import TopicConfig
from headrace.delivery import SettleMany, State, snapshot
from headrace.errors import (
    HeadraceError,
    InvalidArgument,
    LeaseLost,
    LimitExceeded,
    PayloadTooLarge,
    QueueFull,
    UnknownTopic,
)
from headrace.journal import DiskJournal
from headrace.shard import Core
from headrace.testing import Fault, PowerCut, SimulatedDisk
from unit.delivery.harness import HOUR, Stage, after, plain


def pid_of(stage: Stage, topic: str) -> int:
    return stage.partition(topic=topic).pid


def batch(*messages: str | Message) -> Any:
    return encode([plain(message) for message in messages])


@pytest.mark.feature("N12", "F121")
def test_everything_of_a_settle_is_one_record(stage: Stage) -> None:
    stage.topic("out")
    stage.topic("in", ordering="none")
    stage.publish("a", "b", "c", after("reminder", HOUR))
    a, b, c = (delivery.receipt for delivery in stage.lease(3))
    stage.journal.commit()
    frames = len(list(stage.journal.read()))
    done = stage.settle(
        ack=[a],
        nack=[(b, 0, "")],
        reject=[(c, "bad")],
        publish=[(pid_of(stage, "out"), batch("result", after("follow up", HOUR)))],
        cancel=[(pid_of(stage, "in"), d.Span(3, 1))],
    )
    assert (done.settled, done.cancelled, done.published[0].count) == (3, 1, 2)
    stage.journal.commit()
    assert len(list(stage.journal.read())) == frames + 1
    assert [stage.state_of(n) for n in range(4)] == [State.ACKED, State.READY, State.DEAD, State.CANCELLED]
    assert stage.values(9, topic="out") == ["result"]
    stage.advance(HOUR)
    assert stage.values(9, topic="out") == ["follow up"]


BAD: dict[str, tuple[type[HeadraceError], Any]] = {
    "a stale receipt": (LeaseLost, lambda out, held: {"ack": [held, d.Receipts(held.pid, 999, 0)]}),
    "a full output": (QueueFull, lambda out, held: {"ack": [held], "publish": [(out, batch(*"abcde"))]}),
    "an output that never fits": (
        LimitExceeded,
        lambda out, held: {"ack": [held], "publish": [(out, batch(*"abcdef"))]},
    ),
    "a delay beyond what is allowed": (
        InvalidArgument,
        lambda out, held: {"ack": [held], "publish": [(out, batch(after("x", 2 * HOUR)))]},
    ),
    "a message that is too large": (
        PayloadTooLarge,
        lambda out, held: {"ack": [held], "publish": [(out, batch(Message(b"x" * 2000)))]},
    ),
    "an output of another shard": (UnknownTopic, lambda out, held: {"ack": [held], "publish": [(99, batch("x"))]}),
    "a cancel in another shard": (
        UnknownTopic,
        lambda out, held: {"ack": [held], "cancel": [(99, d.Span(0, 1))]},
    ),
    "two batches into one partition": (
        InvalidArgument,
        lambda out, held: {"ack": [held], "publish": [(out, batch("x")), (out, batch("y"))]},
    ),
    "the same message twice": (
        InvalidArgument,
        lambda out, held: {"ack": [held, held], "publish": [(out, batch("x"))]},
    ),
}


@pytest.mark.feature("N12")
@pytest.mark.parametrize("what", BAD)
def test_one_thing_that_is_wrong_refuses_all_of_it(stage: Stage, what: str) -> None:
    error, entries = BAD[what]
    out = stage.topic("out", max_depth=5, max_delay_ns=HOUR, max_message_bytes=1000).partitions[0].pid
    stage.publish("there already")
    stage.topic("in")
    stage.publish("a")
    held = stage.take("a").receipt
    before = snapshot(stage.state)
    wanted = entries(out, held)
    if what == "a stale receipt":
        wanted["publish"] = [(out, batch("x"))]
    assert isinstance(stage.settle(**wanted), error)
    assert snapshot(stage.state) == before
    assert stage.settle(ack=[held]).settled == 1


@pytest.mark.feature("N12", "F121")
def test_outputs_with_a_dedup_id_are_stored_once_however_often_the_work_is_done(stage: Stage) -> None:
    stage.topic("out")
    stage.topic("in")
    stage.publish("a")
    for _ in range(3):
        (held,) = stage.lease(topic="in")
        stage.settle(
            nack=[(held.receipt, 0, "crashed after publishing")],
            publish=[(pid_of(stage, "out"), batch(Message(b"result", dedup_id=b"of a")))],
        )
    assert stage.values(9, topic="out") == ["result"]


def test_batches_for_two_partitions_of_one_topic_share_its_depth_and_its_dedup_ids(stage: Stage) -> None:
    first, second = (each.pid for each in stage.topic("out", partitions=2, max_depth=3).partitions)
    stage.topic("in")
    stage.publish("a", "b")
    held, other = (delivery.receipt for delivery in stage.lease(2))
    once = Message(b"once", dedup_id=b"x")
    assert isinstance(
        stage.settle(ack=[held], publish=[(first, batch("1", "2")), (second, batch("3", "4"))]), LimitExceeded
    )
    done = stage.settle(ack=[held], publish=[(first, batch(once)), (second, batch(once))])
    assert [each.count for each in done.published] == [1, 0]
    assert done.published[1].duplicates[0][1] == done.published[0].base_id
    assert stage.settle(ack=[other], publish=[(second, batch("3", "4"))]).settled == 1


# -- crashes -----------------------------------------------------------------------------------------------------------


class Machine:
    """A shard on a simulated disk with one message to work on, and one that is scheduled."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.clock = ManualClock()
        self.open()
        for name in ("in", "out"):
            self.core.execute(d.CreateTopic("default", name, TopicConfig(ordering="none")))
        self.core.execute(d.Publish(1, batch("a", after("reminder", HOUR))))
        (self.grant,) = self.core.execute(d.LeaseUpTo(1, "c", 1)).reply
        self.core.journal.commit()

    def open(self) -> None:
        journal = DiskJournal.open("/shard", files=self.disk, file_size_bytes=1 << 16, new_identity=lambda: b"i" * 16)
        self.core = Core(journal, self.clock)

    def work(self) -> bool:
        """Settle with outputs; whether it was confirmed."""
        command = SettleMany(
            1,
            ack=[d.Receipts(1, self.grant.lease_id, 0)],
            publish=[(2, batch("result", Message(b"x" * 5000), after("later", HOUR)))],
            cancel=[(1, d.Span(1, 1))],
        )
        try:
            self.core.execute(command)
            self.core.journal.commit()
        except (HeadraceError, PowerCut):
            return False
        return True

    def crash(self, rng: random.Random) -> None:
        self.disk = self.disk.crash(rng)
        self.open()

    def outcome(self) -> tuple[bool, bool, bool, bool]:
        """What of it happened: acked, published, scheduled, cancelled."""
        state = self.core.state
        worked, out = state.groups[1].backlogs[1], state.partitions[2]
        return 0 in worked.done, out.end == 3, 2 in out.scheduled, 1 in worked.cancelled


@pytest.mark.feature("N12")
def test_a_crash_at_any_write_leaves_all_of_it_or_nothing() -> None:
    """Each call to the disk in turn is the last one; of what was written and not synced any part may be there."""
    seen: set[bool] = set()
    boundary = 0
    while True:
        boundary += 1
        for seed in range(8):
            machine = Machine()
            calls = machine.disk.calls
            machine.disk.faults[calls + boundary] = Fault(power_cut=True)
            confirmed = machine.work()
            if confirmed and machine.disk.calls < calls + boundary:
                assert seen == {True, False}, "both outcomes are met on the way"
                return
            machine.crash(random.Random(seed * 1000 + boundary))
            happened = set(machine.outcome())
            assert len(happened) == 1, f"call {boundary}, seed {seed}: {machine.outcome()}"
            assert not confirmed or happened == {True}
            seen |= happened
