"""Walking the frames of one journal file: the two loops recovery spends its time in.

Both read in big buffers and check each frame with one slice and one crc call. ``scan_frames`` walks a span that is
known to be durable: anything invalid in it is damage. ``find_end`` walks a file whose end is not known: it stops at the
first invalid frame and leaves the judgement to the caller. Nothing is allocated for a length that the file cannot hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from google_crc32c import extend

from headrace.errors import Corrupt
from headrace.journal.frame import (
    CRC_RESIDUE,
    FRAME_HEAD,
    FRAME_OVERHEAD_BYTES,
    KIND_COMMIT,
    KIND_MAX,
    KIND_SHIFT,
    POSITION_MASK,
    Frame,
)
from headrace.journal.layout import FILE_HEADER_BYTES, SALVAGE_ADVICE
from headrace.limits import JOURNAL_SCAN_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["End", "damage", "find_end", "scan_frames"]


class End(NamedTuple):
    """Where the valid frames of a file end, and where its last commit begins (-1: there is none)."""

    position: int
    last_commit: int


def damage(path: str, first_position: int, position: int, why: str) -> Corrupt:
    """The error that names the place and the way out."""
    return Corrupt(
        f"{path} is damaged at byte {position - first_position} (position {position}): {why}; {SALVAGE_ADVICE}"
    )


def scan_frames(
    read: Callable[[int, int], bytes], seed: int, first_position: int, start: int, stop: int, path: str
) -> Iterator[Frame]:
    """The caller's frames from position ``start`` to ``stop``, both frame boundaries; ``Corrupt`` at an unreadable one.

    ``read(size, offset)`` reads the file whose first byte has ``first_position``.
    """
    head_at, overhead, new, residue = FRAME_HEAD.unpack_from, FRAME_OVERHEAD_BYTES, tuple.__new__, CRC_RESIDUE
    position = start
    want = JOURNAL_SCAN_BYTES
    while position < stop:
        buffer = read(min(want, stop - position), position - first_position)
        size = len(buffer)
        base = position
        at = 0
        while at + overhead <= size:
            word, length = head_at(buffer, at)
            if word & POSITION_MASK != base + at:
                raise damage(path, first_position, base + at, "no frame begins where one was durable")
            after = at + overhead + length
            if after > size:
                break
            record = buffer[at:after]
            if extend(seed, record) != residue:
                raise damage(path, first_position, base + at, "the frame does not match its checksum")
            kind = word >> KIND_SHIFT
            if kind <= KIND_MAX:
                yield new(Frame, (base + at, kind, record[12:-4]))
            at = after
        position = base + at
        if at:
            want = JOURNAL_SCAN_BYTES
            continue
        # Not one whole frame in the buffer: the frame is larger than it, or the file ends here.
        want = overhead if size < overhead else overhead + head_at(buffer, 0)[1]
        if want <= size or want > stop - position or size < min(JOURNAL_SCAN_BYTES, stop - position):
            raise damage(path, first_position, position, "the frame reaches beyond the end of the file's durable part")


def find_end(
    read: Callable[[int, int], bytes], seed: int, first_position: int, size_bytes: int, start: int | None = None
) -> End:
    """Walk a file from its first frame, or from ``start``, to the first invalid one."""
    head_at, overhead, residue = FRAME_HEAD.unpack_from, FRAME_OVERHEAD_BYTES, CRC_RESIDUE
    mask, commit = POSITION_MASK, KIND_COMMIT << KIND_SHIFT
    stop = first_position + size_bytes
    position = first_position + FILE_HEADER_BYTES if start is None else start
    last_commit = -1
    want = JOURNAL_SCAN_BYTES
    while position < stop:
        buffer = read(min(want, stop - position), position - first_position)
        size = len(buffer)
        base = position
        at = 0
        while at + overhead <= size:
            word, length = head_at(buffer, at)
            if word & mask != base + at:
                return End(base + at, last_commit)
            after = at + overhead + length
            if after > size:
                break
            if extend(seed, buffer[at:after]) != residue:
                return End(base + at, last_commit)
            if word >= commit:
                last_commit = base + at
            at = after
        position = base + at
        if at:
            want = JOURNAL_SCAN_BYTES
            continue
        want = overhead if size < overhead else overhead + head_at(buffer, 0)[1]
        if want <= size or want > stop - position or size < min(JOURNAL_SCAN_BYTES, stop - position):
            break
    return End(position, last_commit)
