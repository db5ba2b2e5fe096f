"""Reading a topic's log again, without a group: nothing is leased, nothing changes.

The end is fixed when reading begins, so that a replay ends although messages keep coming. Messages come partition by
partition, each in the order of its offsets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final

from headrace.batch import Batch
from headrace.calls import LeasedBatch
from headrace.client.arguments import Instant, instant_ns, whole
from headrace.client.leased import Holding, MessageFields
from headrace.errors import InvalidArgument
from headrace.limits import OFFSET_MAX

__all__ = ["AsyncReplay", "Record", "Replay", "ReplayPlan"]

_PAGE: Final = 100_000


class Record(MessageFields):
    """One message of the log."""

    __slots__ = ()


class _Source:
    """What a record knows besides its own fields."""

    __slots__ = ("topic_name",)

    def __init__(self, topic_name: str) -> None:
        self.topic_name = topic_name


class ReplayPlan:
    """What to ask for next, and what came of it; both kinds of replay stand on it."""

    def __init__(
        self,
        namespace: str,
        topic: str,
        from_time: Instant | None,
        to_time: Instant | None,
        from_offset: int | None,
        to_offset: int | None,
        partition: int | None,
        limit: int | None,
        include_deleted: bool = False,
    ) -> None:
        self._names: dict[str, Any] = {"namespace": namespace, "topic": topic}
        if include_deleted:
            self._names["include_deleted"] = True
        first = dict(self._names)
        if from_time is not None:
            first["from_time_ns"] = instant_ns("from_time", from_time)
        if to_time is not None:
            first["to_time_ns"] = instant_ns("to_time", to_time)
        if from_offset is not None:
            first["from_offset"] = whole("from_offset", from_offset, 0, OFFSET_MAX)
        if to_offset is not None:
            first["to_offset"] = whole("to_offset", to_offset, 0, OFFSET_MAX)
        if partition is not None:
            first["partition"] = whole("partition", partition, 0, OFFSET_MAX)
        self.topic = topic
        self._left = limit if limit is None else whole("limit", limit, 1, OFFSET_MAX)
        self._first: dict[str, Any] | None = first
        self._rest: list[tuple[int, int, int]] = []
        self._begun = False

    def begin(self) -> None:
        """It is read from now on, and once only: what was read is not kept."""
        if self._begun:
            raise InvalidArgument(f"this replay of {self.topic!r} was read already; ask topic.read(…) for another one")
        self._begun = True

    def next(self) -> dict[str, Any] | None:
        """The arguments of the next call, or None at the end."""
        if self._left == 0:
            return None
        limit = _PAGE if self._left is None else min(_PAGE, self._left)
        if self._first is not None:
            return {**self._first, "limit": limit}
        if not self._rest:
            return None
        partition, start, end = self._rest[0]
        return {**self._names, "partition": partition, "from_offset": start, "to_offset": end, "limit": limit}

    def take(self, answer: tuple[dict[str, Any], list[Batch]]) -> Iterator[tuple[int, Batch]]:
        """(partition, batch) of an answer."""
        result, batches = answer
        rest = [(part["partition"], part["next_offset"], part["end_offset"]) for part in result["parts"]]
        if self._first is None:
            self._rest = [*rest, *self._rest[1:]]
        else:
            self._first, self._rest = None, rest
        self._rest = [each for each in self._rest if each[1] < each[2]]
        at = 0
        for part in result["parts"]:
            for batch in batches[at : at + part["batches"]]:
                if self._left is not None:
                    self._left -= batch.count
                yield part["partition"], batch
            at += part["batches"]


def _records(source: _Source, partition: int, batch: Batch) -> Iterator[Record]:
    holding = Holding(LeasedBatch(partition, 0, batch, 0, {}))
    for index in range(batch.count):
        yield Record(source, holding, index)


class Replay:
    """The messages of a log, read as they are asked for. Iterate it, or take it as columns: once, the second time is an
    error (ask ``topic.read`` again, which reads again).

    >>> import headrace
    >>> with headrace.open(":memory:") as hr:
    ...     orders = hr.topic("orders")
    ...     _ = orders.publish_many([b"a", b"b", b"c"])
    ...     [record.value for record in orders.read(from_offset=1)]
    [b'b', b'c']
    """

    def __init__(self, call: Callable[..., Any], plan: ReplayPlan) -> None:
        self._call = call
        self._plan = plan

    def batches(self) -> Iterator[tuple[int, Batch]]:
        """(partition, batch) one after another."""
        self._plan.begin()
        while (arguments := self._plan.next()) is not None:
            yield from self._plan.take(self._call("read", **arguments))

    def __iter__(self) -> Iterator[Record]:
        source = _Source(self._plan.topic)
        for partition, batch in self.batches():
            yield from _records(source, partition, batch)

    def to_arrow(self) -> Any:
        """All of it as one pyarrow.Table."""
        from headrace.client.tables import table_of

        return table_of((partition, batch, None) for partition, batch in self.batches())


class AsyncReplay:
    """The same for asyncio: ``async for``, or ``await replay.to_arrow()``."""

    def __init__(self, call: Callable[..., Awaitable[Any]], plan: ReplayPlan) -> None:
        self._call = call
        self._plan = plan

    async def batches(self) -> AsyncIterator[tuple[int, Batch]]:
        """(partition, batch) one after another."""
        self._plan.begin()
        while (arguments := self._plan.next()) is not None:
            for found in self._plan.take(await self._call("read", **arguments)):
                yield found

    async def __aiter__(self) -> AsyncIterator[Record]:
        source = _Source(self._plan.topic)
        async for partition, batch in self.batches():
            for record in _records(source, partition, batch):
                yield record

    async def to_arrow(self) -> Any:
        """All of it as one pyarrow.Table."""
        from headrace.client.tables import table_of

        return table_of([(partition, batch, None) async for partition, batch in self.batches()])
