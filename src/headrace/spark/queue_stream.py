"""The queue as a stream: each micro-batch is a lease batch, acked once Spark has committed it.

The offset is ``{"reader": "spark-5f…", "batch": 7}``: a number the broker knows the messages of
(``broker/lease_batches.py``), under a name that this checkpoint made up for itself, so that several queries can share
a group as any consumers do. Spark asks what
comes after batch 7 only when 7 is in its commit log, and that is when 7 is acked: never before, so that nothing is
lost; at the next start at the latest, when Spark was killed in between. What Spark plans again it reads again, the same
messages under the same leases, for as long as the leases last; leases are extended while the query lives. When it is
away for longer, they come again to whoever asks, in a later batch: at least once.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from headrace.errors import HeadraceError, InvalidArgument
from headrace.limits import LEASE_MESSAGES_MAX, SPARK_IDLE_NS, SPARK_LOOK_NS, SPARK_RECORD_ROWS
from headrace.spark.options import ReadOptions
from headrace.spark.plan import chosen
from headrace.spark.reach import reach
from headrace.spark.rows import Layout, records

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.batch import Batch

__all__ = ["LeasedRuns", "QueueStream"]


class LeasedRuns(InputPartition):
    """What one task reads: runs of offsets ([first, count, attempt]) of one lease."""

    def __init__(self, partition: int, lease_id: int, runs: list[list[int]]) -> None:
        super().__init__(None)
        self.partition = partition
        self.lease_id = lease_id
        self.runs = runs


class QueueStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the head of this file."""

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        self.options = options
        self.layout = layout
        (self.topic,) = options.topics
        self._reader = ""
        self._target: int | None = None
        self._settled = -1
        self._keeper: threading.Thread | None = None
        self._stopped = threading.Event()

    def __getstate__(self) -> dict[str, Any]:
        """What travels to the workers, which only read."""
        return {"options": self.options, "layout": self.layout, "topic": self.topic}

    def _call(self, method: str, **arguments: Any) -> Any:
        return reach(self.options.place).call(
            method, topic=self.topic, group=self.options.group, reader=self._reader, **arguments
        )

    # -- where it stands ---------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 # Spark's name
        chosen(reach(self.options.place), self.options)
        return {"reader": f"spark-{uuid.uuid4().hex[:16]}", "batch": 0}

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 # Spark's name
        """Settle what is committed, then lease the next batch, waiting a moment for one."""
        self._reader, after = _place(start)
        self._settle(after)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else LEASE_MESSAGES_MAX
        if self.options.rows_max is not None:
            most = min(most, self.options.rows_max)
        if self._target is not None:
            most = min(most, self._target)
            if most <= 0:
                return dict(start)
        until_ns = time.monotonic_ns() + SPARK_IDLE_NS
        while True:
            taken = self._call(
                "lease_batch.take", after=after, most=min(most, LEASE_MESSAGES_MAX), lease_ns=self.options.lease_ns
            )
            if taken["count"] or self._target is not None or time.monotonic_ns() >= until_ns:
                break
            time.sleep(SPARK_LOOK_NS / 1e9)
        if taken["count"]:
            self._keep()
            if self._target is not None:
                self._target -= taken["count"]
        return {"reader": self._reader, "batch": taken["batch"]}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 # Spark's name
        return ReadMaxRows(self.options.rows_max or LEASE_MESSAGES_MAX)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 # Spark's name
        """What waits now is what this run takes: as many, whichever they are."""
        way = reach(self.options.place)
        groups = {each["group"]: each for each in way.call("group.list", topic=self.topic)}
        group = groups.get(str(self.options.group))
        topic = way.call("topic.show", topic=self.topic)
        self._target = int(group["lag"]) if group is not None else int(topic["messages"])

    # -- settling ----------------------------------------------------------------------------------------------------

    def _settle(self, upto: int) -> None:
        if upto > self._settled:
            if upto:
                self._call("lease_batch.settle", upto=upto)
            self._settled = upto

    def commit(self, end: Mapping[str, Any]) -> None:
        self._reader, batch = _place(end)
        self._settle(batch)

    def _keep(self) -> None:
        """Extend the leases as long as this query lives."""
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._extend, name="headrace-leases", daemon=True)
            self._keeper.start()

    def _extend(self) -> None:
        lease_ns = self.options.lease_ns
        while not self._stopped.wait(lease_ns / 3e9):
            try:
                self._call("lease_batch.extend", by_ns=lease_ns)
            except HeadraceError:
                continue  # the next batch will say what is wrong; leases that run out come again

    def stop(self) -> None:
        self._stopped.set()
        reach(self.options.place).close()

    # -- what is read ------------------------------------------------------------------------------------------------

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        former, first = _place(start)
        self._reader, last = _place(end)
        if former != self._reader:
            first = 0  # the first batch again: where it began is made up anew each time
        if last > first:
            self._keep()
        parts: list[InputPartition] = []
        most = self.options.split_rows
        for batch in range(first + 1, last + 1):
            for held in self._call("lease_batch.show", batch=batch):
                portions = _portions(held["runs"], most)
                parts += [LeasedRuns(held["partition"], held["lease_id"], runs) for runs in portions]
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LeasedRuns):
            return
        for attempt, runs in _by_attempt(partition.runs):
            same = {
                "namespace": self.options.place.namespace,
                "topic": self.topic,
                "partition": partition.partition,
                "attempt": attempt,
                "lease_id": partition.lease_id,
            }
            waiting: list[Batch] = []
            rows = 0
            for batches in self._contents(partition.partition, runs):
                waiting += batches
                rows += sum(batch.count for batch in batches)
                if rows >= SPARK_RECORD_ROWS:
                    yield from records(self.layout, waiting, same)
                    waiting, rows = [], 0
            if waiting:
                yield from records(self.layout, waiting, same)

    def _contents(self, partition: int, runs: list[list[int]]) -> Iterator[list[Batch]]:
        way = reach(self.options.place)
        left = [[first, count] for first, count, *_ in runs]
        while left:
            asked = left[:1_000]
            told, batches = way.messages("lease_batch.messages", topic=self.topic, partition=partition, runs=asked)
            if not told["messages"]:
                raise InvalidArgument(
                    f"messages of {self.topic!r} partition {partition} from offset {left[0][0]} on are leased but gone"
                    " from the log (purged?)"
                )
            yield batches
            reached = int(batches[-1].offsets()[-1])
            left = [[max(first, reached + 1), first + count - max(first, reached + 1)] for first, count in left]
            left = [[first, count] for first, count in left if count > 0]


def _place(offset: Mapping[str, Any]) -> tuple[str, int]:
    if "batch" not in offset or "reader" not in offset:
        raise InvalidArgument(
            f"the checkpoint holds {dict(offset)!r}, not a batch of a queue: it is of another query (view=log?); give"
            " this one a checkpointLocation of its own"
        )
    return str(offset["reader"]), int(offset["batch"])


def _portions(runs: list[list[int]], most: int) -> Iterator[list[list[int]]]:
    portion: list[list[int]] = []
    rows = 0
    for run in runs:
        portion.append(run)
        rows += run[1]
        if rows >= most:
            yield portion
            portion, rows = [], 0
    if portion:
        yield portion


def _by_attempt(runs: list[list[int]]) -> Iterator[tuple[int, list[list[int]]]]:
    found: dict[int, list[list[int]]] = {}
    for run in runs:
        found.setdefault(run[2], []).append(run)
    yield from sorted(found.items())
