"""The facts of a topic, read by position over sealed files and journal: each once, in order, whole frames."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import InvalidArgument, UnknownTopic
from unit.log.harness import DAY, SECOND, SealedWorld


def history(world: SealedWorld, topic: str = "orders", **more: Any) -> list[dict[str, Any]]:
    """All rows of a topic, going on until the end."""
    rows: list[dict[str, Any]] = []
    at = 0
    while True:
        found = world.call("log.events", topic=topic, from_position=at, **more)
        columns = found["columns"]
        rows += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        assert found["next_position"] > at or found["next_position"] == found["end_position"]
        at = found["next_position"]
        if at >= found["end_position"]:
            return rows


def work(world: SealedWorld, count: int) -> None:
    """Some lives: acked, given back and acked by somebody else, rejected."""
    for i in range(count):
        world.publish("orders", [b"%d" % i])
        world.clock.advance(SECOND)
        leased = world.lease("orders", consumer="first")
        world.settle("orders", leased, ("ack", "release", "reject")[i % 3])
        if i % 3 == 1:
            world.settle("orders", world.lease("orders", consumer="second"), "ack")


def told(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What does not depend on when it was sealed."""
    names = ("event", "partition", "group", "consumer", "first_offset", "last_offset", "attempt", "reason", "at_ns")
    return [tuple(row[name] for name in names) for row in rows if row["event"] != "sealed"]


@pytest.mark.feature("F126")
@pytest.mark.parametrize("limit", [1, 3, 10_000])
def test_the_history_is_the_same_before_and_after_sealing_and_in_portions(world: SealedWorld, limit: int) -> None:
    work(world, 9)
    live = told(history(world))
    assert [row[0] for row in live].count("acked") == 6
    assert {row[3] for row in live if row[0] == "acked"} == {"first", "second"}
    world.seal()
    assert told(history(world, limit=limit)) == live
    work(world, 3)
    both = told(history(world, limit=limit))
    assert both[: len(live)] == live
    assert [row[0] for row in both[len(live) :]].count("published") == 3


def test_portions_of_the_journal_know_who_holds_what_was_leased_before_them(world: SealedWorld) -> None:
    world.publish("orders", [b"a", b"b"])
    world.lease("orders", 2, consumer="holder")
    world.publish("orders", [b"%d" % i for i in range(50)])
    first = world.call("log.events", topic="orders", limit=1)
    held = world.lease("orders", 50, consumer="other")
    world.settle("orders", held, "ack")
    later = world.call("log.events", topic="orders", from_position=first["next_position"])
    acked = later["columns"]["event"].index("acked")
    assert later["columns"]["consumer"][acked] == "other"
    assert told(history(world, limit=1)) == told(history(world))


def test_files_of_two_days_that_share_positions_are_read_in_order_of_position(world: SealedWorld) -> None:
    work(world, 3)
    world.clock.advance(DAY * SECOND)
    work(world, 3)
    live = told(history(world))
    world.seal()
    for limit in (1, 5, 10_000):
        assert told(history(world, limit=limit)) == live


def test_other_topics_are_not_told_of(world: SealedWorld) -> None:
    work(world, 3)
    world.publish("others", [b"x"])
    assert {row["event"] for row in history(world, "others")} <= {"published", "topic_created", "group_created"}
    assert all(row["first_offset"] in (None, 0) for row in history(world, "others"))


def test_what_cannot_be_is_refused(world: SealedWorld) -> None:
    world.publish("orders", [b"x"])
    with pytest.raises(UnknownTopic):
        world.call("log.events", topic="order")
    with pytest.raises(InvalidArgument, match="limit is 0"):
        world.call("log.events", topic="orders", limit=0)
    with pytest.raises(InvalidArgument, match="from_position is -1"):
        world.call("log.events", topic="orders", from_position=-1)
    beyond = world.call("log.events", topic="orders", from_position=1 << 40)
    assert beyond["next_position"] == beyond["end_position"] == 1 << 40
