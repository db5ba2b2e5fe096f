"""How long something takes, as told by the processor's clock.

A core that is shared makes wall time say how busy the others are. Work that waits for nothing is therefore measured in
the processor time of this process, and the best of several rounds counts: noise only slows. What waits for a disk or
for a clock is measured in wall time, beside a probe that waited for the same in the same run.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Processor and wall seconds of a block of code."""

    def __init__(self) -> None:
        self.cpu = 0.0
        self.wall = 0.0


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Measures the block; garbage of what came before is collected first."""
    gc.collect()
    watch = Stopwatch()
    cpu, wall = time.process_time(), time.perf_counter()
    yield watch
    watch.cpu, watch.wall = time.process_time() - cpu, time.perf_counter() - wall


def cpu_rate(work: Callable[[], int], rounds: int = 3) -> float:
    """How much of what ``work`` counts is done in a second of processor time: the best round."""
    best = 0.0
    for _ in range(rounds):
        with stopwatch() as watch:
            done = work()
        best = max(best, done / watch.cpu)
    return best
