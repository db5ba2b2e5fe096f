"""The structures of delivery, each against a model a child could write: lists that are searched from the front."""

from __future__ import annotations

from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pyroaring import BitMap64

from headrace.clock import ManualClock
from headrace.config import TopicConfig
from headrace.delivery import CreateTopic, Lease, Span, runs, span_of
from headrace.delivery.due import DueTimes
from headrace.delivery.lanes import Lane
from headrace.delivery.offsets import add, inside, subtract, unpack
from headrace.delivery.state import BUCKET_NS, State
from headrace.journal import MemoryJournal
from headrace.shard import Core

OFFSETS = st.integers(0, 40)
SETS = st.sets(OFFSETS, min_size=1, max_size=20)
_AT_MOST = settings(max_examples=min(1_000, settings().max_examples))
"""Each is some fifty steps: a thousand find what there is to find, ten thousand take an hour."""


# -- spans -------------------------------------------------------------------------------------------------------------


@given(SETS)
def test_a_span_is_its_set_and_comes_back_from_its_three_fields(offsets: set[int]) -> None:
    span = span_of(offsets)
    assert list(span) == sorted(offsets)
    assert (span.first, span.count, span.last) == (min(offsets), len(offsets), max(offsets))
    assert (span.bits is None) == (max(offsets) - min(offsets) + 1 == len(offsets)), "a run needs no bitmap"
    assert list(unpack(*span.packed())) == sorted(offsets)


@given(SETS, SETS)
def test_adding_subtracting_and_asking_agree_with_sets(one: set[int], other: set[int]) -> None:
    target, span = BitMap64(one), span_of(other)
    assert inside(target, span) == (other <= one)
    add(target, span)
    assert set(target) == one | other
    subtract(target, span)
    assert set(target) == one - other
    assert [n for first, count in runs(BitMap64(one)) for n in range(first, first + count)] == sorted(one)


# -- the calendar ------------------------------------------------------------------------------------------------------


class Calendar(RuleBasedStateMachine):
    """Entries by due time against a list that is sorted whenever somebody asks."""

    def __init__(self) -> None:
        super().__init__()
        self.due = DueTimes()
        self.entries: list[tuple[int, int]] = []
        self.now_ms = 0

    @rule(wait=st.one_of(st.integers(0, 20), st.integers(4000, 4200), st.integers(0, 1 << 40)), offset=OFFSETS)
    def schedule(self, wait: int, offset: int) -> None:
        self.due.add(self.now_ms + wait, offset)
        self.entries.append((self.now_ms + wait, offset))

    @rule(many=st.lists(st.tuples(st.integers(0, 20_000), OFFSETS), max_size=8))
    def schedule_many(self, many: list[tuple[int, int]]) -> None:
        self.due.add_many((self.now_ms + wait, offset) for wait, offset in many)
        self.entries += [(self.now_ms + wait, offset) for wait, offset in many]

    @rule(passed=st.one_of(st.integers(0, 30), st.integers(0, 10_000)), most=st.integers(1, 10))
    def fire(self, passed: int, most: int) -> None:
        self.now_ms += passed
        fired = self.due.pop_due(self.now_ms, most)
        over = sorted(entry for entry in self.entries if entry[0] <= self.now_ms)[:most]
        assert fired == over, "never early, in the order of time, then offset"
        for entry in over:
            self.entries.remove(entry)

    @rule(most=st.integers(1, 5))
    def look(self, most: int) -> None:
        assert self.due.peek_due(self.now_ms, most) == sorted(e for e in self.entries if e[0] <= self.now_ms)[:most]

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def cancel_some(self, data: st.DataObject) -> None:
        """Leftovers are dropped when they are enough; forced here, as if they were."""
        gone = data.draw(st.sets(st.sampled_from(self.entries)))
        self.due.forget(1 << 40)
        self.due.compact(lambda due_ms, offset: (due_ms, offset) not in gone)
        self.entries = [entry for entry in self.entries if entry not in gone]
        assert self.due.leftovers == 0

    @invariant()
    def agree(self) -> None:
        assert len(self.due) == len(self.entries)
        assert self.due.next_due_ms() == min((at for at, _ in self.entries), default=None)
        assert list(self.due.entries()) == sorted(self.entries)


Calendar.TestCase.settings = _AT_MOST
TestCalendar = Calendar.TestCase


# -- lanes -------------------------------------------------------------------------------------------------------------


class Lanes(RuleBasedStateMachine):
    """A lane against a list of (ms, whether it came late, offset), sorted whenever somebody asks.

    Offsets are appended at ``offset // 4`` ms: several messages share a millisecond.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lane = Lane()
        self.here: dict[int, tuple[int, int, bool, int]] = {}
        self.end = 0

    def first_after(self, at_ms: int) -> int:
        return min(self.end, max(0, (at_ms + 1) * 4))

    @rule(count=st.integers(1, 10))
    def append(self, count: int) -> None:
        self.lane.add_main(Span(self.end, count))
        for offset in range(self.end, self.end + count):
            self.here[offset] = (1, offset // 4, False, offset)
        self.end += count

    def absent(self) -> list[int]:
        return [offset for offset in range(self.end) if offset not in self.here]

    @precondition(lambda self: self.absent())
    @rule(data=st.data(), wait=st.integers(0, 6))
    def come_late(self, data: st.DataObject, wait: int) -> None:
        offset = data.draw(st.sampled_from(self.absent()))
        at_ms = offset // 4 + wait
        self.lane.add_late(at_ms, offset)
        self.here[offset] = (1, at_ms, True, offset)

    @precondition(lambda self: self.absent())
    @rule(data=st.data())
    def come_back_in_place(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(self.absent()))
        self.lane.add_one(offset)
        self.here[offset] = (1, offset // 4, False, offset)

    @precondition(lambda self: self.absent())
    @rule(data=st.data(), late=st.booleans())
    def come_back_to_the_front(self, data: st.DataObject, late: bool) -> None:
        offset = data.draw(st.sampled_from(self.absent()))
        self.lane.add_front(offset // 4, offset, late=late)
        self.here[offset] = (0, offset // 4, late, offset)

    def order(self) -> list[int]:
        return [offset for *_, offset in sorted(self.here.values())]

    @rule(most=st.integers(1, 12))
    def lease(self, most: int) -> None:
        span, order = self.lane.peek(most, self.first_after)
        wanted = self.order()[:most]
        assert list(order or span) == wanted
        assert sorted(span) == sorted(wanted)
        if span.count:
            self.lane.remove_known(span)
        for offset in wanted:
            del self.here[offset]

    @precondition(lambda self: self.end)
    @rule(data=st.data())
    def take_out(self, data: st.DataObject) -> None:
        wanted = data.draw(st.sets(st.integers(0, self.end - 1), min_size=1))
        found = self.lane.remove(span_of(wanted))
        assert set(found) == wanted & set(self.here)
        for offset in found:
            del self.here[offset]

    @invariant()
    def agree(self) -> None:
        lane, here = self.lane, self.here
        assert len(lane) == len(here)
        assert bool(lane) == bool(here)
        assert all((offset in lane) == (offset in here) for offset in range(self.end + 1))
        head = lane.head(lambda offset: offset // 4)
        wanted = self.order()
        assert (None if head is None else head[1]) == (wanted[0] if wanted else None)


Lanes.TestCase.settings = _AT_MOST
TestLanes = Lanes.TestCase


# -- leases ------------------------------------------------------------------------------------------------------------


class Leases(RuleBasedStateMachine):
    """What a lease still holds, and when the state has to look at it, against a dict of deadlines by offset."""

    def __init__(self) -> None:
        super().__init__()
        core = Core(MemoryJournal(), ManualClock())
        core.execute(CreateTopic("default", "t", TopicConfig()))
        (self.backlog,) = core.state.groups[1].backlogs.values()
        self.state = State()
        self.lease: Lease | None = None
        self.model: dict[int, int] = {}

    @precondition(lambda self: self.lease is None)
    @rule(offsets=SETS, deadline=st.integers(1, 1000))
    def grant(self, offsets: set[int], deadline: int) -> None:
        span, deadline_ns = span_of(offsets), deadline * BUCKET_NS // 4
        self.lease = Lease(self.backlog, 1, "c", span.first, span.count, span.bits, 0, deadline_ns)
        self.state.watch(self.lease)
        self.model = dict.fromkeys(offsets, deadline_ns)

    @precondition(lambda self: self.lease is not None)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        lease = self.lease
        assert lease is not None
        gone = data.draw(st.sets(st.sampled_from(sorted(self.model)), min_size=1))
        over = lease.remove(span_of(gone))
        for offset in gone:
            del self.model[offset]
        assert over == (not self.model)
        if over:
            self.state.unwatch(lease)
            self.lease = None
            assert not any(self.state.expiries.values())
        elif lease.later is not None:
            for offset in gone:
                lease.later.pop(offset, None)
            self.state.watch_anew(lease)

    @precondition(lambda self: self.lease is not None)
    @rule(data=st.data(), deadline=st.integers(1, 1000))
    def extend(self, data: st.DataObject, deadline: int) -> None:
        lease = self.lease
        assert lease is not None
        some = data.draw(st.sets(st.sampled_from(sorted(self.model)), min_size=1))
        lease.later = (lease.later or {}) | dict.fromkeys(some, deadline * BUCKET_NS // 4)
        self.model |= dict.fromkeys(some, deadline * BUCKET_NS // 4)
        self.state.watch_anew(lease)

    @rule(wanted=SETS)
    def ask(self, wanted: set[int]) -> None:
        if self.lease is not None:
            assert self.lease.holds(span_of(wanted)) == (wanted <= set(self.model))

    @rule(now=st.integers(0, 1200))
    def look_at_the_clock(self, now: int) -> None:
        now_ns = now * BUCKET_NS // 4
        over = list(self.state.leases_over(now_ns))
        due = min(self.model.values(), default=None)
        if due is None or now_ns < due:
            assert over == [], "never early"
        elif now_ns >= due + BUCKET_NS:
            assert over == [self.lease], "at most a bucket late"

    @invariant()
    def agree(self) -> None:
        if self.lease is not None:
            assert list(self.lease.span()) == sorted(self.model)
            assert self.lease.next_ns() == min(self.model.values())
            wake_ns = self.state.wake_at_ns()
            assert wake_ns is not None
            assert min(self.model.values()) < wake_ns <= min(self.model.values()) + BUCKET_NS


Leases.TestCase.settings = _AT_MOST
TestLeases = Leases.TestCase


# -- times of a partition ----------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=30), st.integers(0, 60))
def test_the_age_of_an_offset_and_the_offset_of_an_age(batches: list[tuple[int, int]], asked_ms: int) -> None:
    """Stretches appended at rising times: which was appended when, and which is the first after a time."""
    from headrace.batch import encode_columns
    from headrace.delivery import Publish

    clock = ManualClock(1_800_000_000_000_000_000)
    core = Core(MemoryJournal(), clock)
    core.execute(CreateTopic("default", "t", TopicConfig()))
    start_ms = core.clock.now_ns() // 1_000_000
    appended: list[int] = []
    for wait_ms, count in batches:
        clock.advance(wait_ms * 1_000_000)
        core.execute(Publish(1, encode_columns([b""] * count)))
        appended += [core.clock.now_ns() // 1_000_000] * count
    partition = core.state.partitions[1]
    assert [partition.appended_ms(offset) for offset in range(partition.end)] == appended
    assert partition.first_after(start_ms + asked_ms) == bisect_right(appended, start_ms + asked_ms)


@pytest.mark.parametrize("size", [1, 3])
def test_a_hint_that_is_passed_is_found_again(size: int) -> None:
    """Taking from the front moves a lane's hint; what comes back below it is seen all the same."""
    lane = Lane()
    lane.add_main(Span(0, 10))
    for _ in range(3):
        span, _ = lane.peek(size, lambda at_ms: 10)
        lane.remove_known(span)
    lane.add_one(1)
    assert next(iter(lane.peek(size, lambda at_ms: 10)[0])) == 1
