"""From what callers have (messages, lists, one value, an Arrow table) to a batch.

A column whose entries are all absent or default is left out. Work per message happens in C (`map`, `accumulate`,
`join`); Python loops run only over columns that mix presence and absence, and to find whom to blame for a refusal.
"""

from __future__ import annotations

from array import array
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final

from headrace.batch import layout
from headrace.batch.batch import NO_CRC, NO_PRODUCER, UNSTAMPED, Batch, sealed
from headrace.batch.columns import Columns, check_count, table, too_large
from headrace.errors import InvalidArgument, LimitExceeded, Malformed, PayloadTooLarge
from headrace.limits import (
    BATCH_BYTES_MAX,
    DEDUP_ID_BYTES_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    PRIORITY_MAX,
    SPAN_NS_MAX,
    TIME_NS_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from headrace.batch.message import Message

_HEAD_BYTES: Final = layout.HEAD_BYTES
_KEYED_BYTES: Final = layout.HEAD_BYTES + layout.BOUNDS.size
_PLAIN_BYTES_MAX: Final = min(MESSAGE_BYTES_MAX, BATCH_BYTES_MAX - _KEYED_BYTES - KEY_BYTES_MAX)
"""Above this a single value has to be looked at: it may be refused."""
_MAGIC: Final = layout.MAGIC
_VERSION: Final = layout.VERSION
_bounds: Final = layout.BOUNDS.pack
_pack_head: Final = layout.HEAD.pack
_pack_crc: Final = layout.CRC.pack
_crc_value: Final = layout.crc_value
_extend: Final = layout.crc_extend
_LANE_BYTES: Final = tuple(bytes([lane]) for lane in range(PRIORITY_MAX + 1))


def encode(messages: Sequence[Message], *, producer_id: int = 0, producer_seq: int = 0) -> Batch:
    """A batch of these messages, not yet stamped.

    >>> from headrace.batch import Message, encode
    >>> encode([Message(b"a", key=b"k"), Message(b"b", delay_ns=5_000_000_000)]).count
    2
    """
    check_count(len(messages))
    if len(messages) == 1:
        one = messages[0]
        return encode_one(
            one.value,
            key=one.key,
            headers=one.headers,
            priority=one.priority,
            delay_ns=one.delay_ns,
            deliver_at_ns=one.deliver_at_ns,
            ttl_ns=one.ttl_ns,
            expires_at_ns=one.expires_at_ns,
            dedup_id=one.dedup_id,
            timestamp_ns=one.timestamp_ns,
            producer_id=producer_id,
            producer_seq=producer_seq,
        )
    # One comprehension per field: the interpreter specialises the attribute read, which is twice as fast as attrgetter.
    return encode_columns(
        [message.value for message in messages],
        keys=[message.key for message in messages],
        headers=[message.headers for message in messages],
        priorities=[message.priority for message in messages],
        delays_ns=[message.delay_ns for message in messages],
        deliver_ats_ns=[message.deliver_at_ns for message in messages],
        ttls_ns=[message.ttl_ns for message in messages],
        expires_ats_ns=[message.expires_at_ns for message in messages],
        dedup_ids=[message.dedup_id for message in messages],
        timestamps_ns=[message.timestamp_ns for message in messages],
        producer_id=producer_id,
        producer_seq=producer_seq,
    )


def encode_one(
    value: bytes,
    *,
    key: bytes | None = None,
    headers: Mapping[str, str | bytes] | None = None,
    priority: int = layout.DEFAULT_PRIORITY,
    delay_ns: int | None = None,
    deliver_at_ns: int | None = None,
    ttl_ns: int | None = None,
    expires_at_ns: int | None = None,
    dedup_id: bytes | None = None,
    timestamp_ns: int | None = None,
    producer_id: int = 0,
    producer_seq: int = 0,
) -> Batch:
    """A batch of one message; a value that is `bytes` is not even copied.

    >>> from headrace.batch import encode_one
    >>> encode_one(b"hello").size_bytes
    45
    """
    made = _single(
        value, key, headers, priority, delay_ns, deliver_at_ns, ttl_ns, expires_at_ns, dedup_id, timestamp_ns
    )
    if made is None:
        return encode_columns(
            (value,),
            keys=(key,),
            headers=(headers,),
            priorities=(priority,),
            delays_ns=(delay_ns,),
            deliver_ats_ns=(deliver_at_ns,),
            ttls_ns=(ttl_ns,),
            expires_ats_ns=(expires_at_ns,),
            dedup_ids=(dedup_id,),
            timestamps_ns=(timestamp_ns,),
            producer_id=producer_id,
            producer_seq=producer_seq,
        )
    flags, body, tail = made
    size = _HEAD_BYTES + len(body) + len(tail)
    producer = NO_PRODUCER
    if producer_id or producer_seq:
        producer = _producer(producer_id, producer_seq)
        flags |= layout.PRODUCER
        size += layout.PAIR.size
    if size > BATCH_BYTES_MAX:
        raise too_large(size)
    return Batch(None, body, tail, NO_CRC, flags, 1, size, *UNSTAMPED, *producer)


def encode_plain(value: bytes, key: bytes | None = None) -> Batch:
    """`encode_one` for what most messages are: a value that is `bytes`, and perhaps a key.

    >>> from headrace.batch import encode_one, encode_plain
    >>> encode_plain(b"hello", b"k") == encode_one(b"hello", key=b"k")
    True
    """
    size = len(value)
    if size > _PLAIN_BYTES_MAX:
        return encode_one(value, key=key)
    if not key:
        return Batch(None, value, b"", NO_CRC, 0, 1, _HEAD_BYTES + size)
    length = len(key)
    if length > KEY_BYTES_MAX:
        return encode_one(value, key=key)
    body = _bounds(0, length) + key + value
    return Batch(None, body, b"", NO_CRC, layout.KEY, 1, _KEYED_BYTES + length + size)


def encode_placed(value: bytes, base_offset: int, base_id: int, append_time_ns: int) -> Batch:
    """The batch of one value as its broker appends it, stamped as it is made. Whoever calls knows that it may be taken.

    >>> from headrace.batch import encode_one, encode_placed
    >>> encode_placed(b"hello", 7, 8, 9) == encode_one(b"hello").stamp(7, 8, 9)
    True
    """
    size = _HEAD_BYTES + len(value)
    crc = _crc_value(value)
    front = _pack_head(_MAGIC, _VERSION, 0, 0, 1, size, base_offset, base_id, append_time_ns)
    front += _pack_crc(_extend(crc, front))
    return Batch(front, value, b"", crc, 0, 1, size, base_offset, base_id, append_time_ns)


def _single(
    value: bytes,
    key: bytes | None,
    headers: Mapping[str, str | bytes] | None,
    priority: int,
    delay_ns: int | None,
    deliver_at_ns: int | None,
    ttl_ns: int | None,
    expires_at_ns: int | None,
    dedup_id: bytes | None,
    timestamp_ns: int | None,
) -> tuple[int, bytes, bytes] | None:
    """Flags, BODY and TAIL of one ordinary message, built without columns; None for what `encode_columns` must look at:
    header values that are not str, and everything that it refuses."""
    if type(value) is not bytes or len(value) > MESSAGE_BYTES_MAX:
        return None
    flags = 0
    body = value
    if headers:
        try:
            names = list(map(str.encode, headers))
            items = list(map(str.encode, headers.values()))  # type: ignore[arg-type]  # bytes raise, and go the long way
        except (TypeError, UnicodeEncodeError):
            return None
        name_ends, item_ends = table(map(len, names)), table(map(len, items))
        if len(names) > HEADERS_MAX or name_ends[-1] + item_ends[-1] > HEADERS_BYTES_MAX:
            return None
        flags = layout.HEADERS
        entries = layout.BOUNDS.pack(0, len(names)) + name_ends.tobytes() + item_ends.tobytes()
        body = b"".join([*names, *items, value])
    else:
        entries = b""
    if priority != layout.DEFAULT_PRIORITY:
        if type(priority) is not int or not 0 <= priority <= PRIORITY_MAX:
            return None
        flags |= layout.PRIORITY
        entries += _LANE_BYTES[priority]
    if dedup_id:
        if type(dedup_id) is not bytes or len(dedup_id) > DEDUP_ID_BYTES_MAX:
            return None
        flags |= layout.DEDUP
        entries = layout.BOUNDS.pack(0, len(dedup_id)) + entries
        body = dedup_id + body
    if key:
        if type(key) is not bytes or len(key) > KEY_BYTES_MAX:
            return None
        flags |= layout.KEY
        entries = layout.BOUNDS.pack(0, len(key)) + entries
        body = key + body
    if timestamp_ns:
        if type(timestamp_ns) is not int or not 0 < timestamp_ns <= TIME_NS_MAX:
            return None
        flags |= layout.TIMESTAMP
        entries = layout.INT64.pack(timestamp_ns) + entries
    if entries:
        body = entries + body
    if delay_ns is None and deliver_at_ns is None and ttl_ns is None and expires_at_ns is None:
        return flags, body, b""
    deliver = _time(deliver_at_ns, delay_ns, 0)
    expire = _time(expires_at_ns, ttl_ns, 1)
    if deliver is None or expire is None:
        return None
    tail = b""
    if deliver:
        flags |= layout.DELIVER
        tail = layout.INT64.pack(deliver)
    if expire:
        flags |= layout.EXPIRES
        tail += layout.INT64.pack(expire)
    return flags, body, tail


def _time(instant: int | None, span: int | None, least: int) -> int | None:
    """An instant, a negated span, 0 for neither, None when that is for `_times` to judge."""
    if span is None:
        if instant is None:
            return 0
        return instant if type(instant) is int and 0 <= instant <= TIME_NS_MAX else None
    if instant or type(span) is not int or not least <= span <= SPAN_NS_MAX:
        return None
    return -span


def encode_columns(
    values: Sequence[bytes],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Mapping[str, str | bytes] | None] | None = None,
    priorities: Sequence[int | None] | None = None,
    delays_ns: Sequence[int | None] | None = None,
    deliver_ats_ns: Sequence[int | None] | None = None,
    ttls_ns: Sequence[int | None] | None = None,
    expires_ats_ns: Sequence[int | None] | None = None,
    dedup_ids: Sequence[bytes | None] | None = None,
    timestamps_ns: Sequence[int | None] | None = None,
    producer_id: int = 0,
    producer_seq: int = 0,
) -> Batch:
    """A batch from columns of equal length; the fastest way in when the values are a list of bytes.

    >>> from headrace.batch import encode_columns
    >>> encode_columns([b"a", b"b"], keys=[b"k", None]).keys()
    [b'k', b'']
    """
    count = len(values)
    check_count(count)
    out = Columns(count)
    sizes = _sizes("value", values)
    total = sum(sizes)
    if total > MESSAGE_BYTES_MAX:
        _at_most("value", sizes, MESSAGE_BYTES_MAX, PayloadTooLarge)
        if total > BATCH_BYTES_MAX:
            raise PayloadTooLarge(f"the values take {total} bytes; a batch holds {BATCH_BYTES_MAX}, send it as several")
    if count > 1:
        out.value_offsets = table(sizes)
    out.values = values
    expected = total
    if keys is not None:
        _same_length("keys", keys, count)
        out.key_offsets, out.keys, size, gaps = _strings("key", keys, KEY_BYTES_MAX)
        expected += size
        if size:
            out.flags |= layout.KEY | (layout.KEY_GAPS if gaps else 0)
    if dedup_ids is not None:
        _same_length("dedup_ids", dedup_ids, count)
        out.dedup_offsets, out.dedups, size, gaps = _strings("dedup_id", dedup_ids, DEDUP_ID_BYTES_MAX)
        expected += size
        if size:
            out.flags |= layout.DEDUP | (layout.DEDUP_GAPS if gaps else 0)
    if headers is not None:
        _same_length("headers", headers, count)
        if any(headers):
            _headers(out, headers)
    if priorities is not None:
        _same_length("priorities", priorities, count)
        _priorities(out, priorities)
    if timestamps_ns is not None:
        _same_length("timestamps_ns", timestamps_ns, count)
        _put_times(out, "timestamps", _instants("timestamp_ns", timestamps_ns), layout.TIMESTAMP, layout.TIMESTAMP_GAPS)
    if delays_ns is not None or deliver_ats_ns is not None:
        times = _times(("deliver_at_ns", deliver_ats_ns), ("delay_ns", delays_ns), count, 0)
        _put_times(out, "delivers", times, layout.DELIVER, layout.DELIVER_GAPS)
    if ttls_ns is not None or expires_ats_ns is not None:
        times = _times(("expires_at_ns", expires_ats_ns), ("ttl_ns", ttls_ns), count, 1)
        _put_times(out, "expires", times, layout.EXPIRES, layout.EXPIRES_GAPS)
    producer = _producer(producer_id, producer_seq) if producer_id or producer_seq else NO_PRODUCER
    try:
        batch = sealed(out, UNSTAMPED, producer)
    except TypeError:
        for field, column in (("value", values), ("key", keys or ()), ("dedup_id", dedup_ids or ())):
            _all_bytes(field, column)
        raise
    try:
        found = batch.places()
    except Malformed:
        found = None
    if found is None or found.values_end - found.values + found.names - found.keys != expected:
        raise InvalidArgument("a value, key or dedup id is a view of wide items; give bytes (or view.cast('B'))")
    return batch


def encode_arrow(table: pa.Table | pa.RecordBatch, *, producer_id: int = 0, producer_seq: int = 0) -> Batch:
    """A batch from an Arrow table or record batch with the columns `Batch.to_arrow` gives; only `value` must be there.

    Nulls are absent entries. Also taken: `delay_ns` and `ttl_ns`; `offset`, `id` and `append_time_ns` are ignored, so
    what was read can be sent again.
    """
    from headrace.batch import arrow

    producer = _producer(producer_id, producer_seq) if producer_id or producer_seq else NO_PRODUCER
    batch = sealed(arrow.columns_of(table), UNSTAMPED, producer)
    try:
        batch.verify()
    except Malformed as error:
        raise InvalidArgument(error.message) from None
    return batch


def _producer(producer_id: int, producer_seq: int) -> tuple[int, int]:
    if not 0 < producer_id <= layout.PRODUCER_MAX:
        raise InvalidArgument(f"producer_id is {producer_id}; with a sequence it must be within 1..2^64-1")
    if not 0 <= producer_seq <= layout.PRODUCER_MAX:
        raise InvalidArgument(f"producer_seq is {producer_seq}; it must be within 0..2^64-1")
    return producer_id, producer_seq


def _same_length(name: str, column: Sequence[Any], count: int) -> None:
    if len(column) != count:
        raise InvalidArgument(f"{name} has {len(column)} entries for {count} values; give one per value")


def _sizes(field: str, column: Sequence[Any]) -> list[int]:
    try:
        return list(map(len, column))
    except TypeError:
        _all_bytes(field, column)
        raise


def _all_bytes(field: str, column: Sequence[Any]) -> None:
    for index, item in enumerate(column):
        if not isinstance(item, (bytes, bytearray, memoryview)) and (item is not None or field == "value"):
            hint = "; encode it first, for example with .encode()" if isinstance(item, str) else ""
            raise InvalidArgument(f"the {field} of message {index} is {type(item).__name__}; it must be bytes{hint}")


def _at_most(
    field: str, sizes: list[int], most: int, error: type[LimitExceeded | PayloadTooLarge] = LimitExceeded
) -> None:
    worst = max(sizes)
    if worst > most:
        raise error(f"the {field} of message {sizes.index(worst)} has {worst} bytes; at most {most} are taken")


_NO_STRINGS: Final[tuple[bytes, tuple[bytes, ...], int, bool]] = (b"", (), 0, False)


def _strings(
    field: str, column: Sequence[bytes | None], most: int
) -> tuple[array[int] | bytes, Sequence[bytes], int, bool]:
    """Offset table, pieces, total size, and whether some are absent; all empty when all are absent."""
    blanks = column.count(None)
    if blanks == len(column):
        return _NO_STRINGS
    pieces: Sequence[Any] = [item or b"" for item in column] if blanks else column
    sizes = _sizes(field, pieces)
    if not any(sizes):
        return _NO_STRINGS
    _at_most(field, sizes, most)
    return table(sizes), pieces, sum(sizes), 0 in sizes


def _headers(out: Columns, headers: Sequence[Mapping[str, str | bytes] | None]) -> None:
    filled = [entry or {} for entry in headers]
    counts = list(map(len, filled))
    if max(counts) > HEADERS_MAX:
        index = counts.index(max(counts))
        raise LimitExceeded(f"message {index} has {counts[index]} headers; at most {HEADERS_MAX} are taken")
    values = list(chain.from_iterable(entry.values() for entry in filled))
    kinds = list(map(type, values))
    try:
        names = list(map(str.encode, chain.from_iterable(filled)))
        if kinds.count(str) == len(values):
            items: list[bytes] = list(map(str.encode, values))  # type: ignore[arg-type]  # all str, just counted
        else:
            items = [item.encode() if isinstance(item, str) else item for item in values]
            out.kinds = bytes([not isinstance(item, str) for item in values])
            out.flags |= layout.KINDS
            if not all(isinstance(item, (bytes, bytearray)) for item in items):
                raise TypeError
    except (TypeError, UnicodeEncodeError):
        _blame_header(headers)
        raise
    name_ends, item_ends = table(map(len, names)), table(map(len, items))
    if name_ends[-1] + item_ends[-1] > HEADERS_BYTES_MAX:
        ends = table(counts)
        totals = [name_ends[end] + item_ends[end] for end in ends]
        _at_most("headers", [end - start for start, end in pairwise(totals)], HEADERS_BYTES_MAX)
    out.flags |= layout.HEADERS
    out.header_offsets = table(counts)
    out.name_offsets, out.item_offsets = name_ends, item_ends
    out.names, out.items = names, items


def _blame_header(headers: Sequence[Mapping[Any, Any] | None]) -> None:
    for index, entry in enumerate(headers):
        for name, item in (entry or {}).items():
            for text in (name, item):
                if isinstance(text, str) and not text.isascii() and "surrogates" in _encode_error(text):
                    raise InvalidArgument(f"headers of message {index}: {text!r} cannot be written as UTF-8")
            if not isinstance(name, str) or not isinstance(item, (str, bytes, bytearray)):
                raise InvalidArgument(
                    f"headers of message {index}: {name!r}: {item!r} is {type(name).__name__}: {type(item).__name__}; "
                    "a name is str, a value is str or bytes"
                )


def _encode_error(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.reason
    return ""


def _priorities(out: Columns, column: Sequence[Any]) -> None:
    if column.count(layout.DEFAULT_PRIORITY) == len(column):
        return
    lanes = [layout.DEFAULT_PRIORITY if lane is None else lane for lane in column]
    if lanes.count(layout.DEFAULT_PRIORITY) == len(lanes):
        return
    for index, lane in enumerate(lanes):
        if not isinstance(lane, int) or not 0 <= lane <= PRIORITY_MAX:
            raise InvalidArgument(f"the priority of message {index} is {lane!r}; it must be within 0..{PRIORITY_MAX}")
    out.priorities = bytes(lanes)
    out.flags |= layout.PRIORITY


def _put_times(out: Columns, name: str, column: list[int] | None, bit: int, gaps: int) -> None:
    if column is not None:
        setattr(out, name, array("q", column))
        out.flags |= bit | (gaps if 0 in column else 0)


def _instants(field: str, column: Sequence[int | None] | None) -> list[int] | None:
    if column is None or column.count(None) == len(column):
        return None
    times = [at or 0 for at in column]
    try:
        low, high = min(times), max(times)
        if low < 0 or high > TIME_NS_MAX:
            bad = low if low < 0 else high
            raise InvalidArgument(
                f"the {field} of message {times.index(bad)} is {bad}; it must be within 0..{TIME_NS_MAX}"
            )
        return times if high else None
    except TypeError:
        raise InvalidArgument(f"{field}: give whole nanoseconds as int") from None


def _times(
    absolute: tuple[str, Sequence[int | None] | None],
    relative: tuple[str, Sequence[Any] | None],
    count: int,
    least: int,
) -> list[int] | None:
    """One column out of instants (> 0) and spans (stored < 0); None when there are neither."""
    for name, column in (absolute, relative):
        if column is not None:
            _same_length(name, column, count)
    times = _instants(*absolute)
    name, spans = relative
    if spans is None or spans.count(None) == count:
        return times
    if times is None:
        times = [0] * count
    for index, span in enumerate(spans):
        if span is None:
            continue
        if not isinstance(span, int):
            raise InvalidArgument(f"the {name} of message {index} is {span!r}; it must be a number of nanoseconds")
        if not least <= span <= SPAN_NS_MAX:
            bounds = "over 0s" if least else "0s or more"
            word = name.removesuffix("_ns")
            raise InvalidArgument(
                f"the {word} of message {index} is {span / 1e9:g}s; it must be {bounds} and below 73 years"
            )
        if times[index]:
            raise InvalidArgument(f"message {index} has both {absolute[0]} and {name}; give one of them")
        times[index] = -span
    return times if any(times) else None
