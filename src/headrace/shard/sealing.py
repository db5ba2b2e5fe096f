"""Turning the journal into files in the background, and letting go of what is no longer needed.

One thread (or a caller of ``round``) works in rounds. What concerns the state is done by the shard's owner, through
``run``, a moment each; what takes time — reading frames, making Parquet, writing files — is done here, holding nobody
up, for no more than ``share`` of the time. A round:

    retain      trim logs, find files that hold nothing any more; copy them to the archive, where there is one
    seal        for each journal file that is full and far enough behind the end:
                    Begun (durable: what is written from now on is known) → files, each whole or not there → Sealed
    let go      a snapshot that covers what was sealed, then the journal before it; files that nobody may still be
                reading (they left the manifest a while ago), then Deleted
    compact     neighbours that are small become one file: Begun → file → Replaced

A step that fails (a full disk, an archive that is away) does not keep the later ones from making room; the round ends
with the first failure.

Whatever step a crash interrupts, the next round finds a journal that still has everything, or a file that is live; what
was begun and never became live is deleted. A topic that keeps nothing after it was settled has its messages let go of
before they would be sealed, and its history is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import islice
from threading import Event, Lock, Thread
from typing import Any, Final, TypeVar

from headrace.clock import Clock
from headrace.config import SealConfig
from headrace.errors import Closed, Corrupt, HeadraceError, Overloaded, StorageFailed
from headrace.journal import MemoryJournal
from headrace.limits import RETAIN_TOPICS_A_TURN, SEAL_DOOMED_NS, SEAL_RETRY_NS
from headrace.log.compaction import compacted_events, compacted_segments, small_events, small_segments
from headrace.log.manifest import Archived, Begun, Deleted, Dropped, Entry, EventSegment, Replaced, Segment
from headrace.log.sealing import NewFile, Plan, seal
from headrace.log.store import Store
from headrace.shard.core import Core, Done
from headrace.shard.retention import leaving, trim_topic
from headrace.shard.views import names_of

__all__ = ["Round", "Sealer"]

Run = Callable[[Callable[[], Done]], Any]
Tell = Callable[..., None]
_T = TypeVar("_T")


@dataclass(slots=True)
class Round:
    """What a round did."""

    trimmed: int = 0
    messages: int = 0
    files: list[str] = field(default_factory=list)
    file_bytes: int = 0
    compacted: int = 0
    left: int = 0
    deleted: int = 0
    sealed_to: int = 0
    first_position: int = 0


class _Stopped(Exception):
    """The round is given up; nothing is lost by it."""


class Sealer:
    """``run`` does an operation on the shard and returns its reply when it is durable; ``tell(level, event, **more)``
    is told what an operator should know."""

    def __init__(self, core: Core, run: Run, config: SealConfig, clock: Clock, tell: Tell) -> None:
        self._core = core
        self._run_once = run
        self._config = config
        self._clock = clock
        self._tell = tell
        self._lock = Lock()
        self._stopping = Event()
        self._nudged = Event()
        self._thread: Thread | None = None
        self._doomed_since: dict[str, int] = {}
        self._worked_ns = 0
        self._throttled = False
        self._told = ""
        self._damaged: set[str] = set()
        self._placed = False
        self.rounds = 0

    @property
    def store(self) -> Store | None:
        """Where files go; None where there is no place for them or nothing to write them with."""
        return self._core.cold.store if self._config.enabled and _can_seal() else None

    # -- the thread ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work in the background."""
        self._thread = Thread(target=self._work, name="headrace-seal", daemon=True)
        self._thread.start()

    def nudge(self) -> None:
        """Have the next round begin now."""
        self._nudged.set()

    def stop(self) -> None:
        """Give up the round under way, if there is one, and wait until it has ended."""
        self._stopping.set()
        self._nudged.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while True:
            self._nudged.wait(self._config.interval_ns / 1e9)
            self._nudged.clear()
            if self._stopping.is_set():
                return
            try:
                self.round(throttled=True)
                self._told = ""
            except Closed:
                return
            except (HeadraceError, OSError, ValueError, MemoryError) as error:
                reason = error.message if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
                if reason != self._told:  # it will be tried again, and said once
                    self._told = reason
                    self._tell("warning", "sealing failed, it is tried again", reason=reason)

    # -- a round -------------------------------------------------------------------------------------------------------

    def round(self, *, everything: bool = False, throttled: bool = False) -> Round:
        """Do one round. ``everything``: seal all that is durable, not only what is far behind the end."""
        done = Round()
        with self._lock:
            self._throttled = throttled
            self._worked_ns = self._clock.monotonic_ns()
            try:
                self._check_place()
            except _Stopped:
                return done
            failure: HeadraceError | None = None
            for step in (
                self._retain,
                partial(self._seal_if_possible, everything=everything),
                self._let_go_of_journal,
                self._delete,
                self._compact,
            ):
                try:
                    step(done)
                except _Stopped:
                    break
                except Closed:
                    raise
                except HeadraceError as error:
                    failure = failure or error  # room is made even where nothing more can be written
            self.rounds += 1
            done.sealed_to = self._core.manifest.sealed_to
            done.first_position = self._core.journal.first_position
        if failure is not None:
            raise failure
        return done

    def _check_place(self) -> None:
        """Files of one log lie in one place: who opened it with another one must neither add to it nor delete there."""
        store = self.store
        if self._placed or store is None:
            return
        manifest = self._core.manifest
        live = self._ask(
            lambda: [
                *(segment.path for segment in islice(manifest.live_segments(), _LOOKED_FOR)),
                *(file.path for file in islice(manifest.live_events(), _LOOKED_FOR)),
            ]
        )
        try:
            self._placed = not live or any(store.size_bytes(path) is not None for path in live)
        except OSError as error:
            raise StorageFailed(f"{store.uri} cannot be looked into: {error}") from error
        if not self._placed:
            raise StorageFailed(
                f"{store.uri} does not hold what was sealed of this log ({live[0]}): it lies elsewhere, and"
                " seal.location has to say where; nothing is sealed or deleted"
            )

    def _seal_if_possible(self, done: Round, *, everything: bool) -> None:
        if self.store is not None:
            self._seal(done, self._limit(everything=everything), everything=everything)
        elif (
            self._core.cold.store is not None
            and self._config.enabled
            and self._next_end(self._limit(everything=False), everything=False)
        ):
            self._say_why_not()

    def _say_why_not(self) -> None:
        if self._told != "no pyarrow":
            self._told = "no pyarrow"
            self._tell(
                "warning",
                "the log is not sealed: pyarrow is not installed; the journal's files stay until retention lets go of"
                " them (`pip install headrace[columns]`)",
            )

    def _run(self, operation: Callable[[], Done]) -> Any:
        while True:
            try:
                return self._run_once(operation)
            except Overloaded:
                if self._stopping.wait(SEAL_RETRY_NS / 1e9):
                    raise _Stopped from None

    def _ask(self, question: Callable[[], _T]) -> _T:
        answer: _T = self._run(lambda: Done(question(), 0))
        return answer

    def _enter(self, *entries: Entry) -> None:
        """Have entries of the manifest durable."""
        self._run(lambda: Done(None, self._core.enter(entries)))

    def _pace(self) -> None:
        """Between two pieces of work: leave the machine to others for as long as our share asks."""
        if self._stopping.is_set():
            raise _Stopped
        if not self._throttled:
            return
        worked_ns = self._clock.monotonic_ns() - self._worked_ns
        if worked_ns < _WORK_NS:
            return
        if self._stopping.wait(worked_ns * (1 / self._config.share - 1) / 1e9):
            raise _Stopped
        self._worked_ns = self._clock.monotonic_ns()

    # -- retention -----------------------------------------------------------------------------------------------------

    def _retain(self, done: Round) -> None:
        core = self._core
        sealed_only = self.store is not None and core.cold.archive is not None
        tids = self._ask(lambda: list(core.state.topics))
        for start in range(0, len(tids), RETAIN_TOPICS_A_TURN):
            part = tids[start : start + RETAIN_TOPICS_A_TURN]
            done.trimmed += self._run(lambda part=part: self._trim(part, sealed_only=sealed_only))  # type: ignore[misc]
            self._pace()
        segments, events = self._ask(lambda: leaving(core))
        paths = [*(file.path for file in segments), *(file.path for file in events)]
        if not paths:
            return
        archived = self._archive([*segments, *events])
        at_ns = core.clock.now_ns()
        self._enter(Archived(paths, at_ns) if archived else Dropped(paths, at_ns))
        self._ask(lambda: core.cold.forget(paths))
        done.left += len(paths)

    def _trim(self, tids: Iterable[int], *, sealed_only: bool) -> Done:
        state = self._core.state
        moved = sum(
            trim_topic(self._core, state.topics[tid], sealed_only=sealed_only) for tid in tids if tid in state.topics
        )
        return Done(moved, self._core.journal.end_position if moved else 0)

    def _archive(self, files: Sequence[Segment | EventSegment]) -> bool:
        archive, store = self._core.cold.archive, self.store
        if archive is None or store is None:
            return False
        for file in files:
            try:
                if archive.size_bytes(file.path) != file.size_bytes:
                    archive.write(file.path, [store.read(file.path)])
            except OSError as error:
                raise StorageFailed(f"copying {file.path} to the archive failed: {error}") from error
            self._pace()
        return True

    # -- sealing -------------------------------------------------------------------------------------------------------

    def _limit(self, *, everything: bool) -> int:
        """What lies before it is to be sealed now. (What sealing itself appends is not: that would never end.)"""
        durable = self._core.journal.durable_position
        return durable if everything else durable - self._config.behind_bytes

    def _seal(self, done: Round, limit: int, *, everything: bool) -> None:
        while True:
            plan = self._ask(lambda: self._plan(limit, everything=everything))
            if plan is None:
                return
            files, entry = seal(self._core.journal.read(plan.start), plan, self._pace)
            self._write(files)
            self._enter(entry)
            done.messages += sum(segment.count for segment in entry.segments)
            done.files += [file.path for file in files]
            done.file_bytes += sum(len(file.content) for file in files)

    def _next_end(self, limit: int, *, everything: bool) -> int | None:
        """Where the next stretch to seal ends: with the first full journal file, or (``everything``) at the limit."""
        journal = self._core.journal
        start = max(self._core.manifest.sealed_to, journal.first_position)
        for file in journal.files():
            if start < file.end_position <= limit and file.sealed:
                return file.end_position
        return limit if everything and limit > start else None

    def _plan(self, limit: int, *, everything: bool) -> Plan | None:
        core = self._core
        up_to = self._next_end(limit, everything=everything)
        if up_to is None:
            return None
        state, manifest = core.state, core.manifest
        skipped = frozenset(tid for tid, topic in state.topics.items() if not topic.settings.retain_acked)
        wanted = {pid: partition.start for pid, partition in state.partitions.items()}
        mine = {topic.tid for topic in state.topics.values()}
        taken = {
            segment.path
            for segments in (*manifest.segments.values(), *manifest.archived.values())
            for segment in segments
            if segment.pid not in wanted
        }
        taken |= {
            file.path
            for files in (*manifest.events.values(), *manifest.archived_events.values())
            for file in files
            if file.tid not in mine
        }
        start = max(manifest.sealed_to, core.journal.first_position)
        names = names_of(state)
        ends = {pid: partition.end for pid, partition in state.partitions.items()}
        return Plan(start, up_to, names, wanted, skipped, manifest.carry, frozenset(taken), core.clock.now_ns(), ends)

    def _write(self, files: Sequence[NewFile]) -> None:
        store = self.store
        if not files or store is None:
            return
        self._enter(Begun([file.path for file in files]))
        for file in files:
            store.write(file.path, [file.content])
            self._pace()

    # -- compaction ----------------------------------------------------------------------------------------------------

    def _compact(self, done: Round) -> None:
        core = self._core
        if self.store is None:
            return
        for group in self._ask(lambda: small_segments(core.manifest)):
            with self._unless_damaged([each.path for each in group]) as whole:
                if whole:
                    file, segment = compacted_segments(core.cold, group, self._pace)
                    self._replace([each.path for each in group], file, [segment], [])
                    done.compacted += len(group)
        for events in self._ask(lambda: small_events(core.manifest)):
            with self._unless_damaged([each.path for each in events]) as whole:
                if whole:
                    file, merged = compacted_events(core.cold, events, self._pace)
                    self._replace([each.path for each in events], file, [], [merged])
                    done.compacted += len(events)

    @contextmanager
    def _unless_damaged(self, paths: list[str]) -> Iterator[bool]:
        """Whether files can be read, as far as is known; one that cannot is told of once and left as it is."""
        if self._damaged & set(paths):
            yield False
            return
        try:
            yield True
        except Corrupt as error:
            self._damaged |= set(paths)
            self._tell("error", "small sealed files are not put together", reason=error.message)

    def _replace(self, paths: list[str], file: NewFile, segments: list[Segment], events: list[EventSegment]) -> None:
        self._write([file])
        self._enter(Replaced(paths, segments, events, self._core.clock.now_ns()))
        self._ask(lambda: self._core.cold.forget(paths))

    # -- letting go ----------------------------------------------------------------------------------------------------

    def _let_go_of_journal(self, _: Round) -> None:
        core, journal = self._core, self._core.journal
        limit = core.manifest.sealed_to if self.store is not None else self._ask(self._needed_from)
        if isinstance(journal, MemoryJournal):
            if limit - journal.first_position > self._config.behind_bytes:
                self._snapshot(limit)
                self._ask(lambda: journal.truncate_before(limit))
            return
        files = journal.files()
        if not files or files[0].end_position > limit or not files[0].sealed:
            return
        self._snapshot(limit)
        journal.truncate_before(limit)

    def _needed_from(self) -> int:
        """Without sealing: the first position somebody may still read from. Facts before it are told no more."""
        core = self._core
        needed = [log.first_position for log in core.logs.values() if log.first_position is not None]
        limit = min([*needed, core.journal.durable_position])
        core.recent.forget(limit)
        return limit

    def _snapshot(self, position: int) -> None:
        """Have a snapshot of that position or a later one."""
        if self._core.snapshot_saved < position:
            self._core.save_snapshot(*self._ask(self._core.take_snapshot))

    def _delete(self, done: Round) -> None:
        """Delete files that left the manifest long enough ago for their last readers to be done."""
        store, doomed = self._core.cold.store, self._core.manifest.doomed
        if store is None or not doomed:
            self._doomed_since.clear()
            return
        now_ns = self._clock.monotonic_ns()
        since = self._doomed_since = {path: self._doomed_since.get(path, now_ns) for path in doomed}
        gone = [path for path, at_ns in since.items() if now_ns - at_ns >= SEAL_DOOMED_NS]
        for path in gone:
            store.delete(path)
            self._pace()
        if gone:
            self._enter(Deleted(gone))
            done.deleted += len(gone)


_LOOKED_FOR: Final = 8
"""Live files looked for, to see whether the place is the right one; one of them is enough."""
_WORK_NS: Final = 2_000_000
"""Work between two pauses: shorter ones would cost more than they give."""


def _can_seal() -> bool:
    return find_spec("pyarrow") is not None
