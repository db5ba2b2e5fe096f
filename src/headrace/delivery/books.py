"""The books of one group in one partition: where each of its messages is, counted from the containers themselves.

The identity that has to hold, always:

    published = scheduled + ready + leased + acked + dead + expired + cancelled + dropped + filtered

``books_of`` adds up what lies in the containers, and does not believe the counts that are kept beside them: a message
in no container, or in two, and a count that does not match its container are each a fault with a name. ``drift`` of a
backlog is the same sum from the kept counts alone: cheap enough for a metric.
"""

from __future__ import annotations

from typing import NamedTuple

from pyroaring import BitMap64

from headrace.delivery.backlog import Backlog
from headrace.delivery.offsets import runs

__all__ = ["Books", "books_of"]


class Books(NamedTuple):
    """How many messages of one group in one partition are where."""

    published: int
    scheduled: int
    ready: int
    leased: int
    acked: int
    dead: int
    expired: int
    cancelled: int
    dropped: int
    filtered: int

    @property
    def drift(self) -> int:
        """Zero when they balance."""
        return self.published - sum(self[1:])


def books_of(backlog: Backlog) -> tuple[Books, list[str]]:
    """The books, and what is wrong with them (nothing, in a sound shard)."""
    interest = BitMap64()
    interest.add_range(backlog.start, max(backlog.start, backlog.end))
    partition = backlog.partition
    finals = (backlog.dead, backlog.expired, backlog.cancelled, backlog.dropped, backlog.filtered & interest)
    acked = backlog.done.copy()
    for final in finals:
        acked -= final
    containers = {
        "scheduled": ((partition.scheduled & interest) - backlog.filtered) | backlog.waiting,
        "ready": _ready(backlog),
        "leased": backlog.leased_bits(),
        "acked": acked,
        **dict(zip(("dead", "expired", "cancelled", "dropped", "filtered"), finals, strict=True)),
    }
    books = Books(len(interest), *(len(bits) for bits in containers.values()))
    return books, [*_misplaced(containers, interest), *_miscounted(backlog, books)]


def _ready(backlog: Backlog) -> BitMap64:
    bits = backlog.fresh | backlog.parked
    bits |= backlog.late_ready
    if backlog.throttle is not None:
        bits |= backlog.throttle.kept
    for lane in backlog.lanes:
        if lane is not None:
            bits |= lane.main
            bits |= lane.late_set
            bits.update([offset for _, _, offset in lane.front])
    return bits


def _misplaced(containers: dict[str, BitMap64], interest: BitMap64) -> list[str]:
    faults: list[str] = []
    seen = BitMap64()
    for name, bits in containers.items():
        for what, wrong in (("in another container too", bits & seen), ("and not of this group", bits - interest)):
            if wrong:
                faults.append(f"{len(wrong)} messages are {name} {what}: {_some(wrong)}")
        seen |= bits
    lost = interest - seen
    if lost:
        faults.append(f"{len(lost)} messages are nowhere: {_some(lost)}")
    return faults


def _miscounted(backlog: Backlog, books: Books) -> list[str]:
    kept = {
        "scheduled": backlog.scheduled_count,
        "ready": backlog.ready_count,
        "leased": backlog.leased_count,
        "acked": backlog.acked_count,
        "dead": backlog.dead_count,
        "expired": backlog.expired_count,
        "cancelled": backlog.cancelled_count,
        "dropped": backlog.dropped_count,
        "filtered": backlog.filtered_count,
    }
    return [
        f"{count} messages are counted as {name} and there are {getattr(books, name)}"
        for name, count in kept.items()
        if count != getattr(books, name)
    ]


def _some(bits: BitMap64) -> str:
    """The first stretches of a set, for people."""
    told: list[str] = []
    for first, count in runs(bits):
        if len(told) == 3:
            return f"{', '.join(told)} …"
        told.append(f"offset {first}" if count == 1 else f"offsets {first} to {first + count - 1}")
    return ", ".join(told)
