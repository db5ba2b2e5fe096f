"""Gold: the figures people look at. The functions are those of the jobs."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from headrace.spark.transforms.deaths import by_kind
from headrace.spark.transforms.deliveries import by_message, lives
from headrace.spark.transforms.latency import quantiles


@dp.materialized_view(
    comment="messages and bytes a minute",
    schema="topic string, minute timestamp, messages bigint, bytes bigint, quarantined bigint",
)
def gold_rates() -> DataFrame:
    spark = SparkSession.active()
    fine = spark.read.table("silver_messages").select("topic", "timestamp", "bytes", f.lit(0).alias("wrong"))
    wrong = spark.read.table("silver_quarantine").select(
        "topic", "timestamp", f.length("value").alias("bytes"), f.lit(1).alias("wrong")
    )
    minute = f.date_trunc("minute", "timestamp").alias("minute")
    return fine.unionByName(wrong).groupBy("topic", minute).agg(
        f.count("*").alias("messages"),
        f.sum("bytes").cast("bigint").alias("bytes"),
        f.sum("wrong").cast("bigint").alias("quarantined"),
    )  # fmt: skip


@dp.materialized_view(
    comment="how long messages take, as quantiles a minute and stage",
    schema="topic string, group string, minute timestamp, stage string, messages bigint, p50_ms double, p90_ms double,"
    " p99_ms double, max_ms double",
)
def gold_latency() -> DataFrame:
    return quantiles(lives(by_message(SparkSession.active().read.table("bronze_events"))))


@dp.materialized_view(
    comment="why things die",
    schema="topic string, group string, reason string, error string, consumer string, hour timestamp, deaths bigint",
)
def gold_deaths() -> DataFrame:
    letters = (
        SparkSession.active().read.table("bronze_dead_letters").withColumn("standing", f.lit(None).cast("boolean"))
    )
    return by_kind(letters).select("topic", "group", "reason", "error", "consumer", "hour", "deaths")
