"""``/api/v1/queues``: topics and their group ``default``, with the configuration document of durable MQTT queues.

    partitions, ordering          the same; ordering ``partition`` (FIFO by partition key) is our ``key``
    retry_policy                  retry
    dlq_config                    dead_letters
    limits                        max_message_size, max_depth, message_ttl
    performance.delivery_timeout  lease
    performance.batch_size        nothing: how many come at a time is the consumer's to say

A queue is named as it is, percent-encoded, as ``$queue/tasks/image``, or with ``$`` in place of the slashes:
``$queue$tasks$image``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from headrace import limits
from headrace.errors import InvalidArgument
from headrace.frontends.http import shapes
from headrace.frontends.http.answers import Declined
from headrace.frontends.http.calls import spoken
from headrace.frontends.http.request import Request
from headrace.frontends.http.routes import Route
from headrace.ids import parse_id
from headrace.names import DEFAULT_NAMESPACE

__all__ = ["ROUTES", "queue_name"]

_PREFIX = "$queue"


def queue_name(text: str) -> str:
    """The topic of a queue.

    >>> queue_name("$queue$tasks$image"), queue_name("$queue/tasks/image"), queue_name("tasks/image")
    ('tasks/image', 'tasks/image', 'tasks/image')
    """
    if text.startswith(f"{_PREFIX}$"):
        return text[len(_PREFIX) + 1 :].replace("$", "/")
    return text.removeprefix(f"{_PREFIX}/")


Count = Annotated[int, Meta(ge=0, le=limits.SETTING_COUNT_MAX)]
Size = Count | Annotated[str, Meta(max_length=64)]


class RetryPolicy(shapes.Shape):
    max_retries: Count | None = None
    initial_backoff: shapes.Span | None = None
    max_backoff: shapes.Span | None = None
    backoff_multiplier: float | None = None
    total_timeout: shapes.Span | None = None


class DlqConfig(shapes.Shape):
    enabled: bool | None = None
    topic: str | None = None
    alert_webhook: str | None = None


class Limits(shapes.Shape):
    max_message_size: Size | None = None
    max_queue_depth: Count | None = None
    message_ttl: shapes.Span | None = None


class Performance(shapes.Shape):
    delivery_timeout: shapes.Span | None = None
    batch_size: Annotated[Count, Meta(description="Taken and without effect.")] | None = None


class QueueSettings(shapes.Shape):
    """What is not named stays."""

    partitions: Annotated[int, Meta(ge=1, le=limits.PARTITIONS_MAX)] | None = None
    ordering: Literal["none", "partition", "key", "strict"] | None = None
    retry_policy: RetryPolicy | None = None
    dlq_config: DlqConfig | None = None
    limits: Limits | None = None
    performance: Performance | None = None


class NewQueue(QueueSettings, kw_only=True):
    """A queue to make."""

    name: shapes.Name


class Queue(msgspec.Struct):
    """A queue and its settings."""

    name: str
    partitions: int
    ordering: str
    retry_policy: dict[str, Any]
    dlq_config: dict[str, Any]
    limits: dict[str, Any]
    performance: dict[str, Any]
    created_at: str


class QueueStats(msgspec.Struct):
    """A queue's numbers."""

    name: str
    depth: Annotated[int, Meta(description="Messages not yet settled.")]
    ready: int
    inflight: int
    scheduled: int
    enqueued: int
    dequeued: int
    acked: int
    nacked: int
    dlq: int
    consumers: int


class QueueConsumer(msgspec.Struct):
    group: str
    consumer: str
    inflight: int


def _settings(given: QueueSettings) -> dict[str, Any]:
    """The document as our settings."""
    found: dict[str, Any] = {"partitions": given.partitions}
    if given.ordering is not None:
        found["ordering"] = "key" if given.ordering == "partition" else given.ordering
    if given.retry_policy is not None:
        for name in given.retry_policy.__struct_fields__:
            found[f"retry.{name}"] = getattr(given.retry_policy, name)
    if given.dlq_config is not None:
        found["dead_letters.enabled"] = given.dlq_config.enabled
        found["dead_letters.alert_webhook"] = given.dlq_config.alert_webhook
        if given.dlq_config.topic is not None:
            found["dead_letters.topic"] = queue_name(given.dlq_config.topic)
    if given.limits is not None:
        found["max_message_size"] = given.limits.max_message_size
        found["max_depth"] = given.limits.max_queue_depth
        found["message_ttl"] = given.limits.message_ttl
    if given.performance is not None:
        found["lease"] = given.performance.delivery_timeout
    return {name: value for name, value in found.items() if value is not None}


def _queue(info: dict[str, Any]) -> dict[str, Any]:
    settings = info["settings"]
    dead = settings.get("dead_letters", {})
    return {
        "name": info["topic"],
        "partitions": info["partitions"],
        "ordering": "partition" if settings["ordering"] == "key" else settings["ordering"],
        "retry_policy": {
            name: settings["retry"][name]
            for name in ("max_retries", "initial_backoff", "max_backoff", "backoff_multiplier", "total_timeout")
        },
        "dlq_config": {
            "enabled": dead["enabled"],
            "topic": dead["topic"] or f"dlq/{info['topic']}",
            "alert_webhook": dead["alert_webhook"],
        },
        "limits": {
            "max_message_size": settings["max_message_size"],
            "max_queue_depth": settings["max_depth"],
            "message_ttl": settings["message_ttl"],
        },
        "performance": {"delivery_timeout": settings["lease"], "batch_size": 1},
        "created_at": spoken({"created_ns": info["created_ns"]}).get("created_at", ""),
    }


def _name(request: Request) -> dict[str, str]:
    topic = queue_name(request.names["queue"])
    return {"namespace": DEFAULT_NAMESPACE, "topic": topic}


def _may(request: Request, verb: Any) -> dict[str, str]:
    name = _name(request)
    request.authorise(verb, name["namespace"], name["topic"])
    return name


async def create(request: Request, given: NewQueue) -> Any:
    topic = queue_name(given.name)
    request.authorise("admin", DEFAULT_NAMESPACE, topic)
    info = await request.call("topic.create", namespace=DEFAULT_NAMESPACE, topic=topic, settings=_settings(given))
    return _queue(info)


async def list_queues(request: Request, _: Any) -> Any:
    return [_queue(info) for info in await request.call("topic.list", namespace=DEFAULT_NAMESPACE)]


async def show(request: Request, _: Any) -> Any:
    return _queue(await request.call("topic.show", **_may(request, "consume")))


async def configure(request: Request, given: QueueSettings) -> Any:
    return _queue(await request.call("topic.config", **_may(request, "admin"), settings=_settings(given)))


async def delete(request: Request, _: Any) -> Any:
    return await request.call("topic.delete", **_may(request, "admin"))


async def stats(request: Request, _: Any) -> Any:
    name = _may(request, "consume")
    topic = await request.call("topic.show", **name)
    group = await request.call("group.show", **name, group="default")
    return {
        "name": name["topic"],
        "depth": group["lag"],
        "ready": group["ready"],
        "inflight": group["leased"],
        "scheduled": group["scheduled"],
        "enqueued": topic["published"],
        "dequeued": group["delivered"],
        "acked": group["acked"],
        "nacked": group["nacked"],
        "dlq": group["dead"],
        "consumers": len(group["consumers"]),
    }


async def consumers(request: Request, _: Any) -> Any:
    name = _may(request, "consume")
    found = request.door.broker.broker.find_topic(name["namespace"], name["topic"])
    told: list[QueueConsumer] = []
    for group in found.groups.values():
        out = dict.fromkeys(sorted(group.members), 0)
        for backlog in group.backlogs.values():
            for lease in backlog.leases.values():
                out[lease.consumer] = out.get(lease.consumer, 0) + lease.span().count
        told += [QueueConsumer(group.name, consumer, count) for consumer, count in out.items()]
    return told


async def purge(request: Request, _: Any) -> Any:
    return await request.call("topic.purge", **_may(request, "admin"))


async def dead_letters(request: Request, given: shapes.DeadQuery) -> Any:
    from headrace.frontends.http.schedules import where_of

    rows = await request.call("dlq.list", **_may(request, "admin"), where=where_of(given), limit=given.limit)
    return {"dead_letters": spoken(rows)}


async def retry(request: Request, _: Any) -> Any:
    number = parse_id(request.names["id"])
    name = _may(request, "admin")
    report = await request.call("dlq.redrive", **name, where={"ids": [number]})
    if not report["matched"]:
        raise Declined(404, f"queue {name['topic']!r} has no dead letter {number}")
    if not report["redriven"]:
        raise InvalidArgument(f"dead letter {number} cannot go back: where it came from is gone; redrive it to a topic")
    return spoken(report)


_QUEUES = "/api/v1/queues"
_QUEUE = "/api/v1/queues/{queue}"

ROUTES = [
    Route(
        method="POST", path=_QUEUES, summary="Make a queue", tag="queues", verb="admin", inside=True, cold=create,
        body=NewQueue, answer=Queue, status=201,
    ),
    Route(
        method="GET", path=_QUEUES, summary="All queues", tag="queues", verb="consume", cold=list_queues,
        answer=list[Queue],
    ),
    Route(
        method="GET", path=_QUEUE, summary="A queue", tag="queues", verb="consume", inside=True, cold=show,
        answer=Queue,
    ),
    Route(
        method="PUT", path=f"{_QUEUE}/config", summary="Change a queue", tag="queues", verb="admin", inside=True,
        cold=configure, body=QueueSettings, answer=Queue,
    ),
    Route(
        method="DELETE", path=_QUEUE, summary="Delete a queue", tag="queues", verb="admin", inside=True, cold=delete,
        answer=shapes.Deleted,
    ),
    Route(
        method="GET", path=f"{_QUEUE}/stats", summary="A queue's numbers", tag="queues", verb="consume", inside=True,
        cold=stats, answer=QueueStats,
    ),
    Route(
        method="GET", path=f"{_QUEUE}/consumers", summary="Who consumes a queue", tag="queues", verb="consume",
        inside=True, cold=consumers, answer=list[QueueConsumer],
    ),
    Route(
        method="POST", path=f"{_QUEUE}/purge", summary="Drop all messages of a queue", tag="queues", verb="admin",
        inside=True, cold=purge, answer=shapes.Dropped,
    ),
    Route(
        method="GET", path=f"{_QUEUE}/dlq", summary="A queue's dead letters", tag="queues", verb="admin", inside=True,
        cold=dead_letters, query=shapes.DeadQuery, answer=shapes.DeadLetters,
    ),
    Route(
        method="POST", path=f"{_QUEUE}/dlq/{{id}}/retry", summary="Send a dead letter back to work", tag="queues",
        verb="admin", inside=True, cold=retry, answer=shapes.RedriveReport,
    ),
]  # fmt: skip
