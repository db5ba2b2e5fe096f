"""Payloads checked against a JSON schema; what is wrong goes to a quarantine topic, is counted, and the job goes on.

A message in quarantine keeps key, value and headers, and says in headers of its own where it comes from and what is
wrong with it. Each micro-batch is published under its own number: one that comes again after a crash is there already.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import InvalidArgument
from headrace.spark.jobs.plot import bars
from headrace.spark.jobs.report import Report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.spark.jobs.run import Run

__all__ = ["quality"]

_CHECKS: Final = "_checks"
_PROBLEMS: Final = "_problems"
_MARK: Final = "headrace-quarantine-"
_PROBLEMS_SAID: Final = 5
"""Problems that a message in quarantine names; a payload can have thousands."""


def quality(run: Run) -> Report:
    """Tables checks and problems; goes on from its checkpoint."""
    schema = _schema(run["schema"])
    [topic] = run.topics
    quarantine = run["quarantine"] or f"quarantine/{topic}"
    report = Report(run.job.name, f"Quality of {topic}")
    if quarantine == topic:
        raise InvalidArgument(f"quarantine {quarantine!r} is the topic itself: what is wrong would be checked again")
    from headrace.spark.transforms.payloads import checked

    if not run.writes:
        from pyspark.sql import functions as f

        rows = checked(run.log(columns="topic,value,partition,offset,timestamp"), schema)
        with run.step("checking"):
            batch = rows.withColumn("batch", f.lit(0).cast("bigint")).cache()
            return _told(
                report, _counts(batch).collect(), _kinds(batch).collect(), f"A dry run: {quarantine} got nothing."
            )
    with run.lake.held(run.job.name):
        about = {"job": "quality", "namespace": run.place.namespace, "topics": [topic], "quarantine": quarantine}
        run.same_work("_checkpoint", about)
        run.call("topic.ensure", topic=quarantine)
        name = _name(run)
        source = run.stream(startingOffsets="earliest", maxOffsetsPerTrigger=run["portion"])

        def keep(batch: DataFrame, number: int) -> None:
            from pyspark.sql import functions as f

            rows = checked(batch, schema).withColumn("batch", f.lit(number).cast("bigint")).cache()
            wrong = _quarantined(rows.where("size(problems) > 0"))
            writer = wrong.write.format("headrace").mode("append").options(**run.reading)
            writer.options(topic=quarantine, writeId=f"{name}-{number}").save()
            _kept(run, _counts(rows), _CHECKS, number)
            _kept(run, _kinds(rows), _PROBLEMS, number)
            rows.unpersist()

        writer = source.writeStream.foreachBatch(keep).queryName("headrace-quality")
        writer = writer.option("checkpointLocation", run.lake.uri("_checkpoint", "stream"))
        writer = writer.trigger(processingTime="1 second") if run["follow"] else writer.trigger(availableNow=True)
        run.streamed(writer.start(), "checking")
        counts = run.write("checks", _read(run, _CHECKS, "checks"), report).collect()
        kinds = run.write("problems", _read(run, _PROBLEMS, "problems"), report).collect()
    return _told(report, counts, kinds, f"What is wrong is in {quarantine}.")


def _schema(path: str) -> Any:
    """The schema, read and compiled once so that a mistake in it is told before anything is read."""
    from headrace.spark.transforms.json_schema import compiled

    try:
        schema = json.loads(Path(path).read_text())
    except OSError as error:
        raise InvalidArgument(f"schema {path}: {error.strerror}") from None
    except ValueError as error:
        raise InvalidArgument(f"schema {path} is not JSON: {error}") from None
    compiled(schema)
    return schema


def _name(run: Run) -> str:
    """The name under which this checkpoint publishes, the same for all its runs."""
    from uuid import uuid4

    known = run.lake.text("_checkpoint", "name")
    if known is None:
        known = f"quality-{uuid4().hex}"
        run.lake.put(known, "_checkpoint", "name")
    return known


def _quarantined(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    said = f.transform(
        f.slice("problems", 1, _PROBLEMS_SAID),
        lambda each: f.concat_ws(" ", each["path"], each["problem"]),
    )
    place = f.concat_ws("/", "topic", f.col("partition").cast("string"), f.col("offset").cast("string"))
    marks = f.create_map(
        f.lit(_MARK + "of"), f.encode(place, "UTF-8"),
        f.lit(_MARK + "problems"), f.encode(f.concat_ws("; ", said), "UTF-8"),
    )  # fmt: skip
    none = f.map_from_arrays(f.array().cast("array<string>"), f.array().cast("array<binary>"))
    own = f.map_filter(f.coalesce("headers", none), lambda name, value: ~f.startswith(name, f.lit(_MARK)))
    return rows.select("key", "value", f.map_concat(own, marks).alias("headers"), "priority")


def _counts(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    fine = f.size("problems") == 0
    return rows.groupBy("batch", "topic", f.to_date("timestamp").alias("day")).agg(
        f.count("*").alias("checked"),
        f.count(f.when(fine, f.lit(1))).alias("passed"),
        f.count(f.when(~fine, f.lit(1))).alias("failed"),
    )


def _kinds(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    each = rows.select("batch", "topic", "partition", "offset", f.explode("problems").alias("each"))
    return each.groupBy("batch", "topic", "each.path", "each.rule", "each.problem").agg(
        f.count_distinct("partition", "offset").alias("messages"),
        f.min_by("partition", f.struct("partition", "offset")).alias("example_partition"),
        f.min_by("offset", f.struct("partition", "offset")).alias("example_offset"),
    )


def _kept(run: Run, rows: DataFrame, where: str, number: int) -> None:
    rows.coalesce(1).write.mode("overwrite").parquet(run.lake.uri(where, f"n={number:012d}"))


def _read(run: Run, where: str, name: str) -> DataFrame:
    from headrace.spark.jobs.lake import declared

    run.lake.fs.create_dir(run.lake.path(where), recursive=True)
    rows = run.spark.read.schema(run.job.table(name).columns).parquet(run.lake.uri(where))
    return declared(rows, run.job.table(name)).orderBy("batch")


def _told(report: Report, counts: list[Any], kinds: list[Any], note: str) -> Report:
    report.figures = {
        "checked": sum(row.checked for row in counts),
        "passed": sum(row.passed for row in counts),
        "failed": sum(row.failed for row in counts),
        "kinds of problem": len({(row.path, row.rule, row.problem) for row in kinds}),
    }
    totals: dict[tuple[str, str], int] = {}
    for row in kinds:
        totals[row.path, row.problem] = totals.get((row.path, row.problem), 0) + row.messages
    ordered = sorted(totals.items(), key=lambda each: -each[1])
    report.table("Problems", ["path", "problem", "messages"], [[*place, count] for place, count in ordered])
    if ordered:
        report.plots.append(
            ("Problems", bars({f"{path} {text}": float(count) for (path, text), count in ordered[:20]}))
        )
    report.notes.append(note)
    return report
