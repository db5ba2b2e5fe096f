"""One request: what came, where it goes, and the ways to answer it. It is answered once; later answers are ignored."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, NotAllowed
from headrace.frontends.access import Principal, Verb, guard, guard_call
from headrace.frontends.http.answers import JSON, encode_json, error_parts

if TYPE_CHECKING:
    from headrace.frontends.http.connection import HttpConnection
    from headrace.frontends.http.door import HttpDoor
    from headrace.frontends.http.routes import Route
    from headrace.frontends.http.stream import Stream

__all__ = ["Request"]


class Request:
    """See the head of this file. ``headers``: names in lower case; ``names``: what stands in the path's braces."""

    __slots__ = (
        "answered",
        "body",
        "connection",
        "door",
        "headers",
        "keep_alive",
        "method",
        "names",
        "namespace",
        "on_gone",
        "path",
        "principal",
        "query",
        "refusal",
        "route",
        "size_bytes",
        "started_ns",
        "target",
        "version",
    )

    def __init__(self, connection: HttpConnection) -> None:
        self.connection = connection
        self.door: HttpDoor = connection.door
        self.method = ""
        self.target = b""
        self.path = b""
        self.query = b""
        self.version = "1.1"
        self.headers: dict[bytes, bytes] = {}
        self.body: bytes | bytearray = b""
        self.size_bytes = 0
        self.keep_alive = True
        self.route: Route = None  # type: ignore[assignment] # unless it is refused
        self.names: dict[str, str] = {}
        self.namespace = ""
        self.principal: Principal | None = None
        self.refusal: BaseException | None = None
        self.started_ns = 0
        self.answered = False
        self.on_gone: Callable[[], None] | None = None

    def read(self) -> Any:
        """The body, as the route's struct."""
        return self.route.reader.read(self)

    # -- who and where -------------------------------------------------------------------------------------------------

    @property
    def gone(self) -> bool:
        """Nobody waits for the answer any more."""
        return self.answered or self.connection.lost

    @property
    def peer(self) -> str:
        return self.connection.peer

    @property
    def caller(self) -> str:
        """Who calls, as groups and pauses remember it."""
        return self.principal.name if self.principal is not None else "http"

    @property
    def token(self) -> str | None:
        """What stands behind ``Authorization: Bearer``."""
        scheme, _, token = self.headers.get(b"authorization", b"").partition(b" ")
        return token.strip().decode("latin-1") or None if scheme.lower() == b"bearer" else None

    def authorise(self, verb: Verb, namespace: str, topic: str) -> None:
        """Raise when whoever calls may not do that there."""
        authenticate = self.door.site.authenticate
        if authenticate is not None:
            self.principal = authenticate(self.token, namespace)
            guard(self.principal, verb, namespace, topic)

    def identify(self) -> None:
        """Raise when the token is no good, whatever it may be good for."""
        authenticate = self.door.site.authenticate
        if authenticate is not None:
            try:
                self.principal = authenticate(self.token, self.namespace)
            except NotAllowed:
                self.principal = None  # not for this namespace, which may not be the one it is about

    async def call(self, method: str, **arguments: Any) -> Any:
        """An administrative call, if whoever calls may make it. Arguments that are None are left out."""
        given = {name: value for name, value in arguments.items() if value is not None or name == "namespace"}
        broker = self.door.broker
        if self.principal is None and self.door.site.authenticate is not None:
            raise NotAllowed(f"nobody has asked whether the caller may do {method}")
        await guard_call(self.principal, method, given, broker.topic_of)
        return await broker.call(method, given)

    # -- answering -----------------------------------------------------------------------------------------------------

    def answer(self, body: bytes, status: int = 200, content_type: bytes = JSON, headers: bytes = b"") -> None:
        """Send the one answer. ``headers``: further lines, each with its end."""
        if not self.answered:
            self.answered = True
            self.connection.answer(self, status, content_type, headers, body)

    def answer_json(self, value: Any, status: int = 200, headers: bytes = b"") -> None:
        """Send a value that msgspec can write."""
        self.answer(encode_json(value), status, JSON, headers)

    def fail(self, error: BaseException) -> None:
        """Send a refusal."""
        if not isinstance(error, HeadraceError):
            self.door.note_failure(self, error)
        status, body, headers = error_parts(error)
        self.answer(encode_json(body), status, JSON, headers)

    def stream(self, content_type: bytes, headers: bytes = b"") -> Stream:
        """Begin an answer whose length is not known."""
        self.answered = True
        return self.connection.begin_stream(self, content_type, headers)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Go on in a task, which ends with the connection."""
        self.connection.spawn(self, work)
