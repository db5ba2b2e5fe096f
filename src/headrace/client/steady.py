"""Wall time that neither jumps nor steps back: the wall clock once, the monotonic clock from there on."""

from __future__ import annotations

from collections.abc import Callable

from headrace.clock import Clock

__all__ = ["steady"]


def steady(clock: Clock) -> Callable[[], int]:
    """A clock's steady time.

    >>> from headrace.clock import ManualClock
    >>> manual = ManualClock(wall_ns=1_000)
    >>> now_ns = steady(manual)
    >>> manual.advance(5)
    >>> manual.set_wall(0)
    >>> now_ns()
    1005
    """
    base_ns = clock.wall_ns() - clock.monotonic_ns()
    monotonic_ns = clock.monotonic_ns

    def now_ns() -> int:
        return base_ns + monotonic_ns()

    return now_ns
