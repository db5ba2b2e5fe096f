"""The facts of topics as rows: sealed files of events where this process reaches them, the broker for the rest.

One row is one fact with all the offsets it is about, as the log keeps it (docs/reference/tables.md): a lease of a
hundred messages is one row. ``namespace`` and ``topic`` are added; the files say them in their path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from headrace.errors import InvalidArgument
from headrace.log.parquet import EVENTS, events_table
from headrace.spark.files import opened
from headrace.spark.options import ReadOptions
from headrace.spark.reach import reach

__all__ = ["COLUMNS", "EventSplit", "plan_events", "read_events"]

_OFFSETS: Final = pa.list_(pa.field("element", pa.int64()))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Spark names the inside of a list in its own way."""
    return _OFFSETS if pa.types.is_list(kind) else kind


COLUMNS: Final = pa.schema(
    [("namespace", pa.string()), ("topic", pa.string()), *((field.name, _plain(field.type)) for field in EVENTS)]
)


class EventSplit(InputPartition):
    """Events of one topic: a sealed file, or what the broker has from a position on."""

    def __init__(self, topic: str, first_position: int, file: Mapping[str, Any] | None = None) -> None:
        super().__init__(None)
        self.topic = topic
        self.first_position = first_position
        self.uri = None if file is None else str(file["uri"])
        self.end_position = 0 if file is None else int(file["end_position"])
        self.first_ns = 0 if file is None else int(file["first_ns"])
        self.last_ns = 0 if file is None else int(file["last_ns"])
        self.archived = file is not None and bool(file["archived"])


def plan_events(options: ReadOptions, topics: list[str]) -> list[EventSplit]:
    """The files of the topics that may hold what is asked for, and what is not sealed yet."""
    way = reach(options.place)
    from_ns, until_ns = options.start.time_ns, options.end.time_ns
    splits: list[EventSplit] = []
    for topic in topics:
        sealed_to = 0
        files = way.call("log.segments", topic=topic, include_deleted=options.include_deleted)["events"]
        for file in files if options.sealed else ():
            sealed_to = max(sealed_to, file["end_position"])
            if (from_ns is None or file["last_ns"] >= from_ns) and (until_ns is None or file["first_ns"] < until_ns):
                splits.append(EventSplit(topic, file["first_position"], file))
        splits.append(EventSplit(topic, sealed_to))
    return splits


def read_events(options: ReadOptions, split: EventSplit) -> Iterator[pa.RecordBatch]:
    """The rows of a split, within the times asked for."""
    for table in _tables(options, split):
        if not table.num_rows:
            continue
        within = _within(table, options)
        columns = [
            pa.repeat(pa.scalar(value, pa.string()), within.num_rows)
            for value in (options.place.namespace, split.topic)
        ]
        columns += [_column(within, field) for field in list(COLUMNS)[2:]]
        yield from pa.Table.from_arrays(columns, schema=COLUMNS).to_batches()


def _column(table: pa.Table, field: pa.Field) -> Any:
    column = table.column(field.name)
    return column if column.type == field.type else column.cast(field.type)


def _within(table: pa.Table, options: ReadOptions) -> pa.Table:
    import pyarrow.compute as pc

    at_ns = table.column("at_ns")
    if options.start.time_ns is not None:
        table = table.filter(pc.greater_equal(at_ns, options.start.time_ns))
        at_ns = table.column("at_ns")
    if options.end.time_ns is not None:
        table = table.filter(pc.less(at_ns, options.end.time_ns))
    return table


def _tables(options: ReadOptions, split: EventSplit) -> Iterator[pa.Table]:
    file = opened(split.uri) if split.uri is not None else None
    if file is not None:
        with file:
            for batch in file.iter_batches(columns=EVENTS.names):
                yield pa.Table.from_batches([batch])
        return
    if split.archived:
        raise InvalidArgument(
            f"{split.uri} lies in the archive and cannot be read from here; give Spark access to the archive's files,"
            " or leave includeDeleted out"
        )
    at = split.first_position
    while True:
        found = reach(options.place).call("log.events", topic=split.topic, from_position=at)
        columns = found["columns"]
        if split.end_position:
            # Files of different days overlap in positions, but not in time.
            rows = [
                row
                for row, (position, at_ns) in enumerate(zip(columns["position"], columns["at_ns"], strict=True))
                if position < split.end_position and split.first_ns <= at_ns <= split.last_ns
            ]
            columns = {name: [values[row] for row in rows] for name, values in columns.items()}
        yield events_table(columns)
        at = found["next_position"]
        if at >= (split.end_position or found["end_position"]):
            return
