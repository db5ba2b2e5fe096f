"""Topic patterns: the sets of topics that a token, an access rule or a command names.

A pattern is a topic filter in MQTT's spelling (``orders/#``, ``+/eu``, a plain name). Two questions are asked of a
set of patterns: does it allow this name (publish), and does it allow this whole filter (subscribe). A filter is allowed
only when one single pattern covers it; two patterns that cover it together do not count, which is strict, never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.errors import InvalidArgument
from headrace.limits import TOPIC_PATTERNS_MAX
from headrace.routing.topics import is_subset, matches, topic_filter_fault

__all__ = ["TopicPatterns"]


class TopicPatterns:
    """A validated, immutable set of patterns.

    >>> allowed = TopicPatterns(["orders/#", "status/+"])
    >>> allowed.allows_name("orders/7"), allowed.allows_filter("orders/+"), allowed.allows_filter("#")
    (True, True, False)
    """

    __slots__ = ("_names", "_wild", "patterns")

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(patterns)
        if len(self.patterns) > TOPIC_PATTERNS_MAX:
            raise InvalidArgument(f"{len(self.patterns)} topic patterns; at most {TOPIC_PATTERNS_MAX} are allowed")
        for pattern in self.patterns:
            fault = topic_filter_fault(pattern)
            if fault is not None:
                raise InvalidArgument(f"topic pattern {pattern!r}: {fault}")
        self._names = frozenset(p for p in self.patterns if "+" not in p and "#" not in p)
        self._wild = tuple(p for p in self.patterns if p not in self._names)

    def allows_name(self, topic: str) -> bool:
        """Whether one topic name is in the set."""
        return bool(topic) and (topic in self._names or any(matches(pattern, topic) for pattern in self._wild))

    def allows_filter(self, topic_filter: str) -> bool:
        """Whether everything the filter (``$share/…`` too) can match is in the set."""
        return topic_filter in self._names or any(is_subset(topic_filter, pattern) for pattern in self.patterns)
