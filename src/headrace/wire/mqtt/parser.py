"""Bytes to packets: stateless, strict, and bounded before anything is kept.

    bit      7 6 5 4      3 2 1 0
    byte 1   packet type  flags                  PUBLISH: DUP, QoS (2 bits), RETAIN; all others: reserved
    byte 2…  Remaining Length, variable byte integer of 1 to 4 bytes: the bytes after it
    then     variable header and payload by packet type

``parse`` answers with one of three values: a packet; `NEED_MORE`; or a `Failure` that names reason code and clause. The
size limit is checked on the Remaining Length alone, so a packet that is too large is refused before it is buffered.

Clauses: ``MQTT-x.y.z-n`` are the normative statements of MQTT 5.0, ``3.1.1 MQTT-…`` those of 3.1.1 where it differs,
``§`` a section of 5.0 whose rule has no number. What the standard calls Malformed Packet (it cannot be read) gets
0x81, what it calls Protocol Error (it may not be said) 0x82, and a limit of ours 0x95, 0x97, 0x90 or 0x8F.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, TypeAlias, TypeVar

from headrace.routing import share_fault, topic_name_fault
from headrace.wire.mqtt.fields import (
    MALFORMED,
    PROTOCOL_ERROR,
    CodecLimits,
    Failure,
    Refused,
    read_binary,
    read_name,
    read_u8,
    read_u16,
)
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
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from headrace.wire.mqtt.properties import WILL, read_properties
from headrace.wire.mqtt.reasons import ALLOWED

__all__ = ["NEED_MORE", "Need", "Parsed", "parse"]


class Need(Enum):
    """The one value that is neither packet nor failure."""

    MORE = "need more bytes"


NEED_MORE: Final = Need.MORE
Parsed: TypeAlias = Packet | Need | Failure

_DEFAULT_LIMITS: Final = CodecLimits()
_V5: Final = 5

# The reserved flags of byte 1 [MQTT-2.1.3-1]; PUBREL, SUBSCRIBE and UNSUBSCRIBE have 0010
# [MQTT-3.6.1-1] [MQTT-3.8.1-1] [MQTT-3.10.1-1].
_FLAGS: Final = (0, 0, 0, 0, 0, 0, 2, 0, 2, 0, 2, 0, 0, 0, 0, 0)


def parse(
    data: bytes,
    start: int = 0,
    version: int = 0,
    limits: CodecLimits = _DEFAULT_LIMITS,
    end: int | None = None,
) -> tuple[Parsed, int]:
    """The packet that begins at ``start``, and a position.

    The position is the end of the packet; with `NEED_MORE` it is how far the bytes must reach before it is worth to
    ask again; with a `Failure` it is ``start``. ``version`` is 4 or 5, as the connection's CONNECT said; 0 when none
    was read.

    >>> parse(bytes.fromhex("c000"), 0, 5)
    (PingReq(), 2)
    >>> parse(bytes.fromhex("30"), 0, 5)
    (<Need.MORE: 'need more bytes'>, 2)
    """
    if end is None:
        end = len(data)
    if end - start < 2:
        if end > start:
            fault = _first_byte_fault(data[start], version)
            if fault is not None:
                return fault, start
        return NEED_MORE, start + 2
    first = data[start]
    length = data[start + 1]
    pos = start + 2
    if length >= 0x80:
        length &= 0x7F
        for shift in (7, 14, 21):
            if pos == end:
                fault = _first_byte_fault(first, version)
                return (NEED_MORE, pos + 1) if fault is None else (fault, start)
            byte = data[pos]
            pos += 1
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0:
                    return Failure(MALFORMED, "MQTT-1.5.5-1", "remaining length is not in its shortest form"), start
                break
        else:
            return Failure(MALFORMED, "§2.1.4", "remaining length runs over four bytes"), start
    stop = pos + length
    if stop - start > limits.packet_bytes_max:
        return Failure(
            0x95, "§3.2.2.3.6", f"a packet of {stop - start} bytes; at most {limits.packet_bytes_max} are taken"
        ), start
    if stop > end:
        fault = _first_byte_fault(first, version)
        return (NEED_MORE, stop) if fault is None else (fault, start)
    try:
        if 0x30 <= first <= 0x3F:
            return _publish(data, pos, stop, first, version, limits), stop
        kind = first >> 4
        fault = _first_byte_fault(first, version)
        if fault is not None:
            return fault, start
        return _READ[kind](data, pos, stop, version, limits), stop
    except Refused as refused:
        wanted = 0
        if first == 0x10 and data[pos : pos + 6] == b"\x00\x04MQTT" and stop > pos + 6:
            wanted = data[pos + 6]
        return Failure(refused.reason, refused.clause, refused.detail, wanted), start


def _first_byte_fault(first: int, version: int) -> Failure | None:
    kind = first >> 4
    if kind == 3:
        if first & 6 == 6:
            return Failure(MALFORMED, "MQTT-3.3.1-4", "PUBLISH with QoS 3")
        return None
    if kind == 0 or (kind == 15 and version == 4):
        return Failure(MALFORMED, "§2.1.2", f"packet type {kind} is reserved")
    if first & 15 != _FLAGS[kind]:
        clause = _FLAG_CLAUSES.get(kind, "MQTT-2.1.3-1")
        return Failure(MALFORMED, clause, f"reserved flags of packet type {kind} are {first & 15:04b}")
    return None


_FLAG_CLAUSES: Final = {
    6: "MQTT-3.6.1-1",
    8: "MQTT-3.8.1-1",
    10: "MQTT-3.10.1-1",
    14: "MQTT-3.14.1-1",
    15: "MQTT-3.15.1-1",
}


def _publish(data: bytes, pos: int, stop: int, first: int, version: int, limits: CodecLimits) -> Publish:
    """The hot path: one slice each for topic and payload, no properties unless the length byte says so."""
    topic_at = pos + 2
    if topic_at > stop:
        raise Refused(MALFORMED, "MQTT-3.3.2-1", "PUBLISH ends before its topic name")
    pos = topic_at + (data[pos] << 8 | data[pos + 1])
    if pos > stop:
        raise Refused(MALFORMED, "MQTT-3.3.2-1", "PUBLISH ends inside its topic name")
    try:
        topic = data[topic_at:pos].decode()
    except UnicodeDecodeError:
        raise Refused(MALFORMED, "MQTT-1.5.4-1", "the topic name is not UTF-8") from None
    qos = first >> 1 & 3
    packet_id = 0
    if qos:
        if qos == 3:
            raise Refused(MALFORMED, "MQTT-3.3.1-4", "PUBLISH with QoS 3")
        if pos + 2 > stop:
            raise Refused(MALFORMED, "MQTT-2.2.1-2", "PUBLISH ends before its packet identifier")
        packet_id = data[pos] << 8 | data[pos + 1]
        if not packet_id:
            raise Refused(PROTOCOL_ERROR, "MQTT-2.2.1-3", "packet identifier 0")
        pos += 2
    elif first & 8:
        raise Refused(MALFORMED, "MQTT-3.3.1-2", "DUP with QoS 0")
    properties: Properties | None = None
    if version == _V5:
        if pos < stop and data[pos] == 0:
            pos += 1
        else:
            properties, pos = read_properties(data, pos, stop, 3, limits)
    if not topic:
        if properties is None or "topic_alias" not in properties:
            raise Refused(
                PROTOCOL_ERROR if version == _V5 else MALFORMED, "MQTT-4.7.3-1", "an empty topic name without an alias"
            )
    elif "+" in topic or "#" in topic or not topic.isprintable() or len(topic) >= limits.topic_levels_max:
        _check_topic(topic, limits)
    return Publish(topic, data[pos:stop], qos, first & 1 == 1, first & 8 == 8, packet_id, properties)


def _check_topic(topic: str, limits: CodecLimits) -> None:
    fault = topic_name_fault(topic, limits.topic_levels_max)
    if fault is None:
        return
    if "levels" in fault:
        raise Refused(0x90, "§4.13", f"topic name: {fault}")
    raise Refused(MALFORMED, "MQTT-3.3.2-2" if "wildcard" in fault else "§1.5.4", f"topic name: {fault}")


def _connect(data: bytes, pos: int, stop: int, version: int, limits: CodecLimits) -> Connect:
    name, pos = read_binary(data, pos, stop, "protocol name")
    version, pos = read_u8(data, pos, stop, "protocol version")
    if name == b"MQIsdp" and version == 3:
        raise Refused(0x84, "MQTT-3.1.2-2", "MQTT 3.1 is not spoken here; 3.1.1 and 5.0 are")
    if name != b"MQTT":
        raise Refused(0x84, "MQTT-3.1.2-1", f"protocol name {name[:16]!r}; 'MQTT' is expected")
    if version not in (4, _V5):
        raise Refused(0x84, "MQTT-3.1.2-2", f"protocol level {version}; 4 (3.1.1) and 5 (5.0) are spoken here")
    flags, pos = read_u8(data, pos, stop, "connect flags")
    if flags & 1:
        raise Refused(MALFORMED, "MQTT-3.1.2-3", "the reserved connect flag is 1")
    has_will, will_qos, will_retain = flags & 4 == 4, flags >> 3 & 3, flags & 0x20 == 0x20
    if will_qos == 3:
        raise Refused(MALFORMED, "MQTT-3.1.2-12", "will QoS 3")
    if not has_will and will_qos:
        raise Refused(MALFORMED, "MQTT-3.1.2-11", "will QoS without a will")
    if not has_will and will_retain:
        raise Refused(MALFORMED, "MQTT-3.1.2-13", "will retain without a will")
    if version == 4 and flags & 0xC0 == 0x40:
        raise Refused(MALFORMED, "3.1.1 MQTT-3.1.2-22", "a password without a user name")
    keep_alive_s, pos = read_u16(data, pos, stop, "keep alive")
    properties: Properties | None = None
    if version == _V5:
        properties, pos = read_properties(data, pos, stop, 1, limits)
        if properties and "authentication_data" in properties and "authentication_method" not in properties:
            raise Refused(PROTOCOL_ERROR, "§3.1.2.11.10", "authentication data without a method")
    client_id, pos = read_name(data, pos, stop, "client identifier")
    will: Will | None = None
    if has_will:
        will, pos = _will(data, pos, stop, version, will_qos, will_retain, limits)
    user_name: str | None = None
    if flags & 0x80:
        user_name, pos = read_name(data, pos, stop, "user name")
    password: bytes | None = None
    if flags & 0x40:
        password, pos = read_binary(data, pos, stop, "password")
    if pos != stop:
        raise Refused(MALFORMED, "MQTT-3.1.4-1", f"{stop - pos} bytes after the end of CONNECT")
    return Connect(client_id, version, flags & 2 == 2, keep_alive_s, user_name, password, will, properties)


def _will(
    data: bytes, pos: int, stop: int, version: int, qos: int, retain: bool, limits: CodecLimits
) -> tuple[Will, int]:
    properties: Properties | None = None
    if version == _V5:
        properties, pos = read_properties(data, pos, stop, WILL, limits)
    topic, pos = read_name(data, pos, stop, "will topic")
    if not topic:
        raise Refused(MALFORMED, "MQTT-4.7.3-1", "an empty will topic")
    _check_topic(topic, limits)
    payload, pos = read_binary(data, pos, stop, "will payload")
    return Will(topic, payload, qos, retain, properties), pos


def _connack(data: bytes, pos: int, stop: int, version: int, limits: CodecLimits) -> ConnAck:
    flags, pos = read_u8(data, pos, stop, "connect acknowledge flags")
    if flags > 1:
        raise Refused(MALFORMED, "MQTT-3.2.2-1", f"connect acknowledge flags 0x{flags:02x}")
    reason, pos = read_u8(data, pos, stop, "reason code")
    if version == _V5:
        _check_reason(reason, 2)
    elif reason > 5:
        raise Refused(PROTOCOL_ERROR, "3.1.1 §3.2.2.3", f"return code {reason}; 0 to 5 are defined")
    if reason and flags:
        raise Refused(PROTOCOL_ERROR, "MQTT-3.2.2-6", "session present with an error")
    properties: Properties | None = None
    if version == _V5:
        properties, pos = read_properties(data, pos, stop, 2, limits)
    _check_end(pos, stop)
    return ConnAck(flags == 1, reason, properties)


_A = TypeVar("_A", PubAck, PubRec, PubRel, PubComp)


def _acknowledgement(make: type[_A]) -> Callable[[bytes, int, int, int, CodecLimits], _A]:
    """PUBACK, PUBREC, PUBREL and PUBCOMP have one layout: packet identifier [, reason code [, properties]]."""
    kind = make.KIND

    def read(data: bytes, pos: int, stop: int, version: int, limits: CodecLimits) -> _A:
        packet_id, pos = _packet_id(data, pos, stop)
        if pos == stop:
            return make(packet_id)
        if version != _V5:
            raise Refused(MALFORMED, "3.1.1 §3.4.1", "an acknowledgement of more than two bytes")
        reason, pos = read_u8(data, pos, stop, "reason code")
        _check_reason(reason, kind)
        properties: Properties | None = None
        if pos < stop:  # §3.4.2.2.1: without a property length there are no properties
            properties, pos = read_properties(data, pos, stop, kind, limits)
        _check_end(pos, stop)
        return make(packet_id, reason, properties)

    return read


def _subscribe(data: bytes, pos: int, stop: int, version: int, limits: CodecLimits) -> Subscribe:
    packet_id, pos = _packet_id(data, pos, stop)
    properties: Properties | None = None
    if version == _V5:
        properties, pos = read_properties(data, pos, stop, 8, limits)
    if pos == stop:
        raise Refused(PROTOCOL_ERROR, "MQTT-3.8.3-2", "SUBSCRIBE without a topic filter")
    subscriptions: list[Subscription] = []
    while pos < stop:
        topic_filter, pos = _filter(data, pos, stop, limits)
        options, pos = read_u8(data, pos, stop, "subscription options")
        if options & 3 == 3:
            raise Refused(PROTOCOL_ERROR if version == _V5 else MALFORMED, "§3.8.3.1", "a subscription with QoS 3")
        if options & (0xC0 if version == _V5 else 0xFC):
            raise Refused(MALFORMED, "MQTT-3.8.3-5", f"reserved bits in subscription options 0x{options:02x}")
        if options & 0x30 == 0x30:
            raise Refused(PROTOCOL_ERROR, "§3.8.3.1", "retain handling 3")
        if options & 4 and topic_filter.startswith("$share/"):
            raise Refused(PROTOCOL_ERROR, "MQTT-3.8.3-4", "no local on a shared subscription")
        subscriptions.append(
            Subscription(topic_filter, options & 3, options & 4 == 4, options & 8 == 8, options >> 4 & 3)
        )
        if len(subscriptions) > limits.filters_max:
            raise Refused(0x97, "§4.13", f"more than {limits.filters_max} topic filters in one SUBSCRIBE")
    return Subscribe(packet_id, tuple(subscriptions), properties)


def _unsubscribe(data: bytes, pos: int, stop: int, version: int, limits: CodecLimits) -> Unsubscribe:
    packet_id, pos = _packet_id(data, pos, stop)
    properties: Properties | None = None
    if version == _V5:
        properties, pos = read_properties(data, pos, stop, 10, limits)
    if pos == stop:
        raise Refused(PROTOCOL_ERROR, "MQTT-3.10.3-2", "UNSUBSCRIBE without a topic filter")
    filters: list[str] = []
    while pos < stop:
        topic_filter, pos = _filter(data, pos, stop, limits)
        filters.append(topic_filter)
        if len(filters) > limits.filters_max:
            raise Refused(0x97, "§4.13", f"more than {limits.filters_max} topic filters in one UNSUBSCRIBE")
    return Unsubscribe(packet_id, tuple(filters), properties)


def _filter(data: bytes, pos: int, stop: int, limits: CodecLimits) -> tuple[str, int]:
    topic_filter, pos = read_name(data, pos, stop, "topic filter")
    fault = share_fault(topic_filter, limits.topic_levels_max)
    if fault is None:
        return topic_filter, pos
    if "levels" in fault:
        raise Refused(0x8F, "§4.13", f"topic filter: {fault}")
    clause = fault[fault.index("[") + 1 : -1] if fault.endswith("]") else "§4.7"
    raise Refused(MALFORMED, clause, f"topic filter {topic_filter[:64]!r}: {fault}")


def _suback(data: bytes, pos: int, stop: int, version: int, limits: CodecLimits) -> SubAck:
    packet_id, pos = _packet_id(data, pos, stop)
    properties: Properties | None = None
    if version == _V5:
        properties, pos = read_properties(data, pos, stop, 9, limits)
    reasons = tuple(data[pos:stop])
    if not reasons:
        raise Refused(PROTOCOL_ERROR, "MQTT-3.8.4-6", "SUBACK without a reason code")
    for reason in reasons:
        if version == _V5:
            _check_reason(reason, 9)
        elif reason not in (0, 1, 2, 0x80):
            raise Refused(PROTOCOL_ERROR, "3.1.1 MQTT-3.9.3-2", f"SUBACK return code 0x{reason:02x}")
    return SubAck(packet_id, reasons, properties)


def _unsuback(data: bytes, pos: int, stop: int, version: int, limits: CodecLimits) -> UnsubAck:
    packet_id, pos = _packet_id(data, pos, stop)
    if version != _V5:
        _check_end(pos, stop)
        return UnsubAck(packet_id)
    properties, pos = read_properties(data, pos, stop, 11, limits)
    reasons = tuple(data[pos:stop])
    if not reasons:
        raise Refused(PROTOCOL_ERROR, "MQTT-3.11.3-1", "UNSUBACK without a reason code")
    for reason in reasons:
        _check_reason(reason, 11)
    return UnsubAck(packet_id, reasons, properties)


def _pingreq(data: bytes, pos: int, stop: int, version: int, limits: CodecLimits) -> PingReq:
    _check_end(pos, stop)
    return PingReq()


def _pingresp(data: bytes, pos: int, stop: int, version: int, limits: CodecLimits) -> PingResp:
    _check_end(pos, stop)
    return PingResp()


def _disconnect(data: bytes, pos: int, stop: int, version: int, limits: CodecLimits) -> Disconnect:
    if pos == stop:
        return Disconnect()
    if version != _V5:
        raise Refused(MALFORMED, "3.1.1 §3.14.1", "DISCONNECT with a body")
    reason, pos = read_u8(data, pos, stop, "reason code")
    _check_reason(reason, 14)
    properties: Properties | None = None
    if pos < stop:  # §3.14.2.2.1
        properties, pos = read_properties(data, pos, stop, 14, limits)
    _check_end(pos, stop)
    return Disconnect(reason, properties)


def _auth(data: bytes, pos: int, stop: int, version: int, limits: CodecLimits) -> Auth:
    if pos == stop:  # §3.15.2.1: reason code 0 and no properties may be left out
        return Auth()
    reason, pos = read_u8(data, pos, stop, "reason code")
    _check_reason(reason, 15)
    properties, pos = read_properties(data, pos, stop, 15, limits)
    _check_end(pos, stop)
    if properties is None or "authentication_method" not in properties:
        raise Refused(PROTOCOL_ERROR, "§3.15.2.2.2", "AUTH without an authentication method")
    return Auth(reason, properties)


def _packet_id(data: bytes, pos: int, stop: int) -> tuple[int, int]:
    packet_id, pos = read_u16(data, pos, stop, "packet identifier")
    if not packet_id:
        raise Refused(PROTOCOL_ERROR, "MQTT-2.2.1-3", "packet identifier 0")
    return packet_id, pos


def _check_reason(reason: int, kind: int) -> None:
    if reason not in ALLOWED[kind]:
        raise Refused(PROTOCOL_ERROR, _REASON_CLAUSES[kind], f"reason code 0x{reason:02x} in packet type {kind}")


_REASON_CLAUSES: Final = {
    2: "MQTT-3.2.2-8",
    4: "MQTT-3.4.2-1",
    5: "MQTT-3.5.2-1",
    6: "MQTT-3.6.2-1",
    7: "MQTT-3.7.2-1",
    9: "MQTT-3.9.3-2",
    11: "MQTT-3.11.3-2",
    14: "MQTT-3.14.2-1",
    15: "MQTT-3.15.2-1",
}


def _check_end(pos: int, stop: int) -> None:
    if pos != stop:
        raise Refused(MALFORMED, "§2.1.4", f"{stop - pos} bytes after the end of the packet")


_Reader: TypeAlias = Callable[[bytes, int, int, int, CodecLimits], Packet]

_READ: Final[dict[int, _Reader]] = {
    1: _connect,
    2: _connack,
    4: _acknowledgement(PubAck),
    5: _acknowledgement(PubRec),
    6: _acknowledgement(PubRel),
    7: _acknowledgement(PubComp),
    8: _subscribe,
    9: _suback,
    10: _unsubscribe,
    11: _unsuback,
    12: _pingreq,
    13: _pingresp,
    14: _disconnect,
    15: _auth,
}
