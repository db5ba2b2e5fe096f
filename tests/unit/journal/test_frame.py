"""Frames and the fixed records: what their bytes are, and what is refused."""

from __future__ import annotations

import pytest

from headrace.errors import Corrupt, UnsupportedVersion
from headrace.journal.frame import (
    COMMIT_BYTES,
    FRAME_OVERHEAD_BYTES,
    commit_record,
    encode_frame,
    encode_large_frame,
    find_commit_record,
    find_frame,
    seed_of,
)
from headrace.journal.layout import (
    FILE_HEADER_BYTES,
    IDENTITY_FILE_BYTES,
    IDENTITY_SLOT_BYTES,
    FileHeader,
    Identity,
    Mark,
    decode_file_header,
    decode_identity,
    decode_mark,
    encode_file_header,
    encode_identity,
    encode_mark,
)

IDENTITY = bytes(range(16))
SEED = seed_of(IDENTITY)


def test_frame_bytes_are_as_documented() -> None:
    """Frozen: a later version must still read these."""
    assert encode_frame(SEED, 0x40, 7, b"body").hex() == "400000000000000704000000626f6479" + FROZEN_CRC
    assert FRAME_OVERHEAD_BYTES == COMMIT_BYTES == 16


FROZEN_CRC = "d3d51f73"


def test_large_frame_is_the_same_bytes_in_pieces() -> None:
    pieces = [b"ab" * 9000, b"", b"c"]
    whole = b"".join(pieces)
    assert b"".join(encode_large_frame(SEED, 99, 3, pieces, len(whole))) == encode_frame(SEED, 99, 3, whole)


@pytest.mark.parametrize("base", [0, 5, (1 << 24) - 40, (3 << 24) - 100, (1 << 40) + 12345])
def test_a_commit_record_is_found_wherever_it_lies(base: int) -> None:
    for at in (0, 1, 37, 38, 39, 40, 41, 90, 184):
        buffer = bytearray(b"\xff" * 200)
        buffer[at : at + COMMIT_BYTES] = commit_record(SEED, base + at)
        assert find_commit_record(SEED, bytes(buffer), base) == base + at
        assert find_commit_record(SEED, bytes(buffer), base + 1) is None, "its position does not fit there"
        assert find_commit_record(SEED + 1, bytes(buffer), base) is None, "it is another journal's"


def test_a_frame_is_found_behind_rubbish() -> None:
    base = (1 << 24) - 50
    frame = encode_frame(SEED, base + 60, 4, b"x" * 100)
    buffer = b"?" * 60 + frame + b"?" * 10
    assert find_frame(SEED, buffer, base) == base + 60
    assert find_frame(SEED, buffer[:-12], base) is None


def test_file_header_round_trip_and_refusals() -> None:
    raw = encode_file_header(FileHeader(IDENTITY, 4096, 65536))
    assert len(raw) == FILE_HEADER_BYTES
    assert decode_file_header(raw + b"more", "f") == FileHeader(IDENTITY, 4096, 65536)
    for bit in range(8 * len(raw)):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt, match="f is damaged at byte 0"):
            decode_file_header(bytes(damaged), "f")
    with pytest.raises(Corrupt):
        decode_file_header(raw[:-1], "f")


def test_a_newer_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.journal.layout.FORMAT_VERSION", 2)
    raw = encode_file_header(FileHeader(IDENTITY, 0, 65536))
    slots = encode_identity(Identity(IDENTITY, 0)).ljust(IDENTITY_FILE_BYTES, b"\0")
    monkeypatch.undo()
    with pytest.raises(UnsupportedVersion, match="f was written in format version 2; this Headrace reads version 1"):
        decode_file_header(raw, "f")
    with pytest.raises(UnsupportedVersion, match="format version 2"):
        decode_identity(slots, "f")


def test_identity_takes_the_newer_slot_and_outlives_a_torn_one() -> None:
    older, newer = Identity(IDENTITY, 100, 0), Identity(IDENTITY, 900, 801)
    raw = bytearray(encode_identity(older).ljust(IDENTITY_SLOT_BYTES, b"\0") + encode_identity(newer))
    assert decode_identity(bytes(raw), "identity") == (newer, 1)
    raw[IDENTITY_SLOT_BYTES + 20] ^= 1
    assert decode_identity(bytes(raw), "identity") == (older, 0)
    raw[20] ^= 1
    with pytest.raises(Corrupt, match="identity is damaged"):
        decode_identity(bytes(raw), "identity")


def test_an_unreadable_mark_proves_nothing_and_a_foreign_one_is_refused() -> None:
    raw = encode_mark(IDENTITY, Mark(12345, clean=True))
    assert decode_mark(raw, "durable", IDENTITY) == Mark(12345, clean=True)
    assert decode_mark(raw[:-1] + b"\xff", "durable", IDENTITY) is None
    assert decode_mark(b"", "durable", IDENTITY) is None
    with pytest.raises(Corrupt, match="another journal"):
        decode_mark(raw, "durable", bytes(16))
