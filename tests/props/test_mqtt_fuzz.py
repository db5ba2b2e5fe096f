"""A short run of the fuzzer, so that it cannot rot; tests/fuzz/fuzz_mqtt.py runs as long as it is told."""

from __future__ import annotations

import os

from fuzz.fuzz_mqtt import run


def test_no_stream_of_packets_hurts_a_session_or_its_neighbour() -> None:
    seen = run(int(os.environ.get("HEADRACE_SEEDS", "0")) or 2_000, 77)
    assert 0 < seen["ended by us"] < seen["inputs"]
