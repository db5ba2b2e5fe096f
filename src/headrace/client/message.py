"""A message as a producer writes it."""

from __future__ import annotations

from typing import Any

from headrace.batch import Message as BatchMessage
from headrace.client.arguments import (
    NO_JSON,
    Duration,
    Headers,
    Instant,
    Key,
    Priority,
    Value,
    dedup_bytes,
    header_map,
    instant_ns,
    key_bytes,
    priority_number,
    shown,
    span_ns,
    value_bytes,
)
from headrace.errors import InvalidArgument

__all__ = ["Message", "message_of"]


class Message:
    """One message to publish, for ``publish``, ``publish_many`` and ``settle``.

    ``value`` is bytes or text (UTF-8); or give ``json``. ``delay`` and ``deliver_at`` say when it becomes due (one of
    them), ``ttl`` and ``expires_at`` when it is no longer wanted. Durations are ``"5m"``, a timedelta or seconds; times
    are aware datetimes, RFC 3339 text or nanoseconds since 1970.

    >>> import headrace
    >>> message = headrace.Message("hello", key="user-1", priority="high", delay="5m")
    >>> message.value, message.key, message.priority, message.delay_ns
    (b'hello', b'user-1', 1, 300000000000)
    """

    __slots__ = (
        "dedup_id",
        "delay_ns",
        "deliver_at_ns",
        "expires_at_ns",
        "headers",
        "key",
        "priority",
        "timestamp_ns",
        "ttl_ns",
        "value",
    )

    def __init__(
        self,
        value: Value | None = None,
        *,
        json: Any = NO_JSON,
        key: Key | None = None,
        headers: Headers | None = None,
        priority: Priority = 5,
        delay: Duration | None = None,
        deliver_at: Instant | None = None,
        ttl: Duration | None = None,
        expires_at: Instant | None = None,
        dedup_id: Key | None = None,
        timestamp: Instant | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        content_type: str | None = None,
    ) -> None:
        if delay is not None and deliver_at is not None:
            raise InvalidArgument(f"both delay ({shown(delay)}) and deliver_at ({shown(deliver_at)}) are given")
        if ttl is not None and expires_at is not None:
            raise InvalidArgument(f"both ttl ({shown(ttl)}) and expires_at ({shown(expires_at)}) are given")
        self.value = value_bytes(value, json)
        self.key = key_bytes(key)
        self.headers = header_map(headers)
        self.priority = priority_number(priority)
        self.delay_ns = None if delay is None else span_ns("delay", delay)
        self.deliver_at_ns = None if deliver_at is None else instant_ns("deliver_at", deliver_at)
        self.ttl_ns = None if ttl is None else _lifetime(ttl)
        self.expires_at_ns = None if expires_at is None else instant_ns("expires_at", expires_at)
        self.dedup_id = dedup_bytes(dedup_id)
        self.timestamp_ns = None if timestamp is None else instant_ns("timestamp", timestamp)
        named = {"correlation_id": correlation_id, "reply_to": reply_to, "content_type": content_type}
        reserved = {name: text for name, text in named.items() if text is not None}
        if json is not NO_JSON and content_type is None:
            reserved["content_type"] = "application/json"
        if reserved:
            self.headers = header_map({**reserved, **(self.headers or {})})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]  # it holds a dictionary

    def __repr__(self) -> str:
        said = [shown(bytes(self.value))]
        said += [f"key={self.key!r}"] if self.key is not None else []
        said += [f"{name}={held}" for name in self.__slots__ if name.endswith("_ns") and (held := getattr(self, name))]
        return f"Message({', '.join(said)})"


def _lifetime(ttl: Duration) -> int:
    found = span_ns("ttl", ttl)
    if found == 0:
        raise InvalidArgument(f"ttl is {shown(ttl)}; a message needs a life above 0, or none at all for the topic's")
    return found


def message_of(value: Any) -> Message | BatchMessage:
    """A value or a message as a message."""
    return value if isinstance(value, Message | BatchMessage) else Message(value)
