"""Why things die."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.spark.jobs.plot import bars, lines
from headrace.spark.jobs.report import Report

if TYPE_CHECKING:
    from headrace.spark.jobs.run import Run

__all__ = ["dead_letters", "standing"]


def standing(run: Run) -> dict[tuple[str, int], bytes]:
    """Where dead letters still wait, by (topic that holds them, partition), as serialized bitmaps."""
    found: dict[tuple[str, int], bytes] = {}
    for topic in run.topics:
        for each in run.call("dlq.standing", topic=topic):
            found[each["topic"], each["partition"]] = bytes(each["offsets"])
    return found


def dead_letters(run: Run) -> Report:
    """Tables deaths and offenders; a report with the reasons, the errors, and when it happened."""
    from pyspark.sql import functions as f

    from headrace.spark.transforms.deaths import by_kind, offenders, still_there

    letters = run.table("dead_letters", **run.window).drop("value", "headers")
    letters = still_there(letters, standing(run)).cache()
    report = Report(run.job.name, f"Dead letters of {', '.join(run.topics)}")
    with run.step("reading dead letters"):
        total = letters.count()
        waiting = letters.where("standing").count()
    report.figures = {"dead letters": total, "still there": waiting, "dealt with": total - waiting}
    deaths = run.write("deaths", by_kind(letters), report)
    worst = run.write("offenders", offenders(letters, run["top"]), report)
    if not total:
        report.notes.append("Nothing died.")
        return report
    with run.step("summing up"):
        reasons = _top(deaths, "reason", run["top"])
        errors = _top(deaths.where("error <> ''"), "error", run["top"])
        groups = _top(deaths, "group", run["top"])
        hours = deaths.groupBy("hour", "reason").agg(f.sum("deaths").alias("deaths")).orderBy("hour").collect()
        rows = worst.collect()
    report.figures |= {"kinds of error": len(errors), "first": str(hours[0].hour), "last": str(hours[-1].hour)}
    report.plots.append(("Deaths by reason", bars(reasons)))
    if errors:
        report.plots.append(("Deaths by error (numbers as #)", bars(errors)))
    moments = sorted({row.hour for row in hours})
    if len(moments) > 1:
        series = {
            reason: [sum(row.deaths for row in hours if row.hour == at and row.reason == reason) for at in moments]
            for reason in reasons
        }
        report.plots.append(("Deaths an hour", lines([f"{at:%d %b %H:%M}" for at in moments], series)))
    report.table("By reason", ["reason", "deaths"], list(reasons.items()))
    report.table("By group", ["group", "deaths"], list(groups.items()))
    report.table(
        "Top offenders",
        ["kind", "name", "topic", "deaths", "share"],
        [[row.kind, row.name, row.topic, row.deaths, round(row.share, 4)] for row in rows],
    )
    letters.unpersist()
    return report


def _top(deaths: Any, column: str, top: int) -> dict[str, int]:
    from pyspark.sql import functions as f

    rows = deaths.groupBy(column).agg(f.sum("deaths").alias("deaths")).orderBy(f.desc("deaths"), column).limit(top)
    return {str(row[column]): row.deaths for row in rows.collect()}
