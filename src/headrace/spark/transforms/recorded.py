"""Events and messages as a simulation needs them: all that concerns one group of one topic, in order, in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["COLUMNS", "traffic"]

COLUMNS: Final = (
    "topic", "group", "event", "partition", "offset", "consumer", "lease_id", "reason", "error", "until_ns", "at_ns",
    "position", "key", "priority",
)  # fmt: skip
_TOPICS: Final = ("published", "due", "lapsed", "cancelled")
"""Facts about a message that hold for every group."""
_GROUPS: Final = ("leased", "acked", "retried", "released", "extended", "died", "expired", "dropped")
_STANDING: Final = ("group_paused", "group_resumed")


def traffic(events: DataFrame, messages: DataFrame) -> DataFrame:
    """One row a fact and message, for each group; published rows have the message's key and priority."""
    about = f.coalesce(f.col("offsets"), f.sequence("first_offset", "last_offset"))
    each = events.where(f.col("event").isin(*_TOPICS, *_GROUPS) & f.col("last_offset").isNotNull()).select(
        "topic", "group", "event", "partition", f.explode(about).alias("offset"), "consumer", "lease_id", "reason",
        "error", "until_ns", "at_ns", "position",
    )  # fmt: skip
    groups = events.where("group is not null").select("topic", f.col("group").alias("mine")).distinct()
    everywhere = each.where("group is null").join(groups, "topic").drop("group").withColumnRenamed("mine", "group")
    content = messages.select("topic", "partition", "offset", "key", "priority")
    published = everywhere.where("event = 'published'").join(content, ["topic", "partition", "offset"], "left")
    none = [f.lit(None).cast("binary").alias("key"), f.lit(None).cast("int").alias("priority")]
    others = everywhere.where("event <> 'published'").unionByName(each.where("group is not null"))
    standing = events.where(f.col("event").isin(*_STANDING)).select(
        "topic", "group", "event", "partition", f.col("first_offset").alias("offset"), "consumer", "lease_id",
        "reason", "error", "until_ns", "at_ns", "position",
    )  # fmt: skip
    rest = others.unionByName(standing).select("*", *none)
    return published.unionByName(rest).select(*COLUMNS)
