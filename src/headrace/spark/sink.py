"""Writing rows into topics, each row once.

Every task of a write publishes its rows in chunks of a fixed number of rows under producers of its own: the producers
are (what writes, Spark's partition), the sequence (the batch of the stream, the chunk). The broker remembers the last
sequence of a producer in each partition and tells it before a task begins, so that a task that is tried again, or a
batch that Spark hands over a second time after a crash, goes on after the last chunk that is there. What is repeated
must be the same rows in the same order: true for everything Spark reads again from offsets, files or a Headrace log;
after a shuffle, sort within partitions, or give a dedup_id column. It is checked, not trusted: part of the sequence is
a digest of all rows so far, so that other rows under an old number are an error and not lost.

    sequence    batch + 1: 30 bits    chunk: 18 bits    digest: 16 bits

Where a row goes is decided here and not by the broker, so that it goes there again: by the hash of its key, as the
broker does it, and rows without a key by Spark's partition.

    value           binary or string   the body; missing or null: an error
    key             binary or string
    headers         map<string, string | binary>
    topic           string             when the option topic is not given
    priority        integer 0-9
    delay_ms        bigint             or deliver_at, timestamp
    ttl_ms          bigint             or expires_at, timestamp
    dedup_id        binary or string
    timestamp       timestamp          the client's time
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from xxhash import xxh3_64, xxh3_64_intdigest

from headrace.errors import DuplicateConflict, InvalidArgument
from headrace.spark.options import WriteOptions
from headrace.spark.reach import Reach, reach

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.batch import Batch
    from headrace.calls import Port

__all__ = ["BatchSink", "StreamSink", "Written"]

_LANES: Final = 8
"""Producers of a task, and so its chunks on their way to the broker at once: hides the syncs of the broker's disk."""
_BATCH_BITS: Final = 30
"""A batch a second for thirty-four years."""
_CHUNK_BITS: Final = 18
"""Chunks of a task and topic: a milliard messages."""
_DIGEST_BITS: Final = 16
_DIGEST: Final = (1 << _DIGEST_BITS) - 1
_COLUMNS: Final = (
    "value", "key", "headers", "topic", "priority", "delay_ms", "deliver_at", "ttl_ms", "expires_at", "dedup_id",
    "timestamp",
)  # fmt: skip
_IGNORED: Final = ("namespace", "partition", "offset", "id", "attempt", "lease_id", "lost")
"""Columns of what is read from a log: a row that goes from topic to topic leaves its place behind."""


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote."""

    rows: int
    chunks: int
    repeated: int


class BatchSink(DataSourceArrowWriter):
    """``df.write``: once as a whole with the option writeId, once per task attempt without."""

    def __init__(self, options: WriteOptions, schema: Any) -> None:
        self.options = options
        _check_columns(schema, options)
        self.name = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        return _Task(self.options, self.name, partition, 0).write(iterator)

    def commit(self, messages: list[Any]) -> None:
        """Everything is published and durable already."""

    def abort(self, messages: list[Any]) -> None:
        """What was published stays; writing again with the same writeId goes on behind it."""


class StreamSink(DataSourceStreamArrowWriter):
    """``df.writeStream``: each batch once, by the query's id."""

    def __init__(self, options: WriteOptions, schema: Any) -> None:
        self.options = options
        _check_columns(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise InvalidArgument("a stream is written inside a Spark task")
        query = self.options.write_id or context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise InvalidArgument("Spark did not say which query and batch this is; without them nothing is idempotent")
        return _Task(self.options, query, context.partitionId(), int(batch)).write(iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 # Spark's name
        """Everything is published and durable already."""

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 # Spark's name
        """What was published stays; the batch comes again and goes on behind it."""


_BYTES: Final = ("binary", "string")
_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")
_TIMES: Final = ("timestamp",)
_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "value": _BYTES,
    "key": _BYTES,
    "headers": ("map<string,string>", "map<string,binary>"),
    "topic": ("string",),
    "priority": _WHOLE,
    "delay_ms": _WHOLE,
    "deliver_at": _TIMES,
    "ttl_ms": _WHOLE,
    "expires_at": _TIMES,
    "dedup_id": _BYTES,
    "timestamp": _TIMES,
}


def _check_columns(schema: Any, options: WriteOptions) -> None:
    names = list(schema.fieldNames())
    for field in schema.fields:
        name, kind = field.name, field.dataType.simpleString()
        if name not in _COLUMNS and name not in _IGNORED:
            close = get_close_matches(name, _COLUMNS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(_COLUMNS)}"
            raise InvalidArgument(
                f"column {name!r} has no meaning in a message; {hint} (select() what is to be written)"
            )
        if name in _TYPES and kind not in _TYPES[name]:
            raise InvalidArgument(f"column {name!r} is {kind}; it must be {' or '.join(_TYPES[name])}")
    if "value" not in names:
        raise InvalidArgument(f"there is no column value; the columns are {', '.join(names)}")
    if options.topic is None and "topic" not in names:
        raise InvalidArgument("to which topic? give the option topic, or a column topic")
    for one, other in (("delay_ms", "deliver_at"), ("ttl_ms", "expires_at")):
        if one in names and other in names:
            raise InvalidArgument(f"columns {one} and {other} are both there: leave one out")


class _Task:
    """One task's part of a write."""

    def __init__(self, options: WriteOptions, name: str, partition: int, batch: int) -> None:
        self.options = options
        self.partition = partition
        if batch + 1 >= 1 << _BATCH_BITS:
            raise InvalidArgument(f"batch {batch}: a query has at most {(1 << _BATCH_BITS) - 1} batches")
        self.first_number = (batch + 1) << _CHUNK_BITS
        self.producers = [xxh3_64_intdigest(f"{name}\0{partition}\0{lane}".encode()) or 1 for lane in range(_LANES)]
        self.way: Reach = reach(options.place, writes=True)
        self.topics: dict[str, _Topic] = {}
        self.done = Written(0, 0, 0)

    def write(self, records: Iterator[pa.RecordBatch]) -> Written:
        try:
            for topic, table in _chunks(records, self.options):
                found = self.topics.get(topic)
                if found is None:
                    found = self.topics[topic] = _Topic(self, topic)
                found.add(table)
            for each in self.topics.values():
                each.finish()
            return self.done
        finally:
            if self.options.place.data_dir:
                self.way.close()  # the next task may have the directory


class _Topic:
    """Where a task's chunks for one topic go, and how many are on their way.

    Chunks take turns over a few producers (lanes), each with at most one chunk under way: what the broker says is the
    last of a lane proves that all before it in that lane are there, even when it refused one in between and took
    another lane's.
    """

    def __init__(self, task: _Task, name: str) -> None:
        self.task = task
        self.name = name
        if task.options.create:
            task.way.call("topic.ensure", topic=name)
        there = task.way.call("topic.producers", topic=name, producer_ids=task.producers)
        self.partitions: int = there["partitions"]
        self.last = [{int(index): last for index, last in lane.items()} for lane in there["sequences"]]
        self.chunk = 0
        self.digest = xxh3_64()
        self.waiting: deque[tuple[int, int, Batch, Any]] = deque()

    def add(self, table: pa.Table) -> None:
        """Publish a chunk, unless it is there already."""
        from headrace.batch import encode_arrow

        task, chunk = self.task, self.chunk
        if chunk >= 1 << _CHUNK_BITS:
            raise InvalidArgument(
                f"a task writes more than {1 << _CHUNK_BITS} chunks into {self.name!r}: repartition() into more tasks"
            )
        self.chunk += 1
        lane = chunk % _LANES
        batch = encode_arrow(table)
        number = digest = 0
        if task.options.idempotent:
            for piece in batch.buffers()[1:]:
                self.digest.update(piece)
            number, digest = task.first_number + chunk, self.digest.intdigest() & _DIGEST
            batch = batch.from_producer(task.producers[lane], number << _DIGEST_BITS | digest)
        task.done.rows += batch.count
        task.done.chunks += 1
        while self.waiting and self.waiting[0][0] <= chunk - _LANES:
            self._confirm()
        for index, part in self._routed(batch):
            known, other = divmod(self.last[lane].get(index, 0), 1 << _DIGEST_BITS)
            if not number or known < number:
                self._send(chunk, index, part)
                continue
            if known == number and other != digest:
                raise self._conflict(
                    f"chunk {chunk} for partition {index} of {self.name!r} was written with other rows"
                )
            task.done.repeated += part.count

    def _routed(self, batch: Batch) -> list[tuple[int, Batch]]:
        count = self.partitions
        own = self.task.partition % count
        hashes = batch.key_hashes() if count > 1 else None
        if hashes is None:
            return [(own, batch)]
        shares: dict[int, list[int]] = {}
        for i, key in enumerate(hashes):
            shares.setdefault(key % count if key else own, []).append(i)
        return [(index, batch.select(indexes)) for index, indexes in sorted(shares.items())]

    def _send(self, chunk: int, index: int, batch: Batch) -> None:
        namespace = self.task.options.place.namespace
        pending = self.task.way.do(lambda port: port.publish_begin(namespace, self.name, index, batch))
        self.waiting.append((chunk, index, batch, pending))

    def _confirm(self) -> None:
        """Wait for the oldest; it is sent again when it was refused for now or the connection broke."""
        _, index, batch, pending = self.waiting.popleft()
        namespace = self.task.options.place.namespace
        again = False

        def result(port: Port) -> None:
            nonlocal again
            if again:
                port.publish(namespace, self.name, index, batch)
            else:
                again = True
                pending.result()

        try:
            self.task.way.do(result)
        except DuplicateConflict as error:
            raise self._conflict(error.message) from None

    def _conflict(self, why: str) -> DuplicateConflict:
        return DuplicateConflict(
            f"{why}. A batch that is written again must have the same rows in the same order; after a shuffle, sort"
            " within partitions before writing, or give a dedup_id column and idempotent=false"
        )

    def finish(self) -> None:
        """Until all of it is durable."""
        while self.waiting:
            self._confirm()
        first = self.task.first_number
        for lane in self.last:
            for sequence in lane.values():
                number = sequence >> _DIGEST_BITS
                if first + self.chunk <= number < first + (1 << _CHUNK_BITS):
                    raise self._conflict(
                        f"{self.name!r} has {number - first + 1} chunks of this write from before, and now there are"
                        f" {self.chunk}"
                    )


def _chunks(records: Iterator[pa.RecordBatch], options: WriteOptions) -> Iterator[tuple[str, pa.Table]]:
    """Rows by topic, in chunks of the same sizes however Spark cuts its records."""
    import pyarrow as pa

    held: dict[str, list[pa.Table]] = {}
    rows: dict[str, int] = {}
    most = options.batch_rows
    for record in records:
        if not record.num_rows:
            continue
        for topic, table in _by_topic(pa.Table.from_batches([record]), options):
            content = _content(table)
            held.setdefault(topic, []).append(content)
            rows[topic] = rows.get(topic, 0) + content.num_rows
            if rows[topic] < most:
                continue
            whole = pa.concat_tables(held[topic])
            full = whole.num_rows - whole.num_rows % most
            for first in range(0, full, most):
                yield from _fitting(topic, whole.slice(first, most))
            rest = whole.slice(full)
            held[topic], rows[topic] = ([rest], rest.num_rows) if rest.num_rows else ([], 0)
    for topic in sorted(held):
        if held[topic]:
            yield from _fitting(topic, pa.concat_tables(held[topic]))


def _fitting(topic: str, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Halved until the bytes fit a batch; the same rows always give the same halves."""
    from headrace.limits import CLIENT_BATCH_BYTES

    if table.num_rows > 1 and table.nbytes > CLIENT_BATCH_BYTES:
        middle = table.num_rows // 2
        yield from _fitting(topic, table.slice(0, middle))
        yield from _fitting(topic, table.slice(middle))
    else:
        yield topic, table


def _by_topic(table: pa.Table, options: WriteOptions) -> list[tuple[str, pa.Table]]:
    import pyarrow.compute as pc

    if options.topic is not None:
        return [(options.topic, table)]
    topics = table.column("topic")
    if topics.null_count:
        raise InvalidArgument(f"{topics.null_count} rows have no topic")
    names = sorted(pc.unique(topics).to_pylist())
    if len(names) == 1:
        return [(names[0], table)]
    return [(name, table.filter(pc.equal(topics, name))) for name in names]


def _content(table: pa.Table) -> pa.Table:
    """The columns of a batch, under its names."""
    import pyarrow as pa
    import pyarrow.compute as pc

    given: dict[str, Any] = {}
    names = table.column_names
    for name in ("value", "key", "dedup_id"):
        if name in names:
            column = table.column(name)
            given[name] = column.cast(pa.binary()) if column.type != pa.binary() else column
    missing = given["value"].null_count
    if missing:
        raise InvalidArgument(f"{missing} rows have no value; a message without a body has an empty one")
    if "headers" in names:
        given["headers"] = table.column("headers")
    if "priority" in names:
        given["priority"] = _priorities(table.column("priority"))
    for name, column_name in (("delay_ms", "delay_ns"), ("ttl_ms", "ttl_ns")):
        if name in names:
            given[column_name] = pc.multiply(table.column(name).cast(pa.int64()), 1_000_000)
    for name, column_name in (
        ("deliver_at", "deliver_at_ns"),
        ("expires_at", "expires_at_ns"),
        ("timestamp", "timestamp_ns"),
    ):
        if name in names:
            given[column_name] = table.column(name)
    return pa.table(given)


def _priorities(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    bounds = pc.min_max(column).as_py()
    if bounds["min"] is not None and (bounds["min"] < 0 or bounds["max"] > 9):
        raise InvalidArgument(f"priorities from {bounds['min']} to {bounds['max']}: must be 0 to 9")
    return column.cast(pa.uint8())
