"""The columns that Spark sees, and batches as Arrow records with exactly these columns.

    key          binary                 null: none
    value        binary
    headers      map<string, binary>    null: none;  left out with includeHeaders=false
    namespace    string
    topic        string
    partition    int
    offset       bigint
    timestamp    timestamp              when the broker appended it
    id           bigint
    priority     int
    attempt      int                    view=queue: which delivery this is, from 1
    lease_id     bigint                 view=queue: what it is settled by
    lost         bigint                 failOnDataLoss=false: so many messages from ``offset`` on are gone

Spark takes Arrow records as they are when their schema is exactly the declared one, so every record is built to it:
plain string and binary columns, times in microseconds with the zone UTC.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.batch import Batch
from headrace.batch.layout import HEADERS, KEY, PRIORITY
from headrace.errors import InvalidArgument
from headrace.limits import BATCH_MESSAGES_MAX, SPARK_RECORD_ROWS

__all__ = ["Layout", "columns_for", "gap_record", "records", "records_of_table"]

_TIME: Final = pa.timestamp("us", tz="UTC")
_HEADERS: Final = pa.map_(pa.string(), pa.field("value", pa.binary()))
_TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": _HEADERS,
    "namespace": pa.string(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": _TIME,
    "id": pa.int64(),
    "priority": pa.int32(),
    "attempt": pa.int32(),
    "lease_id": pa.int64(),
    "lost": pa.int64(),
}
_DDL: Final = {
    pa.binary(): "binary", pa.string(): "string", pa.int32(): "int", pa.int64(): "bigint", _TIME: "timestamp",
    _HEADERS: "map<string,binary>",
}  # fmt: skip
NORMAL: Final = 5
"""The priority of a message that does not say."""
_SMALL: Final = 512
"""Batches below this many messages are put together."""
_STORED: Final = ("key", "value", "headers", "offset", "timestamp", "id", "priority")
"""Those that come from the messages; the others are the same for a whole record."""


def columns_for(*, headers: bool, queue: bool, gaps: bool, chosen: Sequence[str] | None) -> tuple[str, ...]:
    """The columns of a view, or those of them that were chosen, in the order of the view."""
    names = [name for name in _TYPES if headers or name != "headers"]
    if not queue:
        names = [name for name in names if name not in ("attempt", "lease_id")]
    if not gaps:
        names.remove("lost")
    if chosen is None:
        return tuple(names)
    for name in chosen:
        if name not in names:
            raise InvalidArgument(f"option columns: there is no column {name!r}; there are {', '.join(names)}")
    return tuple(name for name in names if name in chosen)


class Layout:
    """Some columns in their order, as Arrow and as Spark's DDL say it."""

    __slots__ = ("_constants", "names", "schema")

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.schema = pa.schema([pa.field(name, _TYPES[name]) for name in names])
        self._constants: dict[tuple[str, Any], pa.Array] = {}

    def __reduce__(self) -> tuple[type[Layout], tuple[tuple[str, ...]]]:
        return Layout, (self.names,)

    @property
    def ddl(self) -> str:
        return ", ".join(f"`{name}` {_DDL[_TYPES[name]]}" for name in self.names)

    @property
    def contents(self) -> set[str]:
        """The columns that are taken from the messages themselves."""
        return set(self.names) & {"key", "value", "headers", "priority"}

    @property
    def stored(self) -> list[str]:
        """The columns that sealed files have under the same names."""
        return [name for name in self.names if name in _STORED]

    def record(self, columns: Mapping[str, Any], count: int, same: Mapping[str, Any]) -> pa.RecordBatch:
        """A record from the columns at hand and from what is the same in every row."""
        arrays = []
        for name in self.names:
            column = columns.get(name)
            if column is None:
                column = self._constant(name, same.get(name), count)
            elif column.type != _TYPES[name]:
                column = column.cast(_TYPES[name])
            arrays.append(column)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _constant(self, name: str, value: Any, count: int) -> pa.Array:
        known = self._constants.get((name, value))
        if known is None or len(known) < count:
            kind = _TYPES[name]
            if value is None:
                known = pa.nulls(max(count, 1024), kind)
            else:
                known = pa.repeat(pa.scalar(value, kind), max(count, 1024))
            if len(self._constants) > 64:
                self._constants.clear()
            self._constants[name, value] = known
        return known[:count]


def records(layout: Layout, batches: Iterable[Batch], same: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """Stamped batches of one partition as records of up to some 100,000 rows: fewer cost Spark more than copying."""
    pieces: list[pa.RecordBatch] = []
    small: list[Batch] = []
    count = 0
    for batch in batches:
        if batch.count < _SMALL:
            small.append(batch)
        else:
            if small:
                pieces.append(_gathered(layout, small, same))
                small = []
            pieces.append(_whole(layout, batch, same))
        count += batch.count
        if count >= SPARK_RECORD_ROWS:
            yield from _joined(layout, pieces, small, same)
            pieces, small, count = [], [], 0
    if count:
        yield from _joined(layout, pieces, small, same)


def _joined(
    layout: Layout, pieces: list[pa.RecordBatch], small: list[Batch], same: Mapping[str, Any]
) -> Iterator[pa.RecordBatch]:
    if small:
        pieces.append(_gathered(layout, small, same))
    if len(pieces) > 1:
        yield from pa.Table.from_batches(pieces, layout.schema).combine_chunks().to_batches()
    else:
        yield from pieces


def _whole(layout: Layout, batch: Batch, same: Mapping[str, Any]) -> pa.RecordBatch:
    """One batch as one record: nothing of variable length is copied."""
    columns: dict[str, Any] = {}
    if layout.contents:
        table = batch.to_arrow()
        columns = {name: table.column(name) for name in table.schema.names if name in layout.contents}
    count = batch.count
    if "offset" in layout.names:
        columns["offset"] = _rising(batch.offsets())
    if "id" in layout.names:
        columns["id"] = _rising(batch.ids())
    return layout.record(columns, count, {**same, "timestamp": batch.append_time_ns // 1_000, "priority": NORMAL})


def _gathered(layout: Layout, batches: Sequence[Batch], same: Mapping[str, Any]) -> pa.RecordBatch:
    """Many small batches as one record, row by row: Arrow's price is per batch."""
    names, count = layout.names, sum(batch.count for batch in batches)
    columns: dict[str, Any] = {}
    if "offset" in names:
        columns["offset"] = _numbers(array("q", chain.from_iterable(batch.offsets() for batch in batches)))
    if "id" in names:
        columns["id"] = _numbers(array("q", chain.from_iterable(batch.ids() for batch in batches)))
    if "timestamp" in names:
        times = array("q")
        for batch in batches:
            times.extend(repeat(batch.append_time_ns // 1_000, batch.count))
        columns["timestamp"] = _numbers(times).view(_TIME)
    if "value" in names:
        columns["value"] = pa.array(list(chain.from_iterable(batch.values() for batch in batches)), pa.binary())
    if "key" in names and any(batch.columns & KEY for batch in batches):
        keys = chain.from_iterable(batch.keys() or repeat(b"", batch.count) for batch in batches)
        columns["key"] = pa.array([key or None for key in keys], pa.binary())
    if "priority" in names and any(batch.columns & PRIORITY for batch in batches):
        lanes = b"".join(batch.priorities() or bytes((NORMAL,)) * batch.count for batch in batches)
        columns["priority"] = pa.array(list(lanes), pa.int32())
    if "headers" in names and any(batch.columns & HEADERS for batch in batches):
        rows = [_pairs(batch, index) for batch in batches for index in range(batch.count)]
        columns["headers"] = pa.array(rows, _HEADERS)
    return layout.record(columns, count, {**same, "priority": NORMAL})


def _pairs(batch: Batch, index: int) -> list[tuple[str, bytes]] | None:
    headers = batch.headers(index)
    if not headers:
        return None
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in headers.items()]


_COUNTED: Final = pa.array(range(BATCH_MESSAGES_MAX), pa.int64())


def _rising(numbers: Sequence[int]) -> pa.Array:
    """Offsets or ids of a batch; nearly always one after the other, and then not touched one by one."""
    if isinstance(numbers, range) and numbers.step == 1 and len(numbers) <= len(_COUNTED):
        return pc.add(_COUNTED[: len(numbers)], numbers.start)
    return _numbers(array("q", numbers))


def _numbers(numbers: array[int]) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def records_of_table(layout: Layout, table: pa.Table, same: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """Rows of the messages table as records."""
    for part in table.select(layout.stored).to_batches(max_chunksize=SPARK_RECORD_ROWS):
        columns = dict(zip(part.schema.names, part.columns, strict=True))
        yield layout.record(columns, part.num_rows, same)


def gap_record(layout: Layout, first: int, count: int, same: Mapping[str, Any]) -> pa.RecordBatch:
    """One row that says what is gone."""
    return layout.record({}, 1, {**same, "offset": first, "lost": count})
