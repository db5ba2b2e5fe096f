"""What happened to a message, and why it is where it is: the calls ``trace`` and ``explain``.

A trace is made of the message's facts (``headrace.shard.views``), told in the words of the documented semantics:

    PUBLISHED · SCHEDULED · DUE · DELIVERED · REDELIVERED · EXTENDED · ACKED · NACKED · LEASE_EXPIRED · DISCONNECTED
    RELEASED · REJECTED · DEAD_LETTERED · EXPIRED · CANCELLED · PURGED · REDRIVEN · SOUGHT · SEALED · RETAINED
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec

from headrace.batch import Batch
from headrace.broker.broker import Broker
from headrace.broker.deaths import death_of, durable
from headrace.broker.messages import message_info
from headrace.broker.portions import Aside, Work, portioned
from headrace.delivery import Group, Topic
from headrace.delivery.burying import REDRIVEN_FROM, origin_of
from headrace.delivery.explaining import Explanation, Reason, explain
from headrace.errors import InvalidArgument, UnknownGroup
from headrace.names import DEFAULT_NAMESPACE
from headrace.shard.core import Done
from headrace.shard.views import Row, live_rows, sealed_rows

__all__ = ["Tracing"]

_RETURNED: Final = {"nack": "NACKED", "lease_expired": "LEASE_EXPIRED", "disconnect": "DISCONNECTED"}
_PLAIN: Final = {
    "due": "DUE",
    "backoff_ended": "DUE",
    "moved": "SCHEDULED",
    "cancelled": "CANCELLED",
    "dropped": "PURGED",
    "extended": "EXTENDED",
    "acked": "ACKED",
    "released": "RELEASED",
    "expired": "EXPIRED",
    "redriven": "REDRIVEN",
    "sought": "SOUGHT",
    "sealed": "SEALED",
}
_ENDS: Final = {"ACKED": "acked", "DEAD_LETTERED": "dead", "EXPIRED": "expired", "PURGED": "purged"}


Place = Generator[int | Aside, Any, tuple[int, int]]


class Tracing:
    """``trace`` and ``explain`` over a broker. ``hungry``: how many consumers of a group ask for messages, if known."""

    def __init__(self, broker: Broker, hungry: Callable[[int], int | None] | None = None) -> None:
        self.broker = broker
        self.core = broker.core
        self.hungry = hungry

    def calls(self) -> Mapping[str, Callable[..., Done]]:
        return {"trace": self.trace, "explain": self.explain}

    @portioned
    def trace(self, id: int, namespace: str | None = None) -> Work:
        """Everything that happened to a message: where it is, its events in order, how it fared in each group.

        {"id", "namespace", "topic", "partition", "offset", "key", "headers", "priority", "size_bytes", "published_ns",
        "events": [{"event", "at_ns", …}], "groups": [{"group", "state", "attempts", "acked_ns", "publish_to_ack_ns"}],
        "summary": {"attempts", "publish_to_ack_ns"}, "links": {"dead_letter_of", "redriven_from"}}
        """
        self.core.tick()
        yield from durable(self.core)
        pid, offset = yield from self._place(id, namespace)
        batch = yield from self._batch(pid, offset)
        since_ns = 0 if batch is None else batch.append_time_ns
        rows: list[Row] = []
        sealed_to = -1
        while sealed_to != self.core.manifest.sealed_to:  # facts may be sealed while we read what was before
            sealed_to = self.core.manifest.sealed_to
            read = sealed_rows(self.core, pid, offset, since_ns) if pid in self.core.state.partitions else None
            rows = (yield read) if read is not None else []
        partition = self.core.state.partitions.get(pid)
        if batch is None or partition is None:  # its topic may have been deleted meanwhile
            raise _no_message(id)
        rows += live_rows(self.core, pid, offset)
        rows.sort(key=lambda row: row["position"])
        first = next((number for number, row in enumerate(rows) if row["event"] == "published"), 0)
        rows = rows[first:]  # a group that started over before it was there is not its story
        info = message_info(partition.topic, partition.index, batch, offset - batch.base_offset)
        info["size_bytes"] = len(info.pop("value"))
        producer = {"producer": f"{batch.producer_id:016x}"} if batch.producer_id else {}
        events = list(_story(rows, {**info, "producer": producer}))
        retained = self._retained(partition.topic, pid, offset, info["published_ns"], events)
        if retained is not None:
            events.append(retained)
        groups = [self._fared(group, pid, offset, info, events) for group in partition.topic.groups.values()]
        acked = [group["acked_ns"] for group in groups if group["acked_ns"] is not None]
        info["events"] = events
        info["groups"] = groups
        info["summary"] = {
            "attempts": sum(group["attempts"] for group in groups),
            "publish_to_ack_ns": max(acked) - info["published_ns"] if acked else None,
        }
        info["links"] = _links(info["headers"])
        return info

    @portioned
    def topic_of(self, id: int, namespace: str) -> Work:
        """The topic of a message, or None: not a call of its own, but what a door asks before it lets one through."""
        try:
            pid, _ = yield from self._place(id, namespace)
        except InvalidArgument:
            return None
        partition = self.core.state.partitions.get(pid)
        return partition.topic.name if partition is not None else None

    def _place(self, message_id: int, namespace: str | None) -> Place:
        """(pid, offset) of a message. Whoever is in the journal is found at once; files are looked into aside."""
        core = self.core
        partitions = core.state.partitions
        mine = [
            log
            for pid, log in core.logs.items()
            if pid in partitions and namespace in (None, partitions[pid].topic.namespace)
        ]
        for log in mine:
            offset = log.offset_of_id(message_id, sealed=False)
            if offset is not None:
                return log.pid, offset
        for log in mine:
            segment = core.cold.segment_of_id(log.pid, message_id)
            if segment is not None:
                offset = yield partial(core.cold.offset_of_id_in, segment, message_id)
                if isinstance(offset, int) and offset >= log.trimmed_to:
                    return log.pid, offset
        raise _no_message(message_id)

    def _batch(self, pid: int, offset: int) -> Generator[int | Aside, Any, Batch | None]:
        """The batch of a message."""
        log = self.core.logs.get(pid)
        if log is None:
            return None
        if log.trimmed_to <= offset < log.journal_start:
            found = yield partial(self.core.cold.batch_from, pid, offset)
            return found if isinstance(found, Batch) and found.base_offset <= offset else None
        return log.batch_at(offset)

    def _retained(
        self, topic: Topic, pid: int, offset: int, published_ns: int, events: list[dict[str, Any]]
    ) -> dict[str, Any] | None:
        """Once everybody is done with a message it is kept for a while."""
        settings = topic.settings
        if not settings.retain_acked or not settings.retention_ns:
            return None
        backlogs = [group.backlogs[pid] for group in topic.groups.values() if group.durable]
        if not backlogs or any(offset >= backlog.end or offset not in backlog.done for backlog in backlogs):
            return None
        settled = [event["at_ns"] for event in events if event["event"] in _ENDS]
        if not settled:
            return None
        return {"event": "RETAINED", "at_ns": max(settled), "until_ns": published_ns + settings.retention_ns}

    def _fared(
        self, group: Group, pid: int, offset: int, info: Mapping[str, Any], events: list[dict[str, Any]]
    ) -> dict[str, Any]:
        state = explain(group, pid, offset, self.core.clock.now_ns(), deliver_at_ns=info["deliver_at_ns"]).state
        mine = [event for event in events if event.get("group") == group.name]
        delivered = sum(event["event"] in ("DELIVERED", "REDELIVERED") for event in mine)
        released = sum(event["event"] == "RELEASED" for event in mine)
        acked_ns = next((event["at_ns"] for event in reversed(mine) if event["event"] == "ACKED"), None)
        return {
            "group": group.name,
            "state": state,
            "attempts": delivered - released,
            "acked_ns": acked_ns,
            "publish_to_ack_ns": None if acked_ns is None else acked_ns - info["published_ns"],
        }

    @portioned
    def explain(self, id: int, namespace: str | None = None, group: str = "default") -> Work:
        """Where a message is in a group, and what would have to change for it to be handed out.

        {"id", "namespace", "topic", "partition", "offset", "group", "state", "reasons": [{"code", "message", …}]}
        """
        pid, offset = yield from self._place(id, namespace)
        batch = yield from self._batch(pid, offset)
        partition = self.core.state.partitions.get(pid)
        if partition is None:
            raise _no_message(id)
        topic = partition.topic
        found = topic.groups.get(group)
        if found is None:
            known = ", ".join(map(repr, sorted(topic.groups)))
            raise UnknownGroup(f"group {group!r} does not exist on topic {topic.name!r}; it has {known}")
        self.core.tick()
        deliver_at_ns = batch.deliver_at(offset - batch.base_offset) if batch is not None else None
        hungry = self.hungry(found.gid) if self.hungry is not None else None
        told = explain(found, pid, offset, self.core.clock.now_ns(), deliver_at_ns=deliver_at_ns, hungry=hungry)
        reasons = self._reasons(told, pid)
        if told.state == "dead":
            yield from durable(self.core)
            died = yield from death_of(self.core, group, pid, offset)
            if died is not None:
                reasons = [_death(id, topic, died)]
        return {
            "id": id,
            "namespace": topic.namespace,
            "topic": topic.name,
            "partition": partition.index,
            "offset": offset,
            "group": group,
            "state": told.state,
            "reasons": reasons,
        }

    def _reasons(self, told: Explanation, pid: int) -> list[dict[str, Any]]:
        reasons: list[dict[str, Any]] = []
        for reason in told.reasons:
            plain = msgspec.to_builtins(reason)
            if reason.offset is not None:
                batch = self.core.log(pid).batch_at(reason.offset)
                plain["id"] = batch.message(reason.offset - batch.base_offset).id if batch is not None else None
            reasons.append({"code": reason.code, "message": _sentence(reason, plain.get("id")), **plain})
        return reasons


def _no_message(message_id: int) -> InvalidArgument:
    return InvalidArgument(f"no message has the id {message_id}")


# -- a trace -----------------------------------------------------------------------------------------------------------


def _story(rows: list[Row], info: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows of the events table as the events of a trace."""
    failed: dict[str | None, int] = {}
    cause: dict[str | None, str] = {}
    for row in rows:
        name, group, at_ns = row["event"], row["group"], row["at_ns"]
        told: dict[str, Any] = {"event": _PLAIN.get(name, ""), "at_ns": at_ns}
        if group is not None:
            told["group"] = group
        match name:
            case "published":
                yield {"event": "PUBLISHED", "at_ns": at_ns, **info["producer"]}
                if info["deliver_at_ns"] is not None and info["deliver_at_ns"] > at_ns:
                    yield {"event": "SCHEDULED", "at_ns": at_ns, "until_ns": info["deliver_at_ns"]}
                continue
            case "leased":
                told["attempt"] = row["attempt"] or failed.get(group, 0) + 1
                reason = cause.pop(group, None)
                told["event"] = "DELIVERED" if reason is None else "REDELIVERED"
                if reason is not None:
                    told["reason"] = reason
            case "retried":
                failed[group] = failed.get(group, 0) + 1
                cause[group] = row["reason"] or "nack"
                told["event"] = _RETURNED.get(row["reason"], "NACKED")
            case "released":
                told["reason"] = row["reason"] or "released"
                cause[group] = told["reason"]
            case "died":
                if row["reason"] == "rejected":
                    yield {**told, "event": "REJECTED", **_given(row, "consumer", "error")}
                told["event"] = "DEAD_LETTERED"
                told["reason"] = row["reason"]
                if row["attempt"]:
                    told["attempts"] = row["attempt"]
            case "sought":
                failed.pop(group, None)
                cause.pop(group, None)
        if not told["event"]:
            continue
        told |= _given(row, "consumer", "error", "until_ns")
        if row["to_topic"] is not None:
            told["to"] = {"topic": row["to_topic"], "partition": row["to_partition"], "offset": row["to_offset"]}
        yield told


def _given(row: Row, *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names if row[name] is not None}


def _links(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Where a message came from that was another one before."""
    origin = origin_of(headers)
    dead = None
    if origin:
        dead = {
            "id": _number(origin.get("id")),
            "topic": origin.get("topic", ""),
            "partition": _number(origin.get("partition")),
            "offset": _number(origin.get("offset")),
            "group": origin.get("group", ""),
        }
    told = headers.get(REDRIVEN_FROM)
    redriven = None
    if isinstance(told, str) and told.count("/") >= 2:
        topic, partition, offset = told.rsplit("/", 2)
        redriven = {"topic": topic, "partition": _number(partition), "offset": _number(offset)}
    return {"dead_letter_of": dead, "redriven_from": redriven}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


# -- an explanation ----------------------------------------------------------------------------------------------------


def _death(message_id: int, topic: Topic, died: Row) -> dict[str, Any]:
    """Why it is dead, and where it went."""
    attempts, error = died["attempt"] or 0, died["error"] or ""
    after = f" after {attempts} attempt{'s' * (attempts != 1)}" if attempts else ""
    told: dict[str, Any] = {
        "code": "dead",
        "reason": died["reason"],
        "attempts": attempts,
        "text": error,
        "since_ns": died["at_ns"],
    }
    sentence = f"it is dead in this group since {_time(died['at_ns'])}: {died['reason']}{after}"
    if died["to_topic"] is None:
        sentence += "; it became no dead letter"
    else:
        told["to"] = {"topic": died["to_topic"], "partition": died["to_partition"], "offset": died["to_offset"]}
        space = f" --namespace {topic.namespace}" if topic.namespace != DEFAULT_NAMESPACE else ""
        sentence += f"; see `headrace dlq show {topic.name} {message_id}{space}`"
    sentence += f"; the error was: {error}" if error else ""
    return {**told, "message": sentence}


def _sentence(reason: Reason, other_id: int | None) -> str:
    until = f" until {_time(reason.until_ns)}" if reason.until_ns else ""
    since = f" since {_time(reason.since_ns)}" if reason.since_ns else ""
    match reason.code:
        case "not_due":
            return f"it is not due{until}"
        case "retry":
            error = f": {reason.text}" if reason.text else ""
            return f"attempt {reason.attempts} failed and the next one waits{until}{error}"
        case "leased":
            return f"consumer {reason.consumer!r} has it{since}, attempt {reason.attempts}{until}"
        case "key_held" if reason.state == "dead":
            return "its key is held behind a dead message (on_dead is hold)"
        case "key_held":
            holder = (
                f" at consumer {reason.consumer!r}{since}" if reason.consumer else f", which is {reason.state}{until}"
            )
            return f"its key is held by message {other_id}{holder}"
        case "behind":
            return f"{reason.count} messages go before it in lane {reason.lane} or above"
        case "paused":
            why = f": {reason.text}" if reason.text else ""
            return f"the group is paused by {reason.consumer or 'somebody'}{since}{until}{why}"
        case "rate":
            return f"the group's rate limit is used up{until}"
        case "namespace_rate":
            return f"the namespace's rate limit is used up{until}"
        case "namespace_concurrency":
            return f"{reason.count} messages are leased in the namespace, the most its limits.concurrency allows"
        case "concurrency" | "in_flight":
            limit = "concurrency" if reason.code == "concurrency" else "max_in_flight"
            return f"{reason.count} messages are leased, the most the group's {limit} allows"
        case "key_rate":
            return f"the rate limit of its key is used up{until}"
        case "key_concurrency":
            return f"{reason.count} messages of its key are leased, the most the group's limits.key_concurrency allows"
        case "retry_before":
            return f"order is by partition, and message {other_id} before it waits for its retry{until}"
        case "handover":
            return f"its partition is being handed over; consumer {reason.consumer!r} still holds messages of it"
    return _SENTENCES.get(reason.code, reason.code)


_SENTENCES: Final = {
    "no_owner": "no consumer owns its partition",
    "no_consumer": "no consumer asks for messages",
    "next": "nothing stands in its way: it goes to the next consumer that asks",
    "acked": "it was acked",
    "dead": "it is dead in this group",
    "expired": "its lifetime is over",
    "filtered": "the group's filter keeps it out",
    "other_group": "it was published for another group only",
    "withdrawn": "it was cancelled, purged or redriven",
    "purged": "it was purged",
    "before_group": "it was there before the group began",
    "after_replay": "it lies after the end of the group's replay",
    "trimmed": "retention has let go of it",
}


def _time(at_ns: int) -> str:
    """Millisecond UTC."""
    return (
        datetime.fromtimestamp(at_ns // 1_000_000 / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
