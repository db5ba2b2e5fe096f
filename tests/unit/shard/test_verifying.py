"""What ``verify`` finds in the books themselves (tests/unit/log looks at journal, sealed files and gaps)."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import delivery as d
from headrace.batch import Message, encode
from headrace.clock import ManualClock
from headrace.config import GroupConfig, TopicConfig
from headrace.errors import StorageFailed
from headrace.journal import DiskJournal
from headrace.shard import Core, verify
from headrace.shard.core import FACTS
from unit.delivery.harness import HOUR, S, Stage, after, retry


@pytest.fixture
def worked(data_dir: Path) -> Stage:
    """A shard on a disk that has seen something of everything."""
    stage = Stage(DiskJournal.open(data_dir))
    stage.topic(retry=retry(max_retries=0), message_ttl_ns=HOUR)
    stage.group("eu", filter={"headers": {"region": "eu"}})
    stage.publish("A1", "A2", "b1", after("later", 30 * S), after("never", 30 * S), Message(b"us"))
    stage.cancel(4)
    stage.ack(*stage.lease(1))
    stage.nack(*stage.lease(1))
    stage.lease(1)
    return stage


@pytest.mark.feature("N13")
def test_the_books_balance_in_the_files_alone(worked: Stage, data_dir: Path) -> None:
    worked.journal.close()
    report = verify(data_dir)
    assert report.ok, report.problems
    assert (report.topics, report.groups, report.messages) == (2, 3, 7)


def test_looking_changes_no_byte(worked: Stage, data_dir: Path) -> None:
    worked.journal.close()
    before = {path.name: path.read_bytes() for path in data_dir.iterdir() if path.name != "lock"}
    verify(data_dir)
    assert {path.name: path.read_bytes() for path in data_dir.iterdir() if path.name != "lock"} == before


def test_a_directory_that_somebody_has_open_is_left_alone(worked: Stage, data_dir: Path) -> None:
    with pytest.raises(StorageFailed, match="is held by this process already"):
        verify(data_dir)
    worked.journal.close()


@pytest.mark.feature("N13")
def test_a_message_that_is_in_two_places_is_named(data_dir: Path) -> None:
    """As a defect would leave it: acked in one lease while another one still has it."""
    journal = DiskJournal.open(data_dir)
    core = Core(journal, ManualClock())
    core.execute(d.CreateTopic("default", "t", TopicConfig(ordering="none")))
    core.execute(d.Publish(1, encode([Message(b"a"), Message(b"b")])))
    core.execute(d.LeaseUpTo(1, "c", 1))
    twice = [d.Leased(1, 1, 9, "c", 0, 1, b"", 0, 1 << 61), d.Acked(1, 1, 9, 0, 1, b"", 0)]
    journal.append(FACTS, d.encode_facts_alone(twice))
    journal.close()
    told = [problem.message for problem in verify(data_dir).problems if problem.kind == "imbalance"]
    assert "1 messages are acked in another container too: offset 0" in told


def test_facts_that_do_not_fit_each_other_are_a_finding_not_a_crash(worked: Stage, data_dir: Path) -> None:
    worked.journal.append(FACTS, d.encode_facts_alone([d.GroupChanged(77, GroupConfig(), 0)]))
    worked.journal.close()
    (problem,) = verify(data_dir).problems
    assert problem.kind == "imbalance"
    assert "KeyError: 77" in problem.message


def test_a_snapshot_that_says_otherwise_than_the_journal_is_found(worked: Stage, data_dir: Path) -> None:
    worked.journal.commit()
    worked.journal.save_snapshot(*worked.core.take_snapshot())
    worked.journal.close()
    assert verify(data_dir).ok
    journal = DiskJournal.open(data_dir)
    core = Core(journal, ManualClock(worked.now_ns))
    (backlog,) = core.state.by_name["default", "t"].groups["default"].backlogs.values()
    backlog.take(d.Span(5, 1), -1)
    backlog.leased_count += 1
    backlog.settle(d.Span(5, 1))
    backlog.acked_count += 1
    core.execute(d.CreateTopic("default", "other", TopicConfig()))
    journal.commit()
    journal.save_snapshot(*core.take_snapshot())
    journal.close()
    (problem,) = verify(data_dir).problems
    assert problem.place == "default/t, partition 0, group default"
    assert "the snapshot of position" in problem.message


def test_a_snapshot_of_a_later_version_is_told(worked: Stage, data_dir: Path) -> None:
    worked.journal.commit()
    worked.journal.save_snapshot(worked.journal.end_position, b"\x93\xc4\x03\x91\xcc\xc8\x90\xc4\x00")
    worked.journal.close()
    (problem,) = verify(data_dir).problems
    assert "version 200" in problem.message
