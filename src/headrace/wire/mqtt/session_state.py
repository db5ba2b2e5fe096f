"""What outlives a connection: the delivery state of one client's session (§4.1).

Kept: messages sent and not acknowledged, in their order; messages that wait for the client's window; identifiers of
QoS 2 messages received and not released. Not kept, because it is the broker's: subscriptions, will, expiry. Not kept,
because the standard says so: topic aliases [MQTT-3.3.2-7], QoS 1 messages we have not acknowledged yet (the client
sends them again).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from headrace.wire.mqtt.fanout import OutgoingMessage

__all__ = ["Outbound", "SessionState", "Stage"]


class Stage(IntEnum):
    """Where a message we send stands."""

    QUEUED = 0
    SENT = 1
    """PUBLISH sent, PUBACK or PUBREC awaited."""
    RECORDED = 2
    """PUBREC received and not yet committed; PUBREL not sent."""
    RELEASED = 3
    """PUBREL sent, PUBCOMP awaited. The message itself is no longer needed."""


@dataclass(slots=True)
class Outbound:
    """One message on its way to one client. ``token`` is whatever the broker gave with it."""

    message: OutgoingMessage | None
    qos: int
    retain: bool = False
    subscription_identifiers: tuple[int, ...] = ()
    token: Any = None
    packet_id: int = 0
    stage: Stage = Stage.QUEUED


@dataclass(slots=True)
class SessionState:
    """Taken from one connection by ``export_state`` and handed to the next by ``accept(state=…)``."""

    inflight: list[Outbound] = field(default_factory=list)
    queued: list[Outbound] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    last_packet_id: int = 0

    def to_plain(self) -> dict[str, Any]:
        """Lists, dicts, bytes, text and numbers only (and the tokens as they are), for storing."""
        return {
            "inflight": [_plain(entry) for entry in self.inflight],
            "queued": [_plain(entry) for entry in self.queued],
            "received": list(self.received),
            "last_packet_id": self.last_packet_id,
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> SessionState:
        """The inverse of ``to_plain``."""
        return cls(
            [_outbound(entry) for entry in plain["inflight"]],
            [_outbound(entry) for entry in plain["queued"]],
            list(plain["received"]),
            plain["last_packet_id"],
        )


def _plain(entry: Outbound) -> list[Any]:
    message = entry.message
    body = None if message is None else [message.topic, message.payload, message.properties, message.expires_at_ns]
    return [
        body,
        entry.qos,
        entry.retain,
        list(entry.subscription_identifiers),
        entry.token,
        entry.packet_id,
        int(entry.stage),
    ]


def _outbound(plain: list[Any]) -> Outbound:
    body, qos, retain, identifiers, token, packet_id, stage = plain
    message = None
    if body is not None:
        topic, payload, properties, expires_at_ns = body
        if properties and "user_properties" in properties:  # pairs come back as lists from most encodings
            properties = {**properties, "user_properties": [(k, v) for k, v in properties["user_properties"]]}
        message = OutgoingMessage(topic, payload, properties, expires_at_ns)
    return Outbound(message, qos, retain, tuple(identifiers), token, packet_id, Stage(stage))
