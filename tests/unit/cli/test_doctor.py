"""The doctor tells what is wrong and what to do about it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import doctor as room
from headrace.cli.probes import Spread, spread_of
from unit.cli.conftest import Run


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration of the project, no variables of ours."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("HEADRACE_"):
            monkeypatch.delenv(name)


def checked(run: Run, *arguments: str, **options: Any) -> dict[str, Any]:
    return {one["check"]: one for one in run("doctor", "--json", *arguments, **options).json}


def test_a_healthy_place_has_nothing_that_fails(run: Run) -> None:
    run("publish", "t", "x")
    found = checked(run)
    assert {"python", "packages", "clock", "descriptors", "data directory", "room", "disk"} <= set(found)
    assert [one for one in found.values() if one["state"] == "fail"] == []
    assert "reads as it was written" in found["data directory"]["found"]
    ran = run("doctor")
    assert ran.code == 0
    assert " 0 failed" in ran.text


def test_what_is_not_ok_says_what_to_do(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_version", lambda name: None)
    found = checked(run)
    assert found["packages"]["state"] == "fail"
    assert all(one["todo"] for one in found.values() if one["state"] == "fail")
    assert "pip install 'headrace[columns]'" in found["[columns]"]["todo"]
    assert run("doctor").code == 1


def test_a_damaged_journal_is_found(run: Run, data_dir: Path) -> None:
    run("publish", "t", "--lines", stdin=b"some text\n" * 1000)
    journal = next(data_dir.glob("*.journal"))
    content = bytearray(journal.read_bytes())
    at = content.index(b"some text")
    content[at] ^= 1
    journal.write_bytes(content)
    found = checked(run)
    assert found["data directory"]["state"] == "fail"
    assert "headrace verify" in found["data directory"]["todo"]


def test_a_directory_that_a_broker_holds_is_fine(run: Run, data_dir: Path) -> None:
    import headrace

    with headrace.open(data_dir):
        found = checked(run)
    assert found["data directory"]["state"] == "ok"
    assert str(os.getpid()) in found["data directory"]["found"]


@pytest.mark.parametrize(
    ("spread", "state", "says"),
    [
        (Spread(500_000, 3_000_000, 9_000_000), "ok", "500 µs (median)"),
        (Spread(30_000_000, 90_000_000, 99_000_000), "warn", "30 ms"),
        (Spread(1_000, 2_000, 3_000), "warn", "1 µs"),
    ],
)
def test_a_disk_is_judged_by_its_syncs(
    run: Run, monkeypatch: pytest.MonkeyPatch, spread: Spread, state: str, says: str
) -> None:
    monkeypatch.setattr(room, "syncs", lambda _: spread)
    disk = checked(run)["disk"]
    assert disk["state"] == state
    assert says in disk["found"]


@pytest.mark.parametrize(("kind", "state"), [("tmpfs", "fail"), ("nfs4", "warn"), ("ext4", "ok"), ("", "ok")])
def test_a_file_system_is_judged_by_what_it_is(
    run: Run, monkeypatch: pytest.MonkeyPatch, kind: str, state: str
) -> None:
    monkeypatch.setattr(room, "file_system_of", lambda _: kind)
    assert checked(run)["file system"]["state"] == state


def test_a_full_disk_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1 << 20}))
    assert checked(run)["room"]["state"] == "fail"


def test_a_taken_port_and_an_open_host_are_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("HEADRACE_NATIVE_PORT", str(taken.getsockname()[1]))
        monkeypatch.setenv("HEADRACE_HTTP_PORT", "off")
        found = checked(run)
    assert found["native port"]["state"] == "warn"
    assert "is taken" in found["native port"]["found"]
    assert found["http port"]["found"] == "off"
    monkeypatch.setenv("HEADRACE_NATIVE_PORT", "0")
    monkeypatch.setenv("HEADRACE_HOST", "0.0.0.0")  # noqa: S104 - what is warned about
    assert checked(run)["host"]["state"] == "fail"


def test_a_wrong_configuration_is_told_with_its_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "headrace.yaml").write_text("htpp_port: 80\n")
    found = checked(run)
    assert found["configuration"]["state"] == "fail"
    assert "headrace.yaml:1" in found["configuration"]["found"]
    assert "http_port" in found["configuration"]["found"]


def test_a_directory_that_cannot_be_one(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    found = checked(run, place=("--data-dir", str(tmp_path / "file" / "below")))
    assert found["data directory"]["state"] == "fail"


def test_spans_are_told_by_their_spread() -> None:
    assert spread_of([5]) == (5, 5, 5)
    assert spread_of(list(range(100, 0, -1))) == (50, 99, 100)
