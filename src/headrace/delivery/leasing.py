"""Deciding a lease: which messages, of which partitions, a consumer gets.

Lanes first: everything of a higher lane, over all partitions, before anything of a lower one (``aging`` lets a message
that has waited too long go before its betters, for at most half of a grant). Partitions take turns by the lease number,
each giving as much as is wanted, so that a grant is few runs and over many grants all are served alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.delivery import facts as f
from headrace.delivery.backlog import Backlog
from headrace.delivery.commands import Grant, LeaseUpTo, Outcome, refuse
from headrace.delivery.lanes import Lane
from headrace.delivery.members import assignment, heard_of
from headrace.delivery.offsets import EMPTY, Span
from headrace.delivery.partition import NORMAL
from headrace.delivery.state import MS_NS, State
from headrace.delivery.topic import Group
from headrace.errors import InvalidArgument, UnknownGroup
from headrace.limits import CONSUMER_NAME_BYTES_MAX, LEASE_MESSAGES_MAX

__all__ = ["check_lease", "decide_lease"]

_NO_ATTEMPTS: dict[int, int] = {}


def decide_lease(state: State, command: LeaseUpTo, now_ns: int) -> Outcome:
    group = state.groups.get(command.gid)
    if group is None:
        return refuse(UnknownGroup(f"group {command.gid} is not of this shard"))
    policy = group.policy
    lease_ns = policy.lease_ns if command.lease_ns is None else command.lease_ns
    if command.most < 1:
        return refuse(InvalidArgument(f"lease of {command.most} messages: at least 1"))
    if not 0 < lease_ns <= policy.max_lease_ns:
        return refuse(_absurd(lease_ns, policy.max_lease_ns))
    if len(command.consumer) > CONSUMER_NAME_BYTES_MAX:
        return refuse(InvalidArgument(f"a consumer name of {len(command.consumer)} characters: at most 255"))
    if group.pause is not None:
        return Outcome([], [])
    if policy.plain and len(group.backlogs) == 1 and not group.topic.space.limited:
        return _lease_plain(state, group, command, now_ns, now_ns + lease_ns)
    most = min(command.most, LEASE_MESSAGES_MAX, policy.max_in_flight - group.leased_count)
    most = group.affordable(most, now_ns)
    facts: list[f.Fact] = []
    backlogs: Iterable[Backlog] = group.backlogs.values()
    if policy.fifo:
        facts = heard_of(group, command.consumer, now_ns)
        owners = assignment(facts, group)
        me = command.consumer
        backlogs = [b for b in backlogs if owners.get(b.partition.pid) == me and _flows(b, me)]
    if most <= 0:
        return Outcome(facts, [])
    if len(group.backlogs) > 1:
        turns = list(backlogs)
        turn = state.next_lease_id % len(turns) if turns else 0
        backlogs = turns[turn:] + turns[:turn]
    for backlog in backlogs:
        if not backlog.indexed or backlog.fresh:
            missing = _look(backlog, most)
            if missing is not None:
                return Outcome([], None, needs_columns=missing)
        if backlog.throttle is not None:
            backlog.keep_out(most, now_ns)
    grants: list[Grant] = []
    deadline_ns = now_ns + lease_ns
    lease_id = state.next_lease_id
    for lane_number, backlog, lane, share in _places(state, group, backlogs, most, now_ns):
        span, order = lane.peek(min(share, most), backlog.partition.first_after)
        if not span.count:
            continue
        fact, grant = _granted(backlog, span, order, lane_number, lease_id, command.consumer, now_ns, deadline_ns)
        facts.append(fact)
        grants.append(grant)
        if policy.auto_ack:
            facts.append(f.Acked(group.gid, fact.pid, lease_id, span.first, span.count, fact.bits, now_ns))
        lease_id += 1
        most -= span.count
        if most <= 0:
            break
    return Outcome(facts, grants)


def _lease_plain(state: State, group: Group, command: LeaseUpTo, now_ns: int, deadline_ns: int) -> Outcome:
    """One partition and nothing in the way: what most groups are."""
    (backlog,) = group.backlogs.values()
    most = group.policy.max_in_flight - backlog.leased_count
    if command.most < most:
        most = command.most
    if most > LEASE_MESSAGES_MAX:
        most = LEASE_MESSAGES_MAX
    if most <= 0:
        return Outcome([], [])
    if not backlog.indexed or backlog.fresh:
        missing = _look(backlog, most)
        if missing is not None:
            return Outcome([], None, needs_columns=missing)
    consumer, lease_id = command.consumer, state.next_lease_id
    first_after = backlog.partition.first_after
    if not backlog.partition.mixed:
        lane = backlog.lanes[NORMAL]
        span, order = (EMPTY, ()) if lane is None else lane.peek(most, first_after)
        if not span.count:
            return Outcome([], [])
        fact, grant = _granted(backlog, span, order, NORMAL, lease_id, consumer, now_ns, deadline_ns)
        return Outcome([fact], [grant])
    facts: list[f.Fact] = []
    grants: list[Grant] = []
    for number, lane in enumerate(backlog.lanes):
        if lane is None:
            continue
        span, order = lane.peek(most, first_after)
        if not span.count:
            continue
        fact, grant = _granted(backlog, span, order, number, lease_id, consumer, now_ns, deadline_ns)
        facts.append(fact)
        grants.append(grant)
        most -= span.count
        if most <= 0:
            break
        lease_id += 1
    return Outcome(facts, grants)


def _granted(
    backlog: Backlog,
    span: Span,
    order: Sequence[int],
    lane: int,
    lease_id: int,
    consumer: str,
    now_ns: int,
    deadline_ns: int,
) -> tuple[f.Leased, Grant]:
    pid = backlog.partition.pid
    bits = b"" if span.bits is None else span.bits.serialize()
    attempts = _NO_ATTEMPTS
    if backlog.tries:
        tries = backlog.tries
        attempts = {offset: tries[offset].attempts + 1 for offset in span if offset in tries}
    return (
        f.Leased(backlog.group.gid, pid, lease_id, consumer, span.first, span.count, bits, now_ns, deadline_ns, lane),
        Grant(pid, lease_id, span, deadline_ns, attempts, order),
    )


def check_lease(lease_ns: int, max_lease_ns: int) -> None:
    """Raises what a lease of this span would be refused with."""
    if not 0 < lease_ns <= max_lease_ns:
        raise _absurd(lease_ns, max_lease_ns)


def _absurd(lease_ns: int, max_lease_ns: int) -> InvalidArgument:
    return InvalidArgument(f"a lease of {lease_ns / 1e9}s: must be over 0s and up to {max_lease_ns / 1e9}s (max_lease)")


def _flows(backlog: Backlog, owner: str) -> bool:
    """Where order is by partition: nothing while a retry waits, nor while a former owner still has leases."""
    return not backlog.waiting and all(lease.consumer == owner for lease in backlog.leases.values())


def _look(backlog: Backlog, most: int) -> tuple[int, int, int] | None:
    """Make sure the lanes hold ``most`` messages if there are as many; or say which columns are missing for that."""
    partition = backlog.partition
    if backlog.fresh:
        first = backlog.fresh.min()
        if first < partition.columns_from:
            return partition.pid, first, partition.columns_from
    if not backlog.indexed:
        backlog.index()
    if backlog.keyed:
        backlog.examine(most)
    return None


def _places(
    state: State, group: Group, backlogs: Iterable[Backlog], most: int, now_ns: int
) -> Iterable[tuple[int, Backlog, Lane, int]]:
    """Where to take from, in order: (lane number, backlog, lane, at most how many)."""
    chosen = list(backlogs)
    aging_ns = group.policy.aging_ns
    if aging_ns and (most > 1 or state.next_lease_id & 1):
        before_ms = (now_ns - aging_ns) // MS_NS
        overdue = []
        for backlog in chosen:
            for number, lane in enumerate(backlog.lanes):
                head = lane.head(backlog.partition.appended_ms) if lane else None
                if head is not None and head[0] <= before_ms:
                    overdue.append((head[0], number, backlog))
        if overdue:
            _, number, backlog = min(overdue, key=lambda entry: entry[:2])
            lane = backlog.lanes[number]
            if lane is not None:
                others = sum(len(other) for _, _, other in _by_lane(chosen) if other is not lane)
                yield number, backlog, lane, max(1, most // 2, most - others)
                # The same lane may be asked again below: what the first grant takes is not gone yet, so leave it out.
                for other_number, other_backlog, other_lane in _by_lane(chosen):
                    if other_backlog is not backlog or other_number != number:
                        yield other_number, other_backlog, other_lane, most
                return
    for number, backlog, lane in _by_lane(chosen):
        yield number, backlog, lane, most


def _by_lane(backlogs: list[Backlog]) -> Iterable[tuple[int, Backlog, Lane]]:
    if len(backlogs) == 1:
        backlog = backlogs[0]
        for number, lane in enumerate(backlog.lanes):
            if lane is not None:
                yield number, backlog, lane
        return
    for number in range(10):
        for backlog in backlogs:
            lane = backlog.lanes[number]
            if lane is not None:
                yield number, backlog, lane
