"""A broker for the tests of those who use one: in memory, on a clock that moves when it is told to.

Nothing is mocked: it is the broker itself, embedded, so that a test meets the same retries, leases, schedules and
refusals as production. Only time is the test's: ``advance("5m")`` lets everything happen that falls due on the way, in
its order, at its own instant. Waiting for messages (``receive(wait=…)``) is still in real time, as threads are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from headrace.broker import Broker
from headrace.broker.aio import AsyncEmbeddedPort, LoopBroker
from headrace.broker.embedded import MEMORY, EmbeddedPort, open_core
from headrace.client import aio_consumer, aio_handles
from headrace.client.arguments import Duration, moment, span_ns
from headrace.client.awaiting import Opening
from headrace.client.consumer import Consumer
from headrace.client.handles import Headrace
from headrace.clock import ManualClock, SystemClock
from headrace.config import TopicConfig, with_settings
from headrace.errors import InvalidArgument
from headrace.names import DEFAULT_NAMESPACE
from headrace.shard.core import Core

__all__ = ["AsyncMemoryBroker", "MemoryBroker"]


class _Time:
    """The clock of a core, moved from one due instant to the next."""

    def __init__(self, core: Core, clock: ManualClock) -> None:
        self._core = core
        self._clock = clock

    @property
    def now(self) -> datetime:
        found = moment(self._core.clock.now_ns())
        if found is None:
            raise InvalidArgument("the clock has no time")
        return found

    def advance(self, by: Duration, act: Callable[[], None]) -> None:
        """Move on by a span; ``act`` does what is due, at every instant at which something is."""
        until_ns = self._core.clock.now_ns() + span_ns("by", by)
        while True:
            now_ns = self._core.clock.now_ns()
            wake_ns = self._core.state.wake_at_ns()
            if wake_ns is None or wake_ns > until_ns:
                break
            self._clock.advance(max(0, wake_ns - now_ns))
            act()
        self._clock.advance(until_ns - self._core.clock.now_ns())
        act()


def _broker(topic_defaults: Mapping[str, Any] | None, auto_create: bool, clock: ManualClock) -> Broker:
    core = open_core(MEMORY, clock=clock)
    defaults = with_settings(TopicConfig(), topic_defaults or {})
    return Broker(core, topic_defaults=defaults, auto_create=auto_create)


class MemoryBroker(Headrace):
    """A client of a broker of its own; everything `headrace.open` gives, and the clock.

    >>> from headrace.testing import MemoryBroker
    >>> with MemoryBroker() as hr:
    ...     orders = hr.topic("orders")
    ...     _ = orders.publish(b"one apple")
    ...     with orders.consumer() as consumer:
    ...         (d,) = consumer.receive()
    ...         d.nack(error="no such user")
    ...         consumer.receive(wait=0)               # the first retry is due in 5 s
    ...         hr.advance("5s")
    ...         consumer.receive(wait=0)[0].attempt
    []
    2
    """

    def __init__(
        self,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        topic_defaults: Mapping[str, Any] | None = None,
        auto_create: bool = True,
        clock: ManualClock | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        port = EmbeddedPort(_broker(topic_defaults, auto_create, self.clock), SystemClock())
        self._host = port.host
        self._time = _Time(port.broker.core, self.clock)
        super().__init__(port, namespace=namespace, now_ns=port.now_ns)

    @property
    def now(self) -> datetime:
        """The broker's time."""
        return self._time.now

    def advance(self, by: Duration) -> None:
        """Let time pass, and everything happen that falls due in it; whoever waits for messages looks again."""
        for each in list(self._closables.values()):
            if isinstance(each, Consumer):
                each.send_gathered()  # what was settled before is settled before
        self._time.advance(by, lambda: self._host.look(lambda core: None))
        self._host.wake()

    def messages(self, topic: str) -> list[bytes]:
        """The values of everything that was ever published to a topic, in the order of its partitions."""
        return [record.value for record in self.topic(topic).read()]


class AsyncMemoryBroker(aio_handles.Headrace):
    """The same for asyncio: ``async with AsyncMemoryBroker.open() as hr``.

    >>> import asyncio
    >>> async def main():
    ...     async with AsyncMemoryBroker.open() as hr:
    ...         orders = await hr.topic("orders")
    ...         await orders.publish(b"later", delay="1h")
    ...         async with orders.consumer() as consumer:
    ...             before = len(await consumer.receive(wait=0))
    ...             await hr.advance("1h")
    ...             return before, len(await consumer.receive(wait=0))
    >>> asyncio.run(main())
    (0, 1)
    """

    def __init__(self, port: AsyncEmbeddedPort, clock: ManualClock, namespace: str) -> None:
        self.clock = clock
        self._host = port.broker.host
        self._time = _Time(port.broker.core, clock)
        super().__init__(port, namespace=namespace, now_ns=port.now_ns)

    @classmethod
    def open(
        cls,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        topic_defaults: Mapping[str, Any] | None = None,
        auto_create: bool = True,
        clock: ManualClock | None = None,
    ) -> Opening[AsyncMemoryBroker]:
        """Open one in the running loop."""

        async def start() -> AsyncMemoryBroker:
            manual = clock or ManualClock()
            return cls(AsyncEmbeddedPort(LoopBroker(_broker(topic_defaults, auto_create, manual))), manual, namespace)

        return Opening(start)

    @property
    def now(self) -> datetime:
        """The broker's time."""
        return self._time.now

    async def advance(self, by: Duration) -> None:
        """Let time pass, and everything happen that falls due in it."""
        for each in list(self._closables.values()):
            if isinstance(each, aio_consumer.Consumer):
                each.send_gathered()  # what was settled before is settled before
        self._time.advance(by, self._host.tick)
        await self._host.drain()

    async def messages(self, topic: str) -> list[bytes]:
        """The values of everything that was ever published to a topic, in the order of its partitions."""
        return [record.value async for record in (await self.topic(topic)).read()]
