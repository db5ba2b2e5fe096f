"""The page of the tables says what the code writes: each column with its type, if it may be null, its statistics."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headrace.delivery import facts
from headrace.limits import ROW_GROUP_ROWS
from headrace.log import events, parquet

PAGE = (Path(__file__).parents[3] / "docs/reference/tables.md").read_text()


def said(table: str) -> list[tuple[str, str, bool, bool]]:
    section = PAGE.split(f"\n## {table}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "` |" in line]
    return [(row[0].strip("`"), row[1], row[2] == "yes", row[3] == "yes") for row in rows if len(row) == 5]


def told(kind: pa.DataType) -> str:
    return str(kind).replace("tz=", "").replace("list<element: ", "list<").replace("list<item: ", "list<")


@pytest.mark.feature("N15")
@pytest.mark.parametrize(
    ("table", "schema", "statistics"),
    [
        ("messages", parquet.MESSAGES, parquet._MESSAGE_STATISTICS),
        ("events", parquet.EVENTS, parquet._EVENT_STATISTICS),
    ],
)
def test_every_column_is_on_the_page(table: str, schema: pa.Schema, statistics: list[str]) -> None:
    written = [(field.name, told(field.type), field.nullable, field.name in statistics) for field in schema]
    assert said(table) == written


def test_every_event_is_on_the_page() -> None:
    names = {kind.__name__ for kind in events._WRITERS} | {"Published", "Redriven"}
    not_told = {"Assigned", "NamespaceChanged", "Noted", "PartitionCreated", "TopicDeleted"}
    every = {kind for kind in facts.__all__ if kind[0].isupper() and kind != "Fact"}
    assert every - names == not_told  # facts about nobody's message
    section = PAGE.split("| `event` | What happened |")[1]
    for name in names:
        word = {
            "Joined": "consumer_joined",
            "Left": "consumer_left",
            "Paused": "group_paused",
            "Resumed": "group_resumed",
        }
        snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
        assert f"`{word.get(name, snake)}`" in section, name


def test_the_numbers_on_the_page() -> None:
    assert f"row groups of up to {ROW_GROUP_ROWS:,} rows" in PAGE


@pytest.mark.feature("F067")
def test_operators_are_told_what_a_repeating_message_and_a_spike_point_to() -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/dead-letters.md").read_text()
    rows = {row.split("|")[1].strip(): row.split("|")[2] for row in guide.splitlines() if row.startswith("| ")}
    repeating = next(what for seen, what in rows.items() if "the same message fails again and again" in seen)
    spike = next(what for seen, what in rows.items() if "a spike: many messages" in seen)
    assert "bug" in repeating
    assert "dependency" in spike
