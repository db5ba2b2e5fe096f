"""The calls that come thousands of times a second: publish, lease, settle. No task is made for them.

Each reads its body, asks the broker with a callback, and the callback writes the answer: when it is durable, in the
loop, in the order of the requests of its connection. A lease that finds nothing waits as a ``Pull``; when the caller
goes away meanwhile, what it gets is given back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import methodcaller
from typing import Any, Final

from headrace.batch import Batch, encode_arrow
from headrace.calls import BY_KEY, LeasedBatch, Part, Run, Settle, Settled
from headrace.errors import HeadraceError, InvalidArgument, LeaseLost, Malformed, from_code
from headrace.frontends.http import shapes
from headrace.frontends.http.answers import JSON, ErrorAnswer, encode_json, error_parts
from headrace.frontends.http.messages import (
    batch_of,
    deliveries_of,
    results_of,
    run_of,
    runs_of,
    span_ns,
    spelled_run,
)
from headrace.frontends.http.reading import ARROW_STREAM, media_type, query_of
from headrace.frontends.http.request import Request
from headrace.frontends.leased import delivered_runs, within
from headrace.ids import parse_id
from headrace.limits import HTTP_LEASE_BYTES, WAIT_NS_MAX

__all__ = ["lease", "lease_for", "place_leased", "publish", "settle", "traceparent_of"]

_HAS_COLON: Final = methodcaller("__contains__", ":")
_NOTHING: Final = encode_json(shapes.LeaseAnswer([], []))


def traceparent_of(request: Request) -> str | None:
    """The W3C trace context of a request, if it is one: what it publishes carries it on."""
    given = request.headers.get(b"traceparent")
    if given is None or len(given) > 128:
        return None
    text = given.decode("latin-1")
    return text if text.isascii() and text.isprintable() else None


# -- publish -----------------------------------------------------------------------------------------------------------


class PublishQuery(shapes.Shape):
    """For a body that is not JSON."""

    partition: int | None = None


def publish(request: Request) -> None:
    """POST …/topics/{topic}/messages"""
    content_type = request.headers.get(b"content-type")
    if content_type is not None and media_type(content_type) == ARROW_STREAM:
        batch, partition = _table(request), query_of(request.query, PublishQuery).partition
    else:
        given: shapes.NewMessages = request.read()
        batch, partition = batch_of(given.messages, traceparent_of(request)), given.partition
    publish_batch(request, request.namespace, request.names["topic"], partition, batch)


def publish_batch(request: Request, namespace: str, topic: str, partition: int | None, batch: Batch) -> None:
    """Publish and answer with the places."""
    count = batch.count

    def answer(reply: list[Part] | HeadraceError) -> None:
        if isinstance(reply, HeadraceError):
            request.fail(reply)
        else:
            request.answer(published_json(count, reply))

    request.door.broker.publish_then(namespace, topic, BY_KEY if partition is None else partition, batch, answer)


def published_json(count: int, parts: Sequence[Part]) -> bytes:
    """The answer to a publish; of one part without duplicates, which is what nearly every one is, without objects."""
    if len(parts) == 1:
        part = parts[0]
        if not part.duplicates and part.indexes is None:
            where = part.partition
            if count == 1:
                return b'{"results":[{"id":"%d","partition":%d,"offset":%d,"duplicate":false}]}' % (
                    part.base_id,
                    where,
                    part.base_offset,
                )
            ids, offsets = range(part.base_id, part.base_id + count), range(part.base_offset, part.base_offset + count)
            rows = ",".join(
                [
                    f'{{"id":"{i}","partition":{where},"offset":{o},"duplicate":false}}'
                    for i, o in zip(ids, offsets, strict=True)
                ]
            )
            return f'{{"results":[{rows}]}}'.encode()
    return encode_json(shapes.PublishAnswer(results_of(count, parts)))


def _table(request: Request) -> Batch:
    """An Arrow stream as a batch."""
    try:
        import pyarrow as pa
    except ImportError:
        raise InvalidArgument("Arrow needs pyarrow on the server: pip install 'headrace[columns]'") from None
    try:
        with pa.ipc.open_stream(request.body) as reader:
            table = reader.read_all()
    except (pa.ArrowException, OSError) as error:
        raise Malformed(f"the body is no Arrow stream: {error}") from None
    return encode_arrow(table)


# -- lease -------------------------------------------------------------------------------------------------------------


def lease(request: Request) -> None:
    """POST …/groups/{group}/lease"""
    order: shapes.LeaseOrder = request.read()
    group = (request.namespace, request.names["topic"], request.names["group"])
    lease_for(request, group, order, partial(_answer_leased, request))


def lease_for(request: Request, group: tuple[str, str, str], order: shapes.LeaseOrder, answer: Any) -> None:
    """Lease, waiting as long as it says, and hand what came to ``answer`` while the caller is there."""
    broker = request.door.broker
    wait_ns = span_ns("wait", order.wait) if order.wait != "0s" else 0
    if wait_ns > WAIT_NS_MAX:
        raise InvalidArgument(f"wait: {order.wait!r} is longer than {WAIT_NS_MAX // 1_000_000_000}s; ask again instead")
    lease_ns = None
    if order.lease is not None:
        lease_ns = span_ns("lease", order.lease)
        if lease_ns < 1_000_000:
            raise InvalidArgument(f"lease: {order.lease!r} is shorter than 1ms")
    if request.door.draining:
        wait_ns = 0

    def leased(reply: list[LeasedBatch] | HeadraceError) -> None:
        request.on_gone = None
        if isinstance(reply, HeadraceError):
            request.fail(reply)
            return
        if request.gone:
            give_back(request, group, reply)
            return
        fitting, surplus = within(reply, HTTP_LEASE_BYTES) if reply else (reply, [])
        if surplus:
            give_back(request, group, surplus)
        answer(fitting)

    pull = broker.lease_then(
        *group,
        order.consumer or request.caller,
        _most(request, group, order.max),
        leased,
        wait_ns=wait_ns,
        lease_ns=lease_ns,
        options={"start": order.start} if order.start is not None else None,
    )
    if pull is not None and not request.answered:

        def gone() -> None:
            pull.cancel()
            if request.door.draining and not request.connection.lost:
                answer([])

        request.on_gone = gone


def _most(request: Request, group: tuple[str, str, str], asked: int) -> int:
    """As many as probably fit into one answer, by what the topic's messages weigh on average."""
    if asked <= 1:
        return asked
    core = request.door.broker.core
    topic = core.state.by_name.get(group[:2])
    if topic is None:
        return asked
    count = size_bytes = 0
    for partition in topic.partitions:
        log = core.log(partition.pid)
        count += partition.end - log.journal_start
        size_bytes += log.journal_bytes
    mean = size_bytes // count if count > 0 else 0
    return max(1, min(asked, HTTP_LEASE_BYTES // mean)) if mean else asked


def give_back(request: Request, group: tuple[str, str, str], leased: Sequence[LeasedBatch]) -> None:
    """Release what could not be sent."""
    broker = request.door.broker
    found = broker.core.state.by_name.get(group[:2])
    if found is not None and group[2] in found.groups and leased:
        broker.give_back(found.groups[group[2]].gid, group[0], leased)


def _answer_leased(request: Request, leased: Sequence[LeasedBatch]) -> None:
    if not leased:
        request.answer(_NOTHING)
        return
    as_base64 = b"values=base64" in request.query
    deliveries: list[shapes.Delivery] = []
    receipts: list[str] = []
    for one in leased:
        deliveries += deliveries_of(one, as_base64=as_base64)
        receipts += [spelled_run(*run[:4]) for run in delivered_runs(one)]
    request.answer(encode_json(shapes.LeaseAnswer(deliveries, receipts)))


# -- settle ------------------------------------------------------------------------------------------------------------


def settle(request: Request) -> None:
    """POST …/groups/{group}/settle"""
    given: shapes.SettleOrder = request.read()
    namespace, topic, group = request.namespace, request.names["topic"], request.names["group"]
    order = order_of(request, (namespace, topic, group), given)
    counts = [batch.count for _, _, batch in order.publish]
    atomic = bool(given.publish or given.cancel)

    def answer(reply: Settled | HeadraceError) -> None:
        if isinstance(reply, HeadraceError):
            request.fail(reply)
            return
        request.door.settled((namespace, topic, group))
        answer_settled(request, reply, counts, atomic=atomic)

    request.door.broker.settle_then(namespace, topic, group, order, answer)


def answer_settled(request: Request, reply: Settled, counts: Sequence[int] = (), *, atomic: bool = False) -> None:
    """How many were settled and which not; when none was, it is the refusal of the first."""
    if not reply.refused and not counts and not reply.cancelled:
        request.answer(b'{"settled":%d}' % reply.settled)
        return
    refused = [
        shapes.RefusedReceipt(
            spelled_run(one.run.partition, one.run.lease_id, one.run.first_offset, one.run.count), one.code, one.message
        )
        for one in reply.refused
    ]
    if refused and not reply.settled and not atomic:
        first = from_code(refused[0].code, f"{refused[0].receipt}: {refused[0].message}")
        status, body, headers = error_parts(first)
        request.answer(encode_json(RefusedAnswer(error=body.error, settled=0, refused=refused)), status, JSON, headers)
        return
    published = [results_of(count, parts) for count, parts in zip(counts, reply.published, strict=True)]
    request.answer_json(
        shapes.SettleAnswer(settled=reply.settled, refused=refused, published=published, cancelled=reply.cancelled)
    )


class RefusedAnswer(ErrorAnswer, kw_only=True):
    """A settle of which nothing was done: the first refusal, and all of them."""

    settled: int
    refused: list[shapes.RefusedReceipt]


def order_of(request: Request, group: tuple[str, str, str], given: shapes.SettleOrder) -> Settle:
    """The broker's order; raises what is wrong with a receipt, and what the caller may not do."""
    order = Settle()
    runs = partial(_runs, request, group)
    if given.ack:
        order.ack = runs(given.ack)
    if given.nack:
        order.nack = [
            (run, None, "")
            if isinstance(one, str)
            else (run, span_ns("delay", one.delay) if one.delay is not None else None, one.error)
            for one in given.nack
            for run in runs([one if isinstance(one, str) else one.receipt])
        ]
    if given.reject:
        order.reject = [
            (run, "" if isinstance(one, str) else one.error)
            for one in given.reject
            for run in runs([one if isinstance(one, str) else one.receipt])
        ]
    if given.release:
        order.release = runs(given.release)
    if given.extend:
        order.extend = [(run, span_ns("by", one.by)) for one in given.extend for run in runs([one.receipt])]
    if given.publish:
        traceparent = traceparent_of(request)
        for output in given.publish:
            request.authorise("publish", group[0], output.topic)
        order.publish = [
            (
                output.topic,
                BY_KEY if output.partition is None else output.partition,
                batch_of(output.messages, traceparent),
            )
            for output in given.publish
        ]
    if given.cancel:
        for cancel in given.cancel:
            request.authorise("publish", group[0], cancel.topic)
        order.cancel = [(cancel.topic, [parse_id(one) for one in cancel.ids]) for cancel in given.cancel]
    return order


def _runs(request: Request, group: tuple[str, str, str], receipts: Sequence[str]) -> list[Run]:
    """The runs of receipts, where an id may stand for a receipt."""
    if not all(map(_HAS_COLON, receipts)):
        return [
            run_of(receipt) if ":" in receipt else place_leased(request, group, parse_id(receipt))
            for receipt in receipts
        ]
    return runs_of(receipts)


def place_leased(request: Request, group: tuple[str, str, str], message_id: int) -> Run:
    """The receipt of a message that is leased, by its id. It is looked for among the leases of the group, so it costs
    more than a receipt."""
    broker = request.door.broker.broker
    found = broker.find_group(*group)
    for backlog in found.backlogs.values():
        log = broker.core.log(backlog.partition.pid)
        offset = log.offset_of_id(message_id)
        if offset is None:
            continue
        for lease in backlog.leases.values():
            if lease.first <= offset and offset in lease.span():
                return Run(backlog.partition.index, lease.lease_id, offset)
        if offset in backlog.done and offset not in backlog.dead and offset not in backlog.expired:
            return Run(backlog.partition.index, 0, offset)  # an ack of what is acked says yes
        raise LeaseLost(
            f"message {message_id} is not leased in group {group[2]!r}; its lease is over, or was another's"
        )
    raise InvalidArgument(f"topic {group[1]!r} has no message with the id {message_id}")
