"""Leasing: who gets what, how much of it, until when; and what becomes of a lease that nobody settles."""

from __future__ import annotations

import pytest

from headrace.batch import Message
from headrace.delivery import LeaseUpTo, State, snapshot
from headrace.errors import InvalidArgument, UnknownGroup
from headrace.limits import LEASE_MESSAGES_MAX
from unit.delivery.harness import HOUR, MINUTE, MS, S, Stage, retry


@pytest.mark.feature("F015", "F122", "F295")
def test_each_message_goes_to_one_consumer_in_order(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.publish(*"abcdef")
    assert stage.values(2, consumer="one") == ["a", "b"]
    assert stage.values(2, consumer="two") == ["c", "d"]
    assert stage.values(9, consumer="one") == ["e", "f"]
    assert stage.values(9, consumer="two") == []


@pytest.mark.feature("F042")
def test_what_is_leased_is_known_by_message_until_it_is_settled(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.publish(*"abc")
    first, second = stage.lease(2)
    assert stage.the_group().leased_count == 2
    assert [stage.state_of(n) for n in range(3)] == [State.LEASED, State.LEASED, State.READY]
    stage.ack(first)
    assert stage.the_group().leased_count == 1
    stage.ack(second)
    assert stage.the_group().leased_count == 0
    assert not stage.state.leases


@pytest.mark.feature("F041", "F056", "F296")
def test_a_lease_that_runs_out_gives_its_messages_another_attempt(stage: Stage) -> None:
    stage.topic(ordering="none", lease_ns=30 * S)
    stage.publish("a", "b")
    first = stage.lease(2)
    assert [d.attempt for d in first] == [1, 1]
    stage.ack(first[1])
    stage.advance(30 * S - 1)
    assert stage.state_of(0) == State.LEASED
    stage.advance(8 * MS + 1)
    assert stage.state_of(0) == State.SCHEDULED
    stage.advance(5 * S)
    (again,) = stage.lease(9)
    assert (again.value, again.attempt) == ("a", 2)


@pytest.mark.parametrize("lease_ns", [1 * MS, 7 * MS, 8 * MS, 9 * MS, 1001 * MS, HOUR])
def test_a_lease_never_ends_before_its_time(stage: Stage, lease_ns: int) -> None:
    stage.topic(ordering="none", retry=retry(initial_backoff_ns=0))
    stage.publish("a")
    (held,) = stage.lease(lease_ns=lease_ns)
    assert held.deadline_ns == stage.now_ns + lease_ns
    stage.advance(lease_ns - 1)
    assert stage.state_of(0) == State.LEASED
    stage.advance(1 + 16 * MS)
    assert stage.state_of(0) == State.READY


def test_a_lease_runs_on_although_the_wall_clock_jumps(stage: Stage) -> None:
    stage.topic(lease_ns=30 * S)
    stage.publish("a")
    stage.lease()
    for jump_ns in (HOUR, -2 * HOUR):
        stage.clock.set_wall(stage.clock.wall_ns() + jump_ns)
        stage.core.tick()
        assert stage.state_of(0) == State.LEASED
    stage.advance(31 * S)
    assert stage.state_of(0) == State.SCHEDULED


@pytest.mark.feature("F129", "F119")
@pytest.mark.parametrize("with_snapshot", [False, True])
def test_a_lease_survives_a_restart_and_what_is_not_acked_comes_again(stage: Stage, with_snapshot: bool) -> None:
    stage.topic(ordering="none", lease_ns=30 * S)
    stage.publish("a", "b")
    done, held = stage.lease(2)
    stage.ack(done)
    stage.restart(with_snapshot=with_snapshot)
    assert stage.values(9) == []
    stage.advance(31 * S)
    stage.advance(5 * S)
    (again,) = stage.lease(9)
    assert (again.value, again.attempt) == ("b", 2)
    stage.settle(ack=[held.receipt])
    assert stage.state_of(1) == State.LEASED, "the old receipt is stale"


@pytest.mark.feature("F044")
def test_no_more_than_max_in_flight_are_leased_at_a_time(stage: Stage) -> None:
    stage.topic(ordering="none", max_in_flight=3)
    stage.publish(*"abcdef")
    held = stage.lease(9, consumer="one")
    assert [d.value for d in held] == ["a", "b", "c"]
    assert stage.values(9, consumer="two") == []
    stage.ack(held[1])
    assert stage.values(9, consumer="two") == ["d"]


def test_max_in_flight_is_of_the_group_over_all_partitions(stage: Stage) -> None:
    stage.topic(ordering="none", partitions=3, max_in_flight=4)
    for index in range(3):
        stage.publish(*"abc", partition=index)
    assert len(stage.lease(100)) == 4
    assert stage.lease(100) == []


def test_a_group_may_allow_less_at_a_time_than_its_topic(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.group("careful", concurrency=1)
    stage.publish(*"abc")
    (one,) = stage.lease(9, group="careful")
    assert stage.lease(9, group="careful") == []
    stage.ack(one)
    assert stage.values(9, group="careful") == ["b"]
    assert stage.values(9) == ["a", "b", "c"]


def test_a_rate_is_kept_and_the_wait_is_as_long_as_it_says(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.group("slow", rate=10.0)
    stage.publish(*(Message(b"%d" % n) for n in range(40)))
    assert len(stage.lease(100, group="slow")) == 10, "a second's worth may come at once"
    assert stage.lease(100, group="slow") == []
    stage.advance(100 * MS)
    assert len(stage.lease(100, group="slow")) == 1
    stage.advance(500 * MS)
    assert len(stage.lease(100, group="slow")) == 5


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_a_rate_is_not_forgotten_over_a_restart(stage: Stage, with_snapshot: bool) -> None:
    stage.topic(ordering="none")
    stage.group("slow", rate=10.0)
    stage.publish(*(Message(b"%d" % n) for n in range(40)))
    stage.lease(100, group="slow")
    stage.restart(with_snapshot=with_snapshot)
    assert stage.lease(100, group="slow") == []


@pytest.mark.feature("F036", "F120")
@pytest.mark.parametrize("ordering", ["none", "key", "partition"])
def test_at_most_once_settles_what_it_hands_out(stage: Stage, ordering: str) -> None:
    stage.topic(ordering=ordering)
    stage.group("firehose", auto_ack=True)
    stage.publish("A1", "A2", "b")
    assert [d.value for _ in range(3) for d in stage.lease(1, group="firehose")] == ["A1", "A2", "b"]
    assert set(stage.states("firehose").values()) == {State.ACKED}
    stage.restart()
    stage.advance(HOUR)
    assert stage.lease(9, group="firehose") == []


@pytest.mark.parametrize("most", [0, -1, -(10**12)])
def test_a_lease_of_nothing_is_refused(stage: Stage, most: int) -> None:
    stage.topic()
    before = snapshot(stage.state)
    refusal = stage.try_lease(most)
    assert isinstance(refusal, InvalidArgument)
    assert str(most) in refusal.message
    assert snapshot(stage.state) == before


@pytest.mark.parametrize("lease_ns", [0, -1, 12 * HOUR + 1, 1 << 62])
def test_an_absurd_lease_is_refused_with_the_longest_there_is(stage: Stage, lease_ns: int) -> None:
    stage.topic()
    stage.publish("a")
    before = snapshot(stage.state)
    refusal = stage.try_lease(lease_ns=lease_ns)
    assert isinstance(refusal, InvalidArgument)
    assert "43200" in refusal.message
    assert snapshot(stage.state) == before


def test_the_longest_lease_there_is_is_granted(stage: Stage) -> None:
    stage.topic()
    stage.publish("a")
    (held,) = stage.lease(lease_ns=12 * HOUR)
    assert held.deadline_ns == stage.now_ns + 12 * HOUR


def test_a_consumer_name_longer_than_may_be_is_refused(stage: Stage) -> None:
    stage.topic()
    assert isinstance(stage.try_lease(consumer="c" * 256), InvalidArgument)
    assert stage.try_lease(consumer="c" * 255) == []


def test_a_lease_from_a_group_of_another_shard_is_refused(stage: Stage) -> None:
    stage.topic()
    assert isinstance(stage.do(LeaseUpTo(99, "c", 1)), UnknownGroup)


def test_one_grant_has_a_limit_and_the_next_goes_on(stage: Stage) -> None:
    stage.topic(ordering="none", max_in_flight=10 * LEASE_MESSAGES_MAX)
    for _ in range(26):
        stage.core.execute(_bulk(stage))
    (grant,) = stage.core.execute(LeaseUpTo(stage.the_group().gid, "c", 1 << 40)).reply
    assert grant.span.count == LEASE_MESSAGES_MAX
    (grant,) = stage.core.execute(LeaseUpTo(stage.the_group().gid, "c", 1 << 40)).reply
    assert grant.span.first == LEASE_MESSAGES_MAX


def _bulk(stage: Stage) -> object:
    from headrace.batch import encode_columns
    from headrace.delivery import Publish

    return Publish(stage.partition().pid, encode_columns([b"x"] * 4096))


def test_partitions_take_turns(stage: Stage) -> None:
    stage.topic(ordering="none", partitions=3)
    for index in range(3):
        stage.publish(*(Message(b"%d" % index) for _ in range(20)), partition=index)
    served = [stage.values(5)[0] for _ in range(6)]
    assert set(served[:3]) == {"0", "1", "2"}
    assert set(served[3:]) == {"0", "1", "2"}


@pytest.mark.feature("F291", "F081")
def test_several_consumers_share_the_work_whoever_asks(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.publish(*(Message(b"%d" % n) for n in range(100)))
    got: dict[str, list[str]] = {name: [] for name in "xyz"}
    turn = 0
    while found := stage.lease(3, consumer="xyz"[turn % 3]):
        got["xyz"[turn % 3]] += [d.value for d in found]
        stage.ack(*found)
        turn += 1
    assert sorted(map(int, got["x"] + got["y"] + got["z"])) == list(range(100))
    assert all(len(values) > 20 for values in got.values())


def test_a_paused_moment_of_nothing_ready_is_an_empty_answer_not_an_error(stage: Stage) -> None:
    stage.topic()
    assert stage.try_lease() == []
    stage.advance(MINUTE)
    assert stage.try_lease() == []
