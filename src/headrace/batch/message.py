"""One message: as a caller gives it (`Message`), and as a place in a batch (`MessageView`, fields read when asked)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from headrace.batch.batch import Batch


class Message(msgspec.Struct, frozen=True):
    """What a producer sends. Times are nanoseconds; give a delay or an instant, not both.

    >>> Message(b"hello", key=b"k1", headers={"content_type": "text/plain"}).priority
    5
    """

    value: bytes
    key: bytes | None = None
    headers: dict[str, str | bytes] | None = None
    priority: int = 5
    delay_ns: int | None = None
    deliver_at_ns: int | None = None
    ttl_ns: int | None = None
    expires_at_ns: int | None = None
    dedup_id: bytes | None = None
    timestamp_ns: int | None = None


class MessageView:
    """Message `index` of a batch. It holds no copy: every field is read from the batch at the moment of asking."""

    __slots__ = ("batch", "index")

    def __init__(self, batch: Batch, index: int) -> None:
        self.batch = batch
        self.index = index

    @property
    def id(self) -> int:
        """The broker's id; meaningful once the batch is stamped."""
        return self.batch.base_id + self.batch.delta(self.index)

    @property
    def offset(self) -> int:
        """The place in the partition; meaningful once the batch is stamped."""
        return self.batch.base_offset + self.batch.delta(self.index)

    @property
    def append_time_ns(self) -> int:
        """When the broker took it, or 0 before that."""
        return self.batch.append_time_ns

    @property
    def value(self) -> bytes:
        """The body."""
        return self.batch.value(self.index)

    @property
    def key(self) -> bytes | None:
        """The key, or None; an empty key is no key."""
        return self.batch.key(self.index)

    @property
    def headers(self) -> dict[str, str | bytes]:
        """Headers by name; of a repeated name the last value."""
        return self.batch.headers(self.index)

    @property
    def priority(self) -> int:
        """The lane, 0 first."""
        return self.batch.priority(self.index)

    @property
    def deliver_at_ns(self) -> int | None:
        """When it becomes due (before the stamp: a delay is negative), or None for at once."""
        return self.batch.deliver_at(self.index)

    @property
    def expires_at_ns(self) -> int | None:
        """When it stops being deliverable (before the stamp: a ttl is negative), or None for the topic's default."""
        return self.batch.expires_at(self.index)

    @property
    def dedup_id(self) -> bytes | None:
        """The producer's deduplication id, or None."""
        return self.batch.dedup_id(self.index)

    @property
    def timestamp_ns(self) -> int | None:
        """The producer's own time, or None."""
        return self.batch.timestamp(self.index)

    def to_message(self) -> Message:
        """The message as a producer would have written it; of a stamped batch its times are absolute."""
        deliver = self.deliver_at_ns
        expires = self.expires_at_ns
        return Message(
            self.value,
            self.key,
            self.headers or None,
            self.priority,
            -deliver if deliver is not None and deliver < 0 else None,
            deliver if deliver is not None and deliver > 0 else None,
            -expires if expires is not None and expires < 0 else None,
            expires if expires is not None and expires > 0 else None,
            self.dedup_id,
            self.timestamp_ns,
        )

    def __repr__(self) -> str:
        return f"<message {self.id} offset {self.offset}, {len(self.value)} bytes>"
