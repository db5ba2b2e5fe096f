"""Topics, groups, counts and looking around on the command line."""

from __future__ import annotations

import pytest

from unit.cli.conftest import Run


def test_a_topic_is_made_listed_shown_changed_and_removed(run: Run) -> None:
    assert run("topic", "create", "orders", "--partitions", "3", "--set", "retry.max_retries=3").code == 0
    (listed,) = run("topic", "list", "--json").json
    assert (listed["topic"], listed["partitions"], listed["settings"]["retry"]["max_retries"]) == ("orders", 3, 3)
    assert listed["created_at"].endswith("Z")
    shown = run("topic", "show", "orders", "--json").json[0]
    assert [group["group"] for group in shown["groups"]] == ["default"]
    assert "orders" in run("topic", "show", "orders").text
    assert run("topic", "config", "orders", "--set", "message_ttl=1d").text == "message_ttl = 24h\n"
    assert "retry.max_retries = 3\n" in run("topic", "config", "orders").text
    assert run("topic", "config", "orders", "--json").json[0]["message_ttl"] == "24h"
    assert run("topic", "delete", "orders").text == "removed topic orders\n"
    assert run("topic", "list", "--json").json == []


def test_namespaces_keep_topics_apart(run: Run) -> None:
    run("publish", "t", "x")
    run("publish", "t", "y", "--namespace", "shop")
    assert run("consume", "t", "--namespace", "shop").out == b"y\n"
    assert [one["namespace"] for one in run("topic", "list", "--all", "--json").json] == ["default", "shop"]
    assert [one["topic"] for one in run("topic", "list", "--namespace", "shop", "--json").json] == ["t"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("create", "bad#", "--set", "lease=5"), "lease: '5' has no unit"),
        (("create", "+x"), "must not start with +"),
        (("create", "t", "--set", "retries=5"), "retries"),
        (("create", "t", "--set", "ordering=keys"), "ordering"),
        (("show", "nothing"), "has no topics"),
        (("delete", "nothing"), "does not exist"),
    ],
)
def test_what_is_refused_is_1_with_the_reason(run: Run, arguments: tuple[str, ...], says: str) -> None:
    run("topic", "create", "seed")
    run("topic", "delete", "seed")
    ran = run("topic", *arguments)
    assert (ran.code, ran.out) == (1, b"")
    assert says in ran.err


def test_a_topic_that_exists_is_not_made_again(run: Run) -> None:
    run("topic", "create", "t")
    ran = run("topic", "create", "t")
    assert ran.code == 1
    assert "'t' exists" in ran.err


def test_purging_drops_what_waits(run: Run) -> None:
    run("publish", "t", "--lines", stdin=b"a\nb\n")
    run("group", "create", "t", "audit")
    assert run("topic", "purge", "t", "--group", "audit").text == "dropped 2\n"
    assert run("consume", "t", "--group", "audit").out == b""
    assert run("topic", "purge", "t", "--json").json == [{"dropped": 2}]
    assert run("consume", "t").out == b""


def test_a_group_is_made_sought_paused_and_removed(run: Run) -> None:
    run("publish", "t", "--lines", stdin=b"a\nb\nc\n")
    assert run("group", "create", "t", "late", "--start", "latest", "--set", "lease=2m").code == 0
    assert run("consume", "t", "--group", "late").out == b""
    assert run("group", "seek", "t", "late", "--to", "earliest").text == "group late of t starts over: 3 ready\n"
    assert run("group", "seek", "t", "late", "--to-offset", "0:1", "--json").json[0]["ready"] == 2
    assert run("group", "seek", "t", "late", "--to", "-1h").code == 0
    paused = run("group", "pause", "t", "late", "--why", "deploy", "--by", "ops", "--json").json[0]["paused"]
    assert (paused["by"], paused["why"]) == ("ops", "deploy")
    assert run("consume", "t", "--group", "late").out == b""
    assert "paused by ops: deploy" in run("group", "show", "t", "late").text
    assert run("group", "resume", "t", "late").text == "group late of t goes on: 3 ready\n"
    assert run("consume", "t", "--group", "late").out == b"a\nb\nc\n"
    assert run("group", "config", "t", "late").text == "lease = 2m\n"
    assert run("group", "config", "t", "late", "--set", "lease=3m", "--json").json == [{"lease": "3m"}]
    assert [one["group"] for one in run("group", "list", "t", "--json").json] == ["default", "late"]
    assert run("group", "delete", "t", "late").code == 0
    gone = run("group", "show", "t", "late")
    assert gone.code == 1
    assert "'late' does not exist" in gone.err
    assert "it has 'default'" in gone.err


def test_a_bounded_seek_stops_at_its_time(run: Run) -> None:
    run("publish", "t", "early")
    assert run("consume", "t").out == b"early\n"
    assert run("group", "seek", "t", "--to", "earliest", "--until", "now").code == 0
    run("publish", "t", "later")
    assert run("consume", "t").out == b"early\n"


def test_wrong_usage_of_group_is_2(run: Run) -> None:
    run("publish", "t", "x")
    for arguments, says in (
        (("seek", "t"), "say where to"),
        (("seek", "t", "--to", "latest", "--to-offset", "0:1"), "two places"),
        (("seek", "t", "--to", "yesterday"), "'yesterday' is no time"),
        (("create", "t", "g", "--from-offset", "a:b"), "no place in a log"),
    ):
        ran = run("group", *arguments)
        assert ran.code == 2
        assert says in ran.err


def test_browsing_shows_each_state_and_takes_nothing(run: Run) -> None:
    run("publish", "t", "--lines", stdin=b"a\nb\n")
    run("publish", "t", "later", "--delay", "1h")
    assert [one["value"] for one in run("browse", "t", "--json").json] == ["a", "b"]
    (scheduled,) = run("browse", "t", "--state", "scheduled", "--json").json
    assert scheduled["deliver_at"] > scheduled["published_at"]
    assert "later" in run("browse", "t", "--state", "scheduled").text
    assert run("browse", "t", "--limit", "1", "--json").json[0]["value"] == "a"
    assert run("browse", "t", "--state", "lost").code == 2
    assert run("consume", "t").out == b"a\nb\n"


def test_counts_of_topics_and_groups(run: Run) -> None:
    run("publish", "t", "--lines", stdin=b"a\nb\nc\n")
    run("consume", "t", "--limit", "1")
    (found,) = run("stats", "--json").json
    ((group,),) = (topic["groups"] for topic in found["topics"])
    assert (group["published"], group["ready"], group["acked"]) == (3, 2, 1)
    text = run("stats", "t").text
    assert "READY" in text
    assert "journal" in text
    assert run("stats", "other").code == 1


def test_watching_shows_rates_until_it_is_interrupted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("publish", "t", "--lines", stdin=b"a\nb\nc\n")
    rounds = 0

    def rest(*_: object) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("headrace.cli.stats._rest", rest)
    for columns, more in (("80", False), ("120", True)):
        rounds = 0
        monkeypatch.setenv("COLUMNS", columns)
        ran = run("stats", "--watch")
        assert ran.code == 130
        assert "acked/s" in ran.text
        assert ("again/s" in ran.text) is more
    rounds = 0
    monkeypatch.delenv("COLUMNS")
    told = run("stats", "--watch").text
    assert (told.count("acked/s"), told.count("again/s")) == (2, 2), "a pipe gets every round, with all columns"
    rounds = 0
    watched = run("stats", "--watch", "--json")
    assert watched.code == 130
    assert len(watched.json) == 2


@pytest.mark.parametrize("word", ["none", "None", "null"])
def test_a_setting_is_taken_away_in_the_words_it_is_shown_in(run: Run, word: str) -> None:
    run("topic", "create", "t", "--set", "dead_letters.topic=graves")
    assert run("topic", "config", "t", "--set", f"dead_letters.topic={word}").text == "dead_letters.topic = none\n"
    shown = run("topic", "config", "t").text.splitlines()
    assert "dead_letters.enabled = true" in shown
    assert not [line for line in shown if line.endswith((" None", " True", " False"))]
    for line in shown:
        key, _, value = line.partition(" = ")
        if key not in ("partitions", "ordering"):
            assert run("topic", "config", "t", "--set", f"{key}={value}").code == 0, line
    assert run("topic", "config", "t").text.splitlines() == shown
