"""Batches as one Arrow table. Imported only when columns are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from headrace.batch import Batch

__all__ = ["table_of"]

_EMPTY = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("offset", pa.int64()),
        pa.field("id", pa.int64()),
        pa.field("append_time_ns", pa.int64()),
        pa.field("partition", pa.int32()),
    ]
)


def table_of(pieces: Iterable[tuple[int, Batch, Mapping[int, int] | None]]) -> pa.Table:
    """(partition, batch, attempts or None) one after another; a column that some lack is null there."""
    tables = []
    with_attempts = False
    for partition, batch, attempts in pieces:
        rows = batch.to_arrow(identity=True)
        table = pa.Table.from_batches([rows])
        table = table.append_column("partition", pa.array([partition], pa.int32()).take(_zeros(batch.count)))
        if attempts is not None:
            with_attempts = True
            if attempts:
                numbers = pa.array([attempts.get(offset, 1) for offset in batch.offsets()], pa.int32())
            else:
                numbers = pa.array([1], pa.int32()).take(_zeros(batch.count))
            table = table.append_column("attempt", numbers)
        tables.append(table)
    if not tables:
        return (_EMPTY.append(pa.field("attempt", pa.int32())) if with_attempts else _EMPTY).empty_table()
    if len({table.schema for table in tables}) == 1:
        return pa.concat_tables(tables)
    return pa.concat_tables(tables, promote_options="default")


def _zeros(count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int8(), count, [None, pa.py_buffer(bytes(count))], 0)
