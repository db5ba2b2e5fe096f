"""The batch against a list of messages: whatever is done to the one and the other, both say the same."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch import Batch, BatchLimits, Message, encode, encode_arrow, encode_columns, encode_one
from headrace.errors import HeadraceError
from headrace.limits import KIB, SPAN_NS_MAX, TIME_NS_MAX

NOW = 1_700_000_000_000_000_000
spans = st.integers(1, SPAN_NS_MAX)
instants = st.integers(1, TIME_NS_MAX)
names = st.text(max_size=6)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    deliver = draw(st.sampled_from(["no", "no", "delay", "at"]))
    expire = draw(st.sampled_from(["no", "no", "ttl", "at"]))
    return Message(
        draw(st.binary(max_size=20)),
        draw(st.none() | st.binary(min_size=1, max_size=5)),
        draw(st.none() | st.dictionaries(names, st.text(max_size=5) | st.binary(max_size=5), min_size=1, max_size=3)),
        draw(st.just(5) | st.integers(0, 9)),
        draw(spans) if deliver == "delay" else None,
        draw(instants) if deliver == "at" else None,
        draw(spans) if expire == "ttl" else None,
        draw(instants) if expire == "at" else None,
        draw(st.none() | st.binary(min_size=1, max_size=4)),
        draw(st.none() | instants),
    )


def plain(message: Message) -> Message:
    return Message(message.value, message.key)


lists = st.lists(messages(), min_size=1, max_size=12) | st.lists(messages().map(plain), min_size=1, max_size=12)
producers = st.sampled_from([(0, 0), (1, 0), (2**64 - 1, 2**64 - 1)])


def rows(batch: Batch) -> list[tuple[Any, ...]]:
    """All that a batch says of each message, field by field."""
    return [
        (
            view.offset,
            view.id,
            view.value,
            view.key,
            list(view.headers.items()),
            view.priority,
            view.deliver_at_ns,
            view.expires_at_ns,
            view.dedup_id,
            view.timestamp_ns,
        )
        for view in batch
    ]


def columns_agree(batch: Batch) -> None:
    """The column accessors against the per-message ones."""
    views = list(batch)
    assert len(batch) == batch.count == len(views)
    assert batch.values() == [view.value for view in views]
    assert [bytes(batch.value_view(index)) for index in range(batch.count)] == batch.values()
    assert (batch.keys() or [b""] * batch.count) == [view.key or b"" for view in views]
    assert (batch.dedup_ids() or [b""] * batch.count) == [view.dedup_id or b"" for view in views]
    assert list(batch.priorities() or b"\5" * batch.count) == [view.priority for view in views]
    zeros = [0] * batch.count
    assert list(batch.deliver_ats() or zeros) == [view.deliver_at_ns or 0 for view in views]
    assert list(batch.expires_ats() or zeros) == [view.expires_at_ns or 0 for view in views]
    assert list(batch.timestamps() or zeros) == [view.timestamp_ns or 0 for view in views]
    assert list(batch.offsets()) == [view.offset for view in views]
    assert list(batch.ids()) == [view.id for view in views]
    hashes = batch.key_hashes()
    assert [bool(mark) for mark in hashes or zeros] == [bool(view.key) for view in views]


@given(lists, producers)
def test_messages_come_back_from_a_batch_as_they_went_in(given_: list[Message], producer: tuple[int, int]) -> None:
    batch = encode(given_, producer_id=producer[0], producer_seq=producer[1])
    assert batch.messages() == given_
    again = Batch.decode(batch.to_bytes())
    assert again == batch
    assert again.messages() == given_
    assert (again.producer_id, again.producer_seq) == producer
    columns_agree(again)
    columns_agree(Batch.trusted(batch.to_bytes()))


@given(messages(), producers)
def test_one_message_encodes_the_same_every_way(message: Message, producer: tuple[int, int]) -> None:
    ids = {"producer_id": producer[0], "producer_seq": producer[1]}
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    one = encode_one(**fields, **ids)
    columns = encode_columns(
        [message.value],
        keys=[message.key],
        headers=[message.headers],
        priorities=[message.priority],
        delays_ns=[message.delay_ns],
        deliver_ats_ns=[message.deliver_at_ns],
        ttls_ns=[message.ttl_ns],
        expires_ats_ns=[message.expires_at_ns],
        dedup_ids=[message.dedup_id],
        timestamps_ns=[message.timestamp_ns],
        **ids,
    )
    assert one == columns == encode([message], **ids)


@given(lists, producers, st.integers(0, 2**61), st.integers(0, 2**61), st.integers(1, 2**61))
def test_a_stamp_makes_times_absolute_and_the_checksum_right(
    given_: list[Message], producer: tuple[int, int], offset: int, first_id: int, now: int
) -> None:
    batch = encode(given_, producer_id=producer[0], producer_seq=producer[1])
    before = batch.to_bytes()
    stamped = batch.stamp(offset, first_id, now)
    assert batch.to_bytes() == before
    assert Batch.decode(stamped.to_bytes()) == stamped
    assert stamped.is_stamped
    for index, (view, message) in enumerate(zip(stamped, given_, strict=True)):
        due = message.deliver_at_ns
        if message.delay_ns:
            due = min(now + message.delay_ns, TIME_NS_MAX)
        expires = message.expires_at_ns
        if message.ttl_ns:
            expires = min(max(due or 0, now) + message.ttl_ns, TIME_NS_MAX)
        assert (view.offset, view.id, view.append_time_ns) == (offset + index, first_id + index, now)
        assert (view.deliver_at_ns, view.expires_at_ns) == (due, expires)
        assert (view.value, view.key, view.headers) == (message.value, message.key, message.headers or {})
    again = stamped.stamp(7, 8, 9)
    assert Batch.decode(again.to_bytes()).offsets() == range(7, 7 + len(given_))


@given(lists, st.booleans(), st.data())
def test_slices_selections_and_their_concatenation_agree_with_a_list(
    given_: list[Message], stamped: bool, data: st.DataObject
) -> None:
    batch = encode(given_, producer_id=4, producer_seq=4)
    if stamped:
        batch = batch.stamp(100, 2000, NOW)
    model = rows(batch)
    parts = []
    for _ in range(3):
        if data.draw(st.booleans()):
            start = data.draw(st.integers(0, batch.count - 1))
            stop = data.draw(st.integers(start + 1, batch.count))
            batch, model = batch.slice(start, stop), model[start:stop]
        else:
            order = data.draw(st.permutations(range(batch.count)))
            chosen = order[: data.draw(st.integers(1, batch.count))]
            batch, model = batch.select(chosen), [model[index] for index in chosen]
        if not stamped:  # of an unstamped batch every part counts from 0
            model = [(index, index, *row[2:]) for index, row in enumerate(model)]
        assert rows(batch) == model
        assert Batch.decode(batch.to_bytes()) == batch
        columns_agree(batch)
        parts.append((batch, model))
    whole = Batch.concat([part for part, _ in parts])
    assert [row[2:] for row in rows(whole)] == [row[2:] for _, part in parts for row in part]
    assert Batch.decode(whole.to_bytes()).offsets() == range(whole.count)


@given(st.lists(lists, min_size=1, max_size=4))
def test_concat_agrees_with_adding_lists(parts: list[list[Message]]) -> None:
    whole = Batch.concat([encode(part) for part in parts])
    assert whole.messages() == [message for part in parts for message in part]
    assert Batch.decode(whole.to_bytes()) == whole
    columns_agree(whole)


@given(lists, st.booleans(), st.integers(0, 9), st.data())
def test_arrow_agrees_and_comes_back(given_: list[Message], stamped: bool, shift: int, data: st.DataObject) -> None:
    batch = encode(given_)
    batch = batch.stamp(10, 20, NOW) if stamped else batch
    read = Batch.trusted(memoryview(bytes(shift) + batch.to_bytes())[shift:])
    table = read.to_arrow(identity=True)
    table.validate(full=True)
    found = table.to_pylist()
    for row, view in zip(found, batch, strict=True):
        items = [
            (name, str(item, "utf-8") if not kind else item)
            for (name, item), kind in zip(row.get("headers", []), row.get("header_kinds", []), strict=True)
        ]
        assert (row["offset"], row["id"], row["append_time_ns"]) == (view.offset, view.id, batch.append_time_ns)
        assert (row["value"], row.get("key"), items) == (view.value, view.key, list(view.headers.items()))
        assert (row.get("priority", 5), row.get("dedup_id")) == (view.priority, view.dedup_id)
        assert (row.get("deliver_at_ns"), row.get("expires_at_ns")) == (view.deliver_at_ns, view.expires_at_ns)
        assert row.get("timestamp_ns") == view.timestamp_ns
    back = encode_arrow(table)
    assert [row[2:] for row in rows(back)] == [row[2:] for row in rows(batch)]
    assert back.to_arrow().equals(batch.to_arrow())
    start = data.draw(st.integers(0, batch.count - 1))
    part = encode_arrow(pa.Table.from_batches([table, table]).slice(start, batch.count))
    turned = [*given_[start:], *given_[:start]]
    assert part.values() == [message.value for message in turned]
    assert [view.headers for view in part] == [message.headers or {} for message in turned]
    assert [view.key for view in part] == [message.key for message in turned]


def resummed(raw: bytes) -> bytes:
    """The checksum made right, so that a mutation reaches what lies behind it."""
    if len(raw) < 40:
        return raw
    head = 56 if raw[4] & 1 and len(raw) >= 56 else 40
    crc = google_crc32c.value(raw[head:] + raw[: head - 4])
    return raw[: head - 4] + struct.pack("<I", crc) + raw[head:]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    batch = encode(draw(lists))
    raw = bytearray((batch.stamp(10, 20, NOW) if draw(st.booleans()) else batch).to_bytes())
    words = [0, 1, 2, 255, 4096, 2**31 - 1, 2**31, 2**32 - 1]
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(raw) - 1))
        match draw(st.sampled_from(["bit", "byte", "word", "long", "cut", "insert"])):
            case "bit":
                raw[at] ^= 1 << draw(st.integers(0, 7))
            case "byte":
                raw[at] = draw(st.integers(0, 255))
            case "word" if at + 4 <= len(raw):
                struct.pack_into("<I", raw, at & ~3, draw(st.sampled_from(words)))
            case "long" if (at & ~7) + 8 <= len(raw):
                struct.pack_into("<Q", raw, at & ~7, draw(st.sampled_from([0, 2**62, 2**63, 2**64 - 1])))
            case "cut" if len(raw) > 1:
                del raw[at:]
            case _:
                raw[at:at] = draw(st.binary(max_size=9))
        if not raw:
            break
    if draw(st.booleans()) and len(raw) >= 12:
        struct.pack_into("<I", raw, 8, len(raw))
    return resummed(bytes(raw)) if draw(st.integers(0, 3)) else bytes(raw)


@given(damaged())
def test_a_damaged_batch_is_refused_or_consistent(raw: bytes) -> None:
    refusal = None
    try:
        batch = Batch.decode(raw)
    except HeadraceError as error:
        refusal = error
    if refusal is not None:
        assert refusal.code in {"malformed", "unsupported_version", "payload_too_large", "limit_exceeded"}
        assert "batch." in refusal.message
        return
    columns_agree(batch)
    batch.to_arrow(identity=True).validate(full=True)
    assert batch.to_bytes() == raw
    for view in batch:
        assert all(isinstance(name, str) for name in view.headers)
    picked = batch.select(range(batch.count - 1, -1, -1))
    assert picked.values() == batch.values()[::-1]
    Batch.decode(picked.to_bytes())
    encode(batch.messages())


@pytest.mark.parametrize("size", [40, 64 * KIB])
@given(data=st.data())
def test_what_a_head_claims_allocates_nothing(size: int, data: st.DataObject) -> None:
    head = struct.pack(
        "<2sBBHHIqqq",
        b"HB",
        1,
        0,
        data.draw(st.integers(0, 2**15 - 1)),
        data.draw(st.integers(0, 2**16 - 1)),
        data.draw(st.sampled_from([size, 2**31, 2**32 - 1])),
        *data.draw(st.tuples(*[st.sampled_from([0, 1, 2**62, -1])] * 3)),
    )
    raw = head + b"\xff" * (size - len(head))
    limits = BatchLimits()
    tracemalloc.start()
    try:
        with pytest.raises(HeadraceError):
            Batch.decode(raw, limits=limits)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * size + 16 * KIB
