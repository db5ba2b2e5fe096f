"""``headrace token`` on files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.cli import app
from headrace.errors import HeadraceError


def _run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app.app, ["token", *arguments], input=stdin)


def test_from_a_key_to_a_checked_token(tmp_path: Path) -> None:
    keys = str(tmp_path / "keys.json")
    assert _run("key", "--keys", keys, "--kid", "first").exit_code == 0
    made = _run("create", "--keys", keys, "--subject", "billing", "--verb", "consume", "--topic", "orders/#")
    token = made.stdout.strip()
    looked = _run("inspect", "-", "--keys", keys, stdin=token + "\n")
    said = json.loads(looked.stdout)
    assert said["good"] is True
    assert said["header"]["kid"] == "first"
    assert said["claims"]["headrace"] == [{"verbs": ["consume"], "topics": ["orders/#"]}]
    (line,) = _run("inspect", token, "--keys", keys, "--json").stdout.splitlines()
    assert json.loads(line) == said


def test_a_token_that_is_not_good_is_said_to_be(tmp_path: Path) -> None:
    keys = str(tmp_path / "keys.json")
    _run("key", "--keys", keys)
    token = _run("create", "--keys", keys, "--subject", "x", "--verb", "admin", "--audience", "them").stdout.strip()
    assert "aud" in str(_run("inspect", token, "--keys", keys).exception)
    assert isinstance(_run("inspect", token, "--keys", keys).exception, HeadraceError)
    assert _run("inspect", token, "--keys", keys, "--audience", "them").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--kid", "other"), "there is no key 'other'"),
        (("--ttl", "soon"), "soon"),
        (("--topic", "a#"), "must fill its whole level"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    keys = str(tmp_path / "keys.json")
    _run("key", "--keys", keys)
    refused = _run("create", "--keys", keys, "--subject", "x", "--verb", "publish", *arguments)
    assert says in refused.output + str(refused.exception)
