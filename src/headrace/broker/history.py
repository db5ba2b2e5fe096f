"""What happened in a topic, fact by fact: the call ``log.events``.

The rows are those of the events table (docs/reference/tables.md). Positions order them: what was sealed comes out of
the events files, the rest out of the journal, and a caller goes on from ``next_position`` until it is at
``end_position``, whichever of the two a position lies in by then. A frame's rows are never torn apart.

Who holds a lease and how often a message failed is known by reading what came before. An answer leaves behind what it
knew at its end, so that the next one does not read the journal from its beginning again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.broker import Broker
from headrace.broker.portions import Aside, Work, portioned
from headrace.delivery import decode_facts
from headrace.limits import EVENT_CURSORS_MAX, EVENT_OFFSETS_MAX, EVENT_ROWS_MAX
from headrace.log import FACTS
from headrace.log.events import COLUMNS, EventRows, Names
from headrace.log.manifest import Carry, EventSegment
from headrace.shard.core import Core, Done
from headrace.shard.views import names_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Columns", "History"]

Columns = dict[str, list[Any]]
Portion = Generator[int | Aside, Any, tuple[Columns, int, int]]
_FRAMES_A_DRAIN: Final = 1_000


class History:
    """The call over a broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.core = broker.core
        self._cursors: OrderedDict[tuple[int, int], Carry] = OrderedDict()  # topic, position → what is known there

    def calls(self) -> Mapping[str, Callable[..., Done]]:
        return {"log.events": self.events}

    @portioned
    def events(
        self, topic: str, namespace: str = "default", from_position: int = 0, limit: int = EVENT_ROWS_MAX
    ) -> Work:
        """Facts about a topic from a position on: {"columns": {name: values}, "next_position", "end_position"}."""
        columns, at, end = yield from self.portion(self.broker.find_topic(namespace, topic).tid, from_position, limit)
        return {"columns": columns, "next_position": at, "end_position": end}

    def portion(self, tid: int, at: int, limit: int) -> Portion:
        """Some facts about a topic from a position on: their rows, where to go on, and where all of them end."""
        core = self.core
        while True:
            end = core.journal.durable_position
            sealed_to = core.manifest.sealed_to
            if at < sealed_to:
                files = [file for file in core.manifest.events.get(tid, ()) if file.end_position > at]
                columns, at = yield partial(_of_files, core, files, at, limit, sealed_to)
                if not columns["event"]:
                    continue
            elif at < end:
                known = self._known(tid, at, sealed_to)
                names = names_of(core.state, tid)
                read = yield partial(_of_journal, core, tid, names, known, at, end, limit)
                if core.manifest.sealed_to > known[0]:
                    continue  # it was sealed meanwhile, and may have left the journal under the reader
                columns, at, carry = read
                self._remember(tid, at, carry)
            else:
                columns = _none()
            return columns, at, max(end, at)

    def _known(self, tid: int, at: int, sealed_to: int) -> tuple[int, Carry]:
        """The last position at or before ``at`` for which it is known what came before, and what that is."""
        places = [position for topic, position in self._cursors if topic == tid and sealed_to < position <= at]
        if not places:
            return sealed_to, self.core.manifest.carry
        position = max(places)
        self._cursors.move_to_end((tid, position))
        return position, self._cursors[tid, position]

    def _remember(self, tid: int, at: int, carry: Carry) -> None:
        self._cursors[tid, at] = carry
        self._cursors.move_to_end((tid, at))
        while len(self._cursors) > EVENT_CURSORS_MAX:
            self._cursors.popitem(last=False)


def _of_journal(
    core: Core, tid: int, names: Names, known: tuple[int, Carry], first: int, end: int, limit: int
) -> tuple[Columns, int, Carry]:
    """Rows of durable frames from ``first`` on, where to go on, and what is known there."""
    start, carry = known
    rows = EventRows(names, carry)
    seen = offsets = 0
    reached = False
    for number, frame in enumerate(core.journal.read(max(start, core.journal.first_position))):
        if frame.position >= end:
            break
        if not reached and (frame.position >= first or number % _FRAMES_A_DRAIN == 0):
            rows.topics.pop(tid, None)  # what lies before was asked for earlier
            reached = frame.position >= first
        found = rows.topics.get(tid)
        if reached and found is not None:
            offsets += sum(len(each) for each in found.columns["offsets"][seen:] if each is not None)
            seen = found.rows
            if seen >= limit or offsets >= EVENT_OFFSETS_MAX:
                return found.columns, frame.position, rows.carry()
        if frame.kind == FACTS:
            facts, batches = decode_facts(frame.body)
            rows.add(facts, batches, frame.position)
    found = rows.topics.get(tid) if reached else None
    return found.columns if found is not None else _none(), end, rows.carry()


def _none() -> Columns:
    return {name: [] for name in COLUMNS}


def _of_files(core: Core, files: list[EventSegment], first: int, limit: int, sealed_to: int) -> tuple[Columns, int]:
    """Rows up to where the first of the files ends. Files of different days overlap in positions."""
    import pyarrow as pa
    import pyarrow.compute as pc

    end = min([sealed_to, *(file.end_position for file in files)])
    tables = [table for file in files if file.first_position < end for table in _within(core, file, first, end)]
    if not tables:
        return _none(), end
    table = pa.concat_tables(tables).select(list(COLUMNS))
    table = table.take(pc.sort_indices(table, sort_keys=[("position", "ascending")]))
    positions = table.column("position").to_pylist()
    cut, held = 0, 0
    for row, each in enumerate(table.column("offsets").to_pylist()):
        if row >= limit or held >= EVENT_OFFSETS_MAX:
            break
        held += len(each or ())
        cut = row + 1
    while cut < len(positions) and positions[cut] == positions[cut - 1]:
        cut += 1
    chosen = table.slice(0, cut)
    return {name: chosen.column(name).to_pylist() for name in COLUMNS}, (
        positions[cut] if cut < len(positions) else end
    )


def _within(core: Core, file: EventSegment, first: int, end: int) -> list[pa.Table]:
    """The rows of a file between two positions."""
    import pyarrow.compute as pc

    found = []
    for number, bounds in enumerate(core.cold.footer(file).bounds["position"]):
        if bounds is not None and (bounds[1] < first or bounds[0] >= end):
            continue
        table = core.cold.table(file, number)
        position = table.column("position")
        found.append(table.filter(pc.and_(pc.greater_equal(position, first), pc.less(position, end))))
    return found
