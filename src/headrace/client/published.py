"""Where published messages lie, from the parts that a broker answers with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, cast, overload

from headrace.calls import Part, Place, place_of

__all__ = ["Published", "PublishedMany", "places", "published", "single_place"]


class Published(NamedTuple):
    """Where one message lies. ``duplicate``: its ``dedup_id`` was there already, and this is the first copy.

    >>> import headrace
    >>> with headrace.open(":memory:") as hr:
    ...     hr.topic("orders").publish(b"first").offset
    0
    """

    id: int
    partition: int
    offset: int
    duplicate: bool


published: Final = cast("Callable[[Place], Published]", partial(tuple.__new__, Published))
"""A ``Published`` from its fields, without the detour through a constructor of four arguments."""


def single_place(parts: Sequence[Part]) -> Published:
    """Where the one message of a batch of one lies."""
    return published(place_of(parts))


def places(parts: Sequence[Part], count: int) -> list[Published]:
    """Where each message of a batch of ``count`` lies, in its order."""
    found: list[Published | None] = [None] * count
    for part in parts:
        repeated = {each.index: each for each in part.duplicates}
        taken = 0
        partition, base_offset, base_id = part.partition, part.base_offset, part.base_id
        for index in part.indexes if part.indexes is not None else range(count):
            first = repeated.get(index)
            if first is not None:
                found[index] = Published(first.id, first.partition, first.offset, True)
            else:
                found[index] = Published(base_id + taken, partition, base_offset + taken, False)
                taken += 1
    return [place for place in found if place is not None]


class PublishedMany(Sequence[Published]):
    """Where each of many messages lies, in their order; worked out when looked at.

    >>> import headrace
    >>> with headrace.open(":memory:") as hr:
    ...     [place.offset for place in hr.topic("orders").publish_many([b"a", b"b", b"c"])]
    [0, 1, 2]
    """

    __slots__ = ("_counts", "_places", "_rounds", "duplicates")

    def __init__(self, rounds: Sequence[Sequence[Part]], counts: Sequence[int]) -> None:
        self._rounds = rounds
        self._counts = counts
        self._places: list[Published] | None = None
        self.duplicates = sum(len(part.duplicates) for parts in rounds for part in parts)
        """How many were there already."""

    def _all(self) -> list[Published]:
        if self._places is None:
            self._places = [
                place for parts, count in zip(self._rounds, self._counts, strict=True) for place in places(parts, count)
            ]
        return self._places

    @overload
    def __getitem__(self, index: int) -> Published: ...
    @overload
    def __getitem__(self, index: slice) -> list[Published]: ...
    def __getitem__(self, index: int | slice) -> Published | list[Published]:
        return self._all()[index]

    def __len__(self) -> int:
        return sum(self._counts)

    def __iter__(self) -> Iterator[Published]:
        return iter(self._all())

    def __repr__(self) -> str:
        return f"<{len(self)} published, {self.duplicates} of them duplicates>"
