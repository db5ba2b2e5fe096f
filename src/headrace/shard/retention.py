"""What of the past may go: by time, by bytes, by everybody being done with it.

Messages leave a partition's log from its front. What is unsettled in a durable group stays whatever the settings say
(``Trim`` sees to that). Sealed messages leave by whole files, unsealed ones to the batch; ``retention_bytes`` counts
messages as they were published, so that sealing changes nothing about what is kept, and the oldest of all partitions of
a topic go first. With an archive nothing leaves that was not sealed before: it has to be copied there as a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from headrace.delivery import Partition, Topic, Trim
from headrace.log import PartitionLog
from headrace.log.manifest import EventSegment, Segment
from headrace.shard.core import Core

__all__ = ["leaving", "trim_topic"]


def trim_topic(core: Core, topic: Topic, *, sealed_only: bool) -> int:
    """Let the partitions of a topic begin where its settings say; how many moved."""
    settings = topic.settings
    now_ns = core.clock.now_ns()
    starts = {partition.pid: partition.start for partition in topic.partitions}
    if settings.retention_ns:
        for partition in topic.partitions:
            _at_least(starts, partition, _outlived(core.log(partition.pid), core, now_ns - settings.retention_ns))
    if settings.retention_bytes:
        _fit(core, topic, starts, settings.retention_bytes)
    if sealed_only:
        for partition in topic.partitions:
            log = core.log(partition.pid)
            starts[partition.pid] = min(starts[partition.pid], log.journal_start)
    if not settings.retain_acked:
        for partition in topic.partitions:
            _at_least(starts, partition, _settled_to(topic, partition))
    moved = 0
    for partition in topic.partitions:
        if starts[partition.pid] > partition.start:
            before = partition.start
            core.execute(Trim(partition.pid, starts[partition.pid]))
            moved += partition.start > before
    return moved


def _at_least(starts: dict[int, int], partition: Partition, start: int) -> None:
    starts[partition.pid] = max(starts[partition.pid], min(start, partition.end))


def _outlived(log: PartitionLog, core: Core, before_ns: int) -> int:
    """The first offset that may have been appended at or after a time."""
    segments: Sequence[Segment] = core.manifest.segments.get(log.pid, ())
    for segment in segments:
        if segment.last_ns >= before_ns:
            return segment.first
    return log.outlived_to(before_ns)


def _fit(core: Core, topic: Topic, starts: dict[int, int], bytes_max: int) -> None:
    """Move starts on until what is left fits, the oldest first."""
    oldest: list[tuple[int, int, int, int]] = []  # first_ns, pid, end, size
    live: dict[int, int] = {}
    excess = -bytes_max
    for partition in topic.partitions:
        log = core.log(partition.pid)
        for segment in core.manifest.segments.get(partition.pid, ()):
            if segment.end > starts[partition.pid]:
                oldest.append((segment.first_ns, partition.pid, segment.end, segment.raw_bytes))
                excess += segment.raw_bytes
        live[partition.pid] = log.journal_bytes - log.bytes_before(starts[partition.pid])
        excess += live[partition.pid]
    heapify(oldest)
    while oldest and excess > 0:
        first_ns, pid, end, size_bytes = heappop(oldest)
        if size_bytes > excess:  # a file that is needed in part stays whole
            heappush(oldest, (first_ns, pid, end, size_bytes))
            return
        excess -= size_bytes
        starts[pid] = max(starts[pid], end)
    total = sum(live.values())
    if excess > 0 and total:
        for partition in topic.partitions:
            log = core.log(partition.pid)
            share = excess * live[partition.pid] // total
            before = log.bytes_before(starts[partition.pid])
            # To the batch that is still needed in part: one more than fits is never let go of.
            _at_least(starts, partition, log.offset_before_bytes(before + share))


def _settled_to(topic: Topic, partition: Partition) -> int:
    """Up to where every group is done with everything."""
    settled = [group.backlogs[partition.pid].first_unsettled() for group in topic.groups.values()]
    if partition.scheduled:
        settled.append(partition.scheduled.min())
    return min(settled, default=partition.end)


def leaving(core: Core) -> tuple[list[Segment], list[EventSegment]]:
    """Live files that hold nothing anybody may read any more."""
    state, manifest = core.state, core.manifest
    segments: list[Segment] = []
    for pid, live in manifest.segments.items():
        partition = state.partitions.get(pid)
        if partition is None:
            segments += live
            continue
        for segment in live:
            if segment.end > partition.start:
                break
            segments.append(segment)
    events = [file for files in manifest.events.values() for file in files if _is_over(core, file)]
    return segments, events


def _is_over(core: Core, file: EventSegment) -> bool:
    """Facts are kept as long as a message they speak of; facts about no message, for the topic's retention."""
    topic = core.state.topics.get(file.tid)
    if topic is None:
        return True
    partitions = core.state.partitions
    if file.spans:
        return all(pid not in partitions or last < partitions[pid].start for pid, _, last in file.spans)
    retention_ns = topic.settings.retention_ns
    return bool(retention_ns) and file.last_ns < core.clock.now_ns() - retention_ns
