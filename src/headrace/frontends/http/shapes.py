"""What goes over HTTP, as types: they validate requests, write answers, and are the OpenAPI document.

Text is UTF-8. Bytes that are not text have a field of their own whose name ends in ``_base64``. Spans are text with a
unit (``30s``, ``5m``), instants RFC 3339 (``2030-01-31T12:00:00Z``), ids decimal text, because JSON's numbers are not
exact beyond 2^53.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace import limits

__all__ = ["Bytes", "Id", "Instant", "Name", "Receipt", "Span"]

_SPAN_PATTERN: Final = r"^(0|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h|d|w))+)$"

Span = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=64,
        description="A time span: 500ms, 30s, 5m, 1h30m, 7d.",
        extra_json_schema={"pattern": _SPAN_PATTERN, "examples": ["30s"]},
    ),
]
Instant = Annotated[datetime, Meta(tz=True, description="RFC 3339, with its offset from UTC.")]
Id = Annotated[
    str,
    Meta(
        max_length=32,
        description="A message id, as a publish returned it.",
        extra_json_schema={"pattern": "^[1-9][0-9]{0,18}$"},
    ),
]
Receipt = Annotated[
    str,
    Meta(
        max_length=80,
        description="What a lease gave for a delivery: partition:lease:offset, or …+count for a run of them. "
        "A message id stands for the delivery it is leased as.",
        examples=["0:17:4711"],
    ),
]
Name = Annotated[str, Meta(min_length=1, max_length=limits.NAME_BYTES_MAX)]
ErrorText = Annotated[str, Meta(max_length=limits.ERROR_TEXT_CHARS_MAX)]
Bytes = bytes
Priority = Annotated[int, Meta(ge=0, le=limits.PRIORITY_MAX)] | Literal["high", "normal", "low"]
Settings = Annotated[
    dict[str, Any],
    Meta(
        description="Settings by name, nested or dotted; see the page on configuration.",
        examples=[{"retry": {"max_retries": 3}}],
    ),
]
Limit = Annotated[int, Meta(ge=1, le=limits.BROWSE_MESSAGES_MAX)]


PartitionNumber = Annotated[str, Meta(pattern="^[0-9]{1,4}$")]
"""Names in JSON are text."""
Offset = Annotated[int, Meta(ge=0, lt=1 << 62)]


class StartAt(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A place in time or in the log."""

    time: Instant | None = None
    offsets: Annotated[dict[PartitionNumber, Offset], Meta(description="By partition.")] | None = None


Start = Literal["earliest", "latest"] | StartAt


class Shape(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a caller sends: a field we do not know is refused."""


class Told(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What we answer: what is not so is left out."""


class Empty(Shape):
    """Nothing."""


# -- publishing --------------------------------------------------------------------------------------------------------


class NewMessage(Shape, gc=False):
    """One message. Its value is one of ``value``, ``value_base64`` and ``json``; without any it is empty."""

    value: Annotated[str, Meta(description="Text, stored as UTF-8.")] | UnsetType = UNSET
    value_base64: Annotated[Bytes, Meta(description="Any bytes.")] | UnsetType = UNSET
    json: (
        Annotated[msgspec.Raw, Meta(description="Any JSON, stored as it is written here; the content type says so.")]
        | UnsetType
    ) = UNSET
    key: Annotated[str, Meta(description="Messages of one key keep their order.")] | None = None
    key_base64: Bytes | None = None
    headers: dict[str, str] | None = None
    headers_base64: dict[str, Bytes] | None = None
    priority: Annotated[Priority, Meta(description="0 is first, 9 last; high is 1, normal 5, low 9.")] = 5
    delay: Span | None = None
    deliver_at: Instant | None = None
    ttl: Span | None = None
    expires_at: Instant | None = None
    dedup_id: (
        Annotated[
            str,
            Meta(description="A second message with it is not stored again, and answered with the first one's place."),
        ]
        | None
    ) = None
    timestamp: Annotated[Instant, Meta(description="The producer's own time.")] | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    content_type: str | None = None


class NewMessages(Shape):
    """A batch: stored whole, in one durable round, or not at all."""

    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=limits.HTTP_MESSAGES_MAX)]
    partition: Annotated[int, Meta(ge=0, le=limits.PARTITIONS_MAX)] | None = None


class Published(msgspec.Struct, gc=False):
    """Where a message is."""

    id: Id
    partition: int
    offset: int
    duplicate: bool


class PublishAnswer(msgspec.Struct):
    """One result for each message, in their order."""

    results: list[Published]


# -- consuming ---------------------------------------------------------------------------------------------------------


class Message(msgspec.Struct, omit_defaults=True, gc=False):
    """A message. Its value comes as ``json`` when its content type says so and it is, as ``value`` when it is text, and
    as ``value_base64`` otherwise."""

    id: Id
    partition: int
    offset: int
    published_at: str
    value: str | UnsetType = UNSET
    value_base64: Bytes | UnsetType = UNSET
    json: msgspec.Raw | UnsetType = UNSET
    key: str | None = None
    key_base64: Bytes | None = None
    headers: dict[str, str] | None = None
    headers_base64: dict[str, Bytes] | None = None
    priority: int = 5
    deliver_at: str | None = None
    expires_at: str | None = None
    dedup_id: str | None = None
    dedup_id_base64: Bytes | None = None
    timestamp: str | None = None


class Delivery(Message, omit_defaults=True, gc=False):
    """A message that is yours until ``leased_until``; settle it with its receipt."""

    receipt: Receipt = ""
    attempt: int = 0
    leased_until: str = ""


class LeaseOrder(Shape):
    """How many, for how long, for whom."""

    max: Annotated[int, Meta(ge=1, le=limits.HTTP_LEASE_MESSAGES_MAX)] = 1
    wait: Annotated[Span, Meta(description="How long to wait for the first message.")] = "0s"
    lease: Annotated[Span, Meta(description="How long they are yours; the group's setting when left out.")] | None = (
        None
    )
    consumer: Annotated[
        str, Meta(max_length=limits.CONSUMER_NAME_BYTES_MAX, description="Who you are; unnamed callers are one.")
    ] = ""
    start: Annotated[str, Meta(description="Where a group that this call makes begins: earliest or latest.")] | None = (
        None
    )


class LeaseAnswer(msgspec.Struct):
    """The deliveries, and the same receipts in the fewest words."""

    deliveries: list[Delivery]
    receipts: Annotated[list[Receipt], Meta(description="All of the above, run by run: enough to settle them all.")]


class Nack(Shape):
    """Failed: try again."""

    receipt: Receipt
    delay: Annotated[Span, Meta(description="0s at once; the group's backoff when left out.")] | None = None
    error: ErrorText = ""


class Reject(Shape):
    """Failed for good: to the dead letters."""

    receipt: Receipt
    error: ErrorText = ""


class Extend(Shape):
    """More time, from now."""

    receipt: Receipt
    by: Span


class Output(Shape):
    """Messages for a topic, stored in the same record as the settle."""

    topic: Name
    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=limits.HTTP_MESSAGES_MAX)]
    partition: Annotated[int, Meta(ge=0, le=limits.PARTITIONS_MAX)] | None = None


class Cancel(Shape):
    """Scheduled messages that are not to be."""

    topic: Name
    ids: Annotated[list[Id], Meta(min_length=1, max_length=limits.SETTLE_ENTRIES_MAX)]


class SettleOrder(Shape):
    """Any mix of verbs. With ``publish`` or ``cancel`` it happens as a whole or not at all."""

    ack: Annotated[list[Receipt], Meta(max_length=limits.SETTLE_ENTRIES_MAX)] = []
    nack: Annotated[list[Receipt | Nack], Meta(max_length=limits.SETTLE_ENTRIES_MAX)] = []
    reject: Annotated[list[Receipt | Reject], Meta(max_length=limits.SETTLE_ENTRIES_MAX)] = []
    release: Annotated[list[Receipt], Meta(max_length=limits.SETTLE_ENTRIES_MAX)] = []
    extend: Annotated[list[Extend], Meta(max_length=limits.SETTLE_ENTRIES_MAX)] = []
    publish: Annotated[list[Output], Meta(max_length=limits.HTTP_MESSAGES_MAX)] = []
    cancel: Annotated[list[Cancel], Meta(max_length=limits.HTTP_MESSAGES_MAX)] = []


class RefusedReceipt(msgspec.Struct):
    """A receipt that settled nothing, and why."""

    receipt: Receipt
    code: str
    message: str


class SettleAnswer(Told):
    """How many were settled, and which were not."""

    settled: int
    refused: list[RefusedReceipt] = []
    published: Annotated[list[list[Published]], Meta(description="One list for each of publish.")] = []
    cancelled: int = 0


# -- topics, groups, namespaces ----------------------------------------------------------------------------------------


class NewTopic(Shape):
    """A topic to make."""

    topic: Name
    settings: Settings = {}


class SettingsOrder(Shape):
    """Settings to change; what is not named stays."""

    settings: Settings = {}


class TopicInfo(msgspec.Struct, omit_defaults=True):
    """A topic and its numbers."""

    namespace: str
    topic: str
    partitions: int
    settings: Settings
    created_at: str
    groups: list[str]
    depth: Annotated[int, Meta(description="Messages that some group has not settled.")]
    messages: Annotated[int, Meta(description="Messages that can be read.")]
    published: int


class TopicList(msgspec.Struct):
    topics: list[TopicInfo]


class Deleted(msgspec.Struct):
    deleted: str


class PurgeOrder(Shape):
    """Of one group what waits for it; without one everything, for good."""

    group: Name | None = None


class Dropped(msgspec.Struct):
    dropped: int


class PartitionOffsets(msgspec.Struct, omit_defaults=True):
    partition: int
    start: int
    end: int
    at: Annotated[int | None, Meta(description="The first offset at or after the time asked for.")] = None


class Offsets(msgspec.Struct, omit_defaults=True):
    created_at: str
    partitions: list[PartitionOffsets]


class OffsetsQuery(Shape):
    time: Instant | None = None


class NewGroup(Shape):
    """A group to make."""

    group: Name
    start: Start | None = None
    durable: Annotated[bool, Meta(description="False: it ends with its last consumer.")] = True
    settings: Settings = {}


class Seek(Shape):
    """Start a group over; with ``until`` or ``until_time`` it stops there."""

    start: Start = "earliest"
    until: (
        Annotated[dict[PartitionNumber, Offset], Meta(description="By partition, the first offset not to deliver.")]
        | None
    ) = None
    until_time: Instant | None = None


class PauseOrder(Shape):
    """Stop handing out, and say why."""

    why: Annotated[str, Meta(max_length=limits.PAUSE_TEXT_CHARS_MAX)] = ""
    until: Instant | None = None


class Paused(msgspec.Struct, omit_defaults=True):
    by: str
    why: str
    at: str = ""
    until: str = ""


class GroupInfo(msgspec.Struct, omit_defaults=True):
    """A group, its books and its consumers. published = scheduled + ready + leased + acked + dead + expired +
    cancelled + dropped + filtered + drift, and drift is 0."""

    group: str
    topic: str
    namespace: str
    durable: bool
    settings: Settings
    published: int
    scheduled: int
    ready: int
    leased: int
    acked: int
    dead: int
    expired: int
    cancelled: int
    dropped: int
    filtered: int
    drift: int
    lag: int
    delivered: int
    redelivered: int
    nacked: int
    paused: Paused | None
    consumers: list[str]
    owners: dict[str, str]
    starts: dict[str, int]
    oldest_unsettled_at: str = ""


class GroupList(msgspec.Struct):
    groups: list[GroupInfo]


class NamespaceInfo(msgspec.Struct):
    namespace: str
    settings: Settings
    topics: int
    leased: int
    connections: int


class NamespaceList(msgspec.Struct):
    namespaces: list[str]


# -- messages ----------------------------------------------------------------------------------------------------------


class MessagesQuery(Shape):
    """A place or a stretch of time to read from, or a state to look into."""

    from_offset: Annotated[int, Meta(ge=0, lt=1 << 62)] | None = None
    to_offset: Annotated[int, Meta(ge=0, lt=1 << 62, description="Not included.")] | None = None
    from_time: Instant | None = None
    to_time: Annotated[Instant, Meta(description="Not included.")] | None = None
    partition: Annotated[int, Meta(ge=0, le=limits.PARTITIONS_MAX)] | None = None
    limit: Annotated[int, Meta(ge=1, lt=1 << 62)] | None = None
    state: (
        Annotated[
            Literal["ready", "scheduled", "leased", "dead"], Meta(description="Look at a group's messages instead.")
        ]
        | None
    ) = None
    group: Name | None = None
    include_deleted: Annotated[
        bool, Meta(description="Also what retention has let go of, as far as an archive has it.")
    ] = False
    values: Annotated[Literal["auto", "base64"], Meta(description="base64: every value as value_base64.")] = "auto"


class BrowsedMessage(Message, omit_defaults=True, gc=False):
    """A message with where it stands in a group: a scheduled one with when it is due, a dead one with how it died."""

    namespace: str = ""
    topic: str = ""
    state: str = ""
    attempts: int = 0
    last_error: str = ""
    due_at: str = ""
    reason: str = ""
    died_at: str = ""


class MessagesAnswer(msgspec.Struct, omit_defaults=True):
    """A page. ``next_offsets``: by partition, where to go on; empty when this was all."""

    messages: list[BrowsedMessage]
    next_offsets: dict[str, int] = {}


class TraceEvent(msgspec.Struct, omit_defaults=True):
    event: str
    at: str
    group: str | None = None
    consumer: str | None = None
    attempt: int | None = None
    attempts: int | None = None
    reason: str | None = None
    error: str | None = None
    until: str | None = None


class Trace(msgspec.Struct, omit_defaults=True):
    """Everything that happened to a message."""

    id: Id
    namespace: str
    topic: str
    partition: int
    offset: int
    size_bytes: int
    published_at: str
    events: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    summary: dict[str, Any]
    links: dict[str, Any]


class Explained(msgspec.Struct):
    """Where a message is in a group, and what would have to change for it to be handed out."""

    id: Id
    namespace: str
    topic: str
    partition: int
    offset: int
    group: str
    state: str
    reasons: list[dict[str, Any]]


class ExplainQuery(Shape):
    group: Name = "default"


# -- schedules and dead letters ----------------------------------------------------------------------------------------


class ScheduleQuery(Shape):
    limit: Limit = limits.HTTP_PAGE_MESSAGES
    group: Annotated[Name, Meta(description="Also its retries that wait for their backoff.")] | None = None


class Scheduled(Message, omit_defaults=True, gc=False):
    """A message that waits for its time."""

    namespace: str = ""
    topic: str = ""
    due_at: str = ""
    attempts: int = 0
    last_error: str = ""


class ScheduleAnswer(msgspec.Struct, omit_defaults=True):
    """The next ones first, and how many there are."""

    scheduled: int
    messages: list[Scheduled]
    next_due_at: str = ""


class Chosen(Shape):
    """Which messages: one of the three."""

    ids: Annotated[list[Id], Meta(min_length=1, max_length=limits.BROWSE_MESSAGES_MAX)] | None = None
    key: str | None = None
    tag: Annotated[str, Meta(description="The value of their header tag.")] | None = None


class MoveOrder(Chosen):
    """Another time for them: one of the two."""

    deliver_at: Instant | None = None
    delay: Span | None = None


class Cancelled(msgspec.Struct):
    cancelled: int


class Moved(msgspec.Struct, omit_defaults=True):
    moved: int
    due_at: str = ""


class Where(Shape):
    """Which dead letters; all that is given must be so."""

    reason: Annotated[str, Meta(description="rejected, max_retries, total_timeout or followed.")] | None = None
    error: Annotated[str, Meta(description="A part of the last error.")] | None = None
    group: str | None = None
    consumer: str | None = None
    min_attempts: int | None = None
    key_prefix: str | None = None
    header: Annotated[str | dict[str, str], Meta(description="A name, or names with their values.")] | None = None
    ids: Annotated[list[Id], Meta(max_length=limits.BROWSE_MESSAGES_MAX)] | None = None
    from_time: Instant | None = None
    to_time: Instant | None = None


class DeadQuery(Shape):
    limit: Limit = limits.HTTP_PAGE_MESSAGES
    reason: str | None = None
    error: str | None = None
    group: str | None = None
    consumer: str | None = None
    min_attempts: int | None = None
    key_prefix: str | None = None
    header: Annotated[str, Meta(description="A name, or name=value.")] | None = None
    from_time: Instant | None = None
    to_time: Instant | None = None


class Origin(msgspec.Struct):
    """Where it died."""

    topic: str
    partition: int
    offset: int
    id: str
    group: str


class DeadLetter(Message, omit_defaults=True, gc=False):
    """A message that died, and what it died of."""

    namespace: str = ""
    topic: str = ""
    origin: Origin | None = None
    reason: str = ""
    error: str = ""
    consumer: str = ""
    attempts: int = 0
    died_at: str = ""
    first_delivered_at: str = ""
    last_delivered_at: str = ""


class DeadLetters(msgspec.Struct):
    """The oldest first."""

    dead_letters: list[DeadLetter]


class WhereOrder(Shape):
    where: Where | None = None


class RedriveOrder(Shape):
    """Which, where to, how fast, and whether to say only what would happen."""

    where: Where | None = None
    to: Name | None = None
    rate: Annotated[float, Meta(gt=0, description="Messages a second.")] | None = None
    dry_run: bool = False


class RedriveReport(msgspec.Struct):
    """What was sent back to work."""

    topic: str
    to: str | None
    dry_run: bool
    matched: int
    redriven: int
    left: Annotated[int, Meta(description="Where they came from is gone.")]
    by_reason: dict[str, int]
    by_error: dict[str, int]
    by_group: dict[str, int]
    sample: list[Id]


class ReplayWhere(Shape):
    """Which messages, by what became of them in the group; all that is given must be so."""

    outcome: Annotated[
        Literal["acked", "failed", "dead", "expired", "delivered"], Meta(description="What became of them.")
    ] = "acked"
    consumer: Annotated[str | None, Meta(description="At whom.")] = None
    reason: Annotated[str | None, Meta(description="What they failed or died of.")] = None
    error: Annotated[str | None, Meta(description="A part of its error.")] = None
    min_attempts: Annotated[int, Meta(ge=1, description="It was at least that attempt.")] | None = None
    key_prefix: str | None = None
    header: Annotated[str | dict[str, str], Meta(description="A name, or names with their values.")] | None = None
    ids: Annotated[list[Id], Meta(max_length=limits.BROWSE_MESSAGES_MAX)] | None = None
    from_time: Annotated[Instant, Meta(description="When it came to that.")] | None = None
    to_time: Annotated[Instant, Meta(description="Not included.")] | None = None


class ReplayOrder(Shape):
    """Which, where to instead of the group, how fast, and whether to say only what would happen."""

    where: ReplayWhere | None = None
    to: Annotated[Name, Meta(description="Another topic; the group itself when left out.")] | None = None
    rate: Annotated[float, Meta(gt=0, description="Messages a second.")] | None = None
    dry_run: bool = False


class ReplayReport(msgspec.Struct):
    """What was handed out once more."""

    topic: str
    group: str
    to: str | None
    dry_run: bool
    matched: int
    redriven: int
    left: Annotated[int, Meta(description="Retention has let go of them.")]
    by_consumer: Annotated[dict[str, int], Meta(description="Events; a message may have several.")]
    by_reason: Annotated[dict[str, int], Meta(description="Events; a message may have several.")]
    by_partition: dict[PartitionNumber, int]
    sample: list[Id]


# -- numbers -----------------------------------------------------------------------------------------------------------


class Stats(msgspec.Struct):
    """Counts per topic and group, and of the journal."""

    topics: list[dict[str, Any]]
    journal: dict[str, int]
    drift: Annotated[int, Meta(description="0 when every group's books balance.")]
    now_at: str


class StatsQuery(Shape):
    interval: Annotated[Span, Meta(description="Between two events of a stream.")] = "1s"


class Health(msgspec.Struct, omit_defaults=True):
    status: str
    reason: str = ""
