"""The crash drill that users can run: a real server, killed under load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing.drill import Drill


@pytest.mark.feature("N13", "F004", "F154", "F155", "F290")
def test_nothing_confirmed_is_lost_over_kills(data_dir: Path) -> None:
    report = Drill(data_dir, kills=3, seed=7).run()
    assert report.violations == []
    assert (report.lost, report.drift, report.kills) == (0, 0, 3)
    assert report.confirmed > 0
    assert report.acked > 0
    assert report.passed


def test_the_command_says_how_it_went(data_dir: Path) -> None:
    command = [sys.executable, "-m", "headrace", "drill", "--kills", "1", "--dir", str(data_dir / "new"), "--json"]
    done = subprocess.run(command, capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["passed"] is True
    again = subprocess.run(command, capture_output=True, timeout=100, check=False)
    assert again.returncode == 1
    assert b"it must be new" in again.stderr
