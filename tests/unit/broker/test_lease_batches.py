"""A reader that keeps only a number gets the same messages for it, until they are settled or their time is up."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import InvalidArgument
from unit.broker.harness import World

SECOND = 1_000_000_000


def take(world: World, after: int, most: int = 10, **more: Any) -> dict[str, int]:
    found: dict[str, int] = world.call(
        "lease_batch.take", topic="orders", group="g", reader="r", after=after, most=most, **more
    )
    return found


def offsets(world: World, batch: int) -> list[int]:
    held = world.call("lease_batch.show", topic="orders", group="g", reader="r", batch=batch)
    return sorted(offset for part in held for first, count, _ in part["runs"] for offset in range(first, first + count))


def test_a_batch_is_what_its_number_leased_and_stays_that(world: World) -> None:
    world.publish("orders", [b"%d" % i for i in range(25)])
    assert take(world, 0) == {"batch": 1, "count": 10}
    assert take(world, 1) == {"batch": 2, "count": 10}
    assert offsets(world, 1) == list(range(10))
    assert offsets(world, 2) == list(range(10, 20))
    assert take(world, 2) == {"batch": 3, "count": 5}
    assert take(world, 3) == {"batch": 3, "count": 0}


def test_asking_again_for_what_comes_after_a_batch_gives_the_same_batch(world: World) -> None:
    world.publish("orders", [b"%d" % i for i in range(10)])
    assert take(world, 0) == {"batch": 1, "count": 10}
    world.publish("orders", [b"later"])
    assert take(world, 0) == {"batch": 1, "count": 10}
    assert offsets(world, 1) == list(range(10))


def test_only_what_is_named_is_acked_and_only_while_it_is_held(world: World) -> None:
    world.publish("orders", [b"%d" % i for i in range(20)])
    take(world, 0)
    take(world, 1)
    assert world.call("lease_batch.settle", topic="orders", group="g", reader="r", upto=1) == {"acked": 10}
    assert world.call("lease_batch.settle", topic="orders", group="g", reader="r", upto=1) == {"acked": 0}
    assert offsets(world, 1) == []
    assert offsets(world, 2) == list(range(10, 20))
    assert world.call("group.show", topic="orders", group="g")["acked"] == 10


def test_a_batch_whose_time_is_up_comes_again_with_its_attempts_counted(world: World) -> None:
    world.publish("orders", [b"a", b"b"])
    world.call("topic.config", topic="orders", settings={"retry": {"initial_backoff": "1ms"}})
    take(world, 0, lease_ns=5 * SECOND)
    world.wait(4)
    assert world.call("lease_batch.extend", topic="orders", group="g", reader="r", by_ns=5 * SECOND) == {"extended": 2}
    world.wait(4)
    assert offsets(world, 1) == [0, 1]
    world.wait(2)
    assert offsets(world, 1) == []
    assert world.call("lease_batch.settle", topic="orders", group="g", reader="r", upto=1) == {"acked": 0}
    world.wait(1)
    assert take(world, 1) == {"batch": 2, "count": 2}
    (held,) = world.call("lease_batch.show", topic="orders", group="g", reader="r", batch=2)
    assert held["runs"] == [[0, 2, 2]]


def test_the_messages_of_runs_with_holes_come_in_order(world: World) -> None:
    world.publish("orders", [b"%d" % i for i in range(10)])
    told, batches = world.call("lease_batch.messages", topic="orders", partition=0, runs=[[0, 2], [5, 3]])
    assert told == {"messages": 5}
    assert [value for batch in batches for value in batch.values()] == [b"0", b"1", b"5", b"6", b"7"]


def test_readers_of_one_group_do_not_see_each_others_batches(world: World) -> None:
    world.publish("orders", [b"%d" % i for i in range(10)])
    take(world, 0, most=5)
    other = {"topic": "orders", "group": "g", "reader": "other"}
    assert world.call("lease_batch.take", after=0, most=10, **other) == {"batch": 1, "count": 5}
    assert world.call("lease_batch.settle", upto=1, **other) == {"acked": 5}
    assert offsets(world, 1) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({"reader": "a#b"}, "reader"), ({"after": -1}, "after is -1"), ({"most": 0}, "most is 0")],
)
def test_what_cannot_be_a_batch_is_refused(world: World, arguments: dict[str, Any], said: str) -> None:
    world.publish("orders", [b"a"])
    given = {"topic": "orders", "group": "g", "reader": "r", "after": 0, "most": 1, **arguments}
    with pytest.raises(InvalidArgument, match=said):
        world.call("lease_batch.take", **given)
