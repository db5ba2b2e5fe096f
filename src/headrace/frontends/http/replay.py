"""Reading without a group: a page of JSON, or everything as NDJSON or as an Arrow stream. And looking into a group.

A replay is bounded: where each partition ends is asked once, at the beginning, and what is published meanwhile is not
part of it. It goes portion by portion (``READ_BYTES_MAX`` at a time) and no faster than the peer reads, so its memory
does not depend on its length, and others have their turn between portions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from headrace.batch import Batch
from headrace.errors import InvalidArgument, Overloaded
from headrace.frontends.http import hot, shapes
from headrace.frontends.http.calls import spoken
from headrace.frontends.http.messages import instant_ns, messages_of
from headrace.frontends.http.reading import ARROW_STREAM
from headrace.frontends.http.request import Request
from headrace.frontends.http.routes import ANSWERED, Route, namespaced
from headrace.ids import parse_id
from headrace.limits import BROWSE_MESSAGES_MAX, HTTP_PAGE_MESSAGES, HTTP_STREAMS_MAX

__all__ = ["NDJSON", "ROUTES", "Replay", "opened_stream"]

NDJSON: Final = b"application/x-ndjson"
_ALL: Final = 1 << 62


def _topic(request: Request) -> dict[str, str]:
    return {"namespace": request.namespace, "topic": request.names["topic"]}


async def messages(request: Request, given: shapes.MessagesQuery) -> Any:
    """GET …/topics/{topic}/messages"""
    if given.state is not None or given.group is not None:
        return await _browse(request, given)
    accept = request.headers.get(b"accept", b"").lower()
    replay = Replay(request, given)
    if ARROW_STREAM in accept:
        await _stream_arrow(request, replay)
        return ANSWERED
    if NDJSON in accept or b"application/ndjson" in accept:
        await _stream_lines(request, replay, as_base64=given.values == "base64")
        return ANSWERED
    return await _page(replay, as_base64=given.values == "base64")


async def _browse(request: Request, given: shapes.MessagesQuery) -> Any:
    others = (given.from_offset, given.to_offset, given.from_time, given.to_time, given.partition)
    if given.include_deleted or any(one is not None for one in others):
        raise InvalidArgument(
            "a look into a group (state, group) takes limit only; offsets, times and include_deleted are for a replay"
        )
    rows = await request.call(
        "browse",
        **_topic(request),
        group=given.group or "default",
        state=given.state or "ready",
        limit=min(given.limit or HTTP_PAGE_MESSAGES, BROWSE_MESSAGES_MAX),
    )
    return {"messages": spoken(rows)}


async def _page(replay: Replay, *, as_base64: bool) -> Any:
    replay.left = min(replay.left, BROWSE_MESSAGES_MAX) if replay.limited else HTTP_PAGE_MESSAGES
    found: list[shapes.Message] = []
    async for partition, batch in replay.batches():
        found += messages_of(partition, batch, as_base64=as_base64)
    going_on = {str(partition): at for partition, (at, end) in replay.places.items() if at < end}
    return {"messages": found, "next_offsets": going_on}


class Replay:
    """What a request wants to read: from where to where in each partition, and how many messages at most."""

    def __init__(self, request: Request, given: shapes.MessagesQuery) -> None:
        self._request = request
        self._names: dict[str, Any] = {**_topic(request), "include_deleted": given.include_deleted or None}
        self.partition = given.partition
        self.places: dict[int, tuple[int, int]] = {}
        """By partition: where to go on, and where it ends."""
        self.limited = given.limit is not None
        self.left = given.limit if given.limit is not None else _ALL
        self._first: dict[str, Any] = {
            "from_offset": given.from_offset,
            "to_offset": given.to_offset,
            "from_time_ns": instant_ns("from_time", given.from_time) if given.from_time is not None else None,
            "to_time_ns": instant_ns("to_time", given.to_time) if given.to_time is not None else None,
        }

    async def batches(self) -> AsyncIterator[tuple[int, Batch]]:
        """(partition, batch) until the end or the limit."""
        async for one in self._portion(partition=self.partition, **self._first):
            yield one
        for partition in sorted(self.places):
            while self.left > 0:
                at, end = self.places[partition]
                if at >= end:
                    break
                async for one in self._portion(partition=partition, from_offset=at, to_offset=end):
                    yield one
                if self.places[partition][0] == at:
                    break  # retention has overtaken us
                await asyncio.sleep(0)

    async def _portion(self, **where: Any) -> AsyncIterator[tuple[int, Batch]]:
        result, batches = await self._request.call("read", **self._names, limit=max(self.left, 1), **where)
        number = 0
        for part in result["parts"]:
            partition, end = part["partition"], part["end_offset"]
            if partition in self.places:
                end = self.places[partition][1]
            self.places[partition] = (part["next_offset"], end)
            for batch in batches[number : number + part["batches"]]:
                self.left -= batch.count
                yield partition, batch
            number += part["batches"]


# -- streams -----------------------------------------------------------------------------------------------------------


class opened_stream:  # noqa: N801 - used as a context
    """Counts an answer that goes on, and refuses one too many."""

    def __init__(self, request: Request) -> None:
        self._door = request.door

    def __enter__(self) -> None:
        if self._door.streams >= HTTP_STREAMS_MAX:
            raise Overloaded(f"{HTTP_STREAMS_MAX} streams are open; try again later")
        self._door.streams += 1

    def __exit__(self, *_: object) -> None:
        self._door.streams -= 1


async def _stream_lines(request: Request, replay: Replay, *, as_base64: bool) -> None:
    with opened_stream(request):
        batches = replay.batches()
        first = await anext(batches, None)  # what is wrong with the request is said before the answer begins
        stream = request.stream(NDJSON)
        encoder = msgspec.json.Encoder()
        if first is not None:
            await stream.write(encoder.encode_lines(messages_of(*first, as_base64=as_base64)))
        async for partition, batch in batches:
            await stream.write(encoder.encode_lines(messages_of(partition, batch, as_base64=as_base64)))
        stream.end()


async def _stream_arrow(request: Request, replay: Replay) -> None:
    try:
        from headrace.frontends.http.columns import ArrowWriter
    except ImportError:
        raise InvalidArgument("Arrow needs pyarrow on the server: pip install 'headrace[columns]'") from None
    with opened_stream(request):
        batches = replay.batches()
        first = await anext(batches, None)
        stream = request.stream(ARROW_STREAM)
        writer = ArrowWriter()
        if first is not None:
            writer.add(*first)
        async for partition, batch in batches:
            writer.add(partition, batch)
            if writer.size_bytes >= writer.portion_bytes:
                await stream.write(*writer.taken())
        await stream.write(*writer.last())
        stream.end()


# -- one message -------------------------------------------------------------------------------------------------------


async def trace(request: Request, _: Any) -> Any:
    """GET …/messages/{id}/trace"""
    return spoken(await request.call("trace", id=parse_id(request.names["id"]), namespace=request.namespace))


async def explain(request: Request, given: shapes.ExplainQuery) -> Any:
    """GET …/messages/{id}/explain"""
    return spoken(
        await request.call("explain", id=parse_id(request.names["id"]), namespace=request.namespace, group=given.group)
    )


ROUTES = namespaced(
    [
        Route(
            method="POST", path="/v1/topics/{topic}/messages", summary="Publish a batch of messages", tag="publish",
            verb="publish", hot=hot.publish, body=shapes.NewMessages, answer=shapes.PublishAnswer,
            body_media=("application/json", ARROW_STREAM.decode()),
        ),
        Route(
            method="GET", path="/v1/topics/{topic}/messages", summary="Replay without a group, or look into one",
            tag="read", verb="consume", cold=messages, query=shapes.MessagesQuery, answer=shapes.MessagesAnswer,
            media=("application/json", NDJSON.decode(), ARROW_STREAM.decode()),
        ),
        Route(
            method="GET", path="/v1/messages/{id}/trace", summary="Everything that happened to a message", tag="read",
            verb="consume", cold=trace, answer=shapes.Trace,
        ),
        Route(
            method="GET", path="/v1/messages/{id}/explain", summary="Why a message is where it is", tag="read",
            verb="consume", cold=explain, query=shapes.ExplainQuery, answer=shapes.Explained,
        ),
    ]
)  # fmt: skip
