"""What a command says: for people, or with ``--json`` one JSON value a line; results on stdout, the rest on stderr.

In JSON the results of calls keep their names with three changes, the same everywhere: an id is text (a double holds
only 53 bits), an instant is RFC 3339 text whose name ends in ``_at`` and not ``_ns``, and bytes are text where they
are UTF-8, else they stand under the name with ``_base64`` behind it.
"""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self

import msgspec

from headrace.cli.values import from_epoch
from headrace.clock import SystemClock
from headrace.limits import SECOND_NS

__all__ = ["Output", "Progress", "ago", "count", "displayed", "encode_json", "plain", "size", "span_text"]

encode_json: Final = msgspec.json.Encoder(decimal_format="string").encode
_SPANS: Final = frozenset({"publish_to_ack_ns", "delay_ns", "lease_ns", "duration_ns"})
"""Every other number whose name ends in ``_ns`` is a moment."""
_VALUE_CHARS_MAX: Final = 60
_PROGRESS_NS: Final = SECOND_NS // 5
_IDS: Final = frozenset({"id", "message_id", "origin_id"})


# -- one value ---------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A result as JSON says it; see the head of this file.

    >>> plain({"id": 7, "published_ns": 1_893_456_000_000_000_000, "value": b"a", "key": b"\\xff"})
    {'id': '7', 'published_at': '2030-01-01T00:00:00.000Z', 'value': 'a', 'key_base64': '/w=='}
    """
    if isinstance(value, Mapping):
        shaped: dict[str, Any] = {}
        for name, held in value.items():
            if isinstance(held, int) and not isinstance(held, bool):
                if name in _IDS:
                    held = str(held)
                elif name.endswith("_ns") and name not in _SPANS:
                    name, held = _instant_name(name), from_epoch(held) if held else None
            elif isinstance(held, bytes | bytearray | memoryview):
                name, held = text_or_base64(name, bytes(held))
            elif held is None and name.endswith("_ns") and name not in _SPANS:
                name = _instant_name(name)
            elif name in ("ids", "sample") and isinstance(held, Sequence):
                held = [str(one) for one in held]
            else:
                held = plain(held)
            shaped[name] = held
        return shaped
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return text_or_base64("", bytes(value))[1]
    if isinstance(value, Iterable):
        return [plain(one) for one in value]
    return value


def _instant_name(name: str) -> str:
    stem = name.removesuffix("_ns")
    return stem if stem.endswith("_at") or stem in ("at", "since", "until", "now") else f"{stem}_at"


def text_or_base64(name: str, content: bytes) -> tuple[str, str]:
    """Bytes under a name as JSON has them."""
    try:
        return name, content.decode()
    except UnicodeDecodeError:
        return f"{name}_base64", b64encode(content).decode()


# -- for people --------------------------------------------------------------------------------------------------------


def displayed(content: bytes | str | None, chars_max: int = _VALUE_CHARS_MAX) -> str:
    """Bytes on a terminal: what could move the cursor is escaped, what is long is cut.

    >>> displayed(b"a\\x1b[2Jb"), displayed(b"\\xff\\n")
    ('a\\\\x1b[2Jb', '\\\\xff\\\\n')
    """
    if content is None:
        return ""
    text = content if isinstance(content, str) else content[: 4 * chars_max].decode("utf-8", "backslashreplace")
    text = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text[: chars_max + 1])
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def count(number: float) -> str:
    """A number with its thousands apart."""
    return f"{number:,.0f}"


def size(size_bytes: float) -> str:
    """A size with three digits.

    >>> size(512), size(123_456_789)
    ('512 B', '118 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1000:
            return f"{size_bytes:.3g} {unit}" if unit != "B" else f"{size_bytes:.0f} B"
        size_bytes /= 1024
    return f"{size_bytes:.3g} TiB"


def ago(at_ns: int | None, now_ns: int) -> str:
    """How long ago, roughly.

    >>> ago(0, 90 * 10**9), ago(None, 0)
    ('90s', '')
    """
    if at_ns is None:
        return ""
    seconds = max(0, now_ns - at_ns) // SECOND_NS
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def span_text(span_ns: int) -> str:
    """A measured span with three digits.

    >>> span_text(1_234_567), span_text(90 * 10**9), span_text(7_200 * 10**9)
    ('1.23 ms', '90 s', '2 h')
    """
    for unit, length, most in (("µs", 1_000, 1_000), ("ms", 10**6, 1_000), ("s", 10**9, 600), ("min", 60 * 10**9, 100)):
        if span_ns < length * most:
            return f"{span_ns / length:.3g} {unit}"
    return f"{span_ns / (3_600 * 10**9):.3g} h"


class Output:
    """Where a command's results go."""

    def __init__(self, *, json: bool) -> None:
        self.json = json

    def value(self, value: Any, text: str | None = None) -> None:
        """One result: JSON, or its text (nothing when that is None)."""
        if self.json:
            self.line(encode_json(plain(value)).decode())
        elif text is not None:
            self.line(text)

    def values(self, values: Iterable[Any], text: Callable[[Any], str]) -> None:
        """Several, a line each."""
        for value in values:
            self.value(value, text(value))

    def table(self, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Callable[[Any], Any]]) -> None:
        """Rows: JSON lines, or columns under their titles."""
        if self.json:
            for row in rows:
                self.value(row)
        elif rows:
            self.line(table(rows, columns))

    def line(self, text: str) -> None:
        sys.stdout.write(text + "\n")

    @staticmethod
    def note(text: str) -> None:
        """Something beside the result."""
        sys.stdout.flush()
        sys.stderr.write(f"{text}\n")


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Callable[[Any], Any]]) -> str:
    """Aligned columns; numbers to the right."""
    cells = [[found(row) for found in columns.values()] for row in rows]
    right = [all(isinstance(line[i], int | float) for line in cells) for i in range(len(columns))]
    texts = [[count(cell) if isinstance(cell, int | float) else str(cell) for cell in line] for line in cells]
    lines = [[title.upper() for title in columns], *texts]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


class Progress:
    """How far long work is, on a terminal; silent elsewhere."""

    def __init__(self, what: str, *, total: int | None = None, shown: bool | None = None) -> None:
        self._what = what
        self._total = total
        self._shown = sys.stderr.isatty() if shown is None else shown
        self._began = self._last = SystemClock().monotonic_ns()
        self._width = 0

    def at(self, done: int) -> None:
        """So much is done."""
        if not self._shown:
            return
        now = SystemClock().monotonic_ns()
        if now - self._last < _PROGRESS_NS:
            return
        self._last = now
        share = f" of {count(self._total)} ({100 * done // max(self._total, 1)} %)" if self._total else ""
        self._write(f"{self._what} {count(done)}{share}, {count(done * SECOND_NS / (now - self._began))}/s")

    def end(self) -> None:
        """Wipe the line away."""
        if self._width:
            self._write("")
            sys.stderr.write("\r")
            self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _write(self, text: str) -> None:
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)
