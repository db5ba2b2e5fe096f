"""Bytes nobody vouches for: everything a batch claims, checked before any of it is believed.

In this order: the head (constant time; nothing is allocated for what it claims), the checksum, where the blocks are
(constant time), then each column with operations that run in C over the whole column. Every refusal names the field,
the value found and what would be right.

Not refused: repeated header names (in the order given; by name the last one wins), zero-length values, gaps bits of
columns without gaps, the bytes between the values and the tail.
"""

from __future__ import annotations

from itertools import repeat
from operator import sub
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.batch import layout
from headrace.errors import LimitExceeded, Malformed, PayloadTooLarge, UnsupportedVersion
from headrace.limits import (
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    DEDUP_ID_BYTES_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    MESSAGE_BYTES_DEFAULT,
    MESSAGE_BYTES_MAX,
    PRIORITY_MAX,
    SPAN_NS_MAX,
    TIME_NS_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.errors import HeadraceError


class BatchLimits(msgspec.Struct, frozen=True):
    """What a batch from outside may hold. The defaults are a topic's defaults."""

    messages_max: int = BATCH_MESSAGES_MAX
    batch_bytes_max: int = BATCH_BYTES_MAX
    message_bytes_max: int = MESSAGE_BYTES_DEFAULT
    key_bytes_max: int = KEY_BYTES_MAX
    headers_max: int = HEADERS_MAX
    headers_bytes_max: int = HEADERS_BYTES_MAX
    dedup_id_bytes_max: int = DEDUP_ID_BYTES_MAX


DEFAULT_LIMITS: Final = BatchLimits()
HIGHEST_LIMITS: Final = BatchLimits(message_bytes_max=MESSAGE_BYTES_MAX)
"""For bytes that a broker already let in under a topic's own limits."""

_LANES: Final = bytes(range(PRIORITY_MAX + 1))


def recognised(magic: bytes, version: int) -> None:
    """Is this a batch, and one this program can read?"""
    if magic != layout.MAGIC:
        raise Malformed(f"batch.magic is {magic!r}; a batch starts with {layout.MAGIC!r}")
    if version != layout.VERSION:
        raise UnsupportedVersion(f"batch.version is {version}; this program reads version {layout.VERSION}")


def short(view: memoryview) -> Malformed:
    """There is not even a head."""
    start = bytes(view[:2])
    if start != layout.MAGIC[: len(start)]:
        return Malformed(f"batch.magic is {start!r}; a batch starts with {layout.MAGIC!r}")
    return Malformed(f"batch.head is cut short: {len(view)} bytes, a batch has at least {layout.HEAD_BYTES}")


def wrong_length(length: int, have: int) -> Malformed:
    """The head and the buffer disagree."""
    what = "it is cut short" if have < length else "bytes follow its end"
    return Malformed(f"batch.length is {length}, but the buffer has {have} bytes: {what}")


def head(view: memoryview, limits: BatchLimits) -> tuple[int, int, int, tuple[int, int, int], tuple[int, int]]:
    """Columns, count, length, stamp and producer, when all that the head says can be true."""
    have = len(view)
    if have < layout.HEAD_BYTES:
        raise short(view)
    magic, version, codec, columns, count, length, offset, base_id, time = layout.HEAD.unpack_from(view)
    recognised(magic, version)
    if codec != layout.CODEC_PLAIN:
        raise UnsupportedVersion(f"batch.codec is {codec}; this program reads codec {layout.CODEC_PLAIN}")
    if columns & ~layout.KNOWN:
        raise Malformed(f"batch.columns is {columns:#06x}; the bits {columns & ~layout.KNOWN:#06x} are not known")
    if columns & (layout.KINDS | layout.GAPS):
        for bit, needs, name, column in layout.NEEDS:
            if columns & bit and not columns & needs:
                raise Malformed(f"batch.columns is {columns:#06x}: it has {name} without the {column} column")
    if count < 1:
        raise Malformed("batch.count is 0; a batch has at least 1 message")
    if count > limits.messages_max:
        raise LimitExceeded(f"batch.count is {count}; at most {limits.messages_max} messages are taken at a time")
    if length > limits.batch_bytes_max:
        raise PayloadTooLarge(f"batch.length is {length}; at most {limits.batch_bytes_max} bytes are taken at a time")
    if length != have:
        raise wrong_length(length, have)
    least = layout.head_bytes(columns)
    if columns > layout.PRODUCER or count > 1:
        least += layout.fixed_bytes(columns, count) + layout.tail_bytes(columns, count)
    if length < least:
        raise Malformed(
            f"batch.count is {count}: these columns of so many messages take at least {least} bytes, "
            f"but batch.length is {length}"
        )
    _stamp(columns, count, offset, base_id, time)
    if not columns & layout.PRODUCER:
        return columns, count, length, (offset, base_id, time), (0, 0)
    producer_id, producer_seq = layout.PAIR.unpack_from(view, layout.HEAD.size)
    if not producer_id:
        raise Malformed("batch.producer_id is 0; a batch without a producer leaves the column out")
    return columns, count, length, (offset, base_id, time), (producer_id, producer_seq)


def _stamp(columns: int, count: int, offset: int, base_id: int, time: int) -> None:
    highest = layout.PLACE_MAX - count
    if not 0 <= offset <= highest:
        raise Malformed(f"batch.base_offset is {offset}; it must be within 0..{highest}")
    if not 0 <= base_id <= highest:
        raise Malformed(f"batch.base_id is {base_id}; it must be within 0..{highest}")
    if not 0 <= time <= TIME_NS_MAX:
        raise Malformed(f"batch.append_time is {time}; it must be within 0..{TIME_NS_MAX}")
    if time:
        return
    if offset or base_id:
        raise Malformed(
            f"batch.base_offset is {offset} and base_id {base_id}, but append_time is 0; "
            "a batch that is not stamped has 0 in all three"
        )
    if columns & layout.DELTA:
        raise Malformed(
            "batch.columns has a delta column, but append_time is 0; only stored messages are selected from"
        )


def checksum(front: bytes, body: bytes, tail: bytes) -> int:
    """Do the bytes match the checksum they carry? The checksum of BODY and TAIL alone, when they do."""
    crc = layout.crc_value(body)
    if tail:
        crc = layout.crc_extend(crc, tail)
    claimed(front, layout.crc_extend(crc, front[:-4]))
    return crc


def claimed(front: bytes, crc: int) -> None:
    """Does a head claim the checksum that was worked out?"""
    found = layout.CRC.unpack_from(front, len(front) - 4)[0]
    if crc != found:
        raise Malformed(f"batch.crc is {found:#010x}, but the bytes sum to {crc:#010x}; they were changed on the way")


def columns(
    columns: int, count: int, stamp: tuple[int, int, int], body: bytes, tail: bytes, limits: BatchLimits
) -> layout.Places:
    """Check every column; where the blocks are, when nothing is wrong with any."""
    found = layout.locate(columns, count, body)
    if count == 1 and not columns & ~layout.PRODUCER and found.values_end <= limits.message_bytes_max:
        return found
    view = memoryview(body)
    if count > 1:
        ends = _rising("value_offsets", view, found.value_offsets, count)
    else:
        ends = [0, found.values_end - found.values]
    _sizes("value", ends, limits.message_bytes_max, PayloadTooLarge)
    if columns & layout.KEY:
        ends = _rising("key_offsets", view, found.key_offsets, count)
        _sizes("key", ends, limits.key_bytes_max, LimitExceeded)
        if not columns & layout.KEY_GAPS:
            _no_gaps("key", ends)
    if columns & layout.DEDUP:
        ends = _rising("dedup_offsets", view, found.dedup_offsets, count)
        _sizes("dedup_id", ends, limits.dedup_id_bytes_max, LimitExceeded)
        if not columns & layout.DEDUP_GAPS:
            _no_gaps("dedup_id", ends)
    if columns & layout.HEADERS:
        _headers(columns, count, found, body, limits)
    if columns & layout.PRIORITY:
        _priorities(body[found.priorities : found.priorities + count])
    if columns & layout.DELTA:
        _deltas(view[found.deltas : found.deltas + 4 * count].cast("I").tolist(), layout.PLACE_MAX - max(stamp[:2]))
    if columns & layout.TIMESTAMP:
        _times("timestamp", view[: 8 * count], columns & layout.TIMESTAMP_GAPS, 0)
    least = 0 if stamp[2] else -SPAN_NS_MAX
    if columns & layout.DELIVER:
        _times("deliver_at", memoryview(tail)[: 8 * count], columns & layout.DELIVER_GAPS, least)
    if columns & layout.EXPIRES:
        _times("expires_at", memoryview(tail)[-8 * count :], columns & layout.EXPIRES_GAPS, least)
    return found


def _rising(field: str, body: memoryview, at: int, entries: int) -> list[int]:
    # `locate` saw that the last offset is inside, so a table that starts at 0 and never falls is inside throughout.
    ends: list[int] = body[at : at + 4 * entries + 4].cast("i").tolist()
    if ends[0]:
        raise Malformed(f"batch.{field}[0] is {ends[0]}; an offset table starts at 0")
    if ends != sorted(ends):
        index = next(index for index in range(1, entries + 1) if ends[index] < ends[index - 1])
        raise Malformed(
            f"batch.{field}[{index}] is {ends[index]}, below {ends[index - 1]} before it; offsets never fall"
        )
    return ends


def _sizes(field: str, ends: list[int], most: int, error: Callable[[str], HeadraceError]) -> None:
    if ends[-1] <= most:
        return
    sizes = list(map(sub, ends[1:], ends))
    worst = max(sizes)
    if worst > most:
        index = sizes.index(worst)
        raise error(f"batch.{field}[{index}] has {worst} bytes; at most {most} are taken")


def _no_gaps(field: str, ends: list[int]) -> None:
    if len(set(ends)) != len(ends):
        index = next(index for index in range(len(ends) - 1) if ends[index] == ends[index + 1])
        raise Malformed(f"batch.{field}[{index}] is empty, but batch.columns says that every message has one")


def _headers(columns: int, count: int, found: layout.Places, body: bytes, limits: BatchLimits) -> None:
    view = memoryview(body)
    entries = found.entries
    per_message = _rising("header_offsets", view, found.header_offsets, count)
    names = _rising("name_offsets", view, found.name_offsets, entries)
    items = _rising("item_offsets", view, found.item_offsets, entries)
    _sizes("headers", per_message, limits.headers_max, _too_many_headers)
    if names[-1] + items[-1] > limits.headers_bytes_max:
        sizes = [names[at] + items[at] for at in per_message]
        _sizes("headers", sizes, limits.headers_bytes_max, LimitExceeded)
    _text("header name", body[found.names : found.items], names, None)
    item_data = body[found.items : found.values]
    if not columns & layout.KINDS:
        _text("header value", item_data, items, None)
        return
    kinds = body[found.kinds : found.kinds + entries]
    strange = kinds.translate(None, b"\0\1")
    if strange:
        raise Malformed(f"batch.kinds[{kinds.index(strange[0])}] is {strange[0]}; 0 is str and 1 is bytes")
    _text("header value", item_data, items, kinds)


def _too_many_headers(message: str) -> HeadraceError:
    return LimitExceeded(message.replace("bytes", "entries"))


def _text(field: str, data: bytes, ends: list[int], kinds: bytes | None) -> None:
    if data.isascii():
        return
    pieces = map(data.__getitem__, map(slice, ends, ends[1:]))
    texts = pieces if kinds is None else (piece for piece, kind in zip(pieces, kinds, strict=True) if not kind)
    try:
        for _ in map(str, texts, repeat("utf-8")):
            pass
    except UnicodeDecodeError as error:
        shown = bytes(error.object[:40])
        raise Malformed(f"batch.headers: the {field} {shown!r} is not UTF-8 at its byte {error.start}") from None


def _priorities(column: bytes) -> None:
    strange = column.translate(None, _LANES)
    if strange:
        index = column.index(strange[0])
        raise Malformed(f"batch.priority[{index}] is {strange[0]}; it must be within 0..{PRIORITY_MAX}")


def _deltas(column: list[int], most: int) -> None:
    if max(column) > most:
        raise Malformed(f"batch.delta[{column.index(max(column))}] is {max(column)}; at most {most} from these bases")
    if len(set(column)) != len(column):
        seen: set[int] = set()
        index = next(index for index, delta in enumerate(column) if delta in seen or seen.add(delta))  # type: ignore[func-returns-value]  # add() returns None on purpose
        raise Malformed(f"batch.delta[{index}] is {column[index]} again; every message has its own")


def _times(field: str, column: memoryview, gaps: int, least: int) -> None:
    times: list[int] = column.cast("q").tolist()
    low, high = min(times), max(times)
    if low < least or high > TIME_NS_MAX:
        bad = low if low < least else high
        raise Malformed(f"batch.{field}[{times.index(bad)}] is {bad}; it must be within {least}..{TIME_NS_MAX} ns")
    if not gaps and 0 in times:
        raise Malformed(f"batch.{field}[{times.index(0)}] is 0, but batch.columns says that every message has one")
