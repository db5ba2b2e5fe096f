"""What the broker counts, in the text that Prometheus reads (exposition format 0.0.4).

Nothing is counted twice: the numbers are those that delivery, journal and quotas keep anyway, read when somebody asks.
They are read in portions, so that the loop serves others in between. What is costly to find out (how old the oldest
unsettled message is, whether the books balance, how much memory is in use) is found out at most once an interval.

Two spellings of the same numbers: ``headrace_…`` with namespace, topic and group, and, for the topics of namespace
``default``, the ``mqtt_queue_…`` names of MQTT queue brokers with the topic as ``queue`` (of group ``default``, which
is their only one).

The number of series is bounded: after METRICS_GROUPS_MAX groups the others are summed up in one, whose topic is
``(other)``.
"""

from __future__ import annotations

import resource
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from headrace.broker.broker import Broker
from headrace.delivery import Backlog, Group, Topic
from headrace.histogram import Histogram
from headrace.limits import METRICS_GROUPS_MAX, METRICS_PORTION_GROUPS, SECOND_NS

__all__ = ["CONTENT_TYPE", "FAMILIES", "Metrics"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OTHER: Final = "(other)"

FAMILIES: Final[Mapping[str, tuple[str, str]]] = {
    "headrace_messages": ("gauge", "Unsettled messages of a group by state."),
    "headrace_published_total": ("counter", "Messages published to a topic."),
    "headrace_delivered_total": ("counter", "Messages handed out, again or for the first time."),
    "headrace_redelivered_total": ("counter", "Messages handed out again."),
    "headrace_acked_total": ("counter", "Messages acked."),
    "headrace_nacked_total": (
        "counter",
        "Attempts that failed, by a nack or by time, also those that were the last of their message.",
    ),
    "headrace_dead_total": ("counter", "Messages that died, by reason."),
    "headrace_expired_total": ("counter", "Messages whose life ended before they were settled."),
    "headrace_cancelled_total": ("counter", "Scheduled messages that were cancelled."),
    "headrace_dropped_total": ("counter", "Messages that were purged."),
    "headrace_group_lag": ("gauge", "Messages a group has yet to settle."),
    "headrace_group_oldest_seconds": ("gauge", "Age of the oldest message a group has yet to settle."),
    "headrace_group_consumers": ("gauge", "Consumers in a group."),
    "headrace_group_paused": ("gauge", "1 while a group is paused."),
    "headrace_delivery_latency_seconds": ("histogram", "From due to handed out, first deliveries."),
    "headrace_books_drift": ("gauge", "By how much the books do not balance; anything but 0 is a defect."),
    "headrace_commits_total": ("counter", "Rounds written to the journal."),
    "headrace_commit_bytes": ("histogram", "Size of a round."),
    "headrace_fsync_seconds": ("histogram", "How long a sync of the journal takes."),
    "headrace_journal_bytes": ("gauge", "Length of the journal that is kept."),
    "headrace_connections": ("gauge", "Open connections by door."),
    "headrace_quota_refused_total": ("counter", "Publishes and connections refused by a quota."),
    "headrace_resident_memory_bytes": ("gauge", "Memory of the process."),
    "headrace_cpu_seconds_total": ("counter", "Processor time of the process."),
    "mqtt_queue_depth": ("gauge", "Messages yet to be settled."),
    "mqtt_queue_enqueue_total": ("counter", "Messages published."),
    "mqtt_queue_dequeue_total": ("counter", "Messages handed out."),
    "mqtt_queue_ack_total": ("counter", "Messages acked."),
    "mqtt_queue_nack_total": ("counter", "Attempts that failed and are tried again."),
    "mqtt_queue_dlq_total": ("counter", "Messages that died, by reason."),
    "mqtt_queue_active_consumers": ("gauge", "Consumers in a group."),
    "mqtt_queue_delivery_latency_seconds": ("gauge", "From due to handed out: median and 99th percentile."),
}

_OLD_REASONS: Final = {"total_timeout": "timeout"}
_QUANTILES: Final = (0.5, 0.99)
_STATES: Final = ("scheduled", "ready", "leased")


class _Row:
    """The counts of one group, or of many together."""

    __slots__ = (
        "acked",
        "cancelled",
        "consumers",
        "dead",
        "delivered",
        "dropped",
        "expired",
        "leased",
        "nacked",
        "oldest_ns",
        "paused",
        "ready",
        "redelivered",
        "scheduled",
        "unsettled",
    )

    def __init__(self) -> None:
        self.scheduled = self.ready = self.leased = self.unsettled = 0
        self.delivered = self.redelivered = self.acked = self.nacked = 0
        self.expired = self.cancelled = self.dropped = 0
        self.consumers = self.paused = 0
        self.dead: dict[str, int] = {}
        self.oldest_ns = 0

    def add(self, group: Group) -> None:
        for backlog in group.backlogs.values():
            self.scheduled += backlog.scheduled_count
            self.ready += backlog.ready_count
            self.leased += backlog.leased_count
            self.unsettled += backlog.unsettled_count
            self.acked += backlog.acked_count
            self.expired += backlog.expired_count
            self.cancelled += backlog.cancelled_count
            self.dropped += backlog.dropped_count
        self.delivered += group.delivered
        self.redelivered += group.redelivered
        self.nacked += group.nacked
        self.consumers += len(group.members)
        self.paused += group.pause is not None
        for reason, count in group.deaths.items():
            self.dead[reason] = self.dead.get(reason, 0) + count


class Metrics:
    """The metrics of one broker; ``expose`` is asked once a scrape."""

    def __init__(self, broker: Broker, *, interval_ns: int = 10 * SECOND_NS) -> None:
        self._broker = broker
        self._core = broker.core
        self._interval_ns = interval_ns
        self._looked_at_ns: int | None = None
        self._oldest: dict[int, int] = {}
        self._drift = 0
        self._resident_bytes = 0
        self.connections: dict[str, Callable[[], int]] = {}
        """Door → how many are connected; filled by whoever opens the doors."""

    def expose(self) -> Iterator[str]:
        """The whole text, in pieces. Between two pieces the loop may do something else; most of them are empty."""
        lines: dict[str, list[str]] = defaultdict(list)
        refresh = self._is_old()
        other = _Row()
        shown = 0
        for number, topic in enumerate(list(self._core.state.topics.values())):
            if shown < METRICS_GROUPS_MAX:
                self._of_topic(lines, topic)
            for group in list(topic.groups.values()):
                if refresh:
                    self._look_at(group)
                shown += 1
                if shown > METRICS_GROUPS_MAX:
                    other.add(group)
                    other.oldest_ns = max(other.oldest_ns, self._oldest.get(group.gid, 0))
                    continue
                row = _Row()
                row.add(group)
                row.oldest_ns = self._oldest.get(group.gid, 0)
                labels = _labels(namespace=topic.namespace, topic=topic.name, group=group.name)
                self._of_group(lines, labels, row)
                if topic.namespace == "default":
                    self._in_old_names(lines, topic, group, row)
            if number % METRICS_PORTION_GROUPS == METRICS_PORTION_GROUPS - 1:
                yield ""
        if shown > METRICS_GROUPS_MAX:
            self._of_group(lines, _labels(namespace=OTHER, topic=OTHER, group=OTHER), other)
        if refresh:
            self._resident_bytes = _resident_bytes()
        self._of_process(lines)
        for family, (kind, help_text) in FAMILIES.items():
            if lines[family]:
                yield f"# HELP {family} {help_text}\n# TYPE {family} {kind}\n" + "".join(lines[family])

    def _is_old(self) -> bool:
        now_ns = self._core.clock.now_ns()
        if self._looked_at_ns is not None and now_ns - self._looked_at_ns < self._interval_ns:
            return False
        self._looked_at_ns = now_ns
        self._oldest = {}
        self._drift = 0
        latencies, topics = self._broker.latencies, self._core.state.topics
        for tid in [tid for tid in latencies if tid not in topics]:
            del latencies[tid]
        return True

    def _look_at(self, group: Group) -> None:
        now_ns = self._core.clock.now_ns()
        ages = [_age_ns(backlog, now_ns) for backlog in group.backlogs.values() if backlog.unsettled_count]
        self._oldest[group.gid] = max(ages, default=0)
        self._drift += sum(abs(backlog.drift()) for backlog in group.backlogs.values())

    def _of_topic(self, lines: dict[str, list[str]], topic: Topic) -> None:
        labels = _labels(namespace=topic.namespace, topic=topic.name)
        published = sum(partition.end for partition in topic.partitions)
        lines["headrace_published_total"].append(f"headrace_published_total{{{labels}}} {published}\n")
        seen = self._broker.latencies.get(topic.tid)
        if seen is not None:
            family = "headrace_delivery_latency_seconds"
            lines[family].append(_histogram(family, labels, seen, 1e9))

    def _of_group(self, lines: dict[str, list[str]], labels: str, row: _Row) -> None:
        for state in _STATES:
            lines["headrace_messages"].append(f'headrace_messages{{{labels},state="{state}"}} {getattr(row, state)}\n')
        for name in ("delivered", "redelivered", "acked", "nacked", "expired", "cancelled", "dropped"):
            family = f"headrace_{name}_total"
            lines[family].append(f"{family}{{{labels}}} {getattr(row, name)}\n")
        for reason, count in row.dead.items():
            lines["headrace_dead_total"].append(f'headrace_dead_total{{{labels},reason="{reason}"}} {count}\n')
        for name, value in (
            ("lag", row.unsettled),
            ("oldest_seconds", row.oldest_ns / SECOND_NS),
            ("consumers", row.consumers),
            ("paused", row.paused),
        ):
            lines[f"headrace_group_{name}"].append(f"headrace_group_{name}{{{labels}}} {value}\n")

    def _in_old_names(self, lines: dict[str, list[str]], topic: Topic, group: Group, row: _Row) -> None:
        queue = _labels(queue=topic.name)
        family = "mqtt_queue_active_consumers"
        lines[family].append(f"{family}{{{queue},{_labels(group=group.name)}}} {row.consumers}\n")
        if group.name != "default":
            return
        published = sum(partition.end for partition in topic.partitions)
        for name, value in (
            ("depth", row.unsettled),
            ("enqueue_total", published),
            ("dequeue_total", row.delivered),
            ("ack_total", row.acked),
            ("nack_total", row.nacked),
        ):
            lines[f"mqtt_queue_{name}"].append(f"mqtt_queue_{name}{{{queue}}} {value}\n")
        for reason, count in row.dead.items():
            old = _OLD_REASONS.get(reason, reason)
            lines["mqtt_queue_dlq_total"].append(f'mqtt_queue_dlq_total{{{queue},reason="{old}"}} {count}\n')
        seen = self._broker.latencies.get(topic.tid)
        if seen is not None:
            family = "mqtt_queue_delivery_latency_seconds"
            for part in _QUANTILES:
                value_s = (seen.quantile(part) or 0.0) / SECOND_NS
                lines[family].append(f'{family}{{{queue},quantile="{part}"}} {value_s:.6g}\n')

    def _of_process(self, lines: dict[str, list[str]]) -> None:
        journal = self._core.journal
        usage = resource.getrusage(resource.RUSAGE_SELF)
        plain: dict[str, Any] = {
            "headrace_books_drift": self._drift,
            "headrace_commits_total": journal.stats.commits,
            "headrace_journal_bytes": journal.end_position - journal.first_position,
            "headrace_quota_refused_total": self._broker.quotas.refused,
            "headrace_resident_memory_bytes": self._resident_bytes,
            "headrace_cpu_seconds_total": round(usage.ru_utime + usage.ru_stime, 3),
        }
        for family, value in plain.items():
            lines[family].append(f"{family} {value}\n")
        commits, syncs = journal.stats.commit_bytes, journal.stats.fsync_ns
        lines["headrace_commit_bytes"].append(_histogram("headrace_commit_bytes", "", commits, 1))
        lines["headrace_fsync_seconds"].append(_histogram("headrace_fsync_seconds", "", syncs, 1e9))
        for door, count in self.connections.items():
            lines["headrace_connections"].append(f"headrace_connections{{{_labels(door=door)}}} {count()}\n")


def _age_ns(backlog: Backlog, now_ns: int) -> int:
    first = backlog.first_unsettled()
    return max(0, now_ns - backlog.partition.appended_ms(first) * 1_000_000)


def _labels(**labels: str) -> str:
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in labels.items()])


def _escaped(value: str) -> str:
    if '"' in value or "\\" in value or "\n" in value:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value


@cache
def _bounds_told(bounds: tuple[int, ...], unit: float) -> tuple[str, ...]:
    """How the buckets of a histogram are called, made once."""
    return tuple(f'le="{bound / unit:g}"}} ' for bound in bounds)


def _histogram(family: str, labels: str, seen: Histogram, unit: float) -> str:
    start = f"{family}_bucket{{{labels}," if labels else f"{family}_bucket{{"
    counts = list(accumulate(seen.counts))
    told = [
        f"{start}{bound}{within}\n"
        for bound, within in zip(_bounds_told(tuple(seen.bounds), unit), counts, strict=False)
    ]
    own = f"{{{labels}}}" if labels else ""
    told.append(
        f'{start}le="+Inf"}} {counts[-1]}\n'
        f"{family}_sum{own} {seen.total / unit:.9g}\n{family}_count{own} {counts[-1]}\n"
    )
    return "".join(told)


def _resident_bytes() -> int:
    """The memory of this process now; the most there ever was, where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()
