"""What the ordinary MQTT broker must remember over a restart, as facts.

Only what the standard calls session state of sessions that outlive their connection, retained messages and wills makes
facts; a message for clients that are there and gone makes none. As in the shard, state is a fold over facts
(``recovery``): a tag and its field order stay for ever, new fields go to the end with a default.

A frame of the journal is a MessagePack array of facts: what one publish brought about (the message, everyone it is
kept for, the packet identifier it came under) is in one frame, whole or not at all.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

__all__ = [
    "Counted",
    "Ended",
    "Fact",
    "Finished",
    "Handed",
    "Kept",
    "Left",
    "Message",
    "Opened",
    "QueueSubscribed",
    "Received",
    "Recorded",
    "Released",
    "Resumed",
    "Retained",
    "Subscribed",
    "Target",
    "Unretained",
    "Unsubscribed",
    "Willed",
    "decode",
    "encode",
]


class _Fact(msgspec.Struct, array_like=True, gc=False):
    pass


class Message(_Fact):
    """An application message; ``properties`` by their names in the standard. ``expires_at_ns`` is a wall time."""

    topic: str
    payload: bytes
    properties: dict[str, Any] | None = None
    expires_at_ns: int | None = None


class Target(_Fact):
    """One session a message is kept for, and under which packet identifier it will be sent. Each has a number of its
    own (``mid``), by which the session is done with it."""

    mid: int
    uid: int
    qos: int
    retain: bool
    packet_id: int
    identifiers: list[int] = []
    is_shared: bool = False
    share: str = ""
    """The filter of the shared subscription it came by."""


class Opened(_Fact, tag=1):
    """A session began; ``owner`` is the principal that may resume it."""

    uid: int
    client_id: str
    owner: str
    expiry_s: int
    at_ns: int


class Resumed(_Fact, tag=2):
    """Its client is connected again."""

    uid: int
    expiry_s: int
    at_ns: int


class Left(_Fact, tag=3):
    """Its client is gone; messages up to ``sent_mid`` may have been sent to it."""

    uid: int
    expiry_s: int
    at_ns: int
    sent_mid: int = 0


class Ended(_Fact, tag=4):
    """The session is over, with everything kept for it."""

    uid: int


class Subscribed(_Fact, tag=5):
    uid: int
    topic_filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    identifier: int


class Unsubscribed(_Fact, tag=6):
    uid: int
    topic_filter: str


class Kept(_Fact, tag=7):
    """A message is kept for sessions, or for shared subscriptions (by their filter) none of whose members was there.

    ``origin`` and ``packet_id``: whose QoS 2 publish it was.
    """

    mid: int
    message: Message
    qos: int
    targets: list[Target]
    shares: list[str] = []
    origin: int = 0
    packet_id: int = 0


class Received(_Fact, tag=8):
    """A QoS 2 publish that is kept for nobody; its identifier is in use until it is released."""

    uid: int
    packet_id: int


class Released(_Fact, tag=9):
    uid: int
    packet_id: int


class Recorded(_Fact, tag=10):
    """The client has a QoS 2 message: it will never be sent again."""

    uid: int
    mid: int


class Finished(_Fact, tag=11):
    """A session is done with a message: acknowledged, expired, too large, or passed on."""

    uid: int
    mid: int


class Retained(_Fact, tag=12):
    message: Message
    qos: int


class Unretained(_Fact, tag=13):
    topic: str


class Willed(_Fact, tag=14):
    """The will of a connected client, None when it is discarded or done. Kept for sessions that last only: the will of
    another is published when its connection ends, and a crash of the server is not that."""

    uid: int
    message: Message | None = None
    qos: int = 0
    retain: bool = False
    due_ns: int = 0


class Handed(_Fact, tag=15):
    """A message that waited in a shared subscription waits there no more (a member has it, or it expired)."""

    mid: int
    topic_filter: str


class QueueSubscribed(_Fact, tag=16):
    """A subscription to a durable queue; it is taken up again when its client comes back."""

    uid: int
    topic_filter: str
    qos: int
    identifier: int
    group: str
    prefetch: int
    by_puback: bool
    start: str


class Counted(_Fact, tag=17):
    """Numbers that were given and must not be given again; in snapshots, where whoever had them may be gone."""

    last_uid: int
    last_mid: int


Fact: TypeAlias = (
    Opened
    | Resumed
    | Left
    | Ended
    | Subscribed
    | Unsubscribed
    | Kept
    | Received
    | Released
    | Recorded
    | Finished
    | Retained
    | Unretained
    | Willed
    | Handed
    | QueueSubscribed
    | Counted
)

_decoder = msgspec.msgpack.Decoder(list[Fact])
_encoder = msgspec.msgpack.Encoder()


def encode(facts: list[Fact]) -> bytes:
    """The body of a frame."""
    return _encoder.encode(facts)


def decode(body: bytes) -> list[Fact]:
    """The facts of a frame; raises msgspec.MsgspecError for anything else."""
    return _decoder.decode(body)
