"""What a session tells its broker. Each event is a value; the order is the order on the wire."""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeAlias

import msgspec

from headrace.wire.mqtt.fanout import OutgoingMessage
from headrace.wire.mqtt.packets import Connect, Properties, Publish, Subscribe, Unsubscribe, Will

__all__ = [
    "Acked",
    "Cause",
    "Connected",
    "Disconnected",
    "Dropped",
    "Event",
    "Failed",
    "Published",
    "Recorded",
    "Released",
    "Subscribed",
    "Unsubscribed",
]


class Connected(msgspec.Struct, frozen=True):
    """A well-formed CONNECT; answer with ``accept`` or ``refuse``. Nothing more is read before."""

    packet: Connect


class Published(msgspec.Struct, gc=False):
    """A message from the client, its topic alias resolved.

    ``handle`` is 0 for QoS 0; for QoS 1 and 2 answer it with ``ack_publish(handle)`` once the message is committed
    (for QoS 2 together with the packet identifier, which is the handle).
    """

    message: Publish
    handle: int


class Released(msgspec.Struct, frozen=True):
    """PUBREL: the identifier of a QoS 2 message is given back. When holding, answer with ``complete_publish``."""

    packet_id: int


class Subscribed(msgspec.Struct, frozen=True):
    """Answer with ``send_suback(packet.packet_id, reasons)``."""

    packet: Subscribe


class Unsubscribed(msgspec.Struct, frozen=True):
    """Answer with ``send_unsuback(packet.packet_id, reasons)``."""

    packet: Unsubscribe


class Recorded(msgspec.Struct, frozen=True):
    """PUBREC for a message we sent with QoS 2. When holding, answer with ``release_publish`` once that is committed."""

    packet_id: int
    token: Any


class Acked(msgspec.Struct, frozen=True):
    """The client is done with a message: PUBACK, PUBCOMP, or PUBREC with an error. ``reason`` ≥ 0x80: it refused it."""

    packet_id: int
    token: Any
    reason: int
    properties: Properties | None


class Dropped(msgspec.Struct, frozen=True):
    """A message that had been queued or was to be sent again will never be sent: it expired, or is too large."""

    token: Any
    message: OutgoingMessage
    reason: int


class Cause(Enum):
    """Why a connection ended."""

    CLIENT = "the client said goodbye"
    LOST = "the network connection ended"
    KEEP_ALIVE = "nothing was heard for one and a half keep-alive intervals"
    FAULT = "the client broke the protocol or a limit"
    SERVER = "the server ended it"


class Failed(msgspec.Struct, frozen=True):
    """The peer broke a rule; the connection is about to close. Always before its `Disconnected`, if that comes at
    all.
    """

    reason: int
    clause: str
    detail: str


class Disconnected(msgspec.Struct, frozen=True):
    """The last event of every session that had a `Connected`.

    ``will`` is what has to be published (after its will delay interval, unless the session is resumed before), None
    when it was discarded, there was none, or the connection was never accepted. ``session_expiry_s`` 0: the session's
    state ends now.
    """

    cause: Cause
    reason: int
    will: Will | None
    session_expiry_s: int
    properties: Properties | None = None


Event: TypeAlias = (
    Connected | Published | Released | Subscribed | Unsubscribed | Recorded | Acked | Dropped | Failed | Disconnected
)
