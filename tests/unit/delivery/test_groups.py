"""Groups: each sees everything; where they begin; what they want; overrides, pauses, and going away."""

from __future__ import annotations

import pytest

from headrace.batch import Message
from headrace.config.group import RetryOverrides
from headrace.delivery import (
    ChangeGroup,
    CreateGroup,
    DeleteGroup,
    Join,
    PauseGroup,
    ResumeGroup,
    Start,
    State,
    snapshot,
)
from headrace.errors import AlreadyExists, InvalidArgument, LimitExceeded, UnknownGroup, UnknownTopic
from headrace.limits import GROUPS_PER_TOPIC_MAX
from unit.delivery.harness import HOUR, MINUTE, S, Stage, after, retry


@pytest.mark.feature("F016", "F082", "F291")
def test_every_group_sees_every_message_and_none_disturbs_another(stage: Stage) -> None:
    stage.topic()
    stage.group("billing")
    stage.group("audit")
    stage.publish("A1", "A2", "b")
    stage.nack(*stage.lease(1, group="billing"))
    stage.reject(*stage.lease(1, group="audit"))
    for group in ("default", "audit"):
        got = []
        while found := stage.lease(9, group=group, topic="t"):
            got += [d.value for d in found]
            stage.ack(*found)
        assert got == (["A1", "b", "A2"] if group == "default" else ["A2", "b"])
    assert stage.values(9, group="billing", topic="t") == ["b"]


@pytest.mark.feature("F081", "F122")
def test_in_one_group_a_message_is_with_one_consumer_at_a_time(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.publish(*"abcdef")
    got = [stage.values(1, consumer=name) for name in ("x", "y", "z", "x", "y", "z", "x")]
    assert [value for values in got for value in values] == list("abcdef")


# -- where a group begins ----------------------------------------------------------------------------------------------


def test_a_group_begins_with_the_earliest_message_unless_told_otherwise(stage: Stage) -> None:
    stage.topic()
    stage.publish("a", "b")
    stage.group("g")
    stage.publish("c")
    assert stage.values(9, group="g") == ["a", "b", "c"]


def test_a_group_can_begin_with_what_comes_next(stage: Stage) -> None:
    stage.topic()
    stage.publish("a", "b")
    stage.group("g", start=Start(latest=True))
    assert stage.values(9, group="g") == []
    stage.publish("c")
    assert stage.values(9, group="g") == ["c"]


def test_a_group_can_begin_at_an_offset_of_each_partition(stage: Stage) -> None:
    stage.topic(partitions=2)
    stage.publish("a", "b", partition=0)
    stage.publish("x", "y", partition=1)
    stage.group("g", start=Start(offsets={0: 1, 1: 2}))
    assert stage.values(9, group="g") == ["b"]


def test_a_group_can_begin_at_a_time(stage: Stage) -> None:
    stage.topic()
    stage.publish("a")
    stage.advance(MINUTE)
    at_ns = stage.now_ns
    stage.publish("b")
    stage.advance(MINUTE)
    stage.publish("c")
    stage.group("g", start=Start(time_ns=at_ns))
    stage.group("later", start=Start(time_ns=at_ns + 1_000_000))
    stage.group("never", start=Start(time_ns=stage.now_ns + HOUR))
    assert stage.values(9, group="g") == ["b", "c"]
    assert stage.values(9, group="later") == ["c"]
    assert stage.values(9, group="never") == []


def test_a_group_that_begins_late_still_gets_what_is_scheduled(stage: Stage) -> None:
    stage.topic()
    stage.publish("a", after("later", MINUTE))
    stage.ack(*stage.lease())
    stage.group("g", start=Start(offsets={0: 1}))
    stage.advance(MINUTE)
    assert stage.values(9, group="g") == ["later"]


@pytest.mark.parametrize("offsets", [{0: 4}, {0: -1}, {1: 0}, {7: 0}])
def test_a_group_cannot_begin_where_there_is_nothing(stage: Stage, offsets: dict[int, int]) -> None:
    stage.topic()
    stage.publish("a", "b", "c")
    before = snapshot(stage.state)
    refusal = stage.group("g", start=Start(offsets=offsets))
    assert isinstance(refusal, InvalidArgument)
    assert snapshot(stage.state) == before


# -- what can be wrong -------------------------------------------------------------------------------------------------


def test_a_second_group_of_a_name_is_refused(stage: Stage) -> None:
    stage.topic()
    stage.group("g")
    assert isinstance(stage.group("g"), AlreadyExists)
    assert isinstance(stage.group("default"), AlreadyExists)


def test_unknown_topics_and_groups_are_refused_by_every_command(stage: Stage) -> None:
    stage.topic()
    before = snapshot(stage.state)
    assert isinstance(stage.do(CreateGroup(99, "g")), UnknownTopic)
    for command in (
        ChangeGroup(99, stage.the_group().settings),
        DeleteGroup(99),
        PauseGroup(99, "ops", "why"),
        ResumeGroup(99, "ops"),
        Join(99, "c"),
    ):
        assert isinstance(stage.do(command), UnknownGroup)
    assert snapshot(stage.state) == before


def test_settings_that_contradict_the_topics_are_refused(stage: Stage) -> None:
    stage.topic(partitions=2)
    before = snapshot(stage.state)
    refusal = stage.group("g", ordering="strict")
    assert isinstance(refusal, InvalidArgument)
    assert "2" in refusal.message
    assert isinstance(stage.group("g", filter={"headers": {"x": {"near": 1}}}), InvalidArgument)
    assert isinstance(stage.change_group(ordering="strict"), InvalidArgument)
    assert snapshot(stage.state) == before


def test_there_are_only_so_many_groups(stage: Stage) -> None:
    stage.topic()
    for n in range(GROUPS_PER_TOPIC_MAX - 1):
        assert type(stage.core.execute(CreateGroup(1, f"g{n}")).reply) is int
    assert isinstance(stage.core.execute(CreateGroup(1, "one too many")).reply, LimitExceeded)


# -- overrides and changes ---------------------------------------------------------------------------------------------


def test_a_group_overrides_what_it_says_and_inherits_the_rest(stage: Stage) -> None:
    stage.topic(lease_ns=20 * S, retry=retry(max_retries=7))
    stage.group("g", lease_ns=S, retry=RetryOverrides(initial_backoff_ns=MINUTE))
    policy = stage.the_group("g").policy
    assert (policy.lease_ns, policy.retry.max_retries, policy.retry.initial_backoff_ns) == (S, 7, MINUTE)
    stage.change_topic(lease_ns=5 * S, retry=retry(max_retries=1))
    policy = stage.the_group("g").policy
    assert (policy.lease_ns, policy.retry.max_retries, policy.retry.initial_backoff_ns) == (S, 1, MINUTE)
    assert stage.the_group().policy.lease_ns == 5 * S


# -- filters -----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("F022")
def test_a_filter_keeps_out_what_a_group_does_not_want(stage: Stage) -> None:
    stage.topic()
    stage.group("eu", filter={"headers": {"region": "eu"}, "key": {"prefix": "user-"}})
    stage.publish(
        Message(b"1", key=b"user-1", headers={"region": "eu"}),
        Message(b"2", key=b"user-1", headers={"region": "us"}),
        Message(b"3", key=b"bot-1", headers={"region": "eu"}),
        Message(b"4"),
    )
    assert stage.values(9, group="eu") == ["1"]
    assert [stage.state_of(n, "eu") for n in range(1, 4)] == [State.FILTERED] * 3
    assert len(stage.values(9)) == 3, "2 is behind 1 of the same key"


@pytest.mark.feature("F022")
def test_a_filter_is_applied_to_what_is_there_already(stage: Stage) -> None:
    stage.topic()
    stage.publish(Message(b"1", headers={"region": "eu"}), Message(b"2", headers={"region": "us"}))
    stage.group("eu", filter={"headers": {"region": "eu"}})
    assert stage.values(9, group="eu") == ["1"]


def test_a_changed_filter_is_for_what_comes_from_now_on(stage: Stage) -> None:
    stage.topic()
    stage.group("g", filter={"headers": {"region": "eu"}})
    stage.publish(Message(b"1", headers={"region": "eu"}), Message(b"2", headers={"region": "us"}))
    stage.change_group("g", filter={"headers": {"region": "us"}})
    stage.publish(Message(b"3", headers={"region": "eu"}), Message(b"4", headers={"region": "us"}))
    assert stage.values(9, group="g") == ["1", "4"]


def test_a_filter_on_topic_levels_wants_all_of_a_topic_or_nothing(stage: Stage) -> None:
    stage.topic("orders/eu")
    stage.group("eu", filter={"topic": "orders/eu"})
    stage.group("us", filter={"topic": "+/us"})
    stage.publish("a")
    assert stage.values(9, group="eu") == ["a"]
    assert stage.values(9, group="us") == []
    assert stage.the_group("us").unsettled_count == 0


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_a_filter_survives_a_restart(stage: Stage, with_snapshot: bool) -> None:
    stage.topic()
    stage.group("eu", filter={"headers": {"region": "eu"}})
    stage.publish(Message(b"1", headers={"region": "us"}))
    stage.restart(with_snapshot=with_snapshot)
    stage.publish(Message(b"2", headers={"region": "us"}), Message(b"3", headers={"region": "eu"}))
    assert stage.values(9, group="eu") == ["3"]


# -- pause -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_snapshot", [None, False, True])
def test_a_paused_group_is_given_nothing_and_keeps_everything(stage: Stage, with_snapshot: bool | None) -> None:
    stage.topic()
    stage.group("other")
    stage.publish("A1", "A2")
    held = stage.take("A1")
    assert stage.pause() is True
    if with_snapshot is not None:
        stage.restart(with_snapshot=with_snapshot)
    pause = stage.the_group().pause
    assert pause is not None
    assert (pause.by, pause.why) == ("ops", "maintenance")
    stage.ack(held)
    assert stage.values(9) == []
    assert stage.values(9, group="other") == ["A1"]
    assert stage.resume() is True
    assert stage.resume() is False
    assert stage.values(9) == ["A2"]


@pytest.mark.parametrize("with_snapshot", [None, False, True])
def test_a_pause_until_a_time_ends_by_itself(stage: Stage, with_snapshot: bool | None) -> None:
    stage.topic()
    stage.publish("a")
    stage.pause(until_ns=stage.now_ns + MINUTE)
    if with_snapshot is not None:
        stage.restart(with_snapshot=with_snapshot)
    stage.advance(MINUTE - 1)
    assert stage.values() == []
    stage.advance(1)
    assert stage.values() == ["a"]


def test_a_pause_until_the_past_is_refused(stage: Stage) -> None:
    stage.topic()
    before = snapshot(stage.state)
    assert isinstance(stage.pause(until_ns=stage.now_ns), InvalidArgument)
    assert snapshot(stage.state) == before


def test_delays_backoffs_and_lifetimes_go_on_while_a_group_is_paused(stage: Stage) -> None:
    stage.topic(message_ttl_ns=HOUR)
    stage.publish("a", after("b", MINUTE), Message(b"c", ttl_ns=S))
    stage.nack(*stage.lease(1))
    stage.pause()
    stage.advance(2 * MINUTE)
    assert [stage.state_of(n) for n in range(3)] == [State.READY, State.READY, State.EXPIRED]


# -- going away --------------------------------------------------------------------------------------------------------


def test_a_deleted_group_is_gone_with_its_leases_and_others_go_on(stage: Stage) -> None:
    stage.topic()
    stage.group("g")
    stage.publish("a")
    held = stage.lease(group="g")
    stage.delete_group("g")
    assert not stage.state.leases
    assert stage.settle(ack=[held[0].receipt]).settled == 0
    stage.group("g")
    assert stage.values(9, group="g") == ["a"]


@pytest.mark.parametrize("with_snapshot", [None, False, True])
def test_an_ephemeral_group_vanishes_with_its_last_consumer(stage: Stage, with_snapshot: bool | None) -> None:
    stage.topic()
    stage.group("watch", durable=False)
    stage.join("x", "watch")
    stage.join("y", "watch")
    stage.publish("a")
    if with_snapshot is not None:
        stage.restart(with_snapshot=with_snapshot)
    stage.leave("x", "watch")
    assert "watch" in stage.named("t").groups
    stage.leave("y", "watch")
    assert "watch" not in stage.named("t").groups


def test_a_deleted_topic_takes_everything_along_and_its_name_is_free(stage: Stage) -> None:
    stage.topic()
    stage.group("g")
    stage.publish("a", after("b", MINUTE))
    stage.lease()
    stage.delete_topic()
    assert not stage.state.leases
    assert not stage.state.groups
    assert not stage.state.partitions
    stage.advance(HOUR)
    stage.topic()
    assert stage.values(9) == []


@pytest.mark.feature("F091")
def test_what_a_consumer_held_that_left_cleanly_is_there_at_once_and_uncounted(stage: Stage) -> None:
    stage.topic()
    stage.publish("A1", "B1")
    stage.lease(9, consumer="one")
    stage.leave("one")
    assert [(d.value, d.attempt) for d in stage.lease(9, consumer="two")] == [("A1", 1), ("B1", 1)]


@pytest.mark.feature("F091")
def test_what_a_consumer_held_that_was_cut_off_goes_to_the_others_and_counts(stage: Stage) -> None:
    stage.topic()
    stage.publish("A1", "B1")
    stage.lease(9, consumer="one")
    stage.leave("one", clean=False)
    assert [(d.value, d.attempt) for d in stage.lease(9, consumer="two")] == [("A1", 2), ("B1", 2)]


def test_leaving_a_group_one_was_never_in_changes_nothing(stage: Stage) -> None:
    stage.topic()
    before = snapshot(stage.state)
    stage.leave("nobody")
    assert snapshot(stage.state) == before
