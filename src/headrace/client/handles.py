"""The client for threads: ``Headrace`` and what it hands out. One object for a broker in the process or far away.

Everything here is names and arguments; consuming is in ``consumer``, publishing one by one without waiting in
``publisher``, administrative calls in ``administration``. Any number of threads may use one client.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from headrace.calls import BY_KEY, Pending, Port
from headrace.client.administration import (
    BrokerCalls,
    DeadLetterCalls,
    GroupCalls,
    ScheduleCalls,
    TopicCalls,
    start_argument,
)
from headrace.client.appetite import Appetite
from headrace.client.arguments import (
    NO_JSON,
    Duration,
    Headers,
    Instant,
    Key,
    Priority,
    Value,
    key_bytes,
    shown,
    span_ns,
    whole,
    yes_or_no,
)
from headrace.client.consumer import Consumer, Delivery
from headrace.client.keeper import Keeper
from headrace.client.message import Message
from headrace.client.outgoing import batches_of, one_batch
from headrace.client.published import Published, PublishedMany, published, single_place
from headrace.client.replay import Replay, ReplayPlan
from headrace.client.settings import written
from headrace.client.settling import AtomicOrder, SettledTogether
from headrace.clock import Clock, SystemClock
from headrace.config import GroupConfig, TopicConfig
from headrace.errors import Closed, InvalidArgument, NotAllowed
from headrace.limits import CLIENT_PUBLISHER_LINGER_NS, CLIENT_WINDOW, PARTITIONS_MAX
from headrace.names import DEFAULT_GROUP, DEFAULT_NAMESPACE, check_consumer_name, check_group_name, check_topic_name

if TYPE_CHECKING:
    from headrace.client.publisher import Publisher
    from headrace.client.requests import Requests
    from headrace.client.worker import Handler, Workers

__all__ = ["Headrace", "Topic", "checked_partition", "consumer_name", "group_options"]

F = TypeVar("F", bound="Handler")


def consumer_name(name: str | None) -> str:
    """The name of a consumer; one that nobody else has when none is given."""
    return f"c-{secrets.token_hex(6)}" if name is None else check_consumer_name(name)


def group_options(
    start: str | None,
    offset: int | None,
    offsets: Mapping[int, int] | None,
    time: Instant | None,
    durable: bool,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """What a new group is to be like."""
    options = written(GroupConfig, settings)
    if any(given is not None for given in (start, offset, offsets, time)):
        options["start"] = start_argument(start, offset, offsets, time)
    if not yes_or_no("durable", durable):
        options["durable"] = False
    return options


def checked_partition(partition: int) -> int:
    """A partition by its index, or BY_KEY."""
    return partition if partition == BY_KEY else whole("partition", partition, 0, PARTITIONS_MAX - 1)


class Headrace(BrokerCalls):
    """A broker, as a program sees it: ``headrace.open`` and ``headrace.connect`` return one.

    >>> import headrace
    >>> with headrace.open(":memory:") as hr:
    ...     place = hr.topic("orders").publish(b"one apple", key="user-1")
    ...     [d.value for d in hr.topic("orders").consumer(group="billing").receive(10)]
    [b'one apple']
    """

    __slots__ = (
        "_closables",
        "_closed",
        "_lock",
        "_port",
        "_requests",
        "_topics",
        "_workers",
        "keeper",
        "name",
        "now_ns",
    )

    def __init__(
        self,
        port: Port,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        name: str | None = None,
        now_ns: Callable[[], int],
        clock: Clock | None = None,
    ) -> None:
        super().__init__(self._make_call, namespace)
        self._port = port
        self.name = consumer_name(name)
        self.now_ns = now_ns
        self.keeper = Keeper(clock or SystemClock())
        self._lock = RLock()
        self._topics: dict[str, Topic] = {}
        self._closables: dict[int, Consumer | Publisher] = {}
        self._requests: Requests | None = None
        self._workers: Workers | None = None
        self._closed = False

    def _make_call(self, method: str, then: Callable[[Any], Any] | None = None, **arguments: Any) -> Any:
        self._check_open()
        result = self._port.call(method, **arguments)
        return result if then is None else then(result)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this client is closed; open or connect another one")

    # -- handles -----------------------------------------------------------------------------------------------------

    def topic(self, name: str, *, partitions: int | None = None, ordering: str | None = None, **settings: Any) -> Topic:
        """The topic, made if it is new. Settings that conflict with those it has are an error that names both.

        >>> import headrace
        >>> with headrace.open(":memory:") as hr:
        ...     _ = hr.topic("orders", partitions=6)
        ...     hr.topic("orders", partitions=4)
        Traceback (most recent call last):
            ...
        headrace.errors.DuplicateConflict: topic 'orders' exists with partitions = 6, not 4; ...
        """
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
            self._make_call("topic.ensure", namespace=self._namespace, topic=name, settings=given)
        except NotAllowed:
            if given:
                raise  # who may only consume from it still gets the handle
        self._topics[name] = topic
        return topic

    def forget_topic(self, name: str) -> None:
        """It was deleted: the next ``topic`` makes it again."""
        self._topics.pop(name, None)

    # -- several things at once --------------------------------------------------------------------------------------

    def settle(
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
        """Settle deliveries of one group, publish, schedule and cancel: in one durable record, or nothing of it.

        ``nack`` takes deliveries or (delivery, delay, error), ``reject`` deliveries or (delivery, error), ``extend``
        (delivery, by), ``publish`` and ``schedule`` (topic, message), ``cancel`` (topic, ids).

        >>> import headrace
        >>> with headrace.open(":memory:") as hr:
        ...     _ = hr.topic("orders").publish(b"one apple")
        ...     (d,) = hr.topic("orders").consumer(group="billing").receive()
        ...     done = hr.settle(ack=[d], publish=[("invoices", b"1 EUR")])
        ...     done.settled, [d.value for d in hr.topic("invoices").consumer().receive()]
        (1, [b'1 EUR'])
        """
        self._check_open()
        atomic = AtomicOrder(ack, nack, reject, release, extend, publish, schedule, cancel)
        settled = self._port.settle(self._namespace, atomic.topic, atomic.group, atomic.order)
        atomic.done()
        return SettledTogether(settled)

    def request(
        self,
        topic: str,
        value: Value | Message | None = None,
        *,
        timeout: Duration = "30s",
        **properties: Any,
    ) -> Delivery:
        """Publish and wait for the answer; raises TimedOut when none came in time.

        >>> import headrace
        >>> with headrace.open(":memory:") as hr:
        ...     @hr.worker("auth/validate")
        ...     def validate(d):
        ...         return b"ok " + d.value
        ...     with hr.start_workers():
        ...         hr.request("auth/validate", b"user-1", timeout="10s").value
        b'ok user-1'
        """
        self._check_open()
        with self._lock:
            if self._requests is None:
                from headrace.client.requests import Requests

                self._requests = Requests(self)
        return self._requests.request(topic, value, span_ns("timeout", timeout), properties)

    def reply(self, delivery: Delivery, value: Any, properties: dict[str, Any]) -> Published:
        """Publish the answer to a request."""
        topic = delivery.reply_to
        if topic is None:
            raise InvalidArgument(f"message {delivery.id} asks for no answer: it has no reply_to")
        return self.topic(topic).publish(value, correlation_id=delivery.correlation_id, **properties)

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
        """Decorator: the function handles the messages of a topic once ``run_workers`` or ``start_workers`` is called.

        A plain function runs in ``concurrency`` threads, an ``async def`` as so many tasks of one event loop. It is
        given a delivery: returning acks it, raising nacks it with the error's text; settling it itself is fine too.
        What it returns answers the message if that asks for an answer (``reply_to``).
        """
        return self.workers.add(
            topic, group=group, concurrency=concurrency, lease=lease, prefetch=prefetch, options=options
        )

    @property
    def workers(self) -> Workers:
        """The workers of this client."""
        with self._lock:
            if self._workers is None:
                from headrace.client.worker import Workers

                self._workers = Workers(self)
            return self._workers

    def run_workers(self) -> None:
        """Run the workers until SIGTERM or SIGINT (or ``workers.stop()``), then let what is under way finish."""
        self.workers.run()

    def start_workers(self) -> Workers:
        """Start the workers and go on; as a context manager they stop when the block ends."""
        return self.workers.start()

    # -- ports, for what stands on this ------------------------------------------------------------------------------

    @property
    def port(self) -> Port:
        """The calls underneath (``headrace.calls``)."""
        return self._port

    def remember(self, closable: Consumer | Publisher) -> None:
        """Close it with the client."""
        with self._lock:
            self._check_open()
            self._closables[id(closable)] = closable

    def forget(self, closable: Consumer | Publisher) -> None:
        """It is closed."""
        with self._lock:
            self._closables.pop(id(closable), None)

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop workers, confirm what was published and settled, give back what was not, let go of the broker."""
        if self._closed:
            return
        if self._workers is not None:
            self._workers.stop()
        if self._requests is not None:
            self._requests.close()
        with self._lock:
            closables = list(self._closables.values())
        errors: list[Exception] = []
        for closable in closables:
            try:
                closable.close()
            except Exception as error:  # noqa: BLE001 - the others must still be closed; it is raised below
                errors.append(error)
        self._closed = True
        self.keeper.close()
        self._port.close()
        if errors:
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<headrace client {self.name!r}, namespace {self._namespace!r}>"


class Topic(TopicCalls):
    """A topic. Made by ``client.topic(name)``."""

    __slots__ = ("_client", "dead_letters", "schedule")

    def __init__(self, client: Headrace, name: str) -> None:
        super().__init__(client._make_call, client.namespace, name)
        self._client = client
        self.dead_letters = DeadLetterCalls(client._make_call, client.namespace, name)
        self.schedule = ScheduleCalls(client._make_call, client.namespace, name)

    # -- publishing --------------------------------------------------------------------------------------------------

    def publish(
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
        """Publish one message and wait until it is durable.

        >>> import headrace
        >>> with headrace.open(":memory:") as hr:
        ...     orders = hr.topic("orders")
        ...     first = orders.publish(b"apple", key="user-1", headers={"shop": "eu"}, priority="high", dedup_id="o-1")
        ...     again = orders.publish(b"apple", key="user-1", dedup_id="o-1")
        >>> first.offset, first.duplicate, again.duplicate, again.id == first.id
        (0, False, True, True)
        """
        if (
            type(value) is bytes
            and json is NO_JSON
            and headers is None
            and priority == 5
            and delay is None
            and deliver_at is None
            and ttl is None
            and expires_at is None
            and dedup_id is None
            and timestamp is None
            and correlation_id is None
            and reply_to is None
            and partition == BY_KEY
        ):  # what most messages are
            own_key = key if key is None else key_bytes(key)
            return published(self._client._port.publish_value(self._namespace, self.name, value, own_key))
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
        return single_place(self._client._port.publish(self._namespace, self.name, checked_partition(partition), batch))

    def publish_many(self, values: Any, *, partition: int = BY_KEY) -> PublishedMany:
        """Publish values, messages or the rows of an Arrow table; durable when it returns.

        Large amounts leave as several batches, each stored whole in one durable round or not at all; when one is
        refused, the error is raised once those before it are durable; some behind it may be stored, too. So a batch
        that finds too little room in the topic (``max_depth``) is refused as a whole: `QueueFull`, or `LimitExceeded`
        where it could never fit. Fewer values at a time, or a `publisher`, get in what there is room for.
        """
        port, namespace, name = self._client._port, self._namespace, self.name
        checked_partition(partition)
        under_way: list[Pending] = []
        parts, counts = [], []
        for batch in batches_of(values):
            counts.append(batch.count)
            under_way.append(port.publish_begin(namespace, name, partition, batch))
            if len(under_way) >= CLIENT_WINDOW:
                parts.append(under_way.pop(0).result())
        parts += [pending.result() for pending in under_way]
        return PublishedMany(parts, counts)

    def publisher(self, *, linger: Duration | None = None, partition: int = BY_KEY) -> Publisher:
        """Publish one by one without waiting for each: messages gather into batches that leave together.

        ``linger`` is how long a message may wait for others while batches are under way.
        """
        from headrace.client.publisher import Publisher

        linger_ns = CLIENT_PUBLISHER_LINGER_NS if linger is None else span_ns("linger", linger)
        return Publisher(self._client, self.name, checked_partition(partition), linger_ns)

    # -- consuming ---------------------------------------------------------------------------------------------------

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
    ) -> Consumer:
        """Join a group, made if it is new (at ``start``, ``offset=`` or ``time=``; with group settings, if given).

        ``durable=False``: the group goes with its last consumer. ``auto_ack=True``: settled when handed out, at most
        once. ``filter={...}``: which messages the group wants.
        """
        client = self._client
        client._check_open()
        check_group_name(group)
        appetite = Appetite(prefetch)
        lease_ns = None if lease is None else span_ns("lease", lease)
        if lease_ns == 0:
            raise InvalidArgument(f"lease is {shown(lease)}; a consumer needs time, such as '30s'")
        own = consumer_name(name)
        options = group_options(start, offset, offsets, time, durable, settings)
        port = client._port.consumer(
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

    def group(self, name: str = DEFAULT_GROUP) -> GroupCalls:
        """A group of this topic, from outside: info, seek, pause, resume …"""
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
    ) -> Replay:
        """Read the log again without a group, from a time or offset (inclusive) to another (exclusive); with
        ``include_deleted`` also what retention let go of, where the broker has an archive."""
        plan = ReplayPlan(
            self._namespace, self.name, from_time, to_time, from_offset, to_offset, partition, limit, include_deleted
        )
        return Replay(self._client._make_call, plan)

    def delete(self) -> Any:
        """Remove the topic with its messages and groups."""
        self._client.forget_topic(self.name)
        return super().delete()
