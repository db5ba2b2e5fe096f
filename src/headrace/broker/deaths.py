"""How a message died in a group: told by its facts, as a trace is.

The state of a group knows only that a message is dead, so that a million of them cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from headrace.broker.portions import Aside
from headrace.shard.core import Core
from headrace.shard.views import Row, live_rows, sealed_rows

__all__ = ["death_of", "durable"]


def durable(core: Core) -> Generator[int | Aside, Any, None]:
    """Wait until all that has happened so far has happened for good: only then is it told."""
    journal = core.journal
    end = journal.end_position
    if journal.durable_position < end:
        yield lambda: journal.wait_durable(end)


def death_of(core: Core, group: str, pid: int, offset: int) -> Generator[int | Aside, Any, Row | None]:
    """The row of the events table about the death: ``reason``, ``error``, ``attempt``, ``at_ns``, ``to_topic`` …; None
    where nothing is known of it any more."""
    if pid not in core.state.partitions:
        return None
    died = _last(live_rows(core, pid, offset), group)
    if died is None:
        read = sealed_rows(core, pid, offset)
        if read is not None:
            died = _last((yield read), group)
    return died


def _last(rows: list[Row], group: str) -> Row | None:
    return next((row for row in reversed(rows) if row["event"] == "died" and row["group"] == group), None)
