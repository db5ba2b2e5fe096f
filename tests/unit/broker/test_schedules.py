"""Schedules as objects: list, count, show, cancel and move by id, key or tag."""

from __future__ import annotations

import pytest

from headrace.batch import Message
from headrace.errors import InvalidArgument
from unit.broker.harness import SECOND, World


def scheduled(world: World, values: dict[bytes, int], **more: object) -> list[int]:
    now_ns = world.now_ns
    messages = [Message(value, deliver_at_ns=now_ns + at * SECOND, **more) for value, at in values.items()]  # type: ignore[arg-type]
    return world.publish("orders", messages)


@pytest.mark.feature("N06")
def test_the_next_come_first_across_partitions(world: World) -> None:
    world.call("topic.create", topic="orders", settings={"partitions": 3})
    now_ns = world.now_ns
    for partition in range(3):
        messages = [
            Message(b"%d-%d" % (partition, at), deliver_at_ns=now_ns + (100 * at + partition) * SECOND)
            for at in (3, 1, 2)
        ]
        world.publish("orders", messages, partition=partition)
    found = world.call("schedule.list", topic="orders", limit=5)
    assert [row["value"] for row in found] == [b"0-1", b"1-1", b"2-1", b"0-2", b"1-2"]
    assert found[0]["due_ns"] // SECOND == now_ns // SECOND + 100
    counted = world.call("schedule.count", topic="orders")
    assert counted["scheduled"] == 9
    assert counted["next_due_ns"] == found[0]["due_ns"]


def test_retries_show_with_their_group(world: World) -> None:
    world.publish("orders", [b"fails"])
    world.settle("orders", world.lease("orders"), "nack")
    scheduled(world, {b"later": 60})
    assert [row["value"] for row in world.call("schedule.list", topic="orders")] == [b"later"]
    both = world.call("schedule.list", topic="orders", group="default")
    assert [(row["value"], row["attempts"], row["last_error"]) for row in both] == [
        (b"fails", 1, "it broke"),
        (b"later", 0, ""),
    ]


def test_what_is_shown_is_what_holds_after_a_move(world: World) -> None:
    [one] = scheduled(world, {b"a": 60})
    world.call("schedule.move", topic="orders", ids=[one], delay_ns=600 * SECOND)
    shown = world.call("schedule.show", topic="orders", id=one)
    assert shown["due_ns"] // SECOND == world.now_ns // SECOND + 600
    world.wait(61)
    assert not world.lease("orders")
    world.wait(540)
    assert world.lease("orders")
    with pytest.raises(InvalidArgument, match="is not scheduled"):
        world.call("schedule.show", topic="orders", id=one)


@pytest.mark.feature("N06")
def test_cancel_by_id_key_and_tag(world: World) -> None:
    plain = scheduled(world, {b"a": 60, b"b": 60})
    scheduled(world, {b"c": 60, b"d": 61}, key=b"user-1")
    scheduled(world, {b"e": 60, b"f": 61, b"g": 62}, key=b"user-2", headers={"tag": "order-7"})
    scheduled(world, {b"h": 60}, headers={"tag": "order-77", "note": "order-7"})
    assert world.call("schedule.cancel", topic="orders", ids=[plain[0], 999]) == {"cancelled": 1}
    assert world.call("schedule.cancel", topic="orders", key=b"user-1") == {"cancelled": 2}
    assert world.call("schedule.cancel", topic="orders", tag="order-7") == {"cancelled": 3}
    assert world.call("schedule.count", topic="orders")["scheduled"] == 2
    world.wait(100)
    assert sorted(v for each in world.lease("orders", 10) for v in each.batch.values()) == [b"b", b"h"]


def test_move_by_tag_to_a_time(world: World) -> None:
    scheduled(world, {b"a": 60, b"b": 61}, headers={"tag": "t"})
    at_ns = world.now_ns + 5 * SECOND
    moved = world.call("schedule.move", topic="orders", tag="t", deliver_at_ns=at_ns)
    assert moved == {"moved": 2, "due_ns": at_ns}
    world.wait(6)
    assert sum(each.batch.count for each in world.lease("orders", 10)) == 2


def test_a_cancel_of_many_goes_in_portions_and_counts_all(world: World) -> None:
    due_ns = world.now_ns + 3600 * SECOND
    for start in range(0, 12_000, 3_000):
        world.publish(
            "orders",
            [
                Message(b"%d" % i, deliver_at_ns=due_ns, headers={"tag": "odd" if i % 2 else "even"})
                for i in range(start, start + 3_000)
            ],
        )
    result, waits = world.stepped("schedule.cancel", topic="orders", tag="odd")
    assert result == {"cancelled": 6_000}
    assert len(waits) >= 2
    assert world.call("schedule.count", topic="orders")["scheduled"] == 6_000


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({}, "say which messages"),
        ({"ids": [1], "tag": "t"}, "say which messages"),
    ],
)
def test_what_is_chosen_must_be_said_once(world: World, arguments: dict[str, object], wrong: str) -> None:
    world.call("topic.create", topic="orders")
    with pytest.raises(InvalidArgument, match=wrong):
        world.call("schedule.cancel", topic="orders", **arguments)
    with pytest.raises(InvalidArgument, match="needs one of deliver_at_ns and delay_ns"):
        world.call("schedule.move", topic="orders", ids=[1])


@pytest.mark.feature("N06")
def test_a_count_looks_at_no_message_and_passes_over_what_was_cancelled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty thousand over a month; cancelled ones before the first are met once and never again."""
    world.call("topic.create", topic="orders", settings={"max_delay": "60d"})
    now_ns = world.now_ns
    for start in range(0, 30_000, 3_000):
        messages = [
            Message(b"x", deliver_at_ns=now_ns + (60 + 80 * (start + i)) * SECOND, key=b"early" if start == 0 else b"k")
            for i in range(3_000)
        ]
        world.publish("orders", messages)
    assert world.call("schedule.cancel", topic="orders", key=b"early") == {"cancelled": 3_000}
    partition = world.core.state.by_name["default", "orders"].partitions[0]
    monkeypatch.setattr(type(world.core.log(partition.pid)), "batch_from", None)  # nothing is read
    counted = world.call("schedule.count", topic="orders")
    first_ns = now_ns + (60 + 80 * 3_000) * SECOND
    assert counted == {"scheduled": 27_000, "next_due_ns": first_ns}
    assert len(partition.schedule) == 27_000  # what was passed over is gone
    assert world.call("schedule.count", topic="orders") == counted


@pytest.mark.feature("N06", "F139")
def test_a_restart_keeps_what_was_scheduled_moved_and_cancelled(world: World) -> None:
    ids = scheduled(world, {b"a": 60, b"b": 120, b"c": 180})
    world.call("schedule.move", topic="orders", ids=[ids[2]], delay_ns=30 * SECOND)
    world.call("schedule.cancel", topic="orders", ids=[ids[1]])
    before = [(row["value"], row["due_ns"]) for row in world.call("schedule.list", topic="orders")]
    again = World(world.journal, world.clock)
    assert [(row["value"], row["due_ns"]) for row in again.call("schedule.list", topic="orders")] == before
    assert again.call("schedule.count", topic="orders")["scheduled"] == 2
    again.wait(31)
    assert [each.batch.values() for each in again.lease("orders", 10)] == [[b"c"]]
    again.wait(30)
    assert [each.batch.values() for each in again.lease("orders", 10)] == [[b"a"]]


def test_moves_that_cannot_be(world: World) -> None:
    [one] = scheduled(world, {b"a": 60})
    with pytest.raises(InvalidArgument, match="max_delay"):
        world.call("schedule.move", topic="orders", ids=[one], delay_ns=400 * 24 * 3600 * SECOND)
    with pytest.raises(InvalidArgument, match="deliver_at_ns is -1; it must be"):
        world.call("schedule.move", topic="orders", ids=[one], deliver_at_ns=-1)
    with pytest.raises(InvalidArgument, match="from 1 to"):
        world.call("schedule.list", topic="orders", limit=0)
    with pytest.raises(InvalidArgument, match="has no message with the id 7"):
        world.call("schedule.show", topic="orders", id=7)
