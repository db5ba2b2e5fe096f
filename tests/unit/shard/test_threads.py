"""The host for plain threads: one sync for many, waiting for messages, back-pressure, the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from headrace import delivery as d
from headrace.batch import Message, encode, encode_columns
from headrace.clock import SystemClock
from headrace.config import TopicConfig
from headrace.errors import Closed, StorageFailed, UnknownTopic
from headrace.journal import MemoryJournal
from headrace.shard import Core, core, threads
from headrace.shard.threads import ThreadHost
from unit.shard.held_journal import PATIENCE_S, HeldJournal

S = 1_000_000_000


class Place:
    """A host on a journal that holds its syncs, and threads to call it from."""

    def __init__(self) -> None:
        self.journal = HeldJournal()
        self.core = Core(self.journal, SystemClock())
        self.host = ThreadHost(self.core, SystemClock())
        self.core.execute(d.CreateTopic("default", "t", TopicConfig(ordering="none")))
        self.journal.let_go()
        self.pool = ThreadPoolExecutor(20)

    def start(self, call: Callable[[], Any]) -> Future[Any]:
        return self.pool.submit(call)

    def publish(self, value: bytes = b"a") -> Any:
        return self.host.run(lambda: self.core.execute(d.Publish(1, encode([Message(value)]))))

    def lease(self, wait_ns: int = 0) -> Any:
        return self.host.run_until(lambda: self.core.execute(d.LeaseUpTo(1, "c", 1)), wait_ns)


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.journal.holding = False
    if place.journal.failure is None:
        place.journal.let_go()
    place.host.close()
    place.pool.shutdown()


def test_a_reply_comes_when_it_is_durable_and_not_before(place: Place) -> None:
    call = place.start(place.publish)
    place.journal.until_waiting(1)
    assert not call.done()
    place.journal.let_go()
    assert call.result(PATIENCE_S).base_offset == 0


@pytest.mark.feature("F142")
def test_many_threads_share_one_sync(place: Place) -> None:
    commits = place.journal.stats.commits
    calls = [place.start(place.publish) for _ in range(16)]
    place.journal.until_waiting(16)
    place.journal.let_go()
    assert sorted(call.result(PATIENCE_S).base_offset for call in calls) == list(range(16))
    assert place.journal.stats.commits == commits + 1


def test_a_refusal_is_raised_in_the_thread_that_asked(place: Place) -> None:
    with pytest.raises(UnknownTopic):
        place.host.run(lambda: place.core.execute(d.Publish(99, encode_columns([b"a"]))))


def test_a_failed_sync_is_raised_in_every_thread_that_waits(place: Place) -> None:
    calls = [place.start(place.publish) for _ in range(3)]
    place.journal.until_waiting(3)
    place.journal.fail(StorageFailed("EIO"))
    for call in calls:
        with pytest.raises(StorageFailed, match="EIO"):
            call.result(PATIENCE_S)


def test_who_waits_for_a_message_gets_it_when_somebody_publishes(place: Place) -> None:
    place.journal.holding = False
    waiter = place.start(lambda: place.lease(wait_ns=int(PATIENCE_S) * S))
    place.publish()
    (grant,) = waiter.result(PATIENCE_S)
    assert grant.span.first == 0


def test_who_waits_is_woken_for_what_comes_due(place: Place) -> None:
    place.journal.holding = False
    place.host.run(lambda: place.core.execute(d.Publish(1, encode([Message(b"a", delay_ns=30_000_000)]))))
    asked_ns = place.core.clock.now_ns()
    (grant,) = place.lease(wait_ns=int(PATIENCE_S) * S)
    assert grant.span.first == 0
    assert place.core.clock.now_ns() >= asked_ns


def test_without_a_wait_nothing_is_an_answer_at_once(place: Place) -> None:
    assert place.lease() == []


def test_who_waits_can_give_up_when_it_is_woken(place: Place) -> None:
    gives_up, looked = Event(), Event()

    def give_up() -> bool:
        looked.set()
        return gives_up.is_set()

    operation = lambda: place.core.execute(d.LeaseUpTo(1, "c", 1))  # noqa: E731
    waiter = place.start(lambda: place.host.run_until(operation, int(PATIENCE_S) * S, give_up))
    assert looked.wait(PATIENCE_S)
    gives_up.set()
    while not waiter.done():
        place.host.wake()
    assert waiter.result(0) == []


def test_above_the_limit_callers_wait_for_the_disk(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "UNDURABLE_BYTES_MAX", 1_000)
    first = place.start(lambda: place.publish(b"x" * 2_000))
    place.journal.until_waiting(1)
    end = place.journal.end_position
    second = place.start(place.publish)
    place.journal.until_waiting(2)
    assert place.journal.end_position == end, "nothing more is taken on"
    place.journal.let_go()
    first.result(PATIENCE_S)
    place.journal.until_longer(end)
    place.journal.until_waiting(1)
    place.journal.let_go()
    assert second.result(PATIENCE_S).base_offset == 1


def test_a_snapshot_is_saved_by_bytes_of_journal(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "SNAPSHOT_EVERY_BYTES", 5_000)
    place.host.core.snapshot_at = 5_000
    place.journal.holding = False
    assert place.journal.load_snapshot() is None
    place.publish(b"x" * 6_000)
    saved = place.journal.load_snapshot()
    assert saved is not None
    place.publish(b"y")
    again = place.journal.load_snapshot()
    assert again is not None
    assert again[0] == saved[0]


def test_looking_does_what_is_due_and_changes_nothing_else(place: Place) -> None:
    place.journal.holding = False
    place.publish()
    assert place.host.look(lambda core: core.state.groups[1].unsettled_count) == 1


def test_closing_wakes_who_waits_makes_everything_durable_and_refuses_what_comes_later() -> None:
    journal = MemoryJournal()
    shard = Core(journal, SystemClock())
    host = ThreadHost(shard, SystemClock())
    host.run(lambda: shard.execute(d.CreateTopic("default", "t", TopicConfig())))
    entered = Event()

    def operation() -> Any:
        entered.set()
        return shard.execute(d.LeaseUpTo(1, "c", 1))

    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(lambda: host.run_until(operation, int(PATIENCE_S) * S))
        assert entered.wait(PATIENCE_S)
        host.close()
        with pytest.raises(Closed):
            waiter.result(PATIENCE_S)
    host.close()
    assert journal.durable_position == journal.end_position
    with pytest.raises(Closed):
        host.run(operation)
    with pytest.raises(Closed):
        host.look(lambda core: None)
