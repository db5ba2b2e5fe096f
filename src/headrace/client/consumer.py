"""Consuming with threads: a consumer, its deliveries, and deliveries as columns.

Verbs on single deliveries are gathered and leave together: with the next receive, after a few milliseconds, or on
``flush`` and ``close``, which wait until they are confirmed. Verbs on the consumer (``consumer.ack(ds)``) wait at once.
A gathered verb whose lease was lost meanwhile is no error of the loop that goes on (the message comes again); ``flush``
raises it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from headrace.calls import ConsumerPort, LeasedBatch, Run, Settle
from headrace.client.appetite import Appetite
from headrace.client.arguments import Duration, error_text, nack_detail, span_ns
from headrace.client.hand import Hand, check_count, extension_of, order_for, refusal_of
from headrace.client.leased import DeliveryFields, Holding, HoldingRows, places_of
from headrace.config import parse_duration_ns
from headrace.errors import Closed, HeadraceError, InvalidArgument, LeaseLost
from headrace.limits import (
    CLIENT_IDLE_NS,
    CLIENT_ROUND_NS,
    CLIENT_SETTLE_LINGER_NS,
    CLIENT_SETTLE_PENDING_MAX,
    LEASE_MESSAGES_MAX,
    MILLISECOND_NS,
)

if TYPE_CHECKING:
    from headrace.client.handles import Headrace
    from headrace.client.published import Published

__all__ = ["ArrowDeliveries", "Consumer", "Deliveries", "Delivery"]


class Delivery(DeliveryFields):
    """One message in a consumer's hands, to be settled once.

    As a context manager it is acked when the block ends, and nacked with the error's text when an exception leaves it
    (the exception goes on); meanwhile its lease is renewed.

    >>> import headrace
    >>> with headrace.open(":memory:") as hr:
    ...     orders = hr.topic("orders")
    ...     _ = orders.publish("one apple", key="user-1")
    ...     with orders.consumer(group="billing") as consumer:
    ...         for d in consumer.until_idle():
    ...             with d:
    ...                 print(d.key, d.text, d.attempt)
    b'user-1' one apple 1
    """

    __slots__ = ()
    _consumer: Consumer

    def ack(self) -> None:
        """Done. Acking twice is fine."""
        self._consumer.verdict_ack(self._holding, self._index)

    def nack(self, delay: Duration | None = None, error: object = None) -> None:
        """It failed: again after the group's backoff, or after ``delay``; ``error`` is kept with the attempt."""
        self._consumer.verdict("nack", self, nack_detail(delay, error))

    def reject(self, error: object = None) -> None:
        """It will never work: straight to the dead letters."""
        self._consumer.verdict("reject", self, error_text(error))

    def release(self) -> None:
        """Give it back at once; the attempt does not count."""
        self._consumer.verdict("release", self, None)

    def extend(self, by: Duration) -> None:
        """Hold it for ``by`` from now on; waits, and raises LeaseLost when it is too late."""
        self._consumer.extend(self, by)

    def reply(self, value: Any = None, **properties: Any) -> Published:
        """Answer a request: publish to its ``reply_to`` with its ``correlation_id``."""
        return self._consumer.client.reply(self, value, properties)

    def __enter__(self) -> Self:
        self._consumer.hold(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.let_go(self)
        if self.settled:
            return
        if error is None:
            self.ack()
        elif isinstance(error, Exception):
            self.nack(error=error)
        else:
            self.release()  # the program is stopping; nothing was wrong with the message


class ArrowDeliveries(HoldingRows):
    """Leased messages as columns, settled together.

    >>> import headrace
    >>> with headrace.open(":memory:") as hr:
    ...     _ = hr.topic("orders").publish_many([b"a", b"b"])
    ...     with hr.topic("orders").consumer(group="lake") as consumer:
    ...         rows = consumer.receive_arrow(10_000, wait=0)
    ...         values = rows.to_arrow().column("value").to_pylist()
    ...         rows.ack()
    >>> values
    [b'a', b'b']
    """

    __slots__ = ("_consumer",)

    def __init__(self, consumer: Consumer, holdings: Sequence[Holding]) -> None:
        super().__init__(holdings)
        self._consumer = consumer

    def ack(self) -> None:
        """All of them are done; waits."""
        self._consumer.ack(self)

    def nack(self, delay: Duration | None = None, error: object = None) -> None:
        """All of them failed; waits."""
        self._consumer.nack(self, delay, error)

    def release(self) -> None:
        """Give all of them back; waits."""
        self._consumer.release(self)

    def extend(self, by: Duration) -> None:
        """Hold all of them for ``by`` from now on; waits."""
        self._consumer.extend(self, by)


Deliveries: TypeAlias = Delivery | Iterable[Delivery] | ArrowDeliveries


class Consumer:
    """One consumer of a group; made by ``topic.consumer(…)``. Iterating it waits for ever, and ends with ``close``.

    Any number of threads may use it. A loop over it takes more messages at a time the quicker
    they are handled; ``prefetch`` fixes how many.

    >>> import headrace
    >>> with headrace.open(":memory:") as hr:
    ...     _ = hr.topic("orders").publish_many([b"a", b"b", b"c"])
    ...     with hr.topic("orders").consumer(group="billing", lease="30s") as consumer:
    ...         ds = consumer.receive(100, wait="1s")
    ...         consumer.ack(ds)
    >>> [d.value for d in ds]
    [b'a', b'b', b'c']
    """

    def __init__(
        self, client: Headrace, topic_name: str, group_name: str, name: str, port: ConsumerPort, appetite: Appetite
    ) -> None:
        self.client = client
        self.topic_name = topic_name
        self.group_name = group_name
        self.name = name
        self._port = port
        self.appetite = appetite
        self._lock = Lock()
        self._hand: Hand[Delivery] = Hand(self, Delivery, client.now_ns())
        self._hand.kept = port.auto_ack
        self._life = port.life
        self._now_ns = client.now_ns
        self._real_ns = client.keeper.now_ns
        self._sent_ns = 0
        self._lost: HeadraceError | None = None
        self._max_lease_ns: int | None = None  # asked for when a lease is first extended
        self._stopped = False
        self._closed = False
        self._unflushed = False
        client.keeper.add(self)
        port.tell_held(self._in_program)

    # -- receiving -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Delivery]:
        return self

    def __next__(self) -> Delivery:
        while True:
            if self._stopped:
                raise StopIteration
            if self._port.life != self._life:
                self._start_over()
            with self._lock:  # as `_next`, in line: this is done for every message
                found = self._hand.next(self._now_ns())
            if found is not None:
                return found
            self._fetch(self._wanted(), CLIENT_ROUND_NS)

    def _next(self) -> Delivery | None:
        if self._port.life != self._life:
            self._start_over()
        with self._lock:
            return self._hand.next(self._now_ns())

    def _wanted(self) -> int:
        return self.appetite.next(self._now_ns(), rested=self._hand.rested)

    def until_idle(self, wait: Duration = 0) -> Iterator[Delivery]:
        """Iterate until nothing has come for ``wait``."""
        wait_ns = span_ns("wait", wait)
        while not self._stopped:
            found = self._next()
            if found is not None:
                yield found
            elif not self._fetch(self._wanted(), wait_ns):
                return

    def receive(self, n: int = 1, wait: Duration | None = None) -> list[Delivery]:
        """Up to ``n`` messages; waits up to ``wait`` (for ever when None) for the first."""
        check_count("n", n, LEASE_MESSAGES_MAX)
        if self._closed:
            raise Closed(f"consumer {self.name!r} is closed")
        until_ns = self._until(wait)
        found = self._take(n)
        while not found and self._fetch_until(n, until_ns):
            found = self._take(n)
            while found and len(found) < n and self._fetch(n - len(found), 0):
                found += self._take(n - len(found))
        return found

    def _take(self, most: int) -> list[Delivery]:
        if self._port.life != self._life:
            self._start_over()
        with self._lock:
            return self._hand.take(most, self._now_ns())

    def receive_arrow(self, n: int, wait: Duration | None = None) -> ArrowDeliveries:
        """Up to ``n`` messages as columns; waits up to ``wait`` (for ever when None) for the first."""
        check_count("n", n, LEASE_MESSAGES_MAX)
        if self._closed:
            raise Closed(f"consumer {self.name!r} is closed")
        until_ns = self._until(wait)
        found = self._take_whole(n)
        while not found and self._fetch_until(n, until_ns):
            found = self._take_whole(n)
            count = sum(holding.count for holding in found)
            while 0 < count < n and self._fetch(n - count, 0):
                found += self._take_whole(n - count)
                count = sum(holding.count for holding in found)
        return ArrowDeliveries(self, found)

    def _take_whole(self, most: int) -> list[Holding]:
        if self._port.life != self._life:
            self._start_over()
        with self._lock:
            return self._hand.take_whole(most, self._now_ns())

    def _until(self, wait: Duration | None) -> int | None:
        return None if wait is None else self._now_ns() + span_ns("wait", wait)

    def _fetch_until(self, most: int, until_ns: int | None) -> bool:
        """Fetch, waiting in rounds, so that a close and a signal are noticed. None: for ever."""
        while True:
            left_ns = CLIENT_ROUND_NS if until_ns is None else until_ns - self._now_ns()
            if self._fetch(most, max(0, min(left_ns, CLIENT_ROUND_NS))):
                return True
            if self._stopped or (until_ns is not None and left_ns <= CLIENT_ROUND_NS):
                return False

    def _fetch(self, most: int, wait_ns: int) -> bool:
        """Ask the broker for messages; did some come?"""
        if self._closed:
            raise Closed(f"consumer {self.name!r} is closed")
        self.send_gathered()
        if self._port.life != self._life:
            self._start_over()
        hand = self._hand
        with self._lock:
            hand.asking += 1
            old = hand.drop_old(self._now_ns())
        leased: Sequence[LeasedBatch] = ()
        again_ns: int | None = None
        try:
            if old:
                self._tend(Settle(release=old))
            leased = self._port.receive(most, wait_ns)
        except LeaseLost as lost:
            self._lost = self._lost or lost
        except Closed:
            if not self._stopped:
                raise
        finally:
            now_ns = self._now_ns()
            with self._lock:
                hand.asking -= 1
                hand.asked_ns = now_ns
                if leased:
                    before = hand.waiting
                    hand.put(leased, now_ns)
                    self.appetite.came(hand.waiting - before, now_ns)
                    again_ns = hand.next_renewal_ns(self.appetite.keeps)
        if again_ns is not None:
            self._attend(again_ns, now_ns)
        return bool(leased)

    def _attend(self, at_ns: int, now_ns: int) -> None:
        """Have the keeper come by at a time of the broker's clock."""
        self.client.keeper.attend(self._real_ns() + at_ns - now_ns)

    def _start_over(self) -> None:
        """The connection is another one: what waits here was leased over the old one, and is given back."""
        self._life = self._port.life
        if self._hand.kept:
            return
        with self._lock:
            waiting = self._hand.drop()
        if waiting:
            self._tend(Settle(release=waiting))

    def _tend(self, order: Settle) -> None:
        self._unflushed = True
        self._port.tend(order, lambda refused: self._tended(order, refused))

    def _tended(self, order: Settle, refused: Sequence[Run] | None) -> None:
        with self._lock:
            self._hand.tended(order, refused)

    def _in_program(self) -> list[Run]:
        """What a broker that was started anew is told that we hold."""
        with self._lock:
            return self._hand.in_program(self._now_ns())

    # -- single verbs: gathered ------------------------------------------------------------------------------------

    def verdict_ack(self, holding: Holding, index: int) -> None:
        verdicts = self._hand.verdicts
        with self._lock:
            verdicts.ack(holding, index)
            count = verdicts.count
        if count == 1 or count >= CLIENT_SETTLE_PENDING_MAX:
            self._gathered(count)

    def verdict(self, verb: str, delivery: Delivery, detail: Any) -> None:
        verdicts = self._hand.verdicts
        with self._lock:
            verdicts.other(verb, delivery._holding, delivery._index, detail)
            count = verdicts.count
        if count == 1 or count >= CLIENT_SETTLE_PENDING_MAX:
            self._gathered(count)

    def _gathered(self, count: int) -> None:
        """Send what there is when it is much or the line is quiet; otherwise see to it that somebody will."""
        now_ns = self._real_ns()
        if count >= CLIENT_SETTLE_PENDING_MAX or now_ns - self._sent_ns > MILLISECOND_NS:
            self.send_gathered()
        self.client.keeper.attend(now_ns + CLIENT_SETTLE_LINGER_NS)

    def send_gathered(self) -> None:
        """Send the verbs that were gathered, without waiting for their confirmation."""
        if not self._hand.verdicts.count:
            return
        with self._lock:
            order = self._hand.verdicts.take()
            self._sent_ns = self._real_ns()
        if order is not None:
            self._unflushed = True
            self._port.settle_soon(order)

    def hold(self, delivery: Delivery) -> None:
        """Renew its lease from now on."""
        with self._lock:
            again_ns = self._hand.hold(delivery)
        self._attend(again_ns, self._now_ns())

    def let_go(self, delivery: Delivery) -> None:
        with self._lock:
            self._hand.let_go(delivery)
        if self._hand.waiting and self.appetite.keeps is None:  # it was kept on account of this one
            self.client.keeper.attend(self._real_ns() + CLIENT_IDLE_NS)

    def keep(self, now_ns: int) -> int | None:
        """The keeper's visit: send, make durable, renew."""
        if self._closed:
            return None
        self.send_gathered()
        if self._unflushed:
            self._unflushed = False
            try:
                self._port.flush()
            except HeadraceError as lost:
                self._lost = self._lost or lost
        if self._port.life != self._life:
            self._start_over()
        at_ns = self._now_ns()
        with self._lock:
            order = self._hand.renewals(at_ns, self.appetite.keeps)
            again_ns = self._hand.next_renewal_ns(self.appetite.keeps)
        if order is not None:
            if order.release:
                self.appetite.shrink()
            self._tend(order)
        return None if again_ns is None else now_ns + max(again_ns - at_ns, CLIENT_SETTLE_LINGER_NS)

    # -- verbs on many: confirmed ----------------------------------------------------------------------------------

    def ack(self, deliveries: Deliveries) -> None:
        """Ack one or many and wait until it is durable; raises LeaseLost when some could not be."""
        self._settle("ack", deliveries)

    def nack(self, deliveries: Deliveries, delay: Duration | None = None, error: object = None) -> None:
        """Nack one or many and wait."""
        self._settle("nack", deliveries, nack_detail(delay, error))

    def reject(self, deliveries: Deliveries, error: object = None) -> None:
        """Reject one or many and wait."""
        self._settle("reject", deliveries, (error_text(error),))

    def release(self, deliveries: Deliveries) -> None:
        """Give one or many back and wait."""
        self._settle("release", deliveries, (None,))

    def extend(self, deliveries: Deliveries, by: Duration) -> None:
        """Hold one or many for ``by`` from now on, and wait.

        A topic allows ``max_lease`` (12 hours) from now at most; ``lease_until`` says what it came to.
        """
        by_ns = span_ns("by", by)
        if by_ns == 0:
            raise InvalidArgument("by is 0; extend by more than nothing, or release it")
        given = list(places_of(deliveries))
        if self._max_lease_ns is None:
            told = self.client.port.call("topic.show", namespace=self.client.namespace, topic=self.topic_name)
            self._max_lease_ns = parse_duration_ns(told["settings"]["max_lease"])
        self.send_gathered()
        until_ns = self._now_ns() + min(by_ns, self._max_lease_ns)
        self.settle(extension_of(given, by_ns))
        with self._lock:
            self._hand.extended(given, until_ns)

    def _settle(self, verb: str, deliveries: Deliveries, detail: tuple[object, ...] = ()) -> None:
        self.send_gathered()
        with self._lock:
            order = order_for(verb, deliveries, detail)
        self.settle(order)

    def settle(self, order: Settle) -> None:
        """Settle runs as they are, and wait."""
        if not (order.ack or order.nack or order.reject or order.release or order.extend):
            return
        refusal = refusal_of(self._port.settle(order))
        if refusal is not None:
            raise refusal

    # -- the end ---------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the loops over it, also those that wait in another thread; what they hold can still be settled."""
        self._stopped = True
        self._port.interrupt()

    def flush(self) -> None:
        """Wait until every verb so far is confirmed; raises LeaseLost for those that came too late."""
        self.send_gathered()
        self._unflushed = False
        self._port.flush()
        lost, self._lost = self._lost, None
        if lost is not None:
            raise lost

    def close(self) -> None:
        """Confirm what was settled, give back what was not, leave the group."""
        if self._closed:
            return
        self.stop()
        self.client.keeper.remove(self)
        try:
            with self._lock:
                waiting = self._hand.drop()
            self.send_gathered()
            if waiting:
                self._tend(Settle(release=waiting))
            self._port.flush()
            if self._lost is not None:
                raise self._lost
        except LeaseLost:
            pass  # what was lost comes again; there is nobody left to tell
        finally:
            self._closed = True
            self._port.close()
            self.client.forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<consumer {self.name!r} of group {self.group_name!r} on {self.topic_name!r}>"
