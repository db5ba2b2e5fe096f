"""Handing messages out again, a record at a time: what a redrive and a replay by outcome have in common."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Final

from headrace.batch import Batch
from headrace.broker.broker import Broker
from headrace.broker.selection import Tally
from headrace.delivery import Partition, Redrive, span_of
from headrace.limits import REDRIVE_PORTION_BYTES, REDRIVE_PORTION_MESSAGES, SECOND_NS

__all__ = ["Pending", "Run", "redriven"]

_RATE_STEPS: Final = 10
"""Portions a second at most when there is a rate: smooth enough for whoever works on what comes back."""
_SAMPLE: Final = 10
"""Ids a report shows."""
Pending = list[tuple[int, int]]
"""(offset, size) of what was chosen and is not redriven yet."""


class Run:
    """What a run came to: its report."""

    def __init__(self, rate: float | None, tallies: tuple[str, ...], dry: bool, **head: Any) -> None:
        self.rate = rate
        self.dry = dry
        self.most = REDRIVE_PORTION_MESSAGES
        if rate is not None:
            self.most = max(1, min(REDRIVE_PORTION_MESSAGES, int(rate / _RATE_STEPS)))
        self.matched = self.redriven = self.left = 0
        self.tallies = {name: Tally() for name in tallies}
        self._head = {**head, "dry_run": dry}
        self._sample: list[int] = []

    def count(self, batch: Batch, index: int) -> None:
        self.matched += 1
        if len(self._sample) < _SAMPLE:
            self._sample.append(batch.base_id + batch.delta(index))

    def report(self) -> dict[str, Any]:
        counts = {"matched": self.matched, "redriven": self.redriven, "left": self.left}
        tallies = {f"by_{name}": tally.plain() for name, tally in self.tallies.items()}
        return {**self._head, **counts, **tallies, "sample": self._sample}


def redriven(broker: Broker, partition: Partition, pending: Pending, run: Run, **how: Any) -> Generator[int, Any, None]:
    """Redrive what was chosen, a record at a time, at the run's rate."""
    for offsets in _records(pending, run.most):
        offsets = [offset for offset in offsets if offset >= partition.start]  # retention went on meanwhile
        if not offsets:
            continue
        _, moved, lost = broker.execute(Redrive(partition.pid, span_of(offsets), **how)).reply
        run.redriven += moved.count
        run.left += len(lost)
        yield int(len(offsets) / run.rate * SECOND_NS) if run.rate is not None else 0
    pending.clear()


def _records(pending: Pending, most: int) -> Iterator[list[int]]:
    """What goes into one record: so many messages and bytes at most."""
    offsets: list[int] = []
    size_bytes = 0
    for offset, mine in pending:
        if offsets and (len(offsets) >= most or size_bytes + mine > REDRIVE_PORTION_BYTES):
            yield offsets
            offsets, size_bytes = [], 0
        offsets.append(offset)
        size_bytes += mine
    if offsets:
        yield offsets
