"""Topics, groups and their members: what a shard knows besides offsets."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from headrace.config import GroupConfig, TopicConfig
from headrace.delivery.backlog import Backlog
from headrace.delivery.namespace import Bucket, Namespace
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
        "may_filter",
        "name",
        "namespace",
        "partitions",
        "room",
        "settings",
        "space",
        "tid",
    )

    def __init__(self, tid: int, space: Namespace, name: str, settings: TopicConfig, created_ns: int) -> None:
        self.tid = tid
        self.space = space
        self.namespace = space.name
        space.topics.add(self)
        self.name = name
        self.settings = settings
        self.created_ns = created_ns
        self.partitions: list[Partition] = []
        self.groups: dict[str, Group] = {}
        self.dedup = Dedup()
        self.may_filter = False  # whether any group has had a filter since this process knows the topic
        self.room = 0  # publishes that surely fit under max_depth before the depth has to be counted again

    @property
    def depth(self) -> int:
        """Unsettled messages: of the group that is furthest behind."""
        return max((group.unsettled_count for group in self.groups.values() if group.durable), default=0)


class Group:
    __slots__ = (
        "backlogs",
        "bucket",
        "created_ns",
        "deaths",
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
        self.nacked = 0  # attempts that failed, by a nack, by time or with a connection: also the last of each message
        self.deaths: dict[str, int] = {}  # by reason
        self.bucket = Bucket()  # of the rate limit
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
            self.topic.may_filter = True

    def spend(self, count: int, at_ns: int) -> None:
        """Charge ``count`` deliveries to the rate limits."""
        if self.policy.rate:
            self.bucket.spend(count, self.policy.rate, at_ns)
        space = self.topic.space
        if space.settings.rate:
            space.bucket.spend(count, space.settings.rate, at_ns)

    def affordable(self, most: int, now_ns: int) -> int:
        """How many of ``most`` the limits of group and namespace allow now; a second's worth may come at once."""
        policy = self.policy
        if policy.concurrency:
            most = min(most, policy.concurrency - self.leased_count)
        if policy.rate:
            most = min(most, self.bucket.room(policy.rate, policy.rate, now_ns))
        return self.topic.space.affordable(most, now_ns)

    def wait_ns(self, now_ns: int) -> int:
        """How long rates alone keep the next message back."""
        rate = self.policy.rate
        own = self.bucket.wait_ns(1, rate, rate, now_ns) if rate else 0
        waits = [each.throttle.wait_ns(now_ns) for each in self.backlogs.values() if each.throttle is not None]
        keys = min(filter(None, waits), default=0)
        return max(own, self.topic.space.wait_ns(now_ns)) or keys

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
