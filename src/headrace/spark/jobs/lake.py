"""Tables on disk, wherever pyarrow's file systems reach: a directory, S3, HDFS.

A table is a directory of Parquet files with exactly the declared columns. It is replaced as a whole: what was there is
readable until the new one is complete, and a run that is cut off leaves the old one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from headrace.errors import InvalidArgument
from headrace.spark.jobs.catalogue import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Lake", "declared"]


def declared(frame: DataFrame, table: Table) -> DataFrame:
    """The frame with the declared columns, in their order and of their types; a column it lacks is our own mistake."""
    from pyspark.sql import functions as f

    columns = [part.split(" ", 1) for part in _split(table.columns)]
    return frame.select(*[f.col(name).cast(kind).alias(name) for name, kind in columns])


def _split(ddl: str) -> list[str]:
    """The columns of a DDL; commas inside <> belong to a type.

    >>> _split("a int, b map<string,int>")
    ['a int', 'b map<string,int>']
    """
    parts, depth, part = [], 0, ""
    for one in ddl:
        depth += (one == "<") - (one == ">")
        if one == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += one
    return [*parts, part.strip()]


class Lake:
    """A place for tables."""

    def __init__(self, root: str) -> None:
        from pyarrow.fs import FileSystem, LocalFileSystem

        if "://" in root:
            self.fs, self.root = FileSystem.from_uri(root)
            self.scheme = root.split("://", maxsplit=1)[0]
        else:
            self.fs, self.root = LocalFileSystem(), str(Path(root).resolve())
            self.scheme = ""
        self.local = isinstance(self.fs, LocalFileSystem)
        try:
            self.fs.create_dir(self.root, recursive=True)
        except OSError as error:
            raise InvalidArgument(f"{root} cannot be written to: {error}") from None

    def path(self, *parts: str) -> str:
        return "/".join([self.root.rstrip("/"), *parts])

    def uri(self, *parts: str) -> str:
        """A path as Spark takes it."""
        path = self.path(*parts)
        if self.local:
            return f"file://{path}"
        return f"{self.scheme}://{path}"

    # -- small files -----------------------------------------------------------------------------------------------

    def exists(self, *parts: str) -> bool:
        from pyarrow.fs import FileType

        return bool(self.fs.get_file_info(self.path(*parts)).type != FileType.NotFound)

    def text(self, *parts: str) -> str | None:
        """A small file; None when it is not there."""
        if not self.exists(*parts):
            return None
        with self.fs.open_input_stream(self.path(*parts)) as file:
            return bytes(file.read()).decode()

    def put(self, text: str, *parts: str) -> str:
        """Write a small file as a whole: what is there is what was there, or all of this."""
        path = self.path(*parts)
        self.fs.create_dir(path.rsplit("/", 1)[0], recursive=True)
        beside = f"{path.rsplit('/', 1)[0]}/.{uuid4().hex}.tmp"
        with self.fs.open_output_stream(beside) as file:
            file.write(text.encode())
        if self.local:
            _sync(beside)
        self.fs.move(beside, path)
        if self.local:
            _sync(path.rsplit("/", 1)[0])
        return path

    def files(self, *parts: str) -> list[Any]:
        """Every file below a directory, by path."""
        from pyarrow.fs import FileSelector

        selector = FileSelector(self.path(*parts), recursive=True, allow_not_found=True)
        return sorted((info for info in self.fs.get_file_info(selector) if info.is_file), key=lambda info: info.path)

    def drop(self, *parts: str) -> None:
        if self.exists(*parts):
            self.fs.delete_dir(self.path(*parts))

    # -- tables ----------------------------------------------------------------------------------------------------

    def write(self, frame: DataFrame, table: Table, *, coalesce: int | None = 1) -> str:
        """Replace a table."""
        rows = declared(frame, table)
        fresh = ("_new", f"{table.name}-{uuid4().hex}")
        writer = (rows.coalesce(coalesce) if coalesce else rows).write.mode("errorifexists")
        if table.partitioned_by:
            writer = writer.partitionBy(*table.partitioned_by)
        writer.parquet(self.uri(*fresh))
        old = ("_old", f"{table.name}-{uuid4().hex}")
        if self.exists(table.name):
            self.fs.create_dir(self.path("_old"), recursive=True)
            self.fs.move(self.path(table.name), self.path(*old))
        self.fs.move(self.path(*fresh), self.path(table.name))
        self.drop("_old")
        self.drop("_new")
        return self.path(table.name)

    @contextmanager
    def held(self, by: str) -> Iterator[None]:
        """Nobody else works here meanwhile. (Without locks in the file system Spark's own check remains.)"""
        if not self.local:
            yield
            return
        import fcntl

        with open(self.path("_lock"), "a+") as file:  # the path is a string here
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                raise InvalidArgument(
                    f"another run is at work in {self.root} ({file.read().strip() or 'unknown'}): two on one"
                    " checkpoint would do the same work twice; wait for it, or give this one an --out of its own"
                ) from None
            file.truncate(0)
            file.write(f"{by}, process {os.getpid()}\n")
            file.flush()
            yield


def _sync(path: str) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
