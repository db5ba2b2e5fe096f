"""Looking over everything a shard left on its disk: the journal, the sealed files, and whether the books balance.

Nothing is changed, and nothing of it is open meanwhile. In this order, because each step rests on the one before:

    journal     every byte that should be durable reads as it was written (``headrace.journal.verify``)
    state       the newest snapshot and the frames after it are folded, as a start would
    books       of each group and partition: what was published is what is scheduled, ready, leased, acked, dead,
                expired, cancelled, dropped and filtered, counted and as sets; and where the journal goes back to its
                beginning, the snapshot has the same books as the facts it stands for
    segments    each sealed file is there, has its size and checksum, and its rows are what the manifest says
    log         what is kept of each partition lies in sealed files and journal without a gap, up to its end

A journal that does not read ends it: what is not there cannot be counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

import msgspec
from google_crc32c import value as crc32c

from headrace import journal as journals
from headrace.clock import Clock, SystemClock
from headrace.delivery import (
    Backlog,
    Partition,
    Published,
    ShardState,
    books_of,
    decode_facts,
    evolve,
    restore,
)
from headrace.errors import HeadraceError
from headrace.journal import FileLayer, FrozenJournal
from headrace.log.frames import FACTS
from headrace.log.manifest import EventSegment, Segment
from headrace.log.store import Store
from headrace.shard.core import Core

__all__ = ["Problem", "Report", "verify"]

_STATES: Final = ("scheduled", "ready", "leased", "acked", "dead", "expired", "cancelled", "dropped", "filtered")
Tell = Callable[[int, int], None]
"""Told how many sealed files have been looked at, of how many."""


class Problem(NamedTuple):
    """One thing that is wrong. ``kind``: damage, missing, gap or imbalance; ``place``: a file, or what it is about."""

    kind: str
    place: str
    message: str


class Report(msgspec.Struct):
    """What was looked at, and what is wrong with it."""

    directory: str
    problems: list[Problem] = []
    journal_bytes: int = 0
    topics: int = 0
    groups: int = 0
    messages: int = 0
    segments: int = 0
    event_files: int = 0
    sealed_messages: int = 0
    sealed_bytes: int = 0
    archived_files: int = 0
    unread: list[str] = []

    @property
    def ok(self) -> bool:
        return not self.problems

    def add(self, kind: str, place: str, message: str) -> None:
        self.problems.append(Problem(kind, place, message))

    def plain(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        return {"ok": self.ok, **found, "problems": [problem._asdict() for problem in self.problems]}


def verify(
    directory: str | os.PathLike[str],
    *,
    store: Store | None = None,
    archive: Store | None = None,
    files: FileLayer | None = None,
    clock: Clock | None = None,
    tell: Tell | None = None,
) -> Report:
    """Look over a data directory that no broker has open. ``store`` and ``archive``: where its sealed files are."""
    report = Report(os.fspath(directory))
    for finding in journals.verify(directory, files=files):
        report.add("missing" if "missing" in finding.message else "damage", finding.path, finding.message)
    if report.problems:
        report.unread.append("books, sealed files: the journal has to be readable for that")
        return report
    with FrozenJournal(directory, files=files) as journal:
        report.journal_bytes = journal.end_position - journal.first_position
        try:
            core = Core(journal, clock or SystemClock(), store=store, archive=archive)
        except HeadraceError as error:
            report.add("damage", report.directory, error.message)
            return report
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            # Whole frames with facts that no shard could have written: the fold stumbles over them.
            message = f"its facts do not fit each other: {type(error).__name__}: {error}"
            report.add("imbalance", report.directory, message)
            return report
        _books(core, report)
        _snapshot(core, report)
        _sealed_files(core, report, tell or (lambda done, total: None))
        _log(core, report)
    return report


# -- books -------------------------------------------------------------------------------------------------------------


def _books(core: Core, report: Report) -> None:
    state = core.state
    report.topics, report.groups = len(state.topics), len(state.groups)
    for backlog in state.backlogs():
        _balance(backlog, report)
    for partition in state.partitions.values():
        report.messages += partition.end - partition.start
        end = core.log(partition.pid).end
        if end != partition.end:
            message = f"its state ends at offset {partition.end}, the index of its log at {end}"
            report.add("imbalance", place_of(partition), message)


def _balance(backlog: Backlog, report: Report) -> None:
    counts = {name: int(getattr(backlog, f"{name}_count")) for name in _STATES}
    place = f"{place_of(backlog.partition)}, group {backlog.group.name}"
    published = backlog.published_count
    if published != sum(counts.values()):
        told = " + ".join(f"{name} {count}" for name, count in counts.items() if count) or "nothing"
        report.add("imbalance", place, f"published {published} is not {told} = {sum(counts.values())}")
    waiting = counts["scheduled"] + counts["ready"] + counts["leased"]
    if backlog.unsettled_count != waiting:
        report.add("imbalance", place, f"{backlog.unsettled_count} are not settled, and {waiting} wait or are leased")
    leased = sum(lease.count for lease in backlog.leases.values())
    if leased != counts["leased"]:
        report.add("imbalance", place, f"{counts['leased']} are leased, and its leases hold {leased}")
    for fault in books_of(backlog)[1]:
        report.add("imbalance", place, fault)


def _snapshot(core: Core, report: Report) -> None:
    """Where the journal goes back to the beginning, the newest snapshot has to say what the facts before it say."""
    saved = core.journal.load_snapshot()
    if saved is None or core.journal.first_position:
        return
    position, data = saved
    fold = ShardState()
    kept = restore(msgspec.msgpack.decode(data, type=tuple[bytes, list[list[Any]], bytes])[0])
    for frame in core.journal.read():
        if frame.position >= position:
            break
        if frame.kind == FACTS:
            facts, batches = decode_facts(frame.body)
            waiting = iter(batches)
            for fact in facts:
                evolve(fold, fact, next(waiting) if type(fact) is Published else None)
    ours, theirs = ({_key_of(each): books_of(each)[0] for each in state.backlogs()} for state in (kept, fold))
    for key in sorted({*ours, *theirs}):
        if ours.get(key) != theirs.get(key):
            message = f"the snapshot of position {position} says {ours.get(key)}, the journal {theirs.get(key)}"
            report.add("imbalance", "{}/{}, partition {}, group {}".format(*key), message)


def _key_of(backlog: Backlog) -> tuple[str, str, int, str]:
    topic = backlog.group.topic
    return topic.namespace, topic.name, backlog.partition.index, backlog.group.name


def place_of(partition: Partition) -> str:
    """A partition by its names."""
    return f"{partition.topic.namespace}/{partition.topic.name}, partition {partition.index}"


# -- sealed files ------------------------------------------------------------------------------------------------------


def _sealed_files(core: Core, report: Report, tell: Tell) -> None:
    manifest, cold = core.manifest, core.cold
    live: list[Segment | EventSegment] = [*manifest.live_segments(), *manifest.live_events()]
    old: list[Segment | EventSegment] = [file for files in manifest.archived.values() for file in files]
    old += [file for files in manifest.archived_events.values() for file in files]
    total = len(live) + len(old)
    _look(live, cold.store, "sealed", report, tell, (0, total))
    _look(old, cold.archive, "archived", report, tell, (len(live), total))
    if total and find_spec("pyarrow") is None:
        report.unread.append("rows of sealed files: pyarrow is not installed; their checksums were compared")


def _look(
    files: list[Segment | EventSegment],
    store: Store | None,
    name: str,
    report: Report,
    tell: Tell,
    among: tuple[int, int],
) -> None:
    if files and store is None:
        report.unread.append(f"{len(files)} {name} files: say where they are")
    if store is None:
        return
    before, total = among
    for number, file in enumerate(files):
        tell(before + number, total)
        if not _file(file, store, report):
            continue
        report.archived_files += name == "archived"
        if isinstance(file, Segment):
            report.segments += 1
            report.sealed_messages += file.count
            report.sealed_bytes += file.size_bytes
        else:
            report.event_files += 1


def _file(file: Segment | EventSegment, store: Store, report: Report) -> bool:
    """Whether a file is what the manifest says."""
    place = store.uri_of(file.path)
    try:
        content = store.read(file.path)
    except (FileNotFoundError, KeyError):
        report.add("missing", place, "the manifest says it is live, and it is not there")
        return False
    except OSError as error:
        report.add("damage", place, f"it cannot be read: {error}")
        return False
    if len(content) != file.size_bytes:
        report.add("damage", place, f"it was written with {file.size_bytes} bytes and has {len(content)}")
        return False
    if crc32c(content) != file.crc:
        report.add("damage", place, "it does not match its checksum")
        return False
    wrong = _rows(file, content) if find_spec("pyarrow") is not None else ""
    if wrong:
        report.add("imbalance", place, wrong)
    return not wrong


def _rows(file: Segment | EventSegment, content: bytes) -> str:
    """What of a file's rows is not as the manifest says."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if isinstance(file, Segment):
            table = pq.read_table(pa.BufferReader(content), columns=["offset", "id", "append_time_ns"])
            return _wrong_messages(file, table)
        table = pq.read_table(pa.BufferReader(content), columns=["position"])
    except (OSError, ValueError) as error:
        return f"it is no Parquet file: {error}"
    positions = table.column("position").to_pylist()
    if len(positions) != file.rows:
        return f"it has {len(positions)} rows, the manifest says {file.rows}"
    if positions and not file.first_position <= min(positions) <= max(positions) < file.end_position:
        return (
            f"it tells of positions {min(positions)} to {max(positions)}, the manifest says up to {file.end_position}"
        )
    return ""


def _wrong_messages(file: Segment, table: Any) -> str:
    import pyarrow.compute as pc

    if table.num_rows != file.count:
        return f"it has {table.num_rows} messages, the manifest says {file.count}"
    offsets, ids, times = (table.column(name).combine_chunks() for name in ("offset", "id", "append_time_ns"))
    if offsets[0].as_py() != file.first or not _steps(offsets, pc.equal):
        return f"its offsets are not {file.first} to {file.end - 1}, each once and in order"
    if (ids[0].as_py(), ids[-1].as_py()) != (file.first_id, file.last_id) or not _steps(ids, pc.greater_equal):
        return f"its ids do not rise from {file.first_id} to {file.last_id}"
    if (times[0].as_py(), times[-1].as_py()) != (file.first_ns, file.last_ns):
        return f"its messages were not appended from {file.first_ns} to {file.last_ns}"
    return ""


def _steps(numbers: Any, by_one: Callable[[Any, int], Any]) -> bool:
    import pyarrow.compute as pc

    if len(numbers) < 2:
        return True
    return bool(pc.all(by_one(pc.subtract(numbers[1:], numbers[:-1]), 1)).as_py())


# -- the log without a gap ---------------------------------------------------------------------------------------------


def _log(core: Core, report: Report) -> None:
    reached: dict[int, int] = {}
    for pid, partition in core.state.partitions.items():
        at = partition.start
        for segment in core.manifest.segments.get(pid, ()):
            if segment.first > at:
                _gap(partition, at, segment.first, report)
            elif segment.first < at and segment.first >= partition.start and at > partition.start:
                report.add("imbalance", place_of(partition), f"{segment.path} holds offsets that another file has, too")
            at = max(at, segment.end)
        reached[pid] = at
    for pid, first, end in _published(core.journal, core.manifest.sealed_to):
        if pid in reached and end > reached[pid]:
            if first > reached[pid]:
                _gap(core.state.partitions[pid], reached[pid], first, report)
            reached[pid] = end
    for pid, at in reached.items():
        partition = core.state.partitions[pid]
        if at < partition.end:
            _gap(partition, at, partition.end, report)


def _published(journal: Any, sealed_to: int) -> Iterator[tuple[int, int, int]]:
    """(pid, first, end) of the batches in the journal that were not sealed."""
    for frame in journal.read(max(journal.first_position, sealed_to)):
        if frame.kind == FACTS:
            facts, batches = decode_facts(frame.body)
            published = (fact for fact in facts if type(fact) is Published)
            for fact, batch in zip(published, batches, strict=True):
                yield fact.pid, batch.base_offset, batch.base_offset + batch.count


def _gap(partition: Partition, first: int, end: int, report: Report) -> None:
    message = f"offsets {first} to {end - 1} are neither in a sealed file nor in the journal"
    report.add("gap", place_of(partition), message)
