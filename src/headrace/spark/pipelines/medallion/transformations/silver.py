"""Silver: parsed, each message once, and what could not be parsed beside it."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f


def parsed(messages: DataFrame) -> DataFrame:
    """Messages with their payload as text, null where it is no JSON object."""
    text = f.decode(f.col("value"), "UTF-8")
    is_object = f.get_json_object(text, "$").startswith("{")
    return messages.withColumn("payload", f.when(is_object, text))


@dp.materialized_view(
    comment="payloads that are JSON objects, each message once",
    schema="topic string, partition int, offset bigint, timestamp timestamp, id bigint, key string, payload string,"
    " priority int, bytes int",
)
def silver_messages() -> DataFrame:
    # Grouped, and not with dropDuplicates: that one asks for the columns of a table that is not there yet.
    rows = parsed(SparkSession.active().read.table("bronze_messages")).where("payload is not null")
    once = {
        "timestamp": f.col("timestamp"),
        "id": f.col("id"),
        "key": f.decode(f.col("key"), "UTF-8"),
        "payload": f.col("payload"),
        "priority": f.col("priority"),
        "bytes": f.length("value"),
    }
    return rows.groupBy("topic", "partition", "offset").agg(*[f.first(each).alias(name) for name, each in once.items()])


@dp.table(
    comment="payloads that are not",
    schema="topic string, partition int, offset bigint, timestamp timestamp, id bigint, key binary, value binary,"
    " problem string",
)
def silver_quarantine() -> DataFrame:
    rows = parsed(SparkSession.active().readStream.table("bronze_messages")).where("payload is null")
    problem = f.lit("is no JSON object").alias("problem")
    return rows.select("topic", "partition", "offset", "timestamp", "id", "key", "value", problem)
