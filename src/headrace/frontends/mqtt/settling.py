"""Settlements over MQTT: gathered for one round of the loop, one order a group, answered when they are durable.

What a client holds is known by message id; its receipt (partition, lease, offset) never leaves the server. A message id
that the connection does not hold is looked for in the group: acked already is fine again, leased to the same consumer
name (another connection, or before a reconnect) is settled, anything else is ``lease_lost``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.calls import Run, Settle, Settled
from headrace.errors import HeadraceError, from_code

if TYPE_CHECKING:
    from headrace.broker.aio import LoopBroker
    from headrace.frontends.mqtt.connection import MqttConnection
    from headrace.frontends.mqtt.consuming import Delivery

__all__ = ["Settlement", "Settling"]


class Settlement(NamedTuple):
    """What a client wants done, besides the message it is about."""

    verb: str
    delay_ns: int | None = None
    error: str = ""
    by_ns: int = 0


_ACK: Final = Settlement("ack")


class _Order:
    """Of one group in this round."""

    __slots__ = ("acks", "settle", "whose")

    def __init__(self) -> None:
        self.acks: list[tuple[int, int, int]] = []
        self.settle: Settle | None = None
        self.whose: dict[tuple[int, int, int], Answer] = {}


class Answer:
    """One PUBLISH that settles one or more messages: answered when the last of them is."""

    __slots__ = ("_connection", "_error", "_handle", "_left")

    def __init__(self, connection: MqttConnection | None, handle: int, count: int) -> None:
        self._connection = connection
        self._handle = handle
        self._left = count
        self._error: HeadraceError | None = None

    def done(self, error: HeadraceError | None) -> None:
        self._error = self._error or error
        self._left -= 1
        if not self._left and self._connection is not None:
            self._connection.answer(self._handle, self._error, silently=True)


class Settling:
    """One for a door."""

    __slots__ = ("_broker", "_call_soon", "_namespace", "_orders", "_planned")

    def __init__(self, broker: LoopBroker, namespace: str, call_soon: Any) -> None:
        self._broker = broker
        self._namespace = namespace
        self._call_soon = call_soon
        self._orders: dict[tuple[str, str], _Order] = {}
        self._planned = False

    def ack(self, delivery: Delivery, connection: MqttConnection | None, handle: int) -> None:
        """The common case, for one message."""
        subscription = delivery.subscription
        self.add(_ACK, subscription.topic, subscription.group, delivery.run, Answer(connection, handle, 1))
        subscription.freed(1)

    def add(self, what: Settlement, topic: str, group: str, run: Run, answer: Answer) -> None:
        """One message of a group."""
        order = self._orders.get((topic, group))
        if order is None:
            order = self._orders[topic, group] = _Order()
            if not self._planned:
                self._planned = True
                self._call_soon(self.flush)
        place = (run.partition, run.lease_id, run.first_offset)
        if place in order.whose:
            self.flush()  # the same message twice in one round: one after the other
            self.add(what, topic, group, run, answer)
            return
        order.whose[place] = answer
        if what.verb == "ack":
            order.acks.append(place)
            return
        settle = order.settle
        if settle is None:
            settle = order.settle = Settle(nack=[], reject=[], release=[], extend=[])
        match what.verb:
            case "nack":
                settle.nack.append((run, what.delay_ns, what.error))  # type: ignore[attr-defined]
            case "reject":
                settle.reject.append((run, what.error))  # type: ignore[attr-defined]
            case "release":
                settle.release.append(run)  # type: ignore[attr-defined]
            case _:
                settle.extend.append((run, what.by_ns))  # type: ignore[attr-defined]

    def flush(self) -> None:
        """The round is over."""
        self._planned = False
        orders, self._orders = self._orders, {}
        for (topic, group), order in orders.items():
            settle = order.settle or Settle()
            settle.ack = _joined(order.acks)
            self._broker.settle_then(self._namespace, topic, group, settle, _Answers(order))


def _joined(acks: list[tuple[int, int, int]]) -> list[Run]:
    """Neighbours of one lease as one run."""
    joined: list[Run] = []
    partition = lease_id = first = -1
    count = 0
    for its_partition, its_lease_id, offset in sorted(acks):
        if count and offset == first + count and its_lease_id == lease_id and its_partition == partition:
            count += 1
            continue
        if count:
            joined.append(Run(partition, lease_id, first, count))
        partition, lease_id, first, count = its_partition, its_lease_id, offset, 1
    if count:
        joined.append(Run(partition, lease_id, first, count))
    return joined


class _Answers:
    __slots__ = ("_order",)

    def __init__(self, order: _Order) -> None:
        self._order = order

    def __call__(self, reply: Settled | HeadraceError) -> None:
        whose = self._order.whose
        refused: dict[tuple[int, int, int], HeadraceError] = {}
        error: HeadraceError | None = None
        if isinstance(reply, HeadraceError):
            error = reply
        else:
            for refusal in reply.refused:
                run = refusal.run
                why = from_code(refusal.code, refusal.message)
                for offset in range(run.first_offset, run.first_offset + run.count):
                    refused[run.partition, run.lease_id, offset] = why
        for place, answer in whose.items():
            answer.done(error or refused.get(place))
