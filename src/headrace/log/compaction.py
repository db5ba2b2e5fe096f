"""Small neighbouring files become one: fewer files to open, row groups of a good size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from google_crc32c import value as crc32c

from headrace.limits import COMPACT_BELOW_BYTES, COMPACT_FILES_MIN, COMPACT_TO_BYTES, EVENT_GROUP_ROWS, ROW_GROUP_ROWS
from headrace.log.cold import ColdLog
from headrace.log.manifest import EventSegment, Manifest, Segment
from headrace.log.sealing import NewFile

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["compacted_events", "compacted_segments", "small_events", "small_segments"]

_F = TypeVar("_F", Segment, EventSegment)
Pace = Callable[[], None]


def small_segments(manifest: Manifest) -> list[list[Segment]]:
    """Runs of neighbours worth being put together."""
    return [run for segments in manifest.segments.values() for run in _runs(segments, lambda a, b: a.end == b.first)]


def small_events(manifest: Manifest) -> list[list[EventSegment]]:
    return [
        run
        for files in manifest.events.values()
        for run in _runs(files, lambda a, b: a.end_position <= b.first_position)
    ]


def _runs(files: Sequence[_F], follow: Callable[[_F, _F], bool]) -> Iterator[list[_F]]:
    run: list[_F] = []
    size_bytes = 0
    for file in files:
        fits = (
            bool(run)
            and _directory(run[-1].path) == _directory(file.path)
            and follow(run[-1], file)
            and size_bytes + file.size_bytes <= COMPACT_TO_BYTES
        )
        if not fits or file.size_bytes >= COMPACT_BELOW_BYTES:
            if len(run) >= COMPACT_FILES_MIN:
                yield run
            run, size_bytes = [], 0
        if file.size_bytes < COMPACT_BELOW_BYTES:
            run.append(file)
            size_bytes += file.size_bytes
    if len(run) >= COMPACT_FILES_MIN:
        yield run


def _directory(path: str) -> str:
    return path.rpartition("/")[0]


def _merged_path(first: str, last: str) -> str:
    """From the first name of the one file to the last of the other."""
    directory, _, name = first.rpartition("/")
    begin, end = name.removesuffix(".parquet").split("-")[0], last.rpartition("/")[2].removesuffix(".parquet")
    rest = end.split("-", 1)[1]
    return f"{directory}/{begin}-{rest}.parquet"


def compacted_segments(cold: ColdLog, segments: Sequence[Segment], pace: Pace) -> tuple[NewFile, Segment]:
    from headrace.log import parquet

    content = _rewritten(cold, segments, parquet.MESSAGES, ROW_GROUP_ROWS, pace)
    first, last = segments[0], segments[-1]
    path = _merged_path(first.path, last.path)
    segment = Segment(
        path,
        first.pid,
        first.first,
        last.end,
        first.first_id,
        last.last_id,
        first.first_ns,
        last.last_ns,
        len(content),
        sum(each.raw_bytes for each in segments),
        crc32c(content),
        parquet.footer_crc(content),
    )
    return NewFile(path, content), segment


def compacted_events(cold: ColdLog, files: Sequence[EventSegment], pace: Pace) -> tuple[NewFile, EventSegment]:
    from headrace.log import parquet

    content = _rewritten(cold, files, parquet.EVENTS, EVENT_GROUP_ROWS, pace)
    first, last = files[0], files[-1]
    path = _merged_path(first.path, last.path)
    spans: dict[int, tuple[int, int]] = {}
    for file in files:
        for pid, low, high in file.spans:
            known = spans.get(pid, (low, high))
            spans[pid] = min(known[0], low), max(known[1], high)
    merged = EventSegment(
        path,
        first.tid,
        sum(file.rows for file in files),
        first.first_position,
        last.end_position,
        min(file.first_ns for file in files),
        max(file.last_ns for file in files),
        len(content),
        crc32c(content),
        tuple((pid, low, high) for pid, (low, high) in sorted(spans.items())),
        parquet.footer_crc(content),
    )
    return NewFile(path, content), merged


def _rewritten(cold: ColdLog, files: Sequence[Segment | EventSegment], schema: pa.Schema, rows: int, pace: Pace) -> Any:
    import pyarrow as pa

    from headrace.log import parquet

    out = parquet.TableFile(schema, {})
    held: list[pa.Table] = []
    count = 0
    for file in files:
        for number in range(len(cold.footer(file).rows)):
            table = cold.table(file, number)
            held.append(table)
            count += table.num_rows
            if count >= rows:
                out.add(pa.concat_tables(held))
                held, count = [], 0
            pace()
    if held:
        out.add(pa.concat_tables(held))
    return out.finish()
