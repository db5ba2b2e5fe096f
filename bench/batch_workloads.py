"""Batch workloads: what encoding, checking, cutting and handing over to Arrow cost, per call and per message.

Each figure is the fastest of several rounds: the cost of the code, without that of a neighbour on the same core.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headrace.batch import Batch, Message, encode, encode_arrow, encode_columns, encode_one

if TYPE_CHECKING:
    from collections.abc import Callable

VALUE = b"x" * 200
MANY = 1000
NOW = 1_700_000_000_000_000_000
ROUNDS = 7

Figures = dict[str, float | int | str]


def _us(call: Callable[[], object], calls: int) -> float:
    best = None
    for _ in range(ROUNDS):
        start_ns = time.perf_counter_ns()
        for _ in range(calls):
            call()
        spent_ns = time.perf_counter_ns() - start_ns
        best = spent_ns if best is None else min(best, spent_ns)
    return round((best or 0) / calls / 1000, 4)


def _values() -> list[bytes]:
    return [b"%08d" % index + VALUE[8:] for index in range(MANY)]


def _full() -> Batch:
    return encode(
        [
            Message(
                value, b"key-%d" % (index % 50), {"type": "order"}, index % 10, 5, None, 7, None, b"%d" % index, NOW
            )
            for index, value in enumerate(_values())
        ]
    )


def encode_single() -> Figures:
    """One 200-byte message."""
    message = Message(VALUE)
    return {
        "workload": "batch_encode_one",
        "us": _us(lambda: encode_one(VALUE).buffers(), 5000),
        "us_with_key": _us(lambda: encode_one(VALUE, key=b"customer-17").buffers(), 5000),
        "us_from_message": _us(lambda: encode([message]).buffers(), 5000),
        "us_with_everything": _us(
            lambda: encode_one(
                VALUE, key=b"k", headers={"a": "b"}, priority=1, delay_ns=5, ttl_ns=9, dedup_id=b"d"
            ).buffers(),
            2000,
        ),
        "overhead_bytes": encode_one(VALUE).size_bytes - len(VALUE),
    }


def encode_many() -> Figures:
    """A thousand 200-byte messages."""
    values = _values()
    messages = [Message(value) for value in values]
    keys = [b"key-%d" % (index % 50) for index in range(MANY)]
    keyed = [Message(value, key) for value, key in zip(values, keys, strict=True)]
    return {
        "workload": "batch_encode_1000",
        "us_per_message": _us(lambda: encode(messages).buffers(), 50) / MANY,
        "us_per_message_keyed": _us(lambda: encode(keyed).buffers(), 50) / MANY,
        "us_per_message_from_columns": _us(lambda: encode_columns(values).buffers(), 100) / MANY,
        "overhead_bytes_per_message": encode(messages).size_bytes / MANY - len(VALUE),
        "overhead_bytes_per_message_keyed": (encode(keyed).size_bytes - sum(map(len, keys))) / MANY - len(VALUE),
    }


def decode() -> Figures:
    """Bytes nobody vouches for, and bytes a frame's checksum covered."""
    one, many = encode_one(VALUE).to_bytes(), encode_columns(_values()).to_bytes()
    full = _full().to_bytes()
    return {
        "workload": "batch_decode",
        "us_one": _us(lambda: Batch.decode(one), 5000),
        "us_per_message_1000": _us(lambda: Batch.decode(many), 100) / MANY,
        "us_per_message_1000_every_column": _us(lambda: Batch.decode(full), 20) / MANY,
        "us_trusted": _us(lambda: Batch.trusted(many), 5000),
        "us_trusted_every_column": _us(lambda: Batch.trusted(full), 5000),
    }


def stamp_and_read() -> Figures:
    """What the broker does with each batch, and consumers with each message."""
    one, many, timed = encode_one(VALUE), encode_columns(_values()), _full()
    stamped = many.stamp(1, 1, NOW)
    trusted = Batch.trusted(timed.to_bytes())
    raw = trusted.to_bytes()
    return {
        "workload": "batch_stamp_and_read",
        "us_stamp_one": _us(lambda: one.stamp(1, 1, NOW), 5000),
        "us_stamp_1000": _us(lambda: many.stamp(1, 1, NOW), 5000),
        "us_stamp_1000_with_delays": _us(lambda: timed.stamp(1, 1, NOW), 50),
        "us_value": _us(lambda: stamped.value(500), 5000),
        "us_key": _us(lambda: trusted.key(500), 5000),
        "us_per_message_values": _us(stamped.values, 100) / MANY,
        "us_per_message_key_hashes": _us(lambda: Batch.trusted(raw).key_hashes(), 50) / MANY,
    }


def cut() -> Figures:
    """Parts of a stored batch, as deliveries take them."""
    stored = encode_columns(_values()).stamp(1, 1, NOW)
    sparse = list(range(0, MANY, 10))
    parts = [stored.slice(at, at + 100) for at in range(0, MANY, 100)]
    return {
        "workload": "batch_cut",
        "us_slice_1_of_1000": _us(lambda: stored.slice(500, 501), 2000),
        "us_slice_100_of_1000": _us(lambda: stored.slice(500, 600), 2000),
        "us_select_100_of_1000": _us(lambda: stored.select(sparse), 200),
        "us_concat_10_of_100": _us(lambda: Batch.concat(parts), 200),
    }


def arrow() -> Figures:
    """To a pyarrow.RecordBatch and back."""
    values, most, full = encode_columns(_values()), encode_columns([VALUE] * 4096), _full()
    gaps = encode_columns(_values(), keys=[b"k" if index % 2 else None for index in range(MANY)])
    table = values.to_arrow()
    return {
        "workload": "batch_arrow",
        "us_to_arrow_1000": _us(values.to_arrow, 2000),
        "us_to_arrow_4096": _us(most.to_arrow, 2000),
        "us_to_arrow_keys_with_gaps": _us(gaps.to_arrow, 1000),
        "us_to_arrow_every_column": _us(full.to_arrow, 1000),
        "us_per_message_from_arrow": _us(lambda: encode_arrow(table).buffers(), 100) / MANY,
    }


WORKLOADS = (encode_single, encode_many, decode, stamp_and_read, cut, arrow)


def all_figures() -> list[Figures]:
    """Every workload of this file, a few seconds in all."""
    return [workload() for workload in WORKLOADS]
