"""The client for asyncio: the same names as ``handles``, awaited. It belongs to the event loop that opened it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from headrace.calls import BY_KEY, AsyncPort
from headrace.client.administration import BrokerCalls, DeadLetterCalls, GroupCalls, ScheduleCalls, TopicCalls
from headrace.client.aio_consumer import Consumer, Delivery
from headrace.client.aio_publisher import Publisher
from headrace.client.appetite import Appetite
from headrace.client.arguments import (
    NO_JSON,
    Duration,
    Headers,
    Instant,
    Key,
    Priority,
    Value,
    shown,
    span_ns,
)
from headrace.client.awaiting import Opening
from headrace.client.handles import checked_partition, consumer_name, group_options
from headrace.client.message import Message
from headrace.client.outgoing import batches_of, one_batch
from headrace.client.published import Published, PublishedMany, single_place
from headrace.client.replay import AsyncReplay, ReplayPlan
from headrace.client.settings import written
from headrace.client.settling import AtomicOrder, SettledTogether
from headrace.config import TopicConfig
from headrace.errors import Closed, InvalidArgument, NotAllowed
from headrace.limits import CLIENT_PUBLISHER_LINGER_NS, CLIENT_WINDOW
from headrace.names import DEFAULT_GROUP, DEFAULT_NAMESPACE, check_group_name, check_topic_name

if TYPE_CHECKING:
    from headrace.client.aio_requests import Requests
    from headrace.client.aio_worker import Workers
    from headrace.client.worker import Handler

__all__ = ["Headrace", "Topic"]

F = TypeVar("F", bound="Handler")


class Headrace(BrokerCalls):
    """A broker, as the tasks of one event loop see it: ``headrace.aio.open`` and ``connect`` give one.

    >>> import asyncio, headrace.aio
    >>> async def main():
    ...     async with headrace.aio.open(":memory:") as hr:
    ...         orders = await hr.topic("orders")
    ...         await orders.publish(b"one apple", key="user-1")
    ...         async with orders.consumer(group="billing") as consumer:
    ...             async for d in consumer.until_idle():
    ...                 async with d:
    ...                     return d.text
    >>> asyncio.run(main())
    'one apple'
    """

    __slots__ = ("_closables", "_closed", "_port", "_requests", "_topics", "_workers", "name", "now_ns")

    def __init__(
        self,
        port: AsyncPort,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        name: str | None = None,
        now_ns: Callable[[], int],
    ) -> None:
        super().__init__(self._make_call, namespace)
        self._port = port
        self.name = consumer_name(name)
        self.now_ns = now_ns
        self._topics: dict[str, Topic] = {}
        self._closables: dict[int, Consumer | Publisher] = {}
        self._requests: Requests | None = None
        self._workers: Workers | None = None
        self._closed = False

    async def _make_call(self, method: str, then: Callable[[Any], Any] | None = None, **arguments: Any) -> Any:
        self._check_open()
        result = await self._port.call(method, **arguments)
        return result if then is None else then(result)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this client is closed; open or connect another one")

    async def topic(
        self, name: str, *, partitions: int | None = None, ordering: str | None = None, **settings: Any
    ) -> Topic:
        """The topic, made if it is new. Settings that conflict with those it has are an error that names both."""
        self._check_open()
        given = written(TopicConfig, settings)
        if partitions is not None:
            given["partitions"] = partitions
        if ordering is not None:
            given["ordering"] = ordering
        known = self._topics.get(check_topic_name(name))
        if known is not None and not given:
            return known
        topic = known or Topic(self, name)
        try:
            await self._make_call("topic.ensure", namespace=self._namespace, topic=name, settings=given)
        except NotAllowed:
            if given:
                raise  # who may only consume from it still gets the handle
        self._topics[name] = topic
        return topic

    def forget_topic(self, name: str) -> None:
        """It was deleted: the next ``topic`` makes it again."""
        self._topics.pop(name, None)

    async def settle(
        self,
        *,
        ack: Any = (),
        nack: Any = (),
        reject: Any = (),
        release: Any = (),
        extend: Any = (),
        publish: Iterable[tuple[Any, Any]] = (),
        schedule: Iterable[tuple[Any, Any]] = (),
        cancel: Iterable[tuple[Any, Any]] = (),
    ) -> SettledTogether:
        """Settle deliveries of one group, publish, schedule and cancel: in one durable record, or nothing of it."""
        self._check_open()
        atomic = AtomicOrder(ack, nack, reject, release, extend, publish, schedule, cancel)
        settled = await self._port.settle(self._namespace, atomic.topic, atomic.group, atomic.order)
        atomic.done()
        return SettledTogether(settled)

    async def request(
        self,
        topic: str,
        value: Value | Message | None = None,
        *,
        timeout: Duration = "30s",  # noqa: ASYNC109 - the same name as for threads
        **properties: Any,
    ) -> Delivery:
        """Publish and wait for the answer; raises TimedOut when none came in time."""
        self._check_open()
        if self._requests is None:
            from headrace.client.aio_requests import Requests

            self._requests = Requests(self)
        return await self._requests.request(topic, value, span_ns("timeout", timeout), properties)

    async def reply(self, delivery: Delivery, value: Any, properties: dict[str, Any]) -> Published:
        """Publish the answer to a request."""
        topic = delivery.reply_to
        if topic is None:
            raise InvalidArgument(f"message {delivery.id} asks for no answer: it has no reply_to")
        return await (await self.topic(topic)).publish(value, correlation_id=delivery.correlation_id, **properties)

    # -- workers -----------------------------------------------------------------------------------------------------

    def worker(
        self,
        topic: str,
        *,
        group: str = DEFAULT_GROUP,
        concurrency: int = 1,
        lease: Duration | None = None,
        prefetch: int | None = None,
        **options: Any,
    ) -> Callable[[F], F]:
        """Decorator: the function handles the messages of a topic once ``run_workers`` is awaited.

        An ``async def`` runs as ``concurrency`` tasks, a plain function in so many threads.
        """
        return self.workers.add(
            topic, group=group, concurrency=concurrency, lease=lease, prefetch=prefetch, options=options
        )

    @property
    def workers(self) -> Workers:
        """The workers of this client; ``async with hr.workers:`` runs them while the block lasts."""
        if self._workers is None:
            from headrace.client.aio_worker import Workers

            self._workers = Workers(self)
        return self._workers

    async def run_workers(self) -> None:
        """Run the workers until SIGTERM or SIGINT (or ``workers.stop_soon()``), then let what is under way finish."""
        await self.workers.run()

    def start_workers(self) -> Opening[Workers]:
        """Start the workers and go on: ``await`` it, or ``async with`` it to stop them when the block ends."""
        return Opening(self.workers.start)

    @property
    def port(self) -> AsyncPort:
        """The calls underneath (``headrace.calls``)."""
        return self._port

    def remember(self, closable: Consumer | Publisher) -> None:
        """Close it with the client."""
        self._check_open()
        self._closables[id(closable)] = closable

    def forget(self, closable: Consumer | Publisher) -> None:
        """It is closed."""
        self._closables.pop(id(closable), None)

    async def close(self) -> None:
        """Stop workers, confirm what was published and settled, give back what was not, let go of the broker."""
        if self._closed:
            return
        errors: list[Exception] = []
        for closable in (self._workers, self._requests, *list(self._closables.values())):
            try:
                if closable is self._workers and self._workers is not None:
                    await self._workers.stop()
                elif closable is not None:
                    await closable.close()
            except Exception as error:  # noqa: BLE001 - the others must still be closed; it is raised below
                errors.append(error)
        self._closed = True
        await self._port.close()
        if errors:
            raise errors[0]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<headrace asyncio client {self.name!r}, namespace {self._namespace!r}>"


class Topic(TopicCalls):
    """A topic. Made by ``await client.topic(name)``."""

    __slots__ = ("_client", "dead_letters", "schedule")

    def __init__(self, client: Headrace, name: str) -> None:
        super().__init__(client._make_call, client.namespace, name)
        self._client = client
        self.dead_letters = DeadLetterCalls(client._make_call, client.namespace, name)
        self.schedule = ScheduleCalls(client._make_call, client.namespace, name)

    async def publish(
        self,
        value: Value | Message | None = None,
        *,
        json: Any = NO_JSON,
        key: Key | None = None,
        headers: Headers | None = None,
        priority: Priority = 5,
        delay: Duration | None = None,
        deliver_at: Instant | None = None,
        ttl: Duration | None = None,
        expires_at: Instant | None = None,
        dedup_id: Key | None = None,
        timestamp: Instant | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        partition: int = BY_KEY,
    ) -> Published:
        """Publish one message; durable when it returns."""
        batch = one_batch(
            value,
            json,
            key,
            headers,
            priority,
            delay,
            deliver_at,
            ttl,
            expires_at,
            dedup_id,
            timestamp,
            correlation_id,
            reply_to,
        )
        return single_place(
            await self._client._port.publish(self._namespace, self.name, checked_partition(partition), batch)
        )

    async def publish_many(self, values: Any, *, partition: int = BY_KEY) -> PublishedMany:
        """Publish values, messages or the rows of an Arrow table; durable when it returns."""
        import asyncio

        port, namespace, name = self._client._port, self._namespace, self.name
        checked_partition(partition)
        under_way: list[asyncio.Task[Any]] = []
        parts, counts = [], []
        try:
            for batch in batches_of(values):
                counts.append(batch.count)
                under_way.append(asyncio.ensure_future(port.publish(namespace, name, partition, batch)))
                if len(under_way) >= CLIENT_WINDOW:
                    parts.append(await under_way.pop(0))
            while under_way:
                parts.append(await under_way.pop(0))
        finally:
            for task in under_way:
                task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return PublishedMany(parts, counts)

    def publisher(self, *, linger: Duration | None = None, partition: int = BY_KEY) -> Publisher:
        """Publish one by one without waiting for each: messages gather into batches that leave together."""
        linger_ns = CLIENT_PUBLISHER_LINGER_NS if linger is None else span_ns("linger", linger)
        return Publisher(self._client, self.name, checked_partition(partition), linger_ns)

    def consumer(
        self,
        group: str = DEFAULT_GROUP,
        *,
        name: str | None = None,
        lease: Duration | None = None,
        prefetch: int | None = None,
        start: str | None = None,
        offset: int | None = None,
        offsets: Mapping[int, int] | None = None,
        time: Instant | None = None,
        durable: bool = True,
        **settings: Any,
    ) -> Opening[Consumer]:
        """Join a group, made if it is new: ``await`` it, or ``async with`` it. Arguments as for threads."""
        client = self._client
        client._check_open()
        check_group_name(group)
        appetite = Appetite(prefetch)
        lease_ns = None if lease is None else span_ns("lease", lease)
        if lease_ns == 0:
            raise InvalidArgument(f"lease is {shown(lease)}; a consumer needs time, such as '30s'")
        own = consumer_name(name)
        options = group_options(start, offset, offsets, time, durable, settings)

        async def join() -> Consumer:
            port = await client._port.consumer(
                self._namespace,
                self.name,
                group,
                consumer=own,
                lease_ns=lease_ns,
                prefetch=appetite.prefetch // 2,
                options=options or None,
            )
            consumer = Consumer(client, self.name, group, own, port, appetite)
            client.remember(consumer)
            return consumer

        return Opening(join)

    def group(self, name: str = DEFAULT_GROUP) -> GroupCalls:
        """A group of this topic, from outside: info, seek, pause, resume …, each to be awaited."""
        return GroupCalls(self._client._make_call, self._namespace, self.name, check_group_name(name))

    def read(
        self,
        *,
        from_time: Instant | None = None,
        to_time: Instant | None = None,
        from_offset: int | None = None,
        to_offset: int | None = None,
        partition: int | None = None,
        limit: int | None = None,
        include_deleted: bool = False,
    ) -> AsyncReplay:
        """Read the log again without a group: ``async for``, or ``await ….to_arrow()``; with ``include_deleted`` also
        what retention let go of, where the broker has an archive."""
        plan = ReplayPlan(
            self._namespace, self.name, from_time, to_time, from_offset, to_offset, partition, limit, include_deleted
        )
        return AsyncReplay(self._client._make_call, plan)

    def delete(self) -> Any:
        """Remove the topic with its messages and groups; to be awaited."""
        self._client.forget_topic(self.name)
        return super().delete()
