"""Deciding deaths and resurrections: moving to the dead letters, and back.

A death is one record: the message leaves its group and its copy enters the dead-letter topic, or neither. The copy
keeps key, value and headers and says in headers of its own where it comes from and what happened to it. Headers of an
earlier death are replaced; a redriven message loses them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from headrace.batch import Batch, Message, MessageView, encode
from headrace.config import GroupConfig, TopicConfig
from headrace.delivery import facts as f
from headrace.delivery.backlog import Backlog
from headrace.delivery.commands import Bury, Death, Outcome, PublishDone, Redrive, refuse
from headrace.delivery.offsets import Span, span_of
from headrace.delivery.partition import Partition
from headrace.delivery.publishing import filtered_by_groups
from headrace.delivery.state import MS_NS, State
from headrace.delivery.topic import Topic
from headrace.errors import InvalidArgument, UnknownTopic
from headrace.limits import BATCH_MESSAGES_MAX

__all__ = ["REDRIVEN_FROM", "decide_bury", "decide_redrive", "origin_of", "without_marks"]

_MARK: Final = "headrace-dead-"
TOPIC, PARTITION, OFFSET, ID, GROUP, REASON, ATTEMPTS, FIRST, LAST, ERROR, CONSUMER = (
    _MARK + name
    for name in (
        "topic",
        "partition",
        "offset",
        "id",
        "group",
        "reason",
        "attempts",
        "first-delivery",
        "last-delivery",
        "error",
        "consumer",
    )
)

REDRIVEN_FROM: Final = "headrace-redriven-from"
"""A header of a redriven message: topic/partition/offset of the dead letter it was."""


def decide_bury(state: State, command: Bury, now_ns: int) -> Outcome:
    facts: list[f.Fact] = []
    copies: dict[int, tuple[Topic, list[tuple[f.Died, Message]]]] = {}  # dead-letter partition -> what goes there
    created: dict[tuple[str, str], int] = {}
    died: list[f.Died] = []
    deaths = _with_followers(state, command.deaths, now_ns)
    if command.contents is None:
        return Outcome([], needs=[(death.pid, death.offset) for death in deaths])
    for death in deaths:
        backlog = state.groups[death.gid].backlogs[death.pid]
        fact = _death(backlog, death, now_ns)
        died.append(fact)
        policy = backlog.group.policy
        message = command.contents.get((death.pid, death.offset))
        if not policy.dead_letters or message is None:
            continue
        topic = backlog.group.topic
        pid = _dead_letter_partition(state, topic, policy.dead_letter_topic, created, facts, now_ns)
        copies.setdefault(pid, (topic, []))[1].append((fact, _copy(backlog, death, fact, message)))
    batches: list[Batch] = []
    for pid, (_, entries) in copies.items():
        partition = state.partitions.get(pid)
        base = command.ends.get(pid, partition.end if partition is not None else 0)
        for start in range(0, len(entries), BATCH_MESSAGES_MAX):
            part = entries[start : start + BATCH_MESSAGES_MAX]
            batch = encode([message for _, message in part])
            batch = batch.stamp(base, state.take_ids(len(part), now_ns), now_ns)
            for number, (fact, _) in enumerate(part):
                fact.to_pid, fact.to_offset = pid, base + number
            base += len(part)
            filtered = filtered_by_groups(partition.topic, batch) if partition is not None else []
            facts.append(f.Published(pid, batch.size_bytes, filtered))
            batches.append(batch)
    facts.extend(died)
    return Outcome(facts, died, batches)


def _with_followers(state: State, deaths: Sequence[Death], now_ns: int) -> list[Death]:
    """Where on_dead is "follow", the messages of the same key go with the one that died, behind it.

    Lifetimes come first: who has outlived its own stays, and expires as soon as that is looked at.
    """
    everything: list[Death] = []
    following: set[tuple[int, int, int]] = set()
    for death in deaths:
        everything.append(death)
        backlog = state.groups[death.gid].backlogs[death.pid]
        if backlog.group.policy.on_dead != "follow" or not backlog.keyed:
            continue
        for offset in backlog.followers(death.offset):
            # Two of a key die together where they were handed out before order was by key.
            over = backlog.partition.lifetime_over(offset, now_ns)
            if not over and (death.gid, death.pid, offset) not in following:
                following.add((death.gid, death.pid, offset))
                everything.append(Death(death.gid, death.pid, 0, offset, "followed", death.error))
    return everything


def _death(backlog: Backlog, death: Death, now_ns: int) -> f.Died:
    known = backlog.tries.get(death.offset)
    attempts = known.attempts if known is not None else 1 if death.lease_id else 0
    return f.Died(
        *(death.gid, death.pid, death.lease_id, death.offset, death.reason, death.error, attempts, now_ns),
        cause=death.cause,
    )


def _copy(backlog: Backlog, death: Death, fact: f.Died, message: MessageView) -> Message:
    partition, group = backlog.partition, backlog.group
    known = backlog.tries.get(death.offset)
    lease = backlog.leases.get(death.lease_id)
    first_ns = known.first_ns if known is not None else lease.at_ns if lease is not None else 0
    last_ns = lease.at_ns if lease is not None else 0
    headers = without_marks(message.headers)
    headers |= {
        TOPIC: group.topic.name,
        PARTITION: str(partition.index),
        OFFSET: str(death.offset),
        ID: str(message.id),
        GROUP: group.name,
        REASON: death.reason,
        ATTEMPTS: str(fact.attempts),
        FIRST: str(first_ns // MS_NS),
        LAST: str(last_ns // MS_NS),
        ERROR: death.error or (known.error if known is not None else ""),
        CONSUMER: lease.consumer if lease is not None else "",
    }
    return Message(message.value, message.key, headers, message.priority, timestamp_ns=message.timestamp_ns)


def origin_of(headers: Mapping[str, str | bytes]) -> dict[str, str]:
    """What the headers of a dead letter say about it: topic, partition, offset, id, group, reason, attempts,
    first-delivery, last-delivery, error, consumer; empty for a message that is none."""
    found = {name.removeprefix(_MARK): value for name, value in headers.items() if name.startswith(_MARK)}
    return {
        name: value if isinstance(value, str) else value.decode("utf-8", "replace") for name, value in found.items()
    }


def without_marks(headers: dict[str, str | bytes]) -> dict[str, str | bytes]:
    return {name: value for name, value in headers.items() if not name.startswith(_MARK)}


def _dead_letter_partition(
    state: State, topic: Topic, name: str, created: dict[tuple[str, str], int], facts: list[f.Fact], now_ns: int
) -> int:
    """The partition dead letters of a topic go to; the topic is made when the first one comes."""
    target = state.by_name.get((topic.namespace, name))
    if target is not None:
        return target.partitions[0].pid
    pid = created.get((topic.namespace, name))
    if pid is not None:
        return pid
    number = len(created)
    tid, pid, gid = state.next_tid + number, state.next_pid + number, state.next_gid + number
    created[topic.namespace, name] = pid
    settings = TopicConfig(max_message_bytes=topic.settings.max_message_bytes, max_depth=0)
    facts += [
        f.TopicCreated(tid, topic.namespace, name, settings, now_ns),
        f.PartitionCreated(pid, tid, 0),
        f.GroupCreated(gid, tid, "default", GroupConfig(), [(pid, 0)], now_ns),
    ]
    return pid


# -- redrive -----------------------------------------------------------------------------------------------------------


def decide_redrive(state: State, command: Redrive, now_ns: int) -> Outcome:
    """Dead letters become messages again: fresh attempts, one record with their leaving the dead-letter topic."""
    source = state.partitions.get(command.pid)
    if source is None:
        return refuse(UnknownTopic(f"partition {command.pid} is not of this shard"))
    wanted = span_of(command.span.bitmap() - source.gone)
    if wanted.count and (wanted.first < source.start or wanted.last >= source.end):
        return refuse(
            InvalidArgument(f"offsets {wanted.first} to {wanted.last}: the log has {source.start} to {source.end}")
        )
    if command.contents is None and wanted.count:
        return Outcome([], needs=[(command.pid, offset) for offset in wanted])
    contents = command.contents or {}
    targets: dict[tuple[int, int, int], list[tuple[int, Message]]] = {}
    lost: list[int] = []
    for offset in wanted:
        message = contents.get(offset)
        place = _place(state, source, wanted.first, message, command) if message is not None else None
        if message is None or place is None:
            lost.append(offset)
            continue
        headers = without_marks(message.headers) | {
            REDRIVEN_FROM: f"{source.topic.name}/{source.index}/{offset}",
        }
        redriven = Message(message.value, message.key, headers, message.priority, timestamp_ns=message.timestamp_ns)
        targets.setdefault(place, []).append((offset, redriven))
    facts: list[f.Fact] = []
    batches: list[Batch] = []
    done: list[PublishDone] = []
    ends: dict[int, int] = {}
    moved: list[int] = []
    for (pid, gid, front_ms), entries in sorted(targets.items()):
        partition = state.partitions[pid]
        for start in range(0, len(entries), BATCH_MESSAGES_MAX):
            part = entries[start : start + BATCH_MESSAGES_MAX]
            base = ends.get(pid, partition.end)
            at_ns = max(now_ns, partition.mark_ms[-1] * MS_NS if partition.mark_ms else 0)
            base_id = state.take_ids(len(part), at_ns)
            batch = encode([message for _, message in part]).stamp(base, base_id, at_ns)
            ends[pid] = base + len(part)
            filtered = filtered_by_groups(partition.topic, batch) if gid < 0 else []
            facts.append(f.Published(pid, batch.size_bytes, filtered, gid, front_ms))
            batches.append(batch)
            done.append(PublishDone(pid, base, base_id, len(part)))
            moved += [offset for offset, _ in part]
    if moved and not command.keep:
        facts.append(f.Redriven(command.pid, *span_of(moved).packed(), now_ns))
    return Outcome(facts, (done, span_of(moved) if moved else Span(0, 0), lost), batches)


def _place(
    state: State, source: Partition, first: int, message: MessageView, command: Redrive
) -> tuple[int, int, int] | None:
    """Where a message goes: (pid, the one group or -1, its place in time or 0). ``first`` is the first of the record's
    messages."""
    headers, dead = message.headers, source.topic
    if command.tid is not None:
        target = state.topics.get(command.tid)
        if target is None:
            return None
        index = source.index if command.keep else _number(headers.get(PARTITION))
        return target.partitions[index % len(target.partitions)].pid, -1, 0
    if command.gid is not None:
        if command.gid not in state.groups or state.groups[command.gid].topic is not dead:
            return None
        # All of a record have the place of its first: before what came later, and one batch.
        return source.pid, command.gid, max(1, source.appended_ms(first) - 1)
    origin = state.by_name.get((dead.namespace, str(headers.get(TOPIC, ""))))
    if origin is None:
        return None
    index = _number(headers.get(PARTITION))
    partition = origin.partitions[index % len(origin.partitions)]
    group = origin.groups.get(str(headers.get(GROUP, "")))
    if group is None:
        return partition.pid, -1, 0
    # Just before its old place in time: where its key was held for it, it comes before those that waited.
    return partition.pid, group.gid, max(1, partition.appended_ms(_number(headers.get(OFFSET))) - 1)


def _number(value: str | bytes | None) -> int:
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else value or ""
    return int(text) if text.isdecimal() else 0
