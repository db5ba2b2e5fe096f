"""A namespace as delivery knows it: its settings, its topics, how much of its rate is used up."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from headrace.config import NamespaceConfig
from headrace.names import DEAD_LETTERS_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.delivery.topic import Group, Topic

__all__ = ["Bucket", "Namespace"]


class Bucket:
    """What was done ahead of a rate: it drains by ``rate`` a second, and a burst may fill it up to its size.

    It is charged by facts alone, so that after a recovery it stands where it stood.

    >>> bucket = Bucket()
    >>> bucket.spend(10, 10.0, 0)
    >>> bucket.room(10.0, 10.0, 0), bucket.room(10.0, 10.0, 500_000_000), bucket.wait_ns(1, 10.0, 10.0, 0)
    (0, 5, 100000000)
    """

    __slots__ = ("_at_ns", "_level")

    def __init__(self) -> None:
        self.restore(0.0, 0)

    def restore(self, level: float, at_ns: int) -> None:
        """Stand where ``dump`` said."""
        self._level, self._at_ns = level, at_ns

    def dump(self) -> list[float | int]:
        return [self._level, self._at_ns]

    def level(self, rate: float, now_ns: int) -> float:
        return max(0.0, self._level - max(0, now_ns - self._at_ns) * rate / 1e9)

    def spend(self, count: int, rate: float, at_ns: int) -> None:
        """Charge ``count`` that were let through."""
        self._level = self.level(rate, at_ns) + count
        self._at_ns = at_ns

    def room(self, rate: float, size: float, now_ns: int) -> int:
        """How many may go now."""
        return int(max(1.0, size) - self.level(rate, now_ns))

    def wait_ns(self, count: int, rate: float, size: float, now_ns: int) -> int:
        """How long until ``count`` may go (0: they may)."""
        over = self.level(rate, now_ns) + count - max(1.0, size)
        return max(0, ceil(over / rate * 1e9))


class Namespace:
    __slots__ = ("bucket", "limited", "metered", "name", "settings", "topics")

    def __init__(self, name: str) -> None:
        self.name = name
        self.apply(NamespaceConfig())
        self.topics: set[Topic] = set()
        self.bucket = Bucket()

    def apply(self, settings: NamespaceConfig) -> None:
        self.settings = settings
        self.limited = bool(settings.rate or settings.concurrency)  # whether what it hands out is
        self.metered = bool(settings.messages_per_minute or settings.bytes_per_minute)  # whether what it takes in is

    @property
    def topics_count(self) -> int:
        """Topics that count for its quota."""
        return sum(not topic.name.startswith(DEAD_LETTERS_PREFIX) for topic in self.topics)

    def groups(self) -> Iterator[Group]:
        for topic in self.topics:
            yield from topic.groups.values()

    @property
    def leased_count(self) -> int:
        return sum(group.leased_count for group in self.groups())

    def affordable(self, most: int, now_ns: int) -> int:
        """How many of ``most`` may be handed out now."""
        settings = self.settings
        if settings.concurrency:
            most = min(most, settings.concurrency - self.leased_count)
        if settings.rate:
            most = min(most, self.bucket.room(settings.rate, settings.rate, now_ns))
        return most

    def wait_ns(self, now_ns: int) -> int:
        """How long the rate keeps the next message back."""
        rate = self.settings.rate
        return self.bucket.wait_ns(1, rate, rate, now_ns) if rate else 0
