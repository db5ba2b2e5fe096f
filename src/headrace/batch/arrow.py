"""Batches as Arrow record batches over the same memory, and Arrow tables as columns. The only room that knows pyarrow.

    value           binary not null
    key             binary              null: no key
    headers         map<string, binary> with header_kinds list<uint8> beside it: 0 = str, 1 = bytes
    priority        uint8 not null      left out when all are 5
    deliver_at_ns   int64               null: at once;  before the stamp a delay is negative
    expires_at_ns   int64               null: the topic's default;  before the stamp a ttl is negative
    dedup_id        binary              null: none
    timestamp_ns    int64               null: none

Absent columns are left out. Variable-length data is never copied. Fixed-width blocks are copied only when the buffer
the batch was read from does not lie on a multiple of 8. A validity bitmap is made only for a column with gaps.
"""

from __future__ import annotations

from array import array
from difflib import get_close_matches
from functools import lru_cache
from operator import sub
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.batch import layout
from headrace.batch.columns import Columns, check_count, rebased
from headrace.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

_BINARY: Final = pa.binary()
_INT32: Final = pa.int32()
_INT64: Final = pa.int64()
_UINT8: Final = pa.uint8()
_ZERO: Final = pa.scalar(0, _INT64)
_STRING: Final = pa.string()
_MAP: Final = pa.map_(_STRING, _BINARY)
_ENTRY: Final = _MAP.field(0).type
_KINDS: Final = pa.list_(pa.field("kind", _UINT8, nullable=False))

_FIELDS: Final = (
    (0, pa.field("value", _BINARY, nullable=False)),
    (layout.KEY, pa.field("key", _BINARY)),
    (layout.HEADERS, pa.field("headers", _MAP)),
    (layout.HEADERS, pa.field("header_kinds", _KINDS)),
    (layout.PRIORITY, pa.field("priority", _UINT8, nullable=False)),
    (layout.DELIVER, pa.field("deliver_at_ns", _INT64)),
    (layout.EXPIRES, pa.field("expires_at_ns", _INT64)),
    (layout.DEDUP, pa.field("dedup_id", _BINARY)),
    (layout.TIMESTAMP, pa.field("timestamp_ns", _INT64)),
)
_SHAPE: Final = sum({bit for bit, _ in _FIELDS})
_IDENTITY: Final = tuple(pa.field(name, _INT64, nullable=False) for name in ("offset", "id", "append_time_ns"))
_INPUTS: Final = frozenset(
    [field.name for _, field in _FIELDS] + [field.name for field in _IDENTITY] + ["delay_ns", "ttl_ns"]
)


@lru_cache(maxsize=512)
def _row(columns: int, identity: bool) -> pa.DataType:
    fields = [field for bit, field in _FIELDS if not bit or columns & bit]
    return pa.struct([*fields, *_IDENTITY] if identity else fields)


@lru_cache(maxsize=16)
def _no_kinds(entries: int) -> pa.Array:
    """As many zeros: every header is a str."""
    return pa.Array.from_buffers(_UINT8, entries, [None, pa.py_buffer(bytes(entries))], 0)


def record_batch(
    columns: int,
    count: int,
    body: bytes | memoryview,
    tail: bytes | memoryview,
    found: layout.Places,
    identity: tuple[int, int, int] | None,
) -> pa.RecordBatch:
    """The columns that are there, over the memory of `body` and `tail`."""
    memory = pa.py_buffer(body)
    from_buffers = pa.Array.from_buffers
    if memory.address % 8:
        # Blocks are aligned to the batch's start; where that is not aligned itself, the fixed-width ones are copied.
        def block(at: int, size: int) -> pa.Buffer:
            return pa.py_buffer(bytes(body[at : at + size]))
    else:
        block = memory.slice

    def strings(offsets: int, start: int, end: int, gaps: int) -> pa.Array:
        ends = block(offsets, 4 * count + 4)
        data = memory.slice(start, end - start)
        if columns & gaps:
            return from_buffers(_BINARY, count, [_filled(ends, count), ends, data])
        return from_buffers(_BINARY, count, [None, ends, data], 0)

    if count > 1:
        ends = block(found.value_offsets, 4 * count + 4)
    else:
        ends = pa.py_buffer(layout.BOUNDS.pack(0, found.values_end - found.values))
    data = memory.slice(found.values, found.values_end - found.values)
    arrays = [from_buffers(_BINARY, count, [None, ends, data], 0)]
    if columns & layout.KEY:
        arrays.append(strings(found.key_offsets, found.keys, found.dedups, layout.KEY_GAPS))
    if columns & layout.HEADERS:
        entries = found.entries
        runs = block(found.header_offsets, 4 * count + 4)
        names = block(found.name_offsets, 4 * entries + 4)
        items = block(found.item_offsets, 4 * entries + 4)
        entry = from_buffers(
            _ENTRY,
            entries,
            [None],
            0,
            children=[
                from_buffers(_STRING, entries, [None, names, memory.slice(found.names, found.items - found.names)], 0),
                from_buffers(_BINARY, entries, [None, items, memory.slice(found.items, found.values - found.items)], 0),
            ],
        )
        if columns & layout.KINDS:
            kind = from_buffers(_UINT8, entries, [None, memory.slice(found.kinds, entries)], 0)
        else:
            kind = _no_kinds(entries)
        arrays.append(from_buffers(_MAP, count, [None, runs], 0, children=[entry]))
        arrays.append(from_buffers(_KINDS, count, [None, runs], 0, children=[kind]))
    if columns & layout.PRIORITY:
        arrays.append(from_buffers(_UINT8, count, [None, memory.slice(found.priorities, count)], 0))
    if columns & (layout.DELIVER | layout.EXPIRES):
        times = pa.py_buffer(tail)
        if times.address % 8:
            times = pa.py_buffer(bytes(tail))
        if columns & layout.DELIVER:
            arrays.append(_instants(times.slice(0, 8 * count), count, columns & layout.DELIVER_GAPS))
        if columns & layout.EXPIRES:
            start = len(tail) - 8 * count
            arrays.append(_instants(times.slice(start, 8 * count), count, columns & layout.EXPIRES_GAPS))
    if columns & layout.DEDUP:
        arrays.append(strings(found.dedup_offsets, found.dedups, found.names, layout.DEDUP_GAPS))
    if columns & layout.TIMESTAMP:
        arrays.append(_instants(block(0, 8 * count), count, columns & layout.TIMESTAMP_GAPS))
    if identity is not None:
        arrays.extend(_identity(columns, count, body, found, identity))
    row = from_buffers(_row(columns & _SHAPE, identity is not None), count, [None], 0, children=arrays)
    return pa.RecordBatch.from_struct_array(row)


def _instants(times: pa.Buffer, count: int, gaps: int) -> pa.Array:
    column = pa.Array.from_buffers(_INT64, count, [None, times], 0)
    if not gaps:
        return column
    # A comparison's answer is a bitmap already.
    return pa.Array.from_buffers(_INT64, count, [pc.not_equal(column, _ZERO).buffers()[1], times])


def _filled(offsets: pa.Buffer, count: int) -> pa.Buffer:
    ends = pa.Array.from_buffers(_INT32, count + 1, [None, offsets])
    return pc.not_equal(ends.slice(1), ends.slice(0, count)).buffers()[1]


def _identity(
    columns: int, count: int, body: bytes | memoryview, found: layout.Places, identity: tuple[int, int, int]
) -> list[pa.Array]:
    base_offset, base_id, append_time_ns = identity
    deltas: Iterable[int] = range(count)
    if columns & layout.DELTA:
        deltas = memoryview(body)[found.deltas : found.deltas + 4 * count].cast("I").tolist()
    numbers = (
        array("q", map(base_offset.__add__, deltas)),
        array("q", map(base_id.__add__, deltas)),
        array("q", [append_time_ns]) * count,
    )
    return [pa.Array.from_buffers(_INT64, count, [None, pa.py_buffer(column)]) for column in numbers]


# -- the other way -----------------------------------------------------------------------------------------------------


def columns_of(table: pa.Table | pa.RecordBatch) -> Columns:
    """The columns of an Arrow table; the values are joined straight from its buffers."""
    for name in table.schema.names:
        if name not in _INPUTS:
            near = get_close_matches(name, _INPUTS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidArgument(f"no column {name!r} in a batch, there are {', '.join(sorted(_INPUTS))}{hint}")
    if len(set(table.schema.names)) != len(table.schema.names):
        raise InvalidArgument(f"a column is given twice: {', '.join(table.schema.names)}")
    values = _column(table, "value", _BINARY)
    if values is None:
        raise InvalidArgument("the table has no column 'value'")
    if values.null_count:
        raise InvalidArgument(f"column value has {values.null_count} nulls; a message without a body has b''")
    count = len(values)
    check_count(count)
    out = Columns(count)
    offsets, data = _pieces(values)
    out.values = (data,)
    if count > 1:
        out.value_offsets = offsets
    for name, bit, gaps in (("key", layout.KEY, layout.KEY_GAPS), ("dedup_id", layout.DEDUP, layout.DEDUP_GAPS)):
        column = _column(table, name, _BINARY)
        if column is None:
            continue
        offsets, data = _pieces(column.fill_null(b"") if column.null_count else column)
        if not len(data):
            continue
        ends = memoryview(offsets).cast("i").tolist()
        out.flags |= bit if len(set(ends)) == len(ends) else bit | gaps
        if bit == layout.KEY:
            out.key_offsets, out.keys = offsets, (data,)
        else:
            out.dedup_offsets, out.dedups = offsets, (data,)
    _take_headers(out, table)
    priorities = _column(table, "priority", _UINT8)
    if priorities is not None:
        lanes = _fixed(priorities.fill_null(layout.DEFAULT_PRIORITY), 1)
        if lanes != bytes([layout.DEFAULT_PRIORITY]) * count:
            out.priorities = lanes
            out.flags |= layout.PRIORITY
    out.timestamps = _take_times(out, _column(table, "timestamp_ns", _INT64), layout.TIMESTAMP, layout.TIMESTAMP_GAPS)
    delivers = _merged(table, "deliver_at_ns", "delay_ns", 0)
    out.delivers = _take_times(out, delivers, layout.DELIVER, layout.DELIVER_GAPS)
    expires = _merged(table, "expires_at_ns", "ttl_ns", 1)
    out.expires = _take_times(out, expires, layout.EXPIRES, layout.EXPIRES_GAPS)
    return out


def _column(table: pa.Table | pa.RecordBatch, name: str, kind: pa.DataType) -> Any:
    if name not in table.schema.names:
        return None
    column = table.column(name)
    try:
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # an empty table, or more than one array can hold
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        if kind is _INT64 and pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ns", column.type.tz))
        return column if column.type == kind else column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidArgument(f"column {name} is {column.type} and does not become {kind}: {error}") from None


def _pieces(column: pa.Array) -> tuple[bytes, memoryview]:
    """Offset table and data of a string or binary array, which may be a slice of a longer one."""
    _, offsets, data = column.buffers()
    first = column.offset
    ends = memoryview(offsets).cast("B").cast("i")[first : first + len(column) + 1]
    return rebased(ends), memoryview(data if data is not None else b"").cast("B")[ends[0] : ends[-1]]


def _fixed(column: pa.Array, width: int) -> bytes:
    start = width * column.offset
    return memoryview(column.buffers()[1]).cast("B")[start : start + width * len(column)].tobytes()


def _take_times(out: Columns, column: Any, bit: int, gaps: int) -> bytes:
    if column is None:
        return b""
    raw = _fixed(column.fill_null(0) if column.null_count else column, 8)
    if raw == bytes(len(raw)):
        return b""
    out.flags |= bit | (gaps if 0 in memoryview(raw).cast("q").tolist() else 0)
    return raw


def _merged(table: pa.Table | pa.RecordBatch, absolute: str, relative: str, least: int) -> Any:
    """One column of instants and, below zero, spans."""
    times = _column(table, absolute, _INT64)
    spans = _column(table, relative, _INT64)
    if spans is None or spans.null_count == len(spans):
        return times
    low = pc.min(spans).as_py()
    if low < least:
        raise InvalidArgument(f"column {relative} holds {low}; it must be at least {least}")
    spans = pc.negate(spans)
    if times is None:
        return spans
    if pc.any(pc.and_(pc.is_valid(spans), pc.not_equal(times.fill_null(0), 0))).as_py():
        raise InvalidArgument(f"a row has both {absolute} and {relative}; give one of them")
    return pc.if_else(pc.is_valid(spans), spans, times)


def _take_headers(out: Columns, table: pa.Table | pa.RecordBatch) -> None:
    names = table.schema.names
    if "headers" not in names:
        if "header_kinds" in names:
            raise InvalidArgument("column header_kinds says what headers are, but there is no column headers")
        return
    given = table.schema.field("headers").type
    if not pa.types.is_map(given):
        raise InvalidArgument(f"column headers is {given}; it must be map<string, binary> or map<string, string>")
    column = _column(table, "headers", _MAP)
    runs, start, end = _runs(column)
    if start == end:
        return
    keys, items = column.keys[start:end], column.items[start:end]
    if keys.null_count or items.null_count:
        raise InvalidArgument("column headers holds a null name or value; leave such a header out")
    out.flags |= layout.HEADERS
    out.header_offsets = runs
    out.name_offsets, name_data = _pieces(keys)
    out.item_offsets, item_data = _pieces(items)
    out.names, out.items = (name_data,), (item_data,)
    if "header_kinds" in names:
        marks = _column(table, "header_kinds", _KINDS)
        mark_runs, mark_start, mark_end = _runs(marks)
        if mark_runs != runs:
            raise InvalidArgument("column header_kinds must have one entry for every header of column headers")
        kinds = _fixed(marks.values[mark_start:mark_end], 1)
    elif pa.types.is_string(given.item_type) or pa.types.is_large_string(given.item_type):
        return
    else:
        kinds = b"\1" * (end - start)
    if kinds.strip(b"\0"):
        out.kinds = kinds
        out.flags |= layout.KINDS


def _runs(column: pa.Array) -> tuple[bytes, int, int]:
    """Where each list's entries lie: offset table from 0, and the first and last entry of the child."""
    ends = memoryview(column.buffers()[1]).cast("B").cast("i")[column.offset : column.offset + len(column) + 1]
    if column.null_count:
        sizes = map(sub, ends[1:], ends)
        if any(size for size, valid in zip(sizes, column.is_valid().to_pylist(), strict=True) if not valid):
            raise InvalidArgument("a null list of headers has entries; rebuild the table with pyarrow.array")
    return rebased(ends), ends[0], ends[-1]
