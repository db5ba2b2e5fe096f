"""The only reader of real time.

Intervals (leases, timeouts) are measured on the monotonic clock; stamps and schedules use wall time, which may be set
back or forward under us. Everything else takes ``now_ns`` as an argument, so that the whole broker runs under a
``ManualClock``.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock"]


class Clock(Protocol):
    def wall_ns(self) -> int:
        """Nanoseconds since 1970-01-01 UTC; may step."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary start; never goes back."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    wall_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)


class ManualClock:
    """A clock that moves when told to.

    >>> clock = ManualClock(wall_ns=1_000)
    >>> clock.advance(500)
    >>> clock.wall_ns(), clock.monotonic_ns()
    (1500, 500)
    """

    __slots__ = ("_monotonic_ns", "_wall_ns")

    def __init__(self, wall_ns: int = 1_700_000_000_000_000_000, monotonic_ns: int = 0) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns

    def wall_ns(self) -> int:
        return self._wall_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, span_ns: int) -> None:
        """Let time pass on both clocks."""
        if span_ns < 0:
            raise ValueError(f"time cannot pass backwards: advance({span_ns}); set_wall() steps the wall clock")
        self._wall_ns += span_ns
        self._monotonic_ns += span_ns

    def set_wall(self, wall_ns: int) -> None:
        """Step the wall clock alone, as an operator or NTP does."""
        self._wall_ns = wall_ns
