"""Namespaces: what a tenant may put in, hold and take out, changed while it works."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import delivery
from headrace.batch import Batch, Message, encode
from headrace.broker.administration import Administration
from headrace.broker.broker import Broker
from headrace.broker.embedded import open_core
from headrace.calls import BY_KEY, Run, Settle
from headrace.clock import ManualClock
from headrace.errors import InvalidArgument, LimitExceeded, QuotaExceeded
from headrace.journal import MemoryJournal
from headrace.limits import SECOND_NS


class House:
    """A broker over memory, with a clock that is moved by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.journal = MemoryJournal()
        self.open()

    def open(self) -> None:
        self.journal.commit()
        self.broker = Broker(open_core(":memory:", clock=self.clock, journal=self.journal))
        self.calls = Administration(self.broker)

    def configure(self, namespace: str, **settings: Any) -> Any:
        return self.calls.call("namespace.config", {"namespace": namespace, "settings": settings}).reply

    def publish(self, namespace: str, count: int = 1, topic: str = "t", **fields: Any) -> None:
        self.broker.publish(namespace, topic, BY_KEY, messages(count, **fields))

    def lease(self, namespace: str, most: int, topic: str = "t", group: str = "default") -> list[Run]:
        leased = self.broker.lease(namespace, topic, group, "c", most).reply
        return [Run(each.partition, each.lease_id, each.batch.base_offset, each.batch.count) for each in leased]

    def ack(self, namespace: str, runs: list[Run], topic: str = "t", group: str = "default") -> None:
        self.broker.settle(namespace, topic, group, Settle(ack=runs))


def messages(count: int, value: bytes = b"v") -> Batch:
    return encode([Message(value=value)] * count)


def total(runs: list[Run]) -> int:
    return sum(run.count for run in runs)


@pytest.fixture
def house() -> House:
    return House()


@pytest.mark.feature("F160")
def test_a_minutes_messages_may_come_at_once_and_then_flow(house: House) -> None:
    house.configure("a", quota={"messages_per_minute": 60})
    house.publish("a", 60)
    with pytest.raises(QuotaExceeded, match="60 messages a minute") as refused:
        house.publish("a")
    assert refused.value.retry_after_ns == SECOND_NS
    house.clock.advance(SECOND_NS - 1)
    with pytest.raises(QuotaExceeded):
        house.publish("a")
    house.clock.advance(1)
    house.publish("a")
    with pytest.raises(QuotaExceeded):
        house.publish("a")
    house.publish("b", 1000)  # nobody else is touched


def test_bytes_are_counted_too(house: House) -> None:
    size = messages(1, value=b"x" * 1000).size_bytes
    house.configure("a", quota={"bytes_per_minute": 2 * size})
    house.publish("a", value=b"x" * 1000)
    house.publish("a", value=b"x" * 1000)
    with pytest.raises(QuotaExceeded, match="bytes a minute"):
        house.publish("a", value=b"x" * 1000)


def test_what_never_fits_is_said_to_be_too_much(house: House) -> None:
    house.configure("a", quota={"messages_per_minute": 10})
    with pytest.raises(LimitExceeded, match="11 messages at once"):
        house.publish("a", 11)
    house.publish("a", 10)


def test_what_was_refused_is_not_charged(house: House) -> None:
    house.calls.call("topic.create", {"namespace": "a", "topic": "t", "settings": {"max_message_size": 10}})
    house.configure("a", quota={"messages_per_minute": 2})
    for _ in range(5):
        with pytest.raises(Exception, match="11"):
            house.publish("a", value=b"x" * 11)
    house.publish("a", 2)


def test_an_atomic_settle_is_charged_for_what_it_publishes(house: House) -> None:
    house.publish("a")
    (run,) = house.lease("a", 1)
    house.configure("a", quota={"messages_per_minute": 1})
    house.publish("a", topic="other")
    order = Settle(ack=[run], publish=[("out", BY_KEY, messages(1))])
    with pytest.raises(QuotaExceeded):
        house.broker.settle("a", "t", "default", order)
    # The refusal changed nothing: the message is still leased, its lease ends, and after its backoff it comes again.
    for _ in range(2):
        house.clock.advance(60 * SECOND_NS)
        house.broker.core.tick()
    (again,) = house.lease("a", 1)
    assert house.broker.settle("a", "t", "default", Settle(ack=[again], publish=order.publish)).reply.settled == 1


@pytest.mark.feature("F159")
def test_topics_are_counted_and_those_of_dead_letters_are_not(house: House) -> None:
    house.configure("a", quota={"topics": 2})
    for name in ("one", "two", "dlq/one"):
        house.publish("a", topic=name)
    with pytest.raises(QuotaExceeded, match="has 2 topics and may have 2"):
        house.publish("a", topic="three")
    house.publish("b", topic="three")
    house.calls.call("topic.delete", {"namespace": "a", "topic": "one"})
    house.publish("a", topic="three")


def test_connections_are_counted(house: House) -> None:
    quotas = house.broker.quotas
    house.configure("a", quota={"connections": 1})
    quotas.enter("a")
    with pytest.raises(QuotaExceeded, match="1 connections"):
        quotas.enter("a")
    quotas.enter("b")
    quotas.leave("a")
    quotas.enter("a")
    assert house.calls.call("namespace.show", {"namespace": "a"}).reply["connections"] == 1


def test_quotas_are_stored_and_changed_while_it_runs(house: House) -> None:
    house.configure("a", quota={"messages_per_minute": 1, "topics": 7}, limits={"concurrency": 5})
    house.configure("a", quota={"messages_per_minute": "none"})
    house.open()
    shown = house.calls.call("namespace.show", {"namespace": "a"}).reply
    assert shown["settings"]["quota"] == {
        "messages_per_minute": "none",
        "bytes_per_minute": "none",
        "topics": 7,
        "connections": "none",
    }
    house.publish("a", 100)
    state = house.broker.core.state
    assert delivery.restore(delivery.snapshot(state)).namespaces["a"].settings.concurrency == 5


def test_what_a_namespace_cannot_have_is_said(house: House) -> None:
    with pytest.raises(InvalidArgument, match="does not exist"):
        house.calls.call("namespace.show", {"namespace": "nobody"})
    with pytest.raises(InvalidArgument, match=r"quota\.messages_per_minute"):
        house.configure("a", quota={"message_per_minute": 5})
    with pytest.raises(InvalidArgument, match=r"limits\.rate"):
        house.configure("a", limits={"rate": -1})
    with pytest.raises(InvalidArgument, match="must not start with"):
        house.configure("$a", limits={"rate": 1})


@pytest.mark.feature("N02")
def test_concurrency_is_of_all_groups_together(house: House) -> None:
    house.configure("a", limits={"concurrency": 10})
    for topic in ("t", "u"):
        house.publish("a", 20, topic=topic)
    first = house.lease("a", 8, "t")
    second = house.lease("a", 8, "u")
    assert (total(first), total(second)) == (8, 2)
    assert house.lease("a", 8, "u") == []
    house.broker.core.woken.clear()
    house.ack("a", first, "t")
    other = house.broker.find_group("a", "u", "default")
    assert other.gid in house.broker.core.woken  # what was freed in one group lets another go
    assert total(house.lease("a", 100, "u")) == 8
    house.configure("a", limits={"concurrency": 12})
    assert total(house.lease("a", 100, "t")) == 2


@pytest.mark.feature("N02")
def test_the_rate_is_of_all_groups_together(house: House) -> None:
    house.configure("a", limits={"rate": 10})
    for topic in ("t", "u"):
        house.publish("a", 50, topic=topic)
    assert total(house.lease("a", 6, "t")) == 6
    assert total(house.lease("a", 6, "u")) == 4
    group = house.broker.find_group("a", "u", "default")
    assert group.wait_ns(house.clock.wall_ns()) == SECOND_NS // 10
    house.clock.advance(SECOND_NS // 10)
    assert total(house.lease("a", 6, "u")) == 1
    house.configure("a", limits={"rate": "none"})
    assert total(house.lease("a", 6, "u")) == 6
