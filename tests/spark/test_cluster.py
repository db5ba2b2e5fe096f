"""Executors in processes of their own, which get the package as it is documented: as a zip."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from spark.conftest import SETTINGS, World
from spark.driver_process import DriverProcess
from spark.test_exactly_once import ROWS, queries, written
from spark.test_log_batch import numbered


@pytest.mark.feature("N08")
def test_source_and_sink_on_a_cluster_with_the_package_shipped_and_an_executor_killed(
    spark: object, world: World, tmp_path: Path
) -> None:
    _, queue, out, asked = queries(world, tmp_path, "out")
    asked[0]["stop"] = ["before", 1]  # its tasks are in the executors then
    driver = DriverProcess(asked, master="local-cluster[2,1,1024]", conf=SETTINGS, log=tmp_path / "driver.log")
    try:
        told = json.loads(driver.told())
        assert all("headrace-" in place and ".zip/headrace/" in place for place in told["headrace"]), told
        driver.await_stops()
        driver.kill_executor()
        driver.finish()
    finally:
        driver.kill()
    assert Counter(world.values(out)) == Counter(numbered(0, 2 * ROWS))
    assert Counter(written(spark, tmp_path / "files")) == Counter(numbered(0, 2 * ROWS))
    books = world.books(queue, "workers")
    assert (books["acked"], books["leased"], books["ready"]) == (2 * ROWS, 0, 0)


@pytest.mark.feature("F116")
def test_a_job_on_a_cluster_as_it_is_typed(spark: Any, world: World, tmp_path: Path) -> None:
    topic = world.topic("clustered")
    world.publish(topic, numbered(0, ROWS))
    command = [sys.executable, "-m", "headrace", "pipeline", "run", "archive", "--server", world.url, "--topic", topic]
    command += ["--out", str(tmp_path / "lake"), "--master", "local-cluster[2,1,1024]", "--json"]
    for name, value in SETTINGS.items():
        command += ["--conf", f"{name}={value}"]
    told = []
    for _ in range(2):
        ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        told.append(json.loads(ran.stdout.splitlines()[-1])["figures"]["new messages"])
    assert told == [ROWS, 0]
    found = spark.read.parquet(str(tmp_path / "lake" / "messages"))
    assert sorted(bytes(row.value) for row in found.collect()) == sorted(numbered(0, ROWS))
