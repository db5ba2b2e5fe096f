"""Limits of each key: how many at a time, how many a second; what reaches one stands in nobody's way."""

from __future__ import annotations

import random

import pytest

from headrace.batch import Message
from headrace.delivery.explaining import Reason, explain
from unit.delivery.harness import MS, Delivery, S, Stage


def keyed(*pairs: str) -> list[Message]:
    """``a1`` is message a1 of key a."""
    return [Message(pair.encode(), key=pair[0].encode()) for pair in pairs]


@pytest.mark.feature("N02")
def test_no_more_of_a_key_are_leased_than_it_may_and_others_go_on(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.change_group(key_concurrency=2)
    stage.publish(*keyed("a1", "a2", "a3", "a4", "b1", "a5", "c1", "b2", "b3"))
    first = stage.lease(100)
    assert [one.value for one in first] == ["a1", "a2", "b1", "c1", "b2"]
    assert stage.values(100) == []
    stage.ack(first[0])
    assert stage.values(100) == ["a3"]
    stage.nack(first[1])  # waits for its retry, and its key is not full any more
    assert stage.values(100) == ["a4"]
    stage.ack(first[2])
    stage.ack(first[4])
    assert stage.values(100) == ["b3"]


@pytest.mark.feature("N02")
def test_a_flood_of_one_key_does_not_hold_up_the_others(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.change_group(key_concurrency=1)
    for start in (0, 3000):
        stage.publish(*keyed(*["f" + str(n) for n in range(start, start + 3000)]))
    stage.publish(*keyed("g1", "h1"), Message(b"keyless"))
    assert stage.values(10) == ["f0", "g1", "h1", "keyless"]


@pytest.mark.feature("N02")
def test_limits_of_keys_are_changed_live(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.publish(*keyed(*["a" + str(n) for n in range(9)]))
    stage.change_group(key_concurrency=2)
    assert len(stage.lease(9)) == 2
    stage.change_group(key_concurrency=5)
    assert len(stage.lease(9)) == 3
    stage.change_group(key_concurrency=1)
    assert stage.lease(9) == []
    stage.change_group(key_concurrency=0)
    assert len(stage.lease(9)) == 4


@pytest.mark.feature("N02")
@pytest.mark.parametrize("ordering", ["none", "key"])
def test_the_rate_of_a_key_flows_again_with_time(stage: Stage, ordering: str) -> None:
    stage.topic(ordering=ordering)
    stage.change_group(key_rate=2.0, auto_ack=True)
    stage.publish(*keyed("a1", "a2", "a3", "a4", "b1"))
    got = [value for _ in range(5) for value in stage.values(10)]
    assert sorted(got) == ["a1", "a2", "b1"]
    group = stage.the_group()
    assert 0 < group.wait_ns(stage.now_ns) <= S
    stage.advance(500 * MS + MS)
    assert stage.values(10) == ["a3"]
    assert stage.values(10) == []
    stage.advance(500 * MS + MS)
    assert stage.values(10) == ["a4"]


@pytest.mark.feature("N02")
@pytest.mark.parametrize("with_snapshot", [False, True])
def test_a_restart_counts_what_is_leased(stage: Stage, with_snapshot: bool) -> None:
    stage.topic(ordering="none")
    stage.change_group(key_concurrency=2)
    stage.publish(*keyed("a1", "a2", "a3", "b1"))
    [first, *_] = stage.lease(1)
    stage.restart(with_snapshot=with_snapshot)
    assert stage.values(9) == ["a2", "b1"]
    stage.ack(first)
    assert stage.values(9) == ["a3"]


def test_what_is_kept_out_can_expire_be_purged_and_explained(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.change_group(key_concurrency=1)
    stage.publish(*keyed("a1", "a2"), Message(b"a3", key=b"a", ttl_ns=S), *keyed("a4"))
    [first] = stage.lease(9)
    stage.advance(2 * S)
    stage.ack(first)
    assert stage.values(9) == ["a2"]
    stage.purge()
    assert stage.the_group().backlogs[stage.partition().pid].ready_count == 0


@pytest.mark.feature("N02")
@pytest.mark.parametrize("seed", range(10))
def test_at_any_time_no_key_has_more_than_it_may(stage: Stage, seed: int) -> None:
    """Random life: leases, every verb, time; in the end everything was handed out."""
    rng = random.Random(seed)
    stage.topic(ordering="none")
    stage.change_group(key_concurrency=3)
    held: list[Delivery] = []
    published = 0
    for _ in range(60):
        if published < 200:
            count = rng.randrange(1, 9)
            stage.publish(*keyed(*[rng.choice("abc") + str(published + n) for n in range(count)]))
            published += count
        held += stage.lease(rng.randrange(1, 12))
        keys = [one.value[0] for one in held]
        assert all(keys.count(key) <= 3 for key in "abc")
        rng.shuffle(held)
        for _ in range(rng.randrange(0, len(held) + 1)):
            one = held.pop()
            rng.choice([stage.ack, stage.ack, stage.release])(one)
    for _ in range(1000):
        for one in held:
            stage.ack(one)
        held = stage.lease(100)
        if not held:
            break
    assert stage.the_group().unsettled_count == 0


def test_explain_names_the_limit_of_the_key(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.change_group(key_concurrency=1)
    stage.publish(*keyed("a1", "a2"))
    stage.lease(9)
    assert [(each.code, each.count) for each in reasons(stage, 1)] == [("key_concurrency", 1)]
    stage.change_group(key_concurrency=0, key_rate=1.0)
    stage.publish(*keyed("b1", "b2"))
    stage.lease(9)
    [reason] = reasons(stage, 3)
    assert (reason.code, reason.until_ns - stage.now_ns) == ("key_rate", S)


def reasons(stage: Stage, offset: int) -> list[Reason]:
    told = explain(stage.the_group(), stage.partition().pid, offset, stage.now_ns)
    return [each for each in told.reasons if each.code != "no_consumer"]
