"""The books, added up from the containers: what they say in a sound shard, and that they notice an unsound one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.batch import Message
from headrace.delivery import Backlog, books_of
from unit.delivery.harness import HOUR, Stage, after, retry


@pytest.fixture
def busy(stage: Stage) -> Backlog:
    """A group with messages in every state."""
    stage.topic(ordering="none", retry=retry(max_retries=0))
    stage.group("eu", filter={"headers": {"region": "eu"}})
    eu = {"region": "eu"}
    stage.publish(*(Message(b"%d" % n, headers=eu) for n in range(6)), Message(b"us"))
    stage.publish(Message(b"later", headers=eu, delay_ns=HOUR), Message(b"never", headers=eu, delay_ns=HOUR))
    stage.publish(Message(b"short", headers=eu, ttl_ns=1))
    stage.cancel(8)
    acked, dead, waits = stage.lease(3, group="eu")
    stage.ack(acked)
    stage.reject(dead)
    stage.last = stage.named("t")
    stage.release(waits)
    stage.lease(1, group="eu")
    stage.purge("eu")
    stage.publish(Message(b"new", headers=eu))
    return stage.backlog("eu")


@pytest.mark.feature("N13")
def test_the_books_of_a_busy_group_say_where_each_message_is(busy: Backlog) -> None:
    books, faults = books_of(busy)
    assert faults == []
    assert books.drift == 0
    found = {name: count for name, count in books._asdict().items() if count}
    assert found == {
        "published": 11,
        "scheduled": 1,
        "ready": 1,
        "leased": 1,
        "acked": 1,
        "dead": 1,
        "expired": 1,
        "cancelled": 1,
        "dropped": 3,
        "filtered": 1,
    }


def lose(backlog: Backlog) -> None:
    backlog.lanes[5].main.discard(10)  # type: ignore[union-attr]


def double(backlog: Backlog) -> None:
    backlog.waiting.add(10)


def forget_an_ack(backlog: Backlog) -> None:
    backlog.done.discard(0)


def ack_what_is_leased(backlog: Backlog) -> None:
    backlog.done.add(2)


def miscount(backlog: Backlog) -> None:
    backlog.expired_count += 1


def go_beyond_the_end(backlog: Backlog) -> None:
    backlog.fresh.add_range(11, 13)


@pytest.mark.feature("N13")
@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (lose, "1 messages are nowhere: offset 10"),
        (double, "in another container too: offset 10"),
        (forget_an_ack, "1 messages are nowhere: offset 0"),
        (ack_what_is_leased, "in another container too: offset 2"),
        (miscount, "2 messages are counted as expired and there are 1"),
        (go_beyond_the_end, "2 messages are ready and not of this group: offsets 11 to 12"),
    ],
)
def test_books_that_are_wrong_are_noticed_and_the_messages_named(
    busy: Backlog, broken: Callable[[Backlog], None], told: str
) -> None:
    kept = busy.fresh.copy(), busy.lanes[5].main.copy(), busy.waiting.copy(), busy.done.copy(), busy.expired_count
    broken(busy)
    assert any(told in fault for fault in books_of(busy)[1]), books_of(busy)[1]
    busy.fresh, busy.lanes[5].main, busy.waiting, busy.done, busy.expired_count = kept


def test_the_books_of_a_bounded_replay_end_with_it(stage: Stage) -> None:
    from headrace.delivery import Start

    stage.topic()
    stage.publish(*"abcdef", after("later", HOUR))
    stage.seek(start=Start(offsets={0: 1}), stops={0: 4})
    books, faults = books_of(stage.backlog())
    assert (books.published, books.ready, books.scheduled, faults) == (3, 3, 0, [])
