"""Dead letters back to work.

Spark chooses, the broker moves: which letters are meant is decided over the dead-letter table with any expression, the
broker is told their places and moves each in one record with its leaving the dead letters. Running it twice moves
nothing twice, and after a crash the next run goes on with what is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.errors import UnknownTopic
from headrace.spark.jobs.dead_letters import standing
from headrace.spark.jobs.plot import bars
from headrace.spark.jobs.report import Report

if TYPE_CHECKING:
    from headrace.spark.jobs.run import Run

__all__ = ["redrive"]

_PORTION: Final = 20_000
"""Letters in one call: some seconds of work, so that progress is seen and Ctrl-C is heard."""


def redrive(run: Run) -> Report:
    """What is chosen is reported by topic, group, reason and error; then it is redriven, unless this is a dry run."""
    from pyspark.sql import functions as f

    from headrace.spark.transforms.deaths import general, still_there
    from headrace.spark.transforms.selection import bitmaps, filtered

    target = run["to"]
    if target is not None and target not in {info["topic"] for info in run.call("topic.list")}:
        raise UnknownTopic(f"--to {target!r}: that topic does not exist; make it with `headrace topic create`")
    letters = filtered(
        run.table("dead_letters", **run.window),
        where=run["where"],
        key_prefix=run["key_prefix"],
        headers=run["header"],
        equal={"reason": run["reason"], "group": run["group"], "consumer": run["consumer"]},
        error=run["error"],
        min_attempts=run["min_attempts"],
    )
    # Read once: what the report and the bitmaps need is a small part of a letter.
    error = general(f.coalesce("error", f.lit(""))).alias("error")
    narrow = letters.select("topic", "group", "reason", error, "died", "dead_topic", "partition", "offset")
    letters = still_there(narrow, standing(run)).where("standing").cache()
    report = Report(run.job.name, f"Redrive of dead letters of {', '.join(run.topics)}")
    with run.step("choosing"):
        kinds = letters.groupBy("topic", "group", "reason", "error").agg(
            f.count("*").alias("matched"),
            f.min("died").alias("first_died"),
            f.max("died").alias("last_died"),
        )  # fmt: skip
        kinds = kinds.orderBy(f.desc("matched"), "topic", "group", "reason", "error").cache()
        rows = kinds.collect()
        chosen = bitmaps(letters, "dead_topic")
        letters.unpersist()
    matched = sum(row.matched for row in rows)
    report.figures = {"matched": matched}
    report.table(
        "What was chosen",
        ["topic", "group", "reason", "error", "letters"],
        [[row.topic, row.group, row.reason, row.error, row.matched] for row in rows],
    )
    if rows:
        by_reason: dict[str, int] = {}
        for row in rows:
            by_reason[row.reason] = by_reason.get(row.reason, 0) + row.matched
        report.plots.append(("Chosen by reason", bars(by_reason)))
    if run.writes:
        run.write("redriven", kinds, report)
    if run.dry_run:
        report.notes.append(f"A dry run: {matched:,} would be redriven, nothing was.")
        return report
    done = _moved(run, chosen, matched)
    report.figures |= {"redriven": done["redriven"], "left": done["left"]}
    if done["left"]:
        report.notes.append(
            f"{done['left']:,} could not go back: where they came from is gone (--to TOPIC moves them)."
        )
    return report


def _moved(run: Run, chosen: dict[tuple[str, int], bytes], matched: int) -> dict[str, int]:
    done = {"redriven": 0, "left": 0}
    with run.step("redriving") as tell:
        for (topic, partition), bitmap in chosen.items():
            for runs in _portions(bitmap, partition, run["rate"]):
                arguments: dict[str, Any] = {"topic": topic, "where": {"runs": runs}}
                if run["to"] is not None:
                    arguments["to"] = run["to"]
                if run["rate"] is not None:
                    arguments["rate"] = run["rate"]
                told = run.call("dlq.redrive", **arguments)
                done["redriven"] += told["redriven"]
                done["left"] += told["left"]
                tell(f"{done['redriven']:,} of {matched:,}")
    return done


def _portions(bitmap: bytes, partition: int, rate: float | None) -> list[list[list[int]]]:
    """Runs of offsets in portions of so many letters."""
    from headrace.spark.transforms.selection import runs_of

    most = _PORTION if rate is None else max(1, min(_PORTION, int(rate * 2)))
    portions: list[list[list[int]]] = [[]]
    room = most
    for index, first, count in runs_of(bitmap, partition):
        while count:
            part = min(count, room)
            portions[-1].append([index, first, part])
            first, count, room = first + part, count - part, room - part
            if not room:
                portions.append([])
                room = most
    return [portion for portion in portions if portion]
