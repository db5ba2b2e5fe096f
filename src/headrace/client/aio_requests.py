"""Request and answer over topics, for asyncio; the rules are those of ``requests``."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any

from headrace.client.requests import REPLIES_TOPIC, replies_filter, replies_settings, request_message
from headrace.errors import Closed, DuplicateConflict, HeadraceError, TimedOut
from headrace.limits import SECOND_NS

if TYPE_CHECKING:
    from headrace.client.aio_consumer import Consumer, Delivery
    from headrace.client.aio_handles import Headrace

__all__ = ["Requests"]


class Requests:
    """The requests of one client that wait for their answers."""

    def __init__(self, client: Headrace) -> None:
        self._client = client
        self._numbers = count(1)
        self._waiting: dict[str, asyncio.Future[Delivery]] = {}
        self._opening = asyncio.Lock()
        self._consumer: Consumer | None = None
        self._reader: asyncio.Task[None] | None = None
        self._over: HeadraceError | None = None

    async def request(self, topic: str, value: Any, timeout_ns: int, properties: dict[str, Any]) -> Delivery:
        """Publish, wait."""
        async with self._opening:
            if self._consumer is None:
                await self._open()
        if self._over is not None:
            raise self._over
        correlation_id = f"{self._client.name}/{next(self._numbers)}"
        message = request_message(value, properties, correlation_id)
        answer: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = answer
        try:
            async with asyncio.timeout(timeout_ns / SECOND_NS):
                await (await self._client.topic(topic)).publish(message)
                return await answer
        except TimeoutError:
            text = f"no answer from {topic!r} within {timeout_ns / SECOND_NS:g}s; it may still be handled"
            raise TimedOut(text) from None
        finally:
            self._waiting.pop(correlation_id, None)

    async def _open(self) -> None:
        client = self._client
        try:
            topic = await client.topic(REPLIES_TOPIC, **replies_settings())
        except DuplicateConflict:
            topic = await client.topic(REPLIES_TOPIC)  # somebody has other ideas about it
        self._consumer = await topic.consumer(
            f"replies-{client.name}",
            name=client.name,
            start="latest",
            durable=False,
            auto_ack=True,
            filter=replies_filter(client.name),
        )
        self._reader = asyncio.get_running_loop().create_task(self._read(self._consumer))

    async def _read(self, consumer: Consumer) -> None:
        over: HeadraceError = Closed("the client was closed while a request waited for its answer")
        try:
            async for answer in consumer:
                waiting = self._waiting.get(answer.correlation_id or "")
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except HeadraceError as error:
            over = error
        self._over = over
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(over)

    async def close(self) -> None:
        """Nobody waits any more."""
        if self._consumer is not None:
            self._consumer.stop()
        if self._reader is not None:
            await self._reader
        if self._consumer is not None:
            await self._consumer.close()
