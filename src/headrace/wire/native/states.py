"""Which frame is legal when, on both sides, as data.

Two tables, ``SERVER`` and ``CLIENT``: state → kind → what the side in that state does with a received frame of that
kind. Every (state, kind) pair is in its table. CLOSING is not: a side that is closing no longer looks at what comes.

    server   OPENING ──HELLO──► JUDGING ──(welcome sent)──► OPEN ──(goaway sent)──► DRAINING
    client   OPENING ──WELCOME──────────────────────────► OPEN ──GOAWAY──────────► DRAINING
             any ──(CLOSE sent or received, end of stream, fault)──► CLOSING

``SERVER_SENDS`` and ``CLIENT_SENDS`` say what a side may send in a state. The documentation prints these tables; a
test compares."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from headrace.wire.native.packets import Kind


class State(StrEnum):
    """Where a connection stands, as one side sees it."""

    OPENING = "opening"
    JUDGING = "judging"
    OPEN = "open"
    DRAINING = "draining"
    CLOSING = "closing"


class Rule(StrEnum):
    """What to do with a received frame."""

    TAKE = "take"
    REFUSE = "refuse"
    """Answer ERROR `draining`; nothing else happens."""
    VIOLATION = "·"


_ALIVE: Final = (Kind.PING, Kind.PONG, Kind.CLOSE)
_NEW_WORK: Final = (Kind.PUBLISH, Kind.CONSUME, Kind.LEASE, Kind.CALL)
_FINISHING: Final = (Kind.SETTLE, Kind.UNSUBSCRIBE, Kind.CREDIT)
_ANSWERS: Final = (
    Kind.ERROR,
    Kind.PUBLISHED,
    Kind.SUBSCRIBED,
    Kind.ENDED,
    Kind.LEASED,
    Kind.DELIVERIES,
    Kind.SETTLED,
    Kind.RESULT,
)

Table = dict[State, dict[int, Rule]]


def _row(take: Iterable[Kind], refuse: Iterable[Kind] = ()) -> dict[int, Rule]:
    taken, refused = frozenset(take), frozenset(refuse)
    return {kind: Rule.TAKE if kind in taken else Rule.REFUSE if kind in refused else Rule.VIOLATION for kind in Kind}


SERVER: Final[Table] = {
    State.OPENING: _row((Kind.HELLO, Kind.CLOSE)),
    State.JUDGING: _row((Kind.CLOSE,)),
    State.OPEN: _row((*_ALIVE, *_NEW_WORK, *_FINISHING)),
    State.DRAINING: _row((*_ALIVE, *_FINISHING), refuse=_NEW_WORK),
}
CLIENT: Final[Table] = {
    State.OPENING: _row((Kind.WELCOME, Kind.CLOSE)),
    State.OPEN: _row((*_ALIVE, *_ANSWERS, Kind.GOAWAY)),
    State.DRAINING: _row((*_ALIVE, *_ANSWERS, Kind.GOAWAY)),
}

SERVER_SENDS: Final[dict[State, frozenset[Kind]]] = {
    State.OPENING: frozenset({Kind.CLOSE}),
    State.JUDGING: frozenset({Kind.CLOSE, Kind.WELCOME}),
    State.OPEN: frozenset({*_ALIVE, *_ANSWERS, Kind.GOAWAY}),
    State.DRAINING: frozenset({*_ALIVE, *_ANSWERS}) - {Kind.DELIVERIES},
    State.CLOSING: frozenset(),
}
CLIENT_SENDS: Final[dict[State, frozenset[Kind]]] = {
    State.OPENING: frozenset({Kind.HELLO, Kind.CLOSE}),
    State.OPEN: frozenset({*_ALIVE, *_NEW_WORK, *_FINISHING}),
    State.DRAINING: frozenset({*_ALIVE, *_FINISHING}),
    State.CLOSING: frozenset(),
}

REPLIES: Final[dict[int, int]] = {
    Kind.PUBLISH: Kind.PUBLISHED,
    Kind.CONSUME: Kind.SUBSCRIBED,
    Kind.UNSUBSCRIBE: Kind.ENDED,
    Kind.LEASE: Kind.LEASED,
    Kind.SETTLE: Kind.SETTLED,
    Kind.CALL: Kind.RESULT,
}
"""A request's reply; instead of it an ERROR may come."""
