"""Positions kept for readers of the log, and what producers sent last."""

from __future__ import annotations

import pytest

from headrace.batch import encode_columns
from headrace.errors import InvalidArgument, UnknownTopic
from unit.broker.harness import World


@pytest.mark.feature("F093")
def test_a_position_is_stored_shown_as_lag_and_moved(world: World) -> None:
    world.call("topic.create", topic="orders", settings={"partitions": 2})
    for partition in (0, 1):
        world.publish("orders", [b"%d" % i for i in range(10)], partition=partition)
    assert world.call("group.position", topic="orders", group="reader") == {"offsets": None}
    places = {"0": 4, "1": 10}
    assert world.call("group.commit", topic="orders", group="reader", offsets=places) == {"offsets": places}
    assert world.call("group.show", topic="orders", group="reader")["lag"] == 6
    world.call("group.commit", topic="orders", group="reader", offsets={"0": 10, "1": 10})
    assert world.call("group.position", topic="orders", group="reader") == {"offsets": {"0": 10, "1": 10}}
    assert world.call("group.show", topic="orders", group="reader")["lag"] == 0


@pytest.mark.parametrize("offsets", [{"2": 0}, {"x": 0}, {"0": 99}, {"0": -1}])
def test_a_place_that_does_not_exist_is_refused(world: World, offsets: dict[str, int]) -> None:
    world.call("topic.create", topic="orders", settings={"partitions": 2})
    with pytest.raises(InvalidArgument, match=r"has|offsets are by partition"):
        world.call("group.commit", topic="orders", group="reader", offsets=offsets)
    with pytest.raises(UnknownTopic):
        world.call("group.commit", topic="nothing", group="reader", offsets={})


def test_the_last_sequence_of_a_producer_is_known_by_partition(world: World) -> None:
    world.call("topic.create", topic="orders", settings={"partitions": 2})
    for sequence in (5, 9):
        world.port.publish("default", "orders", 1, encode_columns([b"a"], producer_id=77, producer_seq=sequence))
    told = world.call("topic.producers", topic="orders", producer_ids=[77, 78])
    assert told == {"partitions": 2, "sequences": [{"1": 9}, {}]}
    with pytest.raises(InvalidArgument, match="at most"):
        world.call("topic.producers", topic="orders", producer_ids=list(range(1000)))
