"""Administrative calls as methods, for both kinds of client.

``_call`` is the one thing a client brings: it makes a call by name. In a sync client it returns the result, in an
asyncio client something to await, so each method here is written once. ``then`` is applied to the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from headrace.client.arguments import (
    Duration,
    Instant,
    by_name,
    instant_ns,
    key_bytes,
    message_id,
    shown,
    span_ns,
    whole,
)
from headrace.client.settings import call_arguments, written
from headrace.config import GroupConfig, TopicConfig
from headrace.errors import InvalidArgument
from headrace.limits import BROWSE_MESSAGES_MAX, OFFSET_MAX, PARTITIONS_MAX

__all__ = ["BrokerCalls", "DeadLetterCalls", "GroupCalls", "ScheduleCalls", "TopicCalls", "start_argument"]

Call = Callable[..., Any]
Start = str | Instant | Mapping[int, int] | int
Info = dict[str, Any]

_PARTITIONS: Final = frozenset(map(str, range(PARTITIONS_MAX)))
"""Partitions as answers name them: JSON has no other keys than text."""
_COMMON: Final = {
    "reason": "reason",
    "error": "error",
    "consumer": "consumer",
    "min_attempts": "min_attempts",
    "key_prefix": "key_prefix",
    "header": "header",
    "ids": "ids",
    "from_time": "from_time_ns",
    "to_time": "to_time_ns",
}
_LETTERS: Final = {**_COMMON, "group": "group"}
_OUTCOMES: Final = {**_COMMON, "outcome": "outcome"}


def start_argument(
    start: str | None, offset: int | None, offsets: Mapping[int, int] | None, time: Instant | None
) -> Any:
    """Where a group begins, as the calls say it; exactly one of the four is given."""
    given = [name for name, value in (("start", start), ("offset", offset), ("offsets", offsets)) if value is not None]
    given += ["time"] if time is not None else []
    if len(given) != 1:
        raise InvalidArgument(
            f"{' and '.join(given) or 'nothing'} given; say one of 'earliest', 'latest', offset=, offsets= or time="
        )
    if start is not None:
        if start not in ("earliest", "latest"):
            raise InvalidArgument(
                f"start is {shown(start)}; it must be 'earliest' or 'latest' (or give time=, offset=)"
            )
        return start
    if time is not None:
        return {"time_ns": instant_ns("time", time)}
    chosen = {0: offset} if offset is not None else offsets
    return {"offsets": _offsets("offsets" if offset is None else "offset", chosen)}


def _offsets(name: str, given: Any) -> dict[str, int]:
    """Offsets by partition, as the calls take them and as their answers have them."""
    found: dict[str, int] = {}
    for partition, at in by_name(name, given, "{0: 42}").items():
        index = int(partition) if isinstance(partition, str) and partition in _PARTITIONS else partition
        found[str(whole(f"a partition in {name}", index, 0, PARTITIONS_MAX - 1))] = whole(name, at, 0, OFFSET_MAX)
    return found


def _where(where: Mapping[str, Any] | None, known: Mapping[str, str] = _LETTERS) -> Info:
    """A filter over dead letters or outcomes, with its times as nanoseconds."""
    found: Info = {}
    for name, value in ({} if where is None else by_name("where", where, "{'reason': 'rejected'}")).items():
        key = known.get(name) if isinstance(name, str) else None
        if key is None:
            raise InvalidArgument(f"where has no {shown(name)}; it can have {', '.join(known)}")
        if value is None:
            continue
        if key.endswith("_ns"):
            value = instant_ns(name, value)
        elif key == "ids":
            if not isinstance(value, Sequence) or isinstance(value, str | bytes):
                raise InvalidArgument(f"where ids is {shown(value)}; it must be a list of message ids")
            value = [message_id("ids", one) for one in value]
        elif key == "header" and isinstance(value, str) and ":" in value:
            header, _, wanted = value.partition(":")
            value = {header: wanted}
        elif key == "key_prefix":
            value = key_bytes(value)
        found[key] = value
    return found


def _ids(ids: tuple[Any, ...]) -> list[int]:
    flat: list[Any] = []
    for one in ids:
        flat += one if isinstance(one, list) else [one]
    return [message_id("id", one) for one in flat]


class _Calls:
    """What every group of calls below stands on."""

    __slots__ = ("_call", "_namespace")

    def __init__(self, call: Call, namespace: str) -> None:
        self._call = call
        self._namespace = namespace

    @property
    def namespace(self) -> str:
        """The namespace it lives in."""
        return self._namespace


class GroupCalls(_Calls):
    """A consumer group of a topic, from outside: where it is, what it may do."""

    __slots__ = ("_topic", "name")

    def __init__(self, call: Call, namespace: str, topic: str, name: str) -> None:
        super().__init__(call, namespace)
        self._topic = topic
        self.name = name

    def _do(self, method: str, **arguments: Any) -> Any:
        return self._call(method, namespace=self._namespace, topic=self._topic, group=self.name, **arguments)

    def create(
        self,
        start: str | None = None,
        *,
        offset: int | None = None,
        offsets: Mapping[int, int] | None = None,
        time: Instant | None = None,
        durable: bool = True,
        **settings: Any,
    ) -> Any:
        """Make the group; it begins at ``"earliest"`` unless told otherwise. One that exists is an error."""
        at: Any = "earliest"
        if any(given is not None for given in (start, offset, offsets, time)):
            at = start_argument(start, offset, offsets, time)
        return self._do("group.create", start=at, durable=durable, settings=written(GroupConfig, settings))

    def info(self) -> Any:
        """Counts, settings, consumers, lag."""
        return self._do("group.show")

    def configure(self, **settings: Any) -> Any:
        """Change the group's own settings (``lease="1m"``, ``retry={"max_retries": 3}``); others stay."""
        return self._do("group.config", settings=written(GroupConfig, settings))

    def seek(
        self,
        start: str | None = None,
        *,
        offset: int | None = None,
        offsets: Mapping[int, int] | None = None,
        time: Instant | None = None,
        stop_offsets: Mapping[int, int] | None = None,
        stop_time: Instant | None = None,
    ) -> Any:
        """Start over at ``"earliest"``, ``"latest"``, an offset or a time; with a stop, end there."""
        stops = None if stop_offsets is None else _offsets("stop_offsets", stop_offsets)
        return self._do(
            "group.seek",
            start=start_argument(start, offset, offsets, time),
            stops=stops,
            stop_time_ns=None if stop_time is None else instant_ns("stop_time", stop_time),
        )

    def replay(
        self,
        where: Mapping[str, Any] | None = None,
        *,
        to: str | None = None,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> Any:
        """Hand out once more what had an outcome here, to this group alone or to another topic.

        ``where``: outcome (acked, failed, dead, expired, delivered), consumer, reason, error, min_attempts, from_time
        and to_time (of the outcome), key_prefix, header, ids. Answers with ``{"matched", "redriven", "left"}`` and
        more; with ``dry_run`` nothing is handed out.

        >>> import headrace
        >>> with headrace.open(":memory:") as hr:
        ...     orders = hr.topic("orders")
        ...     _ = orders.publish_many([b"a", b"b"])
        ...     with orders.consumer(group="billing", name="worker-7") as consumer:
        ...         consumer.ack(consumer.receive(2))
        ...     orders.group("billing").replay({"consumer": "worker-7"})["redriven"]
        2
        """
        return self._do("group.replay", **_redriving(_where(where, _OUTCOMES), to, rate, dry_run))

    def pause(self, why: str = "", *, by: str = "", until: Instant | None = None) -> Any:
        """Hand out nothing until `resume`, or until a time; kept over a restart, with who and why."""
        return self._do("group.pause", by=by, why=why, until_ns=0 if until is None else instant_ns("until", until))

    def resume(self, *, by: str = "") -> Any:
        """Hand out messages again."""
        return self._do("group.resume", by=by)

    def purge(self) -> Any:
        """Drop what waits for this group; how many were dropped."""
        return self._call("topic.purge", then=_dropped, namespace=self._namespace, topic=self._topic, group=self.name)

    def delete(self) -> Any:
        """Remove the group with everything it remembers."""
        return self._do("group.delete")

    def __repr__(self) -> str:
        return f"<group {self.name!r} of {self._topic!r}>"


def _redriving(where: Info, to: str | None, rate: float | None, dry_run: bool) -> Info:
    more = {"to": to, "rate": rate}
    return {"where": where, "dry_run": dry_run} | {name: value for name, value in more.items() if value is not None}


def _dropped(result: Info) -> int:
    dropped: int = result["dropped"]
    return dropped


class DeadLetterCalls(_Calls):
    """The dead letters of a topic. ``where``: reason, error, consumer, min_attempts, key_prefix, header, from_time,
    to_time, group, ids."""

    __slots__ = ("_topic",)

    def __init__(self, call: Call, namespace: str, topic: str) -> None:
        super().__init__(call, namespace)
        self._topic = topic

    def list(self, where: Mapping[str, Any] | None = None, limit: int = 100) -> Any:
        """Dead letters, oldest first, each with where it came from and why it died."""
        whole("limit", limit, 1, BROWSE_MESSAGES_MAX)
        return self._call("dlq.list", namespace=self._namespace, topic=self._topic, where=_where(where), limit=limit)

    def redrive(
        self,
        where: Mapping[str, Any] | None = None,
        *,
        to: str | None = None,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> Any:
        """Publish them again with fresh attempts, to their topic or another; ``{"matched", "redriven"}``."""
        arguments = _redriving(_where(where), to, rate, dry_run)
        return self._call("dlq.redrive", namespace=self._namespace, topic=self._topic, **arguments)

    def purge(self) -> Any:
        """Drop all of them."""
        return self._call("dlq.purge", namespace=self._namespace, topic=self._topic)


class ScheduleCalls(_Calls):
    """The messages of a topic that are not due yet."""

    __slots__ = ("_topic",)

    def __init__(self, call: Call, namespace: str, topic: str) -> None:
        super().__init__(call, namespace)
        self._topic = topic

    def _do(self, method: str, **arguments: Any) -> Any:
        return self._call(method, namespace=self._namespace, topic=self._topic, **arguments)

    def list(self, limit: int = 100, *, group: str | None = None) -> Any:
        """What is scheduled, the next first; with a group, also its retries that wait for their backoff."""
        whole("limit", limit, 1, BROWSE_MESSAGES_MAX)
        return self._do("schedule.list", limit=limit, **({} if group is None else {"group": group}))

    def count(self) -> Any:
        """``{"scheduled", "next_due_ns"}``: how many, and when the next is due."""
        return self._do("schedule.count")

    def show(self, id: Any) -> Any:
        """One scheduled message."""
        return self._do("schedule.show", id=message_id("id", id))

    def cancel(self, *ids: Any, key: str | bytes | None = None, tag: str | None = None) -> Any:
        """Take messages out of the schedule, by id, or all of a key or tag; they are never delivered."""
        return self._do("schedule.cancel", **_chosen(ids, key, tag))

    def move(
        self,
        *ids: Any,
        key: str | bytes | None = None,
        tag: str | None = None,
        deliver_at: Instant | None = None,
        delay: Duration | None = None,
    ) -> Any:
        """Give scheduled messages another time: ``deliver_at``, or ``delay`` from now."""
        if (deliver_at is None) == (delay is None):
            raise InvalidArgument("a move needs one of deliver_at= and delay=")
        arguments = _chosen(ids, key, tag)
        if deliver_at is not None:
            arguments["deliver_at_ns"] = instant_ns("deliver_at", deliver_at)
        if delay is not None:
            arguments["delay_ns"] = span_ns("delay", delay)
        return self._do("schedule.move", **arguments)


def _chosen(ids: tuple[Any, ...], key: str | bytes | None, tag: str | None) -> Info:
    chosen: Info = {}
    if ids:
        chosen["ids"] = _ids(ids)
    if key is not None:
        chosen["key"] = key_bytes(key)
    if tag is not None:
        chosen["tag"] = tag
    if len(chosen) != 1:
        raise InvalidArgument("say which messages: their ids, key=…, or tag=… (one of them)")
    return chosen


class TopicCalls(_Calls):
    """A topic, from outside."""

    __slots__ = ("name",)

    def __init__(self, call: Call, namespace: str, name: str) -> None:
        super().__init__(call, namespace)
        self.name = name

    def _do(self, method: str, **arguments: Any) -> Any:
        return self._call(method, namespace=self._namespace, topic=self.name, **arguments)

    def info(self) -> Any:
        """Settings, groups and counts of the topic."""
        return self._do("topic.show")

    def configure(self, **settings: Any) -> Any:
        """Change settings (``message_ttl="1d"``, ``retry={"max_retries": 3}``); those not named stay."""
        return self._do("topic.config", settings=written(TopicConfig, settings))

    def purge(self) -> Any:
        """Drop every message that waits, for all groups and for good; how many were dropped."""
        return self._call("topic.purge", then=_dropped, namespace=self._namespace, topic=self.name)

    def delete(self) -> Any:
        """Remove the topic with its messages and groups."""
        return self._do("topic.delete")

    def stats(self) -> Any:
        """Counts of the topic and of each of its groups."""
        return self._call("stats", then=_only_topic, namespace=self._namespace, topic=self.name)

    def depth(self) -> Any:
        """Messages that not every group has settled."""
        return self._call("topic.show", then=_depth, namespace=self._namespace, topic=self.name)

    def groups(self) -> Any:
        """What `Group.info` says, of every group."""
        return self._do("group.list")

    def browse(self, state: str = "ready", limit: int = 100, *, group: str = "default") -> Any:
        """Look at messages of a group without taking them: ready, scheduled, leased or dead."""
        whole("limit", limit, 1, BROWSE_MESSAGES_MAX)
        return self._do("browse", group=group, state=state, limit=limit)

    def __repr__(self) -> str:
        return f"<topic {self.name!r} in {self._namespace!r}>"


def _only_topic(result: Info) -> Info:
    only: Info = result["topics"][0]
    return only


def _depth(result: Info) -> int:
    depth: int = result["depth"]
    return depth


class BrokerCalls(_Calls):
    """Everything that is about no single topic."""

    __slots__ = ()

    def call(self, method: str, **arguments: Any) -> Any:
        """Any administrative call by its name, as the reference lists them; ``namespace`` is the client's own."""
        return self._call(method, **{"namespace": self._namespace, **call_arguments(method, arguments)})

    def create_topic(self, name: str, **settings: Any) -> Any:
        """Make a topic; one that exists is an error."""
        given = written(TopicConfig, settings)
        return self._call("topic.create", namespace=self._namespace, topic=name, settings=given)

    def topics(self) -> Any:
        """What `Topic.info` says, of every topic of the namespace."""
        return self._call("topic.list", namespace=self._namespace)

    def namespaces(self) -> Any:
        """The names of all namespaces."""
        return self._call("namespace.list")

    def stats(self) -> Any:
        """Counts of every topic and group of the namespace, and of the journal."""
        return self._call("stats", namespace=self._namespace)

    def trace(self, id: Any) -> Any:
        """What happened to a message, event by event."""
        return self._call("trace", namespace=self._namespace, id=message_id("id", id))

    def explain(self, id: Any, *, group: str = "default") -> Any:
        """Why a message is, or is not, delivered to a group now."""
        return self._call("explain", namespace=self._namespace, id=message_id("id", id), group=group)


def many(values: Iterable[Any] | Any) -> list[Any]:
    """One or several, as a list."""
    return list(values) if isinstance(values, list | tuple) else [values]
