"""A broker over the network, as tasks see it: the asyncio port of ``headrace.calls`` around a line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headrace.batch import Batch
from headrace.calls import LeasedBatch, Part, Run, Settle, Settled, Tended
from headrace.client.address import Address, parse_address
from headrace.client.arguments import Duration, span_ns
from headrace.client.asking import (
    Asking,
    count_of,
    parts_of,
    result_of,
    runs_settled,
    settled_of,
    tended_of,
)
from headrace.client.line import Line, Request
from headrace.client.steady import steady
from headrace.client.tls import Plain, Secured, client_context
from headrace.clock import Clock, SystemClock
from headrace.errors import Closed, HeadraceError, LeaseLost, TimedOut, from_code
from headrace.limits import (
    CLIENT_CONNECT_TIMEOUT_NS,
    CLIENT_GOODBYE_NS,
    CLIENT_OUTAGE_NS_MAX,
    CLIENT_RECONNECT_NS,
    CLIENT_RECONNECT_NS_MAX,
    SECOND_NS,
)

if TYPE_CHECKING:
    import ssl

__all__ = ["AsyncNetworkConsumer", "AsyncNetworkPort", "open_async_port"]


async def open_async_port(
    url: str,
    *,
    token: str | None = None,
    namespace: str | None = None,
    name: str = "",
    ca_file: str | Path | None = None,
    tls: ssl.SSLContext | None = None,
    connect_timeout: Duration | None = None,
    outage: Duration | None = None,
    clock: Clock | None = None,
) -> AsyncNetworkPort:
    """Connect; arguments as ``headrace.client.port.open_port``."""
    address = parse_address(url, namespace=namespace, token=token)
    timeout_ns = CLIENT_CONNECT_TIMEOUT_NS if connect_timeout is None else span_ns("connect_timeout", connect_timeout)
    outage_ns = CLIENT_OUTAGE_NS_MAX if outage is None else span_ns("outage", outage)
    context = (tls or client_context(ca_file)) if address.tls or tls is not None or ca_file is not None else None
    port = AsyncNetworkPort(address, name, context, outage_ns, clock or SystemClock())
    try:
        await port.await_connection(timeout_ns)
    except BaseException:
        await port.close()
        raise
    return port


class _Wire(asyncio.Protocol):
    """One connection of the port."""

    def __init__(self, port: AsyncNetworkPort) -> None:
        self._port = port
        self.transport: asyncio.Transport | None = None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._port.wire_made(self)

    def data_received(self, data: bytes) -> None:
        self._port.wire_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._port.wire_lost(str(exc or ""))
        if not self.lost.done():
            self.lost.set_result(None)


class AsyncNetworkPort:
    """See the head of this file. It lives in the loop that made it."""

    def __init__(
        self, address: Address, name: str, context: ssl.SSLContext | None, outage_ns: int, clock: Clock
    ) -> None:
        self.address = address
        self.now_ns = steady(clock)
        """What deadlines of deliveries are in."""
        self._context = context
        self._loop = asyncio.get_running_loop()
        self.line = Line(
            where=str(address),
            client=name or "headrace-python",
            token=address.token,
            namespace=address.namespace,
            outage_ns=outage_ns,
            now_ns=self.now_ns,
        )
        self._asking = Asking(self.line, address.namespace)
        self._bytes: Plain | Secured = Plain()
        self._transport: asyncio.Transport | None = None
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._flush_planned = False
        self._keeper = self._loop.create_task(self._stay_connected())

    # -- the calls ---------------------------------------------------------------------------------------------------

    async def publish(self, namespace: str, topic: str, partition: int, batch: Batch) -> list[Part]:
        return parts_of(await self.ask(lambda reply: self._asking.publish(namespace, topic, partition, batch, reply)))

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
    ) -> AsyncNetworkConsumer:
        made = AsyncNetworkConsumer(
            self, self._asking, (namespace, topic, group), consumer, lease_ns, prefetch, options
        )
        await made.open()
        return made

    async def settle(self, namespace: str, topic: str, group: str, order: Settle) -> Settled:
        answer = await self.ask(lambda reply: self._asking.settle(namespace, topic, group, order, reply))
        self.line.group_settled(topic, group, count_of(order))
        return settled_of(answer, order)

    async def call(self, method: str, **arguments: Any) -> Any:
        return result_of(method, await self.ask(lambda reply: self._asking.call(method, arguments, reply)))

    async def ask(self, make: Callable[[Callable[[Any], None]], Request]) -> Any:
        """Ask, and wait for the answer; cancelling it does not take it back."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def reply(answer: Any) -> None:
            if future.done():
                return
            if isinstance(answer, HeadraceError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        self.line.ask(make(reply))
        self.flush_soon()
        return await future

    # -- writing and time --------------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Write at the end of this round of the loop what was said in it."""
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        transport = self._transport
        if transport is not None and self._bytes.ready:
            buffers = self.line.outgoing()
            if buffers:
                transport.write(self._bytes.seal(buffers))
            if self.line.session is None:
                transport.close()
        due_ns = self.line.next_due_ns()
        if due_ns is not None:
            when = self._loop.time() + max(0, due_ns - self.now_ns()) / SECOND_NS
            if self._timer is None or when < self._timer.when():
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = self._loop.call_at(when, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self.line.on_due()
        self._flush()

    # -- the connection ----------------------------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        pause_ns = CLIENT_RECONNECT_NS
        while self.line.wants_connection:
            try:
                async with asyncio.timeout(CLIENT_CONNECT_TIMEOUT_NS / SECOND_NS):
                    _, wire = await self._loop.create_connection(
                        lambda: _Wire(self), self.address.host, self.address.port
                    )
            except OSError as error:
                no_answer = isinstance(error, TimeoutError)
                self.line.failed_to_connect("no answer from there in time" if no_answer else str(error))
                self._changed.set()
            else:
                await wire.lost
                if self.line.worked:
                    pause_ns = CLIENT_RECONNECT_NS
            self.flush_soon()
            await asyncio.sleep(pause_ns / SECOND_NS)
            pause_ns = min(2 * pause_ns, CLIENT_RECONNECT_NS_MAX)

    def wire_made(self, wire: _Wire) -> None:
        """There is a connection."""
        self._transport = wire.transport
        self._bytes = Plain() if self._context is None else Secured(self._context, self.address.host)
        hello = self._bytes.begin()
        if hello and self._transport is not None:
            self._transport.write(hello)
        self.line.connected()
        self._flush()

    def wire_received(self, data: bytes) -> None:
        """Bytes came."""
        try:
            said, answer = self._bytes.open(data)
        except OSError as error:  # what TLS has to say against the peer is one
            self.line.ended(str(error))
            if self._transport is not None:
                self._transport.abort()
            return
        if answer and self._transport is not None:
            self._transport.write(answer)
        was_up = self.line.up
        if said:
            self.line.received(said)
        if self.line.up is not was_up or self.line.failure is not None:
            self._changed.set()
        self._flush()

    def wire_lost(self, reason: str) -> None:
        """The connection is gone."""
        self._transport = None
        self.line.ended(reason or "the server closed the connection")
        self._changed.set()
        self.flush_soon()

    async def await_connection(self, timeout_ns: int) -> None:
        """Until the server has said WELCOME; raises why it does not."""
        line = self.line
        try:
            async with asyncio.timeout(timeout_ns / SECOND_NS):
                while not line.up:
                    if line.failure is not None:
                        raise line.failure
                    if line.connections == 0 and line.trouble:
                        raise TimeoutError
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise TimedOut(f"cannot connect to {self.address}: {line.trouble or 'no answer'}") from None

    async def close(self) -> None:
        """Say goodbye and let go of the socket; what is under way fails."""
        self.line.close()
        self._flush()
        self._keeper.cancel()
        if self._timer is not None:
            self._timer.cancel()
        transport = self._transport
        if transport is not None:
            transport.close()
            late = self._loop.call_later(CLIENT_GOODBYE_NS / SECOND_NS, transport.abort)
            while self._transport is not None:
                self._changed.clear()
                await self._changed.wait()
            late.cancel()
        await asyncio.wait({self._keeper})


class AsyncNetworkConsumer:
    """One consumer: the server pushes as far as its credit goes; what is asked for beyond that is pulled, and all of it
    while the credit is withheld (``channel.Channel``)."""

    def __init__(
        self,
        port: AsyncNetworkPort,
        asking: Asking,
        names: tuple[str, str, str],
        consumer: str,
        lease_ns: int | None,
        prefetch: int,
        options: Mapping[str, Any] | None,
    ) -> None:
        self._port = port
        self._asking = asking
        self._names = names
        self._line = port.line
        self._changed = asyncio.Event()
        self._channel = asking.channel(*names, consumer, lease_ns, prefetch, options, self._changed.set)
        self._pulling = False
        self._pull_again = False
        self._unanswered: dict[int, Settle] = {}
        self._unconfirmed = 0
        self._refusal: HeadraceError | None = None
        self._closed = False

    async def open(self) -> None:
        """Until the server has subscribed us."""
        await self._wait_for(lambda reply: self._line.open_channel(self._channel, reply))

    async def _wait_for(self, start: Callable[[Callable[[Any], None]], None]) -> None:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        start(lambda answer: None if future.done() else future.set_result(answer))
        self._port.flush_soon()
        answer = await future
        if isinstance(answer, HeadraceError):
            raise answer

    @property
    def life(self) -> int:
        return self._channel.life

    @property
    def auto_ack(self) -> bool:
        return self._channel.auto_ack

    async def receive(self, most: int, wait_ns: int) -> list[LeasedBatch]:
        channel, now_ns = self._channel, self._port.now_ns
        channel.ask(now_ns())
        try:
            return await self._await(most, wait_ns)
        finally:
            channel.asked(now_ns())
            self._port.flush_soon()

    async def _await(self, most: int, wait_ns: int) -> list[LeasedBatch]:
        channel, now_ns = self._channel, self._port.now_ns
        until_ns = now_ns() + wait_ns
        pulled = False
        while True:
            if channel.waits:
                taken = channel.take(most, now_ns())
                if taken:
                    return taken
            if channel.error is not None:
                raise channel.error
            left_ns = until_ns - now_ns()
            if self._pull_again:
                self._pull_again = pulled = False
            if not (pulled or self._pulling or channel.returning) and (
                wait_ns == 0 or most > channel.credit or channel.withheld
            ):
                pulled = True
                pushed = channel.credit > 0 and not channel.withheld
                self._pull(most, 0 if pushed else max(left_ns, 0))
                continue
            if left_ns <= 0 and not self._pulling and (pulled or wait_ns > 0 or not channel.returning):
                return []
            self._changed.clear()
            if self._pulling or left_ns <= 0:
                await self._changed.wait()
            else:
                try:
                    async with asyncio.timeout(left_ns / SECOND_NS):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    def _pull(self, most: int, wait_ns: int) -> None:
        self._pulling = True
        self._line.ask(self._asking.lease(self._channel, most, wait_ns, self._pulled))
        self._port.flush_soon()

    def _pulled(self, answer: Any) -> None:
        self._pulling = False
        if isinstance(answer, HeadraceError):
            self._channel.error = self._channel.error or answer
        elif answer is not None:
            self._pull_again = not self._channel.put(answer, self._port.now_ns(), pushed=False)
        else:
            self._pull_again = True  # its connection broke, and what it brought came to nobody
        self._changed.set()

    async def settle(self, order: Settle) -> Settled:
        answer = await self._port.ask(lambda reply: self._settling(order, reply))
        return settled_of(answer, order)

    def settle_soon(self, order: Settle) -> None:
        self._unconfirmed += 1
        self._line.ask(self._settling(order, lambda answer: self._settled_soon(answer, order)))
        self._port.flush_soon()

    def _settling(self, order: Settle, reply: Callable[[Any], None]) -> Request:
        def answered(answer: Any) -> None:
            del self._unanswered[id(order)]
            reply(answer)

        self._channel.settled(count_of(order))
        self._unanswered[id(order)] = order
        return self._asking.settle(*self._names, order, answered)

    def tend(self, order: Settle, tended: Tended) -> None:
        if order.extend:
            extend = Settle(extend=order.extend)
            self._line.ask(self._asking.settle(*self._names, extend, lambda answer: tended(tended_of(answer, extend))))
        if order.release:
            self._channel.give_back(order.release)
        self._port.flush_soon()

    def tell_held(self, held: Callable[[], Sequence[Run]]) -> None:
        self._channel.tells_held = lambda: [*held(), *runs_settled(self._unanswered.values())]

    def _settled_soon(self, answer: Any, order: Settle) -> None:
        self._unconfirmed -= 1
        if isinstance(answer, HeadraceError):
            self._refusal = self._refusal or answer
        elif answer.refusals:
            refusal = settled_of(answer, order).refused[0]
            self._refusal = self._refusal or from_code(refusal.code, refusal.message)
        self._changed.set()

    async def flush(self) -> None:
        while self._unconfirmed:
            self._changed.clear()
            await self._changed.wait()
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
            try:
                await self._wait_for(lambda reply: self._line.close_channel(self._channel, reply))
            except (Closed, LeaseLost):
                pass  # the connection is gone, and the subscription with it
