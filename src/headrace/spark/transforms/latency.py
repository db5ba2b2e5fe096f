"""How long messages take and who takes long, from their lives and deliveries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["books", "consumers", "quantiles"]

_STAGES: Final = {"deliver": "deliver_ms", "ack": "ack_ms", "whole": "whole_ms"}
_ACCURACY: Final = 10_000


def _minute(ns: str) -> Column:
    return f.timestamp_seconds(f.floor(f.col(ns) / 60_000_000_000) * 60)


def _quantile(name: str, share: float) -> Column:
    return f.percentile_approx(name, share, _ACCURACY)


def quantiles(lives: DataFrame) -> DataFrame:
    """Per topic, group and minute in which messages were due: how long until delivered, until acked, as a whole."""
    stages = f.explode(
        f.array(*[f.struct(f.lit(name).alias("stage"), f.col(column).alias("ms")) for name, column in _STAGES.items()])
    )
    rows = lives.where("ready_ns is not null").select("topic", "group", _minute("ready_ns").alias("minute"), stages)
    return (
        rows.select("topic", "group", "minute", "col.stage", "col.ms")
        .where("ms is not null")
        .groupBy("topic", "group", "minute", "stage")
        .agg(
            f.count("*").alias("messages"),
            *[_quantile("ms", share).alias(f"p{share * 100:.0f}_ms") for share in (0.5, 0.9, 0.99)],
            f.max("ms").alias("max_ms"),
        )
        .orderBy("topic", "group", "minute", "stage")
    )


def consumers(deliveries: DataFrame, *, now_ns: int, slow: float, stuck_ns: int) -> DataFrame:
    """One row a consumer. Slow: its median hold is ``slow`` times that of the group's median consumer, and above 1 ms.
    Stuck: it holds a message for ``stuck_ns``, or more than half of what it had ran out."""
    ended = f.col("ended")

    def count(of: Any) -> Column:
        return f.count(f.when(of, f.lit(1)))

    ran_out = (ended == "retried") & (f.col("reason") == "lease_expired") | (
        (ended == "died") & (f.col("ended_ns") >= f.col("deadline_ns"))
    )
    rows = deliveries.groupBy("topic", "group", "consumer").agg(
        f.count("*").alias("delivered"),
        count(ended == "acked").alias("acked"),
        count(ended.isin("retried", "died")).alias("failed"),
        count(ran_out).alias("ran_out"),
        count(ended == "released").alias("released"),
        count(ended.isNull()).alias("holding"),
        _quantile("hold_ms", 0.5).alias("p50_ms"),
        _quantile("hold_ms", 0.99).alias("p99_ms"),
        ((f.lit(now_ns) - f.min(f.when(ended.isNull(), f.col("delivered_ns")))) / 1e6).alias("oldest_held_ms"),
        f.timestamp_micros((f.max(f.coalesce("ended_ns", "delivered_ns")) / 1000).cast("bigint")).alias("last_seen"),
    )
    usual = rows.groupBy("topic", "group").agg(f.percentile("p50_ms", 0.5).alias("usual_ms"))
    is_stuck = (f.col("oldest_held_ms") >= stuck_ns / 1e6) | (f.col("ran_out") * 2 > f.col("delivered"))
    is_slow = (f.col("p50_ms") > slow * f.col("usual_ms")) & (f.col("p50_ms") > 1)
    verdict = f.when(is_stuck, "stuck").when(is_slow, "slow").otherwise("ok")
    return rows.join(usual, ["topic", "group"]).withColumn("verdict", verdict).orderBy("topic", "group", "consumer")


_BOOKS: Final = {
    "delivered": "leased", "acked": "acked", "retried": "retried", "released": "released", "dead": "died",
    "expired": "expired", "dropped": "dropped",
}  # fmt: skip


def books(events: DataFrame) -> DataFrame:
    """Per topic, group and day: what happened to how many messages. What a topic got, each of its groups got."""
    day = f.to_date(f.timestamp_seconds(f.col("at_ns") / 1e9))
    counted = events.where(f.col("count") > 0).withColumn("day", day)

    def total(event: str) -> Column:
        return f.coalesce(f.sum(f.when(f.col("event") == event, f.col("count"))), f.lit(0))

    by_topic = counted.where("group is null").groupBy("topic", "day").agg(
        total("published").alias("published"), total("cancelled").alias("cancelled")
    )  # fmt: skip
    by_group = counted.where("group is not null").groupBy("topic", "group", "day").agg(
        *[total(event).alias(name) for name, event in _BOOKS.items()]
    )  # fmt: skip
    groups = events.where("group is not null").select("topic", "group").distinct()
    days = by_topic.select("topic", "day").union(by_group.select("topic", "day")).distinct()
    joined = groups.join(days, "topic").join(by_topic, ["topic", "day"], "left")
    return (
        joined.join(by_group, ["topic", "group", "day"], "left")
        .fillna(0, ["published", "cancelled", *_BOOKS])
        .orderBy("topic", "group", "day")
    )
