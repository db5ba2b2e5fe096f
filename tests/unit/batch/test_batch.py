"""A batch in memory: what it shares, what it refuses, and the arithmetic behind stamps and slices."""

from __future__ import annotations

import google_crc32c
import pytest
import xxhash

from headrace.batch import Batch, Message, MessageView, encode, encode_columns, encode_one, layout
from headrace.batch.columns import raised, rebased, table
from headrace.errors import InvalidArgument, LimitExceeded, Malformed, UnsupportedVersion
from headrace.limits import TIME_NS_MAX

NOW = 1_700_000_000_000_000_000
ACCESSORS = (
    *("value", "value_view", "key", "headers", "priority", "deliver_at", "expires_at"),
    *("dedup_id", "timestamp", "message", "delta"),
)
THREE = encode([Message(b"a", key=b"k"), Message(b"bb"), Message(b"ccc", key=b"k")])


def test_the_checksum_is_right_after_any_stamp() -> None:
    for batch in (THREE, encode_one(b"", producer_id=3), encode([Message(b"a", delay_ns=5), Message(b"b", ttl_ns=7)])):
        for stamp in ((0, 0, 1), (2**61, 2**61, 2**61), (5, 6, NOW)):
            raw = batch.stamp(*stamp).stamp(*stamp).to_bytes()
            head = layout.head_bytes(batch.columns)
            assert int.from_bytes(raw[head - 4 : head], "little") == google_crc32c.value(raw[head:] + raw[: head - 4])


def test_a_stamp_does_not_make_a_damaged_batch_look_whole() -> None:
    raw = bytearray(THREE.to_bytes())
    raw[-1] ^= 1
    with pytest.raises(Malformed, match=r"batch\.crc"):
        Batch.trusted(bytes(raw)).stamp(1, 2, NOW)
    with pytest.raises(Malformed, match=r"batch\.crc"):
        Batch.trusted(bytes(raw)).from_producer(1, 2)


def test_bytes_damaged_after_they_were_checked_are_not_summed_anew_by_a_stamp() -> None:
    checked = Batch.decode(THREE.to_bytes())
    body = bytearray(checked._body)
    body[-1] ^= 1
    checked._body = bytes(body)  # what a bad memory cell does
    for batch in (checked.stamp(1, 2, NOW), checked.from_producer(1, 2).stamp(1, 2, NOW)):
        with pytest.raises(Malformed, match=r"batch\.crc"):
            Batch.decode(batch.to_bytes())


def test_a_stamp_shares_the_body() -> None:
    batch = encode_one(bytes(1000))
    assert batch.stamp(1, 2, 3).buffers()[1] is batch.buffers()[1]


def test_delays_and_ttls_count_from_the_stamp_and_stop_at_the_last_instant() -> None:
    far = 2**61 - 1
    batch = encode(
        [
            Message(b"", delay_ns=10, ttl_ns=5),
            Message(b"", deliver_at_ns=NOW + 100, ttl_ns=5),
            Message(b"", deliver_at_ns=1, ttl_ns=5),
            Message(b"", ttl_ns=5),
            Message(b"", expires_at_ns=77),
            Message(b"", delay_ns=far, ttl_ns=far),
        ]
    )
    assert list(batch.deliver_ats() or ()) == [-10, NOW + 100, 1, 0, 0, -far]
    assert list(batch.expires_ats() or ()) == [-5, -5, -5, -5, 77, -far]
    stamped = batch.stamp(0, 0, NOW)
    assert list(stamped.deliver_ats() or ()) == [NOW + 10, NOW + 100, 1, 0, 0, NOW + far]
    assert list(stamped.expires_ats() or ()) == [NOW + 15, NOW + 105, NOW + 5, NOW + 5, 77, TIME_NS_MAX]


@pytest.mark.parametrize(
    "stamp", [(-1, 0, NOW), (0, -1, NOW), (0, 0, 0), (0, 0, -1), (2**63 - 2, 0, NOW), (0, 0, 2**62)]
)
def test_a_stamp_outside_the_ranges_is_refused(stamp: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidArgument, match="stamp"):
        THREE.stamp(*stamp)


def test_a_sparse_selection_keeps_offsets_and_ids_and_is_not_stamped_again() -> None:
    stored = encode_columns([b"%d" % index for index in range(10)]).stamp(100, 5000, NOW)
    sparse = stored.select([7, 2, 5])
    assert list(sparse.offsets()) == [107, 102, 105]
    assert list(sparse.ids()) == [5007, 5002, 5005]
    assert list(sparse.select([2, 0]).offsets()) == [105, 107]
    assert list(sparse.slice(1, 3).ids()) == [5002, 5005]
    assert sparse.append_time_ns == NOW
    with pytest.raises(InvalidArgument, match="sparse"):
        sparse.stamp(1, 2, 3)
    assert Batch.concat([sparse]).stamp(1, 2, 3).values() == [b"7", b"2", b"5"]


def test_a_run_of_indices_is_a_slice_without_deltas() -> None:
    stored = THREE.stamp(100, 5000, NOW)
    for run in ([1, 2], (1, 2), range(1, 3)):
        part = stored.select(run)
        assert not part.columns & layout.DELTA
        assert part.offsets() == range(101, 103)
    assert stored.select(range(3)) is stored


def test_parts_of_an_unstamped_batch_are_batches_of_their_own() -> None:
    batch = encode([Message(b"a"), Message(b"b"), Message(b"c")], producer_id=4, producer_seq=9)
    for part in (batch.select([2, 0]), batch.slice(1, 3)):
        assert (part.producer_id, part.producer_seq, part.is_stamped) == (4, 9, False)
        assert part.stamp(50, 60, NOW).offsets() == range(50, 52)


@pytest.mark.parametrize("indices", [[0, 0], [-1, 1], [0, 3], [2, 1, 0, 3]])
def test_wrong_indices_are_refused(indices: list[int]) -> None:
    with pytest.raises(InvalidArgument, match="indices"):
        THREE.select(indices)


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (2, 1), (-1, 2), (0, 4), (3, 4)])
def test_a_slice_outside_the_batch_is_refused(start: int, stop: int) -> None:
    with pytest.raises(InvalidArgument, match="slice"):
        THREE.slice(start, stop)
    if start == stop:
        with pytest.raises(InvalidArgument, match="0 messages"):
            THREE.select([])


@pytest.mark.parametrize("index", [-1, 3, 2**40])
def test_no_accessor_reads_past_the_batch(index: int) -> None:
    full = encode([Message(b"v", b"k", {"a": "b"}, 1, 1, None, 1, None, b"d", 1)] * 3)
    for batch in (THREE, full):
        for name in ACCESSORS:
            with pytest.raises(IndexError, match="of a batch of 3"):
                getattr(batch, name)(index)


def test_key_hashes_are_those_of_the_documented_hash() -> None:
    assert list(THREE.key_hashes() or ()) == [xxhash.xxh3_64_intdigest(b"k"), 0, xxhash.xxh3_64_intdigest(b"k")]


def test_decode_keeps_its_own_bytes() -> None:
    buffer = bytearray(THREE.to_bytes())
    for given in (buffer, memoryview(buffer)):
        batch = Batch.decode(given)
        buffer[-1] ^= 0xFF
        assert batch == THREE
        buffer[-1] ^= 0xFF


def test_trusted_refuses_what_is_not_a_batch_of_this_version() -> None:
    raw = THREE.to_bytes()
    with pytest.raises(Malformed, match="magic"):
        Batch.trusted(b"XX" + raw[2:])
    with pytest.raises(UnsupportedVersion, match=r"batch.version is 9; this program reads version 1"):
        Batch.trusted(raw[:2] + b"\x09" + raw[3:])
    for wrong in (raw[:-1], raw + b"\0", raw[:20], b""):
        with pytest.raises(Malformed, match=r"batch\.(length|head)"):
            Batch.trusted(wrong)


def test_repeated_header_names_are_kept_in_order_and_the_last_one_wins_by_name() -> None:
    raw = bytearray(encode([Message(b"v", headers={"a": "1", "b": "2"})]).to_bytes())
    at = raw.index(b"ab12")
    raw[at : at + 2] = b"aa"
    raw[36:40] = google_crc32c.value(bytes(raw[40:] + raw[:36])).to_bytes(4, "little")
    batch = Batch.decode(raw)
    assert batch.header_items(0) == [("a", "1"), ("a", "2")]
    assert batch.headers(0) == {"a": "2"}


def test_concat_refuses_more_than_a_batch_holds() -> None:
    many = encode_columns([b""] * 4000)
    with pytest.raises(LimitExceeded, match="8000 messages"):
        Batch.concat([many, many])
    with pytest.raises(InvalidArgument, match="0 messages"):
        Batch.concat([])


def test_an_offset_table_is_rebased_and_raised_lane_by_lane() -> None:
    offsets = memoryview(table([3, 0, 2**31 - 10, 0, 5]))
    assert list(memoryview(rebased(offsets[1:5])).cast("i")) == [0, 0, 2**31 - 10, 2**31 - 10]
    assert raised(rebased(offsets), 1) == b"".join((end + 1).to_bytes(4, "little") for end in offsets)
    long = memoryview(table([1] * 20_000))
    assert list(memoryview(rebased(long[7:])).cast("i")) == list(range(20_000 - 6))


def test_views_show_one_message_and_hold_the_batch() -> None:
    stamped = THREE.stamp(10, 20, NOW)
    view = stamped.message(2)
    assert isinstance(view, MessageView)
    assert (view.offset, view.id, view.append_time_ns, view.value, view.key) == (12, 22, NOW, b"ccc", b"k")
    assert view.to_message() == Message(b"ccc", key=b"k")
    assert repr(view) == "<message 22 offset 12, 3 bytes>"
    assert repr(stamped) == f"<batch of 3, {stamped.size_bytes} bytes, offsets from 10>"
    assert len({stamped, Batch.decode(stamped.to_bytes()), THREE}) == 2
