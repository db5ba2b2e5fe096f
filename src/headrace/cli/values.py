"""What people type, as what a broker takes: spans, moments, priorities, places, pairs. A wrong one is wrong usage."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

import click

from headrace.clock import SystemClock
from headrace.config import parse_duration_ns, parse_size_bytes
from headrace.errors import InvalidArgument
from headrace.ids import parse_id
from headrace.limits import PRIORITY_MAX, TIME_NS_MAX

__all__ = [
    "LIFETIME",
    "MESSAGE_ID",
    "MOMENT",
    "PLACE",
    "PRIORITY",
    "SPAN",
    "Pair",
    "ParamType",
    "by_partition",
    "from_epoch",
    "name_of_user",
]

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    ParamType: TypeAlias = click.ParamType[Any]  # generic for type checkers, and since 8.2 only
else:
    ParamType = click.ParamType

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_AGO: Final = re.compile(r"-(?P<minus>\S+)|(?P<ago>\S+)\s+ago")
_NAMED_PRIORITIES: Final = {"high": 1, "normal": 5, "low": 9}
_NANOSECONDS_DIGITS: Final = 17
"""Fewer digits are not nanoseconds of any day since 1973."""


class _Kind(ParamType):
    """A type whose refusals are those of the library."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value.strip())
        except InvalidArgument as refused:
            self.fail(refused.message, param, ctx)

    def parse(self, text: str) -> Any:
        raise NotImplementedError


class Span(_Kind):
    """Nanoseconds of ``30s``, ``5m``, ``1h30m``."""

    name = "span"

    def __init__(self, *, least_ns: int = 0) -> None:
        self._least_ns = least_ns

    def parse(self, text: str) -> int:
        span_ns = parse_duration_ns(text)
        if span_ns < self._least_ns:
            raise InvalidArgument(f"{text!r} is no time at all; it must be over 0s")
        return span_ns


class Size(_Kind):
    """Bytes of ``512``, ``4KiB``, ``1MB``."""

    name = "size"

    def parse(self, text: str) -> int:
        return parse_size_bytes(text)


class Moment(_Kind):
    """Nanoseconds since 1970 of RFC 3339 text, ``now``, ``-1h`` or ``1h ago``, or of such a number itself."""

    name = "time"

    def parse(self, text: str) -> int:
        at_ns = self._read(text)
        if not 0 < at_ns <= TIME_NS_MAX:
            raise InvalidArgument(f"{text!r} must lie between 1970 and 2116")
        return at_ns

    def _read(self, text: str) -> int:
        if text == "now":
            return SystemClock().wall_ns()
        before = _AGO.fullmatch(text)
        if before is not None:
            return SystemClock().wall_ns() - parse_duration_ns(before["minus"] or before["ago"])
        if text.isdecimal() and len(text) >= _NANOSECONDS_DIGITS:
            return int(text)
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidArgument(
                f"{text!r} is no time; write 2030-01-31T12:00:00Z, now, -1h or '1h ago', or nanoseconds since 1970"
            ) from None
        if found.tzinfo is None:
            raise InvalidArgument(
                f"{text!r} names no time zone; write {found.isoformat()}Z, or an offset such as +02:00"
            )
        return (found - _EPOCH) // _MICROSECOND * 1000


class Priority(_Kind):
    """The lane: 0 (first) to 9, or its name."""

    name = "0-9|high|normal|low"

    def parse(self, text: str) -> int:
        if text in _NAMED_PRIORITIES:
            return _NAMED_PRIORITIES[text]
        if text.isdecimal() and int(text) <= PRIORITY_MAX:
            return int(text)
        raise InvalidArgument(f"{text!r} is no priority; write 0 (first) to {PRIORITY_MAX}, or high, normal, low")

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        words = (*_NAMED_PRIORITIES, *map(str, range(PRIORITY_MAX + 1)))
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


class MessageId(_Kind):
    """A message id as it is printed."""

    name = "id"

    def parse(self, text: str) -> int:
        return parse_id(text)


class Pair(_Kind):
    """``name=value``."""

    name = "name=value"

    def __init__(self, example: str) -> None:
        self._example = example

    def parse(self, text: str) -> tuple[str, str]:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidArgument(f"{text!r} has no '='; write it as {self._example}")
        return name, value


class _Place(_Kind):
    """``P:N``: offset N of partition P; N alone is about partition 0."""

    name = "[partition:]offset"

    def parse(self, text: str) -> tuple[int, int]:
        partition, colon, offset = text.rpartition(":")
        if not colon:
            partition = "0"
        if not (partition.isdecimal() and offset.isdecimal()):
            raise InvalidArgument(f"{text!r} is no place in a log; write PARTITION:OFFSET, such as 0:1000")
        return int(partition), int(offset)


SPAN: Final = Span()
LIFETIME: Final = Span(least_ns=1)
SIZE: Final = Size()
MOMENT: Final = Moment()
PRIORITY: Final = Priority()
MESSAGE_ID: Final = MessageId()
PLACE: Final = _Place()


def by_partition(places: Iterable[tuple[int, int]], option: str) -> dict[int, int]:
    """Offsets by partition; one that is named twice is wrong usage."""
    found: dict[int, int] = {}
    for partition, offset in places:
        if partition in found:
            _fail(f"{option}: partition {partition} is given twice, {found[partition]} and {offset}")
        found[partition] = offset
    return found


def from_epoch(at_ns: int) -> str:
    """A moment as RFC 3339 text, to the millisecond where that is exact enough, else to the microsecond.

    >>> from_epoch(1_893_456_000_123_000_000)
    '2030-01-01T00:00:00.123Z'
    """
    moment = _EPOCH + timedelta(microseconds=at_ns // 1000)
    precision = "milliseconds" if at_ns % 1_000_000 == 0 else "microseconds"
    return moment.isoformat(timespec=precision).removesuffix("+00:00") + "Z"


def name_of_user() -> str:
    """Who is typing, for the record of what operators do."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def _fail(message: str) -> NoReturn:
    raise click.UsageError(message)
