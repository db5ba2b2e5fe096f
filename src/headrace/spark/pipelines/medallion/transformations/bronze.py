"""Bronze: what the broker has, as it came. Nothing is dropped and nothing is changed here.

One flow a table: two append flows into one Parquet table share one metadata log and lose rows.
"""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession


def options() -> dict[str, str]:
    """Where the broker is and which topics are meant, as the pipeline's configuration says."""
    conf = SparkSession.active().conf
    found = {name: conf.get(f"headrace.{name}") for name in ("server", "namespace", "subscribe")}
    token = os.environ.get("HEADRACE_TOKEN", "")
    return {**found, **({"token": token} if token else {})}


@dp.table(
    comment="messages as they came",
    schema="key binary, value binary, headers map<string,binary>, namespace string, topic string, partition int,"
    " offset bigint, timestamp timestamp, id bigint, priority int",
)
def bronze_messages() -> DataFrame:
    reader = SparkSession.active().readStream.format("headrace").options(**options())
    return reader.option("startingOffsets", "earliest").load()


@dp.materialized_view(
    comment="what happened to messages: one row a fact",
    schema="namespace string, topic string, timestamp timestamp, event string, partition int, group string,"
    " consumer string, lease_id bigint, first_offset bigint, last_offset bigint, count bigint,"
    " offsets array<bigint>, attempt int, reason string, error string, until_ns bigint, first_id bigint,"
    " to_topic string, to_partition int, to_offset bigint, position bigint, at_ns bigint",
)
def bronze_events() -> DataFrame:
    return SparkSession.active().read.format("headrace").options(**options(), table="events").load()


@dp.materialized_view(
    comment="dead letters with where they came from and why they died",
    schema="namespace string, topic string, group string, reason string, error string, attempts int, consumer string,"
    " died timestamp, key binary, value binary, id bigint",
)
def bronze_dead_letters() -> DataFrame:
    letters = SparkSession.active().read.format("headrace").options(**options(), table="dead_letters").load()
    return letters.select(
        "namespace", "topic", "group", "reason", "error", "attempts", "consumer", "died", "key", "value", "id"
    )
