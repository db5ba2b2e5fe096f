"""The reference of metrics, from the families that the server declares."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.broker.metrics import FAMILIES
from headrace.limits import METRICS_GROUPS_MAX

__all__ = ["LABELS", "metrics_page"]

HEAD = f"""\
# Metrics

Written by `tools/reference_pages.py` from the code.

`GET /metrics` in the text format of Prometheus, for whoever has a token with `admin` on everything (or for this
machine, without keys). `metrics.enabled` switches them off; what is costly to find out (ages, the books, memory) is
looked at once in `metrics.interval`. What to watch and when to wake somebody is in
[monitoring](../guides/monitoring.md).

The number of series is bounded: after {METRICS_GROUPS_MAX:,} groups the others are one, whose topic is `(other)`.
Counters of topics and groups are part of the log and go on after a restart; those of the process begin at 0.
"""
ALIASES = """
## Names of MQTT queue brokers

The same numbers for the group `default` of each topic of the namespace `default`, under the names that dashboards of
MQTT queue brokers know. The reason `total_timeout` is called `timeout` there.

"""
_GROUP = "namespace, topic, group"
LABELS = {
    "headrace_messages": f"{_GROUP}, state",
    "headrace_published_total": "namespace, topic",
    "headrace_dead_total": f"{_GROUP}, reason",
    "headrace_delivery_latency_seconds": "namespace, topic",
    "headrace_connections": "door",
    "mqtt_queue_dlq_total": "queue, reason",
    "mqtt_queue_active_consumers": "queue, group",
    "mqtt_queue_delivery_latency_seconds": "queue, quantile",
}
"""Where they are not what most of their kind have."""
_OF_PROCESS = ("books", "commit", "fsync", "journal", "quota", "resident", "cpu")


def metrics_page() -> str:
    return "".join(
        [
            HEAD,
            *_table(name for name in FAMILIES if name.startswith("headrace_")),
            ALIASES.rstrip("\n") + "\n",
            *_table(name for name in FAMILIES if name.startswith("mqtt_")),
        ]
    )


def _table(names: Iterator[str]) -> Iterator[str]:
    yield "\n| Name | Kind | Labels | What |\n|---|---|---|---|\n"
    for name in names:
        kind, says = FAMILIES[name]
        yield f"| `{name}` | {kind} | {labels_of(name)} | {says} |\n"


def labels_of(name: str) -> str:
    """The labels of a family."""
    if name in LABELS:
        return LABELS[name]
    if name.startswith("mqtt_"):
        return "queue"
    return "" if name.removeprefix("headrace_").startswith(_OF_PROCESS) else _GROUP
