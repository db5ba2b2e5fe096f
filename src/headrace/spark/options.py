"""The options of ``format("headrace")``: one table for reading, one for writing, each mistake named with what is right.

Spark's option names are case-insensitive; the spelling here is that of the Kafka source where both have the option.
Where to start and end may be said once for all topics (``earliest``, ``latest``, a time) or for each partition as JSON:
``{"orders": {"0": 17, "1": -2}}`` with -2 for earliest and -1 for latest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Final, Literal, TypeAlias

from headrace.config import parse_duration_ns, parse_size_bytes
from headrace.errors import InvalidArgument
from headrace.limits import (
    BATCH_MESSAGES_MAX,
    SPARK_AWAY_NS,
    SPARK_LEASE_NS,
    SPARK_QUEUE_ROWS,
    SPARK_SPLIT_ROWS,
    SPARK_TRIGGER_DELAY_NS,
)

__all__ = [
    "EARLIEST",
    "LATEST",
    "TABLES",
    "Bound",
    "Place",
    "ReadOptions",
    "WriteOptions",
    "possible_ns",
    "since_1970_ns",
]

EARLIEST: Final = -2
LATEST: Final = -1
_NS: Final = 1_000_000_000
_MS_NS: Final = 1_000_000
_LAST_NS: Final = (1 << 63) - 1
TABLES: Final = ("events", "dead_letters", "groups", "topics", "stats")

Offsets: TypeAlias = dict[str, dict[int, int]]


@dataclass(frozen=True)
class Place:
    """Where the broker is, as executors need it too: a server's address, and what it wants to see."""

    server: str = ""
    data_dir: str = ""
    namespace: str = "default"
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    away_ns: int = SPARK_AWAY_NS

    @property
    def name(self) -> str:
        """How messages name it."""
        return self.server or self.data_dir


@dataclass(frozen=True)
class Bound:
    """One end of what is read: everywhere the same, by time, or partition by partition."""

    everywhere: int | None = None  # EARLIEST or LATEST
    time_ns: int | None = None
    times_ns: Mapping[str, int] = field(default_factory=dict)  # by topic
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadOptions:
    place: Place
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    view: Literal["log", "queue"] = "log"
    table: str | None = None
    start: Bound = Bound(everywhere=EARLIEST)
    end: Bound = Bound(everywhere=LATEST)
    start_given: bool = False
    rows_max: int | None = None
    rows_min: int | None = None
    bytes_max: int | None = None
    delay_max_ns: int = SPARK_TRIGGER_DELAY_NS
    partitions_min: int = 1
    split_rows: int = SPARK_SPLIT_ROWS
    fail_on_data_loss: bool = True
    include_headers: bool = True
    include_deleted: bool = False
    columns: tuple[str, ...] | None = None
    group: str | None = None
    lease_ns: int = SPARK_LEASE_NS
    start_group: bool = False
    sealed: bool = True
    push_filters: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool, any_kind: bool = False) -> ReadOptions:
        """The options of a reader; ``any_kind``: of a batch or a stream, nobody knows yet.

        >>> ReadOptions.parse({"server": "headrace://h", "subscribe": "a, b"}, streaming=False).topics
        ('a', 'b')
        """
        options = _Options(given, _READ)
        table = options.choice("table", TABLES)
        view = options.choice("view", ("log", "queue")) or "log"
        topics = tuple(name for part in (options.text("subscribe") or "").split(",") if (name := part.strip()))
        pattern = options.text("subscribepattern")
        assigned = _assigned(options.text("assign"))
        chosen = sum((bool(topics), pattern is not None, bool(assigned)))
        if table is None and chosen != 1:
            raise InvalidArgument(
                f"{'none' if not chosen else 'more than one'} of subscribe, subscribePattern and assign is given: say"
                " which topics in exactly one of them"
            )
        if view == "queue":
            if table is not None:
                raise InvalidArgument("view=queue reads a topic's queue; leave the option table out")
            if not streaming and not any_kind:
                raise InvalidArgument("view=queue settles with each micro-batch: use readStream")
            if len(topics) != 1 or not options.text("groupid"):
                raise InvalidArgument("view=queue needs one topic in subscribe, and groupId: the group to lease from")
        for name, asked in (("view=queue", view == "queue"), ("groupId", options.text("groupid") is not None)):
            if asked and options.text("data_dir") is not None:
                raise InvalidArgument(
                    f"{name} needs a server to tell; a data_dir is only looked at: use the option server"
                )
        start_group = (options.text("startingoffsets") or "").lower() == "group"
        if start_group and not options.text("groupid"):
            raise InvalidArgument("startingOffsets = group needs groupId: the group whose position is meant")
        start = None if start_group else _bound(options, "starting")
        end = _bound(options, "ending")
        if streaming and end is not None and not any_kind:
            raise InvalidArgument("endingOffsets and endingTimestamp are for batch reads; a stream has no end")
        columns = options.text("columns")
        return cls(
            place=_place(options),
            topics=topics,
            pattern=pattern,
            assigned=assigned,
            view="queue" if view == "queue" else "log",
            table=table,
            start=start or Bound(everywhere=LATEST if streaming and view == "log" else EARLIEST),
            end=end or Bound(everywhere=LATEST),
            start_given=start is not None,
            rows_max=options.whole("maxoffsetspertrigger", 1) or (SPARK_QUEUE_ROWS if view == "queue" else None),
            rows_min=options.whole("minoffsetspertrigger", 1),
            bytes_max=options.size("maxbytespertrigger"),
            delay_max_ns=options.span("maxtriggerdelay", SPARK_TRIGGER_DELAY_NS),
            partitions_min=options.whole("minpartitions", 1) or 1,
            split_rows=options.whole("maxrecordsperpartition", 1) or SPARK_SPLIT_ROWS,
            fail_on_data_loss=options.flag("failondataloss", True),
            include_headers=options.flag("includeheaders", True),
            include_deleted=options.flag("includedeleted", False),
            columns=tuple(name.strip() for name in columns.split(",")) if columns is not None else None,
            group=options.text("groupid"),
            lease_ns=options.span("lease", SPARK_LEASE_NS),
            start_group=start_group,
            sealed=options.flag("sealedfiles", True),
            push_filters=options.flag("pushfilters", False),
        )


@dataclass(frozen=True)
class WriteOptions:
    place: Place
    topic: str | None = None
    batch_rows: int = BATCH_MESSAGES_MAX
    write_id: str | None = None
    idempotent: bool = True
    create: bool = True

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """The options of a writer."""
        options = _Options(given, _WRITE)
        rows = options.whole("batchrows", 1) or BATCH_MESSAGES_MAX
        if rows > BATCH_MESSAGES_MAX:
            raise InvalidArgument(f"batchRows {rows}: at most {BATCH_MESSAGES_MAX}, what one batch takes")
        return cls(
            place=_place(options),
            topic=options.text("topic"),
            batch_rows=rows,
            write_id=options.text("writeid"),
            idempotent=options.flag("idempotent", True),
            create=options.flag("createtopics", True),
        )


_PLACE: Final = ("server", "data_dir", "namespace", "token", "caFile", "awayTimeout")
_READ: Final = (
    *_PLACE, "subscribe", "subscribePattern", "assign", "view", "table", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "maxBytesPerTrigger", "minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "includeHeaders",
    "includeDeleted", "columns", "groupId", "lease", "sealedFiles", "pushFilters",
)  # fmt: skip
_WRITE: Final = (*_PLACE, "topic", "batchRows", "writeId", "idempotent", "createTopics", "checkpointLocation")
_SPARKS: Final = frozenset({"path", "checkpointlocation", "querypath"})
"""Options that Spark itself puts among ours."""


class _Options:
    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._spelt = {name.lower(): name for name in known}
        self._given = {name.lower(): str(value) for name, value in given.items()}
        for name in self._given:
            if name not in self._spelt and name not in _SPARKS:
                close = get_close_matches(name, self._spelt, n=1)
                hint = f"did you mean {self._spelt[close[0]]}?" if close else f"there are {', '.join(known)}"
                raise InvalidArgument(f"there is no option {name!r}; {hint}")

    def text(self, name: str) -> str | None:
        return self._given.get(name) or None

    def _wrong(self, name: str, right: str) -> InvalidArgument:
        return InvalidArgument(f"option {self._spelt[name]} = {self._given[name]!r}: {right}")

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        value = self.text(name)
        if value is not None and value not in choices:
            raise self._wrong(name, f"must be one of {', '.join(choices)}")
        return value

    def whole(self, name: str, least: int) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            raise self._wrong(name, "must be a whole number") from None
        if number < least:
            raise self._wrong(name, f"must be {least} or more")
        return number

    def flag(self, name: str, otherwise: bool) -> bool:
        value = self.text(name)
        if value is None:
            return otherwise
        if value.lower() not in ("true", "false"):
            raise self._wrong(name, "must be true or false")
        return value.lower() == "true"

    def span(self, name: str, otherwise: int) -> int:
        value = self.text(name)
        if value is None:
            return otherwise
        try:
            return parse_duration_ns(value)
        except InvalidArgument as error:
            raise self._wrong(name, error.message) from None

    def size(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            return parse_size_bytes(value)
        except InvalidArgument as error:
            raise self._wrong(name, error.message) from None

    def loaded(self, name: str) -> Any:
        try:
            return json.loads(self._given[name])
        except ValueError:
            raise self._wrong(name, "is not JSON") from None

    def wrong(self, name: str, right: str) -> InvalidArgument:
        return self._wrong(name, right)


def _place(options: _Options) -> Place:
    server, data_dir = options.text("server"), options.text("data_dir")
    if (server is None) == (data_dir is None):
        raise InvalidArgument(
            "give one of the options server (headrace://host:7420) and data_dir (a data directory nobody has open)"
        )
    return Place(
        server=server or "",
        data_dir=data_dir or "",
        namespace=options.text("namespace") or "default",
        token=options.text("token"),
        ca_file=options.text("cafile"),
        away_ns=options.span("awaytimeout", SPARK_AWAY_NS),
    )


def _assigned(text: str | None) -> dict[str, tuple[int, ...]]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or not found:
            raise ValueError
        return {str(topic): tuple(sorted({int(index) for index in indexes})) for topic, indexes in found.items()}
    except (ValueError, TypeError):
        raise InvalidArgument(f'option assign = {text!r}: must be JSON like {{"orders": [0, 1]}}') from None


def _bound(options: _Options, which: Literal["starting", "ending"]) -> Bound | None:
    by_offset, by_time = f"{which}offsets", f"{which}timestamp"
    offsets, times = options.text(by_offset), options.text(by_time)
    if offsets is not None and times is not None:
        raise InvalidArgument(f"both {which}Offsets and {which}Timestamp are given: one of them says where")
    if times is not None:
        if times.lstrip().startswith("{"):
            loaded = options.loaded(by_time)
            return Bound(times_ns={str(topic): _time_ns(options, by_time, at) for topic, at in loaded.items()})
        return Bound(time_ns=_time_ns(options, by_time, times))
    if offsets is None:
        return None
    if offsets.lower() in ("earliest", "latest"):
        return Bound(everywhere=EARLIEST if offsets.lower() == "earliest" else LATEST)
    right = 'must be earliest, latest or JSON like {"orders": {"0": 17, "1": -2}} (-2: earliest, -1: latest)'
    if not offsets.lstrip().startswith("{"):
        raise options.wrong(by_offset, right)
    try:
        parsed = {
            str(topic): {int(index): int(at) for index, at in by_index.items()}
            for topic, by_index in options.loaded(by_offset).items()
        }
    except (AttributeError, TypeError, ValueError):
        raise options.wrong(by_offset, right) from None
    if any(at < EARLIEST for by_index in parsed.values() for at in by_index.values()):
        raise options.wrong(by_offset, right)
    return Bound(offsets=parsed)


def _time_ns(options: _Options, name: str, value: Any) -> int:
    """Milliseconds since 1970, or ISO 8601 (UTC where it does not say)."""
    try:
        if isinstance(value, int) or str(value).isdigit():
            return possible_ns(int(value) * _MS_NS)
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        raise options.wrong(name, "must be milliseconds since 1970 or a time like 2026-03-01T15:00:00+00:00") from None
    return since_1970_ns(moment)


def since_1970_ns(moment: datetime) -> int:
    """A moment as the broker counts time; UTC where it does not say."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return possible_ns((since.days * 86_400 + since.seconds) * _NS + since.microseconds * 1_000)


def possible_ns(time_ns: int) -> int:
    """The nearest time that a log can have: there is nothing before the first, or after the last."""
    return min(max(time_ns, 0), _LAST_NS)
