"""Many lives of a shard, each under one seed; nothing that was promised may be broken in any of them.

``make sim SEEDS=10000`` lives more of them, ``python tests/sim --seeds 4711 --tell`` tells one.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from sim.play import play

STEPS = 150
CHUNK = 25
SEEDS = int(os.environ.get("HEADRACE_SEEDS") or 300)


@pytest.mark.feature("F125", "N11", "N13")
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_promise_is_broken_whatever_happens(first: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(first, min(first + CHUNK, SEEDS)):
        try:
            happened += play(seed, STEPS)
        except Exception as error:
            raise AssertionError(f"seed {seed} (python tests/sim --seeds {seed} --tell): {error}") from error
    # A life in which nothing happens breaks no promise either.
    for rare in ("crashes", "dead", "expired", "acked", "nack", "queue_full"):
        found = sum(count for name, count in happened.items() if rare in name)
        assert found or SEEDS - first < CHUNK, f"{CHUNK} lives without {rare}"
