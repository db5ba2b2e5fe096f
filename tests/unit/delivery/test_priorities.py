"""Priorities: lanes 0 to 9, strict and aging, over partitions, and never inside a key."""

from __future__ import annotations

import random

import pytest

from headrace.batch import Message
from unit.delivery.harness import MINUTE, S, Stage, after


def of(priority: int, value: str = "", key: str | None = None) -> Message:
    return Message((value or f"p{priority}").encode(), key=key.encode() if key else None, priority=priority)


@pytest.mark.feature("F105", "F106", "F107", "F109")
def test_lower_numbers_go_first_and_within_one_the_order_of_offsets(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.publish(of(9, "z1"), of(0, "a1"), of(5, "m1"), of(0, "a2"), of(9, "z2"), of(1, "b1"))
    assert [d.value for _ in range(6) for d in stage.lease(1)] == ["a1", "a2", "b1", "m1", "z1", "z2"]


@pytest.mark.feature("F108")
def test_three_lanes_high_normal_low_are_the_names_of_one_five_and_nine(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.publish(of(9, "low"), of(5, "normal"), of(1, "high"), Message(b"says none"))
    assert [d.value for _ in range(4) for d in stage.lease(1)] == ["high", "normal", "says none", "low"]


@pytest.mark.feature("F109")
def test_a_message_of_a_higher_lane_that_comes_later_goes_first(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.publish(*(of(9, f"z{n}") for n in range(5)))
    assert stage.values(2) == ["z0", "z1"]
    stage.publish(of(0, "now"))
    assert stage.values(1) == ["now"]
    assert stage.values(9) == ["z2", "z3", "z4"]


def test_a_grant_takes_from_as_many_lanes_as_it_needs(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.publish(*(of(n % 10, f"{n % 10}{n}") for n in range(50)))
    got = [value[0] for value in stage.values(50)]
    assert got == sorted(got)


@pytest.mark.feature("F106")
def test_priority_holds_over_all_partitions_of_a_topic(stage: Stage) -> None:
    stage.topic(ordering="none", partitions=3)
    for index in range(3):
        stage.publish(of(9, f"low{index}"), of(1, f"high{index}"), partition=index)
    first = [d.value for _ in range(3) for d in stage.lease(1)]
    assert sorted(first) == ["high0", "high1", "high2"]
    assert sorted(stage.values(9)) == ["low0", "low1", "low2"]


@pytest.mark.feature("F109")
def test_priority_chooses_between_keys_and_never_inside_one(stage: Stage) -> None:
    stage.topic()
    stage.publish(of(9, "A1", "A"), of(0, "A2", "A"), of(5, "B1", "B"))
    first = stage.take("B1")
    second = stage.take("A1")
    assert stage.values(9) == []
    stage.ack(first, second)
    stage.take("A2")


@pytest.mark.feature("F109")
@pytest.mark.parametrize("with_snapshot", [False, True])
def test_lanes_are_the_same_after_a_restart(stage: Stage, with_snapshot: bool) -> None:
    rng = random.Random(3)
    stage.topic(ordering="none")
    stage.publish(*(of(rng.randrange(10), f"m{n}") for n in range(100)))
    stage.nack(*stage.lease(5))
    stage.restart(with_snapshot=with_snapshot)
    stage.advance(5 * S)
    # The five that failed became ready after all others were appended.
    got = stage.lease(100)
    assert [d.priority for d in got] == sorted(d.priority for d in got)
    assert len(got) == 100


def test_a_retry_comes_back_into_its_own_lane(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.publish(of(1, "high"), of(5, "n1"), of(5, "n2"))
    stage.nack(stage.take("high"), delay=S)
    assert stage.values(1) == ["n1"]
    stage.advance(S)
    assert stage.values(1) == ["high"]


def test_a_delayed_message_enters_its_lane_when_it_is_due(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.publish(after("soon", S, priority=0), of(3, "now"), of(3, "then"))
    assert stage.values(1) == ["now"]
    stage.advance(S)
    assert stage.values(9) == ["soon", "then"]


def test_by_partition_there_are_no_lanes(stage: Stage) -> None:
    stage.topic(ordering="partition")
    stage.publish(of(9, "first"), of(0, "second"))
    assert stage.values(9) == ["first", "second"]


# -- aging -------------------------------------------------------------------------------------------------------------


def starve(stage: Stage, rounds: int) -> list[str]:
    """High messages keep coming, one is taken each second; what was served."""
    served = []
    for n in range(rounds):
        stage.publish(of(0, f"high{n}"), of(0, f"more{n}"))
        served += [d.value for d in stage.lease(1)]
        stage.advance(S)
    return served


def test_strict_lanes_can_starve_the_lowest(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.publish(of(9, "low"))
    assert "low" not in starve(stage, 120)


@pytest.mark.feature("F109")
def test_aging_bounds_the_wait_of_the_lowest_lane(stage: Stage) -> None:
    stage.topic(ordering="none", aging_ns=30 * S)
    stage.publish(of(9, "low"))
    served = starve(stage, 40)
    assert "low" not in served[:30]
    assert "low" in served[30:34]


def test_aging_gives_at_most_half_of_a_grant_to_those_that_waited_too_long(stage: Stage) -> None:
    stage.topic(ordering="none", aging_ns=30 * S)
    stage.publish(*(of(9, f"low{n}") for n in range(20)))
    stage.advance(MINUTE)
    stage.publish(*(of(0, f"high{n}") for n in range(20)))
    got = stage.values(10)
    assert [value[0] for value in got].count("l") == 5


def test_where_nothing_better_waits_aging_takes_nothing_away(stage: Stage) -> None:
    stage.topic(ordering="none", aging_ns=30 * S)
    stage.publish(*(of(9, f"low{n}") for n in range(10)))
    stage.advance(MINUTE)
    assert len(stage.values(10)) == 10
