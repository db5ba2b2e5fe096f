"""Why a message is where it is in a group: the answer to "why is it not delivered yet".

    state     where the message is: scheduled, ready, leased, acked, dead, expired, or out of the group's sight
    reasons   what would have to change for it to be handed out, every one that holds, the nearest first

Reads the state and changes nothing but indexes (``decide`` says which it may).
"""

from __future__ import annotations

from collections import deque

import msgspec

from headrace.delivery.backlog import HELD, Backlog, Lease
from headrace.delivery.lanes import Lane
from headrace.delivery.partition import Partition
from headrace.delivery.state import MS_NS
from headrace.delivery.throttle import Throttle
from headrace.delivery.topic import Group

__all__ = ["Explanation", "Reason", "due_ms_of", "explain"]


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that keeps a message from being handed out. Which fields are set follows from the code:

    not_due         until_ns                    it is scheduled
    retry           until_ns, attempts, text    it failed and waits; the error
    leased          consumer, since_ns, until_ns, attempts
    key_held        offset, state, consumer, since_ns, until_ns    an earlier message of its key goes first
    behind          count, lane                 so many messages go before it
    paused          consumer (by whom), text (why), since_ns, until_ns
    rate            until_ns                    the group's rate is used up
    concurrency     count                       so many are leased, and no more may be
    namespace_rate, namespace_concurrency       the same, of the whole namespace
    key_rate        until_ns                    the rate of its key is used up
    key_concurrency count                       so many of its key are leased, and no more may be
    in_flight       count                       the same for max_in_flight
    retry_before    until_ns, offset            order is by partition, and a retry of it waits
    handover        consumer                    its partition's former owner still holds leases
    no_owner                                    nobody owns its partition
    no_consumer                                 nobody asks for messages
    next                                        nothing stands in the way
    acked dead expired filtered other_group withdrawn purged before_group after_replay trimmed
    """

    code: str
    offset: int | None = None
    state: str = ""
    consumer: str = ""
    since_ns: int = 0
    until_ns: int = 0
    count: int = 0
    lane: int | None = None
    attempts: int = 0
    text: str = ""


class Explanation(msgspec.Struct, frozen=True):
    state: str
    reasons: tuple[Reason, ...]


def due_ms_of(partition: Partition, offset: int, deliver_at_ns: int | None) -> int:
    """When a scheduled message is due; ``deliver_at_ns`` is what it was published with."""
    moved = partition.moved.get(offset)
    return moved if moved is not None else -(-(deliver_at_ns or 0) // MS_NS)


def explain(
    group: Group, pid: int, offset: int, now_ns: int, *, deliver_at_ns: int | None = None, hungry: int | None = None
) -> Explanation:
    """Where message ``offset`` of partition ``pid`` is in the group, and why it is not handed out.

    ``hungry``: how many consumers ask for messages now; None where that is not known (then members count).
    """
    backlog = group.backlogs[pid]
    settled = _out_of_sight(backlog, offset) or _settled(backlog, offset)
    if settled is not None:
        return settled
    partition = backlog.partition
    if offset in partition.scheduled:
        due_ns = due_ms_of(partition, offset, deliver_at_ns) * MS_NS
        return Explanation("scheduled", (Reason("not_due", until_ns=due_ns), *_of_group(group, now_ns)))
    if offset in backlog.waiting:
        known = backlog.tries[offset]
        wait = Reason("retry", until_ns=known.due_ms * MS_NS, attempts=known.attempts, text=known.error)
        return Explanation("scheduled", (wait, *_of_group(group, now_ns)))
    lease = _lease_of(backlog, offset)
    if lease is not None:
        return Explanation("leased", (_leased(backlog, lease, offset),))
    reasons = [*_before(backlog, offset, now_ns), *_of_group(group, now_ns), *_of_partition(backlog, now_ns)]
    if hungry == 0 or (hungry is None and not group.members):
        reasons.append(Reason("no_consumer"))
    return Explanation("ready", tuple(reasons) or (Reason("next"),))


def _only(state: str, code: str) -> Explanation:
    return Explanation(state, (Reason(code),))


def _out_of_sight(backlog: Backlog, offset: int) -> Explanation | None:
    partition = backlog.partition
    if offset in backlog.filtered:
        return _only("filtered", "other_group" if offset in partition.private else "filtered")
    if offset < partition.start:
        return _only("trimmed", "trimmed")
    if offset < backlog.start:
        return _only("before_group", "before_group")
    if offset >= backlog.end:
        return _only("after_replay", "after_replay")
    return None


def _settled(backlog: Backlog, offset: int) -> Explanation | None:
    if offset not in backlog.done:
        return None
    if offset in backlog.dead:
        return _only("dead", "dead")
    if offset in backlog.expired:
        return _only("expired", "expired")
    if offset in backlog.partition.gone:
        return _only("withdrawn", "withdrawn")
    if backlog.acked_count:
        return _only("acked", "acked")
    return _only("purged", "purged")


def _lease_of(backlog: Backlog, offset: int) -> Lease | None:
    for lease in backlog.leases.values():
        if lease.first <= offset and (
            offset < lease.first + lease.count if lease.bits is None else offset in lease.bits
        ):
            return lease
    return None


def _attempt(backlog: Backlog, offset: int) -> int:
    known = backlog.tries.get(offset)
    return 1 if known is None else known.attempts


def _leased(backlog: Backlog, lease: Lease, offset: int) -> Reason:
    until_ns = (lease.later or {}).get(offset, lease.deadline_ns)
    return Reason(
        "leased",
        consumer=lease.consumer,
        since_ns=lease.at_ns,
        until_ns=until_ns,
        attempts=_attempt(backlog, offset),
    )


# -- what goes before a ready message --------------------------------------------------------------------------------


def _before(backlog: Backlog, offset: int, now_ns: int) -> list[Reason]:
    backlog.index()
    if backlog.keyed and offset in backlog.fresh:
        if backlog.partition.mixed:
            backlog.examine_all()
        else:
            backlog._examine_below(offset + 1)
    if offset in backlog.parked:
        held = _key_held(backlog, offset)
        return [held] if held is not None else []
    if backlog.throttle is not None and offset in backlog.throttle.kept:
        return [_key_full(backlog, backlog.throttle, offset, now_ns)]
    priority, ahead = _ahead(backlog, offset)
    return [Reason("behind", count=ahead, lane=priority)] if ahead else []


def _key_full(backlog: Backlog, throttle: Throttle, offset: int, now_ns: int) -> Reason:
    key = backlog.partition.key_of(offset)
    leased = throttle.leased.get(key, 0)
    if throttle.concurrency and leased >= throttle.concurrency:
        return Reason("key_concurrency", count=leased)
    return Reason("key_rate", until_ns=now_ns + throttle.key_wait_ns(key, now_ns))


def _key_held(backlog: Backlog, offset: int) -> Reason | None:
    chain = backlog.chains.get(backlog.partition.key_of(offset))
    if type(chain) is not deque:
        return None
    head = chain[0]
    if head == HELD:
        return Reason("key_held", state="dead")
    lease = _lease_of(backlog, head)
    if lease is not None:
        held = _leased(backlog, lease, head)
        return msgspec.structs.replace(held, code="key_held", offset=head, state="leased")
    if head in backlog.waiting:
        known = backlog.tries[head]
        return Reason(
            "key_held",
            offset=head,
            state="scheduled",
            until_ns=known.due_ms * MS_NS,
            attempts=known.attempts,
            text=known.error,
        )
    return Reason("key_held", offset=head, state="ready")


def _ahead(backlog: Backlog, offset: int) -> tuple[int, int]:
    """The lane a ready message is in, and how many messages go before it: all of higher lanes, in every partition, and
    those before it in its own."""
    mine = next((number for number, lane in enumerate(backlog.lanes) if lane and offset in lane), None)
    if mine is None:
        return backlog.partition.priority_of(offset), 0
    lane = backlog.lanes[mine]
    ahead = _ahead_in_lane(backlog, lane, offset) if lane is not None else 0
    for other in backlog.group.backlogs.values():
        ahead += sum(len(each) for each in other.lanes[:mine] if each)
    return mine, ahead


def _ahead_in_lane(backlog: Backlog, lane: Lane, offset: int) -> int:
    first_after, appended_ms = backlog.partition.first_after, backlog.partition.appended_ms
    if offset in lane.main:
        before = int(lane.main.rank(offset)) - 1
        at_ms = appended_ms(offset)
        return before + len(lane.front) + sum(late_ms < at_ms for late_ms, _ in lane.ordered(first_after))
    before = 0
    for at_ms, other in lane.ordered(first_after):
        if other == offset:
            if any(entry[2] == other for entry in lane.front):
                return before
            limit = first_after(at_ms)
            return before + (int(lane.main.rank(limit - 1)) if limit else 0)
        before += 1
    return before


# -- what keeps a group or a partition from handing anything out -----------------------------------------------------


def _of_group(group: Group, now_ns: int) -> list[Reason]:
    reasons: list[Reason] = []
    pause, policy = group.pause, group.policy
    if pause is not None:
        reasons.append(
            Reason("paused", consumer=pause.by, text=pause.why, since_ns=pause.at_ns, until_ns=pause.until_ns)
        )
    if policy.rate and (wait_ns := group.bucket.wait_ns(1, policy.rate, policy.rate, now_ns)):
        reasons.append(Reason("rate", until_ns=now_ns + wait_ns))
    space = group.topic.space
    if wait_ns := space.wait_ns(now_ns):
        reasons.append(Reason("namespace_rate", until_ns=now_ns + wait_ns))
    if space.settings.concurrency and (theirs := space.leased_count) >= space.settings.concurrency:
        reasons.append(Reason("namespace_concurrency", count=theirs))
    leased = group.leased_count
    if policy.concurrency and leased >= policy.concurrency:
        reasons.append(Reason("concurrency", count=leased))
    if leased >= policy.max_in_flight:
        reasons.append(Reason("in_flight", count=leased))
    return reasons


def _of_partition(backlog: Backlog, now_ns: int) -> list[Reason]:
    """Where order is by partition."""
    group = backlog.group
    if not group.policy.fifo:
        return []
    reasons: list[Reason] = []
    if backlog.waiting:
        first = backlog.waiting.min()
        known = backlog.tries[first]
        reasons.append(Reason("retry_before", offset=first, until_ns=known.due_ms * MS_NS, attempts=known.attempts))
    owner = group.owners.get(backlog.partition.pid)
    if owner is None:
        reasons.append(Reason("no_owner"))
        return reasons
    former = sorted({lease.consumer for lease in backlog.leases.values() if lease.consumer != owner})
    if former:
        reasons.append(Reason("handover", consumer=former[0]))
    return reasons
