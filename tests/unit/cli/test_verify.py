"""``headrace verify``: exit codes and report."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.cli.conftest import Run


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_sound_directory_ends_with_0_and_says_what_was_read(run: Run) -> None:
    run("publish", "t", "--lines", stdin=b"some text\n" * 100)
    ran = run("verify")
    assert ran.code == 0, ran.err
    assert "100 messages of 1 topics" in ran.text
    assert "the books balance" in ran.text
    [told] = run("verify", "--json").json
    assert told["ok"] is True
    assert told["messages"] == 100
    assert told["problems"] == []


def test_a_flipped_bit_ends_with_1_and_its_place(run: Run, data_dir: Path) -> None:
    run("publish", "t", "--lines", stdin=b"some text\n" * 1000)
    journal = next(data_dir.glob("*.journal"))
    content = bytearray(journal.read_bytes())
    content[content.index(b"some text")] ^= 1
    journal.write_bytes(content)
    ran = run("verify")
    assert ran.code == 1
    assert journal.name in ran.text
    assert "1 things are wrong" in ran.text
    [told] = run("verify", "--json").json
    assert told["ok"] is False
    assert [each["kind"] for each in told["problems"]] == ["damage"]


def test_what_cannot_be_verified_says_what_to_do(run: Run, tmp_path: Path) -> None:
    ran = run("verify", place=("--data-dir", str(tmp_path)))
    assert ran.code == 1
    assert "there is no journal in" in ran.err
    ran = run("verify", place=("--server", "headrace://127.0.0.1:1"))
    assert ran.code == 2
    assert "give --data-dir" in ran.err
    run("publish", "t", "x")
    ran = run("verify", "--sealed", "nowhere://x")
    assert ran.code == 1
    assert "nowhere" in ran.err
