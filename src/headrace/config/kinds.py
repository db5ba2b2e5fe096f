"""What one setting may be: reads what people and programs write, checks what is held, writes it back.

A kind reads text (a file, an environment variable, a flag: everything is text there) and the native value (JSON,
Python) alike. ``parse`` raises InvalidArgument that says what would be right; ``fits`` checks a value given in Python;
``format`` gives back the plain value whose ``parse`` is the same again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from headrace.config.units import (
    DURATION_EXPECTED,
    SIZE_EXPECTED,
    format_duration,
    format_size,
    parse_duration_ns,
    parse_size_bytes,
)
from headrace.errors import InvalidArgument
from headrace.limits import DURATION_NS_MAX, SETTING_TEXT_CHARS_MAX

__all__ = ["Choice", "Duration", "Flag", "Kind", "Lanes", "Optional", "Plain", "Port", "Real", "Size", "Text", "Whole"]

_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})
_NOTHING: Final = frozenset({"none", "null"})
_INT64_MAX: Final = (1 << 63) - 1


class Kind(Protocol):
    """One kind of value."""

    @property
    def expected(self) -> str:
        """What would be right, as the end of a sentence."""
        ...

    def parse(self, value: object) -> Any:
        """The value to hold, or InvalidArgument."""
        ...

    def fits(self, held: object) -> bool:
        """Whether a held value is one that ``parse`` could have given."""
        ...

    def format(self, held: Any) -> Any:
        """The plain value (text, number, bool, None, mapping) to show and to store."""
        ...


class _Ranged:
    """Numbers between two ends; ``zero`` is the word for 0 where 0 switches a limit off."""

    __slots__ = ("high", "low", "zero")
    what: str

    def __init__(self, low: int = 0, high: int = _INT64_MAX, *, zero: str | None = None) -> None:
        self.low, self.high, self.zero = low, high, zero

    def _show(self, held: Any) -> Any:
        return held

    def _read(self, value: object) -> Any:
        raise NotImplementedError

    @property
    def expected(self) -> str:
        text = self.what
        if self.high < (DURATION_NS_MAX if isinstance(self, Duration) else _INT64_MAX):
            text += f", from {self._show(self.low)} to {self._show(self.high)}"
        elif self.low:
            text += f", at least {self._show(self.low)}"
        return f"{text}, or {self.zero}" if self.zero else text

    def parse(self, value: object) -> Any:
        if self.zero and (value is None or (isinstance(value, str) and value.strip().lower() in {self.zero, "none"})):
            return self._read("0")
        held = self._read(value)
        if not self.fits(held):
            raise InvalidArgument(f"{shown(value)} is out of range; expected {self.expected}")
        return held

    def fits(self, held: object) -> bool:
        if isinstance(held, bool) or not isinstance(held, int):
            return False
        return self.low <= held <= self.high or (held == 0 and self.zero is not None)

    def format(self, held: Any) -> Any:
        return self.zero if held == 0 and self.zero else self._show(held)


class Whole(_Ranged):
    """A count."""

    __slots__ = ()
    what = "a whole number"

    def _read(self, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and len(value) <= SETTING_TEXT_CHARS_MAX:
            digits = value.strip().replace("_", "")
            if digits.removeprefix("-").isascii() and digits.removeprefix("-").isdecimal():
                return int(digits)
        raise InvalidArgument(f"{shown(value)} is not valid; expected {self.expected}")


class Duration(_Ranged):
    """Nanoseconds, written with units."""

    __slots__ = ()
    what = DURATION_EXPECTED

    def __init__(self, low: int = 0, high: int = DURATION_NS_MAX, *, zero: str | None = None) -> None:
        super().__init__(low, high, zero=zero)

    def _show(self, held: int) -> str:
        return format_duration(held)

    def _read(self, value: object) -> int:
        return parse_duration_ns(value)  # type: ignore[arg-type]  # refuses what is no text and no number


class Size(_Ranged):
    """Bytes, written with units."""

    __slots__ = ()
    what = SIZE_EXPECTED

    def _show(self, held: int) -> str | int:
        return format_size(held)

    def _read(self, value: object) -> int:
        return parse_size_bytes(value)  # type: ignore[arg-type]  # refuses what is no text and no number


class Real(_Ranged):
    """A number with a fraction."""

    __slots__ = ()
    what = "a number"

    def _read(self, value: object) -> float:
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            try:
                return float(value)
            except (ValueError, OverflowError):
                pass
        raise InvalidArgument(f"{shown(value)} is not valid; expected {self.expected}")

    def fits(self, held: object) -> bool:
        if isinstance(held, bool) or not isinstance(held, int | float) or not math.isfinite(held):
            return False
        return self.low <= held <= self.high or (held == 0 and self.zero is not None)


class Flag:
    """True or false."""

    __slots__ = ()
    expected = "true or false"

    def parse(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        word = value.strip().lower() if isinstance(value, str) else ""
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
        raise InvalidArgument(f"{shown(value)} is not valid; expected {self.expected}")

    def fits(self, held: object) -> bool:
        return isinstance(held, bool)

    def format(self, held: bool) -> bool:
        return held


class Choice:
    """One of a few words."""

    __slots__ = ("words",)

    def __init__(self, *words: str) -> None:
        self.words = words

    @property
    def expected(self) -> str:
        return f"{', '.join(self.words[:-1])} or {self.words[-1]}"

    def parse(self, value: object) -> str:
        word = value.strip().lower() if isinstance(value, str) else ""
        if word in self.words:
            return word
        raise InvalidArgument(f"{shown(value)} is not valid; expected {self.expected}")

    def fits(self, held: object) -> bool:
        return held in self.words

    def format(self, held: str) -> str:
        return held


class Text:
    """Any short text, or one that a check accepts; ``empty`` allows none at all (written ``none``, held as an empty
    text)."""

    __slots__ = ("check", "empty", "expected")

    def __init__(
        self, expected: str = "text", *, empty: bool = False, check: Callable[[str], object] | None = None
    ) -> None:
        self.expected = f"{expected}, or none" if empty else expected
        self.empty = empty
        self.check = check

    def parse(self, value: object) -> str:
        if self.empty and (value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING)):
            return ""
        if isinstance(value, str) and self.fits(value):
            return value
        raise InvalidArgument(f"{shown(value)} is not valid; expected {self.expected}")

    def fits(self, held: object) -> bool:
        if not isinstance(held, str) or len(held) > SETTING_TEXT_CHARS_MAX or not held.isprintable():
            return False
        if not held:
            return self.empty
        try:
            return self.check is None or self.check(held) is not False
        except InvalidArgument:
            return False

    def format(self, held: str) -> str | None:
        return held or None


class Port:
    """A TCP port; 0 picks a free one, off (held as None) closes that door."""

    __slots__ = ()
    expected = "a port from 0 to 65535 (0 picks a free one), or off"
    _number = Whole(0, 65_535)

    def parse(self, value: object) -> int | None:
        if value is None or value is False or (isinstance(value, str) and value.strip().lower() == "off"):
            return None
        try:
            return self._number.parse(value)  # type: ignore[no-any-return]  # Whole gives int
        except InvalidArgument:
            raise InvalidArgument(f"{shown(value)} is not valid; expected {self.expected}") from None

    def fits(self, held: object) -> bool:
        return held is None or self._number.fits(held)

    def format(self, held: int | None) -> int | str:
        return "off" if held is None else held


class Lanes:
    """How priorities are served: strictly, or with a bound on how long the lowest lane waits (held; 0 is strict)."""

    __slots__ = ("aging_default_ns",)
    expected = "strict, aging, or aging with its longest wait such as aging:30s"

    def __init__(self, aging_default_ns: int) -> None:
        self.aging_default_ns = aging_default_ns

    def parse(self, value: object) -> int:
        if isinstance(value, str):
            word, colon, wait = value.strip().lower().partition(":")
            if word == "strict" and not colon:
                return 0
            if word == "aging" and not colon:
                return self.aging_default_ns
            if word == "aging" and (wait_ns := parse_duration_ns(wait.strip())) and self.fits(wait_ns):
                return wait_ns
        raise InvalidArgument(f"{shown(value)} is not valid; expected {self.expected}")

    def fits(self, held: object) -> bool:
        return isinstance(held, int) and not isinstance(held, bool) and 0 <= held <= DURATION_NS_MAX

    def format(self, held: int) -> str:
        return f"aging:{format_duration(held)}" if held else "strict"


class Plain:
    """A mapping that another room reads (a filter); its keys are not settings."""

    __slots__ = ("check", "expected")

    def __init__(self, expected: str) -> None:
        self.expected = expected

    def parse(self, value: object) -> dict[str, Any]:
        if isinstance(value, str):
            import msgspec

            try:
                value = msgspec.json.decode(value)
            except (msgspec.DecodeError, UnicodeEncodeError):
                raise InvalidArgument(f"{shown(value)} is not valid; expected {self.expected}") from None
        if isinstance(value, Mapping) and self.fits(dict(value)):
            return dict(value)
        raise InvalidArgument(f"{shown(value)} is not valid; expected {self.expected}")

    def fits(self, held: object) -> bool:
        return isinstance(held, dict) and all(isinstance(key, str) for key in held)

    def format(self, held: dict[str, Any]) -> dict[str, Any]:
        return held


class Optional:
    """Another kind, or nothing of one's own (held as None)."""

    __slots__ = ("kind", "nothing")

    def __init__(self, kind: Kind, nothing: str = "inherit") -> None:
        self.kind, self.nothing = kind, nothing

    @property
    def expected(self) -> str:
        return f"{self.kind.expected}, or {self.nothing}"

    def parse(self, value: object) -> Any:
        if value is None or (isinstance(value, str) and value.strip().lower() == self.nothing):
            return None
        return self.kind.parse(value)

    def fits(self, held: object) -> bool:
        return held is None or self.kind.fits(held)

    def format(self, held: Any) -> Any:
        return None if held is None else self.kind.format(held)


def shown(value: object) -> str:
    """A value in a message: short, on one line."""
    try:
        text = repr(value)
    except ValueError:
        text = "a number of thousands of digits"  # which Python does not write
    return text if len(text) <= 80 else f"{text[:80]}…"
