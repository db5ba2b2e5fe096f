"""The MQTT door: accepts connections, wakes them in time, writes for all of them once a round."""

from __future__ import annotations

import asyncio
import heapq
import secrets
from typing import Any

from headrace import errors, limits
from headrace.diagnostics import logger
from headrace.frontends.access import Principal
from headrace.frontends.doors import DoorSite
from headrace.frontends.listening import spelled
from headrace.frontends.mqtt.connection import MqttConnection
from headrace.frontends.mqtt.rights import TopicRights
from headrace.pubsub import Bounds, Client, Exchange
from headrace.wire.mqtt import Connect, OutgoingMessage, Publish, Reason, SessionLimits, Subscribe, Subscription, Will

__all__ = ["MqttDoor"]

_log = logger("mqtt")


class MqttDoor:
    """A ``Door`` that speaks MQTT 3.1.1 and 5."""

    def __init__(
        self,
        site: DoorSite,
        *,
        session_limits: SessionLimits | None = None,
        bounds: Bounds | None = None,
        connections_max: int = limits.CONNECTIONS_MAX,
    ) -> None:
        self.site = site
        self.limits = session_limits or SessionLimits(holds_qos2=True)
        self.loop = asyncio.get_running_loop()
        self.now_ns = site.broker.core.clock.now_ns
        self.connections: set[MqttConnection] = set()
        self.exchange = Exchange(bounds, publish_will=self._publish_will)
        self._connections_max = connections_max
        self._refused = 0
        self._server: asyncio.Server | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._draining = False
        self._dirty: list[MqttConnection] = []
        self._due: list[tuple[int, int, MqttConnection]] = []
        self._watched = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    @property
    def address(self) -> str:
        return spelled(self.site.listener)

    @property
    def open_connections(self) -> int:
        return len(self.connections)

    # -- starting and stopping -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Accept from now on."""
        self._server = await self.loop.create_server(
            lambda: MqttConnection(self),
            sock=self.site.listener,
            ssl=self.site.tls,
            ssl_handshake_timeout=limits.MQTT_CONNECT_DEADLINE_NS / 1e9 if self.site.tls is not None else None,
            backlog=limits.LISTEN_BACKLOG,
        )

    async def drain(self, deadline_ns: int) -> None:
        """Accept no more; part from everybody who has nothing under way, and from the others as they finish."""
        if self._server is not None:
            self._server.close()
        self._draining = True
        for connection in list(self.connections):
            connection.end_now(Reason.SERVER_SHUTTING_DOWN, "the server is stopping")
        try:
            async with asyncio.timeout(deadline_ns / 1e9):
                await self._empty.wait()
        except TimeoutError:
            _log.warning("clients did not finish in time", connections=len(self.connections))

    async def close(self) -> None:
        """Cut what is left."""
        if self._server is not None:
            self._server.close()
        else:
            self.site.listener.close()
        for connection in list(self.connections):
            connection.end_now(Reason.SERVER_SHUTTING_DOWN, "the server has stopped")
        self._flush()
        try:
            async with asyncio.timeout(limits.CLOSE_FLUSH_NS / 1e9):
                await self._empty.wait()
        except TimeoutError:
            for connection in list(self.connections):
                connection.cut()
            await asyncio.sleep(0)
        if self._timer is not None:
            self._timer.cancel()

    # -- connections ---------------------------------------------------------------------------------------------------

    def admit(self, connection: MqttConnection) -> bool:
        """Count a connection in, if there is room."""
        self.connections.add(connection)
        self._empty.clear()
        if len(self.connections) <= self._connections_max and not self._draining:
            return True
        self._refused += 1
        if self._refused & (self._refused - 1) == 0:
            _log.warning("connections refused", most=self._connections_max, refused=self._refused)
        return False

    def gone(self, connection: MqttConnection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    def flush_soon(self, connection: MqttConnection) -> None:
        """It has something to write: at the end of this round."""
        if not self._dirty:
            self.loop.call_soon(self._flush)
        self._dirty.append(connection)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()

    # -- time ----------------------------------------------------------------------------------------------------------

    def watch(self, connection: MqttConnection) -> None:
        """Wake it when its session is due."""
        due_ns = connection.session.next_due_ns()
        if due_ns is None:
            connection.due_ns = 0
            return
        connection.due_ns = due_ns
        self._watched += 1
        heapq.heappush(self._due, (due_ns, self._watched, connection))
        self._arm(due_ns)

    def _arm(self, due_ns: int) -> None:
        if self._timer is not None:
            if due_ns >= self._timer_ns:
                return
            self._timer.cancel()
        now_ns = self.now_ns()
        self._timer_ns = max(due_ns, now_ns + limits.MQTT_TIMER_GRAIN_NS)
        self._timer = self.loop.call_later((self._timer_ns - now_ns) / 1e9, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now_ns = self.now_ns()
        due = self._due
        while due and due[0][0] <= now_ns:
            when_ns, _, connection = heapq.heappop(due)
            if connection.due_ns != when_ns or connection not in self.connections:
                continue  # it is watched for another time
            connection.due_ns = 0
            connection.on_due(now_ns)
            if not connection.due_ns:
                self.watch(connection)
        self.exchange.on_due(now_ns)
        self.rearm()

    def rearm(self) -> None:
        """Be woken for whatever comes first."""
        times = [each for each in (self._due[0][0] if self._due else None, self.exchange.next_due_ns()) if each]
        if times:
            self._arm(min(times))

    # -- who may come in -----------------------------------------------------------------------------------------------

    def authenticate(self, packet: Connect, transport: asyncio.Transport) -> Principal | None:
        """The principal behind a CONNECT: the password is a token. Raises what it is refused with."""
        authenticate = self.site.authenticate
        if authenticate is None:
            return None
        token = packet.password.decode("utf-8", "replace") if packet.password is not None else None
        return authenticate(token, self.site.namespace)

    def rights_of(self, principal: Principal) -> TopicRights:
        return TopicRights(principal, self.site.namespace)

    def fresh_client_id(self) -> str:
        return f"auto-{secrets.token_hex(12)}"

    def keep_alive_s(self, asked_s: int) -> int | None:
        """The keep alive in force, None: what was asked."""
        return None

    # -- special topics ------------------------------------------------------------------------------------------------

    def is_queue_topic(self, topic: str) -> bool:
        return topic.startswith("$queue/")

    def may_publish_will(self, rights: TopicRights, topic: str) -> bool:
        return rights.may_write(topic.removeprefix("$queue/"))

    def publish_special(self, connection: MqttConnection, packet: Publish, handle: int) -> None:
        raise errors.InvalidArgument(f"topic {packet.topic!r}: nothing can be published there")

    def subscribe_special(self, connection: MqttConnection, asked: Subscription, packet: Subscribe) -> int:
        return Reason.TOPIC_FILTER_INVALID

    def unsubscribe_special(self, connection: MqttConnection, topic_filter: str) -> bool:
        return False

    def ended(self, connection: MqttConnection, *, clean: bool) -> None:
        """A connection's session is over."""

    def _publish_will(self, client: Client, will: Will, now_ns: int) -> None:
        """As its client would have: the rights are those of this moment."""
        rights: Any = client.rights
        if rights is not None and not self.may_publish_will(rights, will.topic):
            _log.warning("a will was not published: its client may not", client=ascii(client.client_id))
            return
        properties = dict(will.properties or {})
        properties.pop("will_delay_interval", None)
        packet = Publish(will.topic, will.payload, will.qos, will.retain, properties=properties or None)  # type: ignore[arg-type] # the same names
        self.exchange.publish(OutgoingMessage.of(packet, now_ns), will.qos, will.retain, None, now_ns)
