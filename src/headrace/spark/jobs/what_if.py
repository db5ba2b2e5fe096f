"""Recorded traffic through changed settings, by the broker's own rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.errors import InvalidArgument
from headrace.spark.jobs.plot import bars
from headrace.spark.jobs.report import Report

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.spark.jobs.run import Run

__all__ = ["what_if"]

_COUNTS: Final = (
    "published", "delivered", "acked", "retried", "released", "dead", "rejected", "max_retries", "total_timeout",
    "expired",
)  # fmt: skip
_SAME: Final = ("published", "delivered", "acked", "retried", "released", "dead", "expired", "unsettled")


def what_if(run: Run) -> Report:
    """Table outcomes. One task simulates one group of one topic: rules hold over all partitions of a topic."""
    from headrace.config import TopicConfig, from_plain, to_plain, with_settings

    if run["beyond"] not in ("fail", "ack"):
        raise InvalidArgument(f"beyond {run['beyond']!r}: must be fail or ack")
    changes = dict(_pair(text) for text in run["set"])
    worlds: dict[str, Any] = {}
    for topic in run.topics:
        info = run.call("topic.show", topic=topic)
        before = from_plain(TopicConfig, info["settings"])
        after = with_settings(before, changes, where="--set")
        groups = {each["group"]: each["settings"] for each in run.call("group.list", topic=topic)}
        if run["group"] is not None and run["group"] not in groups:
            raise InvalidArgument(f"topic {topic!r} has no group {run['group']!r}; it has {', '.join(groups)}")
        worlds[topic] = (to_plain(before), to_plain(after), groups, info["partitions"])
    return _simulate(run, worlds, changes)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidArgument(f"--set {text!r}: must be KEY=VALUE, as retry.max_retries=3")
    return name.strip(), value.strip()


def _simulate(run: Run, worlds: dict[str, Any], changes: dict[str, str]) -> Report:
    from pyspark.sql import functions as f

    from headrace.spark.transforms.recorded import traffic

    rows = traffic(run.table("events", **run.window), run.log(columns="topic,partition,offset,key,priority"))
    if run["group"] is not None:
        rows = rows.where(f.col("group") == f.lit(run["group"]))
    columns = run.job.table("outcomes").columns
    beyond = run["beyond"]

    def work(key: tuple[Any, ...], table: pa.Table) -> pa.Table:
        import pyarrow as pa

        from headrace.spark.transforms.simulation import Trace, recorded, simulated

        topic, group = (each.as_py() for each in key)
        before, after, groups, partitions = worlds[topic]
        trace = Trace(table.to_pylist())
        given = {"recorded_settings": before, "group_settings": groups.get(group, {}), "partitions": partitions}
        found = {
            "recorded": recorded(trace),
            "replayed": simulated(trace, settings=before, beyond=beyond, **given),
            "eager": simulated(trace, settings=before, eager=True, beyond=beyond, **given),
        }
        if after != before:
            found["changed"] = simulated(trace, settings=after, eager=True, beyond=beyond, **given)
        return pa.Table.from_pylist([_row(topic, group, name, each) for name, each in found.items()], schema=_schema())

    report = Report(run.job.name, f"What if: {', '.join(run.topics)}")
    with run.step("simulating"):
        outcomes = run.write("outcomes", rows.groupBy("topic", "group").applyInArrow(work, columns), report)
        found = sorted(outcomes.collect(), key=lambda row: (row.topic, row.group, _RUNS.index(row.run)))
    return _told(report, found, changes)


_RUNS: Final = ("recorded", "replayed", "eager", "changed")


def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("topic", pa.string()),
            ("group", pa.string()),
            ("run", pa.string()),
            *[(name, pa.int64()) for name in _COUNTS],
            ("p50_ms", pa.float64()),
            ("p99_ms", pa.float64()),
            ("unsettled", pa.int64()),
        ]
    )


def _row(topic: str, group: str, run: str, figures: Any) -> dict[str, Any]:
    counts, whole_ms = figures.counts, sorted(figures.whole_ms)
    return {
        "topic": topic,
        "group": group,
        "run": run,
        **{name: counts.get(name, 0) for name in _COUNTS},
        "p50_ms": whole_ms[len(whole_ms) // 2] if whole_ms else None,
        "p99_ms": whole_ms[min(len(whole_ms) - 1, len(whole_ms) * 99 // 100)] if whole_ms else None,
        "unsettled": counts.get("unsettled", 0),
    }


def _told(report: Report, rows: list[Any], changes: dict[str, str]) -> Report:
    if not rows:
        report.notes.append("Nothing was recorded in this window.")
        return report
    groups = sorted({(row.topic, row.group) for row in rows})
    differ = []
    for topic, group in groups:
        mine = {row.run: row for row in rows if (row.topic, row.group) == (topic, group)}
        wrong = [name for name in _SAME if mine["recorded"][name] != mine["replayed"][name]]
        if wrong:
            differ.append(f"{topic} {group}: {', '.join(wrong)}")
    report.figures = {"groups": len(groups), "reproduced": len(groups) - len(differ)}
    if differ:
        report.notes.append(
            f"Not as recorded with unchanged settings: {'; '.join(differ)}. What is not simulated: seeks, purges,"
            " redrives, settings that changed meanwhile, messages that were published before the window."
        )
    columns = ["topic", "group", "run", *_COUNTS[1:], "unsettled", "p50_ms", "p99_ms"]
    report.table("How it went, and would have gone", columns, [[row[name] for name in columns] for row in rows])
    for name, title in (("dead", "Dead"), ("retried", "Retries"), ("p99_ms", "p99 from due to ack, ms")):
        values = {f"{row.topic} {row.group} {row.run}": float(row[name] or 0) for row in rows}
        if any(values.values()):
            report.plots.append((title, bars(dict(list(values.items())[:24]))))
    if changes:
        report.notes.append("Changed: " + ", ".join(f"{name} = {value}" for name, value in changes.items()))
    else:
        report.notes.append("Nothing was changed (--set KEY=VALUE changes a setting of the topic).")
    return report
