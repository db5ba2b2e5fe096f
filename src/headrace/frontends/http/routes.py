"""The table of routes: which there are, what each takes and gives, which right it needs, and how a path finds its own.

A route takes what stands in its path, and either a JSON body or a query; both are msgspec structs, and the same structs
are the OpenAPI document. A hot route is a plain function that answers when its callback comes; the others are awaited
and return what is to be sent.

Paths are split before they are decoded, so that a name may hold ``%2F``. A name never becomes part of a file name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from headrace import limits
from headrace.errors import Malformed
from headrace.frontends.access import Verb
from headrace.frontends.http.answers import Declined
from headrace.frontends.http.reading import JsonReader, inflated, query_of
from headrace.names import check_namespace_name

if TYPE_CHECKING:
    from headrace.frontends.http.request import Request

__all__ = ["ANSWERED", "EVERYWHERE", "Place", "Route", "Routes", "namespaced"]

Hot = Callable[["Request"], None]
Cold = Callable[["Request", Any], Awaitable[Any]]


async def _nothing_cold(request: Request, given: Any) -> Any:
    raise NotImplementedError(f"{request.path!r} is hot")


ANSWERED: Final = object()
"""What a handler returns that has answered by itself."""
EVERYWHERE: Final = "*"
"""The namespace of a call that is about all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One line of the table."""

    method: str
    path: str
    summary: str
    tag: str
    verb: Verb | None
    """None: open to everybody, as the health checks are, or ``inside``."""
    hot: Hot | None = None
    cold: Cold = field(default=_nothing_cold, repr=False)
    body: type[msgspec.Struct] | Any = None
    query: type[msgspec.Struct] | None = None
    answer: Any = None
    status: int = 200
    media: Sequence[str] = ("application/json",)
    """What it may answer with."""
    body_media: Sequence[str] = ("application/json",)
    inside: bool = False
    """The namespace stands in the body or the query: the handler asks whether the caller may."""
    everywhere: bool = False
    """It is about all namespaces."""
    while_draining: bool = False
    """Also answered while the server stops: what ends work rather than beginning it."""
    reader: JsonReader = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reader", JsonReader(self.body if self.body is not None else dict[str, Any]))

    @property
    def names(self) -> list[str]:
        """What stands in braces."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    def run(self, request: Request) -> None:
        """Handle a request whose body is there."""
        if b"content-encoding" in request.headers:
            request.spawn(self._inflate(request))
        elif self.hot is not None:
            self.hot(request)
        else:
            request.spawn(self._run(request))

    async def _inflate(self, request: Request) -> None:
        """Large work, in a thread."""
        coding = request.headers.pop(b"content-encoding").strip().lower()
        if coding != b"identity":
            loop = request.door.loop
            request.body = await loop.run_in_executor(None, inflated, request.body, coding, request.door.max_body_bytes)
        if self.hot is not None:
            self.hot(request)
        else:
            await self._run(request)

    async def _run(self, request: Request) -> None:
        given: Any = None
        if self.body is not None:
            given = self.reader.read(request)
        elif self.query is not None:
            given = query_of(request.query, self.query)
        answer = await self.cold(request, given)
        if answer is not ANSWERED:
            request.answer_json(answer, self.status)


class Place(NamedTuple):
    """Where a path leads: the routes by method, and the names in it."""

    methods: Mapping[str, Route]
    names: dict[str, str]


class _Node:
    __slots__ = ("below", "methods", "name", "named")

    def __init__(self) -> None:
        self.below: dict[bytes, _Node] = {}
        self.named: _Node | None = None
        self.name = ""
        self.methods: dict[str, Route] = {}


class Routes:
    """All routes, found by path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.all: list[Route] = []
        self._root = _Node()
        self._known: dict[bytes, Place] = {}
        for route in routes:
            self.add(route)

    def add(self, route: Route) -> None:
        node = self._root
        for part in route.path.split("/")[1:]:
            if part.startswith("{"):
                if node.named is None:
                    node.named = _Node()
                    node.named.name = part[1:-1]
                node = node.named
                if node.name != part[1:-1]:
                    raise ValueError(f"{route.path}: what stands there is called {node.name} in other routes")
            else:
                node = node.below.setdefault(part.encode(), _Node())
        if route.method in node.methods:
            raise ValueError(f"{route.method} {route.path} is there twice")
        node.methods[route.method] = route
        self.all.append(route)
        self._known.clear()

    def find(self, path: bytes) -> Place:
        """Raises Declined when a path leads nowhere."""
        place = self._known.get(path)
        if place is None:
            place = self._search(path)
            if len(self._known) >= limits.HTTP_PLACES_CACHED:
                self._known.clear()
            self._known[path] = place
        return place

    def _search(self, path: bytes) -> Place:
        node = self._root
        names: dict[str, str] = {}
        for part in path.split(b"/")[1:]:
            if part in (b".", b".."):
                raise Malformed(f"the path {path[:200]!r} has a step {part.decode()!r}; write the path out")
            following = node.below.get(part)
            if following is None:
                following = node.named
                if following is None:
                    raise _nowhere(path)
                names[following.name] = _decoded(part)
            node = following
        if not node.methods:
            raise _nowhere(path)
        if "namespace" in names:
            check_namespace_name(names["namespace"])
        return Place(node.methods, names)


def _nowhere(path: bytes) -> Declined:
    return Declined(404, f"there is nothing at {path[:200].decode('latin-1')!r}; see /openapi.json")


def _decoded(part: bytes) -> str:
    if b"%" not in part and part.isascii():
        return part.decode()
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise Malformed(f"the path holds {part[:80]!r}, which is not percent-encoded UTF-8") from None


def namespaced(routes: Iterable[Route]) -> list[Route]:
    """Each route twice: for the namespace ``default``, and for any that the path names."""
    found: list[Route] = []
    for route in routes:
        found.append(route)
        if route.path.startswith("/v1/"):
            found.append(replace(route, path="/v1/namespaces/{namespace}/" + route.path.removeprefix("/v1/")))
    return found
