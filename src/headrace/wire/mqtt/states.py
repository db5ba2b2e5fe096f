"""Which packet is legal in which state of a server's connection: the whole table, as data.

    AWAIT_CONNECT ── CONNECT ──► CONNECTING ── accept() ──► OPEN ── DISCONNECT, fault, timeout, disconnect() ──► CLOSED
          │                          │ refuse()                                                                    ▲
          └── anything else ─────────┴─────────────────────────────────────────────────────────────────────────────┘

Every (state, packet type) pair has an entry: the session's method for it, `HOLD` (kept unread until the broker has
decided about the CONNECT [MQTT-3.1.4-6]), `IGNORE` (nothing is read after the end), or an `Illegal` that says reason
and clause.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

__all__ = ["HOLD", "IGNORE", "TABLE", "Illegal", "State"]


class State(IntEnum):
    AWAIT_CONNECT = 0
    CONNECTING = 1
    OPEN = 2
    CLOSED = 3


class Illegal(NamedTuple):
    """What the peer may not send now."""

    reason: int
    clause: str
    detail: str


HOLD: Final = "hold"
IGNORE: Final = "ignore"

NAMES: Final = (
    *("reserved", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP"),
    *("SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH"),
)

_RESERVED: Final = Illegal(0x81, "§2.1.2", "packet type 0 is reserved")


def _servers(kind: int) -> Illegal:
    return Illegal(0x82, "§2.1.2", f"{NAMES[kind]} goes from server to client only")


def _first(kind: int) -> Illegal:
    return Illegal(0x82, "MQTT-3.1.0-1", f"the first packet is {NAMES[kind]}; it must be CONNECT")


TABLE: Final[dict[State, tuple[str | Illegal, ...]]] = {
    State.AWAIT_CONNECT: (_RESERVED, "connect_packet", *(_first(kind) for kind in range(2, 16))),
    State.CONNECTING: (HOLD,) * 16,
    State.OPEN: (
        _RESERVED,
        Illegal(0x82, "MQTT-3.1.0-2", "a second CONNECT"),
        _servers(2),
        "publish",
        "puback",
        "pubrec",
        "pubrel",
        "pubcomp",
        "subscribe",
        _servers(9),
        "unsubscribe",
        _servers(11),
        "pingreq",
        _servers(13),
        "disconnect",
        Illegal(0x82, "MQTT-4.12.0-7", "AUTH without an authentication method in CONNECT"),
    ),
    State.CLOSED: (IGNORE,) * 16,
}
