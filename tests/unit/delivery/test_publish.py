"""Publishing: places and ids, how much is too much, who sees what was published."""

from __future__ import annotations

import pytest

from headrace.batch import Message, encode
from headrace.delivery import Publish, PublishDone, State, snapshot
from headrace.errors import InvalidArgument, LimitExceeded, PayloadTooLarge, QueueFull, UnknownTopic
from unit.delivery.harness import MS, Stage, plain


@pytest.mark.feature("F076")
def test_offsets_of_a_partition_are_dense_and_ids_rise(stage: Stage) -> None:
    stage.topic(partitions=2)
    done = [stage.publish("a1", "a2"), stage.publish("b1", partition=1), stage.publish("a3")]
    assert [(each.base_offset, each.count) for each in done] == [(0, 2), (0, 1), (2, 1)]
    ids = [each.base_id + n for each in done for n in range(each.count)]
    assert ids == sorted(set(ids))


def test_ids_rise_although_the_wall_clock_is_set_back(stage: Stage) -> None:
    stage.topic()
    first = stage.publish("a1")
    stage.clock.set_wall(stage.clock.wall_ns() - 3600 * 10**9)
    second = stage.publish("a2")
    stage.restart()
    third = stage.publish("a3")
    assert first.base_id < second.base_id < third.base_id
    assert stage.values(3) == ["a1", "a2", "a3"]


def test_an_id_that_was_given_is_never_given_again_after_a_restart(stage: Stage) -> None:
    stage.topic()
    given = stage.publish(*(f"a{n}" for n in range(100)))
    stage.restart(with_snapshot=True)
    assert stage.publish("b1").base_id >= given.base_id + 100


def test_a_topic_has_the_group_default_from_its_creation(stage: Stage) -> None:
    stage.topic()
    stage.publish("a1")
    assert stage.states() == {0: State.READY}


@pytest.mark.feature("F015", "F295")
def test_one_producer_and_one_consumer_get_on_in_order(stage: Stage) -> None:
    stage.topic()
    for n in range(10):
        stage.publish(f"a{n}")
    got = []
    while found := stage.lease(3):
        got += [delivery.value for delivery in found]
        stage.ack(*found)
    assert got == [f"a{n}" for n in range(10)]


@pytest.mark.feature("F019")
def test_a_full_topic_refuses_whole_batches_and_takes_them_again_when_there_is_room(stage: Stage) -> None:
    stage.topic(max_depth=3)
    stage.publish("a1", "a2")
    before = snapshot(stage.state)
    refusal = stage.publish("a3", "a4")
    assert isinstance(refusal, QueueFull)
    assert "2 unsettled messages; 2 more would pass its max_depth of 3" in refusal.message
    never = stage.publish("a4", "a5", "a6", "a7")
    assert isinstance(never, LimitExceeded), "trying again would not help"
    assert "4 messages at once: topic 't' holds at most 3 unsettled ones (max_depth)" in never.message
    assert snapshot(stage.state) == before
    stage.publish("a3")
    assert isinstance(stage.publish("a4"), QueueFull)
    stage.ack(*stage.lease(2))
    assert stage.publish("a4", "a5").count == 2


@pytest.mark.feature("F019")
def test_depth_counts_what_the_furthest_behind_group_has_not_settled(stage: Stage) -> None:
    stage.topic(max_depth=2)
    stage.group("audit")
    stage.publish("a1", "a2")
    stage.ack(*stage.lease(2))
    assert isinstance(stage.publish("a3"), QueueFull)
    stage.ack(*stage.lease(2, group="audit"))
    assert stage.publish("a3").count == 1


def test_depth_counts_what_is_scheduled_and_leased_too(stage: Stage) -> None:
    stage.topic(max_depth=2)
    stage.publish(Message(b"later", delay_ns=60_000 * MS), "a1")
    stage.lease(1)
    assert isinstance(stage.publish("a2"), QueueFull)


def test_a_consumer_that_comes_and_goes_does_not_fill_a_topic(stage: Stage) -> None:
    stage.topic(max_depth=1)
    stage.group("tail", durable=False)
    stage.publish("a1")
    stage.ack(*stage.lease(1))
    assert stage.publish("a2").count == 1


def test_without_a_max_depth_nothing_is_refused(stage: Stage) -> None:
    stage.topic(max_depth=0)
    stage.publish(*(f"a{n}" for n in range(4096)))
    assert stage.publish("b1").count == 1


@pytest.mark.feature("F018")
def test_a_message_over_the_topics_size_is_refused_with_both_sizes(stage: Stage) -> None:
    stage.topic(max_message_bytes=1000)
    before = snapshot(stage.state)
    refusal = stage.publish("small", Message(b"x" * 1001))
    assert isinstance(refusal, PayloadTooLarge)
    assert "1001 bytes" in refusal.message
    assert "up to 1000 (max_message_size)" in refusal.message
    assert snapshot(stage.state) == before
    assert stage.publish(Message(b"x" * 1000)).count == 1
    many_small = [Message(b"x" * 900, headers={"h": "v" * 900}) for _ in range(3)]
    assert stage.publish(*many_small).count == 3


def test_a_partition_of_another_shard_is_refused(stage: Stage) -> None:
    stage.topic()
    refusal = stage.do(Publish(99, encode([plain("a1")])))
    assert isinstance(refusal, UnknownTopic)


@pytest.mark.feature("F101")
def test_a_delay_beyond_max_delay_is_refused_and_one_up_to_it_taken(stage: Stage) -> None:
    stage.topic()
    limit_ns = 168 * 3600 * 10**9
    before = snapshot(stage.state)
    refusal = stage.publish(Message(b"a", delay_ns=limit_ns + 1))
    assert isinstance(refusal, InvalidArgument)
    assert refusal.message == "a delay of 169h: topic 't' allows up to 168h (max_delay)", "as they are configured"
    assert isinstance(stage.publish(Message(b"a", deliver_at_ns=stage.now_ns + limit_ns + MS)), InvalidArgument)
    assert snapshot(stage.state) == before
    assert isinstance(stage.publish(Message(b"a", delay_ns=limit_ns)), PublishDone)
    assert isinstance(stage.publish(Message(b"a", deliver_at_ns=stage.now_ns + limit_ns)), PublishDone)


def test_a_ceiling_on_delays_can_be_taken_away(stage: Stage) -> None:
    stage.topic(max_delay_ns=0)
    century = 50 * 365 * 86_400 * 10**9
    assert stage.publish(Message(b"far", delay_ns=century)).count == 1


@pytest.mark.feature("F297")
def test_ten_producers_and_five_consumers_see_a_thousand_messages_once_each(stage: Stage) -> None:
    stage.topic()
    for round_ in range(10):
        for producer in range(10):
            stage.publish(*(Message(f"{producer}/{round_ * 10 + n}".encode()) for n in range(10)))
    seen: dict[str, list[str]] = {f"c{n}": [] for n in range(5)}
    turn = 0
    while found := stage.lease(7, consumer=f"c{turn % 5}"):
        seen[f"c{turn % 5}"] += [delivery.value for delivery in found]
        stage.ack(*found)
        turn += 1
    everything = [value for values in seen.values() for value in values]
    assert len(everything) == 1000
    assert set(everything) == {f"{producer}/{n}" for producer in range(10) for n in range(100)}
    assert all(seen.values())
