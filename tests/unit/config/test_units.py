"""Spans and sizes, there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import format_duration, format_size, parse_duration_ns, parse_size_bytes
from headrace.errors import InvalidArgument

MS, S = 10**6, 10**9


@pytest.mark.parametrize(
    ("text", "span_ns"),
    [
        ("500ms", 500 * MS),
        ("30s", 30 * S),
        ("5m", 300 * S),
        ("168h", 604_800 * S),
        ("7d", 604_800 * S),
        ("1w", 604_800 * S),
        ("1h30m", 5_400 * S),
        ("1.5h", 5_400 * S),
        ("0.1s", 100 * MS),
        ("7us", 7_000),
        ("7µs", 7_000),
        ("1ns", 1),
        (" 30s ", 30 * S),
        ("0s", 0),
        ("0", 0),
        (0, 0),
    ],
)
def test_a_span_is_read_exactly(text: str | int, span_ns: int) -> None:
    assert parse_duration_ns(text) == span_ns


@pytest.mark.parametrize(
    "text", ["", " ", "s", "30 s", "30x", "-5s", "5s-", "1e3s", "0.5ns", "٣s", "30S", None, [], "9" * 100 + "s", True]
)
def test_what_is_no_span_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(InvalidArgument, match="500ms, 30s"):
        parse_duration_ns(text)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [30, 1.5, "30", "1.5"])
def test_a_span_without_a_unit_is_refused_with_the_spelling_that_was_meant(value: float | str) -> None:
    with pytest.raises(InvalidArgument, match=f"no unit; write '?{value}s"):
        parse_duration_ns(value)


@given(st.integers(0, 1 << 63))
def test_a_span_survives_its_text(span_ns: int) -> None:
    assert parse_duration_ns(format_duration(span_ns)) == span_ns


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1MiB", 1 << 20),
        ("10GiB", 10 << 30),
        ("64 KiB", 64 << 10),
        ("1MB", 1_000_000),
        ("1mb", 1_000_000),
        ("1.5KiB", 1536),
        ("512", 512),
        ("512B", 512),
        (4096, 4096),
        (0, 0),
    ],
)
def test_a_size_is_read_exactly(text: str | int, size: int) -> None:
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", -1, 1.5, "1.0001KiB", None, True, "1 2", "9" * 100])
def test_what_is_no_size_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(InvalidArgument, match="10GiB"):
        parse_size_bytes(text)  # type: ignore[arg-type]


def test_an_unknown_unit_is_named() -> None:
    with pytest.raises(InvalidArgument, match="unknown unit 'XB'"):
        parse_size_bytes("1XB")


@given(st.integers(0, 1 << 50))
def test_a_size_survives_its_text(size: int) -> None:
    assert parse_size_bytes(format_size(size)) == size
