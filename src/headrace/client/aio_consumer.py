"""Consuming with asyncio: the same consumer as the one for threads, awaited.

Verbs on single deliveries are gathered; they are done when called, awaiting them is allowed and costs nothing. A
``receive`` that is cancelled loses no messages: what it asked for goes on and is there for the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from headrace.calls import AsyncConsumerPort, Run, Settle
from headrace.client.appetite import Appetite
from headrace.client.arguments import Duration, error_text, nack_detail, span_ns
from headrace.client.awaiting import DONE, Done
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
    SECOND_NS,
)

if TYPE_CHECKING:
    from headrace.client.aio_handles import Headrace
    from headrace.client.published import Published

__all__ = ["ArrowDeliveries", "Consumer", "Deliveries", "Delivery"]


class Delivery(DeliveryFields):
    """One message in a consumer's hands, to be settled once; ``async with d:`` acks it or nacks it."""

    __slots__ = ()
    _consumer: Consumer

    def ack(self) -> Done:
        """Done. Acking twice is fine."""
        self._consumer.verdict_ack(self._holding, self._index)
        return DONE

    def nack(self, delay: Duration | None = None, error: object = None) -> Done:
        """It failed: again after the group's backoff, or after ``delay``; ``error`` is kept with the attempt."""
        self._consumer.verdict("nack", self, nack_detail(delay, error))
        return DONE

    def reject(self, error: object = None) -> Done:
        """It will never work: straight to the dead letters."""
        self._consumer.verdict("reject", self, error_text(error))
        return DONE

    def release(self) -> Done:
        """Give it back at once; the attempt does not count."""
        self._consumer.verdict("release", self, None)
        return DONE

    async def extend(self, by: Duration) -> None:
        """Hold it for ``by`` from now on; raises LeaseLost when it is too late."""
        await self._consumer.extend(self, by)

    async def reply(self, value: Any = None, **properties: Any) -> Published:
        """Answer a request: publish to its ``reply_to`` with its ``correlation_id``."""
        return await self._consumer.client.reply(self, value, properties)

    async def __aenter__(self) -> Self:
        self._consumer.hold(self)
        return self

    async def __aexit__(
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
            self.release()  # cancelled; nothing was wrong with the message


class ArrowDeliveries(HoldingRows):
    """Leased messages as columns, settled together."""

    __slots__ = ("_consumer",)

    def __init__(self, consumer: Consumer, holdings: Sequence[Holding]) -> None:
        super().__init__(holdings)
        self._consumer = consumer

    async def ack(self) -> None:
        """All of them are done."""
        await self._consumer.ack(self)

    async def nack(self, delay: Duration | None = None, error: object = None) -> None:
        """All of them failed."""
        await self._consumer.nack(self, delay, error)

    async def release(self) -> None:
        """Give all of them back."""
        await self._consumer.release(self)

    async def extend(self, by: Duration) -> None:
        """Hold all of them for ``by`` from now on."""
        await self._consumer.extend(self, by)


Deliveries: TypeAlias = Delivery | Iterable[Delivery] | ArrowDeliveries


class Consumer:
    """One consumer of a group; made by ``await topic.consumer(…)``. Any number of tasks may use it."""

    def __init__(
        self, client: Headrace, topic_name: str, group_name: str, name: str, port: AsyncConsumerPort, appetite: Appetite
    ) -> None:
        self.client = client
        self.topic_name = topic_name
        self.group_name = group_name
        self.name = name
        self._port = port
        self.appetite = appetite
        self._loop = asyncio.get_running_loop()
        self._hand: Hand[Delivery] = Hand(self, Delivery, client.now_ns())
        self._hand.kept = port.auto_ack
        self._life = port.life
        self._now_ns = client.now_ns
        self._lost: HeadraceError | None = None
        self._max_lease_ns: int | None = None  # asked for when a lease is first extended
        self._receiving: asyncio.Task[bool] | None = None
        self._stopping: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        port.tell_held(self._in_program)

    # -- receiving -------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        while True:
            if self._stopping.done():
                raise StopAsyncIteration
            found = self._next()
            if found is not None:
                return found
            await self._fetch(self._wanted(), CLIENT_ROUND_NS)

    def _next(self) -> Delivery | None:
        if self._port.life != self._life:
            self._start_over()
        return self._hand.next(self._now_ns())

    def _wanted(self) -> int:
        return self.appetite.next(self._now_ns(), rested=self._hand.rested)

    async def until_idle(self, wait: Duration = 0) -> AsyncIterator[Delivery]:
        """Iterate until nothing has come for ``wait``."""
        wait_ns = span_ns("wait", wait)
        while not self._stopping.done():
            found = self._next()
            if found is not None:
                yield found
            elif not await self._fetch(self._wanted(), wait_ns):
                return

    async def receive(self, n: int = 1, wait: Duration | None = None) -> list[Delivery]:
        """Up to ``n`` messages; waits up to ``wait`` (for ever when None) for the first."""
        check_count("n", n, LEASE_MESSAGES_MAX)
        if self._closed:
            raise Closed(f"consumer {self.name!r} is closed")
        until_ns = self._until(wait)
        found = self._take(n)
        while not found and await self._fetch_until(n, until_ns):
            found = self._take(n)
            while found and len(found) < n and await self._fetch(n - len(found), 0):
                found += self._take(n - len(found))
        return found

    def _take(self, most: int) -> list[Delivery]:
        if self._port.life != self._life:
            self._start_over()
        return self._hand.take(most, self._now_ns())

    async def receive_arrow(self, n: int, wait: Duration | None = None) -> ArrowDeliveries:
        """Up to ``n`` messages as columns; waits up to ``wait`` (for ever when None) for the first."""
        check_count("n", n, LEASE_MESSAGES_MAX)
        if self._closed:
            raise Closed(f"consumer {self.name!r} is closed")
        until_ns = self._until(wait)
        found = self._take_whole(n)
        while not found and await self._fetch_until(n, until_ns):
            found = self._take_whole(n)
            count = sum(holding.count for holding in found)
            while 0 < count < n and await self._fetch(n - count, 0):
                found += self._take_whole(n - count)
                count = sum(holding.count for holding in found)
        return ArrowDeliveries(self, found)

    def _take_whole(self, most: int) -> list[Holding]:
        if self._port.life != self._life:
            self._start_over()
        return self._hand.take_whole(most, self._now_ns())

    def _until(self, wait: Duration | None) -> int | None:
        return None if wait is None else self._now_ns() + span_ns("wait", wait)

    async def _fetch_until(self, most: int, until_ns: int | None) -> bool:
        """Fetch until something came; None: for ever."""
        while True:
            left_ns = CLIENT_ROUND_NS if until_ns is None else max(0, until_ns - self._now_ns())
            if await self._fetch(most, left_ns):
                return True
            if self._stopping.done() or (until_ns is not None and until_ns <= self._now_ns()):
                return False

    async def _fetch(self, most: int, wait_ns: int) -> bool:
        """Ask the broker for messages, or join who is asking; did some come?"""
        if self._closed:
            raise Closed(f"consumer {self.name!r} is closed")
        self.send_gathered()
        if self._port.life != self._life:
            self._start_over()
        receiving = self._receiving
        within: float | None = wait_ns / SECOND_NS
        if receiving is None:
            old = self._hand.drop_old(self._now_ns())
            if old:
                self._tend(Settle(release=old))
            receiving = self._receiving = self._loop.create_task(self._receive(most, wait_ns))
            within = None
        either: set[asyncio.Future[Any]] = {receiving, self._stopping}
        await asyncio.wait(either, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        return receiving.done() and not receiving.cancelled() and receiving.result()

    async def _receive(self, most: int, wait_ns: int) -> bool:
        hand = self._hand
        hand.asking += 1
        try:
            leased = await self._port.receive(most, wait_ns)
        except LeaseLost as lost:
            self._lost = self._lost or lost
            return False
        except Closed:
            if self._stopping.done():
                return False  # closed by another task meanwhile
            raise
        finally:
            self._receiving = None
            hand.asking -= 1
            now_ns = hand.asked_ns = self._now_ns()
        if not leased:
            return False
        before = hand.waiting
        hand.put(leased, now_ns)
        self.appetite.came(hand.waiting - before, now_ns)
        again_ns = hand.next_renewal_ns(self.appetite.keeps)
        if again_ns is not None:
            self._attend(again_ns - now_ns)
        return True

    def _start_over(self) -> None:
        """The connection is another one: what waits here was leased over the old one, and is given back."""
        self._life = self._port.life
        if self._hand.kept:
            return
        waiting = self._hand.drop()
        if waiting:
            self._tend(Settle(release=waiting))

    def _tend(self, order: Settle) -> None:
        self._port.tend(order, lambda refused: self._hand.tended(order, refused))

    def _in_program(self) -> list[Run]:
        """What a broker that was started anew is told that we hold."""
        return self._hand.in_program(self._now_ns())

    # -- single verbs: gathered ------------------------------------------------------------------------------------

    def verdict_ack(self, holding: Holding, index: int) -> None:
        verdicts = self._hand.verdicts
        verdicts.ack(holding, index)
        if verdicts.count == 1 or verdicts.count >= CLIENT_SETTLE_PENDING_MAX:
            self._gathered(verdicts.count)

    def verdict(self, verb: str, delivery: Delivery, detail: Any) -> None:
        verdicts = self._hand.verdicts
        verdicts.other(verb, delivery._holding, delivery._index, detail)
        if verdicts.count == 1 or verdicts.count >= CLIENT_SETTLE_PENDING_MAX:
            self._gathered(verdicts.count)

    def _gathered(self, count: int) -> None:
        """Send what there is at once when it is much, else at the end of this round of the loop."""
        if count >= CLIENT_SETTLE_PENDING_MAX:
            self.send_gathered()
        else:
            self._loop.call_soon(self.send_gathered)

    def send_gathered(self) -> None:
        """Send the verbs that were gathered, without waiting for their confirmation."""
        order = self._hand.verdicts.take()
        if order is not None:
            self._port.settle_soon(order)

    def hold(self, delivery: Delivery) -> None:
        """Renew its lease from now on."""
        self._attend(self._hand.hold(delivery) - self._now_ns())

    def let_go(self, delivery: Delivery) -> None:
        self._hand.let_go(delivery)
        if self._hand.waiting and self.appetite.keeps is None:  # it was kept on account of this one
            self._attend(CLIENT_IDLE_NS)

    def _attend(self, span_ns: int) -> None:
        when = self._loop.time() + max(span_ns, CLIENT_SETTLE_LINGER_NS) / SECOND_NS
        if self._closed or (self._timer is not None and self._timer.when() <= when):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._keep)

    def _keep(self) -> None:
        """Renew what is due."""
        self._timer = None
        if self._closed:
            return
        if self._port.life != self._life:
            self._start_over()
        now_ns = self._now_ns()
        order = self._hand.renewals(now_ns, self.appetite.keeps)
        if order is not None:
            if order.release:
                self.appetite.shrink()
            self._tend(order)
        again_ns = self._hand.next_renewal_ns(self.appetite.keeps)
        if again_ns is not None:
            self._attend(again_ns - now_ns)

    # -- verbs on many: confirmed ----------------------------------------------------------------------------------

    async def ack(self, deliveries: Deliveries) -> None:
        """Ack one or many and wait until it is durable; raises LeaseLost when some could not be."""
        await self._settle("ack", deliveries)

    async def nack(self, deliveries: Deliveries, delay: Duration | None = None, error: object = None) -> None:
        """Nack one or many and wait."""
        await self._settle("nack", deliveries, nack_detail(delay, error))

    async def reject(self, deliveries: Deliveries, error: object = None) -> None:
        """Reject one or many and wait."""
        await self._settle("reject", deliveries, (error_text(error),))

    async def release(self, deliveries: Deliveries) -> None:
        """Give one or many back and wait."""
        await self._settle("release", deliveries, (None,))

    async def extend(self, deliveries: Deliveries, by: Duration) -> None:
        """Hold one or many for ``by`` from now on, and wait.

        A topic allows ``max_lease`` (12 hours) from now at most; ``lease_until`` says what it came to.
        """
        by_ns = span_ns("by", by)
        if by_ns == 0:
            raise InvalidArgument("by is 0; extend by more than nothing, or release it")
        given = list(places_of(deliveries))
        if self._max_lease_ns is None:
            told = await self.client.port.call("topic.show", namespace=self.client.namespace, topic=self.topic_name)
            self._max_lease_ns = parse_duration_ns(told["settings"]["max_lease"])
        self.send_gathered()
        until_ns = self._now_ns() + min(by_ns, self._max_lease_ns)
        await self.settle(extension_of(given, by_ns))
        self._hand.extended(given, until_ns)

    async def _settle(self, verb: str, deliveries: Deliveries, detail: tuple[object, ...] = ()) -> None:
        self.send_gathered()
        await self.settle(order_for(verb, deliveries, detail))

    async def settle(self, order: Settle) -> None:
        """Settle runs as they are, and wait."""
        if not (order.ack or order.nack or order.reject or order.release or order.extend):
            return
        refusal = refusal_of(await self._port.settle(order))
        if refusal is not None:
            raise refusal

    # -- the end ---------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the loops over it; what they hold can still be settled."""
        if not self._stopping.done():
            self._stopping.set_result(None)

    async def flush(self) -> None:
        """Wait until every verb so far is confirmed; raises LeaseLost for those that came too late."""
        self.send_gathered()
        await self._port.flush()
        lost, self._lost = self._lost, None
        if lost is not None:
            raise lost

    async def close(self) -> None:
        """Confirm what was settled, give back what was not, leave the group."""
        if self._closed:
            return
        self.stop()
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        receiving = self._receiving
        if receiving is not None:
            receiving.cancel()
            await asyncio.wait({receiving})
        try:
            self.send_gathered()
            waiting = self._hand.drop()
            if waiting:
                self._tend(Settle(release=waiting))
            await self._port.flush()
        except LeaseLost:
            pass  # what was lost comes again; there is nobody left to tell
        finally:
            await self._port.close()
            self.client.forget(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<consumer {self.name!r} of group {self.group_name!r} on {self.topic_name!r}>"
