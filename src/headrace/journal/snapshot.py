"""Snapshots beside the journal files: the state up to a position, replaced as a whole.

A snapshot is prepared under another name, synced, renamed, and the directory synced; only then the older ones go. So
there is always a whole one, and a damaged newest one is an error: the journal it stands for may have been let go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import Corrupt
from headrace.journal.layout import SALVAGE_ADVICE, decode_snapshot, encode_snapshot_header
from headrace.journal.recovery import replace_file

if TYPE_CHECKING:
    from headrace.journal.files import FileLayer

__all__ = ["load_snapshot", "save_snapshot", "snapshot_floor"]

_PREFIX = "snapshot-"


def snapshot_positions(files: FileLayer, directory: str) -> list[int]:
    found = []
    for name in files.names(directory):
        stem = name.removeprefix(_PREFIX)
        if stem != name and len(stem) == 20 and stem.isascii() and stem.isdigit():
            found.append(int(stem))
    return sorted(found)


def save_snapshot(files: FileLayer, directory: str, identity: bytes, position: int, buffers: list[bytes]) -> None:
    """Durably replace the older snapshots."""
    older = [known for known in snapshot_positions(files, directory) if known < position]
    content = [encode_snapshot_header(identity, position, buffers), *buffers]
    replace_file(files, directory, f"{_PREFIX}{position:020d}", content)
    for known in older:
        files.remove(f"{directory}/{_PREFIX}{known:020d}")


def snapshot_floor(files: FileLayer, directory: str) -> int:
    """What is noted before anything is let go: one more than the newest snapshot's position, 0 without one."""
    return max(snapshot_positions(files, directory), default=-1) + 1


def load_snapshot(
    files: FileLayer, directory: str, identity: bytes, *, floor: int, durable: int
) -> tuple[int, bytes] | None:
    """The newest snapshot; ``durable`` is where the journal ends, ``floor`` what was noted at the last truncation."""
    positions = snapshot_positions(files, directory)
    if max(positions, default=-1) + 1 < floor:
        raise Corrupt(
            f"{directory} lacks the snapshot of position {floor - 1} or a later one, in whose place journal files were "
            f"let go; {SALVAGE_ADVICE}"
        )
    if not positions:
        return None
    path = f"{directory}/{_PREFIX}{positions[-1]:020d}"
    handle = files.open(path)
    try:
        position, data = decode_snapshot(files.read(handle, files.size(handle), 0), path, identity)
    finally:
        files.close(handle)
    if position != positions[-1]:
        raise Corrupt(f"{path} is not the snapshot its name says: it is for position {position}; {SALVAGE_ADVICE}")
    if position > durable:
        raise Corrupt(f"{path} is for position {position}, but the journal ends at {durable}; {SALVAGE_ADVICE}")
    return position, data
