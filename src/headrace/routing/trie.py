"""The subscription trie: from a topic name to everyone whose filter matches it.

One node per distinct filter prefix. A node has named children, at most one ``+`` child, the subscribers whose filter
ends here, and the subscribers of ``<here>/#``. Matching walks all levels once with a frontier of nodes: a named child
and the ``+`` child each, so its cost is that of the branches that can match, not of the number of filters.

Answers are kept per topic in a bounded cache (bounded by entries and by the subscribers they hold, because one topic
may have 100,000). Any change empties it: subscriptions change rarely compared with publishes, and a stale answer would
be a leak across access rules. ``generation`` rises with every change, so that a caller can keep plans of its own.

Invariants: no node without a subscriber below it; ``len(trie)`` is the number of (filter, subscriber) pairs.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from headrace.limits import MATCH_CACHE_SUBSCRIBERS_MAX, MATCH_CACHE_TOPICS_MAX

__all__ = ["SubscriptionTrie"]

K = TypeVar("K")
V = TypeVar("V")

_NOTHING: Final[tuple[()]] = ()


class _Node(Generic[K, V]):
    __slots__ = ("below", "children", "here", "plus")

    def __init__(self) -> None:
        self.children: dict[str, _Node[K, V]] | None = None
        self.plus: _Node[K, V] | None = None
        self.here: dict[K, V] | None = None
        self.below: dict[K, V] | None = None

    def is_empty(self) -> bool:
        return not (self.children or self.plus or self.here or self.below)


class SubscriptionTrie(Generic[K, V]):
    """Filters with their subscribers; a subscriber ``K`` holds one value ``V`` per filter.

    >>> trie = SubscriptionTrie[str, int]()
    >>> trie.add("sensors/+/temp", "ann", 1), trie.add("sensors/#", "bob", 2)
    (True, True)
    >>> sorted(trie.match("sensors/attic/temp"))
    [('ann', 1), ('bob', 2)]
    """

    __slots__ = (
        "_cache",
        "_cached_subscribers",
        "_root",
        "_size",
        "cache_subscribers_max",
        "cache_topics_max",
        "generation",
    )

    def __init__(
        self,
        *,
        cache_topics_max: int = MATCH_CACHE_TOPICS_MAX,
        cache_subscribers_max: int = MATCH_CACHE_SUBSCRIBERS_MAX,
    ) -> None:
        self._root: _Node[K, V] = _Node()
        self._size = 0
        self._cache: dict[str, tuple[tuple[K, V], ...]] = {}
        self._cached_subscribers = 0
        self.cache_topics_max = cache_topics_max
        self.cache_subscribers_max = cache_subscribers_max
        self.generation = 0

    def __len__(self) -> int:
        return self._size

    def add(self, topic_filter: str, subscriber: K, value: V) -> bool:
        """Adds or replaces a well-formed filter; True when the subscriber did not hold it before."""
        node = self._root
        levels = topic_filter.split("/")
        to_below = levels[-1] == "#"
        if to_below:
            levels.pop()
        for level in levels:
            child: _Node[K, V] | None
            if level == "+":
                child = node.plus
                if child is None:
                    child = node.plus = _Node()
            else:
                if node.children is None:
                    node.children = {}
                child = node.children.get(level)
                if child is None:
                    child = node.children[level] = _Node()
            node = child
        held = node.below if to_below else node.here
        if held is None:
            held = {}
            if to_below:
                node.below = held
            else:
                node.here = held
        is_new = subscriber not in held
        held[subscriber] = value
        self._size += is_new
        self._changed()
        return is_new

    def remove(self, topic_filter: str, subscriber: K) -> bool:
        """Takes one subscription away; False when it was not there."""
        path: list[tuple[_Node[K, V], str]] = []
        node = self._root
        levels = topic_filter.split("/")
        from_below = levels[-1] == "#"
        if from_below:
            levels.pop()
        for level in levels:
            child = node.plus if level == "+" else (node.children or {}).get(level)
            if child is None:
                return False
            path.append((node, level))
            node = child
        held = node.below if from_below else node.here
        if held is None or subscriber not in held:
            return False
        del held[subscriber]
        if not held:
            if from_below:
                node.below = None
            else:
                node.here = None
        while path and node.is_empty():
            node, level = path.pop()
            if level == "+":
                node.plus = None
            elif node.children is not None:
                del node.children[level]
                if not node.children:
                    node.children = None
        self._size -= 1
        self._changed()
        return True

    def get(self, topic_filter: str, subscriber: K) -> V | None:
        """The value of exactly this filter and subscriber."""
        node = self._root
        levels = topic_filter.split("/")
        in_below = levels[-1] == "#"
        if in_below:
            levels.pop()
        for level in levels:
            child = node.plus if level == "+" else (node.children or {}).get(level)
            if child is None:
                return None
            node = child
        held = node.below if in_below else node.here
        return None if held is None else held.get(subscriber)

    def match(self, topic: str) -> tuple[tuple[K, V], ...]:
        """Every (subscriber, value) whose filter matches; one with several matching filters comes several times."""
        found = self._cache.get(topic)
        if found is None:
            found = tuple(self._walk(topic))
            self._remember(topic, found)
        return found

    def _walk(self, topic: str) -> list[tuple[K, V]]:
        found: list[tuple[K, V]] = []
        root = self._root
        levels = topic.split("/")
        frontier: list[_Node[K, V]] = []
        if root.children is not None and (child := root.children.get(levels[0])) is not None:
            frontier.append(child)
        if topic[:1] != "$":  # [MQTT-4.7.2-1]: a leading wildcard does not reach a name that begins with $
            if root.below is not None:
                found.extend(root.below.items())
            if root.plus is not None:
                frontier.append(root.plus)
        for level in levels[1:]:
            if not frontier:
                return found
            following: list[_Node[K, V]] = []
            for node in frontier:
                if node.below is not None:
                    found.extend(node.below.items())
                if node.children is not None and (child := node.children.get(level)) is not None:
                    following.append(child)
                if node.plus is not None:
                    following.append(node.plus)
            frontier = following
        for node in frontier:
            if node.here is not None:
                found.extend(node.here.items())
            if node.below is not None:  # `a/#` matches `a` itself
                found.extend(node.below.items())
        return found

    def _remember(self, topic: str, found: tuple[tuple[K, V], ...]) -> None:
        weight = len(found)
        if weight > self.cache_subscribers_max or self.cache_topics_max == 0:
            return
        cache = self._cache
        while cache and (
            len(cache) >= self.cache_topics_max or self._cached_subscribers + weight > self.cache_subscribers_max
        ):
            self._cached_subscribers -= len(cache.pop(next(iter(cache))))
        cache[topic] = found
        self._cached_subscribers += weight

    def _changed(self) -> None:
        self.generation += 1
        if self._cache:
            self._cache.clear()
            self._cached_subscribers = 0
