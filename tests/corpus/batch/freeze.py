"""Writes the frozen batches of version 1. It never replaces a file: what is here must be readable for ever.

    python tests/corpus/batch/freeze.py

`valid/NAME.batch` has its messages in `valid/NAME.json`, written from the messages and not from a decoder.
`malformed/NAME.batch` has in `malformed/NAME.json` the code of the refusal and words that it must contain.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import google_crc32c

from headrace.batch import Batch, Message, encode

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
NOW = 1_700_000_000_000_000_000
SECOND = 1_000_000_000


class Valid(NamedTuple):
    """One frozen batch: what was put in, and what the broker did with it."""

    messages: list[Message]
    producer: tuple[int, int] = (0, 0)
    stamp: tuple[int, int, int] | None = None
    select: list[int] | None = None


MIXED = [
    Message(b"first", key=b"k1", headers={"a": "1", "blob": b"\x00\xff"}, priority=1, delay_ns=5 * SECOND, ttl_ns=60),
    Message(b"", dedup_id=b"d-2", timestamp_ns=NOW - 1),
    Message(b"third" * 10, key=b"k1", headers={"é": "naïve ✓"}, deliver_at_ns=NOW + SECOND, expires_at_ns=NOW + 9),
    Message(b"\x00\xff", priority=9, ttl_ns=SECOND),
]
VALID: dict[str, Valid] = {
    "one_value": Valid([Message(b"hello")]),
    "one_empty_value": Valid([Message(b"")]),
    "one_with_key": Valid([Message(b"hello", key=b"k")]),
    "one_with_producer": Valid([Message(b"hello")], producer=(2**64 - 1, 7)),
    "one_with_everything": Valid(
        [
            Message(
                b"v", b"k", {"n": "s", "b": b"\x80"}, 0, deliver_at_ns=NOW, ttl_ns=1, dedup_id=b"d", timestamp_ns=NOW
            )
        ],
        producer=(1, 1),
    ),
    "one_stamped": Valid([Message(b"hello", delay_ns=SECOND, ttl_ns=SECOND)], stamp=(41, 4_294_967_296, NOW)),
    "values": Valid([Message(b"a"), Message(b"bc"), Message(b"def")]),
    "values_empty": Valid([Message(b""), Message(b"")]),
    "keys": Valid([Message(b"a", key=b"k1"), Message(b"b", key=b"k22")]),
    "keys_with_gaps": Valid([Message(b"a", key=b"k1"), Message(b"b"), Message(b"c", key=b"k3")]),
    "headers_text": Valid(
        [Message(b"a", headers={"x": "1", "y": ""}), Message(b"b"), Message(b"c", headers={"": "ü"})]
    ),
    "headers_mixed": Valid([Message(b"a", headers={"x": "1"}), Message(b"b", headers={"y": b"\xff"})]),
    "priorities": Valid([Message(b"a", priority=lane) for lane in range(10)]),
    "delays": Valid([Message(b"a", delay_ns=1), Message(b"b", delay_ns=2)]),
    "delays_with_gaps": Valid([Message(b"abc", delay_ns=1), Message(b"b"), Message(b"c", deliver_at_ns=NOW)]),
    "ttls": Valid([Message(b"a", ttl_ns=1), Message(b"b", expires_at_ns=NOW)]),
    "dedups": Valid([Message(b"a", dedup_id=b"1"), Message(b"b", dedup_id=b"2")]),
    "timestamps": Valid([Message(b"a", timestamp_ns=NOW), Message(b"b", timestamp_ns=NOW + 1)]),
    "mixed": Valid(MIXED, producer=(9, 3)),
    "mixed_stamped": Valid(MIXED, stamp=(1000, 5 << 40, NOW)),
    "mixed_selected": Valid(MIXED, stamp=(1000, 5 << 40, NOW), select=[3, 0, 2]),
    "thousand": Valid([Message(b"%03d" % index) for index in range(1000)]),
}


def built(case: Valid) -> Batch:
    """The case as today's code encodes it."""
    batch = encode(case.messages, producer_id=case.producer[0], producer_seq=case.producer[1])
    if case.stamp is not None:
        batch = batch.stamp(*case.stamp)
    return batch if case.select is None else batch.select(case.select)


def described(case: Valid) -> dict[str, Any]:
    """What a reader must find, worked out from the messages alone."""
    offset, first_id, now = case.stamp or (0, 0, 0)
    chosen = range(len(case.messages)) if case.select is None else case.select

    def row(index: int) -> dict[str, Any]:
        message = case.messages[index]
        deliver = message.deliver_at_ns or -(message.delay_ns or 0)
        expires = message.expires_at_ns or -(message.ttl_ns or 0)
        if now:
            deliver = now - deliver if deliver < 0 else deliver
            expires = max(deliver, now) - expires if expires < 0 else expires
        headers = [[n, v if isinstance(v, str) else {"hex": v.hex()}] for n, v in (message.headers or {}).items()]
        return {
            "offset": offset + index,
            "id": first_id + index,
            "value": message.value.hex(),
            "key": message.key.hex() if message.key else None,
            "headers": headers,
            "priority": message.priority,
            "deliver_at": deliver or None,
            "expires_at": expires or None,
            "dedup_id": message.dedup_id.hex() if message.dedup_id else None,
            "timestamp": message.timestamp_ns,
        }

    producer = (0, 0) if case.select is not None else case.producer
    return {"append_time": now, "producer": list(producer), "messages": [row(index) for index in chosen]}


# -- refused -----------------------------------------------------------------------------------------------------------


def resummed(raw: bytearray) -> bytes:
    """With the checksum made right again: what an adversary sends."""
    head = 56 if struct.unpack_from("<H", raw, 4)[0] & 1 else 40
    if len(raw) >= head:
        crc = google_crc32c.value(bytes(raw[head:] + raw[: head - 4]))
        struct.pack_into("<I", raw, head - 4, crc)
    return bytes(raw)


def patched(name: str, *changes: tuple[str, int, int], resum: bool = True) -> bytes:
    """A valid batch with fields overwritten: (struct format, position, value)."""
    raw = bytearray(built(VALID[name]).to_bytes())
    for form, at, value in changes:
        struct.pack_into("<" + form, raw, at % len(raw), value)
    return resummed(raw) if resum else bytes(raw)


def replaced(name: str, change: Callable[[bytearray], None]) -> bytes:
    """A valid batch changed freely, with length and checksum made right again."""
    raw = bytearray(built(VALID[name]).to_bytes())
    change(raw)
    struct.pack_into("<I", raw, 8, len(raw))
    return resummed(raw)


def _not_utf8(raw: bytearray) -> None:
    raw[raw.index(b"\xc3\xbc") + 1] = 0xC3


BODY = 40


def _stretch_key(raw: bytearray) -> None:
    raw.extend(bytes(1100))
    struct.pack_into("<i", raw, BODY + 4, 1025)


def _stretch_dedup(raw: bytearray) -> None:
    table = BODY + 12
    struct.pack_into("<iii", raw, table, 0, 1, 258)
    raw[table + 14 : table + 14] = bytes(256)


MALFORMED: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "malformed", "batch.head"),
    "one_byte": (b"H", "malformed", "batch.head"),
    "head_alone": (patched("values")[:40], "malformed", "batch.length"),
    "magic": (patched("values", ("H", 0, 0x4B50)), "malformed", "batch.magic"),
    "version_0": (patched("values", ("B", 2, 0)), "unsupported_version", "batch.version is 0"),
    "version_2": (patched("values", ("B", 2, 2)), "unsupported_version", "batch.version is 2"),
    "codec": (patched("values", ("B", 3, 1)), "unsupported_version", "batch.codec is 1"),
    "unknown_column": (patched("values", ("H", 4, 1 << 15)), "malformed", "batch.columns is 0x8000"),
    "kinds_without_headers": (patched("values", ("H", 4, 1 << 5)), "malformed", "kinds without the headers"),
    "gaps_without_column": (patched("values", ("H", 4, 1 << 13)), "malformed", "deliver_at gaps without"),
    "count_0": (patched("values", ("H", 6, 0)), "malformed", "batch.count is 0"),
    "count_too_many": (patched("values", ("H", 6, 4097)), "limit_exceeded", "batch.count is 4097"),
    "count_65535": (patched("values", ("H", 6, 65535)), "limit_exceeded", "batch.count is 65535"),
    "count_more_than_fit": (patched("values", ("H", 6, 4096)), "malformed", "batch.count is 4096"),
    "count_one_more": (patched("values", ("H", 6, 4)), "malformed", "batch.value_offsets"),
    "count_one_less": (patched("values", ("H", 6, 2)), "malformed", "batch.value_offsets"),
    "length_short": (patched("values", ("I", 8, 61)), "malformed", "batch.length is 61"),
    "length_long": (patched("values", ("I", 8, 63)), "malformed", "batch.length is 63"),
    "length_4_gib": (patched("values", ("I", 8, 0xFFFFFFFF)), "payload_too_large", "batch.length is 4294967295"),
    "crc": (patched("values", ("I", 36, 0), resum=False), "malformed", "batch.crc"),
    "value_flipped": (patched("values", ("B", -1, 0), resum=False), "malformed", "batch.crc"),
    "base_offset_negative": (patched("one_stamped", ("q", 12, -1)), "malformed", "batch.base_offset is -1"),
    "base_offset_2_63": (patched("one_stamped", ("Q", 12, 2**63)), "malformed", "batch.base_offset"),
    "base_id_negative": (patched("one_stamped", ("q", 20, -5)), "malformed", "batch.base_id is -5"),
    "append_time_negative": (patched("one_stamped", ("q", 28, -1)), "malformed", "batch.append_time is -1"),
    "append_time_far": (patched("one_stamped", ("q", 28, 2**62)), "malformed", "batch.append_time"),
    "place_without_time": (patched("one_stamped", ("q", 28, 0)), "malformed", "append_time is 0"),
    "delta_without_stamp": (
        patched("mixed_selected", ("q", 12, 0), ("q", 20, 0), ("q", 28, 0)),
        "malformed",
        "batch.columns has a delta column",
    ),
    "producer_0": (patched("one_with_producer", ("Q", 36, 0)), "malformed", "batch.producer_id is 0"),
    "offsets_first": (patched("values", ("i", BODY, 1)), "malformed", "batch.value_offsets[0] is 1"),
    "offsets_fall": (patched("values", ("i", BODY + 4, 4)), "malformed", "batch.value_offsets[2] is 3, below 4"),
    "offsets_negative": (patched("values", ("i", BODY + 8, -1)), "malformed", "batch.value_offsets[2] is -1"),
    "offsets_outside": (patched("values", ("i", BODY + 8, 7)), "malformed", "batch.value_offsets[3] is 6, below 7"),
    "offsets_end_negative": (patched("values", ("i", BODY + 12, -1)), "malformed", "batch.value_offsets ends at -1"),
    "offsets_end_outside": (patched("values", ("i", BODY + 12, 7)), "malformed", "batch.value_offsets ends at 7"),
    "offsets_end_early": (patched("values", ("i", BODY + 12, 5)), "malformed", "batch.value_offsets ends at 5"),
    "offsets_end_2_31": (patched("values", ("I", BODY + 12, 2**31)), "malformed", "batch.value_offsets ends at -2147"),
    "key_end_outside": (patched("one_with_key", ("i", BODY + 4, 7)), "malformed", "batch.key_offsets ends at 7"),
    "key_end_negative": (patched("one_with_key", ("i", BODY + 4, -7)), "malformed", "batch.key_offsets ends at -7"),
    "key_first": (patched("one_with_key", ("i", BODY, -7)), "malformed", "batch.key_offsets[0] is -7"),
    "key_gap_undeclared": (patched("keys", ("i", BODY + 16, 0)), "malformed", "batch.key[0] is empty"),
    "key_too_long": (
        replaced("one_with_key", _stretch_key),
        "limit_exceeded",
        "batch.key[0] has 1025 bytes",
    ),
    "dedup_too_long": (
        replaced("dedups", _stretch_dedup),
        "limit_exceeded",
        "batch.dedup_id[1] has 257 bytes",
    ),
    "entries_outside": (
        patched("headers_text", ("i", BODY + 28, 1 << 30)),
        "malformed",
        "batch.header_offsets ends at",
    ),
    "entries_negative": (patched("headers_text", ("i", BODY + 28, -3)), "malformed", "batch.header_offsets ends at -3"),
    "entries_fall": (
        patched("headers_text", ("i", BODY + 20, 3)),
        "malformed",
        "batch.header_offsets[2] is 2, below 3",
    ),
    "name_not_utf8": (replaced("headers_text", _not_utf8), "malformed", "is not UTF-8"),
    "kind_2": (patched("headers_mixed", ("B", BODY + 48, 2)), "malformed", "batch.kinds[0] is 2"),
    "bytes_called_str": (patched("headers_mixed", ("B", BODY + 49, 0)), "malformed", "header value"),
    "priority_10": (patched("priorities", ("B", BODY + 44, 10)), "malformed", "batch.priority[0] is 10"),
    "priority_255": (patched("priorities", ("B", BODY + 53, 255)), "malformed", "batch.priority[9] is 255"),
    "delay_too_long": (patched("delays", ("q", -8, -(2**63))), "malformed", "batch.deliver_at[1] is -9223"),
    "deliver_at_far": (patched("delays", ("q", -8, 2**62)), "malformed", "batch.deliver_at[1] is 4611"),
    "deliver_at_gap_undeclared": (patched("delays", ("q", -8, 0)), "malformed", "batch.deliver_at[1] is 0"),
    "delay_after_stamp": (patched("one_stamped", ("q", -16, -1)), "malformed", "batch.deliver_at[0] is -1"),
    "expires_at_negative": (patched("ttls", ("q", -8, -(2**62))), "malformed", "batch.expires_at[1] is -4611"),
    "timestamp_negative": (patched("timestamps", ("q", BODY, -1)), "malformed", "batch.timestamp[0] is -1"),
    "base_id_past_2_63": (patched("mixed_selected", ("q", 20, 2**63 - 3)), "malformed", "batch.base_id is"),
    "delta_outside": (
        patched("mixed_selected", ("q", 20, 2**63 - 5), ("I", BODY + 24, 9)),
        "malformed",
        "at most 4 from these bases",
    ),
    "delta_twice": (patched("mixed_selected", ("I", BODY + 24, 0), ("I", BODY + 28, 0)), "malformed", "batch.delta["),
}


def freeze() -> None:
    """Write what is not there yet."""
    for name, case in VALID.items():
        _write(HERE / "valid" / name, built(case).to_bytes(), described(case))
    for name, (raw, code, words) in MALFORMED.items():
        _write(HERE / "malformed" / name, raw, {"code": code, "words": words})


def _write(path: Path, raw: bytes, meaning: dict[str, Any]) -> None:
    file = path.with_suffix(".batch")
    if not file.exists():
        file.write_bytes(raw)
        path.with_suffix(".json").write_text(json.dumps(meaning, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    freeze()
