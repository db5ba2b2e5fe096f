"""Which sealed files are live: a fold over entries, as everything else is.

Entries travel in journal frames of the kind ``MANIFEST`` and, folded, in snapshots. A file exists for readers from its
entry on and not before: it is whole and durable by then. A file leaves by an entry too, and is deleted only when that
entry is durable; until ``Deleted`` confirms it, its path is remembered (``doomed``), so that a crash in between leaves
no file behind.

An entry type keeps its tag and its field order for ever; new fields go to the end with a default.

    Begun       files are about to be written: until they are live they are doomed
    Sealed      journal up to a position became files (perhaps none: everything in it was let go of already)
    Replaced    small files became one
    Archived    files were copied to the archive and leave the store
    Dropped     files leave the store
    Deleted     doomed files are gone
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from headrace.errors import Corrupt

__all__ = [
    "Archived",
    "Begun",
    "Carry",
    "Deleted",
    "Dropped",
    "Entry",
    "EventSegment",
    "Manifest",
    "Replaced",
    "Sealed",
    "Segment",
    "decode_entries",
    "encode_entries",
]


class Segment(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Messages [first, end) of one partition in one file."""

    path: str
    pid: int
    first: int
    end: int
    first_id: int
    last_id: int
    first_ns: int
    last_ns: int
    size_bytes: int
    raw_bytes: int
    crc: int
    footer_crc: int = 0
    """Of what the reading of a few rows relies on; 0 in files of before it was noted."""

    @property
    def count(self) -> int:
        return self.end - self.first


class EventSegment(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Facts about one topic in one file; ``spans``: between which offsets, by partition."""

    path: str
    tid: int
    rows: int
    first_position: int
    end_position: int
    first_ns: int
    last_ns: int
    size_bytes: int
    crc: int
    spans: tuple[tuple[int, int, int], ...]
    footer_crc: int = 0

    def speaks_of(self, pid: int, offset: int) -> bool:
        return any(pid == mine and first <= offset <= last for mine, first, last in self.spans)


class Carry(msgspec.Struct, array_like=True, gc=False):
    """What the events of the next file refer to: who holds open leases, attempts of messages that have failed."""

    leases: dict[int, tuple[str, int, int, int]] = {}  # consumer, messages left, gid, pid
    attempts: list[tuple[int, int, int, int]] = []  # gid, pid, offset, failed attempts


class Sealed(msgspec.Struct, array_like=True, tag=1):
    up_to: int
    segments: list[Segment]
    events: list[EventSegment]
    at_ns: int
    carry: Carry = msgspec.field(default_factory=Carry)


class Replaced(msgspec.Struct, array_like=True, tag=2):
    paths: list[str]
    segments: list[Segment]
    events: list[EventSegment]
    at_ns: int


class Archived(msgspec.Struct, array_like=True, tag=3):
    paths: list[str]
    at_ns: int


class Dropped(msgspec.Struct, array_like=True, tag=4):
    paths: list[str]
    at_ns: int


class Deleted(msgspec.Struct, array_like=True, tag=5):
    paths: list[str]


class Begun(msgspec.Struct, array_like=True, tag=6):
    paths: list[str]


Entry: TypeAlias = Sealed | Replaced | Archived | Dropped | Deleted | Begun

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Entry]).decode


def encode_entries(entries: Sequence[Entry]) -> bytes:
    return _encode(entries)


def decode_entries(body: bytes | memoryview) -> list[Entry]:
    return _decode(body)


class _Snapshot(msgspec.Struct, array_like=True):
    sealed_to: int
    segments: list[Segment]
    events: list[EventSegment]
    archived: list[Segment]
    archived_events: list[EventSegment]
    doomed: list[str]
    carry: Carry


class Manifest:
    """The live, the archived and the doomed files of a shard.

    Lists are never changed but replaced, so that a thread that reads files may go on with the list it began with.
    """

    __slots__ = ("archived", "archived_events", "carry", "doomed", "events", "sealed_to", "segments")

    def __init__(self) -> None:
        self.sealed_to = 0  # everything in the journal before this position has been sealed
        self.segments: dict[int, list[Segment]] = {}  # by partition, in order of offsets
        self.events: dict[int, list[EventSegment]] = {}  # by topic, in order of positions
        self.archived: dict[int, list[Segment]] = {}
        self.archived_events: dict[int, list[EventSegment]] = {}
        self.doomed: dict[str, None] = {}
        self.carry = Carry()

    # -- questions -------------------------------------------------------------------------------------------------

    def segment_from(self, pid: int, offset: int) -> Segment | None:
        """The live segment that holds an offset, or the first one after it."""
        return _from(self.segments.get(pid, ()), offset)

    def archived_from(self, pid: int, offset: int) -> Segment | None:
        """The same among those in the archive."""
        return _from(self.archived.get(pid, ()), offset)

    def live_segments(self) -> Iterator[Segment]:
        for segments in self.segments.values():
            yield from segments

    def live_events(self) -> Iterator[EventSegment]:
        for events in self.events.values():
            yield from events

    def is_live(self, path: str) -> bool:
        return any(path == segment.path for segment in self.live_segments()) or any(
            path == file.path for file in self.live_events()
        )

    def size_bytes(self, pids: Iterable[int]) -> int:
        """What the live segments of some partitions occupy."""
        return sum(segment.size_bytes for pid in pids for segment in self.segments.get(pid, ()))

    # -- fold ------------------------------------------------------------------------------------------------------

    def fold(self, entry: Entry) -> None:
        """Take an entry in."""
        match entry:
            case Sealed():
                self.sealed_to = max(self.sealed_to, entry.up_to)
                self.carry = entry.carry
                self._add(entry.segments, entry.events)
            case Replaced():
                self._remove(entry.paths)
                self._add(entry.segments, entry.events)
                self.doomed.update(dict.fromkeys(entry.paths))
            case Archived():
                segments, events = self._remove(entry.paths)
                for segment in segments:
                    self.archived[segment.pid] = inserted(self.archived.get(segment.pid, ()), segment)
                for file in events:
                    self.archived_events[file.tid] = [*self.archived_events.get(file.tid, ()), file]
                self.doomed.update(dict.fromkeys(entry.paths))
            case Dropped():
                self._remove(entry.paths)
                self.doomed.update(dict.fromkeys(entry.paths))
            case Begun():
                self.doomed.update(dict.fromkeys(entry.paths))
            case Deleted():
                for path in entry.paths:
                    self.doomed.pop(path, None)

    def _add(self, segments: Sequence[Segment], events: Sequence[EventSegment]) -> None:
        for segment in segments:
            self.doomed.pop(segment.path, None)
            self.segments[segment.pid] = inserted(self.segments.get(segment.pid, ()), segment)
        for file in events:
            self.doomed.pop(file.path, None)
            others = [each for each in self.events.get(file.tid, ()) if each.path != file.path]
            self.events[file.tid] = sorted([*others, file], key=_first_position_of)

    def _remove(self, paths: Sequence[str]) -> tuple[list[Segment], list[EventSegment]]:
        leaving = set(paths)
        segments: list[Segment] = []
        events: list[EventSegment] = []
        for pid, live in list(self.segments.items()):
            mine = [segment for segment in live if segment.path in leaving]
            if mine:
                segments += mine
                self.segments[pid] = [segment for segment in live if segment.path not in leaving]
                if not self.segments[pid]:
                    del self.segments[pid]
        for tid, files in list(self.events.items()):
            gone = [file for file in files if file.path in leaving]
            if gone:
                events += gone
                self.events[tid] = [file for file in files if file.path not in leaving]
                if not self.events[tid]:
                    del self.events[tid]
        return segments, events

    # -- snapshot --------------------------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """The fold as bytes."""
        return msgspec.msgpack.encode(
            _Snapshot(
                self.sealed_to,
                list(self.live_segments()),
                list(self.live_events()),
                [segment for segments in self.archived.values() for segment in segments],
                [file for files in self.archived_events.values() for file in files],
                list(self.doomed),
                self.carry,
            )
        )

    @staticmethod
    def load(data: bytes) -> Manifest:
        """The fold of ``dump``."""
        try:
            known = msgspec.msgpack.decode(data, type=_Snapshot)
        except msgspec.MsgspecError as error:
            raise Corrupt(f"the manifest in the snapshot cannot be read: {error}") from error
        manifest = Manifest()
        manifest.sealed_to = known.sealed_to
        manifest.carry = known.carry
        manifest._add(known.segments, known.events)
        for segment in known.archived:
            manifest.archived[segment.pid] = inserted(manifest.archived.get(segment.pid, ()), segment)
        for file in known.archived_events:
            manifest.archived_events.setdefault(file.tid, []).append(file)
        manifest.doomed = dict.fromkeys(known.doomed)
        return manifest


def inserted(segments: Sequence[Segment], segment: Segment) -> list[Segment]:
    """The segments with one more at its place, in place of one of the same path. A new list: others may be reading."""
    others = [each for each in segments if each.path != segment.path] if segments else []
    others.insert(bisect_right(others, segment.first, key=_first_of), segment)
    return others


def _from(segments: Sequence[Segment], offset: int) -> Segment | None:
    i = bisect_right(segments, offset, key=_first_of) - 1
    if i >= 0 and offset < segments[i].end:
        return segments[i]
    return segments[i + 1] if i + 1 < len(segments) else None


def _first_of(segment: Segment) -> Any:
    return segment.first


def _first_position_of(file: EventSegment) -> int:
    return file.first_position
