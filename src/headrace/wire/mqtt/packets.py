"""The packets of MQTT 3.1.1 and 5.0 as plain values.

One class per packet type. ``KIND`` is the packet type, the high nibble of its first byte. ``properties`` is a dict of
MQTT 5 properties by their names in the standard, None when there are none (always in 3.1.1). Texts are ``str``, binary
data ``bytes``. Which of these the peer may send, and when, is the session's affair.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias, TypedDict

import msgspec

__all__ = [
    "Auth",
    "ConnAck",
    "Connect",
    "Disconnect",
    "Packet",
    "PingReq",
    "PingResp",
    "Properties",
    "PubAck",
    "PubComp",
    "PubRec",
    "PubRel",
    "Publish",
    "SubAck",
    "Subscribe",
    "Subscription",
    "UnsubAck",
    "Unsubscribe",
    "Will",
]


class Properties(TypedDict, total=False):
    """MQTT 5 properties (§2.2.2.2). An absent property has no key here; the two repeatable ones are lists in wire
    order.
    """

    payload_format_indicator: int
    message_expiry_interval: int
    content_type: str
    response_topic: str
    correlation_data: bytes
    subscription_identifiers: list[int]
    session_expiry_interval: int
    assigned_client_identifier: str
    server_keep_alive: int
    authentication_method: str
    authentication_data: bytes
    request_problem_information: int
    will_delay_interval: int
    request_response_information: int
    response_information: str
    server_reference: str
    reason_string: str
    receive_maximum: int
    topic_alias_maximum: int
    topic_alias: int
    maximum_qos: int
    retain_available: int
    user_properties: list[tuple[str, str]]
    maximum_packet_size: int
    wildcard_subscription_available: int
    subscription_identifier_available: int
    shared_subscription_available: int


class Will(msgspec.Struct, frozen=True):
    """The message a server publishes for a client that went without saying goodbye."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties | None = None


class Connect(msgspec.Struct, frozen=True):
    """``version`` is the protocol level on the wire: 4 for MQTT 3.1.1, 5 for MQTT 5.0."""

    KIND: ClassVar[int] = 1
    client_id: str
    version: int = 5
    clean_start: bool = True
    keep_alive_s: int = 0
    user_name: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties | None = None


class ConnAck(msgspec.Struct, frozen=True):
    """``reason`` is an MQTT 5 reason code, or in 3.1.1 a return code 0–5."""

    KIND: ClassVar[int] = 2
    session_present: bool = False
    reason: int = 0
    properties: Properties | None = None


class Publish(msgspec.Struct, gc=False):
    """Mutable, for its topic alone: a session puts the name in place of a topic alias."""

    KIND: ClassVar[int] = 3
    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties | None = None


class PubAck(msgspec.Struct, frozen=True, gc=False):
    KIND: ClassVar[int] = 4
    packet_id: int
    reason: int = 0
    properties: Properties | None = None


class PubRec(msgspec.Struct, frozen=True, gc=False):
    KIND: ClassVar[int] = 5
    packet_id: int
    reason: int = 0
    properties: Properties | None = None


class PubRel(msgspec.Struct, frozen=True, gc=False):
    KIND: ClassVar[int] = 6
    packet_id: int
    reason: int = 0
    properties: Properties | None = None


class PubComp(msgspec.Struct, frozen=True, gc=False):
    KIND: ClassVar[int] = 7
    packet_id: int
    reason: int = 0
    properties: Properties | None = None


class Subscription(msgspec.Struct, frozen=True, gc=False):
    """One topic filter with its options; in 3.1.1 only ``qos`` is on the wire."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class Subscribe(msgspec.Struct, frozen=True):
    KIND: ClassVar[int] = 8
    packet_id: int
    subscriptions: tuple[Subscription, ...]
    properties: Properties | None = None


class SubAck(msgspec.Struct, frozen=True):
    KIND: ClassVar[int] = 9
    packet_id: int
    reasons: tuple[int, ...]
    properties: Properties | None = None


class Unsubscribe(msgspec.Struct, frozen=True):
    KIND: ClassVar[int] = 10
    packet_id: int
    topic_filters: tuple[str, ...]
    properties: Properties | None = None


class UnsubAck(msgspec.Struct, frozen=True):
    """``reasons`` is empty in 3.1.1."""

    KIND: ClassVar[int] = 11
    packet_id: int
    reasons: tuple[int, ...] = ()
    properties: Properties | None = None


class PingReq(msgspec.Struct, frozen=True):
    KIND: ClassVar[int] = 12


class PingResp(msgspec.Struct, frozen=True):
    KIND: ClassVar[int] = 13


class Disconnect(msgspec.Struct, frozen=True):
    KIND: ClassVar[int] = 14
    reason: int = 0
    properties: Properties | None = None


class Auth(msgspec.Struct, frozen=True):
    KIND: ClassVar[int] = 15
    reason: int = 0
    properties: Properties | None = None


Packet: TypeAlias = (
    Connect
    | ConnAck
    | Publish
    | PubAck
    | PubRec
    | PubRel
    | PubComp
    | Subscribe
    | SubAck
    | Unsubscribe
    | UnsubAck
    | PingReq
    | PingResp
    | Disconnect
    | Auth
)
