"""``headrace pipeline``, as people type it, and the declarative template run by Spark's own program."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.cli.app import app
from headrace.cli.pipeline import pipeline
from headrace.errors import HeadraceError, InvalidArgument, TimedOut
from headrace.spark.jobs import JOBS, run_job
from headrace.spark.jobs.failure import told
from headrace.spark.jobs.medallion import template
from spark.traffic import Life

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "jobs.md"
Typed = Callable[..., str]


@pytest.fixture
def typed(spark: Any) -> Typed:
    """What a command prints; Spark's session is the one there is."""

    def run(*arguments: str) -> str:
        found = CliRunner().invoke(app, ["pipeline", *arguments], catch_exceptions=False, standalone_mode=False)
        return str(found.output)

    return run


def test_the_jobs_are_listed_with_what_they_write(typed: Typed) -> None:
    listed = typed("list")
    for job in JOBS.values():
        assert f"{job.name} " in listed
    [latency] = [row for row in map(json.loads, typed("list", "--json").splitlines()) if row["name"] == "latency"]
    assert set(latency["tables"]) == {"latency", "consumers", "books"}


def test_the_reference_has_every_option_and_every_column_of_every_table() -> None:
    page = REFERENCE.read_text()
    for job in JOBS.values():
        assert f"\n## {job.name}\n" in page
        for option in job.options:
            assert f"| `--{option.name.replace('_', '-')}` | {option.kind} |" in page, (job.name, option.name)
        for table in job.tables:
            assert f"**{table.name}**: {table.about}." in page
            assert table.columns in page, table.name


def test_a_job_that_does_not_exist_is_wrong_usage_with_the_nearest_name() -> None:
    found = CliRunner().invoke(pipeline, ["run", "latenzy"])
    assert found.exit_code == 2
    assert "did you mean 'latency'?" in found.output
    found = CliRunner().invoke(pipeline, ["run", "redrive", "--wher", "x"])
    assert found.exit_code == 2
    assert "--where" in found.output


def test_without_the_extra_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.pipeline.find_spec", lambda name: None)
    with pytest.raises(InvalidArgument, match=r"pip install 'headrace\[spark\]'"):
        CliRunner().invoke(pipeline, ["list"], catch_exceptions=False)


def test_a_report_is_printed_for_people_and_as_json_for_programs(world: Any, typed: Typed, tmp_path: Path) -> None:
    life = Life(world, "typed")
    life.publish(20)
    life.drain()
    where = ("--server", world.url, "--topic", life.name)
    text = typed("run", "redrive", *where, "--where", "reason = 'rejected'", "--dry-run")
    assert re.search(r"matched +2\b", text)
    assert "nothing was" in text
    [found] = typed("run", "redrive", *where, "--reason", "rejected", "--json").splitlines()
    assert json.loads(found)["figures"] == {"matched": 2, "redriven": 2, "left": 0}


def test_a_broker_that_is_away_is_waited_for_and_then_named(spark: Any) -> None:
    with pytest.raises(TimedOut, match=r"127\.0\.0\.1:1 could not be used for 0\.2 s"):
        run_job("redrive", server="headrace://127.0.0.1:1", spark=spark, topics=["a"], away_ns=200_000_000)


def test_who_may_not_is_told_so(spark: Any, tmp_path: Path) -> None:
    from integration.server_process import ServerProcess

    keys = str(tmp_path / "keys.json")
    invoke = CliRunner().invoke
    assert invoke(app, ["token", "key", "--keys", keys]).exit_code == 0
    made = invoke(app, ["token", "create", "--keys", keys, "--subject", "reader", "--verb", "consume"])
    token = made.output.strip().splitlines()[-1]
    server = ServerProcess(tmp_path / "data", "--set", f"auth.keys={keys}")
    try:
        url = f"headrace://{server.ready()['native']}"
        with pytest.raises(HeadraceError) as refused:
            run_job("redrive", server=url, token=token, spark=spark, topics=["a"])
        assert token not in str(refused.value)
        assert refused.value.code in ("not_allowed", "unknown_topic")
        with pytest.raises(HeadraceError) as refused:
            run_job("redrive", server=url, spark=spark, topics=["a"], away_ns=200_000_000)
        assert refused.value.code == "unauthenticated"
    finally:
        server.stop()


def test_a_data_directory_is_served_while_a_job_runs(spark: Any, tmp_path: Path) -> None:
    import headrace

    with headrace.open(tmp_path / "data") as hr:
        hr.topic("orders").publish_many([b"%d" % i for i in range(5)])
    report = run_job("rollup", data_dir=str(tmp_path / "data"), spark=spark, topics=["orders"], dry_run=True)
    assert report.figures["messages"] == 5
    with headrace.open(tmp_path / "data") as hr:  # nobody has it any more
        assert len(list(hr.topic("orders").read())) == 5
    with pytest.raises(InvalidArgument, match="there is no data directory"):
        run_job("rollup", data_dir=str(tmp_path / "typo"), spark=spark, topics=["orders"], dry_run=True)


def test_what_spark_says_at_length_is_told_in_a_sentence() -> None:
    long = (
        "Job aborted due to stage failure\n  File x\nheadrace.errors.InvalidArgument: 3 rows have no value\n\tat java"
    )
    assert told(RuntimeError(long)) == "3 rows have no value"
    assert told(RuntimeError("x\nValueError: bad\n")) == "Spark failed: ValueError: bad"


@pytest.mark.timeout(1_800)  # two JVMs of its own, each of which takes its time on a busy machine
def test_the_declarative_template_runs_twice_and_goes_on(spark: Any, world: Any, tmp_path: Path) -> None:
    assert (template() / "spark-pipeline.yml").exists()
    life = Life(world, "medal")
    life.publish(30)
    life.drain()
    world.publish(life.name, [b"no json"])
    more: dict[str, Any] = {"server": world.url, "spark": spark, "topics": [life.name], "out": str(tmp_path)}
    first = run_job("medallion", **more).figures
    assert (first["bronze_messages"], first["silver_messages"], first["silver_quarantine"]) == (31, 30, 1)
    gold = spark.read.parquet(str(tmp_path / "tables" / "gold_deaths"))
    deaths = gold.groupBy("reason").agg({"deaths": "sum"}).toDF("reason", "n").collect()
    assert {row.reason: row.n for row in deaths} == {"rejected": 3, "max_retries": 3}
    world.publish(life.name, [b'{"order": 31}', b"neither"])
    second = run_job("medallion", **more).figures
    assert (second["bronze_messages"], second["silver_messages"], second["silver_quarantine"]) == (33, 31, 2)
    rates = spark.read.parquet(str(tmp_path / "tables" / "gold_rates"))
    assert sum(row.messages for row in rates.collect()) == 33
