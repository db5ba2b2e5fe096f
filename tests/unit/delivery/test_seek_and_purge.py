"""Going back and forth in the log, bounded replays, emptying, and letting go of what is settled."""

from __future__ import annotations

import pytest

from headrace.batch import Message
from headrace.delivery import Purge, Seek, Span, Start, State, Trim, snapshot
from headrace.errors import InvalidArgument, UnknownGroup, UnknownTopic
from unit.delivery.harness import HOUR, MINUTE, S, Stage, after


def acked(stage: Stage, *values: str, partition: int = 0) -> None:
    stage.publish(*values, partition=partition)
    while found := stage.lease(100):
        stage.ack(*found)


@pytest.mark.feature("F040", "F123", "F128")
@pytest.mark.parametrize("with_snapshot", [None, False, True])
def test_acked_messages_stay_in_the_log_and_can_be_replayed(stage: Stage, with_snapshot: bool | None) -> None:
    stage.topic()
    acked(stage, "A1", "A2", "b")
    if with_snapshot is not None:
        stage.restart(with_snapshot=with_snapshot)
    stage.seek()
    again = stage.lease(9)
    assert [(d.value, d.attempt) for d in again] == [("A1", 1), ("b", 1)]
    stage.ack(again[0])
    assert stage.values(9) == ["A2"]


@pytest.mark.feature("F093", "F123")
def test_a_group_can_be_moved_to_an_offset_to_a_time_to_the_end_and_back(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.publish("a", "b")
    stage.advance(MINUTE)
    at_ns = stage.now_ns
    stage.publish("c", "d")
    for start, expected in (
        (Start(offsets={0: 1}), ["b", "c", "d"]),
        (Start(time_ns=at_ns), ["c", "d"]),
        (Start(latest=True), []),
        (Start(), ["a", "b", "c", "d"]),
    ):
        stage.seek(start=start)
        assert stage.values(9) == expected


def test_a_seek_takes_leases_back_and_forgets_attempts(stage: Stage) -> None:
    stage.topic()
    stage.publish("a", "b")
    stage.nack(stage.take("a"), delay=0)
    held = stage.lease(9)
    stage.seek()
    assert stage.settle(ack=[d.receipt for d in held]).settled == 0
    assert [(d.value, d.attempt) for d in stage.lease(9)] == [("a", 1), ("b", 1)]


def test_a_seek_moves_one_group_only(stage: Stage) -> None:
    stage.topic()
    stage.group("other")
    acked(stage, "a", "b")
    stage.seek()
    assert stage.states("other") == {0: State.READY, 1: State.READY}
    assert stage.values(9) == ["a", "b"]


@pytest.mark.feature("F125")
def test_a_bounded_replay_stops_at_its_end_and_sees_nothing_that_comes_later(stage: Stage) -> None:
    stage.topic()
    stage.group("replay", start=Start(latest=True))
    stage.publish(*"abcdef")
    stage.seek("replay", Start(offsets={0: 1}), stops={0: 4})
    stage.publish("g")
    assert stage.values(9, group="replay") == ["b", "c", "d"]
    assert stage.values(9, group="replay") == []
    assert stage.the_group("replay").unsettled_count == 3


@pytest.mark.feature("F125")
def test_a_replay_of_a_stretch_of_time_holds_what_was_appended_in_it(stage: Stage) -> None:
    stage.topic(ordering="none")
    times = []
    for n in range(6):
        times.append(stage.now_ns)
        stage.publish(f"m{n}")
        stage.advance(MINUTE)
    stage.seek(start=Start(time_ns=times[2]), stop_time_ns=times[4])
    assert stage.values(9) == ["m2", "m3"]


@pytest.mark.parametrize(
    "command",
    [
        Seek(1, Start(offsets={0: 99})),
        Seek(1, Start(offsets={3: 0})),
        Seek(1, Start(offsets={0: 2}), stops={0: 1}),
        Seek(1, Start(latest=True), stop_time_ns=0),
    ],
    ids=["beyond the end", "no such partition", "ends before it begins", "ended long ago"],
)
def test_a_seek_that_makes_no_sense_is_refused(stage: Stage, command: Seek) -> None:
    stage.topic()
    stage.publish("a", "b", "c")
    stage.advance(S)
    before = snapshot(stage.state)
    assert isinstance(stage.do(command), InvalidArgument)
    assert snapshot(stage.state) == before


def test_unknown_groups_cannot_seek_nor_be_emptied(stage: Stage) -> None:
    stage.topic()
    assert isinstance(stage.do(Seek(99, Start())), UnknownGroup)
    assert isinstance(stage.do(Purge(1, 99)), UnknownGroup)
    assert isinstance(stage.do(Purge(99)), UnknownTopic)
    assert isinstance(stage.do(Trim(99, 0)), UnknownTopic)


def test_cancelled_and_purged_messages_are_not_replayed(stage: Stage) -> None:
    stage.topic()
    stage.publish("a", after("later", HOUR), "b")
    stage.ack(stage.take("a"))
    stage.cancel(1)
    stage.purge()
    stage.seek()
    assert stage.values(9) == ["a"]


# -- purge -------------------------------------------------------------------------------------------------------------


def test_a_purge_drops_what_is_ready_waiting_and_scheduled_and_leaves_what_is_leased(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.publish("leased", "waits", "ready", after("later", HOUR))
    held, failing = stage.lease(2)
    stage.nack(failing)
    assert stage.purge() == 3
    assert [stage.state_of(n) for n in range(4)] == [State.LEASED, State.DROPPED, State.DROPPED, State.DROPPED]
    stage.ack(held)
    stage.publish("new")
    assert stage.values(9) == ["new"]


def test_a_group_can_be_emptied_alone(stage: Stage) -> None:
    stage.topic()
    stage.group("other")
    stage.publish("a", "b", after("later", MINUTE))
    assert stage.purge("other") == 2
    assert stage.values(9, group="other") == []
    assert stage.values(9) == ["a", "b"]
    stage.advance(MINUTE)
    assert stage.values(9, group="other") == ["later"]


def test_what_one_group_has_leased_stays_for_all_when_a_topic_is_purged(stage: Stage) -> None:
    stage.topic()
    stage.group("other")
    stage.publish("A1", "A2")
    held = stage.take("A1", group="other")
    stage.purge()
    assert stage.states() == {0: State.READY, 1: State.DROPPED}
    stage.ack(held)


def test_a_purge_frees_the_keys_it_empties(stage: Stage) -> None:
    stage.topic()
    stage.publish("A1", "A2", "A3")
    stage.nack(stage.take("A1"))
    stage.purge()
    stage.publish("A4")
    assert stage.values(9) == ["A4"]


def test_purging_twice_drops_nothing_more(stage: Stage) -> None:
    stage.topic()
    stage.publish("a")
    assert stage.purge() == 1
    before = snapshot(stage.state)
    assert stage.purge() == 0
    assert snapshot(stage.state) == before


def test_only_chosen_messages_can_be_purged(stage: Stage) -> None:
    stage.topic()
    stage.publish(*"abc")
    assert stage.do(Purge(1, only={stage.partition().pid: Span(1, 1)})) == 1
    assert stage.values(9) == ["a", "c"]


# -- trim --------------------------------------------------------------------------------------------------------------


def test_a_trim_goes_no_further_than_what_a_durable_group_has_not_settled(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.publish(*"abcdef")
    a, b, c, d = stage.lease(4)
    stage.ack(a, b, d)
    assert stage.trim(6) == 2
    assert stage.partition().start == 2
    stage.ack(c)
    assert stage.trim(3) == 3
    assert stage.trim(100) == 4
    assert stage.trim(0) == 4
    assert stage.values(9) == ["e", "f"]


def test_a_trim_stops_at_what_is_scheduled(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.publish("a", after("later", HOUR), "b")
    stage.ack(*stage.lease(9))
    assert stage.trim(3) == 1


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_an_ephemeral_group_does_not_keep_the_log_and_its_loss_is_counted(stage: Stage, with_snapshot: bool) -> None:
    stage.topic()
    stage.group("watch", durable=False)
    acked(stage, "a", "b", "c")
    assert stage.trim(3) == 3
    stage.restart(with_snapshot=with_snapshot)
    assert stage.values(9, group="watch") == []
    assert stage.backlog("watch").dropped_count == 3


def test_nobody_begins_before_the_log_does(stage: Stage) -> None:
    stage.topic()
    acked(stage, "a", "b", "c")
    stage.trim(2)
    stage.group("g")
    assert stage.values(9, group="g") == ["c"]
    stage.seek("g", Start(offsets={0: 0}))
    assert stage.values(9, group="g") == ["c"]


def test_a_large_gap_of_settled_messages_is_looked_up_again_for_who_goes_back(stage: Stage) -> None:
    """Keys and priorities of what everybody settled may have been let go of; a seek reads them from the log."""
    stage.topic()
    for n in range(30):
        stage.publish(*(Message(b"%d" % n, key=b"K%d" % (n % 3)) for _ in range(10)))
    while found := stage.lease(500):
        stage.ack(*found)
    stage.partition().trim_columns(250)
    stage.seek()
    assert len(stage.lease(500)) == 3, "one of each key"
