"""The journal that keeps everything in memory: the same contract, no disk, nothing survives the process.

Positions run as on disk (frame overhead included, a commit record's width between rounds), so that nothing above
can come to depend on which journal it has.
"""

from __future__ import annotations

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
        "_durable",
        "_first",
        "_next",
        "_positions",
        "_snapshot",
        "end_position",
        "stats",
    )

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._bodies: list[tuple[int, bytes]] = []
        self._first = 0
        self.end_position = 0
        self._next = COMMIT_BYTES
        self._durable = 0
        self._snapshot: tuple[int, bytes] | None = None
        self._callbacks: list[Callable[[int, HeadraceError | None], None]] = []
        self._closed = False
        self.stats = JournalStats()

    @property
    def durable_position(self) -> int:
        return self._durable

    @property
    def first_position(self) -> int:
        return self._first

    def append(self, kind: int, *buffers: bytes | memoryview, reserve: bool = False) -> int:
        if not 0 <= kind <= KIND_MAX:
            raise InvalidArgument(f"frame kind {kind} is not between 0 and {KIND_MAX}")
        if self._closed:
            raise Closed("the journal is closed")
        body = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        if type(body) is not bytes:
            body = bytes(body)
        position = self._next
        self._positions.append(position)
        self._bodies.append((kind, body))
        self._next = self.end_position = position + FRAME_OVERHEAD_BYTES + len(body)
        self.stats.frames += 1
        return position

    def append_many(self, frames: Sequence[tuple[int, bytes]], *, reserve: bool = False) -> list[int]:
        append = self.append
        return [append(kind, body) for kind, body in frames]

    def commit(self) -> int:
        if self._closed:
            raise Closed("the journal is closed")
        end = self.end_position
        if end != self._durable:
            stats = self.stats
            stats.commits += 1
            stats.bytes += end - self._durable
            stats.commit_bytes.observe(end - self._durable)
            self._durable = end
            self._next = end + COMMIT_BYTES
            for callback in self._callbacks:
                callback(end, None)
        return end

    def wait_durable(self, position: int, timeout: float | None = None) -> None:
        if position > self._durable:
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
        return self._frames(start, self._durable)

    def _frames(self, start: int, stop: int) -> Iterator[Frame]:
        first, end = bisect_left(self._positions, start), bisect_left(self._positions, stop)
        for position, (kind, body) in zip(self._positions[first:end], self._bodies[first:end], strict=True):
            yield Frame(position, kind, body)

    def read_frame(self, position: int) -> Frame:
        at = bisect_left(self._positions, position)
        if at == len(self._positions) or self._positions[at] != position:
            raise InvalidArgument(
                f"no frame begins at position {position}; the journal holds {self._first} to {self.end_position}"
            )
        kind, body = self._bodies[at]
        return Frame(position, kind, body)

    def truncate_before(self, position: int) -> None:
        if position > self._durable:
            raise InvalidArgument(f"position {position} is not durable; durable is {self._durable}")
        at = bisect_left(self._positions, position)
        del self._bodies[:at]
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
