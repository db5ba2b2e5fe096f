"""Delays and instants: never early, in the order of time, cancelled and moved, over restarts."""

from __future__ import annotations

import pytest

from headrace.batch import Message
from headrace.delivery import State, snapshot
from headrace.errors import InvalidArgument, UnknownTopic
from unit.delivery.harness import DAY, HOUR, MINUTE, MS, S, Stage, after


@pytest.mark.feature("F097", "F099", "F100")
def test_a_delayed_message_is_not_there_before_its_time_and_is_there_at_it(stage: Stage) -> None:
    stage.topic()
    stage.publish(after("a", 5 * MINUTE))
    assert stage.states() == {0: State.SCHEDULED}
    stage.advance(5 * MINUTE - 1)
    assert stage.values() == []
    stage.advance(1)
    assert stage.values() == ["a"]


@pytest.mark.feature("F096", "F098")
def test_a_message_for_an_instant_waits_for_it(stage: Stage) -> None:
    stage.topic()
    stage.publish(Message(b"a", deliver_at_ns=stage.now_ns + 90 * S))
    stage.advance(90 * S - 1)
    assert stage.values() == []
    stage.advance(1)
    assert stage.values() == ["a"]


@pytest.mark.feature("F102")
@pytest.mark.parametrize("delay_ns", [MS, 999_999, 1, 4095 * MS, 4096 * MS, 4097 * MS, HOUR, DAY, 7 * DAY])
def test_a_delay_is_kept_to_the_millisecond_and_never_cut_short(stage: Stage, delay_ns: int) -> None:
    stage.topic()
    stage.publish(after("a", delay_ns))
    stage.advance(delay_ns - 1) if delay_ns > 1 else None
    assert stage.values() == []
    stage.advance(1 + MS - 1)
    assert stage.values() == ["a"]


def test_a_schedule_in_the_past_is_delivered_now(stage: Stage) -> None:
    stage.topic()
    stage.publish(Message(b"a", deliver_at_ns=stage.now_ns - HOUR))
    assert stage.values() == ["a"]


def test_what_is_due_comes_in_the_order_of_time_then_offset(stage: Stage) -> None:
    stage.topic()
    stage.publish(after("c", 30 * S), after("a", 10 * S), after("b", 20 * S), after("a2", 10 * S))
    stage.advance(MINUTE)
    assert stage.values(9) == ["a", "a2", "b", "c"]


def test_what_was_appended_before_the_time_comes_before_what_became_due(stage: Stage) -> None:
    stage.topic()
    stage.publish(after("late", 10 * S))
    stage.advance(5 * S)
    stage.publish("early")
    stage.advance(10 * S)
    stage.publish("after")
    assert [d.value for _ in range(3) for d in stage.lease(1)] == ["early", "late", "after"]


def test_delayed_messages_hold_up_nothing_behind_them(stage: Stage) -> None:
    stage.topic()
    stage.publish(after("A1", HOUR, key="A"), "A2", "b")
    assert stage.values(9) == ["A2", "b"]


@pytest.mark.feature("F096")
def test_priority_first_then_the_time_it_is_due(stage: Stage) -> None:
    stage.topic()
    stage.publish(after("low", 1 * S, priority=9), after("b", 3 * S, priority=1), after("a", 2 * S, priority=1))
    stage.advance(5 * S)
    assert [d.value for _ in range(3) for d in stage.lease(1)] == ["a", "b", "low"]


@pytest.mark.feature("F103")
@pytest.mark.parametrize("with_snapshot", [False, True])
def test_schedules_survive_a_restart(stage: Stage, with_snapshot: bool) -> None:
    stage.topic()
    stage.publish(after("b", 20 * S), after("a", 10 * S), after("gone", 15 * S), after("moved", 5 * S))
    stage.cancel(2)
    stage.move(3, due_ns=stage.now_ns + 30 * S)
    stage.restart(with_snapshot=with_snapshot)
    stage.advance(10 * S - 1)
    assert stage.values() == []
    stage.advance(20 * S)
    assert stage.values(9) == ["a", "b"]
    stage.advance(S)
    assert stage.values(9) == ["moved"]


@pytest.mark.feature("F103")
def test_what_became_due_while_nobody_was_there_is_delivered_on_opening(stage: Stage) -> None:
    stage.topic()
    stage.publish(after("a", 10 * S))
    stage.journal.commit()
    stage.clock.advance(HOUR)
    stage.restart()
    assert stage.values() == ["a"]


def test_the_wall_clock_stepping_forward_makes_nothing_early(stage: Stage) -> None:
    stage.topic()
    stage.publish(after("a", HOUR))
    stage.clock.set_wall(stage.clock.wall_ns() + 2 * HOUR)
    assert stage.values() == []
    stage.advance(HOUR)
    assert stage.values() == ["a"]


@pytest.mark.feature("F102")
def test_a_cancelled_message_is_gone_for_every_group_and_for_good(stage: Stage) -> None:
    stage.topic()
    stage.group("audit")
    stage.publish(after("a", 10 * S), after("b", 10 * S))
    assert stage.cancel(0) == 1
    assert stage.state_of(0) == State.CANCELLED
    stage.advance(MINUTE)
    assert stage.values(9) == ["b"]
    assert stage.values(9, group="audit") == ["b"]
    stage.seek("audit")
    assert stage.values(9, group="audit") == ["b"]


def test_only_what_is_still_scheduled_can_be_cancelled(stage: Stage) -> None:
    stage.topic()
    stage.publish("a", after("b", 10 * S), after("c", HOUR))
    stage.advance(MINUTE)
    before = snapshot(stage.state)
    assert stage.cancel(0, 1) == 0
    assert snapshot(stage.state) == before
    assert stage.cancel(0, 1, 2, 7) == 1
    assert stage.cancel(2) == 0


def test_cancelling_in_a_partition_of_another_shard_is_refused(stage: Stage) -> None:
    from headrace.delivery import Cancel, Move, Span

    stage.topic()
    assert isinstance(stage.do(Cancel(99, Span(0, 1))), UnknownTopic)
    assert isinstance(stage.do(Move(99, Span(0, 1), stage.now_ns)), UnknownTopic)


def test_a_moved_message_comes_at_its_new_time_only(stage: Stage) -> None:
    stage.topic()
    stage.publish(after("a", 10 * S), after("b", HOUR))
    assert stage.move(0, due_ns=stage.now_ns + MINUTE) == 1
    assert stage.move(1, due_ns=stage.now_ns + 20 * S) == 1
    stage.advance(20 * S)
    assert stage.values(9) == ["b"]
    stage.advance(40 * S - 1)
    assert stage.values(9) == []
    stage.advance(1)
    assert stage.values(9) == ["a"]


def test_a_message_moved_to_the_past_is_due_now(stage: Stage) -> None:
    stage.topic()
    stage.publish(after("a", HOUR))
    stage.move(0, due_ns=stage.now_ns - DAY)
    stage.advance(MS)
    assert stage.values() == ["a"]


def test_moving_beyond_max_delay_is_refused(stage: Stage) -> None:
    stage.topic(max_delay_ns=HOUR)
    stage.publish(after("a", MINUTE))
    before = snapshot(stage.state)
    refusal = stage.move(0, due_ns=stage.now_ns + HOUR + S)
    assert isinstance(refusal, InvalidArgument)
    assert refusal.message == "a delay of 61m: topic 't' allows up to 1h (max_delay)"
    assert snapshot(stage.state) == before


@pytest.mark.feature("F099")
def test_every_group_sees_a_scheduled_message_when_it_is_due(stage: Stage) -> None:
    stage.topic()
    stage.publish(after("a", 10 * S))
    stage.group("early bird")
    stage.advance(10 * S)
    assert stage.values() == stage.values(group="early bird") == ["a"]
    stage.group("late comer")
    assert stage.values(group="late comer") == ["a"]


@pytest.mark.feature("F102")
def test_ten_thousand_schedules_fire_each_in_its_millisecond(stage: Stage) -> None:
    stage.topic()
    delays = [(n * 7919 % 10_000) * 37 * MS + MS for n in range(4000)]
    stage.publish(*(after(str(delay), delay) for delay in delays))
    start_ns = stage.now_ns
    for tenth in range(1, 11):
        stage.advance(0, to=start_ns + tenth * 40 * S)
        found = stage.lease(4000)
        assert all(int(d.value) <= tenth * 40 * S for d in found)
        assert all(int(d.value) > (tenth - 1) * 40 * S for d in found)
        stage.ack(*found) if found else None
    assert set(stage.states().values()) == {State.ACKED}


def test_a_key_scheduled_twice_flows_in_the_order_of_time(stage: Stage) -> None:
    stage.topic()
    stage.publish(after("A2", 20 * S, key="A"), after("A1", 10 * S, key="A"))
    stage.advance(MINUTE)
    first = stage.take("A1")
    assert stage.values(9) == []
    stage.ack(first)
    assert stage.values(9) == ["A2"]
