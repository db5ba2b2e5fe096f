"""What ordinary MQTT may cost the server, all clients together. The reasons stand in ``headrace.limits``."""

from __future__ import annotations

import msgspec

from headrace import limits as named

__all__ = ["Bounds"]


class Bounds(msgspec.Struct, frozen=True):
    sessions_max: int = named.MQTT_SESSIONS_MAX
    session_expiry_s_max: int = named.MQTT_SESSION_EXPIRY_S_MAX
    subscriptions_max: int = named.MQTT_SUBSCRIPTIONS_MAX
    retained_messages_max: int = named.MQTT_RETAINED_MESSAGES_MAX
    retained_bytes_max: int = named.MQTT_RETAINED_BYTES_MAX
    kept_messages_max: int = named.MQTT_QUEUE_MESSAGES_MAX
    kept_bytes_max: int = named.MQTT_QUEUE_BYTES_MAX
    kept_bytes_in_all_max: int = named.MQTT_KEPT_BYTES_MAX
    plans_max: int = named.MATCH_CACHE_TOPICS_MAX
    cuts_slow_clients: bool = True
    """What becomes of a client whose queue is full: its connection ends; or (False) what does not fit is dropped."""
