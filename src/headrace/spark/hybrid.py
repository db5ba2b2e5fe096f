"""A log as a DataFrame in two parts: sealed files by Spark's own Parquet reader, the live rest from the broker.

Spark's reader prunes columns and row groups in the JVM, which a data source in Python cannot; it needs to reach the
files, so it is used when the driver does. The files that are live when this is called are the ones that are read: the
broker keeps a replaced file for a while, and what comes later is not part of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.spark.files import exists
from headrace.spark.options import ReadOptions
from headrace.spark.plan import Segment, Split
from headrace.spark.rows import Layout, columns_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read"]

_STORED = ("key", "value", "headers", "offset", "timestamp", "id", "priority")


def read(spark: SparkSession, **options: Any) -> DataFrame:
    """A batch DataFrame with the columns of ``format("headrace")``; ``options`` are its options.

    ``read(spark, server="headrace://127.0.0.1:7420", subscribe="orders").where("timestamp > …")``
    """
    given = {name: _text(value) for name, value in options.items()}
    push = spark.conf.get("spark.sql.python.filterPushdown.enabled", "false") == "true"
    parsed = ReadOptions.parse(given, streaming=False)
    if parsed.table is not None or not parsed.sealed:
        return spark.read.format("headrace").options(**given).load()
    from headrace.spark.log_reader import window

    names = columns_for(
        headers=parsed.include_headers, queue=False, gaps=not parsed.fail_on_data_loss, chosen=parsed.columns
    )
    splits = window(parsed, Layout(names))
    files, ranges = _reached(splits)
    if not files:
        return spark.read.format("headrace").options(**given, pushFilters=_text(push)).load()
    frames = [_sealed(spark, names, parsed, key, found, *ranges[key]) for key, found in sorted(files.items())]
    live = _live(splits, ranges)
    if live is not None:
        start, end = live
        rest = {
            name: value
            for name, value in given.items()
            if not name.lower().startswith(("starting", "ending", "subscribe", "assign"))
        }
        rest |= {"assign": _text(_indexes(end)), "startingOffsets": _text(start), "endingOffsets": _text(end)}
        frames.append(
            spark.read.format("headrace").options(**rest, sealedFiles="false", pushFilters=_text(push)).load()
        )
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    return whole


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        import json

        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, list | tuple) else str(value)


Key = tuple[str, int]


def _reached(splits: list[Split]) -> tuple[dict[Key, list[Segment]], dict[Key, tuple[int, int]]]:
    """The files of each partition that the driver reaches, from the first on without a hole, and what they cover."""
    files: dict[Key, list[Segment]] = {}
    ranges: dict[Key, tuple[int, int]] = {}
    for split in splits:
        at = split.first + split.lost
        found = []
        for file in split.files:
            if file.first > at or not exists(file.uri):
                break
            found.append(file)
            at = min(file.end, split.end)
        if found and not split.lost:
            files[split.topic, split.partition] = found
            ranges[split.topic, split.partition] = (split.first, at)
    return files, ranges


def _sealed(
    spark: SparkSession,
    names: tuple[str, ...],
    options: ReadOptions,
    key: Key,
    files: list[Segment],
    first: int,
    end: int,
) -> DataFrame:
    from pyspark.sql import functions as f

    same = {
        "namespace": f.lit(options.place.namespace),
        "topic": f.lit(key[0]),
        "partition": f.lit(key[1]).cast("int"),
        "lost": f.lit(None).cast("bigint"),
    }
    whole = files[0].first >= first and files[-1].end <= end
    stored = [name for name in _STORED if name in names or (name == "offset" and not whole)]
    # With a schema Spark opens no file to find out what is in it. All columns may be null, as the data source has them.
    frame = spark.read.schema(Layout(stored).ddl).parquet(*[file.uri for file in files])
    if not whole:
        frame = frame.where((f.col("offset") >= first) & (f.col("offset") < end))
    return frame.select(*[f.col(name) if name in _STORED else same[name].alias(name) for name in names])


def _live(
    splits: list[Split], ranges: dict[Key, tuple[int, int]]
) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]] | None:
    start: dict[str, dict[str, int]] = {}
    end: dict[str, dict[str, int]] = {}
    for split in splits:
        first = ranges.get((split.topic, split.partition), (0, split.first))[1]
        if first < split.end:
            start.setdefault(split.topic, {})[str(split.partition)] = first
            end.setdefault(split.topic, {})[str(split.partition)] = split.end
    return (start, end) if end else None


def _indexes(end: dict[str, dict[str, int]]) -> dict[str, list[int]]:
    return {topic: [int(index) for index in parts] for topic, parts in end.items()}
