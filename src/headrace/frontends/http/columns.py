"""Batches as one Arrow IPC stream. Imported only when columns are asked for.

The stream has one schema, every column in it, nulls where a batch lacks one:

    partition int32 · offset id append_time_ns int64 · key value dedup_id binary · headers map<string, binary>
    header_kinds list<uint8> · priority uint8 · deliver_at_ns expires_at_ns timestamp_ns int64

A large batch becomes a record batch over its own memory. Arrow's price is per record batch, so small ones are put
together row by row.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from headrace.batch import Batch
from headrace.limits import HTTP_STREAM_BYTES

__all__ = ["SCHEMA", "ArrowWriter"]

_INT64: Final = pa.int64()
_BINARY: Final = pa.binary()
_KINDS: Final = pa.list_(pa.field("kind", pa.uint8(), nullable=False))

SCHEMA: Final = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", _INT64, nullable=False),
        pa.field("id", _INT64, nullable=False),
        pa.field("append_time_ns", _INT64, nullable=False),
        pa.field("key", _BINARY),
        pa.field("value", _BINARY, nullable=False),
        pa.field("headers", pa.map_(pa.string(), _BINARY)),
        pa.field("header_kinds", _KINDS),
        pa.field("priority", pa.uint8(), nullable=False),
        pa.field("deliver_at_ns", _INT64),
        pa.field("expires_at_ns", _INT64),
        pa.field("dedup_id", _BINARY),
        pa.field("timestamp_ns", _INT64),
    ]
)
_SMALL_MESSAGES: Final = 64
"""Below this a batch is taken apart: making a record batch costs as much as so many rows."""
_ROWS_MAX: Final = 4096
_ROWS_BYTES: Final = 1024 * 1024


class _Sink:
    """What a stream writer writes to: keeps the pieces, without joining them."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[bytes | memoryview] = []
        self.size_bytes = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B") if not isinstance(data, bytes) else data
        self.pieces.append(bytes(view) if len(view) < 4096 else view)
        self.size_bytes += len(view)
        return len(view)

    def flush(self) -> None:
        """There is nothing between us and the pieces."""

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


class ArrowWriter:
    """Takes batches, gives bytes of an IPC stream."""

    portion_bytes = HTTP_STREAM_BYTES

    def __init__(self) -> None:
        self._sink = _Sink()
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._sink, mode="w"), SCHEMA)
        self._rows: list[tuple[Any, ...]] = []
        self._rows_bytes = 0

    @property
    def size_bytes(self) -> int:
        """What is ready to be taken."""
        return self._sink.size_bytes

    def add(self, partition: int, batch: Batch) -> None:
        if batch.count >= _SMALL_MESSAGES:
            self._flush_rows()
            self._writer.write_batch(_wide(partition, batch))
            return
        self._take_apart(partition, batch)
        if len(self._rows) >= _ROWS_MAX or self._rows_bytes >= _ROWS_BYTES:
            self._flush_rows()

    def taken(self) -> list[bytes | memoryview]:
        """The pieces since the last time."""
        pieces, self._sink.pieces, self._sink.size_bytes = self._sink.pieces, [], 0
        return pieces

    def last(self) -> list[bytes | memoryview]:
        """The rest, and the end of the stream."""
        self._flush_rows()
        self._writer.close()
        return self.taken()

    def _take_apart(self, partition: int, batch: Batch) -> None:
        at_ns = batch.append_time_ns
        for message in batch:
            headers = message.headers
            items = [(name, item.encode() if isinstance(item, str) else item) for name, item in headers.items()]
            kinds = [int(not isinstance(item, str)) for item in headers.values()]
            self._rows.append(
                (
                    partition,
                    message.offset,
                    message.id,
                    at_ns,
                    message.key,
                    message.value,
                    items or None,
                    kinds or None,
                    message.priority,
                    message.deliver_at_ns,
                    message.expires_at_ns,
                    message.dedup_id,
                    message.timestamp_ns,
                )
            )
        self._rows_bytes += batch.size_bytes

    def _flush_rows(self) -> None:
        rows, self._rows, self._rows_bytes = self._rows, [], 0
        if rows:
            columns = zip(*rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
            self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))


def _wide(partition: int, batch: Batch) -> pa.RecordBatch:
    """Every column, over the batch's own memory where it has one."""
    rows = batch.to_arrow(identity=True)
    have = {name: rows.column(at) for at, name in enumerate(rows.schema.names)}
    count = batch.count
    have["partition"] = _repeated(partition, pa.int32(), count)
    if "priority" not in have:
        have["priority"] = pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(b"\5" * count)])
    arrays = [have[field.name] if field.name in have else pa.nulls(count, field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _repeated(value: int, kind: pa.DataType, count: int) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(value.to_bytes(4, "little") * count)])
