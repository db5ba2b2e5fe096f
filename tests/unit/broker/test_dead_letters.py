"""Dead letters: list, filter, redrive with a rate, a dry run and a report, purge."""

from __future__ import annotations

from typing import Any

import pytest
from pyroaring import BitMap64

from headrace.batch import Message
from headrace.errors import InvalidArgument, UnknownTopic
from unit.broker.harness import SECOND, World


def kill(world: World, values: list[bytes], verb: str = "reject", consumer: str = "w1", **more: Any) -> list[int]:
    ids = world.publish("orders", [Message(value, **more) for value in values])
    left = len(ids)
    while left:
        leased = world.lease("orders", left, consumer=consumer)
        world.settle("orders", leased, verb)
        left -= sum(each.batch.count for each in leased)
    return ids


def values(world: World, **where: Any) -> list[bytes]:
    return [letter["value"] for letter in world.call("dlq.list", topic="orders", where=where)]


@pytest.mark.feature("F065")
def test_a_dead_letter_says_where_it_comes_from_and_why_it_died(world: World) -> None:
    [one] = kill(world, [b"v"], key=b"k", headers={"mine": "yes"})
    [letter] = world.call("dlq.list", topic="orders")
    assert letter["origin"] == {"topic": "orders", "partition": 0, "offset": 0, "id": one, "group": "default"}
    assert (letter["reason"], letter["error"], letter["attempts"], letter["consumer"]) == (
        "rejected",
        "not mine",
        1,
        "w1",
    )
    assert letter["headers"] == {"mine": "yes"}
    assert letter["key"] == b"k"
    assert letter["topic"] == "dlq/orders"
    assert world.call("dlq.show", topic="orders", id=one) == letter


@pytest.mark.feature("N05")
def test_filters_choose(world: World) -> None:
    world.call("topic.create", topic="orders", settings={"retry.max_retries": 2})
    a = kill(world, [b"a"], key=b"user-1", headers={"tenant": "acme"})
    world.wait(60)
    cut_ns = world.now_ns
    world.wait(60)
    kill(world, [b"b"], consumer="w2", key=b"user-2", headers={"tenant": "other"})
    world.publish("orders", [Message(b"c", key=b"thing")])
    for _ in range(3):
        world.settle("orders", world.lease("orders"), "nack now")
    assert values(world) == [b"a", b"b", b"c"]
    assert values(world, reason="max_retries") == [b"c"]
    assert values(world, error="broke") == [b"c"]
    assert values(world, consumer="w2") == [b"b"]
    assert values(world, min_attempts=3) == [b"c"]
    assert values(world, key_prefix=b"user-") == [b"a", b"b"]
    assert values(world, header={"tenant": "acme"}) == [b"a"]
    assert values(world, header="tenant") == [b"a", b"b"]
    assert values(world, ids=a) == [b"a"]
    assert values(world, to_time_ns=cut_ns) == [b"a"]
    assert values(world, from_time_ns=cut_ns, reason="rejected") == [b"b"]
    assert values(world, group="nobody") == []


@pytest.mark.feature("F066", "N05")
def test_a_redrive_first_dry_then_real(world: World) -> None:
    kill(world, [b"a", b"b"], headers={"tenant": "acme"})
    kill(world, [b"c"], headers={"tenant": "other"})
    where = {"header": {"tenant": "acme"}}
    dry = world.call("dlq.redrive", topic="orders", where=where, dry_run=True)
    assert (dry["matched"], dry["redriven"], dry["dry_run"]) == (2, 0, True)
    assert dry["by_reason"] == {"rejected": 2}
    assert dry["by_error"] == {"not mine": 2}
    assert len(dry["sample"]) == 2
    assert len(values(world)) == 3
    real = world.call("dlq.redrive", topic="orders", where=where)
    assert (real["matched"], real["redriven"], real["left"]) == (2, 2, 0)
    assert values(world) == [b"c"]
    again = world.lease("orders", 10)
    assert sorted(value for each in again for value in each.batch.values()) == [b"a", b"b"]
    assert all(not each.attempts for each in again)  # fresh
    assert world.call("dlq.redrive", topic="orders", where=where)["matched"] == 0


def test_a_redrive_into_another_topic(world: World) -> None:
    kill(world, [b"a"])
    assert world.call("dlq.redrive", topic="orders", to="repair")["redriven"] == 1
    assert [each.batch.values() for each in world.lease("repair", 10)] == [[b"a"]]
    assert not world.lease("orders", 10)


def test_a_redrive_keeps_to_its_rate(world: World) -> None:
    kill(world, [b"%d" % i for i in range(25)])
    report, waits = world.stepped("dlq.redrive", topic="orders", rate=50.0)
    assert report["redriven"] == 25
    assert sum(waits) == 25 * SECOND // 50
    assert max(waits) <= SECOND // 10


def test_a_redrive_of_what_dies_again_at_once_comes_to_an_end(world: World) -> None:
    kill(world, [b"a"] * 5)
    report, _ = world.stepped("dlq.redrive", topic="orders")
    assert report["redriven"] == 5
    world.settle("orders", world.lease("orders", 10), "reject")
    assert len(values(world)) == 5


def test_those_whose_origin_is_gone_are_left(world: World) -> None:
    kill(world, [b"a"])
    world.call("topic.delete", topic="orders")
    report = world.call("dlq.redrive", topic="orders")
    assert (report["matched"], report["redriven"], report["left"]) == (1, 0, 1)
    assert values(world) == [b"a"]


def test_topics_that_share_a_place_see_their_own(world: World) -> None:
    for topic in ("orders", "bills"):
        world.call("topic.create", topic=topic, settings={"dead_letters.topic": "graves"})
        world.publish(topic, [topic.encode()])
        world.settle(topic, world.lease(topic), "reject")
    assert values(world) == [b"orders"]
    assert world.call("dlq.purge", topic="orders") == {"dropped": 1}
    assert values(world) == []
    assert [each["value"] for each in world.call("dlq.list", topic="bills")] == [b"bills"]


def test_a_purge_drops_what_the_filter_says(world: World) -> None:
    kill(world, [b"a", b"b"], key=b"user-1")
    kill(world, [b"c"], key=b"else")
    assert world.call("dlq.purge", topic="orders", where={"key_prefix": b"user"}) == {"dropped": 2}
    assert values(world) == [b"c"]


def test_a_purge_lets_the_key_go_on_that_its_dead_letter_held(world: World) -> None:
    world.call("topic.create", topic="orders", settings={"on_dead": "hold"})
    kill(world, [b"first"], key=b"ann")
    kill(world, [b"other"], key=b"bob")
    later = world.publish("orders", [Message(b"second", key=b"ann"), Message(b"third", key=b"bob")])
    assert world.lease("orders", 10) == []
    world.call("dlq.purge", topic="orders", where={"key_prefix": "ann"})
    assert [each.batch.base_id for each in world.lease("orders", 10)] == later[:1]
    world.call("dlq.purge", topic="orders")
    assert len(world.lease("orders", 10)) == 1


def test_one_that_was_consumed_and_acked_is_dealt_with(world: World) -> None:
    kill(world, [b"a", b"b"])
    world.settle("dlq/orders", world.lease("dlq/orders", 1), "ack")
    assert values(world) == [b"b"]
    assert world.call("dlq.redrive", topic="orders")["redriven"] == 1


@pytest.mark.parametrize(
    ("where", "wrong"),
    [
        ({"colour": "red"}, "where: there is no 'colour'; it can have reason"),
        ({"reason": 3}, "where: reason is 3; it must be one of"),
        ({"runs": [[0, 1]]}, "where: runs is .*partition, first offset, count."),
        ({"runs": [[0, -1, 2]]}, "where: runs is"),
        ({"ids": ["7"]}, "where: ids is .*message ids, whole numbers"),
    ],
)
def test_a_filter_that_cannot_be(world: World, where: dict[str, Any], wrong: str) -> None:
    kill(world, [b"a"])
    with pytest.raises(InvalidArgument, match=wrong):
        world.call("dlq.list", topic="orders", where=where)


def test_what_still_waits_is_told_as_a_bitmap(world: World) -> None:
    kill(world, [b"%d" % i for i in range(4)])
    world.call("dlq.redrive", topic="orders", where={"runs": [[0, 1, 1]]})
    world.settle("dlq/orders", world.lease("dlq/orders", 1), "ack")
    [place] = world.call("dlq.standing", topic="orders")
    assert (place["topic"], place["partition"]) == ("dlq/orders", 0)
    assert list(BitMap64.deserialize(place["offsets"])) == [2, 3]


def test_those_that_were_chosen_by_other_means_are_named_by_runs_of_offsets(world: World) -> None:
    kill(world, [b"%d" % i for i in range(10)])
    runs = [[0, 1, 3], [0, 8, 1], [1, 0, 9]]
    assert values(world, runs=runs) == [b"1", b"2", b"3", b"8"]
    assert world.call("dlq.redrive", topic="dlq/orders", where={"runs": runs})["redriven"] == 4
    assert world.call("dlq.redrive", topic="dlq/orders", where={"runs": runs})["redriven"] == 0
    assert values(world) == [b"0", b"4", b"5", b"6", b"7", b"9"]


def test_what_does_not_exist(world: World) -> None:
    with pytest.raises(UnknownTopic):
        world.call("dlq.list", topic="nothing")
    world.call("topic.create", topic="orders")
    assert world.call("dlq.list", topic="orders") == []
    with pytest.raises(InvalidArgument, match="has no dead letter 5"):
        world.call("dlq.show", topic="orders", id=5)
    with pytest.raises(InvalidArgument, match="rate"):
        world.call("dlq.redrive", topic="orders", rate=0)
