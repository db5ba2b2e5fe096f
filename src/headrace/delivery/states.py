"""What can happen to a message in a group, as a table.

A message is in exactly one state per group. The containers of ``Backlog`` are these states, one to one:

    scheduled   its time has not come: a delay of its own, or the backoff of a retry
    ready       any consumer with room may have it (or it waits behind a message of the same key: still ready)
    leased      one consumer has it until a deadline
    acked dead expired cancelled dropped filtered     final for this group

The table is read by the tests (every pair is either here or refused), by the property tests' naive model and by the
documentation, whose diagram is made from it. ``decide`` refuses what is not in it; ``evolve`` never meets it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

__all__ = ["FINAL", "TRANSITIONS", "Event", "State", "mermaid", "next_state"]


class State(StrEnum):
    SCHEDULED = "scheduled"
    READY = "ready"
    LEASED = "leased"
    ACKED = "acked"
    DEAD = "dead"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    DROPPED = "dropped"
    FILTERED = "filtered"


class Event(StrEnum):
    DUE = "due"
    LEASE = "lease"
    ACK = "ack"
    RETRY_LATER = "retry later"
    RETRY_NOW = "retry now"
    RELEASE = "release"
    EXTEND = "extend"
    DIE = "die"
    EXPIRE = "expire"
    CANCEL = "cancel"
    MOVE = "move"
    DROP = "drop"


FINAL: Final = frozenset(
    {State.ACKED, State.DEAD, State.EXPIRED, State.CANCELLED, State.DROPPED, State.FILTERED},
)

TRANSITIONS: Final[dict[State, dict[Event, State]]] = {
    State.SCHEDULED: {
        Event.DUE: State.READY,
        Event.MOVE: State.SCHEDULED,
        Event.CANCEL: State.CANCELLED,
        Event.EXPIRE: State.EXPIRED,
        Event.DROP: State.DROPPED,
    },
    State.READY: {
        Event.LEASE: State.LEASED,
        Event.EXPIRE: State.EXPIRED,
        Event.DROP: State.DROPPED,
        Event.DIE: State.DEAD,  # a follower of a dead message, where on_dead is "follow"
    },
    State.LEASED: {
        Event.ACK: State.ACKED,
        Event.RETRY_LATER: State.SCHEDULED,
        Event.RETRY_NOW: State.READY,
        Event.RELEASE: State.READY,
        Event.EXTEND: State.LEASED,
        Event.DIE: State.DEAD,
        Event.EXPIRE: State.EXPIRED,
        Event.DROP: State.DROPPED,
    },
    **{state: {} for state in State if state in FINAL},
}


def next_state(state: State, event: Event) -> State | None:
    """Where ``event`` takes a message, or None where the table refuses it."""
    return TRANSITIONS[state].get(event)


def mermaid() -> str:
    """The state diagram of the documentation."""
    lines = ["stateDiagram-v2", "    [*] --> scheduled: publish with a delay", "    [*] --> ready: publish"]
    lines += [
        f"    {state} --> {target}: {event}" for state, row in TRANSITIONS.items() for event, target in row.items()
    ]
    lines += [f"    {state} --> [*]" for state in State if state in FINAL]
    return "\n".join(lines)
