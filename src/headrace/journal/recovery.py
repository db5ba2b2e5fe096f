"""Opening what an earlier process left behind: every case by its name (docs/internals/journal.md has the table).

The rule that tells an unfinished write from damage: a position is *proven durable* when something that could only be
written afterwards is there: a commit record at or after it, a later journal file, the durable mark. Unreadable before a
proven position is damage and refused; unreadable after the last proven one is a commit that never finished and is cut.

Before anything that was found is handed out, the last commit is rewritten and synced (a sync that failed in an earlier
process may have left it in the system's cache and not on the disk), and what follows it is zeroed, so that a frame of
the cut commit can never be taken for one of a later commit at the same position.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import Corrupt, HeadraceError
from headrace.journal.files import NO_ROOM_ERRORS, write_all
from headrace.journal.frame import COMMIT_BYTES, find_commit_record, seed_of
from headrace.journal.layout import (
    FILE_HEADER_BYTES,
    IDENTITY_FILE_BYTES,
    IDENTITY_SLOT_BYTES,
    MARK_BYTES,
    SALVAGE_ADVICE,
    Identity,
    Mark,
    decode_file_header,
    decode_identity,
    decode_mark,
    encode_identity,
    encode_mark,
)
from headrace.journal.scan import damage, find_end
from headrace.limits import JOURNAL_SCAN_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.journal.files import FileLayer

__all__ = [
    "FoundFile",
    "Recovered",
    "file_path",
    "journal_files",
    "read_mark",
    "recover",
    "replace_file",
    "save_identity",
]

FILE_SUFFIX: Final = ".journal"
_ZEROS: Final = bytes(JOURNAL_SCAN_BYTES)


class FoundFile(NamedTuple):
    first_position: int
    size_bytes: int
    path: str
    handle: int


class Recovered(NamedTuple):
    """What a directory holds. ``files`` are open; ``mark_handle`` is the durable mark's."""

    identity: Identity
    files: list[FoundFile]
    end_position: int
    mark_handle: int


def file_path(directory: str, first_position: int) -> str:
    return f"{directory}/{first_position:020d}{FILE_SUFFIX}"


def journal_files(files: FileLayer, directory: str) -> list[int]:
    """The first positions of the journal files there, by their names."""
    found = []
    for name in files.names(directory):
        stem = name.removesuffix(FILE_SUFFIX)
        if stem != name and len(stem) == 20 and stem.isascii() and stem.isdigit():
            found.append(int(stem))
    return sorted(found)


def replace_file(files: FileLayer, directory: str, name: str, buffers: list[bytes]) -> None:
    """Give ``name`` this content, durably and never half."""
    path = f"{directory}/{name}"
    handle = files.create(f"{path}.new")
    try:
        write_all(files, handle, buffers, 0)
        files.sync(handle)
    except OSError as error:
        if error.errno in NO_ROOM_ERRORS:
            files.remove(f"{path}.new")
        raise
    finally:
        files.close(handle)
    files.rename(f"{path}.new", path)
    files.sync_directory(directory)


def save_identity(files: FileLayer, directory: str, identity: Identity) -> None:
    """Write a change in place, into the slot that does not hold the present one: needs no room on a full disk."""
    path = f"{directory}/identity"
    handle = files.open(path)
    try:
        _, slot = decode_identity(files.read(handle, IDENTITY_FILE_BYTES, 0), path)
        write_all(files, handle, [encode_identity(identity)], (1 - slot) * IDENTITY_SLOT_BYTES)
        files.sync_data(handle)
    finally:
        files.close(handle)


def recover(files: FileLayer, directory: str, new_identity: Callable[[], bytes]) -> Recovered:
    """Bring the directory into the state a journal can go on from, or say what is wrong with it."""
    names = set(files.names(directory))
    identity = _identity(files, directory, names, new_identity)
    mark = read_mark(files, directory, identity.identity)
    kept, dropped = _kept_files(files, directory, identity)
    opened: list[FoundFile] = []
    try:
        for first_position in kept:
            found = _open_file(files, directory, identity.identity, first_position)
            opened.append(found)
        end_position = _check_chain(files, directory, identity, opened, mark)
        if dropped:
            # A failed sync may have left the newer identity in the cache alone; the files go only after it is durable.
            save_identity(files, directory, identity)
        # Only now that nothing is missing: a leftover might be a file that got the wrong name.
        for name in (*dropped, *_leftovers(files.names(directory))):
            files.remove(f"{directory}/{name}")
        files.sync_directory(directory)
        mark_handle = _start_mark(files, directory, identity.identity, Mark(end_position, clean=False))
    except BaseException:
        for found in opened:
            files.close(found.handle)
        raise
    return Recovered(identity, opened, end_position, mark_handle)


def _identity(files: FileLayer, directory: str, names: set[str], new_identity: Callable[[], bytes]) -> Identity:
    path = f"{directory}/identity"
    if "identity" in names:
        handle = files.open(path)
        try:
            return decode_identity(files.read(handle, IDENTITY_FILE_BYTES, 0), path)[0]
        finally:
            files.close(handle)
    first_positions = journal_files(files, directory)
    if first_positions:
        raise Corrupt(
            f"{path} is missing beside {len(first_positions)} journal files, the first of them "
            f"{file_path(directory, first_positions[0])}; {SALVAGE_ADVICE}"
        )
    # The mark comes first: without an identity it means nothing, and once there is an identity it must be there.
    identity = Identity(new_identity(), 0)
    replace_file(files, directory, "durable", [encode_mark(identity.identity, Mark(0, clean=False))])
    slots = encode_identity(identity).ljust(IDENTITY_FILE_BYTES, b"\0")
    replace_file(files, directory, "identity", [slots])
    return identity


def read_mark(files: FileLayer, directory: str, identity: bytes) -> Mark | None:
    """The durable mark, None when it is missing or unreadable."""
    path = f"{directory}/durable"
    try:
        handle = files.open(path)
    except FileNotFoundError:
        return None
    try:
        return decode_mark(files.read(handle, MARK_BYTES, 0), path, identity)
    finally:
        files.close(handle)


def _start_mark(files: FileLayer, directory: str, identity: bytes, mark: Mark) -> int:
    """Take the clean-stop flag away, durably, before anything is appended."""
    path = f"{directory}/durable"
    try:
        handle = files.open(path)
    except FileNotFoundError:
        handle = files.create(path)
        files.sync_directory(directory)
    try:
        write_all(files, handle, [encode_mark(identity, mark)], 0)
        files.sync_data(handle)
    except BaseException:
        files.close(handle)
        raise
    return handle


def _kept_files(files: FileLayer, directory: str, identity: Identity) -> tuple[list[int], list[str]]:
    """The files still kept, and the names of those wholly before the oldest position: an unfinished truncation."""
    found = journal_files(files, directory)
    kept_from = 0
    while kept_from + 1 < len(found) and found[kept_from + 1] <= identity.oldest_position:
        kept_from += 1
    return found[kept_from:], [f"{position:020d}{FILE_SUFFIX}" for position in found[:kept_from]]


def _leftovers(names: list[str]) -> list[str]:
    """A spare may hold frames of a commit that was never confirmed, at positions that come again: not used again."""
    return [name for name in names if name.startswith("spare-") or name.endswith(".new")]


def _open_file(files: FileLayer, directory: str, identity: bytes, first_position: int) -> FoundFile:
    path = file_path(directory, first_position)
    handle = files.open(path)
    try:
        header = decode_file_header(files.read(handle, FILE_HEADER_BYTES, 0), path)
        size_bytes = files.size(handle)
        if header.identity != identity:
            raise Corrupt(
                f"{path} belongs to another journal (identity {header.identity.hex()}, here {identity.hex()}); "
                f"{SALVAGE_ADVICE}"
            )
        if header.first_position != first_position:
            raise Corrupt(
                f"{path} is not the file its name says: it begins at position {header.first_position} "
                f"(renamed or swapped); {SALVAGE_ADVICE}"
            )
        if header.size_bytes != size_bytes:
            raise damage(
                path,
                first_position,
                first_position + min(size_bytes, header.size_bytes),
                f"it was written with {header.size_bytes} bytes and has {size_bytes} (truncated)",
            )
    except BaseException:
        files.close(handle)
        raise
    return FoundFile(first_position, size_bytes, path, handle)


def _check_chain(
    files: FileLayer, directory: str, identity: Identity, found: list[FoundFile], mark: Mark | None
) -> int:
    """Check that the files join, find the end of the last one, and make what is kept durable. Returns the end."""
    proven = mark.length if mark is not None else 0
    oldest = identity.oldest_position
    if not found:
        if max(proven, oldest) > 0:
            raise _missing(directory, oldest, max(proven, oldest))
        return 0
    if found[0].first_position > oldest:
        raise _missing(directory, oldest, found[0].first_position)
    for file, following in itertools.pairwise(found):
        if following.first_position > file.first_position + file.size_bytes:
            raise _missing(directory, file.first_position + file.size_bytes, following.first_position)
    return _check_last(files, directory, identity.identity, found[-1], mark, proven)


def _check_last(
    files: FileLayer, directory: str, identity: bytes, last: FoundFile, mark: Mark | None, proven: int
) -> int:
    seed = seed_of(identity)
    end = find_end(partial(files.read, last.handle), seed, last.first_position, last.size_bytes)
    limit = last.first_position + last.size_bytes
    if proven > limit:
        raise _missing(directory, limit, proven)
    if end.position < proven:
        raise damage(last.path, last.first_position, end.position, f"everything before position {proven} was durable")
    if end.position <= last.first_position + FILE_HEADER_BYTES + COMMIT_BYTES:
        # A file gets its name after its first commit was synced.
        raise damage(last.path, last.first_position, end.position, "the first commit of a journal file was durable")
    if mark is not None and mark.clean and mark.length == end.position:
        return end.position
    _settle_tail(files, seed, last, end.position, end.last_commit)
    return end.position


def _settle_tail(files: FileLayer, seed: int, last: FoundFile, end_position: int, last_commit: int) -> None:
    """Rewrite the last commit, zero what follows, sync: what was found is then on the disk, and nothing else is."""
    stale: list[int] = []
    position = end_position
    limit = last.first_position + last.size_bytes
    while position < limit:
        # Buffers overlap by a record, so that one across the border is seen.
        size = min(len(_ZEROS) + COMMIT_BYTES, limit - position)
        buffer = files.read(last.handle, size, position - last.first_position)
        if buffer != _ZEROS[: len(buffer)] and buffer.count(0) != len(buffer):
            later = find_commit_record(seed, buffer, position)
            if later is not None:
                why = f"a later commit at position {later} proves it was durable"
                raise damage(last.path, last.first_position, end_position, why)
            stale.append(position)
        position += len(_ZEROS)
    kept = files.read(last.handle, end_position - last_commit, last_commit - last.first_position)
    write_all(files, last.handle, [kept], last_commit - last.first_position)
    for position in stale:
        write_all(files, last.handle, [_ZEROS[: limit - position]], position - last.first_position)
    files.sync_data(last.handle)


def _missing(directory: str, from_position: int, to_position: int) -> HeadraceError:
    return Corrupt(
        f"{directory} lacks a journal file: positions {from_position} to {to_position} were durable and are not there; "
        f"{SALVAGE_ADVICE}"
    )
