"""Encoded bytes that the socket has not taken yet, and what the client said it will take."""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.wire.mqtt.builder import build
from headrace.wire.mqtt.fields import VARINT_MAX
from headrace.wire.mqtt.packets import Properties, PubAck, PubComp, PubRec, SubAck, UnsubAck

__all__ = ["Output"]

_V5: Final = 5


class Output:
    """Shared by the two halves of a session, which write into it in the order of the wire."""

    __slots__ = ("buffers", "bytes_max", "explains", "packet_bytes_max", "size_bytes", "version")

    def __init__(self, bytes_max: int) -> None:
        self.buffers: list[bytes] = []
        self.size_bytes = 0
        self.bytes_max = bytes_max
        self.packet_bytes_max = VARINT_MAX + 5
        self.version = 0
        self.explains = True
        """False: the client wants no reason strings or user properties with acknowledgements [MQTT-3.1.2-29]."""

    def is_full(self) -> bool:
        return self.size_bytes > self.bytes_max

    def is_flooded(self) -> bool:
        """Twice full: messages stop at full, so this is a client that makes us answer and never reads the answers."""
        return self.size_bytes > 2 * self.bytes_max

    def put(self, data: bytes) -> None:
        self.buffers.append(data)
        self.size_bytes += len(data)

    def take(self) -> list[bytes]:
        taken = self.buffers
        self.buffers = []
        self.size_bytes = 0
        return taken

    def put_explained(
        self,
        packet: PubAck | PubRec | PubComp | SubAck | UnsubAck,
        reason_string: str | None,
        user_properties: list[tuple[str, str]] | None,
    ) -> None:
        """With reason string and user properties if the client wants them and they fit its packets [MQTT-3.4.2-2]."""
        if self.version == _V5 and self.explains and (reason_string or user_properties):
            said: Properties = {}
            if reason_string:
                said["reason_string"] = reason_string
            if user_properties:
                said["user_properties"] = user_properties
            data = build(msgspec.structs.replace(packet, properties=said), _V5)
            if len(data) <= self.packet_bytes_max:
                self.put(data)
                return
        self.put(build(packet, self.version))
