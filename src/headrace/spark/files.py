"""Opening sealed files by what the broker calls them: a URI that is taken literally.

What looks like percent-encoding in such a URI is part of the file's name (the topic ``a/b`` lies in ``topic=a%2Fb``),
and pyarrow would decode it; so only the part before the path is given to pyarrow as a URI.
"""

from __future__ import annotations

from typing import Any

__all__ = ["exists", "opened"]


def _located(uri: str) -> tuple[Any, str]:
    from pyarrow.fs import FileSystem, LocalFileSystem

    scheme, _, rest = uri.partition("://")
    if scheme == "file":
        return LocalFileSystem(), rest
    authority, _, path = rest.partition("/")
    file_system, root = FileSystem.from_uri(f"{scheme}://{authority}/")
    return file_system, f"{root.rstrip('/')}/{path}"


def exists(uri: str) -> bool:
    """Whether this process reaches the file."""
    from pyarrow import ArrowException

    try:
        file_system, path = _located(uri)
        return bool(file_system.get_file_info(path).is_file)
    except (OSError, ArrowException):
        return False


def opened(uri: str) -> Any:
    """The Parquet file, or None where this process does not reach it (another machine, or let go of meanwhile): the
    broker has what is in it."""
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    try:
        file_system, path = _located(uri)
        return pq.ParquetFile(path, filesystem=file_system, pre_buffer=True, page_checksum_verification=True)
    except (OSError, ArrowException):
        return None
