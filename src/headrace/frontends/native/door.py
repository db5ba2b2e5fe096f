"""The native protocol's door: accepts connections, counts them, drains them."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

from headrace import errors, limits
from headrace.diagnostics import logger
from headrace.frontends.doors import DoorSite
from headrace.frontends.listening import spelled
from headrace.frontends.native.connection import NativeConnection
from headrace.shard import Done
from headrace.wire import native

__all__ = ["NativeDoor"]

_log = logger("native")


class NativeDoor:
    """A ``Door`` that speaks the native protocol."""

    def __init__(
        self, site: DoorSite, *, bounds: native.Limits | None = None, connections_max: int = limits.CONNECTIONS_MAX
    ) -> None:
        self.site = site
        self.bounds = bounds or native.Limits(frame_bytes_max=limits.NATIVE_FRAME_BYTES_MAX)
        self.loop = asyncio.get_running_loop()
        self.product = f"headrace {version('headrace')}"
        self.server_id = str(site.config.node_id)
        self.now_ns = site.clock.monotonic_ns
        self.draining_ns: int | None = None
        self.connections: set[NativeConnection] = set()
        self._connections_max = connections_max
        self._empty = asyncio.Event()
        self._empty.set()
        self._server: asyncio.Server | None = None
        self._refused = 0
        self._begun: dict[NativeConnection, int] = {}  # bytes of frames that are not whole, the oldest first
        self._begun_bytes = 0
        self._pullers: dict[tuple[str, str, str, str], int] = {}  # (namespace, topic, group, consumer) → connections

    @property
    def address(self) -> str:
        return spelled(self.site.listener)

    @property
    def connections_count(self) -> int:
        return len(self.connections)

    async def start(self) -> None:
        """Accept from now on."""
        self._server = await self.loop.create_server(
            lambda: NativeConnection(self),
            sock=self.site.listener,
            ssl=self.site.tls,
            ssl_handshake_timeout=limits.NATIVE_HELLO_TIMEOUT_NS / 1e9 if self.site.tls is not None else None,
            backlog=limits.LISTEN_BACKLOG,
        )

    def admit(self, connection: NativeConnection) -> errors.HeadraceError | None:
        """Count a connection in; the reason when there is no room for it."""
        if len(self.connections) >= self._connections_max:
            self._refused += 1
            if self._refused & (self._refused - 1) == 0:
                _log.warning("connections refused", most=self._connections_max, refused=self._refused)
            return errors.Overloaded(f"{self._connections_max} connections are open; try again later")
        self.connections.add(connection)
        self._empty.clear()
        return None

    def gone(self, connection: NativeConnection) -> None:
        """A connection's socket has ended."""
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    def begun(self, connection: NativeConnection, size_bytes: int) -> None:
        """A connection keeps so many bytes of a frame that is not whole; beyond a limit the oldest ones must go."""
        begun = self._begun
        self._begun_bytes += size_bytes - begun.get(connection, 0)
        if size_bytes:
            begun[connection] = size_bytes
        else:
            begun.pop(connection, None)
        while self._begun_bytes > limits.BEGUN_FRAMES_BYTES_MAX and len(begun) > 1:
            oldest = next(iter(begun))
            self._begun_bytes -= begun.pop(oldest)
            oldest.close(
                errors.Overloaded("too much memory is taken by frames that are not whole; yours is the oldest")
            )

    def puller_came(self, member: tuple[str, str, str, str]) -> None:
        """A consumer pulls by name through one more connection."""
        self._pullers[member] = self._pullers.get(member, 0) + 1

    def puller_gone(self, member: tuple[str, str, str, str], *, clean: bool) -> None:
        """And through one less: with the last one it leaves, and its leases are given back."""
        self._pullers[member] -= 1
        if self._pullers[member]:
            return
        del self._pullers[member]
        *names, consumer = member
        broker = self.site.broker

        def leave() -> Done:
            return broker.broker.leave(broker.broker.find_group(*names).gid, consumer, clean=clean)

        broker.host.then(leave, lambda _: None)

    async def drain(self, deadline_ns: int) -> None:
        """Accept no more, tell every client to finish, and wait until they have, or until the deadline."""
        if self._server is not None:
            self._server.close()
        self.draining_ns = deadline_ns
        for connection in list(self.connections):
            connection.go_away(deadline_ns)
        try:
            async with asyncio.timeout(deadline_ns / 1e9):
                await self._empty.wait()
        except TimeoutError:
            _log.warning("clients did not finish in time", connections=len(self.connections))

    async def close(self) -> None:
        """Cut what is left."""
        if self._server is not None:
            self._server.close()
        else:
            self.site.listener.close()
        for connection in list(self.connections):
            connection.close(errors.Draining("the server has stopped; connect again"))
        try:
            async with asyncio.timeout(limits.CLOSE_FLUSH_NS / 1e9):
                await self._empty.wait()
        except TimeoutError:
            for connection in list(self.connections):
                connection.cut()
            await asyncio.sleep(0)
