"""One partition's log, as far as delivery needs to know it.

Not the messages: their order, their times, their keys' hashes. What is common to all groups lives here once —

    end            the next offset
    marks          (first offset, append ms): when each stretch of the log was appended, one mark per distinct ms
    columns        per keyed or prioritised batch: key hashes (8 B a message) and priorities (1 B a message)
    scheduled      offsets whose own delay has not passed; ``schedule`` is the index of when
    special        offsets with a lifetime of their own; ``lifetimes`` is the index of when it ends, ``ends`` says when
                   where the message was moved since; ``fixed`` ones end when they said, however they are moved
    lapsed         special ones whose lifetime is over
    private        published for one group only (a redriven message): groups made later never see them
    gone           cancelled, purged or redriven for good: no group, however it seeks, sees them again

Times are kept in milliseconds: a delay is rounded up (never early), a lifetime down (never delivered after its end).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from pyroaring import BitMap64

from headrace.batch import VALUES_ONLY
from headrace.delivery.due import DueTimes
from headrace.delivery.offsets import Span, add
from headrace.limits import PRODUCER_BATCHES_KEPT, PRODUCERS_MAX

if TYPE_CHECKING:
    from headrace.batch import Batch
    from headrace.delivery.topic import Topic

__all__ = ["NORMAL", "Column", "Partition", "Seen"]

NORMAL = 5
"""The lane of a message that does not say."""
_MS_NS = 1_000_000


class Column(NamedTuple):
    base: int
    end: int
    keys: array[int] | None
    priorities: bytes | None


class Seen(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a producer's batch became: the answer to its repetition."""

    sequence: int
    base_id: int
    base_offset: int
    count: int
    repeats: list[tuple[int, int, int, int]] = []  # (index in the batch, id, pid, offset) of what was there already


class Partition:
    __slots__ = (
        "_bases",
        "columns",
        "columns_from",
        "end",
        "ends",
        "fixed",
        "gone",
        "index",
        "lapsed",
        "lapsed_to",
        "last_id",
        "lifetimes",
        "mark_ms",
        "mark_offsets",
        "mixed",
        "moved",
        "pid",
        "private",
        "producers",
        "schedule",
        "scheduled",
        "special",
        "start",
        "topic",
    )

    def __init__(self, pid: int, topic: Topic, index: int) -> None:
        self.pid = pid
        self.topic = topic
        self.index = index
        self.start = 0
        self.end = 0
        self.last_id = 0
        self.mark_offsets: array[int] = array("Q")
        self.mark_ms: array[int] = array("Q")
        self.columns: list[Column] = []
        self._bases: list[int] = []  # of the columns, to search in
        self.columns_from = 0  # offsets below have no columns in memory: they are loaded when a group seeks back
        self.mixed = False  # several priorities: key order needs every key known before leasing
        self.scheduled = BitMap64()
        self.schedule = DueTimes()
        self.moved: dict[int, int] = {}
        self.special = BitMap64()
        self.lifetimes = DueTimes()
        self.ends: dict[int, int] = {}
        self.fixed = BitMap64()
        self.lapsed = BitMap64()
        self.lapsed_to = 0  # how far the topic's ttl has been applied to every group
        self.gone = BitMap64()
        self.private = BitMap64()
        self.producers: OrderedDict[int, deque[Seen]] = OrderedDict()

    # -- appending ------------------------------------------------------------------------------------------------

    def append(self, batch: Batch, repeats: Sequence[tuple[int, int, int, int]] = ()) -> tuple[int, int]:
        """Take a stamped batch in; the stretch of offsets it fills. ``repeats``: what its producer sent with it and was
        there already."""
        base, end = batch.base_offset, batch.base_offset + batch.count
        at_ms = batch.append_time_ns // _MS_NS
        if not self.mark_ms or at_ms > self.mark_ms[-1]:
            self.mark_offsets.append(base)
            self.mark_ms.append(at_ms)
        self.end = end
        self.last_id = batch.base_id + batch.count - 1
        if batch.columns > VALUES_ONLY:
            self.add_column(batch)
            self._schedule(batch, base)
        if batch.producer_id:
            seen = self.producers.get(batch.producer_id)
            if seen is None:
                seen = self.producers[batch.producer_id] = deque(maxlen=PRODUCER_BATCHES_KEPT)
                if len(self.producers) > PRODUCERS_MAX:
                    self.producers.popitem(last=False)
            else:
                self.producers.move_to_end(batch.producer_id)
            seen.append(Seen(batch.producer_seq, batch.base_id, base, batch.count, list(repeats)))
        return base, end

    def add_column(self, batch: Batch) -> None:
        keys, priorities = batch.key_hashes(), batch.priorities()
        if keys is not None or priorities is not None:
            self.put_column(Column(batch.base_offset, batch.base_offset + batch.count, keys, priorities))
            if priorities is not None and not self.mixed:
                self.mixed = priorities.count(NORMAL) != len(priorities)

    def put_column(self, column: Column) -> None:
        self.columns.append(column)
        self._bases.append(column.base)

    def _schedule(self, batch: Batch, base: int) -> None:
        delivers, expires = batch.deliver_ats(), batch.expires_ats()
        if delivers is not None:
            now_ns = batch.append_time_ns
            later = [(-(-at_ns // _MS_NS), base + i) for i, at_ns in enumerate(delivers) if at_ns > now_ns]
            if later:
                self.schedule.add_many(later)
                self.scheduled.update([offset for _, offset in later])
        if expires is None and (delivers is None or not self.topic.settings.message_ttl_ns):
            return
        # A message with a delay or a lifetime of its own cannot use the marks: it gets an entry.
        ttl_ns = self.topic.settings.message_ttl_ns
        own = []
        for i in range(batch.count):
            ends_ns = expires[i] if expires is not None else 0
            if not ends_ns and delivers is not None and delivers[i] > batch.append_time_ns and ttl_ns:
                ends_ns = delivers[i] + ttl_ns
            if ends_ns:
                own.append((ends_ns // _MS_NS, base + i))
        self.lifetimes.add_many(own)
        self.special.update([offset for _, offset in own])
        if expires is not None:
            self.fixed.update([base + i for i, ends_ns in enumerate(expires) if ends_ns])

    # -- questions ------------------------------------------------------------------------------------------------

    def column_of(self, offset: int) -> Column | None:
        i = bisect_right(self._bases, offset) - 1
        if i < 0 or offset >= self.columns[i].end:
            return None
        return self.columns[i]

    def stretch_end(self, offset: int) -> int:
        """Where the column that ``offset`` lies in ends, or where the next one begins."""
        i = bisect_right(self._bases, offset) - 1
        if i >= 0 and offset < self.columns[i].end:
            return self.columns[i].end
        return self._bases[i + 1] if i + 1 < len(self._bases) else self.end

    def key_of(self, offset: int) -> int:
        """The hash of a message's key; 0 for none."""
        column = self.column_of(offset)
        return 0 if column is None or column.keys is None else column.keys[offset - column.base]

    def priority_of(self, offset: int) -> int:
        column = self.column_of(offset)
        return NORMAL if column is None or column.priorities is None else column.priorities[offset - column.base]

    def appended_ms(self, offset: int) -> int:
        i = bisect_right(self.mark_offsets, offset) - 1
        return self.mark_ms[i] if i >= 0 else 0

    def first_after(self, at_ms: int) -> int:
        """The first offset appended after ``at_ms``."""
        i = bisect_right(self.mark_ms, at_ms)
        return self.mark_offsets[i] if i < len(self.mark_offsets) else self.end

    # -- lifetimes ------------------------------------------------------------------------------------------------

    def outlived_to(self, now_ns: int) -> int:
        """Offsets below this, except special ones, are past the topic's ttl."""
        ttl_ns = self.topic.settings.message_ttl_ns
        if not ttl_ns or not self.mark_ms:
            return 0
        return max(self.lapsed_to, self.first_after((now_ns - ttl_ns) // _MS_NS))

    def next_outliving_ms(self) -> int | None:
        """When the next stretch under the topic's ttl comes to its end."""
        ttl_ns = self.topic.settings.message_ttl_ns
        if not ttl_ns or self.lapsed_to >= self.end:
            return None
        return self.appended_ms(self.lapsed_to) + -(-ttl_ns // _MS_NS)

    def pass_lifetimes(self, outlived_to: int) -> None:
        """Note how far the topic's ttl has been applied to every group."""
        self.lapsed_to = outlived_to

    def ends_at(self, at_ms: int, offset: int) -> bool:
        """Whether an entry of ``lifetimes`` still stands for something."""
        return offset in self.special and offset not in self.lapsed and self.ends.get(offset, at_ms) == at_ms

    def move(self, offset: int, due_ms: int) -> None:
        """A scheduled message is due at another time; the clock of a topic's ttl starts then."""
        self.schedule.add(due_ms, offset)
        self.schedule.forget()
        self.moved[offset] = due_ms
        ttl_ns = self.topic.settings.message_ttl_ns
        if ttl_ns and offset in self.special and offset not in self.fixed:
            ends_ms = self.ends[offset] = due_ms + ttl_ns // _MS_NS
            self.lifetimes.add(ends_ms, offset)

    def lapse(self, span: Span) -> None:
        """Lifetimes of their own are over."""
        add(self.lapsed, span)
        if self.ends:
            for offset in span:
                self.ends.pop(offset, None)

    def lifetime_over(self, offset: int, now_ns: int) -> bool:
        if offset in self.special:
            return offset in self.lapsed
        return offset < self.outlived_to(now_ns)

    # -- trimming -------------------------------------------------------------------------------------------------

    def reload_columns(self, first: int, batches: Sequence[Batch]) -> None:
        """Take the columns of a stretch back in, from ``first`` to where they begin now."""
        here, self.columns, self._bases = self.columns, [], []
        for batch in batches:
            if not here or batch.base_offset < here[0].base:
                self.add_column(batch)
        for column in here:
            self.put_column(column)
        self.columns_from = first

    def trim_columns(self, below: int) -> None:
        """Forget the columns of messages that every group has settled."""
        i = 0
        while i < len(self.columns) and self.columns[i].end <= below:
            i += 1
        if i:
            del self.columns[:i]
            del self._bases[:i]
            self.mixed = self.mixed and bool(self.columns)
        self.columns_from = max(self.columns_from, below)

    def trim(self, start: int) -> None:
        """The log begins at ``start`` now."""
        self.start = start
        i = bisect_right(self.mark_offsets, start) - 1
        if i > 0:
            del self.mark_offsets[:i]
            del self.mark_ms[:i]
        self.trim_columns(start)
        for bits in (self.special, self.fixed, self.lapsed, self.gone, self.private):
            bits.remove_range(0, start)
        self.ends = {offset: at_ms for offset, at_ms in self.ends.items() if offset >= start}
