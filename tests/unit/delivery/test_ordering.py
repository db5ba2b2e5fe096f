"""Order: none, per key (over retries, restarts and deaths), per partition, strict."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from headrace.batch import Message
from headrace.delivery import State
from headrace.errors import InvalidArgument
from unit.delivery.harness import HOUR, S, Stage, after, retry

# -- none --------------------------------------------------------------------------------------------------------------


@pytest.mark.feature("F068")
def test_without_order_a_failing_message_holds_up_nothing(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.publish("A1", "A2", "A3")
    stage.nack(stage.take("A1"))
    assert stage.values(9) == ["A2", "A3"]


# -- key ---------------------------------------------------------------------------------------------------------------


@pytest.mark.feature("F069", "F071", "F074", "F078", "F295")
def test_of_one_key_only_the_first_is_handed_out_until_it_is_settled(stage: Stage) -> None:
    stage.topic()
    stage.publish("A1", "B1", "A2", "B2", "A3")
    held = stage.lease(9)
    assert [d.value for d in held] == ["A1", "B1"]
    assert stage.values(9) == []
    stage.ack(held[0])
    (second,) = stage.lease(9)
    assert second.value == "A2"
    stage.ack(held[1], second)
    assert stage.values(9) == ["B2", "A3"]


def test_messages_without_a_key_wait_for_nobody(stage: Stage) -> None:
    stage.topic()
    stage.publish("A1", "a", "A2", "b")
    assert stage.values(9) == ["A1", "a", "b"]


@pytest.mark.feature("N01")
def test_a_failing_message_waits_out_its_backoff_and_only_its_own_key_waits(stage: Stage) -> None:
    """Two workers, keys A and B: A1 fails three times; A2 never starts before A1 is settled; B flows as if alone."""
    stage.topic(retry=retry(initial_backoff_ns=5 * S))
    stage.publish("A1", "A2")
    started: list[str] = []
    failures = 0
    for second in range(60):
        stage.publish(f"B{second}")
        for worker in ("one", "two"):
            for delivery in stage.lease(1, consumer=worker):
                started.append(delivery.value)
                if delivery.value == "A1" and failures < 3:
                    failures += 1
                    stage.nack(delivery)
                else:
                    stage.ack(delivery)
        assert f"B{second}" in started, "whatever A does, B is served in the same second"
        stage.advance(S)
    assert started.count("A1") == 4
    assert started.count("A2") == 1
    assert started.index("A2") > max(n for n, value in enumerate(started) if value == "A1")
    assert [value for value in started if value[0] == "B"] == [f"B{n}" for n in range(60)]
    assert set(stage.states().values()) == {State.ACKED}


@pytest.mark.feature("N01")
@pytest.mark.parametrize("with_snapshot", [False, True])
@pytest.mark.parametrize("how", ["leased", "waiting"])
def test_a_key_stays_held_over_a_restart(stage: Stage, how: str, with_snapshot: bool) -> None:
    stage.topic()
    stage.publish("A1", "A2", "B1")
    held = stage.take("A1")
    if how == "waiting":
        stage.nack(held)
    stage.restart(with_snapshot=with_snapshot)
    stage.ack(stage.take("B1"))
    assert stage.values(9) == []
    stage.advance(31 * S)
    stage.advance(5 * S)
    stage.ack(stage.take("A1"))
    assert stage.values(9) == ["A2"]


def test_a_lease_that_ran_out_holds_its_key_as_a_nack_does(stage: Stage) -> None:
    stage.topic(lease_ns=10 * S)
    stage.publish("A1", "A2")
    stage.take("A1")
    stage.advance(11 * S)
    assert stage.values(9) == []
    stage.advance(5 * S)
    stage.ack(stage.take("A1"))
    stage.take("A2")


@pytest.mark.feature("N01")
@pytest.mark.parametrize("with_snapshot", [None, False, True])
def test_on_dead_continue_lets_the_next_of_the_key_go(stage: Stage, with_snapshot: bool | None) -> None:
    stage.topic(on_dead="continue", retry=retry(max_retries=0))
    stage.publish("A1", "A2", "A3")
    stage.nack(stage.take("A1"))
    if with_snapshot is not None:
        stage.restart(with_snapshot=with_snapshot)
    stage.ack(stage.take("A2"))
    stage.take("A3")


@pytest.mark.feature("N01")
@pytest.mark.parametrize("with_snapshot", [None, False, True])
def test_on_dead_hold_keeps_the_key_until_somebody_frees_it(stage: Stage, with_snapshot: bool | None) -> None:
    stage.topic(on_dead="hold", retry=retry(max_retries=0))
    stage.publish("A1", "A2", "B1")
    stage.nack(stage.take("A1"))
    if with_snapshot is not None:
        stage.restart(with_snapshot=with_snapshot)
    stage.publish("A3")
    assert stage.values(9) == ["B1"]
    stage.advance(HOUR)
    assert stage.values(9) == []
    key = stage.partition().key_of(1)
    assert stage.free_key(key) is True
    assert stage.free_key(key) is False
    stage.ack(stage.take("A2"))
    stage.take("A3")


@pytest.mark.feature("N01", "F066")
def test_a_held_key_flows_again_when_its_dead_message_is_redriven_before_the_others(stage: Stage) -> None:
    stage.topic(on_dead="hold", retry=retry(max_retries=0))
    stage.publish("A1", "A2")
    stage.nack(stage.take("A1"))
    assert stage.values(9, topic="t") == []
    stage.redrive(0, topic="dlq/t")
    (again,) = stage.lease(9, topic="t")
    assert (again.value, again.attempt) == ("A1", 1)
    stage.ack(again)
    assert stage.values(9, topic="t") == ["A2"]


@pytest.mark.feature("N01")
@pytest.mark.parametrize("with_snapshot", [None, False, True])
def test_on_dead_follow_takes_the_successors_along_in_order(stage: Stage, with_snapshot: bool | None) -> None:
    stage.topic(on_dead="follow", retry=retry(max_retries=0))
    stage.publish("A1", "B1", "A2", "A3")
    held = stage.take("A1")
    if with_snapshot is not None:
        stage.restart(with_snapshot=with_snapshot)
    stage.nack(held)
    letters = stage.named("dlq/t")
    assert [stage.state_of(n) for n in (0, 2, 3)] == [State.DEAD] * 3
    log = stage.core.log(letters.partitions[0].pid)
    found = [m.value for batch in log.batches(0, 9) for m in batch.messages()]
    assert found == [b"A1", b"A2", b"A3"]
    stage.publish("A4", topic="t")
    assert stage.values(9, topic="t") == ["B1", "A4"]


def test_a_dead_message_without_a_key_holds_and_takes_nobody(stage: Stage) -> None:
    for on_dead in ("hold", "follow"):
        stage.topic(on_dead, on_dead=on_dead, retry=retry(max_retries=0))
        stage.publish("a", "b", topic=on_dead)
        (first,) = stage.lease(1, topic=on_dead)
        stage.nack(first)
        assert stage.values(9, topic=on_dead) == ["b"]


def test_a_delayed_message_has_its_place_in_its_key_where_its_time_is(stage: Stage) -> None:
    stage.topic()
    stage.publish(after("A2", 10 * S, key="A"), "A1")
    first = stage.take("A1")
    stage.advance(11 * S)
    stage.publish("A3")
    assert stage.values(9) == []
    stage.ack(first)
    stage.ack(stage.take("A2"))
    stage.take("A3")


@pytest.mark.parametrize("ordering", ["none", "partition"])
def test_order_can_be_changed_while_there_is_work(stage: Stage, ordering: str) -> None:
    stage.topic(ordering="key")
    stage.publish("A1", "A2", "B1", "a")
    held = stage.take("A1")
    stage.change_group(ordering=ordering)
    assert stage.values(9) == ["A2", "B1", "a"]
    stage.ack(held)
    stage.change_group(ordering="key")
    stage.publish("B2", "C1")
    assert stage.values(9) == ["C1"]


@pytest.mark.feature("F074", "F078")
@pytest.mark.parametrize("seed", range(6))
def test_whatever_fails_every_key_is_done_in_order(stage: Stage, seed: int) -> None:
    rng = random.Random(seed)
    stage.topic(partitions=3, lease_ns=20 * S, retry=retry(initial_backoff_ns=S, max_retries=1000, total_timeout_ns=0))
    sent: dict[str, list[str]] = defaultdict(list)
    done: dict[str, list[str]] = defaultdict(list)
    for round_ in range(120):
        if round_ < 60:
            key = rng.choice("ABCDEFG")
            sent[key].append(f"{key}{round_}")
            stage.publish(sent[key][-1], partition=ord(key) % 3)
        for delivery in stage.lease(rng.randint(1, 4), consumer=rng.choice("xy")):
            how = rng.random()
            if how < 0.6:
                stage.ack(delivery)
                done[delivery.key or ""].append(delivery.value)
            elif how < 0.8:
                stage.nack(delivery, delay=rng.choice((None, 0, 3 * S)))
            elif how < 0.9:
                stage.release(delivery)
        if rng.random() < 0.05:
            stage.restart(with_snapshot=rng.random() < 0.5)
        stage.advance(rng.choice((S, 3 * S, 21 * S)))
    for _ in range(200):
        for delivery in stage.lease(9):
            stage.ack(delivery)
            done[delivery.key or ""].append(delivery.value)
        stage.advance(21 * S)
    assert done == sent


# -- partition and strict ----------------------------------------------------------------------------------------------


@pytest.mark.feature("F069")
def test_by_partition_everything_behind_a_failed_message_waits_and_comes_again_in_order(stage: Stage) -> None:
    stage.topic(ordering="partition", partitions=2)
    stage.publish("a", "b", "c", partition=0)
    stage.publish("x", partition=1)
    held = {d.value: d for d in stage.lease(9)}
    assert set(held) == {"a", "b", "c", "x"}
    stage.nack(held["a"])
    assert [stage.state_of(n) for n in range(3)] == [State.SCHEDULED, State.READY, State.READY]
    assert stage.state_of(0, partition=1) == State.LEASED
    assert stage.values(9) == []
    stage.advance(5 * S)
    again = stage.lease(9)
    assert [(d.value, d.attempt) for d in again] == [("a", 2), ("b", 1), ("c", 1)]


@pytest.mark.feature("F070")
def test_strict_is_one_partition_and_one_order(stage: Stage) -> None:
    topic = stage.topic(ordering="strict", partitions=6)
    assert len(topic.partitions) == 1
    stage.publish("A1", "b", "C1")
    first, second, third = stage.lease(9)
    assert [first.value, second.value, third.value] == ["A1", "b", "C1"]
    stage.nack(first, delay=0)
    assert stage.values(9) == ["A1", "b", "C1"]


@pytest.mark.feature("F070")
def test_a_strict_topic_never_gets_a_second_partition_nor_another_order(stage: Stage) -> None:
    stage.topic(ordering="strict")
    stage.change_topic(ordering="strict", partitions=3)
    assert len(stage.named("t").partitions) == 1
    assert isinstance(stage.change_topic(ordering="key", partitions=3), InvalidArgument)
    stage.group("loose", ordering="none")
    assert stage.the_group("loose").policy.ordering == "strict"


def test_a_group_can_be_strict_only_where_there_is_one_partition(stage: Stage) -> None:
    stage.topic(ordering="key", partitions=2)
    assert isinstance(stage.group("g", ordering="strict"), InvalidArgument)


def test_partitions_are_added_and_never_taken_away(stage: Stage) -> None:
    stage.topic(partitions=2)
    refusal = stage.change_topic(partitions=1)
    assert isinstance(refusal, InvalidArgument)
    assert "never taken away" in refusal.message
    stage.change_topic(partitions=4)
    stage.publish("a", partition=3)
    assert stage.values() == ["a"]


@pytest.mark.feature("F072")
def test_the_same_key_has_the_same_hash_in_every_process_and_version() -> None:
    """Documented: xxh3-64 of the key's bytes; a change would move every key to another partition."""
    from headrace.batch import encode

    hashes = encode([Message(b"", key=b"user-1"), Message(b"", key=b"user-2")]).key_hashes()
    assert hashes is not None
    assert [hashes[0] % 6, hashes[1] % 6] == [hashes[0] % 6, hashes[1] % 6]
    import xxhash

    assert list(hashes) == [xxhash.xxh3_64_intdigest(b"user-1"), xxhash.xxh3_64_intdigest(b"user-2")]
