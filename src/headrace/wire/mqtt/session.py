"""One client's connection, seen from the server: bytes and calls in, events and bytes out; no socket, no clock.

A front-end's loop is::

    session.receive_bytes(data, now_ns)        # or connection_lost(now_ns)
    for event in session.events(): ...         # answer with accept, ack_publish, send_suback, send_publish …
    while buffers := session.outgoing(): ...   # write them; not while the transport is full: that is the back-pressure
    # stop reading while not session.wants_bytes; one timer at session.next_due_ns() → session.on_due(now_ns)
    # after session.close_planned: write what is left, close the transport

Messages from the client are `Receiver`'s, messages to it `Sender`'s; which packet may come when is the table in
``states``. What the peer does wrong becomes a `Failed` event, a DISCONNECT (5.0) or CONNACK with the reason, and
``close_planned``; nothing here raises for it. Calls made after the end are no-ops that say False, because the
broker's answer may cross the end of the connection.

Not here: which sessions exist, take-over, authentication, authorisation, retained messages, wills' delays (the
broker's); enhanced authentication, which is refused [MQTT-4.12.0-1].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from headrace.errors import InvalidArgument
from headrace.wire.mqtt.builder import build
from headrace.wire.mqtt.events import (
    Cause,
    Connected,
    Disconnected,
    Event,
    Failed,
    Published,
    Subscribed,
    Unsubscribed,
)
from headrace.wire.mqtt.fanout import OutgoingMessage
from headrace.wire.mqtt.fields import CodecLimits, Failure
from headrace.wire.mqtt.limits import SessionLimits
from headrace.wire.mqtt.output import Output
from headrace.wire.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from headrace.wire.mqtt.parser import NEED_MORE, parse
from headrace.wire.mqtt.reasons import ALLOWED, connack_3
from headrace.wire.mqtt.receiver import Receiver
from headrace.wire.mqtt.sender import Sender, Sent
from headrace.wire.mqtt.session_state import SessionState
from headrace.wire.mqtt.states import IGNORE, TABLE, Illegal, State

__all__ = ["ServerSession"]

_V5: Final = 5
_SECOND_NS: Final = 1_000_000_000
_NEVER_EXPIRES_S: Final = 0xFFFF_FFFF
_DEFAULT_LIMITS: Final = SessionLimits()


class ServerSession:
    """The server's side of one MQTT connection, 3.1.1 or 5.0 as the client asks.

    >>> session = ServerSession(now_ns=0)
    >>> session.receive_bytes(build(Connect("ann", 4), 4), 0)
    >>> [type(event).__name__ for event in session.events()]
    ['Connected']
    >>> session.accept(0)
    True
    >>> b"".join(session.outgoing()).hex(" ")
    '20 02 00 00'
    """

    __slots__ = (
        "_codec_limits",
        "_connect",
        "_disconnect_properties",
        "_due_since_ns",
        "_events",
        "_heard_ns",
        "_held",
        "_keep_alive_ns",
        "_limits",
        "_needed",
        "_now_ns",
        "_output",
        "_partial",
        "_partial_since_ns",
        "_receiver",
        "_requests",
        "_row",
        "_sender",
        "_state",
        "client_id",
        "close_planned",
        "session_expiry_s",
        "version",
    )

    def __init__(self, *, now_ns: int, limits: SessionLimits = _DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._codec_limits: CodecLimits = msgspec.structs.replace(
            limits.packet, packet_bytes_max=min(limits.connect_bytes_max, limits.packet.packet_bytes_max)
        )
        self._state = State.AWAIT_CONNECT
        self._row = TABLE[State.AWAIT_CONNECT]
        self._events: list[Event] = []
        self._output = Output(limits.outgoing_bytes_max)
        self._receiver = Receiver(limits, self._output, self._events)
        self._sender = Sender(limits, self._output, self._events)
        self._connect: Connect | None = None
        self._partial: bytearray | None = None
        self._partial_since_ns = now_ns
        self._needed = 0
        self._held = False
        self._now_ns = now_ns
        self._due_since_ns = now_ns
        self._heard_ns = now_ns
        self._keep_alive_ns = 0
        self._requests: dict[int, tuple[int, int]] | None = None
        self._disconnect_properties: Properties | None = None
        self.client_id = ""
        self.version = 0
        self.session_expiry_s = 0
        self.close_planned = False

    # -- bytes in -------------------------------------------------------------------------------------------------

    def receive_bytes(self, data: bytes, now_ns: int) -> None:
        """Bytes from the peer; any split of the stream gives the same events."""
        self._now_ns = now_ns
        if self._state is State.CLOSED:
            return
        partial = self._partial
        if partial is not None:
            partial += data
            if self._held:
                if len(partial) > self._limits.held_bytes_max + self._codec_limits.packet_bytes_max:
                    self._fail(0x97, "§4.13", "too much was sent while the connection was told to wait")
                return
            if len(partial) < self._needed:
                return
            data = bytes(partial)
            self._partial = None
        elif self._held:
            self._partial = bytearray(data)
            return
        self._take(data, goes_on=partial is not None)

    def _take(self, data: bytes, goes_on: bool) -> None:
        """All whole packets of ``data``; ``goes_on``: its first packet had begun in an earlier call."""
        pos, end = 0, len(data)
        events, output = self._events, self._output
        self._held = self._held or output.is_flooded()
        version, limits = self.version, self._codec_limits
        while pos < end and not self._held:
            entry = self._row[data[pos] >> 4]
            if entry.__class__ is not str:
                illegal = cast("Illegal", entry)
                self._fail(illegal.reason, illegal.clause, illegal.detail)
                return
            if entry is IGNORE:
                return
            packet, stop = parse(data, pos, version, limits, end)
            if packet.__class__ is Publish:
                pos = stop
                if packet.qos or packet.properties is not None:
                    self._publish(packet)
                    if output.size_bytes > output.bytes_max and output.is_flooded():
                        self._held = True
                else:
                    events.append(Published(packet, 0))
                continue
            if packet is NEED_MORE:
                if pos or not goes_on:
                    self._partial_since_ns = self._now_ns
                self._needed = stop - pos
                break
            if packet.__class__ is Failure:
                self._malformed(packet)
                return
            pos = stop
            getattr(self, "_" + entry)(packet)
            if output.is_flooded():
                self._held = True
            version, limits = self.version, self._codec_limits
        if pos:
            self._heard_ns = self._now_ns  # [MQTT-3.1.2-22] counts packets, not bytes
        if pos < end and self._state is not State.CLOSED:
            self._partial = bytearray(data[pos:] if pos else data)

    def _resume_reading(self) -> None:
        """After an answer or a write: whatever was held back may now be read."""
        if not self._held or self._state is not State.OPEN or self._is_blocked():
            return
        self._held = False
        self._heard_ns = self._now_ns  # the silence while we did not read was ours
        if self._partial is not None:
            data = bytes(self._partial)
            self._partial = None
            self._take(data, goes_on=False)

    def _is_blocked(self) -> bool:
        limits = self._limits
        return (
            (self.version != _V5 and self._receiver.unanswered_count >= limits.receive_maximum)
            or (self._requests is not None and len(self._requests) >= limits.requests_max)
            or self._output.is_flooded()
        )

    @property
    def wants_bytes(self) -> bool:
        """False: stop reading this connection until the broker has answered or the output is taken."""
        return not self._held and self._state is not State.CLOSED

    # -- faults and the end ---------------------------------------------------------------------------------------

    def _malformed(self, failure: Failure) -> None:
        if self._state is State.AWAIT_CONNECT:
            self._answer_bad_connect(failure)
        self._fail(failure.reason, failure.clause, failure.detail)

    def _answer_bad_connect(self, failure: Failure) -> None:
        """CONNACK where the standard foresees one; a peer that does not speak MQTT hears nothing [MQTT-3.1.2-1]."""
        if failure.clause == "MQTT-3.1.2-2":
            self._set_version(_V5 if failure.version > _V5 else 4)
        elif failure.version == _V5 and failure.clause != "MQTT-3.1.2-1":
            self._set_version(_V5)
        else:
            return  # 3.1.1 MQTT-3.1.4-1: closed without CONNACK
        self._put_connack(ConnAck(False, failure.reason if failure.reason in ALLOWED[2] else 0x80))

    def _fail(self, reason: int, clause: str, detail: str, cause: Cause = Cause.FAULT) -> None:
        self._events.append(Failed(reason, clause, detail))
        if self._state is State.OPEN and self.version == _V5:
            self._put_disconnect(reason, detail, None)
        self._end(cause, reason, with_will=True)

    def _end(self, cause: Cause, reason: int, with_will: bool) -> None:
        if self._state is State.CLOSED:
            return
        connect = self._connect
        was_open = self._state is State.OPEN
        self._state = State.CLOSED
        self._row = TABLE[State.CLOSED]
        self._partial = None
        self.close_planned = True
        if connect is not None:
            will = connect.will if with_will and was_open else None  # [MQTT-3.1.2-8] [MQTT-3.14.4-3]
            self._events.append(Disconnected(cause, reason, will, self.session_expiry_s, self._disconnect_properties))

    def connection_lost(self, now_ns: int) -> None:
        """The transport is gone. The will is due, unless the client had said goodbye."""
        self._now_ns = now_ns
        self._end(Cause.LOST, 0x80, with_will=True)

    def disconnect(
        self, reason: int = 0x00, *, reason_string: str | None = None, properties: Properties | None = None
    ) -> bool:
        """Ends the connection from our side: DISCONNECT in 5.0, just the end in 3.1.1, which has no word for it."""
        if self._state is State.CONNECTING:  # [MQTT-3.14.0-1]
            return self.refuse(reason if reason >= 0x80 else 0x88, reason_string=reason_string)
        if self._state is not State.OPEN:
            self._end(Cause.SERVER, reason, with_will=False)
            return False
        if self.version == _V5:
            self._put_disconnect(reason, reason_string, properties)
        self._end(Cause.SERVER, reason, with_will=True)
        return True

    def _put_disconnect(self, reason: int, reason_string: str | None, properties: Properties | None) -> None:
        reason = reason if reason in ALLOWED[14] else 0x82
        said: Properties = {**(properties or {})}
        if reason_string:
            said["reason_string"] = reason_string[:256].replace("\x00", "")
        data = build(Disconnect(reason, said), _V5)
        if len(data) > self._output.packet_bytes_max:  # [MQTT-3.14.2-3]
            data = build(Disconnect(reason), _V5)
        self._output.put(data)

    # -- connect --------------------------------------------------------------------------------------------------

    def _set_version(self, version: int) -> None:
        self.version = self._output.version = version

    def _connect_packet(self, packet: Connect) -> None:
        self._set_version(packet.version)
        self.client_id = packet.client_id
        self._connect = packet
        properties = packet.properties or {}
        if packet.version == _V5:
            self.session_expiry_s = properties.get("session_expiry_interval", 0)
            self._output.explains = properties.get("request_problem_information", 1) == 1
        else:
            self.session_expiry_s = 0 if packet.clean_start else _NEVER_EXPIRES_S
        self._output.packet_bytes_max = properties.get("maximum_packet_size", self._output.packet_bytes_max)
        if "authentication_method" in properties:
            self._refuse_unasked(0x8C, "MQTT-4.12.0-1", "enhanced authentication is not offered")
        elif not packet.client_id and packet.version == 4 and not packet.clean_start:
            self._refuse_unasked(0x85, "3.1.1 MQTT-3.1.3-8", "an empty client identifier needs clean session")
        else:
            self._state = State.CONNECTING
            self._row = TABLE[State.CONNECTING]
            self._held = True
            self._events.append(Connected(packet))

    def _refuse_unasked(self, reason: int, clause: str, detail: str) -> None:
        self._put_connack(ConnAck(False, reason, {"reason_string": detail} if self.version == _V5 else None))
        self._connect = None
        self._fail(reason, clause, detail)

    def accept(
        self,
        now_ns: int,
        *,
        state: SessionState | None = None,
        assigned_client_id: str | None = None,
        server_keep_alive_s: int | None = None,
        session_expiry_s: int | None = None,
        properties: Properties | None = None,
    ) -> bool:
        """CONNACK with success; ``state`` is the session that goes on (session present), None a new one.

        ``assigned_client_id`` is needed for an empty client id in 5.0 [MQTT-3.2.2-16]. ``session_expiry_s`` shortens
        what the client asked. ``properties`` are added to those the session itself sets.
        """
        connect = self._connect
        if self._state is not State.CONNECTING or connect is None:
            return False
        if state is not None and connect.clean_start:
            raise InvalidArgument("a clean start cannot go on with an earlier session [MQTT-3.2.2-2]")
        if not connect.client_id and assigned_client_id is None:
            raise InvalidArgument("an empty client identifier needs an assigned one [MQTT-3.1.3-6]")
        self._now_ns = self._heard_ns = now_ns
        asked = connect.properties or {}
        limits = self._limits
        keep_alive_s = connect.keep_alive_s if server_keep_alive_s is None else server_keep_alive_s
        said: Properties = {**(properties or {})}
        if self.version == _V5:
            if limits.receive_maximum < 0xFFFF:
                said["receive_maximum"] = limits.receive_maximum
            said["maximum_packet_size"] = limits.packet.packet_bytes_max
            if limits.topic_aliases_in_max:
                said["topic_alias_maximum"] = limits.topic_aliases_in_max
            if server_keep_alive_s is not None and server_keep_alive_s != connect.keep_alive_s:
                said["server_keep_alive"] = server_keep_alive_s
            if session_expiry_s is not None and session_expiry_s < self.session_expiry_s:
                said["session_expiry_interval"] = session_expiry_s
        else:
            keep_alive_s = connect.keep_alive_s  # 3.1.1 has no way to tell another one
        if session_expiry_s is not None:
            self.session_expiry_s = min(session_expiry_s, self.session_expiry_s)
        if assigned_client_id is not None:
            self.client_id = assigned_client_id
            said["assigned_client_identifier"] = assigned_client_id
        self._keep_alive_ns = keep_alive_s * _SECOND_NS * 3 // 2  # [MQTT-3.1.2-22]
        self._codec_limits = limits.packet
        if not self._put_connack(ConnAck(state is not None, 0, said if self.version == _V5 else None)):
            self._end(Cause.SERVER, 0x95, with_will=False)  # [MQTT-3.1.2-24]: it takes no packet that says what it must
            return False
        self._state = State.OPEN
        self._row = TABLE[State.OPEN]
        if state is not None:
            self._receiver.begin(state.received)
        self._sender.begin(asked.get("receive_maximum", 0xFFFF), asked.get("topic_alias_maximum", 0), state)
        self._sender.pump(now_ns)
        self._resume_reading()
        return True

    def refuse(self, reason: int, *, reason_string: str | None = None, properties: Properties | None = None) -> bool:
        """CONNACK with an error; the connection ends [MQTT-3.2.2-7]."""
        if self._state is not State.CONNECTING:
            return False
        said: Properties = {**(properties or {})}
        if reason_string:
            said["reason_string"] = reason_string
        self._put_connack(ConnAck(False, reason, said if self.version == _V5 else None))
        self._end(Cause.SERVER, reason, with_will=False)
        return True

    def _put_connack(self, packet: ConnAck) -> bool:
        if self.version != _V5:
            self._output.put(build(ConnAck(packet.session_present, connack_3(packet.reason)), 4))
            return True
        data = build(packet, _V5)
        if len(data) > self._output.packet_bytes_max:  # [MQTT-3.2.2-19] [MQTT-3.2.2-20]
            kept = {k: v for k, v in (packet.properties or {}).items() if k not in ("reason_string", "user_properties")}
            data = build(ConnAck(packet.session_present, packet.reason, cast("Properties", kept)), _V5)
            if len(data) > self._output.packet_bytes_max:
                return False
        self._output.put(data)
        return True

    # -- messages from the client ---------------------------------------------------------------------------------

    def _publish(self, packet: Publish) -> None:
        if packet.qos and self._requests and packet.packet_id in self._requests:
            self._fail(0x82, "MQTT-2.2.1-3", f"packet identifier {packet.packet_id} is in use")
            return
        self._fail_if(self._receiver.publish(packet))
        if self._receiver.unanswered_count >= self._limits.receive_maximum and self._is_blocked():
            self._held = True

    def _fail_if(self, illegal: Illegal | None) -> None:
        if illegal is not None:
            self._fail(illegal.reason, illegal.clause, illegal.detail)

    def ack_publish(
        self,
        handle: int,
        reason: int = 0x00,
        *,
        reason_string: str | None = None,
        user_properties: list[tuple[str, str]] | None = None,
        silently: bool = False,
    ) -> bool:
        """The broker's answer to a `Published` with QoS 1 or 2: PUBACK or PUBREC, once the message is committed.

        ``reason`` ≥ 0x80 refuses it. MQTT 3.1.1 has no word for that: the connection is ended, so that nothing
        refused is taken for stored; with ``silently`` it is acknowledged all the same (3.1.1 §3.3.5 allows both).
        """
        receiver = self._receiver
        if not receiver.is_pending(handle):
            return False
        if self._state is not State.OPEN:
            if reason < 0x80:
                receiver.record_unheard(handle)
            else:
                receiver.refuse_unheard(handle)
            return False
        if self.version != _V5:
            if reason >= 0x80 and not silently:
                self._end(Cause.SERVER, reason, with_will=True)  # 3.1.1 MQTT-3.3.5-2
                receiver.refuse_unheard(handle)
                return True
            reason = 0
        receiver.ack(handle, reason, reason_string, user_properties)
        if self._held:
            self._resume_reading()
        return True

    def _pubrel(self, packet: PubRel) -> None:
        self._fail_if(self._receiver.pubrel(packet))

    def complete_publish(self, packet_id: int) -> bool:
        """PUBCOMP for a `Released`, once the release is committed; the identifier is free again."""
        return self._state is State.OPEN and self._receiver.complete(packet_id)

    # -- messages to the client -----------------------------------------------------------------------------------

    def send_publish(
        self,
        message: OutgoingMessage,
        qos: int,
        now_ns: int,
        *,
        retain: bool = False,
        subscription_identifiers: tuple[int, ...] = (),
        token: Any = None,
        packet_id: int = 0,
    ) -> Sent:
        """One message to this client. ``token`` comes back with its `Recorded`, `Acked` or `Dropped`.

        ``packet_id``: chosen by a broker that stores it with the message, so that both come back after a restart; it
        must be free. 0: chosen here.
        """
        if self._state is not State.OPEN:
            return Sent.CLOSED
        return self._sender.send(message, qos, now_ns, retain, subscription_identifiers, token, packet_id)

    def _puback(self, packet: PubAck) -> None:
        self._after_ack(self._sender.puback(packet))

    def _pubrec(self, packet: PubRec) -> None:
        self._after_ack(self._sender.pubrec(packet, self._limits.holds_qos2))

    def _pubcomp(self, packet: PubComp) -> None:
        self._after_ack(self._sender.pubcomp(packet))

    def _after_ack(self, illegal: Illegal | None) -> None:
        if illegal is not None:
            self._fail_if(illegal)
        elif self._sender.has_waiting():
            self._sender.pump(self._now_ns)

    def release_publish(self, packet_id: int) -> bool:
        """PUBREL for a `Recorded`, once that is committed."""
        return self._state is State.OPEN and self._sender.release(packet_id)

    @property
    def unanswered_count(self) -> int:
        """Publishes the broker has not answered yet.

        At the end of a connection wait for them before ``export_state``: a QoS 2 message that is stored after the
        client has come back would be stored twice.
        """
        return self._receiver.unanswered_count

    @property
    def window_free(self) -> int:
        """How many more QoS 1 and 2 messages would be sent at once."""
        return self._sender.window_free()

    @property
    def has_room(self) -> bool:
        """Whether one more message would leave at once, whatever its QoS."""
        return self._state is State.OPEN and not self._output.is_full() and self._sender.window_free() > 0

    @property
    def inflight_count(self) -> int:
        """Messages sent and not yet acknowledged."""
        return self._sender.inflight_count()

    @property
    def queued_count(self) -> int:
        """Messages waiting for the client's window."""
        return self._sender.queued_count()

    @property
    def dropped_count(self) -> int:
        """Messages this connection did not take because it was too slow."""
        return self._sender.dropped_count

    # -- subscriptions, ping, goodbye -----------------------------------------------------------------------------

    def _subscribe(self, packet: Subscribe) -> None:
        if self._request(packet.packet_id, 8, len(packet.subscriptions)):
            self._events.append(Subscribed(packet))

    def _unsubscribe(self, packet: Unsubscribe) -> None:
        if self._request(packet.packet_id, 10, len(packet.topic_filters)):
            self._events.append(Unsubscribed(packet))

    def _request(self, packet_id: int, kind: int, count: int) -> bool:
        if self._requests is None:
            self._requests = {}
        if packet_id in self._requests or self._receiver.uses(packet_id):
            self._fail(0x82, "MQTT-2.2.1-3", f"packet identifier {packet_id} is in use")
            return False
        self._requests[packet_id] = (kind, count)
        if len(self._requests) >= self._limits.requests_max:
            self._held = True
        return True

    def send_suback(
        self,
        packet_id: int,
        reasons: Sequence[int],
        *,
        reason_string: str | None = None,
        user_properties: list[tuple[str, str]] | None = None,
    ) -> bool:
        """SUBACK: one reason per filter, in order [MQTT-3.8.4-6] [MQTT-3.9.3-1]."""
        if not self._answer(packet_id, 8, len(reasons)):
            return False
        self._output.put_explained(SubAck(packet_id, tuple(reasons)), reason_string, user_properties)
        self._resume_reading()
        return True

    def send_unsuback(
        self,
        packet_id: int,
        reasons: Sequence[int],
        *,
        reason_string: str | None = None,
        user_properties: list[tuple[str, str]] | None = None,
    ) -> bool:
        """UNSUBACK: one reason per filter, in order [MQTT-3.11.3-1]; 3.1.1 does not send them."""
        if not self._answer(packet_id, 10, len(reasons)):
            return False
        self._output.put_explained(UnsubAck(packet_id, tuple(reasons)), reason_string, user_properties)
        self._resume_reading()
        return True

    def _answer(self, packet_id: int, kind: int, count: int) -> bool:
        asked = self._requests.get(packet_id) if self._requests else None
        if self._state is not State.OPEN or self._requests is None or asked is None or asked[0] != kind:
            return False
        if asked[1] != count:
            raise InvalidArgument(f"{count} reason codes for {asked[1]} topic filters [MQTT-3.8.4-6]")
        del self._requests[packet_id]
        return True

    def _pingreq(self, packet: Packet) -> None:
        self._output.put(b"\xd0\x00")  # [MQTT-3.12.4-1]

    def _disconnect(self, packet: Disconnect) -> None:
        properties = packet.properties
        if properties is not None and "session_expiry_interval" in properties:
            if not self.session_expiry_s and properties["session_expiry_interval"]:
                self._fail(0x82, "§3.14.2.2.2", "a session that was to end with the connection cannot be kept now")
                return
            self.session_expiry_s = properties["session_expiry_interval"]
        self._disconnect_properties = properties
        # Reason 0 discards the will [MQTT-3.14.4-3]; every other one, 0x04 above all, publishes it.
        self._end(Cause.CLIENT, packet.reason, with_will=packet.reason != 0)

    # -- out, time, state -----------------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """What happened since the last call."""
        taken = self._events[:]
        self._events.clear()
        return taken

    def outgoing(self) -> list[bytes]:
        """The buffers to write, in order. Call it when the transport can take them, and only then."""
        if not self._output.buffers:
            return []
        taken = self._output.take()
        if self._state is State.OPEN:
            if self._sender.has_waiting():
                self._sender.pump(self._now_ns)
            if self._held:
                self._resume_reading()
        return taken

    def next_due_ns(self) -> int | None:
        """When ``on_due`` has something to do; None: not before something else happens."""
        match self._state:
            case State.AWAIT_CONNECT:
                return self._due_since_ns + self._limits.connect_deadline_ns
            case State.OPEN:
                keep_alive = self._keep_alive_due_ns()
                packet = self._packet_due_ns()
                if keep_alive is None or (packet is not None and packet < keep_alive):
                    return packet
                return keep_alive
            case _:
                return None

    def _keep_alive_due_ns(self) -> int | None:
        """Not while we do not read because the broker owes answers; a client that does not read itself is not alive."""
        if not self._keep_alive_ns or (self._held and not self._output.is_full()):
            return None
        return self._heard_ns + self._keep_alive_ns

    def _packet_due_ns(self) -> int | None:
        if self._partial is None or self._held:
            return None
        limits = self._limits
        return self._partial_since_ns + limits.packet_grace_ns + self._needed * _SECOND_NS // limits.packet_rate_min

    def on_due(self, now_ns: int) -> None:
        """The timer: a CONNECT that never came, a silent client, a packet that never ended."""
        self._now_ns = now_ns
        due_ns = self.next_due_ns()
        if due_ns is None or now_ns < due_ns:
            return
        if self._state is State.AWAIT_CONNECT:
            self._fail(0x8D, "§4.13", "no CONNECT in time")
        elif (keep_alive := self._keep_alive_due_ns()) is not None and now_ns >= keep_alive:
            self._fail(0x8D, "MQTT-3.1.2-22", "nothing heard for 1.5 keep-alive intervals", Cause.KEEP_ALIVE)
        else:
            self._fail(0x96, "§4.13", "a packet was begun and not finished in time")

    def export_state(self) -> SessionState:
        """What the client's next connection needs; also callable while this one is open."""
        inflight, queued, last_packet_id = self._sender.export()
        return SessionState(inflight, queued, self._receiver.export(), last_packet_id)

    @property
    def state(self) -> State:
        """Where the connection stands."""
        return self._state
