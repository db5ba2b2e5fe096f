"""The dictionary between the native protocol's packets and the calls of a broker. No rules live here.

The scopes of a settle become one order a group; parts of a publish become the lists of PUBLISHED. Leased batches become
runs in ``headrace.frontends.leased``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from headrace import errors
from headrace.batch import HIGHEST_LIMITS, Batch
from headrace.calls import Part, Refusal, Run, Settle, Settled
from headrace.limits import HELD_RUNS_MAX, LEASE_MESSAGES_MAX
from headrace.wire import native

__all__ = [
    "GroupName",
    "Order",
    "held_of",
    "orders_of",
    "published",
    "published_effects",
    "refusals_of",
]

GroupName = tuple[str, str, str]
"""Namespace, topic, group."""

_LEASE_LOST: Final = errors.ROWS[errors.LeaseLost].native


# -- publishing --------------------------------------------------------------------------------------------------------


def published(count: int, parts: Sequence[Part]) -> tuple[list[native.Part], Sequence[int], list[native.Duplicate]]:
    """Parts, indexes and duplicates as PUBLISHED has them, for a batch of ``count``."""
    if len(parts) == 1 and not parts[0].duplicates:
        part = parts[0]
        return [(part.partition, part.count, part.base_offset, part.base_id)], (), []
    places = [(part.partition, part.count, part.base_offset, part.base_id) for part in parts]
    duplicates = sorted(
        (found.index, found.partition, found.offset, found.id) for part in parts for found in part.duplicates
    )
    if len(parts) == 1:
        return places, (), duplicates
    indexes = [0] * count
    for number, part in enumerate(parts):
        for index in part.indexes or ():
            indexes[index] = number
    for duplicate in duplicates:
        indexes[duplicate[0]] = native.DUPLICATE
    return places, indexes, duplicates


# -- consuming ---------------------------------------------------------------------------------------------------------


def held_of(told: object) -> list[Run] | None:
    """What a consumer that comes back says it holds; None: it does not say.

    >>> held_of([[0, 7, 3, 2]])
    [Run(partition=0, lease_id=7, first_offset=3, count=2)]
    """
    if told is None:
        return None
    try:
        held = msgspec.convert(told, list[Run])
    except msgspec.ValidationError as error:
        raise errors.InvalidArgument(f"held: {error}") from None
    if len(held) > HELD_RUNS_MAX:
        raise errors.LimitExceeded(f"held: {len(held)} runs; at most {HELD_RUNS_MAX}, or none are named")
    for run in held:
        if not (0 < run.count <= LEASE_MESSAGES_MAX and 0 <= run.first_offset < 1 << 62):
            raise errors.InvalidArgument(
                f"held: {run.count} messages from offset {run.first_offset}: from 1 to {LEASE_MESSAGES_MAX}, from 0 up"
            )
    return held


# -- settling ----------------------------------------------------------------------------------------------------------


class Order:
    """What a SETTLE asks of one group, and which of its actions each run came from."""

    __slots__ = ("acks", "actions", "extends", "nacks", "rejects", "releases")

    def __init__(self) -> None:
        self.acks: list[Run] = []
        self.nacks: list[tuple[Run, int | None, str]] = []
        self.rejects: list[tuple[Run, str]] = []
        self.releases: list[Run] = []
        self.extends: list[tuple[Run, int]] = []
        self.actions: list[tuple[int, Sequence[native.ReceiptRun]]] = []

    def add(self, index: int, action: native.Action) -> None:
        self.actions.append((index, action.runs))
        runs = [Run(*run) for run in action.runs]
        match action.verb:
            case native.Verb.ACK:
                self.acks += runs
            case native.Verb.NACK:
                delay_ns = None if action.span_ns == native.BY_POLICY else action.span_ns
                self.nacks += [(run, delay_ns, action.error) for run in runs]
            case native.Verb.RELEASE:
                self.releases += runs
            case native.Verb.REJECT:
                self.rejects += [(run, action.error) for run in runs]
            case _:
                self.extends += [(run, action.span_ns) for run in runs]

    def settle(self, effects: Sequence[native.Effect] = ()) -> Settle:
        """The broker's order; raises what is wrong with a published batch."""
        order = Settle(self.acks, self.nacks, self.rejects, self.releases, self.extends)
        if effects:
            order.publish = [
                (effect.topic, effect.partition, _decoded(effect.batch))
                for effect in effects
                if isinstance(effect, native.PublishEffect)
            ]
            order.cancel = [(effect.topic, effect.ids) for effect in effects if isinstance(effect, native.CancelEffect)]
        return order

    def action_of(self, run: Run) -> int:
        """Which action named a run the broker refused (it may be a part of the one that was named)."""
        if len(self.actions) > 1:
            for index, runs in self.actions:
                for partition, lease_id, first, count in runs:
                    ours = lease_id == run.lease_id and partition == run.partition
                    if ours and first <= run.first_offset < first + count:
                        return index
        return self.actions[0][0]

    def all_lost(self) -> list[native.Refusal]:
        """The answer for a subscription that has ended."""
        return [(index, _LEASE_LOST, *run) for index, runs in self.actions for run in runs]


def _decoded(batch: native.Buffer | Sequence[native.Buffer]) -> Batch:
    return Batch.decode(
        batch if isinstance(batch, bytes | bytearray | memoryview) else b"".join(batch), limits=HIGHEST_LIMITS
    )


def orders_of(
    actions: Sequence[native.Action], names: dict[int, GroupName], namespace: str
) -> tuple[dict[GroupName, Order], Order | None]:
    """The actions of a SETTLE by the group they are about; apart, those of subscriptions that have ended."""
    orders: dict[GroupName, Order] = {}
    lost: Order | None = None
    for index, action in enumerate(actions):
        scope = action.scope
        if isinstance(scope, int):
            name = names.get(scope)
        else:
            name = (scope.namespace or namespace, scope.topic, scope.group)
        if name is None:
            lost = lost or Order()
            lost.add(index, action)
            continue
        order = orders.get(name)
        if order is None:
            order = orders[name] = Order()
        order.add(index, action)
    return orders, lost


def refusals_of(order: Order, refused: Sequence[Refusal]) -> list[native.Refusal]:
    found = []
    for refusal in refused:
        kind = errors.BY_CODE.get(refusal.code, errors.LeaseLost)
        run = refusal.run
        found.append(
            (order.action_of(run), errors.ROWS[kind].native, run.partition, run.lease_id, run.first_offset, run.count)
        )
    return found


def published_effects(settled: Settled, counts: Sequence[int]) -> list[native.Published]:
    """SETTLED's answers to the publish effects, whose batches had ``counts`` messages."""
    return [
        native.Published(0, count, *published(count, parts))
        for parts, count in zip(settled.published, counts, strict=True)
    ]
