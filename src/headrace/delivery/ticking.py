"""Doing what is due: delays, backoffs, lease expiry, lifetimes, pauses and hand-overs. Bounded work a call.

Leases come first and alone where something has to die (deaths need their messages' contents, and nothing taken from a
calendar may be decided twice). What was taken out of a calendar is checked against the set it is an index of: leftovers
of cancelled, moved, settled or forgotten messages are passed over here.
"""

from __future__ import annotations

from pyroaring import BitMap64

from headrace.delivery import facts as f
from headrace.delivery.backlog import Lease
from headrace.delivery.commands import Death, Outcome, Tick
from headrace.delivery.members import gone_silent, reassigned
from headrace.delivery.offsets import Span, span_of
from headrace.delivery.partition import Partition
from headrace.delivery.settling import failed, give_back, outlived_expire
from headrace.delivery.state import (
    BACKOFFS,
    HANDOVERS,
    LIFETIMES,
    MEMBERS,
    MS_NS,
    OUTLIVING,
    PAUSES,
    SCHEDULE,
    State,
)
from headrace.limits import MEMBER_SILENCE_NS

__all__ = ["decide_tick", "undo_tick"]


def decide_tick(state: State, command: Tick, now_ns: int) -> Outcome:
    facts: list[f.Fact] = []
    deaths: list[Death] = []
    room = command.most
    for lease in state.leases_over(now_ns):
        if _lapsing(state, lease.backlog.partition, now_ns, room, facts):
            break  # lifetimes are checked first: who has outlived its own is known before anybody fails
        over = _over(lease, now_ns)
        if not over.count:
            state.watch_anew(lease)  # only messages that were extended on their own are left
            continue
        failed(lease, over, now_ns, "lease_expired", "", None, facts, deaths)
        if not command.bury:
            deaths.clear()
        room -= over.count
        if room <= 0 or (lease.backlog.group.policy.fifo and (facts or deaths)):
            break  # by partition: what one expiry takes back must be gone before the next is looked at
    if deaths or facts:
        return Outcome(outlived_expire(state, facts, now_ns), deaths=deaths)
    now_ms = now_ns // MS_NS
    looked: list[tuple[int, int, int]] = []
    touched: set[int] = set()
    for source in state.pop_alarms(now_ms):
        kind, first, second = source
        pid = 0 if kind in (PAUSES, MEMBERS) else first if kind in (SCHEDULE, LIFETIMES, OUTLIVING) else second
        if room <= 0 or pid in touched:
            # The facts so far are about to change what there is to be seen in this partition.
            state.arm(*source, now_ms)
            continue
        looked.append(source)
        before = len(facts)
        if kind == SCHEDULE:
            room -= _due(state, first, now_ms, room, facts)
        elif kind == BACKOFFS:
            room -= _backoffs(state, first, second, now_ms, room, facts)
        elif kind == LIFETIMES:
            room -= _lifetimes(state, first, now_ms, now_ns, room, facts)
        elif kind == OUTLIVING:
            room -= _outliving(state, first, now_ns, facts)
        elif kind == PAUSES:
            _pause(state, first, now_ns, facts)
        elif kind == HANDOVERS:
            _handover(state, first, second, now_ns, facts)
        elif kind == MEMBERS:
            _members(state, first, now_ns, facts)
        if pid and len(facts) > before:
            room -= len(facts) - before
            touched.add(pid)
    return Outcome(facts, looked=looked)


def undo_tick(state: State, outcome: Outcome, now_ns: int) -> None:
    """The facts of a Tick could not be written: what deciding took out of the indexes goes back."""
    for fact in outcome.facts:
        if type(fact) is f.Due:
            state.partitions[fact.pid].schedule.add_many(zip(fact.due_ms(), fact.offsets, strict=True))
        elif type(fact) is f.BackoffEnded:
            backoffs = state.groups[fact.gid].backlogs[fact.pid].backoffs
            backoffs.add_many(zip(fact.due_ms(), fact.offsets, strict=True))
        elif type(fact) is f.Lapsed:
            partition = state.partitions[fact.pid]
            for offset in fact.span():
                partition.lifetimes.add(partition.ends.get(offset, fact.at_ns // MS_NS), offset)
            state.arm(LIFETIMES, fact.pid, 0, now_ns // MS_NS)
    for kind, first, second in outcome.looked:
        if kind == OUTLIVING and first in state.partitions:
            state.partitions[first].pass_lifetimes(state.partitions[first].start)
        state.arm(kind, first, second, now_ns // MS_NS)


def _lapsing(state: State, partition: Partition, now_ns: int, room: int, facts: list[f.Fact]) -> bool:
    """Whether lifetimes that are over have to be noted first; that is begun if nothing else is under way."""
    now_ms = now_ns // MS_NS
    while (due_ms := partition.lifetimes.next_due_ms()) is not None and due_ms <= now_ms:
        if facts:
            return True
        _lifetimes(state, partition.pid, now_ms, now_ns, room, facts)
    return bool(facts) and type(facts[0]) is f.Lapsed


def _over(lease: Lease, now_ns: int) -> Span:
    later = lease.later
    if not later:
        return lease.span() if lease.deadline_ns <= now_ns else Span(0, 0)
    return span_of([offset for offset in lease.span() if later.get(offset, lease.deadline_ns) <= now_ns])


def _due(state: State, pid: int, now_ms: int, room: int, facts: list[f.Fact]) -> int:
    partition = state.partitions.get(pid)
    if partition is None:
        return 0
    scheduled, moved = partition.scheduled, partition.moved
    taken = partition.schedule.pop_due(now_ms, room)
    due = [(at_ms, offset) for at_ms, offset in taken if offset in scheduled and moved.get(offset, at_ms) == at_ms]
    due = list(dict.fromkeys(due))  # one that was moved to and fro has two entries for the same time
    if due:
        offsets = [offset for _, offset in due]
        facts.append(f.Due(pid, offsets, now_ms, _lateness(due, now_ms)))
        # A message may outlive its own delay: then it comes due and expires in one step.
        _expire(state, pid, BitMap64(offsets) & partition.lapsed, now_ms * MS_NS, facts, coming_due=True)
    state.arm(SCHEDULE, pid, 0, partition.schedule.next_due_ms())
    return len(taken)


def _lateness(due: list[tuple[int, int]], now_ms: int) -> list[int]:
    """Order is by due time, not by when somebody looked."""
    return [now_ms - at_ms for at_ms, _ in due] if due[0][0] < now_ms else []


def _backoffs(state: State, gid: int, pid: int, now_ms: int, room: int, facts: list[f.Fact]) -> int:
    group = state.groups.get(gid)
    backlog = group.backlogs.get(pid) if group is not None else None
    if backlog is None:
        return 0
    waiting, tries = backlog.waiting, backlog.tries
    taken = backlog.backoffs.pop_due(now_ms, room)
    due = [(at_ms, offset) for at_ms, offset in taken if offset in waiting and tries[offset].due_ms == at_ms]
    if due:
        facts.append(f.BackoffEnded(gid, pid, [offset for _, offset in due], now_ms, _lateness(due, now_ms)))
    state.arm(BACKOFFS, gid, pid, backlog.backoffs.next_due_ms())
    return len(taken)


def _lifetimes(state: State, pid: int, now_ms: int, now_ns: int, room: int, facts: list[f.Fact]) -> int:
    partition = state.partitions.get(pid)
    if partition is None:
        return 0
    taken = partition.lifetimes.pop_due(now_ms, room)
    over = BitMap64([offset for at_ms, offset in taken if partition.ends_at(at_ms, offset)])
    if over:
        facts.append(f.Lapsed(pid, *span_of(over).packed(), now_ns))
        _expire(state, pid, over, now_ns, facts)
    state.arm(LIFETIMES, pid, 0, partition.lifetimes.next_due_ms())
    return len(taken)


def _outliving(state: State, pid: int, now_ns: int, facts: list[f.Fact]) -> int:
    partition = state.partitions.get(pid)
    if partition is None:
        return 0
    bound = partition.outlived_to(now_ns)
    before = len(facts)
    for group in partition.topic.groups.values():
        over = group.backlogs[pid].unleased_below(bound)
        over -= partition.special
        if over:
            facts.append(f.Expired(group.gid, pid, 0, *span_of(over).packed(), now_ns))
    partition.pass_lifetimes(bound)
    state.arm(OUTLIVING, pid, 0, partition.next_outliving_ms())
    return len(facts) - before


def _expire(
    state: State, pid: int, over: BitMap64, now_ns: int, facts: list[f.Fact], *, coming_due: bool = False
) -> None:
    if not over:
        return
    partition = state.partitions[pid]
    for group in partition.topic.groups.values():
        backlog = group.backlogs[pid]
        wanted = over - backlog.done
        wanted -= backlog.leased_bits()
        if not coming_due:
            wanted -= partition.scheduled
        wanted.remove_range(0, backlog.start)
        wanted.remove_range(backlog.end, max(backlog.end, partition.end) + 1)
        if wanted:
            facts.append(f.Expired(group.gid, pid, 0, *span_of(wanted).packed(), now_ns))


def _pause(state: State, gid: int, now_ns: int, facts: list[f.Fact]) -> None:
    group = state.groups.get(gid)
    if group is None or group.pause is None or not group.pause.until_ns:
        return
    if group.pause.until_ns <= now_ns:
        facts.append(f.Resumed(gid, "until", now_ns))
    else:
        state.arm(PAUSES, gid, 0, -(-group.pause.until_ns // MS_NS))


def _handover(state: State, gid: int, pid: int, now_ns: int, facts: list[f.Fact]) -> None:
    """The former owner had its time: what it still has is given back."""
    group = state.groups.get(gid)
    if group is None or pid not in group.backlogs:
        return
    owner = group.owners.get(pid)
    for lease in list(group.backlogs[pid].leases.values()):
        if lease.consumer != owner:
            span = lease.span()
            own: list[f.Fact] = []
            give_back(lease, span, now_ns, "handover", own)
            facts.extend(outlived_expire(state, own[:1], now_ns))


def _members(state: State, gid: int, now_ns: int, facts: list[f.Fact]) -> None:
    group = state.groups.get(gid)
    if group is None:
        return
    silent = gone_silent(state, group, now_ns)
    facts.extend(f.Left(gid, consumer, now_ns) for consumer in silent)
    if len(silent) < len(group.members):
        state.arm(MEMBERS, gid, 0, (now_ns + MEMBER_SILENCE_NS) // MS_NS)
    if silent:
        facts.extend(reassigned(group, [name for name in group.members if name not in silent], now_ns))
