"""A consumer's hands, without threads and without waiting: what lies ready, what is being worked on, what was decided.

Both kinds of consumer stand on it. The rules:

- Messages that wait here are handed out in the order they came; one whose lease has run out meanwhile is not handed
  out (the broker has given it to somebody else).
- A lease is renewed when a third of its span has passed: of messages that are *held* (inside ``with d`` or a worker's
  handler), and of those that wait here as long as the consumer is in use, which is: it asked for something within one
  span, or holds something.
- What still waits here by then, beyond a few, was too much for this handler: it is given back instead, uncounted,
  unless the program asked for so many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeAlias, TypeVar

from headrace.calls import LeasedBatch, Refusal, Run, Settle, Settled
from headrace.client.leased import DeliveryFields, Holding, Verdicts, places_of
from headrace.errors import HeadraceError, InvalidArgument, from_code

__all__ = ["Hand", "order_for", "refusal_of"]

D = TypeVar("D", bound=DeliveryFields)


Places: TypeAlias = Sequence[tuple[Holding, Sequence[int]]]
"""Messages, as indexes by holding."""


class _Waiting:
    """A holding of which the messages before ``at`` were handed out."""

    __slots__ = ("at", "holding")

    def __init__(self, holding: Holding, at: int = 0) -> None:
        self.holding = holding
        self.at = at


class Hand(Generic[D]):
    """See the head of this file."""

    __slots__ = ("_consumer", "_kind", "_queue", "_span_ns", "asked_ns", "held", "verdicts", "waiting")

    def __init__(self, consumer: object, kind: type[D]) -> None:
        self._consumer = consumer
        self._kind = kind
        self._queue: deque[_Waiting] = deque()
        self._span_ns = 0
        self.asked_ns = 0
        self.waiting = 0
        self.held: dict[D, int] = {}
        self.verdicts = Verdicts()

    # -- handing out -----------------------------------------------------------------------------------------------

    def put(self, leased: Sequence[LeasedBatch], now_ns: int) -> None:
        """Take in what a receive brought."""
        for each in leased:
            holding = Holding(each)
            self._span_ns = max(holding.deadline_ns - now_ns, 1)
            self._queue.append(_Waiting(holding))
            self.waiting += holding.count

    def next(self, now_ns: int) -> D | None:
        """The next message, or None when none waits."""
        queue = self._queue
        while queue:
            first = queue[0]
            holding, index = first.holding, first.at
            self.waiting -= 1
            first.at = index + 1
            if first.at == holding.count:
                queue.popleft()
            if holding.deadline_of(index) > now_ns:
                return self._kind(self._consumer, holding, index)
        return None

    def take(self, most: int, now_ns: int) -> list[D]:
        """Up to ``most`` of those that wait."""
        found: list[D] = []
        while len(found) < most and (one := self.next(now_ns)) is not None:
            found.append(one)
        return found

    def take_whole(self, most: int, now_ns: int) -> list[Holding]:
        """Up to ``most`` of those that wait, batch by batch."""
        found: list[Holding] = []
        while most > 0 and self._queue:
            first = self._queue.popleft()
            rest = first.holding.rest(first.at)
            self.waiting -= rest.count
            if rest.deadline_ns <= now_ns:
                continue
            if rest.count > most:
                rest, other = rest.split(most)
                self._queue.appendleft(_Waiting(other))
                self.waiting += other.count
            most -= rest.count
            found.append(rest)
        return found

    def drop(self) -> list[Run]:
        """Forget what waits; its receipts, to give back."""
        runs: list[Run] = []
        for waiting in self._queue:
            runs += waiting.holding.runs(range(waiting.at, waiting.holding.count))
        self._queue.clear()
        self.waiting = 0
        return runs

    # -- renewing --------------------------------------------------------------------------------------------------

    def hold(self, delivery: D) -> int:
        """Its lease is renewed from now on; when `renewals` wants to be asked for it."""
        deadline_ns = self.held[delivery] = delivery._holding.deadline_of(delivery._index)
        return deadline_ns - self._span_ns + self._span_ns // 3

    def let_go(self, delivery: D) -> None:
        self.held.pop(delivery, None)

    def extended(self, given: Places, until_ns: int) -> None:
        """Leases were extended by whoever has the messages; what is held is not renewed before it has to be."""
        for holding, indexes in given:
            holding.extended(indexes, until_ns)
        for delivery in self.held:
            self.held[delivery] = delivery._holding.deadline_of(delivery._index)

    def renewals(self, now_ns: int, keeps: int | None = None) -> Settle | None:
        """What to extend now, and what to give back of more than ``keeps`` that wait; None when nothing is due."""
        span_ns = self._span_ns
        due_ns = now_ns + span_ns - span_ns // 3
        until_ns = now_ns + span_ns
        extend: list[tuple[Run, int]] = []
        for delivery, deadline_ns in list(self.held.items()):
            if deadline_ns <= due_ns:
                self.held[delivery] = until_ns
                holding, index = delivery._holding, delivery._index
                holding.extended([index], until_ns)
                if not holding.state[index]:
                    extend.append((Run(holding.partition, holding.lease_id, holding.offsets[index], 1), span_ns))
        release: Sequence[Run] = ()
        if self.held or now_ns - self.asked_ns < span_ns:
            if keeps is not None and self.waiting > keeps:
                release = self._give_back(now_ns, due_ns, keeps)
            for waiting in self._queue:
                holding = waiting.holding
                if now_ns < holding.deadline_of(holding.count - 1) <= due_ns:
                    extend += [(run, span_ns) for run in holding.runs(range(waiting.at, holding.count))]
                    holding.renewed(waiting.at, until_ns)
        return Settle(extend=extend, release=release) if extend or release else None

    def _give_back(self, now_ns: int, due_ns: int, keeps: int) -> list[Run]:
        """Of what is due for renewal, all but the first ``keeps`` that wait here."""
        runs: list[Run] = []
        kept: deque[_Waiting] = deque()
        for waiting in self._queue:
            holding, count = waiting.holding, waiting.holding.count - waiting.at
            if not now_ns < holding.deadline_of(holding.count - 1) <= due_ns:
                keeps -= count
                kept.append(waiting)
                continue
            held = max(0, min(count, keeps))
            keeps -= held
            if held < count:
                runs += holding.runs(range(waiting.at + held, holding.count))
                self.waiting -= count - held
                if not held:
                    continue
                waiting = _Waiting(holding.rest(waiting.at).split(held)[0])
            kept.append(waiting)
        self._queue = kept
        return runs

    def next_renewal_ns(self) -> int | None:
        """When `renewals` wants to be asked again."""
        deadlines = list(self.held.values())
        deadlines += [waiting.holding.deadline_of(waiting.holding.count - 1) for waiting in self._queue]
        return min(deadlines) - self._span_ns + self._span_ns // 3 if deadlines else None


def order_for(verb: str, deliveries: object, detail: tuple[object, ...] = ()) -> Settle:
    """One verb on a delivery, several, or an Arrow lot, as one order; marks them settled."""
    verdicts = Verdicts()
    given = list(places_of(deliveries))
    for holding, indexes in given:
        for index in indexes:
            if verb == "ack":
                verdicts.ack(holding, index)
            else:
                verdicts.other(verb, holding, index, detail[0] if len(detail) == 1 else detail)
    return verdicts.take() or Settle()


def extension_of(given: Places, by_ns: int) -> Settle:
    """More time for messages."""
    return Settle(extend=[(run, by_ns) for holding, indexes in given for run in holding.runs(indexes)])


def refusal_of(settled: Settled) -> HeadraceError | None:
    """What a settle was refused in part, as one error."""
    if not settled.refused:
        return None
    return refused(settled.refused)


def refused(refusals: Sequence[Refusal]) -> HeadraceError:
    first = refusals[0]
    count = sum(refusal.run.count for refusal in refusals)
    if count == 1:
        return from_code(first.code, first.message)
    return from_code(first.code, f"{count} messages were not settled; the first: {first.message}")


def check_count(name: str, most: object, limit: int) -> int:
    """How many messages to ask for."""
    if type(most) is not int or not 1 <= most <= limit:
        raise InvalidArgument(f"{name} is {most!r}; it must be a whole number from 1 to {limit}")
    return most
