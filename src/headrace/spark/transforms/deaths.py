"""Why things die: dead letters by kind, and who or what has most of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["by_kind", "general", "offenders", "still_there"]

_NUMBERS: Final = (
    (r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b", "#"),
    (r"\b0x[0-9a-fA-F]+\b", "#"),
    (r"\d+", "#"),
)


def general(error: Column) -> Column:
    """An error's text without what makes each one different: ids and numbers become #; its first 200 characters."""
    for pattern, instead in _NUMBERS:
        error = f.regexp_replace(error, pattern, instead)
    return f.substring(error, 1, 200)


def by_kind(letters: DataFrame) -> DataFrame:
    """Deaths by topic, group, reason, kind of error, consumer and hour. ``letters`` say whether they are ``standing``
    (``still_there``; null: nobody asked)."""
    return (
        letters.withColumn("error", general(f.coalesce("error", f.lit(""))))
        .withColumn("hour", f.date_trunc("hour", "died"))
        .groupBy("topic", "group", "reason", "error", "consumer", "hour")
        .agg(
            f.count("*").alias("deaths"),
            f.count(f.when(f.col("standing"), f.lit(1))).alias("standing"),
            f.approx_count_distinct("key").alias("keys"),
            f.avg("attempts").alias("mean_attempts"),
            f.min("died").alias("first_died"),
            f.max("died").alias("last_died"),
            f.min("id").alias("example_id"),
        )
        .orderBy(f.desc("deaths"), "topic", "group", "reason", "error", "consumer", "hour")
    )


def offenders(letters: DataFrame, top: int) -> DataFrame:
    """The errors, keys and consumers with most deaths, and their share of all."""
    total = f.lit(max(1, letters.count()))
    kinds: dict[str, Any] = {
        "error": general(f.coalesce("error", f.lit(""))),
        "key": f.decode(f.col("key"), "UTF-8"),
        "consumer": f.col("consumer"),
    }
    found = None
    for kind, name in kinds.items():
        rows = (
            letters.groupBy(name.alias("name"), "topic")
            .agg(f.count("*").alias("deaths"))
            .where("name is not null and name <> ''")
            .orderBy(f.desc("deaths"), "name", "topic")
            .limit(top)
            .select(f.lit(kind).alias("kind"), "name", "topic", "deaths", (f.col("deaths") / total).alias("share"))
        )
        found = rows if found is None else found.unionAll(rows)
    assert found is not None  # noqa: S101 # there are kinds
    return found.orderBy("kind", f.desc("deaths"), "name")


def still_there(letters: DataFrame, there: dict[tuple[str, int], bytes]) -> DataFrame:
    """Say of each letter whether it still waits (``standing``): neither redriven, purged nor settled.

    ``there``: for (dead_topic, partition) the offsets that are, as a serialized 64-bit Roaring bitmap.
    """
    from collections.abc import Iterator

    import pyarrow as pa

    def work(records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyroaring import BitMap64

        known = {place: BitMap64.deserialize(content) for place, content in there.items()}
        nothing = BitMap64()
        for record in records:
            names = ("dead_topic", "partition")
            places = list(zip(*[record.column(name).to_pylist() for name in names], strict=True))
            offsets = record.column("offset").to_pylist()
            if len(set(places)) == 1:  # as nearly always: the letters of a topic lie in one place
                waiting = known.get(places[0], nothing)
                stands = [offset in waiting for offset in offsets]
            else:
                stands = [offset in known.get(place, nothing) for place, offset in zip(places, offsets, strict=True)]
            yield record.append_column("standing", pa.array(stands, pa.bool_()))

    from pyspark.sql.types import BooleanType, StructField, StructType

    schema = StructType([*letters.schema.fields, StructField("standing", BooleanType())])
    return letters.mapInArrow(work, schema)
