"""Events, one row a fact, as one row a message's delivery and one row a message's life in a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["by_message", "deliveries", "lives"]

_ENDS: Final = ("acked", "retried", "released", "died", "expired", "dropped")
FINAL: Final = ("acked", "died", "expired", "dropped")
_OF_MESSAGES: Final = ("published", "due", "moved", "cancelled", "leased", "extended", *_ENDS)
_MESSAGE: Final = ("topic", "partition", "offset")


def by_message(events: DataFrame) -> DataFrame:
    """The facts that are about messages, a row each message: a lease of a hundred becomes a hundred rows."""
    about = f.coalesce(f.col("offsets"), f.sequence("first_offset", "last_offset"))
    return (
        events.where(f.col("event").isin(*_OF_MESSAGES) & f.col("first_offset").isNotNull())
        .where(f.col("last_offset").isNotNull())
        .select(
            "topic", "partition", "group", "event", "consumer", "attempt", "reason", "error", "until_ns", "at_ns",
            "position", f.explode(about).alias("offset"),
        )
    )  # fmt: skip


def deliveries(messages: DataFrame) -> DataFrame:
    """One row a delivery: who had it from when to when and what came of it (null: it is still held)."""
    rows = messages.where(f.col("event").isin("leased", *_ENDS) & f.col("group").isNotNull())
    # A lease and its end may share a position only when both are in one frame, leased first.
    order = Window.partitionBy(*_MESSAGE, "group").orderBy("position", (f.col("event") != "leased").cast("int"))
    following = {
        name: f.lead(name).over(order) for name in ("event", "at_ns", "reason", "error", "attempt", "until_ns")
    }
    return (
        rows.select(
            *_MESSAGE, "group", "event", "consumer", "position",
            f.col("at_ns").alias("delivered_ns"), f.col("until_ns").alias("deadline_ns"),
            following["event"].alias("ended"), following["at_ns"].alias("ended_ns"),
            following["reason"].alias("reason"), following["error"].alias("error"),
            following["attempt"].alias("attempts"), following["until_ns"].alias("retry_ns"),
        )
        .where("event = 'leased'")
        .drop("event")
        .withColumn("ended", f.when(f.col("ended") != "leased", f.col("ended")))
        .withColumn("ended_ns", f.when(f.col("ended").isNotNull(), f.col("ended_ns")))
        .withColumn("hold_ms", (f.col("ended_ns") - f.col("delivered_ns")) / 1e6)
    )  # fmt: skip


def lives(messages: DataFrame) -> DataFrame:
    """One row a message in a group that had to do with it: when it was due, delivered and settled, and how it ended."""
    origin = messages.where(f.col("event").isin("published", "due", "moved")).groupBy(*_MESSAGE).agg(
        f.min(f.when(f.col("event") == "published", f.col("at_ns"))).alias("published_ns"),
        f.max(f.when(f.col("event") == "due", f.col("at_ns"))).alias("due_ns"),
    )  # fmt: skip
    is_final = f.col("event").isin(*FINAL)
    leased = f.col("event") == "leased"
    fates = messages.where(f.col("group").isNotNull()).groupBy(*_MESSAGE, "group").agg(
        f.min(f.when(leased, f.col("at_ns"))).alias("first_ns"),
        f.max(f.when(leased, f.col("at_ns"))).alias("last_ns"),
        f.count(f.when(leased, f.lit(1))).alias("deliveries"),
        f.count(f.when(f.col("event") == "retried", f.lit(1))).alias("retries"),
        f.max_by(f.when(is_final, f.col("event")), f.when(is_final, f.col("position"))).alias("outcome"),
        f.max(f.when(is_final, f.col("at_ns"))).alias("settled_ns"),
        f.max_by("consumer", f.when(f.col("consumer").isNotNull(), f.col("position"))).alias("consumer"),
        f.max_by("reason", f.when(f.col("reason").isNotNull(), f.col("position"))).alias("reason"),
        f.max_by("error", f.when(f.col("error").isNotNull(), f.col("position"))).alias("error"),
    )  # fmt: skip
    ready = f.greatest("published_ns", f.coalesce("due_ns", "published_ns"))
    return (
        fates.join(origin, list(_MESSAGE), "left")
        .withColumn("ready_ns", ready)
        .withColumn("deliver_ms", (f.col("first_ns") - f.col("ready_ns")) / 1e6)
        .withColumn("ack_ms", f.when(f.col("outcome") == "acked", (f.col("settled_ns") - f.col("last_ns")) / 1e6))
        .withColumn("whole_ms", f.when(f.col("outcome") == "acked", (f.col("settled_ns") - f.col("ready_ns")) / 1e6))
    )
