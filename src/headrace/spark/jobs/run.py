"""What a job is given: a Spark session, the broker, where to write, and a way to say how far it is."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.errors import InvalidArgument, TimedOut, UnknownTopic
from headrace.limits import SPARK_AWAY_NS
from headrace.spark.jobs.catalogue import Job, checked_options, find_job
from headrace.spark.jobs.lake import Lake
from headrace.spark.jobs.report import Report, dumped
from headrace.spark.options import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Run", "iso", "run_job", "served"]

_LOOK_S: Final = 0.3
_READY_S: Final = 60
_SAID_S: Final = 0.05


class Run:
    """One run of one job. ``say``: told what is being done, for a terminal; None where nobody looks."""

    def __init__(
        self,
        job: Job,
        place: Place,
        spark: SparkSession,
        *,
        topics: Sequence[str] = (),
        pattern: str | None = None,
        out: str | None = None,
        dry_run: bool = False,
        options: Mapping[str, Any] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.job = job
        self.place = place
        self.spark = spark
        self.options = checked_options(job, options or {})
        self.dry_run = dry_run
        self._given = tuple(topics)
        self._pattern = pattern
        self._out = out
        self._say = say
        if job.out and not out and not dry_run:
            raise InvalidArgument(f"job {job.name} writes tables: say where with --out DIR (or --dry-run)")
        if job.topics == "one" and len(self._given) != 1:
            raise InvalidArgument(f"job {job.name} is about one topic: name it with --topic")
        if job.topics == "some" and not (self._given or pattern):
            raise InvalidArgument(f"job {job.name} needs to know which topics: --topic NAME, or --pattern")

    def __getitem__(self, name: str) -> Any:
        return self.options[name]

    # -- the broker ------------------------------------------------------------------------------------------------

    def call(self, method: str, **arguments: Any) -> Any:
        """An administrative call."""
        from headrace.spark.reach import reach

        return reach(self.place).call(method, **arguments)

    @cached_property
    def topics(self) -> tuple[str, ...]:
        """The topics this is about: those named, those of the pattern, or all but dead letters and quarantines."""
        import re

        known = sorted(info["topic"] for info in self.call("topic.list"))
        if self._given:
            for topic in self._given:
                if topic not in known:
                    close = get_close_matches(topic, known, n=1)
                    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known[:20]) or 'none'}"
                    raise UnknownTopic(f"topic {topic!r} does not exist in namespace {self.place.namespace!r}; {hint}")
            return self._given
        if self._pattern is not None:
            try:
                found = tuple(topic for topic in known if re.fullmatch(self._pattern, topic))
            except re.error as error:
                raise InvalidArgument(f"--pattern {self._pattern!r} is no regular expression: {error}") from None
        else:
            found = tuple(topic for topic in known if not topic.startswith(("dlq/", "quarantine/")))
        if not found:
            raise UnknownTopic(f"no topic of namespace {self.place.namespace!r} is meant; there are {', '.join(known)}")
        return found

    @property
    def reading(self) -> dict[str, str]:
        """The options of ``format("headrace")`` that say where."""
        place = self.place
        away_ms = place.away_ns // 1_000_000
        options = {"server": place.server, "namespace": place.namespace, "awayTimeout": f"{away_ms}ms"}
        if place.token:
            options["token"] = place.token
        if place.ca_file:
            options["caFile"] = place.ca_file
        return options

    @property
    def about(self) -> dict[str, str]:
        """The options that say which topics."""
        import re

        if any("," in topic for topic in self.topics):
            return {"subscribePattern": "|".join(re.escape(topic) for topic in self.topics)}
        return {"subscribe": ",".join(self.topics)}

    @property
    def window(self) -> dict[str, str]:
        """The options that say when."""
        found = {}
        if self.options.get("from_time") is not None:
            found["startingTimestamp"] = iso(self["from_time"])
        if self.options.get("to_time") is not None:
            found["endingTimestamp"] = iso(self["to_time"])
        return found

    def log(self, **options: Any) -> DataFrame:
        """Messages of the topics, sealed files by Spark's own reader."""
        from headrace.spark import read

        return read(self.spark, **{**self.reading, **self.about, **options})

    def table(self, name: str, **options: Any) -> DataFrame:
        """A table of the broker's."""
        given = {**self.reading, **self.about, "table": name, **options}
        return self.spark.read.format("headrace").options(**given).load()

    def stream(self, **options: Any) -> DataFrame:
        given = {**self.reading, **self.about, **{name: str(value) for name, value in options.items()}}
        return self.spark.readStream.format("headrace").options(**given).load()

    # -- what is written -------------------------------------------------------------------------------------------

    @cached_property
    def lake(self) -> Lake:
        """Where tables go."""
        if self._out is None:
            raise InvalidArgument(f"job {self.job.name} writes tables: say where with --out DIR")
        return Lake(self._out)

    @property
    def writes(self) -> bool:
        return self._out is not None and not self.dry_run

    def write(self, name: str, frame: DataFrame, report: Report) -> DataFrame:
        """Replace a table of the job, and have it as it was written; in a dry run as it would be."""
        from headrace.spark.jobs.lake import declared

        table = self.job.table(name)
        if not self.writes:
            return declared(frame, table).cache() if self._out is not None else declared(frame, table)
        with self.step(f"writing {name}"):
            report.written[name] = self.lake.write(frame, table)
        return self.spark.read.parquet(self.lake.uri(name))

    # -- how far it is ---------------------------------------------------------------------------------------------

    @contextmanager
    def step(self, what: str) -> Iterator[Callable[[str], None]]:
        """Something that takes a while; on a terminal it shows how many of Spark's tasks are done."""
        if self._say is None:
            yield lambda text: None
            return
        over = threading.Event()
        more = ""

        def tell(text: str) -> None:
            nonlocal more
            more = text

        say = self._say

        def look() -> None:
            while not over.wait(_LOOK_S):
                say(f"{self.job.name}: {what} {more or self._tasks()}")

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        say(f"{self.job.name}: {what}")
        try:
            yield tell
        finally:
            over.set()
            thread.join()
            say("")

    def _tasks(self) -> str:
        """Tasks of the running stages; Spark Connect does not tell."""
        try:
            tracker = self.spark.sparkContext.statusTracker()
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        except Exception:  # noqa: BLE001 # Connect has no context, and a bar is not worth a failed job
            return ""
        known = [stage for stage in stages if stage is not None]
        total = sum(stage.numTasks for stage in known)
        return f"{sum(stage.numCompletedTasks for stage in known)} of {total} tasks" if total else ""

    # -- streams ---------------------------------------------------------------------------------------------------

    def streamed(self, query: Any, what: str) -> Any:
        """Wait for a stream to end (its trigger says when); Ctrl-C stops it between two batches."""
        with self.step(what) as tell:
            try:
                while not query.awaitTermination(1):
                    last = query.lastProgress
                    if last is not None:
                        tell(f"batch {last['batchId']}, {int(last.get('processedRowsPerSecond') or 0):,} rows/s")
            except KeyboardInterrupt:
                query.stop()
        return query

    def same_work(self, checkpoint: str, what: Mapping[str, Any]) -> None:
        """A checkpoint goes on with what it was made for, or not at all."""
        mine = msgspec.json.encode(dict(sorted(what.items()))).decode()
        known = self.lake.text(checkpoint, "about.json")
        if known is None:
            self.lake.put(mine, checkpoint, "about.json")
        elif known != mine:
            raise InvalidArgument(
                f"the checkpoint in {self.lake.path(checkpoint)} is of other work: it was made for {known}, this is"
                f" {mine}; give this run an --out of its own"
            )


def iso(at_ns: int) -> str:
    """A time as the data source takes it.

    >>> iso(1_000_500_000)
    '1970-01-01T00:00:01.000500+00:00'
    """
    from datetime import UTC, datetime, timedelta

    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_ns // 1_000)).isoformat()


@contextmanager
def served(place: Place) -> Iterator[Place]:
    """A place that Spark's processes can all reach: a data directory is served on a free port meanwhile."""
    if not place.data_dir:
        yield place
        return
    if not Path(place.data_dir).is_dir():
        raise InvalidArgument(f"there is no data directory {place.data_dir}")
    with tempfile.TemporaryDirectory(prefix="headrace-") as directory:
        ready = Path(directory) / "ready.json"
        doors = [part for door in ("http", "mqtt", "grpc") for part in (f"--{door}-port", "off")]
        command = [sys.executable, "-m", "headrace", "serve", "--data-dir", place.data_dir, "--native-port", "0"]
        with (Path(directory) / "said").open("w+b") as said:
            server = subprocess.Popen(  # noqa: S603 # this program itself
                [*command, *doors, "--host", "127.0.0.1", "--ready-file", str(ready)], stdout=said, stderr=said
            )
            try:
                until_s = time.monotonic() + _READY_S
                while not ready.exists():
                    if server.poll() is not None or time.monotonic() > until_s:
                        said.seek(0)
                        lines = said.read().decode("utf-8", "replace").strip().splitlines()
                        raise TimedOut(f"data directory {place.data_dir} could not be opened: {' '.join(lines[-2:])}")
                    time.sleep(_SAID_S)
                address = msgspec.json.decode(ready.read_bytes())["native"]
                yield replace(place, data_dir="", server=f"headrace://{address}")
            finally:
                server.terminate()
                server.wait()


def run_job(
    name: str,
    *,
    server: str = "",
    data_dir: str = "",
    namespace: str = "default",
    token: str | None = None,
    ca_file: str | None = None,
    topics: Sequence[str] = (),
    pattern: str | None = None,
    out: str | None = None,
    dry_run: bool = False,
    away_ns: int = SPARK_AWAY_NS,
    spark: SparkSession | None = None,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
    **options: Any,
) -> Report:
    """Run a job and have its report; what it writes goes to ``out``, ``report.html`` and ``report.json`` among it.

    ``run_job("latency", server="headrace://127.0.0.1:7420", topics=["orders"], out="lake")``
    """
    job = find_job(name)
    if bool(server) == bool(data_dir):
        raise InvalidArgument("give one of server (headrace://host:7420) and data_dir (a data directory)")
    checked_options(job, options)
    with ExitStack() as stack:
        given = Place(server, data_dir, namespace, token, ca_file, away_ns)
        place = stack.enter_context(served(given))
        mine = spark if spark is not None else _active(master, remote)
        if mine is None:
            mine = _session(job, master, remote, conf or {}, say)
            stack.callback(mine.stop)
        run = Run(
            job, place, mine, topics=topics, pattern=pattern, out=out, dry_run=dry_run, options=options, say=say
        )  # fmt: skip
        module, _, function = job.place.partition(":")
        work = getattr(import_module(module), function)
        report: Report = work(run)
        if run.writes:
            report.written["report"] = run.lake.put(report.html(), "report.html")
            run.lake.put(dumped(report), "report.json")
        return report


def _active(master: str | None, remote: str | None) -> Any:
    """The session that this process has already, unless another one is asked for: it is used, and left as it was."""
    if master is not None or remote is not None:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _session(
    job: Job, master: str | None, remote: str | None, conf: Mapping[str, str], say: Callable[[str], None] | None
) -> Any:
    from headrace.spark import session

    if say is not None:
        say(f"{job.name}: starting Spark")
    spark = session(f"headrace {job.name}", master=master, conf=dict(conf), **({"remote": remote} if remote else {}))
    if remote is None:
        spark.sparkContext.setLogLevel("ERROR")
    return spark
