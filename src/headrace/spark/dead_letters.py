"""Dead letters as rows: what the headers of a dead letter say (docs/reference), as columns of their own."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["COLUMNS", "MARK", "described"]

MARK: Final = "headrace-dead-"
_TIME: Final = pa.timestamp("us", tz="UTC")
_HEADERS: Final = pa.map_(pa.string(), pa.field("value", pa.binary()))

COLUMNS: Final = pa.schema(
    [
        ("namespace", pa.string()),
        ("topic", pa.string()),
        ("group", pa.string()),
        ("reason", pa.string()),
        ("error", pa.string()),
        ("attempts", pa.int32()),
        ("consumer", pa.string()),
        ("first_delivery", _TIME),
        ("last_delivery", _TIME),
        ("died", _TIME),
        ("origin_partition", pa.int32()),
        ("origin_offset", pa.int64()),
        ("origin_id", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
        ("priority", pa.int32()),
        ("dead_topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("id", pa.int64()),
    ]
)
_SAID: Final = {
    "topic": "topic",
    "group": "group",
    "reason": "reason",
    "error": "error",
    "attempts": "attempts",
    "consumer": "consumer",
    "first_delivery": "first-delivery",
    "last_delivery": "last-delivery",
    "origin_partition": "partition",
    "origin_offset": "offset",
    "origin_id": "id",
}
"""Our column → the header that says it."""
_LOG: Final = {"dead_topic": "topic", "died": "timestamp"}


def described(record: pa.RecordBatch) -> pa.RecordBatch:
    """A record of a dead-letter topic's log with its columns spelled out; what a message does not say is null."""
    headers = record.column("headers")
    columns = []
    for field in COLUMNS:
        said = _SAID.get(field.name)
        if said is not None:
            columns.append(_said(headers, said, field.type))
        elif field.name == "headers":
            columns.append(_own(headers))
        else:
            columns.append(record.column(_LOG.get(field.name, field.name)))
    return pa.RecordBatch.from_arrays(columns, schema=COLUMNS)


def _said(headers: Any, name: str, kind: pa.DataType) -> Any:
    found = pc.map_lookup(headers, pa.scalar(MARK + name), "first").cast(pa.string())
    if kind == pa.string():
        return found
    digits = pc.if_else(pc.match_substring_regex(found, r"^\d{1,18}$"), found, None)
    numbers = digits.cast(pa.int64())
    if kind == _TIME:
        moments = pc.if_else(pc.greater(numbers, 0), pc.multiply(numbers, 1_000), None)
        return moments.cast(_TIME)
    return numbers.cast(kind)


def _own(headers: Any) -> Any:
    """The headers of the message itself: those without the mark."""
    if headers.null_count == len(headers):
        return headers
    keys, items = headers.keys, headers.items
    kept = pc.invert(pc.starts_with(keys, MARK))
    before = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(kept.cast(pa.int32()))])
    ends = before.take(headers.offsets)
    # A message without headers of its own has none, not an empty map.
    empty = pc.equal(ends.slice(1), ends.slice(0, len(headers)))
    built = pa.MapArray.from_arrays(ends, keys.filter(kept), items.filter(kept)).cast(_HEADERS)
    return pc.if_else(empty, pa.scalar(None, _HEADERS), built)
