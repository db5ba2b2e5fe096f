"""Reading a split: sealed files where this process reaches them, the broker for everything else. Arrow all the way.

What comes next is asked for while what came is being turned into records and taken by Spark.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import InvalidArgument
from headrace.limits import SPARK_RECORD_ROWS
from headrace.spark.files import opened
from headrace.spark.options import ReadOptions
from headrace.spark.plan import Segment, Split
from headrace.spark.reach import Reach, reach
from headrace.spark.rows import Layout, gap_record, records, records_of_table

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.batch import Batch

__all__ = ["read_split"]

_AT_ONCE: Final = 1_000_000
"""Messages asked for in one read of the log: more than its answer may hold in bytes."""


def read_split(options: ReadOptions, layout: Layout, split: Split) -> Iterator[pa.RecordBatch]:
    """The messages of a split as records of Spark's columns."""
    same = {"namespace": options.place.namespace, "topic": split.topic, "partition": split.partition}
    at = split.first
    if split.lost:
        yield gap_record(layout, at, split.lost, same)
        at += split.lost
    for file in split.files:
        if at < file.first:
            yield from _from_broker(options, layout, split, at, min(file.first, split.end), same)
        at = max(at, file.first)
        end = min(file.end, split.end)
        if at < end:
            found = opened(file.uri)
            if found is None:
                yield from _from_broker(options, layout, split, at, end, same)
            else:
                yield from _from_file(found, layout, file, at, end, same)
            at = end
    if at < split.end:
        yield from _from_broker(options, layout, split, at, split.end, same)


def _from_file(
    found: Any, layout: Layout, file: Segment, first: int, end: int, same: dict[str, Any]
) -> Iterator[pa.RecordBatch]:
    """Some offsets of a sealed file, whole row groups that are outside left unread."""
    stored = layout.stored
    columns = stored if "offset" in stored else [*stored, "offset"]
    with found as parquet:
        number = parquet.schema_arrow.get_field_index("offset")
        groups = []
        low = file.first
        for group in range(parquet.num_row_groups):
            statistics = parquet.metadata.row_group(group).column(number).statistics
            high = statistics.max + 1 if statistics is not None and statistics.has_min_max else file.end
            if low < end and first < high:
                groups.append(group)
            low = high
        for batch in parquet.iter_batches(batch_size=SPARK_RECORD_ROWS, row_groups=groups, columns=columns):
            yield from records_of_table(layout, _between(batch, first, end), same)


def _between(batch: pa.RecordBatch, first: int, end: int) -> pa.Table:
    import pyarrow as pa

    offsets = batch.column("offset")
    start, stop = 0, batch.num_rows
    if offsets[0].as_py() < first or offsets[-1].as_py() >= end:
        rows = range(batch.num_rows)
        start = bisect_left(rows, first, key=lambda row: offsets[row].as_py())
        stop = bisect_left(rows, end, key=lambda row: offsets[row].as_py())
    return pa.Table.from_batches([batch.slice(start, stop - start)])


def _from_broker(
    options: ReadOptions, layout: Layout, split: Split, first: int, end: int, same: dict[str, Any]
) -> Iterator[pa.RecordBatch]:
    waiting: list[Batch] = []
    rows = 0
    at = first
    for batches in _answers(reach(options.place), options, split, first, end):
        for batch in batches:
            if batch.base_offset > at:
                if waiting:
                    yield from records(layout, waiting, same)
                    waiting, rows = [], 0
                yield _gone(options, layout, split, at, batch.base_offset, same)
            at = batch.base_offset + batch.count
            waiting.append(batch)
            rows += batch.count
        if rows >= SPARK_RECORD_ROWS:
            yield from records(layout, waiting, same)
            waiting, rows = [], 0
    if waiting:
        yield from records(layout, waiting, same)
    if at < end:
        yield _gone(options, layout, split, at, end, same)


def _gone(
    options: ReadOptions, layout: Layout, split: Split, first: int, end: int, same: dict[str, Any]
) -> pa.RecordBatch:
    if options.fail_on_data_loss:
        raise InvalidArgument(
            f"messages {first} to {end} of {split.topic!r} partition {split.partition} were let go of by retention"
            " before they were read; failOnDataLoss=false goes on and gives a row that says what is gone"
        )
    return gap_record(layout, first, end - first, same)


def _answers(way: Reach, options: ReadOptions, split: Split, first: int, end: int) -> Iterator[list[Batch]]:
    """The broker's answers one after the other, the next one under way while one is worked on."""

    def ask(at: int) -> tuple[Any, list[Batch]]:
        more = {"include_deleted": True} if options.include_deleted else {}
        return way.messages(
            "read",
            topic=split.topic,
            partition=split.partition,
            from_offset=at,
            to_offset=end,
            limit=min(_AT_ONCE, end - at),
            **more,
        )

    with ThreadPoolExecutor(1, thread_name_prefix="headrace-read") as ahead:
        coming = ahead.submit(ask, first)
        while True:
            result, batches = coming.result()
            part = result["parts"][0]
            done = part["next_offset"] >= min(end, part["end_offset"])
            if not done:
                coming = ahead.submit(ask, part["next_offset"])
            yield batches
            if done:
                return
