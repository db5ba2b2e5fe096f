"""The log as a stream. Spark's checkpoint is where it stands; a group of the broker may follow it, to be seen.

This object lives in one process of the driver as long as the query runs and is asked again and again; ``read`` runs in
the workers on a copy, and only with what is in its split.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from headrace.errors import InvalidArgument
from headrace.limits import SPARK_IDLE_NS, SPARK_LOOK_NS
from headrace.spark.offsets import Places, behind, forward, limited, parsed, written
from headrace.spark.options import ReadOptions
from headrace.spark.plan import Segment, Split, Standings, chosen, made_again, segments, splits, standings, starts
from headrace.spark.reach import reach
from headrace.spark.reading import read_split
from headrace.spark.rows import Layout

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LogStream"]

Offset = Mapping[str, Mapping[str, int]]


class LogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the head of this file."""

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        self.options = options
        self.layout = layout
        self._target: Places | None = None
        self._newest: Places | None = None
        self._due_ns = 0  # when minOffsetsPerTrigger waits no longer
        self._committed: Places = {}

    # -- where it stands ---------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 # Spark's name
        way = reach(self.options.place)
        return written(starts(way, self.options, chosen(way, self.options)))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 # Spark's name
        """How far the next batch goes; ``start`` when there is nothing for it."""
        begun = _places(start)
        self._follow(begun)
        until_ns = time.monotonic_ns() + SPARK_IDLE_NS
        while True:
            end = self._reached(begun, limit)
            if end is not None:
                return written(end)
            if self._target is not None or time.monotonic_ns() >= until_ns:
                return dict(written(begun))
            time.sleep(SPARK_LOOK_NS / 1e9)

    def _reached(self, begun: Places, limit: ReadLimit) -> Places | None:
        options = self.options
        found = self._standing(begun)
        newest = _ends(found)
        for topic, parts in begun.items():
            for index, place in parts.items():
                if place > newest.get(topic, {}).get(index, place):
                    raise made_again(topic, index, newest[topic][index], place)
        self._newest = newest
        if self._target is not None:
            newest = {
                t: {i: min(at, self._target.get(t, {}).get(i, 0)) for i, at in p.items()} for t, p in newest.items()
            }
        begun = _begun(begun, found)
        newest = forward(begun, newest)
        waiting = behind(begun, newest)
        if not waiting:
            return None
        if isinstance(limit, ReadAllAvailable):
            self._due_ns = 0
            return newest
        least = limit.min_rows if isinstance(limit, ReadMinRows) else options.rows_min
        if least is not None and waiting < least and self._target is None:
            now_ns = time.monotonic_ns()
            self._due_ns = self._due_ns or now_ns + options.delay_max_ns
            if now_ns < self._due_ns:
                return None
        self._due_ns = 0
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else options.rows_max
        if rows is not None:
            newest = limited(begun, newest, rows)
        size_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.bytes_max
        if size_bytes is not None:
            newest = self._within(begun, newest, size_bytes)
        return newest

    def _standing(self, begun: Places) -> Standings:
        options = self.options
        way = reach(options.place)
        topics = self._topics()
        strangers = sorted(set(begun) - set(topics))
        if strangers and options.pattern is None:
            raise InvalidArgument(
                f"the checkpoint is of topic {strangers[0]!r}, and the query reads {', '.join(topics)}: a checkpoint"
                " belongs to one query over the same topics; give this one a checkpointLocation of its own"
            )
        if strangers and options.fail_on_data_loss:
            raise InvalidArgument(
                f"topic {strangers[0]!r} was read before and is gone (deleted, or subscribePattern no longer names it);"
                " failOnDataLoss=false goes on without it"
            )
        return standings(way, options, topics)

    def _topics(self) -> list[str]:
        """Those named, or those that the pattern fits by now."""
        options = self.options
        if options.pattern is None:
            return sorted(options.assigned or options.topics)
        return chosen(reach(options.place), options)

    def _within(self, begun: Places, newest: Places, size_bytes: int) -> Places:
        """How far so many bytes go: to the nearest batch in the journal, by the average of a sealed file."""
        way, share = reach(self.options.place), max(1, size_bytes // len(newest))
        found = standings(way, self.options, list(newest), budget=(begun, share))
        reached: Places = {}
        for topic, parts in newest.items():
            files = segments(way, topic, archived=self.options.include_deleted)
            each = max(1, share // len(parts))
            for index, place in parts.items():
                first = begun.get(topic, {}).get(index, 0)
                end = _sealed_within(files.get(index, []), first, each) or found[topic][index].within or place
                reached.setdefault(topic, {})[index] = min(place, max(end, first))
        return reached

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 # Spark's name
        way = reach(self.options.place)
        self._target = _ends(standings(way, self.options, chosen(way, self.options)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 # Spark's name
        options = self.options
        if options.rows_max is not None:
            return ReadMaxRows(options.rows_max)
        if options.bytes_max is not None:
            return ReadMaxBytes(options.bytes_max)
        if options.rows_min is not None:
            return ReadMinRows(options.rows_min)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 # Spark's name
        return None if self._newest is None else written(self._newest)

    # -- what is read ------------------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        options = self.options
        way = reach(options.place)
        begun, done = _places(start), _places(end)
        known = set(chosen(way, options)) if options.pattern is not None else set(done)
        done = {topic: parts for topic, parts in done.items() if topic in known}
        found = standings(way, options, sorted(done))
        sealed = (
            {topic: segments(way, topic, archived=options.include_deleted) for topic in done}
            if options.sealed
            else None
        )
        return list(splits(begun, done, found, options, sealed))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Split):
            yield from read_split(self.options, self.layout, partition)

    # -- the group that follows --------------------------------------------------------------------------------------

    def commit(self, end: Offset) -> None:
        self._follow(_places(end))

    def _follow(self, reached: Places) -> None:
        """Everything before these places is done: move the group there, so that the broker shows the lag.

        Spark says so one batch late and never after the last one; but what it asks the next batch from is done too.
        """
        group = self.options.group
        if group is None:
            return
        for topic, parts in reached.items():
            if self._committed.get(topic) != parts:
                offsets = {str(index): place for index, place in parts.items()}
                reach(self.options.place).call("group.commit", topic=topic, group=group, offsets=offsets)
                self._committed[topic] = parts

    def stop(self) -> None:
        reach(self.options.place).close()


def _places(offset: Offset) -> Places:
    if "batch" in offset:
        raise InvalidArgument(
            f"the checkpoint holds {dict(offset)!r}, a batch of a queue: it is of another query (view=queue); give this"
            " one a checkpointLocation of its own"
        )
    return parsed(offset)


def _sealed_within(files: Sequence[Segment], first: int, size_bytes: int) -> int | None:
    """How far the bytes go in sealed files, at least a message; None where there is none at that place."""
    at, left = first, size_bytes
    for file in files:
        if file.first <= at < file.end:
            rows = file.rows_within(at, left)
            left -= rows * file.raw_bytes // (file.end - file.first)
            at += rows
            if at < file.end:
                return max(at, first + 1)
    return at if at > first else None


def _ends(found: Standings) -> Places:
    return {topic: {index: part.end for index, part in parts.items()} for topic, parts in found.items()}


def _begun(begun: Places, found: Standings) -> Places:
    """Where each partition goes on from; those that are new begin at their beginning."""
    return {
        topic: {index: begun.get(topic, {}).get(index, part.start) for index, part in parts.items()}
        for topic, parts in found.items()
    }
