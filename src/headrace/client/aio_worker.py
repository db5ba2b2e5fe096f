"""Functions that handle the messages of a topic in an event loop; the rules are those of ``worker``.

An ``async def`` runs as a task of this loop, a plain function in a thread, so that it does not hold up the others.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from headrace.client.aio_consumer import Consumer, Delivery
from headrace.client.arguments import Duration, whole
from headrace.client.message import Message, message_of
from headrace.client.worker import Handler, check_topic_of, name_of
from headrace.errors import InvalidArgument
from headrace.limits import CLIENT_WORKER_STOP_NS, PREFETCH_MAX, SECOND_NS, WORKER_CONCURRENCY_MAX

if TYPE_CHECKING:
    from headrace.client.aio_handles import Headrace

__all__ = ["Workers"]

F = TypeVar("F", bound=Handler)
_log = logging.getLogger("headrace.worker")


class _Worker:
    def __init__(
        self,
        handler: Handler,
        topic: str,
        group: str,
        concurrency: int,
        prefetch: int | None,
        options: dict[str, Any],
    ) -> None:
        self.handler = handler
        self.topic = topic
        self.group = group
        self.concurrency = concurrency
        self.grows = prefetch is None
        self.prefetch = min(2 * concurrency, PREFETCH_MAX) if prefetch is None else prefetch
        self.options = options


class Workers:
    """All workers of a client."""

    def __init__(self, client: Headrace) -> None:
        self._client = client
        self._workers: list[_Worker] = []
        self._consumers: list[Consumer] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    def add(
        self,
        topic: str,
        *,
        group: str,
        concurrency: int,
        lease: Duration | None,
        prefetch: int | None,
        options: dict[str, Any],
    ) -> Callable[[F], F]:
        """The decorator behind ``client.worker``."""
        check_topic_of(topic)
        whole("concurrency", concurrency, 1, WORKER_CONCURRENCY_MAX)
        if prefetch is not None:
            whole("prefetch", prefetch, 1, PREFETCH_MAX)
        given = {**options, **({} if lease is None else {"lease": lease})}

        def register(handler: F) -> F:
            if not callable(handler):
                raise InvalidArgument(f"a worker is a function that takes a delivery, not {handler!r}")
            self._workers.append(_Worker(handler, topic, group, concurrency, prefetch, given))
            return handler

        return register

    # -- running -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Start, wait until stopped (SIGTERM and SIGINT stop it), let handlers finish; raises what ended a worker."""
        loop = asyncio.get_running_loop()
        numbers = [signal.SIGTERM, signal.SIGINT]
        try:
            for number in numbers:
                loop.add_signal_handler(number, self._stopping.set)
        except (NotImplementedError, RuntimeError, ValueError):
            numbers = []  # not in the main thread, or a loop without signals: whoever runs it stops it
        try:
            async with self:
                await self._stopping.wait()
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    async def start(self) -> Self:
        """Start all of them and return."""
        if not self._workers:
            raise InvalidArgument("there are no workers; declare some with @client.worker(topic)")
        if self._tasks:
            return self
        self._stopping.clear()
        try:
            for worker in self._workers:
                topic = await self._client.topic(worker.topic)
                consumer = await topic.consumer(worker.group, prefetch=worker.prefetch, **worker.options)
                if worker.grows:
                    consumer.appetite.grow()
                self._consumers.append(consumer)
                for _ in range(worker.concurrency):
                    task = asyncio.get_running_loop().create_task(self._work(worker, consumer))
                    task.add_done_callback(lambda _: self._stopping.set())
                    self._tasks.append(task)
        except BaseException:
            await self.stop()
            raise
        return self

    async def _work(self, worker: _Worker, consumer: Consumer) -> None:
        in_loop = inspect.iscoroutinefunction(worker.handler)
        async for delivery in consumer:
            try:
                async with delivery:
                    if in_loop:
                        answer = await worker.handler(delivery)
                    else:
                        answer = await asyncio.to_thread(worker.handler, _ForThread(delivery, consumer))
                    await self._finish(delivery, answer)
            except Exception:  # noqa: BLE001 - a handler may raise anything; the message is nacked with it
                _log.exception("%s failed on %r", name_of(worker.handler), delivery)

    async def _finish(self, delivery: Delivery, answer: Any) -> None:
        """Send the answer, in one record with the ack."""
        if answer is None or delivery.reply_to is None or delivery.settled:
            return
        message = message_of(answer)
        if isinstance(message, Message) and delivery.correlation_id is not None:
            message.headers = {"correlation_id": delivery.correlation_id, **(message.headers or {})}
        await self._client.settle(ack=[delivery], publish=[(delivery.reply_to, message)])

    # -- stopping ----------------------------------------------------------------------------------------------------

    def stop_soon(self) -> None:
        """Ask ``run`` to return; handlers may call it."""
        self._stopping.set()

    async def stop(self) -> None:
        """Take no more, wait for handlers under way, confirm what they did, give back the rest."""
        self._stopping.set()
        for consumer in self._consumers:
            consumer.stop()
        tasks, self._tasks = self._tasks, []
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLIENT_WORKER_STOP_NS / SECOND_NS)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        consumers, self._consumers = self._consumers, []
        for consumer in consumers:
            await consumer.close()
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def close(self) -> None:
        """The same, for who takes it for something to close."""
        await self.stop()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class _ForThread(Delivery):
    """A delivery for a function in a thread: its verbs are carried out in the loop."""

    __slots__ = ("_loop", "_own")

    def __init__(self, delivery: Delivery, consumer: Consumer) -> None:
        super().__init__(consumer, delivery._holding, delivery._index)
        self._own = delivery
        self._loop = asyncio.get_running_loop()

    def _in_loop(self, verb: Callable[..., Any], *arguments: Any) -> Any:
        async def call() -> Any:
            return verb(*arguments)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def ack(self) -> Any:
        return self._in_loop(self._own.ack)

    def nack(self, delay: Duration | None = None, error: object = None) -> Any:
        return self._in_loop(self._own.nack, delay, error)

    def reject(self, error: object = None) -> Any:
        return self._in_loop(self._own.reject, error)

    def release(self) -> Any:
        return self._in_loop(self._own.release)
