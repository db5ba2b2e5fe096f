"""The broker in an event loop: what front-ends and the asyncio embedded API call.

Two styles of the same calls: ``await broker.publish(…)``, and ``broker.publish_then(…, callback)`` for a door that
answers thousands of requests a second and cannot afford a task for each; the callback gets the result, or the error as
a value, in the loop and not before it may leave.

Push. A subscription is a consumer with credit. Whenever a group may have something ready, its messages are shared out
among the subscriptions with credit by the group's policy (round robin, least busy, random) and each share is leased to
its consumer. Where order is by partition the shares follow from who owns what, and each asks for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from headrace.batch import Batch
from headrace.broker.administration import Administration
from headrace.broker.broker import Broker
from headrace.broker.embedded import open_core, tell_logging
from headrace.broker.portions import Portions
from headrace.calls import LeasedBatch, Part, Run, Settle, Settled, Tended, runs_within
from headrace.clock import SystemClock
from headrace.config import SealConfig, TopicConfig
from headrace.delivery import Group, Join, share_credit
from headrace.errors import Closed, HeadraceError, InvalidArgument, UnknownGroup, from_code
from headrace.limits import MEMBER_SILENCE_NS, PREFETCH_MAX
from headrace.shard.core import Core, Done
from headrace.shard.loop import LoopHost
from headrace.shard.sealing import Sealer, Tell

__all__ = ["AsyncEmbeddedPort", "LoopBroker", "Pull", "Subscription", "open_async_port"]

Callback = Callable[[Any], None]
Deliver = Callable[[list[LeasedBatch]], None]


class Subscription:
    """A consumer that is pushed messages as long as it has credit."""

    __slots__ = ("_broker", "_deliver", "_on_end", "closed", "consumer", "credit_left", "gid", "lease_ns")

    def __init__(
        self,
        broker: LoopBroker,
        gid: int,
        consumer: str,
        deliver: Deliver,
        lease_ns: int | None,
        on_end: Callable[[HeadraceError], None] | None,
    ) -> None:
        self._broker = broker
        self._deliver = deliver
        self._on_end = on_end
        self.gid = gid
        self.consumer = consumer
        self.lease_ns = lease_ns
        self.credit_left = 0
        self.closed = False

    def credit(self, messages: int) -> None:
        """Take ``messages`` more."""
        self.credit_left += messages
        if self.credit_left > 0:
            self._broker.plan(self.gid)

    def withdraw(self) -> None:
        """Take no more; what is leased already still comes."""
        self.credit_left = min(self.credit_left, 0)

    def close(self, *, clean: bool = True) -> None:
        """Leave; ``clean`` gives back what is leased uncounted, otherwise those attempts are spent."""
        if not self.closed:
            self.closed = True
            self._broker.unsubscribe(self, clean=clean)

    def deliver(self, leased: list[LeasedBatch]) -> None:
        if not self.closed:
            self._deliver(leased)

    def end(self, error: HeadraceError) -> None:
        """The group is gone."""
        self.closed = True
        if self._on_end is not None:
            self._on_end(error)


class Pull:
    """A lease that waits for its first message. Its callback comes once: with what was leased, with nothing at the
    deadline, with an error, or, when it was cancelled, never; what it got then is given back."""

    __slots__ = (
        "_broker",
        "_callback",
        "_consumer",
        "_lease_ns",
        "_most",
        "_namespace",
        "_timer",
        "_waits",
        "cancelled",
        "deadline",
        "gid",
        "over",
    )

    def __init__(
        self, broker: LoopBroker, namespace: str, consumer: str, most: int, lease_ns: int | None, callback: Callback
    ) -> None:
        self._broker = broker
        self._namespace = namespace
        self._consumer = consumer
        self._most = most
        self._lease_ns = lease_ns
        self._callback = callback
        self._timer: asyncio.TimerHandle | None = None
        self._waits = False
        self.gid = 0
        self.deadline = 0.0
        self.over = False
        self.cancelled = False

    def got(self, reply: Any) -> None:
        """What an attempt to lease brought."""
        if self.over:
            if self.cancelled and isinstance(reply, list) and reply:
                self._broker.give_back(self.gid, self._namespace, reply)
            return
        if reply or isinstance(reply, HeadraceError):
            self._end(reply)
        elif self._broker.time() >= self.deadline:
            self._end([])
        else:
            self._wait()

    def _wait(self) -> None:
        broker = self._broker
        group = broker.core.state.groups.get(self.gid)
        if group is None:
            self._end(UnknownGroup("the group was deleted"))
            return
        if self._timer is None:
            self._timer = broker.call_at(self.deadline, self._late)
        self._waits = True
        broker.wait_for_ready(self.gid, self._wake)
        broker.pace(group)

    def _wake(self) -> None:
        """At the end of this round of the loop: what comes in together is leased together."""
        self._waits = False
        self._broker.call_soon(self._try_again)

    def _try_again(self) -> None:
        if self.over:
            return
        broker = self._broker
        broker.host.then(
            lambda: broker.broker.lease_from(broker.group_of(self.gid), self._consumer, self._most, self._lease_ns),
            self.got,
        )

    def _late(self) -> None:
        self._timer = None
        if self._waits:
            self._end([])

    def _end(self, reply: Any) -> None:
        self.cancel()
        self.cancelled = False
        self._callback(reply)

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self.over = self.cancelled = True
        if self._waits:
            self._waits = False
            self._broker.wait_no_more(self.gid, self._wake)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class LoopBroker:
    """The broker of one event loop. Create it inside the loop."""

    def __init__(
        self,
        broker: Broker,
        *,
        on_failure: Callable[[HeadraceError], None] | None = None,
        seal: SealConfig | None = None,
        tell: Tell = tell_logging,
    ) -> None:
        broker.begin()
        self.broker = broker
        self.core = broker.core
        self.administration = Administration(broker)
        self.host = LoopHost(broker.core, on_ready=self._ready, on_failure=on_failure)
        self._loop = asyncio.get_running_loop()
        self.administration.tracing.hungry = self._hungry
        self.sealer = Sealer(broker.core, self._run_here, seal or SealConfig(), SystemClock(), tell)
        self.administration.reading.sealer = self.sealer
        self._subscriptions: dict[int, list[Subscription]] = {}
        self._polls: dict[int, list[Callable[[], None]]] = {}
        self._planned: set[int] = set()
        self._turns: dict[int, int] = {}  # of each group: how many were pushed, so that the rest goes round
        self._keeper = self._loop.call_later(MEMBER_SILENCE_NS / 3e9, self._keep_members)

    # -- publish and settle ------------------------------------------------------------------------------------------

    async def publish(self, namespace: str, topic: str, partition: int, batch: Batch) -> list[Part]:
        parts: list[Part] = await self.host.run(lambda: self.broker.publish(namespace, topic, partition, batch))
        return parts

    def publish_then(self, namespace: str, topic: str, partition: int, batch: Batch, callback: Callback) -> None:
        self.host.then(lambda: self.broker.publish(namespace, topic, partition, batch), callback)

    async def settle(self, namespace: str, topic: str, group: str, order: Settle) -> Settled:
        settled: Settled = await self.host.run(lambda: self.broker.settle(namespace, topic, group, order))
        return settled

    def settle_then(self, namespace: str, topic: str, group: str, order: Settle, callback: Callback) -> None:
        self.host.then(lambda: self.broker.settle(namespace, topic, group, order), callback)

    async def call(self, method: str, arguments: Mapping[str, Any]) -> Any:
        result = await self._through(lambda: self.administration.call(method, arguments))
        if method == "topic.delete":
            self._ready({*self._subscriptions, *self._polls})  # some of their groups are gone
        return result

    async def topic_of(self, namespace: str, message_id: int) -> str | None:
        """The topic of a message; sealed files are looked into where they hold nobody up."""
        topic: str | None = await self._through(lambda: self.administration.tracing.topic_of(message_id, namespace))
        return topic

    async def _through(self, operation: Callable[[], Done]) -> Any:
        """Do an operation, and what it leaves to be done in portions, to its end."""
        result = await self.host.run(operation)
        while isinstance(result, Portions):
            if result.aside is not None:
                await self._loop.run_in_executor(None, result.run_aside)
            await asyncio.sleep(result.wait_ns / 1e9)  # of zero: the others have their turn
            result = await self.host.run(result.step)
        return result

    # -- pull --------------------------------------------------------------------------------------------------------

    async def lease(
        self,
        namespace: str,
        topic: str,
        group: str,
        consumer: str,
        most: int,
        wait_ns: int = 0,
        lease_ns: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> list[LeasedBatch]:
        """Lease up to ``most`` messages, waiting up to ``wait_ns`` for the first."""
        gid = await self.host.run(lambda: Done(self.broker.group(namespace, topic, group, options).gid, 0))
        return await self.lease_by_gid(gid, consumer, most, wait_ns, lease_ns)

    async def lease_by_gid(
        self, gid: int, consumer: str, most: int, wait_ns: int, lease_ns: int | None
    ) -> list[LeasedBatch]:
        deadline = self._loop.time() + wait_ns / 1e9
        while True:
            leased: list[LeasedBatch] = await self.host.run(
                lambda: self.broker.lease_from(self.group_of(gid), consumer, most, lease_ns)
            )
            left = deadline - self._loop.time()
            if leased or left <= 0:
                return leased
            poll: asyncio.Future[None] = self._loop.create_future()
            wake = partial(_wake, poll)
            self.wait_for_ready(gid, wake)
            self.pace(self.group_of(gid))
            try:
                await asyncio.wait_for(poll, left)
            except TimeoutError:
                return []
            finally:
                self.wait_no_more(gid, wake)

    def lease_then(
        self,
        namespace: str,
        topic: str,
        group: str,
        consumer: str,
        most: int,
        callback: Callback,
        *,
        wait_ns: int = 0,
        lease_ns: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Pull | None:
        """``lease`` with a callback. A pull that has to wait is returned, so that it can be cancelled."""
        pull = Pull(self, namespace, consumer, most, lease_ns, callback)

        def lease() -> Done:
            pull.gid = self.broker.group(namespace, topic, group, options).gid
            return self.broker.lease_from(self.group_of(pull.gid), consumer, most, lease_ns)

        if wait_ns > 0:
            pull.deadline = self._loop.time() + wait_ns / 1e9
        self.host.then(lease, pull.got)
        return None if pull.over else pull

    def wait_for_ready(self, gid: int, wake: Callable[[], None]) -> None:
        """Call ``wake`` once, when the group may have something ready."""
        self._polls.setdefault(gid, []).append(wake)

    def wait_no_more(self, gid: int, wake: Callable[[], None]) -> None:
        polls = self._polls.get(gid)
        if polls is not None and wake in polls:
            polls.remove(wake)

    def group_of(self, gid: int) -> Group:
        group = self.core.state.groups.get(gid)
        if group is None:
            raise UnknownGroup("the group was deleted")
        return group

    def _hungry(self, gid: int) -> int:
        """How many ask for messages of a group now."""
        waiting = len(self._polls.get(gid, ()))
        return waiting + sum(each.credit_left > 0 for each in self._subscriptions.get(gid, ()))

    def _keep_members(self) -> None:
        """Who is connected is a member, however quiet."""
        self._keeper = self._loop.call_later(MEMBER_SILENCE_NS / 3e9, self._keep_members)
        for gid, subscriptions in self._subscriptions.items():
            if gid in self.core.state.groups:
                for subscription in subscriptions:
                    self.host.then(partial(self.broker.execute, Join(gid, subscription.consumer)), _nothing)

    # -- push --------------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        namespace: str,
        topic: str,
        group: str,
        consumer: str,
        *,
        deliver: Deliver,
        lease_ns: int | None = None,
        options: Mapping[str, Any] | None = None,
        on_end: Callable[[HeadraceError], None] | None = None,
        held: Sequence[Run] | None = None,
    ) -> Subscription:
        """Join a group; messages come to ``deliver`` once there is credit. Raises what cannot be done. ``held``: of a
        consumer that comes back, see ``Broker.take_back``."""
        if self.host.failure is not None:
            raise self.host.failure
        gid = self.broker.join(namespace, topic, group, consumer, options, lease_ns).reply
        if held is not None:
            self.host.then(lambda: self.broker.take_back(self.group_of(gid), consumer, held), _nothing)
        self.host.then(lambda: Done(None, self.core.journal.end_position), _nothing)
        subscription = Subscription(self, gid, consumer, deliver, lease_ns, on_end)
        self._subscriptions.setdefault(gid, []).append(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription, *, clean: bool) -> None:
        others = self._subscriptions.get(subscription.gid, [])
        if subscription in others:
            others.remove(subscription)
        if any(other.consumer == subscription.consumer for other in others):
            return  # the same consumer on another connection goes on
        if subscription.gid in self.core.state.groups:
            self.host.then(
                lambda: self.broker.leave(subscription.gid, subscription.consumer, clean=clean),
                _nothing,
            )

    def plan(self, gid: int) -> None:
        """Look at a group's subscriptions at the end of this round of the loop."""
        if not self._planned:
            self._loop.call_soon(self._dispatch_planned)
        self._planned.add(gid)

    def _ready(self, gids: set[int]) -> None:
        for gid in gids:
            if gid in self._subscriptions:
                self.plan(gid)
            polls = self._polls.pop(gid, None)
            if polls is not None:
                for wake in polls:
                    wake()

    def _dispatch_planned(self) -> None:
        planned, self._planned = self._planned, set()
        for gid in planned:
            subscriptions = self._subscriptions.get(gid)
            if subscriptions:
                self._dispatch(gid, subscriptions)

    def _dispatch(self, gid: int, subscriptions: list[Subscription]) -> None:
        group = self.core.state.groups.get(gid)
        if group is None:
            del self._subscriptions[gid]
            self._turns.pop(gid, None)
            for subscription in subscriptions:
                subscription.end(UnknownGroup("the group was deleted"))
            return
        hungry = {s.consumer: s for s in subscriptions if s.credit_left > 0}
        if not hungry:
            return
        turn = self._turns.get(gid, 0)
        if len(hungry) == 1 or group.policy.fifo:
            shares = {name: s.credit_left for name, s in hungry.items()}
        else:
            ready = sum(backlog.ready_count for backlog in group.backlogs.values())
            room = {name: s.credit_left for name, s in hungry.items()}
            shares = share_credit(room, ready, group.policy.push, turn, self._busy(group))
        more = False
        for name, share in shares.items():
            subscription = hungry[name]
            if subscription.closed:
                continue
            taken = self._push(group, subscription, min(share, PREFETCH_MAX))
            turn += taken
            more = more or (taken > 0 and subscription.credit_left > 0)
        self._turns[gid] = turn
        if more:
            self.plan(gid)
        else:
            self.pace(group)

    def _busy(self, group: Group) -> dict[str, int]:
        busy: dict[str, int] = {}
        if group.policy.push == "least_busy":
            for backlog in group.backlogs.values():
                for lease in backlog.leases.values():
                    busy[lease.consumer] = busy.get(lease.consumer, 0) + lease.count
        return busy

    def _push(self, group: Group, subscription: Subscription, most: int) -> int:
        taken = 0

        def lease() -> Done:
            nonlocal taken
            done = self.broker.lease_from(group, subscription.consumer, most, subscription.lease_ns)
            taken = sum(leased.batch.count for leased in done.reply)
            return done

        def deliver(leased: Any) -> None:
            if isinstance(leased, InvalidArgument):
                subscription.close()  # its lease is above what the group's may be by now: it would wait for ever
                subscription.end(leased)
            elif isinstance(leased, HeadraceError):
                subscription.credit_left += taken
            elif leased:
                subscription.deliver(leased)

        self.host.then(lease, deliver)
        subscription.credit_left -= taken
        return taken

    def give_back(self, gid: int, namespace: str, leased: Sequence[LeasedBatch]) -> None:
        """Release what was leased for somebody who is gone."""
        runs = [
            Run(one.partition, one.lease_id, first, count)
            for one in leased
            for first, count in runs_within(one.batch.offsets())
        ]
        self.host.then(
            lambda: self.broker.settle_in(self.group_of(gid), namespace, Settle(release=runs)),
            _nothing,
        )

    def time(self) -> float:
        """The loop's clock."""
        return self._loop.time()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def call_at(self, when: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_at(when, callback)

    def pace(self, group: Group) -> None:
        """A group under a rate limit becomes able to hand out more by time alone."""
        wait_ns = group.wait_ns(self.core.clock.now_ns())
        if wait_ns:
            self._loop.call_later(wait_ns / 1e9, self._ready, {group.gid})

    # -- the end -----------------------------------------------------------------------------------------------------

    def _run_here(self, operation: Callable[[], Done]) -> Any:
        """Called in another thread: do it in the loop, and wait until it is durable."""
        return asyncio.run_coroutine_threadsafe(self.host.run(operation), self._loop).result()

    async def close(self) -> None:
        """Give back what is leased by push, make everything durable, let go of the journal."""
        for subscriptions in list(self._subscriptions.values()):
            for subscription in list(subscriptions):
                subscription.close()
        self._keeper.cancel()
        await self._loop.run_in_executor(None, self.broker.alerts.close)
        await self._loop.run_in_executor(None, self.sealer.stop)
        await self.host.close()


def _wake(poll: asyncio.Future[None]) -> None:
    if not poll.done():
        poll.set_result(None)


def _nothing(_: Any) -> None:
    """For a reply nobody waits for."""


# -- embedded ----------------------------------------------------------------------------------------------------------


async def open_async_port(
    path: str | Path,
    *,
    node_id: int = 1,
    topic_defaults: TopicConfig | None = None,
    auto_create: bool = True,
    seal: SealConfig | None = None,
) -> AsyncEmbeddedPort:
    """Open a data directory for the tasks of this event loop."""
    loop = asyncio.get_running_loop()
    core: Core = await loop.run_in_executor(
        None, lambda: open_core(path, clock=SystemClock(), node_id=node_id, seal=seal)
    )
    broker = LoopBroker(Broker(core, topic_defaults=topic_defaults, auto_create=auto_create), seal=seal)
    broker.sealer.start()
    return AsyncEmbeddedPort(broker)


class AsyncEmbeddedPort:
    """The broker as the tasks of its own loop see it."""

    def __init__(self, broker: LoopBroker) -> None:
        self.broker = broker
        self.now_ns = broker.core.clock.now_ns
        """The broker's own time, which deadlines are in."""

    async def publish(self, namespace: str, topic: str, partition: int, batch: Batch) -> list[Part]:
        return await self.broker.publish(namespace, topic, partition, batch)

    async def consumer(
        self,
        namespace: str,
        topic: str,
        group: str,
        *,
        consumer: str,
        lease_ns: int | None = None,
        prefetch: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> AsyncEmbeddedConsumer:
        names = self.broker.broker
        gid = await self.broker.host.run(lambda: names.join(namespace, topic, group, consumer, options, lease_ns))
        return AsyncEmbeddedConsumer(self.broker, namespace, gid, consumer, lease_ns)

    async def settle(self, namespace: str, topic: str, group: str, order: Settle) -> Settled:
        return await self.broker.settle(namespace, topic, group, order)

    async def call(self, method: str, **arguments: Any) -> Any:
        return await self.broker.call(method, arguments)

    async def close(self) -> None:
        await self.broker.close()


class AsyncEmbeddedConsumer:
    """A consumer that leases when it is asked."""

    life = 0
    """Nothing comes between a consumer and a broker in one process."""

    def __init__(self, broker: LoopBroker, namespace: str, gid: int, consumer: str, lease_ns: int | None) -> None:
        self._broker = broker
        self._namespace = namespace
        self._gid = gid
        self._consumer = consumer
        self._lease_ns = lease_ns
        self._unconfirmed = 0
        self._confirmed = asyncio.Event()
        self._refusal: HeadraceError | None = None
        self._closed = False

    @property
    def auto_ack(self) -> bool:
        group = self._broker.core.state.groups.get(self._gid)
        return group is not None and group.policy.auto_ack

    async def receive(self, most: int, wait_ns: int) -> list[LeasedBatch]:
        if self._closed:
            raise Closed("the consumer is closed")
        most = min(most, PREFETCH_MAX)
        return await self._broker.lease_by_gid(self._gid, self._consumer, most, wait_ns, self._lease_ns)

    def _settle(self, order: Settle) -> Callable[[], Done]:
        names = self._broker.broker

        def settle() -> Done:
            group = names.core.state.groups.get(self._gid)
            if group is None:
                raise UnknownGroup("the group was deleted")
            return names.settle_in(group, self._namespace, order)

        return settle

    async def settle(self, order: Settle) -> Settled:
        settled: Settled = await self._broker.host.run(self._settle(order))
        return settled

    def settle_soon(self, order: Settle) -> None:
        self._unconfirmed += 1
        self._confirmed.clear()
        self._broker.host.then(self._settle(order), self._settled_soon)

    def _settled_soon(self, reply: Any) -> None:
        self._unconfirmed -= 1
        if isinstance(reply, HeadraceError):
            self._refusal = self._refusal or reply
        else:
            for refusal in reply.refused:
                self._refusal = self._refusal or from_code(refusal.code, refusal.message)
        if not self._unconfirmed:
            self._confirmed.set()

    def tend(self, order: Settle, tended: Tended) -> None:
        self._broker.host.then(
            self._settle(order),
            lambda reply: tended(
                None if isinstance(reply, HeadraceError) else [refusal.run for refusal in reply.refused]
            ),
        )

    def tell_held(self, held: Callable[[], Sequence[Run]]) -> None:
        """A broker in this process is not started anew behind a consumer's back."""

    async def flush(self) -> None:
        while self._unconfirmed:
            await self._confirmed.wait()
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await self.flush()
        finally:
            names = self._broker.broker
            if self._gid in names.core.state.groups:
                await self._broker.host.run(lambda: names.leave(self._gid, self._consumer))
