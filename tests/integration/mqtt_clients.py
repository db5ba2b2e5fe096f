"""Clients that others made, behind one face: connect, subscribe, publish, take messages, be cut off.

Which of them are there is asked of the machine: paho, aiomqtt and gmqtt come with the test extra; mqtt.js needs node
and the package (``MQTT_JS_NODE_MODULES`` or a global one); mosquitto_pub and mosquitto_sub are a Debian package.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

WAIT_S = 30


class Message(NamedTuple):
    topic: str
    payload: bytes
    qos: int
    retain: bool


class RealClient:
    """One client of one kind. ``version`` 4 or 5."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.inbox: asyncio.Queue[Message] = asyncio.Queue()
        self.is_connected = False

    async def connect(
        self, address: str, client_id: str, *, lasts: bool = False, will: tuple[str, bytes] | None = None
    ) -> None:
        raise NotImplementedError

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        raise NotImplementedError

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        """Returns when its handshake is over."""
        raise NotImplementedError

    async def begin(self, address: str, client_id: str, **options: Any) -> None:
        """``connect``, remembered for who tidies up."""
        self.is_connected = True
        await self.connect(address, client_id, **options)

    async def message(self) -> Message:
        async with asyncio.timeout(WAIT_S):
            return await self.inbox.get()

    async def drop(self) -> None:
        """Cut off without a word."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


class Paho(RealClient):
    """paho-mqtt with its own thread."""

    async def connect(
        self, address: str, client_id: str, *, lasts: bool = False, will: tuple[str, bytes] | None = None
    ) -> None:
        from paho.mqtt.client import CallbackAPIVersion, Client, MQTTv5, MQTTv311
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        self._loop = asyncio.get_running_loop()
        five = self.version == 5
        options = {} if five else {"clean_session": not lasts}
        self._client = client = Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            protocol=MQTTv5 if five else MQTTv311,
            reconnect_on_failure=False,
            **options,
        )
        if will is not None:
            client.will_set(will[0], will[1], 1)
        connected = self._loop.create_future()
        self._acks: dict[int, asyncio.Future[None]] = {}
        client.on_connect = lambda *_: self._soon(connected.set_result, None)
        client.on_message = lambda _c, _u, m: self._soon(
            self.inbox.put_nowait, Message(m.topic, m.payload, m.qos, bool(m.retain))
        )
        client.on_subscribe = lambda _c, _u, mid, *_: self._soon(self._done, mid)
        client.on_publish = lambda _c, _u, mid, *_: self._soon(self._done, mid)
        host, port = _split(address)
        if five:
            said = Properties(PacketTypes.CONNECT)
            said.SessionExpiryInterval = 3600 if lasts else 0
            client.connect(host, port, clean_start=not lasts, properties=said)
        else:
            client.connect(host, port)
        client.loop_start()
        async with asyncio.timeout(WAIT_S):
            await connected

    def _soon(self, function: Any, *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)

    def _future(self, mid: int) -> asyncio.Future[None]:
        return self._acks.setdefault(mid, self._loop.create_future())

    def _done(self, mid: int) -> None:
        self._future(mid).set_result(None)

    async def _answered(self, mid: int) -> None:
        async with asyncio.timeout(WAIT_S):
            await self._future(mid)

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        await self._answered(self._client.subscribe(topic_filter, qos)[1] or 0)

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        await self._answered(self._client.publish(topic, payload, qos, retain).mid)

    async def drop(self) -> None:
        sock = self._client.socket()
        if sock is not None:
            sock.shutdown(socket.SHUT_RDWR)
        await asyncio.to_thread(self._client.loop_stop)

    async def close(self) -> None:
        self._client.disconnect()
        await asyncio.to_thread(self._client.loop_stop)


class AioMqtt(RealClient):
    """aiomqtt."""

    async def connect(
        self, address: str, client_id: str, *, lasts: bool = False, will: tuple[str, bytes] | None = None
    ) -> None:
        import aiomqtt
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        host, port = _split(address)
        options: dict[str, Any]
        if self.version == 5:
            said = Properties(PacketTypes.CONNECT)
            said.SessionExpiryInterval = 3600 if lasts else 0
            options = {"protocol": aiomqtt.ProtocolVersion.V5, "clean_start": not lasts, "properties": said}
        else:
            options = {"protocol": aiomqtt.ProtocolVersion.V311, "clean_session": not lasts}
        if will is not None:
            options["will"] = aiomqtt.Will(will[0], will[1], 1)
        self._client = aiomqtt.Client(host, port, identifier=client_id, **options)
        await self._client.__aenter__()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        import aiomqtt

        with suppress(aiomqtt.MqttError):
            async for m in self._client.messages:
                self.inbox.put_nowait(Message(str(m.topic), m.payload, m.qos, bool(m.retain)))

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        await self._client.subscribe(topic_filter, qos)

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        await self._client.publish(topic, payload, qos, retain)

    async def drop(self) -> None:
        sock = self._client._client.socket()
        if sock is not None:
            sock.shutdown(socket.SHUT_RDWR)
        await self.close()

    async def close(self) -> None:
        import aiomqtt

        self._reader.cancel()
        with suppress(asyncio.CancelledError):
            await self._reader
        with suppress(aiomqtt.MqttError):
            await self._client.__aexit__(None, None, None)


class Gmqtt(RealClient):
    """gmqtt."""

    async def connect(
        self, address: str, client_id: str, *, lasts: bool = False, will: tuple[str, bytes] | None = None
    ) -> None:
        import gmqtt
        from gmqtt.mqtt.constants import MQTTv50, MQTTv311

        options: dict[str, Any] = {"session_expiry_interval": 3600} if lasts and self.version == 5 else {}
        if will is not None:
            options["will_message"] = gmqtt.Message(will[0], will[1], qos=1)
        self._client = client = gmqtt.Client(client_id, clean_session=not lasts, **options)
        client.set_config({"reconnect_retries": 0})
        self._subscribed: asyncio.Queue[int] = asyncio.Queue()
        client.on_message = self._on_message
        client.on_subscribe = lambda _c, mid, *_: self._subscribed.put_nowait(mid)
        host, port = _split(address)
        await client.connect(host, port, version=MQTTv50 if self.version == 5 else MQTTv311)

    def _on_message(self, _client: Any, topic: str, payload: bytes, qos: int, properties: dict[str, Any]) -> int:
        self.inbox.put_nowait(Message(topic, bytes(payload), qos, bool(properties.get("retain"))))
        return 0

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        self._client.subscribe(topic_filter, qos)
        async with asyncio.timeout(WAIT_S):
            await self._subscribed.get()

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        import gmqtt

        self._client.publish(gmqtt.Message(topic, payload, qos=qos, retain=retain))
        async with asyncio.timeout(WAIT_S):
            await self._client._persistent_storage.wait_empty()

    async def drop(self) -> None:
        self._client._connection._transport.abort()
        await asyncio.sleep(0)

    async def close(self) -> None:
        await self._client.disconnect()


_SCRIPT = """
const mqtt = require('mqtt');
const out = (o) => process.stdout.write(JSON.stringify(o) + '\\n');
let client;
require('readline').createInterface({input: process.stdin}).on('line', (line) => {
  const c = JSON.parse(line);
  if (c.do === 'connect') {
    const o = {protocolVersion: c.version, clientId: c.id, clean: !c.lasts, reconnectPeriod: 0};
    if (c.version === 5 && c.lasts) o.properties = {sessionExpiryInterval: 3600};
    if (c.will) o.will = {topic: c.will[0], payload: Buffer.from(c.will[1], 'base64'), qos: 1};
    client = mqtt.connect(c.url, o);
    client.on('connect', () => out({done: 'connect'}));
    client.on('error', (e) => out({error: String(e)}));
    client.on('message', (t, p, k) => out({topic: t, payload: p.toString('base64'), qos: k.qos, retain: k.retain}));
  } else if (c.do === 'subscribe') {
    client.subscribe(c.filter, {qos: c.qos}, (e) => out(e ? {error: String(e)} : {done: 'subscribe'}));
  } else if (c.do === 'publish') {
    client.publish(c.topic, Buffer.from(c.payload, 'base64'), {qos: c.qos, retain: c.retain},
                   (e) => out(e ? {error: String(e)} : {done: 'publish'}));
  } else if (c.do === 'close') client.end(false, {}, () => process.exit(0));
});
"""


@cache
def node_modules() -> str | None:
    """Where mqtt.js is."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return None
    candidates = [os.environ.get("MQTT_JS_NODE_MODULES", "")]
    found = subprocess.run(["npm", "root", "-g"], capture_output=True, text=True, check=False)
    candidates.append(found.stdout.strip())
    return next((place for place in candidates if place and (Path(place) / "mqtt").is_dir()), None)


class MqttJs(RealClient):
    """mqtt.js in a process of its own, told what to do line by line."""

    async def connect(
        self, address: str, client_id: str, *, lasts: bool = False, will: tuple[str, bytes] | None = None
    ) -> None:
        import base64

        self._process = await asyncio.create_subprocess_exec(
            "node",
            "-e",
            _SCRIPT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "NODE_PATH": node_modules() or ""},
        )
        self._done: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())
        said = [will[0], base64.b64encode(will[1]).decode()] if will is not None else None
        url = address if "://" in address else f"mqtt://{address}"
        await self._ask(do="connect", url=url, id=client_id, version=self.version, lasts=lasts, will=said)

    async def _read(self) -> None:
        import base64

        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said = json.loads(line)
            if "topic" in said:
                payload = base64.b64decode(said["payload"])
                self.inbox.put_nowait(Message(said["topic"], payload, said["qos"], said["retain"]))
            else:
                self._done.put_nowait(said)

    async def _ask(self, **command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        async with asyncio.timeout(WAIT_S):
            answer = await self._done.get()
        assert "error" not in answer, answer

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        await self._ask(do="subscribe", filter=topic_filter, qos=qos)

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        import base64

        await self._ask(do="publish", topic=topic, payload=base64.b64encode(payload).decode(), qos=qos, retain=retain)

    async def drop(self) -> None:
        self._process.kill()
        await self._end()

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b'{"do":"close"}\n')
        await self._end()

    async def _end(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self._process.wait()
            await self._reader


class MosquittoTools(RealClient):
    """mosquitto_sub for what comes, mosquitto_pub for each message."""

    async def connect(
        self, address: str, client_id: str, *, lasts: bool = False, will: tuple[str, bytes] | None = None
    ) -> None:
        host, port = _split(address)
        version = "mqttv5" if self.version == 5 else "mqttv311"
        self._place = ["-h", host, "-p", str(port), "-V", version]
        self._options = ["-i", client_id, *(["-c"] if lasts else [])]
        if lasts and self.version == 5:
            self._options += ["-x", "3600"]
        if will is not None:
            self._options += ["--will-topic", will[0], "--will-payload", will[1].decode(), "--will-qos", "1"]
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        if lasts or will is not None:
            await self.subscribe(f"{client_id}/unused", 0)

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        await self._end(signal.SIGKILL)
        # -d tells when the subscription stands
        self._process = await asyncio.create_subprocess_exec(
            *("stdbuf", "-oL", "mosquitto_sub", *self._place, *self._options, "-d"),
            *("-t", topic_filter, "-q", str(qos), "-F", "=%j"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        subscribed = asyncio.Event()
        self._reader = asyncio.create_task(self._read(self._process, subscribed))
        async with asyncio.timeout(WAIT_S):
            await subscribed.wait()

    async def _read(self, process: asyncio.subprocess.Process, subscribed: asyncio.Event) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.startswith(b"="):
                said = json.loads(line[1:])
                payload = said.get("payload", "").encode()
                self.inbox.put_nowait(Message(said["topic"], payload, said["qos"], bool(said["retain"])))
            elif b"Subscribed" in line:
                subscribed.set()

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(payload)
            file.flush()
            body = ["-f", file.name] if payload else ["-n"]
            process = await asyncio.create_subprocess_exec(
                *("mosquitto_pub", *self._place, "-t", topic, "-q", str(qos), *body, *(["-r"] if retain else []))
            )
            async with asyncio.timeout(WAIT_S):
                assert await process.wait() == 0

    async def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError):
                process.send_signal(number)
            async with asyncio.timeout(WAIT_S):
                await process.wait()
                if self._reader is not None:
                    await self._reader
            self._process = None

    async def drop(self) -> None:
        await self._end(signal.SIGKILL)

    async def close(self) -> None:
        await self._end(signal.SIGTERM)


KINDS: dict[str, tuple[type[RealClient], int]] = {
    "paho 3.1.1": (Paho, 4),
    "paho 5": (Paho, 5),
    "aiomqtt 3.1.1": (AioMqtt, 4),
    "aiomqtt 5": (AioMqtt, 5),
    "gmqtt 3.1.1": (Gmqtt, 4),
    "gmqtt 5": (Gmqtt, 5),
    "mqtt.js 3.1.1": (MqttJs, 4),
    "mqtt.js 5": (MqttJs, 5),
    "mosquitto tools 3.1.1": (MosquittoTools, 4),
    "mosquitto tools 5": (MosquittoTools, 5),
}


def make(kind: str) -> RealClient:
    """A client, or the test is skipped."""
    made, version = KINDS[kind]
    if made is MqttJs and node_modules() is None:
        pytest.skip("mqtt.js is not there (node, npm install -g mqtt)")
    if made is MosquittoTools and shutil.which("mosquitto_sub") is None:
        pytest.skip("mosquitto_sub is not there (apt-get install mosquitto-clients)")
    if made is Gmqtt:
        pytest.importorskip("gmqtt")
    if made is AioMqtt:
        pytest.importorskip("aiomqtt")
    return made(version)
