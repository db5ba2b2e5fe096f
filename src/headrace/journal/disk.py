"""The journal on a disk: appends gather in memory, commits write and sync them, files follow one another.

    append -> pending segments (positions and places fixed, room known) -> one leader writes and syncs -> durable

Invariants:
- A position is fixed when the frame is appended: the file it goes to exists, allocated, before it is accepted. So a
  full disk is met by ``append``, before anything is buffered, and never by a commit.
- A round is written only when the one before it is durable. A round that runs over the end of a file is one commit per
  file.
- ``_plain_limit`` and ``_reserve_limit`` say up to where an append needs nothing but the open segment. They are -1
  whenever there is something to look at first (no open segment, journal failed or closed, reserve not whole), so the
  hot path asks one question.
- The last spare is the reserve (``room.py``): while it is gone ordinary appends are refused.
- Every failure of a write or sync that durability depends on is final (``_fail``).

``_lock`` guards the pending side, ``_read_lock`` keeps handles open while they are read from. Neither is held during a
commit's write or sync. Order: ``_lock`` before ``_read_lock``.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Self, TypeVar

from google_crc32c import extend

from headrace.clock import Clock, SystemClock
from headrace.errors import Closed, HeadraceError, InvalidArgument, PayloadTooLarge, StorageFailed, StorageFull
from headrace.journal.commit import GroupCommit
from headrace.journal.contract import JournalFile, JournalStats
from headrace.journal.files import NO_ROOM_ERRORS, FileLayer, RealFiles, write_all
from headrace.journal.frame import (
    COMMIT_BYTES,
    CRC_RESIDUE,
    FRAME_HEAD,
    FRAME_OVERHEAD_BYTES,
    KIND_MAX,
    KIND_SHIFT,
    POSITION_MASK,
    Frame,
    commit_record,
    encode_large_frame,
    seed_of,
)
from headrace.journal.hold import hold, refusal
from headrace.journal.layout import (
    FILE_HEADER_BYTES,
    FileHeader,
    Identity,
    Mark,
    encode_file_header,
    encode_mark,
)
from headrace.journal.recovery import Recovered, file_path, recover, save_identity
from headrace.journal.room import Room
from headrace.journal.scan import damage, scan_frames
from headrace.journal.segment import OpenFile, Segment
from headrace.journal.snapshot import load_snapshot, save_snapshot, snapshot_floor
from headrace.limits import (
    JOURNAL_COPY_BYTES_MAX,
    JOURNAL_FILE_BYTES_DEFAULT,
    JOURNAL_FILE_BYTES_MIN,
    JOURNAL_FRAME_BYTES_MAX,
    JOURNAL_PEEK_BYTES,
    JOURNAL_POSITION_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["DiskJournal"]

_CLOCK = SystemClock()
_T = TypeVar("_T")


class DiskJournal:
    """A durable journal in a directory, held exclusively while it is open.

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> with DiskJournal.open(directory, file_size_bytes=65536) as journal:
    ...     position = journal.append(1, b"hello")
    ...     journal.wait_durable(position)
    >>> with DiskJournal.open(directory, file_size_bytes=65536) as journal:
    ...     [frame.body for frame in journal.read()]
    [b'hello']
    """

    def __init__(
        self,
        directory: str,
        *,
        files: FileLayer,
        file_size_bytes: int,
        clock: Clock,
        lock_handle: int,
        recovered: Recovered,
    ) -> None:
        """Use ``open``."""
        self._directory = directory
        self._io = files
        self._clock = clock
        self._lock_handle = lock_handle
        self._mark_handle = recovered.mark_handle
        self._identity, self._oldest, self._snapshot_floor = recovered.identity
        self._seed = seed_of(self._identity)
        self._lock = Lock()
        self._read_lock = Lock()
        self._files = [
            OpenFile(found.first_position, found.size_bytes, found.path, found.handle, named=True)
            for found in recovered.files
        ]
        self._firsts = [file.first_position for file in self._files]
        self.end_position = recovered.end_position
        self._file_end = self._firsts[-1] + self._files[-1].size_bytes if self._files else 0
        self._pending: list[Segment] = []
        self._writing: list[Segment] = []
        self._segment: Segment | None = None
        self._parts: list[bytes | list[bytes]] = []
        self._positions: list[int] = []
        self._plain_limit = -1
        self._reserve_limit = -1
        self._failure: StorageFailed | None = None
        self._closed = False
        self.stats = JournalStats()
        self._room = Room(files, directory, file_size_bytes, self.stats)
        self._commit = GroupCommit(self._run_round, self.end_position)

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        files: FileLayer | None = None,
        file_size_bytes: int = JOURNAL_FILE_BYTES_DEFAULT,
        clock: Clock = _CLOCK,
        new_identity: Callable[[], bytes] | None = None,
    ) -> DiskJournal:
        """Open the journal in ``directory``, creating it where there is none; recovers after a crash.

        Raises ``StorageFailed`` (held by another process, not writable), ``StorageFull``, ``Corrupt`` or
        ``UnsupportedVersion``, each with one sentence that names the path.
        """
        if file_size_bytes < JOURNAL_FILE_BYTES_MIN:
            raise InvalidArgument(f"file_size_bytes is {file_size_bytes}; at least {JOURNAL_FILE_BYTES_MIN} is needed")
        io: FileLayer = RealFiles() if files is None else files
        where = os.fspath(directory)
        lock_handle = hold(io, where)
        try:
            recovered = recover(io, where, new_identity or _random_identity)
            journal = cls(
                where,
                files=io,
                file_size_bytes=file_size_bytes,
                clock=clock,
                lock_handle=lock_handle,
                recovered=recovered,
            )
        except OSError as error:
            io.close(lock_handle)
            raise refusal(where, error) from error
        except BaseException:
            io.close(lock_handle)
            raise
        try:
            journal._prepare_reserve()
        except BaseException:
            journal._release_handles()
            raise
        return journal

    @property
    def directory(self) -> str:
        return self._directory

    @property
    def durable_position(self) -> int:
        return self._commit.durable_position

    @property
    def first_position(self) -> int:
        return self._oldest

    # -- appending -----------------------------------------------------------------------------------------------------

    def append(self, kind: int, *buffers: bytes | memoryview, reserve: bool = False) -> int:
        """Add one frame to the pending round and return its position."""
        if not 0 <= kind <= KIND_MAX:
            raise InvalidArgument(f"frame kind {kind} is not between 0 and {KIND_MAX}")
        if sum(map(len, buffers)) > JOURNAL_COPY_BYTES_MAX:
            pieces = [piece if type(piece) is bytes else bytes(piece) for piece in buffers]
            return self._append_large(kind, pieces, reserve=reserve)
        body = b"".join(buffers)
        size = len(body)
        with self._lock:
            position = self.end_position
            after = position + size + FRAME_OVERHEAD_BYTES
            if after > (self._reserve_limit if reserve else self._plain_limit):
                position = self._make_room(size + FRAME_OVERHEAD_BYTES, reserve=reserve)
                after = position + size + FRAME_OVERHEAD_BYTES
            record = FRAME_HEAD.pack(position | kind << KIND_SHIFT, size) + body
            self._parts.append(record + extend(self._seed, record).to_bytes(4, "little"))
            self._positions.append(position)
            self.end_position = after
        return position

    def append_many(self, frames: Sequence[tuple[int, bytes]], *, reserve: bool = False) -> list[int]:
        """Add the frames in order and return their positions. All or none of them are accepted by a full disk."""
        positions: list[int] = []
        pack, seed = FRAME_HEAD.pack, self._seed
        for kind, body in frames:
            if not 0 <= kind <= KIND_MAX:
                raise InvalidArgument(f"frame kind {kind} is not between 0 and {KIND_MAX}")
            if len(body) > JOURNAL_COPY_BYTES_MAX:
                return [self.append(kind, body, reserve=reserve) for kind, body in frames]
        with self._lock:
            position = self.end_position
            limit = self._reserve_limit if reserve else self._plain_limit
            for kind, body in frames:
                size = len(body)
                after = position + size + FRAME_OVERHEAD_BYTES
                if after > limit:
                    position = self._make_room(size + FRAME_OVERHEAD_BYTES, reserve=reserve)
                    limit = self._reserve_limit if reserve else self._plain_limit
                    after = position + size + FRAME_OVERHEAD_BYTES
                record = pack(position | kind << KIND_SHIFT, size) + body
                self._parts.append(record + extend(seed, record).to_bytes(4, "little"))
                self._positions.append(position)
                positions.append(position)
                self.end_position = position = after
        return positions

    def _append_large(self, kind: int, pieces: list[bytes], *, reserve: bool) -> int:
        size = sum(map(len, pieces))
        if size > JOURNAL_FRAME_BYTES_MAX:
            raise PayloadTooLarge(f"a frame of {size} bytes is larger than {JOURNAL_FRAME_BYTES_MAX}")
        with self._lock:
            position = self.end_position
            if position + size + FRAME_OVERHEAD_BYTES > (self._reserve_limit if reserve else self._plain_limit):
                position = self._make_room(size + FRAME_OVERHEAD_BYTES, reserve=reserve)
            self._parts.append(encode_large_frame(self._seed, position, kind, pieces, size))
            self._positions.append(position)
            self.end_position = position + size + FRAME_OVERHEAD_BYTES
        return position

    def _make_room(self, frame_bytes: int, *, reserve: bool) -> int:
        """Open a segment, a file, or refuse. Returns the frame's position; nothing has changed when it raises."""
        self._raise_if_stopped()
        if not self._room.spares and not reserve:
            # The reserve was used up: settlements alone go on until it is whole again.
            self._certain(self._room.add_spare)
        position = self.end_position
        segment = self._segment
        if position + frame_bytes + (0 if segment is not None else COMMIT_BYTES) > self._file_end:
            return self._next_file(frame_bytes, reserve=reserve)
        if segment is None:
            self._open_segment(Segment(self._files[-1], position, [commit_record(self._seed, position)]))
            position += COMMIT_BYTES
        self._set_limits()
        return position

    def _next_file(self, frame_bytes: int, *, reserve: bool) -> int:
        """Begin the next file with the header, a commit record, and room for a frame of this size."""
        need = FILE_HEADER_BYTES + COMMIT_BYTES + frame_bytes
        first_position = self.end_position
        if first_position + need > JOURNAL_POSITION_MAX:
            raise StorageFailed(f"{self._directory} has reached the last position, {JOURNAL_POSITION_MAX}")
        file = self._certain(lambda: self._room.take(need, reserve=reserve))
        file.first_position = first_position
        header = encode_file_header(FileHeader(self._identity, first_position, file.size_bytes))
        position = first_position + FILE_HEADER_BYTES
        with self._read_lock:
            self._files.append(file)
            self._firsts.append(first_position)
        self._file_end = first_position + file.size_bytes
        self._open_segment(Segment(file, first_position, [header, commit_record(self._seed, position)]))
        self._set_limits()
        return position + COMMIT_BYTES

    def _open_segment(self, segment: Segment) -> None:
        self._segment = segment
        self._pending.append(segment)
        self._parts = segment.parts
        self._positions = segment.positions

    def _set_limits(self) -> None:
        self._reserve_limit = self._file_end
        self._plain_limit = self._file_end if self._room.spares else -1
        if self._failure is not None:
            # A commit failed in another thread in between.
            self._plain_limit = self._reserve_limit = -1

    def _certain(self, make: Callable[[], _T]) -> _T:
        """Allocate; a full disk only refuses, any other failure ends the journal."""
        try:
            return make()
        except OSError as error:
            raise self._fail(error, "allocating a file in") from error

    def _prepare_reserve(self) -> None:
        """Have the reserve from the start. A journal that holds something opens without, one that is new does not."""
        with self._lock:
            try:
                self._certain(self._room.add_spare)
            except StorageFull:
                if not self._files:
                    raise

    # -- committing ----------------------------------------------------------------------------------------------------

    def commit(self) -> int:
        """Make everything appended so far durable, and return the durable position."""
        self._raise_if_stopped()
        self._commit.wait(self.end_position)
        return self._commit.durable_position

    def wait_durable(self, position: int, timeout: float | None = None) -> None:
        """Return when the position is durable; any number of threads share one sync."""
        if position > self.end_position:
            raise InvalidArgument(f"position {position} was never appended; the journal ends at {self.end_position}")
        self._commit.wait(position, timeout)

    async def durable(self, position: int) -> None:
        """The same for tasks, without blocking the event loop."""
        if position > self.end_position:
            raise InvalidArgument(f"position {position} was never appended; the journal ends at {self.end_position}")
        await self._commit.durable(position)

    def commit_soon(self) -> None:
        """Have the commit thread make durable what was appended."""
        self._commit.soon(self.end_position)

    def on_durable(self, callback: Callable[[int, HeadraceError | None], None]) -> None:
        """Call back, in the committing thread, after each commit and when the journal fails."""
        self._commit.on_durable(callback)

    def _run_round(self) -> int:
        """Write and sync what is pending; called by one leader at a time."""
        with self._lock:
            if self._failure is not None:
                raise StorageFailed(self._failure.message) from self._failure
            segments, self._pending = self._pending, []
            self._writing = segments
            self._segment = None
            self._plain_limit = self._reserve_limit = -1
            end = self.end_position
        if not segments:
            return end
        try:
            for segment in segments:
                self._write_segment(segment)
            write_all(self._io, self._mark_handle, [encode_mark(self._identity, Mark(end, clean=False))], 0)
        except OSError as error:
            raise self._fail(error, "committing to") from error
        self.stats.commits += 1
        self._writing = []
        return end

    def _write_segment(self, segment: Segment) -> None:
        io, stats, clock, file = self._io, self.stats, self._clock, segment.file
        written = write_all(io, file.handle, segment.buffers(), segment.position - file.first_position)
        stats.bytes += written
        stats.commit_bytes.observe(written)
        started_ns = clock.monotonic_ns()
        io.sync_data(file.handle)
        stats.fsync_last_ns = clock.monotonic_ns() - started_ns
        stats.fsync_total_ns += stats.fsync_last_ns
        stats.fsync_ns.observe(stats.fsync_last_ns)
        stats.fsyncs += 1
        stats.frames += len(segment.positions)
        if not file.named:
            path = file_path(self._directory, file.first_position)
            io.rename(file.path, path)
            io.sync_directory(self._directory)
            file.path = path
            file.named = True

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, from_position: int | None = None) -> Iterator[Frame]:
        """The durable frames from a position on, in order. Damage raises ``Corrupt`` where it is reached."""
        oldest = self._firsts[0] if self._firsts else 0
        start = max(self._oldest, oldest) if from_position is None else from_position
        if start < oldest:
            raise InvalidArgument(f"position {start} was truncated; the oldest kept is {oldest}")
        return self._frames(start, self._commit.durable_position)

    def _frames(self, start: int, stop: int) -> Iterator[Frame]:
        with self._read_lock:
            files = list(self._files)
        for at, file in enumerate(files):
            end = min(stop, files[at + 1].first_position if at + 1 < len(files) else stop)
            begin = max(start, file.first_position + FILE_HEADER_BYTES)
            if begin < end:
                yield from scan_frames(
                    partial(self._read_file, file),
                    self._seed,
                    file.first_position,
                    begin,
                    end,
                    file.path,
                )

    def read_frame(self, position: int) -> Frame:
        """The frame at a position that ``append`` or ``read`` returned, durable or not."""
        if position >= self._commit.durable_position:
            record = self._pending_frame(position)
            if record is not None:
                return Frame(position, FRAME_HEAD.unpack_from(record)[0] >> KIND_SHIFT, record[12:-4])
        with self._read_lock:
            at = bisect_right(self._firsts, position) - 1
            if at < 0 or position >= self.end_position:
                raise InvalidArgument(
                    f"no frame begins at position {position}; the journal holds {self._oldest} to {self.end_position}"
                )
            file = self._files[at]
        return self._read_record(file, position)

    def _pending_frame(self, position: int) -> bytes | None:
        with self._lock:
            for segment in (*self._writing, *self._pending):
                record = segment.frame(position)
                if record is not None:
                    return record
        return None

    def _read_record(self, file: OpenFile, position: int) -> Frame:
        offset = position - file.first_position
        record = self._read_file(file, JOURNAL_PEEK_BYTES, offset)
        if len(record) < FRAME_OVERHEAD_BYTES:
            raise damage(file.path, file.first_position, position, "the file ends inside a frame")
        word, size = FRAME_HEAD.unpack_from(record)
        total = size + FRAME_OVERHEAD_BYTES
        if word & POSITION_MASK != position or offset + total > file.size_bytes:
            raise damage(file.path, file.first_position, position, "no frame begins here")
        record = record[:total] if total <= len(record) else self._read_file(file, total, offset)
        if len(record) != total or extend(self._seed, record) != CRC_RESIDUE:
            raise damage(file.path, file.first_position, position, "the frame does not match its checksum")
        return Frame(position, word >> KIND_SHIFT, record[12:-4])

    def _read_file(self, file: OpenFile, size_bytes: int, offset: int) -> bytes:
        with self._read_lock:
            if file.handle < 0:
                raise InvalidArgument(f"position {file.first_position + offset} was truncated or the journal closed")
            try:
                return self._io.read(file.handle, size_bytes, offset)
            except OSError as error:
                raise StorageFailed(f"reading {file.path} failed: {error.strerror or error}") from error

    def files(self) -> list[JournalFile]:
        """The files of the stream, oldest first; the last one is still written to."""
        with self._read_lock:
            known = [file for file in self._files if file.named]
            following = [file.first_position for file in self._files[1:]]
            durable = self._commit.durable_position
        return [
            JournalFile(
                file.first_position,
                following[at] if at + 1 < len(known) else durable,
                file.path,
                at + 1 < len(known),
            )
            for at, file in enumerate(known)
        ]

    # -- letting go ----------------------------------------------------------------------------------------------------

    def truncate_before(self, position: int) -> None:
        """Drop the files that lie wholly before the position; each becomes the next file or is deleted."""
        if position > self._commit.durable_position:
            raise InvalidArgument(f"position {position} is not durable; durable is {self._commit.durable_position}")
        with self._lock:
            self._raise_if_stopped()
            drop = bisect_right(self._firsts, position) - 1
            if drop <= 0 or not self._files[drop].named:
                return
            try:
                self._drop(drop)
            except OSError as error:
                raise self._fail(error, "truncating") from error

    def _drop(self, count: int) -> None:
        io = self._io
        self._oldest = self._firsts[count]
        self._snapshot_floor = snapshot_floor(io, self._directory)
        save_identity(io, self._directory, Identity(self._identity, self._oldest, self._snapshot_floor))
        with self._read_lock:
            dropped = self._files[:count]
            del self._files[:count]
            del self._firsts[:count]
            handles = [file.handle for file in dropped]
            for file in dropped:
                file.handle = -1
        for file, handle in zip(dropped, handles, strict=True):
            if not self._room.recycle(file, handle):
                io.close(handle)
                io.remove(file.path)
        io.sync_directory(self._directory)

    def save_snapshot(self, position: int, *buffers: bytes | memoryview) -> None:
        """Keep the data as the state up to the position, durably, in place of older snapshots."""
        self.wait_durable(position)
        pieces = [piece if type(piece) is bytes else bytes(piece) for piece in buffers]
        try:
            save_snapshot(self._io, self._directory, self._identity, position, pieces)
        except OSError as error:
            if error.errno in NO_ROOM_ERRORS:
                raise StorageFull(f"no room for a snapshot in {self._directory}: {error.strerror}") from error
            raise self._fail(error, "writing a snapshot to") from error

    def load_snapshot(self) -> tuple[int, bytes] | None:
        """The newest snapshot with its position."""
        return load_snapshot(
            self._io,
            self._directory,
            self._identity,
            floor=self._snapshot_floor,
            durable=self._commit.durable_position,
        )

    # -- ending --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Commit, mark the clean stop, let go of everything. A journal that failed is let go as it is."""
        if self._closed:
            return
        try:
            if self._failure is None:
                self.commit()
                end = self.end_position
                write_all(self._io, self._mark_handle, [encode_mark(self._identity, Mark(end, clean=True))], 0)
                self._io.sync_data(self._mark_handle)
        except OSError as error:
            raise self._fail(error, "closing") from error
        finally:
            self._release_handles()

    def _release_handles(self) -> None:
        with self._lock:
            self._closed = True
            self._plain_limit = self._reserve_limit = -1
        self._commit.close()
        with self._read_lock:
            handles = [file.handle for file in (*self._files, *self._room.spares)]
            for file in (*self._files, *self._room.spares):
                file.handle = -1
        for handle in (*handles, self._mark_handle, self._lock_handle):
            if handle >= 0:
                self._io.close(handle)

    def _fail(self, error: OSError, doing: str) -> StorageFailed:
        """The journal's life ends here: nothing is written or synced again."""
        failure = StorageFailed(
            f"{doing} {self._directory} failed: {error.strerror or error}; "
            "the journal is stopped and must be opened again"
        )
        if self._failure is None:
            self._failure = failure
        self._plain_limit = self._reserve_limit = -1
        self._commit.fail(failure)
        return failure

    def _raise_if_stopped(self) -> None:
        if self._failure is not None:
            raise StorageFailed(self._failure.message) from self._failure
        if self._closed:
            raise Closed(f"the journal in {self._directory} is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _random_identity() -> bytes:
    return os.urandom(16)
