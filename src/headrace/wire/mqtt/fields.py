"""The data types of MQTT (§1.5) and its limits: variable byte integers, texts, binary data, and how a fault is named.

Reading functions take the packet's bytes, a position and the end of the packet, and give value and next position. A
fault leaves them as `Refused`, which never leaves this package: ``parse`` turns it into a `Failure` value.

Texts: well-formed UTF-8 without U+0000 [MQTT-1.5.4-1] [MQTT-1.5.4-2]; a byte order mark is kept [MQTT-1.5.4-3]. Other
control characters (U+0001–U+001F, U+007F–U+009F), which a receiver may refuse (§1.5.4), are refused where a text is a
name (topics, filters, client ids, user names, response topics) and accepted where it is content (user properties,
content type, reason strings).
"""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.errors import InvalidArgument
from headrace.limits import (
    MQTT_FILTERS_MAX,
    MQTT_PACKET_BYTES_MAX,
    MQTT_USER_PROPERTIES_BYTES_MAX,
    MQTT_USER_PROPERTIES_MAX,
    TOPIC_LEVELS_MAX,
)
from headrace.routing import has_control_character

__all__ = ["CodecLimits", "Failure", "Refused"]

VARINT_MAX: Final = 268_435_455
MALFORMED: Final = 0x81
PROTOCOL_ERROR: Final = 0x82


class Failure(msgspec.Struct, frozen=True):
    """Why bytes are no packet: the reason code for the peer, the clause that was broken, and a sentence for the log.

    ``version`` is the protocol level a CONNECT asked for when it was known by then, else 0: a CONNACK has to be
    written in it.
    """

    reason: int
    clause: str
    detail: str
    version: int = 0


class CodecLimits(msgspec.Struct, frozen=True):
    """What one packet may hold; checked before anything of that size is kept."""

    packet_bytes_max: int = MQTT_PACKET_BYTES_MAX
    user_properties_max: int = MQTT_USER_PROPERTIES_MAX
    user_properties_bytes_max: int = MQTT_USER_PROPERTIES_BYTES_MAX
    topic_levels_max: int = TOPIC_LEVELS_MAX
    filters_max: int = MQTT_FILTERS_MAX


class Refused(Exception):
    """A `Failure` on its way out of the codec."""

    def __init__(self, reason: int, clause: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.clause = clause
        self.detail = detail


def read_u8(data: bytes, pos: int, end: int, what: str) -> tuple[int, int]:
    if pos >= end:
        raise Refused(MALFORMED, "§2.1.4", f"the packet ends before its {what}")
    return data[pos], pos + 1


def read_u16(data: bytes, pos: int, end: int, what: str) -> tuple[int, int]:
    if pos + 2 > end:
        raise Refused(MALFORMED, "§2.1.4", f"the packet ends inside its {what}")
    return data[pos] << 8 | data[pos + 1], pos + 2


def read_u32(data: bytes, pos: int, end: int, what: str) -> tuple[int, int]:
    if pos + 4 > end:
        raise Refused(MALFORMED, "§2.1.4", f"the packet ends inside its {what}")
    return int.from_bytes(data[pos : pos + 4], "big"), pos + 4


def read_varint(data: bytes, pos: int, end: int, what: str) -> tuple[int, int]:
    value = 0
    for shift in (0, 7, 14, 21):
        if pos >= end:
            raise Refused(MALFORMED, "§2.1.4", f"the packet ends inside its {what}")
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise Refused(MALFORMED, "MQTT-1.5.5-1", f"{what} is not in its shortest form")
            return value, pos
    raise Refused(MALFORMED, "§1.5.5", f"{what} runs over four bytes")


def read_binary(data: bytes, pos: int, end: int, what: str) -> tuple[bytes, int]:
    start = pos + 2
    if start > end:
        raise Refused(MALFORMED, "§2.1.4", f"the packet ends inside the length of its {what}")
    stop = start + (data[pos] << 8 | data[pos + 1])
    if stop > end:
        raise Refused(MALFORMED, "§1.5.6", f"{what} says {stop - start} bytes, {end - start} are left")
    return data[start:stop], stop


def read_text(data: bytes, pos: int, end: int, what: str) -> tuple[str, int]:
    raw, stop = read_binary(data, pos, end, what)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise Refused(MALFORMED, "MQTT-1.5.4-1", f"{what} is not UTF-8 (byte {error.start})") from None
    if "\x00" in text:
        raise Refused(MALFORMED, "MQTT-1.5.4-2", f"{what} holds the null character")
    return text, stop


def read_name(data: bytes, pos: int, end: int, what: str) -> tuple[str, int]:
    text, stop = read_text(data, pos, end, what)
    if has_control_character(text):
        raise Refused(MALFORMED, "§1.5.4", f"{what} holds a control character")
    return text, stop


def write_varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if value > VARINT_MAX:
        raise InvalidArgument(f"{value} is more than an MQTT packet can hold ({VARINT_MAX} bytes)")
    return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21))


def write_binary(value: bytes) -> bytes:
    if len(value) > 0xFFFF:
        raise InvalidArgument(f"{len(value)} bytes do not fit an MQTT field; at most 65535 do")
    return len(value).to_bytes(2, "big") + value


def write_text(text: str) -> bytes:
    try:
        return write_binary(text.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{text!r} holds a lone surrogate, which UTF-8 cannot spell") from None
