"""A native client of the smallest kind: the sans-io session over a socket, with replies awaited by number.

Nothing is retried and nothing hidden, so that a test sees what the server did.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence
from typing import Any

from headrace.batch import Batch, Message, encode
from headrace.errors import HeadraceError
from headrace.wire import native

WAIT_S = 60


class Peer:
    """One connection."""

    def __init__(
        self, session: native.ClientSession, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.session = session
        self.closed: asyncio.Future[native.Closed] = asyncio.get_running_loop().create_future()
        self.deliveries: asyncio.Queue[native.Deliveries] = asyncio.Queue()
        self.ended: asyncio.Queue[native.Ended] = asyncio.Queue()
        self.going_away = asyncio.Event()
        self.welcomed: asyncio.Future[native.WelcomeBody] = asyncio.get_running_loop().create_future()
        self.reader, self.writer = reader, writer
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._task = asyncio.create_task(self._read())

    @classmethod
    async def open(
        cls,
        address: str,
        *,
        client: str = "test",
        token: str | None = None,
        namespace: str = "default",
        tls: ssl.SSLContext | None = None,
        welcome: bool = True,
        heartbeat_ns: int = 0,
        frame_bytes_max: int | None = None,
        features: Sequence[str] = native.FEATURES,
    ) -> Peer:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(
            host, int(port), ssl=tls, server_hostname="localhost" if tls is not None else None
        )
        bounds = native.Limits(frame_bytes_max=frame_bytes_max) if frame_bytes_max else None
        session = native.ClientSession(
            bounds,
            client=client,
            token=token,
            namespace=namespace,
            features=features,
            heartbeat_ns=heartbeat_ns,
            now_ns=time.monotonic_ns(),
        )
        peer = cls(session, reader, writer)
        peer.flush()
        if welcome:
            async with asyncio.timeout(WAIT_S):
                await peer.welcomed
        return peer

    def flush(self) -> None:
        for buffer in self.session.outgoing():
            self.writer.write(bytes(buffer))

    async def _read(self) -> None:
        try:
            while data := await self.reader.read(1 << 18):
                self.session.receive_bytes(data, time.monotonic_ns())
                self._handle()
                self.flush()
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            self.session.receive_eof(time.monotonic_ns())
            self._handle()
            self.writer.close()

    def _handle(self) -> None:
        for event in self.session.events():
            match event:
                case native.Closed():
                    if not self.closed.done():
                        self.closed.set_result(event)
                    error = event.error or HeadraceError(f"closed by {event.by}")
                    for future in (*self._waiting.values(), self.welcomed):
                        if not future.done():
                            future.set_exception(error)
                            future.exception()  # looked at, should nobody await it
                    self._waiting.clear()
                case native.Welcome():
                    self.welcomed.set_result(event.body)
                case native.Deliveries():
                    self.deliveries.put_nowait(event)
                case native.GoAway():
                    self.going_away.set()
                case native.Ended(correlation=0):
                    self.ended.put_nowait(event)
                case native.Error():
                    future = self._waiting.pop(event.correlation)
                    if not future.done():
                        future.set_exception(native.error_of(event) or HeadraceError(event.message))
                case _:
                    future = self._waiting.pop(event.correlation)  # type: ignore[union-attr] # replies are left
                    if not future.done():
                        future.set_result(event)

    def begin(self, correlation: int) -> asyncio.Future[Any]:
        """What ``session.send_…`` returned → its reply, in time."""
        future = self._waiting[correlation] = asyncio.get_running_loop().create_future()
        self.flush()
        return future

    async def ask(self, correlation: int) -> Any:
        """The same, awaited; a refusal is raised."""
        async with asyncio.timeout(WAIT_S):
            return await self.begin(correlation)

    # -- the usual questions -------------------------------------------------------------------------------------------

    async def publish(self, topic: str, values: Sequence[bytes | Message], *, partition: int = -1) -> native.Published:
        return await self.ask(self.session.send_publish(topic, batch_of(values), partition=partition))  # type: ignore[no-any-return]

    async def lease(
        self, topic: str, most: int, *, group: str = "default", consumer: str = "c", wait_ns: int = 0, lease_ns: int = 0
    ) -> native.Leased:
        scope = scope_of(topic, group, consumer)
        return await self.ask(self.session.send_lease(scope, most, wait_ns=wait_ns, lease_ns=lease_ns))  # type: ignore[no-any-return]

    async def ack(self, scope: int | native.Scope, runs: Sequence[native.DeliveredRun]) -> native.Settled:
        return await self.ask(self.session.send_ack(scope, [run[:4] for run in runs]))  # type: ignore[no-any-return]

    async def call(self, method: str, **arguments: Any) -> Any:
        reply = await self.ask(self.session.send_call(method, native.pack(arguments)))
        return native.unpack(reply.result, Any)

    async def subscribe(
        self,
        topic: str,
        *,
        group: str = "default",
        consumer: str = "c",
        messages: int = 100,
        size_bytes: int = 1 << 20,
        lease_ns: int = 0,
        options: dict[str, Any] | None = None,
    ) -> int:
        """The subscription's number."""
        correlation = self.session.send_consume(
            native.Scope("", topic, group, consumer),
            credit_messages=messages,
            credit_bytes=size_bytes,
            lease_ns=lease_ns,
            options=native.pack(options) if options else b"",
        )
        await self.ask(correlation)
        return correlation

    async def pushed(self) -> native.Deliveries:
        async with asyncio.timeout(WAIT_S):
            return await self.deliveries.get()

    async def end(self) -> native.Closed:
        """Until the connection has ended, whoever ends it."""
        async with asyncio.timeout(WAIT_S):
            return await asyncio.shield(self.closed)

    async def close(self) -> None:
        """Say CLOSE and let go."""
        self.session.send_close(None)
        self.flush()
        await self.abandon()

    async def abandon(self) -> None:
        """Let go of the socket without a word."""
        self.writer.close()
        await asyncio.wait([self._task])


def scope_of(topic: str, group: str = "default", consumer: str = "c") -> native.Scope:
    return native.Scope("", topic, group, consumer)


def batch_of(values: Sequence[bytes | Message]) -> bytes:
    return encode([value if isinstance(value, Message) else Message(value) for value in values]).to_bytes()


def values_of(packet: native.Deliveries | native.Leased) -> list[bytes]:
    """The values of the messages, in their order."""
    return [
        bytes(batch.message(i).value)
        for batch in (Batch.decode(bytes(buffer)) for buffer in packet.batches)
        for i in range(batch.count)
    ]
