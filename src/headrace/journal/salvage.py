"""Looking over a journal that is not open, and saving the rest of a damaged one.

``verify`` reads everything and changes nothing. ``salvage`` first copies each damaged file to ``damaged-…``, then
writes one gap frame over each unreadable span inside a file. Every other frame keeps its position, so that what refers
to positions still holds, and the next ``verify`` is clean. What was in a span is lost, and both functions say where.

Salvage closes gaps inside files whose header is readable. It does not invent what is wholly gone: a missing file, a
lost identity or snapshot stays an error, to be answered from a backup.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import Corrupt, HeadraceError, StorageFailed
from headrace.journal.files import FileLayer, RealFiles, write_all
from headrace.journal.frame import (
    FRAME_OVERHEAD_BYTES,
    KIND_GAP,
    encode_large_frame,
    find_commit_record,
    find_frame,
    seed_of,
)
from headrace.journal.hold import hold, refusal
from headrace.journal.layout import (
    FILE_HEADER_BYTES,
    IDENTITY_FILE_BYTES,
    Identity,
    decode_file_header,
    decode_identity,
)
from headrace.journal.recovery import file_path, journal_files, read_mark, replace_file
from headrace.journal.scan import find_end
from headrace.journal.snapshot import load_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Finding", "salvage", "verify"]


class Finding(NamedTuple):
    """One thing that is wrong. A span that salvage can close has its positions, everything else has none."""

    path: str
    message: str
    start: int = -1
    end: int = -1


def verify(directory: str | os.PathLike[str], *, files: FileLayer | None = None) -> list[Finding]:
    """Read every byte that should be durable; nothing found means a journal that opens and reads."""
    return _held(directory, files, _findings)


def salvage(directory: str | os.PathLike[str], *, files: FileLayer | None = None) -> list[Finding]:
    """Close what can be closed and return everything that was found; ``verify`` says what is left."""
    return _held(directory, files, _close_gaps)


def _held(
    directory: str | os.PathLike[str],
    files: FileLayer | None,
    work: Callable[[FileLayer, str], list[Finding]],
) -> list[Finding]:
    io: FileLayer = RealFiles() if files is None else files
    where = os.fspath(directory)
    if files is None and not os.path.isdir(where):
        raise StorageFailed(f"data directory {where} does not exist")
    lock_handle = hold(io, where)
    try:
        return work(io, where)
    except OSError as error:
        raise refusal(where, error) from error
    finally:
        io.close(lock_handle)


def _findings(io: FileLayer, directory: str) -> list[Finding]:
    try:
        identity = _read_identity(io, directory)
    except HeadraceError as error:
        return [Finding(f"{directory}/identity", error.message)]
    found: list[Finding] = []
    proven = 0
    try:
        mark = read_mark(io, directory, identity.identity)
        proven = mark.length if mark is not None else 0
    except HeadraceError as error:
        found.append(Finding(f"{directory}/durable", error.message))
    firsts = journal_files(io, directory)
    expected = identity.oldest_position
    for at, first_position in enumerate(firsts):
        path = file_path(directory, first_position)
        if at == 0 and first_position > expected:
            found.append(Finding(directory, f"positions {expected} to {first_position} are missing"))
        stop = firsts[at + 1] if at + 1 < len(firsts) else None
        if stop is not None and stop <= identity.oldest_position:
            continue
        found += _file_findings(io, path, first_position, identity.identity, stop, proven)
    if not firsts and max(expected, proven) > 0:
        found.append(Finding(directory, f"positions {expected} to {max(expected, proven)} are missing"))
    try:
        end = firsts[-1] + (1 << 40) if firsts else 0
        load_snapshot(io, directory, identity.identity, floor=identity.snapshot_floor, durable=end)
    except HeadraceError as error:
        found.append(Finding(directory, error.message))
    return found


def _read_identity(io: FileLayer, directory: str) -> Identity:
    path = f"{directory}/identity"
    try:
        handle = io.open(path)
    except FileNotFoundError:
        raise Corrupt(f"{path} is missing") from None
    try:
        return decode_identity(io.read(handle, IDENTITY_FILE_BYTES, 0), path)[0]
    finally:
        io.close(handle)


def _file_findings(
    io: FileLayer, path: str, first_position: int, identity: bytes, stop: int | None, proven: int
) -> list[Finding]:
    """``stop`` is where the next file begins, None for the last one."""
    handle = io.open(path)
    try:
        size_bytes = io.size(handle)
        try:
            header = decode_file_header(io.read(handle, FILE_HEADER_BYTES, 0), path)
        except HeadraceError as error:
            return [Finding(path, error.message)]
        if header.identity != identity or header.first_position != first_position:
            return [Finding(path, f"{path} is another file: its header says position {header.first_position}")]
        found = []
        if header.size_bytes != size_bytes:
            found.append(Finding(path, f"{path} was written with {header.size_bytes} bytes and has {size_bytes}"))
        limit = first_position + size_bytes if stop is None else stop
        if limit > first_position + size_bytes:
            found.append(Finding(path, f"positions {first_position + size_bytes} to {limit} are missing"))
            limit = first_position + size_bytes
        proven = limit if stop is not None else min(proven, limit)
        return found + _spans(partial(io.read, handle), path, first_position, seed_of(identity), limit, proven)
    finally:
        io.close(handle)


def _spans(
    read: Callable[[int, int], bytes], path: str, first_position: int, seed: int, limit: int, proven: int
) -> list[Finding]:
    """The unreadable spans before ``proven`` or before a commit record; what lies after is an unfinished commit."""
    found: list[Finding] = []
    position = first_position + FILE_HEADER_BYTES
    while position < limit:
        position = find_end(read, seed, first_position, limit - first_position, position).position
        rest = read(limit - position, position - first_position)
        needed = max(proven, find_commit_record(seed, rest, position) or 0)
        if position >= needed:
            break
        following = find_frame(seed, rest, position)
        end = needed if following is None else min(following, needed)
        message = f"{path} is unreadable from byte {position - first_position} to {end - first_position}"
        found.append(Finding(path, f"{message} (positions {position} to {end})", position, end))
        position = end
    return found


def _close_gaps(io: FileLayer, directory: str) -> list[Finding]:
    found = _findings(io, directory)
    spans = [finding for finding in found if finding.end - finding.start >= FRAME_OVERHEAD_BYTES]
    if not spans:
        return found
    seed = seed_of(_read_identity(io, directory).identity)
    for path in dict.fromkeys(finding.path for finding in spans):
        handle = io.open(path)
        try:
            name = os.path.basename(path)
            replace_file(io, directory, f"damaged-{name}", [io.read(handle, io.size(handle), 0)])
            first_position = decode_file_header(io.read(handle, FILE_HEADER_BYTES, 0), path).first_position
            for _, _, start, end in (finding for finding in spans if finding.path == path):
                body = bytes(end - start - FRAME_OVERHEAD_BYTES)
                gap = encode_large_frame(seed, start, KIND_GAP, [body], len(body))
                write_all(io, handle, gap, start - first_position)
            io.sync_data(handle)
        finally:
            io.close(handle)
    return found
