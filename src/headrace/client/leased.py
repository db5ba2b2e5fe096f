"""What a consumer holds: leased batches, message by message, and what was decided about each.

A `Holding` is one leased batch in a client's hands. Verbs are gathered per holding as offsets and leave as runs, so
that a loop of single acks over a hundred messages is one run. A message is settled once: the first verb counts, a
second one is an error (but a second ack is fine, as it is for the broker).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from headrace.calls import LeasedBatch, Run, Settle
from headrace.client.arguments import moment
from headrace.errors import InvalidArgument

__all__ = ["DeliveryFields", "Holding", "HoldingRows", "MessageFields", "Verdicts", "places_of", "runs_of"]

_VALUES_BYTES_MAX: Final = 1 << 20
"""Of a batch whose values are all cut out at once when the first is asked for."""
_decode_json: Final = msgspec.json.Decoder().decode

UNDECIDED, ACKED, OTHERWISE = 0, 1, 2


class Holding:
    """One leased batch. ``state`` has a byte for each message: undecided, acked, or settled otherwise."""

    __slots__ = (
        "__weakref__",
        "_extended",
        "_renewals",
        "_values",
        "attempts",
        "batch",
        "count",
        "deadline_ns",
        "lease_id",
        "offsets",
        "partition",
        "renewing_ns",
        "state",
    )

    def __init__(self, leased: LeasedBatch) -> None:
        batch = leased.batch
        self.batch = batch
        self.partition = leased.partition
        self.lease_id = leased.lease_id
        self.deadline_ns = leased.deadline_ns
        self.attempts = leased.attempts
        self.offsets = batch.offsets()
        self.count = batch.count
        self.state = bytearray(batch.count)
        self._values: list[bytes] | None = None
        self._renewals: list[tuple[int, int]] = []
        self.renewing_ns = 0  # the deadline that was asked for
        self._extended: dict[int, int] | None = None

    def value(self, index: int) -> bytes:
        values = self._values
        if values is None:
            if self.batch.size_bytes > _VALUES_BYTES_MAX:
                return self.batch.value(index)
            values = self._values = self.batch.values()
        return values[index]

    def runs(self, indexes: Iterable[int]) -> list[Run]:
        """Receipts for these messages, as few as possible."""
        offsets = self.offsets
        return runs_of(self.partition, self.lease_id, sorted([offsets[index] for index in indexes]))

    def renewed(self, start: int, deadline_ns: int) -> None:
        """The lease of the messages from ``start`` on was extended."""
        renewals = self._renewals
        while renewals and renewals[-1][0] >= start:
            renewals.pop()
        renewals.append((start, deadline_ns))

    def extended(self, indexes: Iterable[int], deadline_ns: int) -> None:
        """The lease of single messages was extended."""
        if self._extended is None:
            self._extended = {}
        self._extended.update(dict.fromkeys(indexes, deadline_ns))

    def deadline_of(self, index: int) -> int:
        """When the lease of one message runs out, as far as is known here."""
        if self._extended is not None and index in self._extended:
            return self._extended[index]
        for start, deadline_ns in reversed(self._renewals):
            if start <= index:
                return deadline_ns
        return self.deadline_ns

    def undecided(self) -> list[int]:
        return [index for index, decided in enumerate(self.state) if not decided]

    def rest(self, start: int) -> Holding:
        """The messages from ``start`` on, as a holding of their own."""
        if start == 0 and not self._renewals:
            return self
        batch = self.batch.slice(start, self.count)
        return Holding(
            LeasedBatch(self.partition, self.lease_id, batch, self.deadline_of(self.count - 1), self.attempts)
        )

    def without(self, start: int, runs: Sequence[Run]) -> Holding | None:
        """The messages from ``start`` on that are in none of these runs; None: there are none."""
        offsets = self.offsets
        gone = {
            offset
            for run in runs
            if run.lease_id == self.lease_id and run.partition == self.partition
            for offset in range(run.first_offset, run.first_offset + run.count)
        }
        kept = [index for index in range(start, self.count) if offsets[index] not in gone]
        if not kept:
            return None
        batch = self.batch.select(kept)
        return Holding(LeasedBatch(self.partition, self.lease_id, batch, self.deadline_of(kept[-1]), self.attempts))

    def split(self, at: int) -> tuple[Holding, Holding]:
        """The first ``at`` messages and the others."""
        halves = [self.batch.slice(0, at), self.batch.slice(at, self.count)]
        one, other = (
            Holding(LeasedBatch(self.partition, self.lease_id, half, self.deadline_ns, self.attempts))
            for half in halves
        )
        return one, other


def runs_of(partition: int, lease_id: int, offsets: Sequence[int]) -> list[Run]:
    """Rising offsets as runs.

    >>> [(run.first_offset, run.count) for run in runs_of(0, 7, [3, 4, 5, 9])]
    [(3, 3), (9, 1)]
    """
    if not offsets:
        return []
    first, last = offsets[0], offsets[-1]
    if last - first + 1 == len(offsets):
        return [Run(partition, lease_id, first, len(offsets))]
    runs = []
    end = first
    for offset in offsets:
        if offset != end:
            runs.append(Run(partition, lease_id, first, end - first))
            first = offset
        end = offset + 1
    runs.append(Run(partition, lease_id, first, end - first))
    return runs


class MessageFields:
    """What one message says. Nothing is copied until it is asked for."""

    __slots__ = ("_consumer", "_holding", "_index")

    def __init__(self, consumer: Any, holding: Holding, index: int) -> None:
        self._consumer = consumer
        self._holding = holding
        self._index = index

    @property
    def value(self) -> bytes:
        """The body."""
        return self._holding.value(self._index)

    @property
    def text(self) -> str:
        """The body as UTF-8 text."""
        return self.value.decode()

    def json(self, type: Any = Any) -> Any:
        """The body read as JSON; with a type (a msgspec Struct, a dataclass, ``list[int]`` …) checked against it."""
        if type is Any:
            return _decode_json(self.value)
        return msgspec.json.decode(self.value, type=type)

    @property
    def key(self) -> bytes | None:
        """The key, or None."""
        return self._holding.batch.key(self._index)

    @property
    def headers(self) -> dict[str, str | bytes]:
        """Headers by name."""
        return self._holding.batch.headers(self._index)

    @property
    def id(self) -> int:
        """The broker's id of the message."""
        batch = self._holding.batch
        return batch.base_id + batch.delta(self._index)

    @property
    def topic(self) -> str:
        """The topic it came from."""
        name: str = self._consumer.topic_name
        return name

    @property
    def partition(self) -> int:
        """The partition it lies in."""
        return self._holding.partition

    @property
    def offset(self) -> int:
        """Its place in the partition."""
        return self._holding.offsets[self._index]

    @property
    def priority(self) -> int:
        """Its lane, 0 first."""
        return self._holding.batch.priority(self._index)

    @property
    def published_at(self) -> datetime:
        """When the broker took it."""
        return moment(self._holding.batch.append_time_ns)  # type: ignore[return-value]  # not None of a stamped batch

    @property
    def published_ns(self) -> int:
        """The same in nanoseconds since 1970."""
        return self._holding.batch.append_time_ns

    @property
    def deliver_at(self) -> datetime | None:
        """When it became due, if it was scheduled."""
        return moment(self._holding.batch.deliver_at(self._index))

    @property
    def expires_at(self) -> datetime | None:
        """When its own life ends, if it has one."""
        return moment(self._holding.batch.expires_at(self._index))

    @property
    def timestamp(self) -> datetime | None:
        """The producer's own time, if it gave one."""
        return moment(self._holding.batch.timestamp(self._index))

    @property
    def dedup_id(self) -> bytes | None:
        """The producer's deduplication id, or None."""
        return self._holding.batch.dedup_id(self._index)

    @property
    def correlation_id(self) -> str | None:
        """What a reply must carry, or None."""
        return self._text_header("correlation_id")

    @property
    def reply_to(self) -> str | None:
        """The topic a reply is expected on, or None."""
        return self._text_header("reply_to")

    @property
    def content_type(self) -> str | None:
        """What the body is, if the producer said so."""
        return self._text_header("content_type")

    def _text_header(self, name: str) -> str | None:
        found = self.headers.get(name)
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else found

    def __repr__(self) -> str:
        return f"<message {self.id} of {self.topic!r}, {len(self.value)} bytes>"


class DeliveryFields(MessageFields):
    """What one delivery says besides."""

    __slots__ = ()

    @property
    def group(self) -> str:
        """The group it was delivered to."""
        name: str = self._consumer.group_name
        return name

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        holding = self._holding
        return holding.attempts.get(holding.offsets[self._index], 1) if holding.attempts else 1

    @property
    def lease_until(self) -> datetime:
        """When the lease runs out; `extend` and renewals move it, by ``max_lease`` from then at most."""
        return moment(self._holding.deadline_of(self._index))  # type: ignore[return-value]  # a lease has an end

    @property
    def settled(self) -> bool:
        """Was it acked, nacked, rejected or released here?"""
        return self._holding.state[self._index] != UNDECIDED

    def __repr__(self) -> str:
        return f"<delivery of {self.id}, attempt {self.attempt}, {len(self.value)} bytes>"


class HoldingRows:
    """Several holdings as columns."""

    __slots__ = ("_holdings",)

    def __init__(self, holdings: Sequence[Holding]) -> None:
        self._holdings = holdings

    @property
    def count(self) -> int:
        """How many messages."""
        return sum(holding.count for holding in self._holdings)

    def __len__(self) -> int:
        return self.count

    def to_arrow(self) -> Any:
        """The messages as a pyarrow.Table: value, key, headers … with partition, offset, id and attempt.

        Values are not copied.
        """
        from headrace.client.tables import table_of

        return table_of([(holding.partition, holding.batch, holding.attempts) for holding in self._holdings])


class Verdicts:
    """Verbs gathered until they leave: what `take` returns is one Settle. Not thread-safe by itself."""

    __slots__ = ("_acks", "_others", "count")

    def __init__(self) -> None:
        self._acks: dict[Holding, list[int]] = {}
        self._others: list[tuple[str, Holding, int, Any]] = []
        self.count = 0

    def ack(self, holding: Holding, index: int) -> None:
        """Ack one message; a second time is fine."""
        state = holding.state
        if state[index]:
            if state[index] == OTHERWISE:
                raise settled_twice(holding, index)
            return
        state[index] = ACKED
        found = self._acks.get(holding)
        if found is None:
            self._acks[holding] = [index]
        else:
            found.append(index)
        self.count += 1

    def other(self, verb: str, holding: Holding, index: int, detail: Any) -> None:
        """nack, reject, release: one message, once."""
        if holding.state[index]:
            raise settled_twice(holding, index)
        holding.state[index] = OTHERWISE
        self._others.append((verb, holding, index, detail))
        self.count += 1

    def take(self) -> Settle | None:
        """Everything gathered, as one order; None when there is nothing."""
        if not self.count:
            return None
        acks, others = self._acks, self._others
        self._acks, self._others, self.count = {}, [], 0
        order = Settle(ack=[run for holding, indexes in acks.items() for run in holding.runs(indexes)])
        if others:
            _sort_others(order, others)
        return order


def _sort_others(order: Settle, others: list[tuple[str, Holding, int, Any]]) -> None:
    together: dict[tuple[str, int, Any], tuple[Holding, list[int]]] = {}
    for verb, holding, index, detail in others:
        together.setdefault((verb, id(holding), detail), (holding, []))[1].append(index)
    nack, reject, release = [], [], []
    for (verb, _, detail), (holding, indexes) in together.items():
        for run in holding.runs(indexes):
            if verb == "nack":
                nack.append((run, *detail))
            elif verb == "reject":
                reject.append((run, detail))
            else:
                release.append(run)
    order.nack, order.reject, order.release = nack, reject, release


def settled_twice(holding: Holding, index: int) -> InvalidArgument:
    return InvalidArgument(
        f"message {holding.batch.base_id + holding.batch.delta(index)} was settled already; a delivery is settled once"
    )


def places_of(deliveries: Any) -> Iterator[tuple[Holding, list[int]]]:
    """What a verb was asked for (a delivery, several, or an Arrow lot) as indexes per holding."""
    if isinstance(deliveries, DeliveryFields):
        yield deliveries._holding, [deliveries._index]
    elif isinstance(deliveries, HoldingRows):
        for holding in deliveries._holdings:
            yield holding, list(range(holding.count))
    else:
        if not isinstance(deliveries, Iterable):
            raise InvalidArgument(f"{deliveries!r} is no delivery; give one or several that a consumer handed out")
        found: dict[Holding, list[int]] = {}
        for each in deliveries:
            if not isinstance(each, DeliveryFields):
                raise InvalidArgument(f"{each!r} is no delivery; give what a consumer handed out")
            found.setdefault(each._holding, []).append(each._index)
        yield from found.items()
