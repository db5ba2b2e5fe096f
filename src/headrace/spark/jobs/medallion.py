"""The declarative pipeline, run: the template is copied beside the tables, filled in, and given to ``spark-pipelines``.

The copy in ``OUT/pipeline`` is what runs, and is made once: change it, and the next run is of the changed one. Tables
are in ``OUT/tables``, checkpoints in ``OUT/storage``, and what the tables are called in a catalogue of files in
``OUT/metastore``, so that a second run goes on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from headrace.errors import InvalidArgument
from headrace.spark.jobs.failure import told
from headrace.spark.jobs.plot import bars, lines
from headrace.spark.jobs.report import Report
from headrace.spark.sessions import use_java

if TYPE_CHECKING:
    from headrace.spark.jobs.run import Run

__all__ = ["command", "medallion", "template"]

_SPEC: Final = "spark-pipeline.yml"


def template() -> Path:
    """Where the template is."""
    return Path(__file__).parents[1] / "pipelines" / "medallion"


def medallion(run: Run) -> Report:
    """Copy the template if it is not there, run it, and report from the gold tables."""
    report = Report(run.job.name, f"Medallion of {', '.join(run.topics)}")
    if not run.writes:
        report.notes.append(f"A dry run: {template()} would be copied and run by spark-pipelines.")
        return report
    if not run.lake.local:
        raise InvalidArgument("the medallion template keeps its catalogue in files: --out must be a directory")
    if any("," in topic for topic in run.topics):
        raise InvalidArgument("the medallion template takes topics without a comma in their names")
    root = Path(run.lake.root)
    with run.lake.held(run.job.name):
        run.same_work("pipeline", {"job": "medallion", "namespace": run.place.namespace, "topics": list(run.topics)})
        spec = _filled(run, root)
        went_on = (root / "tables" / "bronze_messages").exists() and not run["full_refresh"]
        with run.step("running spark-pipelines"):
            _ran(run, spec, root)
            if went_on:
                # Views are planned before the streams of the same run have written: over a table that was there already
                # they see the files of before. A second pass, whose streams have little to do, sees them all.
                _ran(run, spec, root)
    return _told(run, report, root)


def _filled(run: Run, root: Path) -> Path:
    """The specification of the copy, with this broker and these topics in it."""
    copy = root / "pipeline"
    spec = copy / _SPEC
    if not spec.exists():
        shutil.copytree(template(), copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    plain: dict[str, Any] = yaml.safe_load(spec.read_text())
    plain["storage"] = f"file://{root / 'storage'}"
    mine = {"server": run.place.server, "namespace": run.place.namespace, "subscribe": ",".join(run.topics)}
    plain["configuration"] |= {f"headrace.{name}": value for name, value in mine.items()}
    spec.write_text(yaml.safe_dump(plain, sort_keys=False))
    return spec


def command(spec: Path, root: Path, *, full_refresh: bool = False) -> list[str]:
    """How ``spark-pipelines`` is called for a copy of the template."""
    derby = f"jdbc:derby:;databaseName={root / 'metastore'};create=true"
    conf = {
        "spark.sql.warehouse.dir": f"file://{root / 'tables'}",
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": derby,
        "spark.ui.enabled": "false",
    }
    more = ["--full-refresh-all"] if full_refresh else []
    program = str(Path(sys.executable).with_name("spark-pipelines"))
    given = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    return [program, "run", "--spec", str(spec), *given, *more]


def _ran(run: Run, spec: Path, root: Path) -> None:
    use_java()
    # A token is a secret: it goes through the environment and never into a file or onto a command line.
    environment = {**os.environ, "HEADRACE_TOKEN": run.place.token or ""}
    environment.pop("SPARK_HOME", None)
    given = command(spec, root, full_refresh=bool(run["full_refresh"]))
    done = subprocess.run(given, cwd=root, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 # Spark's own program
    (root / "spark-pipelines.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        raise InvalidArgument(
            f"spark-pipelines ended with {done.returncode}: {told(RuntimeError(done.stdout + done.stderr))}; all it"
            f" said is in {root / 'spark-pipelines.log'}"
        )


def _told(run: Run, report: Report, root: Path) -> Report:
    from pyspark.sql import functions as f

    tables = {table.name: run.spark.read.parquet(f"file://{root}/tables/{table.name}") for table in run.job.tables}
    with run.step("reading the gold tables"):
        report.figures = {name: frame.count() for name, frame in tables.items()}
        rates = tables["gold_rates"].orderBy("minute").collect()
        deaths = tables["gold_deaths"].groupBy("reason").agg(f.sum("deaths").alias("deaths")).collect()
    minutes = sorted({row.minute for row in rates})
    if minutes:
        known = {(row.topic, row.minute): row.messages for row in rates}
        series = {topic: [float(known.get((topic, at), 0)) for at in minutes] for topic in sorted(run.topics)}
        report.plots.append(("Messages a minute", lines([f"{at:%d %b %H:%M}" for at in minutes], series)))
    if deaths:
        report.plots.append(("Deaths by reason", bars({row.reason: row.deaths for row in deaths})))
    report.written |= {"tables": str(root / "tables"), "pipeline": str(root / "pipeline")}
    return report
