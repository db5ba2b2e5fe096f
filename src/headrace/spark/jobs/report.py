"""What a job says at its end: figures, tables and pictures; as text, as JSON, and as an HTML file of its own."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["Report", "page"]

_ROWS_SHOWN: Final = 20


@dataclass
class Report:
    """One job's. ``figures``: name → number or text; ``tables``: title, columns, rows; ``plots``: title, SVG."""

    job: str
    title: str
    figures: dict[str, Any] = field(default_factory=dict)
    tables: list[tuple[str, list[str], list[list[Any]]]] = field(default_factory=list)
    plots: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    written: dict[str, str] = field(default_factory=dict)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self.tables.append((title, list(columns), [list(row) for row in rows]))

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "job": self.job,
            "figures": self.figures,
            "tables": {
                title: [dict(zip(columns, map(_json, row), strict=True)) for row in rows]
                for title, columns, rows in self.tables
            },
            "notes": self.notes,
            "written": self.written,
        }

    def text(self) -> str:
        """For a terminal."""
        lines = [self.title]
        width = max((len(name) for name in self.figures), default=0)
        lines += [f"  {name.ljust(width)}  {shown(value)}" for name, value in self.figures.items()]
        for title, columns, rows in self.tables:
            if rows:
                lines += ["", title, *_aligned(columns, rows[:_ROWS_SHOWN])]
                if len(rows) > _ROWS_SHOWN:
                    lines.append(f"  … {len(rows) - _ROWS_SHOWN} more")
        if self.notes:
            lines += ["", *self.notes]
        if self.written:
            lines += ["", *(f"  {name}: {where}" for name, where in self.written.items())]
        return "\n".join(lines)

    def section(self) -> str:
        """As a part of a page."""
        figures = "".join(
            f'<div class="figure"><b>{_text(value)}</b><span>{html.escape(name)}</span></div>'
            for name, value in self.figures.items()
        )
        plots = "".join(
            f"<figure><figcaption>{html.escape(title)}</figcaption>{svg}</figure>" for title, svg in self.plots
        )
        tables = "".join(_html_table(*table) for table in self.tables if table[2])
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return (
            f'<section id="{html.escape(self.job)}"><h2>{html.escape(self.title)}</h2>'
            f'<div class="figures">{figures}</div>{plots}{tables}{notes}</section>'
        )

    def html(self) -> str:
        """A page of its own."""
        return page(self.title, [self])


def page(title: str, reports: Sequence[Report], intro: str = "") -> str:
    """Reports as one HTML file: no script, no font, no picture from anywhere else."""
    links = "".join(f'<a href="#{html.escape(each.job)}">{html.escape(each.job)}</a>' for each in reports)
    menu = f"<nav>{links}</nav>" if len(reports) > 1 else ""
    lead = f"<p>{html.escape(intro)}</p>" if intro else ""
    body = "".join(each.section() for each in reports)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body><main><h1>{html.escape(title)}</h1>{lead}{menu}{body}</main></body></html>\n"
    )


def shown(value: Any) -> str:
    """A value for people.

    >>> shown(1234567), shown(0.12345), shown(1.0), shown(None)
    ('1,234,567', '0.123', '1', '–')
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if hasattr(value, "isoformat"):
        return str(value.isoformat(sep=" ")) if hasattr(value, "hour") else str(value.isoformat())
    text = str(value)
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return shown(value)


def _text(value: Any) -> str:
    return html.escape(shown(value))


def _aligned(columns: list[str], rows: list[list[Any]]) -> list[str]:
    right = [all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(columns))]
    cells = [columns, *[[shown(value)[:60] for value in row] for row in rows]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in cells
    ]


def _html_table(title: str, columns: list[str], rows: list[list[Any]]) -> str:
    numbers = [all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(columns))]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="number">{_text(value)}</td>' if number else f"<td>{_text(value)}</td>"
            for value, number in zip(row, numbers, strict=True)
        )
        + "</tr>"
        for row in rows[: 5 * _ROWS_SHOWN]
    )
    return f"<h3>{html.escape(title)}</h3><div class='wide'><table><tr>{head}</tr>{body}</table></div>"


def dumped(report: Report) -> str:
    return json.dumps(report.plain(), indent=1, default=str) + "\n"


_STYLE: Final = (
    "body{margin:0;background:#f4f6f8;color:#1d2733;font:15px/1.5 system-ui,sans-serif}"
    "main{max-width:1060px;margin:0 auto;padding:24px}"
    "h1{margin:.2em 0}h2{margin-top:0}h3{margin:1.4em 0 .4em}"
    "section{background:#fff;border:1px solid #dde3ea;border-radius:8px;padding:20px 24px;margin:20px 0}"
    "nav a{margin-right:14px;color:#0b6bcb}"
    ".figures{display:flex;flex-wrap:wrap;gap:10px}"
    ".figure{background:#eef4fb;border-radius:6px;padding:8px 14px;min-width:96px}"
    ".figure b{display:block;font-size:20px}.figure span{color:#51606f;font-size:13px}"
    "figure{margin:18px 0}figcaption{font-weight:600;margin-bottom:4px}"
    "svg{max-width:100%;height:auto}"
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px}"
    "th,td{padding:4px 10px;border-bottom:1px solid #e4e9ef;text-align:left;white-space:nowrap}"
    "td.number{text-align:right;font-variant-numeric:tabular-nums}"
    "td{max-width:420px;overflow:hidden;text-overflow:ellipsis}"
)
