"""A window of the past again: copies into a topic, filtered and paced, or the window itself for a group of its topic.

What is replayed is fixed when it first begins (``plan.json`` beside the report): how far each partition reaches, and
which messages had the outcome that is asked for. A run that was cut off goes on with the same plan, and one that is
repeated publishes nothing twice: the copies are written under the plan's name, which the broker remembers.
"""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from headrace.errors import InvalidArgument
from headrace.spark.jobs.plot import bars
from headrace.spark.jobs.report import Report

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from headrace.spark.jobs.run import Run

__all__ = ["replay"]

FROM: Final = "headrace-replay-of"
"""A header of a copy: topic/partition/offset of the message it is a copy of."""
_OUTCOMES: Final = {"acked": "acked", "died": "died", "dead": "died", "expired": "expired", "retried": "retried"}
_BY_OUTCOME: Final = ("outcome", "group", "consumer", "error", "reason", "min_attempts")
_FILTERS: Final = ("where", "key_prefix", "header", *_BY_OUTCOME)
_PACED_TASKS: Final = 2


def replay(run: Run) -> Report:
    """Table replayed: what was, by topic and partition."""
    if (run["to"] is None) == (run["to_group"] is None):
        raise InvalidArgument("replay where? give one of --to TOPIC and --to-group GROUP")
    if run["outcome"] is not None and run["outcome"] not in _OUTCOMES:
        raise InvalidArgument(f"outcome {run['outcome']!r}: must be one of {', '.join(_OUTCOMES)}")
    return _to_group(run) if run["to_group"] is not None else _to_topic(run)


# -- into a topic ------------------------------------------------------------------------------------------------------


def _to_topic(run: Run) -> Report:
    report = Report(run.job.name, f"Replay of {', '.join(run.topics)} into {run['to']}")
    if not run.dry_run:
        known = {info["topic"] for info in run.call("topic.list")}
        if run["to"] not in known:
            run.call("topic.ensure", topic=run["to"])
    plan = _plan(run)
    rows = _chosen(run, plan)
    summary = _summary(rows)
    if run.dry_run or not run.writes:
        found = run.write("replayed", summary, report).collect()
        return _told(run, report, found, f"A dry run: nothing was published into {run['to']}.")
    if plan.get("done"):
        report.notes.append("This replay was finished before; nothing was published again.")
        return _told(run, report, run.spark.read.parquet(run.lake.uri("replayed")).collect())
    copies = _copies(rows)
    if run["rate"] is not None:
        copies = _paced(copies.coalesce(_PACED_TASKS), run["rate"])
    with run.lake.held(run.job.name), run.step(f"publishing into {run['to']}"):
        writer = copies.write.format("headrace").mode("append").options(**run.reading)
        writer.options(topic=run["to"], writeId=plan["id"]).save()
    found = run.write("replayed", summary, report).collect()
    run.lake.put(msgspec.json.encode({**plan, "done": True}).decode(), "plan.json")
    return _told(run, report, found)


def _plan(run: Run) -> dict[str, Any]:
    """What is replayed, fixed at the first run with this ``--out``."""
    what = {
        "topics": list(run.topics),
        "namespace": run.place.namespace,
        "options": {name: value for name, value in run.options.items() if name != "rate"},
    }
    asked = msgspec.json.decode(msgspec.json.encode(what))
    known = run.lake.text("plan.json") if run.writes else None
    if known is not None:
        plan: dict[str, Any] = msgspec.json.decode(known)
        if plan["asked"] != asked:
            raise InvalidArgument(
                f"{run.lake.path('plan.json')} is of another replay ({plan['asked']}): give this one an --out of its"
                " own"
            )
        return plan
    ends = {
        topic: {str(part["partition"]): part["end"] for part in run.call("topic.offsets", topic=topic)["partitions"]}
        for topic in run.topics
    }
    plan = {"id": f"replay-{uuid4().hex}", "asked": asked, "ends": ends, "at": time.time_ns()}
    if any(run[name] for name in _BY_OUTCOME):
        plan["chosen"] = [
            [topic, partition, base64.b64encode(offsets).decode()]
            for (topic, partition), offsets in _by_outcome(run).items()
        ]
    if run.writes:
        run.lake.put(msgspec.json.encode(plan).decode(), "plan.json")
    return plan


def _by_outcome(run: Run) -> dict[tuple[str, int], bytes]:
    """Which messages had the outcome asked for, within the window of time (the time of the outcome)."""
    from pyspark.sql import functions as f

    from headrace.spark.transforms.deliveries import by_message
    from headrace.spark.transforms.selection import bitmaps

    events = by_message(run.table("events", **run.window))
    for name in ("group", "consumer", "reason"):
        if run[name] is not None:
            events = events.where(f.col(name) == f.lit(run[name]))
    if run["error"] is not None:
        events = events.where(f.contains(f.col("error"), f.lit(run["error"])))
    if run["outcome"] is not None:
        events = events.where(f.col("event") == _OUTCOMES[run["outcome"]])
    elif run["error"] is None and run["reason"] is None:
        events = events.where("event in ('leased', 'acked', 'died', 'expired', 'retried')")
    if run["min_attempts"] is not None:
        often = (
            by_message(run.table("events"))
            .where("event = 'leased'")
            .groupBy("topic", "partition", "group", "offset")
            .agg(f.count("*").alias("times"))
            .where(f.col("times") >= run["min_attempts"])
        )
        events = events.join(often, ["topic", "partition", "group", "offset"], "left_semi")
    with run.step("choosing by outcome"):
        return bitmaps(events.select("topic", "partition", "offset").distinct())


def _chosen(run: Run, plan: dict[str, Any]) -> DataFrame:
    """The messages, in an order that is the same each time."""
    from pyspark.sql import functions as f

    from headrace.spark.jobs.archive import archived
    from headrace.spark.transforms.selection import filtered, only

    by_outcome = "chosen" in plan
    if run["archive"] is not None:
        rows = archived(run, run["archive"]).where(f.col("topic").isin(*run.topics))
        if not by_outcome:
            rows = _within(run, rows)
        rows = rows.drop("date").orderBy("topic", "partition", "offset")
    else:
        rows = run.log(endingOffsets=plan["ends"], **({} if by_outcome else _starting(run)))
        if not by_outcome:
            rows = _within(run, rows)
    if by_outcome:
        places = {(topic, partition): base64.b64decode(offsets) for topic, partition, offsets in plan["chosen"]}
        rows = only(rows, places)
    return filtered(rows, where=run["where"], key_prefix=run["key_prefix"], headers=run["header"])


def _starting(run: Run) -> dict[str, str]:
    window = run.window
    return {"startingTimestamp": window["startingTimestamp"]} if "startingTimestamp" in window else {}


def _within(run: Run, rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    for name, keeps in (("from_time", "__ge__"), ("to_time", "__lt__")):
        if run[name] is not None:
            at = f.timestamp_micros(f.lit(run[name] // 1_000))
            rows = rows.where(getattr(f.col("timestamp"), keeps)(at))
    return rows


def _copies(rows: DataFrame) -> DataFrame:
    """The columns that the sink takes: where a message comes from is said in a header."""
    from pyspark.sql import functions as f

    place = f.concat_ws("/", "topic", f.col("partition").cast("string"), f.col("offset").cast("string"))
    mark = f.create_map(f.lit(FROM), f.encode(place, "UTF-8"))
    own = f.coalesce("headers", f.map_from_arrays(f.array().cast("array<string>"), f.array().cast("array<binary>")))
    own = f.map_filter(own, lambda name, value: name != FROM)
    return rows.select("key", "value", f.map_concat(own, mark).alias("headers"), "priority")


def _paced(rows: DataFrame, rate: float) -> DataFrame:
    """The same rows, so many a second over all tasks."""
    each = rate / _PACED_TASKS

    def work(records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began = time.monotonic()
        sent = 0
        step = max(1, int(each / 10))
        for record in records:
            for first in range(0, record.num_rows, step):
                part = record.slice(first, step)
                wait = began + sent / each - time.monotonic()
                if wait > 0:
                    time.sleep(wait)
                sent += part.num_rows
                yield part

    return rows.mapInArrow(work, rows.schema)


def _summary(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return (
        rows.groupBy("topic", "partition")
        .agg(
            f.count("*").alias("messages"),
            f.min("offset").alias("first_offset"),
            f.max("offset").alias("last_offset"),
            f.min("timestamp").alias("first_timestamp"),
            f.max("timestamp").alias("last_timestamp"),
            f.sum(f.length("value")).alias("bytes"),
        )
        .orderBy("topic", "partition")
    )


# -- for a group -------------------------------------------------------------------------------------------------------


def _to_group(run: Run) -> Report:
    """The broker's own bounded replay: the group begins again at one time and stops at another."""
    given = [name for name in _FILTERS if run[name]]
    if given or run["rate"] is not None or run["archive"] is not None:
        raise InvalidArgument(
            f"a group gets the window as it is: {', '.join(given) or 'rate and archive'} need --to TOPIC"
        )
    report = Report(run.job.name, f"Replay of {', '.join(run.topics)} for the group {run['to_group']}")
    ends = {
        topic: {str(part["partition"]): part["end"] for part in run.call("topic.offsets", topic=topic)["partitions"]}
        for topic in run.topics
    }
    rows = _within(run, run.log(endingOffsets=ends, **_starting(run)))
    found = run.write("replayed", _summary(rows), report).collect()
    if run.dry_run or not found:
        return _told(run, report, found, "A dry run: the group stays where it is." if run.dry_run else "Nothing to do.")
    group = run["to_group"]
    for topic in run.topics:
        if group not in {info["group"] for info in run.call("group.list", topic=topic)}:
            run.call("group.create", topic=topic, group=group)
        begin = {row.partition: row.first_offset for row in found if row.topic == topic}
        stops = {str(row.partition): row.last_offset + 1 for row in found if row.topic == topic}
        for part in run.call("topic.offsets", topic=topic)["partitions"]:
            begin.setdefault(part["partition"], part["end"])
        start = {"offsets": {str(index): offset for index, offset in begin.items()}}
        run.call("group.seek", topic=topic, group=group, start=start, stops=stops)
    return _told(run, report, found)


def _told(run: Run, report: Report, rows: list[Any], note: str = "") -> Report:
    messages = sum(row.messages for row in rows)
    report.figures = {"messages": messages, "bytes": sum(row.bytes or 0 for row in rows), "partitions": len(rows)}
    if note:
        report.notes.append(note)
    columns = ["topic", "partition", "messages", "first_offset", "last_offset", "first_timestamp", "last_timestamp"]
    report.table("What is replayed", columns, [[row[name] for name in columns] for row in rows])
    if rows:
        report.plots.append(
            ("Messages by partition", bars({f"{row.topic} {row.partition}": row.messages for row in rows[:40]}))
        )
    return report
