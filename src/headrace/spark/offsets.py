"""Where a stream is: ``{"orders": {"0": 17, "1": 22}}``, the next offset to read of every partition.

Spark compares two of these as text, so topics and partitions are written in one order, always. What is compared as
places (has anything been lost, is there anything new) is compared here, as numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

__all__ = ["Places", "at", "behind", "forward", "limited", "parsed", "written"]

Places: TypeAlias = dict[str, dict[int, int]]


def written(places: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, int]]:
    """As it goes into the checkpoint.

    >>> written({"b": {10: 1, 9: 2}, "a": {0: 3}})
    {'a': {'0': 3}, 'b': {'9': 2, '10': 1}}
    """
    return {topic: {str(index): parts[index] for index in sorted(parts)} for topic, parts in sorted(places.items())}


def parsed(offset: Mapping[str, Mapping[str, int]]) -> Places:
    """What ``written`` wrote."""
    return {topic: {int(index): int(place) for index, place in parts.items()} for topic, parts in offset.items()}


def at(places: Mapping[str, Mapping[int, int]], topic: str, index: int) -> int:
    """A place; partitions that are not named begin at their beginning."""
    return places.get(topic, {}).get(index, 0)


def behind(start: Mapping[str, Mapping[int, int]], end: Mapping[str, Mapping[int, int]]) -> int:
    """Messages between two places."""
    return sum(
        max(0, place - at(start, topic, index)) for topic, parts in end.items() for index, place in parts.items()
    )


def forward(start: Mapping[str, Mapping[int, int]], end: Mapping[str, Mapping[int, int]]) -> Places:
    """``end``, but nowhere before ``start``: a stream never goes back."""
    topics = {**start, **end}
    return {
        topic: {
            index: max(at(start, topic, index), at(end, topic, index))
            for index in {**start.get(topic, {}), **end.get(topic, {})}
        }
        for topic in topics
    }


def limited(start: Mapping[str, Mapping[int, int]], end: Mapping[str, Mapping[int, int]], rows: int) -> Places:
    """The way from start to end, cut to so many messages, each partition by its share of what waits.

    >>> limited({"a": {0: 0, 1: 0}}, {"a": {0: 300, 1: 100}}, 40)
    {'a': {0: 30, 1: 10}}
    """
    waiting = {
        (topic, index): max(0, place - at(start, topic, index))
        for topic, parts in end.items()
        for index, place in parts.items()
    }
    total = sum(waiting.values())
    if total <= rows:
        return forward(start, end)
    shares = {key: count * rows // total for key, count in waiting.items()}
    left = rows - sum(shares.values())
    for key in sorted(waiting, key=lambda each: waiting[each] * rows % total, reverse=True):
        if left and shares[key] < waiting[key]:
            shares[key] += 1
            left -= 1
    found: Places = {topic: dict(parts) for topic, parts in start.items()}
    for (topic, index), share in shares.items():
        found.setdefault(topic, {})[index] = at(start, topic, index) + share
    return found
