"""How long messages take, and who takes long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.spark.jobs.plot import bars, lines
from headrace.spark.jobs.report import Report

if TYPE_CHECKING:
    from headrace.spark.jobs.run import Run

__all__ = ["latency"]

_STAGES: Final = {
    "deliver": "From due to first delivery",
    "ack": "From last delivery to ack",
    "whole": "From due to ack",
}
_BOOKED: Final = ("delivered", "acked", "retried", "released", "dead", "expired")
_SERIES_MAX: Final = 8
_MINUTES_LEAST: Final = 3
"""With fewer there is no line to draw."""


def latency(run: Run) -> Report:
    """Tables latency, consumers and books, from the events of the window."""
    from pyspark.sql import functions as f

    from headrace.spark.transforms.deliveries import by_message, deliveries, lives
    from headrace.spark.transforms.latency import books, consumers, quantiles

    events = run.table("events", **run.window).cache()
    messages = by_message(events)
    all_lives = lives(messages).cache()
    report = Report(run.job.name, f"Latency of {', '.join(run.topics)}")
    with run.step("reading events"):
        facts = events.count()
        last_ns = events.agg(f.max("at_ns")).first()[0] or 0
        totals = all_lives.agg(
            f.count("*").alias("lives"),
            f.count(f.when(f.col("outcome") == "acked", f.lit(1))).alias("acked"),
            f.count(f.when(f.col("outcome") == "died", f.lit(1))).alias("dead"),
            f.percentile_approx("whole_ms", [0.5, 0.9, 0.99], 10_000).alias("whole"),
            f.percentile_approx("deliver_ms", [0.5, 0.99], 10_000).alias("deliver"),
            f.avg("deliveries").alias("deliveries"),
        ).first()
    report.figures = {"events": facts, "messages": totals.lives, "acked": totals.acked, "dead": totals.dead}
    if totals.whole:
        report.figures |= {f"p{share} to ack, ms": ms for share, ms in zip((50, 90, 99), totals.whole, strict=True)}
    if totals.deliver:
        report.figures |= {f"p{share} to delivery, ms": ms for share, ms in zip((50, 99), totals.deliver, strict=True)}
    if totals.deliveries is not None:
        report.figures["deliveries a message"] = totals.deliveries
    by_minute = run.write("latency", quantiles(all_lives), report)
    who = consumers(deliveries(messages), now_ns=last_ns, slow=run["slow"], stuck_ns=run["stuck"])
    workers = run.write("consumers", who, report).collect()
    days = run.write("books", books(events), report).collect()
    _plots(report, by_minute)
    columns = ["topic", "group", "day", "published", *_BOOKED]
    report.table("Books", columns, [[row[name] for name in columns] for row in days])
    _consumers(report, workers)
    events.unpersist()
    all_lives.unpersist()
    return report


def _plots(report: Report, by_minute: Any) -> None:
    rows = by_minute.orderBy("minute").collect()
    minutes = sorted({row.minute for row in rows})
    labels = [f"{at:%H:%M}" for at in minutes]
    groups = sorted({(row.topic, row.group) for row in rows})[:_SERIES_MAX]
    for stage, title in _STAGES.items():
        mine = {(row.topic, row.group, row.minute): row for row in rows if row.stage == stage}
        if not mine:
            continue
        if len(minutes) < _MINUTES_LEAST:
            held = {
                f"{topic} {group} {minute:%H:%M} {share}": float(row[f"{share}_ms"])
                for (topic, group, minute), row in mine.items()
                for share in ("p50", "p90", "p99")
            }
            report.plots.append((f"{title}, ms", bars(held)))
            continue
        series: dict[str, list[float | None]] = {}
        for topic, group in groups:
            for share in ("p50", "p99") if len(groups) <= _SERIES_MAX // 2 else ("p99",):
                found = [mine.get((topic, group, minute)) for minute in minutes]
                name = f"{topic} {group} {share}"
                series[name] = [None if row is None else float(row[f"{share}_ms"]) for row in found]
        report.plots.append((f"{title}, ms", lines(labels, series)))


def _consumers(report: Report, workers: list[Any]) -> None:
    columns = ["topic", "group", "consumer", "delivered", "acked", "failed", "ran_out", "holding", "p50_ms", "p99_ms"]
    rows = [[*[row[name] for name in columns], row.verdict] for row in workers]
    report.table("Consumers", [*columns, "verdict"], rows)
    if workers:
        held = {row.consumer or "?": row.p50_ms for row in workers if row.p50_ms is not None}
        longest = sorted(held.items(), key=lambda each: -each[1])[:20]
        report.plots.append(("How long consumers hold a message, median ms", bars(dict(longest))))
    for verdict in ("slow", "stuck"):
        found = [row.consumer for row in workers if row.verdict == verdict]
        report.figures[f"{verdict} consumers"] = len(found)
        if found:
            report.notes.append(f"{verdict}: {', '.join(map(str, found[:10]))}")
