"""What is asked of a broker and what it answers, in the words that every door, the SDK and the embedded API share.

Messages travel as batches, receipts as runs. A run names consecutive messages of one lease in one partition (by its
index in the topic); acking a delivery of a hundred is one run. Ports come in two kinds with the same calls: the sync
one blocks the calling thread, the asyncio one is awaited. An embedded broker and a connection are both ports, so that
what stands on top of one cannot tell which it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from headrace.batch import Batch

__all__ = [
    "BY_KEY",
    "AsyncConsumerPort",
    "AsyncPort",
    "ConsumerPort",
    "Duplicate",
    "LeasedBatch",
    "Part",
    "Pending",
    "Place",
    "Port",
    "Refusal",
    "Run",
    "Settle",
    "Settled",
    "Tended",
    "place_of",
    "runs_within",
]

BY_KEY = -1
"""As a partition: the broker routes each message by its key (keyless ones to a partition of its choice)."""


class Run(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The right to settle ``count`` consecutive messages of one lease."""

    partition: int
    lease_id: int
    first_offset: int
    count: int = 1


class Duplicate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A published message that was there already: its index in the batch, and the first copy."""

    index: int
    partition: int
    offset: int
    id: int


Place: TypeAlias = tuple[int, int, int, bool]
"""Where one message lies: its id, partition and offset; and whether this is a first copy that was there already."""


class Part(msgspec.Struct, frozen=True):
    """What a published batch (or the share of it that one partition got) became.

    ``indexes``: which messages of the batch these are, None for all of them in order. New ones, in that order, have
    consecutive offsets and ids from the bases on; those in ``duplicates`` are left out of the counting.
    """

    partition: int
    count: int
    base_offset: int
    base_id: int
    duplicates: tuple[Duplicate, ...] = ()
    indexes: Sequence[int] | None = None


def place_of(parts: Sequence[Part]) -> Place:
    """Where the one message of a batch of one lies."""
    part = parts[0]
    if part.duplicates:
        first = part.duplicates[0]
        return first.id, first.partition, first.offset, True
    return part.base_id, part.partition, part.base_offset, False


def runs_within(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """(first, count) of offsets that follow each other, in the order given."""
    if isinstance(offsets, range):
        return [(offsets.start, len(offsets))]
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and sum(runs[-1]) == offset:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((offset, 1))
    return runs


class LeasedBatch(msgspec.Struct, frozen=True):
    """Leased messages of one partition and one lease; ``batch`` is stamped (offsets, ids, times)."""

    partition: int
    lease_id: int
    batch: Batch
    deadline_ns: int
    attempts: Mapping[int, int]  # offset -> attempt, of those that are not at their first


class Settle(msgspec.Struct):
    """Any mix of verbs. With ``publish`` or ``cancel`` it is atomic: all of it happens in one record, or none."""

    ack: Sequence[Run] = ()
    nack: Sequence[tuple[Run, int | None, str]] = ()  # delay_ns (None: the group's backoff), error text
    reject: Sequence[tuple[Run, str]] = ()
    release: Sequence[Run] = ()
    extend: Sequence[tuple[Run, int]] = ()  # by_ns
    publish: Sequence[tuple[str, int, Batch]] = ()  # topic, partition or BY_KEY, batch
    cancel: Sequence[tuple[str, Sequence[int]]] = ()  # topic, message ids


class Refusal(msgspec.Struct, frozen=True):
    """Messages of a settle that were not settled, and why (an error code and its message)."""

    run: Run
    code: str
    message: str


class Settled(msgspec.Struct, frozen=True):
    settled: int
    refused: Sequence[Refusal] = ()
    published: Sequence[Sequence[Part]] = ()  # one entry for each of Settle.publish
    cancelled: int = 0


class Pending(Protocol):
    """A publish under way."""

    def result(self, timeout: float | None = None) -> list[Part]:
        """Wait until it is durable; raises what it was refused with."""
        ...

    def done(self) -> bool:
        """Is it over? Never waits, and sees to it that it will be."""
        ...


Tended: TypeAlias = Callable[[Sequence[Run] | None], None]
"""Told what was refused of an order; None: all of it."""


class ConsumerPort(Protocol):
    """One consumer of one group on one topic."""

    @property
    def life(self) -> int:
        """Another number when the broker has taken back what was leased through this port and not settled."""
        ...

    @property
    def auto_ack(self) -> bool:
        """Is what comes settled already? Then it has no lease that could run out, and cannot be given back."""
        ...

    def receive(self, most: int, wait_ns: int) -> list[LeasedBatch]:
        """Up to ``most`` messages; waits up to ``wait_ns`` for the first."""
        ...

    def settle(self, order: Settle) -> Settled:
        """Settle and wait until it is durable."""
        ...

    def settle_soon(self, order: Settle) -> None:
        """Settle without waiting; a refusal is raised by a later call or by ``flush``."""
        ...

    def tend(self, order: Settle, tended: Tended) -> None:
        """Renew leases, and give back what no program was handed: with it goes what came after it and is still on its
        way. Without waiting; a refusal is nobody's error, and only ``tended`` is told."""
        ...

    def tell_held(self, held: Callable[[], Sequence[Run]]) -> None:
        """Whom to ask what is held here, when the broker wants to know: one that was started anew."""
        ...

    def flush(self) -> None:
        """Wait for everything settled so far."""
        ...

    def interrupt(self) -> None:
        """Let a receive that waits in another thread return with nothing, and those to come not wait."""
        ...

    def close(self) -> None:
        """Leave the group; what is still leased is given back at once."""
        ...


class Port(Protocol):
    """A broker, as a thread sees it. Errors are raised (``headrace.errors``)."""

    def publish(self, namespace: str, topic: str, partition: int, batch: Batch) -> list[Part]: ...

    def publish_value(self, namespace: str, topic: str, value: bytes, key: bytes | None) -> Place:
        """One message that is a value and perhaps a key, by its key: where it lies, once it is durable. The same as
        ``publish``, without what batches of many make necessary there."""
        ...

    def publish_begin(self, namespace: str, topic: str, partition: int, batch: Batch) -> Pending: ...

    def consumer(
        self,
        namespace: str,
        topic: str,
        group: str,
        *,
        consumer: str,
        lease_ns: int | None = None,
        prefetch: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> ConsumerPort:
        """Join a group (made on first use; ``options``: start, durable, filter … of a new group)."""
        ...

    def settle(self, namespace: str, topic: str, group: str, order: Settle) -> Settled: ...

    def call(self, method: str, **arguments: Any) -> Any:
        """An administrative call by name; one that answers with messages returns (result, list[Batch])."""
        ...

    def close(self) -> None: ...


class AsyncConsumerPort(Protocol):
    @property
    def life(self) -> int: ...

    @property
    def auto_ack(self) -> bool: ...

    async def receive(self, most: int, wait_ns: int) -> list[LeasedBatch]: ...

    async def settle(self, order: Settle) -> Settled: ...

    def settle_soon(self, order: Settle) -> None: ...

    def tend(self, order: Settle, tended: Tended) -> None: ...

    def tell_held(self, held: Callable[[], Sequence[Run]]) -> None: ...

    async def flush(self) -> None: ...

    async def close(self) -> None: ...


class AsyncPort(Protocol):
    """The same broker, awaited."""

    async def publish(self, namespace: str, topic: str, partition: int, batch: Batch) -> list[Part]: ...

    async def consumer(
        self,
        namespace: str,
        topic: str,
        group: str,
        *,
        consumer: str,
        lease_ns: int | None = None,
        prefetch: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> AsyncConsumerPort: ...

    async def settle(self, namespace: str, topic: str, group: str, order: Settle) -> Settled: ...

    async def call(self, method: str, **arguments: Any) -> Any: ...

    async def close(self) -> None: ...
