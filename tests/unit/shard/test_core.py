"""The core: decide, append, fold; full disks, failed appends, frames shared, snapshots by bytes, recovery, time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from headrace import delivery as d
from headrace.batch import Message, encode, encode_columns, encode_plain
from headrace.clock import ManualClock
from headrace.config import GroupConfig, RetryConfig, TopicConfig
from headrace.delivery import snapshot
from headrace.errors import Corrupt, StorageFailed, StorageFull, UnknownTopic, UnsupportedVersion
from headrace.journal import DiskJournal, MemoryJournal
from headrace.limits import STORAGE_RETRY_NS
from headrace.shard import Core, core
from headrace.shard.core import FACTS, Done
from unit.shard.held_journal import HeldJournal

S = 1_000_000_000
FULL = StorageFull("no room")


class Shard:
    """A core on a journal that can be full or broken, with topic, partition and group number 1."""

    def __init__(self, journal: MemoryJournal | None = None, **topic: Any) -> None:
        self.clock = ManualClock(1_800_000_000 * S)
        self.journal = HeldJournal() if journal is None else journal
        self.core = Core(self.journal, self.clock)
        self.do(d.CreateTopic("default", "t", TopicConfig(**{"ordering": "none", **topic})))

    def do(self, command: Any) -> Any:
        return self.core.execute(command).reply

    def publish(self, *values: bytes) -> Any:
        return self.do(d.Publish(1, encode([Message(value) for value in values])))

    def lease(self, most: int = 1) -> list[d.Receipts]:
        grants = self.do(d.LeaseUpTo(1, "c", most))
        return [d.Receipts(1, grant.lease_id, offset) for grant in grants for offset in grant.span]

    def state_of(self, offset: int) -> str:
        backlog = self.core.state.groups[1].backlogs[1]
        for name in ("dead", "expired", "cancelled", "dropped", "waiting"):
            if offset in getattr(backlog, name):
                return name
        if offset in backlog.leased_bits():
            return "leased"
        return "acked" if offset in backlog.done else "ready"


# -- persist, then tell ------------------------------------------------------------------------------------------------


def test_a_reply_stands_on_the_end_of_the_frame_it_brought_about() -> None:
    shard = Shard()
    for command in (
        d.Publish(1, encode_columns([b"a", b"b"])),
        d.LeaseUpTo(1, "c", 1),
        d.SettleMany(1, ack=[d.Receipts(1, 1, 0)]),
    ):
        done = shard.core.execute(command)
        assert isinstance(done, Done)
        assert done.position == shard.journal.end_position > shard.journal.durable_position


def test_a_reply_that_rests_on_what_is_not_durable_yet_waits_for_it_too() -> None:
    """A duplicate is answered with the first copy, which may still be lost."""
    shard = Shard()
    once = d.Publish(1, encode([Message(b"a", dedup_id=b"x")]))
    first = shard.core.execute(once)
    again = shard.core.execute(d.Publish(1, encode([Message(b"a", dedup_id=b"x")])))
    assert again.reply.duplicates
    assert again.position == first.position


def test_an_answer_of_nothing_waits_for_nothing() -> None:
    shard = Shard()
    assert shard.core.execute(d.LeaseUpTo(1, "c", 1)) == ([], 0)


def test_one_command_is_one_frame_whatever_it_brings_about() -> None:
    shard = Shard(retry=RetryConfig(max_retries=0))
    shard.publish(b"a", b"b")
    receipts = shard.lease(2)
    frames = shard.journal.stats.frames
    shard.do(d.SettleMany(1, ack=receipts[:1], reject=[(receipts[1], "")]))
    assert shard.journal.stats.frames == frames + 1


def test_what_is_due_is_done_before_anybody_looks() -> None:
    shard = Shard()
    shard.do(d.Publish(1, encode([Message(b"short", ttl_ns=S), Message(b"later", delay_ns=2 * S)])))
    shard.clock.advance(2 * S)
    assert [receipts.first for receipts in shard.lease(9)] == [1]
    assert shard.state_of(0) == "expired"


def test_a_publish_in_line_leaves_the_same_journal_and_state_as_one_that_is_decided_and_folded() -> None:
    """``Core.publish`` goes past the tables of commands and outcomes; nobody may be able to tell."""
    batches = [
        encode_plain(b"plain"),
        encode_plain(b"keyed", b"k"),
        encode_columns([b"a", b"b", b"c"]),
        encode([Message(b"later", delay_ns=S), Message(b"short", ttl_ns=S, priority=1)]),
        encode([Message(b"once", dedup_id=b"x")]),
        encode([Message(b"once", dedup_id=b"x")]),
        encode([Message(b"once", dedup_id=b"x"), Message(b"new", dedup_id=b"y", headers={"a": "b"})]),
        encode_plain(b"of a producer").from_producer(7, 1),
        encode_plain(b"of a producer").from_producer(7, 1),
        encode_plain(bytes(2000)),
        encode_columns([b"one", b"more", b"than", b"there", b"is", b"room", b"for"]),
    ]
    topic = {"max_message_bytes": 1000, "max_depth": 14}
    in_line, decided = Shard(MemoryJournal(), **topic), Shard(MemoryJournal(), **topic)
    for shard in (in_line, decided):
        shard.do(d.CreateGroup(1, "eu", GroupConfig(filter={"headers": {"a": "b"}})))
    for batch in batches:
        left = in_line.core.publish(in_line.core.state.partitions[1], batch)
        core, command = decided.core, d.Publish(1, batch)
        core.tick()
        right = core.execute(command, core.clock.now_ns())  # with a time: past the short cut
        assert (repr(left.reply), left.position) == (repr(right.reply), right.position)
        assert in_line.core.woken == decided.core.woken
        assert [*in_line.core.recent.blocks(1, left.position)] == [*core.recent.blocks(1, left.position)]
        for shard in (in_line, decided):
            shard.clock.advance(S // 3)
    for shard in (in_line, decided):
        shard.journal.commit()
    assert [*in_line.journal.read()] == [*decided.journal.read()]
    assert snapshot(in_line.core.state) == snapshot(decided.core.state)
    assert in_line.core.log(1).dump() == decided.core.log(1).dump()


# -- many commands, one frame ------------------------------------------------------------------------------------------


def test_commands_that_came_in_together_share_a_frame_and_answer_each_for_itself() -> None:
    shard = Shard()
    shard.publish(*(b"%d" % n for n in range(4)))
    frames = shard.journal.stats.frames
    done = shard.core.execute_many([d.LeaseUpTo(1, name, 1) for name in "abc"])
    assert [reply[0].span.first for reply, _ in done] == [0, 1, 2]
    assert {position for _, position in done} == {shard.journal.end_position}
    settles = [d.SettleMany(1, ack=[d.Receipts(1, reply[0].lease_id, reply[0].span.first)]) for reply, _ in done]
    stale = d.SettleMany(1, ack=[d.Receipts(1, 99, 3)])
    answers = [reply for reply, _ in shard.core.execute_many([*settles, stale, d.LeaseUpTo(1, "d", 1)])]
    assert [reply.settled for reply in answers[:4]] == [1, 1, 1, 0]
    assert answers[4][0].span.first == 3
    assert shard.journal.stats.frames == frames + 2


def test_a_publish_or_a_death_among_them_keeps_its_place_and_has_a_frame_of_its_own() -> None:
    shard = Shard(retry=RetryConfig(max_retries=0))
    shard.publish(b"a", b"b")
    (first,) = shard.lease()
    commands = [
        d.SettleMany(1, nack=[(first, None, "")]),
        d.LeaseUpTo(1, "c", 1),
        d.Publish(1, encode([Message(b"c")])),
        d.LeaseUpTo(1, "c", 1),
    ]
    replies = [reply for reply, _ in shard.core.execute_many(commands)]
    assert replies[1][0].span.first == 1
    assert replies[2].base_offset == 2
    assert replies[3][0].span.first == 2
    assert shard.state_of(0) == "dead"


def test_a_shared_frame_that_cannot_be_appended_is_the_end_of_this_memory() -> None:
    shard = Shard()
    shard.publish(b"a")
    shard.journal.refusal = FULL  # type: ignore[attr-defined]
    with pytest.raises(StorageFailed, match="no room"):
        shard.core.execute_many([d.LeaseUpTo(1, "c", 1)])


def test_the_recovered_shard_is_the_same_whether_frames_were_shared_or_not() -> None:
    shard = Shard()
    shard.publish(*(b"%d" % n for n in range(4)))
    replies = [reply for reply, _ in shard.core.execute_many([d.LeaseUpTo(1, "c", 2), d.LeaseUpTo(1, "c", 1)])]
    shard.core.execute_many([d.SettleMany(1, ack=[d.Receipts(1, replies[0][0].lease_id, 0)])])
    shard.journal.let_go()  # type: ignore[attr-defined]
    assert snapshot(Core(shard.journal, shard.clock).state) == snapshot(shard.core.state)


# -- a full disk -------------------------------------------------------------------------------------------------------


def test_what_a_full_disk_refuses_leaves_no_trace() -> None:
    shard = Shard()
    shard.publish(b"a")
    (held,) = shard.lease()
    before = snapshot(shard.core.state)
    shard.journal.refusal = FULL  # type: ignore[attr-defined]
    for command in (
        d.Publish(1, encode_columns([b"b"])),
        d.SettleMany(1, ack=[held]),
        d.CreateTopic("default", "u", TopicConfig()),
    ):
        done = shard.core.execute(command)
        assert (done.reply, done.position) == (FULL, 0)
        assert snapshot(shard.core.state) == before
    shard.journal.refusal = None  # type: ignore[attr-defined]
    assert shard.do(d.SettleMany(1, ack=[held])).settled == 1
    assert shard.publish(b"b").base_offset == 1


def test_settlements_may_use_the_reserve_and_publishes_may_not() -> None:
    shard = Shard()
    shard.journal.reserved.clear()  # type: ignore[attr-defined]
    shard.publish(b"a")
    shard.do(d.SettleMany(1, ack=shard.lease()))
    assert shard.journal.reserved == [False, True, True]  # type: ignore[attr-defined]


class NoRoomForBatches(HeldJournal):
    """Room for facts and none for messages: the reserve of a full disk."""

    full = False

    def append(self, kind: int, *buffers: Any, reserve: bool = False) -> int:
        if self.full and len(buffers) > 1:
            raise FULL
        return super().append(kind, *buffers, reserve=reserve)


def test_who_would_die_on_a_full_disk_stays_leased_and_everything_else_goes_on() -> None:
    journal = NoRoomForBatches()
    shard = Shard(journal, retry=RetryConfig(max_retries=0), lease_ns=S)
    shard.publish(b"dies", b"lives")
    shard.do(d.Publish(1, encode([Message(b"later", delay_ns=3 * S), Message(b"short", ttl_ns=3 * S)])))
    shard.lease()
    journal.full = True
    shard.clock.advance(4 * S)
    assert [receipts.first for receipts in shard.lease(9)] == [1, 2]
    assert (shard.state_of(0), shard.state_of(3)) == ("leased", "expired")
    journal.full = False
    shard.do(d.LeaseUpTo(1, "c", 1))
    assert shard.state_of(0) == "leased", "not tried again at once"
    shard.clock.advance(STORAGE_RETRY_NS)
    shard.core.tick()
    assert shard.state_of(0) == "dead"
    assert shard.core.state.by_name["default", "dlq/t"].partitions[0].end == 1


# -- a broken disk -----------------------------------------------------------------------------------------------------


def test_after_a_failed_append_the_memory_is_rebuilt_from_what_is_durable() -> None:
    shard = Shard()
    shard.publish(b"a")
    shard.journal.let_go()  # type: ignore[attr-defined]
    durable = snapshot(shard.core.state)
    shard.lease()
    shard.journal.refusal = StorageFailed("EIO")  # type: ignore[attr-defined]
    with pytest.raises(StorageFailed, match="EIO"):
        shard.core.execute(d.Publish(1, encode_columns([b"b"])))
    shard.journal.refusal = None  # type: ignore[attr-defined]
    again = Core(shard.journal, shard.clock)
    assert snapshot(again.state) == durable, "the lease was never durable"


# -- snapshots ---------------------------------------------------------------------------------------------------------


def test_a_snapshot_is_due_after_so_many_bytes_of_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "SNAPSHOT_EVERY_BYTES", 10_000)
    shard = Shard()
    assert not shard.core.snapshot_due()
    shard.publish(b"x" * 9_000)
    assert not shard.core.snapshot_due()
    shard.publish(b"x" * 2_000)
    assert shard.core.snapshot_due()
    position, _ = shard.core.take_snapshot()
    assert position == shard.journal.end_position
    assert not shard.core.snapshot_due()


def test_recovery_is_the_newest_snapshot_and_what_came_after_it() -> None:
    shard = Shard(MemoryJournal())
    shard.publish(b"a", b"b")
    shard.core.save_snapshot(*shard.core.take_snapshot())
    shard.do(d.SettleMany(1, ack=shard.lease()))
    shard.journal.commit()
    saved = shard.journal.load_snapshot()
    assert saved is not None
    shard.journal.truncate_before(saved[0])
    again = Core(shard.journal, shard.clock)
    assert snapshot(again.state) == snapshot(shard.core.state)
    assert again.snapshot_saved == saved[0]


def test_a_snapshot_never_replaces_a_newer_one() -> None:
    shard = Shard(MemoryJournal())
    old = shard.core.take_snapshot()
    shard.publish(b"a")
    new = shard.core.take_snapshot()
    shard.core.save_snapshot(*new)
    shard.core.save_snapshot(*old)
    saved = shard.journal.load_snapshot()
    assert saved is not None
    assert saved[0] == new[0]


@pytest.mark.parametrize(
    ("data", "error", "told"),
    [
        (b"", Corrupt, "cannot be read"),
        (b"\xff\xff", Corrupt, "cannot be read"),
        (b"\x93\xc4\x01\x91\x90\xc4\x00", Corrupt, "cannot be read"),
        (b"\x93\xc4\x03\x91\xcc\xc8\x90\xc4\x00", UnsupportedVersion, "version 200"),
    ],
)
def test_a_snapshot_that_cannot_be_read_is_named(data: bytes, error: type[Exception], told: str) -> None:
    shard = Shard(MemoryJournal())
    shard.journal.commit()
    shard.journal.save_snapshot(shard.journal.end_position, data)
    with pytest.raises(error, match=told):
        Core(shard.journal, shard.clock)


def test_a_frame_that_no_build_knows_is_named_with_its_position() -> None:
    shard = Shard(MemoryJournal())
    position = shard.journal.append(FACTS, b"\x04\x00\x00\x00\x91\x92\xcd\x03\xe7\x01")
    shard.journal.commit()
    with pytest.raises(Corrupt, match=re.escape(f"position {position}")):
        Core(shard.journal, shard.clock)


# -- time --------------------------------------------------------------------------------------------------------------


def test_a_step_of_the_wall_clock_is_noted_and_not_obeyed() -> None:
    shard = Shard()
    before_ns = shard.core.clock.now_ns()
    shard.clock.set_wall(shard.clock.wall_ns() - 3600 * S)
    assert shard.core.clock.now_ns() == before_ns
    assert shard.core.clock.wall_jump_ns() == -3600 * S
    shard.clock.advance(S)
    assert shard.core.clock.now_ns() == before_ns + S


def test_a_shard_that_wakes_up_in_the_past_goes_on_where_its_journal_ends() -> None:
    shard = Shard(MemoryJournal())
    shard.clock.advance(3600 * S)
    shard.publish(b"a")
    latest_ns = shard.core.clock.now_ns()
    shard.journal.commit()
    again = Core(shard.journal, ManualClock(1_000 * S))
    assert again.clock.now_ns() == latest_ns


# -- who is told -------------------------------------------------------------------------------------------------------


def test_groups_that_may_have_got_something_ready_are_named() -> None:
    shard = Shard(retry=RetryConfig(initial_backoff_ns=S))
    shard.do(d.CreateGroup(1, "other"))
    shard.core.woken.clear()

    def woken() -> set[int]:
        found, shard.core.woken = shard.core.woken, set()
        return found

    shard.publish(b"a", b"b")
    assert woken() == {1, 2}
    a, b = shard.lease(2)
    assert woken() == set()
    shard.do(d.SettleMany(1, release=[b]))
    assert woken() == {1}
    shard.do(d.SettleMany(1, nack=[(a, None, "")]))
    woken()
    shard.clock.advance(S)
    shard.core.tick()
    assert woken() == {1}
    shard.do(d.PauseGroup(2, "ops", ""))
    shard.do(d.ResumeGroup(2, "ops"))
    assert woken() == {2}


def test_an_ack_wakes_its_group_only_where_it_frees_something() -> None:
    for settings, expected in (({"ordering": "none"}, set()), ({"ordering": "key"}, {1}), ({"max_in_flight": 1}, {1})):
        shard = Shard(**settings)
        shard.publish(b"a", b"b")
        held = shard.lease()
        shard.core.woken.clear()
        shard.do(d.SettleMany(1, ack=held))
        assert shard.core.woken == expected, settings


def test_deaths_are_told_once_with_their_copies() -> None:
    shard = Shard(retry=RetryConfig(max_retries=0))
    told: list[tuple[int, int, int]] = []
    shard.core.on_deaths = lambda facts, batches, end: told.append(
        (sum(isinstance(fact, d.Died) for fact in facts), sum(batch.count for batch in batches), end)
    )
    shard.publish(b"a", b"b")
    shard.do(d.SettleMany(1, nack=[(receipts, None, "") for receipts in shard.lease(2)]))
    assert told == [(2, 2, shard.journal.end_position)]


def test_a_partition_of_another_shard_is_refused_and_a_shard_without_topics_does_nothing() -> None:
    empty = Core(MemoryJournal(), ManualClock())
    assert empty.wake_at_ns() is None
    assert empty.tick() is None
    assert isinstance(empty.execute(d.Publish(1, encode_columns([b"a"]))).reply, UnknownTopic)
    assert empty.backlog_drift() == 0


def test_one_tick_does_a_bounded_portion_and_says_when_to_come_again() -> None:
    shard = Shard(max_in_flight=100_000, lease_ns=S)
    for _ in range(5):
        shard.do(d.Publish(1, encode_columns([b"x"] * 4096)))
    for _ in range(20):
        shard.do(d.LeaseUpTo(1, "c", 1024))
    shard.clock.advance(2 * S)
    portions = 0
    while (wake_ns := shard.core.tick()) is not None and wake_ns <= shard.core.clock.now_ns():
        portions += 1
    assert portions >= 1
    assert len(shard.core.state.groups[1].backlogs[1].waiting) == 20 * 1024


# -- whatever the journal is made of -----------------------------------------------------------------------------------


@pytest.mark.feature("F146")
def test_the_same_story_on_any_journal_has_the_same_facts_and_the_same_end(data_dir: Path) -> None:
    ends: list[tuple[bytes, list[Any]]] = []
    for journal in (MemoryJournal(), DiskJournal.open(data_dir)):
        shard = Shard(journal, ordering="key", retry=RetryConfig(max_retries=0))  # type: ignore[arg-type]
        shard.do(d.Publish(1, encode([Message(b"%d" % n, key=b"k%d" % (n % 3)) for n in range(9)])))
        a, b, c = shard.lease(3)
        shard.do(d.SettleMany(1, ack=[a], nack=[(b, None, "no")], release=[c]))
        journal.commit()
        facts = [d.decode_facts(frame.body)[0] for frame in journal.read() if frame.kind == FACTS]
        again = Core(journal, shard.clock)
        assert snapshot(again.state) == snapshot(shard.core.state)
        ends.append((snapshot(again.state), facts))
        journal.close()
    assert ends[0] == ends[1]
