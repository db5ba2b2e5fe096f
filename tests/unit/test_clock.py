"""Real time and the clock that moves when told to."""

from __future__ import annotations

import time

import pytest

from headrace.clock import Clock, ManualClock, SystemClock


def test_the_system_clock_reads_both_clocks_of_the_machine() -> None:
    clock: Clock = SystemClock()
    before_wall, before_monotonic = time.time_ns(), time.monotonic_ns()
    wall_ns, monotonic_ns = clock.wall_ns(), clock.monotonic_ns()
    assert before_monotonic <= monotonic_ns <= time.monotonic_ns()
    assert abs(wall_ns - before_wall) < 3_600_000_000_000


def test_advancing_moves_both_clocks_by_the_same_span() -> None:
    clock = ManualClock(wall_ns=1_000, monotonic_ns=10)
    clock.advance(5)
    assert (clock.wall_ns(), clock.monotonic_ns()) == (1_005, 15)


def test_stepping_the_wall_clock_leaves_intervals_alone() -> None:
    clock = ManualClock(wall_ns=1_000, monotonic_ns=10)
    clock.set_wall(3)
    assert (clock.wall_ns(), clock.monotonic_ns()) == (3, 10)


def test_time_does_not_pass_backwards() -> None:
    with pytest.raises(ValueError, match=r"set_wall\(\)"):
        ManualClock().advance(-1)
