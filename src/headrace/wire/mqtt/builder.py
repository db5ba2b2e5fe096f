"""Packets to bytes. The layouts are those of ``parse``; what a caller may not say is `InvalidArgument`, never sent.

``build`` makes one whole packet. A PUBLISH for many subscribers goes through ``fanout``, which encodes what they share
once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headrace.errors import InvalidArgument
from headrace.wire.mqtt.fields import write_binary, write_text, write_varint
from headrace.wire.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from headrace.wire.mqtt.properties import WILL, write_properties

__all__ = ["build", "build_publish"]

_V5: Final = 5
BYTE: Final = tuple(bytes((value,)) for value in range(256))


def build(packet: Packet, version: int) -> bytes:
    """One packet as MQTT 3.1.1 (``version`` 4) or 5.0 (5).

    >>> build(PubAck(7), 4).hex(" ")
    '40 02 00 07'
    """
    return _WRITE[type(packet)](packet, version)


def build_publish(
    topic: str,
    payload: bytes,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_id: int = 0,
    properties: Properties | None = None,
    version: int = 5,
) -> bytes:
    """One PUBLISH in one piece."""
    name = topic.encode()
    size = len(name)
    if size > 0xFFFF:
        raise InvalidArgument(f"a topic name of {size} bytes; at most 65535 fit")
    if qos:
        if not 0 < packet_id <= 0xFFFF or qos > 2:
            raise InvalidArgument(f"PUBLISH with QoS {qos} and packet identifier {packet_id}")
        name += packet_id.to_bytes(2, "big")
    if version == _V5:
        name += write_properties(properties, 3) if properties else b"\x00"
    flags = 0x30 | (dup << 3) | (qos << 1) | retain
    return b"".join((BYTE[flags], write_varint(2 + len(name) + len(payload)), size.to_bytes(2, "big"), name, payload))


def _whole(first: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return BYTE[first] + write_varint(len(body)) + body


def _packet_id(packet_id: int) -> bytes:
    if not 0 < packet_id <= 0xFFFF:
        raise InvalidArgument(f"packet identifier {packet_id}; 1 to 65535 are allowed")
    return packet_id.to_bytes(2, "big")


def _properties(properties: Properties | None, kind: int, version: int) -> bytes:
    return write_properties(properties, kind) if version == _V5 else b""


def _publish(packet: Publish, version: int) -> bytes:
    return build_publish(
        packet.topic,
        packet.payload,
        packet.qos,
        packet.retain,
        packet.dup,
        packet.packet_id,
        packet.properties,
        version,
    )


def _connect(packet: Connect, version: int) -> bytes:
    version = packet.version
    will = packet.will
    flags = packet.clean_start << 1
    parts = [write_text(packet.client_id)]
    if will is not None:
        flags |= 4 | will.qos << 3 | will.retain << 5
        parts += (_properties(will.properties, WILL, version), write_text(will.topic), write_binary(will.payload))
    if packet.user_name is not None:
        flags |= 0x80
        parts.append(write_text(packet.user_name))
    if packet.password is not None:
        flags |= 0x40
        parts.append(write_binary(packet.password))
    return _whole(
        0x10,
        b"\x00\x04MQTT",
        bytes((version, flags)),
        packet.keep_alive_s.to_bytes(2, "big"),
        _properties(packet.properties, 1, version),
        *parts,
    )


def _connack(packet: ConnAck, version: int) -> bytes:
    return _whole(0x20, bytes((packet.session_present, packet.reason)), _properties(packet.properties, 2, version))


def _acknowledgement(packet: PubAck | PubRec | PubRel | PubComp, version: int) -> bytes:
    kind = packet.KIND
    first = BYTE[kind << 4 | (2 if kind == 6 else 0)]
    packet_id = _packet_id(packet.packet_id)
    if version != _V5 or not (packet.reason or packet.properties):  # §3.4.2.1: success alone may be left out
        return first + b"\x02" + packet_id
    if not packet.properties:
        return first + b"\x03" + packet_id + BYTE[packet.reason]
    return _whole(first[0], packet_id, BYTE[packet.reason], write_properties(packet.properties, kind))


def _subscribe(packet: Subscribe, version: int) -> bytes:
    parts = [_packet_id(packet.packet_id), _properties(packet.properties, 8, version)]
    if not packet.subscriptions:
        raise InvalidArgument("SUBSCRIBE needs at least one topic filter")
    for item in packet.subscriptions:
        options = item.qos
        if version == _V5:
            options |= item.no_local << 2 | item.retain_as_published << 3 | item.retain_handling << 4
        parts += (write_text(item.topic_filter), BYTE[options])
    return _whole(0x82, *parts)


def _suback(packet: SubAck, version: int) -> bytes:
    reasons = packet.reasons if version == _V5 else tuple(min(reason, 0x80) for reason in packet.reasons)
    return _whole(0x90, _packet_id(packet.packet_id), _properties(packet.properties, 9, version), bytes(reasons))


def _unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    if not packet.topic_filters:
        raise InvalidArgument("UNSUBSCRIBE needs at least one topic filter")
    filters = [write_text(topic_filter) for topic_filter in packet.topic_filters]
    return _whole(0xA2, _packet_id(packet.packet_id), _properties(packet.properties, 10, version), *filters)


def _unsuback(packet: UnsubAck, version: int) -> bytes:
    if version != _V5:
        return b"\xb0\x02" + _packet_id(packet.packet_id)
    return _whole(0xB0, _packet_id(packet.packet_id), write_properties(packet.properties, 11), bytes(packet.reasons))


def _pingreq(packet: PingReq, version: int) -> bytes:
    return b"\xc0\x00"


def _pingresp(packet: PingResp, version: int) -> bytes:
    return b"\xd0\x00"


def _disconnect(packet: Disconnect, version: int) -> bytes:
    return _reason_and_properties(0xE0, packet, version)


def _auth(packet: Auth, version: int) -> bytes:
    if version != _V5:
        raise InvalidArgument("AUTH does not exist in MQTT 3.1.1")
    return _reason_and_properties(0xF0, packet, version)


def _reason_and_properties(first: int, packet: Disconnect | Auth, version: int) -> bytes:
    if version != _V5 or not (packet.reason or packet.properties):
        return BYTE[first] + b"\x00"
    if not packet.properties and first == 0xE0:
        return BYTE[first] + b"\x01" + BYTE[packet.reason]
    return _whole(first, BYTE[packet.reason], write_properties(packet.properties, packet.KIND))


_WRITE: Final[dict[type, Callable[[Any, int], bytes]]] = {
    Connect: _connect,
    ConnAck: _connack,
    Publish: _publish,
    PubAck: _acknowledgement,
    PubRec: _acknowledgement,
    PubRel: _acknowledgement,
    PubComp: _acknowledgement,
    Subscribe: _subscribe,
    SubAck: _suback,
    Unsubscribe: _unsubscribe,
    UnsubAck: _unsuback,
    PingReq: _pingreq,
    PingResp: _pingresp,
    Disconnect: _disconnect,
    Auth: _auth,
}
