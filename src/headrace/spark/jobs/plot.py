"""Pictures as SVG made by hand: bars and lines are all that reports need, and a browser shows them as they are."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["bars", "lines"]

_COLOURS: Final = ("#0b6bcb", "#e07a1f", "#2a9d5c", "#b23a6f", "#6b5bd2", "#8a8f98", "#c2a511", "#138fa3")
_WIDTH: Final = 980
_BAR: Final = 26
_LABEL: Final = 260
_HEIGHT: Final = 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 16, 14, 62


def bars(values: Mapping[str, float], unit: str = "") -> str:
    """One horizontal bar a name, as long as its value.

    >>> bars({"timeout": 3, "<b>": 1}).count("<rect")
    2
    """
    most = max(values.values(), default=0) or 1
    height = _BAR * max(1, len(values)) + 8
    parts = [_open(height)]
    room = _WIDTH - _LABEL - 110
    for number, (name, value) in enumerate(values.items()):
        y = 4 + number * _BAR
        parts.append(
            f'<text x="{_LABEL - 8}" y="{y + 16}" text-anchor="end">{html.escape(_short(name, 38))}</text>'
            f'<rect x="{_LABEL}" y="{y + 3}" width="{max(1.0, room * value / most):.1f}" height="{_BAR - 8}" rx="2"'
            f' fill="{_COLOURS[0]}"/>'
            f'<text x="{_LABEL + room * value / most + 6:.1f}" y="{y + 16}">{_number(value)}{html.escape(unit)}</text>'
        )
    return "".join([*parts, "</svg>"])


def lines(labels: Sequence[str], series: Mapping[str, Sequence[float | None]], unit: str = "") -> str:
    """One line a series over the same places; where a value is None the line has a gap."""
    known = [value for each in series.values() for value in each if value is not None]
    most = _ceiling(max(known, default=0))
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    parts = [_open(_HEIGHT)]
    for step in range(5):
        value = most * step / 4
        y = _TOP + height - height * step / 4
        parts.append(
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#dde3ea"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}{html.escape(unit)}</text>'
        )
    count = max(1, len(labels) - 1)
    every = max(1, math.ceil(len(labels) / 8))
    for number in range(0, len(labels), every):
        x = _LEFT + width * number / count
        anchor = "start" if number == 0 else "middle" if x < _WIDTH - 60 else "end"
        parts.append(
            f'<text x="{x:.1f}" y="{_TOP + height + 18}" text-anchor="{anchor}">{html.escape(labels[number])}</text>'
        )
    for place, (name, values) in enumerate(series.items()):
        colour = _COLOURS[place % len(_COLOURS)]
        parts += [
            f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(run)}"/>'
            for run in _runs(values, width, height, most, count)
            if len(run) > 1
        ]
        parts += [
            f'<circle cx="{point.split(",")[0]}" cy="{point.split(",")[1]}" r="2.5" fill="{colour}"/>'
            for run in _runs(values, width, height, most, count)
            for point in run
            if len(values) <= 60
        ]
        x = _LEFT + (place % 4) * 220
        y = _HEIGHT - 24 + (place // 4) * 16
        parts.append(
            f'<rect x="{x}" y="{y - 9}" width="12" height="10" fill="{colour}"/>'
            f'<text x="{x + 18}" y="{y}">{html.escape(_short(name, 28))}</text>'
        )
    return "".join([*parts, "</svg>"])


def _runs(values: Sequence[float | None], width: float, height: float, most: float, count: int) -> list[list[str]]:
    runs: list[list[str]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append(f"{_LEFT + width * number / count:.1f},{_TOP + height - height * value / most:.1f}")
    return [run for run in runs if run]


def _open(height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}"'
        f' height="{height:.0f}" font-family="system-ui,sans-serif" font-size="12" fill="#1d2733">'
    )


def _ceiling(value: float) -> float:
    """The next round number.

    >>> _ceiling(0), _ceiling(17), _ceiling(230)
    (1.0, 20.0, 250.0)
    """
    if value <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(value))
    return float(next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value))


def _number(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:.3g} M"
    if value >= 10_000:
        return f"{value / 1_000:.3g} k"
    return f"{value:,.3g}" if value < 1_000 else f"{value:,.0f}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
