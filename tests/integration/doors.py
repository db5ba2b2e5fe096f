"""One face over every door, for scenarios: publish, take the next delivery, settle it, leave."""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

import httpx

import headrace
from headrace.errors import HeadraceError
from headrace.wire.mqtt import PubAck, Publish
from integration.mqtt_peer import Peer

GROUP = "workers"
WAIT = "20s"
OK = "ok"
UNSAID = "unsaid"
"""MQTT 3.1.1 has no word for a refusal."""


class Taken(NamedTuple):
    """A delivery, as its door told it; None: the door does not tell that."""

    value: str
    attempt: int | None
    key: str | None
    priority: int | None
    headers: dict[str, str] | None
    handle: Any


class Entry:
    """One door, as a producer and a consumer of one topic use it."""

    def __init__(self, topic: str) -> None:
        self.topic = topic

    async def publish(self, value: str, fields: dict[str, Any]) -> None:
        raise NotImplementedError

    async def take(self) -> Taken:
        raise NotImplementedError

    async def settle(self, handle: Any, verb: str, options: dict[str, str]) -> str:
        """What it was answered: `OK`, or the code of the refusal."""
        raise NotImplementedError

    async def leave(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        await self.leave()


class SdkEntry(Entry):
    """The library, over the network or embedded."""

    def __init__(self, topic: str, client: Any) -> None:
        super().__init__(topic)
        self.client = client
        self.consumer: Any = None

    async def publish(self, value: str, fields: dict[str, Any]) -> None:
        await (await self.client.topic(self.topic)).publish(value, **fields)

    async def take(self) -> Taken:
        if self.consumer is None:
            self.consumer = await (await self.client.topic(self.topic)).consumer(group=GROUP, prefetch=1)
        (d,) = await self.consumer.receive(1, wait=WAIT)
        key = d.key.decode() if d.key is not None else None
        return Taken(d.value.decode(), d.attempt, key, d.priority, dict(d.headers or {}), d)

    async def settle(self, handle: Any, verb: str, options: dict[str, str]) -> str:
        arguments = [options.pop("by")] if "by" in options else []
        try:
            await getattr(handle, verb)(*arguments, **options)
            await self.consumer.flush()
        except HeadraceError as error:
            return error.code
        return OK

    async def leave(self) -> None:
        consumer, self.consumer = self.consumer, None
        if consumer is not None:
            await consumer.close()


class HttpEntry(Entry):
    """JSON over HTTP."""

    def __init__(self, topic: str, address: str) -> None:
        super().__init__(topic)
        self._client = httpx.AsyncClient(base_url=f"http://{address}/v1/topics/{topic}", timeout=30)
        self._held: dict[str, None] = {}

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        response = await self._client.post(path, json=body)
        assert response.status_code < 300, response.text
        return response.json()

    async def publish(self, value: str, fields: dict[str, Any]) -> None:
        await self._post("/messages", {"messages": [{"value": value, **fields}]})

    async def take(self) -> Taken:
        body = {"max": 1, "wait": WAIT, "consumer": "one"}
        (d,) = (await self._post(f"/groups/{GROUP}/lease", body))["deliveries"]
        self._held[d["receipt"]] = None
        value = d["value"] if "value" in d else base64.b64decode(d["value_base64"]).decode()
        return Taken(value, d["attempt"], d.get("key"), d.get("priority", 5), d.get("headers") or {}, d["receipt"])

    async def settle(self, handle: Any, verb: str, options: dict[str, str]) -> str:
        asked = [handle] if verb in ("ack", "release") else [{"receipt": handle, **options}]
        response = await self._client.post(f"/groups/{GROUP}/settle", json={verb: asked})
        answer = response.json()
        if verb != "extend":
            self._held.pop(handle, None)
        refused = answer.get("refused") or []
        return str(refused[0]["code"]) if refused else str(answer.get("error", {"code": OK})["code"])

    async def leave(self) -> None:
        """Over HTTP nobody is connected; who goes releases."""
        if self._held:
            await self._post(f"/groups/{GROUP}/settle", {"release": list(self._held)})
            self._held.clear()

    async def close(self) -> None:
        await self._client.aclose()


class MqttEntry(Entry):
    """MQTT 3.1.1 (4) or 5."""

    def __init__(self, topic: str, address: str, version: int) -> None:
        super().__init__(topic)
        self.version = version
        self._address = address
        self._producer: Peer | None = None
        self._consumer: Peer | None = None
        self._early: list[Publish] = []

    async def publish(self, value: str, fields: dict[str, Any]) -> None:
        """What only 5.0 can say is said over 5.0, as a 3.1.1 fleet's back end would."""
        if self._producer is None:
            self._producer = await Peer.connect(self._address, f"{self.topic}-producer", 5 if fields else self.version)
        elif fields and self._producer.version == 4:
            await self._producer.close()
            self._producer = await Peer.connect(self._address, f"{self.topic}-producer", 5)
        said: list[tuple[str, str]] = []
        for name, given in fields.items():
            if name == "headers":
                said += given.items()
            else:
                said.append(({"key": "partition-key", "dedup_id": "dedup-id"}.get(name, name), str(given)))
        properties = {"user_properties": said} if said else {}
        answer = await self._producer.publish(f"$queue/{self.topic}", value.encode(), 1, **properties)
        assert isinstance(answer, PubAck)
        assert answer.reason < 0x80

    async def take(self) -> Taken:
        if self._consumer is None:
            self._consumer = await Peer.connect(self._address, f"{self.topic}-consumer", self.version)
            options = {"user_properties": [("prefetch", "1")]} if self.version == 5 else {}
            if self.version == 5:
                options["user_properties"] = [("prefetch", "10")]
            await self._consumer.subscribe(f"$queue/{self.topic}/$group/{GROUP}", 1, **options)
        message = self._early.pop(0) if self._early else await self._consumer.message()
        if self.version == 4:
            message_id = message.topic.rpartition("/")[2]
            return Taken(message.payload.decode(), None, None, None, None, message_id)
        said = dict((message.properties or {})["user_properties"])
        own = {"message-id", "attempt", "partition", "offset", "consumer-group", "partition-key", "priority"}
        headers = {name: text for name, text in said.items() if name not in own}
        priority = int(said.get("priority", "5"))
        key, attempt = said.get("partition-key"), int(said["attempt"])
        return Taken(message.payload.decode(), attempt, key, priority, headers, said["message-id"])

    async def settle(self, handle: Any, verb: str, options: dict[str, str]) -> str:
        assert self._consumer is not None
        consumer = self._consumer
        topic, payload = f"$queue/{self.topic}/$group/{GROUP}/${verb}", b""
        packet_id = consumer.packet_id()
        if self.version == 4:
            topic += f"/{handle}"
            span = options.get("delay") or options.get("by")
            topic += f"/{span}" if span else ""
            payload = options.get("error", "").encode()
            consumer.send(Publish(topic, payload, 1, packet_id=packet_id))
        else:
            said = [("message-id", handle), *options.items()]
            consumer.send(Publish(topic, payload, 1, packet_id=packet_id, properties={"user_properties": said}))
        while not isinstance(answer := await consumer.receive(), PubAck):  # the next delivery may come first
            assert isinstance(answer, Publish)
            consumer.send(PubAck(answer.packet_id))
            self._early.append(answer)
        if self.version == 4:
            return UNSAID
        return OK if answer.reason < 0x80 else "lease_lost"

    async def leave(self) -> None:
        consumer, self._consumer = self._consumer, None
        self._early.clear()
        if consumer is not None:
            await consumer.leave()

    async def close(self) -> None:
        await self.leave()
        if self._producer is not None:
            await self._producer.close()


KINDS = ("embedded", "native", "HTTP", "MQTT 3.1.1", "MQTT 5")


def entry(kind: str, topic: str, client: Any, addresses: Any) -> Entry:
    """A door, by name. ``client``: the library's, which looks at traces too."""
    match kind:
        case "HTTP":
            return HttpEntry(topic, addresses["http"])
        case "MQTT 3.1.1":
            return MqttEntry(topic, addresses["mqtt"], 4)
        case "MQTT 5":
            return MqttEntry(topic, addresses["mqtt"], 5)
        case _:
            return SdkEntry(topic, client)


async def told(kind: str, url: str | None) -> Any:
    """The library's client that looks at what a door did."""
    if kind == "embedded":
        return await headrace.aio.open(":memory:")
    return await headrace.aio.connect(url)
