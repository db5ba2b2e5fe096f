"""What the broker knows besides messages, as tables: ``option("table", …)``, batch reads.

    topics        one row a topic: settings, counts
    groups        one row a group: its books (published = ready + leased + scheduled + acked + …), lag, who consumes
    stats         one row a number: (namespace, topic, group, metric, value) at a time; append them to watch them
    dead_letters  one row a dead letter: where it came from, why it died, and the message itself
    events        one row a fact: published, leased, acked, retried, died …, with the offsets it is about

``subscribe``, ``subscribePattern`` narrow all of them to some topics; ``startingTimestamp`` and ``endingTimestamp``
narrow dead letters and events to a time. The columns are in docs/reference/spark.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.spark.dead_letters import COLUMNS as DEAD_LETTERS
from headrace.spark.dead_letters import described
from headrace.spark.events import COLUMNS as EVENTS
from headrace.spark.events import EventSplit, plan_events, read_events
from headrace.spark.log_reader import LogReader
from headrace.spark.options import ReadOptions
from headrace.spark.plan import Split
from headrace.spark.reach import reach
from headrace.spark.reading import read_split
from headrace.spark.rows import Layout, columns_for

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TableReader", "ddl"]

_TIME: Final = pa.timestamp("us", tz="UTC")
_NAMES: Final = pa.list_(pa.field("element", pa.string()))
_BOOKS: Final = ("published", "ready", "leased", "scheduled", "acked", "dead", "expired", "cancelled", "dropped")

_TOPICS: Final = pa.schema(
    [
        ("namespace", pa.string()),
        ("topic", pa.string()),
        ("partitions", pa.int32()),
        ("created", _TIME),
        ("messages", pa.int64()),
        ("published", pa.int64()),
        ("depth", pa.int64()),
        ("groups", _NAMES),
        ("settings", pa.string()),
    ]
)
_GROUPS: Final = pa.schema(
    [
        ("namespace", pa.string()),
        ("topic", pa.string()),
        ("group", pa.string()),
        ("durable", pa.bool_()),
        ("lag", pa.int64()),
        *((name, pa.int64()) for name in _BOOKS),
        ("delivered", pa.int64()),
        ("redelivered", pa.int64()),
        ("nacked", pa.int64()),
        ("oldest_unsettled", _TIME),
        ("paused", pa.bool_()),
        ("consumers", _NAMES),
        ("settings", pa.string()),
    ]
)
_STATS: Final = pa.schema(
    [
        ("at", _TIME),
        ("namespace", pa.string()),
        ("topic", pa.string()),
        ("group", pa.string()),
        ("metric", pa.string()),
        ("value", pa.int64()),
    ]
)
_SCHEMAS: Final = {
    "topics": _TOPICS,
    "groups": _GROUPS,
    "stats": _STATS,
    "dead_letters": DEAD_LETTERS,
    "events": EVENTS,
}


def ddl(table: str) -> str:
    """The columns of a table as Spark declares them.

    >>> ddl("stats")
    '`at` timestamp, `namespace` string, `topic` string, `group` string, `metric` string, `value` bigint'
    """
    return ", ".join(f"`{field.name}` {_declared(field.type)}" for field in _SCHEMAS[table])


def _declared(kind: pa.DataType) -> str:
    if pa.types.is_map(kind):
        return f"map<{_declared(kind.key_type)},{_declared(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"array<{_declared(kind.value_type)}>"
    return _DECLARED[kind]


_DECLARED: Final = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.bool_(): "boolean",
    _TIME: "timestamp",
}


class TableReader(DataSourceReader):
    """One of the tables."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.table = str(options.table)

    def partitions(self) -> list[InputPartition]:
        if self.table == "dead_letters":
            return list(_dead_letter_splits(self.options))
        if self.table == "events":
            return list(plan_events(self.options, [info["topic"] for info in _topics(self.options)]))
        return [InputPartition(self.table)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Split):
            layout = _dead_letter_layout()
            for record in read_split(self.options, layout, partition):
                yield described(record)
        elif isinstance(partition, EventSplit):
            yield from read_events(self.options, partition)
        elif partition.value is not None:
            rows = _SMALL[self.table](self.options)
            yield pa.RecordBatch.from_pylist(rows, schema=_SCHEMAS[self.table])


# -- small tables ------------------------------------------------------------------------------------------------------


def _topics(options: ReadOptions) -> list[dict[str, Any]]:
    """The topics a table is about."""
    if options.topics and options.pattern is None:
        return [reach(options.place).call("topic.show", topic=topic) for topic in options.topics]
    found = reach(options.place).call("topic.list")
    if options.pattern is not None:
        return [info for info in found if re.fullmatch(options.pattern, info["topic"])]
    return list(found)


def _topic_rows(options: ReadOptions) -> list[dict[str, Any]]:
    return [
        {
            **{name: info[name] for name in ("namespace", "topic", "partitions", "messages", "published", "depth")},
            "created": info["created_ns"] // 1_000,
            "groups": list(info["groups"]),
            "settings": json.dumps(info["settings"], default=str),
        }
        for info in _topics(options)
    ]


def _group_rows(options: ReadOptions) -> list[dict[str, Any]]:
    rows = []
    for topic in _topics(options):
        for info in reach(options.place).call("group.list", topic=topic["topic"]):
            oldest_ns = info["oldest_unsettled_ns"]
            numbers = ("lag", *_BOOKS, "delivered", "redelivered", "nacked")
            rows.append(
                {
                    **{name: info[name] for name in ("namespace", "topic", "group", "durable")},
                    **{name: info.get(name) for name in numbers},
                    "oldest_unsettled": None if oldest_ns is None else oldest_ns // 1_000,
                    "paused": info["paused"] is not None,
                    "consumers": list(info["consumers"]),
                    "settings": json.dumps(info["settings"], default=str),
                }
            )
    return rows


def _stat_rows(options: ReadOptions) -> list[dict[str, Any]]:
    way = reach(options.place)
    wanted = {info["topic"] for info in _topics(options)}
    found = way.call("stats")
    at = found["now_ns"] // 1_000
    rows: list[dict[str, Any]] = []

    def put(numbers: dict[str, Any], **place: str) -> None:
        for name, value in numbers.items():
            if type(value) is int:
                rows.append({"at": at, "metric": name, "value": value, **place})

    for topic in found["topics"]:
        if topic["topic"] in wanted:
            where = {"namespace": topic["namespace"], "topic": topic["topic"]}
            put(topic, **where)
            for group in topic["groups"]:
                put(group, **where, group=group["group"])
    put({f"journal_{name}": value for name, value in found.get("journal", {}).items()})
    return rows


_SMALL: Final[dict[str, Callable[[ReadOptions], list[dict[str, Any]]]]] = {
    "topics": _topic_rows,
    "groups": _group_rows,
    "stats": _stat_rows,
}


# -- dead letters ------------------------------------------------------------------------------------------------------


def _dead_letter_layout() -> Layout:
    return Layout(columns_for(headers=True, queue=False, gaps=False, chosen=None))


def _dead_letter_splits(options: ReadOptions) -> list[Split]:
    """The dead-letter topics of the topics that are asked for, read as logs."""
    existing = {info["topic"] for info in reach(options.place).call("topic.list")}
    found = set()
    for info in _topics(options):
        settings = info["settings"].get("dead_letters") or {}
        name = settings.get("topic") if isinstance(settings, dict) else None
        for candidate in (name, f"dlq/{info['topic']}", info["topic"]):
            if candidate and candidate in existing and (candidate == name or candidate.startswith("dlq/")):
                found.add(candidate)
    if not found:
        return []
    reading = replace(options, table=None, topics=tuple(sorted(found)), pattern=None)
    return LogReader(reading, _dead_letter_layout()).planned()
