"""What callers may put into a batch, what it costs in bytes, and what is refused by which words."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.batch import Batch, BatchLimits, Message, encode, encode_columns, encode_one
from headrace.errors import HeadraceError, InvalidArgument, LimitExceeded, PayloadTooLarge
from headrace.limits import (
    BATCH_MESSAGES_MAX,
    DEDUP_ID_BYTES_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    KIB,
    MESSAGE_BYTES_DEFAULT,
    MESSAGE_BYTES_MAX,
    MIB,
    SPAN_NS_MAX,
    TIME_NS_MAX,
)

VALUE = b"x" * 200


def test_one_message_costs_forty_bytes_and_with_everything_at_most_ninety() -> None:
    assert encode_one(VALUE).size_bytes == 240
    assert encode_one(VALUE, producer_id=1).size_bytes == 256
    assert encode_one(VALUE, key=b"k").size_bytes == 240 + 8 + 1
    timed = encode_one(VALUE, key=b"k", priority=1, delay_ns=1, producer_id=1)
    assert timed.size_bytes - len(VALUE) - 1 <= 90


def test_a_thousand_messages_cost_at_most_sixteen_bytes_each() -> None:
    batch = encode([Message(VALUE, key=b"k") for _ in range(1000)])
    assert batch.size_bytes / 1000 - len(VALUE) - 1 <= 16
    assert encode_columns([VALUE] * 1000).size_bytes == 1000 * 204 + 44


def test_absent_columns_cost_nothing() -> None:
    bare = encode([Message(b"a"), Message(b"b")])
    spelled = encode([Message(b"a", b"", {}, 5, 0, 0, None, 0, b"", 0), Message(b"b", None, None, 5)])
    assert spelled == bare
    for column in ("keys", "dedup_ids", "priorities", "deliver_ats", "expires_ats", "timestamps", "key_hashes"):
        assert getattr(bare, column)() is None
    assert encode_columns([b"a", b"b"], keys=[None, b""], headers=[None, {}], priorities=[5, None]) == bare


def test_a_single_value_is_not_copied() -> None:
    value = bytes(100)
    assert any(buffer is value for buffer in encode_one(value).buffers())


def test_an_encoded_batch_does_not_see_later_changes_of_its_values() -> None:
    value = bytearray(b"before")
    for batch in (encode_one(value), encode_columns([value, b""])):  # type: ignore[arg-type,list-item]
        value[:] = b"after!"
        assert batch.value(0) == b"before"
        value[:] = b"before"


def test_views_and_bytearrays_are_taken_as_bytes() -> None:
    batch = encode_columns([memoryview(b"abc")[1:], bytearray(b"d")], keys=[memoryview(b"k"), None])  # type: ignore[list-item]
    assert batch.values() == [b"bc", b"d"]
    assert batch.key(0) == b"k"


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"value": "text"}, InvalidArgument, "value of message 1 is str; it must be bytes; encode it first"),
        ({"value": None}, InvalidArgument, "value of message 1 is NoneType"),
        ({"value": 7}, InvalidArgument, "value of message 1 is int"),
        ({"key": "text"}, InvalidArgument, "key of message 1 is str"),
        ({"key": b"k" * (KEY_BYTES_MAX + 1)}, LimitExceeded, "key of message 1 has 1025 bytes; at most 1024"),
        ({"dedup_id": b"d" * (DEDUP_ID_BYTES_MAX + 1)}, LimitExceeded, "dedup_id of message 1 has 257 bytes"),
        ({"headers": {"a": 1}}, InvalidArgument, "headers of message 1: 'a': 1 is str: int"),
        ({"headers": {b"a": "1"}}, InvalidArgument, "a name is str"),
        ({"headers": {"a": "\ud800"}}, InvalidArgument, "cannot be written as UTF-8"),
        ({"headers": {"\ud800": b""}}, InvalidArgument, "cannot be written as UTF-8"),
        ({"headers": {"a": "x" * HEADERS_BYTES_MAX}}, LimitExceeded, "headers of message 1 has 65537 bytes"),
        ({"headers": dict.fromkeys(map(str, range(HEADERS_MAX + 1)), "")}, LimitExceeded, "has 1025 headers"),
        ({"priority": 10}, InvalidArgument, "priority of message 1 is 10; it must be within 0..9"),
        ({"priority": -1}, InvalidArgument, "priority of message 1 is -1"),
        ({"priority": "high"}, InvalidArgument, "priority of message 1 is 'high'"),
        ({"delay_ns": -1}, InvalidArgument, "delay of message 1 is -1e-09s; it must be 0s or more"),
        ({"delay_ns": 1.5}, InvalidArgument, "delay_ns of message 1 is 1.5"),
        ({"delay_ns": SPAN_NS_MAX + 1}, InvalidArgument, "delay of message 1"),
        ({"delay_ns": 1, "deliver_at_ns": 1}, InvalidArgument, "message 1 has both deliver_at_ns and delay_ns"),
        ({"deliver_at_ns": -1}, InvalidArgument, "deliver_at_ns of message 1 is -1"),
        ({"deliver_at_ns": TIME_NS_MAX + 1}, InvalidArgument, "deliver_at_ns of message 1"),
        ({"ttl_ns": 0}, InvalidArgument, "ttl of message 1 is 0s; it must be over 0s"),
        ({"ttl_ns": 1, "expires_at_ns": 1}, InvalidArgument, "message 1 has both expires_at_ns and ttl_ns"),
        ({"timestamp_ns": 2**63}, InvalidArgument, "timestamp_ns of message 1"),
        ({"timestamp_ns": "now"}, InvalidArgument, "timestamp_ns: give whole nanoseconds"),
    ],
)
def test_a_wrong_field_is_named_with_its_message(
    fields: dict[str, Any], error: type[HeadraceError], words: str
) -> None:
    wrong = Message(**{"value": b"", **fields})
    with pytest.raises(error) as caught:
        encode([Message(b"fine", key=b"k"), wrong])
    assert words in caught.value.message
    with pytest.raises(error) as caught:
        encode_one(**{"value": b"", **fields})
    assert words.replace("message 1", "message 0") in caught.value.message


def test_wide_views_are_refused_instead_of_shifting_their_neighbours() -> None:
    wide = memoryview(bytes(8)).cast("i")
    with pytest.raises(InvalidArgument, match="wide items"):
        encode_columns([wide, b"abc"])  # type: ignore[list-item]


@pytest.mark.feature("F018")
def test_a_message_over_the_size_limit_is_refused_by_the_encoder_and_by_the_decoder() -> None:
    over = bytes(MESSAGE_BYTES_DEFAULT + 1)
    with pytest.raises(PayloadTooLarge, match=r"batch.value\[0\] has 1048577 bytes; at most 1048576"):
        Batch.decode(encode_one(over).to_bytes())
    with pytest.raises(PayloadTooLarge, match=r"batch.value\[1\]"):
        Batch.decode(encode_columns([b"", over]).to_bytes())
    allowed = BatchLimits(message_bytes_max=2 * MIB)
    assert Batch.decode(encode_one(over).to_bytes(), limits=allowed).value(0) == over
    Batch.decode(encode_one(over[1:]).to_bytes())
    with pytest.raises(PayloadTooLarge, match="value of message 0 has 67108865 bytes"):
        encode_one(bytes(MESSAGE_BYTES_MAX + 1))


def test_counts_outside_a_batch_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="0 messages"):
        encode([])
    with pytest.raises(InvalidArgument, match="0 messages"):
        encode_columns([])
    with pytest.raises(LimitExceeded, match=f"{BATCH_MESSAGES_MAX + 1} messages in one batch; at most 4096"):
        encode_columns([b""] * (BATCH_MESSAGES_MAX + 1))
    assert Batch.decode(encode_columns([b""] * BATCH_MESSAGES_MAX).to_bytes()).count == BATCH_MESSAGES_MAX


def test_columns_of_unequal_length_are_refused() -> None:
    for name in ("keys", "headers", "priorities", "delays_ns", "expires_ats_ns", "dedup_ids", "timestamps_ns"):
        with pytest.raises(InvalidArgument, match="1 entries for 2 values"):
            encode_columns([b"", b""], **{name: [None]})  # type: ignore[arg-type]


def test_a_producer_outside_its_range_is_refused() -> None:
    for wrong in ({"producer_id": -1}, {"producer_id": 2**64}, {"producer_seq": 1}):
        with pytest.raises(InvalidArgument, match="producer_id"):
            encode_one(b"", **wrong)
    with pytest.raises(InvalidArgument, match="producer_seq"):
        encode_one(b"", producer_id=1, producer_seq=2**64)


def test_limits_of_the_reader_hold_each() -> None:
    raw = encode(
        [
            Message(b"value", b"key", {"a": "b", "c": "d"}, dedup_id=b"dedup"),
            Message(b"v", b"k", {"name": "value" * KIB}, dedup_id=b"d"),
        ]
    ).to_bytes()
    Batch.decode(raw)
    for name, most, words in [
        ("messages_max", 1, "batch.count is 2"),
        ("batch_bytes_max", 100, "batch.length is"),
        ("message_bytes_max", 4, "batch.value[0] has 5 bytes; at most 4"),
        ("key_bytes_max", 2, "batch.key[0] has 3 bytes; at most 2"),
        ("dedup_id_bytes_max", 4, "batch.dedup_id[0] has 5 bytes; at most 4"),
        ("headers_max", 1, "batch.headers[0] has 2 entries; at most 1"),
        ("headers_bytes_max", 5000, "batch.headers[1] has 5124 bytes; at most 5000"),
    ]:
        with pytest.raises(HeadraceError) as caught:
            Batch.decode(raw, limits=BatchLimits(**{name: most}))
        assert words in caught.value.message
