"""What users write, and what they are told when it is wrong."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace import Message
from headrace.client.arguments import (
    dedup_bytes,
    error_text,
    header_map,
    instant_ns,
    key_bytes,
    message_id,
    moment,
    priority_number,
    span_ns,
    value_bytes,
    whole,
)
from headrace.errors import InvalidArgument
from headrace.limits import SECOND_NS


@pytest.mark.parametrize(
    ("written", "meant_ns"),
    [
        ("30s", 30 * SECOND_NS),
        ("5m", 300 * SECOND_NS),
        (2, 2 * SECOND_NS),
        (0.5, SECOND_NS // 2),
        (0, 0),
        (timedelta(milliseconds=3), 3_000_000),
    ],
)
def test_a_span_is_text_seconds_or_a_timedelta(written: Any, meant_ns: int) -> None:
    assert span_ns("wait", written) == meant_ns


@pytest.mark.parametrize("written", ["", "5 parsecs", "-1s", -1, True, None, b"5s", math.nan, math.inf, 1e30, [5]])
def test_a_wrong_span_is_named_with_its_argument(written: Any) -> None:
    with pytest.raises(InvalidArgument, match="wait"):
        span_ns("wait", written)


@pytest.mark.parametrize(
    "written",
    ["2030-01-01T00:00:00Z", "2030-01-01T01:00:00+01:00", datetime(2030, 1, 1, tzinfo=UTC), 1_893_456_000 * SECOND_NS],
)
def test_an_instant_is_text_a_datetime_or_nanoseconds(written: Any) -> None:
    assert instant_ns("deliver_at", written) == 1_893_456_000 * SECOND_NS


@pytest.mark.parametrize("written", ["soon", "2030-01-01T00:00:00", datetime(2030, 1, 1), 1.5, True, 0, -5, None])  # noqa: DTZ001
def test_a_wrong_instant_is_named_with_its_argument(written: Any) -> None:
    with pytest.raises(InvalidArgument, match="deliver_at"):
        instant_ns("deliver_at", written)


def test_an_instant_is_read_to_the_microsecond() -> None:
    assert moment(1_893_456_000_123_456_789) == datetime(2030, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
    assert moment(None) is None


@pytest.mark.feature("F299")
@pytest.mark.parametrize(
    ("value", "hint"),
    [(None, "b''"), ({"a": 1}, "json="), (5, "json="), (object(), "bytes or str"), ("\ud800", "UTF-8")],
)
def test_a_value_that_is_no_bytes_is_refused_with_a_hint(value: Any, hint: str) -> None:
    with pytest.raises(InvalidArgument, match=hint):
        value_bytes(value)


def test_a_value_can_be_json() -> None:
    assert value_bytes(None, {"a": [1, None]}) == b'{"a":[1,null]}'
    assert value_bytes(None, None) == b"null"
    with pytest.raises(InvalidArgument, match="both a value and json"):
        value_bytes(b"x", {})
    with pytest.raises(InvalidArgument, match="JSON cannot say"):
        value_bytes(None, object())


@pytest.mark.parametrize("key", [5, 1.5, ["a"], "\ud800"])
def test_a_wrong_key_is_refused(key: Any) -> None:
    with pytest.raises(InvalidArgument, match="key"):
        key_bytes(key)


def test_keys_and_dedup_ids_are_text_or_bytes() -> None:
    assert (key_bytes("ä"), key_bytes(b"\xff"), key_bytes(None)) == ("ä".encode(), b"\xff", None)
    assert (dedup_bytes("o-1"), dedup_bytes(b"\0"), dedup_bytes(None)) == (b"o-1", b"\0", None)
    with pytest.raises(InvalidArgument, match="dedup_id"):
        dedup_bytes(7)


@pytest.mark.parametrize("priority", [-1, 10, "urgent", 5.0, True, None])
def test_a_wrong_priority_is_refused(priority: Any) -> None:
    with pytest.raises(InvalidArgument, match="priority"):
        priority_number(priority)


@pytest.mark.parametrize("headers", [["a"], {"a": 1}, {1: "a"}, "a=b"])
def test_wrong_headers_are_refused(headers: Any) -> None:
    with pytest.raises(InvalidArgument, match="header"):
        header_map(headers)


@pytest.mark.parametrize("given", [0, -1, "0", "12x", "", True, None, 1.5])
def test_a_wrong_message_id_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument, match="id"):
        message_id("id", given)


@pytest.mark.parametrize("given", [0, 101, 5.0, "5", None, True])
def test_a_count_outside_its_bounds_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument, match="from 1 to 100"):
        whole("limit", given, 1, 100)


def test_an_error_is_kept_with_its_class() -> None:
    assert error_text(KeyError("user")) == "KeyError: 'user'"
    assert error_text(ValueError()) == "ValueError"


# -- Message -----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("F009", "F010", "F012")
def test_a_message_keeps_what_it_was_given() -> None:
    message = Message(
        "hello",
        key="k",
        headers={"a": "b", "raw": b"\0"},
        priority="low",
        delay="5m",
        ttl=timedelta(hours=1),
        dedup_id="o-1",
        correlation_id="c",
        reply_to="answers",
    )
    assert bytes(message.value) == b"hello"
    assert (message.key, message.priority, message.delay_ns, message.ttl_ns) == (
        b"k",
        9,
        300 * SECOND_NS,
        3_600 * SECOND_NS,
    )
    assert message.headers == {"a": "b", "raw": b"\0", "correlation_id": "c", "reply_to": "answers"}
    assert message == Message(
        b"hello",
        key=b"k",
        headers={"a": "b", "raw": b"\0", "correlation_id": "c", "reply_to": "answers"},
        priority=9,
        delay=300,
        ttl="1h",
        dedup_id=b"o-1",
    )


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"delay": "5m", "deliver_at": "2030-01-01T00:00:00Z"}, "both delay"),
        ({"ttl": "5m", "expires_at": "2030-01-01T00:00:00Z"}, "both ttl"),
        ({"ttl": 0}, "ttl"),
        ({"json": {}}, "both a value and json"),
    ],
)
def test_a_message_that_contradicts_itself_is_refused(properties: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        Message(b"x", **properties)


def test_json_says_so_in_the_content_type() -> None:
    assert Message(json={"a": 1}).headers == {"content_type": "application/json"}
    assert Message(json={"a": 1}, content_type="application/vnd.a").headers == {"content_type": "application/vnd.a"}
