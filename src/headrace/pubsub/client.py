"""One client's session: what is known of a client id while it is connected, and while it is awaited.

A session that may outlive its connection (``reserves``) chooses packet identifiers when a message is kept for it, not
when it is sent, so that message and identifier are stored together and QoS 2 stays exactly once over a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from headrace.wire.mqtt import OutgoingMessage, ServerSession, SessionState, Will

if TYPE_CHECKING:
    from headrace.pubsub.share import Share

__all__ = ["Client", "Held", "Link", "Pending", "QueueHeld", "Rights"]

_PACKET_IDS = 0xFFFF


class Rights(Protocol):
    """What the client's principal may do with ordinary topics."""

    def may_read(self, topic: str) -> bool: ...

    def may_subscribe(self, topic_filter: str) -> bool: ...

    def may_write(self, topic: str) -> bool: ...


class Link(Protocol):
    """A connection, as a session sees it."""

    session: ServerSession

    def touch(self) -> None:
        """There is something to write."""
        ...

    def end(self, reason: int, text: str) -> None:
        """Close it in the next round; the exchange is told as of any other end."""
        ...

    def end_now(self, reason: int, text: str) -> None:
        """The same at once."""
        ...


class Held(msgspec.Struct, frozen=True, gc=False):
    """A subscription: one filter of one client with its options."""

    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0


class QueueHeld(msgspec.Struct, frozen=True, gc=False):
    """A subscription to a durable queue: how its client consumes, now and when it comes back."""

    qos: int
    identifier: int
    group: str
    prefetch: int
    by_puback: bool
    start: str = ""


class Pending:
    """A message on its way to one session, from when it is kept until the client is done with it."""

    __slots__ = ("client", "identifiers", "is_durable", "message", "mid", "packet_id", "qos", "retain", "share")

    def __init__(
        self,
        mid: int,
        message: OutgoingMessage,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        packet_id: int,
        client: Client,
        share: Share | None = None,
    ) -> None:
        self.mid = mid
        self.message = message
        self.qos = qos
        self.retain = retain
        self.identifiers = identifiers
        self.packet_id = packet_id
        self.client = client
        self.share = share
        self.is_durable = False


class Client:
    """See the head of this file."""

    __slots__ = (
        "backlog",
        "client_id",
        "expiry_s",
        "gone_ns",
        "kept",
        "kept_bytes",
        "last_packet_id",
        "leaving",
        "link",
        "opening",
        "owner",
        "queues",
        "received",
        "reserves",
        "rights",
        "standing_will",
        "state",
        "subscriptions",
        "uid",
        "used",
        "waiter",
        "will",
        "will_due_ns",
    )

    def __init__(self, client_id: str, uid: int, owner: str, expiry_s: int) -> None:
        self.client_id = client_id
        self.uid = uid
        self.owner = owner
        self.expiry_s = expiry_s
        self.reserves = expiry_s > 0
        self.link: Link | None = None
        self.opening: Link | None = None  # a connection that waits until its beginning is durable
        self.rights: Rights | None = None
        self.subscriptions: dict[str, Held] | None = None
        self.queues: dict[str, QueueHeld] | None = None
        self.state: SessionState | None = None  # while nobody is connected
        self.leaving: Link | None = None  # a connection that has ended and still waits for answers
        self.waiter: Any = None  # who wants to connect meanwhile
        self.gone_ns = 0
        self.standing_will: Will | None = None  # of a connection that stands, when the session lasts
        self.will: Will | None = None  # of one that has ended, until it is due
        self.will_due_ns = 0
        self.received: set[int] | None = None  # identifiers of QoS 2 publishes that are noted and not released
        self.kept: dict[int, Pending] = {}
        self.kept_bytes = 0
        self.used: set[int] = set()
        self.last_packet_id = 0
        self.backlog: deque[Iterator[tuple[OutgoingMessage, int, tuple[int, ...]]]] | None = None
        """Retained messages of new subscriptions that are still to be sent."""

    def take_packet_id(self) -> int:
        """A free identifier, 0 when this session leaves the choice to its connection (or none is left)."""
        if not self.reserves or len(self.used) >= _PACKET_IDS:
            return 0
        packet_id = self.last_packet_id
        while True:
            packet_id = packet_id + 1 if packet_id < _PACKET_IDS else 1
            if packet_id not in self.used:
                break
        self.last_packet_id = packet_id
        self.used.add(packet_id)
        return packet_id

    def expires_at_ns(self) -> int | None:
        """When a session that is left ends; None: not while its client is connected."""
        if self.link is not None:
            return None
        return self.gone_ns + self.expiry_s * 1_000_000_000
