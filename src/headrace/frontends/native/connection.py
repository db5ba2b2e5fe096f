"""One native connection: feeds its session, carries out what it says, and keeps everything bounded.

    bytes ──► session.receive_bytes ──► events ──► broker calls ──► callbacks ──► session.send_… ──► one write a round

The rules:

- Answers are written once a round of the loop, whatever number of requests a commit answered (``touch``).
- A peer that does not read: above WRITE_BYTES_HIGH it is not read either and gets no pushes; its silence is then its
  own, and the session's heartbeat ends it unless the bytes at least trickle out.
- While the disk is behind (the host is ``busy``) nothing is read: publishers slow down, and nobody is refused.
- Requests that can bring much (pulls, calls) are started while there is room for what they may bring, and wait
  in line otherwise; publishes and settles bring little and are started at once, up to the session's limits.
- A frame that has begun is kept until it is whole: what all connections keep that way is counted by the door.
- A fault of ours ends the request it came up in, with an answer (`_fail`); the connection and its other requests go on.
- When the connection ends, whoever consumed through it leaves, and its leases are given back at once: uncounted after
  a CLOSE, as spent attempts when it broke, so that a message that kills its consumers does not go round for ever.

Time is the session's: one timer, armed for its ``next_due_ns`` and re-armed when it fires, not at every byte.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from headrace import errors, limits
from headrace.batch import HIGHEST_LIMITS, Batch
from headrace.calls import LeasedBatch, Part, Settle, Settled
from headrace.diagnostics import logger
from headrace.frontends.access import Principal, guard, guard_call
from headrace.frontends.leased import delivered_runs, mean_bytes, released, within
from headrace.frontends.native.push import Push
from headrace.frontends.native.translate import (
    GroupName,
    Order,
    held_of,
    orders_of,
    published,
    published_effects,
    refusals_of,
)
from headrace.names import DEFAULT_GROUP, DEFAULT_NAMESPACE
from headrace.shard import Done
from headrace.wire import native

if TYPE_CHECKING:
    from headrace.broker.aio import Pull
    from headrace.frontends.native.door import NativeDoor

__all__ = ["NativeConnection"]

_FRAME_MARGIN_BYTES: Final = 64 * limits.KIB
_INTERNAL: Final = "an internal error ended this request, and whether it happened is unknown; see the server's log"
_log = logger("native")


class NativeConnection(asyncio.Protocol):
    """See the head of this file."""

    __slots__ = (
        "_broker",
        "_calls",
        "_clean",
        "_door",
        "_entered",
        "_flush_planned",
        "_lease_bytes",
        "_line",
        "_loop",
        "_pulled",
        "_pulled_bytes",
        "_pulls",
        "_pumps",
        "_pushed_bytes",
        "_reading",
        "_starting",
        "_tasks",
        "_timer",
        "_timer_ns",
        "_transport",
        "_unsent_bytes",
        "_waits_for_disk",
        "_writing_paused",
        "namespace",
        "peer",
        "principal",
        "pushes",
        "session",
    )

    def __init__(self, door: NativeDoor) -> None:
        self._door = door
        self._loop = door.loop
        self._broker = door.site.broker
        self._transport: asyncio.Transport = None  # type: ignore[assignment] # set before anything else happens
        self.session = native.ServerSession(door.bounds, now_ns=door.now_ns())
        self.namespace = DEFAULT_NAMESPACE
        self.principal: Principal | None = None
        self.peer = ""
        self.pushes: dict[int, Push] | None = None
        self._pulled: set[tuple[str, str, str, str]] | None = None  # groups joined by pulls by name, with the consumer
        self._pulled_bytes = limits.LEASE_BYTES_DEFAULT // limits.PUSH_PORTION_MESSAGES  # of one message, as last seen
        self._pulls: set[Pull] | None = None
        self._pumps: list[Push] | None = None
        self._line: deque[tuple[int, Callable[[], bool]]] | None = None  # by correlation
        self._tasks: set[asyncio.Task[None]] | None = None
        self._lease_bytes = 0
        self._pushed_bytes = 0  # since the last write
        self._calls = 0
        self._unsent_bytes = 0
        self._flush_planned = False
        self._starting = False
        self._reading = True
        self._writing_paused = False
        self._waits_for_disk = False
        self._clean = False  # the end was announced, by either side
        self._entered = False  # counts as one of its namespace's connections
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    # -- the transport -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # not an instance of it under uvloop
        self._transport = transport
        transport.set_write_buffer_limits(limits.WRITE_BYTES_HIGH, limits.WRITE_BYTES_LOW)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "local"
        refusal = self._door.admit(self)
        if refusal is not None:
            self.session.send_close(refusal)
        self._after()

    def data_received(self, data: bytes) -> None:
        session = self.session
        before = session.buffered_bytes
        session.receive_bytes(data, self._door.now_ns())
        if before or session.buffered_bytes:
            self._door.begun(self, session.buffered_bytes)
        host = self._broker.host
        if len(self._door.connections) == 1:  # nobody else can join its commit: it need not wait for the round to end
            host.gather()
            try:
                self._react()
            finally:
                host.commit_gathered()
        else:
            self._react()
        if host.busy and not self._waits_for_disk:
            self._waits_for_disk = True
            self._govern_reading()
            host.when_eased(self._disk_eased)

    def _disk_eased(self) -> None:
        self._waits_for_disk = False
        if not self._transport.is_closing():
            self.session.receive_bytes(b"", self._door.now_ns())  # its silence was ours
            self._govern_reading()
            self._after()

    def eof_received(self) -> bool:
        self.session.receive_eof(self._door.now_ns())
        self._react()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.session.receive_eof(self._door.now_ns())
        self.session.events()
        if self._timer is not None:
            self._timer.cancel()
        self._leave()
        self._door.begun(self, 0)
        self._door.gone(self)

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self._govern_reading()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self.session.receive_bytes(b"", self._door.now_ns())  # it has read: a sign of life
        self._govern_reading()
        self._start_waiting()
        for push in list(self.pushes.values()) if self.pushes else ():
            push.pump()
        self._after()

    # -- rounds --------------------------------------------------------------------------------------------------------

    def _react(self) -> None:
        for event in self.session.events():
            handler = _HANDLERS[type(event)]
            try:
                handler(self, event)
            except errors.HeadraceError as error:
                correlation = getattr(event, "correlation", 0)
                if correlation:
                    self.session.send_error(correlation, error)
            except Exception as error:  # noqa: BLE001 - one request must not take the others down
                self._fail(getattr(event, "correlation", 0), error)
        self._after()

    def touch(self) -> None:
        """There may be something to write: do it once for all that this round, or this commit, answers."""
        if not self._flush_planned:
            self._flush_planned = True
            self._broker.host.afterwards(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        if self._pushed_bytes >= limits.WRITE_BYTES_HIGH:
            self._after()  # what the pumps below may send depends on how much of this is taken
        if self._pumps:
            pumps, self._pumps = self._pumps, None
            for push in pumps:
                push.pump()
        self._after()

    def _after(self) -> None:
        """After anything that the session was told: write, stop or go on reading, be woken in time, close."""
        session, transport = self.session, self._transport
        buffers = session.outgoing()
        self._pushed_bytes = 0
        if buffers and not transport.is_closing():
            if len(buffers) == 1:
                transport.write(buffers[0])
            elif sum(map(len, buffers)) <= limits.COALESCE_BYTES_MAX:
                transport.write(b"".join(buffers))
            else:
                transport.writelines(buffers)
        if session.close_planned is not None:
            self._end()
            return
        if session.reading_paused is self._reading:
            self._govern_reading()
        if self._timer is None or session.due_earlier:
            due_ns = session.next_due_ns()
            session.due_earlier = False
            if due_ns is not None and (self._timer is None or due_ns < self._timer_ns):
                self._arm(due_ns)

    def _govern_reading(self) -> None:
        reading = not (self._writing_paused or self._waits_for_disk or self.session.reading_paused)
        if reading is self._reading or self._transport.is_closing():
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _arm(self, due_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = due_ns
        self._timer = self._loop.call_later(max(0, due_ns - self._door.now_ns()) / 1e9, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now_ns = self._door.now_ns()
        if self._writing_paused:
            unsent_bytes = self._transport.get_write_buffer_size()
            if unsent_bytes < self._unsent_bytes:
                self.session.receive_bytes(b"", now_ns)  # it reads, slowly
            self._unsent_bytes = unsent_bytes
        if self._waits_for_disk:
            self.session.receive_bytes(b"", now_ns)
        self.session.on_due(now_ns)
        self._react()

    def _end(self) -> None:
        """The session is over: leave the groups, let the last bytes out, cut."""
        self.session.events()
        self._leave()
        if self._transport.is_closing():
            return
        if self._timer is not None:
            self._timer.cancel()
        if self._transport.get_write_buffer_size():
            self._timer = self._loop.call_later(limits.CLOSE_FLUSH_NS / 1e9, self._transport.abort)
        self._transport.close()

    def cut(self) -> None:
        """End the socket now, whatever is unsent."""
        self._transport.abort()

    def _leave(self) -> None:
        if self._entered:
            self._entered = False
            self._broker.broker.quotas.leave(self.namespace)
        pushes, self.pushes = self.pushes, None
        for push in pushes.values() if pushes else ():
            if push.source is not None:
                push.source.close(clean=self._clean)
        pulled, self._pulled = self._pulled, None
        for member in pulled or ():
            self._door.puller_gone(member, clean=self._clean)
        self._line = None
        pulls, self._pulls = self._pulls, None
        for pull in pulls or ():
            pull.cancel()
        for task in list(self._tasks or ()):
            task.cancel()

    # -- opening -------------------------------------------------------------------------------------------------------

    def _on_hello(self, packet: native.Hello) -> None:
        body = packet.body
        site = self._door.site
        namespace = body.namespace or site.namespace
        try:
            if site.authenticate is not None:
                self.principal = site.authenticate(body.token, namespace)
            self._broker.broker.quotas.enter(namespace)
            self._entered = True
            self.namespace = namespace
        except errors.HeadraceError as error:
            _log.info("refused", peer=self.peer, client=body.client, reason=error.message)
            self.session.send_close(error)
            return
        self.session.send_welcome(
            server=self._door.product,
            server_id=self._door.server_id,
            namespace=namespace,
            wall_ns=site.clock.wall_ns(),
        )
        if self._door.draining_ns is not None:
            self.go_away(self._door.draining_ns)

    def _on_closed(self, event: native.Closed) -> None:
        self._clean = event.by == "peer" or isinstance(event.error, errors.Draining)
        if event.error is not None and event.by == "us":
            _log.info("closed a connection", peer=self.peer, code=event.error.code, reason=event.error.message)

    # -- publishing ----------------------------------------------------------------------------------------------------

    def _on_publish(self, packet: native.Publish) -> None:
        namespace = packet.namespace or self.namespace
        guard(self.principal, "publish", namespace, packet.topic)
        batch = Batch.decode(packet.batch, limits=HIGHEST_LIMITS)  # type: ignore[arg-type] # received: one buffer
        correlation, count = packet.correlation, batch.count

        def answer(reply: list[Part] | errors.HeadraceError) -> None:
            session = self.session
            if isinstance(reply, errors.HeadraceError):
                session.send_error(correlation, reply)
            elif len(reply) == 1 and not reply[0].duplicates:
                part = reply[0]
                session.send_published_run(correlation, part.partition, count, part.base_offset, part.base_id)
            else:
                session.send_published(correlation, count, *published(count, reply))
            self.touch()

        self._broker.publish_then(namespace, packet.topic, packet.partition, batch, answer)

    # -- consuming -----------------------------------------------------------------------------------------------------

    def _on_consume(self, packet: native.Consume) -> None:
        scope = packet.scope
        group = (scope.namespace or self.namespace, scope.topic, scope.group)
        guard(self.principal, "consume", group[0], group[1])
        options = native.unpack(packet.options, dict[str, Any])
        held = held_of(options.pop("held", None))
        push = Push(self, packet.correlation, group, scope.consumer or self.peer)
        lease_ns = packet.lease_ns or None
        push.source = self._broker.subscribe(
            *group,
            push.consumer,
            deliver=push.deliver,
            lease_ns=lease_ns,
            options=options,
            on_end=lambda error: self.end_push(push, error),
            held=held,
        )
        if self.pushes is None:
            self.pushes = {}
        self.pushes[push.number] = push
        policy = self._broker.broker.find_group(*group).policy
        granted = lease_ns or policy.lease_ns, native.pack({"auto_ack": True}) if policy.auto_ack else b""
        journal = self._broker.core.journal
        self._broker.host.then(lambda: Done(granted, journal.end_position), lambda reply: self._subscribed(push, reply))

    def _subscribed(self, push: Push, reply: tuple[int, bytes] | errors.HeadraceError) -> None:
        """A group that was made for it is durable."""
        if isinstance(reply, errors.HeadraceError):
            self._drop_push(push)
            self.session.send_error(push.number, reply)
        elif self.session.send_subscribed(push.number, *reply):
            self.pump_soon(push)
        self.touch()

    def _drop_push(self, push: Push) -> None:
        if self.pushes and self.pushes.pop(push.number, None) is not None and push.source is not None:
            push.source.close()

    def _on_credit(self, packet: native.Credit) -> None:
        push = self.pushes.get(packet.subscription) if self.pushes else None
        if push is None:
            return
        if packet.withdraw:
            push.withdraw()
        else:
            push.pump()

    def _on_unsubscribe(self, packet: native.Unsubscribe) -> None:
        push = self.pushes.pop(packet.subscription, None) if self.pushes else None
        if push is not None and push.source is not None:
            push.source.close()
        self.session.send_ended(packet.subscription, packet.correlation)

    @property
    def may_push(self) -> bool:
        paused = self._writing_paused or self._pushed_bytes >= limits.WRITE_BYTES_HIGH
        return not paused and self.session.state is native.State.OPEN

    def pushed(self, size_bytes: int) -> None:
        """So much more goes with the next write."""
        self._pushed_bytes += size_bytes

    def pump_soon(self, push: Push) -> None:
        if self._pumps is None:
            self._pumps = [push]
        else:
            self._pumps.append(push)
        self.touch()

    def span_until(self, deadline_ns: int) -> int:
        return max(0, deadline_ns - self._broker.core.clock.now_ns())

    def give_back(self, group: GroupName, leased: Sequence[LeasedBatch]) -> None:
        """Release what was leased and could not be sent."""
        runs = released(leased)
        if runs:
            self._broker.settle_then(*group, Settle(release=runs), _ignore)

    def end_push(self, push: Push, error: errors.HeadraceError) -> None:
        """The server ends a subscription."""
        self._drop_push(push)
        self.session.send_ended(push.number, 0, error)
        self.touch()

    # -- pulling -------------------------------------------------------------------------------------------------------

    def _on_lease(self, packet: native.Lease) -> None:
        scope = packet.scope
        if isinstance(scope, int):
            push = self.pushes.get(scope) if self.pushes else None
            if push is None:
                raise errors.InvalidArgument(f"LEASE names subscription {scope}, which is not open on this connection")
            group, consumer = push.group, push.consumer
        else:
            group, consumer = (scope.namespace or self.namespace, scope.topic, scope.group), scope.consumer or self.peer
            guard(self.principal, "consume", group[0], group[1])
        most_bytes = self.session.peer_frame_bytes_max - _FRAME_MARGIN_BYTES
        bytes_max = min(packet.bytes_max or limits.LEASE_BYTES_DEFAULT, most_bytes)
        self._start_or_wait(packet.correlation, lambda: self._lease(packet, group, consumer, bytes_max))

    def _lease(self, packet: native.Lease, group: GroupName, consumer: str, bytes_max: int) -> bool:
        """Start a pull, if there is room for what it may bring."""
        if self._lease_bytes and self._lease_bytes + bytes_max > limits.LEASES_BYTES_MAX:
            return False
        self._lease_bytes += bytes_max
        if not isinstance(packet.scope, int):
            member = (*group, consumer)
            if self._pulled is None:
                self._pulled = set()
            if member not in self._pulled:
                self._pulled.add(member)
                self._door.puller_came(member)
        pulling = _Pulling(self, packet, group, bytes_max)
        try:
            pull = self._broker.lease_then(
                *group,
                consumer,
                min(packet.messages_max, max(1, bytes_max // self._pulled_bytes)),
                pulling.answer,
                wait_ns=min(packet.wait_ns, limits.WAIT_NS_MAX),
                lease_ns=packet.lease_ns or None,
            )
        except Exception:
            if not pulling.answered:
                self._lease_bytes -= bytes_max
            raise
        if pull is not None:
            pulling.pull = pull
            if self._pulls is None:
                self._pulls = set()
            self._pulls.add(pull)
        return True

    def pulled(self, pulling: _Pulling, packet: native.Lease, group: GroupName, reply: Any, bytes_max: int) -> None:
        """What a pull brought, in the order in which it was leased."""
        session, correlation = self.session, packet.correlation
        self._lease_bytes -= bytes_max
        if self._pulls and pulling.pull is not None:
            self._pulls.discard(pulling.pull)
        if isinstance(reply, errors.HeadraceError):
            session.send_error(correlation, reply)
        else:
            leased, surplus = within(reply, bytes_max)
            self.give_back(group, surplus)
            if leased:
                self._pulled_bytes = mean_bytes(leased)
            runs = [run for one in leased for run in delivered_runs(one)]
            lease_ns = self.span_until(min(one.deadline_ns for one in leased)) if leased else 0
            subscription = packet.scope if isinstance(packet.scope, int) else 0
            batches = [one.batch.buffers() for one in leased]
            try:
                if not session.send_leased(correlation, runs, batches, lease_ns, subscription=subscription):
                    self.give_back(group, leased)
            except errors.HeadraceError as error:
                self.give_back(group, leased)
                session.send_error(correlation, error)
        self._start_waiting()
        self.touch()

    # -- settling ------------------------------------------------------------------------------------------------------

    def _on_settle(self, packet: native.Settle) -> None:
        names = {number: push.group for number, push in self.pushes.items()} if self.pushes else {}
        orders, lost = orders_of(packet.actions, names, self.namespace)
        for namespace, topic, _ in orders:
            guard(self.principal, "consume", namespace, topic)
        if packet.effects or packet.atomic:
            self._settle_atomically(packet, orders, lost)
            return
        refusals = lost.all_lost() if lost is not None else []
        if len(orders) == 1:
            ((group, order),) = orders.items()
            self._broker.settle_then(*group, order.settle(), _Settling(self, packet.correlation, order, refusals))
        elif not orders:
            self.session.send_settled(packet.correlation, refusals)
        else:
            self._task(packet.correlation, self._settle_each(packet.correlation, orders, refusals))

    async def _settle_each(
        self, correlation: int, orders: dict[GroupName, Order], refusals: list[native.Refusal]
    ) -> None:
        """Several groups, one order each; an order that is refused as a whole refuses each of its receipts."""
        tasks = [self._broker.settle(*group, order.settle()) for group, order in orders.items()]
        for reply, order in zip(await asyncio.gather(*tasks, return_exceptions=True), orders.values(), strict=True):
            if isinstance(reply, errors.HeadraceError):
                code = native.number_of(reply)
                refusals += [(index, code, *run) for index, runs in order.actions for run in runs]
            elif isinstance(reply, BaseException):
                raise reply
            else:
                refusals += refusals_of(order, reply.refused)
        self.session.send_settled(correlation, refusals)
        self.touch()

    def _settle_atomically(self, packet: native.Settle, orders: dict[GroupName, Order], lost: Order | None) -> None:
        if lost is not None:
            raise errors.LeaseLost("a subscription this settle names has ended, and with it its leases")
        if not orders and packet.effects:
            first = packet.effects[0]  # nothing is settled: any group will do to do the rest under
            orders = {(first.namespace or self.namespace, first.topic, DEFAULT_GROUP): Order()}
        if len(orders) != 1:
            raise errors.InvalidArgument(f"an atomic settle is about one group; this one names {len(orders)}")
        ((group, order),) = orders.items()
        for effect in packet.effects:
            namespace = effect.namespace or self.namespace
            if namespace != group[0]:
                raise errors.InvalidArgument(
                    f"an atomic settle stays in one namespace: the group is in {group[0]!r}, an effect in {namespace!r}"
                )
            guard(
                self.principal,
                "publish" if isinstance(effect, native.PublishEffect) else "consume",
                namespace,
                effect.topic,
            )
        settle = order.settle(packet.effects)
        counts = [batch.count for _, _, batch in settle.publish]
        self._broker.settle_then(*group, settle, _Settling(self, packet.correlation, order, [], counts, atomic=True))

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _on_call(self, packet: native.Call) -> None:
        arguments = native.unpack(packet.arguments, dict[str, Any])
        method = packet.method
        arguments = {"namespace": self.namespace, **arguments}
        attachments = [bytes(attachment) for attachment in packet.attachments]
        if attachments:
            arguments["attachments"] = attachments
        self._start_or_wait(packet.correlation, lambda: self._call(packet.correlation, method, arguments))

    def _call(self, correlation: int, method: str, arguments: dict[str, Any]) -> bool:
        if self._calls >= limits.CALLS_MAX:
            return False
        self._calls += 1
        self._task(correlation, self._run_call(correlation, method, arguments))
        return True

    async def _run_call(self, correlation: int, method: str, arguments: dict[str, Any]) -> None:
        try:
            await guard_call(self.principal, method, arguments, self._broker.topic_of)
            reply = await self._broker.call(method, arguments)
            batches: Sequence[Batch] = ()
            if isinstance(reply, tuple):
                reply, batches = reply
            self.session.send_result(correlation, native.pack(reply), [batch.to_bytes() for batch in batches])
        except errors.HeadraceError as error:
            self.session.send_error(correlation, error)
        finally:
            self._calls -= 1
            self._start_waiting()
            self.touch()

    # -- requests that wait for room -----------------------------------------------------------------------------------

    def _start_or_wait(self, correlation: int, start: Callable[[], bool]) -> None:
        if self._line or self._writing_paused or not self._started(correlation, start):
            if self._line is None:
                self._line = deque()
            self._line.append((correlation, start))

    def _start_waiting(self) -> None:
        if self._starting:
            return  # what was just started was answered at once; the loop below goes on
        self._starting = True
        try:
            line = self._line
            while line and not self._writing_paused and self._started(*line[0]):
                line.popleft()
        finally:
            self._starting = False

    def _started(self, correlation: int, start: Callable[[], bool]) -> bool:
        """Start a request; False when there is no room for it yet. One that fails is answered, and waits no more."""
        try:
            return start()
        except errors.HeadraceError as error:
            self.session.send_error(correlation, error)
        except Exception as error:  # noqa: BLE001 - whoever made room is not who failed
            self._fail(correlation, error)
        return True

    def _task(self, correlation: int, work: Coroutine[Any, Any, None]) -> None:
        """Do what a request asks for beside the others."""
        task = self._loop.create_task(work)
        if self._tasks is None:
            self._tasks = set()
        self._tasks.add(task)
        task.add_done_callback(partial(self._task_ended, correlation))

    def _task_ended(self, correlation: int, task: asyncio.Task[None]) -> None:
        if self._tasks is not None:
            self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(correlation, error)
            self.touch()

    def _fail(self, correlation: int, error: BaseException) -> None:
        """A fault of ours, told to whoever runs the server. It ends the request it came up in; what belongs to no
        request, or comes up after the answer, leaves the connection in doubt and ends it."""
        _log.error("a request failed", peer=self.peer, exc_info=error)
        if correlation and self.session.waits(correlation):
            push = self.pushes.get(correlation) if self.pushes else None
            if push is not None:
                self._drop_push(push)
            self.session.send_error(correlation, errors.Closed(_INTERNAL))
        else:
            self.session.send_close(errors.Closed("an internal error ended this connection; see the server's log"))

    # -- the end -------------------------------------------------------------------------------------------------------

    def go_away(self, deadline_ns: int) -> None:
        """No new work; the client settles what it holds and closes."""
        if not self.session.send_goaway("the server is stopping", deadline_ns, self._door.now_ns()):
            self.session.send_close(errors.Draining("the server is stopping; connect again"))
        for push in self.pushes.values() if self.pushes else ():
            push.stop()
        self._after()

    def close(self, error: errors.HeadraceError | None) -> None:
        self.session.send_close(error)
        self._after()


class _Pulling:
    """The answer of one pull, when it comes."""

    __slots__ = ("_bytes_max", "_connection", "_group", "_packet", "answered", "pull")

    def __init__(self, connection: NativeConnection, packet: native.Lease, group: GroupName, bytes_max: int) -> None:
        self.pull: Pull | None = None
        self.answered = False
        self._connection = connection
        self._packet = packet
        self._group = group
        self._bytes_max = bytes_max

    def answer(self, reply: Any) -> None:
        self.answered = True
        self._connection.pulled(self, self._packet, self._group, reply, self._bytes_max)


class _Settling:
    """The answer of one settle, when it comes."""

    __slots__ = ("_atomic", "_connection", "_correlation", "_counts", "_order", "_refusals")

    def __init__(
        self,
        connection: NativeConnection,
        correlation: int,
        order: Order,
        refusals: list[native.Refusal],
        counts: Sequence[int] = (),
        *,
        atomic: bool = False,
    ) -> None:
        self._connection = connection
        self._correlation = correlation
        self._order = order
        self._refusals = refusals
        self._counts = counts
        self._atomic = atomic

    def __call__(self, reply: Settled | errors.HeadraceError) -> None:
        connection = self._connection
        if isinstance(reply, errors.HeadraceError):
            connection.session.send_error(self._correlation, reply)
        else:
            refusals = self._refusals
            if reply.refused:
                refusals = refusals + refusals_of(self._order, reply.refused)
            effects = published_effects(reply, self._counts) if self._counts else ()
            cancelled = reply.cancelled if self._atomic else None
            connection.session.send_settled(self._correlation, refusals, effects, cancelled)
        connection.touch()


def _ignore(_reply: Any) -> None:
    """What comes of a release nobody waits for."""


_HANDLERS: Final[dict[type, Callable[[NativeConnection, Any], None]]] = {
    native.Hello: NativeConnection._on_hello,
    native.Publish: NativeConnection._on_publish,
    native.Consume: NativeConnection._on_consume,
    native.Credit: NativeConnection._on_credit,
    native.Unsubscribe: NativeConnection._on_unsubscribe,
    native.Lease: NativeConnection._on_lease,
    native.Settle: NativeConnection._on_settle,
    native.Call: NativeConnection._on_call,
    native.Closed: NativeConnection._on_closed,
}
