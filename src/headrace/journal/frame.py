"""Frames: what a position in the journal holds. Pure codec, no I/O.

     0    8  word: position (low 56 bits), kind (high 8 bits)
     8    4  n, length of the body
    12    n  body
  12+n    4  crc32c of all bytes before, continued from the journal's seed

The crc stands behind what it covers, so that checking a frame is one slice and one call: continued over its own
little-endian bytes a CRC-32C always ends in ``CRC_RESIDUE``. The seed is the crc of the journal's identity: a frame of
another journal never checks out here. The word states the position: a frame found anywhere else is not a frame.

Kinds 0–239 belong to the caller. 255 is the commit record: empty, its own position is the length that was durable when
it was written. 254 is a gap that salvage wrote over something unreadable.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from google_crc32c import extend, value

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "COMMIT_BYTES",
    "CRC_RESIDUE",
    "FRAME_HEAD",
    "FRAME_OVERHEAD_BYTES",
    "KIND_COMMIT",
    "KIND_GAP",
    "KIND_MAX",
    "KIND_SHIFT",
    "POSITION_MASK",
    "Frame",
    "commit_record",
    "encode_frame",
    "encode_large_frame",
    "find_commit_record",
    "find_frame",
    "seed_of",
]

FRAME_HEAD: Final = Struct("<QI")
FRAME_OVERHEAD_BYTES: Final = FRAME_HEAD.size + 4
COMMIT_BYTES: Final = FRAME_OVERHEAD_BYTES
KIND_SHIFT: Final = 56
POSITION_MASK: Final = (1 << KIND_SHIFT) - 1
KIND_MAX: Final = 239
KIND_GAP: Final = 254
KIND_COMMIT: Final = 255
CRC_RESIDUE: Final = 0x48674BC7


class Frame(NamedTuple):
    """One frame as it was appended. ``position`` is where it begins in the endless stream."""

    position: int
    kind: int
    body: bytes | memoryview


def seed_of(identity: bytes) -> int:
    """Where the crc of every frame of this journal starts."""
    return int(value(identity))


def encode_frame(seed: int, position: int, kind: int, body: bytes) -> bytes:
    """The frame as one buffer."""
    record = FRAME_HEAD.pack(position | kind << KIND_SHIFT, len(body)) + body
    crc: int = extend(seed, record)
    return record + crc.to_bytes(4, "little")


def encode_large_frame(seed: int, position: int, kind: int, buffers: list[bytes], size_bytes: int) -> list[bytes]:
    """The frame as buffers to be written one after the other: the body is not copied."""
    head = FRAME_HEAD.pack(position | kind << KIND_SHIFT, size_bytes)
    crc = extend(seed, head)
    for buffer in buffers:
        crc = extend(crc, buffer)
    return [head, *buffers, crc.to_bytes(4, "little")]


def commit_record(seed: int, position: int) -> bytes:
    """What every commit begins with."""
    return encode_frame(seed, position, KIND_COMMIT, b"")


def find_commit_record(seed: int, buffer: bytes, base_position: int) -> int | None:
    """The position of the first valid commit record anywhere in ``buffer``, whose first byte has ``base_position``."""
    zero_length = bytes(4)
    for position in _claimed_positions(buffer, base_position, bytes((KIND_COMMIT,)) + zero_length):
        at = position - base_position
        record = buffer[at : at + COMMIT_BYTES]
        if len(record) == COMMIT_BYTES and extend(seed, record) == CRC_RESIDUE:
            return position
    return None


def find_frame(seed: int, buffer: bytes, base_position: int) -> int | None:
    """The position of the first valid frame of any kind in ``buffer``: where salvage picks up again."""
    for position in _claimed_positions(buffer, base_position, b""):
        at = position - base_position
        if at + FRAME_OVERHEAD_BYTES > len(buffer):
            continue
        end = at + FRAME_OVERHEAD_BYTES + FRAME_HEAD.unpack_from(buffer, at)[1]
        if end <= len(buffer) and extend(seed, buffer[at:end]) == CRC_RESIDUE:
            return position
    return None


def _claimed_positions(buffer: bytes, base_position: int, after_position: bytes) -> Iterator[int]:
    """Where the seven bytes of the own position stand, followed by ``after_position``.

    The four high bytes of a position are the same for 16 MiB, so a plain substring search finds the candidates.
    """
    span_bits = 24
    end = len(buffer)
    block = base_position >> span_bits
    while (block << span_bits) - base_position < end:
        needle = block.to_bytes(4, "little") + after_position
        low = max(0, (block << span_bits) - base_position)
        high = min(end, ((block + 1) << span_bits) - base_position)
        found = buffer.find(needle, low + 3)
        while 0 <= found < high + 3:
            position = base_position + found - 3
            if int.from_bytes(buffer[found - 3 : found + 4], "little") == position:
                yield position
            found = buffer.find(needle, found + 1)
        block += 1
