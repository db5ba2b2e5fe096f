"""The two tables of the sealed log, and their Parquet files. The only room of the log that knows pyarrow's formats.

The columns are described in docs/reference/tables.md; what they have to do with batches:

    a batch   columns over its own memory (``Batch.to_arrow``), absent ones left out, one append time and one stamp
    a table   every column, nulls where a batch lacks one, time and ids a message

Batches with the same columns that follow each other are put side by side and then filled up as one; small batches are
taken apart into rows, because Arrow's price is per batch. The way back finds the stretches where time, ids and offsets
go on evenly and makes a batch of each: with the messages published together it gives the batches that were published.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import reduce
from inspect import signature
from io import BytesIO
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from google_crc32c import value as crc32c

from headrace.batch import Batch, encode_arrow, encode_columns, encode_one
from headrace.limits import BATCH_MESSAGES_MAX, SMALL_MESSAGE_BATCH

__all__ = [
    "EVENTS",
    "MESSAGES",
    "Footer",
    "TableFile",
    "batches_of",
    "events_table",
    "footer_crc",
    "messages_table",
    "read_footer",
    "row_group",
]

_INT64: Final = pa.int64()
_BINARY: Final = pa.binary()
_TIME: Final = pa.timestamp("us", tz="UTC")
_HEADERS: Final = pa.map_(pa.string(), _BINARY)
_KINDS: Final = pa.list_(pa.field("kind", pa.uint8(), nullable=False))

MESSAGES: Final = pa.schema(
    [
        pa.field("offset", _INT64, nullable=False),
        pa.field("id", _INT64, nullable=False),
        pa.field("timestamp", _TIME, nullable=False),
        pa.field("key", _BINARY),
        pa.field("value", _BINARY, nullable=False),
        pa.field("headers", _HEADERS),
        pa.field("priority", pa.int32(), nullable=False),
        pa.field("deliver_at_ns", _INT64),
        pa.field("expires_at_ns", _INT64),
        pa.field("dedup_id", _BINARY),
        pa.field("client_time_ns", _INT64),
        pa.field("producer_id", _INT64),
        pa.field("producer_seq", _INT64),
        pa.field("header_kinds", _BINARY),
        pa.field("append_time_ns", _INT64, nullable=False),
    ]
)

EVENTS: Final = pa.schema(
    [
        pa.field("timestamp", _TIME, nullable=False),
        pa.field("event", pa.string(), nullable=False),
        pa.field("partition", pa.int32()),
        pa.field("group", pa.string()),
        pa.field("consumer", pa.string()),
        pa.field("lease_id", _INT64),
        pa.field("first_offset", _INT64),
        pa.field("last_offset", _INT64),
        pa.field("count", _INT64, nullable=False),
        pa.field("offsets", pa.list_(_INT64)),
        pa.field("attempt", pa.int32()),
        pa.field("reason", pa.string()),
        pa.field("error", pa.string()),
        pa.field("until_ns", _INT64),
        pa.field("first_id", _INT64),
        pa.field("to_topic", pa.string()),
        pa.field("to_partition", pa.int32()),
        pa.field("to_offset", _INT64),
        pa.field("position", _INT64, nullable=False),
        pa.field("at_ns", _INT64, nullable=False),
    ]
)

_MESSAGE_STATISTICS: Final = ["offset", "id", "timestamp", "append_time_ns"]
_MESSAGE_DICTIONARIES: Final = [
    "timestamp",
    "key",
    "headers.key_value.key",
    "priority",
    "producer_id",
    "producer_seq",
    "header_kinds",
    "append_time_ns",
]
_EVENT_STATISTICS: Final = ["timestamp", "partition", "first_offset", "last_offset", "position", "at_ns"]
_EVENT_DICTIONARIES: Final = [
    "event",
    "partition",
    "group",
    "consumer",
    "count",
    "attempt",
    "reason",
    "error",
    "to_topic",
    "to_partition",
]
_RISING: Final = {"offset": "DELTA_BINARY_PACKED", "id": "DELTA_BINARY_PACKED"}
_EVENT_RISING: Final = dict.fromkeys(
    ("first_offset", "last_offset", "position", "at_ns", "lease_id"), "DELTA_BINARY_PACKED"
)
_FOOTER_GUESS_BYTES: Final = 64 * 1024
"""Read at once from the end of a file: most footers are smaller."""
_PAGES: Final[dict[str, Any]] = (
    {"max_rows_per_page": 4_096} if "max_rows_per_page" in signature(pq.ParquetWriter).parameters else {}
)
"""Pages of all columns end together, also of those that pack thousands of rows into a page; older pyarrow cannot."""
_LEVEL: Final = 1
"""zstd's first level: a third faster than the third, a tenth larger."""


class TableFile:
    """A Parquet file that is being written, in memory."""

    def __init__(self, schema: pa.Schema, metadata: dict[str, str], *, compression: str = "zstd") -> None:
        self._sink = BytesIO()  # hands out what it holds without a copy, and grows by an eighth and not to the double
        messages = schema is MESSAGES
        self._writer = pq.ParquetWriter(
            self._sink,
            schema.with_metadata(metadata),
            compression=compression,
            compression_level=_LEVEL if compression == "zstd" else None,
            use_dictionary=_MESSAGE_DICTIONARIES if messages else _EVENT_DICTIONARIES,
            column_encoding=_RISING if messages else _EVENT_RISING,
            write_statistics=_MESSAGE_STATISTICS if messages else _EVENT_STATISTICS,
            write_batch_size=4096,
            write_page_checksum=True,  # zstd has none of its own here: a flipped bit would be handed out as a value
            write_page_index=True,  # who wants an hour of a day reads pages of that hour
            **_PAGES,
        )
        self.rows = 0

    def add(self, table: pa.Table) -> None:
        """Write the table as one row group."""
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self.rows += table.num_rows

    def finish(self) -> bytes:
        """The whole file."""
        self._writer.close()
        return self._sink.getvalue()


# -- batches to rows ---------------------------------------------------------------------------------------------------


def messages_table(batches: Sequence[Batch]) -> pa.Table:
    """The messages of stamped batches, in order, as a table."""
    pieces = [_rows(group) if small else _columns(group) for small, group in _alike(batches)]
    return pa.concat_tables(pieces) if len(pieces) != 1 else pieces[0]


def _alike(batches: Sequence[Batch]) -> Iterator[tuple[bool, list[Batch]]]:
    """Neighbours that can be handled together: small ones, or large ones with the same columns."""
    group: list[Batch] = []
    kind = None
    for batch in batches:
        mine = -1 if batch.count < SMALL_MESSAGE_BATCH else batch.columns
        if mine != kind and group:
            yield kind == -1, group
            group = []
        kind = mine
        group.append(batch)
    if group:
        yield kind == -1, group


def _columns(batches: list[Batch]) -> pa.Table:
    table = pa.Table.from_batches([batch.to_arrow() for batch in batches])
    offsets, ids, times, producers, sequences = (array("q") for _ in range(5))
    for batch in batches:
        count = batch.count
        offsets.extend(batch.offsets())
        ids.extend(batch.ids())
        times.extend(array("q", (batch.append_time_ns,)) * count)
        if batch.producer_id:
            producers.extend(array("q", (_signed(batch.producer_id),)) * count)
            sequences.extend(array("q", (_signed(batch.producer_seq),)) * count)
    given = {name: table.column(name) for name in table.column_names}
    if "timestamp_ns" in given:
        given["client_time_ns"] = given["timestamp_ns"]
    if "header_kinds" in given:
        given["header_kinds"] = pa.chunked_array([_kinds_to_bytes(chunk) for chunk in given["header_kinds"].chunks])
    if producers:
        given["producer_id"], given["producer_seq"] = _numbers(producers), _numbers(sequences)
    given |= {"offset": _numbers(offsets), "id": _numbers(ids), "append_time_ns": _numbers(times)}
    return _filled(given, len(offsets))


def _rows(batches: list[Batch]) -> pa.Table:
    offsets, ids, times = array("q"), array("q"), array("q")
    values: list[bytes] = []
    for batch in batches:
        count = batch.count
        if count == 1:
            offsets.append(batch.base_offset)
            ids.append(batch.base_id)
            times.append(batch.append_time_ns)
            values.append(batch.value(0))
            continue
        offsets.extend(batch.offsets())
        ids.extend(batch.ids())
        times.extend(array("q", (batch.append_time_ns,)) * count)
        values += batch.values()
    given: dict[str, Any] = {
        "offset": _numbers(offsets),
        "id": _numbers(ids),
        "append_time_ns": _numbers(times),
        "value": pa.array(values, _BINARY),
    }
    if any(batch.columns for batch in batches):
        given |= _rare_columns(batches)
    return _filled(given, len(offsets))


def _rare_columns(batches: list[Batch]) -> dict[str, Any]:
    rows = [(batch, index) for batch in batches for index in range(batch.count)]
    given: dict[str, Any] = {
        "key": pa.array([batch.key(index) for batch, index in rows], _BINARY),
        "priority": pa.array([batch.priority(index) for batch, index in rows], pa.int32()),
        "deliver_at_ns": pa.array([batch.deliver_at(index) for batch, index in rows], _INT64),
        "expires_at_ns": pa.array([batch.expires_at(index) for batch, index in rows], _INT64),
        "dedup_id": pa.array([batch.dedup_id(index) for batch, index in rows], _BINARY),
        "client_time_ns": pa.array([batch.timestamp(index) for batch, index in rows], _INT64),
        "producer_id": pa.array([_signed(batch.producer_id) if batch.producer_id else None for batch, _ in rows]),
        "producer_seq": pa.array([_signed(batch.producer_seq) if batch.producer_id else None for batch, _ in rows]),
    }
    given["producer_id"] = given["producer_id"].cast(_INT64)
    given["producer_seq"] = given["producer_seq"].cast(_INT64)
    headers = [batch.header_items(index) for batch, index in rows]
    if any(headers):
        pairs = [
            [(name, value.encode() if isinstance(value, str) else value) for name, value in items] or None
            for items in headers
        ]
        kinds = [bytes(isinstance(value, bytes) for _, value in items) or None for items in headers]
        given["headers"] = pa.array(pairs, _HEADERS)
        given["header_kinds"] = pa.array([each if each and any(each) else None for each in kinds], _BINARY)
    return given


def _filled(given: dict[str, Any], count: int) -> pa.Table:
    """A table of the schema, nulls (or lane 5) where nothing was given."""
    given["timestamp"] = pc.divide(given["append_time_ns"], 1000).view(_TIME)
    columns = []
    for field in MESSAGES:
        column = given.get(field.name)
        if column is None:
            column = _normal(count) if field.name == "priority" else pa.nulls(count, field.type)
        elif column.type != field.type:
            column = column.cast(field.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=MESSAGES)


def _normal(count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(array("i", (5,)) * count)])


def _numbers(numbers: array[int]) -> pa.Array:
    return pa.Array.from_buffers(_INT64, len(numbers), [None, pa.py_buffer(numbers)])


def _signed(number: int) -> int:
    """A producer's 64 bits as SQL's signed ones."""
    return number - (1 << 64) if number >> 63 else number


def _kinds_to_bytes(kinds: pa.Array) -> pa.Array:
    """list<uint8> and binary are the same buffers."""
    _, offsets, _, data = kinds.buffers()
    return pa.Array.from_buffers(_BINARY, len(kinds), [None, offsets, data], offset=kinds.offset)


# -- rows to batches ---------------------------------------------------------------------------------------------------


def batches_of(table: pa.Table) -> list[Batch]:
    """The messages of a table as stamped batches."""
    count = table.num_rows
    if not count:
        return []
    table = table.combine_chunks()
    offsets, ids, times = (_chunk(table, name) for name in ("offset", "id", "append_time_ns"))
    content = _content(table)
    producers, sequences = _chunk(table, "producer_id"), _chunk(table, "producer_seq")
    produced = producers.null_count < count
    even = [times]
    if produced:
        even += [producers.fill_null(0), sequences.fill_null(0)]
    starts = [0, *_breaks([offsets, ids], even)]
    stamps = [column.take(pa.array(starts)).to_pylist() for column in (offsets, ids, times)]
    if not produced and count < SMALL_MESSAGE_BATCH * len(starts) and set(content.column_names) <= {"value", "key"}:
        return _small_batches(content, [*starts, count], stamps)
    found: list[Batch] = []
    for number, (start, stop) in enumerate(pairwise([*starts, count])):
        for first in range(start, stop, BATCH_MESSAGES_MAX):
            producer = {}
            if produced and producers[first].is_valid:
                producer = {
                    "producer_id": producers[first].as_py() % (1 << 64),
                    "producer_seq": sequences[first].as_py() % (1 << 64),
                }
            batch = encode_arrow(content.slice(first, min(BATCH_MESSAGES_MAX, stop - first)), **producer)
            ahead = first - start
            found.append(batch.stamp(stamps[0][number] + ahead, stamps[1][number] + ahead, stamps[2][number]))
    return found


def _small_batches(content: pa.Table, bounds: list[int], stamps: list[list[int]]) -> list[Batch]:
    """The same for messages that came by ones and twos: as Python values, which are cheaper for so few."""
    values = content.column("value").to_pylist()
    keys = content.column("key").to_pylist() if "key" in content.column_names else None
    found: list[Batch] = []
    for start, stop, offset, message_id, time_ns in zip(bounds, bounds[1:], *stamps, strict=False):
        for first in range(start, stop, BATCH_MESSAGES_MAX):
            last = min(stop, first + BATCH_MESSAGES_MAX)
            if last - first == 1:
                batch = encode_one(values[first], key=keys[first] if keys is not None else None)
            else:
                batch = encode_columns(values[first:last], keys=keys[first:last] if keys is not None else None)
            found.append(batch.stamp(offset + first - start, message_id + first - start, time_ns))
    return found


def _chunk(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _breaks(rising: list[pa.Array], even: list[pa.Array]) -> list[int]:
    """The rows at which another batch begins: where a number does not rise by one, or changes where it should not."""
    if len(even[0]) < 2:
        return []
    jumps = [pc.not_equal(pc.subtract(column[1:], column[:-1]), 1) for column in rising]
    jumps += [pc.not_equal(column[1:], column[:-1]) for column in even]
    found = pc.add(pc.indices_nonzero(reduce(pc.or_, jumps)), pa.scalar(1, pa.uint64()))
    rows: list[int] = found.to_pylist()
    return rows


def _content(table: pa.Table) -> pa.Table:
    """The columns a batch is made of, under the names it knows them by; those that say nothing are left out."""
    count = table.num_rows
    given: dict[str, Any] = {"value": _chunk(table, "value")}
    for name, known in (
        ("key", "key"),
        ("dedup_id", "dedup_id"),
        ("deliver_at_ns", "deliver_at_ns"),
        ("expires_at_ns", "expires_at_ns"),
        ("client_time_ns", "timestamp_ns"),
    ):
        column = _chunk(table, name)
        if column.null_count < count:
            given[known] = column
    priorities = _chunk(table, "priority")
    if pc.any(pc.not_equal(priorities, 5)).as_py():
        given["priority"] = priorities.cast(pa.uint8())
    headers = _chunk(table, "headers")
    if headers.null_count < count:
        given["headers"] = headers
        given["header_kinds"] = _kinds_of(headers, _chunk(table, "header_kinds"))
    return pa.table(given)


def _kinds_of(headers: pa.Array, marks: pa.Array) -> pa.Array:
    """One kind a header: those that were given, str elsewhere."""
    offsets = headers.buffers()[1]
    ends = memoryview(offsets).cast("B").cast("i")[: len(headers) + 1]
    kinds = bytearray(ends[-1])
    if marks.null_count < len(marks):
        for row in pc.indices_nonzero(pc.is_valid(marks)).to_pylist():
            kinds[ends[row] : ends[row + 1]] = marks[row].as_py()
    values = pa.Array.from_buffers(pa.uint8(), len(kinds), [None, pa.py_buffer(bytes(kinds))])
    return pa.Array.from_buffers(_KINDS, len(headers), [None, offsets], children=[values])


# -- events ------------------------------------------------------------------------------------------------------------


def events_table(columns: dict[str, list[Any]]) -> pa.Table:
    """Rows of events from columns as lists; ``timestamp`` is made from ``at_ns``."""
    at_ns = pa.array(columns["at_ns"], _INT64)
    arrays = [
        pc.divide(at_ns, 1000).view(_TIME)
        if field.name == "timestamp"
        else at_ns
        if field.name == "at_ns"
        else pa.array(columns[field.name], field.type)
        for field in EVENTS
    ]
    return pa.Table.from_arrays(arrays, schema=EVENTS)


# -- reading -----------------------------------------------------------------------------------------------------------


class Footer:
    """What a file's end says about its row groups: bounds of one rising column by name."""

    __slots__ = ("bounds", "metadata", "rows", "size_bytes")

    def __init__(self, metadata: pq.FileMetaData) -> None:
        self.metadata = metadata
        self.size_bytes = metadata.serialized_size
        self.rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        self.bounds: dict[str, list[tuple[Any, Any] | None]] = {}
        for i in range(metadata.num_row_groups):
            group = metadata.row_group(i)
            for number in range(group.num_columns):
                column = group.column(number)
                statistics = column.statistics
                known = statistics is not None and statistics.has_min_max
                if known or column.path_in_schema in self.bounds:
                    bounds = self.bounds.setdefault(column.path_in_schema, [None] * i)
                    bounds.append((statistics.min, statistics.max) if known else None)


def read_footer(source: Any, crc: int = 0) -> Footer:
    """The footer of an open file; OSError when it is not the one with this checksum (0: not known)."""
    if not crc:
        return Footer(pq.read_metadata(source))
    size_bytes = source.size()
    source.seek(max(0, size_bytes - _FOOTER_GUESS_BYTES))
    end = source.read()
    length = _footer_bytes(end)
    if length > len(end):
        source.seek(max(0, size_bytes - length))
        end = source.read()
    if (crc32c(end[-length:]) or 1) != crc:
        raise OSError("its footer does not match its checksum")
    return Footer(pq.read_metadata(pa.BufferReader(end[-length:])))


def footer_crc(content: bytes) -> int:
    """The checksum of a whole file's footer; never 0."""
    return int(crc32c(content[-_footer_bytes(content) :])) or 1


def _footer_bytes(end: bytes) -> int:
    """How long the footer is, by the end of a file: the metadata, its length, the magic."""
    return int.from_bytes(end[-8:-4], "little") + 8


def row_group(source: Any, footer: Footer, number: int, columns: Sequence[str] | None = None) -> pa.Table:
    """One row group of an open file."""
    file = pq.ParquetFile(source, metadata=footer.metadata, page_checksum_verification=True)
    return file.read_row_group(number, columns=columns, use_threads=False)
