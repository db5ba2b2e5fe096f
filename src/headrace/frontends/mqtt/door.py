"""The MQTT door: accepts connections, wakes them in time, writes for all of them once a round."""

from __future__ import annotations

import asyncio
import heapq
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

from headrace import errors, limits
from headrace.batch import encode
from headrace.calls import BY_KEY
from headrace.config import MqttConfig
from headrace.diagnostics import logger
from headrace.frontends.access import Principal
from headrace.frontends.doors import DoorSite
from headrace.frontends.listening import spelled
from headrace.frontends.mqtt.addresses import ADMIN, QUEUE
from headrace.frontends.mqtt.administering import Administering
from headrace.frontends.mqtt.connection import Admission, MqttConnection
from headrace.frontends.mqtt.ledger import JournalLedger
from headrace.frontends.mqtt.queues import Queues
from headrace.frontends.mqtt.rights import TopicRights
from headrace.frontends.mqtt.translate import message_of
from headrace.frontends.mqtt.websocket import WebSocketStream
from headrace.pubsub import Bounds, Client, Exchange
from headrace.shard import Done
from headrace.wire.mqtt import (
    CodecLimits,
    Connect,
    OutgoingMessage,
    Properties,
    Publish,
    Reason,
    SessionLimits,
    Subscribe,
    Subscription,
    Will,
)

if TYPE_CHECKING:
    from headrace.frontends.http.request import Request

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
        self.limits = session_limits or _session_limits(site.config.mqtt)
        self.loop = asyncio.get_running_loop()
        self.now_ns = site.broker.core.clock.now_ns
        self.connections: set[MqttConnection] = set()
        self.exchange = Exchange(
            bounds or _bounds(site.config.mqtt), publish_will=self._publish_will, on_end=self._session_ended
        )
        self.queues = Queues(site, self.now_ns, self.loop.call_soon)
        self.administering = Administering(site, self.now_ns, self._publish_as)
        self._connections_max = connections_max
        self._keep_alive_max_s = site.config.mqtt.keep_alive_max_ns // limits.SECOND_NS
        self._ledger: JournalLedger | None = None
        self._checkers: ThreadPoolExecutor | None = None
        self._checking = 0
        self._ends: list[tuple[int, int, MqttConnection]] = []
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
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        return spelled(self.site.listener)

    @property
    def connections_count(self) -> int:
        return len(self.connections)

    # -- starting and stopping -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take up what was before; accept from now on."""
        open_journal = self.site.open_journal
        if open_journal is not None:
            journal = await self.loop.run_in_executor(None, open_journal, "mqtt")
            try:
                self._ledger = JournalLedger(journal, self.site.broker.host.fail)
                self._ledger.recover(self.exchange, self.now_ns())
            except BaseException:
                await self.loop.run_in_executor(None, journal.close)
                raise
            self.rearm()
        self._server = await self.loop.create_server(
            lambda: MqttConnection(self),
            sock=self.site.listener,
            ssl=self.site.tls,
            ssl_handshake_timeout=limits.MQTT_CONNECT_DEADLINE_NS / 1e9 if self.site.tls is not None else None,
            backlog=limits.LISTEN_BACKLOG,
        )
        self._sweep()

    async def drain(self, deadline_ns: int) -> None:
        """Accept no more; part from everybody who has nothing under way, and from the others as they finish."""
        if self._server is not None:
            self._server.close()
        self._draining = True
        for connection in list(self.connections):
            connection.part()
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
        for timer in (self._timer, self._sweeper):
            if timer is not None:
                timer.cancel()
        if self._checkers is not None:
            self._checkers.shutdown(wait=False, cancel_futures=True)
        if self._ledger is not None:
            ledger, self._ledger = self._ledger, None
            await ledger.close()

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

    def websocket(self, request: Request, transport: asyncio.Transport) -> asyncio.Protocol:
        """A connection that came in by HTTP and goes on as MQTT over WebSocket."""
        return WebSocketStream(request, MqttConnection(self))

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

    def _sweep(self) -> None:
        """Leases that are over, figures that are due."""
        self._sweeper = self.loop.call_later(limits.MQTT_SWEEP_NS / 1e9, self._sweep)
        self.queues.sweep()
        self.administering.sweep()
        if self._ends:
            self._end_expired(self.site.clock.wall_ns())

    def rearm(self) -> None:
        """Be woken for whatever comes first."""
        times = [each for each in (self._due[0][0] if self._due else None, self.exchange.next_due_ns()) if each]
        if times:
            self._arm(min(times))

    # -- who may come in -----------------------------------------------------------------------------------------------

    def authenticate(self, packet: Connect, transport: asyncio.Transport) -> Admission:
        """Who is behind a CONNECT: a token as password, or a client certificate. Raises what it is refused with."""
        passwords = self.site.passwords
        if passwords is not None and packet.password is None:
            name = _common_name(transport)
            if name:
                return Admission(passwords.by_certificate(name), name)
        authenticate = self.site.authenticate
        if authenticate is None:
            return Admission(None)
        token = packet.password.decode("utf-8", "replace") if packet.password is not None else None
        if token is None and passwords is not None:
            raise errors.Unauthenticated("this server wants a user name and a password, or a token as password")
        return Admission(authenticate(token, self.site.namespace), token=token or "")

    def password_of(self, packet: Connect) -> bytes | None:
        """The password of a CONNECT, when it is one that takes a while to check."""
        password = packet.password
        if self.site.passwords is None or password is None or _is_token(password):
            return None
        return password

    def check_password(self, packet: Connect, password: bytes, told: Callable[[Any], None]) -> None:
        """Tell who a user with a password is, or the refusal: at once when it is remembered, else from a thread."""
        passwords, name = self.site.passwords, packet.user_name or ""
        if passwords is None:
            raise errors.Unauthenticated("this server has no users")
        known = passwords.remembered(name, password)
        if known is not None:
            told(Admission(known, name, passwords.entry_of(name)))
            return
        if self._checking >= limits.MQTT_PASSWORDS_CHECKED_MAX:
            raise errors.Overloaded("too many passwords are being checked; connect again in a moment")
        self._checking += 1
        if self._checkers is None:
            self._checkers = ThreadPoolExecutor(1, "passwords")

        def checked(future: asyncio.Future[str]) -> None:
            self._checking -= 1
            if future.cancelled():
                return
            error = future.exception()
            try:
                if error is not None:
                    raise error
                told(Admission(passwords.admit(name, password, future.result()), name, future.result()))
            except errors.HeadraceError as refusal:
                told(refusal)

        self.loop.run_in_executor(self._checkers, passwords.verify, name, password).add_done_callback(checked)

    def watch_end(self, connection: MqttConnection, principal: Principal) -> None:
        """A connection ends with the token it was opened with."""
        ends_at_ns = getattr(principal, "ends_at_ns", limits.TIME_NS_MAX)
        if ends_at_ns < limits.TIME_NS_MAX:
            self._watched += 1
            heapq.heappush(self._ends, (ends_at_ns, self._watched, connection))

    def _end_expired(self, now_ns: int) -> None:
        while self._ends and self._ends[0][0] <= now_ns:
            _, _, connection = heapq.heappop(self._ends)
            principal = connection.principal
            if connection in self.connections and getattr(principal, "ends_at_ns", now_ns) <= now_ns:
                connection.end(Reason.NOT_AUTHORIZED, "the token has ended; connect with a new one")

    def reload(self) -> None:
        """Keys or users are not what they were: whoever is connected is looked at again, and what he may no longer
        read is taken away."""
        for connection in list(self.connections):
            admission = connection.admission
            if admission is None or admission.principal is None:
                continue
            try:
                principal = self._again(admission)
            except errors.HeadraceError as error:
                connection.end(Reason.NOT_AUTHORIZED, error.message)
                continue
            connection.exchange_principal(principal)
        self.exchange.rights_changed()

    def _again(self, admission: Admission) -> Principal:
        if admission.user and self.site.passwords is not None:
            return self.site.passwords.again(admission.user, admission.entry)
        if self.site.authenticate is None:
            raise errors.Unauthenticated("this server takes no tokens any more")
        return self.site.authenticate(admission.token, self.site.namespace)

    def rights_of(self, principal: Principal) -> TopicRights:
        return TopicRights(principal, self.site.namespace)

    def fresh_client_id(self) -> str:
        return f"auto-{secrets.token_hex(12)}"

    def keep_alive_s(self, asked_s: int) -> int | None:
        """The keep alive in force, None: what was asked [MQTT-3.2.2-21]."""
        most_s = self._keep_alive_max_s
        return most_s if most_s and not 0 < asked_s <= most_s else None

    # -- special topics ------------------------------------------------------------------------------------------------

    def is_queue_topic(self, topic: str) -> bool:
        """Whether messages can be published there as to a queue."""
        try:
            return topic.startswith(QUEUE) and not (address := self.queues.address(topic)).verb and not address.group
        except errors.InvalidArgument:
            return False

    def may_publish_will(self, rights: TopicRights, topic: str) -> bool:
        return rights.may_write(topic.removeprefix(QUEUE))

    def publish_special(self, connection: MqttConnection, packet: Publish, handle: int) -> None:
        """A PUBLISH to a name that begins with ``$``."""
        topic = packet.topic
        if topic.startswith(QUEUE):
            self.queues.publish(connection, packet, handle)
        elif topic.startswith(ADMIN):
            self.administering.publish(connection, packet, handle)
        else:
            raise errors.UnknownTopic(f"nothing can be published to {topic!r}; $queue/<topic> and $admin/queue/… can")

    def subscribe_special(
        self, connection: MqttConnection, asked: Subscription, packet: Subscribe, identifier: int
    ) -> int:
        """A filter that begins with ``$``: the granted QoS, or what it is refused with is raised."""
        topic_filter = asked.topic_filter
        if topic_filter.startswith(QUEUE):
            return self.queues.subscribe(connection, asked, packet, identifier)
        if topic_filter.startswith(ADMIN):
            granted = self.administering.subscribe(connection, asked, packet, identifier)
            self.loop.call_soon(self.administering.sweep)
            return granted
        raise errors.InvalidArgument(f"nothing is ever published under {topic_filter!r}")

    def unsubscribe_special(self, connection: MqttConnection, topic_filter: str) -> bool:
        if topic_filter.startswith(QUEUE):
            found = self.queues.unsubscribe(connection, topic_filter)
            if connection.client is not None:
                found = self.exchange.unsubscribe_queue(connection.client, topic_filter) or found
            return found
        return self.administering.unsubscribe(connection, topic_filter)

    def ended(self, connection: MqttConnection, *, clean: bool) -> None:
        """A connection's session is over."""
        self.queues.ended(connection, clean=clean)
        self.administering.ended(connection)

    def _session_ended(self, client: Client) -> None:
        if client.reserves:
            self.queues.forget(client.uid)

    def when_durable(self, callback: Callable[[], None]) -> None:
        """When everything the broker did so far is durable."""
        journal = self.site.broker.core.journal
        self.site.broker.host.then(lambda: Done(None, journal.end_position), lambda _: callback())

    def _publish_as(self, connection: MqttConnection, packet: Publish) -> None:
        """An answer of ours to where a client asked for it, if that client may publish there."""
        topic = packet.topic
        if topic.startswith(QUEUE):
            try:
                self.queues.publish(connection, packet, 0)
            except errors.HeadraceError as error:
                _log.debug("an answer could not be published", topic=ascii(topic), reason=error.message)
        elif topic[0] != "$" and (connection.rights is None or connection.rights.may_write(topic)):
            now_ns = self.now_ns()
            self.exchange.publish(OutgoingMessage.of(packet, now_ns), 0, False, None, now_ns)

    def _publish_will(self, client: Client, will: Will, now_ns: int) -> None:
        """As its client would have: the rights are those of this moment."""
        rights: Any = client.rights
        if rights is not None and not self.may_publish_will(rights, will.topic):
            _log.warning("a will was not published: its client may not", client=ascii(client.client_id))
            return
        properties = {name: value for name, value in (will.properties or {}).items() if name != "will_delay_interval"}
        packet = Publish(will.topic, will.payload, will.qos, will.retain, properties=cast("Properties", properties))
        if will.topic.startswith(QUEUE):
            self._queue_will(packet, client)
        else:
            self.exchange.publish(OutgoingMessage.of(packet, now_ns), will.qos, will.retain, None, now_ns)

    def _queue_will(self, packet: Publish, client: Client) -> None:
        """A will to a queue is a message like others; nobody waits for the answer."""
        try:
            batch = encode([message_of(packet)])
        except errors.HeadraceError as error:
            _log.warning("a will was not published", client=ascii(client.client_id), reason=error.message)
            return
        self.site.broker.publish_then(
            self.site.namespace, self.queues.address(packet.topic).topic, BY_KEY, batch, _log_refusal
        )


def _session_limits(config: MqttConfig) -> SessionLimits:
    return SessionLimits(
        packet=CodecLimits(packet_bytes_max=config.max_packet_bytes),
        receive_maximum=config.receive_maximum,
        queue_messages_max=config.queue_messages,
        queue_bytes_max=config.queue_bytes,
        holds_qos2=True,
    )


def _bounds(config: MqttConfig) -> Bounds:
    return Bounds(
        session_expiry_s_max=config.session_expiry_max_ns // limits.SECOND_NS,
        kept_messages_max=config.queue_messages,
        kept_bytes_max=config.queue_bytes,
        cuts_slow_clients=config.slow_consumer == "disconnect",
    )


def _is_token(password: bytes) -> bool:
    return password.startswith(b"ey") and password.count(b".") == 2


def _common_name(transport: asyncio.Transport) -> str:
    """The name on the certificate a client showed (it was checked in the handshake), or nothing."""
    shown = transport.get_extra_info("peercert") or {}
    names = [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]
    return names[-1] if names else ""


def _log_refusal(reply: Any) -> None:
    if isinstance(reply, errors.HeadraceError):
        _log.warning("a will was not published", code=reply.code, reason=reply.message)
