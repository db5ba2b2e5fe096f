"""Topic names, filters, shares and the subset check, case by case."""

from __future__ import annotations

import pytest

from headrace.errors import InvalidArgument
from headrace.routing import (
    TopicPatterns,
    check_topic,
    check_topic_filter,
    is_subset,
    matches,
    share_fault,
    split_share,
    topic_filter_fault,
    topic_name_fault,
)

GOOD_FILTERS = ["#", "+", "/", "a", "a/b", "a/#", "a/+/b", "+/+", "/+", "a//b", "$SYS/#", "+/#", "ä/ü", "a b"]
BAD_FILTERS = ["", "a#", "#/a", "a/#/b", "a/b#", "a+", "+a", "a/+b/c", "a\x00b", "a\nb", "a\x7fb", "\ud800", "/" * 128]


@pytest.mark.parametrize("topic_filter", GOOD_FILTERS)
def test_well_formed_filters_have_no_fault(topic_filter: str) -> None:
    assert topic_filter_fault(topic_filter) is None
    assert check_topic_filter(topic_filter) == topic_filter


@pytest.mark.parametrize("topic_filter", BAD_FILTERS)
def test_ill_formed_filters_are_refused_with_the_filter_in_the_message(topic_filter: str) -> None:
    assert topic_filter_fault(topic_filter) is not None
    with pytest.raises(InvalidArgument, match="topic filter"):
        check_topic_filter(topic_filter)


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a\x00", "a\x1b", "\udfff", "x" * 65_536, "ü" * 32_768])
def test_ill_formed_names_are_refused(topic: str) -> None:
    assert topic_name_fault(topic) is not None
    with pytest.raises(InvalidArgument, match="topic"):
        check_topic(topic)


@pytest.mark.parametrize("topic", ["a", "/", "a/b", "$queue/orders", "x" * 65_535, "ü" * 32_767, "no\u00adbreak"])
def test_well_formed_names_are_accepted(topic: str) -> None:
    assert topic_name_fault(topic) is None


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),  # the examples of MQTT §4.7.1
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("#", "sport", True),
        ("#", "/", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/uptime", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/uptime", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("a/#", "a/$b", True),
        ("A", "a", False),
    ],
)
def test_matching_follows_the_standard(topic_filter: str, topic: str, expected: bool) -> None:
    assert matches(topic_filter, topic) is expected


@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        ("$share/g/a/#", ("g", "a/#")),
        ("$share/g//a", ("g", "/a")),
        ("a/b", (None, "a/b")),
        ("$shared/x", (None, "$shared/x")),
    ],
)
def test_share_is_split_from_its_filter(topic_filter: str, expected: tuple[str | None, str]) -> None:
    assert share_fault(topic_filter) is None
    assert split_share(topic_filter) == expected


@pytest.mark.parametrize(
    "topic_filter",
    ["$share", "$share/", "$share/g", "$share/g/", "$share//a", "$share/+/a", "$share/g#/a", "$share/g/a#"],
)
def test_ill_formed_shares_are_refused(topic_filter: str) -> None:
    assert share_fault(topic_filter) is not None


@pytest.mark.parametrize(
    ("topic_filter", "allowed", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/+", "a/#", True),
        ("a", "a/#", True),
        ("a/#", "a/+", False),
        ("a/+", "a/b", False),
        ("#", "#", True),
        ("#", "+/#", True),
        ("+/#", "#", True),
        ("$SYS/#", "#", False),
        ("$SYS", "+", False),
        ("$SYS/+/x", "$SYS/#", True),
        ("$share/g/secret/#", "open/#", False),
        ("$share/g/open/x", "open/#", True),
        ("$share/g/$SYS/x", "#", False),
    ],
)
def test_subset_decides_whether_a_subscription_is_allowed(topic_filter: str, allowed: str, expected: bool) -> None:
    assert is_subset(topic_filter, allowed) is expected


def test_a_wildcard_never_slips_through_topic_patterns() -> None:
    allowed = TopicPatterns(["orders/+/eu", "status"])
    assert allowed.allows_name("orders/7/eu")
    assert allowed.allows_name("status")
    assert not allowed.allows_name("")
    assert allowed.allows_filter("orders/7/eu")
    for asked in ("#", "+", "orders/#", "orders/+/+", "$share/g/#", "$share/g/orders/#"):
        assert not allowed.allows_filter(asked)
    assert allowed.allows_filter("$share/g/orders/+/eu")


def test_a_bad_pattern_is_named() -> None:
    with pytest.raises(InvalidArgument, match="'a#'"):
        TopicPatterns(["a#"])
    with pytest.raises(InvalidArgument, match="at most"):
        TopicPatterns(["a"] * 257)
