"""Server-sent events: messages pushed to a consumer, and numbers as they change.

A consumer's stream is a subscription with credit: at most ``credit`` of its messages are unsettled at a time. They are
settled by ordinary requests (``settle``), which give the credit back; leases that run out, and settlements through
other doors, are seen at the next look. When the stream ends, what it was handed and nobody settled goes to others, as a
spent attempt.

Messages that were leased and not yet written are given back, uncounted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from headrace import limits
from headrace.calls import LeasedBatch
from headrace.errors import HeadraceError
from headrace.frontends.http import shapes
from headrace.frontends.http.answers import encode_json, error_parts
from headrace.frontends.http.calls import spoken
from headrace.frontends.http.hot import give_back
from headrace.frontends.http.messages import deliveries_of, span_ns
from headrace.frontends.http.replay import opened_stream
from headrace.frontends.http.request import Request
from headrace.frontends.http.routes import ANSWERED, Route, namespaced

if TYPE_CHECKING:
    from headrace.broker.aio import Subscription
    from headrace.frontends.http.stream import Stream

__all__ = ["EVENTS", "ROUTES", "EventStream"]

EVENTS: Final = b"text/event-stream"
_HEARTBEAT: Final = b": still here\n\n"


def _event(name: bytes, data: bytes, number: str = "") -> bytes:
    return b"event: %b\n%bdata: %b\n\n" % (name, b"id: %b\n" % number.encode() if number else b"", data)


class EventsQuery(shapes.Shape):
    """Who consumes, how much at a time, for how long."""

    consumer: Annotated[str, msgspec.Meta(max_length=limits.CONSUMER_NAME_BYTES_MAX)] = ""
    credit: Annotated[
        int,
        msgspec.Meta(ge=1, le=limits.HTTP_EVENTS_CREDIT_MAX, description="Messages unsettled at a time."),
    ] = 100
    lease: shapes.Span | None = None
    start: str | None = None


class EventStream:
    """One consumer's stream."""

    def __init__(self, request: Request, given: EventsQuery) -> None:
        self.group = (request.namespace, request.names["topic"], request.names["group"])
        self._request = request
        self._broker = request.door.broker
        self._consumer = given.consumer or request.caller
        self._most = given.credit
        self._lease_ns = span_ns("lease", given.lease) if given.lease is not None else None
        self._options = {"start": given.start} if given.start is not None else {}
        self._held: deque[LeasedBatch] = deque()
        self._woken = asyncio.Event()
        self._refill_planned = False
        self._ended = False
        self._error: HeadraceError | None = None
        self._source: Subscription | None = None

    async def run(self) -> None:
        """From the subscription to its end."""
        request, door = self._request, self._request.door
        self._source = self._broker.subscribe(
            *self.group,
            self._consumer,
            deliver=self._deliver,
            lease_ns=self._lease_ns,
            options=self._options,
            on_end=self._end,
        )
        request.on_gone = self._stop
        door.event_streams.setdefault(self.group, set()).add(self)
        try:
            stream = request.stream(EVENTS)
            await stream.write(_event(b"open", encode_json({"consumer": self._consumer, "credit": self._most})))
            self.refill()
            await self._write_all(stream)
            if self._error is not None:
                await stream.write(_event(b"error", encode_json(error_parts(self._error)[1])))
            stream.end()
        finally:
            streams = door.event_streams[self.group]
            streams.discard(self)
            if not streams:
                del door.event_streams[self.group]
            request.on_gone = None
            held, self._held = list(self._held), deque()
            give_back(request, self.group, held)
            self._source.close(clean=False)

    async def _write_all(self, stream: Stream) -> None:
        silent_ns = 0
        look_ns = limits.HTTP_EVENTS_LOOK_NS
        while not self._ended:
            self._woken.clear()
            if self._held:
                silent_ns = 0
                await stream.write(*self._told(self._held.popleft()))
                continue
            try:
                async with asyncio.timeout(look_ns / 1e9):
                    await self._woken.wait()
            except TimeoutError:
                self.refill()
                silent_ns += look_ns
                if silent_ns >= limits.HTTP_EVENTS_HEARTBEAT_NS:
                    silent_ns = 0
                    await stream.write(_HEARTBEAT)

    def _told(self, leased: LeasedBatch) -> list[bytes | memoryview]:
        return [_event(b"delivery", encode_json(one), one.id) for one in deliveries_of(leased)]

    def _deliver(self, leased: list[LeasedBatch]) -> None:
        if self._ended:
            give_back(self._request, self.group, leased)
            return
        self._held.extend(leased)
        self._woken.set()

    def settled(self) -> None:
        """Somebody settled messages of the group: look at the end of this round of the loop."""
        if not self._refill_planned:
            self._refill_planned = True
            self._request.door.loop.call_soon(self.refill)

    def refill(self) -> None:
        """As much credit as brings what is unsettled to the most there may be."""
        self._refill_planned = False
        source = self._source
        group = self._broker.core.state.groups.get(source.gid) if source is not None else None
        if source is None or group is None or source.closed or self._ended:
            return
        out = sum(
            lease.count if lease.bits is None else len(lease.bits)
            for backlog in group.backlogs.values()
            for lease in backlog.leases.values()
            if lease.consumer == self._consumer
        )
        more = self._most - out - source.credit_left
        if more > 0:
            source.credit(more)

    def _end(self, error: HeadraceError) -> None:
        self._error = error
        self._stop()

    def _stop(self) -> None:
        self._ended = True
        self._woken.set()


async def consume(request: Request, given: EventsQuery) -> Any:
    """GET …/groups/{group}/events"""
    with opened_stream(request):
        await EventStream(request, given).run()
    return ANSWERED


# -- numbers -----------------------------------------------------------------------------------------------------------


async def stats(request: Request, given: shapes.StatsQuery) -> Any:
    """GET …/stats: once, or again and again for whoever accepts events."""
    namespace: str | None = request.namespace
    if request.route.everywhere:
        namespace = None
    topic = request.names.get("topic")

    async def read() -> Any:
        return spoken(await request.call("stats", namespace=namespace, topic=topic))

    interval_ns = max(span_ns("interval", given.interval), limits.HTTP_STATS_INTERVAL_NS_MIN)
    first = await read()
    if EVENTS not in request.headers.get(b"accept", b"").lower():
        return first
    stopped = asyncio.Event()
    request.on_gone = stopped.set
    with opened_stream(request):
        stream = request.stream(EVENTS)
        await stream.write(_event(b"stats", encode_json(first)))
        while not stopped.is_set():
            try:
                async with asyncio.timeout(interval_ns / 1e9):
                    await stopped.wait()
            except TimeoutError:
                await stream.write(_event(b"stats", encode_json(await read())))
        request.on_gone = None
        stream.end()
    return ANSWERED


_STATS_MEDIA = ("application/json", EVENTS.decode())

ROUTES = [
    *namespaced(
        [
            Route(
                method="GET", path="/v1/topics/{topic}/groups/{group}/events", summary="Messages pushed as events",
                tag="consume", verb="consume", cold=consume, query=EventsQuery, answer=shapes.Delivery,
                media=(EVENTS.decode(),),
            ),
            Route(
                method="GET", path="/v1/topics/{topic}/stats", summary="A topic's numbers, once or as events",
                tag="numbers", verb="consume", cold=stats, query=shapes.StatsQuery, answer=shapes.Stats,
                media=_STATS_MEDIA,
            ),
        ]
    ),
    Route(
        method="GET", path="/v1/stats", summary="All numbers, once or as events", tag="numbers", verb="consume",
        everywhere=True, cold=stats, query=shapes.StatsQuery, answer=shapes.Stats, media=_STATS_MEDIA,
    ),
    Route(
        method="GET", path="/v1/namespaces/{namespace}/stats", summary="A namespace's numbers, once or as events",
        tag="numbers", verb="consume", cold=stats, query=shapes.StatsQuery, answer=shapes.Stats, media=_STATS_MEDIA,
    ),
]  # fmt: skip
