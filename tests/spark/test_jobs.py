"""The jobs on a real Spark against a real server: what they find is what happened, and twice is as once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import InvalidArgument, UnknownTopic
from headrace.spark.jobs import JOBS, Report, run_job
from spark.traffic import Life

Job = Callable[..., Report]


@pytest.fixture
def job(spark: Any, world: Any) -> Job:
    """``job("archive", topics=[…], out=…)``."""
    return lambda name, **more: run_job(name, server=world.url, spark=spark, **more)


@pytest.fixture(scope="session")
def worked(world: Any) -> Life:
    """A hundred orders that were all worked off; read, never changed."""
    life = Life(world)
    life.publish(100)
    life.drain()
    return life


def rows(spark: Any, path: Path, table: str) -> list[Any]:
    return list(spark.read.parquet(str(path / table)).collect())


def declared(spark: Any, path: Path, job: str) -> None:
    """What was written has the columns that are declared, no more and no less, in their order."""
    for table in JOBS[job].tables:
        if (path / table.name).exists():
            found = spark.read.parquet(str(path / table.name)).drop(*table.partitioned_by)
            wanted = spark.createDataFrame([], table.columns).drop(*table.partitioned_by)
            assert [(each.name, each.dataType) for each in found.schema] == [
                (each.name, each.dataType) for each in wanted.schema
            ], table.name


# -- archive -----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("F123")
def test_the_archive_has_each_message_once_and_goes_on_where_it_stopped(
    spark: Any, world: Any, job: Job, tmp_path: Path
) -> None:
    life = Life(world, "archived")
    life.publish(30)
    first = job("archive", topics=[life.name], out=str(tmp_path))
    assert first.figures["new messages"] == 30
    again = job("archive", topics=[life.name], out=str(tmp_path))
    assert (again.figures["new messages"], again.figures["messages"]) == (0, 30)
    life.publish(20, first=30)
    third = job("archive", topics=[life.name], out=str(tmp_path))
    assert (third.figures["new messages"], third.figures["messages"]) == (20, 50)
    found = spark.read.parquet(str(tmp_path / "messages"))
    assert sorted(json.loads(row.value)["order"] for row in found.collect()) == list(range(50))
    assert set(found.columns) == {part.split()[0] for part in JOBS["archive"].table("messages").columns.split(", ")}
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert json.loads((tmp_path / "report.json").read_text())["figures"]["messages"] == 50


def test_small_files_of_the_archive_become_one_and_nothing_changes(
    spark: Any, world: Any, job: Job, tmp_path: Path
) -> None:
    life = Life(world, "small", partitions=1)
    life.publish(40)
    told = job("archive", topics=[life.name], out=str(tmp_path), portion=10, small=2)
    assert told.figures["small files put together"] >= 4
    assert told.figures["files"] == 1
    found = spark.read.parquet(str(tmp_path / "messages")).orderBy("offset").collect()
    assert [row.offset for row in found] == list(range(40))


def test_a_batch_that_was_cut_off_before_the_manifest_is_made_again(
    spark: Any, world: Any, job: Job, tmp_path: Path
) -> None:
    life = Life(world, "cut")
    life.publish(10)
    job("archive", topics=[life.name], out=str(tmp_path))
    # As after a kill between moving files in and writing the manifest: Spark's commit of the batch is missing too.
    for path in (tmp_path / "_checkpoint" / "stream" / "commits").iterdir():
        path.unlink()
    for path in (tmp_path / "_manifest").iterdir():
        path.unlink()
    told = job("archive", topics=[life.name], out=str(tmp_path))
    assert told.figures["messages"] == 10
    assert spark.read.parquet(str(tmp_path / "messages")).count() == 10


def test_a_batch_that_spark_forgot_is_not_copied_again(spark: Any, world: Any, job: Job, tmp_path: Path) -> None:
    life = Life(world, "forgot")
    life.publish(10)
    job("archive", topics=[life.name], out=str(tmp_path))
    for path in (tmp_path / "_checkpoint" / "stream" / "commits").iterdir():
        path.unlink()
    life.publish(5, first=10)
    assert job("archive", topics=[life.name], out=str(tmp_path)).figures["messages"] == 15
    assert spark.read.parquet(str(tmp_path / "messages")).count() == 15


def test_a_compaction_that_was_cut_off_is_finished(spark: Any, world: Any, job: Job, tmp_path: Path) -> None:
    life = Life(world, "halfway", partitions=1)
    life.publish(20)
    job("archive", topics=[life.name], out=str(tmp_path), portion=5, small=2)
    last = max((tmp_path / "_manifest").glob("*.json"))
    done = json.loads(last.read_text())
    assert done["kind"] == "done"
    last.unlink()
    [merged] = [tmp_path / file["path"] for file in done["added"]]
    merged.rename(merged.with_name("_" + merged.name))
    assert job("archive", topics=[life.name], out=str(tmp_path)).figures["messages"] == 20
    assert spark.read.parquet(str(tmp_path / "messages")).count() == 20


def test_an_archive_refuses_other_work_on_its_checkpoint_and_a_second_run_beside_it(
    world: Any, job: Job, tmp_path: Path
) -> None:
    life, other = Life(world, "mine"), Life(world, "other")
    life.publish(1)
    other.publish(1)
    job("archive", topics=[life.name], out=str(tmp_path))
    with pytest.raises(InvalidArgument, match="is of other work"):
        job("archive", topics=[other.name], out=str(tmp_path))
    from headrace.spark.jobs.lake import Lake

    with Lake(str(tmp_path)).held("archive"), pytest.raises(InvalidArgument, match="another run is at work"):
        job("archive", topics=[life.name], out=str(tmp_path))
    for path in sorted((tmp_path / "_checkpoint" / "stream").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (tmp_path / "_checkpoint" / "stream").rmdir()
    with pytest.raises(InvalidArgument, match="its checkpoint is gone"):
        job("archive", topics=[life.name], out=str(tmp_path))


# -- replay ------------------------------------------------------------------------------------------------------------


@pytest.mark.feature("F116")
def test_messages_that_the_broker_let_go_of_are_replayed_from_the_archive(world: Any, job: Job, tmp_path: Path) -> None:
    life = Life(world, "old")
    life.publish(25)
    job("archive", topics=[life.name], out=str(tmp_path / "lake"))
    world.call("topic.purge", topic=life.name)
    target = world.topic("again")
    arguments: dict[str, Any] = {
        "topics": [life.name], "archive": str(tmp_path / "lake"), "to": target, "out": str(tmp_path / "replay"),
    }  # fmt: skip
    told = job("replay", **arguments)
    assert told.figures["messages"] == 25
    assert sorted(json.loads(value)["order"] for value in world.values(target)) == list(range(25))
    again = job("replay", **arguments)
    assert "finished before" in " ".join(again.notes)
    assert len(world.values(target)) == 25


def test_a_replay_that_was_cut_off_goes_on_and_publishes_nothing_twice(
    world: Any, job: Job, worked: Life, tmp_path: Path
) -> None:
    target = world.topic("copies")
    arguments: dict[str, Any] = {"topics": [worked.name], "to": target, "out": str(tmp_path), "key_prefix": "user-1"}
    job("replay", **arguments)
    plan = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps({**plan, "done": False}))
    job("replay", **arguments, rate=10_000)
    assert len(world.values(target)) == 20
    with pytest.raises(InvalidArgument, match="is of another replay"):
        job("replay", **{**arguments, "key_prefix": "user-2"})


@pytest.mark.feature("N05")
def test_exactly_what_a_bad_worker_acked_in_a_while_is_replayed(
    spark: Any, world: Any, job: Job, tmp_path: Path
) -> None:
    life = Life(world, "acks")
    life.publish(40)
    life.drain("good", most=10)
    life.drain("bad", most=12)
    life.drain("good")
    events = spark.read.format("headrace").options(server=world.url, table="events", subscribe=life.name).load()
    by_bad = events.where("event = 'acked' and consumer = 'bad'").selectExpr(
        "partition", "explode(coalesce(offsets, sequence(first_offset, last_offset))) as offset"
    )
    wanted = {(row.partition, row.offset) for row in by_bad.collect()}
    assert wanted
    target = world.topic("redone")
    told = job(
        "replay", topics=[life.name], to=target, out=str(tmp_path), outcome="acked", consumer="bad", group="default"
    )
    copies = spark.read.format("headrace").options(server=world.url, subscribe=target).load()
    marks = [row.headers["headrace-replay-of"].decode().rsplit("/", 2) for row in copies.collect()]
    assert {(int(partition), int(offset)) for _, partition, offset in marks} == wanted
    assert told.figures["messages"] == len(wanted) == len(marks)


def test_a_window_is_replayed_for_a_group(world: Any, job: Job, worked: Life, tmp_path: Path) -> None:
    import headrace

    told = job("replay", topics=[worked.name], to_group="second-look", out=str(tmp_path))
    assert told.figures["messages"] == 100
    with headrace.connect(world.url) as hr, hr.topic(worked.name).consumer(group="second-look") as consumer:
        assert len(consumer.receive(100, wait="5s")) > 0


# -- redrive -----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("N05", "F093")
def test_a_redrive_is_dry_first_then_moves_exactly_what_was_chosen_and_nothing_twice(
    world: Any, job: Job, tmp_path: Path
) -> None:
    life = Life(world, "dying")
    life.publish(60)
    life.drain()
    chosen: dict[str, Any] = {"topics": [life.name], "where": "error LIKE 'timeout%' AND attempts >= 2"}
    dry = job("redrive", **chosen, dry_run=True)
    assert dry.figures == {"matched": 6}
    assert len(world.call("dlq.list", topic=life.name)) == 12
    done = job("redrive", **chosen)
    assert done.figures == {"matched": 6, "redriven": 6, "left": 0}
    left = world.call("dlq.list", topic=life.name)
    assert {letter["reason"] for letter in left} == {"rejected"}
    assert len(left) == 6
    assert job("redrive", **chosen).figures == {"matched": 0, "redriven": 0, "left": 0}
    target = world.topic("elsewhere")
    assert job("redrive", topics=[life.name], reason="rejected", to=target, rate=1_000).figures["redriven"] == 6
    assert len(world.values(target)) == 6


# -- analysis ----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("F243")
def test_dead_letters_are_told_apart_by_reason_and_kind_of_error(
    spark: Any, world: Any, job: Job, worked: Life, tmp_path: Path
) -> None:
    told = job("dead-letters", topics=[worked.name], out=str(tmp_path))
    assert told.figures["dead letters"] == worked.books["died"] == 20
    kinds = Counter[tuple[str, str]]()
    for row in rows(spark, tmp_path, "deaths"):
        kinds[row.reason, row.error] += row.deaths
    assert kinds == {("rejected", "order #: card refused"): 10, ("max_retries", "timeout after # ms"): 10}
    worst = {(row.kind, row.name): row.deaths for row in rows(spark, tmp_path, "offenders")}
    assert worst["consumer", "anna"] == 20
    assert worst["key", "user-3"] + worst["key", "user-2"] == 20
    declared(spark, tmp_path, "dead-letters")
    assert "<svg" in (tmp_path / "report.html").read_text()


@pytest.mark.feature("F243", "F128")
def test_latency_counts_what_happened_and_the_books_agree_with_the_brokers(
    spark: Any, world: Any, job: Job, worked: Life, tmp_path: Path
) -> None:
    told = job("latency", topics=[worked.name], out=str(tmp_path))
    assert told.figures["acked"] == worked.books["acked"] == 80
    [books] = [row for row in rows(spark, tmp_path, "books") if row.group == "default"]
    [known] = [info for info in world.call("group.list", topic=worked.name) if info["group"] == "default"]
    assert (books.published, books.delivered, books.acked, books.dead) == (
        known["published"], known["delivered"], known["acked"], known["dead"],
    )  # fmt: skip
    assert books.retried == worked.books["retried"]
    stages = Counter[str]()
    for row in rows(spark, tmp_path, "latency"):
        if row.group == "default":
            stages[row.stage] += row.messages
            assert 0 <= row.p50_ms <= row.p90_ms <= row.p99_ms <= row.max_ms
    assert stages == {"deliver": 100, "ack": 80, "whole": 80}
    [anna] = [row for row in rows(spark, tmp_path, "consumers") if row.consumer == "anna"]
    assert (anna.acked, anna.failed, anna.holding, anna.verdict) == (80, 30, 0, "ok")
    declared(spark, tmp_path, "latency")


def test_who_holds_a_message_for_too_long_is_stuck(spark: Any, world: Any, job: Job, tmp_path: Path) -> None:
    import headrace

    life = Life(world, "held", lease="10m")
    life.publish(3)
    with headrace.connect(world.url) as hr, hr.topic(life.name).consumer(name="sleeper", prefetch=1) as consumer:
        assert consumer.receive(1, wait="5s")
        life.publish(1, first=3)
        told = job("latency", topics=[life.name], out=str(tmp_path), stuck=1)
    [row] = rows(spark, tmp_path, "consumers")
    assert (row.consumer, row.holding, row.verdict) == ("sleeper", 1, "stuck")
    assert told.figures["stuck consumers"] == 1


# -- streams -----------------------------------------------------------------------------------------------------------


def test_the_rollup_counts_each_message_once_over_several_runs(
    spark: Any, world: Any, job: Job, tmp_path: Path
) -> None:
    life = Life(world, "rolled")
    life.publish(30)
    assert job("rollup", topics=[life.name], out=str(tmp_path), portion=7).figures["messages"] == 30
    life.publish(12, first=30)
    assert job("rollup", topics=[life.name], out=str(tmp_path)).figures["messages"] == 42
    assert sum(row.messages for row in rows(spark, tmp_path, "rates")) == 42
    assert sum(row.bytes for row in rows(spark, tmp_path, "rates")) == sum(map(len, world.values(life.name)))
    assert {row.lag for row in rows(spark, tmp_path, "lag")} >= {42}
    declared(spark, tmp_path, "rollup")


def test_late_data_is_left_out_and_counted(spark: Any, world: Any, job: Job, tmp_path: Path) -> None:
    topic = world.topic("late")
    hour = '{"at": "2026-03-01T%02d:00:00Z"}'
    arguments: dict[str, Any] = {
        "topics": [topic], "out": str(tmp_path), "event_time": "at", "late": 1_000_000_000, "window": 60_000_000_000,
    }  # fmt: skip
    world.publish(topic, [(hour % 12).encode(), b"no json", (hour % 13).encode()])
    assert job("rollup", **arguments).figures["messages"] == 2
    world.publish(topic, [(hour % 2).encode(), (hour % 14).encode()])
    told = job("rollup", **arguments)
    assert (told.figures["messages"], told.figures["too late, left out"]) == (3, 1)


SCHEMA = {
    "type": "object",
    "required": ["order", "sum"],
    "properties": {"order": {"type": "integer"}, "sum": {"type": "number", "minimum": 0}},
}


def test_payloads_that_are_not_as_expected_are_quarantined_and_counted_and_the_job_goes_on(
    spark: Any, world: Any, job: Job, tmp_path: Path
) -> None:
    schema = tmp_path / "order.json"
    schema.write_text(json.dumps(SCHEMA))
    life = Life(world, "checked")
    life.publish(10)
    world.publish(life.name, [b"\xff\x00", b"{}", b'{"order": 1, "sum": -5}', b'{"order": "x", "sum": 1}'])
    arguments: dict[str, Any] = {"topics": [life.name], "out": str(tmp_path / "out"), "schema": str(schema)}
    told = job("quality", **arguments)
    assert (told.figures["checked"], told.figures["passed"], told.figures["failed"]) == (14, 10, 4)
    assert len(world.values(f"quarantine/{life.name}")) == 4
    problems = {(row.path, row.rule): row.messages for row in rows(spark, tmp_path / "out", "problems")}
    assert problems == {
        ("$", "json"): 1, ("$.order", "required"): 1, ("$.sum", "required"): 1, ("$.sum", "minimum"): 1,
        ("$.order", "type"): 1,
    }  # fmt: skip
    # Spark hands the last batch over again, as after a crash: nothing is quarantined twice.
    for path in (tmp_path / "out" / "_checkpoint" / "stream" / "commits").iterdir():
        path.unlink()
    assert job("quality", **arguments).figures["failed"] == 4
    assert len(world.values(f"quarantine/{life.name}")) == 4
    declared(spark, tmp_path / "out", "quality")


# -- what if -----------------------------------------------------------------------------------------------------------

COUNTS = ("published", "delivered", "acked", "retried", "released", "dead", "rejected", "max_retries", "unsettled")


@pytest.mark.feature("N14")
def test_unchanged_settings_reproduce_what_was_recorded(
    spark: Any, world: Any, job: Job, worked: Life, tmp_path: Path
) -> None:
    told = job("what-if", topics=[worked.name], group="default", out=str(tmp_path))
    runs = {row.run: row for row in rows(spark, tmp_path, "outcomes")}
    assert {name: runs["replayed"][name] for name in COUNTS} == {name: runs["recorded"][name] for name in COUNTS}
    assert {name: runs["recorded"][name] for name in ("acked", "dead", "retried")} == {
        "acked": worked.books["acked"], "dead": worked.books["died"], "retried": worked.books["retried"],
    }  # fmt: skip
    assert told.figures["reproduced"] == 1
    assert "changed" not in runs
    declared(spark, tmp_path, "what-if")


@pytest.mark.feature("N14")
def test_changed_settings_change_what_they_are_about(
    spark: Any, world: Any, job: Job, worked: Life, tmp_path: Path
) -> None:
    job("what-if", topics=[worked.name], group="default", out=str(tmp_path), set=["retry.max_retries=0"])
    changed = {row.run: row for row in rows(spark, tmp_path, "outcomes")}["changed"]
    assert (changed.retried, changed.dead, changed.max_retries, changed.acked) == (0, 20, 10, 80)
    with pytest.raises(InvalidArgument, match=r"retry\.max_retries"):
        job("what-if", topics=[worked.name], out=str(tmp_path), set=["retry.max_retrys=0"])


# -- what cannot be ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "given", "wrong"),
    [
        ("latency", {"topics": ["orders"]}, "say where with --out"),
        ("latency", {"out": "x", "slw": 1}, "did you mean slow"),
        ("quality", {"topics": ["a"], "out": "x"}, "needs schema"),
        ("quality", {"topics": ["a", "b"], "out": "x", "schema": "y"}, "is about one topic"),
        ("what-if", {"out": "x"}, "needs to know which topics"),
        ("archive", {"out": "x", "portion": 0}, "must be above 0"),
        ("archiv", {}, "did you mean archive"),
    ],
)
def test_a_job_that_cannot_be_run_says_why(name: str, given: dict[str, Any], wrong: str, job: Job) -> None:
    with pytest.raises(InvalidArgument, match=wrong):
        job(name, **given)


def test_an_unknown_topic_is_named_with_the_nearest(job: Job, worked: Life, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopic, match=f"did you mean '{worked.name}'"):
        job("latency", topics=[worked.name[:-1]], out=str(tmp_path))


def test_an_expression_that_cannot_be_is_refused_with_the_columns(job: Job, worked: Life) -> None:
    with pytest.raises(InvalidArgument, match=r"--where .*the columns are .*reason"):
        job("redrive", topics=[worked.name], where="raeson = 'x'", dry_run=True)
    with pytest.raises(InvalidArgument, match="--where"):
        job("redrive", topics=[worked.name], where="reason = = 'x'", dry_run=True)
    with pytest.raises(UnknownTopic, match="does not exist"):
        job("redrive", topics=[worked.name], to="nowhere")


def test_a_place_that_cannot_be_written_to_is_named(job: Job, worked: Life, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match="cannot be written to"):
        job("latency", topics=[worked.name], out=str(tmp_path / "file" / "below"))
