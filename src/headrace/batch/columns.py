"""Columns on their way into a batch: what every builder (messages, lists, Arrow, slice, select, concat) fills in.

Each block is a buffer exactly as `layout` draws it, each data block a list of buffers, and an empty one is absent.
`seal` joins them once: the only copy of the values an encode makes.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from headrace.batch import layout
from headrace.errors import InvalidArgument, LimitExceeded, PayloadTooLarge
from headrace.limits import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Data = bytes | bytearray | memoryview
    Block = bytes | memoryview | array[int]

_ONES: Final = int.from_bytes(b"\1\0\0\0" * (BATCH_MESSAGES_MAX + 1), "little")


class Columns:
    """The blocks of one batch. `flags` are the layout's column bits; `value_offsets` is left out when count is 1."""

    __slots__ = (
        "count",
        "dedup_offsets",
        "dedups",
        "delivers",
        "deltas",
        "expires",
        "flags",
        "header_offsets",
        "item_offsets",
        "items",
        "key_offsets",
        "keys",
        "kinds",
        "name_offsets",
        "names",
        "priorities",
        "timestamps",
        "value_offsets",
        "values",
    )

    def __init__(self, count: int) -> None:
        self.count = count
        self.flags = 0
        self.timestamps: Block = b""
        self.deltas: Block = b""
        self.value_offsets: Block = b""
        self.key_offsets: Block = b""
        self.dedup_offsets: Block = b""
        self.header_offsets: Block = b""
        self.name_offsets: Block = b""
        self.item_offsets: Block = b""
        self.priorities: Block = b""
        self.kinds: Block = b""
        self.keys: Sequence[Data] = ()
        self.dedups: Sequence[Data] = ()
        self.names: Sequence[Data] = ()
        self.items: Sequence[Data] = ()
        self.values: Sequence[Data] = ()
        self.delivers: Block = b""
        self.expires: Block = b""

    def body_and_tail(self) -> tuple[bytes, bytes]:
        """BODY and TAIL as the layout draws them."""
        body = b"".join(
            [
                self.timestamps,
                self.deltas,
                self.value_offsets,
                self.key_offsets,
                self.dedup_offsets,
                self.header_offsets,
                self.name_offsets,
                self.item_offsets,
                self.priorities,
                self.kinds,
                *self.keys,
                *self.dedups,
                *self.names,
                *self.items,
                *self.values,
            ]
        )
        tail = b"".join((self.delivers, self.expires))
        if tail and self.count > 1:
            body += bytes(-len(body) & 7)
        return body, tail


def table(sizes: Iterable[int]) -> array[int]:
    """The offset table of entries with these sizes."""
    try:
        return array("i", accumulate(sizes, initial=0))
    except OverflowError:
        raise PayloadTooLarge(f"the batch holds more than {BATCH_BYTES_MAX} bytes; send it as several") from None


def rebased(offsets: memoryview) -> bytes:
    """A piece of an offset table, counted from its own first entry.

    One subtraction of big integers takes the first offset from every 32-bit lane at once: no lane is smaller than the
    first, so none borrows from its neighbour.
    """
    first = offsets[0]
    raw = offsets.tobytes()
    if not first:
        return raw
    return (int.from_bytes(raw, "little") - first * _ones(len(offsets))).to_bytes(len(raw), "little")


def raised(offsets: bytes, by: int) -> bytes:
    """A piece of an offset table with `by` added to every entry; the sums must stay below 2^31."""
    if not by:
        return offsets
    lanes = len(offsets) // 4
    return (int.from_bytes(offsets, "little") + by * _ones(lanes)).to_bytes(len(offsets), "little")


def _ones(lanes: int) -> int:
    if lanes <= BATCH_MESSAGES_MAX + 1:
        return _ONES & ((1 << 32 * lanes) - 1)
    return int.from_bytes(b"\1\0\0\0" * lanes, "little")


def check_count(count: int) -> None:
    """A batch holds at least one message and at most what one millisecond's ids can name."""
    if count < 1:
        raise InvalidArgument("a batch of 0 messages says nothing; give at least 1")
    if count > BATCH_MESSAGES_MAX:
        raise LimitExceeded(f"{count} messages in one batch; at most {BATCH_MESSAGES_MAX}, send them as several")


def too_large(size_bytes: int) -> PayloadTooLarge:
    """A batch of so many bytes is not taken."""
    return PayloadTooLarge(f"the batch takes {size_bytes} bytes; at most {BATCH_BYTES_MAX}, send it as several")


def head_of(
    flags: int, count: int, size_bytes: int, stamp: tuple[int, int, int], producer: tuple[int, int], crc: int
) -> bytes:
    """HEAD over a finished BODY and TAIL, which sum to ``crc``."""
    front = layout.HEAD.pack(layout.MAGIC, layout.VERSION, layout.CODEC_PLAIN, flags, count, size_bytes, *stamp)
    if flags & layout.PRODUCER:
        front += layout.PAIR.pack(*producer)
    return front + layout.CRC.pack(layout.crc_extend(crc, front))
