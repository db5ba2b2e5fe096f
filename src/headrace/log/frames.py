"""The journal as the log sees it: frames of facts with their batches, and frames of the manifest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.batch import Batch
from headrace.delivery import Published, decode_facts
from headrace.journal import Journal

__all__ = ["FACTS", "MANIFEST", "JournalFrames"]

FACTS: Final = 1
"""The kind of journal frames that hold facts."""
MANIFEST: Final = 2
"""The kind of journal frames that say which sealed files are live."""


class JournalFrames:
    """Batches of a journal by the position of their frame."""

    __slots__ = ("_journal",)

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def durable_position(self) -> int:
        return self._journal.durable_position

    def batches_at(self, position: int) -> list[Batch]:
        return decode_facts(self._journal.read_frame(position).body)[1]

    def batches_from(self, position: int) -> Iterator[tuple[int, list[tuple[int, Batch]]]]:
        for frame in self._journal.read(position):
            if frame.kind == FACTS:
                facts, batches = decode_facts(frame.body)
                if batches:
                    pids = [fact.pid for fact in facts if type(fact) is Published]
                    yield frame.position, list(zip(pids, batches, strict=True))
