"""Taking a data directory for this process alone, and saying in one sentence why it cannot be had."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, StorageFailed, StorageFull
from headrace.journal.files import NO_ROOM_ERRORS, write_all

if TYPE_CHECKING:
    from headrace.journal.files import FileLayer

__all__ = ["hold", "refusal"]


def hold(files: FileLayer, directory: str) -> int:
    path = f"{directory}/lock"
    try:
        files.make_directory(directory)
        handle = files.lock(path)
    except BlockingIOError as error:
        holder = _holder(files, path)
        if holder == str(os.getpid()):
            raise StorageFailed(
                f"data directory {directory} is held by this process already (process {holder}), as its lock file "
                "says: use what opened it, or close that first"
            ) from error
        process = f" (process {holder})" if holder else ""
        raise StorageFailed(
            f"data directory {directory} is held by another process{process}; stop it or use another directory"
        ) from error
    except OSError as error:
        raise refusal(directory, error) from error
    try:
        write_all(files, handle, [f"{os.getpid():<20}\n".encode()], 0)
    except OSError as error:
        files.close(handle)
        raise refusal(directory, error) from error
    return handle


def _holder(files: FileLayer, path: str) -> str:
    """The number of the process that has it, if that can be told."""
    try:
        handle = files.open(path)
    except OSError:
        return ""
    try:
        text = files.read(handle, 20, 0).decode("ascii", "replace").strip()
    finally:
        files.close(handle)
    return text


def refusal(directory: str, error: OSError) -> HeadraceError:
    reason = error.strerror or str(error)
    if error.errno in NO_ROOM_ERRORS:
        return StorageFull(f"no room in data directory {directory}: {reason}")
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return StorageFailed(f"data directory {directory} is not writable: {reason}")
    return StorageFailed(f"data directory {directory} cannot be opened: {reason}")
