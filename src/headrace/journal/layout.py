"""The fixed-size records around the frames: file header, identity, durable mark, snapshot header. Pure codec.

Each begins with an 8-byte magic and a 4-byte version and ends with the crc32c of what stands before it. Decoding tells
three things apart: not ours or damaged (``Corrupt``), ours but of another version (``UnsupportedVersion``), valid.

    file header (64)   magic, version u32, header size u32, identity 16, first position u64, file size u64, zero 12, crc
    identity (56)      magic, version u32, zero 4, identity 16, oldest position u64, snapshot floor u64, zero 4, crc; in
                       two slots, 512 apart
    durable mark (48)  magic, version u32, flags u32 (1 clean stop), identity 16, length u64, zero 4, crc
    snapshot (52)      magic, version u32, zero 4, identity 16, position u64, data size u64, crc of this and the data
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from google_crc32c import extend, value

from headrace.errors import Corrupt, HeadraceError, UnsupportedVersion

__all__ = [
    "FILE_HEADER_BYTES",
    "FORMAT_VERSION",
    "IDENTITY_BYTES",
    "IDENTITY_FILE_BYTES",
    "IDENTITY_SLOT_BYTES",
    "MARK_BYTES",
    "SALVAGE_ADVICE",
    "SNAPSHOT_HEADER_BYTES",
    "FileHeader",
    "Identity",
    "Mark",
    "decode_file_header",
    "decode_identity",
    "decode_mark",
    "decode_snapshot",
    "encode_file_header",
    "encode_identity",
    "encode_mark",
    "encode_snapshot_header",
]

FORMAT_VERSION: Final = 1
SALVAGE_ADVICE: Final = "`headrace verify --data-dir DIR --salvage` saves what is readable"

_FILE_MAGIC: Final = b"HDRJFILE"
_IDENTITY_MAGIC: Final = b"HDRJIDEN"
_MARK_MAGIC: Final = b"HDRJMARK"
_SNAPSHOT_MAGIC: Final = b"HDRJSNAP"

_FILE: Final = Struct("<8sII16sQQ12x")
_IDENTITY: Final = Struct("<8sI4x16sQQ4x")
_MARK: Final = Struct("<8sII16sQ4x")
_SNAPSHOT: Final = Struct("<8sI4x16sQQ")
_CRC: Final = Struct("<I")

FILE_HEADER_BYTES: Final = _FILE.size + 4
IDENTITY_BYTES: Final = _IDENTITY.size + 4
IDENTITY_SLOT_BYTES: Final = 512
IDENTITY_FILE_BYTES: Final = 2 * IDENTITY_SLOT_BYTES
MARK_BYTES: Final = _MARK.size + 4
SNAPSHOT_HEADER_BYTES: Final = _SNAPSHOT.size + 4
_CLEAN_STOP: Final = 1


class FileHeader(NamedTuple):
    identity: bytes
    first_position: int
    size_bytes: int


class Identity(NamedTuple):
    """``snapshot_floor``: once something was let go, a snapshot of at least this position less one must be there."""

    identity: bytes
    oldest_position: int
    snapshot_floor: int = 0


class Mark(NamedTuple):
    length: int
    clean: bool


def encode_file_header(header: FileHeader) -> bytes:
    return _sealed(
        _FILE.pack(
            _FILE_MAGIC,
            FORMAT_VERSION,
            FILE_HEADER_BYTES,
            header.identity,
            header.first_position,
            header.size_bytes,
        )
    )


def decode_file_header(raw: bytes, path: str) -> FileHeader:
    raw = raw[:FILE_HEADER_BYTES]
    _check(raw, FILE_HEADER_BYTES, _FILE_MAGIC, path, "the file header")
    _, _, _, identity, first_position, size_bytes = _FILE.unpack_from(raw)
    return FileHeader(identity, first_position, size_bytes)


def encode_identity(identity: Identity) -> bytes:
    return _sealed(_IDENTITY.pack(_IDENTITY_MAGIC, FORMAT_VERSION, *identity))


def decode_identity(raw: bytes, path: str) -> tuple[Identity, int]:
    """The newer readable slot and its number. A change is written to the other slot, so one torn write leaves one."""
    found: list[tuple[Identity, int]] = []
    refusals: list[HeadraceError] = []
    for slot in (0, 1):
        record = raw[slot * IDENTITY_SLOT_BYTES :][:IDENTITY_BYTES]
        try:
            _check(record, IDENTITY_BYTES, _IDENTITY_MAGIC, path, "the journal's identity")
        except (Corrupt, UnsupportedVersion) as error:
            refusals.append(error)
            continue
        found.append((Identity(*_IDENTITY.unpack_from(record)[2:]), slot))
    if not found:
        raise refusals[0]
    return max(found, key=lambda candidate: candidate[0].oldest_position)


def encode_mark(identity: bytes, mark: Mark) -> bytes:
    body = _MARK.pack(_MARK_MAGIC, FORMAT_VERSION, _CLEAN_STOP if mark.clean else 0, identity, mark.length)
    return _sealed(body)


def decode_mark(raw: bytes, path: str, identity: bytes) -> Mark | None:
    """None when it is unreadable: the mark only adds proof. The mark of another journal is a swapped file."""
    raw = raw[:MARK_BYTES]
    try:
        _check(raw, MARK_BYTES, _MARK_MAGIC, path, "the durable mark")
    except Corrupt:
        return None
    _, _, flags, owner, length = _MARK.unpack_from(raw)
    if owner != identity:
        raise Corrupt(f"{path} belongs to another journal (identity {owner.hex()}, here {identity.hex()})")
    return Mark(length, bool(flags & _CLEAN_STOP))


def encode_snapshot_header(identity: bytes, position: int, buffers: list[bytes]) -> bytes:
    size_bytes = sum(map(len, buffers))
    head = _SNAPSHOT.pack(_SNAPSHOT_MAGIC, FORMAT_VERSION, identity, position, size_bytes)
    crc = value(head)
    for buffer in buffers:
        crc = extend(crc, buffer)
    return head + _CRC.pack(crc)


def decode_snapshot(raw: bytes, path: str, identity: bytes) -> tuple[int, bytes]:
    head = raw[: _SNAPSHOT.size]
    _check_magic_and_version(head, _SNAPSHOT_MAGIC, path, "the snapshot")
    data = raw[SNAPSHOT_HEADER_BYTES:]
    if len(raw) < SNAPSHOT_HEADER_BYTES or extend(value(head), data) != _CRC.unpack_from(raw, _SNAPSHOT.size)[0]:
        raise Corrupt(f"{path} is damaged: the snapshot's checksum does not match; {SALVAGE_ADVICE}")
    _, _, owner, position, _ = _SNAPSHOT.unpack(head)
    if owner != identity:
        raise Corrupt(f"{path} belongs to another journal (identity {owner.hex()}, here {identity.hex()})")
    return position, data


def _sealed(body: bytes) -> bytes:
    return body + _CRC.pack(value(body))


def _check_magic_and_version(raw: bytes, magic: bytes, path: str, what: str) -> None:
    if raw[:8] != magic:
        raise Corrupt(f"{path} is damaged at byte 0: {what} begins with {raw[:8]!r}, not {magic!r}; {SALVAGE_ADVICE}")
    version = int.from_bytes(raw[8:12], "little")
    if len(raw) >= 12 and version != FORMAT_VERSION and version < 1 << 16:
        raise UnsupportedVersion(
            f"{path} was written in format version {version}; this Headrace reads version {FORMAT_VERSION}"
        )


def _check(raw: bytes, size_bytes: int, magic: bytes, path: str, what: str) -> None:
    """A bit flipped in the version is damage; a whole other version is checksummed like this one."""
    whole = len(raw) == size_bytes and value(raw[:-4]) == int.from_bytes(raw[-4:], "little")
    if not whole:
        _check_magic_and_version(raw[:8], magic, path, what)
        raise Corrupt(f"{path} is damaged at byte 0: {what} does not match its checksum; {SALVAGE_ADVICE}")
    _check_magic_and_version(raw, magic, path, what)
