"""Who is in a group, and where order is by partition, who owns which partition.

Consumers sorted by name share the partitions in contiguous runs: ten over three are 0–3, 4–6, 7–9 or, as here, the
earlier ones get the shorter runs: 0–2, 3–5, 6–9. A partition that moves while its former owner still has leases pauses
until those are settled, at most ``HANDOVER_NS``; all others go on. A member that has not asked for anything for a while
has left.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.delivery import facts as f
from headrace.delivery.state import State
from headrace.delivery.topic import Group
from headrace.limits import HANDOVER_NS, MEMBER_SILENCE_NS

__all__ = ["assign", "assignment", "gone_silent", "heard_of", "reassigned", "share_credit"]


def assign(consumers: Sequence[str], partitions: Sequence[int]) -> dict[int, str]:
    """Contiguous runs, as even as can be.

    >>> [list(assign(["a", "b", "c"], range(10)).values()).count(c) for c in "abc"]
    [3, 3, 4]
    """
    if not consumers:
        return {}
    members, count = sorted(consumers), len(partitions)
    return {
        pid: members[number]
        for number in range(len(members))
        for pid in partitions[number * count // len(members) : (number + 1) * count // len(members)]
    }


def heard_of(group: Group, consumer: str, now_ns: int) -> list[f.Fact]:
    """A consumer asks for work: it is a member from now on, and that may move partitions."""
    if consumer in group.members:
        group.members[consumer] = now_ns
        return []
    joined: list[f.Fact] = [f.Joined(group.gid, consumer, now_ns)]
    return joined + reassigned(group, [*group.members, consumer], now_ns)


def reassigned(group: Group, consumers: Sequence[str], now_ns: int) -> list[f.Fact]:
    """The fact of a new assignment, if it differs from the present one."""
    if not group.policy.fifo:
        return []
    pids = [partition.pid for partition in group.topic.partitions]
    owners = assign(consumers, pids)
    if owners == group.owners:
        return []
    return [f.Assigned(group.gid, sorted(owners.items()), now_ns, now_ns + HANDOVER_NS)]


def assignment(facts: Sequence[f.Fact], group: Group) -> dict[int, str]:
    """The owners once ``facts`` have happened; a partition that has just moved is not yet its new owner's."""
    for fact in facts:
        if type(fact) is f.Assigned:
            return {
                pid: owner
                for pid, owner in fact.owners
                if group.owners.get(pid, owner) == owner or not group.backlogs[pid].leased_count
            }
    return group.owners


def gone_silent(state: State, group: Group, now_ns: int) -> list[str]:
    """Members that own something, have no lease and have not asked for work for ``MEMBER_SILENCE_NS``."""
    if not group.policy.fifo:
        return []
    busy = {lease.consumer for backlog in group.backlogs.values() for lease in backlog.leases.values()}
    return [
        consumer
        for consumer, heard_ns in sorted(group.members.items())
        if consumer not in busy and now_ns - heard_ns >= MEMBER_SILENCE_NS
    ]


def share_credit(credits: dict[str, int], ready: int, push: str, turn: int, busy: dict[str, int]) -> dict[str, int]:
    """How many of ``ready`` messages each consumer with credit is to be pushed; ``turn`` is any number that changes.

    round_robin: even shares, the remainder going round; least_busy: those with the least in flight first, up to the
    level of the next; random: each message to a consumer drawn by ``turn``.
    """
    names = sorted(name for name, credit in credits.items() if credit > 0)
    given = dict.fromkeys(names, 0)
    left = min(ready, sum(credits[name] for name in names))
    if not names or left <= 0:
        return {}
    if push == "least_busy":
        load = {name: busy.get(name, 0) for name in names}
        while left:
            free = [name for name in names if given[name] < credits[name]]
            name = min(free, key=lambda n: (load[n] + given[n], n))
            level = min((load[n] + given[n] for n in free if n != name), default=load[name] + given[name] + left)
            step = min(left, credits[name] - given[name], max(1, level - load[name] - given[name]))
            given[name] += step
            left -= step
    elif push == "random":
        seed = turn
        while left:
            free = [name for name in names if given[name] < credits[name]]
            seed = (seed * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
            given[free[(seed >> 33) % len(free)]] += 1
            left -= 1
    else:
        while left:
            free = [name for name in names if given[name] < credits[name]]
            share, rest = divmod(left, len(free))
            for number, name in enumerate(free):
                extra = 1 if (number - turn) % len(free) < rest else 0
                step = min(share + extra, credits[name] - given[name])
                given[name] += step
                left -= step
    return {name: count for name, count in given.items() if count}
