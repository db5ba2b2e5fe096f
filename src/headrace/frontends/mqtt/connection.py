"""One MQTT connection: feeds its session, carries out what it says, keeps everything bounded.

    bytes ──► session.receive_bytes ──► events ──► exchange (ordinary topics) or queues ($queue/, $admin/)
    session.outgoing ──► one write a round of the loop, for all connections that have something (the door's flush)

The rules:

- Nothing is answered before it is as durable as it will ever be: what a publish brought about for sessions that last,
  or in a queue, is committed before PUBACK and PUBREC leave.
- A peer that does not read is not written to: its session collects, drops QoS 0 and bounds the rest, and a peer that
  makes us answer without reading is not read any more.
- The end comes once, as the session's `Disconnected`; whatever asks for it from outside asks for the next round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from headrace import errors, limits
from headrace.diagnostics import logger
from headrace.frontends.access import Principal
from headrace.frontends.mqtt.administering import Figures
from headrace.frontends.mqtt.consuming import Delivery, QueueSubscription
from headrace.frontends.mqtt.rights import TopicRights
from headrace.pubsub import Client, Exchange
from headrace.wire.mqtt import (
    Acked,
    Cause,
    Connect,
    Connected,
    Disconnected,
    Dropped,
    Failed,
    OutgoingMessage,
    Properties,
    Published,
    Reason,
    Recorded,
    Released,
    ServerSession,
    SessionState,
    State,
    Subscribed,
    Unsubscribed,
    Will,
)

if TYPE_CHECKING:
    from headrace.frontends.mqtt.door import MqttDoor

__all__ = ["Admission", "MqttConnection"]

_log = logger("mqtt")
_ROUNDS_MAX: Final = 16
"""Of taking output and reacting to what that set free, in one flush."""


class Admission(NamedTuple):
    """Who was let in, and by what, so that it can be looked at again."""

    principal: Principal | None
    user: str = ""
    """The user of a password file; empty: it was a token, or nobody asks."""
    entry: str = ""
    """His password's hash; empty: it was a certificate."""
    token: str = ""

    @property
    def owner(self) -> str:
        """Whose sessions are his: a user and a token of the same name are two."""
        if self.principal is None:
            return ""
        return f"user {self.user}" if self.user else self.principal.name


class MqttConnection(asyncio.Protocol):
    """See the head of this file."""

    __slots__ = (
        "_closing",
        "_dirty",
        "_door",
        "_ending",
        "_exchange",
        "_opening",
        "_parting",
        "_paused",
        "_reading",
        "_transport",
        "admission",
        "client",
        "due_ns",
        "is_nameless",
        "peer",
        "principal",
        "queues",
        "receive_maximum",
        "rights",
        "session",
    )

    def __init__(self, door: MqttDoor) -> None:
        self._door = door
        self._exchange = door.exchange
        self._transport: asyncio.Transport = None  # type: ignore[assignment] # set before anything else happens
        self.session = ServerSession(now_ns=door.now_ns(), limits=door.limits)
        self.client: Client | None = None
        self.admission: Admission | None = None
        self.principal: Principal | None = None
        self.rights: TopicRights | None = None
        self.queues: dict[str, QueueSubscription] | None = None
        self.receive_maximum = 0  # what the client said, 0: nothing
        self.is_nameless = False
        self.peer = ""
        self.due_ns = 0
        self._opening: tuple[Client, bool] | None = None
        self._parting = False
        self._dirty = False
        self._ending = False
        self._paused = False
        self._reading = True
        self._closing = False

    # -- the transport -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # not an instance of it under uvloop
        self._transport = transport
        transport.set_write_buffer_limits(limits.MQTT_WRITE_BYTES_HIGH, limits.MQTT_WRITE_BYTES_LOW)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "local"
        if not self._door.admit(self):
            transport.abort()  # [MQTT-3.1.4]: before CONNECT there is no word for it
            return
        self._door.watch(self)

    def data_received(self, data: bytes) -> None:
        self.session.receive_bytes(data, self._door.now_ns())
        self.react()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.session.connection_lost(self._door.now_ns())
        self._closing = True
        self.react()
        self._door.gone(self)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.touch()

    # -- rounds --------------------------------------------------------------------------------------------------------

    def touch(self) -> None:
        """There may be something to write: at the end of this round."""
        if not self._dirty:
            self._dirty = True
            self._door.flush_soon(self)

    def react(self) -> None:
        """Carry out what the session says."""
        session = self.session
        while events := session.events():
            for event in events:
                try:
                    if event.__class__ is Published:
                        self._on_published(event)
                    else:
                        _HANDLERS[event.__class__](self, event)
                except errors.HeadraceError as error:
                    self._refused(event, error)
                except Exception as error:  # noqa: BLE001 - one request must not take the process down
                    _log.error("a request failed", peer=self.peer, exc_info=error)
                    self.end(Reason.UNSPECIFIED, "an internal error ended this connection; see the server's log")
        if not self._dirty:
            self._dirty = True
            self._door.flush_soon(self)
        due_ns = session.next_due_ns()
        if due_ns is not None and (due_ns < self.due_ns or not self.due_ns):
            self._door.watch(self)

    def flush(self) -> None:
        """Write what there is, as long as it is taken; close when the session is over."""
        session, transport = self.session, self._transport
        for _ in range(_ROUNDS_MAX):
            if self._paused or self._closing:
                break
            buffers = session.outgoing()
            if not buffers:
                break
            if len(buffers) == 1:
                transport.write(buffers[0])
            elif sum(map(len, buffers)) <= limits.COALESCE_BYTES_MAX:
                transport.write(b"".join(buffers))
            else:
                transport.writelines(buffers)
            client = self.client
            if client is not None and client.backlog:
                self._exchange.pump(client, self._door.now_ns())
            if self.queues:
                self._door.queues.pump(self)
            self.react()
        else:
            self._door.loop.call_soon(self.touch)
        self._dirty = False
        if session.close_planned:
            self._close()
        elif session.wants_bytes is not self._reading and not self._parting:
            self._reading = session.wants_bytes
            if self._reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def on_due(self, now_ns: int) -> None:
        """The door's timer."""
        self.session.on_due(now_ns)
        self.react()

    def _close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._transport.close()  # what is written still leaves, and no longer than this:
        if self._transport.get_write_buffer_size():
            self._door.loop.call_later(limits.CLOSE_FLUSH_NS / 1e9, self._transport.abort)

    def cut(self) -> None:
        self._transport.abort()

    def end(self, reason: int, text: str) -> None:
        """End it in the next round; whoever asks may be in the middle of something."""
        if not self._ending:
            self._ending = True
            self._door.loop.call_soon(self.end_now, reason, text)

    def end_now(self, reason: int, text: str) -> None:
        """DISCONNECT with a reason (5.0), and the end."""
        self._ending = True
        if self.session.state is State.AWAIT_CONNECT:
            self._transport.abort()
            return
        self.session.disconnect(reason, reason_string=text)
        self.react()

    def _refused(self, event: Any, error: errors.HeadraceError) -> None:
        """What a request was refused with, in the words of its packet."""
        reason = errors.ROWS.get(type(error), _UNKNOWN_ROW).mqtt
        session = self.session
        match event:
            case Published():
                silently = event.message.topic[0] == "$" and not isinstance(error, errors.NotAllowed)
                self.answer(event.handle, error, silently=silently)
            case Connected():
                session.refuse(reason, reason_string=error.message)
            case _:
                self.end(reason, error.message)

    # -- connect -------------------------------------------------------------------------------------------------------

    def _on_connected(self, event: Connected) -> None:
        packet, door = event.packet, self._door
        password = door.password_of(packet)
        if password is None:
            self._let_in(packet, door.authenticate(packet, self._transport))
        else:
            door.check_password(packet, password, partial(self._checked, event))

    def _checked(self, event: Connected, answer: Admission | errors.HeadraceError) -> None:
        """The password was looked at."""
        if self.session.state is not State.CONNECTING:
            return  # it went away while it waited
        try:
            if isinstance(answer, errors.HeadraceError):
                raise answer
            self._let_in(event.packet, answer)
        except errors.HeadraceError as error:
            self._refused(event, error)
        self.react()

    def _let_in(self, packet: Connect, admission: Admission) -> None:
        door = self._door
        self.admission = admission
        principal = self.principal = admission.principal
        if principal is not None:
            self.rights = door.rights_of(principal)
            door.watch_end(self, principal)
        if packet.will is not None:
            self._check_will(packet.will)
        owner = admission.owner
        client_id = packet.client_id or door.fresh_client_id()
        standing = self._exchange.find(client_id)
        if standing is not None and standing.owner != owner:
            raise errors.NotAllowed(f"client id {client_id!r} belongs to somebody else")
        if standing is not None and standing.link is not None:
            standing.link.end_now(Reason.SESSION_TAKEN_OVER, "another connection uses this client id")  # [MQTT-3.1.4-3]
            standing = self._exchange.find(client_id)
        elif standing is not None and standing.opening is not None:
            standing.opening.end_now(Reason.SESSION_TAKEN_OVER, "another connection uses this client id")
            standing = self._exchange.find(client_id)
        if standing is not None and standing.leaving is not None and not packet.clean_start:
            if standing.waiter is not None:
                raise errors.Overloaded(f"client id {client_id!r} is being connected already")
            standing.waiter = partial(self._open, packet, client_id, owner)
            return
        self._open(packet, client_id, owner)

    def _check_will(self, will: Will) -> None:
        topic = will.topic
        if topic[0] == "$" and not self._door.is_queue_topic(topic):
            raise errors.InvalidArgument(f"a will to {topic!r}: only $queue/<topic> may begin with $")
        if self.rights is not None and not self._door.may_publish_will(self.rights, topic):
            raise errors.NotAllowed(f"a will to {topic!r} is not allowed")

    def _open(self, packet: Any, client_id: str, owner: str) -> None:
        """Everything before it is settled: the session begins or goes on."""
        door, session, exchange = self._door, self.session, self._exchange
        if session.state is not State.CONNECTING:
            return  # it went away while it waited
        now_ns = door.now_ns()
        expiry_s = min(session.session_expiry_s, exchange.bounds.session_expiry_s_max)
        had_one = exchange.find(client_id) is not None
        found = exchange.open(client_id, owner, packet.clean_start, expiry_s, packet.will, now_ns)
        if found is None:
            session.refuse(Reason.QUOTA_EXCEEDED, reason_string="there are too many sessions")
            self.touch()
            return
        client, goes_on = found
        client.opening = self
        self._opening = client, goes_on
        accept = partial(self._accept, packet, client, goes_on)
        if had_one or client.reserves:
            exchange.then(accept)  # what CONNACK says of the session is so, also after a crash
        else:
            accept()

    def _accept(self, packet: Connect, client: Client, goes_on: bool) -> None:
        """The beginning of the session is durable."""
        door, session, exchange = self._door, self.session, self._exchange
        if client.opening is not self:
            return  # it went away, or another connection has this client id now
        now_ns = door.now_ns()
        self._opening = None
        client_id, state = client.client_id, None
        if goes_on:
            state = client.state or SessionState()
            state.received = list({*state.received, *door.queues.received(client)})
            if self.rights is not None:
                exchange.restrict(client, state, self.rights)
        asked = packet.properties or {}
        self.receive_maximum = asked.get("receive_maximum", 0)
        self.is_nameless = not packet.client_id
        said: Properties = {}
        if asked.get("request_response_information") and "+" not in client_id and "#" not in client_id:
            said["response_information"] = f"reply/{client_id}"
        accepted = session.accept(
            now_ns,
            state=state,
            assigned_client_id=None if packet.client_id else client_id,
            server_keep_alive_s=door.keep_alive_s(packet.keep_alive_s),
            session_expiry_s=client.expiry_s,
            properties=said,
        )
        if not accepted:
            exchange.abandon(client, goes_on, now_ns)
            self.touch()
            return
        client.opening = client.state = None
        self.client = client
        exchange.attach(client, self, self.rights, now_ns)
        door.queues.resume(self)
        self.due_ns = 0
        self.react()

    def exchange_principal(self, principal: Principal) -> None:
        """The same somebody with other rights, perhaps: what he may no longer read is taken from him."""
        client, rights = self.client, self.rights
        if rights is None:
            return
        self.principal = principal
        rights.principal = principal
        rights.forget()
        self._door.watch_end(self, principal)
        if client is None:
            return
        for topic_filter in list(client.subscriptions or ()):
            if not rights.may_subscribe(topic_filter):
                self._exchange.unsubscribe(client, topic_filter)
        for topic_filter, subscription in list((self.queues or {}).items()):
            if not rights.may_read(subscription.topic):
                self._door.unsubscribe_special(self, topic_filter)

    # -- messages from the client --------------------------------------------------------------------------------------

    def _on_published(self, event: Published) -> None:
        packet, handle = event.message, event.handle
        topic = packet.topic
        if topic[0] == "$":
            self._door.publish_special(self, packet, handle)
            return
        if self.rights is not None and not self.rights.may_write(topic):
            raise errors.NotAllowed(f"publishing to {topic!r} is not allowed")
        now_ns = self._door.now_ns()
        properties = packet.properties
        message = OutgoingMessage(topic, packet.payload) if properties is None else OutgoingMessage.of(packet, now_ns)
        qos = packet.qos
        reason, waits = self._exchange.publish(
            message, qos, packet.retain, self.client, now_ns, handle if qos == 2 else 0
        )
        if handle:
            if waits:
                self._exchange.then(partial(self._answer, handle, reason))
            else:
                self.session.ack_publish(handle, reason)

    def _answer(self, handle: int, reason: int = 0, text: str | None = None, *, silently: bool = False) -> None:
        """PUBACK or PUBREC; when the connection has ended meanwhile, the session is told all the same."""
        session = self.session
        sent = session.ack_publish(handle, reason, reason_string=text, silently=silently)
        self.touch()
        if self._parting:
            self.part_if_idle()
        if session.state is State.CLOSED:
            self.react()
            if not sent and not session.unanswered_count and self.client is not None:
                self._exchange.answered(self.client, self)

    @property
    def standing_client(self) -> Client:
        """Of a connection that was accepted."""
        if self.client is None:
            raise errors.ProtocolViolation("this connection has no client yet")
        return self.client

    @property
    def exchange(self) -> Exchange:
        return self._exchange

    def answer(self, handle: int, error: errors.HeadraceError | None, *, silently: bool = False) -> None:
        """The answer to a publish. ``silently``: 3.1.1 has no word for a refusal, and this one is not worth the
        connection (a settlement that came too late)."""
        if not handle:
            if error is not None:
                _log.debug("a QoS 0 publish was refused", peer=self.peer, code=error.code, reason=error.message)
        elif error is None:
            self._answer(handle)
        else:
            reason = errors.ROWS.get(type(error), _UNKNOWN_ROW).mqtt
            self._answer(handle, reason if reason in _PUBACK else 0x83, error.message, silently=silently)

    def _on_released(self, event: Released) -> None:
        client = self.client
        complete = partial(self._complete, event.packet_id)
        if client is not None and client.reserves and self._door.queues.release(client, event.packet_id, complete):
            return
        if client is not None and self._exchange.release(client, event.packet_id):
            self._exchange.then(complete)
        else:
            self.session.complete_publish(event.packet_id)

    def _complete(self, packet_id: int) -> None:
        self.session.complete_publish(packet_id)
        self.touch()

    # -- messages to the client ----------------------------------------------------------------------------------------

    def _on_recorded(self, event: Recorded) -> None:
        client = self.client
        if client is not None and self._exchange.recorded(client, event.token):
            self._exchange.then(partial(self._release, event.packet_id))
        else:
            self.session.release_publish(event.packet_id)

    def _release(self, packet_id: int) -> None:
        self.session.release_publish(packet_id)
        self.touch()

    def _on_acked(self, event: Acked) -> None:
        token, client = event.token, self.client
        if token is not None and client is not None:
            kind = token.__class__
            if kind is Delivery:
                self._door.queues.acked(token, event)
            elif kind is Figures:
                client.used.discard(token.packet_id)
            else:
                self._exchange.finished(client, token)
        if client is not None and client.backlog:
            self._exchange.pump(client, self._door.now_ns())

    def _on_dropped(self, event: Dropped) -> None:
        token, client = event.token, self.client
        if client is None or token is None:
            return
        if isinstance(token, Delivery):
            token.subscription.unsent(token)
            if token.subscription.outstanding.pop(token.message_id, None) is not None:
                self._door.queues.give_up(token, "larger than the maximum packet size of the client it was leased to")
        elif isinstance(token, Figures):
            client.used.discard(token.packet_id)
        else:
            self._exchange.finished(client, token)

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def _on_subscribed(self, event: Subscribed) -> None:
        packet, client = event.packet, self.client
        if client is None:
            return
        now_ns = self._door.now_ns()
        identifiers = (packet.properties or {}).get("subscription_identifiers")
        identifier = identifiers[0] if identifiers else 0
        reasons: list[int] = []
        texts: list[str] = []
        for asked in packet.subscriptions:
            if asked.topic_filter[0] == "$" and not asked.topic_filter.startswith("$share/"):
                try:
                    reasons.append(self._door.subscribe_special(self, asked, packet, identifier))
                except errors.HeadraceError as error:
                    reason = errors.ROWS.get(type(error), _UNKNOWN_ROW).mqtt
                    reasons.append(reason if reason in _SUBACK else Reason.TOPIC_FILTER_INVALID)
                    texts.append(error.message)
            else:
                reasons.append(self._exchange.subscribe(client, asked, identifier, now_ns))
        if self.session.version != _V5:
            reasons = [min(reason, 0x80) for reason in reasons]
        confirm = partial(self._confirm_subscribe, packet.packet_id, reasons, "; ".join(texts) or None)
        self._exchange.then(lambda: self._door.when_durable(confirm) if self.queues else confirm())

    def _confirm_subscribe(self, packet_id: int, reasons: list[int], text: str | None) -> None:
        self.session.send_suback(packet_id, reasons, reason_string=text)
        if self.client is not None and self.client.backlog and self.client.link is self:
            self._exchange.pump(self.client, self._door.now_ns())
        self.touch()

    def _on_unsubscribed(self, event: Unsubscribed) -> None:
        packet, client = event.packet, self.client
        if client is None:
            return
        reasons: list[int] = []
        for topic_filter in packet.topic_filters:
            if topic_filter[0] == "$" and not topic_filter.startswith("$share/"):
                found = self._door.unsubscribe_special(self, topic_filter)
            else:
                found = self._exchange.unsubscribe(client, topic_filter)
            reasons.append(Reason.SUCCESS if found else Reason.NO_SUBSCRIPTION_EXISTED)
        self._exchange.then(partial(self._confirm_unsubscribe, packet.packet_id, reasons))

    def _confirm_unsubscribe(self, packet_id: int, reasons: list[int]) -> None:
        self.session.send_unsuback(packet_id, reasons)
        self.touch()

    # -- the end -------------------------------------------------------------------------------------------------------

    def part(self) -> None:
        """The server stops: take no more deliveries, and go when what was begun is finished."""
        self._parting = True
        for subscription in (self.queues or {}).values():
            subscription.stop()
        self.part_if_idle()

    def part_if_idle(self) -> None:
        """Nothing owed and nothing held: the end."""
        if not self._parting or self._ending:
            return
        holds = any(each.outstanding for each in (self.queues or {}).values())
        if not holds and not self.session.unanswered_count:
            self.end(Reason.SERVER_SHUTTING_DOWN, "the server is stopping")
        elif not holds and self._reading:
            self._reading = False
            self._transport.pause_reading()  # what it has sent is answered, what it would send is not begun

    def _on_failed(self, event: Failed) -> None:
        _log.debug("a client broke a rule", peer=self.peer, clause=event.clause, detail=event.detail)

    def _on_disconnected(self, event: Disconnected) -> None:
        client = self.client
        if client is None:
            if self._opening is not None:
                (client, goes_on), self._opening = self._opening, None
                if client.opening is self:
                    self._exchange.abandon(client, goes_on, self._door.now_ns())
            return
        self._door.ended(self, clean=event.cause is Cause.CLIENT)
        self._exchange.disconnected(client, self, event, self._door.now_ns())
        self._door.rearm()


_V5: Final = 5
_UNKNOWN_ROW: Final = errors.Row(500, 2, 0x80, 0)
_PUBACK: Final = frozenset({0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_SUBACK: Final = frozenset({0x80, 0x83, 0x87, 0x8F, 0x97})
_HANDLERS: Final[dict[type, Callable[[MqttConnection, Any], None]]] = {
    Connected: MqttConnection._on_connected,
    Released: MqttConnection._on_released,
    Recorded: MqttConnection._on_recorded,
    Acked: MqttConnection._on_acked,
    Dropped: MqttConnection._on_dropped,
    Subscribed: MqttConnection._on_subscribed,
    Unsubscribed: MqttConnection._on_unsubscribed,
    Failed: MqttConnection._on_failed,
    Disconnected: MqttConnection._on_disconnected,
}
