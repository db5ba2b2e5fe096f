"""What one connection may cost. Every number's reason stands beside its name in ``headrace.limits``."""

from __future__ import annotations

import msgspec

from headrace import limits as named
from headrace.wire.mqtt.fields import CodecLimits

__all__ = ["SessionLimits"]


class SessionLimits(msgspec.Struct, frozen=True):
    """Given to every session of a front-end; one instance is shared by all."""

    packet: CodecLimits = CodecLimits()
    connect_bytes_max: int = named.MQTT_CONNECT_BYTES_MAX
    connect_deadline_ns: int = named.MQTT_CONNECT_DEADLINE_NS
    packet_grace_ns: int = named.MQTT_PACKET_GRACE_NS
    packet_rate_min: int = named.MQTT_PACKET_RATE_MIN
    receive_maximum: int = named.MQTT_RECEIVE_MAXIMUM
    inflight_max: int = named.MQTT_INFLIGHT_MAX
    topic_aliases_in_max: int = named.MQTT_TOPIC_ALIASES_IN_MAX
    topic_aliases_out_max: int = named.MQTT_TOPIC_ALIASES_OUT_MAX
    queue_messages_max: int = named.MQTT_QUEUE_MESSAGES_MAX
    queue_bytes_max: int = named.MQTT_QUEUE_BYTES_MAX
    outgoing_bytes_max: int = named.MQTT_OUTGOING_BYTES_MAX
    requests_max: int = named.MQTT_REQUESTS_MAX
    held_bytes_max: int = named.MQTT_HELD_BYTES_MAX
    holds_qos2: bool = False
    """True: PUBREL and PUBCOMP wait for ``release_publish`` and ``complete_publish`` (a broker that stores its sessions
    must have stored the step before the other side hears of it). False: they are sent at once."""
