"""Reading sealed segments: footers and decoded row groups, those used last, within their budgets.

A question by offset, time or id is answered in three steps, each a binary search: the manifest (which file), the file's
footer (which row group), the row group itself. Files never change, so what was read once stays true.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

from headrace.batch import Batch
from headrace.errors import Corrupt, HeadraceError, InvalidArgument
from headrace.limits import COLD_CACHE_BYTES, COLD_FOOTERS_MAX
from headrace.log.manifest import EventSegment, Manifest, Segment
from headrace.log.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.log.parquet import Footer

__all__ = ["ColdLog"]


class ColdLog:
    """The sealed part of a shard's partitions. ``store`` None: nothing can be read of what was sealed."""

    def __init__(
        self,
        manifest: Manifest,
        store: Store | None = None,
        archive: Store | None = None,
        *,
        cache_bytes: int = COLD_CACHE_BYTES,
    ) -> None:
        self.manifest = manifest
        self.store = store
        self.archive = archive
        self.cache_bytes = cache_bytes
        self._lock = Lock()  # of what is cached; files are read outside it, and by any thread
        self._groups: OrderedDict[tuple[str, int], tuple[list[Batch], list[int], int]] = OrderedDict()
        self._held_bytes = 0
        self._footers: OrderedDict[str, Footer] = OrderedDict()

    @property
    def held_bytes(self) -> int:
        """What the decoded row groups take."""
        return self._held_bytes

    # -- what a partition's log asks -----------------------------------------------------------------------------------

    def start(self, pid: int) -> int | None:
        segments = self.manifest.segments.get(pid)
        return segments[0].first if segments else None

    def batch_from(self, pid: int, offset: int) -> Batch | None:
        segment = self.manifest.segment_from(pid, offset)
        return None if segment is None else self.batch_in(segment, max(offset, segment.first))

    def offset_at(self, pid: int, time_ns: int) -> int | None:
        segments = self.manifest.segments.get(pid, [])
        i = bisect_left(segments, time_ns, key=_last_ns_of)
        return self.offset_in(segments[i], time_ns) if i < len(segments) else None

    def offset_of_id(self, pid: int, message_id: int) -> int | None:
        segment = self.segment_of_id(pid, message_id)
        return None if segment is None else self.offset_of_id_in(segment, message_id)

    def segment_of_id(self, pid: int, message_id: int) -> Segment | None:
        """The only segment of a partition that may hold a message, by the manifest alone."""
        segments = self.manifest.segments.get(pid, [])
        i = bisect_left(segments, message_id, key=_last_id_of)
        return segments[i] if i < len(segments) and message_id >= segments[i].first_id else None

    # -- where files are -----------------------------------------------------------------------------------------------

    def places(self, pid: int, *, archived: bool) -> list[tuple[Segment, Store | None]]:
        """The segments of a partition in order of offsets, each with the store it lies in (None: the usual one)."""
        live: list[tuple[Segment, Store | None]] = [(each, None) for each in self.manifest.segments.get(pid, ())]
        if not archived:
            return live
        old = self.manifest.archived.get(pid, ())
        if old and self.archive is None:
            raise InvalidArgument("what retention let go of lies in an archive, and this broker has none configured")
        return [*((each, self.archive) for each in old), *live]

    def stretch(self, places: Sequence[tuple[Segment, Store | None]], first: int, end: int) -> Iterator[Batch]:
        """The sealed batches that overlap [first, end), whole, in order, over gaps."""
        for segment, store in places:
            if segment.end <= first:
                continue
            at = max(first, segment.first)
            while at < min(end, segment.end):
                batch = self.batch_in(segment, at, store)
                yield batch
                at = batch.base_offset + batch.count
            if segment.end >= end:
                return

    def offset_since(self, places: Sequence[tuple[Segment, Store | None]], time_ns: int) -> int | None:
        """The first sealed offset appended at or after a time, among these segments."""
        for segment, store in places:
            if segment.last_ns >= time_ns:
                return segment.first if segment.first_ns >= time_ns else self.offset_in(segment, time_ns, store)
        return None

    # -- inside one segment --------------------------------------------------------------------------------------------

    def batch_in(self, segment: Segment, offset: int, store: Store | None = None) -> Batch:
        """The batch of a segment that holds an offset."""
        number = self._number(segment, "offset", offset, store)
        batches, starts, _ = self._group(segment, number, store)
        return batches[bisect_right(starts, offset) - 1]

    def offset_in(self, segment: Segment, time_ns: int, store: Store | None = None) -> int:
        """The first offset of a segment appended at or after a time (not after its last)."""
        number = self._number(segment, "append_time_ns", time_ns, store)
        for batch in self._group(segment, number, store)[0]:
            if batch.append_time_ns >= time_ns:
                return batch.base_offset
        return segment.end

    def offset_of_id_in(self, segment: Segment, message_id: int, store: Store | None = None) -> int | None:
        """The offset of a message of a segment; only the ids are read."""
        number = self._number(segment, "id", message_id, store)
        bounds = self.footer(segment, store).bounds["id"][number]
        if bounds is not None and message_id < bounds[0]:
            return None
        table = self.table(segment, number, ["offset", "id"], store)
        import pyarrow.compute as pc

        row = pc.index(table.column("id"), message_id).as_py()
        return table.column("offset")[row].as_py() if row >= 0 else None

    def _number(self, segment: Segment, column: str, wanted: int, store: Store | None) -> int:
        """The row group that holds the first row of a column at or above what is wanted."""
        bounds: list[Any] = self.footer(segment, store).bounds.get(column, [])
        number = bisect_left(bounds, wanted, key=_upper)
        if number == len(bounds):
            raise Corrupt(f"{segment.path} ends before {column} {wanted}; the manifest says it holds it")
        return number

    def _group(self, segment: Segment, number: int, store: Store | None) -> tuple[list[Batch], list[int], int]:
        key = (segment.path, number)
        with self._lock:
            known = self._groups.get(key)
            if known is not None:
                self._groups.move_to_end(key)
                return known
        parquet = _parquet(segment.path)
        batches = parquet.batches_of(self.table(segment, number, None, store))
        size_bytes = sum(batch.size_bytes for batch in batches)
        found = (batches, [batch.base_offset for batch in batches], size_bytes)
        with self._lock:
            if key not in self._groups:
                self._groups[key] = found
                self._held_bytes += size_bytes
                while self._held_bytes > self.cache_bytes and len(self._groups) > 1:
                    self._held_bytes -= self._groups.popitem(last=False)[1][2]
        return found

    # -- files ---------------------------------------------------------------------------------------------------------

    def open(self, path: str, store: Store | None = None) -> Any:
        """A sealed file, to read from."""
        place = store or self.store
        if place is None:
            raise InvalidArgument(
                f"{path} was sealed: reading it needs the place for sealed files that it was written to"
            )
        _parquet(path)
        try:
            return place.open(path)
        except OSError as error:
            raise Corrupt(f"{place.uri}/{path} cannot be read: {error}") from error

    def footer(self, file: Segment | EventSegment, store: Store | None = None) -> Footer:
        with self._lock:
            known = self._footers.get(file.path)
            if known is not None:
                self._footers.move_to_end(file.path)
                return known
        parquet = _parquet(file.path)
        with self.open(file.path, store) as source:
            try:
                found: Footer = parquet.read_footer(source, file.footer_crc)
            except (OSError, ValueError) as error:
                raise Corrupt(f"{file.path} is damaged: {error}") from error
        with self._lock:
            self._footers[file.path] = found
            if len(self._footers) > COLD_FOOTERS_MAX:
                self._footers.popitem(last=False)
        return found

    def table(
        self,
        file: Segment | EventSegment,
        number: int,
        columns: Sequence[str] | None = None,
        store: Store | None = None,
    ) -> pa.Table:
        """One row group of a file."""
        parquet = _parquet(file.path)
        footer = self.footer(file, store)
        with self.open(file.path, store) as source:
            try:
                return parquet.row_group(source, footer, number, columns)
            except HeadraceError:
                raise
            except (OSError, ValueError) as error:
                raise Corrupt(f"{file.path}, row group {number}, is damaged: {error}") from error

    def tables(
        self,
        segment: Segment,
        first: int,
        end: int,
        columns: Sequence[str] | None = None,
        store: Store | None = None,
    ) -> Iterator[pa.Table]:
        """The rows [first, end) of a segment, a row group at a time."""
        for number, bounds in enumerate(self.footer(segment, store).bounds["offset"]):
            if bounds is None or bounds[1] < first:
                continue
            if bounds[0] >= end:
                return
            table = self.table(segment, number, columns, store)
            low = max(first, bounds[0]) - bounds[0]
            high = min(end, bounds[1] + 1) - bounds[0]
            yield table if high - low == table.num_rows else table.slice(low, high - low)

    def events_about(
        self, file: EventSegment, partition: int, offset: int, store: Store | None = None
    ) -> list[dict[str, Any]]:
        """The rows of an events file that may speak of a message, in order."""
        import pyarrow.compute as pc

        rows: list[dict[str, Any]] = []
        bounds = self.footer(file, store).bounds
        firsts, lasts = bounds.get("first_offset", []), bounds.get("last_offset", [])
        for number, (low, high) in enumerate(zip(firsts, lasts, strict=True)):
            if (low is not None and low[0] > offset) or (high is not None and high[1] < offset):
                continue
            table = self.table(file, number, None, store)
            first, last = table.column("first_offset"), table.column("last_offset")
            here = pc.and_(
                pc.equal(table.column("partition"), partition),
                pc.and_(
                    pc.fill_null(pc.less_equal(first, offset), True),
                    pc.fill_null(pc.greater_equal(last, offset), True),
                ),
            )
            rows += table.filter(here).to_pylist()
        return rows

    def forget(self, paths: Sequence[str]) -> None:
        """Files that are no longer live."""
        gone = set(paths)
        with self._lock:
            for key in [key for key in self._groups if key[0] in gone]:
                self._held_bytes -= self._groups.pop(key)[2]
            for path in gone:
                self._footers.pop(path, None)


def _parquet(path: str) -> Any:
    """What reads sealed files, where it is installed."""
    try:
        from headrace.log import parquet
    except ImportError as error:
        raise InvalidArgument(f"reading {path} needs pyarrow, `pip install headrace[columns]`") from error
    return parquet


def _last_ns_of(segment: Segment) -> Any:
    return segment.last_ns


def _last_id_of(segment: Segment) -> Any:
    return segment.last_id


def _upper(bounds: tuple[Any, Any] | None) -> Any:
    return bounds[1] if bounds is not None else -1
