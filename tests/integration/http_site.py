"""An HTTP door in the test's own loop: a broker in memory behind it, and clients that speak text or bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from headrace.broker import Broker
from headrace.broker.aio import LoopBroker
from headrace.broker.embedded import open_core
from headrace.clock import SystemClock
from headrace.config import HttpConfig, ServerConfig
from headrace.frontends import Authenticate, DoorSite, open_listener
from headrace.frontends.http import HttpDoor
from headrace.shard.core import Core


@dataclass
class Answer:
    """What came back over a raw socket."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Raw:
    """A client that sends exactly what it is told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> Answer:
        """The next answer."""
        async with asyncio.timeout(30):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)
            }
            status = int(head[0].split(" ")[1])
            if status == 100:
                return Answer(status, headers, b"")
            if headers.get("transfer-encoding") == "chunked":
                body = b""
                while size := int((await self.reader.readuntil(b"\r\n"))[:-2], 16):
                    body += (await self.reader.readexactly(size + 2))[:-2]
                await self.reader.readexactly(2)
            else:
                body = await self.reader.readexactly(int(headers["content-length"]))
            return Answer(status, headers, body)

    async def ended(self) -> bytes:
        """What still comes until the other side closes."""
        async with asyncio.timeout(30):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass


@dataclass
class Site:
    """The door and its broker."""

    door: HttpDoor
    broker: LoopBroker
    client: httpx.AsyncClient

    @property
    def base(self) -> str:
        return f"http://{self.door.address}"

    async def raw(self) -> Raw:
        host, _, port = self.door.address.rpartition(":")
        return Raw(*await asyncio.open_connection(host, int(port)))

    async def publish(self, topic: str, *messages: Any, headers: Mapping[str, str] | None = None) -> list[Any]:
        """Publish values or messages; their results."""
        body = {"messages": [one if isinstance(one, dict) else {"value": one} for one in messages]}
        answer = await self.client.post(f"/v1/topics/{topic}/messages", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["results"])

    async def lease(self, topic: str, group: str = "default", **order: Any) -> list[Any]:
        answer = await self.client.post(f"/v1/topics/{topic}/groups/{group}/lease", json=order)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["deliveries"])

    async def settle(self, topic: str, group: str = "default", **order: Any) -> Any:
        answer = await self.client.post(f"/v1/topics/{topic}/groups/{group}/settle", json=order)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def group(self, topic: str, group: str = "default") -> Any:
        answer = await self.client.get(f"/v1/topics/{topic}/groups/{group}")
        assert answer.status_code == 200, answer.text
        return answer.json()


@asynccontextmanager
async def http_site(
    *,
    authenticate: Authenticate | None = None,
    http: HttpConfig | None = None,
    config: ServerConfig | None = None,
    connections_max: int = 1000,
    core: Core | None = None,
    **site: Any,
) -> AsyncIterator[Site]:
    """A door that accepts, and everything of it gone afterwards; ``core``: a shard that is not in memory."""
    broker = LoopBroker(Broker(core or open_core(":memory:", clock=SystemClock(), node_id=1)))
    listener = open_listener("127.0.0.1", 0, name="http")
    settings = config or ServerConfig(http=http or HttpConfig())
    door = HttpDoor(
        DoorSite(broker, listener, settings, SystemClock(), authenticate, **site), connections_max=connections_max
    )
    await door.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://{door.address}", timeout=30, trust_env=False) as client:
            yield Site(door, broker, client)
    finally:
        await door.close()
        await broker.close()


async def until(condition: Callable[[], object]) -> None:
    """Let everybody else run until something is so."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event, and is a few rounds away
            await asyncio.sleep(0)


def refused(answer: httpx.Response | Answer, status: int, code: str) -> str:
    """Check that an answer is this refusal, in the form all have; its sentence."""
    found = answer.status_code if isinstance(answer, httpx.Response) else answer.status
    body = answer.json()
    assert (found, body["error"]["code"]) == (status, code), body
    assert body["error"]["message"]
    return str(body["error"]["message"])
