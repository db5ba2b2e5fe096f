"""Deciding a publish: is there room, is it new, when is it due, which groups never see it."""

from __future__ import annotations

import msgspec

from headrace.batch import VALUES_ONLY, Batch, encode_placed
from headrace.config import format_duration
from headrace.delivery import facts as f
from headrace.delivery.commands import Outcome, Publish, PublishDone, refuse
from headrace.delivery.offsets import span_of
from headrace.delivery.partition import Partition, Seen
from headrace.delivery.state import State
from headrace.delivery.topic import Group, Topic
from headrace.errors import (
    DuplicateConflict,
    HeadraceError,
    InvalidArgument,
    LimitExceeded,
    PayloadTooLarge,
    QueueFull,
    UnknownTopic,
)
from headrace.limits import SECOND_NS

__all__ = ["Beside", "accept", "accept_value", "decide_publish", "filtered_of", "too_far"]


def decide_publish(state: State, command: Publish, now_ns: int) -> Outcome:
    partition = state.partitions.get(command.pid)
    if partition is None:
        return refuse(UnknownTopic(f"partition {command.pid} is not of this shard"))
    accepted = accept(state, partition, command.batch, now_ns)
    if isinstance(accepted, HeadraceError):
        return refuse(accepted)
    fact, batch, reply = accepted
    notes: list[f.Fact] = [f.Noted(key, value) for key, value in command.notes] if command.notes else []
    if fact is None or batch is None:
        return Outcome(notes, reply)
    return Outcome([fact, *notes], reply, (batch,))


Accepted = tuple[f.Published | None, Batch | None, PublishDone]


class Beside(msgspec.Struct):
    """What is published in the same record before: it is not in the state yet, and counts."""

    counts: dict[int, int] = {}  # topic -> messages
    dedup: dict[tuple[int, bytes], tuple[int, int, int]] = {}  # topic, dedup id -> (message id, pid, offset)

    def note(self, partition: Partition, batch: Batch) -> None:
        tid = partition.topic.tid
        self.counts[tid] = self.counts.get(tid, 0) + batch.count
        for i, dedup_id in enumerate(batch.dedup_ids() or ()):
            if dedup_id:
                self.dedup[tid, bytes(dedup_id)] = (batch.base_id + i, partition.pid, batch.base_offset + i)


def accept(
    state: State, partition: Partition, batch: Batch, now_ns: int, beside: Beside | None = None
) -> Accepted | HeadraceError:
    """The fact a batch becomes, or no fact where all of it is there already; or the refusal."""
    topic = partition.topic
    settings = topic.settings
    duplicates: list[tuple[int, int, int, int]] | tuple[()] = ()
    fresh: list[int] = []
    if batch.producer_id:
        repeated = _repeated(partition, batch)
        if repeated is not None:
            return repeated
    if batch.columns > VALUES_ONLY:
        refusal = _too_much(topic, batch, batch.count, now_ns, beside)
        if refusal is not None:
            return refusal
        dedup_ids = batch.dedup_ids()
        if dedup_ids is not None:
            duplicates = []
            fresh = _split_duplicates(topic, partition, dedup_ids, now_ns, duplicates, beside)
            if duplicates:
                if not fresh:
                    return None, None, PublishDone(partition.pid, partition.end, 0, 0, duplicates)
                batch = batch.select(fresh)
    elif (
        batch.size_bytes > settings.max_message_bytes
        or (topic.room < batch.count and settings.max_depth)
        or beside is not None
    ):
        refusal = _too_much(topic, batch, batch.count, now_ns, beside)
        if refusal is not None:
            return refusal
    pid, base, count = partition.pid, partition.end, batch.count
    at_ns = now_ns
    if partition.mark_ms and partition.mark_ms[-1] * 1_000_000 > now_ns:
        # Time never runs back inside a partition, whatever the clock does: marks are searched by time.
        at_ns = partition.mark_ms[-1] * 1_000_000
    base_id = state.take_ids(count, at_ns)
    batch = batch.stamp(base, base_id, at_ns)
    fact = f.Published(pid, batch.size_bytes)
    if topic.may_filter:
        fact.filtered = filtered_by_groups(topic, batch)
    if duplicates:
        _resolve_own(duplicates, fresh, pid, base, base_id)
        if batch.producer_id:
            fact.repeats = duplicates
    return fact, batch, PublishDone(pid, base, base_id, count, duplicates)


def accept_value(state: State, partition: Partition, value: bytes, now_ns: int) -> Batch | None:
    """`accept` for one value with no properties at all: its batch, stamped as it is made. None: there is something
    about it, or about the topic, that `accept` has to look at."""
    topic = partition.topic
    settings = topic.settings
    if len(value) > settings.max_message_bytes or (topic.room < 1 and settings.max_depth) or topic.may_filter:
        return None
    marks = partition.mark_ms
    if marks and marks[-1] * 1_000_000 > now_ns:
        now_ns = marks[-1] * 1_000_000
    return encode_placed(value, partition.end, state.take_ids(1, now_ns), now_ns)


def _repeated(partition: Partition, batch: Batch) -> Accepted | HeadraceError | None:
    """The answer to a producer's batch that was seen before."""
    seen = partition.producers.get(batch.producer_id)
    if seen is None or batch.producer_seq > seen[-1].sequence:
        return None
    for entry in seen:
        if entry.sequence == batch.producer_seq:
            count = entry.count + len(entry.repeats)
            if count != batch.count:
                return DuplicateConflict(
                    f"producer {batch.producer_id} sent sequence {batch.producer_seq} again with {batch.count}"
                    f" messages; the first time it had {count}"
                )
            return None, None, PublishDone(partition.pid, partition.end, 0, 0, _as_repeats(partition.pid, entry))
    return DuplicateConflict(
        f"producer {batch.producer_id} sent sequence {batch.producer_seq} after {seen[-1].sequence}, and it is not"
        f" among the last {len(seen)} that are remembered"
    )


def _as_repeats(pid: int, seen: Seen) -> list[tuple[int, int, int, int]]:
    """Where each message of a batch that was seen before lies, in the order of the batch."""
    known = {repeat[0]: repeat for repeat in seen.repeats}
    found: list[tuple[int, int, int, int]] = []
    stored = 0
    for index in range(seen.count + len(known)):
        if index in known:
            found.append(known[index])
        else:
            found.append((index, seen.base_id + stored, pid, seen.base_offset + stored))
            stored += 1
    return found


def _too_much(topic: Topic, batch: Batch, count: int, now_ns: int, beside: Beside | None) -> HeadraceError | None:
    settings = topic.settings
    if beside is not None:
        count += beside.counts.get(topic.tid, 0)
    if batch.size_bytes > settings.max_message_bytes:
        largest = max(map(len, batch.values()))
        if largest > settings.max_message_bytes:
            return PayloadTooLarge(
                f"a message of {largest} bytes: topic {topic.name!r} takes up to {settings.max_message_bytes}"
                " (max_message_size)"
            )
    if settings.max_depth and topic.room < count:
        if count > settings.max_depth:
            return LimitExceeded(
                f"{count} messages at once: topic {topic.name!r} holds at most {settings.max_depth} unsettled ones"
                " (max_depth); send fewer at a time"
            )
        depth = topic.depth
        topic.room = settings.max_depth - depth
        if topic.room < count:
            return QueueFull(
                f"topic {topic.name!r} has {depth} unsettled messages; {count} more would pass its max_depth of"
                f" {settings.max_depth}"
            )
    delivers = batch.deliver_ats()
    if delivers is not None:
        # Before the stamp a delay is negative, a time positive.
        furthest = max(max(delivers) - now_ns, -min(delivers))
        if settings.max_delay_ns and furthest > settings.max_delay_ns:
            return too_far(topic.name, furthest, settings.max_delay_ns)
    return None


def too_far(topic: str, delay_ns: int, most_ns: int) -> InvalidArgument:
    """The refusal of a delay, as the configuration spells spans. What is left of a time by the clock is rounded up, so
    that it never reads as what is allowed."""
    unit_ns = next((unit for unit in (3600 * SECOND_NS, 60 * SECOND_NS, SECOND_NS) if delay_ns >= 10 * unit), 1_000_000)
    asked_ns = -(-delay_ns // unit_ns) * unit_ns
    return InvalidArgument(
        f"a delay of {format_duration(asked_ns)}: topic {topic!r} allows up to {format_duration(most_ns)} (max_delay)"
    )


def _split_duplicates(
    topic: Topic,
    partition: Partition,
    dedup_ids: list[bytes],
    now_ns: int,
    duplicates: list[tuple[int, int, int, int]],
    beside: Beside | None,
) -> list[int]:
    """The indices of new messages; the others are noted in ``duplicates`` (own repetitions with offset -1 - index)."""
    since_ns = now_ns - topic.settings.dedup_window_ns
    fresh: list[int] = []
    own: dict[bytes, int] = {}
    for i, raw in enumerate(dedup_ids):
        dedup_id = bytes(raw)
        if not dedup_id:
            fresh.append(i)
            continue
        found = topic.dedup.find(dedup_id, since_ns)
        if found is None and beside is not None:
            found = beside.dedup.get((topic.tid, dedup_id))
        if found is not None:
            duplicates.append((i, *found))
        elif dedup_id in own:
            duplicates.append((i, 0, partition.pid, -1 - own[dedup_id]))
        else:
            own[dedup_id] = i
            fresh.append(i)
    return fresh


def _resolve_own(
    duplicates: list[tuple[int, int, int, int]], fresh: list[int], pid: int, base_offset: int, base_id: int
) -> None:
    """A batch that repeats itself: point its repetitions at the first copy, now that it has an id."""
    place = {index: n for n, index in enumerate(fresh)}
    for n, (i, _, _, offset) in enumerate(duplicates):
        if offset < 0:
            first = place[-1 - offset]
            duplicates[n] = (i, base_id + first, pid, base_offset + first)


def filtered_by_groups(topic: Topic, batch: Batch) -> list[tuple[int, int, int, bytes]]:
    found = []
    for group in topic.groups.values():
        if group.wanted is not None:
            span = span_of(filtered_of(group, batch))
            if span.count:
                found.append((group.gid, *span.packed()))
    return found


def filtered_of(group: Group, batch: Batch) -> list[int]:
    """The offsets of a stamped batch that a group's filter keeps out."""
    wanted = group.wanted
    if wanted is None:
        return []
    return [offset for i, offset in enumerate(batch.offsets()) if not wanted(batch.headers(i), batch.key(i))]
