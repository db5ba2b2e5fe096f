"""Durable queues over MQTT: what happens to packets whose topic begins with ``$queue/``.

Which group a subscription consumes in: the one its filter names (``$group``), else the user property
``consumer-group``, else the client id up to its last ``-``, else ``default``. A settlement is a publish to
``$queue/<topic>/$ack`` and its like; which messages it is about is said by user properties ``message-id`` (any number
of them), by the topic's last level, or by the payload (``$ack``), so that 3.1.1 can say it too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from headrace import errors, limits
from headrace.calls import Run
from headrace.client.arguments import span_ns
from headrace.delivery import Span
from headrace.diagnostics import logger
from headrace.frontends.doors import DoorSite
from headrace.frontends.mqtt.addresses import QUEUE, QueueAddress, queue_address
from headrace.frontends.mqtt.consuming import Delivery, QueueSubscription
from headrace.frontends.mqtt.publishing import Publishing
from headrace.frontends.mqtt.settling import Answer, Settlement, Settling
from headrace.frontends.mqtt.translate import message_of, user_property, whole_property
from headrace.ids import parse_id
from headrace.names import DEAD_LETTERS_PREFIX, DEFAULT_GROUP, check_group_name
from headrace.pubsub import Client, QueueHeld
from headrace.wire.mqtt import Acked, Publish, Subscribe, Subscription

if TYPE_CHECKING:
    from headrace.frontends.mqtt.connection import MqttConnection

__all__ = ["Queues", "group_of_client"]

_log = logger("mqtt")
_IDS_MAX: Final = 4096
"""Messages one settlement may name."""
_ID_DIGITS_MAX: Final = 19
"""Of 64 bits."""


def group_of_client(client_id: str) -> str:
    """The group of a client that names none.

    >>> group_of_client("mailer-17"), group_of_client("eu-mailer-3"), group_of_client("mailer")
    ('mailer', 'eu-mailer', 'default')
    """
    return client_id.rpartition("-")[0] or DEFAULT_GROUP


class Queues:
    """One for a door."""

    def __init__(self, site: DoorSite, now_ns: Callable[[], int], call_soon: Any) -> None:
        self.broker = site.broker
        self.namespace = site.namespace
        self.now_ns = now_ns
        self.publishing = Publishing(site.broker, site.namespace, call_soon)
        self.settling = Settling(site.broker, site.namespace, call_soon)
        self.consumers: set[MqttConnection] = set()
        self._resolved: dict[str, QueueAddress] = {}

    def address(self, name: str) -> QueueAddress:
        """``queue_address``, remembered: clients repeat themselves."""
        found = self._resolved.get(name)
        if found is None:
            found = queue_address(name)
            if len(self._resolved) >= limits.MATCH_CACHE_TOPICS_MAX:
                self._resolved.clear()
            if not found.message_id:
                self._resolved[name] = found
        return found

    # -- publishing ----------------------------------------------------------------------------------------------------

    def publish(self, connection: MqttConnection, packet: Publish, handle: int) -> None:
        """A PUBLISH to ``$queue/…``: a message, or a settlement. Raises what it is refused with."""
        name = packet.topic
        address = self.address(name)
        if address.verb:
            self._settle(connection, address, packet, handle)
            return
        if address.group:
            raise errors.InvalidArgument(f"{name!r}: messages are published to the queue, not to one of its groups")
        topic = address.topic
        rights = connection.rights
        if rights is not None and not rights.may_write(topic):
            raise errors.NotAllowed(f"publishing to queue {topic!r} is not allowed")
        if packet.qos == 2 and connection.client is not None and connection.client.reserves:
            note = (note_key(connection.client, packet.packet_id), b"\x01")
            self.publishing.add_once(topic, message_of(packet), note, connection, handle)
            return
        message = message_of(packet) if packet.properties else None
        self.publishing.add(topic, packet.payload, message, connection, handle)

    def release(self, client: Client, packet_id: int, done: Callable[[], None]) -> bool:
        """PUBREL of a message that was noted with its identifier; False when it was not."""
        key = note_key(client, packet_id)
        if key not in self.broker.core.state.notes:
            return False
        self.broker.host.then(lambda: self.broker.broker.note([(key, b"")]), lambda _: done())
        return True

    def received(self, client: Client) -> list[int]:
        """Identifiers of QoS 2 messages that are stored and not released."""
        prefix = _note_prefix(client.uid)
        notes = self.broker.core.state.notes
        return [int.from_bytes(key[-2:], "big") for key in notes if key.startswith(prefix)] if notes else []

    def forget(self, uid: int) -> None:
        """A session is over."""
        prefix = _note_prefix(uid)
        gone = [(key, b"") for key in self.broker.core.state.notes if key.startswith(prefix)]
        if gone:
            self.broker.host.then(lambda: self.broker.broker.note(gone), _nothing)

    # -- consuming -----------------------------------------------------------------------------------------------------

    def subscribe(self, connection: MqttConnection, asked: Subscription, packet: Subscribe, identifier: int) -> int:
        """Consume a queue; the granted QoS. Raises what it is refused with."""
        client = connection.standing_client
        address = self.address(asked.topic_filter)
        if address.verb:
            raise errors.InvalidArgument(
                f"{asked.topic_filter!r} is where settlements are published; nothing comes from it"
            )
        properties = packet.properties
        topic = self._topic_of(address.topic)
        if connection.rights is not None and not connection.rights.may_read(topic):
            raise errors.NotAllowed(f"consuming queue {topic!r} is not allowed")
        chosen_id = "" if connection.is_nameless else client.client_id
        group = address.group or user_property(properties, "consumer-group") or group_of_client(chosen_id)
        check_group_name(group)
        receives = connection.receive_maximum or limits.MQTT_PREFETCH_DEFAULT
        prefetch = whole_property(properties, "prefetch", 1, limits.PREFETCH_MAX)
        settle = (
            user_property(properties, "settle") or self.broker.broker.topic(self.namespace, topic).settings.mqtt_settle
        )
        if settle not in ("explicit", "puback"):
            raise errors.InvalidArgument(f"settle is {settle[:40]!r}; it must be explicit or puback")
        held = QueueHeld(
            min(asked.qos, 1),
            identifier,
            group,
            prefetch or min(receives, limits.PREFETCH_MAX),
            settle == "puback",
            user_property(properties, "start") or "",
        )
        standing = connection.queues.get(asked.topic_filter) if connection.queues else None
        if standing is None and connection.queues is not None and len(connection.queues) >= limits.MQTT_QUEUES_MAX:
            raise errors.LimitExceeded(f"one connection consumes at most {limits.MQTT_QUEUES_MAX} queues")
        if standing is not None:
            standing.close(clean=True)
        self.open(connection, asked.topic_filter, held)
        connection.exchange.subscribe_queue(client, asked.topic_filter, held)
        return held.qos

    def open(self, connection: MqttConnection, topic_filter: str, held: QueueHeld) -> None:
        """Begin to consume, newly or again; remembered with the session."""
        client = connection.standing_client
        address = self.address(topic_filter)
        topic = self._topic_of(address.topic)
        subscription = QueueSubscription(
            self,
            connection,
            topic,
            held.group,
            held.qos,
            held.prefetch,
            held.by_puback,
            held.identifier,
            address.topic,
        )
        subscription.source = self.broker.subscribe(
            self.namespace,
            topic,
            held.group,
            client.client_id,
            deliver=subscription.deliver,
            options={"start": held.start} if held.start else None,
            on_end=subscription.ended,
        )
        if connection.queues is None:
            connection.queues = {}
        connection.queues[topic_filter] = subscription
        self.consumers.add(connection)
        subscription.source.credit(held.prefetch)

    def resume(self, connection: MqttConnection) -> None:
        """A client came back: its subscriptions to queues are taken up again, as far as it may."""
        client = connection.client
        if client is None or not client.queues:
            return
        for topic_filter, held in list(client.queues.items()):
            topic = self._topic_of(self.address(topic_filter).topic)
            if connection.rights is not None and not connection.rights.may_read(topic):
                del client.queues[topic_filter]
                continue
            try:
                self.open(connection, topic_filter, held)
            except errors.HeadraceError as error:
                _log.warning("a queue could not be taken up again", topic=topic, reason=error.message)

    def unsubscribe(self, connection: MqttConnection, topic_filter: str) -> bool:
        """What is leased is given back."""
        subscription = connection.queues.pop(topic_filter, None) if connection.queues else None
        if subscription is None:
            return False
        self.settling.flush()
        subscription.close(clean=True)
        return True

    def ended(self, connection: MqttConnection, *, clean: bool) -> None:
        """A connection is over: settlements that came with it first, then its consumers leave."""
        self.consumers.discard(connection)
        if connection.queues:
            self.settling.flush()
            for subscription in connection.queues.values():
                subscription.close(clean=clean)
            connection.queues = None

    def lost(self, subscription: QueueSubscription, error: errors.HeadraceError) -> None:
        """A group was deleted under its consumer, who has no other way to hear of it."""
        subscription.connection.end(0x98, error.message)

    def pump(self, connection: MqttConnection) -> None:
        """The session may have room again."""
        if connection.queues:
            for subscription in connection.queues.values():
                subscription.pump()

    def sweep(self) -> None:
        """Look for leases that are over."""
        now_ns = self.now_ns()
        for connection in self.consumers:
            for subscription in (connection.queues or {}).values():
                subscription.sweep(now_ns)

    def _topic_of(self, name: str) -> str:
        """``dlq/<topic>`` is wherever the dead letters of <topic> go."""
        if name.startswith(DEAD_LETTERS_PREFIX):
            origin = self.broker.core.state.by_name.get((self.namespace, name[len(DEAD_LETTERS_PREFIX) :]))
            if origin is not None and origin.settings.dead_letter_topic:
                return origin.settings.dead_letter_topic
        return name

    # -- settling ------------------------------------------------------------------------------------------------------

    def acked(self, delivery: Delivery, event: Acked) -> None:
        """PUBACK for a delivery: where that settles, it is done; elsewhere the session has room."""
        subscription = delivery.subscription
        subscription.unsent(delivery)
        if subscription.by_puback and subscription.outstanding.pop(delivery.message_id, None) is not None:
            if event.reason < 0x80:
                self.settling.ack(delivery, None, 0)
            else:
                text = (event.properties or {}).get("reason_string", f"refused with reason 0x{event.reason:02x}")
                self._do(Settlement("nack", None, text), delivery, Answer(None, 0, 1))
        subscription.pump()

    def give_up(self, delivery: Delivery, why: str) -> None:
        """A delivery that can never be sent to its consumer."""
        self._do(Settlement("nack", None, why), delivery, Answer(None, 0, 1))

    def _do(self, what: Settlement, delivery: Delivery, answer: Answer) -> None:
        subscription = delivery.subscription
        self.settling.add(what, subscription.topic, subscription.group, delivery.run, answer)
        subscription.freed(1)

    def _settle(self, connection: MqttConnection, address: QueueAddress, packet: Publish, handle: int) -> None:
        topic = self._topic_of(address.topic)
        rights = connection.rights
        if rights is not None and not rights.may_read(topic):
            raise errors.NotAllowed(f"settling messages of queue {topic!r} is not allowed")
        properties = packet.properties
        if address.verb == "ack" and properties and not packet.payload and not address.group:
            pairs = properties.get("user_properties", ())
            if (
                len(pairs) == 1
                and pairs[0][0] == "message-id"
                and self._acked_plainly(connection, topic, pairs[0][1], handle)
            ):
                return
        ids, what = self._understood(address, packet)
        subscriptions = [
            each
            for each in (connection.queues or {}).values()
            if each.topic == topic and (not address.group or each.group == address.group)
        ]
        if not ids:
            ids = self._only_one(subscriptions, address)
        answer = Answer(connection, handle, len(ids))
        for message_id in ids:
            for subscription in subscriptions:
                delivery = subscription.outstanding.get(message_id)
                if delivery is not None:
                    self._settle_held(what, delivery, answer)
                    break
            else:
                group = address.group or user_property(packet.properties, "consumer-group")
                if not group:
                    group = subscriptions[0].group if subscriptions else group_of_client(self._client_id(connection))
                self._settle_elsewhere(what, topic, group, message_id, connection, answer)

    def _acked_plainly(self, connection: MqttConnection, topic: str, text: str, handle: int) -> bool:
        """An ack of one message that the client holds, as nearly all settlements are; False: look closer."""
        if not text.isdecimal() or len(text) > _ID_DIGITS_MAX:
            return False
        message_id = int(text)
        for subscription in (connection.queues or {}).values():
            if subscription.topic == topic:
                delivery = subscription.outstanding.pop(message_id, None)
                if delivery is not None:
                    self.settling.ack(delivery, connection, handle)
                    return True
        return False

    def _settle_held(self, what: Settlement, delivery: Delivery, answer: Answer) -> None:
        subscription = delivery.subscription
        if what.verb == "extend":
            policy = self.broker.broker.find_group(self.namespace, subscription.topic, subscription.group).policy
            by_ns = min(what.by_ns or policy.lease_ns, policy.max_lease_ns)
            what = what._replace(by_ns=by_ns)
            subscription.extended(delivery, self.now_ns() + by_ns)
            self.settling.add(what, subscription.topic, subscription.group, delivery.run, answer)
            return
        del subscription.outstanding[delivery.message_id]
        self._do(what, delivery, answer)

    def _settle_elsewhere(
        self,
        what: Settlement,
        topic: str,
        group: str,
        message_id: int,
        connection: MqttConnection,
        answer: Answer,
    ) -> None:
        """A message this connection does not hold: leased to its client by another one, settled before, or not its."""
        self.settling.flush()
        broker = self.broker.broker
        try:
            pid, offset = broker.place_of(message_id, self.namespace)
            found = broker.find_group(self.namespace, topic, group)
            backlog = found.backlogs.get(pid)
            if backlog is None:
                raise errors.InvalidArgument(f"message {message_id} is not in queue {topic!r}")
        except errors.HeadraceError as error:
            answer.done(error)
            return
        name, one = self._client_id(connection), Span(offset, 1)
        lease_id = next(
            (lease.lease_id for lease in backlog.leases.values() if lease.consumer == name and lease.holds(one)), 0
        )
        if what.verb == "extend" and not what.by_ns:
            what = what._replace(by_ns=found.policy.lease_ns)
        self.settling.add(what, topic, group, Run(backlog.partition.index, lease_id, offset), answer)

    def _understood(self, address: QueueAddress, packet: Publish) -> tuple[list[int], Settlement]:
        """Which messages, and what with them."""
        verb, properties, payload = address.verb, packet.properties, packet.payload
        ids = [address.message_id] if address.message_id else []
        for name, text in (properties or {}).get("user_properties", ()):
            if name == "message-id":
                ids.append(parse_id(text))
        text = payload.decode("utf-8", "replace").strip()
        if not ids and text and (verb == "ack" or text.isdecimal()):
            ids = [parse_id(part) for part in text.split()]
            text = ""
        if len(ids) > _IDS_MAX:
            raise errors.LimitExceeded(f"{len(ids)} messages in one settlement; at most {_IDS_MAX}")
        ids = list(dict.fromkeys(ids))
        match verb:
            case "nack":
                delay = user_property(properties, "delay") or address.span or None
                error = user_property(properties, "error")
                return ids, Settlement(
                    verb, None if delay is None else span_ns("delay", delay), text if error is None else error
                )
            case "reject":
                error = user_property(properties, "error")
                return ids, Settlement(verb, None, text if error is None else error)
            case "extend":
                by = user_property(properties, "by") or address.span or text
                return ids, Settlement(verb, by_ns=span_ns("by", by) if by else 0)
            case _:
                return ids, Settlement(verb)

    def _only_one(self, subscriptions: list[QueueSubscription], address: QueueAddress) -> list[int]:
        """A settlement that names no message is about the only one its client holds."""
        held = [message_id for each in subscriptions for message_id in each.outstanding]
        if len(held) != 1:
            raise errors.InvalidArgument(
                f"which message? Name it by the user property message-id, or as {QUEUE}{address.topic}/"
                f"${address.verb}/<id>; this client holds {len(held)} of the queue"
            )
        return held

    @staticmethod
    def _client_id(connection: MqttConnection) -> str:
        return connection.client.client_id if connection.client is not None else ""


def note_key(client: Client, packet_id: int) -> bytes:
    """Where the shard remembers a QoS 2 identifier."""
    return _note_prefix(client.uid) + packet_id.to_bytes(2, "big")


def _note_prefix(uid: int) -> bytes:
    return b"mqtt/" + uid.to_bytes(8, "big") + b"/"


def _nothing(_: Any) -> None:
    """For a reply nobody waits for."""
