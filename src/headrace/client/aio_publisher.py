"""Publishing one by one without waiting for each, in an event loop.

Messages gather into a batch; it leaves when it is full, when the linger of its first message is over, or when somebody
awaits a receipt. When as many batches are under way as may be, ``await publisher.publish(…)`` waits: that is the
back-pressure.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headrace.calls import Part
from headrace.client.arguments import Duration, Key, Value, span_ns
from headrace.client.gathering import Gathering
from headrace.client.message import Message
from headrace.client.published import Published, places
from headrace.errors import Closed, HeadraceError, TimedOut
from headrace.limits import CLIENT_PUBLISHER_BYTES_MAX, CLIENT_PUBLISHER_MESSAGES_MAX, CLIENT_WINDOW, SECOND_NS

if TYPE_CHECKING:
    from headrace.client.aio_handles import Headrace

__all__ = ["Publisher", "Receipt"]


class _Batch(Gathering):
    __slots__ = ("_places", "publisher", "seen", "sent")

    def __init__(self, publisher: Publisher) -> None:
        super().__init__()
        self.publisher = publisher
        self.seen = False
        self.sent: asyncio.Future[list[Part]] | None = None
        self._places: Sequence[Published] | None = None

    async def wait(self) -> list[Part]:
        if self.sent is None:
            await self.publisher.send(self)
        if self.sent is None:
            raise Closed("this publisher is closed")
        return await asyncio.shield(self.sent)

    async def place(self, index: int) -> Published:
        self.seen = True
        parts = await self.wait()
        if self._places is None:
            self._places = places(parts, self.count)
        return self._places[index]


class Receipt:
    """One message under way; await it, or its ``result``, for where it lies."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: _Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    async def result(self, timeout: Duration | None = None) -> Published:  # noqa: ASYNC109 - the same name as for threads
        """Wait until it is durable. Raises what it was refused with, TimedOut when it took longer."""
        if timeout is None:
            return await self._batch.place(self._index)
        try:
            async with asyncio.timeout(span_ns("timeout", timeout) / SECOND_NS):
                return await self._batch.place(self._index)
        except TimeoutError:
            raise TimedOut(f"a publish was not confirmed within {timeout}; it may still be") from None

    def __await__(self) -> Generator[Any, None, Published]:
        return self.result().__await__()


class Publisher:
    """See the head of this file; made by ``topic.publisher()``, an ``async with`` block."""

    def __init__(self, client: Headrace, topic_name: str, partition: int, linger_ns: int) -> None:
        self._client = client
        self.topic_name = topic_name
        self._partition = partition
        self._linger = linger_ns / SECOND_NS
        self._loop = asyncio.get_running_loop()
        self._gathering = _Batch(self)
        self._under_way: deque[_Batch] = deque()
        self._messages_under_way = 0
        self._bytes_under_way = 0
        self._turn = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._failure: HeadraceError | None = None
        self._closed = False
        client.remember(self)

    async def publish(self, value: Value | Message | None = None, key: Key | None = None, **properties: Any) -> Receipt:
        """Take a message (arguments as those of ``topic.publish``); it is durable when its receipt's result is there,
        or after ``flush`` or ``close``."""
        if self._closed:
            raise Closed("this publisher is closed")
        if self._gathering.count and Gathering.is_large(value):
            await self.send(self._gathering)
        batch = self._gathering
        index = batch.add(value, key, properties)
        if batch.full:
            await self.send(batch)
        elif index == 0:
            self._timer = self._loop.call_later(self._linger, self._on_time)
        return Receipt(batch, index)

    def _on_time(self) -> None:
        self._timer = None
        task = self._loop.create_task(self.send(self._gathering))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def send(self, batch: _Batch) -> None:
        """Send what has gathered, once there is room."""
        async with self._turn:
            if batch is not self._gathering or not batch.count:
                return
            while self._under_way and (
                len(self._under_way) >= CLIENT_WINDOW
                or self._messages_under_way + batch.count > CLIENT_PUBLISHER_MESSAGES_MAX
                or self._bytes_under_way + batch.bytes > CLIENT_PUBLISHER_BYTES_MAX
            ):
                await self._await_oldest()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._gathering = _Batch(self)
            batch.sent = self._loop.create_task(self._publish(batch))
            batch.sent.add_done_callback(_looked_at)
            self._under_way.append(batch)
            self._messages_under_way += batch.count
            self._bytes_under_way += batch.bytes

    async def _publish(self, batch: _Batch) -> list[Part]:
        client = self._client
        return await client.port.publish(client.namespace, self.topic_name, self._partition, batch.batch())

    async def _await_oldest(self) -> None:
        batch = self._under_way.popleft()
        self._messages_under_way -= batch.count
        self._bytes_under_way -= batch.bytes
        try:
            await batch.wait()
        except HeadraceError as error:
            if not batch.seen:
                self._failure = self._failure or error

    async def flush(self) -> None:
        """Wait until everything published so far is durable; raises the first refusal that no receipt was asked for."""
        await self.send(self._gathering)
        async with self._turn:
            while self._under_way:
                await self._await_oldest()
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Flush, and take no more."""
        if self._closed:
            return
        try:
            await self.flush()
        finally:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
            self._client.forget(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<publisher to {self.topic_name!r}>"


def _looked_at(sent: asyncio.Future[list[Part]]) -> None:
    """Its error is told by flush or by a receipt, not by the loop."""
    if not sent.cancelled():
        sent.exception()
