"""Retained messages: the last one of each topic, found again by topic filters.

A tree by levels, so that a subscription with wildcards walks the branches it can match and no others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.wire.mqtt import OutgoingMessage

__all__ = ["Retained", "Stored"]


class Stored(NamedTuple):
    message: OutgoingMessage
    qos: int


class _Node:
    __slots__ = ("children", "stored")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.stored: Stored | None = None


class Retained:
    """Topic → message. Expired ones are left out and swept when they are met.

    >>> retained = Retained(10, 1000)
    >>> retained.put(OutgoingMessage("a/b", b"1"), 1)
    True
    >>> [found.message.payload for found in retained.matching("a/+", 0)]
    [b'1']
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._root = _Node()
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._count = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return self._count

    def put(self, message: OutgoingMessage, qos: int) -> bool:
        """Keep it in place of the topic's earlier one; False when there is no room."""
        earlier = self.get(message.topic)
        more = message.size_bytes - (earlier.message.size_bytes if earlier is not None else 0)
        if self.size_bytes + more > self._bytes_max or (earlier is None and self._count >= self._messages_max):
            return False
        node = self._root
        for level in message.topic.split("/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        self._count += node.stored is None
        self.size_bytes += more
        node.stored = Stored(message, qos)
        return True

    def get(self, topic: str) -> Stored | None:
        node = self._root
        for level in topic.split("/"):
            child = node.children.get(level)
            if child is None:
                return None
            node = child
        return node.stored

    def remove(self, topic: str) -> bool:
        """Forget the topic's message; False when there is none."""
        path: list[tuple[_Node, str]] = []
        node = self._root
        for level in topic.split("/"):
            path.append((node, level))
            child = node.children.get(level)
            if child is None:
                return False
            node = child
        if node.stored is None:
            return False
        self.size_bytes -= node.stored.message.size_bytes
        self._count -= 1
        node.stored = None
        while path and not node.children and node.stored is None:
            node, level = path.pop()
            del node.children[level]
        return True

    def matching(self, topic_filter: str, now_ns: int) -> Iterator[Stored]:
        """What a new subscription gets. It may be read slowly; what is removed meanwhile may still come."""
        nodes = [self._root]
        levels = topic_filter.split("/")
        for index, level in enumerate(levels):
            following: list[_Node] = []
            if level == "#":
                break
            for node in nodes:
                if level == "+":
                    following += [
                        child for name, child in node.children.items() if index or name[:1] != "$"
                    ]  # [MQTT-4.7.2-1]
                elif (child := node.children.get(level)) is not None:
                    following.append(child)
            nodes = following
        found: list[Stored] = []
        if levels[-1] == "#":
            stack = list(reversed(nodes))
            while stack:
                node = stack.pop()
                if node.stored is not None:
                    found.append(node.stored)
                hides = node is self._root
                stack += [child for name, child in node.children.items() if not hides or name[:1] != "$"]
        else:
            found = [node.stored for node in nodes if node.stored is not None]
        for stored in found:
            if stored.message.seconds_left(now_ns) != -1:
                yield stored

    def all(self) -> Iterator[Stored]:
        """Every retained message."""
        stack = [self._root]
        while stack:
            node = stack.pop()
            if node.stored is not None:
                yield node.stored
            stack += node.children.values()

    def sweep(self, now_ns: int) -> list[str]:
        """Forget what has expired; the topics."""
        gone = [stored.message.topic for stored in self.all() if stored.message.seconds_left(now_ns) == -1]
        for topic in gone:
            self.remove(topic)
        return gone
