"""The calls of ``headrace.calls`` as requests on a line, and their answers back; both network ports stand on it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from headrace.batch import HIGHEST_LIMITS, Batch
from headrace.calls import Duplicate, Part, Refusal, Run, Settle, Settled
from headrace.client.channel import Channel
from headrace.client.line import Line, Reply, Request
from headrace.errors import BY_CODE, HeadraceError, InvalidArgument
from headrace.limits import CLIENT_BATCH_BYTES
from headrace.wire import native

__all__ = [
    "Asking",
    "answer_or_raise",
    "count_of",
    "parts_of",
    "result_of",
    "runs_settled",
    "settled_of",
    "tended_of",
]

_REPEATABLE: Final = frozenset(
    {"browse", "explain", "group.config", "group.list", "group.pause", "group.resume", "group.show", "namespace.list"}
    | {"namespace.show", "read", "schedule.count", "schedule.list", "schedule.show", "dlq.list", "dlq.show", "stats"}
    | {"topic.config", "topic.ensure", "topic.list", "topic.offsets", "topic.show", "trace"}
    | {"group.commit", "group.position", "log.events", "log.segments", "topic.producers"}
    | {"lease_batch.extend", "lease_batch.messages", "lease_batch.settle", "lease_batch.show", "lease_batch.take"}
)
"""Calls that come to the same when made twice. Of the others the outcome is unknown when a connection breaks."""
_NUMBER_BITS: Final = 63


class Asking:
    """Makes requests; the producer id under which a client's batches are stored once is here.

    A batch gets its number when it is written into a session, whatever it travels in: the broker takes a lower number
    than it has seen for a repetition, so numbers have to leave in their order, and requests are made by many threads.
    """

    def __init__(self, line: Line, namespace: str) -> None:
        self._line = line
        self._namespace = namespace
        self._producer_id = secrets.randbits(_NUMBER_BITS) | 1
        self._sequence = 0

    def _stamped(self, batch: Batch) -> Batch:
        self._sequence += 1
        return batch.from_producer(self._producer_id, self._sequence)

    def publish(self, namespace: str, topic: str, partition: int, batch: Batch, reply: Reply) -> Request:
        """Store a batch, once. One that names a producer of its own (``Batch.from_producer``) keeps it."""
        own = batch if batch.producer_id else None
        stamped = own

        def send(session: native.ClientSession) -> int:
            nonlocal stamped
            if stamped is None:
                stamped = self._stamped(batch)
            return session.send_publish(topic, stamped.buffers(), namespace=self._other(namespace), partition=partition)

        def refused_now() -> None:
            nonlocal stamped
            stamped = own  # later ones may have been stored meanwhile: a number of ours has passed

        return Request("a publish", send, reply, publishes=True, refused_now=refused_now)

    def settle(self, namespace: str, topic: str, group: str, order: Settle, reply: Reply) -> Request:
        """Settle by the group's names: receipts outlive connections, subscriptions do not."""
        scope = native.Scope(self._other(namespace), topic, group)
        actions = [
            *([native.Action(native.Verb.ACK, scope, _receipts(order.ack))] if order.ack else ()),
            *([native.Action(native.Verb.RELEASE, scope, _receipts(order.release))] if order.release else ()),
            *(
                native.Action(
                    native.Verb.NACK, scope, _receipts([run]), native.BY_POLICY if delay is None else delay, error
                )
                for run, delay, error in order.nack
            ),
            *(native.Action(native.Verb.REJECT, scope, _receipts([run]), 0, error) for run, error in order.reject),
            *(native.Action(native.Verb.EXTEND, scope, _receipts([run]), by_ns) for run, by_ns in order.extend),
        ]
        cancels = [native.CancelEffect(self._other(namespace), name, list(ids)) for name, ids in order.cancel]
        effects: list[native.Effect] | None = None

        def send(session: native.ClientSession) -> int:
            nonlocal effects
            if effects is None:
                published = [
                    native.PublishEffect(self._other(namespace), name, partition, self._stamped(batch).buffers())
                    for name, partition, batch in order.publish
                ]
                effects = [*published, *cancels]
            return session.send_settle(actions, effects)

        def refused_now() -> None:
            nonlocal effects
            effects = None  # later ones may have been stored meanwhile

        atomic = bool(order.publish or order.cancel)
        once = atomic and (
            order.nack
            or order.reject
            or order.release
            or order.extend
            or len({name for name, _, _ in order.publish}) != len(order.publish)
        )
        return Request(
            "an atomic settle" if atomic else "a settle",
            send,
            reply,
            broken="unknown" if once else "again",
            publishes=bool(order.publish),
            refused_now=refused_now,
        )

    def lease(self, channel: Channel, most: int, wait_ns: int, reply: Reply) -> Request:
        """Pull up to ``most``; what was granted over a connection that broke is lost to us, and the answer is None."""

        def send(session: native.ClientSession) -> int:
            scope: int | native.Scope = channel.number or channel.scope
            return session.send_lease(
                scope, most, bytes_max=CLIENT_BATCH_BYTES, wait_ns=wait_ns, lease_ns=channel.lease_ns
            )

        return Request("a lease", send, reply, broken="lost")

    def call(self, method: str, arguments: Mapping[str, Any], reply: Reply) -> Request:
        """An administrative call."""
        packed = native.pack(arguments)
        return Request(
            method,
            lambda session: session.send_call(method, packed),
            reply,
            broken="again" if method in _REPEATABLE else "unknown",
        )

    def channel(
        self,
        namespace: str,
        topic: str,
        group: str,
        consumer: str,
        lease_ns: int | None,
        prefetch: int,
        options: Mapping[str, Any] | None,
        changed: Callable[[], None],
    ) -> Channel:
        """A consumer, not yet subscribed."""
        return Channel(
            self._line,
            native.Scope(self._other(namespace), topic, group, consumer),
            lease_ns=lease_ns or 0,
            credit=prefetch,
            options=options or {},
            changed=changed,
        )

    def _other(self, namespace: str) -> str:
        """As it travels: empty for the connection's own."""
        return "" if namespace == self._namespace else namespace


def _receipts(runs: Sequence[Run]) -> list[native.ReceiptRun]:
    return [(run.partition, run.lease_id, run.first_offset, run.count) for run in runs]


def count_of(order: Settle) -> int:
    """How many messages an order lets go of."""
    count = sum(run.count for run in order.ack) + sum(run.count for run in order.release)
    return count + sum(run.count for run, _, _ in order.nack) + sum(run.count for run, _ in order.reject)


def runs_settled(orders: Iterable[Settle]) -> list[Run]:
    """What orders without an answer are about: to be held until there is one."""
    return [
        run
        for order in orders
        for runs in (
            order.ack,
            order.release,
            [run for run, _, _ in order.nack],
            [run for run, _ in order.reject],
            [run for run, _ in order.extend],
        )
        for run in runs
    ]


def tended_of(answer: Any, order: Settle) -> list[Run] | None:
    """What was refused of renewals, None: all of it."""
    if isinstance(answer, HeadraceError):
        return None
    return [refusal.run for refusal in settled_of(answer, order).refused]


def parts_of(packet: native.Published) -> list[Part]:
    """Where a batch lies."""
    duplicates = [Duplicate(*duplicate) for duplicate in packet.duplicates]
    if len(packet.parts) == 1:
        partition, count, base_offset, base_id = packet.parts[0]
        return [Part(partition, count, base_offset, base_id, tuple(duplicates))]
    indexes: list[list[int]] = [[] for _ in packet.parts]
    for index, number in enumerate(packet.indexes):
        if number != native.DUPLICATE:
            indexes[number].append(index)
    if duplicates and indexes:
        indexes[0] = sorted([*indexes[0], *(duplicate.index for duplicate in duplicates)])
    found: list[Part] = []
    for number, (partition, count, base_offset, base_id) in enumerate(packet.parts):
        mine = tuple(duplicates) if number == 0 else ()
        found.append(Part(partition, count, base_offset, base_id, mine, indexes[number]))
    return found


def settled_of(packet: native.Settled, order: Settle) -> Settled:
    """What a settle came to."""
    refused = [
        Refusal(Run(partition, lease_id, first, count), error.code, error.message)
        for _, code, partition, lease_id, first, count in packet.refusals
        for error in [native.error_from(code, _REFUSALS.get(code, "it was not settled"))]
    ]
    published = [parts_of(each) for each in packet.published]
    lost = sum(refusal.run.count for refusal in refused)
    total = count_of(order) + sum(run.count for run, _ in order.extend)
    cancelled = packet.cancelled
    if cancelled is None:  # a server that does not say: as many as were named, at most
        cancelled = sum(len(ids) for _, ids in order.cancel)
    return Settled(total - lost, refused, published, cancelled)


_LEASE_LOST: Final = native.number_of(BY_CODE["lease_lost"](""))
_REFUSALS: Final = {_LEASE_LOST: "the lease is over: the message was given back, settled, or its time ran out"}


def result_of(method: str, packet: native.Result) -> Any:
    """What a call answered; with messages where it is a call that answers with some."""
    try:
        result = msgspec.msgpack.decode(packet.result)
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidArgument(f"the server's answer cannot be read: {error}") from None
    if not packet.attachments and method != "read":
        return result
    return result, [Batch.decode(attachment, limits=HIGHEST_LIMITS) for attachment in packet.attachments]


def answer_or_raise(answer: Any) -> Any:
    """An answer, or the error it is."""
    if isinstance(answer, HeadraceError):
        raise answer
    return answer
