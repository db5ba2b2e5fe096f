"""Where sealed files lie: a place named by a URI, into which a file comes whole or not at all.

    file:///var/lib/headrace/log, or a path    the local disk: temporary name, fsync, rename, fsync of the directory
    s3://bucket/prefix, gs://…, hdfs://…       whatever pyarrow.fs opens: an object appears when it is closed

A path inside a store is relative, made of ``name=value`` levels whose values are percent-encoded (``encoded``): no name
that a user chose becomes a file name as it is.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote, unquote, urlsplit

from xxhash import xxh3_64_hexdigest

from headrace.errors import InvalidArgument, StorageFailed, StorageFull
from headrace.journal import FileLayer, RealFiles
from headrace.journal.files import NO_ROOM_ERRORS, write_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["ArrowStore", "LocalStore", "Store", "encoded", "open_store"]

TEMPORARY: Final = ".new"
_ENCODED_CHARS_MAX: Final = 200
"""A directory's name may have 255 bytes with its ``topic=``; a longer value is cut and told apart by a hash."""


def encoded(name: str) -> str:
    """A user's name as part of a path: percent-encoded, never longer than a file name may be.

    >>> encoded("orders/eu north")
    'orders%2Feu%20north'
    >>> encoded("..")
    '%2E%2E'
    """
    text = quote(name, safe="").replace("~", "%7E")
    if set(name) <= {"."}:
        text = "%2E" * len(name)
    if len(text) <= _ENCODED_CHARS_MAX:
        return text
    cut = text[: _ENCODED_CHARS_MAX - 20]
    if "%" in cut[-2:]:
        cut = cut[: cut.rindex("%")]
    return f"{cut}~{xxh3_64_hexdigest(name.encode())}"


class Store(Protocol):
    """What sealing, reading and retention need of a place for files."""

    uri: str

    def uri_of(self, path: str) -> str:
        """Where a file is, to be taken literally (a path of Hadoop or Arrow, nothing of it is to be decoded)."""
        ...

    def write(self, path: str, pieces: Sequence[Any]) -> None:
        """Have the file there, whole and durable, in place of one of the same name."""
        ...

    def read(self, path: str) -> bytes:
        """The whole file; ``FileNotFoundError`` where there is none."""
        ...

    def open(self, path: str) -> Any:
        """The file for pyarrow to read from."""
        ...

    def size_bytes(self, path: str) -> int | None:
        """The size of the file, None where there is none."""
        ...

    def names(self, directory: str) -> list[str]:
        """The names in a directory, none where it does not exist."""
        ...

    def delete(self, path: str) -> None:
        """Delete the file, if it is there."""
        ...


class LocalStore:
    """Files on a local disk, each of them written to another name and renamed once it is durable."""

    def __init__(self, root: str, files: FileLayer | None = None) -> None:
        self.root = root
        self.uri = f"file://{quote(os.path.abspath(root))}"
        self._real = files is None
        self._files: FileLayer = RealFiles() if files is None else files

    def uri_of(self, path: str) -> str:
        return f"file://{os.path.abspath(self.root)}/{path}"

    def _place(self, path: str) -> str:
        return f"{self.root}/{path}"

    def write(self, path: str, pieces: Sequence[Any]) -> None:
        io, place = self._files, self._place(path)
        directory = place.rpartition("/")[0]
        with _refusals(f"writing {place}"):
            io.make_directory(directory)
            handle = io.create(place + TEMPORARY)
            try:
                write_all(io, handle, [piece if type(piece) is bytes else memoryview(piece) for piece in pieces], 0)  # type: ignore[misc]
                io.sync(handle)
            except OSError:
                io.remove(place + TEMPORARY)  # half a file is of use to nobody, and a full disk needs its room
                raise
            finally:
                io.close(handle)
            io.rename(place + TEMPORARY, place)
            io.sync_directory(directory)

    def read(self, path: str) -> bytes:
        io, place = self._files, self._place(path)
        handle = io.open(place)
        try:
            return io.read(handle, io.size(handle), 0)
        finally:
            io.close(handle)

    def open(self, path: str) -> Any:
        import pyarrow as pa

        if self._real:
            return pa.OSFile(self._place(path))
        return pa.BufferReader(self.read(path))

    def size_bytes(self, path: str) -> int | None:
        io = self._files
        try:
            handle = io.open(self._place(path))
        except FileNotFoundError:
            return None
        try:
            return io.size(handle)
        finally:
            io.close(handle)

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(self._files.names(self._place(directory)))
        except (FileNotFoundError, NotADirectoryError, KeyError):
            return []

    def delete(self, path: str) -> None:
        io, place = self._files, self._place(path)
        found = False
        with _refusals(f"deleting {place}"):
            for each in (place, place + TEMPORARY):
                try:
                    io.remove(each)
                    found = True
                except FileNotFoundError:
                    pass
            if found:
                io.sync_directory(place.rpartition("/")[0])


_OBJECT_STORES: Final = frozenset({"s3", "gcs", "abfs"})
"""Where an object appears when it is closed, whole; elsewhere a file is renamed once it is whole."""


class ArrowStore:
    """Files in a file system of pyarrow: an object store, HDFS."""

    def __init__(self, file_system: Any, root: str, uri: str) -> None:
        self.uri = uri
        self._fs = file_system
        self._root = root.rstrip("/")
        self._whole = file_system.type_name in _OBJECT_STORES

    def uri_of(self, path: str) -> str:
        return f"{self.uri}/{path}"

    def _place(self, path: str) -> str:
        return f"{self._root}/{path}" if self._root else path

    def write(self, path: str, pieces: Sequence[Any]) -> None:
        place = self._place(path)
        written = place if self._whole else place + TEMPORARY
        with _refusals(f"writing {self.uri}/{path}"):
            if not self._whole:
                self._fs.create_dir(place.rpartition("/")[0], recursive=True)
            with self._fs.open_output_stream(written) as out:
                for piece in pieces:
                    out.write(piece)
            if not self._whole:
                self._fs.move(written, place)

    def read(self, path: str) -> bytes:
        with self._fs.open_input_stream(self._place(path)) as source:
            data: bytes = source.read()
            return data

    def open(self, path: str) -> Any:
        return self._fs.open_input_file(self._place(path))

    def size_bytes(self, path: str) -> int | None:
        info = self._fs.get_file_info(self._place(path))
        return info.size if info.is_file else None

    def names(self, directory: str) -> list[str]:
        from pyarrow.fs import FileSelector

        selector = FileSelector(self._place(directory), allow_not_found=True)
        return sorted(info.base_name for info in self._fs.get_file_info(selector))

    def delete(self, path: str) -> None:
        with _refusals(f"deleting {self.uri}/{path}"):
            for each in (path,) if self._whole else (path, path + TEMPORARY):
                if self.size_bytes(each) is not None:
                    self._fs.delete_file(self._place(each))


def open_store(uri: str, files: FileLayer | None = None) -> Store:
    """The store at a URI or a local path."""
    parts = urlsplit(uri)
    if parts.scheme in ("", "file") or (len(parts.scheme) == 1 and os.name == "nt"):
        path = unquote(parts.path) if parts.scheme == "file" else uri
        if not path:
            raise InvalidArgument(f"the place for sealed files {uri!r}: must be a directory or a URI such as s3://…")
        return LocalStore(path.rstrip("/") or "/", files)
    try:
        from pyarrow import ArrowException
        from pyarrow.fs import FileSystem
    except ImportError as error:
        raise InvalidArgument(f"{uri}: needs pyarrow, `pip install headrace[columns]`") from error
    try:
        file_system, root = FileSystem.from_uri(uri)
    except (ArrowException, ValueError, OSError) as error:
        raise InvalidArgument(f"the place for sealed files {_without_keys(uri)!r}: {error}") from error
    # Keys and options are for us; what is shown of the place is not.
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
    return ArrowStore(file_system, root, shown)


def _without_keys(uri: str) -> str:
    scheme, mark, rest = uri.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{mark}{authority.rpartition('@')[2]}{slash}{path}"


@contextmanager
def _refusals(doing: str) -> Iterator[None]:
    """Sealing that fails does not stop the shard: whoever seals is told, and what is unsealed stays in the journal."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM_ERRORS:
            raise StorageFull(f"{doing}: {error.strerror or error}") from error
        raise StorageFailed(f"{doing} failed: {error.strerror or error}") from error
