"""Messages published one by one that will leave as one batch; both kinds of publisher stand on it.

What has only a value and a key stays two columns; the first message with anything else makes all of them messages. A
large message leaves alone, so that one which the topic does not take fails nobody else.
"""

from __future__ import annotations

from typing import Any

from headrace.batch import Batch, encode, encode_columns
from headrace.client.arguments import key_bytes, value_bytes
from headrace.client.message import Message
from headrace.errors import InvalidArgument, LimitExceeded, PayloadTooLarge
from headrace.limits import (
    CLIENT_GATHER_ALONE_BYTES,
    CLIENT_GATHER_BYTES,
    CLIENT_GATHER_MESSAGES,
    KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
)

__all__ = ["Gathering"]


def _message(value: Any, key: Any, properties: dict[str, Any]) -> Message:
    if not isinstance(value, Message):
        return Message(value, key=key, **properties)
    if properties or key is not None:
        raise InvalidArgument("a Message carries its own properties; set them on it, not beside it")
    return value


class Gathering:
    """One batch in the making."""

    __slots__ = ("_keyed", "_keys", "_messages", "_values", "bytes", "count")

    def __init__(self) -> None:
        self._values: list[bytes] = []
        self._keys: list[bytes | None] = []
        self._keyed = False
        self._messages: list[Message] | None = None
        self.count = 0
        self.bytes = 0

    def add(self, value: Any, key: Any, properties: dict[str, Any]) -> int:
        """Take a message in; its index."""
        if properties or isinstance(value, Message):
            message = _message(value, key, properties)
            self._check(message.value, message.key)
            self._as_messages().append(message)
            value = message.value
        else:
            if type(value) is not bytes:
                value = bytes(value_bytes(value))
            if key is not None:
                key = key_bytes(key)
                self._keyed = True
            if key is not None or len(value) > CLIENT_GATHER_ALONE_BYTES:
                self._check(value, key)
            if self._messages is None:
                self._values.append(value)
                self._keys.append(key)
            else:
                self._messages.append(Message(value, key=key))
        self.count += 1
        self.bytes += len(value)
        return self.count - 1

    def _check(self, value: Any, key: bytes | None) -> None:
        if len(value) > MESSAGE_BYTES_MAX:
            raise PayloadTooLarge(f"the value has {len(value)} bytes; at most {MESSAGE_BYTES_MAX} are taken")
        if key is not None and len(key) > KEY_BYTES_MAX:
            raise LimitExceeded(f"the key has {len(key)} bytes; at most {KEY_BYTES_MAX} are taken")

    def _as_messages(self) -> list[Message]:
        if self._messages is None:
            pairs = zip(self._values, self._keys, strict=True)
            self._messages = [Message(value, key=key) for value, key in pairs]
        return self._messages

    @staticmethod
    def is_large(value: Any) -> bool:
        """Should it leave alone?"""
        held = value.value if isinstance(value, Message) else value
        return isinstance(held, bytes | bytearray | memoryview | str) and len(held) > CLIENT_GATHER_ALONE_BYTES

    @property
    def full(self) -> bool:
        return self.count >= CLIENT_GATHER_MESSAGES or self.bytes >= CLIENT_GATHER_BYTES

    def batch(self) -> Batch:
        """What leaves."""
        if self._messages is not None:
            return encode(self._messages)  # type: ignore[arg-type]  # the same attributes
        return encode_columns(self._values, keys=self._keys if self._keyed else None)
