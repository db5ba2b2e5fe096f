"""A shard to tell stories with: publish, lease, ack, let time pass, and see where every message is.

``Stage`` drives a real ``Core`` over a memory journal under a manual clock. After every call it checks what must always
hold: each message of each group lies in exactly one container, the containers add up to the counts, the books balance.
``curtain`` (the fixture calls it when a test is over) checks the laws of the journal: a shard rebuilt from the journal
alone, and one restored from a snapshot, have the same state as the one that lived through it all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.batch import Message, encode
from headrace.clock import ManualClock
from headrace.config import GroupConfig, RetryConfig, TopicConfig
from headrace.delivery import (
    Backlog,
    Cancel,
    ChangeGroup,
    ChangeTopic,
    CreateGroup,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    FreeKey,
    Group,
    Join,
    LeaseUpTo,
    Leave,
    Move,
    Partition,
    PauseGroup,
    Publish,
    Purge,
    Receipts,
    Redrive,
    ResumeGroup,
    Seek,
    SettleMany,
    ShardState,
    Start,
    State,
    Topic,
    Trim,
    decode_facts,
    restore,
    snapshot,
    span_of,
)
from headrace.delivery.backlog import HELD
from headrace.errors import HeadraceError
from headrace.journal import Journal, MemoryJournal
from headrace.shard.core import FACTS, Core

__all__ = [
    "DAY",
    "HOUR",
    "MINUTE",
    "MS",
    "START_NS",
    "Delivery",
    "S",
    "Stage",
    "after",
    "plain",
    "retry",
    "settings_of",
]

MS = 1_000_000
S = 1_000 * MS
MINUTE = 60 * S
HOUR = 60 * MINUTE
DAY = 24 * HOUR
START_NS = 1_800_000_000_000_000_000

_CLEAR = {State.ACKED, State.DEAD, State.EXPIRED, State.CANCELLED, State.DROPPED, State.FILTERED}


class Delivery(NamedTuple):
    """One leased message, as its consumer sees it."""

    pid: int
    lease_id: int
    offset: int
    attempt: int
    deadline_ns: int
    value: str
    key: str | None
    headers: dict[str, str | bytes]
    priority: int
    group: str

    @property
    def receipt(self) -> Receipts:
        return Receipts(self.pid, self.lease_id, self.offset)


def retry(**settings: Any) -> RetryConfig:
    """Retry settings; spans are given without their unit in the name, in nanoseconds."""
    return RetryConfig(**settings)


def settings_of(**settings: Any) -> TopicConfig:
    return TopicConfig(**settings)


def plain(message: str | Message) -> Message:
    """``"A1"`` is the message A1 of key A, ``"a1"`` (in small letters) one without a key."""
    if isinstance(message, Message):
        return message
    return Message(message.encode(), key=message[0].encode() if message[0].isupper() else None)


def after(value: str, delay_ns: int, key: str | None = None, priority: int = 5) -> Message:
    """A message with a delay."""
    return Message(value.encode(), key=key.encode() if key else None, delay_ns=delay_ns, priority=priority)


class Stage:
    def __init__(self, journal: Journal | None = None) -> None:
        self.clock = ManualClock(START_NS)
        self.journal: Journal = MemoryJournal() if journal is None else journal
        self.core = Core(self.journal, self.clock)
        self.last: Topic | None = None

    # -- catalogue -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> ShardState:
        return self.core.state

    def do(self, command: Any) -> Any:
        """Execute a command and check the laws; refusals come back as values."""
        reply = self.core.execute(command).reply
        self.check()
        return reply

    def topic(self, name: str = "t", **settings: Any) -> Topic:
        tid = self.do(CreateTopic("default", name, TopicConfig(**settings)))
        assert type(tid) is int, tid
        self.last = self.state.topics[tid]
        return self.last

    def named(self, name: str) -> Topic:
        return self.state.by_name["default", name]

    def partition(self, index: int = 0, topic: str | None = None) -> Partition:
        return self._topic(topic).partitions[index]

    def _topic(self, name: str | None) -> Topic:
        if name is not None:
            return self.named(name)
        assert self.last is not None
        return self.state.topics[self.last.tid]

    def group(
        self,
        name: str,
        *,
        start: Start | None = None,
        durable: bool = True,
        topic: str | None = None,
        **settings: Any,
    ) -> Any:
        return self.do(
            CreateGroup(self._topic(topic).tid, name, GroupConfig(**settings), durable=durable, start=start or Start())
        )

    def the_group(self, name: str = "default", topic: str | None = None) -> Group:
        return self._topic(topic).groups[name]

    def backlog(self, group: str = "default", partition: int = 0, topic: str | None = None) -> Backlog:
        return self.the_group(group, topic).backlogs[self.partition(partition, topic).pid]

    def change_topic(self, **settings: Any) -> Any:
        return self.do(ChangeTopic(self._topic(None).tid, TopicConfig(**settings)))

    def change_group(self, name: str = "default", **settings: Any) -> Any:
        return self.do(ChangeGroup(self.the_group(name).gid, GroupConfig(**settings)))

    def delete_topic(self, topic: str | None = None) -> Any:
        return self.do(DeleteTopic(self._topic(topic).tid))

    def delete_group(self, name: str) -> Any:
        return self.do(DeleteGroup(self.the_group(name).gid))

    # -- messages ------------------------------------------------------------------------------------------------

    def publish(
        self, *messages: str | Message, partition: int = 0, topic: str | None = None, producer: tuple[int, int] = (0, 0)
    ) -> Any:
        batch = encode([plain(m) for m in messages], producer_id=producer[0], producer_seq=producer[1])
        return self.do(Publish(self.partition(partition, topic).pid, batch))

    def lease(
        self,
        most: int = 1,
        consumer: str = "c",
        group: str = "default",
        topic: str | None = None,
        lease_ns: int | None = None,
    ) -> list[Delivery]:
        grants = self.try_lease(most, consumer, group, topic, lease_ns)
        assert not isinstance(grants, HeadraceError), grants
        found = []
        for grant in grants:
            log = self.core.log(grant.pid)
            for offset in grant.offsets():
                batch = log.batch_at(offset)
                assert batch is not None
                view = batch.message(offset - batch.base_offset)
                found.append(
                    Delivery(
                        grant.pid,
                        grant.lease_id,
                        offset,
                        grant.attempts.get(offset, 1),
                        grant.deadline_ns,
                        view.value.decode(),
                        view.key.decode() if view.key is not None else None,
                        view.headers,
                        view.priority,
                        group if topic is None else f"{topic}:{group}",
                    )
                )
        return found

    def try_lease(
        self,
        most: int = 1,
        consumer: str = "c",
        group: str = "default",
        topic: str | None = None,
        lease_ns: int | None = None,
    ) -> Any:
        return self.do(LeaseUpTo(self.the_group(group, topic).gid, consumer, most, lease_ns))

    def values(self, most: int = 100, **where: Any) -> list[str]:
        return [delivery.value for delivery in self.lease(most, **where)]

    def take(self, value: str, **where: Any) -> Delivery:
        """Lease one message, which must be this one."""
        (delivery,) = self.lease(1, **where)
        assert delivery.value == value
        return delivery

    def settle(self, group: str = "default", **entries: Any) -> Any:
        return self.do(SettleMany(self.the_group(group).gid, **entries))

    def _gid(self, deliveries: Sequence[Delivery]) -> int:
        topic, _, group = deliveries[0].group.rpartition(":")
        return self.the_group(group, topic or None).gid

    def ack(self, *deliveries: Delivery) -> Any:
        return self._done(SettleMany(self._gid(deliveries), ack=[d.receipt for d in deliveries]))

    def nack(self, *deliveries: Delivery, delay: int | None = None, error: str = "") -> Any:
        return self._done(SettleMany(self._gid(deliveries), nack=[(d.receipt, delay, error) for d in deliveries]))

    def reject(self, *deliveries: Delivery, error: str = "") -> Any:
        return self._done(SettleMany(self._gid(deliveries), reject=[(d.receipt, error) for d in deliveries]))

    def release(self, *deliveries: Delivery) -> Any:
        return self._done(SettleMany(self._gid(deliveries), release=[d.receipt for d in deliveries]))

    def extend(self, *deliveries: Delivery, by: int) -> Any:
        return self._done(SettleMany(self._gid(deliveries), extend=[(d.receipt, by) for d in deliveries]))

    def _done(self, command: SettleMany) -> Any:
        """Settle, all of which must be accepted."""
        reply = self.do(command)
        assert not isinstance(reply, HeadraceError), reply
        assert not reply.refused, reply.refused
        return reply

    def join(self, consumer: str, group: str = "default") -> Any:
        return self.do(Join(self.the_group(group).gid, consumer))

    def leave(self, consumer: str, group: str = "default", *, clean: bool = True) -> Any:
        return self.do(Leave(self.the_group(group).gid, consumer, clean))

    def seek(self, group: str = "default", start: Start | None = None, **stop: Any) -> Any:
        return self.do(Seek(self.the_group(group).gid, start or Start(), **stop))

    def pause(self, group: str = "default", until_ns: int = 0) -> Any:
        return self.do(PauseGroup(self.the_group(group).gid, "ops", "maintenance", until_ns))

    def resume(self, group: str = "default") -> Any:
        return self.do(ResumeGroup(self.the_group(group).gid, "ops"))

    def purge(self, group: str | None = None) -> Any:
        gid = -1 if group is None else self.the_group(group).gid
        return self.do(Purge(self._topic(None).tid, gid))

    def cancel(self, *offsets: int, partition: int = 0) -> Any:
        return self.do(Cancel(self.partition(partition).pid, span_of(offsets)))

    def move(self, *offsets: int, due_ns: int, partition: int = 0) -> Any:
        return self.do(Move(self.partition(partition).pid, span_of(offsets), due_ns))

    def redrive(self, *offsets: int, topic: str, to: str | None = None) -> Any:
        tid = None if to is None else self.named(to).tid
        return self.do(Redrive(self.partition(0, topic).pid, span_of(offsets), tid=tid))

    def free_key(self, key_hash: int, group: str = "default") -> Any:
        return self.do(FreeKey(self.the_group(group).gid, self.partition().pid, key_hash))

    def trim(self, start: int) -> Any:
        return self.do(Trim(self.partition().pid, start))

    # -- time ----------------------------------------------------------------------------------------------------

    @property
    def now_ns(self) -> int:
        return self.core.clock.now_ns()

    def advance(self, span_ns: int, *, to: int = 0) -> None:
        """Let time pass, and do what came due, as the host's timer would."""
        self.clock.advance(span_ns or to - self.now_ns)
        for _ in range(10_000):
            wake_ns = self.core.tick()
            self.check()
            if wake_ns is None or wake_ns > self.now_ns:
                return
        raise AssertionError("the shard is never done with what is due")

    def restart(self, *, with_snapshot: bool = False) -> None:
        """The process dies; another one opens the journal."""
        self.journal.commit()
        if with_snapshot:
            position, data = self.core.take_snapshot()
            self.journal.save_snapshot(position, data)
        self.core = Core(self.journal, self.clock)
        self.check()

    # -- looking -------------------------------------------------------------------------------------------------

    def states(self, group: str = "default", partition: int = 0, topic: str | None = None) -> dict[int, State]:
        """Where each message of the group is."""
        return states_of(self.backlog(group, partition, topic))

    def state_of(self, offset: int, group: str = "default", partition: int = 0) -> State:
        return self.states(group, partition)[offset]

    def facts(self) -> list[Any]:
        """Every fact in the journal."""
        self.journal.commit()
        return [fact for frame in self.journal.read() if frame.kind == FACTS for fact in decode_facts(frame.body)[0]]

    def check(self) -> None:
        for backlog in self.state.backlogs():
            check_backlog(backlog)
        assert {lease_id for b in self.state.backlogs() for lease_id in b.leases} == set(self.state.leases)

    def curtain(self) -> None:
        """The laws of the journal."""
        live = meaning(self.state, self.now_ns)
        self.journal.commit()
        rebuilt = Core(copied(self.journal), self.clock)
        assert meaning(rebuilt.state, self.now_ns) == live
        assert meaning(restore(live), self.now_ns) == live


# -- what must always hold ---------------------------------------------------------------------------------------------


def states_of(backlog: Backlog) -> dict[int, State]:
    """Which container each message is in; two containers, or none, are an error."""
    found: dict[int, State] = {}

    def put(offsets: Iterable[int], state: State) -> None:
        for offset in offsets:
            assert backlog.start <= offset < backlog.end, f"{offset} in {state}: interest is {backlog.start}…"
            assert offset not in found, f"{offset} is {found[offset]} and {state}"
            found[offset] = state

    partition = backlog.partition
    put(backlog.fresh, State.READY)
    put(backlog.parked, State.READY)
    if backlog.throttle is not None:
        put(backlog.throttle.kept, State.READY)
    put(backlog.late_ready, State.READY)
    for lane in backlog.lanes:
        if lane is not None:
            put(lane.main, State.READY)
            put((offset for _, _, offset in lane.front), State.READY)
            put(lane.late_set, State.READY)
            entries = [offset for _, offset in lane.late]
            assert {*entries} >= {*lane.late_set}
    put(backlog.waiting, State.SCHEDULED)
    for lease in backlog.leases.values():
        assert lease.count == len(list(lease.span()))
        put(lease.span(), State.LEASED)
    mine = range(backlog.start, max(backlog.start, backlog.end))
    done = {*backlog.done}
    assert done <= {*mine}
    kept_out = {*backlog.filtered} & {*mine}
    put((o for o in partition.scheduled if o in mine and o not in kept_out), State.SCHEDULED)
    put(backlog.dead, State.DEAD)
    put(backlog.expired, State.EXPIRED)
    for offset in mine:
        if offset in found:
            assert (offset in done) == (found[offset] in _CLEAR), f"{offset} is {found[offset]}"
            continue
        assert offset in done or offset in kept_out, f"{offset} is nowhere"
        if offset in kept_out:
            found[offset] = State.FILTERED
        elif offset in backlog.dropped:
            found[offset] = State.DROPPED
        elif offset in backlog.cancelled:
            found[offset] = State.CANCELLED
        else:
            found[offset] = State.ACKED
    return found


def check_backlog(backlog: Backlog) -> None:
    found = list(states_of(backlog).values())
    assert backlog.drift() == 0
    assert found.count(State.READY) == backlog.ready_count
    assert found.count(State.LEASED) == backlog.leased_count == sum(lease.count for lease in backlog.leases.values())
    assert found.count(State.SCHEDULED) == backlog.scheduled_count
    assert found.count(State.DEAD) == backlog.dead_count
    assert found.count(State.EXPIRED) == backlog.expired_count
    assert found.count(State.CANCELLED) == backlog.cancelled_count
    assert found.count(State.DROPPED) == backlog.dropped_count
    assert found.count(State.ACKED) == backlog.acked_count
    assert found.count(State.FILTERED) == backlog.filtered_count
    for key, chain in backlog.chains.items():
        members = [chain] if type(chain) is int else list(chain)  # type: ignore[call-overload]
        assert members, f"key {key} has an empty chain"
        assert members[0] == HELD or members[0] not in backlog.parked


def meaning(state: ShardState, now_ns: int) -> bytes:
    """The snapshot, with those lifetimes marked as over that the next look at the clock would mark."""
    for partition in state.partitions.values():
        partition.lapsed.update([o for _, o in partition.lifetimes.pop_due(now_ns // MS, 1 << 40)])
        partition.lapsed &= partition.special
    return snapshot(state)


def copied(journal: Journal) -> MemoryJournal:
    """The frames of a journal in one of memory, to be opened without touching the original."""
    copy = MemoryJournal()
    for frame in journal.read():
        copy.append(frame.kind, bytes(frame.body))
    copy.commit()
    return copy


def summary(mapping: Mapping[int, State]) -> str:
    """States in the order of offsets, as their first letters."""
    return "".join(mapping[offset][0] for offset in sorted(mapping))
