"""Deciding what operators and catalogues ask for: topics, groups, seek, pause, purge, cancel, move, trim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyroaring import BitMap64

from headrace.config import GroupConfig
from headrace.delivery import commands as c
from headrace.delivery import facts as f
from headrace.delivery.commands import Outcome, refuse
from headrace.delivery.members import reassigned
from headrace.delivery.offsets import EMPTY, inside, span_of
from headrace.delivery.partition import Partition
from headrace.delivery.publishing import too_far
from headrace.delivery.settings import policy_of
from headrace.delivery.settling import failed, outlived_expire
from headrace.delivery.state import MS_NS, State
from headrace.delivery.topic import Group, Topic
from headrace.errors import (
    AlreadyExists,
    HeadraceError,
    InvalidArgument,
    LimitExceeded,
    QuotaExceeded,
    UnknownGroup,
    UnknownTopic,
)
from headrace.limits import (
    CONSUMERS_PER_GROUP_MAX,
    GROUPS_PER_TOPIC_MAX,
    PAUSE_TEXT_CHARS_MAX,
)
from headrace.names import DEAD_LETTERS_PREFIX
from headrace.routing import GroupFilter

__all__ = ["DECIDE"]


def _change_namespace(state: State, command: c.ChangeNamespace, now_ns: int) -> Outcome:
    return Outcome([f.NamespaceChanged(command.namespace, command.settings, now_ns)], command.namespace)


def _create_topic(state: State, command: c.CreateTopic, now_ns: int) -> Outcome:
    if (command.namespace, command.name) in state.by_name:
        return refuse(AlreadyExists(f"topic {command.name!r} exists in namespace {command.namespace!r}"))
    space = state.namespaces.get(command.namespace)
    most = space.settings.topics if space is not None else 0
    if space is not None and most and not command.name.startswith(DEAD_LETTERS_PREFIX) and space.topics_count >= most:
        return refuse(
            QuotaExceeded(f"namespace {command.namespace!r} has {space.topics_count} topics and may have {most}")
        )
    settings = command.settings
    try:
        policy_of(settings, command.name, GroupConfig())
    except HeadraceError as error:  # no name for its dead letters
        return refuse(error)
    tid, gid, pid = state.next_tid, state.next_gid, state.next_pid
    pids = list(range(pid, pid + settings.partitions))
    facts: list[f.Fact] = [f.TopicCreated(tid, command.namespace, command.name, settings, now_ns)]
    facts += [f.PartitionCreated(pid, tid, index) for index, pid in enumerate(pids)]
    facts.append(f.GroupCreated(gid, tid, "default", GroupConfig(), [(pid, 0) for pid in pids], now_ns))
    return Outcome(facts, tid)


def _change_topic(state: State, command: c.ChangeTopic, now_ns: int) -> Outcome:
    topic = state.topics.get(command.tid)
    if topic is None:
        return refuse(_no_topic(command.tid))
    settings = command.settings
    if settings.partitions < topic.settings.partitions:
        return refuse(
            InvalidArgument(
                f"partitions {settings.partitions}: topic {topic.name!r} has {topic.settings.partitions}, and"
                " partitions are never taken away"
            )
        )
    if "strict" in (settings.ordering, topic.settings.ordering) and settings.partitions != 1:
        return refuse(InvalidArgument(f"ordering strict with {settings.partitions} partitions: needs exactly 1"))
    try:
        for group in topic.groups.values():
            policy_of(settings, topic.name, group.settings)
    except HeadraceError as error:
        return refuse(error)
    facts: list[f.Fact] = [f.TopicChanged(command.tid, settings, now_ns)]
    facts += [
        f.PartitionCreated(state.next_pid + n, command.tid, index)
        for n, index in enumerate(range(topic.settings.partitions, settings.partitions))
    ]
    return Outcome(facts, command.tid)


def _delete_topic(state: State, command: c.DeleteTopic, now_ns: int) -> Outcome:
    if command.tid not in state.topics:
        return refuse(_no_topic(command.tid))
    return Outcome([f.TopicDeleted(command.tid, now_ns)], command.tid)


# -- groups ----------------------------------------------------------------------------------------------------------


def _create_group(state: State, command: c.CreateGroup, now_ns: int) -> Outcome:
    topic = state.topics.get(command.tid)
    if topic is None:
        return refuse(_no_topic(command.tid))
    if command.name in topic.groups:
        return refuse(AlreadyExists(f"group {command.name!r} exists on topic {topic.name!r}"))
    if len(topic.groups) >= GROUPS_PER_TOPIC_MAX:
        return refuse(LimitExceeded(f"topic {topic.name!r} has {len(topic.groups)} groups, the most there may be"))
    wrong = _absurd_group(topic, command.settings)
    if wrong is not None:
        return refuse(wrong)
    starts = _starts(topic, command.start)
    if isinstance(starts, HeadraceError):
        return refuse(starts)
    places = sorted(starts.items())
    filtered: list[tuple[int, int, int, bytes]] = []
    if command.settings.filter is not None:
        scan = [(pid, start, state.partitions[pid].end) for pid, start in places if start < state.partitions[pid].end]
        if scan and command.filtered is None:
            return Outcome([], needs_scan=scan)
        filtered = [(pid, *span.packed()) for pid, span in (command.filtered or {}).items() if span.count]
    gid = state.next_gid
    facts: list[f.Fact] = [
        f.GroupCreated(gid, command.tid, command.name, command.settings, places, now_ns, command.durable, filtered)
    ]
    for pid, start in places:
        partition = state.partitions[pid]
        kept_out = (command.filtered or {}).get(pid, EMPTY).bitmap() | partition.private
        facts += _outlived(gid, partition, start, partition.end, kept_out, now_ns)
    return Outcome(facts, gid)


def _absurd_group(topic: Topic, settings: GroupConfig) -> HeadraceError | None:
    """The settings checked themselves when they were made; this is what depends on the topic."""
    try:
        if settings.filter is not None:
            GroupFilter.from_dict(settings.filter)
        policy_of(topic.settings, topic.name, settings)
    except HeadraceError as error:
        return error
    return None


def _starts(topic: Topic, start: c.Start) -> dict[int, int] | HeadraceError:
    starts: dict[int, int] = {}
    for partition in topic.partitions:
        if start.latest:
            at = partition.end
        elif start.time_ns is not None:
            at = partition.first_after(-(-start.time_ns // MS_NS) - 1)
        elif start.offsets is not None:
            at = start.offsets.get(partition.index, partition.start)
            if not 0 <= at <= partition.end:
                return InvalidArgument(
                    f"offset {at} of partition {partition.index}: topic {topic.name!r} has"
                    f" {partition.start} to {partition.end} there"
                )
        else:
            at = partition.start
        starts[partition.pid] = max(at, partition.start)
    if start.offsets is not None and not set(start.offsets) <= {partition.index for partition in topic.partitions}:
        return InvalidArgument(
            f"partitions {sorted(start.offsets)}: topic {topic.name!r} has 0 to {len(topic.partitions) - 1}"
        )
    return starts


def _change_group(state: State, command: c.ChangeGroup, now_ns: int) -> Outcome:
    group = state.groups.get(command.gid)
    if group is None:
        return refuse(_no_group(command.gid))
    wrong = _absurd_group(group.topic, command.settings)
    if wrong is not None:
        return refuse(wrong)
    return Outcome([f.GroupChanged(command.gid, command.settings, now_ns)], command.gid)


def _delete_group(state: State, command: c.DeleteGroup, now_ns: int) -> Outcome:
    if command.gid not in state.groups:
        return refuse(_no_group(command.gid))
    return Outcome([f.GroupDeleted(command.gid, now_ns)], command.gid)


def _join(state: State, command: c.Join, now_ns: int) -> Outcome:
    group = state.groups.get(command.gid)
    if group is None:
        return refuse(_no_group(command.gid))
    if command.consumer in group.members:
        group.members[command.consumer] = now_ns
        return Outcome([], True)
    if len(group.members) >= CONSUMERS_PER_GROUP_MAX:
        return refuse(LimitExceeded(f"group {group.name!r} has {len(group.members)} members, the most there may be"))
    facts: list[f.Fact] = [f.Joined(command.gid, command.consumer, now_ns)]
    return Outcome(facts + reassigned(group, [*group.members, command.consumer], now_ns), True)


def _leave(state: State, command: c.Leave, now_ns: int) -> Outcome:
    group = state.groups.get(command.gid)
    if group is None:
        return Outcome([], False)
    facts: list[f.Fact] = []
    deaths: list[c.Death] = []
    for backlog in group.backlogs.values():
        for lease in list(backlog.leases.values()):
            if lease.consumer != command.consumer:
                continue
            if command.clean:
                facts.append(
                    f.Released(group.gid, backlog.partition.pid, lease.lease_id, *lease.span().packed(), now_ns)
                )
            else:
                failed(lease, lease.span(), now_ns, "disconnect", "", 0, facts, deaths)
    if group.policy.fifo and not command.clean:
        facts = [fact for fact in facts if not (type(fact) is f.Released and fact.reason == "behind")]
    facts = outlived_expire(state, facts, now_ns)
    if command.consumer in group.members:
        facts.append(f.Left(command.gid, command.consumer, now_ns))
        facts += reassigned(group, [name for name in group.members if name != command.consumer], now_ns)
    if not group.durable and not [name for name in group.members if name != command.consumer]:
        facts.append(f.GroupDeleted(command.gid, now_ns))
        deaths = []
    return Outcome(facts, True, deaths=deaths)


def _forget(state: State, command: c.Forget, now_ns: int) -> Outcome:
    group = state.groups.get(command.gid)
    if group is None or command.consumer not in group.members:
        return Outcome([], False)
    rest = [name for name in group.members if name != command.consumer]
    return Outcome([f.Left(command.gid, command.consumer, now_ns), *reassigned(group, rest, now_ns)], True)


def _seek(state: State, command: c.Seek, now_ns: int) -> Outcome:
    group = state.groups.get(command.gid)
    if group is None:
        return refuse(_no_group(command.gid))
    starts = _starts(group.topic, command.start)
    if isinstance(starts, HeadraceError):
        return refuse(starts)
    facts: list[f.Fact] = []
    if group.wanted is not None and command.filtered is None:
        # Before the group began its filter was never asked.
        scan = [(pid, start, group.backlogs[pid].start) for pid, start in starts.items()]
        scan = [(pid, start, end) for pid, start, end in scan if start < end]
        if scan:
            return Outcome([], needs_scan=scan)
    for pid, start in starts.items():
        partition = state.partitions[pid]
        stop = -1
        if command.stop_time_ns is not None:
            stop = partition.first_after(-(-command.stop_time_ns // MS_NS) - 1)
        elif command.stops is not None:
            stop = command.stops.get(partition.index, -1)
        if stop >= 0 and stop < start:
            return refuse(
                InvalidArgument(f"a replay from {start} to {stop} of partition {partition.index}: ends first")
            )
        kept_out = (command.filtered or {}).get(pid, EMPTY)
        facts.append(f.Sought(command.gid, pid, start, stop, now_ns, *kept_out.packed()))
        end = partition.end if stop < 0 else min(stop, partition.end)
        out = group.backlogs[pid].filtered | kept_out.bitmap()
        facts += _outlived(command.gid, partition, start, end, out, now_ns)
    return Outcome(facts, starts)


def _outlived(gid: int, partition: Partition, start: int, end: int, kept_out: BitMap64, now_ns: int) -> list[f.Fact]:
    """A group that begins here is not given what has outlived a lifetime of its own (a topic's is applied by time)."""
    over = _between(partition.lapsed - partition.gone, start, end)
    over -= partition.scheduled
    over -= kept_out
    return [f.Expired(gid, partition.pid, 0, *span_of(over).packed(), now_ns)] if over else []


def _between(bits: BitMap64, first: int, end: int) -> BitMap64:
    cut = BitMap64()
    cut.add_range(first, max(first, end))
    return bits & cut


def _pause(state: State, command: c.PauseGroup, now_ns: int) -> Outcome:
    if command.gid not in state.groups:
        return refuse(_no_group(command.gid))
    if command.until_ns and command.until_ns <= now_ns:
        return refuse(InvalidArgument("pause until a time that has passed: leave it out to pause until resumed"))
    by, why = command.by[:PAUSE_TEXT_CHARS_MAX], command.why[:PAUSE_TEXT_CHARS_MAX]
    return Outcome([f.Paused(command.gid, by, why, command.until_ns, now_ns)], True)


def _resume(state: State, command: c.ResumeGroup, now_ns: int) -> Outcome:
    group = state.groups.get(command.gid)
    if group is None:
        return refuse(_no_group(command.gid))
    if group.pause is None:
        return Outcome([], False)
    return Outcome([f.Resumed(command.gid, command.by[:PAUSE_TEXT_CHARS_MAX], now_ns)], True)


# -- messages ----------------------------------------------------------------------------------------------------------


def _purge(state: State, command: c.Purge, now_ns: int) -> Outcome:
    topic = state.topics.get(command.tid)
    if topic is None:
        return refuse(_no_topic(command.tid))
    group = state.groups.get(command.gid) if command.gid >= 0 else None
    if command.gid >= 0 and (group is None or group.topic is not topic):
        return refuse(_no_group(command.gid))
    facts: list[f.Fact] = []
    dropped = 0
    for partition in topic.partitions:
        only = None if command.only is None else command.only.get(partition.pid, EMPTY)
        if only is not None and not only.count:
            continue
        groups: list[Group] = [group] if group is not None else list(topic.groups.values())
        wanted = BitMap64()
        for each in groups:
            wanted |= each.backlogs[partition.pid].unleased_below(partition.end)
        if group is None:
            wanted |= partition.scheduled
            for each in groups:
                wanted -= each.backlogs[partition.pid].leased_bits()
        if only is not None:
            wanted &= only.bitmap()
        if wanted:
            facts.append(f.Dropped(command.gid, partition.pid, *span_of(wanted).packed(), now_ns))
            dropped += len(wanted)
    return Outcome(facts, dropped)


def _scheduled(state: State, pid: int) -> Partition | HeadraceError:
    partition = state.partitions.get(pid)
    return UnknownTopic(f"partition {pid} is not of this shard") if partition is None else partition


def _cancel(state: State, command: c.Cancel, now_ns: int) -> Outcome:
    partition = _scheduled(state, command.pid)
    if isinstance(partition, HeadraceError):
        return refuse(partition)
    span, scheduled = command.span, partition.scheduled
    known = span if inside(scheduled, span) else span_of(span.bitmap() & scheduled)
    if not known.count:
        return Outcome([], 0)
    return Outcome([f.Cancelled(command.pid, *known.packed(), now_ns)], known.count)


def _move(state: State, command: c.Move, now_ns: int) -> Outcome:
    partition = _scheduled(state, command.pid)
    if isinstance(partition, HeadraceError):
        return refuse(partition)
    limit_ns = partition.topic.settings.max_delay_ns
    if limit_ns and command.due_ns - now_ns > limit_ns:
        return refuse(too_far(partition.topic.name, command.due_ns - now_ns, limit_ns))
    known = span_of(command.span.bitmap() & partition.scheduled)
    if not known.count:
        return Outcome([], 0)
    due_ms = -(-max(command.due_ns, now_ns) // MS_NS)
    return Outcome([f.Moved(command.pid, *known.packed(), due_ms, now_ns)], known.count)


def _free_key(state: State, command: c.FreeKey, now_ns: int) -> Outcome:
    group = state.groups.get(command.gid)
    backlog = group.backlogs.get(command.pid) if group is not None else None
    if backlog is None:
        return refuse(_no_group(command.gid))
    if command.key_hash not in backlog.held_keys:
        return Outcome([], False)
    return Outcome([f.KeyFreed(command.gid, command.pid, command.key_hash, now_ns)], True)


def _trim(state: State, command: c.Trim, now_ns: int) -> Outcome:
    """Retention: never past what a durable group has not settled, nor past what any consumer holds."""
    partition = _scheduled(state, command.pid)
    if isinstance(partition, HeadraceError):
        return refuse(partition)
    kept: list[int] = []
    for group in partition.topic.groups.values():
        backlog = group.backlogs[command.pid]
        kept += [backlog.first_unsettled()] if group.durable else [lease.first for lease in backlog.leases.values()]
    if partition.scheduled:
        kept.append(partition.scheduled.min())
    start = min([command.start, partition.end, *kept])
    if start <= partition.start:
        return Outcome([], partition.start)
    facts: list[f.Fact] = []
    for group in partition.topic.groups.values():
        if not group.durable:
            lost = group.backlogs[command.pid].unleased_below(start)
            if lost:
                facts.append(f.Dropped(group.gid, command.pid, *span_of(lost).packed(), now_ns))
    facts.append(f.Trimmed(command.pid, start, now_ns))
    return Outcome(facts, start)


def _no_topic(tid: int) -> UnknownTopic:
    return UnknownTopic(f"topic {tid} is not of this shard")


def _no_group(gid: int) -> UnknownGroup:
    return UnknownGroup(f"group {gid} is not of this shard")


def _note(state: State, command: c.Note, now_ns: int) -> Outcome:
    known = state.notes
    return Outcome([f.Noted(key, value) for key, value in command.notes if known.get(key, b"") != value], True)


DECIDE: dict[type[Any], Callable[[State, Any, int], Outcome]] = {
    c.ChangeNamespace: _change_namespace,
    c.CreateTopic: _create_topic,
    c.ChangeTopic: _change_topic,
    c.DeleteTopic: _delete_topic,
    c.CreateGroup: _create_group,
    c.ChangeGroup: _change_group,
    c.DeleteGroup: _delete_group,
    c.Join: _join,
    c.Leave: _leave,
    c.Forget: _forget,
    c.Seek: _seek,
    c.PauseGroup: _pause,
    c.ResumeGroup: _resume,
    c.Purge: _purge,
    c.Cancel: _cancel,
    c.Move: _move,
    c.FreeKey: _free_key,
    c.Trim: _trim,
    c.Note: _note,
}
