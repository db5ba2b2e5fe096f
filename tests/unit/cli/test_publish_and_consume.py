"""Messages in and out of the command line."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import pytest

from unit.cli.conftest import Run


@pytest.mark.feature("F229")
def test_a_message_with_everything_said_about_it_comes_out_as_it_went_in(run: Run) -> None:
    published = run(
        *("publish", "orders", "hello", "--key", "user-1", "--header", "a=b", "--header", "empty="),
        *("--priority", "high", "--ttl", "1h", "--dedup-id", "once", "--json"),
    )
    assert published.code == 0
    ((identity),) = published.json
    assert identity["offset"] == 0
    assert identity["duplicate"] is False
    (message,) = run("consume", "orders", "--json").json
    assert message["id"] == identity["id"]
    assert message["id"].isdecimal()
    assert {name: message[name] for name in ("key", "value", "headers", "priority", "dedup_id", "attempt")} == {
        "key": "user-1",
        "value": "hello",
        "headers": {"a": "b", "empty": ""},
        "priority": 1,
        "dedup_id": "once",
        "attempt": 1,
    }
    assert message["published_at"].endswith("Z")
    assert message["expires_at"] > message["published_at"]
    assert run("consume", "orders").out == b"", "what was printed is acked"


def test_a_second_publish_with_the_dedup_id_says_so(run: Run) -> None:
    first = run("publish", "orders", "x", "--dedup-id", "once", "--json").json[0]
    second = run("publish", "orders", "x", "--dedup-id", "once", "--json").json[0]
    assert second == {**first, "duplicate": True}
    assert "already" in run("publish", "orders", "x", "--dedup-id", "once").text


def test_piped_input_is_one_message_byte_for_byte(run: Run) -> None:
    content = bytes(range(256)) + b"\n\n"
    assert run("publish", "blobs", stdin=content).code == 0
    assert run("publish", "blobs", "-", stdin=b"").code == 0
    assert run("consume", "blobs").out == content + b"\n" + b"\n"


def test_lines_are_published_in_order_and_counted(run: Run) -> None:
    lines = b"".join(b"%d\n" % i for i in range(20_000))
    published = run("publish", "n", "--lines", stdin=lines)
    assert published.text == "published 20,000 to n\n"
    assert run("consume", "n", "--limit", "5").out == b"0\n1\n2\n3\n4\n"
    assert run("consume", "n").out == lines.split(b"4\n", 1)[1]


@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_lines_that_come_in_pieces_are_put_together(run: Run, chunk: int) -> None:
    class Dripping(io.BytesIO):
        def read1(self, _size: int | None = -1) -> bytes:
            return super().read(chunk)

    run("publish", "n", "--lines", "--key", "k", stdin=Dripping(b"one\n\ntwo and more\nno newline at the end"))
    assert [(one["value"], one["key"]) for one in run("consume", "n", "--json").json] == [
        ("one", "k"),
        ("", "k"),
        ("two and more", "k"),
        ("no newline at the end", "k"),
    ]


def test_lines_larger_than_a_batch_are_split(run: Run) -> None:
    lines = [bytes([65 + i]) * 900_000 for i in range(12)]
    run("publish", "big", "--lines", stdin=b"\n".join(lines))
    assert run("consume", "big").out.split() == lines


def test_each_line_says_where_it_went_with_json(run: Run) -> None:
    run("topic", "create", "spread", "--partitions", "3")
    out = run(
        "publish",
        "spread",
        "--json-lines",
        "--json",
        stdin=b"".join(b'{"value":"%d","key":"k%d"}\n' % (i, i) for i in range(30)),
    )
    assert len(out.json) == 30
    places = {(one["partition"], one["offset"]): one["id"] for one in out.json}
    assert len(places) == 30
    for one in run("consume", "spread", "--json").json:
        assert places[one["partition"], one["offset"]] == one["id"]
        assert out.json[int(one["value"])]["id"] == one["id"], "in the order of the lines"


def test_what_consume_prints_can_be_published_again(run: Run) -> None:
    everything: dict[str, Any] = {
        "key_base64": base64.b64encode(b"\xff").decode(),
        "value_base64": base64.b64encode(b"\x00\xff").decode(),
        "headers": {"h": "text"},
        "headers_base64": {"raw": base64.b64encode(b"\xfe").decode()},
        "priority": 9,
        "dedup_id": "d",
        "expires_at": "2099-01-01T00:00:00.000Z",
    }
    assert run("publish", "a", "--json-lines", stdin=json.dumps(everything).encode()).code == 0
    printed = run("consume", "a", "--json")
    assert run("publish", "b", "--json-lines", stdin=printed.out).code == 0
    again = run("consume", "b", "--json").json[0]
    assert {name: again[name] for name in everything} == everything


def test_json_values_are_kept_as_json(run: Run) -> None:
    run("publish", "a", "--json-lines", stdin=b'{"json": {"n": [1, 2.5, null]}}\n\n{"value": "x", "delay": "0"}')
    first, second = run("consume", "a", "--json").json
    assert json.loads(first["value"]) == {"n": [1, 2.5, None]}
    assert first["headers"] == {"content_type": "application/json"}
    assert second["value"] == "x"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "line 2 is not JSON"),
        (b"[1]", "line 2: a message is an object"),
        (b'{"valeu": "x"}', "line 2: a message has no 'valeu'; did you mean 'value'?"),
        (b'{"value": 5}', "line 2: value is 5; it must be text"),
        (b'{"value": "a", "value_base64": "YQ=="}', "both value and value_base64"),
        (b'{"value": "a", "json": 1}', "both json and value"),
        (b'{"value_base64": "!"}', "value_base64 is not base64"),
        (b'{"value": "a", "priority": 11}', "'11' is no priority"),
        (b'{"value": "a", "delay": "5"}', "'5' has no unit"),
        (b'{"value": "a", "ttl": "0s"}', "line 2: '0s' is no time at all"),
        (b'{"value": "a", "deliver_at": "tomorrow"}', "'tomorrow' is no time"),
        (b'{"value": "a", "headers": []}', "headers is []"),
        (b"[" * 100_000, "line 2"),
    ],
)
def test_a_line_that_is_no_message_is_named_and_those_before_it_are_published(run: Run, line: bytes, says: str) -> None:
    ran = run("publish", "a", "--json-lines", stdin=b'{"value": "good"}\n' + line + b"\n")
    assert ran.code == 1
    assert says in ran.err


def test_a_line_that_is_too_large_is_named_and_exactly_what_is_before_it_is_published(run: Run) -> None:
    run("topic", "create", "small", "--set", "max_message_size=1KiB")
    first = b"".join(b"%d\n" % i for i in range(5000))
    ran = run("publish", "small", "--lines", stdin=first + b"x" * 2000 + b"\n" + first)
    assert ran.code == 1
    assert "line 5001: a message of 2000 bytes" in ran.err
    assert "the 5,000 messages before it are published, and none from line 5001 on" in ran.err
    assert run("consume", "small").out == first


def test_what_fits_into_a_topic_gets_in_and_the_first_line_that_does_not_is_named(run: Run) -> None:
    run("topic", "create", "full", "--set", "max_depth=150")
    lines = [b"%d\n" % i for i in range(400)]
    assert run("publish", "full", "--lines", stdin=b"".join(lines[:40])).code == 0
    ran = run("publish", "full", "--lines", stdin=b"".join(lines[40:]))
    assert ran.code == 1
    assert "line 111: " in ran.err
    assert "the 110 messages before it are published, and none from line 111 on; try again in 1 s" in ran.err
    assert run("consume", "full").out == b"".join(lines[:150])


def test_lines_before_one_that_cannot_be_read_are_published(run: Run) -> None:
    good = [b'{"value": "%d"}\n' % i for i in range(6)]
    ran = run("publish", "a", "--json-lines", stdin=b"".join([*good[:3], b"\n", b"{\n", *good[3:]]))
    assert ran.code == 1
    assert "line 5 is not JSON" in ran.err
    assert "the 3 messages before it are published, and nothing behind it" in ran.err
    assert run("consume", "a").out == b"0\n1\n2\n"
    long_key = b'{"value": "x", "key": "' + b"k" * 2000 + b'"}\n'
    ran = run("publish", "b", "--json-lines", stdin=b"".join([*good[:2], long_key, *good[2:]]))
    assert "line 3: the key has 2000 bytes" in ran.err
    assert run("consume", "b").out == b"0\n1\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("x", "--lines"), "leave VALUE out"),
        (("x", "--delay", "5m", "--deliver-at", "2099-01-01T00:00:00Z"), "--delay and --deliver-at"),
        (("x", "--delay", "5"), "'5' has no unit; write 5s for seconds"),
        (("x", "--deliver-at", "2099-01-01T00:00:00"), "names no time zone; write 2099-01-01T00:00:00Z"),
        (("x", "--priority", "urgent"), "'urgent' is no priority"),
        (("x", "--ttl", "0s"), "'0s' is no time at all; it must be over 0s"),
        (("x", "--header", "novalue"), "'novalue' has no '='"),
        (("--lines", "--dedup-id", "d"), "--dedup-id with --lines"),
        (("--json-lines", "--key", "k"), "leave out key"),
        (("x", "--keey", "k"), "--key"),
    ],
)
def test_wrong_usage_of_publish_is_2_and_says_what_would_be_right(
    run: Run, arguments: tuple[str, ...], says: str
) -> None:
    ran = run("publish", "t", *arguments)
    assert ran.code == 2
    assert says in ran.err
    assert ran.out == b""


def test_publish_without_a_value_on_a_terminal_does_not_wait_for_it(run: Run) -> None:
    ran = run("publish", "t", terminal=True)
    assert ran.code == 2
    assert "nothing to publish" in ran.err


def test_a_name_with_a_slip_does_not_become_a_topic(run: Run) -> None:
    run("publish", "orders", "x")
    ran = run("consume", "ordres")
    assert ran.code == 1
    assert "did you mean 'orders'?" in ran.err
    assert [one["topic"] for one in run("topic", "list", "--json").json] == ["orders"]


def test_nacked_messages_come_again_and_what_is_not_acked_is_given_back(run: Run) -> None:
    run("topic", "create", "jobs", "--set", "retry.initial_backoff=0s", "--set", "retry.max_retries=2")
    run("publish", "jobs", "--lines", stdin=b"a\nb\n")
    assert run("consume", "jobs", "--no-ack").out == b"a\nb\n"
    assert run("consume", "jobs", "--nack", "--error", "boom", "--limit", "1").out == b"a\n"
    rows = run("browse", "jobs", "--json").json
    assert {(row["value"], row["attempts"], row["last_error"]) for row in rows} == {("a", 1, "boom"), ("b", 0, "")}


def test_a_group_sees_every_message(run: Run) -> None:
    run("publish", "t", "--lines", stdin=b"1\n2\n")
    assert run("consume", "t").out == b"1\n2\n"
    assert run("consume", "t", "--group", "audit").out == b"1\n2\n"


@pytest.mark.feature("F230")
def test_a_replay_is_bounded_and_leaves_groups_alone(run: Run) -> None:
    run("publish", "t", "--lines", stdin=b"a\nb\nc\nd\n")
    between = run("publish", "t", "last", "--json").json[0]
    (printed,) = (one for one in run("consume", "t", "--json").json if one["id"] == between["id"])
    assert run("consume", "t", "--from-offset", "0:2").out == b"c\nd\nlast\n"
    assert run("consume", "t", "--from-offset", "1", "--limit", "2").out == b"b\nc\n"
    assert run("consume", "t", "--from-time", "-1h", "--to-time", "now").out == b"a\nb\nc\nd\nlast\n"
    assert run("consume", "t", "--from-time", printed["published_at"]).out == b"last\n"
    assert run("consume", "t", "--to-time", printed["published_at"]).out == b"a\nb\nc\nd\n"
    assert "attempt" not in run("consume", "t", "--from-offset", "4", "--json").json[0]
    assert run("group", "show", "t", "--json").json[0]["acked"] == 5


def test_a_replay_of_several_partitions_takes_those_that_are_named(run: Run) -> None:
    run("topic", "create", "t", "--partitions", "2")
    for partition in ("0", "1"):
        run("publish", "t", "--lines", "--partition", partition, stdin=b"a%b\nb%b\n" % ((partition.encode(),) * 2))
    assert run("consume", "t", "--from-time", "-1h").out == b"a0\nb0\na1\nb1\n"
    assert run("consume", "t", "--from-offset", "1:1").out == b"b1\n"
    assert run("consume", "t", "--from-offset", "1:1", "--from-offset", "0:1").out == b"b0\nb1\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--no-ack", "--follow"), "--no-ack with --follow"),
        (("--ack", "--nack"), "give one of them"),
        (("--nack", "--no-ack"), "give one of them"),
        (("--follow", "--wait", "1s"), "leave out --wait"),
        (("--from-time", "-1h", "--wait", "1s"), "--wait with --from"),
        (("--from-time", "-1h", "--follow"), "--follow with --from"),
        (("--from-time", "-1h", "--group", "g"), "--group with --from"),
        (("--from-offset", "0:1", "--nack"), "--nack with --from"),
        (("--from-offset", "0:1", "--from-offset", "0:2"), "partition 0 is given twice"),
        (("--from-offset", "7:1"), "has no partition 7"),
        (("--from-offset", "x"), "'x' is no place in a log"),
        (("--error", "e"), "--error is kept with a --nack"),
        (("--limit", "0"), "0 is not in the range"),
    ],
)
def test_wrong_usage_of_consume_is_2(run: Run, arguments: tuple[str, ...], says: str) -> None:
    run("publish", "t", "x")
    ran = run("consume", "t", *arguments)
    assert (ran.code, ran.out) == (2, b"")
    assert says in ran.err


class _Closing(io.BytesIO):
    """A pipe whose reader leaves after some bytes."""

    def __init__(self, takes: int) -> None:
        super().__init__()
        self._takes = takes

    def write(self, data: Any) -> int:
        if len(self.getvalue()) + len(data) > self._takes:
            raise BrokenPipeError
        return super().write(data)


def test_what_could_not_be_printed_is_given_back(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.app._silence", lambda: None)  # there is no descriptor behind this stdout
    lines = [b"%05d" % i * 200 for i in range(200)]
    run("publish", "t", "--lines", stdin=b"\n".join(lines))
    pipe = _Closing(100_000)
    ran = run("consume", "t", out=pipe)
    assert ran.code == 141
    printed = pipe.getvalue().splitlines()
    assert 0 < len(printed) < 200
    again = run("consume", "t", "--json").json
    assert [one["value"].encode() for one in again] == lines[len(printed) :]
    assert {one["attempt"] for one in again} == {1}, "giving back does not count"


def test_a_terminal_is_not_commanded_by_a_message(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.consume._piped", lambda: False)
    run("publish", "t", "clear \x1b[2J screen")
    assert run("consume", "t").out == b"clear \\x1b[2J screen\n"
