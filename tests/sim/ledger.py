"""What a shard promised, kept beside it from what it was asked and what it answered; it never looks at the shard.

The ledger is a fold over ``Event``: a command, the time, the answer, and what could be read in the logs afterwards. For
each group it knows of every message where it must be (``Entry.state``), written down message by message in the words
of the documented semantics: no bitmaps, no lanes, no chains, no calendars. Each answer is compared with what it allows:

    a lease     only what is due, unsettled, not leased, wanted by the group, in order, best priority first, with the
                right attempt number, and nothing held back that could have been given
    a settle    exactly the receipts that are good count, all others are refused and change nothing
    a death     after exactly the allowed attempts, with the right reason, and one copy in the same breath
    a publish   stored once, in order, ids rising; a repetition answers what the first one did

Crashes. Until its position is durable an answer is a *maybe*. After a crash the journal's end says which of the maybes
happened: the ledger is folded anew from the events that lie wholly before it. What a client had been told and is not
among them was lost, which is a violation at once (leases excepted: they may leave before they are synced).

Where order is by partition and several consumers share a group, membership moves partitions by rules the ledger does
not repeat (silence, hand-over). There (``Group.exact`` is False) a leased message whose lease may have been taken back
is in ``LIMBO``: it may be given out again, it may not be forgotten.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace import delivery as d
from headrace.config import GroupConfig, TopicConfig
from headrace.errors import HeadraceError

MS = 1_000_000
LEASE_GRAIN_NS = 8 * MS
"""A lease may be over up to this much after its deadline, never before; the simulation keeps out of that stretch."""
HANDOVER_NS = 1_000_000_000
SILENCE_NS = 30_000_000_000
PRODUCER_BATCHES = 32

SCHED, READY, LEASED, WAIT, LIMBO = "scheduled", "ready", "leased", "waiting", "limbo"
FINAL = frozenset({"acked", "dead", "expired", "cancelled", "dropped", "filtered"})
NO_REPLY_STORED = frozenset({"queue_full", "limit_exceeded", "duplicate_conflict", "storage_full", "invalid_argument"})


class Violation(AssertionError):
    """The shard broke a promise."""


@dataclass(slots=True)
class Wanted:
    """A message as its producer sent it."""

    value: bytes
    key: bytes | None = None
    headers: dict[str, str] | None = None
    priority: int = 5
    delay_ns: int | None = None
    deliver_at_ns: int | None = None
    ttl_ns: int | None = None
    expires_at_ns: int | None = None
    dedup_id: bytes | None = None


class Stored(NamedTuple):
    """A message as it can be read in a log."""

    pid: int
    offset: int
    id: int
    value: bytes
    key: bytes | None
    headers: dict[str, Any]
    priority: int
    append_ns: int
    deliver_ns: int
    expires_ns: int


@dataclass(slots=True)
class Made:
    """A topic that came into being: by command, or for dead letters."""

    tid: int
    name: str
    settings: TopicConfig
    pids: list[int]
    gid: int


@dataclass(slots=True)
class Given:
    """One grant of a lease, as the world saw it; ``uid`` is the receipt's identity, whatever its number."""

    uid: int
    pid: int
    lease_id: int
    deadline_ns: int
    messages: list[tuple[int, int, bytes]]  # offset, attempt, value


@dataclass(slots=True)
class Part:
    """Receipts of one grant in a settle."""

    verb: str  # ack nack reject release extend
    uid: int
    pid: int
    lease_id: int
    offsets: list[int]
    span_ns: int | None = None
    error: str = ""


@dataclass(slots=True)
class Sent:
    """A batch as its producer sent it."""

    pid: int
    messages: list[Wanted]
    producer: int = 0
    sequence: int = 0


@dataclass(slots=True)
class Event:
    """One command (None: a tick), its answer, and what it left behind."""

    now_ns: int
    start: int
    end: int
    command: Any
    reply: Any
    appended: list[Stored]
    made: list[Made]
    given: list[Given] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    cancels: list[tuple[int, list[int]]] = field(default_factory=list)
    position: int = 0  # what the answer stands on
    frames: list[int] = field(default_factory=list)  # where its records begin
    told: bool = False
    whole: bool = False  # one record: nothing else was due
    full: bool = False  # the disk had little room, or none


class Message:
    """A message in a log, and what holds for all groups."""

    __slots__ = ("dedup", "due_ms", "ends", "gone", "only_gid", "scheduled", "stored")

    def __init__(self, stored: Stored, topic: TopicConfig, only_gid: int = -1) -> None:
        self.stored = stored
        self.only_gid = only_gid
        self.gone = ""
        later = stored.deliver_ns > stored.append_ns
        self.due_ms = -(-stored.deliver_ns // MS) if later else 0
        self.scheduled = later
        self.ends: int | None = None
        if stored.expires_ns:
            self.ends = stored.expires_ns // MS * MS
        elif topic.message_ttl_ns:
            end = (stored.deliver_ns if later else stored.append_ns // MS * MS) + topic.message_ttl_ns
            self.ends = end // MS * MS if later else end

    def over(self, now_ns: int) -> bool:
        return self.ends is not None and now_ns >= self.ends


class Entry:
    """One message in one group."""

    __slots__ = (
        "error",
        "fails",
        "fails_most",
        "first_ns",
        "lease",
        "maybe_gone",
        "message",
        "rank",
        "retry_ms",
        "started",
        "state",
    )

    def __init__(self, message: Message, state: str, rank: tuple[int, int, int]) -> None:
        self.message = message
        self.state = state
        self.rank = rank
        self.fails = 0
        self.fails_most = 0
        self.first_ns = 0
        self.lease = 0
        self.retry_ms = 0
        self.started = False
        self.maybe_gone = False
        self.error = ""


@dataclass(slots=True, eq=False)
class Lease:
    uid: int
    gid: int
    pid: int
    consumer: str
    offsets: set[int]
    at_ns: int
    deadline_ns: int
    later: dict[int, int] = field(default_factory=dict)
    moved_ns: int = 0  # when its partition may first have moved; some time later it may be taken back
    unsure: bool = False  # that time is over

    def deadline_of(self, offset: int) -> int:
        return self.later.get(offset, self.deadline_ns)

    def first_deadline(self) -> int:
        return min(self.deadline_of(offset) for offset in self.offsets)


@dataclass(slots=True, eq=False)
class Death:
    gid: int
    pid: int
    offset: int
    reason: str
    attempts: int
    error: str
    consumer: str


@dataclass(slots=True, eq=False)
class Partition:
    pid: int
    tid: int
    index: int
    log: list[Message] = field(default_factory=list)
    start: int = 0
    last_id: int = 0
    last_ms: int = 0
    scheduled: set[int] = field(default_factory=set)
    producers: dict[int, deque[tuple[int, list[int]]]] = field(default_factory=dict)
    places: list[tuple[int, int]] = field(default_factory=list)  # (first offset, journal position) of each event

    @property
    def end(self) -> int:
        return len(self.log)


@dataclass(slots=True, eq=False)
class Topic:
    tid: int
    name: str
    settings: TopicConfig
    pids: list[int]
    gids: list[int]
    dedup: dict[bytes, tuple[int, int]] = field(default_factory=dict)

    @property
    def is_dead_letters(self) -> bool:
        return self.name.startswith("dlq/")


class Group:
    def __init__(self, gid: int, topic: Topic, name: str, own: GroupConfig, *, durable: bool) -> None:
        rules = own.over(topic.settings)
        self.gid, self.topic, self.name, self.durable = gid, topic, name, durable
        self.ordering = rules.ordering
        self.keyed = rules.ordering == "key"
        self.fifo = rules.ordering in ("partition", "strict")
        self.on_dead = rules.on_dead
        self.lease_ns, self.max_lease_ns = rules.lease_ns, rules.max_lease_ns
        self.retry = rules.retry
        self.dead_letters = rules.dead_letters and not topic.is_dead_letters
        self.max_in_flight = min(rules.max_in_flight, own.concurrency or rules.max_in_flight)
        self.aging = bool(rules.aging_ns)
        self.rated = bool(own.rate or own.key_concurrency)  # it may hold back what a group without limits would not
        self.key_concurrency = own.key_concurrency
        self.auto_ack = own.auto_ack
        self.wanted: str | None = own.filter["headers"]["c"] if own.filter else None
        self.exact = True
        self.open: dict[int, dict[int, Entry]] = {pid: {} for pid in topic.pids}
        self.done: dict[int, dict[int, str]] = {pid: {} for pid in topic.pids}
        self.start = dict.fromkeys(topic.pids, 0)
        self.stop = dict.fromkeys(topic.pids, -1)
        self.held: set[tuple[int, bytes]] = set()
        self.paused_until: int | None = None
        self.members: set[str] = set()
        self.heard: dict[str, int] = {}  # members, and when they last said something

    def wants(self, message: Message) -> bool:
        if message.only_gid >= 0 and message.only_gid != self.gid:
            return False
        return self.wanted is None or message.stored.headers.get("c") == self.wanted

    def leased(self) -> int:
        return sum(entry.state == LEASED for entries in self.open.values() for entry in entries.values())


class Ledger:
    """See the head of the file."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.topics: dict[int, Topic] = {}
        self.partitions: dict[int, Partition] = {}
        self.groups: dict[int, Group] = {}
        self.leases: dict[int, Lease] = {}
        self.full = False
        self.named: set[tuple[int, int]] = set()
        self.buried: dict[tuple[str, str, int, int], Stored] = {}
        self.counts: Counter[str] = Counter()

    # -- one event -------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Take an event in, or say what it breaks."""
        self.now_ns, self.full = event.now_ns, event.full
        deaths: list[Death] = []
        for made in event.made:
            self._make(made)
        copies = [stored for stored in event.appended if self._topic_of(stored.pid).is_dead_letters]
        regular = [stored for stored in event.appended if not self._topic_of(stored.pid).is_dead_letters]
        self.buried = {_origin(copy): copy for copy in copies}
        self.named = _taken(event)
        self._pass_time(deaths)
        command = event.command
        if not isinstance(command, d.SettleMany | d.Leave):  # those may kill; here only time did, before the command
            self._bury(copies, deaths)
            copies, deaths = [], []
        if command is not None:
            _APPLY[type(command)](self, event, regular, deaths)
        elif event.reply is not None:
            raise Violation(f"a tick answered {event.reply!r}")
        if regular:
            raise Violation(f"{type(command).__name__} left {len(regular)} messages in the log that nobody sent")
        self._bury(copies, deaths)
        for stored in event.appended:
            places = self.partitions[stored.pid].places
            if not places or places[-1][1] != event.start:
                places.append((stored.offset, event.start))

    def _topic_of(self, pid: int) -> Topic:
        return self.topics[self.partitions[pid].tid]

    def _make(self, made: Made) -> None:
        topic = self.topics[made.tid] = Topic(made.tid, made.name, made.settings, made.pids, [made.gid])
        for index, pid in enumerate(made.pids):
            self.partitions[pid] = Partition(pid, made.tid, index)
        self.groups[made.gid] = Group(made.gid, topic, "default", GroupConfig(), durable=True)

    # -- time ------------------------------------------------------------------------------------------------------

    def _pass_time(self, deaths: list[Death]) -> None:
        now_ns = self.now_ns
        over = sorted(
            (lease for lease in self.leases.values() if lease.offsets and lease.first_deadline() <= now_ns),
            key=lambda lease: (lease.first_deadline() // LEASE_GRAIN_NS, lease.uid),
        )
        for lease in over:
            group = self.groups[lease.gid]
            offsets = [o for o in sorted(lease.offsets) if lease.deadline_of(o) <= now_ns]
            if offsets and group.exact:
                self._fail(group, lease, offsets, "lease_expired", "", None, deaths, frozenset())
            elif offsets:
                entries = group.open[lease.pid]
                back = [  # those who died, or outlived themselves, take nobody back with them
                    entries[offset].rank
                    for offset in offsets
                    if self._place(group, entries[offset]) not in self.buried
                    and not entries[offset].message.over(now_ns)
                ]
                self._limbo(group, lease, offsets, counted=True)
                for other in [each for each in self.leases.values() if (each.gid, each.pid) == (lease.gid, lease.pid)]:
                    behind = [o for o in sorted(other.offsets) if back and entries[o].rank > min(back)]
                    for o in behind:  # its own time may be over as well: then that may have counted first
                        entries[o].fails_most += other.deadline_of(o) <= now_ns
                    self._limbo(group, other, behind, counted=False)
        for group in self.groups.values():
            if group.paused_until is not None and 0 < group.paused_until <= now_ns:
                group.paused_until = None
            if not group.exact:
                self._miss_the_silent(group)
        for lease in self.leases.values():
            if not self.groups[lease.gid].exact and lease.moved_ns and now_ns >= lease.moved_ns + HANDOVER_NS:
                lease.unsure = True
        for partition in self.partitions.values():
            for offset in sorted(partition.scheduled):
                message = partition.log[offset]
                if message.due_ms * MS <= now_ns:
                    self._come_due(partition, message)
        for group in self.groups.values():
            for pid, entries in group.open.items():
                for offset, entry in list(entries.items()):
                    if entry.state == WAIT and entry.retry_ms * MS <= now_ns:
                        entry.state = READY
                        if not group.fifo:
                            entry.rank = (entry.retry_ms, 1, offset)
                    if entry.state in (READY, WAIT, LIMBO) and entry.message.over(now_ns):
                        self._finish(group, pid, offset, "expired")

    def _come_due(self, partition: Partition, message: Message) -> None:
        message.scheduled = False
        offset = message.stored.offset
        partition.scheduled.discard(offset)
        for gid in self.topics[partition.tid].gids:
            entry = self.groups[gid].open[partition.pid].get(offset)
            if entry is not None and entry.state == SCHED:
                entry.state = READY
                entry.rank = (message.due_ms, 1, offset)

    def _finish(self, group: Group, pid: int, offset: int, how: str) -> None:
        entry = group.open[pid].pop(offset)
        group.done[pid][offset] = how
        self._leave_lease(entry, offset)
        self.counts[how] += 1

    def _leave_lease(self, entry: Entry, offset: int) -> None:
        lease = self.leases.get(entry.lease)
        entry.lease = 0
        if lease is not None:
            lease.offsets.discard(offset)
            lease.later.pop(offset, None)
            if not lease.offsets:
                del self.leases[lease.uid]

    def _limbo(self, group: Group, lease: Lease, offsets: list[int], *, counted: bool) -> None:
        for offset in offsets:
            entry = group.open[lease.pid][offset]
            self._leave_lease(entry, offset)
            entry.state = LIMBO
            entry.fails_most += 1 if counted else 0

    # -- failing ---------------------------------------------------------------------------------------------------

    def _fail(
        self,
        group: Group,
        lease: Lease,
        offsets: list[int],
        reason: str,
        error: str,
        delay_ns: int | None,
        deaths: list[Death],
        own: frozenset[tuple[int, int]] | set[tuple[int, int]],
    ) -> None:
        now_ns, retry, pid = self.now_ns, group.retry, lease.pid
        retried: list[Entry] = []
        unsure: list[Entry] = []
        for offset in offsets:
            entry = group.open[pid][offset]
            if entry.fails_most != entry.fails:
                raise Violation("internal: attempts of a leased message are known")
            if not entry.fails:
                entry.first_ns = lease.at_ns
            if reason == "lease_expired" and self._no_room_to_die(group, entry):
                continue
            entry.fails += 1
            entry.fails_most = entry.fails
            entry.error = error or entry.error
            copy = None if group.exact else self.buried.get(self._place(group, entry))
            if entry.message.over(now_ns):
                self._finish(group, pid, offset, "expired")
            elif copy is not None:
                self._die(group, pid, offset, copy.headers["headrace-dead-reason"], error, lease.consumer, deaths)
            elif not group.exact and not group.dead_letters:
                self._limbo(group, lease, [offset], counted=False)  # it may have died, and left nothing
                unsure.append(entry)
            elif group.exact and entry.fails > retry.max_retries:
                self._die(group, pid, offset, "max_retries", error, lease.consumer, deaths)
            elif group.exact and retry.total_timeout_ns and now_ns - entry.first_ns >= retry.total_timeout_ns:
                self._die(group, pid, offset, "total_timeout", error, lease.consumer, deaths)
            else:
                wait_ns = self._backoff_ns(group, entry.fails) if delay_ns is None else delay_ns
                self._leave_lease(entry, offset)
                if wait_ns:
                    entry.state, entry.retry_ms = WAIT, -(-(now_ns + wait_ns) // MS)
                else:
                    entry.state = READY
                    if not group.fifo:
                        entry.rank = (now_ns // MS, 1, offset)
                retried.append(entry)
        if retried and group.fifo:
            self._take_back(group, pid, min(entry.rank for entry in retried), own)
        if unsure and group.fifo:
            self._maybe_take_back(group, pid, min(entry.rank for entry in unsure), own)

    def _no_room_to_die(self, group: Group, entry: Entry) -> bool:
        """On a full disk a dead letter may find no room: then its message stays leased, over though it is."""
        if not self.full or not group.dead_letters or entry.message.over(self.now_ns):
            return False
        retry = group.retry
        dies = entry.fails + 1 > retry.max_retries or (
            retry.total_timeout_ns and self.now_ns - entry.first_ns >= retry.total_timeout_ns
        )
        named = (entry.lease, entry.message.stored.offset) in self.named  # then the command is what buried it
        return bool(dies) and (named or self._place(group, entry) not in self.buried)

    @staticmethod
    def _place(group: Group, entry: Entry) -> tuple[str, str, int, int]:
        stored = entry.message.stored
        return group.topic.name, group.name, group.topic.pids.index(stored.pid), stored.offset

    def _take_back(self, group: Group, pid: int, rank: tuple[int, int, int], own: Any) -> None:
        """Where order is by partition, what was handed out behind a message that goes back goes back too."""
        for offset, entry in group.open[pid].items():
            if entry.state == LEASED and entry.rank > rank and (entry.lease, offset) not in own:
                self._leave_lease(entry, offset)
                entry.state = READY

    def _maybe_take_back(self, group: Group, pid: int, rank: tuple[int, int, int], own: Any) -> None:
        """The same behind one that may have gone back and may have died."""
        for offset, entry in group.open[pid].items():
            lease = self.leases.get(entry.lease)
            if entry.state == LEASED and lease is not None and entry.rank > rank and (lease.uid, offset) not in own:
                self._limbo(group, lease, [offset], counted=False)

    @staticmethod
    def _backoff_ns(group: Group, attempt: int) -> int:
        retry = group.retry
        wait = float(retry.initial_backoff_ns)
        for _ in range(attempt - 1):
            wait *= retry.backoff_multiplier
        return int(min(wait, float(retry.max_backoff_ns)))

    def _die(
        self, group: Group, pid: int, offset: int, reason: str, error: str, consumer: str, deaths: list[Death]
    ) -> None:
        entry = group.open[pid][offset]
        key = entry.message.stored.key
        text = error or entry.error
        attempts = entry.fails if reason != "rejected" else entry.fails + 1
        self._finish(group, pid, offset, "dead")
        deaths.append(Death(group.gid, pid, offset, reason, attempts, text, consumer))
        if not group.keyed or not key or reason == "followed":
            return
        if group.on_dead == "hold":
            group.held.add((pid, key))
        elif group.on_dead == "follow":
            behind = sorted(
                (other.rank, o)
                for o, other in group.open[pid].items()
                if other.state == READY and other.message.stored.key == key
            )
            for _, other_offset in behind:
                if group.open[pid][other_offset].message.over(self.now_ns):
                    self._finish(group, pid, other_offset, "expired")
                else:
                    self._die(group, pid, other_offset, "followed", error, "", deaths)

    def _bury(self, copies: list[Stored], deaths: list[Death]) -> None:
        """Every death left exactly one copy in the same record, and every copy had a death."""
        foreseen: list[Stored] = []
        for death in deaths:
            group = self.groups.get(death.gid)
            if group is None or not group.dead_letters:
                continue
            found = self._copy_of(death, group, [copy for copy in copies if not any(copy is f for f in foreseen)])
            if found is None and group.exact:
                raise Violation(
                    f"message {death.pid}/{death.offset} died in group {group.name} ({death.reason}, attempt"
                    f" {death.attempts}) and left no dead letter"
                )
            if found is not None:
                foreseen.append(found)
        for copy in copies:
            if not any(copy is found for found in foreseen):
                self._bury_unforeseen(copy)
            self._enter(copy)

    def _copy_of(self, death: Death, group: Group, copies: list[Stored]) -> Stored | None:
        part = self.partitions[death.pid]
        origin = part.log[death.offset].stored
        for copy in copies:
            h = copy.headers
            if (
                h["headrace-dead-topic"] == group.topic.name
                and h["headrace-dead-partition"] == str(part.index)
                and h["headrace-dead-offset"] == str(death.offset)
                and h["headrace-dead-group"] == group.name
            ):
                said = (
                    h["headrace-dead-reason"],
                    int(h["headrace-dead-attempts"]),
                    h["headrace-dead-error"],
                    h["headrace-dead-consumer"],
                )
                right = (death.reason, death.attempts, death.error, death.consumer)
                if said != right:
                    raise Violation(f"dead letter of {death.pid}/{death.offset} says {said}, right is {right}")
                self._same_content(copy, origin)
                return copy
        return None

    def _same_content(self, copy: Stored, origin: Stored) -> None:
        kept = {name: value for name, value in copy.headers.items() if not name.startswith("headrace-")}
        ours = {name: value for name, value in origin.headers.items() if not name.startswith("headrace-")}
        if (copy.value, copy.key, copy.priority, kept) != (origin.value, origin.key, origin.priority, ours):
            raise Violation(f"the copy {copy.pid}/{copy.offset} of {origin.pid}/{origin.offset} is another message")

    def _bury_unforeseen(self, copy: Stored) -> None:
        """A dead letter the ledger did not foresee: right only where it does not know the attempts exactly."""
        h = copy.headers
        topic = next((t for t in self.topics.values() if t.name == h.get("headrace-dead-topic")), None)
        group = topic and next(
            (self.groups[g] for g in topic.gids if self.groups[g].name == h.get("headrace-dead-group")), None
        )
        if topic is None or group is None:
            raise Violation(f"a dead letter from nowhere: {h}")
        pid, offset = topic.pids[int(h["headrace-dead-partition"])], int(h["headrace-dead-offset"])
        entry = group.open[pid].get(offset)
        if entry is None or group.exact or entry.state not in (LIMBO, LEASED):
            raise Violation(
                f"message {pid}/{offset} of group {group.name} left a dead letter ({h['headrace-dead-reason']}, attempt"
                f" {h['headrace-dead-attempts']}) but was {entry.state if entry else group.done[pid].get(offset)}"
                f" after {entry.fails if entry else '?'} failed attempts"
            )
        attempts = int(h["headrace-dead-attempts"])
        if h["headrace-dead-reason"] == "max_retries" and attempts != group.retry.max_retries + 1:
            raise Violation(f"message {pid}/{offset} died of max_retries after {attempts} attempts")
        self._same_content(copy, self.partitions[pid].log[offset].stored)
        self._finish(group, pid, offset, "dead")

    # -- publishing ------------------------------------------------------------------------------------------------

    def _enter(self, stored: Stored, only_gid: int = -1, front_ms: int = 0) -> Message:
        """A message is in the log: every group that wants it has it to do."""
        partition = self.partitions[stored.pid]
        topic = self.topics[partition.tid]
        if stored.offset != partition.end:
            raise Violation(f"partition {stored.pid} went on at offset {stored.offset}, not at {partition.end}")
        if stored.id <= partition.last_id:
            raise Violation(f"id {stored.id} in partition {stored.pid} comes after {partition.last_id}")
        if stored.append_ns // MS < partition.last_ms:
            raise Violation(f"time ran back in partition {stored.pid}, to {stored.append_ns}")
        partition.last_id, partition.last_ms = stored.id, stored.append_ns // MS
        message = Message(stored, topic.settings, only_gid)
        partition.log.append(message)
        if message.scheduled:
            partition.scheduled.add(stored.offset)
        for gid in topic.gids:
            group = self.groups[gid]
            if 0 <= group.stop[stored.pid] <= stored.offset or stored.offset < group.start[stored.pid]:
                continue
            self._begin(group, message, front_ms)
        self.counts["published"] += 1
        return message

    def _begin(self, group: Group, message: Message, front_ms: int = 0) -> None:
        stored = message.stored
        if not group.wants(message):
            group.done[stored.pid][stored.offset] = "filtered"
        elif message.gone:
            group.done[stored.pid][stored.offset] = "dropped"
        else:
            rank = (front_ms, 1, stored.offset) if front_ms else (stored.append_ns // MS, 0, stored.offset)
            group.open[stored.pid][stored.offset] = Entry(message, SCHED if message.scheduled else READY, rank)
            if front_ms and stored.key:
                group.held.discard((stored.pid, stored.key))

    def _publish(self, event: Event, regular: list[Stored], deaths: list[Death]) -> None:
        self._published(event.sent[0], event.reply, regular)

    def _published(self, sent: Sent, reply: Any, regular: list[Stored]) -> None:
        partition = self.partitions[sent.pid]
        topic = self.topics[partition.tid]
        known = self._repeated(partition, sent)
        if isinstance(reply, HeadraceError):
            self._publish_refused(reply, topic, sent, known)
            return
        if known is not None:
            if reply.count or [dup[1] for dup in reply.duplicates] != known:
                raise Violation(f"producer {sent.producer} repeated {sent.sequence}: got {reply}, had {known}")
            return
        if topic.settings.max_depth and self._depth(topic, surely=True) + len(sent.messages) > topic.settings.max_depth:
            raise Violation(f"topic {topic.name} took {len(sent.messages)} over {self._depth(topic)} unsettled ones")
        now_ns = max(self.now_ns, partition.last_ms * MS)
        ids: list[int] = []
        duplicates = {index: message_id for index, message_id, *_ in reply.duplicates}
        stored_count = 0
        for index, wanted in enumerate(sent.messages):
            first = self._first_copy(topic, wanted.dedup_id)
            if first is not None:
                if duplicates.pop(index, None) != first:
                    raise Violation(f"dedup id {wanted.dedup_id!r} again: {reply}, the first was {first}")
                ids.append(first)
                continue
            if index in duplicates:
                raise Violation(f"dedup id {wanted.dedup_id!r} is called a duplicate and is not")
            place = next((n for n, stored in enumerate(regular) if stored.pid == sent.pid), None)
            if place is None:
                raise Violation(f"partition {sent.pid} answered {reply} and stored only {stored_count}")
            stored = regular.pop(place)
            if stored.id != reply.base_id + stored_count or stored.offset != reply.base_offset + stored_count:
                raise Violation(f"answered {reply}, stored {stored}")
            stored_count += 1
            self._check_stored(wanted, stored, now_ns)
            message = self._enter(stored)
            ids.append(message.stored.id)
            if wanted.dedup_id:
                topic.dedup[wanted.dedup_id] = (stored.append_ns, stored.id)
        if reply.count != stored_count:
            raise Violation(f"answered {reply.count} new messages, stored {stored_count}")
        if sent.producer and stored_count:
            partition.producers.setdefault(sent.producer, deque(maxlen=PRODUCER_BATCHES)).append((sent.sequence, ids))

    def _repeated(self, partition: Partition, sent: Sent) -> list[int] | None:
        return next((ids for seq, ids in partition.producers.get(sent.producer, ()) if seq == sent.sequence), None)

    def _publish_refused(self, reply: HeadraceError, topic: Topic, sent: Sent, known: list[int] | None) -> None:
        self.counts[f"publish {reply.code}"] += 1
        if reply.code not in NO_REPLY_STORED:
            raise Violation(f"publish refused: {reply!r}")
        if reply.code == "queue_full" and (
            not topic.settings.max_depth or self._depth(topic) + len(sent.messages) <= topic.settings.max_depth
        ):
            raise Violation(f"{reply!r}, but {self._depth(topic)} are unsettled")
        never_fits = 0 < topic.settings.max_depth < len(sent.messages)
        if reply.code == "limit_exceeded" and not never_fits:
            raise Violation(f"{reply!r}, but {len(sent.messages)} would fit")
        if reply.code == "queue_full" and never_fits:
            raise Violation(f"{reply!r}, but trying again would not help")
        if reply.code == "duplicate_conflict" and (
            known is not None or not self.partitions[sent.pid].producers.get(sent.producer)
        ):
            raise Violation(f"a repeated batch was refused: {reply!r}")
        if reply.code == "invalid_argument" and not any(
            max(m.delay_ns or 0, (m.deliver_at_ns or 0) - self.now_ns) > topic.settings.max_delay_ns
            for m in sent.messages
        ):
            raise Violation(f"publish refused: {reply!r}")

    def _depth(self, topic: Topic, *, surely: bool = False) -> int:
        groups = [self.groups[gid] for gid in topic.gids if self.groups[gid].durable]
        return max((self._group_depth(group, surely) for group in groups), default=0)

    def _group_depth(self, group: Group, surely: bool) -> int:
        entries = [entry for entries in group.open.values() for entry in entries.values()]
        return sum(not (surely and self._maybe_final(group, entry)) for entry in entries)

    def _first_copy(self, topic: Topic, dedup_id: bytes | None) -> int | None:
        if not dedup_id:
            return None
        found = topic.dedup.get(dedup_id)
        if found is None or found[0] <= self.now_ns - topic.settings.dedup_window_ns:
            return None
        return found[1]

    def _check_stored(self, wanted: Wanted, stored: Stored, now_ns: int) -> None:
        due = wanted.deliver_at_ns or (stored.append_ns + wanted.delay_ns if wanted.delay_ns else 0)
        ends = wanted.expires_at_ns or (max(due, stored.append_ns) + wanted.ttl_ns if wanted.ttl_ns else 0)
        right = (wanted.value, wanted.key, wanted.headers or {}, wanted.priority, now_ns, due, ends)
        if tuple(stored[3:]) != right:
            raise Violation(f"stored {stored}, sent was {right}")

    # -- leasing ---------------------------------------------------------------------------------------------------

    def _lease(self, event: Event, regular: list[Stored], deaths: list[Death]) -> None:
        command, reply = event.command, event.reply
        group = self.groups.get(command.gid)
        if isinstance(reply, HeadraceError):
            if group is not None and reply.code != "storage_full":
                raise Violation(f"lease refused: {reply!r}")
            return
        if group is None:
            raise Violation(f"group {command.gid} is gone and leases")
        if group.fifo:
            self._heard(group, command.consumer)
        if group.paused_until is not None and event.given:
            raise Violation(f"group {group.name} is paused and leases")
        room = min(command.most, group.max_in_flight - (group.leased() if group.exact else 0))
        taken = {(given.pid, offset) for given in event.given for offset, _, _ in given.messages}
        if len(taken) != sum(len(given.messages) for given in event.given):
            raise Violation("one message twice in one grant")
        if len(taken) > max(0, room):
            raise Violation(f"{len(taken)} leased where {room} are allowed")
        for given in event.given:
            for offset, attempt, value in given.messages:
                self._check_given(group, command.consumer, given.pid, offset, attempt, value, taken)
        if group.exact and not group.fifo and not group.rated and group.paused_until is None:
            self._check_choice(group, taken, room)
        lease_ns = group.lease_ns if command.lease_ns is None else command.lease_ns
        for given in event.given:
            self._grant(group, command.consumer, given, lease_ns)
        if group.key_concurrency and group.ordering == "none":
            self._check_keys(group)

    def _check_keys(self, group: Group) -> None:
        for pid, entries in group.open.items():
            leased = Counter(entry.message.stored.key for entry in entries.values() if entry.state == LEASED)
            leased.pop(None, None)
            if max(leased.values(), default=0) > group.key_concurrency:
                raise Violation(f"of a key in partition {pid} {leased} are leased in group {group.name}")

    def _move_partitions(self, group: Group, at_ns: int) -> None:
        for lease in self.leases.values():
            if lease.gid == group.gid and not lease.moved_ns:
                lease.moved_ns = max(at_ns, lease.at_ns)

    def _miss_the_silent(self, group: Group) -> None:
        """A member that says nothing and holds nothing is gone some time after; when exactly is not promised."""
        busy = {lease.consumer for lease in self.leases.values() if lease.gid == group.gid}
        for consumer, heard_ns in list(group.heard.items()):
            if self.now_ns >= heard_ns + SILENCE_NS:
                self._move_partitions(group, heard_ns + SILENCE_NS)
                if consumer not in busy and self.now_ns > heard_ns + 3 * SILENCE_NS:
                    del group.heard[consumer]

    def _heard(self, group: Group, consumer: str) -> None:
        if consumer not in group.heard:
            self._move_partitions(group, self.now_ns)
        group.heard[consumer] = self.now_ns
        if consumer not in group.members:
            group.members.add(consumer)
            if len(group.members) > 1:
                group.exact = False
                for entries in group.open.values():
                    for entry in entries.values():
                        entry.fails_most = max(entry.fails_most, entry.fails)

    def _check_given(
        self,
        group: Group,
        consumer: str,
        pid: int,
        offset: int,
        attempt: int,
        value: bytes,
        taken: set[tuple[int, int]],
    ) -> None:
        name = f"message {pid}/{offset} in group {group.name}"
        if pid not in group.open:
            raise Violation(f"partition {pid} is not of group {group.name}'s topic")
        entry = group.open[pid].get(offset)
        if entry is None:
            how = group.done[pid].get(offset, "never its business")
            raise Violation(f"{name} was delivered and is {how}")
        if value != entry.message.stored.value:
            raise Violation(f"{name} was delivered with another body")
        if entry.state == SCHED:
            raise Violation(f"{name} was delivered {entry.message.due_ms - self.now_ns // MS} ms before its time")
        if entry.state == WAIT:
            raise Violation(f"{name} was delivered {entry.retry_ms - self.now_ns // MS} ms before its backoff ended")
        if entry.state == LEASED:
            lease = self.leases[entry.lease]
            if group.exact or (lease.consumer == consumer and not lease.unsure):
                raise Violation(f"{name} is leased until {lease.deadline_of(offset)} and was delivered again")
        if entry.message.over(self.now_ns):
            raise Violation(f"{name} was delivered after its lifetime")
        if not entry.fails + 1 <= attempt <= entry.fails_most + 1:
            raise Violation(f"{name} was delivered as attempt {attempt}, right is {entry.fails + 1}")
        key = entry.message.stored.key
        if group.keyed and key:
            if (pid, key) in group.held:
                raise Violation(f"{name}: its key is held for a dead message")
            for other, blocker in group.open[pid].items():
                if other == offset or blocker.message.stored.key != key or self._loose(entry, blocker):
                    continue
                if blocker.state in (LEASED, WAIT) or (pid, other) in taken:
                    raise Violation(f"{name}: message {other} of its key is {blocker.state}")
                if blocker.state == READY and (
                    (blocker.started and not entry.started)
                    or (blocker.started == entry.started and self._surely_before(blocker, entry))
                ):
                    raise Violation(f"{name}: message {other} of its key comes before it")
        elif group.fifo:
            for other, blocker in group.open[pid].items():
                if (pid, other) in taken or blocker.state == SCHED or self._loose(entry, blocker):
                    continue
                if blocker.state == WAIT or self._surely_before(blocker, entry):
                    if blocker.state == LEASED and self.leases[blocker.lease].consumer == consumer:
                        continue
                    if blocker.state in (LIMBO, READY, LEASED) and blocker.message.over(self.now_ns):
                        continue
                    if self._maybe_final(group, blocker):
                        continue
                    raise Violation(f"{name}: message {other} is {blocker.state} and comes before it")

    @staticmethod
    def _surely_before(one: Entry, other: Entry) -> bool:
        return one.rank < other.rank and not Ledger._tied(one, other)

    @staticmethod
    def _tied(one: Entry, other: Entry) -> bool:
        """Of two in order, one appended and one come due in the same millisecond, either may be the first."""
        return one.rank[0] == other.rank[0] and one.rank[1] != other.rank[1]

    def _maybe_final(self, group: Group, entry: Entry) -> bool:
        """A message in limbo may have died and left nothing, or been purged."""
        if entry.state == LEASED and self.leases[entry.lease].unsure:
            return entry.maybe_gone or entry.message.over(self.now_ns)
        return entry.state == LIMBO and (entry.maybe_gone or not group.dead_letters)

    def _unsure(self, entry: Entry) -> bool:
        return entry.state == LIMBO or (entry.state == LEASED and self.leases[entry.lease].unsure)

    @staticmethod
    def _loose(entry: Entry, other: Entry) -> bool:
        """Redriven messages have their old place in time; where that is among the others is not promised exactly."""
        return entry.message.only_gid >= 0 or other.message.only_gid >= 0

    def _check_choice(self, group: Group, taken: set[tuple[int, int]], room: int) -> None:
        """Nothing better stayed behind, and nothing at all while there was room."""
        left = [
            (pid, offset, entry)
            for pid, entries in group.open.items()
            for offset, entry in self._leasable(group, pid, entries)
            if (pid, offset) not in taken and not entry.message.over(self.now_ns)
        ]
        if not left:
            return
        if len(taken) < room:
            pid, offset, _ = left[0]
            raise Violation(
                f"group {group.name} was given {len(taken)} of {room}, and not message {pid}/{offset}, which is ready"
            )
        if group.aging:
            return
        for pid, offset, entry in left:
            lane = entry.message.stored.priority
            for taken_pid, taken_offset in taken:
                other = group.open[taken_pid][taken_offset]
                other_lane = other.message.stored.priority
                if lane < other_lane:
                    raise Violation(
                        f"message {taken_pid}/{taken_offset} of lane {other_lane} was given before {pid}/{offset} of"
                        f" lane {lane}"
                    )
                if (
                    lane == other_lane
                    and pid == taken_pid
                    and entry.rank < other.rank
                    and not self._loose(entry, other)
                ):
                    raise Violation(
                        f"message {taken_pid}/{taken_offset} (place {other.rank}) was given before {offset}"
                        f" ({entry.rank}) of the same lane"
                    )

    def _leasable(self, group: Group, pid: int, entries: dict[int, Entry]) -> list[tuple[int, Entry]]:
        if not group.keyed:
            return [(offset, entry) for offset, entry in entries.items() if entry.state == READY]
        found: list[tuple[int, Entry]] = []
        heads: dict[bytes, tuple[tuple[bool, tuple[int, int, int]], int, Entry]] = {}
        blocked: set[bytes] = set()
        for offset, entry in entries.items():
            key = entry.message.stored.key
            if not key:
                if entry.state == READY:
                    found.append((offset, entry))
            elif entry.state in (LEASED, WAIT) or (pid, key) in group.held:
                blocked.add(key)
            elif entry.state == READY:
                if entry.message.only_gid >= 0:
                    blocked.add(key)  # see _loose: it or another of its key is next
                place = (not entry.started, entry.rank)
                if key in heads and not (entry.started or heads[key][2].started) and self._tied(entry, heads[key][2]):
                    blocked.add(key)
                if key not in heads or place < heads[key][0]:
                    heads[key] = (place, offset, entry)
        found += [(offset, entry) for key, (_, offset, entry) in heads.items() if key not in blocked]
        return found

    def _grant(self, group: Group, consumer: str, given: Given, lease_ns: int) -> None:
        if given.deadline_ns != self.now_ns + lease_ns:
            raise Violation(f"a lease until {given.deadline_ns}, right is {self.now_ns + lease_ns}")
        offsets = {offset for offset, _, _ in given.messages}
        self.counts["delivered"] += len(offsets)
        if group.auto_ack:
            for offset in offsets:
                self._finish(group, given.pid, offset, "acked")
            return
        lease = Lease(given.uid, group.gid, given.pid, consumer, offsets, self.now_ns, given.deadline_ns)
        for offset, attempt, _ in given.messages:
            entry = group.open[given.pid][offset]
            self._leave_lease(entry, offset)
            entry.state, entry.lease, entry.started = LEASED, given.uid, True
            entry.fails = entry.fails_most = attempt - 1
        self.leases[given.uid] = lease

    # -- settling --------------------------------------------------------------------------------------------------

    def _settle(self, event: Event, regular: list[Stored], deaths: list[Death]) -> None:
        command, reply = event.command, event.reply
        group = self.groups.get(command.gid)
        if group is None:
            if not isinstance(reply, HeadraceError):
                raise Violation(f"group {command.gid} is gone and settles")
            return
        valid: list[tuple[Part, Lease | None, list[int]]] = []
        stale: set[tuple[int, int, int]] = set()
        acked_before: set[tuple[int, int, int]] = set()
        for part in event.parts:
            lease = self.leases.get(part.uid)
            good = [o for o in part.offsets if lease is not None and lease.gid == group.gid and o in lease.offsets]
            valid.append((part, lease, good))
            for offset in part.offsets:
                if offset not in good:
                    how = group.done.get(part.pid, {}).get(offset)
                    before = part.verb == "ack" and how == "acked"
                    (acked_before if before else stale).add((part.pid, part.lease_id, offset))
        if isinstance(reply, HeadraceError):
            together = bool(event.sent or event.cancels)
            if reply.code == "storage_full":
                return
            if not together or (not stale and reply.code not in NO_REPLY_STORED and group.exact):
                raise Violation(f"settle refused: {reply!r}")
            if reply.code == "lease_lost" and not stale and group.exact:
                raise Violation(f"settle refused though every receipt is good: {reply!r}")
            self.counts["settle refused"] += 1
            return
        refused = {(run.pid, run.lease_id, o) for run, _ in reply.refused for o in run.span()}
        if group.exact:
            if not stale <= refused or refused - stale - acked_before:
                raise Violation(
                    f"stale receipts {sorted(stale - refused)} were taken, good ones"
                    f" {sorted(refused - stale - acked_before)} refused"
                )
            if stale and (event.sent or event.cancels):
                raise Violation("half a transaction: stale receipts, and yet it published")
        else:
            valid = [
                (part, lease, [o for o in good if (part.pid, part.lease_id, o) not in refused])
                for part, lease, good in valid
            ]
        asked = sum(len(part.offsets) for part in event.parts)
        if reply.settled != asked - len(refused):
            raise Violation(f"{reply.settled} settled and {len(refused)} refused of {asked}")
        self._settle_parts(group, valid, deaths)
        if not group.exact:
            self._settle_in_limbo(group, event.parts, refused)
        for sent, answer in zip(event.sent, reply.published, strict=True):
            self._published(sent, answer, regular)
        cancelled = sum(self._cancel_all(pid, offsets) for pid, offsets in event.cancels)
        if cancelled != reply.cancelled:
            raise Violation(f"{reply.cancelled} cancelled, right is {cancelled}")

    def _settle_parts(
        self, group: Group, valid: list[tuple[Part, Lease | None, list[int]]], deaths: list[Death]
    ) -> None:
        own = {(part.uid, offset) for part, _, good in valid if part.verb != "extend" for offset in good}
        for part, lease, good in valid:
            if lease is None or not good:
                continue
            good = [
                o for o in good if group.open[part.pid].get(o) is not None and group.open[part.pid][o].lease == part.uid
            ]
            self.counts[part.verb] += len(good)
            if part.verb == "ack":
                for offset in good:
                    self._finish(group, part.pid, offset, "acked")
            elif part.verb == "nack":
                self._fail(group, lease, good, "nack", part.error, part.span_ns, deaths, own)
            elif part.verb == "reject":
                for offset in good:
                    self._die(group, part.pid, offset, "rejected", part.error, lease.consumer, deaths)
            elif part.verb == "release":
                self._release(group, part.pid, good, own)
        for part, lease, good in valid:
            if part.verb == "extend" and lease is not None and part.span_ns is not None:
                until = self.now_ns + min(part.span_ns, group.max_lease_ns)
                good = [offset for offset in good if offset in lease.offsets]
                for offset in good:
                    lease.later[offset] = until

    def _settle_in_limbo(self, group: Group, parts: list[Part], refused: set[tuple[int, int, int]]) -> None:
        """Who settles what may have been taken back and is not refused still had it."""
        own = {(part.uid, offset) for part in parts for offset in part.offsets}
        for part in parts:
            for offset in part.offsets:
                entry = group.open[part.pid].get(offset)
                if entry is None or entry.state != LIMBO or (part.pid, part.lease_id, offset) in refused:
                    continue
                if part.verb == "ack":
                    self._finish(group, part.pid, offset, "acked")
                elif part.verb in ("nack", "release"):
                    entry.fails_most += part.verb == "nack"
                    self._maybe_take_back(group, part.pid, entry.rank, own)

    def _release(self, group: Group, pid: int, offsets: list[int], own: Any) -> None:
        for offset in offsets:
            entry = group.open[pid][offset]
            self._leave_lease(entry, offset)
            entry.state = READY
        if group.fifo and offsets:
            self._take_back(group, pid, min(group.open[pid][o].rank for o in offsets), own)

    # -- scheduled messages ----------------------------------------------------------------------------------------

    def _cancel_all(self, pid: int, offsets: list[int]) -> int:
        partition = self.partitions[pid]
        known = [offset for offset in offsets if offset in partition.scheduled]
        for offset in known:
            self._remove(partition, offset, "cancelled")
        return len(known)

    def _remove(self, partition: Partition, offset: int, how: str) -> None:
        """Gone for good, for every group."""
        message = partition.log[offset]
        message.gone, message.scheduled = how, False
        partition.scheduled.discard(offset)
        for gid in self.topics[partition.tid].gids:
            group = self.groups[gid]
            if offset in group.open[partition.pid]:
                self._finish(group, partition.pid, offset, how)

    def _cancel(self, event: Event, regular: list[Stored], deaths: list[Death]) -> None:
        self._expect(event, self._cancel_all(event.command.pid, list(event.command.span)))

    def _expect(self, event: Event, right: Any) -> None:
        if event.reply != right:
            raise Violation(f"{type(event.command).__name__} answered {event.reply!r}, right is {right!r}")

    def _move(self, event: Event, regular: list[Stored], deaths: list[Death]) -> None:
        command = event.command
        partition = self.partitions[command.pid]
        topic = self.topics[partition.tid]
        known = [offset for offset in command.span if offset in partition.scheduled]
        if isinstance(event.reply, HeadraceError):
            if event.reply.code == "invalid_argument" and command.due_ns - self.now_ns > topic.settings.max_delay_ns:
                return
            if event.reply.code != "storage_full":
                raise Violation(f"move refused: {event.reply!r}")
            return
        for offset in known:
            message = partition.log[offset]
            due_ms = -(-max(command.due_ns, self.now_ns) // MS)
            message.due_ms = due_ms
            # A lifetime that the message was sent with ends when it said; its topic's begins when it is due.
            if not message.stored.expires_ns and topic.settings.message_ttl_ns:
                message.ends = due_ms * MS + topic.settings.message_ttl_ns // MS * MS
        self._expect(event, len(known))

    # -- groups ----------------------------------------------------------------------------------------------------

    def _create_topic(self, event: Event, regular: list[Stored], deaths: list[Death]) -> None:
        if isinstance(event.reply, HeadraceError) and event.reply.code == "storage_full":
            return
        if event.reply not in self.topics:
            raise Violation(f"topic created: {event.reply!r}")

    def _create_group(self, event: Event, regular: list[Stored], deaths: list[Death]) -> None:
        command = event.command
        if isinstance(event.reply, HeadraceError):
            if event.reply.code != "storage_full":
                raise Violation(f"group refused: {event.reply!r}")
            return
        topic = self.topics[command.tid]
        group = Group(event.reply, topic, command.name, command.settings, durable=command.durable)
        self.groups[group.gid] = group
        topic.gids.append(group.gid)
        self._restart(group, command.start, None)

    def _restart(self, group: Group, start: d.Start, stops: dict[int, int] | None) -> None:
        for lease in [lease for lease in self.leases.values() if lease.gid == group.gid]:
            del self.leases[lease.uid]
        group.held.clear()
        for pid in group.topic.pids:
            partition = self.partitions[pid]
            at = partition.start
            if start.latest:
                at = partition.end
            elif start.time_ns is not None:
                before = [m for m in partition.log if m.stored.append_ns // MS * MS < start.time_ns]
                at = before[-1].stored.offset + 1 if before else 0
            elif start.offsets is not None:
                at = start.offsets.get(partition.index, partition.start)
            at = max(at, partition.start)
            stop = -1 if stops is None else stops.get(partition.index, -1)
            group.start[pid], group.stop[pid] = at, stop
            group.open[pid], group.done[pid] = {}, {}
            for message in partition.log[at : partition.end if stop < 0 else stop]:
                self._begin(group, message)
                entry = group.open[pid].get(message.stored.offset)
                if entry is not None and entry.state == READY and message.over(self.now_ns):
                    self._finish(group, pid, message.stored.offset, "expired")

    def _seek(self, event: Event, regular: list[Stored], deaths: list[Death]) -> None:
        command = event.command
        group = self.groups.get(command.gid)
        if isinstance(event.reply, HeadraceError):
            if group is not None and event.reply.code not in ("storage_full", "invalid_argument"):
                raise Violation(f"seek refused: {event.reply!r}")
            return
        if group is None:
            raise Violation("a group that is gone seeks")
        self._restart(group, command.start, command.stops)

    def _delete_group(self, event: Event, regular: list[Stored], deaths: list[Death]) -> None:
        if not isinstance(event.reply, HeadraceError):
            self._drop_group(self.groups[event.command.gid])

    def _drop_group(self, group: Group) -> None:
        for lease in [lease for lease in self.leases.values() if lease.gid == group.gid]:
            del self.leases[lease.uid]
        group.topic.gids.remove(group.gid)
        del self.groups[group.gid]

    def _pause(self, event: Event, regular: list[Stored], deaths: list[Death]) -> None:
        if event.reply is True:
            self.groups[event.command.gid].paused_until = event.command.until_ns

    def _resume(self, event: Event, regular: list[Stored], deaths: list[Death]) -> None:
        if event.reply is True:
            self.groups[event.command.gid].paused_until = None

    def _purge(self, event: Event, regular: list[Stored], deaths: list[Death]) -> None:
        command = event.command
        if isinstance(event.reply, HeadraceError):
            return
        topic = self.topics[command.tid]
        groups = [self.groups[gid] for gid in topic.gids]
        dropped = 0
        exact = all(group.exact for group in groups)
        for pid in topic.pids:
            if command.gid >= 0:
                group = self.groups[command.gid]
                chosen = [o for o, e in group.open[pid].items() if e.state in (READY, WAIT)]
                for entry in group.open[pid].values():
                    entry.maybe_gone = entry.maybe_gone or self._unsure(entry)
                for offset in chosen:
                    self._finish(group, pid, offset, "dropped")
                dropped += len(chosen)
                continue
            partition = self.partitions[pid]
            wanted = {o for group in groups for o, e in group.open[pid].items() if e.state in (READY, WAIT)}
            wanted |= partition.scheduled
            wanted -= {o for group in groups for o, e in group.open[pid].items() if e.state == LEASED}
            for offset in wanted:
                self._remove(partition, offset, "dropped")
            dropped += len(wanted)
        if exact:
            self._expect(event, dropped)

    def _join(self, event: Event, regular: list[Stored], deaths: list[Death]) -> None:
        group = self.groups.get(event.command.gid)
        if group is not None and event.reply is True:
            self._heard(group, event.command.consumer)
            if not group.fifo:
                group.exact = True

    def _leave(self, event: Event, regular: list[Stored], deaths: list[Death]) -> None:
        command = event.command
        group = self.groups.get(command.gid)
        if group is None or event.reply is not True:
            return
        own = {
            (lease.uid, o)
            for lease in self.leases.values()
            if lease.consumer == command.consumer
            for o in lease.offsets
        }
        for lease in [each for each in self.leases.values() if each.gid == group.gid]:
            if lease.consumer != command.consumer:
                continue
            offsets = sorted(lease.offsets)
            if lease.unsure:
                self._limbo(group, lease, offsets, counted=not command.clean)
            elif command.clean:
                self._release(group, lease.pid, offsets, own)
            else:
                self._fail(group, lease, offsets, "disconnect", "", 0, deaths, own)
        if command.consumer in group.members:
            group.members.discard(command.consumer)
            group.heard.pop(command.consumer, None)
            self._move_partitions(group, self.now_ns)
        if not group.durable and not group.members:
            deaths[:] = [death for death in deaths if death.gid != group.gid]
            self._drop_group(group)

    def _free_key(self, event: Event, regular: list[Stored], deaths: list[Death]) -> None:
        if event.reply is not True:
            return
        group = self.groups[event.command.gid]
        from xxhash import xxh3_64_intdigest

        group.held = {
            (pid, key)
            for pid, key in group.held
            if pid != event.command.pid or (xxh3_64_intdigest(key) or 1) != event.command.key_hash
        }

    def _trim(self, event: Event, regular: list[Stored], deaths: list[Death]) -> None:
        if isinstance(event.reply, HeadraceError):
            return
        partition = self.partitions[event.command.pid]
        topic = self.topics[partition.tid]
        for gid in topic.gids:
            group = self.groups[gid]
            entries = group.open[partition.pid]
            lost = [offset for offset in entries if offset < event.reply]
            if any(entries[offset].state == LEASED and not self._unsure(entries[offset]) for offset in lost):
                raise Violation(f"retention took {lost} of group {group.name} from under a lease")
            if group.durable and any(not self._maybe_final(group, entries[offset]) for offset in lost):
                raise Violation(f"retention took {lost} of group {group.name}, which are unsettled")
            for offset in lost:
                self._finish(group, partition.pid, offset, "dropped")
        if event.reply > partition.start and event.reply > event.command.start:
            raise Violation(f"trimmed to {event.reply}, asked was {event.command.start}")
        partition.start = max(partition.start, event.reply)

    def _redrive(self, event: Event, regular: list[Stored], deaths: list[Death]) -> None:
        if isinstance(event.reply, HeadraceError):
            if event.reply.code not in ("storage_full", "invalid_argument"):
                raise Violation(f"redrive refused: {event.reply!r}")
            return
        _, moved, _ = event.reply
        dead = self.partitions[event.command.pid]
        left = set(moved)
        if not left <= set(event.command.span):
            raise Violation("redrive moved what nobody named")
        name = f"{self.topics[dead.tid].name}/{dead.index}/"
        while regular:
            stored = regular.pop(0)
            origin = str(stored.headers.get("headrace-redriven-from", ""))
            offset = int(origin.removeprefix(name)) if origin.startswith(name) else -1
            if offset not in left:
                raise Violation(f"redriven from {origin!r}, moved were {sorted(moved)}")
            left.discard(offset)
            letter = dead.log[offset]
            if letter.gone:
                raise Violation(f"dead letter {offset} was {letter.gone} and is redriven")
            self._same_content(stored, letter.stored)
            topic = self._topic_of(stored.pid)
            h = letter.stored.headers
            if topic.name != h["headrace-dead-topic"]:
                raise Violation(f"a dead letter of {h['headrace-dead-topic']} went to {topic.name}")
            group = next((self.groups[g] for g in topic.gids if self.groups[g].name == h["headrace-dead-group"]), None)
            old = int(h["headrace-dead-offset"])
            part = self.partitions[stored.pid]
            # Just before its old place in time; what retention took has none any more, and comes first.
            known_ms = part.log[min(part.start, part.end - 1)].stored.append_ns // MS
            old_ms = part.log[old].stored.append_ns // MS
            front_ms = max(1, old_ms - 1) if old_ms >= known_ms else 1
            self._enter(stored, group.gid if group else -1, front_ms if group else 0)
            self._remove(dead, offset, "dropped")
        if left:
            raise Violation(f"redrive lost dead letters {sorted(left)}")

    # -- the end ---------------------------------------------------------------------------------------------------

    def unfinished(self) -> list[str]:
        """What has not reached a final state."""
        return [
            f"message {pid}/{offset} in group {group.name} is {entry.state}"
            for group in self.groups.values()
            for pid, entries in group.open.items()
            for offset, entry in entries.items()
            if not self._maybe_final(group, entry)
        ]


def _taken(event: Event) -> set[tuple[int, int]]:
    """(grant, offset) of the receipts that a settle took."""
    if not isinstance(event.reply, d.SettleDone):
        return set()
    refused = {(run.pid, run.lease_id, offset) for run, _ in event.reply.refused for offset in run.span()}
    return {
        (part.uid, offset)
        for part in event.parts
        for offset in part.offsets
        if (part.pid, part.lease_id, offset) not in refused
    }


def _origin(copy: Stored) -> tuple[str, str, int, int]:
    h = copy.headers
    return (
        h["headrace-dead-topic"],
        h["headrace-dead-group"],
        int(h["headrace-dead-partition"]),
        int(h["headrace-dead-offset"]),
    )


_APPLY: dict[type[Any], Any] = {
    d.CreateTopic: Ledger._create_topic,
    d.CreateGroup: Ledger._create_group,
    d.DeleteGroup: Ledger._delete_group,
    d.Publish: Ledger._publish,
    d.LeaseUpTo: Ledger._lease,
    d.SettleMany: Ledger._settle,
    d.Join: Ledger._join,
    d.Leave: Ledger._leave,
    d.Seek: Ledger._seek,
    d.PauseGroup: Ledger._pause,
    d.ResumeGroup: Ledger._resume,
    d.Purge: Ledger._purge,
    d.Cancel: Ledger._cancel,
    d.Move: Ledger._move,
    d.FreeKey: Ledger._free_key,
    d.Trim: Ledger._trim,
    d.Redrive: Ledger._redrive,
}
