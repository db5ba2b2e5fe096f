"""MQTT 5 properties: the table of §2.2.2.2, and its codec.

    Property Length   variable byte integer: the bytes that follow
    then repeatedly   Identifier (one byte; a variable byte integer whose known values all fit one) + value of its type

Every row of `TABLE` says the type, the packets a property may be in, whether it may repeat, and the values it may
have. An identifier that is unknown or in the wrong packet is a malformed packet; one that is there twice is a
protocol error.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, cast

from headrace.errors import InvalidArgument
from headrace.wire.mqtt.fields import (
    MALFORMED,
    PROTOCOL_ERROR,
    CodecLimits,
    Refused,
    read_binary,
    read_name,
    read_text,
    read_u8,
    read_u16,
    read_u32,
    read_varint,
    write_binary,
    write_text,
    write_varint,
)
from headrace.wire.mqtt.packets import Properties

__all__ = ["BY_NAME", "TABLE", "WILL", "Row", "property_bytes", "read_properties", "write_properties"]

WILL: Final = 16
"""The will has properties of its own inside CONNECT; it is counted here as one more packet type."""

_ACKS: Final = (4, 5, 6, 7, 9, 11)


class Row(NamedTuple):
    name: str
    type: str
    """bool, u8, u16, u32, varint, text, name, binary, pair"""
    packets: frozenset[int]
    nonzero: bool = False
    repeats: bool = False


def _row(name: str, kind: str, *packets: int, nonzero: bool = False, repeats: bool = False) -> Row:
    return Row(name, kind, frozenset(packets), nonzero, repeats)


TABLE: Final[dict[int, Row]] = {
    0x01: _row("payload_format_indicator", "bool", 3, WILL),
    0x02: _row("message_expiry_interval", "u32", 3, WILL),
    0x03: _row("content_type", "text", 3, WILL),
    0x08: _row("response_topic", "name", 3, WILL),
    0x09: _row("correlation_data", "binary", 3, WILL),
    0x0B: _row("subscription_identifiers", "varint", 3, 8, nonzero=True, repeats=True),
    0x11: _row("session_expiry_interval", "u32", 1, 2, 14),
    0x12: _row("assigned_client_identifier", "name", 2),
    0x13: _row("server_keep_alive", "u16", 2),
    0x15: _row("authentication_method", "text", 1, 2, 15),
    0x16: _row("authentication_data", "binary", 1, 2, 15),
    0x17: _row("request_problem_information", "bool", 1),
    0x18: _row("will_delay_interval", "u32", WILL),
    0x19: _row("request_response_information", "bool", 1),
    0x1A: _row("response_information", "text", 2),
    0x1C: _row("server_reference", "text", 2, 14),
    0x1F: _row("reason_string", "text", 2, *_ACKS, 14, 15),
    0x21: _row("receive_maximum", "u16", 1, 2, nonzero=True),
    0x22: _row("topic_alias_maximum", "u16", 1, 2),
    0x23: _row("topic_alias", "u16", 3, nonzero=True),
    0x24: _row("maximum_qos", "bool", 2),
    0x25: _row("retain_available", "bool", 2),
    0x26: _row("user_properties", "pair", 1, 2, 3, *_ACKS, 8, 10, 14, 15, WILL, repeats=True),
    0x27: _row("maximum_packet_size", "u32", 1, 2, nonzero=True),
    0x28: _row("wildcard_subscription_available", "bool", 2),
    0x29: _row("subscription_identifier_available", "bool", 2),
    0x2A: _row("shared_subscription_available", "bool", 2),
}

BY_NAME: Final[dict[str, int]] = {row.name: identifier for identifier, row in TABLE.items()}


def read_properties(data: bytes, pos: int, end: int, kind: int, limits: CodecLimits) -> tuple[Properties | None, int]:
    """The properties of a packet of type ``kind``, and the position after them; None when there are none."""
    length, pos = read_varint(data, pos, end, "property length")
    stop = pos + length
    if stop > end:
        raise Refused(MALFORMED, "§2.2.2.1", f"property length says {length} bytes, {end - pos} are left")
    if not length:
        return None, pos
    found: dict[str, Any] = {}
    pairs: list[tuple[str, str]] | None = None
    pairs_bytes = 0
    while pos < stop:
        identifier = data[pos]
        if identifier == 0x26 and kind in TABLE[0x26].packets:
            start = pos
            name, value, pos = _read_pair(data, pos + 1, stop)
            if pairs is None:
                pairs = found["user_properties"] = []
            pairs.append((name, value))
            pairs_bytes += pos - start
            if len(pairs) > limits.user_properties_max or pairs_bytes > limits.user_properties_bytes_max:
                raise Refused(
                    0x97,
                    "§4.13",
                    f"more than {limits.user_properties_max} user properties or "
                    f"{limits.user_properties_bytes_max} bytes of them",
                )
            continue
        row = TABLE.get(identifier)
        if row is None:
            raise Refused(MALFORMED, "§2.2.2.2", f"unknown property 0x{identifier:02x}")
        if kind not in row.packets:
            raise Refused(MALFORMED, "§2.2.2.2", f"property {row.name} does not belong into this packet")
        if row.name in found and not (row.repeats and kind == 3):
            # A subscription identifier repeats in PUBLISH only (§3.8.2.1.2).
            raise Refused(PROTOCOL_ERROR, "§2.2.2.2", f"property {row.name} is there twice")
        item, pos = _read_value(data, pos + 1, stop, row)
        if row.repeats:
            found.setdefault(row.name, []).append(item)
            if len(found[row.name]) > limits.filters_max:
                raise Refused(0x97, "§4.13", f"more than {limits.filters_max} subscription identifiers")
        else:
            found[row.name] = item
    return cast("Properties", found), stop


def _read_pair(data: bytes, pos: int, stop: int) -> tuple[str, str, int]:
    """A user property. Queue messages carry several: the good case is read in place, a fault by the slow way below."""
    name_at = pos + 2
    if name_at <= stop:
        name_end = name_at + (data[pos] << 8 | data[pos + 1])
        value_at = name_end + 2
        if value_at <= stop:
            value_end = value_at + (data[name_end] << 8 | data[name_end + 1])
            if value_end <= stop:
                try:
                    name, value = data[name_at:name_end].decode(), data[value_at:value_end].decode()
                except UnicodeDecodeError:
                    pass
                else:
                    if "\x00" not in name and "\x00" not in value:
                        return name, value, value_end
    name, pos = read_text(data, pos, stop, "user property name")
    value, pos = read_text(data, pos, stop, "user property value")
    return name, value, pos


def _read_value(data: bytes, pos: int, stop: int, row: Row) -> tuple[Any, int]:
    name = row.name
    value: int | str | bytes
    match row.type:
        case "bool":
            value, pos = read_u8(data, pos, stop, name)
            if value > 1:
                raise Refused(PROTOCOL_ERROR, "§2.2.2.2", f"{name} is {value}; 0 or 1 is allowed")
        case "u16":
            value, pos = read_u16(data, pos, stop, name)
            if name == "topic_alias" and value == 0:
                raise Refused(0x94, "MQTT-3.3.2-8", "topic alias 0 is not allowed")
        case "u32":
            value, pos = read_u32(data, pos, stop, name)
        case "varint":
            value, pos = read_varint(data, pos, stop, name)
        case "name":
            value, pos = read_name(data, pos, stop, name)
            if name == "response_topic" and (not value or "+" in value or "#" in value):
                raise Refused(PROTOCOL_ERROR, "MQTT-3.3.2-14", f"response topic {value!r} is no topic name")
        case "text":
            value, pos = read_text(data, pos, stop, name)
        case _:
            value, pos = read_binary(data, pos, stop, name)
    if row.nonzero and value == 0:
        raise Refused(PROTOCOL_ERROR, "§2.2.2.2", f"{name} is 0, which is not allowed")
    return value, pos


def write_properties(properties: Properties | None, kind: int) -> bytes:
    """Property Length and properties; `InvalidArgument` for one that does not belong into the packet.

    >>> write_properties({"message_expiry_interval": 60}, 3).hex(" ")
    '05 02 00 00 00 3c'
    """
    if not properties:
        return b"\x00"
    body = property_bytes(properties, kind)
    return write_varint(len(body)) + body


def property_bytes(properties: Properties, kind: int) -> bytes:
    """The properties without their length."""
    parts: list[bytes] = []
    for name, value in properties.items():
        identifier = BY_NAME.get(name)
        if identifier is None:
            raise InvalidArgument(f"{name!r} is no MQTT property")
        row = TABLE[identifier]
        if kind not in row.packets:
            raise InvalidArgument(f"property {name} does not belong into packet type {kind}")
        head = bytes((identifier,))
        if row.type == "pair":
            for key, text in cast("list[tuple[str, str]]", value):
                try:
                    raw_key, raw_text = key.encode(), text.encode()
                except UnicodeEncodeError:
                    raise InvalidArgument(f"user property {key!r} holds a lone surrogate") from None
                if len(raw_key) > 0xFFFF or len(raw_text) > 0xFFFF:
                    raise InvalidArgument(f"user property {key[:64]!r} does not fit: at most 65535 bytes each")
                parts += (head, len(raw_key).to_bytes(2, "big"), raw_key, len(raw_text).to_bytes(2, "big"), raw_text)
        elif row.repeats:
            for item in cast("list[int]", value):
                if item < 1:
                    raise InvalidArgument(f"subscription identifier {item} is not allowed; 1 to 268435455 are")
                parts += (head, write_varint(item))
        else:
            parts += (head, _write_value(value, row))
    return b"".join(parts)


def _write_value(value: Any, row: Row) -> bytes:
    match row.type:
        case "text" | "name":
            return write_text(value)
        case "binary":
            return write_binary(value)
    size = {"bool": 1, "u16": 2, "u32": 4}[row.type]
    if not 0 <= value < 1 << 8 * size or (row.type == "bool" and value > 1) or (row.nonzero and not value):
        raise InvalidArgument(f"property {row.name} cannot be {value!r}")
    return int(value).to_bytes(size, "big")
