"""An atomic settle, from what a caller gives to one order of one group.

All of it happens in one durable record or none of it: deliveries are marked as settled only when the broker has said
yes, so that after a refusal each of them can still be settled one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from headrace.calls import BY_KEY, Run, Settle, Settled
from headrace.client.arguments import error_text, message_id, shown, span_ns
from headrace.client.leased import ACKED, OTHERWISE, DeliveryFields, Holding, HoldingRows, places_of, settled_twice
from headrace.client.message import message_of
from headrace.client.outgoing import settle_batch
from headrace.client.published import Published, single_place
from headrace.errors import InvalidArgument
from headrace.names import DEFAULT_GROUP

__all__ = ["AtomicOrder", "SettledTogether", "topic_name_of"]


def topic_name_of(topic: Any) -> str:
    """A topic given by its name or by its handle."""
    name = topic if isinstance(topic, str) else getattr(topic, "name", None)
    if not isinstance(name, str):
        raise InvalidArgument(f"the topic is {shown(topic)}; give its name, or what client.topic(…) returned")
    return name


class SettledTogether:
    """What an atomic settle did: how many were settled, where what it published lies, how many were cancelled."""

    __slots__ = ("cancelled", "published", "settled")

    def __init__(self, settled: Settled) -> None:
        self.settled = settled.settled
        self.cancelled = settled.cancelled
        self.published: list[Published] = [single_place(parts) for parts in settled.published if parts]

    def __repr__(self) -> str:
        return f"<{self.settled} settled, {len(self.published)} published, {self.cancelled} cancelled>"


class AtomicOrder:
    """The order, the group it is for, and the deliveries that it settles."""

    __slots__ = ("_marks", "group", "order", "topic")

    def __init__(
        self,
        ack: Any,
        nack: Any,
        reject: Any,
        release: Any,
        extend: Any,
        publish: Iterable[tuple[Any, Any]],
        schedule: Iterable[tuple[Any, Any]],
        cancel: Iterable[tuple[Any, Any]],
    ) -> None:
        self.topic = ""
        self.group = ""
        self._marks: list[tuple[Holding, list[int], int]] = []
        order = self.order = Settle()
        order.ack = self._runs(ack, ACKED)
        order.release = self._runs(release, OTHERWISE)
        order.nack = [
            (run, None if delay is None else span_ns("delay", delay), error_text(error))
            for given in nack
            for one, delay, error in [_parts("nack", given, 2)]
            for run in self._runs(one, OTHERWISE)
        ]
        order.reject = [
            (run, error_text(error))
            for given in reject
            for one, error, _ in [_parts("reject", given, 1)]
            for run in self._runs(one, OTHERWISE)
        ]
        order.extend = [
            (run, span_ns("by", by))
            for given in extend
            for one, by, _ in [_parts("extend", given, 1)]
            for run in self._runs(one, None)
        ]
        outputs = [_output("publish", given) for given in publish]
        outputs += [_due(_output("schedule", given)) for given in schedule]
        order.publish = [(name, BY_KEY, settle_batch(message)) for name, message in outputs]
        order.cancel = [_cancelled(given) for given in cancel]
        if not self.group:
            named = [name for name, _ in outputs] + [name for name, _ in order.cancel]
            if not named:
                raise InvalidArgument("a settle needs something to do: deliveries, messages to publish, ids to cancel")
            self.topic, self.group = named[0], DEFAULT_GROUP

    def _runs(self, deliveries: Any, mark: int | None) -> list[Run]:
        runs: list[Run] = []
        for one in _flat(deliveries):
            holder = one._consumer
            names = holder.topic_name, holder.group_name
            if not self.group:
                self.topic, self.group = names
            elif names != (self.topic, self.group):
                raise InvalidArgument(
                    f"an atomic settle is about one group; these are of group {self.group!r} on {self.topic!r} and of "
                    f"group {names[1]!r} on {names[0]!r}"
                )
        for holding, indexes in places_of(deliveries):
            for index in indexes:
                if holding.state[index]:
                    raise settled_twice(holding, index)
            if mark is not None:
                self._marks.append((holding, indexes, mark))
            runs += holding.runs(indexes)
        return runs

    def done(self) -> None:
        """The broker said yes."""
        for holding, indexes, mark in self._marks:
            for index in indexes:
                holding.state[index] = mark


def _flat(deliveries: Any) -> Sequence[Any]:
    if isinstance(deliveries, DeliveryFields | HoldingRows):
        return [deliveries]
    found = list(deliveries)
    for one in found:
        if not isinstance(one, DeliveryFields):
            raise InvalidArgument(f"{shown(one)} is no delivery; give what a consumer handed out")
    return found


def _parts(verb: str, given: Any, details: int) -> tuple[Any, Any, Any]:
    """A delivery, or a delivery with its details."""
    if not isinstance(given, tuple):
        if verb == "extend":
            raise InvalidArgument("extend takes (delivery, by) pairs")
        return given, None, None
    if not 1 <= len(given) <= 1 + details:
        raise InvalidArgument(f"{verb} has {shown(given)}; it takes a delivery and up to {details} more")
    padded = (*given, None, None)
    return padded[0], padded[1], padded[2]


def _output(name: str, given: Any) -> tuple[str, Any]:
    if not isinstance(given, tuple) or len(given) != 2:
        raise InvalidArgument(f"{name} has {shown(given)}; it takes (topic, message) pairs")
    return topic_name_of(given[0]), given[1]


def _due(output: tuple[str, Any]) -> tuple[str, Any]:
    message = message_of(output[1])
    if not (message.delay_ns or message.deliver_at_ns):
        raise InvalidArgument("a message to schedule needs a delay or a deliver_at; without one, publish it")
    return output[0], message


def _cancelled(given: Any) -> tuple[str, list[int]]:
    name, ids = _output("cancel", given)
    return name, [message_id("id", one) for one in (ids if isinstance(ids, list | tuple | set) else [ids])]
