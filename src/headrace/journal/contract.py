"""What every journal does, whatever it is made of.

A journal is an endless stream of frames. ``append`` puts a frame at the end; it is durable once ``durable_position``
has reached it. A position that is waited for may be that of a frame or an ``end_position``: both mean "what was
appended up to here". Commits are whole rounds: everything appended while the round before was being synced.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.histogram import SECONDS_BOUNDS_NS, SIZE_BOUNDS_BYTES, Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.errors import HeadraceError
    from headrace.journal.frame import Frame

__all__ = ["Journal", "JournalFile", "JournalStats"]


class JournalFile(NamedTuple):
    """One file of the stream; ``sealed`` means nothing will be added to it."""

    first_position: int
    end_position: int
    path: str
    sealed: bool


@dataclass(slots=True)
class JournalStats:
    """Plain counters since the journal was opened."""

    frames: int = 0
    bytes: int = 0
    commits: int = 0
    fsyncs: int = 0
    fsync_last_ns: int = 0
    fsync_total_ns: int = 0
    files_created: int = 0
    files_recycled: int = 0
    fsync_ns: Histogram = field(default_factory=lambda: Histogram(SECONDS_BOUNDS_NS))
    commit_bytes: Histogram = field(default_factory=lambda: Histogram(SIZE_BOUNDS_BYTES))


class Journal(Protocol):
    """The durable record of a shard."""

    stats: JournalStats

    @property
    def end_position(self) -> int:
        """Where the last appended frame ends."""
        ...

    @property
    def durable_position(self) -> int:
        """Everything before it is durable."""
        ...

    @property
    def first_position(self) -> int:
        """The oldest position that is still kept."""
        ...

    def append(self, kind: int, *buffers: bytes | memoryview, reserve: bool = False) -> int:
        """Add one frame to the pending round and return its position. Its body is the buffers one after the other; they
        must not change afterwards. ``reserve`` may use the room kept back for a full disk."""
        ...

    def append_many(self, frames: Sequence[tuple[int, bytes]], *, reserve: bool = False) -> list[int]:
        """Add the frames in order and return their positions."""
        ...

    def commit(self) -> int:
        """Make everything appended so far durable, and return the durable position."""
        ...

    def wait_durable(self, position: int, timeout: float | None = None) -> None:
        """Return when the position is durable; any number of threads share one sync."""
        ...

    async def durable(self, position: int) -> None:
        """The same for tasks, without blocking the event loop."""
        ...

    def commit_soon(self) -> None:
        """Have what was appended made durable without waiting for it."""
        ...

    def on_durable(self, callback: Callable[[int, HeadraceError | None], None]) -> None:
        """Call back after each commit with the durable position, and with the error once the journal has failed. It is
        called in the thread that committed and must neither block nor call the journal."""
        ...

    def read(self, from_position: int | None = None) -> Iterator[Frame]:
        """The durable frames from a position on (default: the oldest kept), in order."""
        ...

    def read_frame(self, position: int) -> Frame:
        """The frame at a position that ``append`` or ``read`` returned, durable or not."""
        ...

    def truncate_before(self, position: int) -> None:
        """Let go of what lies before the position; whole files only, so older frames may stay."""
        ...

    def save_snapshot(self, position: int, *buffers: bytes | memoryview) -> None:
        """Keep the data as the state up to the position, durably, in place of older snapshots."""
        ...

    def load_snapshot(self) -> tuple[int, bytes] | None:
        """The newest snapshot with its position."""
        ...

    def files(self) -> list[JournalFile]:
        """The files of the stream, oldest first."""
        ...

    def close(self) -> None:
        """Commit, mark the clean stop, let go of everything."""
        ...
