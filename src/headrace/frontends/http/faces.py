"""Thin faces, for people who come from other systems: the same calls by other names.

    POST /enqueue   GET /dequeue   POST /ack   POST /nack      payloads in base64, the namespace in the request
    POST /v1/topics/{topic}/publish                            one message, its value in base64

``GET /dequeue`` leases for the group ``default`` (or ``group``); what it handed out can be settled by id alone, as such
clients do. The ids are remembered for that (``HTTP_HANDED_OUT_MAX``), and looked for when they are not.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace import limits
from headrace.batch import Message, encode
from headrace.calls import BY_KEY, LeasedBatch, Run, Settle, Settled
from headrace.errors import HeadraceError, InvalidArgument
from headrace.frontends.http import shapes
from headrace.frontends.http.answers import encode_json
from headrace.frontends.http.hot import answer_settled, lease_for, place_leased, publish_batch, traceparent_of
from headrace.frontends.http.messages import (
    instant_ns,
    results_of,
    run_of,
    span_ns,
    spelled_instant,
)
from headrace.frontends.http.reading import query_of
from headrace.frontends.http.request import Request
from headrace.frontends.http.routes import Route, namespaced
from headrace.ids import parse_id
from headrace.names import check_namespace_name, check_topic_name

__all__ = ["ROUTES", "HandedOut"]

_NAMED = {"high": 1, "normal": 5, "low": 9}


class HandedOut:
    """Where the deliveries of ``GET /dequeue`` are, by group and id; the oldest is forgotten first."""

    def __init__(self) -> None:
        self._runs: OrderedDict[tuple[str, str, str, int], Run] = OrderedDict()

    def put(self, group: tuple[str, str, str], message_id: int, run: Run) -> None:
        self._runs[(*group, message_id)] = run
        if len(self._runs) > limits.HTTP_HANDED_OUT_MAX:
            self._runs.popitem(last=False)

    def take(self, group: tuple[str, str, str], message_id: int) -> Run | None:
        return self._runs.pop((*group, message_id), None)


# -- /enqueue ----------------------------------------------------------------------------------------------------------


class Enqueued(shapes.Shape):
    """One item."""

    topic: shapes.Name
    namespace: shapes.Name = "default"
    priority: Annotated[int, Meta(ge=0, le=limits.PRIORITY_MAX)] = 5
    payload: Annotated[bytes, Meta(description="Base64.")] = b""
    deliver_after: shapes.Instant | None = None
    headers: dict[str, str] | None = None
    dedup_id: str | None = None


Items = Annotated[list[Enqueued], Meta(min_length=1, max_length=limits.HTTP_MESSAGES_MAX)]


async def enqueue(request: Request, given: list[Enqueued]) -> Any:
    """Items of one topic are stored as one batch, whole or not at all; topics are independent of each other."""
    places: dict[tuple[str, str], list[int]] = {}
    for index, item in enumerate(given):
        places.setdefault((item.namespace, item.topic), []).append(index)
    for namespace, topic in places:  # all of them before anything is stored
        request.authorise("publish", check_namespace_name(namespace), check_topic_name(topic))
    traceparent = traceparent_of(request)
    batches = {
        where: encode([_message(given[index], traceparent) for index in found]) for where, found in places.items()
    }
    broker = request.door.broker
    replies = await asyncio.gather(
        *(broker.publish(namespace, topic, BY_KEY, batch) for (namespace, topic), batch in batches.items()),
        return_exceptions=True,
    )
    results: list[shapes.Published | None] = [None] * len(given)
    for reply, found in zip(replies, places.values(), strict=True):
        if isinstance(reply, BaseException):
            raise reply
        for index, result in zip(found, results_of(len(found), reply), strict=True):
            results[index] = result
    return {"results": results}


def _message(item: Enqueued, traceparent: str | None) -> Message:
    headers: dict[str, str | bytes] = {**(item.headers or {})}
    if traceparent is not None:
        headers.setdefault("traceparent", traceparent)
    return Message(
        item.payload,
        headers=headers or None,
        priority=item.priority,
        deliver_at_ns=instant_ns("deliver_after", item.deliver_after) if item.deliver_after is not None else None,
        dedup_id=item.dedup_id.encode() if item.dedup_id is not None else None,
    )


# -- /dequeue ----------------------------------------------------------------------------------------------------------


class DequeueQuery(shapes.Shape):
    """From where, and how many."""

    topic: shapes.Name
    namespace: shapes.Name = "default"
    limit: Annotated[int, Meta(ge=1, le=limits.HTTP_LEASE_MESSAGES_MAX)] = 1
    group: shapes.Name = "default"
    wait: shapes.Span = "0s"
    lease: shapes.Span | None = None
    consumer: Annotated[str, Meta(max_length=limits.CONSUMER_NAME_BYTES_MAX)] = ""


class Dequeued(msgspec.Struct, omit_defaults=True):
    """One item; settle it by its id, or by its receipt."""

    id: shapes.Id
    namespace: str
    topic: str
    priority: int
    payload: Annotated[bytes, Meta(description="Base64.")]
    receipt: shapes.Receipt
    attempt: int
    headers: dict[str, str] | None = None
    deliver_after: str | None = None


def dequeue(request: Request) -> None:
    """A lease by another name."""
    given = query_of(request.query, DequeueQuery)
    request.authorise("consume", given.namespace, given.topic)
    order = shapes.LeaseOrder(max=given.limit, wait=given.wait, lease=given.lease, consumer=given.consumer)
    group = (given.namespace, given.topic, given.group)
    lease_for(request, group, order, partial(_answer_items, request, group))


def _answer_items(request: Request, group: tuple[str, str, str], leased: list[LeasedBatch]) -> None:
    items: list[Dequeued] = []
    handed_out = request.door.handed_out
    for one in leased:
        for message in one.batch:
            run = Run(one.partition, one.lease_id, message.offset)
            handed_out.put(group, message.id, run)
            headers = {name: item for name, item in message.headers.items() if isinstance(item, str)}
            items.append(
                Dequeued(
                    id=str(message.id),
                    namespace=group[0],
                    topic=group[1],
                    priority=message.priority,
                    payload=message.value,
                    receipt=f"{run.partition}:{run.lease_id}:{run.first_offset}",
                    attempt=one.attempts.get(message.offset, 1),
                    headers=headers or None,
                    deliver_after=spelled_instant(message.deliver_at_ns) if message.deliver_at_ns else None,
                )
            )
    request.answer(encode_json(items))


# -- /ack, /nack -------------------------------------------------------------------------------------------------------


class AckOrder(shapes.Shape):
    """Which item is done."""

    topic: shapes.Name
    namespace: shapes.Name = "default"
    id: shapes.Id | Annotated[int, Meta(ge=1, lt=1 << 62)] | UnsetType = UNSET
    receipt: shapes.Receipt | UnsetType = UNSET
    group: shapes.Name = "default"


class NackOrder(AckOrder):
    """Which item failed, and when to try again."""

    delay: shapes.Span | None = None
    error: shapes.ErrorText = ""


def ack(request: Request) -> None:
    _settle_one(request, lambda run, _: Settle(ack=[run]))


def nack(request: Request) -> None:
    def order(run: Run, given: Any) -> Settle:
        delay_ns = span_ns("delay", given.delay) if given.delay is not None else None
        return Settle(nack=[(run, delay_ns, given.error)])

    _settle_one(request, order)


def _settle_one(request: Request, order_of: Any) -> None:
    given: AckOrder = request.read()
    request.authorise("consume", given.namespace, given.topic)
    group = (given.namespace, given.topic, given.group)
    if given.receipt is not UNSET:
        run = run_of(given.receipt)
    elif given.id is not UNSET:
        message_id = parse_id(str(given.id))
        run = request.door.handed_out.take(group, message_id) or place_leased(request, group, message_id)
    else:
        raise InvalidArgument("name the item: by the id or the receipt that /dequeue gave")

    def answer(reply: Settled | HeadraceError) -> None:
        if isinstance(reply, HeadraceError):
            request.fail(reply)
            return
        request.door.settled(group)
        answer_settled(request, reply)

    request.door.broker.settle_then(*group, order_of(run, given), answer)


# -- /v1/topics/{topic}/publish ----------------------------------------------------------------------------------------


class OneMessage(shapes.Shape):
    """One message; its value is base64."""

    value: Annotated[bytes, Meta(description="Base64.")] = b""
    key: str | None = None
    headers: dict[str, str] | None = None
    priority: shapes.Priority = 5
    delay: shapes.Span | None = None
    deliver_at: shapes.Instant | None = None
    ttl: shapes.Span | None = None
    dedup_id: str | None = None


def publish_one(request: Request) -> None:
    given: OneMessage = request.read()
    if given.delay is not None and given.deliver_at is not None:
        raise InvalidArgument("the message has both delay and deliver_at; give one of them")
    headers: dict[str, str | bytes] = {**(given.headers or {})}
    traceparent = traceparent_of(request)
    if traceparent is not None:
        headers.setdefault("traceparent", traceparent)
    message = Message(
        given.value,
        key=given.key.encode() if given.key is not None else None,
        headers=headers or None,
        priority=given.priority if isinstance(given.priority, int) else _NAMED[given.priority],
        delay_ns=span_ns("delay", given.delay) if given.delay is not None else None,
        deliver_at_ns=instant_ns("deliver_at", given.deliver_at) if given.deliver_at is not None else None,
        ttl_ns=span_ns("ttl", given.ttl) if given.ttl is not None else None,
        dedup_id=given.dedup_id.encode() if given.dedup_id is not None else None,
    )
    publish_batch(request, request.namespace, request.names["topic"], None, encode([message]))


ROUTES = [
    Route(
        method="POST", path="/enqueue", summary="Publish items (as MQueue has it)", tag="other names", verb="publish",
        inside=True, cold=enqueue, body=Items, answer=shapes.PublishAnswer,
    ),
    Route(
        method="GET", path="/dequeue", summary="Lease items (as MQueue has it)", tag="other names", verb="consume",
        inside=True, hot=dequeue, query=DequeueQuery, answer=list[Dequeued],
    ),
    Route(
        method="POST", path="/ack", summary="Ack an item (as MQueue has it)", tag="other names", verb="consume",
        inside=True, hot=ack, body=AckOrder, answer=shapes.SettleAnswer, while_draining=True,
    ),
    Route(
        method="POST", path="/nack", summary="Nack an item", tag="other names", verb="consume",
        inside=True, hot=nack, body=NackOrder, answer=shapes.SettleAnswer, while_draining=True,
    ),
    *namespaced(
        [
            Route(
                method="POST", path="/v1/topics/{topic}/publish", summary="Publish one message (as GoQueue has it)",
                tag="other names", verb="publish", hot=publish_one, body=OneMessage, answer=shapes.PublishAnswer,
            ),
        ]
    ),
]  # fmt: skip
