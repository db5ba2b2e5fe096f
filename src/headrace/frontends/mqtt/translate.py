"""The dictionary between MQTT packets and messages of queues. No rules live here.

    PUBLISH                                   message
    payload                                   value
    user property partition-key               key
    priority, delay, deliver-at, ttl,         the fields of these names
    expires-at, dedup-id, timestamp
    message expiry interval                   ttl, unless that is given
    content type                              header content_type
    correlation data, or correlation-id       header correlation_id
    response topic $queue/<topic>             header reply_to = <topic>; an ordinary one: header mqtt_response_topic
    payload format indicator                  header mqtt_payload_format
    any other user property                   header of that name (of several the last one)

A delivery says it back the same way, and adds message-id, attempt, partition, offset and published-at; a client may
send a delivery's properties as they are: what only the broker can know is left out of a publish.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headrace.batch import Batch, Message
from headrace.client.arguments import instant_ns, priority_number, span_ns
from headrace.errors import InvalidArgument
from headrace.frontends.mqtt.addresses import QUEUE
from headrace.limits import SECOND_NS
from headrace.wire.mqtt import Properties, Publish

__all__ = ["delivery_properties", "group_property", "message_of", "plain_delivery", "user_property"]

_TOLD: Final = frozenset({"message-id", "attempt", "partition", "offset", "published-at", "consumer-group", "retain"})
"""What the broker says of a delivery; of no meaning in a publish."""
_RESERVED: Final = frozenset(
    {"content_type", "correlation_id", "reply_to", "mqtt_response_topic", "mqtt_payload_format"}
)


def _priority(text: str) -> int:
    return priority_number(int(text) if text.isdecimal() else text)


def _instant(name: str, text: str) -> int:
    return instant_ns(name, int(text) if text.isdecimal() else text)


_FIELDS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "partition-key": ("key", str.encode),
    "priority": ("priority", _priority),
    "delay": ("delay_ns", lambda text: span_ns("delay", text)),
    "deliver-at": ("deliver_at_ns", lambda text: _instant("deliver-at", text)),
    "ttl": ("ttl_ns", lambda text: span_ns("ttl", text)),
    "expires-at": ("expires_at_ns", lambda text: _instant("expires-at", text)),
    "dedup-id": ("dedup_id", str.encode),
    "timestamp": ("timestamp_ns", lambda text: _instant("timestamp", text)),
}


def message_of(packet: Publish) -> Message:
    """The message a PUBLISH asks for; raises what is wrong with a property."""
    properties = packet.properties
    if not properties:
        return Message(packet.payload)
    fields: dict[str, Any] = {}
    headers: dict[str, str | bytes] = {}
    for name, text in properties.get("user_properties", ()):
        known = _FIELDS.get(name)
        if known is not None:
            fields[known[0]] = known[1](text)
        elif name == "correlation-id":
            headers["correlation_id"] = text
        elif name not in _TOLD:
            headers[name] = text
    if "message_expiry_interval" in properties and "ttl_ns" not in fields and "expires_at_ns" not in fields:
        fields["ttl_ns"] = max(1, properties["message_expiry_interval"] * SECOND_NS)
    if "content_type" in properties:
        headers["content_type"] = properties["content_type"]
    if "correlation_data" in properties:
        headers["correlation_id"] = _text_or_bytes(properties["correlation_data"])
    if "response_topic" in properties:
        topic = properties["response_topic"]
        if topic.startswith(QUEUE):
            headers["reply_to"] = topic[len(QUEUE) :]
        else:
            headers["mqtt_response_topic"] = topic
    if "payload_format_indicator" in properties:
        headers["mqtt_payload_format"] = str(properties["payload_format_indicator"])
    return Message(packet.payload, headers=headers or None, **fields)


def _text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def delivery_properties(batch: Batch, index: int, partition: int, attempt: int, group: str) -> Properties:
    """What a delivery of a queue says beside its value."""
    message = batch.message(index)
    said: list[tuple[str, str]] = [("message-id", str(message.id)), ("attempt", str(attempt))]
    key = message.key
    if key is not None:
        said.append(("partition-key", _clean(key.decode("utf-8", "replace"))))
    said += (("partition", str(partition)), ("offset", str(message.offset)), ("consumer-group", group))
    properties: Properties = {}
    priority = message.priority
    if priority != _NORMAL:
        said.append(("priority", str(priority)))
    headers = message.headers
    if headers:
        _say_headers(headers, said, properties)
    properties["user_properties"] = said
    return properties


_NORMAL: Final = 5


def plain_delivery(
    batch: Batch, index: int, message_id: int, offset: int, partition: int, attempt: int, group: bytes
) -> bytes | None:
    """``delivery_properties`` as bytes, for a message that has neither headers nor a priority of its own, which is
    what most are; None for others. ``group``: what ``group_property`` makes, the same for all of a subscription."""
    if batch.has_headers or batch.priority(index) != _NORMAL:
        return None
    key = batch.key(index)
    about_key = b""
    if key is not None:
        text = _clean(key.decode("utf-8", "replace")).encode()
        about_key = b"&\x00\x0dpartition-key" + len(text).to_bytes(2, "big") + text
    id_text, attempt_text, offset_text = b"%d" % message_id, b"%d" % attempt, b"%d" % offset
    partition_text = b"%d" % partition
    return b"&\x00\nmessage-id\x00%c%b&\x00\x07attempt\x00%c%b%b&\x00\tpartition\x00%c%b&\x00\x06offset\x00%c%b%b" % (
        *(len(id_text), id_text, len(attempt_text), attempt_text, about_key),
        *(len(partition_text), partition_text, len(offset_text), offset_text, group),
    )


def group_property(group: str) -> bytes:
    """The last user property of ``plain_delivery``."""
    text = group.encode()
    return b"&\x00\x0econsumer-group" + len(text).to_bytes(2, "big") + text


def _say_headers(headers: dict[str, str | bytes], said: list[tuple[str, str]], properties: Properties) -> None:
    for name, value in headers.items():
        if name not in _RESERVED:
            said.append((_clean(name), _clean(_text(value))))
    if "content_type" in headers:
        properties["content_type"] = _clean(_text(headers["content_type"]))
    if "correlation_id" in headers:
        value = headers["correlation_id"]
        properties["correlation_data"] = value.encode() if isinstance(value, str) else value
        if isinstance(value, str):
            said.append(("correlation-id", _clean(value)))
    response_topic = headers.get("mqtt_response_topic")
    if "reply_to" in headers:
        response_topic = QUEUE + _text(headers["reply_to"])
    if response_topic is not None:
        topic = _text(response_topic)
        if topic and "+" not in topic and "#" not in topic and topic.isprintable():
            properties["response_topic"] = topic
    if headers.get("mqtt_payload_format") in ("0", "1"):
        properties["payload_format_indicator"] = int(_text(headers["mqtt_payload_format"]))


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _clean(text: str) -> str:
    """MQTT has no null character [MQTT-1.5.4-2]."""
    return text.replace("\x00", "�") if "\x00" in text else text


def user_property(properties: Properties | None, name: str) -> str | None:
    """The last user property of a name."""
    found = None
    for known, text in (properties or {}).get("user_properties", ()):
        if known == name:
            found = text
    return found


def whole_property(properties: Properties | None, name: str, least: int, most: int) -> int | None:
    """A user property that is a whole number; raises when it is none."""
    text = user_property(properties, name)
    if text is None:
        return None
    if not text.isdecimal() or not least <= int(text[:20]) <= most:
        raise InvalidArgument(f"{name} is {text[:40]!r}; it must be a whole number from {least} to {most}")
    return int(text)
