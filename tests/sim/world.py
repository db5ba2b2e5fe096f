"""The machine a simulated shard runs on: one disk, two clocks, a process that dies, and the line of unsent replies.

Persist, then tell: an answer waits in ``line`` until its position is durable, and is forgotten when the process dies.
Every command becomes an ``Event`` for the ledger. Besides its answer an event notes what can be read in the logs
afterwards, because anybody may read a log.

Three laws are checked on the shard itself: the books of every backlog balance after every step; a snapshot restored is
the same snapshot; and a shard restored from one (the *twin*) brings about the same facts for the next commands.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Callable
from errno import ENOSPC
from random import Random
from typing import Any, Final

import msgspec

from headrace import delivery as d
from headrace.batch import Batch, Message, encode
from headrace.clock import ManualClock
from headrace.delivery import restore, snapshot
from headrace.errors import HeadraceError, StorageFailed, StorageFull
from headrace.journal import DiskJournal, MemoryJournal
from headrace.limits import STORAGE_RETRY_NS
from headrace.shard.core import Core
from headrace.testing import Fault, PowerCut, SimulatedDisk
from sim.ledger import LEASE_GRAIN_NS, MS, SILENCE_NS, Event, Given, Ledger, Made, Part, Sent, Stored, Violation

WHERE: Final = "/shard"
IDENTITY: Final = b"one-and-the-same"
ROOM_BYTES: Final = 1 << 30
NODE: Final = 7
STEPS_OF_TWIN: Final = 12


class Stopped(Exception):
    """The process is gone: power cut, or a failed sync it must not survive."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


class HalfTick(Exception):
    """A disk image that ends between the records of one stretch of due work; another legal one is taken instead."""


class Memory(MemoryJournal):
    """A memory journal whose process can end: what was not committed is gone."""

    def lose_pending(self) -> None:
        """Forget what was appended and not committed."""
        kept = bisect_left(self._positions, self.durable_position)
        del self._positions[kept:], self._kinds[kept:], self._bodies[kept:]
        self.end_position = self.durable_position
        self._next = self.end_position + 16


class World:
    """See the head of the file."""

    def __init__(
        self,
        rng: Random,
        *,
        memory: bool,
        commit_chance: float,
        twins: bool,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.rng = rng
        self.story = tell
        self.commit_chance = commit_chance
        self.twins = twins
        self.clock = ManualClock(wall_ns=1_700_000_000_000 * MS)
        self.disk: SimulatedDisk | None = None if memory else SimulatedDisk(rule=rng.choice(("strict", "ext4")))
        self.journal: Any = None
        self.core: Any = None
        self.ledger = Ledger()
        self.events: list[Event] = []
        self.line: list[tuple[int, Event, Callable[[Any], None] | None]] = []
        self.grant_number = 0
        self.base_ns = 0
        self.tail_bytes = rng.choice((1, 20_000, 1 << 20))
        self.file_bytes = rng.choice((8192, 16384, 65536, 1 << 20))
        self.snapshot_position = -1
        self.twin: Any = None
        self.twin_left = self.twin_ns = 0
        self.twin_facts: list[Any] = []
        self.crashes = 0
        self.full_until_ns = 0
        self._open()
        self._begin()

    # -- time ------------------------------------------------------------------------------------------------------

    def now_ns(self) -> int:
        return self.base_ns + self.clock.monotonic_ns()

    def pass_time(self, span_ns: int) -> None:
        """Let whole milliseconds pass, and stay out of the stretch in which a lease may or may not be over."""
        self.clock.advance(span_ns)
        self._leave_grey()

    def _leave_grey(self) -> None:
        while True:
            now_ns = self.now_ns()
            grey = [
                deadline
                for lease in self.ledger.leases.values()
                for deadline in (lease.deadline_ns, *lease.later.values())
                if deadline // LEASE_GRAIN_NS == now_ns // LEASE_GRAIN_NS and deadline <= now_ns
            ]
            if not grey:
                return
            self.clock.advance((now_ns // LEASE_GRAIN_NS + 1) * LEASE_GRAIN_NS - now_ns)

    # -- commands --------------------------------------------------------------------------------------------------

    def do(
        self,
        command: Any,
        tell: Callable[[Any], None] | None = None,
        *,
        sent: list[Sent] | None = None,
        parts: list[Part] | None = None,
        cancels: list[tuple[int, list[int]]] | None = None,
    ) -> None:
        """Run a command; its answer is told once durable. What is due comes first, mostly by the timer."""
        whole = self.rng.random() < 0.9
        if whole:
            self.tick()
        event = self._run(command, lambda core, own: core.execute(own), sent or [], parts or [], cancels or [])
        event[0].whole = whole
        self.line.append((event[1], event[0], tell))
        if self.rng.random() < self.commit_chance:
            self.commit()
        else:
            self._tell()

    def tick(self) -> None:
        """What a host does when its timer fires."""
        wake_ns = self.core.wake_at_ns()
        if wake_ns is None or wake_ns > self.now_ns():
            return
        event, position = self._run(None, _tick_all, [], [], [])
        self.line.append((position, event, None))

    def _run(
        self,
        command: Any,
        run: Callable[[Any, Any], Any],
        sent: list[Sent],
        parts: list[Part],
        cancels: list[tuple[int, list[int]]],
    ) -> tuple[Event, int]:
        now_ns = self.now_ns()
        if self.core.clock.now_ns() != now_ns:
            raise Violation(f"the shard's clock says {self.core.clock.now_ns()}, right is {now_ns}")
        start = self.journal.end_position
        twin_command = copy.copy(command)
        facts: list[Any] = []
        frames: list[int] = []

        def observe(seen: Any, batches: Any, position: int) -> None:
            facts.extend(seen)
            frames.append(position)

        self.core.observer = observe
        calls = self.disk.calls if self.disk is not None else 0
        try:
            done = run(self.core, command)
        except StorageFailed as error:
            raise Stopped("failed") from error
        except PowerCut as error:
            raise Stopped("cut") from error
        end = self.journal.end_position
        if self._found_no_room(calls):
            self.full_until_ns = now_ns + STORAGE_RETRY_NS
        if self.story is not None:
            self._narrate(command, done, facts)
        event = Event(
            now_ns,
            start,
            end,
            command,
            None if command is None else done.reply,
            [],
            self._made(),
            sent=sent,
            parts=parts,
            cancels=cancels,
            frames=frames,
            full=self._is_full() or now_ns < self.full_until_ns,
        )
        event.position = 0 if done is None else done.position
        event.appended = self._appended()
        if isinstance(command, d.LeaseUpTo) and isinstance(done.reply, list):
            event.given = [self._given(grant) for grant in done.reply]
        self.events.append(event)
        self.ledger.apply(event)
        self._check_books()
        self._compare_twin(twin_command, run, facts, done)
        return event, event.position

    def _narrate(self, command: Any, done: Any, facts: list[Any]) -> None:
        assert self.story is not None
        self.story(f"{self.now_ns() % (100_000_000 * MS) / MS:.3f} {command or 'Tick'}")
        if command is not None:
            self.story(f"      -> {done.reply}")
        for fact in facts:
            span = fact.span() if getattr(fact, "bits", None) else ""
            self.story(f"    {fact} {list(span)}")

    def _made(self) -> list[Made]:
        return [
            Made(topic.tid, topic.name, topic.settings, [p.pid for p in topic.partitions], topic.groups["default"].gid)
            for tid, topic in self.core.state.topics.items()
            if tid not in self.ledger.topics
        ]

    def _appended(self) -> list[Stored]:
        found: list[Stored] = []
        ends = {pid: partition.end for pid, partition in self.ledger.partitions.items()}
        for pid, log in self.core.logs.items():
            if log.end > ends.get(pid, 0):
                found += self.read(pid, ends.get(pid, 0), log.end)
        return found

    def read(self, pid: int, first: int, end: int) -> list[Stored]:
        """A stretch of a log."""
        return [
            stored
            for batch in self.core.log(pid).batches(first, end)
            for stored in _messages(pid, batch)
            if first <= stored.offset < end
        ]

    def _given(self, grant: d.Grant) -> Given:
        self.grant_number += 1
        messages = []
        log = self.core.log(grant.pid)
        for offset in grant.span:
            batch = log.batch_at(offset)
            if batch is None:
                raise Violation(f"message {grant.pid}/{offset} is given and cannot be read")
            attempt = grant.attempts.get(offset, 1)
            messages.append((offset, attempt, batch.value(offset - batch.base_offset)))
        return Given(self.grant_number, grant.pid, grant.lease_id, grant.deadline_ns, messages)

    # -- telling ---------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """One group commit, and what it lets go out."""
        try:
            self.journal.commit()
        except StorageFailed as error:
            raise Stopped("failed") from error
        except PowerCut as error:
            raise Stopped("cut") from error
        self._tell()

    def _tell(self) -> None:
        durable = self.journal.durable_position
        waiting, self.line = self.line, []
        for position, event, tell in waiting:
            if position > durable:
                self.line.append((position, event, tell))
                continue
            event.told = True
            for given in event.given:
                self._check_durable(given, durable)
            if tell is not None:
                tell(event)

    def _check_durable(self, given: Given, durable: int) -> None:
        """A message that leaves must be stored for good."""
        places = self.ledger.partitions[given.pid].places
        for offset, _, _ in given.messages:
            position = max((position for first, position in places if first <= offset), default=0)
            if position >= durable:
                raise Violation(f"message {given.pid}/{offset} left before it was durable")

    # -- the laws of the state -------------------------------------------------------------------------------------

    def _check_books(self) -> None:
        for backlog in self.core.state.backlogs():
            if backlog.drift():
                raise Violation(
                    f"the books of group {backlog.group.name} in partition {backlog.partition.pid} are off by"
                    f" {backlog.drift()}"
                )

    def check_snapshot(self) -> None:
        """A snapshot restored is the same snapshot; and from here a twin follows for some commands."""
        taken = snapshot(self.core.state)
        if snapshot(restore(taken, NODE)) != taken:
            raise Violation("a restored snapshot is another snapshot")
        if self.twins and self.twin is None:
            position, data = self.core.take_snapshot()
            self.twin = Core(_TwinJournal(self.journal, position, data), self.clock, node_id=NODE)
            self.twin.clock = self.core.clock
            self.twin.observer = lambda seen, batches, position: self.twin_facts.extend(seen)
            self.twin_left, self.twin_ns = STEPS_OF_TWIN, self.now_ns()

    def _compare_twin(self, command: Any, run: Callable[[Any, Any], Any], facts: list[Any], done: Any) -> None:
        if self.twin is None:
            return
        full = done is not None and isinstance(done.reply, HeadraceError) and done.reply.code == "storage_full"
        silent = any(isinstance(fact, d.Left) for fact in facts) and not isinstance(command, d.Leave)
        if full or silent or self.twin_left <= 0 or self.now_ns() - self.twin_ns >= SILENCE_NS // 2:
            # (A restored shard has heard of its members when it began: it has more patience with them.)
            self.twin = None
            return
        self.twin_left -= 1
        self.twin_facts = []
        run(self.twin, command)
        theirs, ours = _plain(self.twin_facts), _plain(facts)
        if theirs != ours:
            raise Violation(f"a restored shard brought about {theirs}, the one that went on {ours}")

    # -- snapshots and retention -----------------------------------------------------------------------------------

    def save_snapshot(self) -> None:
        position, data = self.core.take_snapshot()
        try:
            self.journal.save_snapshot(position, data)
        except StorageFull:
            return
        except StorageFailed as error:
            raise Stopped("failed") from error
        except PowerCut as error:
            raise Stopped("cut") from error
        self.snapshot_position = position
        self._tell()

    def truncate(self) -> None:
        """Let go of the journal before the newest snapshot, as far as no log needs it."""
        if self.snapshot_position < 0:
            return
        self.commit()  # a trim that is not durable lets go of nothing
        needed = [self.snapshot_position]
        for partition in self.ledger.partitions.values():
            places = [position for first, position in partition.places if first <= partition.start]
            needed += places[-1:] or [position for _, position in partition.places[:1]]
        try:
            self.journal.truncate_before(min(needed))
        except StorageFailed as error:
            raise Stopped("failed") from error
        except PowerCut as error:
            raise Stopped("cut") from error

    # -- dying and coming back -------------------------------------------------------------------------------------

    def fault_soon(self, fault: Fault, within: int) -> None:
        if self.disk is not None:
            self.disk.faults[self.disk.calls + self.rng.randint(1, within)] = fault

    def fill_disk(self) -> None:
        if self.disk is not None:
            self.disk.room_total_bytes = self.disk._used_bytes() + self.rng.choice((0, 1000, 20_000))

    def _is_full(self) -> bool:
        return self.disk is not None and self.disk.room_total_bytes != ROOM_BYTES

    def _found_no_room(self, since: int) -> bool:
        """Whether a call found no room although there was some: for a moment, as quotas and snapshots do."""
        if self.disk is None:
            return False
        return any(since < call <= self.disk.calls for call, fault in self.disk.faults.items() if fault.error == ENOSPC)

    def free_disk(self) -> None:
        if self.disk is not None:
            if self._is_full():
                self.full_until_ns = self.now_ns() + STORAGE_RETRY_NS
            self.disk.room_total_bytes = ROOM_BYTES

    def die(self, how: str) -> None:
        """The process ends (``cut``: the machine; ``kill``, ``failed``: the process) and is started again."""
        self.crashes += 1
        if self.story is not None:
            self.story(f"--- the process dies: {how}")
        before_ns = self.now_ns()
        self.twin = None
        self.line.clear()
        if self.disk is None:
            self.journal.lose_pending()
            self._rebuild(before_ns)
            return
        for attempt in range(12):
            self.disk.faults.clear()
            self.disk.room_total_bytes = ROOM_BYTES
            if how == "cut" or (how == "failed" and attempt):
                image = self.disk.crash(self.rng)
            elif attempt:
                raise HalfTick
            else:
                image = self.disk.kill()
            if how == "cut" and self.rng.random() < 0.3:
                image = self._die_in_recovery(image)
            kept, self.disk = self.disk, image
            try:
                self._rebuild(before_ns)
            except HalfTick:
                self.disk = kept
                continue
            return
        raise HalfTick

    def _die_in_recovery(self, image: SimulatedDisk) -> SimulatedDisk:
        """A second power cut while the journal is being recovered."""
        image.faults[self.rng.randint(1, 6)] = Fault(power_cut=True)
        try:
            DiskJournal.open(WHERE, files=image, file_size_bytes=self.file_bytes, new_identity=lambda: IDENTITY)
        except PowerCut:
            pass
        image.faults.clear()
        return image.crash(self.rng)

    def _open(self) -> None:
        if self.disk is None:
            if self.journal is None:
                self.journal = Memory()
            return
        self.journal = DiskJournal.open(
            WHERE, files=self.disk, file_size_bytes=self.file_bytes, new_identity=lambda: IDENTITY
        )

    def _begin(self) -> None:
        self.core = Core(self.journal, self.clock, node_id=NODE, hot_tail_bytes=self.tail_bytes)
        self.base_ns = self.core.clock.now_ns() - self.clock.monotonic_ns()

    def _rebuild(self, before_ns: int) -> None:
        self._open()
        end = self.journal.end_position
        survived = [event for event in self.events if max(event.frames, default=event.end - 1) < end]
        lost = self.events[len(survived) :]
        if lost and min(lost[0].frames, default=end) < end:
            if lost[0].whole:
                raise Violation(f"half of a {type(lost[0].command).__name__} survived a crash")
            raise HalfTick
        for event in lost:
            if event.told and event.position > end:
                raise Violation(f"{type(event.command).__name__} was confirmed and is lost: {event.reply}")
        self._begin()
        self.events = survived
        self.ledger = Ledger()
        for event in survived:
            self.ledger.apply(event)
        lowest_ns = max([self.clock.wall_ns(), *(event.now_ns for event in survived if event.end > event.start)])
        if not lowest_ns <= self.now_ns() <= max(self.clock.wall_ns(), before_ns):
            raise Violation(f"after recovery it is {self.now_ns()}, between {lowest_ns} and {before_ns} is right")
        self.snapshot_position = -1
        self._check_logs()
        self._check_books()
        self._leave_grey()

    def _check_logs(self) -> None:
        """What is in the logs is what was published, to the byte."""
        for pid, partition in self.ledger.partitions.items():
            found = self.read(pid, partition.start, self.core.log(pid).end)
            right = [message.stored for message in partition.log[partition.start :]]
            if found != right:
                raise Violation(
                    f"the log of partition {pid} holds {len(found)} messages to {self.core.log(pid).end} after"
                    f" recovery, {len(right)} to {partition.end} are right"
                )

    def end_faults(self) -> None:
        """From here on the machine is sound."""
        self.free_disk()
        if self.disk is not None:
            self.disk.faults.clear()
        self.commit_chance = 1.0
        self.commit()


def _tick_all(core: Any, _: Any) -> None:
    wakes: set[int | None] = set()
    for _ in range(10_000):
        wake_ns = core.tick()
        if wake_ns is None or wake_ns > core.clock.now_ns():
            return
        wakes.add(wake_ns)
    raise Violation(f"what is due is never done: ticks go on for ever, next at {wakes}")


def _plain(facts: list[Any]) -> list[str]:
    """Facts as text; equal sets of offsets may be packed in different ways."""
    found = []
    for fact in facts:
        offsets = list(fact.span()) if getattr(fact, "bits", b"") else ""
        found.append(f"{msgspec.structs.replace(fact, bits=b'') if offsets else fact} {offsets}")
    return found


def _messages(pid: int, batch: Batch) -> list[Stored]:
    offsets, ids = batch.offsets(), batch.ids()
    delivers, expires = batch.deliver_ats(), batch.expires_ats()
    return [
        Stored(
            pid,
            offsets[i],
            ids[i],
            batch.value(i),
            batch.key(i),
            batch.headers(i),
            batch.priority(i),
            batch.append_time_ns,
            delivers[i] if delivers is not None else 0,
            expires[i] if expires is not None else 0,
        )
        for i in range(batch.count)
    ]


def batch_of(sent: Sent) -> Batch:
    """The batch a producer sends."""
    return encode(
        [
            Message(
                wanted.value,
                key=wanted.key,
                headers=dict(wanted.headers) if wanted.headers else None,
                priority=wanted.priority,
                delay_ns=wanted.delay_ns,
                deliver_at_ns=wanted.deliver_at_ns,
                ttl_ns=wanted.ttl_ns,
                expires_at_ns=wanted.expires_at_ns,
                dedup_id=wanted.dedup_id,
            )
            for wanted in sent.messages
        ],
        producer_id=sent.producer,
        producer_seq=sent.sequence,
    )


class _TwinJournal:
    """What a twin appends goes nowhere; what it reads is the other's journal up to the snapshot."""

    def __init__(self, journal: Any, position: int, data: bytes) -> None:
        self._journal = journal
        self._saved = (position, data)
        self._own: dict[int, tuple[int, bytes]] = {}
        self.first_position = journal.first_position
        self.end_position = 1 << 50
        self.durable_position = 1 << 50

    def load_snapshot(self) -> tuple[int, bytes]:
        return self._saved

    def read(self, from_position: int | None = None) -> list[Any]:
        return []

    def read_frame(self, position: int) -> Any:
        if position in self._own:
            kind, body = self._own[position]
            return type(self._journal.read_frame(self._saved[0]))(position, kind, body)
        return self._journal.read_frame(position)

    def append(self, kind: int, *buffers: Any, reserve: bool = False) -> int:
        position = self.end_position
        self._own[position] = (kind, b"".join(bytes(buffer) for buffer in buffers))
        self.end_position += 100
        return position

    def on_durable(self, callback: Any) -> None:
        pass
