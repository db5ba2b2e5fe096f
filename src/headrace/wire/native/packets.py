"""What the native protocol says, as values: one class per kind of frame.

Layouts are drawn in docs/reference/native-protocol.md and implemented in ``frames``. Field order here is field order
there. Everything variable that is hot is a list of plain tuples, in the order their names below give:

    ReceiptRun     (partition, lease_id, first_offset, count)
    DeliveredRun   (partition, lease_id, first_offset, count, attempt)
    Part           (partition, count, base_offset, base_id)
    Duplicate      (index, partition, offset, id)
    Refusal        (action, code, partition, lease_id, first_offset, count)

Bodies nobody here looks into (batches, MessagePack of calls) are buffers: ``memoryview`` when they were received, any
buffers when they are sent. A received memoryview keeps the chunk it lies in alive; copy what is to stay.

Not here: whether a packet is legal now (``states``), whether a name is a good name (the broker).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import ClassVar, Final, TypeAlias

import msgspec

Buffer: TypeAlias = bytes | bytearray | memoryview
ReceiptRun: TypeAlias = tuple[int, int, int, int]
DeliveredRun: TypeAlias = tuple[int, int, int, int, int]
Part: TypeAlias = tuple[int, int, int, int]
Duplicate: TypeAlias = tuple[int, int, int, int]
Refusal: TypeAlias = tuple[int, int, int, int, int, int]

VERSION_MIN: Final = 1
VERSION_MAX: Final = 1
CANCELLED: Final = "cancelled"
"""A feature: SETTLED says how many messages were cancelled."""
HELD: Final = "held"
"""CONSUME says what a consumer that comes back still holds; a server that was started anew gives back the rest."""
WITHDRAW: Final = "withdraw"
"""CREDIT may take back what it gave."""
FEATURES: Final = (CANCELLED, HELD, WITHDRAW)
BY_KEY: Final = -1
"""``partition`` of a publish the broker routes by key."""
BY_POLICY: Final = -1
"""``span_ns`` of a nack that leaves the delay to the group's retry policy."""
DURABLE: Final = 0
RELAXED: Final = 1
DUPLICATE: Final = 0xFFFF
"""In ``Published.indexes``: this message is a duplicate."""


class Kind(IntEnum):
    """A frame's kind byte. A reply is its request + 1."""

    ERROR = 1
    HELLO = 2
    WELCOME = 3
    PING = 4
    PONG = 5
    CLOSE = 6
    GOAWAY = 7
    PUBLISH = 16
    PUBLISHED = 17
    CONSUME = 32
    SUBSCRIBED = 33
    UNSUBSCRIBE = 34
    ENDED = 35
    LEASE = 36
    LEASED = 37
    DELIVERIES = 40
    CREDIT = 41
    SETTLE = 48
    SETTLED = 49
    CALL = 64
    RESULT = 65


class Verb(IntEnum):
    """What a settle does to the messages it names."""

    ACK = 1
    NACK = 2
    RELEASE = 3
    REJECT = 4
    EXTEND = 5


class EffectKind(IntEnum):
    """What an atomic settle does besides settling. A schedule is a publish of messages with a due time."""

    PUBLISH = 1
    CANCEL = 2


class Packet(msgspec.Struct, frozen=True):
    """The root; ``correlation`` is the first field of every packet that has one."""

    kind: ClassVar[Kind]


class Scope(msgspec.Struct, frozen=True):
    """A group by its names, for those who have no subscription to it."""

    namespace: str
    topic: str
    group: str
    consumer: str = ""


class HelloBody(msgspec.Struct, frozen=True, array_like=True):
    """HELLO's MessagePack array."""

    version_min: int
    version_max: int
    client: str
    token: str | None = None
    namespace: str = "default"
    features: list[str] = []
    heartbeat_ns: int = 0
    frame_bytes_max: int = 0


class WelcomeBody(msgspec.Struct, frozen=True, array_like=True):
    """WELCOME's MessagePack array."""

    version: int
    server: str
    server_id: str
    namespace: str
    features: list[str]
    heartbeat_ns: int
    frame_bytes_max: int
    requests_max: int
    subscriptions_max: int
    credit_messages_max: int
    credit_bytes_max: int
    wall_ns: int = 0


class Hello(Packet, frozen=True):
    """Who is calling."""

    kind = Kind.HELLO
    body: HelloBody


class Welcome(Packet, frozen=True):
    """Come in; these are the limits."""

    kind = Kind.WELCOME
    body: WelcomeBody


class Ping(Packet, frozen=True):
    """Are you there."""

    kind = Kind.PING
    token: int


class Pong(Packet, frozen=True):
    """The PING's token back."""

    kind = Kind.PONG
    token: int


class Error(Packet, frozen=True):
    """One request is refused; ``code`` is a native number of ``errors.ROWS``, ``retry_after_ns`` -1 when none."""

    kind = Kind.ERROR
    correlation: int
    code: int
    message: str
    retry_after_ns: int = -1


class Close(Packet, frozen=True):
    """The sender's last frame; code 0: nothing is wrong."""

    kind = Kind.CLOSE
    code: int
    message: str
    retry_after_ns: int = -1


class GoAway(Packet, frozen=True):
    """The server is about to stop; ``deadline_ns`` is a span."""

    kind = Kind.GOAWAY
    deadline_ns: int
    reason: str


class Publish(Packet, frozen=True):
    """Store a batch."""

    kind = Kind.PUBLISH
    correlation: int
    namespace: str
    topic: str
    partition: int
    durability: int
    batch: Buffer | Sequence[Buffer]


class Published(Packet, frozen=True):
    """Where a batch lies. ``indexes`` names each message's part when there are several, and is empty otherwise."""

    kind = Kind.PUBLISHED
    correlation: int
    count: int
    parts: Sequence[Part]
    indexes: Sequence[int] = ()
    duplicates: Sequence[Duplicate] = ()
    relaxed: bool = False

    def places(self) -> list[tuple[int, int, int, bool]]:
        """One (partition, offset, id, is duplicate) per message of the batch, in its order."""
        places: list[tuple[int, int, int, bool]] = []
        duplicates = {index: rest for index, *rest in self.duplicates}
        taken = [0] * len(self.parts)
        for i in range(self.count):
            if i in duplicates:
                partition, offset, message_id = duplicates[i]
                places.append((partition, offset, message_id, True))
                continue
            part = self.indexes[i] if self.indexes else 0
            partition, _, base_offset, base_id = self.parts[part]
            places.append((partition, base_offset + taken[part], base_id + taken[part], False))
            taken[part] += 1
        return places


class Consume(Packet, frozen=True):
    """Subscribe a consumer; the subscription is named by ``correlation``. ``options`` is a MessagePack map or empty."""

    kind = Kind.CONSUME
    correlation: int
    scope: Scope
    lease_ns: int
    credit_messages: int
    credit_bytes: int
    options: Buffer = b""


class Subscribed(Packet, frozen=True):
    """The subscription stands, with the lease span in force. ``information`` is a MessagePack map or empty."""

    kind = Kind.SUBSCRIBED
    correlation: int
    lease_ns: int
    information: Buffer = b""


class Unsubscribe(Packet, frozen=True):
    """End a subscription and release what it holds."""

    kind = Kind.UNSUBSCRIBE
    correlation: int
    subscription: int


class Ended(Packet, frozen=True):
    """A subscription is over: asked for (``correlation``), or by the server's will (correlation 0, with its reason)."""

    kind = Kind.ENDED
    correlation: int
    subscription: int
    code: int = 0
    message: str = ""
    retry_after_ns: int = -1


class Credit(Packet, frozen=True):
    """The server may push that much more; ``withdraw``: nothing, whatever it was allowed before."""

    kind = Kind.CREDIT
    subscription: int
    messages: int
    bytes: int
    withdraw: bool = False


class Deliveries(Packet, frozen=True):
    """Pushed messages: those of ``batches`` one after another are those of ``runs`` one after another."""

    kind = Kind.DELIVERIES
    subscription: int
    lease_ns: int
    runs: Sequence[DeliveredRun]
    batches: Sequence[Buffer]

    @property
    def count(self) -> int:
        return sum(run[3] for run in self.runs)

    @property
    def size_bytes(self) -> int:
        """What this costs of the credit in bytes."""
        return sum(map(len, self.batches))


class Lease(Packet, frozen=True):
    """Pull up to ``messages_max``, waiting ``wait_ns`` for the first; ``scope``: a subscription or a group's names."""

    kind = Kind.LEASE
    correlation: int
    scope: int | Scope
    messages_max: int
    bytes_max: int
    wait_ns: int
    lease_ns: int


class Leased(Packet, frozen=True):
    """What was pulled; without runs: nothing came within the wait."""

    kind = Kind.LEASED
    correlation: int
    subscription: int
    lease_ns: int
    runs: Sequence[DeliveredRun]
    batches: Sequence[Buffer]

    @property
    def count(self) -> int:
        return sum(run[3] for run in self.runs)


class Action(msgspec.Struct, frozen=True):
    """One verb on runs of receipts of one group. ``span_ns``: a nack's delay (or BY_POLICY), an extend's from-now."""

    verb: int
    scope: int | Scope
    runs: Sequence[ReceiptRun]
    span_ns: int = 0
    error: str = ""


class PublishEffect(msgspec.Struct, frozen=True):
    """A publish inside an atomic settle."""

    namespace: str
    topic: str
    partition: int
    batch: Buffer | Sequence[Buffer]


class CancelEffect(msgspec.Struct, frozen=True):
    """Scheduled messages cancelled inside an atomic settle."""

    namespace: str
    topic: str
    ids: Sequence[int]


Effect: TypeAlias = PublishEffect | CancelEffect


class Settle(Packet, frozen=True):
    """Settle any number of messages in one durable record; ``atomic``: all or nothing, effects included."""

    kind = Kind.SETTLE
    correlation: int
    actions: Sequence[Action]
    effects: Sequence[Effect] = ()
    atomic: bool = False

    @property
    def count(self) -> int:
        return sum(run[3] for action in self.actions for run in action.runs)


class Settled(Packet, frozen=True):
    """Done, except the refusals; ``published`` answers the publish effects in their order (their correlation is 0),
    ``cancelled`` is how many messages the cancel effects found: None where the other side does not say (``CANCELLED``).
    """

    kind = Kind.SETTLED
    correlation: int
    refusals: Sequence[Refusal] = ()
    published: Sequence[Published] = ()
    cancelled: int | None = None


class Call(Packet, frozen=True):
    """An administrative call. ``arguments`` is a MessagePack map; attachments are buffers not worth wrapping."""

    kind = Kind.CALL
    correlation: int
    method: str
    arguments: Buffer
    attachments: Sequence[Buffer] = ()


class Result(Packet, frozen=True):
    """What a call came to, in MessagePack."""

    kind = Kind.RESULT
    correlation: int
    result: Buffer
    attachments: Sequence[Buffer] = ()
