"""A shard's memory: topics, partitions, groups, leases, and one place that knows what is due next.

``alarms`` is a heap of (at_ms, source) with at most one live entry a source (``armed`` knows which); ``expiries`` holds
leases by their deadline in buckets of 8 ms, each a dict so that a settled lease leaves at once and costs nothing later.
Both are indexes: everything in them can be found again by looking at the containers.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from headrace.delivery.backlog import Backlog, Lease
from headrace.delivery.namespace import Namespace
from headrace.delivery.partition import Partition
from headrace.delivery.topic import Group, Topic
from headrace.ids import IdSource

__all__ = ["BACKOFFS", "BUCKET_NS", "HANDOVERS", "LIFETIMES", "MEMBERS", "OUTLIVING", "PAUSES", "SCHEDULE", "State"]

MS_NS = 1_000_000
BUCKET_NS = 8 * MS_NS
FOREVER_NS = 1 << 62

# What an alarm is about; with a partition's, backlog's or group's number it names its source.
SCHEDULE, LIFETIMES, OUTLIVING, BACKOFFS, PAUSES, HANDOVERS, MEMBERS = range(7)


class State:
    __slots__ = (
        "_bucket_heap",
        "_ids",
        "alarms",
        "armed",
        "by_name",
        "expiries",
        "groups",
        "last_id",
        "leases",
        "look_at_ns",
        "namespaces",
        "next_gid",
        "next_lease_id",
        "next_pid",
        "next_tid",
        "node_id",
        "notes",
        "now_ns",
        "partitions",
        "topics",
    )

    def __init__(self, node_id: int = 0) -> None:
        self.node_id = node_id
        self.namespaces: dict[str, Namespace] = {}
        self.notes: dict[bytes, bytes] = {}  # what protocols remember together with messages
        self.topics: dict[int, Topic] = {}
        self.by_name: dict[tuple[str, str], Topic] = {}
        self.partitions: dict[int, Partition] = {}
        self.groups: dict[int, Group] = {}
        self.leases: dict[int, Lease] = {}
        self.next_tid = self.next_pid = self.next_gid = self.next_lease_id = 1
        self.last_id = 0
        self.now_ns = 0  # the latest time any fact speaks of
        self.alarms: list[tuple[int, int, int, int]] = []
        self.armed: dict[tuple[int, int, int], int] = {}
        self.expiries: dict[int, dict[int, Lease]] = {}
        self.look_at_ns = FOREVER_NS  # nothing is due before this; looked at anew by ``wake_at_ns``
        self._bucket_heap: list[int] = []
        self._ids: IdSource | None = None

    def namespace(self, name: str) -> Namespace:
        """The namespace, known from its first topic or setting on."""
        found = self.namespaces.get(name)
        if found is None:
            found = self.namespaces[name] = Namespace(name)
        return found

    def backlogs(self) -> Iterator[Backlog]:
        for group in self.groups.values():
            yield from group.backlogs.values()

    def take_ids(self, count: int, now_ns: int) -> int:
        """The first of ``count`` new message ids, above every id a fact speaks of. One not used is never used."""
        ids = self._ids
        if ids is None:
            ids = self._ids = IdSource(self.node_id, self.last_id)
        return ids.take(count, now_ns)

    # -- alarms --------------------------------------------------------------------------------------------------

    def arm(self, kind: int, first: int, second: int, at_ms: int | None) -> None:
        """Have the source looked at when ``at_ms`` comes (or earlier, when it is armed for earlier already)."""
        if at_ms is None:
            return
        source = (kind, first, second)
        armed = self.armed.get(source)
        if armed is None or at_ms < armed:
            self.armed[source] = at_ms
            heappush(self.alarms, (at_ms, *source))
            self.look_at_ns = min(self.look_at_ns, at_ms * MS_NS)

    def pop_alarms(self, now_ms: int) -> list[tuple[int, int, int]]:
        """The sources that are to be looked at by now, by kind: in which order they were armed makes no difference."""
        alarms, armed = self.alarms, self.armed
        found: list[tuple[int, int, int]] = []
        while alarms and alarms[0][0] <= now_ms:
            at_ms, kind, first, second = heappop(alarms)
            source = (kind, first, second)
            if armed.get(source) == at_ms:
                del armed[source]
                found.append(source)
        found.sort()
        return found

    def wake_at_ns(self) -> int | None:
        """When the next Tick has something to do."""
        alarms, armed = self.alarms, self.armed
        while alarms and armed.get(alarms[0][1:]) != alarms[0][0]:
            heappop(alarms)
        wake = alarms[0][0] * MS_NS if alarms else None
        heap = self._bucket_heap
        while heap and not self.expiries.get(heap[0]):
            self.expiries.pop(heappop(heap), None)
        if heap:
            bucket_ns = (heap[0] + 1) * BUCKET_NS
            if wake is None or bucket_ns < wake:
                wake = bucket_ns
        self.look_at_ns = FOREVER_NS if wake is None else wake
        return wake

    # -- leases by deadline --------------------------------------------------------------------------------------

    def watch(self, lease: Lease) -> None:
        number = lease.bucket = (lease.next_ns() if lease.later else lease.deadline_ns) // BUCKET_NS
        bucket = self.expiries.get(number)
        if bucket is None:
            self.expiries[number] = {lease.lease_id: lease}
            heappush(self._bucket_heap, number)
            self.look_at_ns = min(self.look_at_ns, (number + 1) * BUCKET_NS)
        else:
            bucket[lease.lease_id] = lease

    def unwatch(self, lease: Lease) -> None:
        bucket = self.expiries.get(lease.bucket)
        if bucket is not None:
            bucket.pop(lease.lease_id, None)

    def watch_anew(self, lease: Lease) -> None:
        self.unwatch(lease)
        self.watch(lease)

    def leases_over(self, now_ns: int) -> Iterator[Lease]:
        """Leases whose deadline has passed (their bucket's end, so up to 8 ms late and never early)."""
        last = now_ns // BUCKET_NS
        for number in sorted(number for number in self._bucket_heap if number < last):
            yield from [lease for _, lease in sorted(self.expiries.get(number, {}).items())]
