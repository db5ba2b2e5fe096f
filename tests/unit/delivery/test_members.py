"""Who is in a group: runs of partitions, hand-over, silence; and sharing out pushed work."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.delivery import Forget, Join, State, share_credit
from headrace.delivery.members import assign
from headrace.errors import LimitExceeded
from headrace.limits import CONSUMERS_PER_GROUP_MAX, HANDOVER_NS, MEMBER_SILENCE_NS
from unit.delivery.harness import MS, S, Stage

# -- partitions in runs ------------------------------------------------------------------------------------------------


@pytest.mark.feature("F086")
def test_ten_partitions_over_three_consumers_are_three_runs() -> None:
    owners = assign(["c", "a", "b"], range(10))
    assert [owners[n] for n in range(10)] == ["a"] * 3 + ["b"] * 3 + ["c"] * 4


@pytest.mark.feature("F086")
@pytest.mark.parametrize("partitions", [1, 2, 7, 16])
@pytest.mark.parametrize("consumers", [1, 2, 3, 20])
def test_runs_are_contiguous_and_as_even_as_can_be(partitions: int, consumers: int) -> None:
    names = [f"c{n:02}" for n in range(consumers)]
    owners = [assign(names, range(partitions))[n] for n in range(partitions)]
    assert owners == sorted(owners)
    counts = [owners.count(name) for name in names]
    assert max(counts) - min(counts) <= 1


def owned(stage: Stage, consumer: str) -> set[int]:
    return {pid for pid, owner in stage.the_group().owners.items() if owner == consumer}


@pytest.mark.feature("F086", "F088")
def test_joining_and_leaving_moves_partitions_and_only_by_partition(stage: Stage) -> None:
    stage.topic("ordered", ordering="partition", partitions=6)
    for consumer in ("a", "b", "c"):
        stage.join(consumer)
    assert [len(owned(stage, consumer)) for consumer in "abc"] == [2, 2, 2]
    stage.leave("b")
    assert [len(owned(stage, consumer)) for consumer in "abc"] == [3, 0, 3]
    stage.topic("loose", ordering="key", partitions=6)
    for consumer in ("a", "b", "c"):
        stage.join(consumer)
    assert stage.the_group().owners == {}


def fill(stage: Stage, partitions: int) -> None:
    for index in range(partitions):
        stage.publish(f"{index}a", f"{index}b", partition=index)


@pytest.mark.feature("F074", "F088")
def test_a_partition_is_served_by_its_owner_alone(stage: Stage) -> None:
    stage.topic(ordering="partition", partitions=4)
    stage.join("a")
    stage.join("b")
    fill(stage, 4)
    assert sorted(stage.values(9, consumer="a")) == ["0a", "0b", "1a", "1b"]
    assert stage.values(9, consumer="a") == []
    got = stage.values(9, consumer="b")
    assert sorted(got) == ["2a", "2b", "3a", "3b"]


@pytest.mark.feature("F089", "F090")
def test_only_moved_partitions_pause_and_only_until_their_leases_are_settled(stage: Stage) -> None:
    stage.topic(ordering="partition", partitions=4)
    stage.join("a")
    fill(stage, 4)
    held = {d.value: d for d in stage.lease(4, consumer="a")}
    stage.join("b")
    moved = sorted(owned(stage, "b"))
    kept = sorted(owned(stage, "a"))
    assert len(moved) == len(kept) == 2
    more = stage.lease(9, consumer="a")
    assert {d.pid for d in more} <= set(kept)
    waiting = [d for d in held.values() if d.pid in moved]
    busy = {d.pid for d in waiting}
    assert {d.pid for d in stage.lease(9, consumer="b")} == set(moved) - busy
    for delivery in waiting:
        stage.ack(delivery)
    assert {d.pid for d in stage.lease(9, consumer="b")} <= set(moved)
    assert stage.lease(9, consumer="b") == []


@pytest.mark.feature("F089", "F090")
@pytest.mark.parametrize("with_snapshot", [None, False, True])
def test_who_does_not_let_go_loses_its_leases_after_a_second_uncounted(
    stage: Stage, with_snapshot: bool | None
) -> None:
    assert HANDOVER_NS <= S
    stage.topic(ordering="partition", partitions=1)
    stage.publish("x", "y")
    (held,) = stage.lease(1, consumer="a")
    stage.join("b")
    assert owned(stage, "b") == {held.pid}
    if with_snapshot is not None:
        stage.restart(with_snapshot=with_snapshot)
    stage.advance(HANDOVER_NS - MS)
    assert stage.lease(9, consumer="b") == []
    assert stage.state_of(0) == State.LEASED
    stage.advance(2 * MS)
    again = stage.lease(9, consumer="b")
    assert [(d.value, d.attempt) for d in again] == [("x", 1), ("y", 1)]
    assert stage.settle(ack=[held.receipt]).settled == 0


@pytest.mark.feature("F091")
def test_a_silent_member_is_gone_and_its_partitions_go_to_the_others(stage: Stage) -> None:
    stage.topic(ordering="partition", partitions=2)
    stage.join("a")
    stage.join("b")
    stage.advance(MEMBER_SILENCE_NS - S)
    stage.lease(1, consumer="a")
    stage.advance(2 * S)
    assert stage.the_group().consumers() == ["a"]
    assert len(owned(stage, "a")) == 2


def test_a_member_that_works_on_something_long_is_not_silent(stage: Stage) -> None:
    stage.topic(ordering="partition", partitions=1, lease_ns=10 * MEMBER_SILENCE_NS)
    stage.publish("x")
    stage.lease(1, consumer="a")
    stage.advance(2 * MEMBER_SILENCE_NS)
    assert stage.the_group().consumers() == ["a"]


def test_a_member_of_another_life_is_forgotten_and_what_it_holds_stays_leased(stage: Stage) -> None:
    stage.topic(ordering="partition", partitions=1)
    stage.publish("x")
    stage.lease(1, consumer="a")
    stage.restart()
    assert stage.do(Forget(stage.the_group().gid, "a")) is True
    assert stage.do(Forget(stage.the_group().gid, "a")) is False
    assert stage.the_group().consumers() == []
    assert stage.state_of(0) == State.LEASED


def test_a_group_has_only_so_many_members(stage: Stage) -> None:
    stage.topic()
    gid = stage.the_group().gid
    stage.the_group().members.update({f"m{n}": 0 for n in range(CONSUMERS_PER_GROUP_MAX)})
    assert isinstance(stage.core.execute(Join(gid, "one too many")).reply, LimitExceeded)
    stage.the_group().members.clear()


# -- pushed work -------------------------------------------------------------------------------------------------------


@pytest.mark.feature("F047", "F086", "F087")
def test_round_robin_gives_even_shares_and_the_remainder_goes_round() -> None:
    total: Counter[str] = Counter()
    for turn in range(300):
        given = share_credit({"a": 10, "b": 10, "c": 10}, 4, "round_robin", turn, {})
        assert sum(given.values()) == 4
        assert max(given.values()) - min(given.values()) <= 1
        total += Counter(given)
    assert total == {"a": 400, "b": 400, "c": 400}


@pytest.mark.feature("F087")
def test_least_busy_gives_to_those_with_the_least_in_flight_first() -> None:
    credit = dict.fromkeys("abc", 100)
    assert share_credit(credit, 3, "least_busy", 0, {"a": 5, "b": 0, "c": 9}) == {"b": 3}
    assert share_credit(credit, 7, "least_busy", 0, {"a": 5, "b": 0, "c": 9}) == {"a": 1, "b": 6}
    assert share_credit(credit, 100, "least_busy", 0, {"a": 5, "b": 0, "c": 9}) == {"a": 33, "b": 38, "c": 29}


@pytest.mark.feature("F087")
def test_random_reaches_everybody_alike_and_the_same_turn_gives_the_same() -> None:
    total: Counter[str] = Counter()
    for turn in range(2000):
        total += Counter(share_credit({"a": 9, "b": 9, "c": 9}, 1, "random", turn * 7919, {}))
    assert all(550 < count < 800 for count in total.values())
    assert share_credit({"a": 9, "b": 9}, 5, "random", 7, {}) == share_credit({"a": 9, "b": 9}, 5, "random", 7, {})


@pytest.mark.parametrize("push", ["round_robin", "least_busy", "random"])
def test_nobody_is_given_more_than_its_credit_and_nothing_is_kept_back(push: str) -> None:
    for turn in range(50):
        credit = {"a": 1, "b": 0, "c": 3, "d": 7}
        for ready in range(15):
            given = share_credit(credit, ready, push, turn, {"a": 4, "d": 1})
            assert all(0 < count <= credit[name] for name, count in given.items())
            assert sum(given.values()) == min(ready, 11)


@pytest.mark.parametrize("push", ["round_robin", "least_busy", "random"])
def test_without_credit_or_work_nobody_is_given_anything(push: str) -> None:
    assert share_credit({}, 5, push, 0, {}) == {}
    assert share_credit({"a": 0}, 5, push, 0, {}) == {}
    assert share_credit({"a": 5}, 0, push, 0, {}) == {}
