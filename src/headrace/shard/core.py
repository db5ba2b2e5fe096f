"""One shard: a journal, the state that is its fold, and the index of where every batch lies.

``execute`` takes a command through decide → append → evolve in one go and returns the reply with the journal position
it stands on. The reply must not leave before that position is durable (persist, then tell); waiting for it is the
host's business, so that one sync serves everybody who came in the meantime. Nothing here blocks, except reading cold
messages for dead letters.

A frame is appended before its facts are folded: a refused append (a full disk) leaves no trace in memory. There is no
way back from a failed one: the memory is thrown away and rebuilt from the journal (``Shard.reopen``).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any, Final, NamedTuple, cast

import msgspec

from headrace import delivery as d
from headrace.batch import Batch, MessageView
from headrace.clock import Clock
from headrace.delivery import (
    DECIDE,
    FOLD,
    Group,
    Partition,
    Published,
    ShardState,
    Span,
    accept_batch,
    accept_value,
    decide,
    encode_facts_alone,
    evolve_published,
    filtered_of,
    plain_published,
    restore,
    snapshot,
    span_of,
)
from headrace.errors import Corrupt, HeadraceError, StorageFailed, StorageFull
from headrace.journal import Frame, Journal
from headrace.limits import HOT_TAIL_BYTES, SNAPSHOT_EVERY_BYTES, STORAGE_RETRY_NS, TICK_WORK_MAX
from headrace.log import FACTS, MANIFEST, HotTail, JournalFrames, PartitionLog
from headrace.log.cold import ColdLog
from headrace.log.manifest import Entry, Manifest, Sealed, decode_entries, encode_entries
from headrace.log.recent import RecentFacts
from headrace.log.store import Store

__all__ = ["FACTS", "Core", "Done", "done_of"]

_PUBLISHERS: Final = (d.Publish, d.Redrive)


class Done(NamedTuple):
    """A reply, and the journal position that must be durable before it leaves."""

    reply: Any
    position: int


done_of: Final = cast("Callable[[tuple[Any, int]], Done]", partial(tuple.__new__, Done))
"""``Done(reply, position)`` from a pair: a named tuple's own constructor costs as much as a decision."""


class SteadyClock:
    """Wall time that neither jumps nor steps back: the wall clock once (or the latest time the journal knows, if that
    is later), the monotonic clock from there on.

    A step of the wall clock is noted (``wall_jump_ns``), not obeyed: nothing fires early, nothing is re-ordered.
    """

    __slots__ = ("_base_ns", "_clock", "_monotonic_ns")

    def __init__(self, clock: Clock, floor_ns: int) -> None:
        self._clock = clock
        self._monotonic_ns = clock.monotonic_ns
        self._base_ns = max(clock.wall_ns(), floor_ns) - clock.monotonic_ns()

    def now_ns(self) -> int:
        return self._base_ns + self._monotonic_ns()

    def wall_jump_ns(self) -> int:
        """How far the wall clock is from where it was expected."""
        return self._clock.wall_ns() - self._clock.monotonic_ns() - self._base_ns


class Core:
    """The synchronous heart of a shard; one owner at a time."""

    __slots__ = (
        "_full_until_ns",
        "_saving",
        "clock",
        "cold",
        "frames",
        "journal",
        "logs",
        "manifest",
        "node_id",
        "observer",
        "on_deaths",
        "recent",
        "snapshot_at",
        "snapshot_saved",
        "state",
        "tail",
        "woken",
    )

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        *,
        node_id: int = 0,
        hot_tail_bytes: int = HOT_TAIL_BYTES,
        store: Store | None = None,
        archive: Store | None = None,
    ) -> None:
        self.journal = journal
        self.frames = JournalFrames(journal)
        self.node_id = node_id
        self.tail = HotTail(hot_tail_bytes)
        self.logs: dict[int, PartitionLog] = {}
        self.woken: set[int] = set()  # groups that may have got something ready since this was last emptied
        self.observer: Any = None
        self.on_deaths: Callable[[Sequence[d.Fact], Sequence[Batch], int], None] | None = None
        """Told of each frame in which messages died: its facts, its batches, where it ends. It need not be durable."""
        self.state = ShardState(node_id)
        self.manifest = Manifest()
        self.cold = ColdLog(self.manifest, store, archive)
        self.recent = RecentFacts(journal.first_position)
        self._full_until_ns = 0  # dead letters found no room on the disk: not tried again before
        self.snapshot_at = journal.first_position + SNAPSHOT_EVERY_BYTES
        """The journal's end at which the next snapshot is due."""
        self._saving = Lock()
        self.snapshot_saved = 0  # the position of the newest snapshot that is on the disk
        self._recover()
        self.clock = SteadyClock(clock, self.state.now_ns)
        self._hear_members_anew()

    # -- commands ------------------------------------------------------------------------------------------------

    def execute(self, command: d.Command, now_ns: int = 0) -> Done:
        """Decide a command and append what it brings about. (With a time: what is due by then has been done.)"""
        state, journal = self.state, self.journal
        if not now_ns:
            if type(command) is d.Publish and not command.notes and command.pid in state.partitions:
                return self.publish(state.partitions[command.pid], command.batch)
            now_ns = self.clock.now_ns()
            if state.look_at_ns <= now_ns:
                self._tick(now_ns)
        outcome = DECIDE[type(command)](state, command, now_ns)
        if outcome.batches or outcome.deaths or outcome.needs or outcome.needs_columns or outcome.needs_scan:
            return self._apply_more(command, outcome, now_ns)
        facts = outcome.facts
        if not facts:
            # The reply may rest on what was appended a moment ago (a duplicate's first copy).
            return done_of((outcome.reply, journal.end_position if outcome.reply else 0))
        try:
            position = journal.append(FACTS, encode_facts_alone(facts), reserve=True)
        except HeadraceError as error:
            return self._refused(command, outcome, now_ns, error)
        for fact in facts:
            kind = type(fact)
            FOLD[kind](state, fact)
            if kind in _AFTER:
                _AFTER[kind](self, fact)
        self.recent.note_alone(facts, position)
        if self.observer is not None:
            self.observer(facts, (), position)
        return done_of((outcome.reply, journal.end_position))

    def publish(self, partition: Partition, batch: Batch, notes: Sequence[tuple[bytes, bytes]] = ()) -> Done:
        """A Publish, in line: of all commands it comes most, and often with one message."""
        if notes:
            return self.execute(d.Publish(partition.pid, batch, notes))
        state, journal = self.state, self.journal
        now_ns = self.clock.now_ns()
        if state.look_at_ns <= now_ns:
            self._tick(now_ns)
        accepted = accept_batch(state, partition, batch, now_ns)
        if isinstance(accepted, HeadraceError):
            return done_of((accepted, journal.end_position))
        fact, stamped, reply = accepted
        if fact is None or stamped is None:  # all of it was there already, perhaps since a moment ago
            return done_of((reply, journal.end_position))
        try:
            position = journal.append(FACTS, encode_facts_alone((fact,)), *stamped.buffers())
        except HeadraceError as error:
            if error.code != "storage_full":
                raise
            return done_of((error, 0))
        self._fold_published(fact, stamped, position, live=True)
        self.recent.note_published(fact.pid, stamped.base_offset, stamped.count, position)
        if self.observer is not None:
            self.observer((fact,), (stamped,), position)
        return done_of((reply, journal.end_position))

    def publish_value(self, partition: Partition, value: bytes) -> Batch | None:
        """The same for one value with no properties, the leanest of all: its batch as it was appended, which must be
        durable before anybody is told. None: nothing was done, and ``publish`` has to look at it."""
        state = self.state
        now_ns = self.clock.now_ns()
        if state.look_at_ns <= now_ns:
            self._tick(now_ns)
        batch = accept_value(state, partition, value, now_ns)
        if batch is None or self.observer is not None:
            return None
        pid = partition.pid
        fact, told = plain_published(pid, batch.size_bytes)
        try:
            position = self.journal.append(FACTS, batch.framed(told))
        except StorageFull:
            return None
        self._fold_published(fact, batch, position, live=True)
        self.recent.note_published(pid, batch.base_offset, 1, position)
        return batch

    def tick(self) -> int | None:
        """Do one bounded portion of what is due; when to come again, or None."""
        now_ns = self.clock.now_ns()
        wake_ns = self.state.wake_at_ns()
        if wake_ns is not None and wake_ns <= now_ns:
            self._do_due(now_ns)
        return self.wake_at_ns()

    def wake_at_ns(self) -> int | None:
        """When ``tick`` has something to do."""
        wake_ns = self.state.wake_at_ns()
        return None if wake_ns is None else max(wake_ns, self._full_until_ns)

    def _tick(self, now_ns: int) -> None:
        """Everything that is due, before anybody looks: expired messages must not be handed out."""
        while True:
            wake_ns = self.state.wake_at_ns()
            if wake_ns is None or wake_ns > now_ns or not self._do_due(now_ns):
                return

    def _do_due(self, now_ns: int) -> bool:
        """One portion of what is due; whether to go on. Where dead letters find no room on the disk, those who would
        die stay leased for a while and everything else goes on."""
        if now_ns >= self._full_until_ns:
            if not isinstance(self.execute(d.Tick(TICK_WORK_MAX), now_ns).reply, HeadraceError):
                return True
            self._full_until_ns = now_ns + STORAGE_RETRY_NS
        before = self.journal.end_position
        self.execute(d.Tick(TICK_WORK_MAX, bury=False), now_ns)
        return self.journal.end_position != before

    def execute_many(self, commands: Sequence[d.Command]) -> list[Done]:
        """Run commands that came in together, each as if alone, with one frame for what they bring about.

        For leases and settlements: a publish, or a death, gets a frame of its own on the way.
        """
        now_ns = self.clock.now_ns()
        if self.state.look_at_ns <= now_ns:
            self._tick(now_ns)
        state = self.state
        facts: list[d.Fact] = []
        replies: list[Any] = []
        done: list[Done] = []
        for command in commands:
            outcome = DECIDE[type(command)](state, command, now_ns)
            if outcome.batches or outcome.deaths or outcome.needs or outcome.needs_columns or outcome.needs_scan:
                done += self._append_gathered(facts, replies)
                facts, replies = [], []
                done.append(self.execute(command, now_ns))
                continue
            self._fold(outcome.facts, (), 0)
            facts += outcome.facts
            replies.append(outcome.reply)
        return done + self._append_gathered(facts, replies)

    def _append_gathered(self, facts: list[d.Fact], replies: list[Any]) -> list[Done]:
        """One frame for facts that are folded already: if it cannot be appended the memory is ahead of what can ever be
        durable, and the shard has to be rebuilt."""
        journal = self.journal
        if facts:
            try:
                position = journal.append(FACTS, encode_facts_alone(facts), reserve=True)
            except HeadraceError as error:
                raise StorageFailed(f"settlements could not be written: {error.message}") from error
            self.recent.note_alone(facts, position)
            if self.observer is not None:
                self.observer(facts, (), position)
        end = journal.end_position
        return [done_of((reply, end)) for reply in replies]

    def _apply_more(self, command: d.Command, outcome: d.Outcome, now_ns: int) -> Done:
        """What brings batches with it, or cannot be decided from the state alone."""
        state, journal = self.state, self.journal
        while outcome.needs or outcome.needs_columns is not None or outcome.needs_scan:
            self._fetch_for(command, outcome)
            outcome = decide(state, command, now_ns)
        facts, batches = outcome.facts, outcome.batches
        if outcome.deaths:
            ends = {fact.pid: b.base_offset + b.count for fact, b in zip(_published(facts), batches, strict=True)}
            bury = d.Bury(outcome.deaths, ends=ends)
            bury.contents = self._contents(decide(state, bury, now_ns).needs)
            burial = decide(state, bury, now_ns)
            facts = [*facts, *burial.facts]
            batches = [*batches, *burial.batches]
        if not facts:
            return Done(outcome.reply, journal.end_position if outcome.reply else 0)
        try:
            position = journal.append(FACTS, *d.encode_facts(facts, batches), reserve=type(command) not in _PUBLISHERS)
        except HeadraceError as error:
            return self._refused(command, outcome, now_ns, error)
        self._fold(facts, batches, position)
        self.recent.note(facts, batches, position)
        if outcome.deaths and self.on_deaths is not None:
            self.on_deaths(facts, batches, journal.end_position)
        if self.observer is not None:
            self.observer(facts, batches, position)
        return Done(outcome.reply, journal.end_position)

    def _refused(self, command: d.Command, outcome: d.Outcome, now_ns: int, error: HeadraceError) -> Done:
        """The journal did not take it: a full disk is an answer, anything else is the end of this memory."""
        if error.code != "storage_full":
            raise error
        if type(command) is d.Tick:
            d.undo_tick(self.state, outcome, now_ns)
        return Done(error, 0)

    def _fold(self, facts: Sequence[d.Fact], batches: Sequence[Batch], position: int, *, live: bool = True) -> None:
        state, number = self.state, 0
        for fact in facts:
            if type(fact) is Published:
                self._fold_published(fact, batches[number], position, live=live)
                number += 1
                continue
            kind = type(fact)
            FOLD[kind](state, fact)
            if kind in _AFTER:
                _AFTER[kind](self, fact)

    def _fold_published(self, fact: d.Published, batch: Batch, position: int, *, live: bool) -> None:
        evolve_published(self.state, fact, batch)
        pid = fact.pid
        log = self.logs.get(pid)
        if log is None:
            log = self._new_log(pid)
        log.append(batch, position, keep=live)
        if live:
            woken = self.woken
            for group in self.state.partitions[pid].topic.groups.values():
                woken.add(group.gid)

    def _wake_group(self, fact: Any) -> None:
        self.woken.add(fact.gid)

    def _wake_topic(self, fact: d.Due) -> None:
        self.woken.update([group.gid for group in self.state.partitions[fact.pid].topic.groups.values()])

    def _wake_if_freed(self, fact: d.Acked) -> None:
        """An ack can let something else go: the next of a key, room under a limit."""
        group = self.state.groups[fact.gid]
        policy = group.policy
        space = group.topic.space
        if space.limited and space.settings.concurrency:
            self.woken.update([other.gid for other in space.groups()])
        if policy.frees or group.backlogs[fact.pid].leased_count + fact.count >= policy.max_in_flight:
            self.woken.add(fact.gid)

    def _trim_log(self, fact: d.Trimmed) -> None:
        self.log(fact.pid).trim(fact.start)

    def _drop_logs(self, fact: d.TopicDeleted) -> None:
        for pid in [pid for pid in self.logs if pid not in self.state.partitions]:
            del self.logs[pid]

    # -- contents ------------------------------------------------------------------------------------------------

    def _new_log(self, pid: int) -> PartitionLog:
        log = self.logs[pid] = PartitionLog(pid, self.frames, self.tail, self.cold)
        return log

    def log(self, pid: int) -> PartitionLog:
        """The log of a partition (an empty one where nothing was ever published)."""
        log = self.logs.get(pid)  # not "or": a log whose messages were all let go is empty and still knows its end
        return self._new_log(pid) if log is None else log

    def _contents(self, places: Sequence[tuple[int, int]]) -> dict[tuple[int, int], MessageView]:
        """The messages at these places; those whose log is gone are missing."""
        found: dict[tuple[int, int], MessageView] = {}
        for pid, offset in places:
            log = self.logs.get(pid)
            batch = log.batch_at(offset) if log is not None else None
            if batch is not None:
                found[pid, offset] = batch.message(offset - batch.base_offset)
        return found

    def _fetch_for(self, command: d.Command, outcome: d.Outcome) -> None:
        if outcome.needs and isinstance(command, d.Redrive):
            contents = self._contents(outcome.needs)
            command.contents = {offset: message for (_, offset), message in contents.items()}
        if outcome.needs_columns is not None:
            pid, first, end = outcome.needs_columns
            self._load_columns(self.state.partitions[pid], first, end)
        if outcome.needs_scan and isinstance(command, (d.CreateGroup, d.Seek)):
            command.filtered = self._scan(command, outcome.needs_scan)

    def _load_columns(self, partition: Partition, first: int, end: int) -> None:
        """Key hashes and priorities of messages that had been settled by everybody, for a group that goes back."""
        batches = self.log(partition.pid).batches(first, end)
        partition.reload_columns(first, [b for b in batches if b.base_offset < end])

    def _scan(self, command: d.CreateGroup | d.Seek, places: Sequence[tuple[int, int, int]]) -> Mapping[int, Span]:
        """Which messages that are there already a group's filter keeps out."""
        if isinstance(command, d.CreateGroup):
            topic = self.state.topics[command.tid]
            group = Group(0, topic, command.name, command.settings, 0, durable=False)
        else:
            group = self.state.groups[command.gid]
        found: dict[int, Span] = {}
        for pid, first, end in places:
            offsets: list[int] = []
            for batch in self.log(pid).batches(first, end):
                offsets += [offset for offset in filtered_of(group, batch) if first <= offset < end]
            found[pid] = span_of(offsets)
        return found

    # -- snapshots and recovery ----------------------------------------------------------------------------------

    def snapshot_due(self) -> bool:
        return self.journal.end_position >= self.snapshot_at

    def take_snapshot(self) -> tuple[int, bytes]:
        """The state as of the journal's end, to be saved by whoever may block."""
        position = self.journal.end_position
        self.snapshot_at = position + SNAPSHOT_EVERY_BYTES
        logs = [log.dump() for log in self.logs.values()]
        return position, msgspec.msgpack.encode([snapshot(self.state), logs, self.manifest.dump()])

    def save_snapshot(self, position: int, data: bytes) -> None:
        """Have what ``take_snapshot`` gave on the disk. May block, and be called in any thread."""
        with self._saving:
            if position > self.snapshot_saved:
                self.journal.wait_durable(position)
                self.journal.save_snapshot(position, data)
                self.snapshot_saved = position

    def _recover(self) -> None:
        journal = self.journal
        start = journal.first_position
        saved = journal.load_snapshot()
        if saved is not None:
            start, data = saved
            try:
                state, logs, manifest = msgspec.msgpack.decode(data, type=tuple[bytes, list[list[Any]], bytes])
            except msgspec.MsgspecError as error:
                raise Corrupt(f"the snapshot at position {start} cannot be read: {error}") from error
            self.state = restore(state, self.node_id)
            self.manifest = self.cold.manifest = Manifest.load(manifest)
            for pid, *index in logs:
                self._new_log(pid).load(*index)
            self.snapshot_saved = start
            self.snapshot_at = start + SNAPSHOT_EVERY_BYTES
            self.recent.skip(max(journal.first_position, self.manifest.sealed_to), start)
        enabled = gc.isenabled()
        gc.disable()  # a fold makes millions of small lasting objects and no rubbish worth looking for
        try:
            for frame in journal.read(start):
                if frame.kind == FACTS:
                    self._fold_frame(frame)
                elif frame.kind == MANIFEST:
                    self._fold_entries(frame)
        finally:
            if enabled:
                gc.enable()

    def _hear_members_anew(self) -> None:
        """Nobody was silent because we were away."""
        now_ns = self.clock.now_ns()
        for group in self.state.groups.values():
            group.members = dict.fromkeys(group.members, now_ns)

    def _fold_frame(self, frame: Frame) -> None:
        try:
            facts, batches = d.decode_facts(frame.body)
        except msgspec.MsgspecError as error:
            raise Corrupt(f"the frame at position {frame.position} holds no facts this build knows: {error}") from error
        self._fold(facts, batches, frame.position, live=False)
        if batches:
            self.recent.note(facts, batches, frame.position)
        else:
            self.recent.note_alone(facts, frame.position)

    # -- sealed files --------------------------------------------------------------------------------------------

    def enter(self, entries: Sequence[Entry]) -> int:
        """Append entries of the manifest and fold them; the position they are durable with."""
        self.journal.append(MANIFEST, encode_entries(entries), reserve=True)
        for entry in entries:
            self._fold_entry(entry)
        return self.journal.end_position

    def _fold_entries(self, frame: Frame) -> None:
        try:
            entries = decode_entries(frame.body)
        except msgspec.MsgspecError as error:
            raise Corrupt(f"the frame at position {frame.position} holds no manifest entries: {error}") from error
        for entry in entries:
            self._fold_entry(entry)

    def _fold_entry(self, entry: Entry) -> None:
        self.manifest.fold(entry)
        if type(entry) is Sealed:
            ends = {segment.pid: segment.end for segment in entry.segments}
            for pid, log in self.logs.items():
                log.seal(max(ends.get(pid, 0), log.trimmed_to), entry.up_to)
            self.recent.forget(entry.up_to)

    # -- questions -----------------------------------------------------------------------------------------------

    def backlog_drift(self) -> int:
        """Zero when every group's books balance."""
        return sum(abs(backlog.drift()) for backlog in self.state.backlogs())


def _published(facts: Sequence[d.Fact]) -> Iterator[Published]:
    return (fact for fact in facts if type(fact) is Published)


# What else is to be done when a fact is folded: say whose messages may have become ready, keep the logs in step.
_AFTER: Final[dict[type[Any], Callable[[Core, Any], None]]] = {
    d.Acked: Core._wake_if_freed,
    d.Due: Core._wake_topic,
    d.Trimmed: Core._trim_log,
    d.TopicDeleted: Core._drop_logs,
    **dict.fromkeys(
        (
            d.Assigned,
            d.BackoffEnded,
            d.Died,
            d.Expired,
            d.GroupChanged,
            d.GroupCreated,
            d.GroupDeleted,
            d.KeyFreed,
            d.Released,
            d.Resumed,
            d.Retried,
            d.Sought,
        ),
        Core._wake_group,
    ),
}
