"""What a fact means: the only code that changes a shard's state, live and in recovery alike.

Nothing here decides or refuses; a fact that does not fit the state is a broken journal and fails loudly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyroaring import BitMap64

from headrace.batch import VALUES_ONLY, Batch
from headrace.delivery import facts as f
from headrace.delivery.backlog import Backlog, Lease, Try
from headrace.delivery.offsets import Span, add, span_of, subtract, unpack
from headrace.delivery.partition import Partition
from headrace.delivery.state import (
    BACKOFFS,
    BUCKET_NS,
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
from headrace.limits import MEMBER_SILENCE_NS

__all__ = ["FOLD", "evolve", "evolve_published"]


def evolve(state: State, fact: f.Fact, batch: Batch | None = None) -> None:
    """Fold one fact into the state; ``batch`` is the batch of a Published fact."""
    if type(fact) is f.Published:
        evolve_published(state, fact, batch)  # type: ignore[arg-type]
    else:
        FOLD[type(fact)](state, fact)


# -- topics and groups -----------------------------------------------------------------------------------------------


def _namespace_changed(state: State, fact: f.NamespaceChanged) -> None:
    state.namespace(fact.namespace).apply(fact.settings)
    state.now_ns = max(state.now_ns, fact.at_ns)


def _topic_created(state: State, fact: f.TopicCreated) -> None:
    topic = Topic(fact.tid, state.namespace(fact.namespace), fact.name, fact.settings, fact.at_ns)
    state.topics[fact.tid] = topic
    state.by_name[fact.namespace, fact.name] = topic
    state.next_tid = max(state.next_tid, fact.tid + 1)
    state.now_ns = max(state.now_ns, fact.at_ns)


def _topic_changed(state: State, fact: f.TopicChanged) -> None:
    topic = state.topics[fact.tid]
    topic.settings = fact.settings
    topic.room = 0
    for group in topic.groups.values():
        _reorder(group, group.settings)
    for partition in topic.partitions:
        state.arm(OUTLIVING, partition.pid, 0, partition.next_outliving_ms())
    state.now_ns = max(state.now_ns, fact.at_ns)


def _topic_deleted(state: State, fact: f.TopicDeleted) -> None:
    topic = state.topics.pop(fact.tid)
    del state.by_name[topic.namespace, topic.name]
    topic.space.topics.discard(topic)
    for group in list(topic.groups.values()):
        _drop_group(state, group)
    for partition in topic.partitions:
        del state.partitions[partition.pid]
    state.now_ns = max(state.now_ns, fact.at_ns)


def _partition_created(state: State, fact: f.PartitionCreated) -> None:
    topic = state.topics[fact.tid]
    partition = Partition(fact.pid, topic, fact.index)
    topic.partitions.append(partition)
    state.partitions[fact.pid] = partition
    state.next_pid = max(state.next_pid, fact.pid + 1)
    for group in topic.groups.values():
        group.backlogs[fact.pid] = Backlog(group, partition, 0)


def _group_created(state: State, fact: f.GroupCreated) -> None:
    topic = state.topics[fact.tid]
    group = Group(fact.gid, topic, fact.name, fact.settings, fact.at_ns, durable=fact.durable)
    topic.groups[fact.name] = group
    state.groups[fact.gid] = group
    filtered = {pid: unpack(first, count, bits) for pid, first, count, bits in fact.filtered}
    for pid, start in fact.starts:
        backlog = group.backlogs[pid] = Backlog(group, state.partitions[pid], start)
        if pid in filtered:
            add(backlog.filtered, filtered[pid])
            backlog.restart(start, -1)
        _rearm_outliving(state, state.partitions[pid])
    topic.room = 0
    state.next_gid = max(state.next_gid, fact.gid + 1)
    state.now_ns = max(state.now_ns, fact.at_ns)


def _group_changed(state: State, fact: f.GroupChanged) -> None:
    _reorder(state.groups[fact.gid], fact.settings)
    state.now_ns = max(state.now_ns, fact.at_ns)


def _reorder(group: Group, settings: Any) -> None:
    """Apply settings; a change of ordering, or of limits of keys, makes every backlog find its ready messages anew."""
    before = group.policy
    group.apply(settings)
    after = group.policy
    if (after.ordering, after.key_concurrency, after.key_rate) == (
        before.ordering,
        before.key_concurrency,
        before.key_rate,
    ):
        return
    for backlog in group.backlogs.values():
        backlog.unindex()


def _group_deleted(state: State, fact: f.GroupDeleted) -> None:
    _drop_group(state, state.groups[fact.gid])
    state.now_ns = max(state.now_ns, fact.at_ns)


def _drop_group(state: State, group: Group) -> None:
    for backlog in group.backlogs.values():
        _let_go(state, backlog)
    del group.topic.groups[group.name]
    del state.groups[group.gid]


def _let_go(state: State, backlog: Backlog) -> None:
    for lease in backlog.leases.values():
        state.unwatch(lease)
        del state.leases[lease.lease_id]
    backlog.leases = {}


# -- publishing ------------------------------------------------------------------------------------------------------

_NOTHING = BitMap64()


def evolve_published(state: State, fact: f.Published, batch: Batch) -> None:
    pid = fact.pid
    partition = state.partitions[pid]
    topic = partition.topic
    base, end = partition.append(batch, fact.repeats)
    if partition.last_id > state.last_id:
        state.last_id = partition.last_id
    if batch.append_time_ns > state.now_ns:
        state.now_ns = batch.append_time_ns
    topic.room -= batch.count
    if partition.lapsed_to >= base:  # the first under the topic's ttl
        state.arm(OUTLIVING, pid, 0, partition.next_outliving_ms())
    later, lanes = _NOTHING, None
    if batch.columns > VALUES_ONLY:
        later = _note_times(state, partition, base, end)
        lanes = _by_lane(batch, base)
        dedup_ids = batch.dedup_ids()
        if dedup_ids is not None:
            at_ns = batch.append_time_ns
            since_ns = at_ns - topic.settings.dedup_window_ns
            for i, dedup_id in enumerate(dedup_ids):
                if dedup_id:
                    topic.dedup.note(bytes(dedup_id), at_ns, batch.base_id + i, fact.pid, base + i, since_ns)
    only_gid = fact.only_gid
    if only_gid >= 0:
        partition.private.add_range(base, end)
    for group in topic.groups.values():
        backlog = group.backlogs[pid]
        if only_gid >= 0 and group.gid != only_gid:
            _filter(backlog, Span(base, end - base))
            continue
        if fact.front_ms:
            backlog.add_redriven(fact.front_ms, base, end)
            continue
        backlog.add_published(base, end, later, lanes)
    for gid, first, count, bits in fact.filtered:
        group_backlog = state.groups[gid].backlogs[fact.pid]
        span = unpack(first, count, bits)
        group_backlog.discard_unleased(span.bitmap())
        _filter(group_backlog, span)


def _note_times(state: State, partition: Partition, base: int, end: int) -> BitMap64:
    """Arm the alarms of a new batch's own times; which of its messages are not due yet."""
    if partition.lifetimes:
        state.arm(LIFETIMES, partition.pid, 0, partition.lifetimes.next_due_ms())
    if partition.schedule and partition.scheduled:
        delayed = BitMap64(range(base, end)) & partition.scheduled
        if delayed:
            state.arm(SCHEDULE, partition.pid, 0, partition.schedule.next_due_ms())
            return delayed
    return _NOTHING


def _by_lane(batch: Batch, base: int) -> list[tuple[int, BitMap64]] | None:
    priorities = batch.priorities()
    if priorities is None:
        return None
    by_lane: dict[int, list[int]] = {}
    for offset, priority in enumerate(priorities, base):
        by_lane.setdefault(priority, []).append(offset)
    return [(priority, BitMap64(offsets)) for priority, offsets in by_lane.items()]


def _filter(backlog: Backlog, span: Span) -> None:
    add(backlog.filtered, span)
    mine = _of_interest(backlog, span)
    if mine.count:
        add(backlog.done, mine)


def _due(state: State, fact: f.Due) -> None:
    partition = state.partitions[fact.pid]
    partition.scheduled -= BitMap64(fact.offsets)
    for offset in fact.offsets:
        partition.moved.pop(offset, None)
    times = fact.due_ms()
    for group in partition.topic.groups.values():
        backlog = group.backlogs[fact.pid]
        for due_ms, offset in zip(times, fact.offsets, strict=True):
            backlog.add_due(due_ms, offset)
    state.now_ns = max(state.now_ns, fact.at_ms * MS_NS)


def _cancelled(state: State, fact: f.Cancelled) -> None:
    partition = state.partitions[fact.pid]
    span = fact.span()
    subtract(partition.scheduled, span)
    add(partition.gone, span)
    partition.schedule.forget(span.count)
    if partition.moved:
        for offset in span:
            partition.moved.pop(offset, None)
    for group in partition.topic.groups.values():
        backlog = group.backlogs[fact.pid]
        mine = _seen(backlog, span)
        if mine.count:
            add(backlog.done, mine)
            add(backlog.cancelled, mine)
        backlog.cancelled_count += mine.count
    if partition.schedule.crowded:
        scheduled, moved = partition.scheduled, partition.moved
        partition.schedule.compact(lambda due_ms, o: o in scheduled and moved.get(o, due_ms) == due_ms)
    state.now_ns = max(state.now_ns, fact.at_ns)


def _of_interest(backlog: Backlog, span: Span) -> Span:
    if span.first >= backlog.start and span.last < backlog.end:
        return span
    wanted = BitMap64()
    wanted.add_range(backlog.start, max(backlog.start, backlog.end))
    return span_of(span.bitmap() & wanted)


def _seen(backlog: Backlog, span: Span) -> Span:
    """The part of ``span`` that this group is to see."""
    mine = _of_interest(backlog, span)
    return span_of(mine.bitmap() - backlog.filtered) if backlog.filtered and mine.count else mine


def _moved(state: State, fact: f.Moved) -> None:
    partition = state.partitions[fact.pid]
    for offset in fact.span():
        partition.move(offset, fact.due_ms)
    state.arm(SCHEDULE, partition.pid, 0, partition.schedule.next_due_ms())
    state.arm(LIFETIMES, partition.pid, 0, partition.lifetimes.next_due_ms())
    state.now_ns = max(state.now_ns, fact.at_ns)


# -- leasing and settling --------------------------------------------------------------------------------------------


def _leased(state: State, fact: f.Leased) -> None:
    group = state.groups[fact.gid]
    backlog = group.backlogs[fact.pid]
    lease_id, count, at_ns = fact.lease_id, fact.count, fact.at_ns
    span = fact.span() if fact.bits else Span(fact.first, count)
    backlog.take(span, fact.lane)
    lease = Lease(backlog, lease_id, fact.consumer, span.first, count, span.bits, at_ns, fact.deadline_ns)
    backlog.leases[lease_id] = state.leases[lease_id] = lease
    state.watch(lease)
    backlog.leased_count += count
    group.delivered += count
    if backlog.tries:
        tries = backlog.tries
        for offset in span:
            known = tries.get(offset)
            if known is not None:
                known.attempts += 1
                known.last_ns = at_ns
                known.consumer = fact.consumer
                group.redelivered += 1
    if group.policy.rate or group.topic.space.limited:
        group.spend(count, at_ns)
    if backlog.throttle is not None:
        backlog.throttle.went_out([backlog.partition.key_of(offset) for offset in span], at_ns)
    if lease_id >= state.next_lease_id:
        state.next_lease_id = lease_id + 1
    if at_ns > state.now_ns:
        state.now_ns = at_ns


def _leave_lease(state: State, backlog: Backlog, lease_id: int, span: Span) -> Lease:
    lease = state.leases[lease_id]
    if backlog.throttle is not None:
        backlog.came_back(span)
    if lease.remove(span):
        del state.leases[lease_id]
        del backlog.leases[lease_id]
        state.unwatch(lease)
    elif lease.later is not None:
        deadline_ns, later = lease.deadline_ns, lease.later
        ends_ns = min([later.pop(offset, deadline_ns) for offset in span])
        if ends_ns // BUCKET_NS <= lease.bucket:  # it may have been the first of its messages to be over
            state.watch_anew(lease)
    return lease


def _acked(state: State, fact: f.Acked) -> None:
    lease_id, count = fact.lease_id, fact.count
    lease = state.leases[lease_id]
    backlog = lease.backlog
    span = fact.span() if fact.bits else Span(fact.first, count)
    if count == lease.count:  # nearly always: a lease is acked as a whole
        del state.leases[lease_id]
        del backlog.leases[lease_id]
        state.unwatch(lease)
        if backlog.throttle is not None:
            backlog.came_back(span)
    else:
        _leave_lease(state, backlog, lease_id, span)
    backlog.settle(span)
    backlog.acked_count += count
    if fact.at_ns > state.now_ns:
        state.now_ns = fact.at_ns


def _retried(state: State, fact: f.Retried) -> None:
    group = state.groups[fact.gid]
    backlog = group.backlogs[fact.pid]
    span = fact.span()
    lease = _leave_lease(state, backlog, fact.lease_id, span)
    backlog.leased_count -= span.count
    group.nacked += span.count
    due_ms, tries = fact.due_ms, backlog.tries
    for offset in span:
        known = tries.get(offset)
        if known is None:
            tries[offset] = Try(1, lease.at_ns, lease.at_ns, lease.consumer, fact.error, due_ms)
        else:
            known.error = fact.error or known.error
            known.due_ms = due_ms
        if due_ms:
            backlog.waiting.add(offset)
            backlog.backoffs.add(due_ms, offset)
        else:
            backlog.add_again(fact.at_ns // MS_NS, offset, front=False)
    if due_ms:
        state.arm(BACKOFFS, fact.gid, fact.pid, backlog.backoffs.next_due_ms())
    state.now_ns = max(state.now_ns, fact.at_ns)


def _released(state: State, fact: f.Released) -> None:
    backlog = state.groups[fact.gid].backlogs[fact.pid]
    span = fact.span()
    _leave_lease(state, backlog, fact.lease_id, span)
    backlog.leased_count -= span.count
    for offset in span:
        known = backlog.tries.get(offset)
        if known is not None:
            known.attempts -= 1
        backlog.add_again(fact.at_ns // MS_NS, offset, front=True)
    state.now_ns = max(state.now_ns, fact.at_ns)


def _extended(state: State, fact: f.Extended) -> None:
    lease = state.leases[fact.lease_id]
    span = fact.span()
    if span.count == lease.count:
        lease.later = None
        state.unwatch(lease)
        lease.deadline_ns = fact.deadline_ns
        state.watch(lease)
    else:
        if lease.later is None:
            lease.later = {}
        for offset in span:
            lease.later[offset] = fact.deadline_ns
        state.watch_anew(lease)
    state.now_ns = max(state.now_ns, fact.at_ns)


def _backoff_ended(state: State, fact: f.BackoffEnded) -> None:
    backlog = state.groups[fact.gid].backlogs[fact.pid]
    backlog.waiting -= BitMap64(fact.offsets)
    for due_ms, offset in zip(fact.due_ms(), fact.offsets, strict=True):
        backlog.add_again(due_ms, offset, front=False)
    state.now_ns = max(state.now_ns, fact.at_ms * MS_NS)


def _died(state: State, fact: f.Died) -> None:
    backlog = state.groups[fact.gid].backlogs[fact.pid]
    span = Span(fact.offset, 1)
    if fact.lease_id:
        _leave_lease(state, backlog, fact.lease_id, span)
        if backlog.group.policy.on_dead == "hold":
            backlog.hold_key(fact.offset)
        backlog.settle(span)
    else:
        backlog.discard_unleased(BitMap64((fact.offset,)))
    backlog.dead.add(fact.offset)
    backlog.dead_count += 1
    deaths = backlog.group.deaths
    deaths[fact.reason] = deaths.get(fact.reason, 0) + 1
    if fact.cause:
        backlog.group.nacked += 1
    state.now_ns = max(state.now_ns, fact.at_ns)


def _expired(state: State, fact: f.Expired) -> None:
    backlog = state.groups[fact.gid].backlogs[fact.pid]
    span = fact.span()
    if fact.lease_id:
        _leave_lease(state, backlog, fact.lease_id, span)
        backlog.settle(span)
        if fact.cause:
            backlog.group.nacked += span.count
    else:
        span = backlog.discard_unleased(span.bitmap())
    if span.count:
        add(backlog.expired, span)
    backlog.expired_count += span.count
    state.now_ns = max(state.now_ns, fact.at_ns)


def _dropped(state: State, fact: f.Dropped) -> None:
    partition = state.partitions[fact.pid]
    wanted = fact.span().bitmap()
    if fact.gid >= 0:
        backlog = state.groups[fact.gid].backlogs[fact.pid]
        backlog.drop(backlog.discard_unleased(wanted))
    else:
        delayed = wanted & partition.scheduled
        partition.scheduled -= delayed
        partition.schedule.forget(len(delayed))
        partition.gone |= wanted
        for group in partition.topic.groups.values():
            backlog = group.backlogs[fact.pid]
            backlog.drop(backlog.discard_unleased(wanted))
            if delayed:
                mine = _seen(backlog, span_of(delayed))
                if mine.count:
                    add(backlog.done, mine)
                    backlog.drop(mine)
    partition.topic.room = 0
    state.now_ns = max(state.now_ns, fact.at_ns)


def _redriven(state: State, fact: f.Redriven) -> None:
    partition = state.partitions[fact.pid]
    wanted = fact.span().bitmap()
    partition.gone |= wanted
    for group in partition.topic.groups.values():
        backlog = group.backlogs[fact.pid]
        for lease in list(backlog.leases.values()):
            held = [offset for offset in lease.span() if offset in wanted]
            for offset in held:
                span = Span(offset, 1)
                _leave_lease(state, backlog, lease.lease_id, span)
                backlog.settle(span)
                backlog.drop(span)
        backlog.drop(backlog.discard_unleased(wanted))
    state.now_ns = max(state.now_ns, fact.at_ns)


# -- groups at work --------------------------------------------------------------------------------------------------


def _sought(state: State, fact: f.Sought) -> None:
    backlog = state.groups[fact.gid].backlogs[fact.pid]
    _let_go(state, backlog)
    if fact.count:
        add(backlog.filtered, fact.span())
    backlog.restart(fact.start, fact.stop)
    partition = backlog.partition
    _rearm_outliving(state, partition)
    partition.topic.room = 0
    state.now_ns = max(state.now_ns, fact.at_ns)


def _rearm_outliving(state: State, partition: Partition) -> None:
    partition.pass_lifetimes(min(partition.start, partition.end))
    state.arm(OUTLIVING, partition.pid, 0, partition.next_outliving_ms())


def _paused(state: State, fact: f.Paused) -> None:
    state.groups[fact.gid].pause = Pause(fact.by, fact.why, fact.until_ns, fact.at_ns)
    if fact.until_ns:
        state.arm(PAUSES, fact.gid, 0, -(-fact.until_ns // MS_NS))
    state.now_ns = max(state.now_ns, fact.at_ns)


def _resumed(state: State, fact: f.Resumed) -> None:
    state.groups[fact.gid].pause = None
    state.now_ns = max(state.now_ns, fact.at_ns)


def _joined(state: State, fact: f.Joined) -> None:
    state.groups[fact.gid].members[fact.consumer] = fact.at_ns
    state.arm(MEMBERS, fact.gid, 0, (fact.at_ns + MEMBER_SILENCE_NS) // MS_NS)
    state.now_ns = max(state.now_ns, fact.at_ns)


def _left(state: State, fact: f.Left) -> None:
    state.groups[fact.gid].members.pop(fact.consumer, None)
    state.now_ns = max(state.now_ns, fact.at_ns)


def _assigned(state: State, fact: f.Assigned) -> None:
    group = state.groups[fact.gid]
    owners = dict(fact.owners)
    for pid, owner in owners.items():
        if group.owners.get(pid, owner) != owner and group.backlogs[pid].leased_count:
            state.arm(HANDOVERS, fact.gid, pid, -(-fact.handover_ns // MS_NS))
    group.owners = owners
    state.now_ns = max(state.now_ns, fact.at_ns)


def _trimmed(state: State, fact: f.Trimmed) -> None:
    state.partitions[fact.pid].trim(fact.start)
    state.now_ns = max(state.now_ns, fact.at_ns)


def _lapsed(state: State, fact: f.Lapsed) -> None:
    state.partitions[fact.pid].lapse(fact.span())
    state.now_ns = max(state.now_ns, fact.at_ns)


def _key_freed(state: State, fact: f.KeyFreed) -> None:
    state.groups[fact.gid].backlogs[fact.pid].free_key(fact.key_hash)
    state.now_ns = max(state.now_ns, fact.at_ns)


def _noted(state: State, fact: f.Noted) -> None:
    if fact.value:
        state.notes[fact.key] = fact.value
    else:
        state.notes.pop(fact.key, None)


FOLD: dict[type[Any], Callable[[State, Any], None]] = {
    f.TopicCreated: _topic_created,
    f.TopicChanged: _topic_changed,
    f.TopicDeleted: _topic_deleted,
    f.PartitionCreated: _partition_created,
    f.GroupCreated: _group_created,
    f.GroupChanged: _group_changed,
    f.GroupDeleted: _group_deleted,
    f.Due: _due,
    f.Cancelled: _cancelled,
    f.Moved: _moved,
    f.Leased: _leased,
    f.Acked: _acked,
    f.Retried: _retried,
    f.Released: _released,
    f.Extended: _extended,
    f.BackoffEnded: _backoff_ended,
    f.Died: _died,
    f.Expired: _expired,
    f.Dropped: _dropped,
    f.Redriven: _redriven,
    f.Sought: _sought,
    f.Paused: _paused,
    f.Resumed: _resumed,
    f.Joined: _joined,
    f.Left: _left,
    f.Assigned: _assigned,
    f.Trimmed: _trimmed,
    f.KeyFreed: _key_freed,
    f.Lapsed: _lapsed,
    f.NamespaceChanged: _namespace_changed,
    f.Noted: _noted,
}
