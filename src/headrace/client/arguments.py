"""What users write, as what the broker takes: durations, times, keys, values, priorities.

Every refusal is an InvalidArgument that names the argument, the value, and what is right. A span is text with units
(``"30s"``), a ``timedelta``, or a number of seconds. An instant is an aware ``datetime``, RFC 3339 text, or whole
nanoseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import msgspec

from headrace.config import parse_duration_ns
from headrace.errors import InvalidArgument
from headrace.ids import parse_id
from headrace.limits import PRIORITY_MAX, SECOND_NS, SPAN_NS_MAX, TIME_NS_MAX

__all__ = [
    "NO_JSON",
    "Duration",
    "Headers",
    "Instant",
    "Key",
    "Priority",
    "Value",
    "by_name",
    "dedup_bytes",
    "error_text",
    "header_map",
    "instant_ns",
    "key_bytes",
    "message_id",
    "moment",
    "nack_detail",
    "priority_number",
    "span_ns",
    "text",
    "value_bytes",
    "whole",
    "yes_or_no",
]

Duration: TypeAlias = str | timedelta | float
Instant: TypeAlias = str | datetime | int
Key: TypeAlias = str | bytes
Value: TypeAlias = bytes | bytearray | memoryview | str
Priority: TypeAlias = int | str
Headers: TypeAlias = Mapping[str, str | bytes]

NO_JSON: Final = object()
"""``json=None`` is the JSON null; this is no ``json`` at all."""

_NAMED_PRIORITIES: Final = {"high": 1, "normal": 5, "low": 9}
_MICROSECOND: Final = timedelta(microseconds=1)
_SHOWN_CHARACTERS: Final = 60
_encode_json: Final = msgspec.json.Encoder().encode


def shown(value: object) -> str:
    """A value as an error message may quote it."""
    try:
        text = repr(value)
    except ValueError:
        text = "a number of thousands of digits"  # which Python does not write
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def span_ns(name: str, value: Duration) -> int:
    """A span in nanoseconds.

    >>> span_ns("wait", "1m30s"), span_ns("wait", 0.25), span_ns("wait", timedelta(hours=1)) == 3600 * 10**9
    (90000000000, 250000000, True)
    """
    if isinstance(value, str):
        try:
            found = parse_duration_ns(value)
        except InvalidArgument as refused:
            raise InvalidArgument(f"{name}: {refused.message}") from None
    elif isinstance(value, timedelta):
        found = value // _MICROSECOND * 1000
    elif type(value) in (int, float):
        try:
            found = value * SECOND_NS if isinstance(value, int) else round(value * SECOND_NS)
        except (ValueError, OverflowError):
            found = -1
    else:
        raise InvalidArgument(
            f"{name} is {shown(value)}; it must be a time span: text such as '30s' or '5m', a timedelta, or seconds"
        )
    if not 0 <= found <= SPAN_NS_MAX:
        raise InvalidArgument(f"{name} is {shown(value)}; a time span must be 0 or more and below 73 years")
    return found


def instant_ns(name: str, value: Instant) -> int:
    """An instant in nanoseconds since 1970.

    >>> instant_ns("deliver_at", "2030-01-01T00:00:00Z"), instant_ns("deliver_at", datetime(2030, 1, 1, tzinfo=UTC))
    (1893456000000000000, 1893456000000000000)
    """
    found = value
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidArgument(
                f"{name} is {shown(value)}; it must be RFC 3339 text such as '2030-01-31T12:00:00Z', an aware "
                "datetime, or nanoseconds since 1970"
            ) from None
    if isinstance(found, datetime):
        if found.tzinfo is None:
            raise InvalidArgument(
                f"{name} is {shown(value)}, which names no time zone; write an offset or Z, or datetime(…, tzinfo=UTC)"
            )
        at_ns = (found - _EPOCH) // _MICROSECOND * 1000
    elif isinstance(found, int) and not isinstance(found, bool):
        at_ns = found
    else:
        raise InvalidArgument(
            f"{name} is {shown(value)}; it must be RFC 3339 text, an aware datetime, or nanoseconds since 1970"
        )
    if not 0 < at_ns <= TIME_NS_MAX:
        raise InvalidArgument(f"{name} is {shown(value)}; it must lie between 1970 and 2116")
    return at_ns


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def moment(at_ns: int | None) -> datetime | None:
    """An instant as people read it, to the microsecond; None stays None."""
    return None if at_ns is None else _EPOCH + timedelta(microseconds=at_ns // 1000)


def value_bytes(value: Any, json: Any = NO_JSON) -> bytes | bytearray | memoryview:
    """The bytes of a value: bytes as they are, text as UTF-8, ``json`` encoded."""
    if json is not NO_JSON:
        if value is not None:
            raise InvalidArgument("both a value and json= are given; give one of them")
        try:
            return _encode_json(json)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidArgument(f"json is {shown(json)}, which JSON cannot say: {error}") from None
    if isinstance(value, bytes | bytearray | memoryview):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"the value cannot be written as UTF-8: {error.reason}") from None
    hint = ""
    if isinstance(value, dict | list | tuple | int | float) and not isinstance(value, bool):
        hint = "; to send it as JSON, write json=…"
    elif value is None:
        hint = "; an empty message is b''"
    raise InvalidArgument(f"the value is {type(value).__name__} {shown(value)}; it must be bytes or str{hint}")


def key_bytes(key: Any) -> bytes | None:
    """The bytes of a key; text as UTF-8."""
    if key is None or type(key) is bytes:
        return key
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"the key {shown(key)} cannot be written as UTF-8: {error.reason}") from None
    if isinstance(key, bytearray | memoryview):
        return bytes(key)
    raise InvalidArgument(f"the key is {type(key).__name__} {shown(key)}; it must be str or bytes")


def dedup_bytes(dedup_id: Any) -> bytes | None:
    """The bytes of a deduplication id; text as UTF-8."""
    if dedup_id is None or type(dedup_id) is bytes:
        return dedup_id
    if isinstance(dedup_id, str):
        return dedup_id.encode("utf-8", "surrogatepass")
    raise InvalidArgument(f"dedup_id is {type(dedup_id).__name__} {shown(dedup_id)}; it must be str or bytes")


def priority_number(priority: Any) -> int:
    """The lane: 0 first to 9, or its name.

    >>> priority_number("high"), priority_number(9)
    (1, 9)
    """
    if type(priority) is int and 0 <= priority <= PRIORITY_MAX:
        return priority
    named = _NAMED_PRIORITIES.get(priority) if isinstance(priority, str) else None
    if named is None:
        raise InvalidArgument(
            f"priority is {shown(priority)}; it must be 0 (first) to {PRIORITY_MAX}, or 'high', 'normal' or 'low'"
        )
    return named


def header_map(headers: Any) -> dict[str, str | bytes] | None:
    """Headers as the batch takes them: text names; text or bytes values."""
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise InvalidArgument(f"headers is {shown(headers)}; it must be a mapping of text to text or bytes")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str | bytes):
            raise InvalidArgument(
                f"header {shown(name)} is {shown(value)}; a header's name is text and its value text or bytes"
            )
    return dict(headers)


def message_id(name: str, value: Any) -> int:
    """A message id given as a number, as text, or as anything that has one (a Published, a Delivery)."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value > 0:
            return value
    elif isinstance(value, str):
        return parse_id(value)
    elif isinstance(found := getattr(value, "id", None), int):
        return found
    raise InvalidArgument(f"{name} is {shown(value)}; it must be a message id, as a publish returns it")


def whole(name: str, value: Any, least: int, most: int) -> int:
    """A whole number within bounds."""
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgument(f"{name} is {shown(value)}; it must be a whole number from {least} to {most}")
    return value


def yes_or_no(name: str, value: Any) -> bool:
    """True or false, and nothing that Python would take for one of them."""
    if value is True or value is False:
        return bool(value)
    raise InvalidArgument(f"{name} is {shown(value)}; it must be True or False")


def text(name: str, value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is {shown(value)}; it must be text")
    return value


def by_name(name: str, value: Any, example: str) -> Mapping[Any, Any]:
    """A mapping."""
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{name} is {shown(value)}; it must be a mapping such as {example}")
    return value


def nack_detail(delay: Duration | None, error: object) -> tuple[int | None, str]:
    """What a nack carries: nanoseconds (None: the group's backoff) and a text."""
    return None if delay is None else span_ns("delay", delay), error_text(error)


def error_text(error: object) -> str:
    """What is kept with a failed attempt.

    >>> error_text(ValueError("no such user")), error_text("busy"), error_text(None)
    ('ValueError: no such user', 'busy', '')
    """
    if isinstance(error, BaseException):
        text = str(error)
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    return "" if error is None else str(error)
