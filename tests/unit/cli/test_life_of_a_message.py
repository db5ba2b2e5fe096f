"""Tracing, explaining, schedules and dead letters on the command line."""

from __future__ import annotations

import pytest

from unit.cli.conftest import Run


def published(run: Run, topic: str, value: str, *options: str) -> str:
    return str(run("publish", topic, value, *options, "--json").json[0]["id"])


def killed(run: Run, topic: str, value: str, error: str) -> str:
    """A message that died of its first attempt."""
    identity = published(run, topic, value, "--key", f"key-{value}")
    assert run("consume", topic, "--nack", "--error", error).code == 0
    return identity


@pytest.fixture
def jobs(run: Run) -> str:
    assert run("topic", "create", "jobs", "--set", "retry.max_retries=0").code == 0
    return "jobs"


@pytest.mark.feature("F131", "F231")
def test_a_trace_tells_topic_place_and_a_time_line(run: Run, jobs: str) -> None:
    identity = killed(run, jobs, "x", "no \x1b[2J way")
    text = run("trace", identity).text
    assert f"message {identity} in jobs, partition 0, offset 0" in text
    lines = text.splitlines()
    assert [line.split()[1] for line in lines[1:4]] == ["PUBLISHED", "DELIVERED", "DEAD_LETTERED"]
    assert "error no \\x1b[2J way" in text
    assert "to dlq/jobs, partition 0, offset 0" in text
    assert "group default: dead, 1 attempt" in text
    (told,) = run("trace", identity, "--json").json
    assert told["id"] == identity
    assert told["events"][0]["at"] == told["published_at"]


def test_a_trace_says_how_long_it_took(run: Run) -> None:
    identity = published(run, "t", "x")
    run("consume", "t")
    assert "group default: acked, 1 attempt, publish to ack " in run("trace", identity).text


@pytest.mark.parametrize(("identity", "code"), [("12345", 1), ("abc", 2), ("-5", 2), ("9" * 30, 2)])
@pytest.mark.parametrize("command", ["trace", "explain"])
def test_an_id_of_no_message(run: Run, command: str, identity: str, code: int) -> None:
    run("publish", "t", "x")
    ran = run(command, "--", identity, place=())
    assert ran.code in (code, 1)
    ran = run(command, identity)
    assert ran.code == code
    assert ran.err


def test_an_explanation_is_a_sentence(run: Run) -> None:
    ready = published(run, "t", "x")
    later = published(run, "t", "y", "--delay", "1h")
    assert f"message {later} in t, partition 0, offset 1: scheduled in group default" in run("explain", later).text
    assert "it is not due until" in run("explain", later).text
    run("group", "pause", "t", "--why", "deploy", "--by", "ops")
    assert "paused by ops" in run("explain", ready).text
    assert run("explain", ready, "--json").json[0]["id"] == ready
    ran = run("explain", ready, "--group", "none")
    assert ran.code == 1
    assert "'none' does not exist" in ran.err


def test_a_schedule_is_listed_shown_moved_and_cancelled(run: Run) -> None:
    first = published(run, "t", "first", "--delay", "1h")
    second = published(run, "t", "second", "--delay", "2h", "--header", "tag=nightly")
    listed = run("schedule", "list", "t", "--json").json
    assert [one["id"] for one in listed] == [first, second]
    assert listed[0]["due_at"] < listed[1]["due_at"]
    assert run("schedule", "list", "t").text.endswith("2 scheduled\n")
    assert "first" in run("schedule", "show", "t", first).text
    assert run("schedule", "move", "t", "--tag", "nightly", "--delay", "5m").code == 0
    assert [one["id"] for one in run("schedule", "list", "t", "--json").json] == [second, first]
    assert run("schedule", "cancel", "t", first).text == "cancelled 1\n"
    assert run("schedule", "cancel", "t", "--tag", "nightly").text == "cancelled 1\n"
    assert run("schedule", "list", "t", "--json").json == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("cancel", "t"), "say which"),
        (("cancel", "t", "--key", "k", "--tag", "x"), "say which"),
        (("move", "t", "--key", "k"), "say when"),
        (("move", "t", "--key", "k", "--delay", "1h", "--deliver-at", "2099-01-01T00:00:00Z"), "say when"),
        (("cancel", "t", "12a"), "12a"),
    ],
)
def test_wrong_usage_of_schedule(run: Run, arguments: tuple[str, ...], says: str) -> None:
    ran = run("schedule", *arguments)
    assert ran.code == 2
    assert says in ran.err


def test_dead_letters_are_chosen_redriven_and_purged(run: Run, jobs: str) -> None:
    one = killed(run, jobs, "a", "timeout of the bank")
    killed(run, jobs, "b", "bad address")
    letters = run("dlq", "list", jobs, "--json").json
    assert [(letter["value"], letter["error"], letter["reason"]) for letter in letters] == [
        ("a", "timeout of the bank", "max_retries"),
        ("b", "bad address", "max_retries"),
    ]
    assert letters[0]["origin"]["id"] == one
    assert [found["value"] for found in run("dlq", "list", jobs, "--where", "error=timeout", "--json").json] == ["a"]
    assert [found["value"] for found in run("dlq", "list", jobs, "--where", "key_prefix=key-b", "--json").json] == ["b"]
    assert [found["value"] for found in run("dlq", "list", jobs, "--id", letters[1]["id"], "--json").json] == ["b"]
    assert run("dlq", "list", jobs, "--where", "min_attempts=2", "--json").json == []
    assert len(run("dlq", "list", jobs, "--where", "from_time=-1h", "--where", "group=default", "--json").json) == 2
    shown = run("dlq", "show", jobs, letters[0]["id"]).text
    assert "last error: timeout of the bank" in shown
    assert "key key-a" in shown
    dry = run("dlq", "redrive", jobs, "--where", "error=timeout", "--dry-run").text
    assert dry.startswith("1 would be redriven\n")
    assert run("consume", jobs).out == b""
    assert run("dlq", "redrive", jobs, "--where", "error=timeout", "--rate", "1000").text.startswith("redrove 1\n")
    assert run("consume", jobs).out == b"a\n"
    assert run("dlq", "redrive", jobs, "--to", "second-chance", "--create", "--json").json[0]["redriven"] == 1
    assert run("consume", "second-chance").out == b"b\n"
    killed(run, jobs, "c", "again")
    assert run("dlq", "purge", jobs, "--where", "error=nothing").text == "dropped 0\n"
    assert run("dlq", "purge", jobs).text == "dropped 1\n"


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("colour=red", "--where has no 'colour'"),
        ("min_attempts=many", "must be a whole number"),
        ("reason", "has no '='"),
        ("from_time=noon", "'noon' is no time"),
    ],
)
def test_a_filter_that_cannot_be(run: Run, jobs: str, where: str, says: str) -> None:
    ran = run("dlq", "list", jobs, "--where", where)
    assert ran.code in (1, 2)
    assert says in ran.err


def test_a_namespace_has_quotas(run: Run) -> None:
    assert run("namespace", "config", "shop", "--set", "quota.messages_per_minute=2").code == 0
    assert "quota.messages_per_minute = 2" in run("namespace", "show", "shop").text
    ran = run("publish", "t", "--lines", "--namespace", "shop", stdin=b"1\n2\n3\n")
    assert ran.code == 1
    assert "line 3: namespace 'shop' may publish 2 messages a minute" in ran.err
    assert "the 2 messages before it are published" in ran.err
    assert run("namespace", "list").text == "default\nshop\n"
    assert run("namespace", "config", "shop").code == 2


def test_browse_tells_when_and_how(run: Run) -> None:
    run("topic", "create", "jobs", "--set", "retry.max_retries=0")
    run("publish", "jobs", "x")
    run("consume", "jobs", "--nack", "--error", "boom")
    (dead,) = run("browse", "jobs", "--state", "dead", "--json").json
    assert (dead["attempts"], dead["last_error"], dead["reason"]) == (1, "boom", "max_retries")
    assert "boom" in run("browse", "jobs", "--state", "dead").text
    later = run("publish", "jobs", "y", "--delay", "1h", "--json").json[0]["id"]
    (waiting,) = run("browse", "jobs", "--state", "scheduled", "--json").json
    moved = run("schedule", "move", "jobs", later, "--delay", "24h", "--json").json[0]["due_at"]
    (after,) = run("browse", "jobs", "--state", "scheduled", "--json").json
    assert after["due_at"][:19] == moved[:19] > waiting["due_at"][:19]


def test_explain_of_a_dead_message_says_why_and_where_to_look(run: Run) -> None:
    run("topic", "create", "jobs", "--set", "retry.max_retries=0")
    identity = run("publish", "jobs", "x", "--json").json[0]["id"]
    run("consume", "jobs", "--nack", "--error", "boom")
    told = run("explain", identity).text
    assert "max_retries after 1 attempt" in told
    assert "boom" in told
    command = told.split("`")[1].split()[1:]
    assert "boom" in run(*command).text
    ran = run("explain", identity, "--group", "audit")
    assert ran.code == 1
    assert "it has 'default'" in ran.err


def test_a_slip_in_where_messages_go_does_not_become_a_topic(run: Run) -> None:
    run("topic", "create", "jobs", "--set", "retry.max_retries=0")
    run("topic", "create", "repairs")
    killed(run, "jobs", "x", "boom")
    for command in (("dlq", "redrive", "jobs"), ("group", "replay", "jobs", "--where", "outcome=dead")):
        for more in ((), ("--dry-run",)):
            ran = run(*command, "--to", "repiars", *more)
            assert (ran.code, ran.out) == (1, b"")
            assert "did you mean 'repairs'?; --create makes it" in ran.err
    assert run("dlq", "redrive", "jobs", "--to", "repairs").text.startswith("redrove 1")
    killed(run, "jobs", "y", "boom")
    assert run("dlq", "redrive", "jobs", "--to", "new", "--create").text.startswith("redrove 1")
    assert run("consume", "new").out == b"y\n"
