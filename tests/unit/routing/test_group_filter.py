"""Group filters: every test, every way of writing one wrongly."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import InvalidArgument
from headrace.routing import GroupFilter, compile_filter


def wants(plain: dict[str, Any], headers: dict[str, str | bytes] | None, key: bytes | None = None) -> bool:
    return compile_filter(GroupFilter.from_dict(plain))(headers, key)


@pytest.mark.parametrize(
    ("plain", "headers", "expected"),
    [
        ({}, None, True),
        ({"headers": {"r": "eu"}}, {"r": "eu"}, True),
        ({"headers": {"r": "eu"}}, {"r": b"eu"}, True),
        ({"headers": {"r": "eu"}}, {"r": "us"}, False),
        ({"headers": {"r": "eu"}}, {"x": "eu"}, False),
        ({"headers": {"r": "eu"}}, None, False),
        ({"headers": {"r": {"in": ["a", b"b", {"base64": "/w=="}]}}}, {"r": b"\xff"}, True),
        ({"headers": {"r": {"in": ["a", "b"]}}}, {"r": "c"}, False),
        ({"headers": {"r": {"exists": True}}}, {"r": ""}, True),
        ({"headers": {"r": {"exists": True}}}, {}, False),
        ({"headers": {"r": {"exists": False}}}, {}, True),
        ({"headers": {"r": {"exists": False}}}, {"r": "x"}, False),
        ({"headers": {"r": {"prefix": "A-"}}}, {"r": "A-1"}, True),
        ({"headers": {"r": {"prefix": "A-"}}}, {"r": "B-1"}, False),
        ({"headers": {"r": {"prefix": "A"}, "s": "1"}}, {"r": "A", "s": "2"}, False),
        ({"headers": {"r": {"prefix": "A", "in": ["A1", "B1"]}}}, {"r": "B1"}, False),
        ({"headers": {"r": {"base64": "/w=="}}}, {"r": b"\xff"}, True),
    ],
)
def test_headers_are_tested(plain: dict[str, Any], headers: dict[str, str | bytes] | None, expected: bool) -> None:
    assert wants(plain, headers) is expected


def test_key_is_tested_and_an_empty_key_is_no_key() -> None:
    assert wants({"key": {"prefix": "user-"}}, None, b"user-7")
    assert not wants({"key": {"prefix": "user-"}}, None, b"u")
    assert not wants({"key": {"prefix": ""}}, None, None)
    assert wants({"key": {"exists": False}}, None, b"")


def test_topic_is_asked_once_not_per_message() -> None:
    group_filter = GroupFilter.from_dict({"topic": "orders/+/eu"})
    assert group_filter.matches_topic("orders/7/eu")
    assert not group_filter.matches_topic("orders/7/us")
    assert group_filter.wants_everything()
    assert not GroupFilter.from_dict({"key": "a"}).wants_everything()


def test_dict_form_comes_back_the_same() -> None:
    plain = {
        "topic": "orders/+/eu",
        "headers": {"a": {"equals": "x"}, "b": {"in": ["y", {"base64": "/w=="}]}, "c": {"exists": True, "prefix": "p"}},
        "key": {"exists": False},
    }
    group_filter = GroupFilter.from_dict(plain)
    assert group_filter.to_dict() == plain
    assert GroupFilter.from_dict(group_filter.to_dict()) == group_filter


@pytest.mark.parametrize(
    ("plain", "named"),
    [
        ([], "mapping"),
        ({"heders": {}}, "heders"),
        ({"topic": 7}, "filter.topic"),
        ({"topic": "a#"}, "filter.topic 'a#'"),
        ({"headers": ["a"]}, "filter.headers"),
        ({"headers": {"": "x"}}, "no header name"),
        ({"headers": {7: "x"}}, "no header name"),
        ({"headers": {"a": 7}}, r"headers\['a'\]"),
        ({"headers": {"a": {}}}, "no test given"),
        ({"headers": {"a": {"equal": "x"}}}, "unknown field 'equal'"),
        ({"headers": {"a": {"in": []}}}, "at least one value"),
        ({"headers": {"a": {"in": "xy"}}}, "list"),
        ({"headers": {"a": {"in": ["x"] * 1025}}}, "at most 1024"),
        ({"headers": {"a": {"exists": 1}}}, "true or false"),
        ({"headers": {"a": {"exists": None}}}, "true or false"),
        ({"headers": {"a": {"exists": False, "equals": "x"}}}, "cannot hold together"),
        ({"headers": {"a": {"prefix": {"base64": "!"}}}}, "base64"),
        ({"headers": {"a": "\ud800"}}, "surrogate"),
        ({"headers": {"a": "x" * 5000}}, "5000 bytes"),
        ({"headers": {str(i): "x" for i in range(33)}}, "at most 32"),
        ({"key": {"equals": None}}, "filter.key.equals"),
    ],
)
def test_a_bad_filter_is_refused_and_the_place_is_named(plain: Any, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        GroupFilter.from_dict(plain)
