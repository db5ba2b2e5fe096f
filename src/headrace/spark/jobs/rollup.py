"""Messages and bytes a window as a stream, and what groups lag behind.

Every micro-batch writes the windows it changed, as they are now, under its own number: a batch that comes again writes
the same file again. The table ``rates`` is made of the newest row of each window at the end of a run.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from headrace.spark.jobs.plot import lines
from headrace.spark.jobs.report import Report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.spark.jobs.run import Run

__all__ = ["rollup"]

_UPDATES = "_rates"
_LAGS = "_lag"


def rollup(run: Run) -> Report:
    """Tables rates and lag; goes on from its checkpoint."""
    from pyspark.sql import functions as f

    from headrace.spark.transforms.traffic import happened, rates, timed

    report = Report(run.job.name, f"Traffic of {', '.join(run.topics)}")
    if not run.writes:
        # What there is now, in one piece: nothing is kept, so nothing needs to be gone on with.
        columns = "topic,value,timestamp"
        with run.step("counting"):
            rows = rates(timed(run.log(columns=columns), run["event_time"]), run["window"]).orderBy("window").collect()
        return _told(run, report, rows, 0)
    where = {"topics": list(run.topics), "window": run["window"], "event_time": run["event_time"]}
    with run.lake.held(run.job.name):
        run.same_work("_checkpoint", {"job": "rollup", "namespace": run.place.namespace, **where})
        source = run.stream(
            startingOffsets="earliest", columns="topic,value,timestamp", maxOffsetsPerTrigger=run["portion"]
        )
        rows = rates(happened(source, run["event_time"], run["late"]), run["window"])

        def keep(batch: DataFrame, number: int) -> None:
            batch.withColumn("batch", f.lit(number).cast("bigint")).coalesce(1).write.mode("overwrite").parquet(
                run.lake.uri(_UPDATES, f"n={number:012d}")
            )
            _lag(run, number)

        writer = rows.writeStream.outputMode("update").foreachBatch(keep).queryName("headrace-rollup")
        writer = writer.option("checkpointLocation", run.lake.uri("_checkpoint", "rates"))
        writer = writer.trigger(processingTime="1 second") if run["follow"] else writer.trigger(availableNow=True)
        query = run.streamed(writer.start(), "counting")
        late = sum(
            int(state.get("numRowsDroppedByWatermark") or 0)
            for progress in query.recentProgress
            for state in progress.get("stateOperators", [])
        )
        run.lake.fs.create_dir(run.lake.path(_UPDATES), recursive=True)
        updates = run.spark.read.schema(f"{run.job.table('rates').columns}, batch bigint")
        updates = updates.parquet(run.lake.uri(_UPDATES))
        newest = updates.groupBy("topic", "window").agg(
            *[f.max_by(name, "batch").alias(name) for name in updates.columns if name not in ("topic", "window")]
        )
        found = run.write("rates", newest.orderBy("topic", "window"), report)
        run.lake.fs.create_dir(run.lake.path(_LAGS), recursive=True)
        run.write("lag", run.spark.read.schema(_columns(run)).json(run.lake.uri(_LAGS)).orderBy("at", "topic"), report)
        return _told(run, report, found.orderBy("window").collect(), late)


def _columns(run: Run) -> str:
    return run.job.table("lag").columns


def _lag(run: Run, number: int) -> None:
    """What the groups lag behind, as of now."""
    import msgspec

    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    names = ("topic", "group", "lag", "ready", "leased", "scheduled", "dead")
    rows = [
        {"at": at, **{name: info[name] for name in names}}
        for topic in run.topics
        for info in run.call("group.list", topic=topic)
    ]
    run.lake.put("\n".join(msgspec.json.encode(row).decode() for row in rows) + "\n", _LAGS, f"{number:012d}.json")


def _told(run: Run, report: Report, rows: list[Any], late: int) -> Report:
    messages = sum(row.messages for row in rows)
    report.figures = {
        "messages": messages,
        "bytes": sum(row.bytes or 0 for row in rows),
        "windows": len(rows),
        "too late, left out": late,
    }
    busiest = max(rows, key=lambda row: row.messages, default=None)
    if busiest is not None:
        report.figures["busiest window, messages/s"] = busiest.messages_per_second
    topics = sorted({row.topic for row in rows})[:8]
    windows = sorted({row.window for row in rows})
    known = {(row.topic, row.window): row for row in rows}
    for column, title in (("messages_per_second", "Messages a second"), ("bytes", "Bytes a window")):
        series = {
            topic: [float(known[topic, at][column] or 0) if (topic, at) in known else 0.0 for at in windows]
            for topic in topics
        }
        if windows:
            report.plots.append((title, lines([f"{at:%d %b %H:%M}" for at in windows], series)))
    report.table(
        "Busiest windows",
        ["topic", "window", "messages", "bytes", "messages/s"],
        [
            [row.topic, row.window, row.messages, row.bytes, row.messages_per_second]
            for row in sorted(rows, key=lambda row: -row.messages)[:20]
        ],
    )
    return report
