"""The client for threads behind the face of the one for asyncio, so that one scenario runs over both.

Every method is called in a thread and awaited; objects that come back are wrapped in turn. What is awaited nowhere in
the asyncio client (``group``, ``publisher``, ``read``, verbs of a delivery) is called at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Self

from headrace.client.administration import DeadLetterCalls, GroupCalls, ScheduleCalls
from headrace.client.awaiting import DONE, Opening
from headrace.client.consumer import ArrowDeliveries, Consumer, Delivery
from headrace.client.handles import Headrace, Topic
from headrace.client.publisher import Publisher, Receipt
from headrace.client.replay import Replay
from headrace.client.worker import Workers

_WRAPPED = (
    ArrowDeliveries,
    Consumer,
    DeadLetterCalls,
    Delivery,
    GroupCalls,
    Headrace,
    Publisher,
    Receipt,
    Replay,
    ScheduleCalls,
    Topic,
    Workers,
)
_AT_ONCE = {"group", "publisher", "read", "worker", "stop_soon", "json"}
_VERBS = {"ack", "nack", "reject", "release"}
_END = object()


def wrapped(found: Any) -> Any:
    if isinstance(found, _WRAPPED):
        return Awaited(found)
    if isinstance(found, list):
        return [wrapped(one) for one in found]
    if isinstance(found, Iterator):
        return _iterated(found)
    return found


def bare(given: Any) -> Any:
    if isinstance(given, Awaited):
        return given._inner
    if isinstance(given, list | tuple):
        return type(given)(bare(one) for one in given)
    return given


async def _iterated(found: Iterator[Any]) -> AsyncIterator[Any]:
    while (one := await asyncio.to_thread(next, found, _END)) is not _END:
        yield wrapped(one)


class Awaited:
    """See the head of this file."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        inner = self._inner
        if name == "workers" and isinstance(inner, Headrace):
            return Awaited(inner.workers)
        found = getattr(inner, name)
        if not callable(found):
            return wrapped(found)
        if name == "until_idle":
            return lambda *args, **named: _iterated(found(*args, **named))
        if name in _AT_ONCE or (name in _VERBS and isinstance(inner, Delivery)):

            def call(*args: Any, **named: Any) -> Any:
                result = wrapped(found(*map(bare, args), **{key: bare(value) for key, value in named.items()}))
                return DONE if result is None else result

            return call

        def later(*args: Any, **named: Any) -> Awaitable[Any]:
            async def run() -> Any:
                given = {key: bare(value) for key, value in named.items()}
                return wrapped(await asyncio.to_thread(found, *map(bare, args), **given))

            return Opening(run) if name == "consumer" else run()

        return later

    def __aiter__(self) -> AsyncIterator[Any]:
        return _iterated(iter(self._inner))

    def __await__(self) -> Any:
        return self.result().__await__()  # a receipt

    def __len__(self) -> int:
        return len(self._inner)

    def to_arrow(self) -> Any:
        if isinstance(self._inner, Replay):
            return asyncio.to_thread(self._inner.to_arrow)
        return self._inner.to_arrow()

    async def close(self) -> None:
        await asyncio.to_thread(self._inner.close)

    async def __aenter__(self) -> Self:
        enter: Callable[[], Any] = self._inner.__enter__
        if isinstance(self._inner, Workers):
            await asyncio.to_thread(self._inner.start)
        elif isinstance(self._inner, Delivery):
            enter()
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self._inner.__exit__, *error)
