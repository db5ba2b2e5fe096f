"""What can be asked of a shard, and what it answers.

A command speaks of partitions and groups by number (the broker knows the names); it is a batch wherever it can be.
An expected refusal is a reply, an instance of ``HeadraceError``, never an exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from pyroaring import BitMap64

from headrace.batch import Batch, MessageView
from headrace.config import GroupConfig, NamespaceConfig, TopicConfig
from headrace.delivery.facts import Fact
from headrace.delivery.offsets import Span
from headrace.errors import HeadraceError

__all__ = [
    "Bury",
    "Cancel",
    "ChangeGroup",
    "ChangeNamespace",
    "ChangeTopic",
    "Command",
    "CreateGroup",
    "CreateTopic",
    "Death",
    "DeleteGroup",
    "DeleteTopic",
    "Forget",
    "FreeKey",
    "Grant",
    "Join",
    "LeaseUpTo",
    "Leave",
    "Move",
    "Note",
    "Outcome",
    "PauseGroup",
    "Publish",
    "PublishDone",
    "Purge",
    "Receipts",
    "Redrive",
    "ResumeGroup",
    "Seek",
    "SettleDone",
    "SettleMany",
    "Start",
    "Tick",
    "Trim",
]


class Receipts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The right to settle messages of one lease: ``count`` consecutive ones, or those in ``bits``."""

    pid: int
    lease_id: int
    first: int
    count: int = 1
    bits: BitMap64 | None = None

    def span(self) -> Span:
        return Span(self.first, self.count, self.bits)


class Start(msgspec.Struct, frozen=True):
    """Where a group begins: at most one of the two; neither means the earliest message there is."""

    offsets: Mapping[int, int] | None = None  # partition index -> offset
    time_ns: int | None = None
    latest: bool = False


EARLIEST = Start()


class ChangeNamespace(msgspec.Struct):
    namespace: str
    settings: NamespaceConfig


class CreateTopic(msgspec.Struct):
    namespace: str
    name: str
    settings: TopicConfig


class ChangeTopic(msgspec.Struct):
    tid: int
    settings: TopicConfig


class DeleteTopic(msgspec.Struct):
    tid: int


class CreateGroup(msgspec.Struct):
    tid: int
    name: str
    settings: GroupConfig = msgspec.field(default_factory=GroupConfig)
    durable: bool = True
    start: Start = EARLIEST
    filtered: Mapping[int, Span] | None = None  # pid -> what the filter keeps out of what is there already


class ChangeGroup(msgspec.Struct):
    gid: int
    settings: GroupConfig


class DeleteGroup(msgspec.Struct):
    gid: int


class Publish(msgspec.Struct, gc=False):
    """``notes``: what is to be remembered with it, (key, value), in the same frame; also when all of it is there
    already."""

    pid: int
    batch: Batch
    notes: Sequence[tuple[bytes, bytes]] = ()


class Note(msgspec.Struct):
    """Remember something, or (empty value) forget it."""

    notes: Sequence[tuple[bytes, bytes]]


class LeaseUpTo(msgspec.Struct, gc=False):
    gid: int
    consumer: str
    most: int
    lease_ns: int | None = None


class SettleMany(msgspec.Struct, gc=False):
    """Any mix; with ``publish`` or ``cancel`` it is all or nothing, without them each receipt stands for itself."""

    gid: int
    ack: Sequence[Receipts] = ()
    nack: Sequence[tuple[Receipts, int | None, str]] = ()  # delay_ns (None: by the retry policy), error
    reject: Sequence[tuple[Receipts, str]] = ()
    release: Sequence[Receipts] = ()
    extend: Sequence[tuple[Receipts, int]] = ()  # by_ns
    publish: Sequence[tuple[int, Batch]] = ()  # at most one batch a partition
    cancel: Sequence[tuple[int, Span]] = ()


class Tick(msgspec.Struct, gc=False):
    """Do what is due, up to ``most`` things; without ``bury`` whoever would die stays leased (a disk is full)."""

    most: int
    bury: bool = True


class Death(msgspec.Struct):
    """A message that is about to die; it stays leased until it is buried."""

    gid: int
    pid: int
    lease_id: int
    offset: int
    reason: str
    error: str
    cause: str = ""  # how its last attempt failed: nack | lease_expired | disconnect


class Bury(msgspec.Struct):
    """Make deaths final. ``contents``: the messages, for the dead letters, by (pid, offset); None asks which it takes
    (who dies may take others along); one that is missing dies without a copy. ``ends``: of partitions that the same
    frame has published into."""

    deaths: Sequence[Death]
    contents: Mapping[tuple[int, int], MessageView] | None = None
    ends: Mapping[int, int] = msgspec.field(default_factory=dict)


class Join(msgspec.Struct):
    gid: int
    consumer: str


class Leave(msgspec.Struct):
    """A consumer is gone; ``clean``: it said so, and gives back what it has uncounted."""

    gid: int
    consumer: str
    clean: bool = True


class Forget(msgspec.Struct):
    """A member of another life of this process: it is gone, what it holds stays leased."""

    gid: int
    consumer: str


class Seek(msgspec.Struct):
    gid: int
    start: Start
    stops: Mapping[int, int] | None = None  # partition index -> first offset not to deliver
    stop_time_ns: int | None = None
    filtered: Mapping[int, Span] | None = None


class PauseGroup(msgspec.Struct):
    gid: int
    by: str
    why: str
    until_ns: int = 0


class ResumeGroup(msgspec.Struct):
    gid: int
    by: str


class Purge(msgspec.Struct):
    """Drop everything unsettled and not leased, of one group or (gid -1) of the topic; ``only``: of these (by pid)."""

    tid: int
    gid: int = -1
    only: Mapping[int, Span] | None = None


class Cancel(msgspec.Struct):
    pid: int
    span: Span


class Move(msgspec.Struct):
    pid: int
    span: Span
    due_ns: int


class Redrive(msgspec.Struct):
    """Send dead letters back to work: to the group they died in, or to the topic ``tid`` for every group.

    With ``gid`` any messages of a topic are handed to one of its groups again; with ``keep`` the first ones stay for
    everybody else."""

    pid: int
    span: Span
    contents: Mapping[int, MessageView] | None = None
    tid: int | None = None
    gid: int | None = None
    keep: bool = False


class FreeKey(msgspec.Struct, frozen=True):
    gid: int
    pid: int
    key_hash: int


class Trim(msgspec.Struct):
    pid: int
    start: int


Command = (
    ChangeNamespace
    | CreateTopic
    | ChangeTopic
    | DeleteTopic
    | CreateGroup
    | ChangeGroup
    | DeleteGroup
    | Publish
    | LeaseUpTo
    | SettleMany
    | Tick
    | Bury
    | Join
    | Leave
    | Forget
    | Seek
    | PauseGroup
    | ResumeGroup
    | Purge
    | Cancel
    | Move
    | Redrive
    | FreeKey
    | Trim
    | Note
)


class PublishDone(msgspec.Struct, frozen=True, gc=False):
    """``duplicates``: (index in the batch, id, pid, offset) of those that were already there; the others got
    consecutive offsets and ids from the bases on, in order."""

    pid: int
    base_offset: int
    base_id: int
    count: int
    duplicates: Sequence[tuple[int, int, int, int]] = ()


class Grant(msgspec.Struct, frozen=True, gc=False):
    """Leased messages of one partition; ``attempts`` has those whose attempt is not the first. ``order``: how they are
    to be handed out, where that is not the order of their offsets."""

    pid: int
    lease_id: int
    span: Span
    deadline_ns: int
    attempts: Mapping[int, int]
    order: Sequence[int] = ()

    def offsets(self) -> Iterable[int]:
        """The messages in the order they are to be handed out."""
        return self.order or self.span


class SettleDone(msgspec.Struct, frozen=True, gc=False):
    settled: int
    refused: Sequence[tuple[Receipts, HeadraceError]]
    published: Sequence[PublishDone] = ()
    cancelled: int = 0


class Outcome(msgspec.Struct, gc=False):
    """What a command brings about. ``facts`` and ``batches`` go into one frame; ``deaths`` must be buried in the same
    frame. Before it can be decided a command may want to know: ``needs``, the contents of messages; ``needs_columns``,
    the keys of a stretch (pid, first, end) that was let go of; ``needs_scan``, what of stretches a filter keeps out."""

    facts: list[Fact]
    reply: Any = None
    batches: Sequence[Batch] = ()
    deaths: Sequence[Death] = ()
    needs: Sequence[tuple[int, int]] = ()
    needs_columns: tuple[int, int, int] | None = None
    needs_scan: Sequence[tuple[int, int, int]] = ()
    looked: Sequence[tuple[int, int, int]] = ()  # of a Tick: the alarms it took, see ``ticking.undo_tick``


def refuse(error: HeadraceError) -> Outcome:
    """Nothing happens; the caller is told why."""
    return Outcome([], error)
