"""Messages as lines: what ``consume`` prints and ``publish --lines`` or ``--json-lines`` reads.

A line is the value and a newline, or one JSON object:

    {"id": "7263…", "partition": 0, "offset": 5, "attempt": 1, "key": "user-1", "value": "…", "headers": {"a": "b"},
     "priority": 5, "published_at": "2030-01-01T00:00:00.123Z", …}

Bytes that are no UTF-8 stand under ``value_base64``, ``key_base64``, ``headers_base64``; what a message does not have
is left out. What is printed can be read back: fields that the broker gives a message (id, partition, offset …) are
passed over, unknown ones are an error. Reading also takes ``json`` (any value, kept as JSON), ``delay`` and ``ttl``.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, BinaryIO, Final

import msgspec

from headrace.batch import Batch, Message, encode
from headrace.cli.output import displayed, encode_json, text_or_base64
from headrace.cli.sender import Lines
from headrace.cli.values import LIFETIME, MOMENT, PRIORITY, from_epoch
from headrace.config import parse_duration_ns
from headrace.errors import HeadraceError, InvalidArgument, PayloadTooLarge
from headrace.limits import CLIENT_BATCH_BYTES, MESSAGE_BYTES_MAX

__all__ = ["encoded", "json_lines", "message_of", "portions", "read_lines", "terminal_lines", "value_lines"]

_READ_BYTES: Final = 256 * 1024
_NORMAL: Final = 5
_GIVEN_BY_THE_BROKER: Final = frozenset(
    {"id", "namespace", "topic", "partition", "offset", "attempt", "attempts", "state", "last_error", "published_at"}
)
_FIELDS: Final = (
    *("value", "value_base64", "json", "key", "key_base64", "headers", "headers_base64", "priority"),
    *("delay", "deliver_at", "ttl", "expires_at", "dedup_id", "dedup_id_base64", "timestamp_at"),
)
_decode: Final = msgspec.json.Decoder().decode


# -- writing -----------------------------------------------------------------------------------------------------------


def value_lines(batch: Batch, _attempts: dict[int, int]) -> list[bytes]:
    """Values as they are."""
    return batch.values()


def terminal_lines(batch: Batch, _attempts: dict[int, int]) -> list[bytes]:
    """Values on a terminal, where nothing may move the cursor."""
    return [displayed(value, 4096).encode() for value in batch.values()]


def json_lines(batch: Batch, attempts: dict[int, int], *, partition: int, leased: bool = True) -> list[bytes]:
    """Messages as JSON objects."""
    lines: list[bytes] = []
    for i, (message_id, offset, value) in enumerate(zip(batch.ids(), batch.offsets(), batch.values(), strict=True)):
        shaped: dict[str, Any] = {"id": str(message_id), "partition": partition, "offset": offset}
        if leased:
            shaped["attempt"] = attempts.get(offset, 1)
        message = batch.message(i)
        _put(shaped, "key", message.key)
        _put(shaped, "value", value)
        if headers := message.headers:
            shaped["headers"] = {name: text for name, text in headers.items() if isinstance(text, str)}
            raw = {name: b64encode(held).decode() for name, held in headers.items() if not isinstance(held, str)}
            if raw:
                shaped["headers_base64"] = raw
        if message.priority != _NORMAL:
            shaped["priority"] = message.priority
        shaped["published_at"] = from_epoch(message.append_time_ns)
        if message.deliver_at_ns is not None:
            shaped["deliver_at"] = from_epoch(message.deliver_at_ns)
        if message.expires_at_ns is not None:
            shaped["expires_at"] = from_epoch(message.expires_at_ns)
        _put(shaped, "dedup_id", message.dedup_id)
        if message.timestamp_ns is not None:
            shaped["timestamp_at"] = from_epoch(message.timestamp_ns)
        lines.append(encode_json(shaped))
    return lines


def _put(shaped: dict[str, Any], name: str, content: bytes | None) -> None:
    if content is not None:
        name, text = text_or_base64(name, content)
        shaped[name] = text


# -- reading -----------------------------------------------------------------------------------------------------------


def read_lines(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Lines without their newline, as they come in: all that one read brought, at most a batch's worth."""
    rest: list[bytes] = []
    rest_bytes = 0
    number = 1
    while data := stream.read1(_READ_BYTES):  # type: ignore[attr-defined] # buffered, as stdin is
        *whole, tail = data.split(b"\n")
        if whole:
            whole[0] = b"".join([*rest, whole[0]])
            rest, rest_bytes = [], 0
            yield whole
            number += len(whole)
        rest.append(tail)
        rest_bytes += len(tail)
        if rest_bytes > MESSAGE_BYTES_MAX:
            raise PayloadTooLarge(
                f"line {number}: more than {MESSAGE_BYTES_MAX} bytes; without --lines all of the input is one message"
            )
    if rest_bytes:
        yield [b"".join(rest)]


def message_of(line: bytes, number: int) -> Message:
    """The message of a JSON line; ``number`` is the line's, for the refusal."""
    try:
        fields = _decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidArgument(f"line {number} is not JSON: {error}") from None
    try:
        if not isinstance(fields, dict):
            raise InvalidArgument('a message is an object such as {"value": "text", "key": "user-1"}')
        return _message(fields)
    except InvalidArgument as refused:
        raise InvalidArgument(f"line {number}: {refused.message}") from None


def _message(fields: dict[str, Any]) -> Message:
    for name in fields:
        if name not in _FIELDS and name not in _GIVEN_BY_THE_BROKER:
            close = get_close_matches(name, _FIELDS, n=1)
            raise InvalidArgument(
                f"a message has no {name!r}; "
                + (f"did you mean {close[0]!r}?" if close else f"it has {', '.join(_FIELDS)}")
            )
    if "json" in fields:
        if "value" in fields or "value_base64" in fields:
            raise InvalidArgument("both json and value are given; give one of them")
        value = encode_json(fields["json"])
    else:
        value = _bytes(fields, "value") or b""
    headers: dict[str, str | bytes] = {}
    for name, text in _mapping(fields, "headers").items():
        headers[name] = _text(f"headers.{name}", text)
    for name, text in _mapping(fields, "headers_base64").items():
        headers[name] = _base64(f"headers_base64.{name}", text)
    if "json" in fields:
        headers.setdefault("content_type", "application/json")
    return Message(
        value,
        key=_bytes(fields, "key"),
        headers=headers or None,
        priority=_priority(fields.get("priority", _NORMAL)),
        delay_ns=_span(fields, "delay"),
        deliver_at_ns=_moment(fields, "deliver_at"),
        ttl_ns=LIFETIME.parse(_text("ttl", fields["ttl"])) if "ttl" in fields else None,
        expires_at_ns=_moment(fields, "expires_at"),
        dedup_id=_bytes(fields, "dedup_id"),
        timestamp_ns=_moment(fields, "timestamp_at"),
    )


def _bytes(fields: dict[str, Any], name: str) -> bytes | None:
    if name in fields and f"{name}_base64" in fields:
        raise InvalidArgument(f"both {name} and {name}_base64 are given; give one of them")
    if name in fields:
        return _text(name, fields[name]).encode()
    if f"{name}_base64" in fields:
        return _base64(f"{name}_base64", fields[f"{name}_base64"])
    return None


def _text(name: str, text: object) -> str:
    if not isinstance(text, str):
        raise InvalidArgument(f"{name} is {text!r:.60}; it must be text")
    return text


def _base64(name: str, text: object) -> bytes:
    try:
        return b64decode(_text(name, text), validate=True)
    except binascii.Error as error:
        raise InvalidArgument(f"{name} is not base64: {error}") from None


def _mapping(fields: dict[str, Any], name: str) -> dict[str, Any]:
    found = fields.get(name, {})
    if not isinstance(found, dict):
        raise InvalidArgument(f"{name} is {found!r:.60}; it must be an object of texts")
    return found


def _priority(given: object) -> int:
    found: int = PRIORITY.parse(str(given))
    return found


def _span(fields: dict[str, Any], name: str) -> int | None:
    return None if name not in fields else parse_duration_ns(_text(name, fields[name]))


def _moment(fields: dict[str, Any], name: str) -> int | None:
    return None if name not in fields else MOMENT.parse(_text(name, fields[name]))


def encoded(numbered: Sequence[tuple[int, Message]]) -> Iterator[Lines]:
    """Messages with their lines' numbers as a batch; what a batch does not take is told by its line, after a batch of
    those before it."""
    numbers, messages = [number for number, _ in numbered], [message for _, message in numbered]
    try:
        yield Lines(encode(messages), numbers)
    except HeadraceError:
        for i, message in enumerate(messages):
            try:
                encode([message])
            except HeadraceError as refused:
                if i:
                    yield Lines(encode(messages[:i]), numbers[:i])
                text = refused.message.replace(" of message 0", "")
                raise type(refused)(f"line {numbers[i]}: {text}") from None
        raise


def portions(messages: Sequence[Any], sizes: Sequence[int], most: int) -> Iterator[Sequence[Any]]:
    """The same in order, in portions of at most ``most`` and a batch's worth of bytes (one alone may be larger)."""
    if len(messages) <= most and sum(sizes) <= CLIENT_BATCH_BYTES:
        yield messages
        return
    first = size_bytes = 0
    for i, one_bytes in enumerate(sizes):
        if i > first and (i - first == most or size_bytes + one_bytes > CLIENT_BATCH_BYTES):
            yield messages[first:i]
            first, size_bytes = i, 0
        size_bytes += one_bytes
    yield messages[first:]
