"""A shared subscription: each message goes to one member, and never waits for a member that is not there.

A message is given to a connected member, in turns, one with a free window first. While no member is connected it waits
in the group, not in a member's session, and goes to whoever comes first. When a member's connection ends, what it has
not acknowledged goes to the others; only a QoS 2 message that may have reached it stays its own [MQTT-4.8.2-4]
[MQTT-4.8.2-5].
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from headrace.pubsub.client import Client, Held

if TYPE_CHECKING:
    from headrace.wire.mqtt import OutgoingMessage

__all__ = ["Share", "Waiting"]


class Waiting:
    """A message no member has."""

    __slots__ = ("message", "mid", "qos")

    def __init__(self, mid: int, message: OutgoingMessage, qos: int) -> None:
        self.mid = mid
        self.message = message
        self.qos = qos


class Share:
    """Its members, whose turn it is, and what waits. ``topic_filter`` is the whole one, with ``$share/<group>/``."""

    __slots__ = ("inner_filter", "members", "topic_filter", "turn", "waiting", "waiting_bytes")

    def __init__(self, topic_filter: str, inner_filter: str) -> None:
        self.topic_filter = topic_filter
        self.inner_filter = inner_filter
        self.members: dict[Client, Held] = {}
        self.turn = 0
        self.waiting: deque[Waiting] = deque()
        self.waiting_bytes = 0

    def choose(self, qos: int, topic: str) -> Client | None:
        """The next member that is connected, may read the topic, and has room if any has."""
        members = list(self.members)
        count = len(members)
        second: Client | None = None
        for step in range(count):
            index = (self.turn + step) % count
            client = members[index]
            if client.link is None or (client.rights is not None and not client.rights.may_read(topic)):
                continue
            if client.link.session.has_room:
                self.turn = index + 1
                return client
            second = second or client
        return second if qos else None
