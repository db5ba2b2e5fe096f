"""MQTT 5 reason codes: their names, and which packet may carry which [MQTT 5.0 §2.4 and the table of each packet]."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

__all__ = ["ALLOWED", "CONNACK_3", "Reason", "connack_3"]


class Reason(IntEnum):
    """A reason code; 0x80 and above say that something failed."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC = 0x83
    UNSUPPORTED_VERSION = 0x84
    CLIENT_ID_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_ID_IN_USE = 0x91
    PACKET_ID_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDS_NOT_SUPPORTED = 0xA1
    WILDCARDS_NOT_SUPPORTED = 0xA2


_PUBACK: Final = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_RELEASE: Final = frozenset({0x00, 0x92})
_UNSUBACK: Final = frozenset({0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91})

ALLOWED: Final[dict[int, frozenset[int]]] = {
    2: frozenset(
        {
            *(0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C),
            *(0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F),
        }
    ),
    4: _PUBACK,
    5: _PUBACK,
    6: _RELEASE,
    7: _RELEASE,
    9: frozenset({0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}),
    11: _UNSUBACK,
    14: frozenset(
        {
            *(0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F),
            *(0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2),
        }
    ),
    15: frozenset({0x00, 0x18, 0x19}),
}
"""By packet type (the high nibble of the first byte): the reason codes it may carry in MQTT 5."""

CONNACK_3: Final[dict[int, int]] = {
    0x00: 0,
    0x84: 1,  # unacceptable protocol version
    0x85: 2,  # identifier rejected
    0x88: 3,  # server unavailable
    0x89: 3,
    0x8B: 3,
    0x97: 3,
    0x9F: 3,
    0x86: 4,  # bad user name or password
}
"""The 3.1.1 return code for a reason code; everything else is 5, not authorised."""


def connack_3(reason: int) -> int:
    """The CONNACK return code of MQTT 3.1.1 (§3.2.2.3) that says the same as a reason code.

    >>> connack_3(Reason.NOT_AUTHORIZED)
    5
    """
    return CONNACK_3.get(reason, 5)
