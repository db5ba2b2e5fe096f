"""Mutation fuzzing of MQTT sessions, before and after CONNECT; a short run of it is in the suite.

    python tests/fuzz/fuzz_mqtt.py 1000000 [SEED]

Each input is a stream of packets, mostly sensible, mutated in its CONNECT or behind it, cut into pieces and given to a
session that a broker answers. Nothing may raise; the reason of a failure must be one that its packet may carry; what a
session keeps must be bounded by what its limits say; and a second, healthy session must not notice.
"""

from __future__ import annotations

import random
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from headrace.wire.mqtt import Connect, PingReq, ServerSession, SessionLimits, build
from props.test_mqtt_codec import play

LIMITS = SessionLimits(
    receive_maximum=4,
    inflight_max=4,
    requests_max=3,
    queue_messages_max=5,
    outgoing_bytes_max=300,
    held_bytes_max=2_000,
)
_PING = build(PingReq(), 5)


def healthy() -> ServerSession:
    """A session that nothing may happen to."""
    session = ServerSession(now_ns=0)
    session.receive_bytes(build(Connect("healthy", 5), 5), 0)
    session.events()
    session.accept(0)
    session.outgoing()
    return session


def run(inputs: int, seed: int) -> dict[str, float]:
    """So many inputs; what was seen."""
    witness = healthy()
    closed = 0
    began = time.perf_counter()
    memory = 0
    for number in range(inputs):
        session = play(random.Random(seed + number), 4 + number % 2, LIMITS)
        closed += session.close_planned
        if number % 1_000 == 0:
            witness.receive_bytes(_PING, 0)
            if witness.close_planned or b"".join(witness.outgoing()) != b"\xd0\x00":
                raise AssertionError(f"a bystander noticed input {seed + number}")
        if number == inputs // 10:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory if memory else 0
    return {
        "inputs": inputs,
        "ended by us": closed,
        "grown KiB after the first tenth": grown,
        "seconds": round(time.perf_counter() - began),
    }


if __name__ == "__main__":
    seen = run(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    sys.stdout.write(f"{seen}\n")
