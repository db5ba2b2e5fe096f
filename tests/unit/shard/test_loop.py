"""The host for an event loop: replies when durable, one commit a round, one timer, back-pressure, the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from headrace import delivery as d
from headrace.batch import Message, encode, encode_columns
from headrace.clock import ManualClock, SystemClock
from headrace.config import TopicConfig
from headrace.errors import Closed, HeadraceError, Overloaded, StorageFailed, UnknownTopic
from headrace.shard import Core, core, loop
from headrace.shard.core import SteadyClock
from headrace.shard.loop import LoopHost
from unit.shard.held_journal import PATIENCE_S, HeldJournal

MS = 1_000_000


class Place:
    """A host on a journal that holds its syncs."""

    def __init__(self) -> None:
        self.journal = HeldJournal()
        self.core = Core(self.journal, SystemClock())
        self.core.execute(d.CreateTopic("default", "t", TopicConfig(ordering="none")))
        self.core.woken.clear()
        self.journal.let_go()
        self.ready: list[set[int]] = []
        self.failures: list[HeadraceError] = []
        self.host = LoopHost(self.core, on_ready=self.ready.append, on_failure=self.failures.append)

    def publish(self, value: bytes = b"a", **message: Any) -> asyncio.Task[Any]:
        command = d.Publish(1, encode([Message(value, **message)]))
        return asyncio.ensure_future(self.host.run(lambda: self.core.execute(command)))


@pytest.fixture
async def place(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    # A lone reply is committed in the loop itself; that has a test of its own.
    monkeypatch.setattr(loop, "COMMIT_HERE_BYTES_MAX", -1)
    place = Place()
    yield place
    place.journal.holding = False
    if not place.failures and not place.host._closed:
        place.journal.let_go()
    await asyncio.wait_for(place.host.close(), PATIENCE_S)


async def rounds(count: int = 5) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_reply_leaves_when_it_is_durable_and_not_before(place: Place) -> None:
    call = place.publish()
    await rounds()
    assert not call.done()
    place.journal.let_go()
    assert (await asyncio.wait_for(call, PATIENCE_S)).base_offset == 0


@pytest.mark.feature("F142")
async def test_everything_that_came_in_shares_a_sync_and_is_answered_in_order(place: Place) -> None:
    commits = place.journal.stats.commits
    answered: list[int] = []
    for _ in range(100):
        operation = lambda: place.core.execute(d.Publish(1, encode_columns([b"a"])))  # noqa: E731
        place.host.then(operation, lambda reply: answered.append(reply.base_offset))
    await rounds()
    assert answered == []
    place.journal.let_go()
    await rounds()
    assert answered == list(range(100))
    assert place.journal.stats.commits == commits + 1


async def test_what_is_written_for_the_replies_of_a_commit_is_written_once_all_are_handed_out(place: Place) -> None:
    heard: list[str] = []

    def answer(name: str) -> Callable[[Any], None]:
        def hear(_: Any) -> None:
            heard.append(name)
            place.host.afterwards(lambda: heard.append(f"write {name}"))

        return hear

    for name in "ab":
        place.host.then(lambda: place.core.execute(d.Publish(1, encode_columns([b"a"]))), answer(name))
    await rounds()
    place.journal.let_go()
    place.host._durable(None)
    assert heard == ["a", "b", "write a", "write b"]
    place.host.afterwards(lambda: heard.append("write c"))  # nothing is being handed out: with this round of the loop
    assert heard[-1] != "write c"
    await rounds()
    assert heard[-1] == "write c"


async def test_what_a_lone_connection_brought_is_committed_without_waiting_for_the_round_to_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "COMMIT_HERE_BYTES_MAX", 1 << 20)
    place.journal.holding = False
    answered: list[int] = []
    operation = lambda: place.core.execute(d.Publish(1, encode_columns([b"a"])))  # noqa: E731
    place.host.gather()
    place.host.then(operation, lambda reply: answered.append(reply.base_offset))
    assert answered == []
    place.host.commit_gathered()
    assert answered == [0]
    # One that was planned before is not made twice.
    place.host.then(operation, lambda reply: answered.append(reply.base_offset))
    place.host.gather()
    place.host.commit_gathered()
    commits = place.journal.stats.commits
    assert answered == [0, 1]
    await rounds()
    assert place.journal.stats.commits == commits
    # And afterwards rounds are planned again.
    place.host.then(operation, lambda reply: answered.append(reply.base_offset))
    await rounds()
    assert answered == [0, 1, 2]


async def test_a_door_that_fails_over_a_reply_does_not_keep_the_others_from_writing(place: Place) -> None:
    heard: list[str] = []

    def fail(_: Any) -> None:
        place.host.afterwards(lambda: heard.append("write"))
        raise ZeroDivisionError

    place.host.then(lambda: place.core.execute(d.Publish(1, encode_columns([b"a"]))), fail)
    await rounds()
    place.journal.let_go()
    with pytest.raises(ZeroDivisionError):
        place.host._durable(None)
    await rounds()
    assert heard == ["write"]


async def test_a_reply_whose_position_is_not_durable_yet_waits_for_the_next_sync(place: Place) -> None:
    first = place.publish()
    await rounds()
    place.journal.let_go()
    second = place.publish()
    await rounds()
    assert first.done()
    assert not second.done()
    place.journal.let_go()
    await asyncio.wait_for(second, PATIENCE_S)


async def test_a_lone_small_reply_is_committed_in_the_loop(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "COMMIT_HERE_BYTES_MAX", 1 << 20)
    place.journal.holding = False
    assert (await asyncio.wait_for(place.publish(), PATIENCE_S)).base_offset == 0
    assert place.journal.durable_position == place.journal.end_position


@pytest.mark.parametrize(("sync_ns", "elsewhere"), [(MS * 9 // 10, 0), (MS * 11 // 10, loop.COMMIT_ELSEWHERE_ROUNDS)])
async def test_a_slow_sync_and_only_that_sends_the_next_rounds_to_the_thread(
    place: Place, monkeypatch: pytest.MonkeyPatch, sync_ns: int, elsewhere: int
) -> None:
    monkeypatch.setattr(loop, "COMMIT_HERE_BYTES_MAX", 1 << 20)
    clock, journal, handed = ManualClock(), place.journal, []
    place.core.clock = SteadyClock(clock, 0)
    journal.holding = False
    wait_durable, commit_soon = journal.wait_durable, journal.commit_soon
    monkeypatch.setattr(journal, "wait_durable", lambda at: (clock.advance(sync_ns), wait_durable(at)))
    monkeypatch.setattr(journal, "commit_soon", lambda: (handed.append(1), commit_soon(), place.host._durable(None)))
    for _ in range(1 + loop.COMMIT_ELSEWHERE_ROUNDS):
        await asyncio.wait_for(place.publish(), PATIENCE_S)
    assert len(handed) == elsewhere


async def test_a_refusal_is_raised_and_an_answer_of_nothing_waits_for_nothing(place: Place) -> None:
    with pytest.raises(UnknownTopic):
        await place.host.run(lambda: place.core.execute(d.Publish(99, encode_columns([b"a"]))))
    assert await place.host.run(lambda: place.core.execute(d.LeaseUpTo(1, "c", 1))) == []


async def test_groups_are_told_of_as_soon_as_something_is_ready(place: Place) -> None:
    place.publish()
    await rounds()
    assert place.ready == [{1}]


async def test_one_timer_wakes_the_shard_for_what_is_due_earliest(place: Place) -> None:
    place.journal.holding = False
    due = asyncio.Event()
    place.host._on_ready = lambda woken: due.set()
    await place.publish(b"far", delay_ns=3600 * 1000 * MS)
    await place.publish(b"near", delay_ns=30 * MS)
    due.clear()
    asked_ns = place.core.clock.now_ns()
    await asyncio.wait_for(due.wait(), PATIENCE_S)
    assert place.core.clock.now_ns() >= asked_ns + 25 * MS
    (grant,) = await place.host.run(lambda: place.core.execute(d.LeaseUpTo(1, "c", 9)))
    assert (grant.span.first, grant.span.count) == (1, 1)


# -- back-pressure -----------------------------------------------------------------------------------------------------


async def test_doors_are_asked_to_stop_while_the_disk_is_behind_and_told_when_it_is_not(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "UNDURABLE_BYTES_HIGH", 1_000)
    assert not place.host.busy
    call = place.publish(b"x" * 2_000)
    await rounds()
    assert place.host.busy
    eased = asyncio.Event()
    place.host.when_eased(eased.set)
    await rounds()
    assert not eased.is_set()
    place.journal.let_go()
    await asyncio.wait_for(eased.wait(), PATIENCE_S)
    assert not place.host.busy
    await call


async def test_too_many_waiting_replies_make_it_busy_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "PENDING_REPLIES_HIGH", 2)
    calls = [place.publish() for _ in range(3)]
    await rounds()
    assert place.host.busy
    place.journal.let_go()
    await asyncio.gather(*calls)
    assert not place.host.busy


@pytest.mark.parametrize(("limit", "most"), [("PENDING_REPLIES_MAX", 3), ("UNDURABLE_BYTES_MAX", 600)])
async def test_who_goes_on_regardless_is_refused_and_nothing_is_done(
    place: Place, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(loop, limit, most)
    calls = []
    for _ in range(10):
        calls.append(place.publish(b"x" * 200))
        await rounds(2)
    refused = [call for call in calls if call.done()]
    assert 0 < len(refused) < 10
    for call in refused:
        with pytest.raises(Overloaded, match="wait for the disk"):
            call.result()
    place.journal.let_go()
    stored = [await call for call in calls if call not in refused]
    assert place.core.state.partitions[1].end == len(stored)
    assert (await asyncio.gather(place.publish(), _let_go_soon(place)))[0].count == 1


async def _let_go_soon(place: Place) -> None:
    await rounds()
    place.journal.let_go()


# -- the end -----------------------------------------------------------------------------------------------------------


async def test_a_failed_sync_is_told_to_everybody_once_and_is_the_end(place: Place) -> None:
    calls = [place.publish() for _ in range(3)]
    await rounds()
    place.journal.fail(StorageFailed("EIO"))
    place.journal.fail(StorageFailed("EIO"))
    for reply in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(reply, StorageFailed)
    assert [error.message for error in place.failures] == ["EIO"]
    with pytest.raises(StorageFailed):
        await place.publish()


async def test_an_append_that_fails_is_the_end_too(place: Place) -> None:
    place.journal.refusal = StorageFailed("EIO")
    with pytest.raises(StorageFailed):
        await place.publish()
    assert len(place.failures) == 1


async def test_who_waits_to_go_on_is_told_when_the_storage_has_failed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "UNDURABLE_BYTES_HIGH", 10)
    call = place.publish()
    await rounds()
    eased = asyncio.Event()
    place.host.when_eased(eased.set)
    place.journal.fail(StorageFailed("EIO"))
    await asyncio.wait_for(eased.wait(), PATIENCE_S)
    with pytest.raises(StorageFailed):
        await call


async def test_closing_lets_the_last_replies_leave_and_refuses_what_comes_later(place: Place) -> None:
    call = place.publish()
    await rounds()
    closing = asyncio.ensure_future(place.host.close())
    await rounds()
    assert not closing.done()
    place.journal.let_go()
    await asyncio.wait_for(closing, PATIENCE_S)
    assert call.done()
    with pytest.raises(Closed):
        await place.publish()


async def test_a_snapshot_is_saved_by_bytes_of_journal(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "SNAPSHOT_EVERY_BYTES", 5_000)
    place.host.core.snapshot_at = 5_000
    place.journal.holding = False
    finished, note = asyncio.Event(), place.host._snapshot_saved

    def saved_now(saving: asyncio.Future[None]) -> None:
        note(saving)
        finished.set()

    monkeypatch.setattr(place.host, "_snapshot_saved", saved_now)
    await place.publish(b"x" * 6_000)
    await asyncio.wait_for(finished.wait(), PATIENCE_S)
    saved = place.journal.load_snapshot()
    assert saved is not None
    assert saved[0] <= place.journal.end_position
