"""Handing out again what had a certain outcome: by whom, when, how, after how many tries; live and sealed alike."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.batch import Message
from headrace.errors import InvalidArgument, UnknownGroup, UnknownTopic
from unit.broker.harness import World
from unit.log.harness import SECOND, SealedWorld


def values(world: World, topic: str = "orders", group: str = "default") -> list[bytes]:
    """What is handed out now, all of it; it is acked."""
    found: list[bytes] = []
    while leased := world.lease(topic, 100, group=group, consumer="later"):
        found += [value for each in leased for value in each.batch.values()]
        world.settle(topic, leased, "ack", group=group)
    return sorted(found)


def work(world: World, consumer: str, count: int, verb: str = "ack", error: str = "") -> list[bytes]:
    leased = world.lease("orders", count, consumer=consumer)
    world.settle("orders", leased, verb)
    return [value for each in leased for value in each.batch.values()]


@pytest.mark.feature("N05")
@pytest.mark.parametrize("sealed", [False, True, "half"])
def test_exactly_what_a_bad_worker_acked_between_two_times(world: SealedWorld, sealed: bool | str) -> None:
    world.call("topic.create", topic="orders", settings={"partitions": 3})
    for partition in range(3):
        world.publish("orders", [b"%d-%d" % (partition, i) for i in range(100)], partition=partition)
    bad: set[bytes] = set()
    window = (0, 0)
    for turn in range(30):
        if turn == 8:
            window = (world.now_ns, 0)
        if turn == 22:
            window = (window[0], world.now_ns)
        done = work(world, f"w{turn % 3}", 10)
        if turn % 3 == 1 and 8 <= turn < 22:
            bad |= set(done)
        if sealed == "half" and turn == 15:
            world.seal()
        world.clock.advance(SECOND)
    assert values(world) == []
    if sealed is True:
        world.seal()
    where = {"consumer": "w1", "from_time_ns": window[0], "to_time_ns": window[1]}
    dry = world.call("group.replay", topic="orders", where=where, dry_run=True)
    assert (dry["matched"], dry["redriven"], dry["by_consumer"]) == (len(bad), 0, {"w1": len(bad)})
    assert values(world) == []
    done = world.call("group.replay", topic="orders", where=where)
    assert (done["matched"], done["redriven"], done["left"]) == (len(bad), len(bad), 0)
    assert len(bad) == 40
    assert set(values(world)) == bad
    assert world.core.backlog_drift() == 0


@pytest.mark.feature("N05")
def test_other_groups_do_not_notice(world: SealedWorld) -> None:
    world.call("topic.create", topic="orders")
    world.call("group.create", topic="orders", group="audit")
    world.publish("orders", [b"a", b"b"])
    work(world, "w1", 2)
    assert world.call("group.replay", topic="orders", where={"consumer": "w1"})["redriven"] == 2
    assert values(world) == [b"a", b"b"]
    assert values(world, group="audit") == [b"a", b"b"]  # once: the first ones


@pytest.mark.feature("N05")
def test_by_outcome(world: SealedWorld) -> None:
    world.call("topic.create", topic="orders", settings={"retry.max_retries": 2, "dead_letters.enabled": True})
    world.publish("orders", [b"acked"])
    work(world, "w1", 1)
    world.publish("orders", [b"dead"])
    for _ in range(3):
        work(world, "w2", 1, "nack now")
    world.publish("orders", [b"rejected"])
    work(world, "w3", 1, "reject")
    world.publish("orders", [Message(b"expired", expires_at_ns=world.now_ns + SECOND)])
    world.lease("orders", 1, consumer="w4")
    world.wait(60)
    world.wait(60)
    world.seal()

    def matched(**where: Any) -> int:
        count: int = world.call("group.replay", topic="orders", where=where, dry_run=True)["matched"]
        return count

    assert matched() == 1
    assert matched(outcome="acked") == 1
    assert matched(outcome="dead") == 2
    assert matched(outcome="dead", reason="rejected") == 1
    assert matched(outcome="dead", error="not mine") == 1
    assert matched(outcome="dead", min_attempts=2) == 1
    assert matched(outcome="failed", consumer="w2") == 1
    assert matched(outcome="failed", error="it broke") == 1
    assert matched(outcome="expired") == 1
    assert matched(outcome="delivered") == 4
    assert matched(outcome="delivered", consumer="w3") == 1
    assert matched(outcome="dead", min_attempts=0) == 2  # any
    assert world.call("group.replay", topic="orders", where={"outcome": "dead", "min_attempts": 3})["redriven"] == 1
    assert values(world) == [b"dead"]


@pytest.mark.feature("N05")
def test_by_attempts_of_what_was_acked_in_the_end(world: SealedWorld) -> None:
    world.publish("orders", [b"once", b"twice", b"thrice"])
    for _ in range(2):
        leased = world.lease("orders", 3)
        keep = [each for each in leased if each.batch.count]
        world.settle("orders", keep, "nack now")
    world.call("group.seek", topic="orders", group="default", start="earliest")  # attempts begin anew
    leased = world.lease("orders", 3)
    world.settle("orders", leased, "nack now")
    world.seal()
    world.settle("orders", world.lease("orders", 3), "ack")
    for most, expected in ((1, 3), (2, 3), (3, 0)):
        where = {"outcome": "acked", "min_attempts": most}
        assert world.call("group.replay", topic="orders", where=where, dry_run=True)["matched"] == expected


@pytest.mark.feature("N05")
def test_by_key_header_and_id(world: SealedWorld) -> None:
    ids = world.publish(
        "orders",
        [Message(b"a", key=b"user-1"), Message(b"b", key=b"user-2", headers={"t": "x"}), Message(b"c", key=b"else")],
    )
    work(world, "w1", 3)

    def matched(**where: Any) -> int:
        count: int = world.call("group.replay", topic="orders", where=where, dry_run=True)["matched"]
        return count

    assert matched(key_prefix="user-") == 2
    assert matched(header={"t": "x"}) == 1
    assert matched(ids=ids[:1]) == 1
    assert matched(ids=ids[:1], key_prefix="else") == 0


def test_what_is_replayed_has_fresh_attempts_and_says_where_it_comes_from(world: SealedWorld) -> None:
    [one] = world.publish("orders", [Message(b"a", key=b"k", headers={"mine": "yes"}, priority=2)])
    work(world, "w1", 1)
    world.call("group.replay", topic="orders")
    [again] = world.lease("orders")
    message = again.batch.message(0)
    assert (message.key, message.headers["mine"], message.priority) == (b"k", "yes", 2)
    assert not again.attempts
    assert message.id != one
    told = world.call("trace", id=message.id)
    assert told["links"]["redriven_from"] == {"topic": "orders", "partition": 0, "offset": 0}


def test_what_is_replayed_goes_before_what_came_later(world: SealedWorld) -> None:
    world.publish("orders", [Message(b"1", key=b"k")])
    world.clock.advance(SECOND)
    world.publish("orders", [Message(b"2", key=b"k")])
    work(world, "w1", 1)
    world.call("group.replay", topic="orders", where={"consumer": "w1"})
    assert work(world, "w2", 1) == [b"1"]
    assert work(world, "w2", 1) == [b"2"]


def test_into_another_topic_for_every_group(world: SealedWorld) -> None:
    world.publish("orders", [b"a"])
    work(world, "w1", 1)
    assert world.call("group.replay", topic="orders", to="again")["redriven"] == 1
    assert values(world) == []
    assert values(world, "again") == [b"a"]


def test_what_retention_let_go_of_is_counted_as_left(world: SealedWorld) -> None:
    world.call("topic.create", topic="orders", settings={"retention": "1h"})
    world.publish("orders", [b"old"])
    work(world, "w1", 1)
    world.seal()
    world.wait(7200)
    world.publish("orders", [b"new"])
    work(world, "w1", 1)
    world.sealer._retain(type(world.seal())())
    done = world.call("group.replay", topic="orders")
    assert (done["matched"], done["redriven"]) == (1, 1)
    assert values(world) == [b"new"]


def test_a_replay_keeps_to_its_rate(world: SealedWorld) -> None:
    world.publish("orders", [b"%d" % i for i in range(25)])
    work(world, "w1", 25)
    report, waits = world.stepped("group.replay", topic="orders", rate=50.0)
    assert report["redriven"] == 25
    assert sum(waits) == 25 * SECOND // 50


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"where": {"outcome": "happy"}}, "where: outcome is 'happy'; it must be one of acked, failed, dead"),
        ({"where": {"colour": "red"}}, "where: there is no 'colour'; it can have outcome"),
        ({"rate": 0}, "rate is 0; it must be messages a second"),
    ],
)
def test_what_cannot_be_asked(world: SealedWorld, arguments: dict[str, Any], wrong: str) -> None:
    world.publish("orders", [b"a"])
    with pytest.raises(InvalidArgument, match=wrong):
        world.call("group.replay", topic="orders", **arguments)
    with pytest.raises(UnknownTopic):
        world.call("group.replay", topic="nothing", where={})
    with pytest.raises(UnknownGroup):
        world.call("group.replay", topic="orders", group="nobody")
