"""The HTTP door: accepts connections, says who may come in, finds what a request wants, sweeps, drains.

A page in a browser must not command a server that trusts its machine. Three things see to that: a request whose
``Origin`` is another site is refused unless ``http.cors_origins`` names it; without a key (loopback only) the ``Host``
must be an address or ``localhost``, so that a name that was made to point here is refused; and nothing is ever taken
from a cookie.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Mapping
from email.utils import formatdate
from typing import Final

from headrace import errors, limits
from headrace.diagnostics import logger
from headrace.errors import Draining, Malformed, NotAllowed
from headrace.frontends.doors import DoorSite
from headrace.frontends.http.answers import Declined
from headrace.frontends.http.connection import HttpConnection
from headrace.frontends.http.events import EventStream
from headrace.frontends.http.faces import HandedOut
from headrace.frontends.http.openapi import document
from headrace.frontends.http.request import Request
from headrace.frontends.http.routes import EVERYWHERE, Route, Routes
from headrace.frontends.http.table import all_routes
from headrace.frontends.listening import spelled
from headrace.names import DEFAULT_NAMESPACE

__all__ = ["HttpDoor"]

_log = logger("http")
_HOSTS_REMEMBERED: Final = 16
"""Spellings of our address that were looked at and are fine."""

Upgrade = Callable[[Request, asyncio.Transport], asyncio.Protocol]


class HttpDoor:
    """A ``Door`` that speaks HTTP/1.1."""

    def __init__(self, site: DoorSite, *, connections_max: int = limits.CONNECTIONS_MAX) -> None:
        self.site = site
        self.broker = site.broker
        self.loop = asyncio.get_running_loop()
        self.now_ns = site.clock.monotonic_ns
        self.max_body_bytes = site.config.http.max_body_bytes
        self.request_timeout_ns = site.config.http.request_timeout_ns
        self.idle_timeout_ns = site.config.http.idle_timeout_ns
        self.routes = Routes(all_routes())
        self.upgrades: dict[str, Upgrade] = {}
        """Path → what goes on there with another protocol: takes the request and the transport, answers by itself."""
        self.connections: set[HttpConnection] = set()
        self.draining = False
        self.common_headers = b""
        self.streams = 0
        """Answers that go on: replays and events."""
        self.event_streams: dict[tuple[str, str, str], set[EventStream]] = {}
        self.handed_out = HandedOut()
        self._origins = frozenset(
            origin.strip().rstrip("/").lower().encode()
            for origin in site.config.http.cors_origins.split(",")
            if origin.strip()
        )
        self._logs_requests = site.config.log.level == "debug"
        self._connections_max = connections_max
        self._bodies_bytes = 0
        self._refused = 0
        self._hosts: set[bytes] = set()
        self._document = b""
        self._options = Route(
            method="OPTIONS", path="", summary="", tag="", verb=None, hot=self._answer_options, while_draining=True
        )
        self._empty = asyncio.Event()
        self._empty.set()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._stamp()

    @property
    def address(self) -> str:
        return spelled(self.site.listener)

    @property
    def connections_count(self) -> int:
        return len(self.connections)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Accept from now on."""
        tls = self.site.tls
        self._server = await self.loop.create_server(
            lambda: HttpConnection(self),
            sock=self.site.listener,
            ssl=tls,
            ssl_handshake_timeout=limits.HTTP_HEAD_TIMEOUT_NS / 1e9 if tls is not None else None,
            backlog=limits.LISTEN_BACKLOG,
        )
        self._sweep()

    def _sweep(self) -> None:
        self._sweeper = self.loop.call_later(limits.HTTP_SWEEP_NS / 1e9, self._sweep)
        self._stamp()
        now_ns = self.now_ns()
        for connection in list(self.connections):
            connection.sweep(now_ns)

    def _stamp(self) -> None:
        """What every answer says, the time included: made once a second."""
        date = formatdate(self.site.clock.wall_ns() / 1e9, usegmt=True)
        self.common_headers = (
            b"server: headrace\r\ndate: %b\r\ncache-control: no-store\r\nx-content-type-options: nosniff\r\n"
            % date.encode()
        )

    async def drain(self, deadline_ns: int) -> None:
        """Accept no more, let go who waits for messages, and return when every request is answered, or at the
        deadline."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.drain()
        try:
            async with asyncio.timeout(deadline_ns / 1e9):
                await self._empty.wait()
        except TimeoutError:
            _log.warning("requests did not end in time", connections=len(self.connections))

    async def close(self) -> None:
        """Cut what is left."""
        self.draining = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        else:
            self.site.listener.close()
        for connection in list(self.connections):
            connection.cut()
        if self.connections:
            try:
                async with asyncio.timeout(limits.CLOSE_FLUSH_NS / 1e9):
                    await self._empty.wait()
            except TimeoutError:
                _log.warning("connections did not end", connections=len(self.connections))

    # -- connections ---------------------------------------------------------------------------------------------------

    def came(self, connection: HttpConnection) -> errors.HeadraceError | None:
        """Count a connection in; the reason when there is no room for it."""
        full = len(self.connections) >= self._connections_max
        self.connections.add(connection)
        self._empty.clear()
        if full:
            self._refused += 1
            if self._refused & (self._refused - 1) == 0:
                _log.warning("connections refused", most=self._connections_max, refused=self._refused)
            return errors.Overloaded(f"{self._connections_max} connections are open; try again later")
        return None

    def gone(self, connection: HttpConnection) -> None:
        """A connection's socket has ended, or speaks another protocol now."""
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    def body_came(self, size_bytes: int) -> bool:
        """So many bytes more are held of bodies that come in pieces; False when that is too much."""
        self._bodies_bytes += size_bytes
        return self._bodies_bytes <= limits.HTTP_BODIES_BYTES_MAX

    def body_gone(self, size_bytes: int) -> None:
        self._bodies_bytes -= size_bytes

    # -- heads ---------------------------------------------------------------------------------------------------------

    def look_at(self, request: Request) -> bool:
        """Everything that can be said about a request before its body: raises what is wrong with it. True: it goes on
        with another protocol."""
        self._check_host(request)
        target = request.target
        if target[:1] != b"/":
            target = _path_of(request)
        request.path, _, request.query = target.partition(b"?")
        upgrade = request.headers.get(b"upgrade")
        if upgrade is not None and not self.draining and self._is_offered(request, upgrade):
            return True
        place = self.routes.find(request.path)
        method = request.method
        route = place.methods.get(method)
        if route is None and method == "HEAD":
            route = place.methods.get("GET")
            if route is not None and route.media[0] == "text/event-stream":
                route = None
        if route is None:
            if method == "OPTIONS":
                request.route = self._options
                return False
            raise Declined(405, f"{method[:20]} is not for this address", b"allow: %b\r\n" % _allowed(place.methods))
        if self.draining and not route.while_draining:
            raise Draining("the server is stopping; connect again")
        request.route = route
        names = request.names = place.names
        request.namespace = namespace = names.get("namespace", DEFAULT_NAMESPACE)
        if route.verb is not None and self.site.authenticate is not None:
            self._judge(request, route, namespace, names)
        return False

    def _judge(self, request: Request, route: Route, namespace: str, names: Mapping[str, str]) -> None:
        """Nobody without a good token has his body read; where it says what the request is about, the handler asks
        again."""
        if route.verb is None:
            return
        if route.inside:
            request.identify()
        elif "id" in names and "topic" not in names and self.site.authenticate is not None:
            # The message's topic may have to be looked up in a file: the call does that, and asks whether he may.
            request.principal = self.site.authenticate(request.token, namespace)
        elif route.everywhere:
            request.authorise(route.verb, EVERYWHERE, "")
        else:
            request.authorise(route.verb, namespace, names.get("topic", ""))

    def _is_offered(self, request: Request, upgrade: bytes) -> bool:
        path = request.path.decode("latin-1")
        return upgrade.lower() == b"websocket" and request.method == "GET" and path in self.upgrades

    def _check_host(self, request: Request) -> None:
        headers = request.headers
        host = headers.get(b"host")
        if host is None:
            if request.version == "1.1":
                raise Malformed("a request must name its Host")
            host = b"localhost"
        elif self.site.authenticate is None and host not in self._hosts:
            if _is_address(host, self.site.config.host):
                self._hosts = {*list(self._hosts)[-_HOSTS_REMEMBERED:], host}
            else:
                raise NotAllowed(
                    f"host {host[:80].decode('latin-1')!r}: a server without a key is called by its address or as "
                    "localhost"
                )
        self._check_origin(request, host)

    def _check_origin(self, request: Request, host: bytes) -> None:
        origin = request.headers.get(b"origin")
        if origin is not None and not self._is_friend(origin.lower(), host.lower()):
            raise NotAllowed(
                f"pages of {origin[:80].decode('latin-1')!r} may not call this server; http.cors_origins names those "
                "that may"
            )

    def _is_friend(self, origin: bytes, host: bytes) -> bool:
        return origin in self._origins or b"*" in self._origins or origin.partition(b"://")[2] == host

    def cors_headers(self, origin: bytes) -> bytes:
        """What a page of an allowed origin needs to read the answer."""
        if origin.lower() in self._origins or b"*" in self._origins:
            return (
                b"access-control-allow-origin: %b\r\nvary: origin\r\n"
                b"access-control-expose-headers: retry-after, www-authenticate\r\n" % origin
            )
        return b""

    def _answer_options(self, request: Request) -> None:
        methods = self.routes.find(request.path).methods
        allowed = _allowed(methods)
        lines = b"allow: %b\r\n" % allowed
        if b"access-control-request-method" in request.headers and self.cors_headers(
            request.headers.get(b"origin", b"")
        ):
            lines += (
                b"access-control-allow-methods: %b\r\n"
                b"access-control-allow-headers: authorization, content-type, content-encoding, traceparent\r\n"
                b"access-control-max-age: 600\r\n" % allowed
            )
        request.answer_json({"allow": sorted(methods)}, headers=lines)

    # -- what handlers share -------------------------------------------------------------------------------------------

    def settled(self, group: tuple[str, str, str]) -> None:
        """Messages of a group were settled: its event streams may have credit again."""
        if self.event_streams:
            for stream in self.event_streams.get(group, ()):
                stream.settled()

    def openapi(self) -> bytes:
        """The document, made once."""
        if not self._document:
            self._document = document(self.routes.all, with_tokens=self.site.authenticate is not None)
        return self._document

    # -- what happened -------------------------------------------------------------------------------------------------

    def note_failure(self, request: Request, error: BaseException) -> None:
        """A fault of ours, for whoever runs the server."""
        if not isinstance(error, Declined):
            _log.error(
                "a request failed",
                peer=request.peer,
                method=request.method,
                path=request.path.decode("latin-1"),
                exc_info=error,
            )

    def note_answer(self, request: Request, status: int) -> None:
        if self._logs_requests:
            _log.debug(
                "request",
                peer=request.peer,
                method=request.method,
                path=request.path.decode("latin-1"),
                status=status,
                ms=round((self.now_ns() - request.started_ns) / 1e6, 3) if request.started_ns else 0,
            )


def _allowed(methods: Mapping[str, Route]) -> bytes:
    return ", ".join(sorted({*methods, "OPTIONS"})).encode()


def _path_of(request: Request) -> bytes:
    """The path of an absolute address, which a proxy may send."""
    scheme, _, rest = request.target.partition(b"://")
    if scheme.lower() in (b"http", b"https") and request.method != "CONNECT":
        authority, slash, path = rest.partition(b"/")
        if authority:
            return slash + path or b"/"
    raise Malformed(f"the address {request.target[:80]!r} must begin with a slash")


def _is_address(host: bytes, configured: str) -> bool:
    name = host.decode("latin-1").lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif ":" in name:
        name = name.partition(":")[0]
    if name in ("localhost", configured.lower()) or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
