"""The whole state as bytes, and back.

What is written is the state's meaning, not its indexes: ready messages as "in their own place" and "late, in this
order", whatever lanes, chains or fresh stretches they lie in. A restored backlog builds those when it is first leased
from, exactly as after recovery. So ``snapshot(restore(snapshot(s))) == snapshot(s)``, and every further fact and every
decision is the same on both (a property test holds this).

MessagePack of a list per topic, partition, group and backlog; bitmaps in Roaring's portable serialisation, integer
columns as little-endian bytes. ``VERSION`` goes up with every change; a state of another version is refused.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import Any, Final

import msgspec
from pyroaring import BitMap64

from headrace.config import GroupConfig, NamespaceConfig, TopicConfig
from headrace.delivery.backlog import Backlog, Lease, Try
from headrace.delivery.due import DueTimes
from headrace.delivery.offsets import unpack
from headrace.delivery.partition import Column, Partition, Seen
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
from headrace.delivery.topic import Group, Pause, Topic
from headrace.errors import Corrupt, UnsupportedVersion
from headrace.limits import HANDOVER_NS, MEMBER_SILENCE_NS, PRODUCER_BATCHES_KEPT

__all__ = ["restore", "snapshot"]

VERSION: Final = 6
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def snapshot(state: State) -> bytes:
    """The state as bytes."""
    return _encode(
        [
            VERSION,
            state.now_ns,
            state.last_id,
            [state.next_tid, state.next_pid, state.next_gid, state.next_lease_id],
            [[space.name, space.settings, space.bucket.dump()] for space in state.namespaces.values()],
            [_topic(topic) for topic in state.topics.values()],
            list(state.notes.items()),
        ]
    )


def restore(data: bytes, node_id: int = 0) -> State:
    """The state that ``snapshot`` wrote."""
    try:
        plain = _decode(data)
        version = plain[0]
    except (msgspec.DecodeError, TypeError, IndexError) as error:
        raise Corrupt(f"the snapshot cannot be read: {error}") from error
    if version != VERSION:
        raise UnsupportedVersion(f"the snapshot has version {version}; this build reads version {VERSION}")
    state = State(node_id)
    _, state.now_ns, state.last_id, numbers, spaces, topics, notes = plain
    state.next_tid, state.next_pid, state.next_gid, state.next_lease_id = numbers
    for name, settings, bucket in spaces:
        space = state.namespace(name)
        space.apply(msgspec.convert(settings, NamespaceConfig))
        space.bucket.restore(*bucket)
    for each in topics:
        _restore_topic(state, each)
    state.notes.update(notes)
    return state


# -- topics ------------------------------------------------------------------------------------------------------------


def _topic(topic: Topic) -> list[Any]:
    return [
        topic.tid,
        topic.namespace,
        topic.name,
        topic.settings,
        topic.created_ns,
        [[dedup_id, *entry] for dedup_id, entry in topic.dedup.seen.items()],
        [_partition(partition) for partition in topic.partitions],
        [_group(group) for group in topic.groups.values()],
    ]


def _restore_topic(state: State, plain: list[Any]) -> None:
    tid, namespace, name, settings, created_ns, dedup, partitions, groups = plain
    topic = Topic(tid, state.namespace(namespace), name, msgspec.convert(settings, TopicConfig), created_ns)
    state.topics[tid] = topic
    state.by_name[namespace, name] = topic
    for dedup_id, *entry in dedup:
        topic.dedup.seen[dedup_id] = tuple(entry)
    for each in partitions:
        _restore_partition(state, topic, each)
    for each in groups:
        _restore_group(state, topic, each)


# -- partitions --------------------------------------------------------------------------------------------------------


def _partition(partition: Partition) -> list[Any]:
    scheduled, moved = partition.scheduled, partition.moved
    return [
        partition.pid,
        partition.index,
        partition.start,
        partition.end,
        partition.last_id,
        partition.mark_offsets.tobytes(),
        partition.mark_ms.tobytes(),
        [[c.base, c.end, c.keys.tobytes() if c.keys is not None else None, c.priorities] for c in partition.columns],
        partition.columns_from,
        partition.mixed,
        _bits(scheduled),
        _due(partition.schedule, lambda due_ms, o: o in scheduled and moved.get(o, due_ms) == due_ms),
        sorted(moved.items()),
        _bits(partition.special),
        _due(partition.lifetimes, partition.ends_at),
        sorted(partition.ends.items()),
        _bits(partition.fixed),
        _bits(partition.lapsed),
        _bits(partition.gone),
        _bits(partition.private),
        [
            [producer, [list(msgspec.structs.astuple(s)) for s in seen]]
            for producer, seen in partition.producers.items()
        ],
    ]


def _restore_partition(state: State, topic: Topic, plain: list[Any]) -> None:
    pid, index, start, end, last_id, mark_offsets, mark_ms, columns, columns_from, mixed, *rest = plain
    scheduled, schedule, moved, special, lifetimes, ends, fixed, lapsed, gone, private, producers = rest
    partition = Partition(pid, topic, index)
    partition.start, partition.end, partition.last_id = start, end, last_id
    partition.mark_offsets.frombytes(mark_offsets)
    partition.mark_ms.frombytes(mark_ms)
    for base, column_end, keys, priorities in columns:
        hashes: array[int] | None = None
        if keys is not None:
            hashes = array("Q")
            hashes.frombytes(keys)
        partition.put_column(Column(base, column_end, hashes, priorities))
    partition.columns_from, partition.mixed = columns_from, mixed
    partition.scheduled = BitMap64.deserialize(scheduled)
    partition.schedule = _restore_due(schedule)
    partition.moved = dict(moved)
    partition.special = BitMap64.deserialize(special)
    partition.lifetimes = _restore_due(lifetimes)
    partition.ends = dict(ends)
    partition.fixed = BitMap64.deserialize(fixed)
    partition.lapsed = BitMap64.deserialize(lapsed)
    partition.gone = BitMap64.deserialize(gone)
    partition.private = BitMap64.deserialize(private)
    for producer, seen in producers:
        kept = deque(
            (
                Seen(sequence, base_id, base, count, [tuple(repeat) for repeat in repeats])
                for sequence, base_id, base, count, repeats in seen
            ),
            maxlen=PRODUCER_BATCHES_KEPT,
        )
        partition.producers[producer] = kept
    partition.pass_lifetimes(start)
    topic.partitions.append(partition)
    state.partitions[pid] = partition
    state.arm(SCHEDULE, pid, 0, partition.schedule.next_due_ms())
    state.arm(LIFETIMES, pid, 0, partition.lifetimes.next_due_ms())
    state.arm(OUTLIVING, pid, 0, partition.next_outliving_ms())


# -- groups ------------------------------------------------------------------------------------------------------------


def _group(group: Group) -> list[Any]:
    return [
        group.gid,
        group.name,
        group.settings,
        group.created_ns,
        group.durable,
        list(group.pause) if group.pause is not None else None,
        sorted(group.members),
        sorted(group.owners.items()),
        [group.delivered, group.redelivered, group.nacked, group.deaths],
        group.bucket.dump(),
        [_backlog(backlog) for backlog in group.backlogs.values()],
    ]


def _restore_group(state: State, topic: Topic, plain: list[Any]) -> None:
    gid, name, settings, created_ns, durable, pause, members, owners, counts, bucket, backlogs = plain
    group = Group(gid, topic, name, msgspec.convert(settings, GroupConfig), created_ns, durable=durable)
    group.pause = Pause(*pause) if pause is not None else None
    group.members = dict.fromkeys(members, state.now_ns)  # heard of anew: nobody is silent because we were away
    group.owners = dict(owners)
    group.delivered, group.redelivered, group.nacked, group.deaths = counts
    group.bucket.restore(*bucket)
    topic.groups[name] = group
    state.groups[gid] = group
    if group.pause is not None and group.pause.until_ns:
        state.arm(PAUSES, gid, 0, -(-group.pause.until_ns // MS_NS))
    if members:
        state.arm(MEMBERS, gid, 0, (state.now_ns + MEMBER_SILENCE_NS) // MS_NS)
    for each in backlogs:
        _restore_backlog(state, group, each)


def _backlog(backlog: Backlog) -> list[Any]:
    waiting, tries = backlog.waiting, backlog.tries
    return [
        backlog.partition.pid,
        backlog.start,
        backlog.stop,
        _bits(backlog.ready_main()),
        [offset for _, offset in backlog.ready_late()],
        sorted(backlog.rank.items()),
        _bits(waiting),
        _due(backlog.backoffs, lambda due_ms, o: o in waiting and tries[o].due_ms == due_ms),
        [_lease(lease) for lease in backlog.leases.values()],
        sorted([offset, *known.as_list()] for offset, known in tries.items()),
        [
            _bits(bits)
            for bits in (
                backlog.done,
                backlog.dead,
                backlog.expired,
                backlog.cancelled,
                backlog.dropped,
                backlog.filtered,
            )
        ],
        [
            backlog.acked_count,
            backlog.dead_count,
            backlog.expired_count,
            backlog.cancelled_count,
            backlog.dropped_count,
        ],
        sorted(backlog.held_keys),
    ]


def _restore_backlog(state: State, group: Group, plain: list[Any]) -> None:
    pid, start, stop, ready, late, rank, waiting, backoffs, leases, tries, sets, counts, held_keys = plain
    backlog = Backlog(group, state.partitions[pid], start, stop)
    backlog.indexed = False
    backlog.fresh = BitMap64.deserialize(ready)
    backlog.late_ready = BitMap64(late)
    backlog.rank = dict(rank)
    backlog.waiting = BitMap64.deserialize(waiting)
    backlog.backoffs = _restore_due(backoffs)
    backlog.tries = {offset: Try(*entry) for offset, *entry in tries}
    backlog.done, backlog.dead, backlog.expired, backlog.cancelled, backlog.dropped, backlog.filtered = (
        BitMap64.deserialize(bits) for bits in sets
    )
    (
        backlog.acked_count,
        backlog.dead_count,
        backlog.expired_count,
        backlog.cancelled_count,
        backlog.dropped_count,
    ) = counts
    backlog.held_keys = set(held_keys)
    for each in leases:
        lease_id, consumer, first, count, bits, at_ns, deadline_ns, later = each
        held = unpack(first, count, bits)
        lease = Lease(backlog, lease_id, consumer, held.first, held.count, held.bits, at_ns, deadline_ns)
        lease.later = dict(later) if later else None
        backlog.leases[lease_id] = lease
        backlog.leased_count += lease.count
        state.leases[lease_id] = lease
        state.watch(lease)
        if group.policy.fifo and group.owners.get(pid, consumer) != consumer:
            # The partition was moving: its former owner has its time anew.
            state.arm(HANDOVERS, group.gid, pid, (state.now_ns + HANDOVER_NS) // MS_NS)
    group.backlogs[pid] = backlog
    state.arm(BACKOFFS, group.gid, pid, backlog.backoffs.next_due_ms())


def _lease(lease: Lease) -> list[Any]:
    later = sorted(lease.later.items()) if lease.later else []
    return [lease.lease_id, lease.consumer, *lease.span().packed(), lease.at_ns, lease.deadline_ns, later]


# -- parts -------------------------------------------------------------------------------------------------------------


def _bits(bits: BitMap64) -> bytes:
    bits.run_optimize()
    return bits.serialize()


def _due(due: DueTimes, live: Any) -> list[bytes]:
    times, offsets = array("q"), array("Q")
    before = (-1, -1)
    for due_ms, offset in due.entries():
        if live(due_ms, offset) and (due_ms, offset) != before:  # moved to and fro: one entry is enough
            times.append(due_ms)
            offsets.append(offset)
            before = due_ms, offset
    return [times.tobytes(), offsets.tobytes()]


def _restore_due(plain: list[bytes]) -> DueTimes:
    times, offsets = array("q"), array("Q")
    times.frombytes(plain[0])
    offsets.frombytes(plain[1])
    due = DueTimes()
    due.add_many(zip(times, offsets, strict=True))
    return due
