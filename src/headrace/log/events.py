"""Facts as rows of the events table: one row a fact, with the offsets it is about.

    event            fact                     until_ns         reason / error / to_*
    published        Published                                 first_id: the id of its first message
    due              Due
    cancelled moved  Cancelled, Moved         the new due time
    leased           Leased                   the deadline
    acked            Acked
    retried          Retried                  the next try     why; the consumer's error text
    released         Released                                  why
    extended         Extended                 the deadline
    backoff_ended    BackoffEnded
    died             Died                                      why; error; where the dead letter went
    expired dropped  Expired, Dropped
    sought           Sought                                    first_offset: where the group begins again
    redriven         Redriven, a message                       to_*: what it became
    lapsed           Lapsed
    trimmed          Trimmed                                   last_offset: the last message that was let go of
    sealed           (the sealing itself)
    topic_created … group_resumed, consumer_joined …           without offsets; reason: who and why

Who holds a lease is said when it is granted, and how often a message failed is counted as it fails; ``Carry`` takes
both over from one journal file to the next, so that each row names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from headrace import delivery as d
from headrace.batch import Batch
from headrace.delivery.burying import REDRIVEN_FROM
from headrace.limits import CARRIED_ATTEMPTS_MAX
from headrace.log.manifest import Carry

__all__ = ["COLUMNS", "EventRows", "Names", "Place", "TopicEvents"]

_MS_NS: Final = 1_000_000
COLUMNS: Final = (
    "event", "partition", "group", "consumer", "lease_id", "first_offset", "last_offset", "count", "offsets",
    "attempt", "reason", "error", "until_ns", "first_id", "to_topic", "to_partition", "to_offset", "position", "at_ns",
)  # fmt: skip


class Place(NamedTuple):
    """A partition, by the names its files carry."""

    tid: int
    namespace: str
    topic: str
    partition: int


class Names(NamedTuple):
    """Who is who, as of now: partitions and groups that are gone have no rows."""

    places: Mapping[int, Place]  # by pid
    topics: Mapping[int, tuple[str, str]]  # tid -> namespace, topic
    groups: Mapping[int, tuple[int, str]]  # gid -> tid, name


class TopicEvents:
    """The rows of one topic, by column."""

    __slots__ = ("columns", "first_ns", "last_ns")

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self.first_ns = 0
        self.last_ns = 0

    @property
    def rows(self) -> int:
        return len(self.columns["event"])

    def clear(self) -> None:
        """Begin anew."""
        self.columns = {name: [] for name in COLUMNS}
        self.first_ns = self.last_ns = 0


class EventRows:
    """Turns facts into rows, topic by topic; ``skipped`` topics keep no history."""

    def __init__(self, names: Names, carry: Carry, skipped: frozenset[int] = frozenset()) -> None:
        self.topics: dict[int, TopicEvents] = {}
        self._names = names
        self._groups = dict(names.groups)
        self._skipped = skipped
        self._leases: dict[int, list[Any]] = {lease_id: list(known) for lease_id, known in carry.leases.items()}
        self._attempts: dict[tuple[int, int], dict[int, int]] = {}
        for gid, pid, offset, failed in carry.attempts:
            self._attempts.setdefault((gid, pid), {})[offset] = failed

    def carry(self) -> Carry:
        """What the next file needs to know."""
        leases = {lease_id: (known[0], known[1], known[2], known[3]) for lease_id, known in self._leases.items()}
        attempts = [
            (gid, pid, offset, failed)
            for (gid, pid), tries in self._attempts.items()
            for offset, failed in tries.items()
        ]
        return Carry(leases, attempts if len(attempts) <= CARRIED_ATTEMPTS_MAX else [])

    # -- rows ------------------------------------------------------------------------------------------------------

    def add(self, facts: Sequence[d.Fact], batches: Sequence[Batch], position: int) -> None:
        """The facts of one frame."""
        number = 0
        for fact in facts:
            kind = type(fact)
            if kind is d.Redriven:
                self._redriven(fact, position, _redriven_to(facts, batches))  # type: ignore[arg-type]
                continue
            if kind is d.Published:
                batch = batches[number]
                number += 1
                last = batch.base_offset + batch.count - 1
                self._put(
                    "published", fact.pid, None, batch.base_offset, last, batch.count, None, batch.append_time_ns,  # type: ignore[union-attr]
                    position, first_id=batch.base_id,
                )  # fmt: skip
                continue
            write = _WRITERS.get(kind)
            if write is not None:
                write(self, fact, position)

    def _put(
        self,
        event: str,
        pid: int,
        gid: int | None,
        first: int | None,
        last: int | None,
        count: int,
        offsets: list[int] | None,
        at_ns: int,
        position: int,
        *,
        tid: int | None = None,
        consumer: str | None = None,
        lease_id: int | None = None,
        attempt: int | None = None,
        reason: str | None = None,
        error: str | None = None,
        until_ns: int | None = None,
        first_id: int | None = None,
        to: tuple[str, int, int] | None = None,
    ) -> None:
        place = self._names.places.get(pid)
        if tid is None:
            if place is None:
                return
            tid = place.tid
        if tid in self._skipped or tid not in self._names.topics:
            return
        rows = self.topics.get(tid)
        if rows is None:
            rows = self.topics[tid] = TopicEvents()
        columns = rows.columns
        columns["event"].append(event)
        columns["partition"].append(None if place is None else place.partition)
        columns["group"].append(None if gid is None or gid not in self._groups else self._groups[gid][1])
        columns["consumer"].append(consumer)
        columns["lease_id"].append(lease_id or None)
        columns["first_offset"].append(first)
        columns["last_offset"].append(last)
        columns["count"].append(count)
        columns["offsets"].append(offsets)
        columns["attempt"].append(attempt)
        columns["reason"].append(reason or None)
        columns["error"].append(error or None)
        columns["until_ns"].append(until_ns or None)
        columns["first_id"].append(first_id)
        topic, partition, offset = to or (None, None, None)
        columns["to_topic"].append(topic)
        columns["to_partition"].append(partition)
        columns["to_offset"].append(offset)
        columns["position"].append(position)
        columns["at_ns"].append(at_ns)
        rows.first_ns = min(rows.first_ns or at_ns, at_ns)
        rows.last_ns = max(rows.last_ns, at_ns)

    def _span(self, event: str, fact: Any, position: int, **more: Any) -> None:
        """A row for a fact with a span; holes make a list."""
        offsets = list(fact.span()) if fact.bits else None
        last = offsets[-1] if offsets else fact.first + fact.count - 1
        self._put(
            event,
            fact.pid,
            getattr(fact, "gid", None),
            fact.first,
            last,
            fact.count,
            offsets,
            fact.at_ns,
            position,
            **more,
        )

    # -- leases and attempts ---------------------------------------------------------------------------------------

    def _leave(self, fact: Any, count: int) -> str | None:
        """Who held the lease; it is forgotten when nothing is left of it."""
        known = self._leases.get(fact.lease_id)
        if known is None:
            return None
        known[1] -= count
        if known[1] <= 0:
            del self._leases[fact.lease_id]
        name: str = known[0]
        return name

    def _over(self, gid: int, pid: int = -1) -> None:
        """A group (or what it has of a partition) is gone or begins anew: nothing is leased or has failed there."""
        for lease_id in [each for each, known in self._leases.items() if known[2] == gid and pid in (-1, known[3])]:
            del self._leases[lease_id]
        for place in [each for each in self._attempts if each[0] == gid and pid in (-1, each[1])]:
            del self._attempts[place]

    def _attempt(self, fact: Any) -> int | None:
        """The number of the attempt, where all of the span are at the same."""
        tries = self._attempts.get((fact.gid, fact.pid))
        if not tries:
            return 1
        numbers = {tries.get(offset, 0) + 1 for offset in fact.span()} if fact.count <= len(tries) * 4 + 64 else {0, 1}
        return numbers.pop() if len(numbers) == 1 else None

    def _forget(self, fact: Any) -> None:
        tries = self._attempts.get((fact.gid, fact.pid))
        if tries:
            if fact.count > len(tries):
                span = fact.span()
                for offset in [
                    o for o in tries if span.first <= o <= span.last and (span.bits is None or o in span.bits)
                ]:
                    del tries[offset]
            else:
                for offset in fact.span():
                    tries.pop(offset, None)

    # -- one writer a fact -----------------------------------------------------------------------------------------

    def _leased(self, fact: d.Leased, position: int) -> None:
        self._leases[fact.lease_id] = [fact.consumer, fact.count, fact.gid, fact.pid]
        self._span(
            "leased", fact, position, consumer=fact.consumer, lease_id=fact.lease_id, attempt=self._attempt(fact),
            until_ns=fact.deadline_ns,
        )  # fmt: skip

    def _acked(self, fact: d.Acked, position: int) -> None:
        attempt = self._attempt(fact)
        self._forget(fact)
        consumer = self._leave(fact, fact.count)
        self._span("acked", fact, position, consumer=consumer, lease_id=fact.lease_id, attempt=attempt)

    def _retried(self, fact: d.Retried, position: int) -> None:
        attempt = self._attempt(fact)
        tries = self._attempts.setdefault((fact.gid, fact.pid), {})
        for offset in fact.span():
            tries[offset] = tries.get(offset, 0) + 1
        self._span(
            "retried", fact, position, consumer=self._leave(fact, fact.count), lease_id=fact.lease_id, attempt=attempt,
            reason=fact.reason, error=fact.error, until_ns=fact.due_ms * _MS_NS,
        )  # fmt: skip

    def _released(self, fact: d.Released, position: int) -> None:
        consumer = self._leave(fact, fact.count)
        self._span("released", fact, position, consumer=consumer, lease_id=fact.lease_id, reason=fact.reason)

    def _extended(self, fact: d.Extended, position: int) -> None:
        known = self._leases.get(fact.lease_id)
        self._span(
            "extended", fact, position, consumer=known[0] if known else None, lease_id=fact.lease_id,
            until_ns=fact.deadline_ns,
        )  # fmt: skip

    def _died(self, fact: d.Died, position: int) -> None:
        place = self._names.places.get(fact.to_pid)
        to = (place.topic, place.partition, fact.to_offset) if place is not None else None
        consumer = self._leave(fact, 1)
        tries = self._attempts.get((fact.gid, fact.pid))
        if tries:
            tries.pop(fact.offset, None)
        self._put(
            "died", fact.pid, fact.gid, fact.offset, fact.offset, 1, None, fact.at_ns, position, consumer=consumer,
            lease_id=fact.lease_id, attempt=fact.attempts, reason=fact.reason, error=fact.error, to=to,
        )  # fmt: skip

    def _expired(self, fact: d.Expired, position: int) -> None:
        consumer = self._leave(fact, fact.count) if fact.lease_id else None
        self._forget(fact)
        self._span("expired", fact, position, consumer=consumer, lease_id=fact.lease_id)

    def _dropped(self, fact: d.Dropped, position: int) -> None:
        if fact.gid >= 0:
            self._forget(fact)
        self._span("dropped", fact, position)

    def _cancelled(self, fact: d.Cancelled, position: int) -> None:
        self._span("cancelled", fact, position)

    def _redriven(self, fact: d.Redriven, position: int, to: Mapping[str, tuple[int, int]]) -> None:
        """One row a message where it is known what became of it."""
        place = self._names.places.get(fact.pid)
        if place is None or not to:
            self._span("redriven", fact, position)
            return
        for offset in fact.span():
            pid, target = to.get(f"{place.topic}/{place.partition}/{offset}", (-1, -1))
            there = self._names.places.get(pid)
            self._put(
                "redriven", fact.pid, None, offset, offset, 1, None, fact.at_ns, position,
                to=(there.topic, there.partition, target) if there is not None else None,
            )  # fmt: skip

    def _lapsed(self, fact: d.Lapsed, position: int) -> None:
        self._span("lapsed", fact, position)

    def _moved(self, fact: d.Moved, position: int) -> None:
        self._span("moved", fact, position, until_ns=fact.due_ms * _MS_NS)

    def _listed(self, event: str, gid: int | None, fact: d.Due | d.BackoffEnded, position: int) -> None:
        offsets = sorted(fact.offsets)
        first, last, count = offsets[0], offsets[-1], len(offsets)
        told = None if last - first == count - 1 else offsets
        self._put(event, fact.pid, gid, first, last, count, told, fact.at_ms * _MS_NS, position)

    def _due(self, fact: d.Due, position: int) -> None:
        self._listed("due", None, fact, position)

    def _backoff_ended(self, fact: d.BackoffEnded, position: int) -> None:
        self._listed("backoff_ended", fact.gid, fact, position)

    def _sought(self, fact: d.Sought, position: int) -> None:
        self._over(fact.gid, fact.pid)
        last = fact.stop - 1 if fact.stop >= 0 else None
        self._put("sought", fact.pid, fact.gid, fact.start, last, 0, None, fact.at_ns, position)

    def _trimmed(self, fact: d.Trimmed, position: int) -> None:
        self._put("trimmed", fact.pid, None, None, fact.start - 1, 0, None, fact.at_ns, position)

    def _key_freed(self, fact: d.KeyFreed, position: int) -> None:
        self._put("key_freed", fact.pid, fact.gid, None, None, 0, None, fact.at_ns, position)

    def _of_topic(self, event: str, tid: int, at_ns: int, position: int, **more: Any) -> None:
        self._put(event, -1, None, None, None, 0, None, at_ns, position, tid=tid, **more)

    def _of_group(self, event: str, fact: Any, position: int, **more: Any) -> None:
        known = self._groups.get(fact.gid)
        if known is not None:
            self._put(event, -1, fact.gid, None, None, 0, None, fact.at_ns, position, tid=known[0], **more)

    def _group_created(self, fact: d.GroupCreated, position: int) -> None:
        self._groups.setdefault(fact.gid, (fact.tid, fact.name))
        self._of_group("group_created", fact, position)

    def _group_deleted(self, fact: d.GroupDeleted, position: int) -> None:
        self._of_group("group_deleted", fact, position)
        self._over(fact.gid)

    def sealed(self, pid: int, first: int, last: int, at_ns: int, position: int) -> None:
        """Messages became a file."""
        self._put("sealed", pid, None, first, last, last - first + 1, None, at_ns, position)


def _redriven_to(facts: Sequence[d.Fact], batches: Sequence[Batch]) -> dict[str, tuple[int, int]]:
    """What redriven messages became, by where they came from (as they say themselves, in a header)."""
    found: dict[str, tuple[int, int]] = {}
    published = (fact for fact in facts if type(fact) is d.Published)
    for fact, batch in zip(published, batches, strict=True):
        for index in range(batch.count):
            origin = batch.headers(index).get(REDRIVEN_FROM)
            if isinstance(origin, str):
                found[origin] = fact.pid, batch.base_offset + index
    return found


_WRITERS: Final[dict[type[Any], Any]] = {
    d.Leased: EventRows._leased,
    d.Acked: EventRows._acked,
    d.Retried: EventRows._retried,
    d.Released: EventRows._released,
    d.Extended: EventRows._extended,
    d.Died: EventRows._died,
    d.Expired: EventRows._expired,
    d.Dropped: EventRows._dropped,
    d.Cancelled: EventRows._cancelled,
    d.Lapsed: EventRows._lapsed,
    d.Moved: EventRows._moved,
    d.Due: EventRows._due,
    d.BackoffEnded: EventRows._backoff_ended,
    d.Sought: EventRows._sought,
    d.Trimmed: EventRows._trimmed,
    d.KeyFreed: EventRows._key_freed,
    d.GroupCreated: EventRows._group_created,
    d.TopicCreated: lambda rows, fact, position: rows._of_topic("topic_created", fact.tid, fact.at_ns, position),
    d.TopicChanged: lambda rows, fact, position: rows._of_topic("topic_changed", fact.tid, fact.at_ns, position),
    d.GroupChanged: lambda rows, fact, position: rows._of_group("group_changed", fact, position),
    d.GroupDeleted: EventRows._group_deleted,
    d.Paused: lambda rows, fact, position: rows._of_group(
        "group_paused", fact, position, consumer=fact.by, reason=fact.why, until_ns=fact.until_ns
    ),
    d.Resumed: lambda rows, fact, position: rows._of_group("group_resumed", fact, position, consumer=fact.by),
    d.Joined: lambda rows, fact, position: rows._of_group("consumer_joined", fact, position, consumer=fact.consumer),
    d.Left: lambda rows, fact, position: rows._of_group("consumer_left", fact, position, consumer=fact.consumer),
}
