"""Looking at messages as a group has them."""

from __future__ import annotations

from headrace.batch import Message
from unit.broker.harness import SECOND, World


def test_dead_messages_are_seen_with_how_they_died(world: World) -> None:
    world.call("topic.create", topic="orders", settings={"retry.max_retries": 1, "retry.initial_backoff": "0s"})
    ids = world.publish("orders", [b"a"])
    for _ in range(2):
        world.settle("orders", world.lease("orders", 1), "nack")
    ids += world.publish("orders", [b"b", b"c"])
    world.settle("orders", world.lease("orders", 1), "reject")
    died_ns = world.now_ns
    seen = world.call("browse", topic="orders", state="dead")
    assert [(one["id"], one["attempts"], one["last_error"], one["reason"]) for one in seen] == [
        (ids[0], 2, "it broke", "max_retries"),
        (ids[1], 1, "not mine", "rejected"),
    ]
    assert {one["died_ns"] for one in seen} == {died_ns}
    world.call("dlq.redrive", topic="orders")
    again = world.call("browse", topic="orders", state="dead", limit=1)
    assert [(one["attempts"], one["last_error"]) for one in again] == [(2, "it broke")], "whatever became of its letter"


def test_scheduled_messages_are_seen_with_when_they_are_due_now(world: World) -> None:
    ids = world.publish(
        "orders", [Message(b"moved", delay_ns=60 * SECOND), Message(b"left", delay_ns=60 * SECOND), b"x"]
    )
    began_ns = world.now_ns
    world.call("schedule.move", topic="orders", ids=ids[:1], delay_ns=7200 * SECOND)
    world.settle("orders", world.lease("orders", 1), "nack")
    seen = {one["value"]: one["due_ns"] for one in world.call("browse", topic="orders", state="scheduled")}
    assert seen == {
        b"moved": began_ns + 7200 * SECOND,
        b"left": began_ns + 60 * SECOND,
        b"x": began_ns + 5 * SECOND,
    }
