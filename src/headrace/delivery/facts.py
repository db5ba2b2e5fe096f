"""What happened: the only things the journal ever holds.

State is a fold over facts (``evolve``). Deciding may change from version to version; what a fact means may not: a fact
type keeps its tag and its field order for ever, new fields go to the end with a default.

Sets of offsets travel as three fields, ``first, count, bits`` (see ``offsets``). A frame of the journal is

    u32 length of the facts | MessagePack array of facts | the encoded batches the Published facts speak of, in order

so that one frame, whole or not at all, holds everything that one command brought about.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Final, TypeAlias

import msgspec

from headrace.batch import Batch
from headrace.config import GroupConfig, NamespaceConfig, TopicConfig
from headrace.delivery.offsets import Span, unpack
from headrace.limits import PLAIN_FACTS_KEPT

__all__ = [
    "Acked",
    "Assigned",
    "BackoffEnded",
    "Cancelled",
    "Died",
    "Dropped",
    "Due",
    "Expired",
    "Extended",
    "Fact",
    "GroupChanged",
    "GroupCreated",
    "GroupDeleted",
    "Joined",
    "KeyFreed",
    "Lapsed",
    "Leased",
    "Left",
    "Moved",
    "NamespaceChanged",
    "Noted",
    "PartitionCreated",
    "Paused",
    "Published",
    "Redriven",
    "Released",
    "Resumed",
    "Retried",
    "Sought",
    "TopicChanged",
    "TopicCreated",
    "TopicDeleted",
    "Trimmed",
    "decode",
    "encode",
    "encode_alone",
    "plain_published",
]


class _Fact(msgspec.Struct, array_like=True, gc=False):
    pass


class _Offsets(_Fact):
    def span(self) -> Span:
        """The offsets this fact is about."""
        return unpack(self.first, self.count, self.bits)  # type: ignore[attr-defined]


class TopicCreated(_Fact, tag=1):
    tid: int
    namespace: str
    name: str
    settings: TopicConfig
    at_ns: int


class TopicChanged(_Fact, tag=2):
    tid: int
    settings: TopicConfig
    at_ns: int


class TopicDeleted(_Fact, tag=3):
    tid: int
    at_ns: int


class PartitionCreated(_Fact, tag=4):
    pid: int
    tid: int
    index: int


class GroupCreated(_Fact, tag=5):
    gid: int
    tid: int
    name: str
    settings: GroupConfig
    starts: list[tuple[int, int]]  # (pid, first offset of interest)
    at_ns: int
    durable: bool = True
    filtered: list[tuple[int, int, int, bytes]] = []  # (pid, first, count, bits) of what was there already


class GroupChanged(_Fact, tag=6):
    gid: int
    settings: GroupConfig
    at_ns: int


class GroupDeleted(_Fact, tag=7):
    gid: int
    at_ns: int


class Published(_Fact, tag=8):
    """A batch entered a partition. ``filtered``: what groups with a filter never see. ``only_gid``: the one group it is
    for (a redriven message), -1 for all; ``front_ms``: the place in time it has there, where that is not its own."""

    pid: int
    size_bytes: int
    filtered: list[tuple[int, int, int, bytes]] = []  # (gid, first, count, bits)
    only_gid: int = -1
    front_ms: int = 0
    repeats: list[tuple[int, int, int, int]] = []  # of a producer's batch: (index, id, pid, offset) of what was there


class _Times(_Fact):
    def due_ms(self) -> list[int]:
        """When each of the messages was due."""
        at_ms, count = self.at_ms, len(self.offsets)  # type: ignore[attr-defined]
        return [at_ms - late for late in self.late_ms] if self.late_ms else [at_ms] * count  # type: ignore[attr-defined]


class Due(_Times, tag=9):
    """Scheduled messages came due, in this order; ``late_ms``: how long ago, where it was not in this millisecond."""

    pid: int
    offsets: list[int]
    at_ms: int
    late_ms: list[int] = []


class Cancelled(_Offsets, tag=10):
    pid: int
    first: int
    count: int
    bits: bytes
    at_ns: int


class Moved(_Offsets, tag=11):
    pid: int
    first: int
    count: int
    bits: bytes
    due_ms: int
    at_ns: int


class Leased(_Offsets, tag=12):
    """``lane`` is the one lane all of it came from, or -1."""

    gid: int
    pid: int
    lease_id: int
    consumer: str
    first: int
    count: int
    bits: bytes
    at_ns: int
    deadline_ns: int
    lane: int = -1


class Acked(_Offsets, tag=13):
    gid: int
    pid: int
    lease_id: int
    first: int
    count: int
    bits: bytes
    at_ns: int


class Retried(_Offsets, tag=14):
    """An attempt failed and there is another: at ``due_ms``, or at once where that is 0."""

    gid: int
    pid: int
    lease_id: int
    first: int
    count: int
    bits: bytes
    at_ns: int
    due_ms: int
    reason: str  # nack | lease_expired | disconnect
    error: str = ""


class Released(_Offsets, tag=15):
    """Given back, the attempt not counted."""

    gid: int
    pid: int
    lease_id: int
    first: int
    count: int
    bits: bytes
    at_ns: int
    reason: str = "released"  # released | behind (a message before it failed, order is by partition) | handover


class Extended(_Offsets, tag=16):
    gid: int
    pid: int
    lease_id: int
    first: int
    count: int
    bits: bytes
    at_ns: int
    deadline_ns: int


class BackoffEnded(_Times, tag=17):
    gid: int
    pid: int
    offsets: list[int]
    at_ms: int
    late_ms: list[int] = []


class Died(_Fact, tag=18):
    """One message is dead in one group; where it went, when dead letters are on (``to_pid`` -1: nowhere)."""

    gid: int
    pid: int
    lease_id: int
    offset: int
    reason: str  # rejected | max_retries | total_timeout | followed
    error: str
    attempts: int
    at_ns: int
    to_pid: int = -1
    to_offset: int = -1
    cause: str = ""  # nack | lease_expired | disconnect, where an attempt that failed was the last


class Expired(_Offsets, tag=19):
    gid: int
    pid: int
    lease_id: int  # 0: it was not leased
    first: int
    count: int
    bits: bytes
    at_ns: int
    cause: str = ""  # nack | lease_expired | disconnect, where an attempt failed and there is no time for another


class Dropped(_Offsets, tag=20):
    """Purged: for one group, or for all and for good where gid is -1."""

    gid: int
    pid: int
    first: int
    count: int
    bits: bytes
    at_ns: int


class Sought(_Offsets, tag=21):
    """A group starts over at ``start`` (and stops before ``stop``, where that is not -1)."""

    gid: int
    pid: int
    start: int
    stop: int
    at_ns: int
    first: int = 0  # what the group's filter keeps out of the stretch it goes back to
    count: int = 0
    bits: bytes = b""


class Paused(_Fact, tag=22):
    gid: int
    by: str
    why: str
    until_ns: int  # 0: until resumed
    at_ns: int


class Resumed(_Fact, tag=23):
    gid: int
    by: str
    at_ns: int


class Joined(_Fact, tag=24):
    gid: int
    consumer: str
    at_ns: int


class Left(_Fact, tag=25):
    gid: int
    consumer: str
    at_ns: int


class Assigned(_Fact, tag=26):
    """Who owns which partition of a group in mode partition or strict."""

    gid: int
    owners: list[tuple[int, str]]
    at_ns: int
    handover_ns: int


class Redriven(_Offsets, tag=27):
    """Dead letters went back to work: they leave the dead-letter topic, whatever group was to see them there."""

    pid: int
    first: int
    count: int
    bits: bytes
    at_ns: int


class Trimmed(_Fact, tag=28):
    """Retention: the log of a partition begins at ``start`` now."""

    pid: int
    start: int
    at_ns: int


class KeyFreed(_Fact, tag=29):
    """A key held behind its dead message (on_dead = hold) flows again."""

    gid: int
    pid: int
    key_hash: int
    at_ns: int


class Lapsed(_Offsets, tag=30):
    """Lifetimes of their own are over; where that ends a message's life in a group an Expired says so."""

    pid: int
    first: int
    count: int
    bits: bytes
    at_ns: int


class NamespaceChanged(_Fact, tag=31):
    namespace: str
    settings: NamespaceConfig
    at_ns: int


class Noted(_Fact, tag=40):
    """Something a protocol must remember in the same frame as what it caused: a QoS 2 packet identifier that was
    received with the message it came with. An empty value: no longer."""

    key: bytes
    value: bytes


Fact: TypeAlias = (
    TopicCreated
    | TopicChanged
    | TopicDeleted
    | PartitionCreated
    | GroupCreated
    | GroupChanged
    | GroupDeleted
    | Published
    | Due
    | Cancelled
    | Moved
    | Leased
    | Acked
    | Retried
    | Released
    | Extended
    | BackoffEnded
    | Died
    | Expired
    | Dropped
    | Sought
    | Paused
    | Resumed
    | Joined
    | Left
    | Assigned
    | Redriven
    | Trimmed
    | KeyFreed
    | Lapsed
    | NamespaceChanged
    | Noted
)

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Fact]).decode
_length: Final = Struct("<I").unpack_from
_LENGTHS: Final = [size.to_bytes(4, "little") for size in range(512)]


def encode(facts: Sequence[Fact], batches: Sequence[Batch]) -> list[Any]:
    """The buffers of one frame's body."""
    buffers: list[Any] = [encode_alone(facts)]
    for batch in batches:
        buffers += batch.buffers()
    return buffers


def encode_alone(facts: Sequence[Fact]) -> bytes:
    """A frame's body without batches, as one buffer."""
    head = _encode(facts)
    size = len(head)
    return (_LENGTHS[size] if size < 512 else size.to_bytes(4, "little")) + head


@lru_cache(maxsize=PLAIN_FACTS_KEPT)
def plain_published(pid: int, size_bytes: int) -> tuple[Published, bytes]:
    """The fact of a batch with nothing to tell but its size, and a frame's body up to that batch. Those of one producer
    are often alike: the same pair is handed out again, so nobody may write into the fact."""
    fact = Published(pid, size_bytes)
    return fact, encode_alone((fact,))


def decode(body: memoryview | bytes) -> tuple[list[Fact], list[Batch]]:
    """The facts of a frame's body and the batches of its Published facts."""
    end = 4 + _length(body)[0]
    if end == len(body):
        return _decode(body[4:]), []
    view = memoryview(body)
    facts = _decode(view[4:end])
    batches = []
    for fact in facts:
        if type(fact) is Published:
            batches.append(Batch.trusted(view[end : end + fact.size_bytes]))
            end += fact.size_bytes
    return facts, batches
