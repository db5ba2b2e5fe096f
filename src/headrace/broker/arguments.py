"""What every administrative call takes: one table, method → argument → kind, checked before anything is done.

A call is asked for by name with plain arguments, from a socket or from somebody's program; the methods behind it may
rely on what they are given. Each kind says what would be right (``expected``) and reads a value: what ``read`` returns
is what the method gets, and a value that is not right is refused with the method, the argument, the value and what it
must be. Which arguments have a default is said where the method is (its signature), so this table holds kinds only.

    TAKES["group.pause"]["by"] = Text(4096)   →   group.pause: by is 5; it must be text of at most 4096 characters

Settings and names have rooms of their own (``headrace.config``, ``headrace.names``); they are asked from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from headrace.broker.broker import by_partition, start_of
from headrace.broker.replays import OUTCOMES
from headrace.config.kinds import shown
from headrace.errors import InvalidArgument
from headrace.ids import ID_MAX
from headrace.limits import (
    BROWSE_MESSAGES_MAX,
    CALL_IDS_MAX,
    CONSUMER_NAME_BYTES_MAX,
    ERROR_TEXT_CHARS_MAX,
    EVENT_ROWS_MAX,
    JOURNAL_POSITION_MAX,
    KEY_BYTES_MAX,
    LEASE_MESSAGES_MAX,
    OFFSET_MAX,
    PARTITIONS_MAX,
    PRODUCERS_ASKED_MAX,
    REDRIVE_RATE_MAX,
    REDRIVE_RATE_MIN,
    SETTING_COUNT_MAX,
    SETTING_TEXT_CHARS_MAX,
    SPAN_NS_MAX,
    TIME_NS_MAX,
)
from headrace.names import check_group_name, check_namespace_name, check_topic_name

__all__ = ["DEAD_REASONS", "TAKES", "Kind", "OneOf", "Whole", "YesOrNo", "check_arguments"]

_INT64_MAX: Final = (1 << 63) - 1
_NUMBER_MAX: Final = (1 << 64) - 1


class Kind(Protocol):
    """One kind of argument."""

    @property
    def expected(self) -> str:
        """What would be right, as the end of "it must be …"."""
        ...

    def read(self, value: Any) -> Any:
        """The value as the method takes it. Raises ValueError for one that is not ``expected``, and InvalidArgument
        where there is more to say about it."""
        ...


class Whole:
    """A whole number."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        bounds = f", at least {low}" if high >= _INT64_MAX else f" from {low} to {high}"
        self.expected = f"a whole number{bounds}"

    def read(self, value: Any) -> int:
        if type(value) is not int or not self.low <= value <= self.high:
            raise ValueError
        return value


class Rate:
    """Messages a second."""

    expected = f"messages a second, a number from {REDRIVE_RATE_MIN} to {REDRIVE_RATE_MAX}"

    def read(self, value: Any) -> float:
        number: int | float = value
        if type(number) not in (int, float) or not REDRIVE_RATE_MIN <= number <= REDRIVE_RATE_MAX:
            raise ValueError
        return number


class YesOrNo:
    """True or false, and nothing that Python would take for one of them."""

    expected = "true or false"

    def read(self, value: Any) -> bool:
        if value is not True and value is not False:
            raise ValueError
        return bool(value)


class Text:
    """Text that can be stored."""

    def __init__(self, characters_max: int, *, empty: bool = True) -> None:
        self._max = characters_max
        self._empty = empty
        least = "" if empty else "1 to "
        self.expected = f"text of {least or 'at most '}{characters_max} characters"

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or len(value) > self._max or not (value or self._empty):
            raise ValueError
        value.encode()  # a lone surrogate cannot be written anywhere, and is a ValueError
        return value


class Name:
    """The name of a topic, a group or a namespace."""

    def __init__(self, what: str, check: Callable[[object], str]) -> None:
        self.expected = f"the name of a {what}, as text"
        self._check = check

    def read(self, value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError
        return self._check(value)


class OneOf:
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self.expected = f"one of {', '.join(words)}"

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self._words:
            raise ValueError
        return value


class Bytes:
    """A key."""

    expected = f"bytes, at most {KEY_BYTES_MAX}"

    def read(self, value: Any) -> bytes:
        if not isinstance(value, bytes) or len(value) > KEY_BYTES_MAX:
            raise ValueError
        return value


class Prefix:
    """What a key begins with."""

    expected = f"bytes or text, at most {KEY_BYTES_MAX} bytes"

    def read(self, value: Any) -> bytes:
        found = value.encode() if isinstance(value, str) else value
        if not isinstance(found, bytes) or len(found) > KEY_BYTES_MAX:
            raise ValueError
        return found


class Many:
    """Several of a kind."""

    def __init__(self, kind: Kind, most: int, what: str) -> None:
        self._kind = kind
        self._most = most
        self.expected = f"a list of at most {most} {what}"

    def read(self, value: Any) -> list[Any]:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray | memoryview):
            raise ValueError
        if len(value) > self._most:
            raise InvalidArgument(f"{len(value)} of them; it must be {self.expected}")
        return [self._kind.read(one) for one in value]


class Numbers:
    """So many whole numbers that belong together."""

    def __init__(self, *kinds: Whole) -> None:
        self.expected = f"{len(kinds)} whole numbers"
        self._kinds = kinds

    def read(self, value: Any) -> list[int]:
        if not isinstance(value, list | tuple) or len(value) != len(self._kinds):
            raise ValueError
        return [kind.read(number) for kind, number in zip(self._kinds, value, strict=True)]


class Settings:
    """Settings as people write them; which there are is the business of ``headrace.config``."""

    expected = 'settings by name, such as {"lease": "30s"}'

    def read(self, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise ValueError
        return value


class Offsets:
    """Offsets by partition."""

    expected = 'offsets by partition, such as {"0": 42}'

    def read(self, value: Any) -> dict[int, int]:
        if not isinstance(value, Mapping):
            raise ValueError
        return by_partition("partition", value)


class Beginning:
    """Where a group begins."""

    expected = 'such as "earliest", "latest", {"offsets": {"0": 42}} or {"time_ns": …}'

    def read(self, value: Any) -> Any:
        start_of(value)
        return value


class Header:
    """Headers a message must carry: a name, or values by name (None: any)."""

    expected = "a name, or values by name: text, bytes or nothing"

    def read(self, value: Any) -> Mapping[str, str | bytes | None]:
        wanted = {value: None} if isinstance(value, str) else value
        if not isinstance(wanted, Mapping):
            raise ValueError
        for name, one in wanted.items():
            if not isinstance(name, str) or not (one is None or isinstance(one, str | bytes)):
                raise ValueError
        return wanted


class Where:
    """A filter: its own table of kinds. What is None is left out."""

    expected = "a filter: values by name"

    def __init__(self, **kinds: Kind) -> None:
        self.kinds = kinds

    def read(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError
        found: dict[str, Any] = {}
        for name, one in value.items():
            kind = self.kinds.get(name) if isinstance(name, str) else None
            if kind is None:
                raise InvalidArgument(f"there is no {shown(name)}; it can have {', '.join(self.kinds)}")
            if one is not None:
                found[name] = _read(name, kind, one)
        if "ids" in found:
            found["ids"] = frozenset(found["ids"])
        return found


class Maybe:
    """A kind, or nothing."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    @property
    def expected(self) -> str:
        return f"{self.kind.expected}, or nothing"

    def read(self, value: Any) -> Any:
        return None if value is None else self.kind.read(value)


def _read(name: str, kind: Kind, value: Any) -> Any:
    try:
        return kind.read(value)
    except InvalidArgument as refused:
        raise InvalidArgument(f"{name}: {refused.message}") from None
    except ValueError:
        raise InvalidArgument(f"{name} is {shown(value)}; it must be {kind.expected}") from None


def check_arguments(method: str, given: Mapping[str, Any], takes: Mapping[str, Kind]) -> dict[str, Any]:
    """The arguments as the method takes them; InvalidArgument names the first that is wrong.

    >>> check_arguments("group.pause", {"by": "ann"}, TAKES["group.pause"])
    {'by': 'ann'}
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        kind = takes.get(name)
        if kind is None:
            raise InvalidArgument(f"{method} has no argument {name!r}; it takes {', '.join(takes) or 'none'}")
        found[name] = _read(f"{method}: {name}", kind, value)
    return found


# -- the table ---------------------------------------------------------------------------------------------------------

_TOPIC: Final = Name("topic", check_topic_name)
_GROUP: Final = Name("group", check_group_name)
_NAMESPACE: Final = Name("namespace", check_namespace_name)
_SETTINGS: Final = Maybe(Settings())
_ID: Final = Whole(1, ID_MAX)
_IDS: Final = Many(_ID, BROWSE_MESSAGES_MAX, "message ids, whole numbers")
_OFFSET: Final = Whole(0, OFFSET_MAX)
_PARTITION: Final = Whole(0, PARTITIONS_MAX - 1)
_POSITION: Final = Whole(0, JOURNAL_POSITION_MAX)
_LOOKED_UP: Final = Whole(0, _INT64_MAX)
"""A time that something is looked for by; one far ahead means the end."""
_TIME: Final = Whole(0, TIME_NS_MAX)
_SPAN: Final = Whole(0, SPAN_NS_MAX)
_LIMIT: Final = Whole(1, BROWSE_MESSAGES_MAX)
_YES_OR_NO: Final = YesOrNo()
_RATE: Final = Maybe(Rate())
_TOLD: Final = Text(SETTING_TEXT_CHARS_MAX)
"""Kept as far as PAUSE_TEXT_CHARS_MAX."""
_READER: Final = Text(CONSUMER_NAME_BYTES_MAX, empty=False)
_BATCH: Final = Whole(0, 1 << 62)

_FAILED_REASONS: Final = ("nack", "lease_expired", "disconnect")
DEAD_REASONS: Final = ("rejected", "max_retries", "total_timeout", "followed")
"""Why a message is dead, as its events and its headers say it."""
_COMMON: Final[dict[str, Kind]] = {
    "error": Text(ERROR_TEXT_CHARS_MAX),
    "consumer": Text(CONSUMER_NAME_BYTES_MAX),
    "min_attempts": Whole(0, SETTING_COUNT_MAX),
    "key_prefix": Prefix(),
    "header": Header(),
    "ids": _IDS,
    "from_time_ns": _LOOKED_UP,
    "to_time_ns": _LOOKED_UP,
}
_RUN: Final = Numbers(_PARTITION, _OFFSET, _OFFSET)
_LETTERS: Final = Maybe(
    Where(
        reason=OneOf(*DEAD_REASONS),
        group=Text(SETTING_TEXT_CHARS_MAX),
        runs=Many(_RUN, CALL_IDS_MAX, "runs: [partition, first offset, count]"),
        **_COMMON,
    )
)
_OUTCOMES: Final = Maybe(
    Where(
        outcome=OneOf(*OUTCOMES),
        reason=OneOf(*_FAILED_REASONS, *DEAD_REASONS),
        **_COMMON,
    )
)

_IN_TOPIC: Final[dict[str, Kind]] = {"topic": _TOPIC, "namespace": _NAMESPACE}
_IN_GROUP: Final[dict[str, Kind]] = {"topic": _TOPIC, "group": _GROUP, "namespace": _NAMESPACE}
_ANYWHERE: Final[dict[str, Kind]] = {"namespace": Maybe(_NAMESPACE)}
_CHOSEN: Final[dict[str, Kind]] = {
    "ids": Maybe(Many(_ID, CALL_IDS_MAX, "message ids, whole numbers")),
    "key": Maybe(Bytes()),
    "tag": Maybe(Text(SETTING_TEXT_CHARS_MAX)),
}
_REDRIVING: Final[dict[str, Kind]] = {"to": Maybe(_TOPIC), "rate": _RATE, "dry_run": _YES_OR_NO}

TAKES: Final[dict[str, dict[str, Kind]]] = {
    "topic.create": {**_IN_TOPIC, "settings": _SETTINGS},
    "topic.ensure": {**_IN_TOPIC, "settings": _SETTINGS},
    "topic.list": _ANYWHERE,
    "topic.show": _IN_TOPIC,
    "topic.offsets": {
        **_IN_TOPIC,
        "time_ns": Maybe(_LOOKED_UP),
        "from_offsets": Maybe(Offsets()),
        "bytes_max": Maybe(Whole(0, _INT64_MAX)),
    },
    "topic.config": {**_IN_TOPIC, "settings": _SETTINGS},
    "topic.delete": _IN_TOPIC,
    "topic.purge": {**_IN_TOPIC, "group": Maybe(_GROUP)},
    "topic.producers": {
        **_IN_TOPIC,
        "producer_ids": Many(Whole(0, _NUMBER_MAX), PRODUCERS_ASKED_MAX, "producer ids, whole numbers"),
    },
    "namespace.list": {},
    "namespace.show": {"namespace": _NAMESPACE},
    "namespace.config": {"namespace": _NAMESPACE, "settings": _SETTINGS},
    "group.create": {**_IN_GROUP, "settings": _SETTINGS, "start": Beginning(), "durable": _YES_OR_NO},
    "group.list": _IN_TOPIC,
    "group.show": _IN_GROUP,
    "group.config": {**_IN_GROUP, "settings": _SETTINGS},
    "group.delete": _IN_GROUP,
    "group.seek": {**_IN_GROUP, "start": Beginning(), "stops": Maybe(Offsets()), "stop_time_ns": Maybe(_TIME)},
    "group.pause": {**_IN_GROUP, "by": _TOLD, "why": _TOLD, "until_ns": _TIME},
    "group.resume": {**_IN_GROUP, "by": _TOLD},
    "group.commit": {**_IN_GROUP, "offsets": Offsets()},
    "group.position": _IN_GROUP,
    "group.replay": {**_IN_GROUP, "where": _OUTCOMES, **_REDRIVING},
    "browse": {**_IN_GROUP, "state": OneOf("ready", "scheduled", "leased", "dead"), "limit": _LIMIT},
    "stats": {**_ANYWHERE, "topic": Maybe(_TOPIC)},
    "trace": {"id": _ID, **_ANYWHERE},
    "explain": {"id": _ID, **_ANYWHERE, "group": _GROUP},
    "read": {
        **_IN_TOPIC,
        "partition": Maybe(_PARTITION),
        "from_offset": Maybe(_OFFSET),
        "to_offset": Maybe(_OFFSET),
        "from_time_ns": Maybe(_LOOKED_UP),
        "to_time_ns": Maybe(_LOOKED_UP),
        "limit": Whole(1, _INT64_MAX),
        "include_deleted": _YES_OR_NO,
    },
    "log.segments": {**_IN_TOPIC, "include_deleted": _YES_OR_NO},
    "log.seal": {},
    "log.events": {**_IN_TOPIC, "from_position": _POSITION, "limit": Whole(1, EVENT_ROWS_MAX)},
    "schedule.list": {**_IN_TOPIC, "limit": _LIMIT, "group": Maybe(_GROUP)},
    "schedule.count": _IN_TOPIC,
    "schedule.show": {**_IN_TOPIC, "id": _ID},
    "schedule.cancel": {**_IN_TOPIC, **_CHOSEN},
    "schedule.move": {**_IN_TOPIC, **_CHOSEN, "deliver_at_ns": Maybe(_TIME), "delay_ns": Maybe(_SPAN)},
    "dlq.list": {**_IN_TOPIC, "where": _LETTERS, "limit": _LIMIT},
    "dlq.show": {**_IN_TOPIC, "id": _ID},
    "dlq.standing": _IN_TOPIC,
    "dlq.redrive": {**_IN_TOPIC, "where": _LETTERS, **_REDRIVING},
    "dlq.purge": {**_IN_TOPIC, "where": _LETTERS},
    "lease_batch.take": {
        **_IN_GROUP,
        "reader": _READER,
        "after": _BATCH,
        "most": Whole(1, LEASE_MESSAGES_MAX),
        "lease_ns": Maybe(_SPAN),
    },
    "lease_batch.show": {**_IN_GROUP, "reader": _READER, "batch": _BATCH},
    "lease_batch.messages": {
        **_IN_TOPIC,
        "partition": _PARTITION,
        "runs": Many(
            Numbers(_OFFSET, Whole(0, LEASE_MESSAGES_MAX)),
            LEASE_MESSAGES_MAX,
            f"runs: [first offset, count up to {LEASE_MESSAGES_MAX}]",
        ),
    },
    "lease_batch.settle": {**_IN_GROUP, "reader": _READER, "upto": _BATCH},
    "lease_batch.extend": {**_IN_GROUP, "reader": _READER, "by_ns": _SPAN},
}
"""Every call and what it takes."""
