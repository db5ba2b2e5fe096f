"""One message for many subscribers: what they share is encoded once.

A PUBLISH frame is cut into what all receivers have in common and what each has for itself:

    3.1.1   byte 1 | remaining length, topic | packet id | payload
    5.0     byte 1 | remaining length, topic | packet id | length, alias, ids, expiry | properties, payload
            ------   -----------------------   ---------   --------------------------   -------------------
            own      shared unless aliased     own         own, when there are any      shared

A QoS 0 frame without own properties is one ``bytes`` object that every subscriber's socket is given. Payloads above
`SPLIT_BYTES` are never copied: a frame is then two buffers.
"""

from __future__ import annotations

from typing import Final, cast

from headrace.errors import InvalidArgument
from headrace.wire.mqtt.builder import BYTE
from headrace.wire.mqtt.fields import write_varint
from headrace.wire.mqtt.packets import Properties, Publish
from headrace.wire.mqtt.properties import property_bytes

__all__ = ["OutgoingMessage"]

SPLIT_BYTES: Final = 4096
"""Below this a copy is cheaper than one more buffer for the socket."""

_V5: Final = 5
_NS: Final = 1_000_000_000
_OWN: Final = ("topic_alias", "subscription_identifiers", "message_expiry_interval")


class OutgoingMessage:
    """Topic, payload and properties of one application message, ready to be framed for any number of subscribers.

    ``expires_at_ns`` is on the clock of the ``now_ns`` that sessions are given; the interval sent is what is left of it
    [MQTT-3.3.2-6]. Properties that belong to one receiver (alias, subscription identifiers, expiry) are taken out.

    >>> message = OutgoingMessage("a/b", b"hi")
    >>> message.frames(4, 0)[0] is message.frames(4, 0)[0]
    True
    """

    __slots__ = (
        "_bodies",
        "_expiring",
        "_heads",
        "_wholes",
        "expires_at_ns",
        "payload",
        "properties",
        "size_bytes",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        payload: bytes,
        properties: Properties | None = None,
        expires_at_ns: int | None = None,
    ) -> None:
        if properties and (
            "topic_alias" in properties
            or "subscription_identifiers" in properties
            or "message_expiry_interval" in properties
        ):
            kept = {name: value for name, value in properties.items() if name not in _OWN}
            properties = cast("Properties", kept)
        self.topic = topic
        self.payload = payload
        self.properties = properties or None
        self.expires_at_ns = expires_at_ns
        self.size_bytes = len(topic) + len(payload)
        self._heads: dict[int, tuple[bytes, bytes]] = {}
        self._wholes: dict[int, tuple[bytes, ...]] = {}
        self._bodies: tuple[bytes, bytes, bytes] | None = None
        self._expiring: tuple[int, bool, tuple[bytes, ...]] | None = None

    @classmethod
    def of(cls, packet: Publish, now_ns: int) -> OutgoingMessage:
        """The message of a received PUBLISH; its expiry interval counts from ``now_ns``."""
        properties = packet.properties
        expires_at_ns = None
        if properties and "message_expiry_interval" in properties:
            expires_at_ns = now_ns + properties["message_expiry_interval"] * _NS
        return cls(packet.topic, packet.payload, properties, expires_at_ns)

    @classmethod
    def prepared(cls, topic: str, name: bytes, payload: bytes, properties: bytes) -> OutgoingMessage:
        """A message for one receiver of 5.0, whose sender encodes by itself what is alike in thousands of them: the
        topic with its length, the properties without theirs."""
        message = cls(topic, payload)
        message._bodies = (name, properties, properties + payload)
        return message

    def seconds_left(self, now_ns: int) -> int | None:
        """None without an expiry, -1 when it has passed [MQTT-3.3.2-5], else whole seconds, rounded up."""
        if self.expires_at_ns is None:
            return None
        left_ns = self.expires_at_ns - now_ns
        return -1 if left_ns <= 0 else min(-(-left_ns // _NS), 0xFFFF_FFFF)

    def frames(
        self,
        version: int,
        qos: int,
        *,
        retain: bool = False,
        dup: bool = False,
        packet_id: int = 0,
        subscription_identifiers: tuple[int, ...] = (),
        expiry_s: int | None = None,
        alias: int = 0,
        send_topic: bool = True,
    ) -> tuple[bytes, ...]:
        """The buffers of one PUBLISH. In 3.1.1 there are no identifiers, expiry or alias to tell."""
        if version != _V5 or not (subscription_identifiers or alias or expiry_s is not None):
            if qos:
                head, tail = self._heads.get(version) or self._shared(version)
                first = BYTE[0x30 | (dup << 3) | (qos << 1) | retain] + head + packet_id.to_bytes(2, "big")
                return (first + tail,) if len(tail) <= SPLIT_BYTES else (first, tail)
            key = version << 1 | retain
            return self._wholes.get(key) or self._whole(key, version, retain)
        if expiry_s is not None and not (qos or subscription_identifiers or alias):
            kept = self._expiring
            if kept is not None and kept[0] == expiry_s and kept[1] == retain:
                return kept[2]
            made = self._own(0, retain, False, 0, (), expiry_s, 0, True)
            self._expiring = (expiry_s, retain, made)
            return made
        return self._own(qos, retain, dup, packet_id, subscription_identifiers, expiry_s, alias, send_topic)

    def _shared(self, version: int) -> tuple[bytes, bytes]:
        """For QoS 1 and 2: what is before the packet identifier, and what is after it."""
        name, properties, _ = self._parts()
        tail = self.payload if version != _V5 else write_varint(len(properties)) + properties + self.payload
        made = (write_varint(len(name) + 2 + len(tail)) + name, tail)
        self._heads[version] = made
        return made

    def _whole(self, key: int, version: int, retain: bool) -> tuple[bytes, ...]:
        name, properties, _ = self._parts()
        if version == _V5:
            name += write_varint(len(properties)) + properties
        head = BYTE[0x30 | retain] + write_varint(len(name) + len(self.payload)) + name
        made = (head + self.payload,) if len(self.payload) <= SPLIT_BYTES else (head, self.payload)
        self._wholes[key] = made
        return made

    def _own(
        self,
        qos: int,
        retain: bool,
        dup: bool,
        packet_id: int,
        subscription_identifiers: tuple[int, ...],
        expiry_s: int | None,
        alias: int,
        send_topic: bool,
    ) -> tuple[bytes, ...]:
        name, properties, tail = self._parts()
        own = b"" if not alias else b"\x23" + alias.to_bytes(2, "big")
        for identifier in subscription_identifiers:
            own += b"\x0b" + write_varint(identifier)
        if expiry_s is not None:
            own += b"\x02" + expiry_s.to_bytes(4, "big")
        head = name if send_topic else b"\x00\x00"
        if qos:
            head += packet_id.to_bytes(2, "big")
        head += write_varint(len(own) + len(properties)) + own
        head = BYTE[0x30 | (dup << 3) | (qos << 1) | retain] + write_varint(len(head) + len(tail)) + head
        return (head + tail,) if len(tail) <= SPLIT_BYTES else (head, tail)

    def _parts(self) -> tuple[bytes, bytes, bytes]:
        """The topic with its length; the shared properties without theirs; those with the payload."""
        if self._bodies is None:
            name = self.topic.encode()
            if len(name) > 0xFFFF:
                raise InvalidArgument(f"a topic name of {len(name)} bytes; at most 65535 fit")
            properties = property_bytes(self.properties, 3) if self.properties else b""
            self._bodies = (len(name).to_bytes(2, "big") + name, properties, properties + self.payload)
        return self._bodies
