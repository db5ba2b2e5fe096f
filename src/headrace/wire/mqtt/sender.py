"""Messages to one client: the window, the queue behind it, QoS 1 and 2 as the sender (§4.3, §4.4, §4.9).

    QoS 1   PUBLISH ──► SENT ── PUBACK ──► gone
    QoS 2   PUBLISH ──► SENT ── PUBREC ──► RECORDED ── release ──► RELEASED ── PUBCOMP ──► gone
                          └── PUBREC with an error ──► gone [MQTT-4.4.0-2]

A message is in exactly one place: the output (QoS 0), the queue, or `_inflight` under its packet identifier. The
window is the smaller of the client's Receive Maximum [MQTT-3.3.4-9] and our own limit; everything but PUBLISH ignores
it [MQTT-3.3.4-10]. Above the output's limit QoS 0 is dropped and the rest waits in the queue, which is bounded in
messages and bytes. Order is kept per QoS [MQTT-4.6.0-6]. After a resume, what was sent is sent again first, in its
old order [MQTT-4.4.0-1].
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from headrace.wire.mqtt.builder import build
from headrace.wire.mqtt.events import Acked, Dropped, Event, Recorded
from headrace.wire.mqtt.packets import PubAck, PubComp, PubRec, PubRel
from headrace.wire.mqtt.session_state import Outbound, SessionState, Stage
from headrace.wire.mqtt.states import Illegal

if TYPE_CHECKING:
    from headrace.wire.mqtt.fanout import OutgoingMessage
    from headrace.wire.mqtt.limits import SessionLimits
    from headrace.wire.mqtt.output import Output

__all__ = ["Sender", "Sent"]

_V5: Final = 5
_ALIASED_TOPIC_MIN: Final = 8
"""An alias costs three bytes a message; a shorter topic is not worth one."""


class Sent(Enum):
    """What became of a message that was given to ``send_publish``."""

    SENT = "on its way"
    QUEUED = "waiting for the client's window"
    DROPPED = "QoS 0, and the client does not read fast enough"
    QUEUE_FULL = "not taken: the queue is full"
    TOO_LARGE = "larger than the client's maximum packet size; counts as delivered [MQTT-3.1.2-25]"
    EXPIRED = "its expiry had passed [MQTT-3.3.2-5]"
    CLOSED = "the connection is over"


class Sender:
    """The outbound half of a session. Faults of the peer come back as `Illegal` values."""

    __slots__ = (
        "_aliases",
        "_aliases_max",
        "_events",
        "_inflight",
        "_last_packet_id",
        "_limits",
        "_output",
        "_queue",
        "_queue_bytes",
        "_resend",
        "_window",
        "dropped_count",
        "stray_count",
    )

    def __init__(self, limits: SessionLimits, output: Output, events: list[Event]) -> None:
        self._limits = limits
        self._output = output
        self._events = events
        self._window = 0
        self._aliases_max = 0
        self._aliases: dict[str, int] | None = None
        self._inflight: dict[int, Outbound] = {}
        self._queue: deque[Outbound] | None = None  # made when first needed: most clients never queue
        self._queue_bytes = 0
        self._resend: deque[int] | None = None
        self._last_packet_id = 0
        self.dropped_count = 0
        self.stray_count = 0

    def begin(self, receive_maximum: int, aliases_max: int, state: SessionState | None) -> None:
        """The connection is accepted: take over what an earlier one left, and send it again."""
        self._window = min(receive_maximum, self._limits.inflight_max)
        self._aliases_max = min(aliases_max, self._limits.topic_aliases_out_max)
        if state is None:
            return
        self._last_packet_id = state.last_packet_id
        self._inflight = {entry.packet_id: entry for entry in state.inflight}
        if state.queued:
            self._queue = deque(state.queued)
            self._queue_bytes = sum(entry.message.size_bytes for entry in state.queued if entry.message is not None)
        again: deque[int] = deque()
        for entry in state.inflight:
            if entry.stage is Stage.SENT:
                again.append(entry.packet_id)
            elif entry.stage is Stage.RELEASED:
                # [MQTT-4.3.3-6]: never PUBLISH again
                self._output.put(build(PubRel(entry.packet_id), self._output.version))
            else:
                self._events.append(Recorded(entry.packet_id, entry.token))
        self._resend = again or None

    # -- messages -------------------------------------------------------------------------------------------------

    def send(
        self,
        message: OutgoingMessage,
        qos: int,
        now_ns: int,
        retain: bool,
        subscription_identifiers: tuple[int, ...],
        token: Any,
        packet_id: int = 0,
    ) -> Sent:
        output = self._output
        if not qos:
            if output.size_bytes > output.bytes_max:
                self.dropped_count += 1
                return Sent.DROPPED
            return self._emit(message, 0, now_ns, retain, False, 0, subscription_identifiers)
        entry = Outbound(message, qos, retain, subscription_identifiers, token, packet_id)
        if self._queue or self._resend or len(self._inflight) >= self._window or output.size_bytes > output.bytes_max:
            return self._enqueue(entry, message)
        return self._start(entry, message, now_ns)

    def _enqueue(self, entry: Outbound, message: OutgoingMessage) -> Sent:
        limits = self._limits
        if self._queue is None:
            self._queue = deque()
        if (
            len(self._queue) >= limits.queue_messages_max
            or self._queue_bytes + message.size_bytes > limits.queue_bytes_max
        ):
            self.dropped_count += 1
            return Sent.QUEUE_FULL
        self._queue.append(entry)
        self._queue_bytes += message.size_bytes
        return Sent.QUEUED

    def _start(self, entry: Outbound, message: OutgoingMessage, now_ns: int) -> Sent:
        inflight = self._inflight
        packet_id = entry.packet_id  # chosen before by a broker that stores its sessions, or now
        if not packet_id:
            packet_id = self._last_packet_id
            while True:  # [MQTT-2.2.1-4]; ends, because the window is smaller than the space
                packet_id = packet_id + 1 if packet_id < 0xFFFF else 1
                if packet_id not in inflight:
                    break
        sent = self._emit(message, entry.qos, now_ns, entry.retain, False, packet_id, entry.subscription_identifiers)
        if sent is Sent.SENT:
            if not entry.packet_id:
                self._last_packet_id = entry.packet_id = packet_id
            entry.stage = Stage.SENT
            inflight[packet_id] = entry
        return sent

    def _emit(
        self,
        message: OutgoingMessage,
        qos: int,
        now_ns: int,
        retain: bool,
        dup: bool,
        packet_id: int,
        subscription_identifiers: tuple[int, ...],
    ) -> Sent:
        expiry_s = None
        if message.expires_at_ns is not None:
            expiry_s = message.seconds_left(now_ns)
            if expiry_s == -1:
                if not dup:
                    return Sent.EXPIRED
                expiry_s = 0  # a message once sent is completed whatever its expiry [MQTT-4.3.3-7]
        alias, is_new = 0, False
        if self._aliases_max:
            alias, is_new = self._alias(message.topic)
        frames = message.frames(
            self._output.version,
            qos,
            retain=retain,
            dup=dup,
            packet_id=packet_id,
            subscription_identifiers=subscription_identifiers,
            expiry_s=expiry_s,
            alias=alias,
            send_topic=is_new or not alias,
        )
        size_bytes = len(frames[0]) if len(frames) == 1 else len(frames[0]) + len(frames[1])
        if size_bytes > self._output.packet_bytes_max:  # [MQTT-3.1.2-24]
            if is_new and self._aliases is not None:
                del self._aliases[message.topic]
            return Sent.TOO_LARGE
        self._output.buffers += frames
        self._output.size_bytes += size_bytes
        return Sent.SENT

    def _alias(self, topic: str) -> tuple[int, bool]:
        """The alias of a topic, and whether the client has to be told [MQTT-3.1.2-26]; first come, first served."""
        if self._aliases is None:
            self._aliases = {}
        alias = self._aliases.get(topic)
        if alias is not None:
            return alias, False
        if len(self._aliases) >= self._aliases_max or len(topic) < _ALIASED_TOPIC_MIN:
            return 0, False
        alias = self._aliases[topic] = len(self._aliases) + 1
        return alias, True

    def pump(self, now_ns: int) -> None:
        """Sends what may go now: first what has to be sent again, then the queue."""
        output = self._output
        while self._resend and output.size_bytes <= output.bytes_max:
            if len(self._inflight) - len(self._resend) >= self._window:
                return
            entry = self._inflight.get(self._resend.popleft())
            if entry is None or entry.message is None:
                continue
            sent = self._emit(
                entry.message, entry.qos, now_ns, entry.retain, True, entry.packet_id, entry.subscription_identifiers
            )
            if sent is not Sent.SENT:  # the client now takes smaller packets than when it was first sent
                del self._inflight[entry.packet_id]
                self._events.append(Dropped(entry.token, entry.message, 0x95))
        queue = self._queue
        if not queue or self._resend:
            return
        while queue and len(self._inflight) < self._window and output.size_bytes <= output.bytes_max:
            entry = queue.popleft()
            message = entry.message
            if message is None:
                continue
            self._queue_bytes -= message.size_bytes
            sent = self._start(entry, message, now_ns)
            if sent is not Sent.SENT:
                self._events.append(Dropped(entry.token, message, 0x95 if sent is Sent.TOO_LARGE else 0x00))

    # -- acknowledgements -----------------------------------------------------------------------------------------

    def puback(self, packet: PubAck) -> Illegal | None:
        entry = self._inflight.get(packet.packet_id)
        if entry is None:
            self.stray_count += 1
            return None
        if entry.qos != 1:
            return Illegal(0x82, "MQTT-3.3.4-1", f"PUBACK for {packet.packet_id}, which was sent with QoS 2")
        self._finish(packet.packet_id, entry, packet)
        return None

    def pubrec(self, packet: PubRec, hold: bool) -> Illegal | None:
        packet_id = packet.packet_id
        entry = self._inflight.get(packet_id)
        if entry is None:
            self.stray_count += 1
            if packet.reason < 0x80:
                self._output.put(build(PubRel(packet_id, 0x92), self._output.version))  # §3.6.2.1
            return None
        if entry.qos != 2:
            return Illegal(0x82, "MQTT-3.3.4-1", f"PUBREC for {packet_id}, which was sent with QoS 1")
        if packet.reason >= 0x80:
            if entry.stage is not Stage.SENT:
                return Illegal(0x82, "MQTT-4.3.3-5", f"PUBREC with an error for {packet_id} after PUBREC")
            self._finish(packet_id, entry, packet)
        elif entry.stage is Stage.SENT:
            self._forget_resend(packet_id)
            entry.stage = Stage.RECORDED
            entry.message = None
            self._events.append(Recorded(packet_id, entry.token))
            if not hold:
                self.release(packet_id)
        elif entry.stage is Stage.RELEASED:
            self._output.put(build(PubRel(packet_id), self._output.version))
        return None

    def release(self, packet_id: int) -> bool:
        entry = self._inflight.get(packet_id)
        if entry is None or entry.stage is not Stage.RECORDED:
            return False
        entry.stage = Stage.RELEASED
        self._output.put(build(PubRel(packet_id), self._output.version))  # [MQTT-4.3.3-4]
        return True

    def pubcomp(self, packet: PubComp) -> Illegal | None:
        entry = self._inflight.get(packet.packet_id)
        if entry is None:
            self.stray_count += 1
            return None
        if entry.stage is not Stage.RELEASED:
            return Illegal(0x82, "MQTT-4.3.3-5", f"PUBCOMP for {packet.packet_id} before its PUBREL")
        self._finish(packet.packet_id, entry, packet)
        return None

    def _finish(self, packet_id: int, entry: Outbound, packet: PubAck | PubRec | PubComp) -> None:
        del self._inflight[packet_id]
        if self._resend:
            self._forget_resend(packet_id)
        self._events.append(Acked(packet_id, entry.token, packet.reason, packet.properties))

    def _forget_resend(self, packet_id: int) -> None:
        if self._resend and packet_id in self._resend:
            self._resend.remove(packet_id)

    # -- for the broker -------------------------------------------------------------------------------------------

    def inflight_count(self) -> int:
        return len(self._inflight)

    def queued_count(self) -> int:
        return len(self._queue) if self._queue else 0

    def has_waiting(self) -> bool:
        return bool(self._queue or self._resend)

    def window_free(self) -> int:
        return max(0, self._window - len(self._inflight) - self.queued_count())

    def export(self) -> tuple[list[Outbound], list[Outbound], int]:
        return list(self._inflight.values()), list(self._queue or ()), self._last_packet_id
