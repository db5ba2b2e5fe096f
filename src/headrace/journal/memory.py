"""The journal that keeps everything in memory: the same contract, no disk, nothing survives the process.

Positions run as on disk (frame overhead included, a commit record's width between rounds), so that nothing above
can come to depend on which journal it has. Of its rounds only number and bytes are counted: there is no disk to tell
how long they took and how large they should be.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Self

from headrace.errors import Closed, InvalidArgument
from headrace.journal.contract import JournalFile, JournalStats
from headrace.journal.frame import COMMIT_BYTES, FRAME_OVERHEAD_BYTES, KIND_MAX, Frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.errors import HeadraceError

__all__ = ["MemoryJournal"]


class MemoryJournal:
    """A journal without a disk.

    >>> journal = MemoryJournal()
    >>> position = journal.append(1, b"hello")
    >>> journal.wait_durable(position)
    >>> [frame.body for frame in journal.read()]
    [b'hello']
    """

    __slots__ = (
        "_bodies",
        "_callbacks",
        "_closed",
        "_first",
        "_kinds",
        "_next",
        "_positions",
        "_snapshot",
        "durable_position",
        "end_position",
        "stats",
    )

    def __init__(self) -> None:
        # Side by side and not in pairs: a million frames are then nothing for the garbage collector to look through.
        self._positions = array("Q")
        self._kinds = bytearray()
        self._bodies: list[bytes] = []
        self._first = 0
        self.end_position = 0
        self._next = COMMIT_BYTES
        self.durable_position = 0
        self._snapshot: tuple[int, bytes] | None = None
        self._callbacks: list[Callable[[int, HeadraceError | None], None]] = []
        self._closed = False
        self.stats = JournalStats()

    @property
    def first_position(self) -> int:
        return self._first

    def append(self, kind: int, *buffers: bytes | memoryview, reserve: bool = False) -> int:
        if self._closed or not 0 <= kind <= KIND_MAX:
            raise self._refusal(kind)
        body = b"".join(buffers)  # of one that is bytes this is the same object
        position = self._next
        self._positions.append(position)
        self._kinds.append(kind)
        self._bodies.append(body)
        self._next = self.end_position = position + FRAME_OVERHEAD_BYTES + len(body)
        self.stats.frames += 1
        return position

    def _refusal(self, kind: int) -> HeadraceError:
        if self._closed:
            return Closed("the journal is closed")
        return InvalidArgument(f"frame kind {kind} is not between 0 and {KIND_MAX}")

    def append_many(self, frames: Sequence[tuple[int, bytes]], *, reserve: bool = False) -> list[int]:
        append = self.append
        return [append(kind, body) for kind, body in frames]

    def commit(self) -> int:
        if self._closed:
            raise Closed("the journal is closed")
        end = self.end_position
        if end != self.durable_position:
            stats = self.stats
            stats.commits += 1
            stats.bytes += end - self.durable_position
            self.durable_position = end
            self._next = end + COMMIT_BYTES
            for callback in self._callbacks:
                callback(end, None)
        return end

    def wait_durable(self, position: int, timeout: float | None = None) -> None:
        if position > self.durable_position:
            if position > self.end_position:
                raise InvalidArgument(
                    f"position {position} was never appended; the journal ends at {self.end_position}"
                )
            self.commit()

    async def durable(self, position: int) -> None:
        self.wait_durable(position)

    def commit_soon(self) -> None:
        self.commit()

    def on_durable(self, callback: Callable[[int, HeadraceError | None], None]) -> None:
        self._callbacks.append(callback)

    def read(self, from_position: int | None = None) -> Iterator[Frame]:
        start = self._first if from_position is None else from_position
        if start < self._first:
            raise InvalidArgument(f"position {start} was truncated; the oldest kept is {self._first}")
        return self._frames(start, self.durable_position)

    def _frames(self, start: int, stop: int) -> Iterator[Frame]:
        first, end = bisect_left(self._positions, start), bisect_left(self._positions, stop)
        found = zip(self._positions[first:end], self._kinds[first:end], self._bodies[first:end], strict=True)
        for position, kind, body in found:
            yield Frame(position, kind, body)

    def read_frame(self, position: int) -> Frame:
        at = bisect_left(self._positions, position)
        if at == len(self._positions) or self._positions[at] != position:
            raise InvalidArgument(
                f"no frame begins at position {position}; the journal holds {self._first} to {self.end_position}"
            )
        return Frame(position, self._kinds[at], self._bodies[at])

    def truncate_before(self, position: int) -> None:
        if position > self.durable_position:
            raise InvalidArgument(f"position {position} is not durable; durable is {self.durable_position}")
        at = bisect_left(self._positions, position)
        del self._bodies[:at]
        del self._kinds[:at]
        del self._positions[:at]
        self._first = max(self._first, position)

    def save_snapshot(self, position: int, *buffers: bytes | memoryview) -> None:
        if position > self.end_position:
            raise InvalidArgument(f"position {position} was never appended; the journal ends at {self.end_position}")
        self.wait_durable(position)
        self._snapshot = (position, b"".join(buffers))

    def load_snapshot(self) -> tuple[int, bytes] | None:
        return self._snapshot

    def files(self) -> list[JournalFile]:
        return []

    def close(self) -> None:
        if not self._closed:
            self.commit()
            self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
