"""Consuming a queue over MQTT: one subscription, its credit, and the deliveries its client holds.

    broker leases ──► held until the session has room ──► PUBLISH ──► outstanding until settled, or its lease is over

A client may hold ``prefetch`` messages unsettled; each that is settled makes room for the next. A lease that ends while
the client says nothing makes room too (the message is somebody's again), so that a client that forgets one message is
not starved for ever. Deliveries are sent with QoS 1 at most: how often one comes is the queue's affair, and each says
its attempt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from headrace.calls import LeasedBatch, Run, Settle
from headrace.errors import HeadraceError
from headrace.frontends.mqtt.addresses import QUEUE
from headrace.frontends.mqtt.translate import delivery_properties, group_property, plain_delivery
from headrace.wire.mqtt import OutgoingMessage, Sent

if TYPE_CHECKING:
    from headrace.frontends.mqtt.connection import MqttConnection
    from headrace.frontends.mqtt.queues import Queues

__all__ = ["Delivery", "QueueSubscription"]

_V5 = 5


class Source(Protocol):
    """The consumer as the broker sees it."""

    def credit(self, messages: int) -> None: ...

    def close(self, *, clean: bool = True) -> None: ...


class Delivery:
    """One message a client holds."""

    __slots__ = ("deadline_ns", "lease_id", "message_id", "offset", "packet_id", "partition", "subscription")

    def __init__(
        self,
        subscription: QueueSubscription,
        partition: int,
        lease_id: int,
        offset: int,
        message_id: int,
        deadline_ns: int,
    ) -> None:
        self.subscription = subscription
        self.partition = partition
        self.lease_id = lease_id
        self.offset = offset
        self.message_id = message_id
        self.deadline_ns = deadline_ns
        self.packet_id = 0

    @property
    def run(self) -> Run:
        return Run(self.partition, self.lease_id, self.offset)


class QueueSubscription:
    """See the head of this file."""

    __slots__ = (
        "_group_property",
        "_held",
        "_queues",
        "_topic_bytes",
        "_topic_name",
        "by_puback",
        "connection",
        "group",
        "identifiers",
        "outstanding",
        "prefetch",
        "qos",
        "source",
        "topic",
    )

    def __init__(
        self,
        queues: Queues,
        connection: MqttConnection,
        topic: str,
        group: str,
        qos: int,
        prefetch: int,
        by_puback: bool,
        identifier: int,
        shown_topic: str,
    ) -> None:
        self._queues = queues
        self.connection = connection
        self.topic = topic
        self.group = group
        self.qos = min(qos, 1)
        self.prefetch = prefetch
        self.by_puback = by_puback
        self.identifiers = (identifier,) if identifier else ()
        self.outstanding: dict[int, Delivery] = {}  # message id → delivery, the oldest lease first
        self.source: Source | None = None
        self._held: deque[tuple[LeasedBatch, int]] = deque()
        self._topic_name = QUEUE + shown_topic
        raw = self._topic_name.encode()
        self._topic_bytes = len(raw).to_bytes(2, "big") + raw
        self._group_property = group_property(group)

    # -- from the broker -----------------------------------------------------------------------------------------------

    def deliver(self, leased: list[LeasedBatch]) -> None:
        """The broker leased these for us."""
        for one in leased:
            self._held.extend((one, index) for index in range(one.batch.count))
        self.pump()

    def pump(self) -> None:
        """Send what is held, as long as the session has room."""
        held, connection = self._held, self.connection
        session = connection.session
        if not held:
            return
        now_ns = self._queues.now_ns()
        tells = session.version == _V5
        settled: list[Delivery] = []
        while held and session.has_room:
            leased, index = held.popleft()
            batch, partition = leased.batch, leased.partition
            offset = batch.base_offset + batch.delta(index)
            message_id = batch.base_id + offset - batch.base_offset
            delivery = Delivery(self, partition, leased.lease_id, offset, message_id, leased.deadline_ns)
            if leased.deadline_ns <= now_ns:
                self.freed(1)  # the lease was over before there was room
                continue
            message = (self._told if tells else self._shown)(leased, index, message_id, offset)
            sent = self._send(message, delivery, now_ns)
            if sent is Sent.TOO_LARGE:
                self._queues.give_up(delivery, "larger than the maximum packet size of the client it was leased to")
            elif sent in _UNSENT:
                held.appendleft((leased, index))
                break
            elif self.by_puback and not self.qos:
                settled.append(delivery)  # at most once: what is sent is done
            else:
                self.outstanding[message_id] = delivery
        for delivery in settled:
            self._queues.settling.ack(delivery, None, 0)
        connection.touch()

    def _told(self, leased: LeasedBatch, index: int, message_id: int, offset: int) -> OutgoingMessage:
        """For 5.0: what there is to say is said in user properties."""
        batch, partition, attempt = leased.batch, leased.partition, leased.attempts.get(offset, 1)
        value = batch.value(index)
        said = plain_delivery(batch, index, message_id, offset, partition, attempt, self._group_property)
        if said is not None:
            return OutgoingMessage.prepared(self._topic_name, self._topic_bytes, value, said)
        properties = delivery_properties(batch, index, partition, attempt, self.group)
        return OutgoingMessage(self._topic_name, value, properties)

    def _shown(self, leased: LeasedBatch, index: int, message_id: int, offset: int) -> OutgoingMessage:
        """For 3.1.1: the topic says the id, where it is needed."""
        topic = self._topic_name if self.by_puback else f"{self._topic_name}/$id/{message_id}"
        return OutgoingMessage(topic, leased.batch.value(index))

    def _send(self, message: OutgoingMessage, delivery: Delivery, now_ns: int) -> Sent:
        connection = self.connection
        client = connection.client
        if self.qos and client is not None:
            delivery.packet_id = client.take_packet_id()
        sent = connection.session.send_publish(
            message,
            self.qos,
            now_ns,
            subscription_identifiers=self.identifiers,
            token=delivery,
            packet_id=delivery.packet_id,
        )
        if sent is not Sent.SENT and sent is not Sent.QUEUED:
            self.unsent(delivery)
        return sent

    def unsent(self, delivery: Delivery) -> None:
        """Its packet identifier is free again."""
        client = self.connection.client
        if delivery.packet_id and client is not None:
            client.used.discard(delivery.packet_id)

    # -- room ----------------------------------------------------------------------------------------------------------

    def freed(self, count: int) -> None:
        """So many are settled, or not ours any more."""
        if self.source is not None:
            self.source.credit(count)

    def sweep(self, now_ns: int) -> None:
        """Deliveries whose lease is over are not the client's any more."""
        over = 0
        for delivery in list(self._overdue(now_ns)):
            del self.outstanding[delivery.message_id]
            over += 1
        if over:
            self.freed(over)

    def _overdue(self, now_ns: int) -> Iterator[Delivery]:
        for delivery in self.outstanding.values():
            if delivery.deadline_ns > now_ns:
                return
            yield delivery

    def extended(self, delivery: Delivery, until_ns: int) -> None:
        """Its lease runs longer: to the end of the line."""
        delivery.deadline_ns = until_ns
        if self.outstanding.pop(delivery.message_id, None) is not None:
            self.outstanding[delivery.message_id] = delivery

    # -- the end -------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """No more deliveries; what is held is given back, what the client has it may still settle."""
        held, self._held = list(self._held), deque()
        runs = [
            Run(leased.partition, leased.lease_id, leased.batch.base_offset + leased.batch.delta(index))
            for leased, index in held
        ]
        if runs:
            self._queues.broker.settle_then(
                self._queues.namespace, self.topic, self.group, Settle(release=runs), _nothing
            )
        if self.source is not None:
            self.source.credit(-(1 << 30))

    def close(self, *, clean: bool) -> None:
        """The consumer leaves; what is leased to it is given back."""
        source, self.source = self.source, None
        self._held.clear()
        self.outstanding.clear()
        if source is not None:
            source.close(clean=clean)

    def ended(self, error: HeadraceError) -> None:
        """The group is gone."""
        self.source = None
        self._held.clear()
        self.outstanding.clear()
        self._queues.lost(self, error)


_UNSENT = frozenset({Sent.DROPPED, Sent.QUEUE_FULL, Sent.CLOSED, Sent.EXPIRED})


def _nothing(_: Any) -> None:
    """For a reply nobody waits for."""
