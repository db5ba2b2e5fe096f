"""Retry: the backoff series, how many attempts, how long in all, what is remembered of them."""

from __future__ import annotations

import pytest

from headrace.config import RetryConfig
from headrace.config.group import RetryOverrides
from headrace.delivery import State, backoff_ns
from unit.delivery.harness import HOUR, MINUTE, MS, S, Stage, retry


@pytest.mark.feature("F050", "F051", "F052", "F053", "F055")
def test_the_default_series_is_exactly_this(stage: Stage) -> None:
    stage.topic(retry=retry(total_timeout_ns=0))
    stage.publish("a")
    waited = []
    for _ in range(10):
        (held,) = stage.lease()
        failed_ns = stage.now_ns
        stage.nack(held)
        due_ns = stage.core.state.wake_at_ns()
        assert due_ns is not None
        stage.advance(0, to=due_ns - 1)
        assert stage.values() == []
        stage.advance(1)
        waited.append((stage.now_ns - failed_ns) // S)
    assert waited == [5, 10, 20, 40, 80, 160, 300, 300, 300, 300]


@pytest.mark.feature("F050", "F052", "F053")
@pytest.mark.parametrize(
    ("settings", "series"),
    [
        ({"initial_backoff_ns": 0}, [0, 0, 0]),
        ({"initial_backoff_ns": S, "backoff_multiplier": 1.0}, [1, 1, 1, 1]),
        ({"initial_backoff_ns": S, "backoff_multiplier": 3.0, "max_backoff_ns": 20 * S}, [1, 3, 9, 20, 20]),
        ({"initial_backoff_ns": MINUTE, "max_backoff_ns": S}, [1, 1]),
    ],
)
def test_other_series_are_what_they_say(settings: dict[str, float], series: list[int]) -> None:
    config = RetryConfig(**settings)  # type: ignore[arg-type]
    assert [backoff_ns(config, attempt, 0) // S for attempt in range(1, len(series) + 1)] == series


def test_a_thousandth_attempt_waits_the_longest_and_overflows_nothing() -> None:
    assert backoff_ns(RetryConfig(backoff_multiplier=1000.0), 1000, 0) == 300 * S
    assert backoff_ns(RetryConfig(backoff_multiplier=1000.0), 64, 0) == 300 * S


def test_jitter_only_ever_makes_it_later_and_not_by_more_than_it_says() -> None:
    config = RetryConfig(jitter=0.5)
    plain = [backoff_ns(RetryConfig(), attempt, 0) for attempt in range(1, 9)]
    for spread in range(200):
        for attempt, base in enumerate(plain, 1):
            assert base <= backoff_ns(config, attempt, spread) <= base * 1.5
    assert len({backoff_ns(config, 1, spread) for spread in range(200)}) > 100


@pytest.mark.feature("F049", "F059", "F292")
@pytest.mark.parametrize("max_retries", [0, 1, 3, 10])
def test_a_message_dies_after_exactly_the_allowed_attempts(stage: Stage, max_retries: int) -> None:
    stage.topic(retry=retry(max_retries=max_retries, total_timeout_ns=0))
    stage.publish("a")
    for attempt in range(1, max_retries + 2):
        assert stage.state_of(0) == State.READY
        (held,) = stage.lease()
        assert held.attempt == attempt
        stage.nack(held)
        stage.advance(5 * MINUTE)
    assert stage.state_of(0) == State.DEAD
    (letter,) = stage.lease(topic="dlq/t")
    assert letter.headers["headrace-dead-attempts"] == str(max_retries + 1)
    assert letter.headers["headrace-dead-reason"] == "max_retries"


@pytest.mark.feature("F056")
def test_leases_that_ran_out_count_as_nacks_do(stage: Stage) -> None:
    stage.topic(lease_ns=10 * S, retry=retry(max_retries=2, initial_backoff_ns=0))
    stage.publish("a")
    stage.nack(stage.take("a"))
    stage.take("a")
    stage.advance(11 * S)
    assert stage.take("a").attempt == 3
    stage.advance(11 * S)
    assert stage.state_of(0) == State.DEAD


@pytest.mark.feature("F054", "F063")
def test_total_timeout_ends_it_although_tries_are_left(stage: Stage) -> None:
    stage.topic(retry=retry(total_timeout_ns=MINUTE, initial_backoff_ns=25 * S, backoff_multiplier=1.0))
    stage.publish("a")
    for _ in range(2):
        stage.nack(*stage.lease())
        stage.advance(25 * S)
    (held,) = stage.lease()
    stage.advance(10 * S - 1)
    stage.nack(held)
    assert stage.state_of(0) == State.SCHEDULED, "59.999… s after the first delivery"
    stage.advance(25 * S + MS)
    stage.nack(*stage.lease())
    assert stage.state_of(0) == State.DEAD
    (letter,) = stage.lease(topic="dlq/t")
    assert letter.headers["headrace-dead-reason"] == "total_timeout"
    assert letter.headers["headrace-dead-attempts"] == "4"


@pytest.mark.feature("F054")
def test_total_timeout_runs_from_the_first_delivery_not_from_the_publish(stage: Stage) -> None:
    stage.topic(retry=retry(total_timeout_ns=MINUTE))
    stage.publish("a")
    stage.advance(HOUR)
    stage.nack(*stage.lease())
    assert stage.state_of(0) == State.SCHEDULED


@pytest.mark.feature("F054")
def test_exactly_the_total_timeout_is_too_long(stage: Stage) -> None:
    stage.topic(lease_ns=HOUR, retry=retry(total_timeout_ns=MINUTE))
    stage.publish("a")
    (held,) = stage.lease()
    stage.advance(MINUTE)
    stage.nack(held)
    assert stage.state_of(0) == State.DEAD


@pytest.mark.feature("F056", "F058")
@pytest.mark.parametrize("with_snapshot", [False, True])
def test_attempts_and_a_backoff_survive_a_restart(stage: Stage, with_snapshot: bool) -> None:
    stage.topic()
    stage.publish("a")
    stage.nack(stage.take("a"), error="first")
    stage.advance(5 * S)
    stage.nack(stage.take("a"), error="second")
    stage.restart(with_snapshot=with_snapshot)
    stage.advance(10 * S - 1)
    assert stage.values() == []
    stage.advance(1)
    (held,) = stage.lease()
    assert held.attempt == 3
    assert stage.backlog().tries[0].error == "second"


def test_a_release_takes_the_attempt_back_that_its_lease_counted(stage: Stage) -> None:
    stage.topic()
    stage.publish("a")
    stage.nack(stage.take("a"), delay=0)
    second = stage.take("a")
    assert second.attempt == 2
    stage.release(second)
    assert stage.take("a").attempt == 2


def test_a_message_that_was_acked_leaves_no_trace_of_its_attempts_in_memory(stage: Stage) -> None:
    stage.topic()
    stage.publish("a")
    stage.nack(stage.take("a"), delay=0)
    stage.ack(stage.take("a"))
    backlog = stage.backlog()
    assert not backlog.tries
    assert not backlog.rank
    assert not backlog.keys


@pytest.mark.feature("F058")
def test_retries_go_through_the_calendar_and_no_other_topic(stage: Stage) -> None:
    stage.topic()
    stage.publish("a")
    stage.nack(*stage.lease())
    assert len(stage.backlog().backoffs) == 1
    assert [topic.name for topic in stage.state.topics.values()] == ["t"]


def test_a_group_retries_by_its_own_rules(stage: Stage) -> None:
    stage.topic()
    stage.group("hasty", retry=RetryOverrides(max_retries=0), lease_ns=S)
    stage.publish("a")
    stage.nack(*stage.lease())
    (held,) = stage.lease(group="hasty")
    assert held.deadline_ns - stage.now_ns == S
    stage.nack(held)
    assert stage.state_of(0) == State.SCHEDULED
    assert stage.state_of(0, "hasty") == State.DEAD


def test_a_thousand_backoffs_each_end_in_their_millisecond(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.publish(*(f"m{n}" for n in range(1000)))
    for number, held in enumerate(stage.lease(1000)):
        stage.core.execute(_nack(stage, held, (number + 1) * 7 * MS))
    start_ns = stage.now_ns
    for step in range(1, 11):
        stage.advance(0, to=start_ns + step * 700 * MS)
        found = stage.lease(1000)
        assert [d.value for d in found] == [f"m{n}" for n in range((step - 1) * 100, step * 100)]


def _nack(stage: Stage, held: object, delay_ns: int) -> object:
    from headrace.delivery import SettleMany

    return SettleMany(stage.the_group().gid, nack=[(held.receipt, delay_ns, "")])  # type: ignore[attr-defined]
