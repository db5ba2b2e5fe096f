"""The encoded batch, version 1: the one unit of data on the wire, in the journal and in memory. Little-endian.

    HEAD   40 bytes, 56 with a producer
        0  magic          2   "HB"
        2  version        1   1
        3  codec          1   0 = plain; anything else is for a later version
        4  columns        2   bit set, below
        6  count          2   messages, 1..4096
        8  length         4   of the whole batch, HEAD included
       12  base_offset    8   0 until the broker stamps it
       20  base_id        8   0 until the broker stamps it
       28  append_time    8   unix ns; 0 = not stamped yet
      (36  producer_id, producer_seq   16   only with PRODUCER)
        .  crc            4   crc32c over BODY, TAIL, then HEAD up to here
    BODY   every block present only with its bit; wide blocks first, so that nothing needs padding
        timestamp       i64[n]
        delta           u32[n]     offset = base_offset + delta, id = base_id + delta; without it delta is 0..n-1
        value_offsets   i32[n+1]   not when n == 1: the value is what is left
        key_offsets     i32[n+1]
        dedup_offsets   i32[n+1]
        header_offsets  i32[n+1]   message -> entries
        name_offsets    i32[e+1]   entry -> bytes of its name;  e = header_offsets[n]
        item_offsets    i32[e+1]   entry -> bytes of its value
        priority        u8[n]
        kinds           u8[e]      0 = str, 1 = bytes; without the KINDS bit every header value is a str
        key data, dedup data, name data, item data, value data
        zeros to a multiple of 8   only when a TAIL follows and n > 1
    TAIL   the columns a stamp may rewrite
        deliver_at      i64[n]     > 0 unix ns; < 0 = -delay, only before the stamp; 0 = at once
        expires_at      i64[n]     > 0 unix ns; < 0 = -ttl (from due), only before the stamp; 0 = the topic's default

Every offset table starts at 0, never falls, and ends at the size of its data, as Arrow's do. An absent key, dedup id or
time is the empty string or 0; a column that has such entries carries its GAPS bit, so that "none is absent" is known
without looking.

The checksum runs over HEAD last, so that a stamp goes on from the checksum of what comes before and costs the few bytes
of the head, whatever the size of the values. A stamp that rewrites TAIL need not sum BODY again either: crc32c is
affine, for messages of one length crc(a) ^ crc(b) == crc(a ^ b) ^ crc(zeros), and all before the change cancels out.
Bytes that were damaged after they were checked stay damaged: no stamp sums them anew.
"""

from __future__ import annotations

import sys
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c

from headrace.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Callable

if sys.byteorder != "little":
    raise ImportError("headrace reads and writes little-endian columns in place; this machine is big-endian")

MAGIC: Final = b"HB"
VERSION: Final = 1
CODEC_PLAIN: Final = 0

PRODUCER: Final = 1 << 0
DELTA: Final = 1 << 1  # every bit from here on is a column
KEY: Final = 1 << 2
DEDUP: Final = 1 << 3
HEADERS: Final = 1 << 4
KINDS: Final = 1 << 5
PRIORITY: Final = 1 << 6
TIMESTAMP: Final = 1 << 7
DELIVER: Final = 1 << 8
EXPIRES: Final = 1 << 9
KEY_GAPS: Final = 1 << 10
DEDUP_GAPS: Final = 1 << 11
TIMESTAMP_GAPS: Final = 1 << 12
DELIVER_GAPS: Final = 1 << 13
EXPIRES_GAPS: Final = 1 << 14
KNOWN: Final = (1 << 15) - 1
GAPS: Final = KEY_GAPS | DEDUP_GAPS | TIMESTAMP_GAPS | DELIVER_GAPS | EXPIRES_GAPS

# A bit that says something about a column means nothing without that column.
NEEDS: Final = (
    (KINDS, HEADERS, "kinds", "headers"),
    (KEY_GAPS, KEY, "key gaps", "key"),
    (DEDUP_GAPS, DEDUP, "dedup gaps", "dedup"),
    (TIMESTAMP_GAPS, TIMESTAMP, "timestamp gaps", "timestamp"),
    (DELIVER_GAPS, DELIVER, "deliver_at gaps", "deliver_at"),
    (EXPIRES_GAPS, EXPIRES, "expires_at gaps", "expires_at"),
)

HEAD: Final = Struct("<2sBBHHIqqq")
STAMP: Final = Struct("<qqq")
STAMP_AT: Final = 12
PAIR: Final = Struct("<QQ")
CRC: Final = Struct("<I")
INT32: Final = Struct("<i")
INT64: Final = Struct("<q")
UINT32: Final = Struct("<I")
BOUNDS: Final = Struct("<ii")
HEAD_BYTES: Final = HEAD.size + CRC.size
HEAD_PRODUCER_BYTES: Final = HEAD_BYTES + PAIR.size

DEFAULT_PRIORITY: Final = 5
PLACE_MAX: Final = (1 << 63) - 1
"""The highest offset and the highest id: both are signed 64-bit wherever they go."""

crc_value: Callable[[bytes], int] = google_crc32c.value
crc_extend: Callable[[int, bytes], int] = google_crc32c.extend


def crc_patched(crc: int, old: bytes | memoryview, new: bytes) -> int:
    """The checksum after the last bytes it covers changed from `old` to `new`, of the same length."""
    size = len(old)
    change = (int.from_bytes(old, "little") ^ int.from_bytes(new, "little")).to_bytes(size, "little")
    return crc ^ crc_value(change) ^ crc_value(bytes(size))


PRODUCER_MAX: Final = (1 << 64) - 1
"""A producer's id and its sequence are eight bytes each."""


def head_bytes(columns: int) -> int:
    """The size of HEAD for this column set."""
    return HEAD_PRODUCER_BYTES if columns & PRODUCER else HEAD_BYTES


def tail_bytes(columns: int, count: int) -> int:
    """The size of TAIL for this column set."""
    return 8 * count * (bool(columns & DELIVER) + bool(columns & EXPIRES))


def fixed_bytes(columns: int, count: int) -> int:
    """The part of BODY whose size the head alone decides: every block but entries and data."""
    table = 4 * (count + 1)
    size = 8 * count if columns & TIMESTAMP else 0
    if columns & DELTA:
        size += 4 * count
    if count > 1:
        size += table
    if columns & KEY:
        size += table
    if columns & DEDUP:
        size += table
    if columns & HEADERS:
        size += table + 8  # both entry tables have at least their first offset
    if columns & PRIORITY:
        size += count
    return size


class Places(NamedTuple):
    """Where each block of BODY starts; a block that is absent starts where the next one does."""

    entries: int
    timestamps: int
    deltas: int
    value_offsets: int
    key_offsets: int
    dedup_offsets: int
    header_offsets: int
    name_offsets: int
    item_offsets: int
    priorities: int
    kinds: int
    keys: int
    dedups: int
    names: int
    items: int
    values: int
    values_end: int


def locate(columns: int, count: int, body: bytes | memoryview) -> Places:
    """Find every block from the last entry of each offset table; refuses tables that do not add up to BODY.

    Constant time. The caller has made sure that `fixed_bytes` fit; nothing else about `body` is assumed.
    """
    size = len(body)
    if count == 1 and not columns & ~PRODUCER:
        return Places(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, size)
    last = 4 * count
    table = last + 4
    at = 0
    if columns & TIMESTAMP:
        at = 8 * count
    deltas = at
    if columns & DELTA:
        at += last
    value_offsets = at
    if count > 1:
        at += table
    key_offsets = at
    if columns & KEY:
        at += table
    dedup_offsets = at
    if columns & DEDUP:
        at += table
    header_offsets = at
    entries = 0
    if columns & HEADERS:
        entries = _last(body, at + last, "header_offsets", (size - fixed_bytes(columns, count)) // 8)
        at += table
        name_offsets = at
        at += 4 * entries + 4
        item_offsets = at
        at += 4 * entries + 4
    else:
        name_offsets = item_offsets = at
    priorities = at
    if columns & PRIORITY:
        at += count
    kinds = at
    if columns & KINDS:
        at += entries
    keys = at
    if columns & KEY:
        at += _last(body, key_offsets + last, "key_offsets", size - at)
    dedups = at
    if columns & DEDUP:
        at += _last(body, dedup_offsets + last, "dedup_offsets", size - at)
    names = at
    items = at
    if columns & HEADERS:
        at += _last(body, name_offsets + 4 * entries, "name_offsets", size - at)
        items = at
        at += _last(body, item_offsets + 4 * entries, "item_offsets", size - at)
    values = at
    if count > 1:
        at += _last(body, value_offsets + last, "value_offsets", size - at)
        if columns & (DELIVER | EXPIRES):
            end = at + (-at & 7)
        else:
            end = at
        if end != size:
            raise Malformed(f"batch.value_offsets ends at {at - values}, but {size - values} bytes of values are there")
    elif at > size:
        raise Malformed(f"batch.kinds ends at byte {at} of the body, which has {size}")
    else:
        at = size
    return Places(
        entries,
        0,
        deltas,
        value_offsets,
        key_offsets,
        dedup_offsets,
        header_offsets,
        name_offsets,
        item_offsets,
        priorities,
        kinds,
        keys,
        dedups,
        names,
        items,
        values,
        at,
    )


def _last(body: bytes | memoryview, at: int, field: str, room: int) -> int:
    end: int = INT32.unpack_from(body, at)[0]
    if not 0 <= end <= room:
        raise Malformed(
            f"batch.{field} ends at {end}; it must end between 0 and {max(room, 0)}, the room that is there"
        )
    return end
