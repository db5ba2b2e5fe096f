"""A consumer's hands, without threads and without waiting: what lies ready, what is being worked on, what was decided.

Both kinds of consumer stand on it. The rules:

- Messages that wait here are handed out in the order they came, and never with less than half of their lease left: then
  all that waits is given back, and fetched anew.
- A lease is renewed when a third of its span has passed: of messages that are *held* (inside ``with d`` or a worker's
  handler), and of those that wait here as long as the program asks for messages. A renewal counts when it is confirmed.
- A program that has not asked for the idle span (``CLIENT_IDLE_NS``, or a third of the lease) does something else: all
  that waits is given back, uncounted. Only a ``prefetch`` that was asked for is kept longer, while something is held.
- What still waits here when it would be renewed, beyond a few, was too much for this handler: it is given back instead,
  uncounted, unless the program asked for so many.

Of a group with ``auto_ack`` (*kept*) nothing is renewed, given back or too old: it is settled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeAlias, TypeVar
from weakref import WeakSet

from headrace.calls import LeasedBatch, Refusal, Run, Settle, Settled
from headrace.client.leased import DeliveryFields, Holding, Verdicts, places_of
from headrace.errors import HeadraceError, InvalidArgument, from_code
from headrace.limits import CLIENT_IDLE_NS, HELD_RUNS_MAX

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

    __slots__ = (
        "_all",
        "_consumer",
        "_kind",
        "_least_ns",
        "_queue",
        "_renewing",
        "_span_ns",
        "asked_ns",
        "asking",
        "held",
        "kept",
        "rested",
        "verdicts",
        "waiting",
    )

    def __init__(self, consumer: object, kind: type[D], now_ns: int = 0) -> None:
        self._consumer = consumer
        self._kind = kind
        self._queue: deque[_Waiting] = deque()
        self._all: WeakSet[Holding] = WeakSet()  # as long as a message of it is here or in the program
        self._renewing: dict[int, list[tuple[Holding, int, int]]] = {}  # by order: from which message on, until when
        self._span_ns = 0
        self._least_ns = 0  # what must be left of a lease to hand a message out
        self.kept = False
        self.asking = 0  # by how many threads or tasks
        self.asked_ns = now_ns
        self.rested = False  # it had not asked for the idle span, when it asked last and nothing waited
        self.waiting = 0
        self.held: dict[D, int] = {}
        self.verdicts = Verdicts()

    # -- handing out -----------------------------------------------------------------------------------------------

    def put(self, leased: Sequence[LeasedBatch], now_ns: int) -> None:
        """Take in what a receive brought."""
        for each in leased:
            holding = Holding(each)
            span_ns = max(holding.deadline_ns - now_ns, 1)
            if not self._span_ns // 2 < span_ns <= self._span_ns:  # else it has only lain on its way here for a while
                self._span_ns = span_ns
                self._least_ns = span_ns // 2
            self._all.add(holding)
            self._queue.append(_Waiting(holding))
            self.waiting += holding.count

    def next(self, now_ns: int) -> D | None:
        """The next message, or None when none waits that may be handed out."""
        queue = self._queue
        if queue:
            first = queue[0]
            holding, index = first.holding, first.at
            if holding.deadline_of(index) - now_ns > self._least_ns or self.kept:
                self.asked_ns = now_ns
                self.waiting -= 1
                first.at = index + 1
                if first.at == holding.count:
                    queue.popleft()
                return self._kind(self._consumer, holding, index)
        self.rested = self._idles(now_ns)
        self.asked_ns = now_ns
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
        self.asked_ns = now_ns
        while most > 0 and self._queue:
            first = self._queue[0]
            if first.holding.deadline_of(first.at) - now_ns <= self._least_ns and not self.kept:
                break
            self._queue.popleft()
            rest = first.holding.rest(first.at)
            self.waiting -= rest.count
            if rest.count > most:
                rest, other = rest.split(most)
                self._queue.appendleft(_Waiting(other))
                self.waiting += other.count
            most -= rest.count
            self._all.add(rest)
            found.append(rest)
        return found

    def drop_old(self, now_ns: int) -> list[Run]:
        """Forget what waits if the first of it may not be handed out any more; its receipts, to give back."""
        if self._queue and not self.kept:
            first = self._queue[0]
            if first.holding.deadline_of(first.at) - now_ns <= self._least_ns:
                return self.drop()
        return []

    def in_program(self, now_ns: int) -> list[Run]:
        """What is here or in the program and not decided, as far as its lease is not over; one run more than may be
        told when it is too much."""
        runs: list[Run] = []
        for holding in list(self._all):
            state = holding.state
            runs += holding.runs(
                index for index in range(holding.count) if not state[index] and holding.deadline_of(index) > now_ns
            )
            if len(runs) > HELD_RUNS_MAX:
                break
        return runs

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

    @property
    def _idle_ns(self) -> int:
        return min(CLIENT_IDLE_NS, self._span_ns // 3) if self._span_ns else CLIENT_IDLE_NS

    def _idles(self, now_ns: int) -> bool:
        return not self.asking and now_ns - self.asked_ns >= self._idle_ns

    def renewals(self, now_ns: int, keeps: int | None = None) -> Settle | None:
        """What to extend now, and what to give back of more than ``keeps`` that wait; None when nothing is due.
        `tended` wants to be told what was refused of it."""
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
        renewing: list[tuple[Holding, int, int]] = []
        if self._queue and not self.kept:
            if (self._idles(now_ns) and not (self.held and keeps is None)) or self._is_over(now_ns):
                release = self.drop()
            elif keeps is not None and self.waiting > keeps:
                release = self._give_back(now_ns, due_ns, keeps)
            for waiting in self._queue:
                holding = waiting.holding
                if self._is_due(holding, now_ns, due_ns):
                    extend += [(run, span_ns) for run in holding.runs(range(waiting.at, holding.count))]
                    holding.renewing_ns = until_ns
                    renewing.append((holding, waiting.at, until_ns))
        if not (extend or release):
            return None
        order = Settle(extend=extend, release=release)
        if renewing:
            self._renewing[id(order)] = renewing
        return order

    def _is_over(self, now_ns: int) -> bool:
        """Did a lease run out here? This process was asleep, or nobody confirmed a renewal."""
        return any(each.holding.deadline_of(each.holding.count - 1) <= now_ns for each in self._queue)

    @staticmethod
    def _is_due(holding: Holding, now_ns: int, due_ns: int) -> bool:
        deadline_ns = holding.deadline_of(holding.count - 1)
        return now_ns < deadline_ns and max(deadline_ns, holding.renewing_ns) <= due_ns

    def tended(self, order: Settle, refused: Sequence[Run] | None) -> None:
        """What came of `renewals`: what was refused has somebody else by now, and is forgotten."""
        renewing = self._renewing.pop(id(order), ())
        if refused is None:
            for holding, _, _ in renewing:
                holding.renewing_ns = 0  # to be tried again as long as there is time
            return
        for holding, start, until_ns in renewing:
            holding.renewed(start, until_ns)
        if refused and renewing:
            self._forget(refused)

    def _forget(self, runs: Sequence[Run]) -> None:
        kept: deque[_Waiting] = deque()
        leases = {run.lease_id for run in runs}
        for waiting in self._queue:
            holding = waiting.holding
            if holding.lease_id not in leases:
                kept.append(waiting)
                continue
            left = holding.without(waiting.at, runs)
            self.waiting -= holding.count - waiting.at - (left.count if left is not None else 0)
            if left is not None:
                self._all.add(left)
                kept.append(_Waiting(left))
        self._queue = kept

    def _give_back(self, now_ns: int, due_ns: int, keeps: int) -> list[Run]:
        """Of what is due for renewal, all but the first ``keeps`` that wait here."""
        runs: list[Run] = []
        kept: deque[_Waiting] = deque()
        for waiting in self._queue:
            holding, count = waiting.holding, waiting.holding.count - waiting.at
            if not self._is_due(holding, now_ns, due_ns):
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
                self._all.add(waiting.holding)
            kept.append(waiting)
        self._queue = kept
        return runs

    def next_renewal_ns(self, keeps: int | None = None) -> int | None:
        """When `renewals` wants to be asked again."""
        deadlines = list(self.held.values())
        if self._queue and not self.kept:
            deadlines += [
                max(waiting.holding.deadline_of(waiting.holding.count - 1), waiting.holding.renewing_ns)
                for waiting in self._queue
            ]
        if not deadlines:
            return None
        due_ns = min(deadlines) - self._span_ns + self._span_ns // 3
        if self._queue and not self.kept and not self.asking and not (self.held and keeps is None):
            return min(due_ns, self.asked_ns + self._idle_ns)
        return due_ns


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
