"""Which messages are meant: the filters that replay and redrive share, and sets of offsets as bitmaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as f

from headrace.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

__all__ = ["bitmaps", "filtered", "only", "runs_of"]


def filtered(
    rows: DataFrame,
    *,
    where: str | None = None,
    key_prefix: str | None = None,
    headers: Sequence[str] = (),
    equal: dict[str, Any] | None = None,
    error: str | None = None,
    min_attempts: int | None = None,
) -> DataFrame:
    """Rows that are as asked; an expression that cannot be is refused with the columns there are."""
    if where is not None:
        try:
            rows = rows.where(where)
            _ = rows.schema
        except (AnalysisException, ParseException) as error_:
            first = str(error_).strip().splitlines()[0]
            raise InvalidArgument(f"--where {where!r}: {first}; the columns are {', '.join(rows.columns)}") from None
    if key_prefix is not None:
        rows = rows.where(f.col("key").startswith(f.lit(key_prefix.encode())))
    for header in headers:
        name, equals, value = header.partition("=")
        found = f.element_at("headers", f.lit(name))
        rows = rows.where(found == f.lit(value.encode()) if equals else found.isNotNull())
    for column, value in (equal or {}).items():
        if value is not None:
            rows = rows.where(f.col(column) == f.lit(value))
    if error is not None:
        rows = rows.where(_contains("error", error))
    if min_attempts is not None:
        rows = rows.where(f.col("attempts") >= min_attempts)
    return rows


def _contains(column: str, text: str) -> Column:
    return f.contains(f.col(column), f.lit(text))


def bitmaps(rows: DataFrame, topic: str = "topic") -> dict[tuple[str, int], bytes]:
    """The offsets of rows as serialized 64-bit Roaring bitmaps, by topic and partition. A million take kilobytes."""

    def work(records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyroaring import BitMap64

        found: dict[tuple[str, int], BitMap64] = {}
        for record in records:
            table = pa.Table.from_batches([record])
            for name in pc.unique(table.column(0)).to_pylist():
                mine = table.filter(pc.equal(table.column(0), name))
                for index in pc.unique(mine.column(1)).to_pylist():
                    offsets = mine.filter(pc.equal(mine.column(1), index)).column(2)
                    found.setdefault((name, index), BitMap64()).update(offsets.to_pylist())
        yield pa.RecordBatch.from_pydict(
            {
                "topic": [name for name, _ in found],
                "partition": [index for _, index in found],
                "offsets": [bitmap.serialize() for bitmap in found.values()],
            },
            schema=pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offsets", pa.binary())]),
        )

    from pyroaring import BitMap64

    whole: dict[tuple[str, int], BitMap64] = {}
    told = rows.select(f.col(topic).alias("topic"), "partition", "offset").mapInArrow(
        work, "topic string, partition int, offsets binary"
    )
    for row in told.collect():
        place = (row.topic, row.partition)
        bitmap = BitMap64.deserialize(bytes(row.offsets))
        whole[place] = whole[place] | bitmap if place in whole else bitmap
    return {place: bitmap.serialize() for place, bitmap in sorted(whole.items())}


def only(rows: DataFrame, chosen: dict[tuple[str, int], bytes]) -> DataFrame:
    """Rows whose place is in the bitmaps, in the order they have: no shuffle."""

    def work(records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyroaring import BitMap64

        known = {place: BitMap64.deserialize(content) for place, content in chosen.items()}
        nothing = BitMap64()
        for record in records:
            places = zip(*[record.column(name).to_pylist() for name in ("topic", "partition", "offset")], strict=True)
            mask = [offset in known.get((topic, partition), nothing) for topic, partition, offset in places]
            yield record.filter(pa.array(mask, pa.bool_()))

    return rows.mapInArrow(work, rows.schema)


def runs_of(bitmap: bytes, partition: int) -> Iterator[list[int]]:
    """A bitmap as runs [partition, first, count]."""
    from pyroaring import BitMap64

    first = count = -1
    for offset in BitMap64.deserialize(bitmap):
        if count > 0 and offset == first + count:
            count += 1
            continue
        if count > 0:
            yield [partition, first, count]
        first, count = offset, 1
    if count > 0:
        yield [partition, first, count]
