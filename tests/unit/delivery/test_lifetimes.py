"""Lifetimes: a topic's ttl, a message's own, when the clock starts, and that nothing is delivered after its end."""

from __future__ import annotations

import pytest

from headrace.batch import Message
from headrace.delivery import State
from unit.delivery.harness import DAY, HOUR, MINUTE, MS, S, Stage, after, retry


@pytest.mark.feature("F111")
def test_a_topics_ttl_ends_the_life_of_what_says_none(stage: Stage) -> None:
    stage.topic(message_ttl_ns=HOUR)
    stage.publish("a")
    stage.advance(HOUR - 1)
    assert stage.state_of(0) == State.READY
    stage.advance(1)
    assert stage.values() == []
    assert stage.state_of(0) == State.EXPIRED


@pytest.mark.feature("F111")
def test_a_week_is_what_a_message_has_by_default(stage: Stage) -> None:
    stage.topic()
    stage.publish("a", "b")
    stage.advance(7 * DAY - 1)
    stage.ack(stage.take("a"))
    stage.advance(1)
    assert stage.state_of(1) == State.EXPIRED


def test_without_a_ttl_a_message_lives_for_ever(stage: Stage) -> None:
    stage.topic(message_ttl_ns=0)
    stage.publish("a")
    stage.advance(10_000 * DAY)
    assert stage.values() == ["a"]


@pytest.mark.feature("F111")
@pytest.mark.parametrize("own_ns", [10 * S, 2 * DAY])
def test_a_message_may_live_shorter_or_longer_than_its_topic_says(stage: Stage, own_ns: int) -> None:
    stage.topic(message_ttl_ns=HOUR)
    stage.publish(Message(b"a", ttl_ns=own_ns), Message(b"b", expires_at_ns=stage.now_ns + own_ns))
    stage.advance(own_ns - MS)
    assert [stage.state_of(0), stage.state_of(1)] == [State.READY, State.READY]
    stage.advance(MS)
    assert [stage.state_of(0), stage.state_of(1)] == [State.EXPIRED, State.EXPIRED]


@pytest.mark.feature("F111")
def test_the_clock_starts_when_a_message_becomes_due(stage: Stage) -> None:
    stage.topic(message_ttl_ns=HOUR)
    stage.publish(after("a", DAY), Message(b"b", delay_ns=DAY, ttl_ns=MINUTE))
    stage.advance(DAY + MINUTE - MS)
    assert [stage.state_of(0), stage.state_of(1)] == [State.READY, State.READY]
    stage.advance(MS)
    assert [stage.state_of(0), stage.state_of(1)] == [State.READY, State.EXPIRED]
    stage.advance(HOUR)
    assert stage.state_of(0) == State.EXPIRED


def test_a_moved_message_lives_from_its_new_time_on(stage: Stage) -> None:
    stage.topic(message_ttl_ns=HOUR)
    stage.publish(after("a", MINUTE))
    stage.move(0, due_ns=stage.now_ns + DAY)
    stage.advance(DAY + HOUR - S)
    assert stage.state_of(0) == State.READY
    stage.advance(S)
    assert stage.state_of(0) == State.EXPIRED


def test_an_instant_that_a_message_said_stands_however_it_is_moved(stage: Stage) -> None:
    stage.topic()
    stage.publish(Message(b"a", delay_ns=MINUTE, expires_at_ns=stage.now_ns + HOUR))
    stage.move(0, due_ns=stage.now_ns + DAY)
    stage.advance(DAY)
    assert stage.state_of(0) == State.EXPIRED


def test_a_message_that_outlives_its_own_delay_comes_due_and_expires_at_once(stage: Stage) -> None:
    stage.topic()
    stage.publish(Message(b"a", delay_ns=HOUR, expires_at_ns=stage.now_ns + MINUTE))
    stage.advance(30 * MINUTE)
    assert stage.values() == []
    stage.advance(30 * MINUTE)
    assert stage.values() == []
    assert stage.state_of(0) == State.EXPIRED


@pytest.mark.parametrize("back", ["nack", "release", "expiry", "leave"])
def test_what_outlived_its_life_while_it_was_leased_does_not_go_back(stage: Stage, back: str) -> None:
    stage.topic(message_ttl_ns=MINUTE, lease_ns=2 * MINUTE, retry=retry(max_retries=0))
    stage.publish("a")
    held = stage.take("a")
    stage.advance(MINUTE + S)
    assert stage.state_of(0) == State.LEASED, "whoever has it may still finish"
    if back == "nack":
        stage.nack(held)
    elif back == "release":
        stage.release(held)
    elif back == "leave":
        stage.leave("c")
    else:
        stage.advance(MINUTE)
    assert stage.state_of(0) == State.EXPIRED, "lifetime is checked before retries"
    assert [topic.name for topic in stage.state.topics.values()] == ["t"]


def test_what_is_acked_in_time_after_its_life_is_acked(stage: Stage) -> None:
    stage.topic(message_ttl_ns=MINUTE, lease_ns=HOUR)
    stage.publish("a")
    held = stage.take("a")
    stage.advance(30 * MINUTE)
    stage.ack(held)
    assert stage.state_of(0) == State.ACKED


def test_a_message_may_expire_while_it_waits_for_its_retry(stage: Stage) -> None:
    stage.topic(message_ttl_ns=MINUTE)
    stage.publish("A1", "A2")
    stage.nack(stage.take("A1"), delay=HOUR)
    stage.advance(MINUTE)
    assert [stage.state_of(0), stage.state_of(1)] == [State.EXPIRED, State.EXPIRED]
    stage.publish("A3")
    assert stage.values(9) == ["A3"]


def test_an_expired_message_lets_the_next_of_its_key_go(stage: Stage) -> None:
    stage.topic()
    stage.publish(Message(b"A1", key=b"A", ttl_ns=MINUTE), "A2")
    stage.nack(stage.take("A1"), delay=HOUR)
    assert stage.values(9) == []
    stage.advance(MINUTE)
    assert stage.values(9) == ["A2"]


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_lifetimes_survive_a_restart_and_end_while_nobody_is_there(stage: Stage, with_snapshot: bool) -> None:
    stage.topic(message_ttl_ns=HOUR)
    stage.publish("a", Message(b"b", ttl_ns=MINUTE), Message(b"c", ttl_ns=DAY))
    stage.restart(with_snapshot=with_snapshot)
    stage.clock.advance(2 * HOUR)
    assert stage.values(9) == ["c"]
    assert [stage.state_of(n) for n in range(2)] == [State.EXPIRED, State.EXPIRED]


def test_a_group_that_begins_later_does_not_get_what_is_over(stage: Stage) -> None:
    stage.topic(message_ttl_ns=HOUR)
    stage.publish(Message(b"a", ttl_ns=S), "b")
    stage.advance(MINUTE)
    stage.group("late")
    assert stage.values(9, group="late") == ["b"]
    stage.advance(HOUR)
    stage.group("later")
    assert stage.values(9, group="later") == []


def test_a_changed_ttl_is_for_what_is_there_too(stage: Stage) -> None:
    stage.topic(message_ttl_ns=HOUR)
    stage.publish("a")
    stage.change_topic(message_ttl_ns=MINUTE)
    stage.advance(MINUTE)
    assert stage.values() == []
