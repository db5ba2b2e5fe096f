"""What one group has to do in one partition: every message of its interest in exactly one container.

    partition.scheduled      its own delay has not passed (common to all groups)
    waiting                  backoff of a retry; ``backoffs`` is the index of when
    ready = lanes            free to be leased
          + fresh            in mode key: not yet looked at
          + parked           in mode key: behind an earlier message of the same key
          + throttle.kept    of a group that limits its keys: the key has reached its limit
    leases                   leased
    done                     settled; ``dead``, ``expired``, ``cancelled`` and ``dropped`` say which were not acked

Mode key. ``chains`` maps a key's hash to its messages that have been looked at and are not settled: the first one is
the head (in a lane, leased or waiting), the others are parked. A message is looked at when someone wants to lease and
the lanes have too little, in the order of the log, once; so a million waiting messages cost nothing until their turn.
Two things force looking at everything at once, because they could overtake: a partition whose messages have several
priorities, and a delayed message coming due (its place in the key's order is where its time is).

Looking at messages moves them between indexes of the same state, *ready*; it is not a transition and needs no fact.
While facts are folded in recovery nothing is looked at (``indexed`` is False) and everything ready lies in ``fresh``
and ``late_ready``; the first lease builds the chains. ``rank`` notes the ms at which delayed and retried messages
became ready, as long as they are.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec
from pyroaring import BitMap64

from headrace.delivery.due import DueTimes
from headrace.delivery.lanes import Lane
from headrace.delivery.offsets import Span, add, inside, span_of, subtract
from headrace.delivery.partition import NORMAL
from headrace.delivery.throttle import Throttle
from headrace.limits import EXAMINE_CHUNK, KEY_LOOK_MESSAGES, PRIORITY_MAX

if TYPE_CHECKING:
    from headrace.delivery.partition import Partition
    from headrace.delivery.topic import Group

__all__ = ["HELD", "Backlog", "Lease", "Try"]

HELD = -1
"""Stands at the head of a chain whose message died where on_dead is "hold"."""


class Try:
    """What is remembered of a message that has failed: made at its first failure, gone when it is settled."""

    __slots__ = ("attempts", "consumer", "due_ms", "error", "first_ns", "last_ns")

    def __init__(self, attempts: int, first_ns: int, last_ns: int, consumer: str, error: str, due_ms: int) -> None:
        self.attempts = attempts
        self.first_ns = first_ns
        self.last_ns = last_ns
        self.consumer = consumer
        self.error = error
        self.due_ms = due_ms

    def as_list(self) -> list[object]:
        return [self.attempts, self.first_ns, self.last_ns, self.consumer, self.error, self.due_ms]


class Lease(msgspec.Struct):
    """One grant: what is left of it. ``first, count`` describe a run; ``bits`` takes over once it has holes."""

    backlog: Backlog
    lease_id: int
    consumer: str
    first: int
    count: int
    bits: BitMap64 | None
    at_ns: int
    deadline_ns: int
    later: dict[int, int] | None = None  # offset -> deadline, of those it holds that were extended on their own
    bucket: int = 0

    def span(self) -> Span:
        return Span(self.first, self.count, self.bits)

    def next_ns(self) -> int:
        """When the first of its messages is over."""
        later = self.later
        if not later:
            return self.deadline_ns
        first_ns = min(later.values())
        return first_ns if len(later) == self.count else min(first_ns, self.deadline_ns)

    def holds(self, span: Span) -> bool:
        bits = self.bits
        if bits is None:
            return self.first <= span.first and span.last < self.first + self.count
        return inside(bits, span)

    def remove(self, span: Span) -> bool:
        """Take out what was settled; True when nothing is left."""
        if span.count == self.count:
            self.count = 0
            return True
        bits = self.bits
        if bits is None:
            if span.bits is None:
                if span.first == self.first:
                    self.first += span.count
                    self.count -= span.count
                    return False
                if span.first + span.count == self.first + self.count:
                    self.count -= span.count
                    return False
            bits = self.bits = BitMap64()
            bits.add_range(self.first, self.first + self.count)
        subtract(bits, span)
        self.count -= span.count
        self.first = bits.min()
        return False


class Backlog:
    __slots__ = (
        "acked_count",
        "backoffs",
        "cancelled",
        "cancelled_count",
        "chains",
        "dead",
        "dead_count",
        "done",
        "dropped",
        "dropped_count",
        "expired",
        "expired_count",
        "filtered",
        "fresh",
        "group",
        "held_keys",
        "indexed",
        "keyed",
        "keys",
        "lanes",
        "late_ready",
        "leased_count",
        "leases",
        "parked",
        "partition",
        "rank",
        "start",
        "stop",
        "throttle",
        "tries",
        "waiting",
    )

    def __init__(self, group: Group, partition: Partition, start: int, stop: int = -1) -> None:
        self.group = group
        self.partition = partition
        # What this group never sees, however it seeks: by its filter, or because it was for another group only.
        self.filtered = partition.private.copy()
        self.restart(start, stop)

    def restart(self, start: int, stop: int) -> None:
        """Begin at ``start`` as if nothing had ever been delivered (leases must have been let go before)."""
        partition = self.partition
        self.start = start
        self.stop = stop
        self.keyed = self.group.policy.keyed
        # Nothing is looked at before someone leases: recovery, which never does, and life take the same path.
        self.indexed = False
        self.lanes: list[Lane | None] = [None] * (PRIORITY_MAX + 1)
        self.fresh = BitMap64()
        self.parked = BitMap64()
        self.chains: dict[int, int | deque[int]] = {}
        self.keys: dict[int, int] = {}  # of leased and waiting messages: offset -> key
        self.rank: dict[int, int] = {}
        self.late_ready = BitMap64()  # while not indexed: ready ones whose place is their rank's
        self.waiting = BitMap64()
        self.backoffs = DueTimes()
        self.leases: dict[int, Lease] = {}
        self.leased_count = 0
        self.tries: dict[int, Try] = {}
        self.done = BitMap64()
        self.dead = BitMap64()
        self.expired = BitMap64()
        self.cancelled = BitMap64()
        self.dropped = BitMap64()
        self.acked_count = self.dead_count = self.expired_count = 0
        self.cancelled_count = self.dropped_count = 0
        self.held_keys: set[int] = set()
        self.throttle: Throttle | None = None  # while indexed, of a group that limits its keys
        end = self.end
        if start < end:
            gone, filtered = _cut(partition.gone - self.filtered, start, end), _cut(self.filtered, start, end)
            self.done |= gone
            self.done |= filtered
            self.dropped = gone
            self.dropped_count = len(gone)
            self.fresh.add_range(start, end)
            self.fresh -= self.done
            self.fresh -= partition.scheduled

    # -- counts --------------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Where this backlog's interest ends: the end of the log, or of a bounded replay."""
        end = self.partition.end
        return end if self.stop < 0 else min(end, max(self.stop, self.start))

    @property
    def published_count(self) -> int:
        return max(0, self.end - self.start)

    @property
    def scheduled_count(self) -> int:
        return self.delayed_count + len(self.waiting)

    @property
    def delayed_count(self) -> int:
        scheduled = self.partition.scheduled
        if not scheduled or self.end <= self.start:
            return 0
        count = scheduled.range_cardinality(self.start, self.end)
        if self.filtered:
            count -= _cut(scheduled, self.start, self.end).intersection_cardinality(self.filtered)
        return count

    @property
    def filtered_count(self) -> int:
        return self.filtered.range_cardinality(self.start, max(self.start, self.end)) if self.filtered else 0

    @property
    def ready_count(self) -> int:
        count = len(self.fresh) + len(self.parked) + len(self.late_ready)
        if self.throttle is not None:
            count += len(self.throttle.kept)
        for lane in self.lanes:
            if lane is not None:
                count += len(lane)
        return count

    @property
    def unsettled_count(self) -> int:
        return self.published_count - len(self.done)

    def drift(self) -> int:
        """Zero when the books balance."""
        return self.published_count - (
            self.scheduled_count
            + self.ready_count
            + self.leased_count
            + self.acked_count
            + self.dead_count
            + self.expired_count
            + self.cancelled_count
            + self.dropped_count
            + self.filtered_count
        )

    def first_unsettled(self) -> int:
        """No message below this is unsettled."""
        done, start, end = self.done, self.start, self.end
        if not done:
            return start
        low, high = start, end  # the longest prefix [start, low) that is wholly done
        while low < high:
            middle = (low + high + 1) // 2
            if done.contains_range(start, middle):
                low = middle
            else:
                high = middle - 1
        return low

    def is_ready(self, offset: int) -> bool:
        return (
            offset in self.fresh
            or offset in self.parked
            or any(lane is not None and offset in lane for lane in self.lanes)
            or offset in self.late_ready
            or (self.throttle is not None and offset in self.throttle.kept)
        )

    def lane(self, priority: int) -> Lane:
        lane = self.lanes[priority]
        if lane is None:
            lane = self.lanes[priority] = Lane()
        return lane

    def lane_of(self, offset: int) -> Lane:
        if not self.partition.mixed or self.group.policy.fifo:
            return self.lane(NORMAL)
        return self.lane(self.partition.priority_of(offset))

    # -- becoming ready ------------------------------------------------------------------------------------------

    def add_published(self, base: int, end: int, later: BitMap64, lanes: list[tuple[int, BitMap64]] | None) -> None:
        """A batch came in; ``later``: those of it that are not due, ``lanes``: by priority where they differ."""
        if self.stop >= 0:
            end = min(end, self.stop)
        if base < self.start:
            base = self.start
        if base >= end:
            return
        if not self.indexed or (self.keyed and (self.fresh or self._needs_keys(base))):
            self.fresh.add_range(base, end)
            if later:
                self.fresh -= later
            return
        if lanes is None or self.group.policy.fifo:
            lane = self.lane(NORMAL)
            lane.main.add_range(base, end)
            if later:
                lane.main -= later
            return
        for priority, bits in lanes:
            lane = self.lane(priority)
            lane.main |= bits
            if later:
                lane.main -= later
            if bits.max() >= end:  # a bounded replay cuts through the batch
                lane.main.remove_range(end, bits.max() + 1)

    def _needs_keys(self, base: int) -> bool:
        column = self.partition.column_of(base)
        return column is not None and column.keys is not None

    def add_due(self, at_ms: int, offset: int) -> None:
        """A delayed message's time has come."""
        if offset < self.start or offset >= self.end or offset in self.done:
            return
        self.rank[offset] = at_ms
        if not self.indexed:
            self.late_ready.add(offset)
            return
        if self.keyed:
            key = self.partition.key_of(offset)
            if key:
                # Its place in the order of its key is behind everything appended before its time.
                self.examine_all()
                chain = self.chains.get(key)
                if chain is not None:
                    self._follow(key, chain, offset)
                    return
                self.chains[key] = offset
        self.lane_of(offset).add_late(at_ms, offset)

    def add_again(self, at_ms: int, offset: int, *, front: bool) -> None:
        """A leased or waiting message is ready again: due now (``at_ms``), or in its old place (``front``)."""
        fifo = self.group.policy.fifo
        if not self.indexed:
            if not (front or fifo):
                self.rank[offset] = at_ms
            (self.late_ready if offset in self.rank else self.fresh).add(offset)
            return
        if self.keyed:
            self.keys.pop(offset, None)
        lane = self.lane_of(offset)
        if fifo:
            late_ms = self.rank.get(offset)
            own_ms = self.partition.appended_ms(offset) if late_ms is None else late_ms
            lane.add_front(own_ms, offset, late=late_ms is not None)
        elif front and offset not in self.rank:
            lane.add_one(offset)
        elif front:
            lane.add_late(self.rank[offset], offset)
        else:
            self.rank[offset] = at_ms
            lane.add_late(at_ms, offset)

    def add_redriven(self, at_ms: int, base: int, end: int) -> None:
        """Messages that had died come back, at the place in time (``at_ms``) they had; a held key flows again.

        Their place is before messages that have been looked at already: everything is looked at anew.
        """
        if self.indexed:
            self.unindex()
        for offset in range(max(base, self.start), min(end, self.end)):
            self.rank[offset] = at_ms
            self.late_ready.add(offset)
            if self.held_keys:
                self.held_keys.discard(self.partition.key_of(offset))

    def _follow(self, key: int, chain: int | deque[int], offset: int) -> None:
        if type(chain) is int:
            self.chains[key] = deque((chain, offset))
        else:
            chain.append(offset)  # type: ignore[union-attr]
        self.parked.add(offset)

    # -- looking at keys -----------------------------------------------------------------------------------------

    def unindex(self) -> None:
        """Forget lanes and chains; they are built anew, by the group's present ordering."""
        late = BitMap64([offset for _, offset in self.ready_late()])
        self.fresh = self.ready_main()
        self.late_ready = late
        self.lanes = [None] * (PRIORITY_MAX + 1)
        self.parked = BitMap64()
        self.chains = {}
        self.keys = {}
        self.throttle = None
        self.keyed = self.group.policy.keyed
        self.indexed = False

    def index(self) -> None:
        """Build lanes and chains from what recovery, a restore or a seek left in ``fresh`` and ``late_ready``."""
        if self.indexed:
            return
        self.indexed = True
        self._begin_throttle()
        late, self.late_ready = sorted(self.late_ready, key=lambda offset: (self.rank[offset], offset)), BitMap64()
        partition = self.partition
        if self.keyed:
            for key in self.held_keys:
                self.chains[key] = deque((HELD,))
            for offset in self._outstanding():
                key = partition.key_of(offset)
                if key and key not in self.held_keys:
                    self.chains[key] = offset
                    self.keys[offset] = key
            # A message that has failed was the head of its key then and still is, whenever its retry became ready.
            for offset in late:
                if offset in self.tries:
                    key = partition.key_of(offset)
                    if key:
                        self.chains.setdefault(key, offset)
            # Merge by (ms, offset): a late one comes after everything appended up to its millisecond.
            for offset in late:
                at_ms = self.rank[offset]
                self._examine_below(partition.first_after(at_ms))
                key = partition.key_of(offset)
                chain = self.chains.get(key) if key else None
                if chain is None:
                    if key:
                        self.chains[key] = offset
                elif _head(chain) != offset:
                    self._follow(key, chain, offset)
                    continue
                self.lane_of(offset).add_late(at_ms, offset)
            return
        self._fresh_to_lanes()
        for offset in late:
            self.lane_of(offset).add_late(self.rank[offset], offset)

    def _outstanding(self) -> list[int]:
        held = list(self.waiting)
        for lease in self.leases.values():
            held.extend(lease.span())
        return held

    def _fresh_to_lanes(self) -> None:
        """Without key order a message's lane is all there is to know of it."""
        fresh, self.fresh = self.fresh, BitMap64()
        if not self.group.policy.fifo:
            by_lane: list[list[int]] = [[] for _ in self.lanes]
            gathered = 0
            for base, end, _, priorities in self.partition.columns:
                if priorities is None:
                    continue
                if fresh.contains_range(base, end):
                    fresh.remove_range(base, end)
                    for offset, priority in enumerate(priorities, base):
                        by_lane[priority].append(offset)
                elif fresh.range_cardinality(base, end):
                    here = _cut(fresh, base, end)
                    fresh -= here
                    for offset in here:
                        by_lane[priorities[offset - base]].append(offset)
                gathered += end - base
                if gathered >= EXAMINE_CHUNK:
                    self._to_lanes(by_lane)
                    gathered = 0
            self._to_lanes(by_lane)
        if fresh:
            self.lane(NORMAL).add_main(span_of(fresh))

    def _to_lanes(self, by_lane: list[list[int]]) -> None:
        for priority, offsets in enumerate(by_lane):
            if offsets:
                self.lane(priority).add_main(span_of(offsets))
                offsets.clear()

    def examine(self, wanted: int) -> None:
        """Look at fresh messages until the lanes hold ``wanted`` (or nothing fresh is left)."""
        if self.partition.mixed:
            self.examine_all()
            return
        # Late ones do not count: what was appended before their time has to be looked at to come before them.
        have = sum(len(lane.main) for lane in self.lanes if lane is not None)
        while have < wanted and self.fresh:
            have += self._examine_chunk(self.partition.end)

    def examine_all(self) -> None:
        while self.fresh:
            self._examine_chunk(self.partition.end)

    def _examine_below(self, limit: int) -> None:
        while self.fresh and self.fresh.min() < limit:
            self._examine_chunk(limit)

    def _examine_chunk(self, limit: int) -> int:
        """Look at the next stretch of fresh messages; how many of them are free."""
        fresh, partition = self.fresh, self.partition
        first = fresh.min()
        column = partition.column_of(first)
        if column is None or column.keys is None:
            return self._pass_keyless(first, limit)
        base, keys = column.base, column.keys
        end = min(column.end, first + EXAMINE_CHUNK, limit)
        if fresh.contains_range(first, end):
            fresh.remove_range(first, end)
            pairs = zip(range(first, end), keys[first - base : end - base], strict=True)
        else:
            some = fresh & BitMap64(range(first, end))
            fresh -= some
            pairs = ((offset, keys[offset - base]) for offset in some)  # type: ignore[assignment]
        chains = self.chains
        get = chains.get
        free: list[int] = []
        behind: list[int] = []
        for offset, key in pairs:
            if key:
                chain = get(key)
                if chain is None:
                    chains[key] = offset
                elif type(chain) is int:
                    chains[key] = deque((chain, offset))
                    behind.append(offset)
                    continue
                else:
                    chain.append(offset)  # type: ignore[union-attr]
                    behind.append(offset)
                    continue
            free.append(offset)
        if behind:
            self.parked.update(behind)
        if free:
            if column.priorities is None:
                self.lane(NORMAL).add_main(span_of(free))
            else:
                by_lane: list[list[int]] = [[] for _ in self.lanes]
                for offset in free:
                    by_lane[column.priorities[offset - base]].append(offset)
                self._to_lanes(by_lane)
        return len(free)

    def _pass_keyless(self, first: int, limit: int) -> int:
        """A stretch without keys, up to where something else begins."""
        end = min(limit, self.partition.stretch_end(first))
        here = self.fresh & BitMap64(range(first, end)) if end - first < 1 << 16 else _cut(self.fresh, first, end)
        self.fresh -= here
        here_column = self.partition.column_of(first)
        priorities = None if here_column is None else here_column.priorities
        if here_column is None or priorities is None:
            self.lane(NORMAL).add_main(span_of(here))
        else:
            for offset in here:
                self.lane(priorities[offset - here_column.base]).add_one(offset)
        return len(here)

    # -- limits of keys ------------------------------------------------------------------------------------------

    def _begin_throttle(self) -> None:
        policy = self.group.policy
        if not policy.limits_keys:
            return
        throttle = self.throttle = Throttle(policy.key_concurrency, policy.key_rate)
        for lease in self.leases.values():
            for offset in lease.span():
                key = self.partition.key_of(offset)
                if key:
                    throttle.leased[key] = throttle.leased.get(key, 0) + 1

    def keep_out(self, wanted: int, now_ns: int) -> None:
        """See to it that the first ``wanted`` of the lanes, higher lanes first, may go as far as keys are concerned."""
        throttle = self.throttle
        if throttle is None:
            return
        for offset in throttle.due(now_ns):
            self._to_lane(offset)
        going: dict[int, int] = {}
        key_of, first_after = self.partition.key_of, self.partition.first_after
        for lane in self.lanes:
            while lane and wanted > 0:
                span, order = lane.peek(max(wanted, KEY_LOOK_MESSAGES), first_after)
                here: dict[int, int] = {}
                full: list[int] = []
                free = 0
                for offset in order or span:
                    key = key_of(offset)
                    more = going.get(key, 0) + here.get(key, 0)
                    if throttle.allows(key, more, now_ns):
                        if key:
                            here[key] = here.get(key, 0) + 1
                        free += 1
                        if free >= wanted:
                            break
                    else:
                        full.append(offset)
                        throttle.keep(key, offset, more, now_ns)
                if full:
                    lane.remove(span_of(sorted(full)))
                if free >= wanted or free == len(lane):
                    if not self.group.policy.aging_ns:  # else the share of a lower lane may be as large
                        wanted -= free
                    for key, count in here.items():
                        going[key] = going.get(key, 0) + count
                    break

    def _to_lane(self, offset: int) -> None:
        """A ready message that was kept out of its lane."""
        at_ms = self.rank.get(offset)
        if at_ms is None:
            self.lane_of(offset).add_one(offset)
        else:
            self.lane_of(offset).add_late(at_ms, offset)

    def came_back(self, span: Span) -> None:
        """Messages have left their lease: others of their keys may go."""
        throttle = self.throttle
        if throttle is None:
            return
        for offset in span:
            key = self.partition.key_of(offset)
            if key:
                throttle.came_back(key)
                self._next_may_go(key)

    def _next_may_go(self, key: int) -> None:
        found = None if self.throttle is None else self.throttle.let_go(key)
        if found is not None:
            self._to_lane(found)

    # -- leasing -------------------------------------------------------------------------------------------------

    def take(self, span: Span, lane: int) -> None:
        """Messages leave *ready* for a lease."""
        if self.rank or not self.indexed:
            self._take_any(span)
        elif lane >= 0:
            self.lanes[lane].remove_known(span)  # type: ignore[union-attr]
        else:
            for each in self.lanes:
                if each:
                    each.remove(span)
        if self.keyed and self.indexed and self.chains:
            key_of = self.partition.key_of
            keys = self.keys
            column = self.partition.column_of(span.first)
            if column is not None and column.keys is not None and span.last < column.end:
                base, hashes = column.base, column.keys
                for offset in span:
                    keys[offset] = hashes[offset - base]
            else:
                for offset in span:
                    keys[offset] = key_of(offset)

    def _take_any(self, span: Span) -> None:
        if not self.indexed:
            wanted = span.bitmap()
            self.fresh -= wanted
            if self.late_ready:
                self.late_ready -= wanted
            return
        for lane in self.lanes:
            if lane:
                lane.remove(span)

    def settle(self, span: Span) -> None:
        """Leased messages reached a final state: mark them done and let the next of their keys go."""
        count = span.count
        if count == 1:
            self.done.add(span.first)
        else:
            add(self.done, span)
        self.leased_count -= count
        if self.tries or self.rank:
            tries, rank = self.tries, self.rank
            for offset in span:
                tries.pop(offset, None)
                rank.pop(offset, None)
        if self.keyed and self.keys and self.indexed:
            pop = self.keys.pop
            chains = self.chains
            for offset in span:
                key = pop(offset, 0)
                if key:
                    chain = chains.get(key)
                    if chain == offset:
                        del chains[key]
                    elif type(chain) is deque and chain[0] == offset:
                        self._next_of_key(key, chain)
                    # else: it was handed out beside others of its key, before order was by key

    def _next_of_key(self, key: int, chain: deque[int]) -> None:
        """The head of a chain is settled: the next that is still there becomes the head and is free."""
        parked = self.parked
        chain.popleft()
        while chain and chain[0] not in parked:
            chain.popleft()
        if not chain:
            del self.chains[key]
            return
        head = chain[0]
        parked.discard(head)
        if len(chain) == 1:
            self.chains[key] = head
        at_ms = self.rank.get(head)
        lane = self.lane_of(head)
        if at_ms is None:
            lane.add_one(head)
        else:
            lane.add_late(at_ms, head)

    def hold_key(self, offset: int) -> None:
        """The message died and its key is to stay held (on_dead = hold): a marker takes its place."""
        key = (self.keys.pop(offset, 0) or self.partition.key_of(offset)) if self.keyed else 0
        if not key:
            return
        self.held_keys.add(key)
        if not self.indexed:
            return
        chain = self.chains.get(key)
        if type(chain) is deque:
            chain[0] = HELD
        else:
            self.chains[key] = deque((HELD,))

    def free_key(self, key: int) -> bool:
        """Let a held key flow again."""
        if key not in self.held_keys:
            return False
        self.held_keys.discard(key)
        chain = self.chains.get(key)
        if type(chain) is deque:
            self._next_of_key(key, chain)
        return True

    def followers(self, offset: int) -> list[int]:
        """The messages parked behind a leased one, in order."""
        self.index()
        self.examine_all()
        chain = self.chains.get(self.keys.get(offset, 0))
        return [o for o in chain if o in self.parked] if type(chain) is deque else []

    # -- leaving ready or waiting without a lease ------------------------------------------------------------------

    def drop(self, span: Span) -> None:
        """Note that messages which are done were dropped, not acked."""
        if span.count:
            add(self.dropped, span)
            self.dropped_count += span.count

    def discard_unleased(self, wanted: BitMap64) -> Span:
        """Take out those of ``wanted`` that are ready or waiting, for a final state; which those were."""
        found = wanted & self.fresh
        self.fresh -= found
        if self.late_ready:
            found |= wanted & self.late_ready
            self.late_ready -= wanted
        parked = wanted & self.parked
        self.parked -= parked
        waiting = wanted & self.waiting
        self.waiting -= waiting
        self.backoffs.forget(len(waiting))
        heads = BitMap64()
        if self.throttle is not None:
            heads = wanted & self.throttle.kept
            self.throttle.kept -= heads
        for lane in self.lanes:
            if lane:
                add(heads, lane.remove(Span(wanted.min(), len(wanted), wanted)))
        if self.keyed and self.indexed:
            for offset in (*heads, *waiting):
                self._unchain_head(offset)
        if self.throttle is not None:
            for offset in heads:
                self._next_may_go(self.partition.key_of(offset))
        for part in (parked, waiting, heads):
            found |= part
        span = span_of(found)
        self.done |= found
        if self.tries or self.rank:
            for offset in found:
                self.tries.pop(offset, None)
                self.rank.pop(offset, None)
        return span

    def _unchain_head(self, offset: int) -> None:
        key = self.keys.pop(offset, 0) or self.partition.key_of(offset)
        chain = self.chains.get(key) if key else None
        if chain == offset:
            del self.chains[key]
        elif type(chain) is deque and chain[0] == offset:
            self._next_of_key(key, chain)

    def unleased_below(self, bound: int) -> BitMap64:
        """Ready and waiting offsets below ``bound``."""
        found = BitMap64()
        parts = [self.fresh, self.parked, self.waiting, self.late_ready]
        if self.throttle is not None:
            parts.append(self.throttle.kept)
        for lane in self.lanes:
            if lane:
                parts += [lane.main, lane.late_set]
                found.update([offset for _, _, offset in lane.front if offset < bound])
        for part in parts:
            if part and part.min() < bound:
                found |= _cut(part, 0, bound)
        return found

    # -- snapshot ------------------------------------------------------------------------------------------------

    def ready_main(self) -> BitMap64:
        """Every ready message whose place is that of its offset."""
        bits = self.fresh | self.parked
        if self.throttle is not None:
            bits |= self.throttle.kept
        for lane in self.lanes:
            if lane is not None:
                bits |= lane.main
                bits.update([offset for _, _, offset in lane.front])
        for offset in self.rank:
            bits.discard(offset)
        return bits

    def ready_late(self) -> list[tuple[int, int]]:
        """Every ready message that became ready at a time of its own, as (ms, offset) in order."""
        if not self.indexed:
            return sorted((self.rank[offset], offset) for offset in self.late_ready)
        leased = self.leased_bits()
        return sorted(
            (at_ms, offset)
            for offset, at_ms in self.rank.items()
            if offset not in leased and offset not in self.waiting
        )

    def leased_bits(self) -> BitMap64:
        bits = BitMap64()
        for lease in self.leases.values():
            add(bits, lease.span())
        return bits


def _head(chain: int | deque[int]) -> int:
    return chain if type(chain) is int else chain[0]  # type: ignore[index]


def _cut(bits: BitMap64, first: int, end: int) -> BitMap64:
    """The part of ``bits`` inside [first, end)."""
    cut = BitMap64()
    cut.add_range(first, end)
    return bits & cut
