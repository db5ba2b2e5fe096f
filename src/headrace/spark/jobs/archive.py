"""The log as a lake: Parquet files by topic and date, each message in exactly one of them.

    messages/topic=orders/date=2026-11-19/batch-000000000007-0000.parquet    what readers see
    _manifest/000000000012.json      a version: which files came, which went; the lake is their sum
    _checkpoint/                     how far the stream is

A micro-batch is written aside, moved in under names that carry its number, and then named in the manifest. A batch that
Spark hands over again after a crash finds itself in the manifest, or finds what it left half done and begins anew: no
message comes twice, none is missing. Putting small files together is announced in the manifest first, and finished by
whoever finds it unfinished; who reads the directory meanwhile may miss rows for a moment and never sees one twice.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from headrace.errors import Corrupt, InvalidArgument
from headrace.spark.jobs.plot import bars
from headrace.spark.jobs.report import Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from headrace.spark.jobs.lake import Lake
    from headrace.spark.jobs.run import Run

__all__ = ["Manifest", "archive"]

_MANIFEST: Final = "_manifest"
_STAGING: Final = "_staging"
_MESSAGES: Final = "messages"


class File(msgspec.Struct, frozen=True):
    path: str
    rows: int
    size_bytes: int


class Version(msgspec.Struct):
    """``kind``: batch, or compaction begun | done. ``aside``: what a compaction has written and not moved in yet."""

    version: int
    kind: str
    at: str
    batch: int = -1
    added: list[File] = []
    removed: list[str] = []
    aside: list[str] = []


class Manifest:
    """Which files are the lake."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.versions: list[Version] = []
        self.load()

    def load(self) -> None:
        self.versions = []
        for info in self.lake.files(_MANIFEST):
            name = info.path.rsplit("/", 1)[-1]
            if name.startswith(".") or not name.endswith(".json"):
                continue
            try:
                version = msgspec.json.decode(self.lake.text(_MANIFEST, name) or "", type=Version)
            except msgspec.DecodeError as error:
                raise Corrupt(f"{info.path} is damaged: {error}") from None
            if version.version != len(self.versions):
                raise Corrupt(f"{self.lake.path(_MANIFEST)}: version {len(self.versions)} is missing before {name}")
            self.versions.append(version)

    @property
    def batches(self) -> set[int]:
        return {version.batch for version in self.versions if version.kind == "batch"}

    def files(self) -> dict[str, File]:
        """The live files, by path."""
        found: dict[str, File] = {}
        for version in self.versions:
            if version.kind == "begun":
                continue
            for path in version.removed:
                found.pop(path, None)
            found.update({file.path: file for file in version.added})
        return found

    def unfinished(self) -> Version | None:
        """A compaction that was begun and not done."""
        last = self.versions[-1] if self.versions else None
        return last if last is not None and last.kind == "begun" else None

    def add(self, kind: str, **more: Any) -> Version:
        version = Version(len(self.versions), kind, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **more)
        self.lake.put(msgspec.json.encode(version).decode() + "\n", _MANIFEST, f"{version.version:012d}.json")
        self.versions.append(version)
        return version


def archive(run: Run) -> Report:
    """Copy what is new, put small files together, report."""
    report = Report(run.job.name, f"Archive of {', '.join(run.topics)}")
    if not run.writes:
        with run.step("looking"):
            offsets = {topic: run.call("topic.offsets", topic=topic)["partitions"] for topic in run.topics}
        rows = [
            [topic, part["partition"], part["start"], part["end"], part["end"] - part["start"]]
            for topic, parts in offsets.items()
            for part in parts
        ]
        report.figures = {"messages in the log": sum(row[4] for row in rows)}
        report.table(
            "What would be archived, if nothing was yet", ["topic", "partition", "from", "to", "messages"], rows
        )
        report.notes.append("A dry run: nothing was written.")
        return report
    lake = run.lake
    with lake.held(run.job.name):
        run.same_work("_checkpoint", {"job": "archive", "namespace": run.place.namespace, "topics": list(run.topics)})
        manifest = Manifest(lake)
        if manifest.batches and not lake.exists("_checkpoint", "stream"):
            raise InvalidArgument(
                f"{lake.root} holds {len(manifest.batches)} batches, but its checkpoint is gone: going on would copy"
                " everything again; restore _checkpoint, or archive into another --out"
            )
        _finish(lake, manifest)
        lake.drop(_STAGING)
        before = manifest.files()
        batches = len(manifest.batches)
        _copy(run, lake, manifest)
        put_together = _compact(run, lake, manifest)
        return _told(run, report, manifest, before, len(manifest.batches) - batches, put_together)


def _copy(run: Run, lake: Lake, manifest: Manifest) -> None:
    from pyspark.sql import functions as f

    source = run.stream(startingOffsets="earliest", maxOffsetsPerTrigger=run["portion"])

    def keep(batch: DataFrame, number: int) -> None:
        if number in manifest.batches:
            return
        prefix = f"batch-{number:012d}-"
        for info in lake.files(_MESSAGES):
            if info.path.rsplit("/", 1)[-1].startswith(prefix):
                lake.fs.delete_file(info.path)  # a try that was cut off before the manifest knew of it
        lake.drop(_STAGING)
        rows = batch.withColumn("date", f.to_date("timestamp"))
        rows.sortWithinPartitions("topic", "date", "partition", "offset").write.partitionBy("topic", "date").parquet(
            lake.uri(_STAGING)
        )
        manifest.add("batch", batch=number, added=_moved_in(lake, prefix))

    writer = source.writeStream.foreachBatch(keep).queryName("headrace-archive")
    writer = writer.option("checkpointLocation", lake.uri("_checkpoint", "stream"))
    writer = writer.trigger(processingTime="5 seconds") if run["follow"] else writer.trigger(availableNow=True)
    run.streamed(writer.start(), "copying")


def _moved_in(lake: Lake, prefix: str) -> list[File]:
    """Move what was staged to where readers see it."""
    import pyarrow.parquet as pq

    found = []
    base = lake.path(_STAGING) + "/"
    for number, info in enumerate(each for each in lake.files(_STAGING) if each.path.endswith(".parquet")):
        place = info.path.removeprefix(base).rsplit("/", 1)[0]
        name = f"{_MESSAGES}/{place}/{prefix}{number:04d}.parquet"
        rows = pq.read_metadata(info.path, filesystem=lake.fs).num_rows
        lake.fs.create_dir(lake.path(_MESSAGES, place), recursive=True)
        lake.fs.move(info.path, lake.path(name))
        found.append(File(name, rows, info.size))
    return found


# -- compaction --------------------------------------------------------------------------------------------------------


def _compact(run: Run, lake: Lake, manifest: Manifest) -> int:
    """Put small files of a day together; how many there were."""
    days: dict[str, list[File]] = {}
    for path, file in manifest.files().items():
        if file.rows < run["target_rows"]:
            days.setdefault(path.rsplit("/", 1)[0], []).append(file)
    done = 0
    for place, files in sorted(days.items()):
        if len(files) > run["small"]:
            with run.step(f"putting {len(files)} files of {place.removeprefix(_MESSAGES + '/')} together"):
                _merge(run, lake, manifest, place, files)
            done += len(files)
    return done


def _merge(run: Run, lake: Lake, manifest: Manifest, place: str, files: Sequence[File]) -> None:
    import pyarrow.parquet as pq

    lake.drop(_STAGING)
    rows = sum(file.rows for file in files)
    count = max(1, round(rows / run["target_rows"]))
    frame = run.spark.read.parquet(*[lake.uri(file.path) for file in files])
    parts = frame.coalesce(count).sortWithinPartitions("partition", "offset")
    parts.write.parquet(lake.uri(_STAGING))
    mark = f"merged-{uuid4().hex[:12]}-"
    added, aside = [], []
    for number, info in enumerate(each for each in lake.files(_STAGING) if each.path.endswith(".parquet")):
        name = f"{mark}{number:04d}.parquet"
        # A name that begins with _ is not seen by who reads the directory.
        lake.fs.move(info.path, lake.path(place, "_" + name))
        kept = pq.read_metadata(lake.path(place, "_" + name), filesystem=lake.fs).num_rows
        added.append(File(f"{place}/{name}", kept, info.size))
        aside.append(f"{place}/_{name}")
    if sum(file.rows for file in added) != rows:
        raise Corrupt(f"{place}: {rows} rows became {sum(file.rows for file in added)}; nothing was replaced")
    manifest.add("begun", added=added, removed=[file.path for file in files], aside=aside)
    _finish(lake, manifest)


def _finish(lake: Lake, manifest: Manifest) -> None:
    """Do what is left of a compaction: take the old files away, then show the new ones."""
    begun = manifest.unfinished()
    if begun is None:
        return
    for path in begun.removed:
        if lake.exists(path):
            lake.fs.delete_file(lake.path(path))
    for hidden, file in zip(begun.aside, begun.added, strict=True):
        if lake.exists(hidden):
            lake.fs.move(lake.path(hidden), lake.path(file.path))
        elif not lake.exists(file.path):
            raise Corrupt(f"{lake.path(file.path)} is gone, and the files it was made of too")
    manifest.add("done", added=begun.added, removed=begun.removed)


# -- reading it --------------------------------------------------------------------------------------------------------


def archived(run: Run, root: str) -> DataFrame:
    """An archive's messages, by its manifest."""
    from headrace.spark.jobs.lake import Lake as Place

    lake = Place(root)
    files = Manifest(lake).files()
    if not files:
        raise InvalidArgument(
            f"{root} is no archive: it has no {_MANIFEST}; make one with `headrace pipeline run archive`"
        )
    read = run.spark.read.schema(run_schema()).option("basePath", lake.uri(_MESSAGES))
    return read.parquet(*[lake.uri(path) for path in files])


def run_schema() -> str:
    from headrace.spark.jobs.catalogue import MESSAGES

    return MESSAGES


def _told(
    run: Run, report: Report, manifest: Manifest, before: dict[str, File], batches: int, put_together: int
) -> Report:
    files = manifest.files()
    rows = sum(file.rows for file in files.values())
    report.figures = {
        "new messages": rows - sum(file.rows for file in before.values()),
        "messages": rows,
        "files": len(files),
        "bytes": sum(file.size_bytes for file in files.values()),
        "micro-batches": batches,
        "small files put together": put_together,
    }
    days: dict[str, list[File]] = {}
    for path, file in files.items():
        days.setdefault(path.removeprefix(f"{_MESSAGES}/").rsplit("/", 1)[0], []).append(file)
    report.table(
        "By topic and day",
        ["place", "files", "messages", "bytes"],
        [
            [place, len(each), sum(file.rows for file in each), sum(file.size_bytes for file in each)]
            for place, each in sorted(days.items())
        ],
    )
    if days:
        counts = {place: float(sum(file.rows for file in each)) for place, each in sorted(days.items())[-30:]}
        report.plots.append(("Messages by topic and day", bars(counts)))
    report.written["messages"] = run.lake.path(_MESSAGES)
    report.written["manifest"] = run.lake.path(_MANIFEST)
    return report
