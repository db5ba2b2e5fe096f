"""Batch reads of the log, with the filters that say less is needed.

Filters on partition, topic, offset and timestamp narrow what is planned; Spark still checks every row, so that what is
narrowed here never has to be exact. Spark only asks a reader for its filters when
``spark.sql.python.filterPushdown.enabled`` is true and refuses one that has an opinion when it is not: hence two
readers, chosen by the option ``pushFilters`` (which ``headrace.spark.read`` gives when the session allows it).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from headrace.spark.offsets import Places
from headrace.spark.options import ReadOptions, possible_ns, since_1970_ns
from headrace.spark.plan import Split, chosen, ends, segments, splits, standings, starts
from headrace.spark.reach import reach
from headrace.spark.reading import read_split
from headrace.spark.rows import Layout

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LogReader", "PrunedLogReader"]

_US_NS = 1_000


class Wanted:
    """What the filters leave: sets of topics and partitions, bounds of offset and time."""

    def __init__(self) -> None:
        self.topics: set[str] | None = None
        self.partitions: set[int] | None = None
        self.first = 0
        self.end: int | None = None
        self.from_ns: int | None = None
        self.until_ns: int | None = None

    def take(self, filter: Filter) -> None:
        """Take a filter into account, where it is about a place in the log."""
        match filter:
            case EqualTo(("topic",), str() as value):
                self.topics = {value} & (self.topics or {value})
            case In(("topic",), values):
                self.topics = set(values) & (self.topics if self.topics is not None else set(values))
            case EqualTo(("partition",), int() as value):
                self.partitions = {value} & (self.partitions or {value})
            case In(("partition",), values):
                self.partitions = set(values) & (self.partitions if self.partitions is not None else set(values))
            case EqualTo(("offset",), int() as value):
                self._offsets(value, value + 1)
            case GreaterThan(("offset",), int() as value):
                self._offsets(value + 1, None)
            case GreaterThanOrEqual(("offset",), int() as value):
                self._offsets(value, None)
            case LessThan(("offset",), int() as value):
                self._offsets(0, value)
            case LessThanOrEqual(("offset",), int() as value):
                self._offsets(0, value + 1)
            case GreaterThan(("timestamp",), datetime() as value) | GreaterThanOrEqual(
                ("timestamp",), datetime() as value
            ):
                self.from_ns = max(self.from_ns or 0, since_1970_ns(value))
            case LessThan(("timestamp",), datetime() as value) | LessThanOrEqual(("timestamp",), datetime() as value):
                until_ns = possible_ns(since_1970_ns(value) + _US_NS)
                self.until_ns = until_ns if self.until_ns is None else min(self.until_ns, until_ns)

    def _offsets(self, first: int, end: int | None) -> None:
        self.first = max(self.first, first)
        if end is not None:
            self.end = end if self.end is None else min(self.end, end)


class LogReader(DataSourceReader):
    """A window of the log."""

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        self.options = options
        self.layout = layout
        self.wanted = Wanted()

    def partitions(self) -> list[InputPartition]:
        return list(self.planned())

    def planned(self) -> list[Split]:
        """The splits of the window."""
        options, wanted = self.options, self.wanted
        way = reach(options.place)
        topics = [topic for topic in chosen(way, options) if wanted.topics is None or topic in wanted.topics]
        if not topics:
            return []
        start, end = starts(way, options, topics), ends(way, options, topics)
        if wanted.partitions is not None:
            end = {t: {i: at for i, at in parts.items() if i in wanted.partitions} for t, parts in end.items()}
        for topic, parts in end.items():
            for index in parts:
                start[topic][index] = max(start[topic][index], wanted.first)
                if wanted.end is not None:
                    parts[index] = min(parts[index], wanted.end)
        if wanted.from_ns is not None:
            start = _narrowed(
                start, standings(way, options, topics, times_ns=dict.fromkeys(topics, wanted.from_ns)), max
            )
        if wanted.until_ns is not None:
            end = _narrowed(end, standings(way, options, topics, times_ns=dict.fromkeys(topics, wanted.until_ns)), min)
        sealed = (
            {topic: segments(way, topic, archived=options.include_deleted) for topic in topics}
            if options.sealed
            else None
        )
        return splits(start, end, standings(way, options, topics), options, sealed)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Split):  # Spark makes one without a value where there is nothing to read
            yield from read_split(self.options, self.layout, partition)


def _narrowed(places: Places, found: Any, choose: Any) -> Places:
    return {
        topic: {index: choose(place, found[topic][index].at) for index, place in parts.items()}
        for topic, parts in places.items()
    }


class PrunedLogReader(LogReader):
    """The same for sessions that push filters down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 # Spark's name
        for each in filters:
            self.wanted.take(each)
            yield each


def window(options: ReadOptions, layout: Layout) -> list[Split]:
    """The splits a batch read of these options is made of, for those who read sealed files in their own way."""
    return LogReader(replace(options, split_rows=1 << 62), layout).planned()
