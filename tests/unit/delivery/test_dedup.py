"""Deduplication by id within a window, and batches that a producer sends again."""

from __future__ import annotations

import pytest

from headrace.batch import Message
from headrace.delivery import PublishDone, snapshot
from headrace.errors import DuplicateConflict
from unit.delivery.harness import HOUR, MINUTE, MS, S, Stage


def msg(value: str, dedup_id: str | None) -> Message:
    return Message(value.encode(), dedup_id=None if dedup_id is None else dedup_id.encode())


@pytest.mark.feature("F118", "F121", "N11")
def test_a_repeated_id_answers_the_first_message_and_stores_nothing(stage: Stage) -> None:
    stage.topic()
    first = stage.publish(msg("a1", "x"))
    stage.clock.advance(5 * MINUTE - 1)
    facts = len(stage.facts())
    again = stage.publish(msg("a1 again", "x"))
    assert again == PublishDone(first.pid, 1, 0, 0, [(0, first.base_id, first.pid, 0)])
    assert len(stage.facts()) == facts
    assert stage.values(9) == ["a1"]


@pytest.mark.feature("F118", "N11")
def test_after_the_window_the_id_is_new(stage: Stage) -> None:
    stage.topic()
    stage.publish(msg("a1", "x"))
    stage.clock.advance(5 * MINUTE)
    assert stage.publish(msg("a2", "x")).count == 1


def test_the_window_runs_from_the_first_copy_not_from_the_last_repetition(stage: Stage) -> None:
    stage.topic(dedup_window_ns=10 * S)
    stage.publish(msg("a1", "x"))
    stage.clock.advance(6 * S)
    assert stage.publish(msg("a2", "x")).count == 0
    stage.clock.advance(6 * S)
    assert stage.publish(msg("a3", "x")).count == 1


def test_without_a_window_every_message_is_new(stage: Stage) -> None:
    stage.topic(dedup_window_ns=0)
    stage.publish(msg("a1", "x"))
    assert stage.publish(msg("a2", "x")).count == 1


@pytest.mark.feature("F118", "N11")
@pytest.mark.parametrize("with_snapshot", [False, True])
def test_the_window_survives_a_restart(stage: Stage, with_snapshot: bool) -> None:
    stage.topic()
    first = stage.publish(msg("a1", "x"))
    stage.restart(with_snapshot=with_snapshot)
    again = stage.publish(msg("a1", "x"))
    assert again.duplicates == [(0, first.base_id, first.pid, 0)]
    assert stage.values(9) == ["a1"]


def test_the_scope_is_the_topic_whatever_the_partition(stage: Stage) -> None:
    stage.topic(partitions=2)
    first = stage.publish(msg("a1", "x"), partition=0)
    again = stage.publish(msg("a1", "x"), partition=1)
    assert again.duplicates == [(0, first.base_id, first.pid, 0)]
    stage.topic("other")
    assert stage.publish(msg("a1", "x")).count == 1


def test_a_batch_keeps_its_new_messages_and_says_which_were_not(stage: Stage) -> None:
    stage.topic()
    first = stage.publish(msg("a1", "x"))
    done = stage.publish(msg("b1", "y"), msg("a1", "x"), msg("c1", None), msg("d1", "z"))
    assert (done.base_offset, done.count) == (1, 3)
    assert done.duplicates == [(1, first.base_id, first.pid, 0)]
    assert stage.values(9) == ["a1", "b1", "c1", "d1"]


def test_a_batch_that_repeats_itself_points_to_its_own_first_copy(stage: Stage) -> None:
    stage.topic()
    stage.publish("a1")
    done = stage.publish(msg("b1", "y"), msg("b1", "y"), msg("c1", None), msg("b1", "y"))
    assert (done.base_offset, done.count) == (1, 2)
    pid = stage.partition().pid
    assert done.duplicates == [(1, done.base_id, pid, 1), (3, done.base_id, pid, 1)]


def test_an_acked_message_still_suppresses_its_repetition(stage: Stage) -> None:
    stage.topic()
    stage.publish(msg("a1", "x"))
    stage.ack(*stage.lease())
    assert stage.publish(msg("a1", "x")).count == 0
    assert stage.values(9) == []


def test_outdated_ids_are_forgotten_in_memory(stage: Stage) -> None:
    topic = stage.topic(dedup_window_ns=10 * S)
    for n in range(50):
        stage.publish(msg("a", f"id-{n}"))
        stage.clock.advance(S)
    assert len(topic.dedup.seen) <= 11


@pytest.mark.feature("F121")
def test_a_producers_batch_sent_again_is_stored_once(stage: Stage) -> None:
    stage.topic()
    stage.publish("z1")
    first = stage.publish("a1", "a2", producer=(7, 1))
    again = stage.publish("a1", "a2", producer=(7, 1))
    pid = first.pid
    assert again.count == 0
    assert again.duplicates == [(0, first.base_id, pid, 1), (1, first.base_id + 1, pid, 2)]
    assert stage.publish("b1", producer=(7, 2)).count == 1
    assert stage.publish("b1", producer=(8, 1)).count == 1
    assert stage.values(9) == ["z1", "a1", "a2", "b1", "b1"]


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_a_producers_batch_is_recognised_after_a_restart(stage: Stage, with_snapshot: bool) -> None:
    stage.topic()
    first = stage.publish("a1", producer=(7, 1))
    stage.restart(with_snapshot=with_snapshot)
    again = stage.publish("a1", producer=(7, 1))
    assert again.duplicates == [(0, first.base_id, first.pid, 0)]


def test_the_same_sequence_with_other_messages_is_a_conflict(stage: Stage) -> None:
    stage.topic()
    stage.publish("a1", "a2", producer=(7, 1))
    before = snapshot(stage.state)
    refusal = stage.publish("a1", producer=(7, 1))
    assert isinstance(refusal, DuplicateConflict)
    assert "sequence 1 again with 1 messages; the first time it had 2" in refusal.message
    assert snapshot(stage.state) == before


def test_a_sequence_too_old_to_be_remembered_is_refused_not_stored_twice(stage: Stage) -> None:
    stage.topic()
    for sequence in range(1, 41):
        stage.publish("a", producer=(7, sequence))
    before = snapshot(stage.state)
    assert isinstance(stage.publish("a", producer=(7, 1)), DuplicateConflict)
    assert stage.publish("a", producer=(7, 9)).count == 0
    assert snapshot(stage.state) == before


def test_an_id_of_the_longest_kind_is_remembered_whole(stage: Stage) -> None:
    stage.topic()
    stage.publish(Message(b"a", dedup_id=b"x" * 255 + b"1"))
    assert stage.publish(Message(b"b", dedup_id=b"x" * 255 + b"2")).count == 1


def test_a_scheduled_first_copy_suppresses_too(stage: Stage) -> None:
    stage.topic()
    stage.publish(Message(b"a1", dedup_id=b"x", delay_ns=HOUR))
    stage.clock.advance(MS)
    assert stage.publish(msg("a1", "x")).count == 0
