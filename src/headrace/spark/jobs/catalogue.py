"""The jobs there are: what each is for, what it can be told, and which tables it writes.

Everything here is plain data, so that the command line can list and explain the jobs without Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final, Literal, NamedTuple

from headrace.errors import InvalidArgument

__all__ = ["JOBS", "Job", "Option", "Table", "checked_options", "find_job"]

Kind = Literal["text", "texts", "time", "span", "whole", "number", "flag", "path"]


class Option(NamedTuple):
    """Something a job can be told; ``texts`` may be given several times. Times and spans are nanoseconds."""

    name: str
    kind: Kind
    help: str
    otherwise: Any = None
    required: bool = False


class Table(NamedTuple):
    """A table a job writes: its columns as Spark declares them, and what it is partitioned by."""

    name: str
    columns: str
    about: str
    partitioned_by: tuple[str, ...] = ()


class Job(NamedTuple):
    """``place``: module and function, imported when it is run. ``out``: whether it needs a place to write to."""

    name: str
    about: str
    place: str
    options: tuple[Option, ...]
    tables: tuple[Table, ...]
    out: bool = True
    topics: Literal["any", "some", "one"] = "any"

    def table(self, name: str) -> Table:
        return next(table for table in self.tables if table.name == name)


_FROM = Option("from_time", "time", "Only what happened at or after this time.")
_TO = Option("to_time", "time", "Only what happened before this time.")
_FOLLOW = Option("follow", "flag", "Go on until Ctrl-C instead of ending when all there is was read.")
_PORTION = Option("portion", "whole", "Messages read at a time.", 1_000_000)

MESSAGES: Final = (
    "namespace string, partition int, offset bigint, timestamp timestamp, id bigint, key binary, value binary,"
    " headers map<string,binary>, priority int, topic string, date date"
)

JOBS: Final[dict[str, Job]] = {
    job.name: job
    for job in (
        Job(
            "archive",
            "Copy topics into a lake of Parquet files by topic and date, each message once; goes on where it stopped.",
            "headrace.spark.jobs.archive:archive",
            (
                _PORTION,
                Option("small", "whole", "Files of a day are put together when more than so many are small.", 8),
                Option("target_rows", "whole", "A file with fewer rows is small.", 500_000),
                _FOLLOW,
            ),
            (
                Table("messages", MESSAGES, "one row a message", ("topic", "date")),
                Table(
                    "manifest",
                    "version bigint, kind string, batch bigint, added array<struct<path:string,rows:bigint,"
                    "size_bytes:bigint>>, removed array<string>, at string",
                    "JSON, one file a version: which files are the lake",
                ),
            ),
        ),
        Job(
            "replay",
            "Publish a window of the log or of an archive again: into a topic, filtered and paced, or to a group.",
            "headrace.spark.jobs.replay:replay",
            (
                _FROM,
                _TO,
                Option("archive", "path", "Read from this archive instead of the log."),
                Option("to", "text", "Publish copies into this topic."),
                Option("to_group", "text", "Have this group of the same topic consume the window again, as it is."),
                Option("where", "text", "Only what this SQL expression says, over the columns of the log."),
                Option("key_prefix", "text", "Only keys that begin with this."),
                Option("header", "texts", "Only with this header, NAME or NAME=VALUE."),
                Option("outcome", "text", "Only messages that ended so: acked, died, expired, or were retried."),
                Option("group", "text", "The group whose outcome is meant."),
                Option("consumer", "text", "Only those that this consumer had."),
                Option("error", "text", "Only those that failed with this text in the error."),
                Option("reason", "text", "Only those that died or were retried for this reason."),
                Option("min_attempts", "whole", "Only those delivered at least so often."),
                Option("rate", "number", "At most so many a second."),
            ),
            (
                Table(
                    "replayed",
                    "topic string, partition int, messages bigint, first_offset bigint, last_offset bigint,"
                    " first_timestamp timestamp, last_timestamp timestamp, bytes bigint",
                    "one row a partition: what was replayed",
                ),
            ),
            topics="some",
        ),
        Job(
            "redrive",
            "Send dead letters back to work, chosen by any expression over what is known of them; --dry-run first.",
            "headrace.spark.jobs.redrive:redrive",
            (
                _FROM,
                _TO,
                Option("where", "text", "Only what this SQL expression says, over the columns of dead letters."),
                Option("reason", "text", "Only those that died of this."),
                Option("error", "text", "Only those with this text in the last error."),
                Option("group", "text", "Only those that died in this group."),
                Option("consumer", "text", "Only those that this consumer had last."),
                Option("key_prefix", "text", "Only keys that begin with this."),
                Option("header", "texts", "Only with this header, NAME or NAME=VALUE."),
                Option("min_attempts", "whole", "Only those delivered at least so often."),
                Option("to", "text", "Into this topic, not to where they died."),
                Option("rate", "number", "At most so many a second."),
            ),
            (
                Table(
                    "redriven",
                    "topic string, group string, reason string, error string, matched bigint,"
                    " first_died timestamp, last_died timestamp",
                    "one row a kind of death: what was chosen",
                ),
            ),
            out=False,
        ),
        Job(
            "dead-letters",
            "Why things die: by reason, error, topic, hour and consumer; the worst offenders.",
            "headrace.spark.jobs.dead_letters:dead_letters",
            (_FROM, _TO, Option("top", "whole", "How many offenders of each kind.", 20)),
            (
                Table(
                    "deaths",
                    "topic string, group string, reason string, error string, consumer string, hour timestamp,"
                    " deaths bigint, standing bigint, keys bigint, mean_attempts double, first_died timestamp,"
                    " last_died timestamp, example_id bigint",
                    "one row a kind of death and hour; numbers in errors are replaced by #",
                ),
                Table(
                    "offenders",
                    "kind string, name string, topic string, deaths bigint, share double",
                    "the errors, keys and consumers with most deaths",
                ),
            ),
        ),
        Job(
            "latency",
            "How long messages take, from their events: quantiles a minute, slow and stuck consumers, books a day.",
            "headrace.spark.jobs.latency:latency",
            (
                _FROM,
                _TO,
                Option("slow", "number", "A consumer is slow when it takes so many times what the others take.", 3.0),
                Option("stuck", "span", "A consumer is stuck when it holds a message for so long.", 300_000_000_000),
            ),
            (
                Table(
                    "latency",
                    "topic string, group string, minute timestamp, stage string, messages bigint, p50_ms double,"
                    " p90_ms double, p99_ms double, max_ms double",
                    "one row a minute and stage: deliver (due to first delivery), ack (delivery to ack), whole",
                ),
                Table(
                    "consumers",
                    "topic string, group string, consumer string, delivered bigint, acked bigint, failed bigint,"
                    " ran_out bigint, released bigint, holding bigint, p50_ms double, p99_ms double,"
                    " oldest_held_ms double, last_seen timestamp, verdict string",
                    "one row a consumer; verdict: ok, slow or stuck",
                ),
                Table(
                    "books",
                    "topic string, group string, day date, published bigint, delivered bigint, acked bigint,"
                    " retried bigint, released bigint, dead bigint, expired bigint, cancelled bigint, dropped bigint",
                    "one row a group and day",
                ),
            ),
        ),
        Job(
            "rollup",
            "Messages and bytes a minute as a stream, with a watermark; what groups lag behind.",
            "headrace.spark.jobs.rollup:rollup",
            (
                _PORTION,
                Option("window", "span", "The width of a row.", 60_000_000_000),
                Option("late", "span", "How late a message may be and still be counted.", 600_000_000_000),
                Option("event_time", "text", "A field of the JSON payload that says when it happened, as RFC 3339."),
                _FOLLOW,
            ),
            (
                Table(
                    "rates",
                    "topic string, window timestamp, messages bigint, bytes bigint, messages_per_second double,"
                    " mean_bytes double",
                    "one row a topic and window",
                ),
                Table(
                    "lag",
                    "at timestamp, topic string, group string, lag bigint, ready bigint, leased bigint,"
                    " scheduled bigint, dead bigint",
                    "one row a group each time the stream looked",
                ),
            ),
        ),
        Job(
            "quality",
            "Check payloads against a JSON schema; what is not as it should be goes to a quarantine topic.",
            "headrace.spark.jobs.quality:quality",
            (
                Option("schema", "path", "The JSON schema, a file.", required=True),
                Option("quarantine", "text", "The topic for what is wrong; quarantine/<topic> where not given."),
                _PORTION,
                _FOLLOW,
            ),
            (
                Table(
                    "checks",
                    "batch bigint, topic string, day date, checked bigint, passed bigint, failed bigint",
                    "one row a micro-batch and day",
                ),
                Table(
                    "problems",
                    "batch bigint, topic string, path string, rule string, problem string, messages bigint,"
                    " example_partition int, example_offset bigint",
                    "one row a kind of problem in a micro-batch",
                ),
            ),
            topics="one",
        ),
        Job(
            "what-if",
            "Recorded traffic through changed settings, by the broker's own rules: how it would have gone.",
            "headrace.spark.jobs.what_if:what_if",
            (
                _FROM,
                _TO,
                Option("set", "texts", "A setting of the topic to change, as retry.max_retries=3."),
                Option("group", "text", "Only this group."),
                Option("beyond", "text", "What attempts do that were never made: fail (as the last) or ack.", "fail"),
            ),
            (
                Table(
                    "outcomes",
                    "topic string, group string, run string, published bigint, delivered bigint, acked bigint,"
                    " retried bigint, released bigint, dead bigint, rejected bigint, max_retries bigint,"
                    " total_timeout bigint, expired bigint, p50_ms double, p99_ms double, unsettled bigint",
                    "one row a group and run: recorded, replayed (as recorded, must be the same), eager (consumers"
                    " take what they can), changed (the same with the new settings)",
                ),
            ),
            topics="some",
        ),
        Job(
            "medallion",
            "The declarative pipeline to copy: bronze (as it came), silver (parsed, checked), gold (figures).",
            "headrace.spark.jobs.medallion:medallion",
            (Option("full_refresh", "flag", "Begin anew instead of going on."),),
            (
                Table(
                    "bronze_messages",
                    "key binary, value binary, headers map<string,binary>, namespace string, topic string, partition"
                    " int, offset bigint, timestamp timestamp, id bigint, priority int",
                    "messages as they came",
                ),
                Table(
                    "bronze_events",
                    "namespace string, topic string, timestamp timestamp, event string, partition int, group string,"
                    " consumer string, lease_id bigint, first_offset bigint, last_offset bigint, count bigint, "
                    "offsets array<bigint>, attempt int, reason string, error string, until_ns bigint, first_id "
                    "bigint, to_topic string, to_partition int, to_offset bigint, position bigint, at_ns bigint",
                    "what happened to messages: one row a fact",
                ),
                Table(
                    "bronze_dead_letters",
                    "namespace string, topic string, group string, reason string, error string, attempts int, "
                    "consumer string, died timestamp, key binary, value binary, id bigint",
                    "dead letters with where they came from and why they died",
                ),
                Table(
                    "silver_messages",
                    "topic string, partition int, offset bigint, timestamp timestamp, id bigint, key string, payload"
                    " string, priority int, bytes int",
                    "payloads that are JSON objects, each message once",
                ),
                Table(
                    "silver_quarantine",
                    "topic string, partition int, offset bigint, timestamp timestamp, id bigint, key binary, value "
                    "binary, problem string",
                    "payloads that are not",
                ),
                Table(
                    "gold_rates",
                    "topic string, minute timestamp, messages bigint, bytes bigint, quarantined bigint",
                    "messages and bytes a minute",
                ),
                Table(
                    "gold_latency",
                    "topic string, group string, minute timestamp, stage string, messages bigint, p50_ms double, "
                    "p90_ms double, p99_ms double, max_ms double",
                    "how long messages take, as quantiles a minute and stage",
                ),
                Table(
                    "gold_deaths",
                    "topic string, group string, reason string, error string, consumer string, hour timestamp, "
                    "deaths bigint",
                    "why things die",
                ),
            ),
            topics="some",
        ),
    )
}


def find_job(name: str) -> Job:
    """The job of a name; InvalidArgument names the nearest one.

    >>> find_job("redrive").out
    False
    """
    job = JOBS.get(name)
    if job is None:
        close = get_close_matches(name, JOBS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(JOBS)}"
        raise InvalidArgument(f"there is no job {name!r}; {hint}")
    return job


def checked_options(job: Job, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a job was told, with what it was not told; an unknown name is refused with the nearest one."""
    known = {option.name: option for option in job.options}
    for name in given:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(known)}"
            raise InvalidArgument(f"job {job.name} has no option {name!r}; {hint}")
    found = {name: given.get(name) for name in known}
    for name, option in known.items():
        if found[name] is None:
            found[name] = [] if option.kind == "texts" else option.otherwise
        if option.required and found[name] is None:
            raise InvalidArgument(f"job {job.name} needs {name}: {option.help}")
    for name in ("portion", "small", "target_rows", "top", "rate", "window", "min_attempts"):
        value: Any = found.get(name)
        if value is not None and value <= 0:
            raise InvalidArgument(f"{name} {value}: must be above 0")
    return found
