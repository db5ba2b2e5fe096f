"""``$admin/queue/…``: make queues, change their settings, watch their figures. For those with the admin right only.

The payload is JSON; the result (or the refusal) is published to the request's response topic, if it has one, with its
correlation data. A subscription to ``$admin/queue/<topic>/stats`` gets the figures at once and then at an interval.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from headrace import errors, limits
from headrace.client.arguments import span_ns
from headrace.frontends.doors import DoorSite
from headrace.frontends.mqtt.addresses import ADMIN, AdminAddress, admin_address
from headrace.frontends.mqtt.translate import user_property
from headrace.wire.mqtt import OutgoingMessage, Properties, Publish, Subscribe, Subscription

if TYPE_CHECKING:
    from headrace.frontends.mqtt.connection import MqttConnection

__all__ = ["Administering"]

_encode = msgspec.json.Encoder().encode


class _Watch:
    """One subscription to figures."""

    __slots__ = ("due_ns", "identifiers", "interval_ns", "qos", "topic")

    def __init__(self, topic: str, qos: int, identifier: int, interval_ns: int) -> None:
        self.topic = topic
        self.qos = qos
        self.identifiers = (identifier,) if identifier else ()
        self.interval_ns = interval_ns
        self.due_ns = 0


class Administering:
    """One for a door. ``respond`` publishes an answer as the asking client would have."""

    def __init__(
        self, site: DoorSite, now_ns: Callable[[], int], respond: Callable[[MqttConnection, Publish], None]
    ) -> None:
        self._broker = site.broker
        self._namespace = site.namespace
        self._now_ns = now_ns
        self._respond = respond
        self._watches: dict[MqttConnection, dict[str, _Watch]] = {}

    def publish(self, connection: MqttConnection, packet: Publish, handle: int) -> None:
        """A request. Raises what it is refused with before anything is done."""
        address = admin_address(packet.topic)
        method, arguments = self._call_of(address, packet)
        self._guard(connection, str(arguments["topic"]))

        def done(reply: Any) -> None:
            error = reply if isinstance(reply, errors.HeadraceError) else None
            connection.answer(handle, error, silently=True)
            self._tell(connection, packet, reply)

        self._broker.host.then(lambda: self._broker.administration.call(method, arguments), done)

    def _call_of(self, address: AdminAddress, packet: Publish) -> tuple[str, dict[str, Any]]:
        if address.verb == "stats":
            return "stats", {"topic": address.topic, "namespace": self._namespace}
        try:
            payload = msgspec.json.decode(packet.payload or b"{}", type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise errors.InvalidArgument(f"the payload must be a JSON object: {error}") from None
        if address.verb == "config":
            settings = payload.get("settings", payload)
            return "topic.config", {"topic": address.topic, "namespace": self._namespace, "settings": settings}
        name = payload.pop("topic", None) or payload.pop("name", None)
        if not isinstance(name, str):
            raise errors.InvalidArgument('the payload must name the queue: {"topic": "orders", "settings": {…}}')
        settings = payload.pop("settings", None) or payload.pop("config", None) or {}
        if not isinstance(settings, dict):
            raise errors.InvalidArgument('"settings" must be a JSON object')
        return "topic.create", {"topic": name, "namespace": self._namespace, "settings": {**payload, **settings}}

    def _guard(self, connection: MqttConnection, topic: str) -> None:
        rights = connection.rights
        if rights is not None and not rights.may_administer(topic):
            raise errors.NotAllowed(f"administering queue {topic!r} is not allowed")

    def _tell(self, connection: MqttConnection, packet: Publish, reply: Any) -> None:
        asked = packet.properties or {}
        if "response_topic" not in asked:
            return
        if isinstance(reply, errors.HeadraceError):
            reply = {"error": {"code": reply.code, "message": reply.message}}
        said: Properties = {"content_type": "application/json"}
        if "correlation_data" in asked:
            said["correlation_data"] = asked["correlation_data"]
        self._respond(connection, Publish(asked["response_topic"], _encode(reply), properties=said))

    # -- figures -------------------------------------------------------------------------------------------------------

    def subscribe(self, connection: MqttConnection, asked: Subscription, packet: Subscribe, identifier: int) -> int:
        """Watch a queue's figures; the granted QoS. Raises what it is refused with."""
        address = admin_address(asked.topic_filter)
        if address.verb != "stats" or "+" in address.topic or "#" in address.topic:
            raise errors.InvalidArgument(f"{asked.topic_filter!r}: only {ADMIN}queue/<topic>/stats can be subscribed")
        self._guard(connection, address.topic)
        self._broker.broker.find_topic(self._namespace, address.topic)
        interval = user_property(packet.properties, "interval")
        interval_ns = span_ns("interval", interval) if interval else limits.MQTT_STATS_INTERVAL_NS
        watch = _Watch(address.topic, min(asked.qos, 1), identifier, max(interval_ns, limits.MQTT_SWEEP_NS))
        watches = self._watches.setdefault(connection, {})
        if len(watches) >= limits.MQTT_QUEUES_MAX:
            raise errors.LimitExceeded(f"one connection watches at most {limits.MQTT_QUEUES_MAX} queues")
        watches[asked.topic_filter] = watch
        return watch.qos

    def unsubscribe(self, connection: MqttConnection, topic_filter: str) -> bool:
        return self._watches.get(connection, {}).pop(topic_filter, None) is not None

    def ended(self, connection: MqttConnection) -> None:
        self._watches.pop(connection, None)

    def sweep(self) -> None:
        """Send the figures that are due."""
        now_ns = self._now_ns()
        for connection, watches in self._watches.items():
            for name, watch in list(watches.items()):
                if watch.due_ns <= now_ns and connection.session.has_room:
                    watch.due_ns = now_ns + watch.interval_ns
                    self._send(connection, name, watch, now_ns)

    def _send(self, connection: MqttConnection, name: str, watch: _Watch, now_ns: int) -> None:
        if connection.rights is not None and not connection.rights.may_administer(watch.topic):
            return
        arguments = {"topic": watch.topic, "namespace": self._namespace}
        try:
            figures = self._broker.administration.call("stats", arguments).reply["topics"][0]
        except errors.HeadraceError as error:
            figures = {"error": {"code": error.code, "message": error.message}}
        message = OutgoingMessage(name, _encode(figures), {"content_type": "application/json"})
        client = connection.client
        packet_id = client.take_packet_id() if client is not None and watch.qos else 0
        connection.session.send_publish(
            message,
            watch.qos,
            now_ns,
            subscription_identifiers=watch.identifiers,
            token=Figures(packet_id) if packet_id else None,
            packet_id=packet_id,
        )
        connection.touch()


class Figures:
    """A message of figures on its way, which holds a packet identifier of its session."""

    __slots__ = ("packet_id",)

    def __init__(self, packet_id: int) -> None:
        self.packet_id = packet_id
