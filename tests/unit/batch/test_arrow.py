"""Batches and Arrow: the same memory on the way out, any reasonable table on the way in."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from headrace.batch import Batch, Message, encode, encode_arrow, encode_columns, encode_one
from headrace.errors import HeadraceError, InvalidArgument, LimitExceeded

NOW = 1_700_000_000_000_000_000
FULL = encode(
    [
        Message(b"v%d" % index, b"k", {"a": "x", "b": b"\xff"}, index, 5, None, 7, None, b"d%d" % index, NOW)
        for index in range(10)
    ]
)


def _address(buffer: bytes | memoryview) -> int:
    address: int = pa.py_buffer(buffer).address
    return address


def test_no_variable_length_data_is_copied() -> None:
    batch = FULL.to_arrow()
    start = _address(FULL.buffers()[1])
    inside = range(start, start + len(FULL.buffers()[1]))
    for name in ("value", "key", "dedup_id"):
        assert batch.column(name).buffers()[2].address in inside
        assert batch.column(name).buffers()[1].address in inside
    headers = batch.column("headers")
    assert headers.keys.buffers()[2].address in inside
    assert headers.items.buffers()[2].address in inside


def test_a_misaligned_batch_copies_only_fixed_width_blocks() -> None:
    raw = memoryview(b"?" + FULL.to_bytes())[1:]
    batch = Batch.trusted(raw).to_arrow()
    assert batch.equals(FULL.to_arrow())
    assert batch.column("value").buffers()[1].address % 8 == 0
    assert _address(raw) <= batch.column("value").buffers()[2].address < _address(raw) + len(raw)


def test_an_arrow_batch_outlives_the_batch_it_came_from() -> None:
    table = Batch.decode(encode_columns([b"a" * 5000, b"b"]).to_bytes()).to_arrow()
    assert table.column("value").to_pylist() == [b"a" * 5000, b"b"]


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_a_table_comes_back_equal(count: int) -> None:
    table = pa.table(
        {
            "value": pa.array([b"v%d" % index for index in range(count)], pa.binary()),
            "key": pa.array([b"k%d" % index if index % 3 else None for index in range(count)], pa.binary()),
            "headers": pa.array([[("n", b"s")]] * count, pa.map_(pa.string(), pa.binary())),
            "header_kinds": pa.array([[1]] * count, pa.list_(pa.field("kind", pa.uint8(), nullable=False))),
            "priority": pa.array([index % 10 for index in range(count)], pa.uint8()),
            "deliver_at_ns": pa.array([NOW + index if index % 2 else None for index in range(count)], pa.int64()),
            "expires_at_ns": pa.array([NOW + index for index in range(count)], pa.int64()),
            "dedup_id": pa.array([b"d%d" % index for index in range(count)], pa.binary()),
            "timestamp_ns": pa.array([NOW] * count, pa.int64()),
        }
    )
    found = pa.Table.from_batches([Batch.decode(encode_arrow(table).to_bytes()).to_arrow()])
    absent = [name for name in table.column_names if name not in found.column_names]
    assert all(table.column(name).null_count == count for name in absent)
    for name in found.column_names:
        assert found.column(name).equals(table.column(name)), name


def test_other_types_chunks_and_slices_are_taken() -> None:
    table = pa.table(
        {
            "value": pa.chunked_array([["a", "b"], ["c", "d"]], pa.large_string()),
            "key": pa.array([b"1", b"2", None, b"4"], pa.large_binary()),
            "headers": pa.array([[("n", "é")], None, [], [("m", "")]], pa.map_(pa.string(), pa.string())),
            "priority": pa.array([1, None, 5, 9], pa.int64()),
            "deliver_at_ns": pa.array([1, None, 2, 3], pa.timestamp("us", "UTC")),
            "ttl_ns": pa.array([4, 5, None, 6], pa.int32()),
        }
    ).slice(1)
    batch = encode_arrow(table)
    assert batch.values() == [b"b", b"c", b"d"]
    assert batch.keys() == [b"2", b"", b"4"]
    assert [batch.headers(index) for index in range(3)] == [{}, {}, {"m": ""}]
    assert list(batch.priorities() or ()) == [5, 5, 9]
    assert list(batch.deliver_ats() or ()) == [0, 2000, 3000]
    assert list(batch.expires_ats() or ()) == [-5, 0, -6]
    assert encode_arrow(table.slice(0, 1)).header_items(0) == []


def test_binary_header_values_without_kinds_are_bytes() -> None:
    table = pa.table({"value": [b"v"], "headers": pa.array([[("a", b"x")]], pa.map_(pa.string(), pa.binary()))})
    assert encode_arrow(table).headers(0) == {"a": b"x"}


@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        ({"key": [b"k"]}, InvalidArgument, "no column 'value'"),
        ({"value": [b"v", None]}, InvalidArgument, "column value has 1 nulls"),
        ({"value": [b"v"], "prio": [1]}, InvalidArgument, "no column 'prio' in a batch"),
        ({"value": [b"v"], "priorty": [1]}, InvalidArgument, "did you mean 'priority'?"),
        ({"value": [1]}, InvalidArgument, "column value is int64 and does not become binary"),
        ({"value": [b"v"], "priority": [300]}, InvalidArgument, "column priority is int64"),
        ({"value": [b"v"], "priority": [10]}, InvalidArgument, "batch.priority[0] is 10"),
        ({"value": [b"v"], "delay_ns": [-1]}, InvalidArgument, "column delay_ns holds -1"),
        ({"value": [b"v"], "delay_ns": [1], "deliver_at_ns": [1]}, InvalidArgument, "both deliver_at_ns and delay_ns"),
        ({"value": [b"v"], "ttl_ns": [0]}, InvalidArgument, "column ttl_ns holds 0"),
        ({"value": [b"v"], "key": [b"k" * 1025]}, LimitExceeded, "batch.key[0] has 1025 bytes"),
        ({"value": [b"v"], "headers": ["text"]}, InvalidArgument, "column headers is string"),
        ({"value": [b"v"], "header_kinds": [[1]]}, InvalidArgument, "there is no column headers"),
        ({"value": [b""] * 4097}, LimitExceeded, "4097 messages"),
        ({"value": pa.array([], pa.binary())}, InvalidArgument, "0 messages"),
    ],
)
def test_a_wrong_table_is_refused_by_the_column(
    columns: dict[str, object], error: type[HeadraceError], words: str
) -> None:
    with pytest.raises(error) as caught:
        encode_arrow(pa.table(columns))
    assert words in caught.value.message


def test_kinds_must_match_the_headers_they_mark() -> None:
    kind = pa.map_(pa.string(), pa.binary())
    table = pa.table({"value": [b"v"], "headers": pa.array([[("a", b"\xff")]], kind), "header_kinds": [[1, 1]]})
    with pytest.raises(InvalidArgument, match="one entry for every header"):
        encode_arrow(table)
    table = pa.table({"value": [b"v"], "headers": pa.array([[("a", b"\xff")]], kind), "header_kinds": [[0]]})
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        encode_arrow(table)
    table = pa.table({"value": [b"v"], "headers": pa.array([[("a", None)]], kind)})
    with pytest.raises(InvalidArgument, match="null name or value"):
        encode_arrow(table)


def test_one_message_needs_no_offset_table_to_become_arrow() -> None:
    assert encode_one(b"hello").to_arrow().to_pylist() == [{"value": b"hello"}]


def test_batches_work_without_importing_pyarrow() -> None:
    program = "import sys, headrace.batch as b; b.encode_one(b'v').values(); sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
