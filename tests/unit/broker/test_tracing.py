"""``trace`` tells every event of a message, ``explain`` why it is where it is."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from headrace.batch import Message
from headrace.broker import tracing
from headrace.delivery import explaining
from headrace.errors import InvalidArgument, UnknownGroup
from unit.broker.harness import SECOND, World


def events(world: World, message_id: int) -> list[str]:
    return [event["event"] for event in world.call("trace", id=message_id)["events"]]


def reasons(world: World, message_id: int, **more: Any) -> list[str]:
    return [reason["code"] for reason in world.call("explain", id=message_id, **more)["reasons"]]


@pytest.mark.feature("F130", "F132", "F133", "F115")
def test_a_life_from_publish_to_ack_with_a_failure_between(world: World) -> None:
    [message_id] = world.publish("orders", [Message(b"v", key=b"k", headers={"a": "b"})])
    world.wait(1)
    world.settle("orders", world.lease("orders", consumer="w1"), "nack")
    world.wait(5)
    world.settle("orders", world.lease("orders", consumer="w2"), "ack")
    told = world.call("trace", id=message_id)
    found = [(event["event"], event.get("consumer"), event.get("attempt")) for event in told["events"]]
    assert found == [
        ("PUBLISHED", None, None),
        ("DELIVERED", "w1", 1),
        ("NACKED", "w1", None),
        ("DUE", None, None),
        ("REDELIVERED", "w2", 2),
        ("ACKED", "w2", None),
        ("RETAINED", None, None),
    ]
    nacked, redelivered, retained = told["events"][2], told["events"][4], told["events"][6]
    assert nacked["error"] == "it broke"
    assert redelivered["reason"] == "nack"
    assert retained["until_ns"] == told["published_ns"] + 604_800 * SECOND
    assert told["topic"] == "orders"
    assert told["offset"] == 0
    assert told["key"] == b"k"
    assert told["size_bytes"] == 1
    assert told["summary"]["attempts"] == 2
    assert told["summary"]["publish_to_ack_ns"] == 6 * SECOND
    assert told["groups"] == [
        {
            "group": "default",
            "state": "acked",
            "attempts": 2,
            "acked_ns": told["published_ns"] + 6 * SECOND,
            "publish_to_ack_ns": 6 * SECOND,
        }
    ]


def test_a_lease_that_ran_out_is_told_with_its_reason(world: World) -> None:
    [message_id] = world.publish("orders", [b"v"])
    world.lease("orders", consumer="slow")
    world.wait(31)
    assert events(world, message_id) == ["PUBLISHED", "DELIVERED", "LEASE_EXPIRED"]
    world.wait(5)
    world.lease("orders", consumer="quick")
    redelivered = world.call("trace", id=message_id)["events"][-1]
    assert redelivered["event"] == "REDELIVERED"
    assert redelivered["reason"] == "lease_expired"


def test_a_release_is_told_and_is_no_attempt(world: World) -> None:
    [message_id] = world.publish("orders", [b"v"])
    leased = world.lease("orders")
    world.settle("orders", leased, "extend")
    world.settle("orders", leased, "release")
    assert events(world, message_id) == ["PUBLISHED", "DELIVERED", "EXTENDED", "RELEASED"]
    assert world.call("trace", id=message_id)["summary"]["attempts"] == 0


def test_a_scheduled_message_that_is_moved_and_cancelled(world: World) -> None:
    due_ns = world.now_ns + 3600 * SECOND
    [message_id] = world.publish("orders", [Message(b"v", deliver_at_ns=due_ns)])
    world.call("schedule.move", topic="orders", ids=[message_id], delay_ns=60 * SECOND)
    world.call("schedule.cancel", topic="orders", ids=[message_id])
    assert events(world, message_id) == ["PUBLISHED", "SCHEDULED", "SCHEDULED", "CANCELLED"]


def test_death_and_redrive_are_linked_in_both_directions(world: World) -> None:
    [message_id] = world.publish("orders", [b"v"])
    world.settle("orders", world.lease("orders", consumer="w1"), "reject")
    told = world.call("trace", id=message_id)
    assert [event["event"] for event in told["events"]][:4] == ["PUBLISHED", "DELIVERED", "REJECTED", "DEAD_LETTERED"]
    assert told["events"][3]["to"] == {"topic": "dlq/orders", "partition": 0, "offset": 0}
    [letter] = world.call("dlq.list", topic="orders")
    dead = world.call("trace", id=letter["id"])
    assert dead["links"]["dead_letter_of"] == {
        "id": message_id,
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "group": "default",
    }
    world.call("dlq.redrive", topic="orders")
    [leased] = world.lease("orders")
    redriven = leased.batch.message(0).id
    dead = world.call("trace", id=letter["id"])
    assert dead["events"][-1]["event"] == "REDRIVEN"
    assert dead["events"][-1]["to"] == {"topic": "orders", "partition": 0, "offset": 1}
    assert world.call("trace", id=redriven)["links"]["redriven_from"] == {
        "topic": "dlq/orders",
        "partition": 0,
        "offset": 0,
    }
    assert world.call("trace", id=redriven)["events"][-1]["attempt"] == 1


def test_a_trace_of_one_of_thousands_reads_no_more_than_it_must(world: World) -> None:
    ids = [one for _ in range(100) for one in world.publish("orders", [b"v" * 100] * 20)]
    while leased := world.lease("orders", 50):
        world.settle("orders", leased, "ack")
    for message_id in (ids[0], ids[777], ids[-1]):
        assert events(world, message_id) == ["PUBLISHED", "DELIVERED", "ACKED", "RETAINED"]
    log = world.core.log(world.call("topic.show", topic="orders") and 0)
    blocks = list(world.core.recent.blocks(log.pid, 777))
    assert sum((world.journal.end_position if end < 0 else end) - start for start, end in blocks) < 100_000
    assert world.journal.end_position > 200_000


def test_an_id_that_no_message_has(world: World) -> None:
    world.publish("orders", [b"v"])
    for method in ("trace", "explain"):
        with pytest.raises(InvalidArgument, match="no message has the id 12345"):
            world.call(method, id=12345)


@pytest.mark.feature("N03")
class TestEveryReasonHoldsAndGoesAwayWithItsCause:
    def test_not_due(self, world: World) -> None:
        [one] = world.publish("orders", [Message(b"v", deliver_at_ns=world.now_ns + 60 * SECOND)])
        told = world.call("explain", id=one)
        assert told["state"] == "scheduled"
        assert told["reasons"][0]["code"] == "not_due"
        assert told["reasons"][0]["until_ns"] // SECOND == (world.now_ns + 60 * SECOND) // SECOND
        assert "not due until 20" in told["reasons"][0]["message"]
        world.wait(61)
        assert "not_due" not in reasons(world, one)

    def test_waiting_for_its_retry(self, world: World) -> None:
        [one] = world.publish("orders", [b"v"])
        world.settle("orders", world.lease("orders"), "nack")
        told = world.call("explain", id=one)["reasons"][0]
        assert told["code"] == "retry"
        assert told["attempts"] == 1
        assert "it broke" in told["message"]
        world.wait(6)
        assert "retry" not in reasons(world, one)

    def test_leased(self, world: World) -> None:
        [one] = world.publish("orders", [b"v"])
        leased = world.lease("orders", consumer="w9")
        told = world.call("explain", id=one)
        assert told["state"] == "leased"
        assert told["reasons"][0]["consumer"] == "w9"
        world.settle("orders", leased, "ack")
        assert world.call("explain", id=one)["state"] == "acked"

    def test_key_held_by_an_earlier_message(self, world: World) -> None:
        first, second = world.publish("orders", [Message(b"1", key=b"k"), Message(b"2", key=b"k")])
        leased = world.lease("orders", consumer="w9")
        told = world.call("explain", id=second)["reasons"][0]
        assert told["code"] == "key_held"
        assert told["id"] == first
        assert told["consumer"] == "w9"
        assert f"held by message {first} at consumer 'w9' since" in told["message"]
        world.settle("orders", leased, "ack")
        assert "key_held" not in reasons(world, second)

    def test_behind_others(self, world: World) -> None:
        ids = world.publish("orders", [b"1", b"2", b"3"])
        told = world.call("explain", id=ids[2])["reasons"][0]
        assert (told["code"], told["count"], told["lane"]) == ("behind", 2, 5)
        world.settle("orders", world.lease("orders", 2), "ack")
        assert "behind" not in reasons(world, ids[2])

    def test_group_paused(self, world: World) -> None:
        [one] = world.publish("orders", [b"1"])
        world.call("group.pause", topic="orders", group="default", by="ops", why="deploy")
        told = world.call("explain", id=one)["reasons"]
        assert next(each["message"] for each in told if each["code"] == "paused").startswith(
            "the group is paused by ops"
        )
        world.call("group.resume", topic="orders", group="default")
        assert "paused" not in reasons(world, one)

    def test_rate_used_up(self, world: World) -> None:
        world.call("topic.create", topic="orders")
        world.call("group.config", topic="orders", group="default", settings={"limits.rate": 1})
        ids = world.publish("orders", [b"1", b"2"])
        world.lease("orders", 2)
        assert "rate" in reasons(world, ids[1])
        world.wait(2)
        assert "rate" not in reasons(world, ids[1])

    def test_concurrency_used_up(self, world: World) -> None:
        world.call("topic.create", topic="orders")
        world.call("group.config", topic="orders", group="default", settings={"limits.concurrency": 1})
        ids = world.publish("orders", [b"1", b"2"])
        leased = world.lease("orders", 2)
        assert "concurrency" in reasons(world, ids[1])
        world.settle("orders", leased, "ack")
        assert "concurrency" not in reasons(world, ids[1])

    def test_nobody_asks(self, world: World) -> None:
        [one] = world.publish("orders", [b"1"])
        assert reasons(world, one) == ["no_consumer"]
        world.port.host.run(lambda: world.port.broker.join("default", "orders", "default", "c1", None))
        assert reasons(world, one) == ["next"]

    def test_filtered(self, world: World) -> None:
        world.call("topic.create", topic="orders")
        settings = {"filter": {"headers": {"size": "large"}}}
        world.call("group.create", topic="orders", group="picky", settings=settings)
        small, large = world.publish("orders", [Message(b"1"), Message(b"2", headers={"size": "large"})])
        assert reasons(world, small, group="picky") == ["filtered"]
        assert "filtered" not in reasons(world, large, group="picky")

    def test_expired(self, world: World) -> None:
        [one] = world.publish("orders", [Message(b"1", expires_at_ns=world.now_ns + SECOND)])
        assert "expired" not in reasons(world, one)
        world.wait(2)
        assert reasons(world, one) == ["expired"]

    def test_dead(self, world: World) -> None:
        [one] = world.publish("orders", [b"1"])
        world.settle("orders", world.lease("orders"), "reject")
        assert reasons(world, one) == ["dead"]

    def test_settled_before_the_group_began(self, world: World) -> None:
        [one] = world.publish("orders", [b"1"])
        world.call("group.create", topic="orders", group="late", start="latest")
        assert reasons(world, one, group="late") == ["before_group"]
        world.call("group.seek", topic="orders", group="late", start="earliest")
        assert "before_group" not in reasons(world, one, group="late")

    def test_a_group_that_does_not_exist(self, world: World) -> None:
        [one] = world.publish("orders", [b"1"])
        with pytest.raises(UnknownGroup, match="'nobody' does not exist on topic 'orders'"):
            world.call("explain", id=one, group="nobody")

    def test_the_namespace_has_used_its_rate_up(self, world: World) -> None:
        ids = world.publish("orders", [b"1", b"2"])
        world.call("namespace.config", settings={"limits.rate": 1})
        world.lease("orders", 1)
        assert "namespace_rate" in reasons(world, ids[1])
        world.wait(2)
        assert "namespace_rate" not in reasons(world, ids[1])

    def test_the_namespace_has_as_much_leased_as_it_may(self, world: World) -> None:
        ids = world.publish("orders", [b"1", b"2"])
        world.call("namespace.config", settings={"limits.concurrency": 1})
        leased = world.lease("orders", 1)
        assert "namespace_concurrency" in reasons(world, ids[1])
        world.settle("orders", leased, "ack")
        assert "namespace_concurrency" not in reasons(world, ids[1])

    def test_too_many_in_flight(self, world: World) -> None:
        world.call("topic.create", topic="orders", settings={"max_in_flight": 1})
        ids = world.publish("orders", [b"1", b"2"])
        leased = world.lease("orders", 1)
        assert "in_flight" in reasons(world, ids[1])
        world.settle("orders", leased, "ack")
        assert "in_flight" not in reasons(world, ids[1])

    def test_a_retry_goes_first_where_order_is_by_partition(self, world: World) -> None:
        world.call("topic.create", topic="orders", settings={"ordering": "partition"})
        first, second = world.publish("orders", [b"1", b"2"])
        world.port.host.run(lambda: world.port.broker.join("default", "orders", "default", "c1", None))
        world.settle("orders", world.lease("orders"), "nack")
        told = next(each for each in world.call("explain", id=second)["reasons"] if each["code"] == "retry_before")
        assert told["id"] == first
        world.wait(6)
        world.settle("orders", world.lease("orders"), "ack")
        assert "retry_before" not in reasons(world, second)

    def test_nobody_owns_its_partition(self, world: World) -> None:
        world.call("topic.create", topic="orders", settings={"ordering": "partition"})
        [one] = world.publish("orders", [b"1"])
        assert "no_owner" in reasons(world, one)
        world.port.host.run(lambda: world.port.broker.join("default", "orders", "default", "c1", None))
        assert "no_owner" not in reasons(world, one)

    def test_published_for_another_group_only(self, world: World) -> None:
        world.call("topic.create", topic="orders")
        world.call("group.create", topic="orders", group="other")
        world.publish("orders", [b"1"])
        world.settle("orders", world.lease("orders"), "reject")
        world.call("dlq.redrive", topic="orders")
        [again] = [each.batch.message(0).id for each in world.lease("orders")]
        assert reasons(world, again, group="other") == ["other_group"]
        assert world.call("explain", id=again)["state"] == "leased"

    def test_withdrawn(self, world: World) -> None:
        [one] = world.publish("orders", [Message(b"v", deliver_at_ns=world.now_ns + 60 * SECOND)])
        assert reasons(world, one)[0] == "not_due"
        world.call("schedule.cancel", topic="orders", ids=[one])
        assert reasons(world, one) == ["withdrawn"]

    def test_purged(self, world: World) -> None:
        [one] = world.publish("orders", [b"1"])
        assert "purged" not in reasons(world, one)
        world.call("topic.purge", topic="orders", group="default")
        assert reasons(world, one) == ["purged"]
        world.call("group.seek", topic="orders", group="default", start="earliest")
        assert "purged" not in reasons(world, one)

    def test_after_the_end_of_a_replay(self, world: World) -> None:
        _, second = world.publish("orders", [b"1", b"2"])
        world.call("group.seek", topic="orders", group="default", start="earliest", stops={"0": 1})
        assert reasons(world, second) == ["after_replay"]
        world.call("group.seek", topic="orders", group="default", start="earliest")
        assert "after_replay" not in reasons(world, second)

    def test_acked(self, world: World) -> None:
        [one] = world.publish("orders", [b"1"])
        world.settle("orders", world.lease("orders"), "ack")
        assert reasons(world, one) == ["acked"]
        world.call("group.seek", topic="orders", group="default", start="earliest")
        assert "acked" not in reasons(world, one)

    def test_a_key_that_is_held_behind_a_dead_message(self, world: World) -> None:
        world.call("topic.create", topic="orders", settings={"on_dead": "hold"})
        _, second = world.publish("orders", [Message(b"1", key=b"k"), Message(b"2", key=b"k")])
        world.settle("orders", world.lease("orders"), "reject")
        told = world.call("explain", id=second)["reasons"][0]
        assert (told["code"], told["state"]) == ("key_held", "dead")
        assert "on_dead is hold" in told["message"]
        world.call("dlq.redrive", topic="orders")
        world.settle("orders", world.lease("orders"), "ack")
        assert "key_held" not in reasons(world, second)

    def test_every_reason_is_told_in_words(self) -> None:
        source = inspect.getsource(explaining)
        codes = set(re.findall(r'Reason\(\s*"(\w+)"', source) + re.findall(r'_only\("\w+", "(\w+)"', source))
        codes |= {"other_group", "concurrency"}
        assert len(codes) > 20
        for code in codes:
            reason = explaining.Reason(code, count=3, consumer="c", text="why", until_ns=SECOND, state="leased")
            told = tracing._sentence(reason, 7)
            assert " " in told, code


def test_a_dead_message_is_explained_by_its_death(world: World) -> None:
    world.call("topic.create", topic="orders", settings={"retry.max_retries": 0})
    [message_id] = world.publish("orders", [b"v"])
    world.wait(1)
    world.settle("orders", world.lease("orders"), "nack")
    told = world.call("explain", id=message_id)
    assert told["state"] == "dead"
    [reason] = told["reasons"]
    assert reason["message"].endswith(
        f": max_retries after 1 attempt; see `headrace dlq show orders {message_id}`; the error was: it broke"
    )
    assert reason["to"] == {"topic": "dlq/orders", "partition": 0, "offset": 0}
    assert (reason["reason"], reason["attempts"], reason["text"]) == ("max_retries", 1, "it broke")
    world.call("topic.create", topic="lost", settings={"retry.max_retries": 0, "dead_letters.enabled": False})
    [message_id] = world.publish("lost", [b"v"])
    world.settle("lost", world.lease("lost"), "reject")
    [reason] = world.call("explain", id=message_id)["reasons"]
    assert "it became no dead letter" in reason["message"]


def test_who_asks_about_a_group_that_is_not_there_is_told_which_there_are(world: World) -> None:
    [message_id] = world.publish("orders", [b"v"])
    world.lease("orders", group="audit")
    with pytest.raises(UnknownGroup, match="it has 'audit', 'default'"):
        world.call("explain", id=message_id, group="audti")
