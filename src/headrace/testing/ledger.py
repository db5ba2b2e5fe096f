"""What a journal was told and what it confirmed, kept beside it, and compared with what is there after a crash.

The law: what was confirmed and not let go is there, in order, as it was written; what is there was written, in that
order, without a hole. Frames that were appended and not confirmed may be there or not; once a recovery has handed them
out, they count as confirmed.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from headrace.journal.frame import Frame

if TYPE_CHECKING:
    from headrace.journal.contract import Journal

__all__ = ["JournalLedger", "Violation"]


class Violation(AssertionError):
    """The journal broke its promise."""


class JournalLedger:
    """The record a checker keeps for itself, from what callers of the journal were told."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.confirmed_position = 0
        self.released_position = 0
        self.snapshot: tuple[int, bytes] | None = None
        self.snapshot_unsure: tuple[int, bytes] | None = None

    def appended(self, position: int, kind: int, body: bytes) -> None:
        if self.frames and position <= self.frames[-1].position:
            raise Violation(f"position {position} was given after {self.frames[-1].position}")
        self.frames.append(Frame(position, kind, body))

    def confirmed(self, position: int) -> None:
        """The journal said that everything before this position is durable."""
        self.confirmed_position = max(self.confirmed_position, position)

    def released(self, position: int) -> None:
        """The journal may let go of what lies before this position."""
        self.released_position = max(self.released_position, position)

    def snapshot_begun(self, position: int, data: bytes) -> None:
        self.snapshot_unsure = (position, data)

    def snapshot_done(self) -> None:
        self.snapshot, self.snapshot_unsure = self.snapshot_unsure, None

    def check(self, journal: Journal) -> None:
        """Compare with a journal that was just opened, and go on from what it has."""
        found = list(journal.read())
        known = [frame.position for frame in self.frames]
        start = bisect_left(known, found[0].position) if found else len(known)
        expected = self.frames[start : start + len(found)]
        for ours, theirs in zip(expected, found, strict=False):
            if ours != theirs:
                raise Violation(f"read {theirs!r:.120}, written was {ours!r:.120}")
        if len(found) > len(expected):
            raise Violation(f"read {found[len(expected)]!r:.120}, which was never written")
        first_required = bisect_left(known, self.released_position)
        required = bisect_left(known, self.confirmed_position)
        if found and start > first_required:
            raise Violation(f"frames before position {found[0].position} are gone, kept from {self.released_position}")
        reached = start + len(found) if found else first_required
        if reached < required:
            raise Violation(
                f"{required - reached} confirmed frames are gone, from position {known[reached]}; "
                f"confirmed was {self.confirmed_position}"
            )
        self._check_snapshot(journal.load_snapshot())
        for frame in found[:: max(1, len(found) // 5)]:
            if journal.read_frame(frame.position) != frame:
                raise Violation(f"read_frame({frame.position}) differs from what read() gave")
        del self.frames[reached:]
        self.confirmed_position = journal.durable_position

    def _check_snapshot(self, found: tuple[int, bytes] | None) -> None:
        if found != self.snapshot and (found is None or found != self.snapshot_unsure):
            raise Violation(f"the snapshot is {found!r:.80}, saved was {self.snapshot!r:.80}")
        self.snapshot, self.snapshot_unsure = found, None
