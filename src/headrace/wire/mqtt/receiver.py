"""Messages from one client: packet identifiers, QoS 1 and 2 as the receiver (§4.3), topic aliases.

    QoS 1   PUBLISH ──► PENDING ── ack ──► gone, PUBACK sent
    QoS 2   PUBLISH ──► PENDING ── ack ──► RECORDED, PUBREC sent
            PUBREL  ──► RELEASING ── complete ──► gone, PUBCOMP sent

`ack` is the broker saying that the message is committed. Until then a message is the client's, and comes again after a
reconnect; RECORDED and RELEASING identifiers go into the session's state. Faults come back as `Illegal` values.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from headrace.wire.mqtt.builder import build
from headrace.wire.mqtt.events import Event, Published, Released
from headrace.wire.mqtt.packets import Properties, PubAck, PubComp, Publish, PubRec, PubRel
from headrace.wire.mqtt.states import Illegal

if TYPE_CHECKING:
    from headrace.wire.mqtt.limits import SessionLimits
    from headrace.wire.mqtt.output import Output

__all__ = ["Receiver", "Step"]

_V5: Final = 5


class Step(IntEnum):
    """Where an identifier of a message from the client stands."""

    PENDING_1 = 1
    PENDING_2 = 2
    RECORDED = 3
    RELEASING = 4


class Receiver:
    """The inbound half of a session."""

    __slots__ = ("_aliases", "_events", "_limits", "_output", "_resumed", "_steps", "unanswered_count")

    def __init__(self, limits: SessionLimits, output: Output, events: list[Event]) -> None:
        self._limits = limits
        self._output = output
        self._events = events
        self._steps: dict[int, Step] = {}
        self._resumed: set[int] | None = None
        self._aliases: dict[int, str] | None = None
        self.unanswered_count = 0

    def begin(self, received: list[int]) -> None:
        """The connection is accepted; ``received`` are the identifiers an earlier one left."""
        if received:
            self._steps = dict.fromkeys(received, Step.RECORDED)
            self._resumed = set(received)

    def uses(self, packet_id: int) -> bool:
        return packet_id in self._steps

    def publish(self, packet: Publish) -> Illegal | None:
        properties = packet.properties
        if properties is not None:
            illegal = self._read_properties(packet, properties)
            if illegal is not None:
                return illegal
        qos = packet.qos
        if not qos:
            self._events.append(Published(packet, 0))
            return None
        packet_id = packet.packet_id
        known = self._steps.get(packet_id)
        if known is not None:
            return self._publish_again(packet, known)
        receive_maximum = self._limits.receive_maximum
        resumed = len(self._resumed) if self._resumed else 0
        if self._output.version == _V5 and len(self._steps) - resumed >= receive_maximum:
            return Illegal(0x93, "MQTT-3.3.4-7", f"more than {receive_maximum} unacknowledged publishes")
        self._steps[packet_id] = Step.PENDING_1 if qos == 1 else Step.PENDING_2
        self.unanswered_count += 1
        self._events.append(Published(packet, packet_id))
        return None

    def _publish_again(self, packet: Publish, known: Step) -> Illegal | None:
        """An identifier that is in use: a retransmission, or the client's mistake."""
        packet_id = packet.packet_id
        if known is Step.PENDING_1 and packet.qos == 1 and packet.dup:
            return None  # the acknowledgement that is on its way answers both
        if known is Step.PENDING_2 and packet.qos == 2:
            return None  # the same [MQTT-4.3.3-10]
        if known is Step.RECORDED and packet.qos == 2:
            self._output.put(build(PubRec(packet_id), self._output.version))  # [MQTT-4.3.3-10]
            return None
        return Illegal(0x82, "MQTT-2.2.1-3", f"packet identifier {packet_id} is in use")

    def _read_properties(self, packet: Publish, properties: Properties) -> Illegal | None:
        if "subscription_identifiers" in properties:
            return Illegal(0x82, "MQTT-3.3.4-6", "a client's PUBLISH with a subscription identifier")
        alias = properties.pop("topic_alias", 0)
        if not alias:
            return None
        aliases_max = self._limits.topic_aliases_in_max
        if alias > aliases_max:
            return Illegal(0x94, "MQTT-3.3.2-9", f"topic alias {alias}; at most {aliases_max}")
        if self._aliases is None:
            self._aliases = {}
        if packet.topic:
            self._aliases[alias] = packet.topic
        else:
            topic = self._aliases.get(alias)
            if topic is None:
                return Illegal(0x82, "§3.3.2.3.4", f"topic alias {alias} was never given a topic")
            packet.topic = topic
        if not properties:
            packet.properties = None
        return None

    def ack(
        self,
        handle: int,
        reason: int,
        reason_string: str | None,
        user_properties: list[tuple[str, str]] | None,
    ) -> None:
        """PUBACK or PUBREC for an identifier that `is_pending`."""
        self.unanswered_count -= 1
        kind: type[PubAck | PubRec] = PubAck
        first = b"\x40\x02"
        if self._steps[handle] is Step.PENDING_2:
            kind, first = PubRec, b"\x50\x02"
        if kind is PubRec and reason < 0x80:
            self._steps[handle] = Step.RECORDED
        else:  # after an error the identifier is free as well [MQTT-4.3.3-9]
            del self._steps[handle]
        if not (reason or reason_string or user_properties):
            self._output.put(first + handle.to_bytes(2, "big"))
        else:
            self._output.put_explained(kind(handle, reason), reason_string, user_properties)

    def is_pending(self, handle: int) -> bool:
        """Whether the broker owes an answer for it."""
        return self._steps.get(handle, Step.RELEASING) <= Step.PENDING_2

    def record_unheard(self, handle: int) -> None:
        """Committed after the end of the connection: the client will ask about it next time."""
        if self._steps[handle] is Step.PENDING_2:
            self._steps[handle] = Step.RECORDED
        else:
            del self._steps[handle]
        self.unanswered_count -= 1

    def refuse_unheard(self, handle: int) -> None:
        """Refused after the end of the connection: the client will send it again."""
        del self._steps[handle]
        self.unanswered_count -= 1

    def pubrel(self, packet: PubRel) -> Illegal | None:
        packet_id = packet.packet_id
        known = self._steps.get(packet_id)
        if known is None:  # §3.7.2.1; 3.1.1 §4.3.3 has a PUBCOMP for every PUBREL
            self._output.put(build(PubComp(packet_id, 0x92), self._output.version))
        elif known is Step.RECORDED:
            self._steps[packet_id] = Step.RELEASING
            self._events.append(Released(packet_id))
            if not self._limits.holds_qos2:
                self.complete(packet_id)
        elif known is not Step.RELEASING:
            return Illegal(0x82, "MQTT-4.3.3-4", f"PUBREL for {packet_id} before its PUBREC")
        return None

    def complete(self, packet_id: int) -> bool:
        if self._steps.get(packet_id) is not Step.RELEASING:
            return False
        del self._steps[packet_id]
        if self._resumed:
            self._resumed.discard(packet_id)
        self._output.put(b"\x70\x02" + packet_id.to_bytes(2, "big"))  # [MQTT-4.3.3-11] [MQTT-4.3.3-12]
        return True

    def export(self) -> list[int]:
        return [packet_id for packet_id, step in self._steps.items() if step >= Step.RECORDED]
