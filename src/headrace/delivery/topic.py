"""Topics, groups and their members: what a shard knows besides offsets."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from headrace.config import GroupConfig, TopicConfig
from headrace.delivery.backlog import Backlog
from headrace.delivery.partition import Partition
from headrace.delivery.settings import policy_of
from headrace.routing import GroupFilter, Predicate, compile_filter

__all__ = ["Dedup", "Group", "Pause", "Topic"]


class Pause(NamedTuple):
    by: str
    why: str
    until_ns: int
    at_ns: int


class Dedup:
    """The deduplication window of a topic: id -> what the first copy became.

    Entries lie in the order of their first copy, so the outdated are at the front; looking one up checks its age,
    dropping the outdated is housekeeping and done whenever a new one is noted.
    """

    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen: OrderedDict[bytes, tuple[int, int, int, int]] = OrderedDict()

    def find(self, dedup_id: bytes, since_ns: int) -> tuple[int, int, int] | None:
        """(message id, pid, offset) of the first copy, if it is younger than ``since_ns``."""
        entry = self.seen.get(dedup_id)
        return entry[1:] if entry is not None and entry[0] > since_ns else None

    def note(self, dedup_id: bytes, at_ns: int, message_id: int, pid: int, offset: int, since_ns: int) -> None:
        seen = self.seen
        seen.pop(dedup_id, None)
        seen[dedup_id] = (at_ns, message_id, pid, offset)
        while seen:
            first = next(iter(seen))
            if seen[first][0] > since_ns:
                break
            del seen[first]


class Topic:
    __slots__ = (
        "created_ns",
        "dedup",
        "groups",
        "name",
        "namespace",
        "partitions",
        "room",
        "settings",
        "tid",
    )

    def __init__(self, tid: int, namespace: str, name: str, settings: TopicConfig, created_ns: int) -> None:
        self.tid = tid
        self.namespace = namespace
        self.name = name
        self.settings = settings
        self.created_ns = created_ns
        self.partitions: list[Partition] = []
        self.groups: dict[str, Group] = {}
        self.dedup = Dedup()
        self.room = 0  # publishes that surely fit under max_depth before the depth has to be counted again

    @property
    def depth(self) -> int:
        """Unsettled messages: of the group that is furthest behind."""
        return max((group.unsettled_count for group in self.groups.values() if group.durable), default=0)


class Group:
    __slots__ = (
        "backlogs",
        "bucket_at_ns",
        "bucket_level",
        "created_ns",
        "delivered",
        "durable",
        "gid",
        "members",
        "nacked",
        "name",
        "owners",
        "pause",
        "policy",
        "redelivered",
        "settings",
        "topic",
        "wanted",
    )

    def __init__(
        self, gid: int, topic: Topic, name: str, settings: GroupConfig, created_ns: int, *, durable: bool
    ) -> None:
        self.gid = gid
        self.topic = topic
        self.name = name
        self.created_ns = created_ns
        self.durable = durable
        self.backlogs: dict[int, Backlog] = {}
        self.pause: Pause | None = None
        self.members: dict[str, int] = {}  # consumer -> when it was last heard of (not a fact: seen anew on recovery)
        self.owners: dict[int, str] = {}  # pid -> consumer, where order is by partition
        self.delivered = 0
        self.redelivered = 0
        self.nacked = 0
        self.bucket_level = 0.0  # of the rate limit: messages leased ahead of the rate
        self.bucket_at_ns = 0
        self.apply(settings)

    def apply(self, settings: GroupConfig) -> None:
        self.settings = settings
        self.policy = policy_of(self.topic.settings, self.topic.name, settings)
        self.wanted: Predicate | None = None
        if settings.filter is not None:
            wanted = GroupFilter.from_dict(settings.filter)
            if not wanted.matches_topic(self.topic.name):
                self.wanted = _nothing
            elif not wanted.wants_everything():
                self.wanted = compile_filter(wanted)

    def spend(self, count: int, at_ns: int) -> None:
        """Charge ``count`` deliveries to the rate limit."""
        self.bucket_level = max(0.0, self.bucket_level - (at_ns - self.bucket_at_ns) * self.policy.rate / 1e9) + count
        self.bucket_at_ns = at_ns

    def affordable(self, now_ns: int) -> int:
        """Deliveries the rate limit allows now: a second's worth may come at once."""
        rate = self.policy.rate
        level = max(0.0, self.bucket_level - (now_ns - self.bucket_at_ns) * rate / 1e9)
        return int(max(1.0, rate) - level)

    @property
    def unsettled_count(self) -> int:
        return sum(backlog.unsettled_count for backlog in self.backlogs.values())

    @property
    def leased_count(self) -> int:
        return sum(backlog.leased_count for backlog in self.backlogs.values())

    def consumers(self) -> list[str]:
        return sorted(self.members)


def _nothing(headers: object, key: object) -> bool:
    return False
