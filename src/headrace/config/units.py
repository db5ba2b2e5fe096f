"""Spans of time and sizes as people write them: ``500ms``, ``1h30m``, ``10GiB``; exact whole numbers inside."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from headrace.errors import InvalidArgument

__all__ = ["format_duration", "format_size", "parse_duration_ns", "parse_size_bytes"]

_DURATION_UNITS_NS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3_600 * 10**9,
    "d": 86_400 * 10**9,
    "w": 604_800 * 10**9,
}
_SIZE_UNITS_BYTES: Final = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_DURATION_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h|d|w)")
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]*)", re.IGNORECASE)
_TEXT_CHARS_MAX: Final = 64
"""More than any span or size needs; what is longer is not read."""
_PRINTED_DURATIONS: Final = ("h", "m", "s", "ms", "us", "ns")
_PRINTED_SIZES: Final = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))

DURATION_EXPECTED: Final = "a time span such as 500ms, 30s, 5m, 1h30m or 7d"
SIZE_EXPECTED: Final = "a size such as 512KiB, 1MiB or 10GiB, or a number of bytes"


def parse_duration_ns(value: str | float) -> int:
    """Nanoseconds of a span. A bare number has no unit and is refused, except 0.

    >>> parse_duration_ns("1h30m") == 90 * 60 * 10**9
    True
    """
    if value in (0, "0") and not isinstance(value, bool):
        return 0
    if isinstance(value, str) and len(value) <= _TEXT_CHARS_MAX:
        text, place, total = value.strip(), 0, Fraction(0)
        while part := _DURATION_PART.match(text, place):
            total += Fraction(part[1]) * _DURATION_UNITS_NS[part[2]]
            place = part.end()
        if text and place == len(text) and total.denominator == 1:
            return int(total)
        if text.replace(".", "", 1).isdecimal():
            raise InvalidArgument(f"{value!r} has no unit; write {text}s for seconds or {text}ms for milliseconds")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = _shown(value)
        raise InvalidArgument(f"{number} has no unit; write '{number}s' for seconds or '{number}ms' for milliseconds")
    raise InvalidArgument(f"{_shown(value)} is not {DURATION_EXPECTED}")


def parse_size_bytes(value: str | int) -> int:
    """Bytes of a size; MB is a million bytes, MiB is 1,048,576.

    >>> parse_size_bytes("1MiB"), parse_size_bytes(4096)
    (1048576, 4096)
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and len(value) <= _TEXT_CHARS_MAX and (size := _SIZE.fullmatch(value.strip())):
        unit = _SIZE_UNITS_BYTES.get(size[2].lower() or "b")
        if unit is None:
            raise InvalidArgument(
                f"{value!r}: unknown unit {size[2]!r}; known are B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"
            )
        total = Fraction(size[1]) * unit
        if total.denominator == 1:
            return int(total)
    raise InvalidArgument(f"{_shown(value)} is not {SIZE_EXPECTED}")


def format_duration(span_ns: int) -> str:
    """The shortest spelling with one unit that gives back the same span; hours are the largest unit.

    >>> format_duration(90_000_000_000), format_duration(168 * 3600 * 10**9)
    ('90s', '168h')
    """
    if span_ns == 0:
        return "0s"
    for unit in _PRINTED_DURATIONS:
        count, rest = divmod(span_ns, _DURATION_UNITS_NS[unit])
        if not rest:
            return f"{count}{unit}"
    raise AssertionError("every span is a whole number of nanoseconds")


def format_size(size_bytes: int) -> str | int:
    """The largest binary unit that divides the size, else the number of bytes.

    >>> format_size(1_048_576), format_size(1000)
    ('1MiB', 1000)
    """
    for unit, unit_bytes in _PRINTED_SIZES:
        if size_bytes and size_bytes % unit_bytes == 0:
            return f"{size_bytes // unit_bytes}{unit}"
    return size_bytes


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:
        text = "a number of thousands of digits"  # which Python does not write
    return text if len(text) <= _TEXT_CHARS_MAX else f"{text[:_TEXT_CHARS_MAX]}…"
