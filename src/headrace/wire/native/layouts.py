"""The fixed layouts, one line each: what docs/reference/native-protocol.md draws, as struct formats."""

from __future__ import annotations

from struct import Struct
from typing import Final

from headrace import limits
from headrace.wire.native.packets import Kind

HEADER_BYTES: Final = 10
LENGTH_BYTES: Final = 4
HELLO_MAGIC: Final = b"HRN1"
RELAXED_FLAG: Final = 1
ATOMIC_FLAG: Final = 1
WITHDRAW_FLAG: Final = 1

LENGTH: Final = Struct("<I")
HEADER: Final = Struct("<IBBI")
U32: Final = Struct("<I")
U64: Final = Struct("<Q")
REFUSED: Final = Struct("<HHq")  # ERROR, CLOSE
ENDED: Final = Struct("<IHHq")
PUBLISH: Final = Struct("<iBBBB")
PUBLISHED: Final = Struct("<IHH")
PART: Final = Struct("<IIQQ")
PUBLISHED_RUN: Final = Struct("<IHHIIQQ")
DUPLICATE_ENTRY: Final = Struct("<IIQQ")
CONSUME: Final = Struct("<QIQ")
CREDIT: Final = Struct("<IIQ")
DELIVERIES: Final = Struct("<IIIQ")
DELIVERED_RUN: Final = Struct("<IQQII")
LEASE: Final = Struct("<IIIQQ")
SETTLE: Final = Struct("<HH")
ACTION: Final = Struct("<BBHIqI")
RUN: Final = Struct("<IQQI")
EFFECT: Final = Struct("<BBBBiI")
SETTLED: Final = Struct("<IHH")
REFUSAL: Final = Struct("<HHIQQI")
CALL: Final = Struct("<BII")
RESULT: Final = Struct("<II")
# Header and the fixed part of one body together: one pack for the frames that go out most often.
PUBLISH_HEAD: Final = Struct("<IBBIiBBBB")
DELIVERIES_HEAD: Final = Struct("<IBBIIIIQ")
CREDIT_FRAME: Final = Struct("<IBBIIIQ")
TOKEN_FRAME: Final = Struct("<IBBIQ")
PUBLISHED_RUN_FRAME: Final = Struct("<IBBIIHHIIQQ")

_FRAME_MAX: Final = limits.NATIVE_FRAME_BYTES_MAX
_CONTROL: Final = limits.NATIVE_CONTROL_BYTES_MAX
BODY_BYTES_MAX: Final[dict[int, int]] = {
    Kind.ERROR: _CONTROL,
    Kind.HELLO: limits.NATIVE_HELLO_BYTES_MAX,
    Kind.WELCOME: limits.NATIVE_HELLO_BYTES_MAX,
    Kind.PING: 8,
    Kind.PONG: 8,
    Kind.CLOSE: _CONTROL,
    Kind.GOAWAY: _CONTROL,
    Kind.PUBLISH: _FRAME_MAX,
    Kind.PUBLISHED: _FRAME_MAX,
    Kind.CONSUME: _CONTROL,
    Kind.SUBSCRIBED: _CONTROL,
    Kind.UNSUBSCRIBE: 4,
    Kind.ENDED: _CONTROL,
    Kind.LEASE: _CONTROL,
    Kind.LEASED: _FRAME_MAX,
    Kind.DELIVERIES: _FRAME_MAX,
    Kind.CREDIT: 16,
    Kind.SETTLE: _FRAME_MAX,
    Kind.SETTLED: _FRAME_MAX,
    Kind.CALL: _FRAME_MAX,
    Kind.RESULT: _FRAME_MAX,
}
"""What a kind's body may measure whatever the connection's frame limit."""
KNOWN_FLAGS: Final[dict[int, int]] = {
    Kind.PUBLISHED: RELAXED_FLAG,
    Kind.CREDIT: WITHDRAW_FLAG,
    Kind.SETTLE: ATOMIC_FLAG,
}
"""Flag bits that mean something; any other bit is malformed."""
UNCORRELATED: Final[frozenset[int]] = frozenset(
    {Kind.HELLO, Kind.WELCOME, Kind.PING, Kind.PONG, Kind.CLOSE, Kind.GOAWAY, Kind.DELIVERIES, Kind.CREDIT}
)
"""Kinds whose correlation is 0. ENDED may have one or not; all others must."""
