"""Messages and bytes in windows of time, as a stream or as a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["happened", "rates", "timed"]


def timed(messages: DataFrame, event_time: str | None) -> DataFrame:
    """Topic, size and when it happened: by the broker's stamp, or by a field of the JSON payload (null: none)."""
    if event_time is None:
        at = f.col("timestamp")
    else:
        path = "$." + event_time.lstrip("$.")
        at = f.try_to_timestamp(f.get_json_object(f.decode(f.col("value"), "UTF-8"), path))
    return messages.select("topic", f.length("value").alias("bytes"), at.alias("happened"))


def happened(messages: DataFrame, event_time: str | None, late_ns: int) -> DataFrame:
    """The same with a watermark: what comes later than that is left out, and counted by Spark."""
    return timed(messages, event_time).withWatermark("happened", f"{max(1, late_ns // 1_000_000)} milliseconds")


def rates(rows: DataFrame, window_ns: int) -> DataFrame:
    """Counts a topic and window."""
    width = f"{window_ns // 1_000_000} milliseconds"
    return (
        rows.where("happened is not null")
        .groupBy("topic", f.window("happened", width).alias("span"))
        .agg(f.count("*").alias("messages"), f.sum("bytes").alias("bytes"))
        .select(
            "topic",
            f.col("span.start").alias("window"),
            "messages",
            "bytes",
            (f.col("messages") / (window_ns / 1e9)).alias("messages_per_second"),
            (f.col("bytes") / f.col("messages")).alias("mean_bytes"),
        )
    )
