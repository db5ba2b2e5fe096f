"""From values, messages or an Arrow table to batches a broker takes.

Routing stays the broker's: a batch leaves as one piece whatever the keys in it, because splitting it here would cost as
much as splitting it there and would have to know the number of partitions. What is only values (the fast path) is
encoded as a column, without an object for each message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from headrace.batch import Batch, encode, encode_arrow, encode_columns, encode_one, encode_plain
from headrace.batch import Message as BatchMessage
from headrace.client.arguments import (
    NO_JSON,
    Duration,
    Headers,
    Instant,
    Key,
    Priority,
    Value,
    key_bytes,
    shown,
    value_bytes,
)
from headrace.client.message import Message, message_of
from headrace.errors import InvalidArgument
from headrace.limits import BATCH_MESSAGES_MAX, CLIENT_BATCH_BYTES

__all__ = ["batches_of", "one_batch", "settle_batch"]

_BYTES: Final = frozenset({bytes})


def one_batch(
    value: Value | Message | BatchMessage | None,
    json: Any,
    key: Key | None,
    headers: Headers | None,
    priority: Priority,
    delay: Duration | None,
    deliver_at: Instant | None,
    ttl: Duration | None,
    expires_at: Instant | None,
    dedup_id: Key | None,
    timestamp: Instant | None,
    correlation_id: str | None,
    reply_to: str | None,
) -> Batch:
    """The batch of one message, given as a value with its properties or as a message."""
    plain = delay is None and deliver_at is None and ttl is None and expires_at is None and dedup_id is None
    plain = plain and headers is None and priority == 5 and timestamp is None and json is NO_JSON
    plain = plain and correlation_id is None and reply_to is None
    if plain and type(value) is bytes:
        return encode_plain(value, key if key is None or type(key) is bytes else key_bytes(key))
    if isinstance(value, Message | BatchMessage):
        others = (key, headers, delay, deliver_at, ttl, expires_at, dedup_id, timestamp, correlation_id, reply_to)
        if json is not NO_JSON or priority != 5 or any(other is not None for other in others):
            raise InvalidArgument("a Message carries its own properties; set them on it, not beside it")
        return encode([value])  # type: ignore[list-item]  # the same attributes
    if plain:
        return encode_one(value_bytes(value), key=key_bytes(key))  # type: ignore[arg-type]  # any buffer
    message = Message(
        value,
        json=json,
        key=key,
        headers=headers,
        priority=priority,
        delay=delay,
        deliver_at=deliver_at,
        ttl=ttl,
        expires_at=expires_at,
        dedup_id=dedup_id,
        timestamp=timestamp,
        correlation_id=correlation_id,
        reply_to=reply_to,
    )
    return encode([message])  # type: ignore[list-item]  # the same attributes


def batches_of(values: Any) -> Iterator[Batch]:
    """Batches of values, messages or an Arrow table, each small enough for any server."""
    if hasattr(values, "schema") and hasattr(values, "num_rows"):
        yield from _arrow_batches(values)
        return
    if isinstance(values, str | bytes | bytearray | memoryview | dict):
        raise InvalidArgument(
            f"publish_many takes a list of values or messages, or an Arrow table, not {type(values).__name__} "
            f"{shown(values)}; publish sends one"
        )
    if not isinstance(values, Iterable):
        raise InvalidArgument(
            f"publish_many takes a list of values or messages, or an Arrow table, not {shown(values)}"
        )
    items: Sequence[Any] = values if isinstance(values, list | tuple) else list(values)
    for start in range(0, len(items), BATCH_MESSAGES_MAX):
        yield from _bounded(items[start : start + BATCH_MESSAGES_MAX] if len(items) > BATCH_MESSAGES_MAX else items)


def _bounded(items: Sequence[Any]) -> Iterator[Batch]:
    """Up to 4,096 items as one batch, or as several when their values are large."""
    if set(map(type, items)) == _BYTES:
        encoded: Any = encode_columns
        size = sum(map(len, items))
    elif all(isinstance(item, Message | BatchMessage) for item in items):
        encoded = encode
        size = sum(len(item.value) for item in items)
    else:
        items = [message_of(item) for item in items]
        encoded = encode
        size = sum(len(item.value) for item in items)
    if size <= CLIENT_BATCH_BYTES or len(items) == 1:
        yield encoded(items)
        return
    start, held = 0, 0
    for index, item in enumerate(items):
        length = len(item if encoded is encode_columns else item.value)
        if held and held + length > CLIENT_BATCH_BYTES:
            yield encoded(items[start:index])
            start, held = index, 0
        held += length
    yield encoded(items[start:])


def _arrow_batches(table: Any) -> Iterator[Batch]:
    rows = table.num_rows
    if not rows:
        return
    share = max(1, min(BATCH_MESSAGES_MAX, rows * CLIENT_BATCH_BYTES // max(1, table.nbytes)))
    for start in range(0, rows, share):
        yield encode_arrow(table.slice(start, share))


def settle_batch(message: Any) -> Batch:
    """A message, a value, or several of them, as the one batch that an atomic settle publishes to a topic."""
    if isinstance(message, list | tuple):
        found = list(batches_of(message))
        if len(found) != 1:
            raise InvalidArgument(
                f"{len(message)} messages for one topic in one settle; up to {BATCH_MESSAGES_MAX} and "
                f"{CLIENT_BATCH_BYTES} bytes go into one"
            )
        return found[0]
    return encode([message_of(message)])  # type: ignore[list-item]  # the same attributes
