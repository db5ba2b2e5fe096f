"""A batch in memory: its encoded bytes in three pieces, and columns found when asked for.

`_head`, `_body` and `_tail` concatenated are exactly the encoded batch (`layout` draws it). A stamp replaces the head,
and the tail when a delay became an instant; the body, where the values are, is shared by every batch made that way. A
batch is never changed once it is made: every operation returns another one.

Two things are put off until somebody asks. A head whose fields are all known need not be written: what is encoded in
the process that stamps it never needs an unstamped one. And `_crc`, the checksum of BODY and TAIL where it was once
worked out, makes every later head cost its own few bytes only, whatever the size of the values.

A batch is a struct without a place in the garbage collector's lists: millions of them lie in a log's tail, and nothing
that a batch refers to refers back.
"""

from __future__ import annotations

from array import array
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec
from xxhash import xxh3_64_intdigest

from headrace.batch import check, layout
from headrace.batch.columns import Columns, check_count, head_of, raised, rebased, table, too_large
from headrace.batch.message import MessageView
from headrace.errors import InvalidArgument, PayloadTooLarge
from headrace.limits import BATCH_BYTES_MAX, TIME_NS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from headrace.batch.message import Message

UNSTAMPED: Final = (0, 0, 0)
NO_PRODUCER: Final = (0, 0)
NO_CRC: Final = -1
_MAGIC: Final = layout.MAGIC
_VERSION: Final = layout.VERSION
_pack_head: Final = layout.HEAD.pack
_pack_crc: Final = layout.CRC.pack
_extend: Final = layout.crc_extend


class Batch(msgspec.Struct, gc=False, eq=False):
    """Messages side by side, in one buffer. Made by `encode`, `Batch.decode` or `Batch.trusted`, never by hand.

    >>> from headrace.batch import Message, encode
    >>> batch = encode([Message(b"a"), Message(b"b", key=b"k")])
    >>> stamped = batch.stamp(100, 7000, 1_700_000_000_000_000_000)
    >>> [(m.offset, m.key, m.value) for m in stamped]
    [(100, None, b'a'), (101, b'k', b'b')]
    """

    _head: bytes | None
    _body: bytes | memoryview
    _tail: bytes | memoryview
    _crc: int  # of BODY and TAIL; NO_CRC where nobody has worked it out
    columns: int
    count: int
    size_bytes: int
    base_offset: int = 0
    base_id: int = 0
    append_time_ns: int = 0
    producer_id: int = 0
    producer_seq: int = 0
    _found: layout.Places | None = None
    _ends: memoryview | None = None
    _hashes: array[int] | None = None

    # -- in and out ----------------------------------------------------------------------------------------------------

    @staticmethod
    def decode(buffer: bytes | bytearray | memoryview, *, limits: check.BatchLimits = check.DEFAULT_LIMITS) -> Batch:
        """A batch from bytes nobody vouches for: everything is checked before anything is believed.

        The batch keeps its own copy of the bytes. Raises Malformed, UnsupportedVersion, PayloadTooLarge or
        LimitExceeded, each naming the field, its value and what would be right.
        """
        view = memoryview(buffer).cast("B")
        columns, count, length, stamp, producer = check.head(view, limits)
        head_size = layout.head_bytes(columns)
        tail_at = length - layout.tail_bytes(columns, count) if columns & _TIMES else length
        front = bytes(view[:head_size])
        body = bytes(view[head_size:tail_at])
        tail = bytes(view[tail_at:]) if tail_at < length else b""
        crc = check.checksum(front, body, tail)
        found = check.columns(columns, count, stamp, body, tail, limits)
        return Batch(front, body, tail, crc, columns, count, length, *stamp, *producer, found)

    @staticmethod
    def trusted(buffer: bytes | memoryview) -> Batch:
        """A batch from bytes this program wrote and a frame's crc has verified. Constant time, no copy.

        The buffer must not change while the batch lives.
        """
        view = memoryview(buffer)
        size = len(view)
        if size < _HEAD_BYTES:
            raise check.short(view)
        magic, version, _, columns, count, length, base_offset, base_id, time = _head_at(view)
        if magic != layout.MAGIC or version != layout.VERSION:
            check.recognised(magic, version)
        if length != size:
            raise check.wrong_length(length, size)
        stamp = (base_offset, base_id, time)
        if not columns & _TIMES_OR_PRODUCER:
            return Batch(bytes(view[:_HEAD_BYTES]), view[_HEAD_BYTES:], b"", NO_CRC, columns, count, length, *stamp)
        at = layout.head_bytes(columns)
        tail_at = length - layout.tail_bytes(columns, count)
        producer = layout.PAIR.unpack_from(view, layout.HEAD.size) if columns & layout.PRODUCER else NO_PRODUCER
        pieces = bytes(view[:at]), view[at:tail_at], view[tail_at:]
        return Batch(*pieces, NO_CRC, columns, count, length, *stamp, *producer)

    def verify(self, limits: check.BatchLimits = check.HIGHEST_LIMITS) -> None:
        """Check every column as `decode` does, of a batch that is already in memory; the checksum is not looked at."""
        body, tail = bytes(self._body), bytes(self._tail)
        stamp = (self.base_offset, self.base_id, self.append_time_ns)
        self._found = check.columns(self.columns, self.count, stamp, body, tail, limits)

    def buffers(self) -> list[bytes | memoryview]:
        """The pieces whose concatenation is the encoded batch."""
        head = self._head or self._written_head()
        if self._tail:
            return [head, self._body, self._tail]
        return [head, self._body]

    def _written_head(self) -> bytes:
        """The head, written now."""
        crc = self._crc if self._crc != NO_CRC else self._summed()
        stamp = (self.base_offset, self.base_id, self.append_time_ns)
        producer = (self.producer_id, self.producer_seq)
        head = self._head = head_of(self.columns, self.count, self.size_bytes, stamp, producer, crc)
        return head

    def framed(self, before: bytes) -> bytes:
        """The encoded batch behind other bytes, in one piece."""
        return b"".join((before, self._head or self._written_head(), self._body, self._tail))

    def to_bytes(self) -> bytes:
        """The encoded batch in one piece."""
        return b"".join(self.buffers())

    def stamp(self, base_offset: int, base_id: int, append_time_ns: int) -> Batch:
        """The batch as the broker appends it: with its place, its ids, and its delays and ttls made instants."""
        columns = self.columns
        if columns & layout.DELTA:
            raise InvalidArgument("a sparse selection of stored messages cannot be stamped; concat it into a new batch")
        highest = layout.PLACE_MAX - self.count
        if not (0 <= base_offset <= highest and 0 <= base_id <= highest and 0 < append_time_ns <= TIME_NS_MAX):
            raise InvalidArgument(
                f"stamp({base_offset}, {base_id}, {append_time_ns}): offset and id must be within 0..{highest}, "
                f"the time within 1..{TIME_NS_MAX}"
            )
        crc = self._crc
        if crc == NO_CRC:
            crc = self._summed()
        tail = self._tail
        if tail:
            resolved = self._resolved(append_time_ns)
            crc = layout.crc_patched(crc, tail, resolved)
            tail = resolved
        if columns & layout.PRODUCER:
            stamp = (base_offset, base_id, append_time_ns)
            producer = (self.producer_id, self.producer_seq)
            front = head_of(columns, self.count, self.size_bytes, stamp, producer, crc)
        else:  # the same, in line
            size = self.size_bytes
            front = _pack_head(_MAGIC, _VERSION, 0, columns, self.count, size, base_offset, base_id, append_time_ns)
            front += _pack_crc(_extend(crc, front))
        return Batch(
            front,
            self._body,
            tail,
            crc,
            columns,
            self.count,
            self.size_bytes,
            base_offset,
            base_id,
            append_time_ns,
            self.producer_id,
            self.producer_seq,
            self._found,
            self._ends,
            self._hashes,
        )

    def _summed(self) -> int:
        """The checksum of BODY and TAIL, worked out now. A head that was read has to agree with it: what was damaged
        before a stamp is not to look whole after it."""
        crc = layout.crc_value(bytes(self._body))
        if self._tail:
            crc = layout.crc_extend(crc, bytes(self._tail))
        if self._head is not None:
            check.claimed(self._head, layout.crc_extend(crc, self._head[:-4]))
        self._crc = crc
        return crc

    def from_producer(self, producer_id: int, producer_seq: int) -> Batch:
        """The batch as the ``producer_seq``-th of a producer, so that it is stored once however often it is sent.

        >>> from headrace.batch import encode_one
        >>> batch = encode_one(b"a").from_producer(7, 1)
        >>> (batch.producer_id, batch.producer_seq) == (7, 1) == (lambda b: (b.producer_id, b.producer_seq))(
        ...     Batch.decode(batch.to_bytes())
        ... )
        True
        """
        if not (0 < producer_id <= layout.PRODUCER_MAX and 0 <= producer_seq <= layout.PRODUCER_MAX):
            raise InvalidArgument(
                f"from_producer({producer_id}, {producer_seq}): the id must be within 1..2^64-1, the sequence within "
                "0..2^64-1"
            )
        size = self.size_bytes
        if not self.columns & layout.PRODUCER:
            size += layout.PAIR.size
            if size > BATCH_BYTES_MAX:
                raise too_large(size)
        return Batch(
            None,
            self._body,
            self._tail,
            self._crc if self._crc != NO_CRC else self._summed(),
            self.columns | layout.PRODUCER,
            self.count,
            size,
            self.base_offset,
            self.base_id,
            self.append_time_ns,
            producer_id,
            producer_seq,
            self._found,
            self._ends,
            self._hashes,
        )

    def _resolved(self, now_ns: int) -> bytes:
        """The tail with its spans made instants."""
        delivers = self._delivers()
        expires = self._expires()
        due: list[int] | None = None
        pieces: list[bytes] = []
        if delivers is not None:
            due = delivers.tolist()
            if min(due) < 0:
                due = _after([now_ns] * self.count, due)
            pieces.append(array("q", due).tobytes())
        if expires is not None:
            ends = expires.tolist()
            if min(ends) < 0:
                starts = [max(now_ns, at) for at in due] if due is not None else [now_ns] * self.count
                ends = _after(starts, ends)
            pieces.append(array("q", ends).tobytes())
        return b"".join(pieces)

    # -- where things are ----------------------------------------------------------------------------------------------

    @property
    def is_stamped(self) -> bool:
        """Has the broker given it a place?"""
        return self.append_time_ns != 0

    def places(self) -> layout.Places:
        """Where each block of the body starts."""
        found = self._found
        if found is None:
            found = self._found = layout.locate(self.columns, self.count, self._body)
        return found

    def _block(self, start: int, size: int, kind: str) -> memoryview:
        return memoryview(self._body)[start : start + size].cast(kind)  # type: ignore[call-overload, no-any-return]  # the kinds are literals below

    def _offsets(self, start: int, entries: int) -> memoryview:
        return self._block(start, 4 * entries + 4, "i")

    def value_offsets(self) -> memoryview:
        """n+1 offsets into the value data, also for a single message."""
        ends = self._ends
        if ends is None:
            found = self.places()
            if self.count > 1:
                ends = self._offsets(found.value_offsets, self.count)
            else:
                ends = memoryview(array("i", (0, found.values_end - found.values)))
            self._ends = ends
        return ends

    def _delivers(self) -> memoryview | None:
        if self.columns & layout.DELIVER:
            return memoryview(self._tail)[: 8 * self.count].cast("q")
        return None

    def _expires(self) -> memoryview | None:
        if self.columns & layout.EXPIRES:
            return memoryview(self._tail)[-8 * self.count :].cast("q")
        return None

    def _timestamps(self) -> memoryview | None:
        if self.columns & layout.TIMESTAMP:
            return self._block(0, 8 * self.count, "q")
        return None

    def _deltas(self) -> memoryview | None:
        if self.columns & layout.DELTA:
            return self._block(self.places().deltas, 4 * self.count, "I")
        return None

    def _index(self, index: int) -> None:
        if not 0 <= index < self.count:
            raise IndexError(f"message {index} of a batch of {self.count}")

    # -- whole columns -------------------------------------------------------------------------------------------------

    def values(self) -> list[bytes]:
        """Every value."""
        found = self.places()
        if self.count == 1:
            return [bytes(self._body[found.values : found.values_end])]
        return _cut(self._body, found.values, found.values_end, self.value_offsets())

    def keys(self) -> list[bytes] | None:
        """Every key, b"" for none; None without a key column."""
        if not self.columns & layout.KEY:
            return None
        found = self.places()
        return _cut(self._body, found.keys, found.dedups, self._offsets(found.key_offsets, self.count))

    def key_hashes(self) -> array[int] | None:
        """xxh3_64 of every key with 0 moved to 1, and 0 for no key; None without a key column."""
        hashes = self._hashes
        if hashes is None:
            keys = self.keys()
            if keys is None:
                return None
            hashes = self._hashes = array("Q", [(xxh3_64_intdigest(key) or 1) if key else 0 for key in keys])
        return hashes

    def dedup_ids(self) -> list[bytes] | None:
        """Every deduplication id, b"" for none; None without the column."""
        if not self.columns & layout.DEDUP:
            return None
        found = self.places()
        return _cut(self._body, found.dedups, found.names, self._offsets(found.dedup_offsets, self.count))

    def priorities(self) -> bytes | None:
        """Every priority; None when all are the default 5."""
        if not self.columns & layout.PRIORITY:
            return None
        at = self.places().priorities
        return bytes(self._body[at : at + self.count])

    def deliver_ats(self) -> array[int] | None:
        """Unix ns, 0 for at once, before the stamp negative delays; None when all are at once."""
        column = self._delivers()
        return None if column is None else array("q", column.tobytes())

    def expires_ats(self) -> array[int] | None:
        """Unix ns, 0 for the topic's default, before the stamp negative ttls; None when all are the default."""
        column = self._expires()
        return None if column is None else array("q", column.tobytes())

    def timestamps(self) -> array[int] | None:
        """The producer's times, 0 for none; None without the column."""
        column = self._timestamps()
        return None if column is None else array("q", column.tobytes())

    def ids(self) -> range | array[int]:
        """Every id: a range, or an array for a sparse selection."""
        return self._numbers(self.base_id)

    def offsets(self) -> range | array[int]:
        """Every offset: a range, or an array for a sparse selection."""
        return self._numbers(self.base_offset)

    def _numbers(self, base: int) -> range | array[int]:
        deltas = self._deltas()
        if deltas is None:
            return range(base, base + self.count)
        return array("q", map(base.__add__, deltas))

    # -- one message ---------------------------------------------------------------------------------------------------

    def delta(self, index: int) -> int:
        """How far message `index` is from the batch's base offset and base id."""
        self._index(index)
        if self.columns & layout.DELTA:
            return int(layout.UINT32.unpack_from(self._body, self.places().deltas + 4 * index)[0])
        return index

    def value(self, index: int) -> bytes:
        """The value of one message."""
        if not 0 <= index < self.count:
            self._index(index)
        found = self._found or self.places()
        ends = self._ends or self.value_offsets()
        at = found.values
        return bytes(self._body[at + ends[index] : at + ends[index + 1]])

    def value_view(self, index: int) -> memoryview:
        """The value of one message without copying it."""
        self._index(index)
        ends = self.value_offsets()
        at = self.places().values
        return memoryview(self._body)[at + ends[index] : at + ends[index + 1]]

    def key(self, index: int) -> bytes | None:
        """The key of one message; None for no key."""
        self._index(index)
        if not self.columns & layout.KEY:
            return None
        found = self.places()
        start, end = layout.BOUNDS.unpack_from(self._body, found.key_offsets + 4 * index)
        return bytes(self._body[found.keys + start : found.keys + end]) or None

    def dedup_id(self, index: int) -> bytes | None:
        """The deduplication id of one message; None for none."""
        self._index(index)
        if not self.columns & layout.DEDUP:
            return None
        found = self.places()
        start, end = layout.BOUNDS.unpack_from(self._body, found.dedup_offsets + 4 * index)
        return bytes(self._body[found.dedups + start : found.dedups + end]) or None

    @property
    def has_headers(self) -> bool:
        """Whether any message has headers."""
        return bool(self.columns & layout.HEADERS)

    def header_items(self, index: int) -> list[tuple[str, str | bytes]]:
        """The headers of one message in their order, repeated names included."""
        self._index(index)
        if not self.columns & layout.HEADERS:
            return []
        found = self.places()
        body = self._body
        first, last = layout.BOUNDS.unpack_from(body, found.header_offsets + 4 * index)
        names = self._offsets(found.name_offsets, found.entries)
        items = self._offsets(found.item_offsets, found.entries)
        all_text = not self.columns & layout.KINDS
        out: list[tuple[str, str | bytes]] = []
        for entry in range(first, last):
            name = str(body[found.names + names[entry] : found.names + names[entry + 1]], "utf-8")
            item = body[found.items + items[entry] : found.items + items[entry + 1]]
            text = all_text or not body[found.kinds + entry]
            out.append((name, str(item, "utf-8") if text else bytes(item)))
        return out

    def headers(self, index: int) -> dict[str, str | bytes]:
        """The headers of one message by name; of a repeated name the last value."""
        return dict(self.header_items(index))

    def priority(self, index: int) -> int:
        """The priority of one message."""
        self._index(index)
        if not self.columns & layout.PRIORITY:
            return layout.DEFAULT_PRIORITY
        return self._body[self.places().priorities + index]

    def deliver_at(self, index: int) -> int | None:
        """When one message becomes due: unix ns, before the stamp a negative delay, None for at once."""
        return self._time(index, self._delivers())

    def expires_at(self, index: int) -> int | None:
        """When one message expires: unix ns, before the stamp a negative ttl, None for the topic's default."""
        return self._time(index, self._expires())

    def timestamp(self, index: int) -> int | None:
        """The producer's time of one message, or None."""
        return self._time(index, self._timestamps())

    def _time(self, index: int, column: memoryview | None) -> int | None:
        self._index(index)
        return None if column is None else column[index] or None

    def message(self, index: int) -> MessageView:
        """One message, its fields read when asked for."""
        self._index(index)
        return MessageView(self, index)

    def messages(self) -> list[Message]:
        """Every message as a producer would have written it."""
        return [view.to_message() for view in self]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[MessageView]:
        return (MessageView(self, index) for index in range(self.count))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batch) and self.size_bytes == other.size_bytes and self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        return hash(self._head or self._written_head())

    def __repr__(self) -> str:
        place = f"offsets from {self.base_offset}" if self.is_stamped else "not stamped"
        return f"<batch of {self.count}, {self.size_bytes} bytes, {place}>"

    # -- other batches -------------------------------------------------------------------------------------------------

    def slice(self, start: int, stop: int) -> Batch:
        """Messages start..stop-1, with their offsets and ids; the values are copied once, the rest is arithmetic."""
        count = self.count
        if not 0 <= start < stop <= count:
            raise InvalidArgument(f"slice({start}, {stop}) of a batch of {count}: need 0 <= start < stop <= {count}")
        if stop - start == count:
            return self
        found = self.places()
        body = memoryview(self._body)
        out = Columns(stop - start)
        out.flags = self.columns & ~layout.PRODUCER

        def strings(offsets: memoryview, at: int) -> tuple[bytes, tuple[memoryview]]:
            return rebased(offsets), (body[at + offsets[0] : at + offsets[-1]],)

        value_offsets, out.values = strings(self.value_offsets()[start : stop + 1], found.values)
        if out.count > 1:
            out.value_offsets = value_offsets
        if self.columns & layout.KEY:
            keys = self._offsets(found.key_offsets, count)[start : stop + 1]
            out.key_offsets, out.keys = strings(keys, found.keys)
        if self.columns & layout.DEDUP:
            dedups = self._offsets(found.dedup_offsets, count)[start : stop + 1]
            out.dedup_offsets, out.dedups = strings(dedups, found.dedups)
        if self.columns & layout.HEADERS:
            headers = self._offsets(found.header_offsets, count)[start : stop + 1]
            first, last = headers[0], headers[-1]
            out.header_offsets = rebased(headers)
            names = self._offsets(found.name_offsets, found.entries)[first : last + 1]
            items = self._offsets(found.item_offsets, found.entries)[first : last + 1]
            out.name_offsets, out.names = strings(names, found.names)
            out.item_offsets, out.items = strings(items, found.items)
            if self.columns & layout.KINDS:
                out.kinds = body[found.kinds + first : found.kinds + last]
        if self.columns & layout.PRIORITY:
            out.priorities = body[found.priorities + start : found.priorities + stop]
        if self.columns & layout.TIMESTAMP:
            out.timestamps = body[8 * start : 8 * stop]
        delivers, expires = self._delivers(), self._expires()
        if delivers is not None:
            out.delivers = delivers[start:stop]
        if expires is not None:
            out.expires = expires[start:stop]
        if self.columns & layout.DELTA:
            out.deltas = body[found.deltas + 4 * start : found.deltas + 4 * stop]
            return self._derived(out, 0)
        return self._derived(out, start)

    def select(self, indices: Sequence[int]) -> Batch:
        """The messages at these indices, in this order, each with its own offset and id."""
        wanted = indices if isinstance(indices, (list, tuple, range)) else list(indices)
        count = len(wanted)
        check_count(count)
        first = wanted[0]
        if wanted == range(first, first + count) or list(wanted) == list(range(first, first + count)):
            return self.slice(first, first + count)
        if min(wanted) < 0 or max(wanted) >= self.count or len(set(wanted)) != count:
            raise InvalidArgument(f"select: indices must be distinct and within 0..{self.count - 1}")
        found = self.places()
        columns = self.columns
        body = memoryview(self._body)
        pick = itemgetter(*wanted)
        follow = itemgetter(*[index + 1 for index in wanted])
        out = Columns(count)
        out.flags = columns & ~layout.PRODUCER

        def strings(offsets: memoryview, data: memoryview) -> tuple[array[int], list[memoryview]]:
            pieces = list(map(data.__getitem__, map(slice, pick(offsets), follow(offsets))))
            return table(map(len, pieces)), pieces

        out.value_offsets, out.values = strings(self.value_offsets(), body[found.values : found.values_end])
        if columns & layout.KEY:
            keys = self._offsets(found.key_offsets, self.count)
            out.key_offsets, out.keys = strings(keys, body[found.keys : found.dedups])
        if columns & layout.DEDUP:
            dedups = self._offsets(found.dedup_offsets, self.count)
            out.dedup_offsets, out.dedups = strings(dedups, body[found.dedups : found.names])
        if columns & layout.HEADERS:
            self._select_headers(out, pick, follow)
        if columns & layout.PRIORITY:
            out.priorities = bytes(pick(body[found.priorities :]))
        if columns & layout.TIMESTAMP:
            out.timestamps = array("q", pick(self._block(0, 8 * self.count, "q")))
        delivers, expires, deltas = self._delivers(), self._expires(), self._deltas()
        if delivers is not None:
            out.delivers = array("q", pick(delivers))
        if expires is not None:
            out.expires = array("q", pick(expires))
        if deltas is not None:
            out.deltas = array("I", pick(deltas))
        elif self.append_time_ns:
            out.flags |= layout.DELTA
            out.deltas = array("I", wanted)
        return self._derived(out, 0)

    def _select_headers(self, out: Columns, pick: itemgetter[Any], follow: itemgetter[Any]) -> None:
        found = self.places()
        body = memoryview(self._body)
        offsets = self._offsets(found.header_offsets, self.count)
        runs = list(map(slice, pick(offsets), follow(offsets)))
        entries = [entry for run in runs for entry in range(run.start, run.stop)]
        out.header_offsets = table(run.stop - run.start for run in runs)
        names = self._offsets(found.name_offsets, found.entries)
        items = self._offsets(found.item_offsets, found.entries)
        out.name_offsets = table(names[entry + 1] - names[entry] for entry in entries)
        out.item_offsets = table(items[entry + 1] - items[entry] for entry in entries)
        out.names = [body[found.names + names[run.start] : found.names + names[run.stop]] for run in runs]
        out.items = [body[found.items + items[run.start] : found.items + items[run.stop]] for run in runs]
        if self.columns & layout.KINDS:
            kinds = body[found.kinds : found.kinds + found.entries]
            out.kinds = b"".join([kinds[run] for run in runs])

    def _derived(self, out: Columns, shift: int) -> Batch:
        """A part of this batch: a stamped one keeps offsets and ids, another one its producer."""
        if self.append_time_ns:
            return sealed(out, (self.base_offset + shift, self.base_id + shift, self.append_time_ns))
        return sealed(out, UNSTAMPED, (self.producer_id, self.producer_seq))

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """One new, unstamped batch of all their messages: offsets and ids are left behind, instants stay instants."""
        if len(batches) == 1 and not batches[0].append_time_ns:
            return batches[0]
        count = sum(batch.count for batch in batches)
        check_count(count)
        if sum(batch.size_bytes for batch in batches) > BATCH_BYTES_MAX + len(batches) * layout.HEAD_PRODUCER_BYTES:
            raise PayloadTooLarge(f"the batches together take more than {BATCH_BYTES_MAX} bytes; leave them apart")
        out = Columns(count)
        flags = 0
        for batch in batches:
            flags |= batch.columns
        for column, gaps in _GAPS:
            if flags & column and any(not batch.columns & column for batch in batches):
                flags |= gaps
        out.flags = flags & ~(layout.PRODUCER | layout.DELTA)
        if count > 1:
            out.value_offsets, out.values = _chained(
                [(batch.value_offsets().tobytes(), batch._data("values", "values_end")) for batch in batches]
            )
        else:
            out.values = (batches[0]._data("values", "values_end"),)
        if flags & layout.KEY:
            out.key_offsets, out.keys = _chained(
                [batch._strings(layout.KEY, "key_offsets", "keys", "dedups") for batch in batches]
            )
        if flags & layout.DEDUP:
            out.dedup_offsets, out.dedups = _chained(
                [batch._strings(layout.DEDUP, "dedup_offsets", "dedups", "names") for batch in batches]
            )
        if flags & layout.HEADERS:
            _concat_headers(out, batches, flags)
        if flags & layout.PRIORITY:
            out.priorities = b"".join(batch.priorities() or b"\5" * batch.count for batch in batches)
        if flags & layout.TIMESTAMP:
            out.timestamps = b"".join(batch._timestamps() or bytes(8 * batch.count) for batch in batches)
        if flags & layout.DELIVER:
            out.delivers = b"".join(batch._delivers() or bytes(8 * batch.count) for batch in batches)
        if flags & layout.EXPIRES:
            out.expires = b"".join(batch._expires() or bytes(8 * batch.count) for batch in batches)
        return sealed(out)

    def _data(self, start: str, stop: str) -> memoryview:
        found = self.places()
        return memoryview(self._body)[getattr(found, start) : getattr(found, stop)]

    def _strings(self, column: int, offsets: str, start: str, stop: str) -> tuple[bytes, memoryview]:
        if not self.columns & column:
            return bytes(4 * self.count + 4), memoryview(b"")
        return self._offsets(getattr(self.places(), offsets), self.count).tobytes(), self._data(start, stop)

    def to_arrow(self, *, identity: bool = False) -> pa.RecordBatch:
        """The batch as a pyarrow.RecordBatch over the same memory: no value, key, header or dedup id is copied.

        Columns that are absent are left out. `identity` adds `offset`, `id` and `append_time_ns`.
        """
        from headrace.batch import arrow

        found = self.places()
        numbers = (self.base_offset, self.base_id, self.append_time_ns) if identity else None
        return arrow.record_batch(self.columns, self.count, self._body, self._tail, found, numbers)


_HEAD_BYTES: Final = layout.HEAD_BYTES
_head_at: Final = layout.HEAD.unpack_from
_TIMES: Final = layout.DELIVER | layout.EXPIRES
_TIMES_OR_PRODUCER: Final = _TIMES | layout.PRODUCER
_GAPS: Final = (
    (layout.KEY, layout.KEY_GAPS),
    (layout.DEDUP, layout.DEDUP_GAPS),
    (layout.TIMESTAMP, layout.TIMESTAMP_GAPS),
    (layout.DELIVER, layout.DELIVER_GAPS),
    (layout.EXPIRES, layout.EXPIRES_GAPS),
)


def sealed(out: Columns, stamp: tuple[int, int, int] = UNSTAMPED, producer: tuple[int, int] = NO_PRODUCER) -> Batch:
    """Finish columns into a batch; a ``producer`` with the id 0 is none."""
    body, tail = out.body_and_tail()
    flags = out.flags
    size = layout.HEAD_BYTES + len(body) + len(tail)
    if producer[0]:
        flags |= layout.PRODUCER
        size += layout.PAIR.size
    if size > BATCH_BYTES_MAX:
        raise too_large(size)
    return Batch(None, body, tail, NO_CRC, flags, out.count, size, *stamp, *producer)


def _after(starts: list[int], times: list[int]) -> list[int]:
    """Spans (below 0) counted from their starts, instants as they are; none past the last instant."""
    moved = [at if at >= 0 else start - at for start, at in zip(starts, times, strict=True)]
    return moved if max(moved) <= TIME_NS_MAX else [min(at, TIME_NS_MAX) for at in moved]


def _cut(body: bytes | memoryview, start: int, stop: int, offsets: memoryview) -> list[bytes]:
    data = bytes(body[start:stop])
    ends = offsets.tolist()
    return list(map(data.__getitem__, map(slice, ends, ends[1:])))


def _chained(parts: list[tuple[bytes, memoryview]]) -> tuple[bytes, list[memoryview]]:
    """Offset tables one behind the other, each counted on from where the one before ended."""
    base = 0
    tables = [bytes(4)]
    for offsets, data in parts:
        tables.append(raised(offsets[4:], base))
        base += len(data)
    return b"".join(tables), [data for _, data in parts]


def _concat_headers(out: Columns, batches: Sequence[Batch], flags: int) -> None:
    base = 0
    tables = [bytes(4)]
    names: list[tuple[bytes, memoryview]] = []
    items: list[tuple[bytes, memoryview]] = []
    kinds: list[bytes | memoryview] = []
    for batch in batches:
        if not batch.columns & layout.HEADERS:
            tables.append(raised(bytes(4 * batch.count), base))
            continue
        found = batch.places()
        entries = found.entries
        tables.append(raised(batch._offsets(found.header_offsets, batch.count).tobytes()[4:], base))
        base += entries
        names.append((batch._offsets(found.name_offsets, entries).tobytes(), batch._data("names", "items")))
        items.append((batch._offsets(found.item_offsets, entries).tobytes(), batch._data("items", "values")))
        kinds.append(batch._block(found.kinds, entries, "B") if batch.columns & layout.KINDS else bytes(entries))
    out.header_offsets = b"".join(tables)
    out.name_offsets, out.names = _chained(names)
    out.item_offsets, out.items = _chained(items)
    if flags & layout.KINDS:
        out.kinds = b"".join(kinds)
