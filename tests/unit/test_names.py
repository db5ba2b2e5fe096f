"""What a name may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import names
from headrace.errors import InvalidArgument

CHECKS = [names.check_topic_name, names.check_group_name, names.check_namespace_name]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    "name",
    [
        "a",
        "orders",
        "tasks/image-processing",
        "größe/日本",
        "a b",
        "a+b",
        "c#",
        "x$",
        "dlq/orders",
        "a//b",
        "/a",
        "a/",
        "n" * 255,
    ],
)
def test_a_good_name_is_returned_as_it_is(check, name: str) -> None:
    assert check(name) == name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "empty"),
        ("n" * 256, "256 bytes"),
        ("é" * 128, "256 bytes"),
        ("a\x00b", r"U\+0000 at place 1"),
        ("a\nb", r"U\+000A"),
        ("a\x7f", r"U\+007F"),
        ("a\x85", r"U\+0085"),
        ("+", "must not start with"),
        ("a/+/b", r"level '\+'"),
        ("#", "must not start with"),
        ("a/#", "must not start with"),
        ("$queue/a", r"level '\$queue'"),
        ("a/$x", "must not start with"),
        ("\ud800", "lone surrogate"),
        (b"orders", "must be text, not bytes"),
        (None, "must be text"),
        (7, "must be text"),
    ],
)
@pytest.mark.parametrize("check", CHECKS)
def test_a_bad_name_is_refused_with_what_is_wrong(check, name: object, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says) as refused:
        check(name)
    assert len(refused.value.message) < 300
    assert "\n" not in refused.value.message


@given(st.text(max_size=300))
def test_a_name_is_either_returned_or_refused_with_a_typed_error(name: str) -> None:
    try:
        returned = names.check_topic_name(name)
    except InvalidArgument:
        return
    assert returned == name
    assert 1 <= len(name.encode()) <= 255
    assert not any(level.startswith(("+", "#", "$")) for level in name.split("/"))


def test_dead_letters_of_a_topic_have_their_own_topic() -> None:
    assert names.dead_letters_topic("tasks/mail") == "dlq/tasks/mail"


def test_a_topic_whose_dead_letter_topic_would_be_too_long_is_told_the_ways_out() -> None:
    assert len(names.dead_letters_topic("n" * 251)) == 255
    with pytest.raises(InvalidArgument, match=r"251 bytes.*dead_letters\.topic"):
        names.dead_letters_topic("n" * 252)
