"""The books over all doors: the same topic published by native, HTTP and MQTT clients and consumed by all three, each
message settled as chance has it, with kills in between. Whatever was confirmed is acked or dead exactly once in the
end, ``headrace verify`` finds the books balanced, and the server's own drift is zero.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import headrace
from headrace.batch import Batch, Message
from headrace.errors import HeadraceError
from headrace.wire import mqtt, native
from integration.mqtt_peer import Ended
from integration.mqtt_peer import Peer as MqttPeer
from integration.native_peer import Peer
from reliability.broker import BrokerProcess, verify
from reliability.report import Report

__all__ = ["books"]

TOPIC: Final = "orders"
GROUP: Final = "crew"
QUIET_S: Final = 5
SETTINGS: Final = {
    "lease": "2s",
    "ordering": "none",
    "retry.max_retries": 3,
    "retry.initial_backoff": "100ms",
    "retry.max_backoff": "300ms",
    "retry.total_timeout": "none",
}
VERBS: Final = ("ack", "nack", "reject", "release", "forget")
WEIGHTS: Final = (100, 6, 2, 4, 1)
_BROKEN: Final = (HeadraceError, OSError, TimeoutError, Ended, EOFError, asyncio.IncompleteReadError)


class _Http:
    """One keep-alive connection."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: Any) -> dict[str, Any]:
        """The answer's body, with ``status``. Raises OSError when the connection ends."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(content)}\r\n\r\n"
        self._writer.write(head.encode() + content)
        async with asyncio.timeout(60):
            answer = await self._reader.readuntil(b"\r\n\r\n")
            lines = answer.decode().split("\r\n")
            length = next(int(line[15:]) for line in lines if line.lower().startswith("content-length:"))
            return {**json.loads(await self._reader.readexactly(length)), "status": int(lines[0].split()[1])}

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()


class _Play:
    def __init__(self, broker: BrokerProcess, seed: int, report: Report) -> None:
        self.broker = broker
        self.seed = seed
        self.report = report
        self.confirmed: set[str] = set()
        self.sent: set[str] = set()
        self.acked: set[str] = set()
        self.maybe: set[str] = set()
        self.rejected: set[str] = set()
        self.attempts: dict[str, int] = {}
        self.publishing, self.wild, self.over = True, True, False
        self.seen_at = time.monotonic()

    # -- each client of each door ----------------------------------------------------------------------------------

    async def repeat(self, work: Any, name: str) -> None:
        """Again after every break."""
        number = 0
        while not self.over and (self.publishing or not name.startswith("produce")):
            number += 1
            try:
                await work(random.Random(f"{self.seed}/{name}/{number}"), f"{name}-{number}")
            except _BROKEN:
                self.report.tried["breaks"] += 1
                await asyncio.sleep(0.02)

    async def produce_native(self, chance: random.Random, name: str) -> None:
        peer = await Peer.open(self.broker.address())
        try:
            number = 0
            while self.publishing:
                texts = [f"{name}:{number + i}" for i in range(chance.randint(1, 20))]
                number += len(texts)
                self.sent.update(texts)
                await peer.publish(TOPIC, [Message(text.encode()) for text in texts])
                self._confirm(texts)
                await asyncio.sleep(0.01)
        finally:
            await peer.abandon()

    async def produce_http(self, chance: random.Random, name: str) -> None:
        http = _Http(self.broker.address("http"))
        try:
            number = 0
            while self.publishing:
                texts = [f"{name}:{number + i}" for i in range(chance.randint(1, 20))]
                number += len(texts)
                self.sent.update(texts)
                answer = await http.post(
                    f"/v1/topics/{TOPIC}/messages", {"messages": [{"value": text} for text in texts]}
                )
                if answer["status"] < 300:
                    self._confirm(texts)
                await asyncio.sleep(0.01)
        finally:
            http.close()

    async def produce_mqtt(self, chance: random.Random, name: str) -> None:
        client = await MqttPeer.connect(self.broker.address("mqtt"), name, chance.choice((4, 5)))
        try:
            number = 0
            while self.publishing:
                texts = {}
                for _ in range(chance.randint(1, 20)):
                    packet_id = number % 60_000 + 1
                    texts[packet_id] = f"{name}:{number}"
                    number += 1
                self.sent.update(texts.values())
                for packet_id, text in texts.items():
                    client.send(mqtt.Publish(f"$queue/{TOPIC}", text.encode(), qos=1, packet_id=packet_id))
                for _ in texts:
                    ack = await client.receive()
                    assert isinstance(ack, mqtt.PubAck), ack
                    if ack.reason < 0x80:
                        self._confirm([texts[ack.packet_id]])
                await asyncio.sleep(0.01)
        finally:
            client.writer.transport.abort()

    async def consume_native(self, chance: random.Random, name: str) -> None:
        peer = await Peer.open(self.broker.address())
        scope = native.Scope("", TOPIC, GROUP, name)
        codes = {
            "ack": native.Verb.ACK,
            "nack": native.Verb.NACK,
            "reject": native.Verb.REJECT,
            "release": native.Verb.RELEASE,
        }
        try:
            while not self.over:
                leased = await peer.ask(peer.session.send_lease(scope, chance.randint(1, 30), wait_ns=100_000_000))
                values = [
                    batch.value(i).decode()
                    for b in leased.batches
                    for batch in [Batch.decode(bytes(b))]
                    for i in range(batch.count)
                ]
                runs = [(p, lease, first + i, 1) for p, lease, first, count, _ in leased.runs for i in range(count)]
                for verb, those in self._decide(chance, list(zip(values, runs, strict=True))).items():
                    texts = [text for text, _ in those]
                    self._before(verb, texts)
                    action = native.Action(
                        codes[verb], scope, [run for _, run in those], native.BY_POLICY if verb == "nack" else 0
                    )
                    settled = await peer.ask(peer.session.send_settle([action]))
                    if not settled.refusals:
                        self._after(verb, texts)
        finally:
            await peer.abandon()

    async def consume_http(self, chance: random.Random, name: str) -> None:
        http = _Http(self.broker.address("http"))
        path = f"/v1/topics/{TOPIC}/groups/{GROUP}"
        try:
            while not self.over:
                order = {"max": chance.randint(1, 30), "wait": "100ms", "consumer": name}
                answer = await http.post(f"{path}/lease", order)
                got = [(each["value"], each["receipt"]) for each in answer.get("deliveries", ())]
                for verb, those in self._decide(chance, got).items():
                    texts, receipts = [text for text, _ in those], [receipt for _, receipt in those]
                    self._before(verb, texts)
                    bare = verb in ("ack", "release")
                    settled = await http.post(
                        f"{path}/settle", {verb: receipts if bare else [{"receipt": r} for r in receipts]}
                    )
                    if settled["status"] == 200 and not settled.get("refused"):
                        self._after(verb, texts)
                if not got:
                    await asyncio.sleep(0.02)
        finally:
            http.close()

    async def consume_mqtt(self, chance: random.Random, name: str) -> None:
        client = await MqttPeer.connect(self.broker.address("mqtt"), name)
        try:
            client.send(mqtt.Subscribe(1, [mqtt.Subscription(f"$queue/{TOPIC}/$group/{GROUP}", 1)]))
            waiting: dict[int, tuple[str, str]] = {}
            number = 1
            while not self.over:
                packet = await client.receive()
                if isinstance(packet, mqtt.PubAck):
                    verb, text = waiting.pop(packet.packet_id, ("", ""))
                    if verb and packet.reason < 0x80:
                        self._after(verb, [text])
                    continue
                if not isinstance(packet, mqtt.Publish):
                    continue
                text = bytes(packet.payload).decode()
                if packet.qos:
                    client.send(mqtt.PubAck(packet.packet_id))
                message_id = dict((packet.properties or {}).get("user_properties", ()))["message-id"]
                for verb in self._decide(chance, [(text, message_id)]):
                    number = number % 60_000 + 1
                    waiting[number] = (verb, text)
                    self._before(verb, [text])
                    client.send(
                        mqtt.Publish(
                            f"$queue/{TOPIC}/$group/{GROUP}/${verb}/{message_id}", b"", qos=1, packet_id=number
                        )
                    )
        finally:
            client.writer.transport.abort()

    # -- the ledger ------------------------------------------------------------------------------------------------

    def _confirm(self, texts: Any) -> None:
        self.confirmed.update(texts)
        self.report.tried["confirmed"] += len(texts)

    def _decide(self, chance: random.Random, got: list[tuple[str, Any]]) -> dict[str, list[tuple[str, Any]]]:
        if got:
            self.seen_at = time.monotonic()
        chosen: dict[str, list[tuple[str, Any]]] = {}
        for text, receipt in got:
            self.report.tried["delivered"] += 1
            if text not in self.sent:
                self.report.violate(f"unknown: {text!r} was never published")
            if text in self.acked:
                self.report.violate(f"resurrected: {text} came after its ack was confirmed")
            verb = chance.choices(VERBS, WEIGHTS)[0] if self.wild else "ack"
            if verb != "forget":
                chosen.setdefault(verb, []).append((text, receipt))
        return chosen

    def _before(self, verb: str, texts: list[str]) -> None:
        if verb == "ack":
            self.maybe.update(texts)

    def _after(self, verb: str, texts: list[str]) -> None:
        self.report.tried[f"{verb}ed" if verb != "release" else "released"] += len(texts)
        if verb == "ack":
            self.acked.update(texts)
        elif verb == "reject":
            self.rejected.update(texts)

    def balance(self, dead: Counter[str]) -> None:
        report = self.report
        for text, count in dead.items():
            report.hold(count == 1, f"{text} is {count} times among the dead letters")
            report.hold(text not in self.acked, f"{text} is dead, and its ack was confirmed")
        lost = self.confirmed - self.maybe - self.acked - dead.keys()
        report.hold(not lost, f"{len(lost)} were confirmed and are neither acked nor dead: {sorted(lost)[:5]}")
        gone = self.rejected - dead.keys()
        report.hold(not gone, f"{len(gone)} rejections were confirmed and are no dead letters: {sorted(gone)[:5]}")
        report.tried["dead"] = len(dead)


def books(directory: Path, seed: int, scale: float = 1) -> Report:
    """Promise 5 over every door; ``scale`` 1 is 60 s with a kill every few seconds."""
    report = Report("books", "native, HTTP and MQTT at one topic, with kills", "books balance, drift 0", seed)
    broker = BrokerProcess(
        directory, doors=("native", "http", "mqtt"), settings=("seal.behind=64KiB", "seal.interval=1s")
    )
    try:
        broker.start()
        play = _Play(broker, seed, report)
        asyncio.run(_play(play, random.Random(seed), max(4.0, 60 * scale)))
        dead: Counter[str] = Counter()
        with headrace.connect(broker.url) as client:
            stats = client.stats()
            report.hold(stats["drift"] == 0, f"drift {stats['drift']}")
            for letter in client.topic(f"dlq/{TOPIC}").read():
                dead[letter.value.decode()] += 1
        play.balance(dead)
        report.hold(broker.stop() == 0, "the server did not stop cleanly")
        ok, said = verify(broker.data)
        report.hold(ok, f"verify: {said[:500]}")
        report.figures["median restart, s"] = round(sorted(broker.restart_seconds)[len(broker.restart_seconds) // 2], 2)
    finally:
        broker.kill()
    return report


async def _play(play: _Play, rng: random.Random, seconds: float) -> None:
    broker = play.broker
    peer = await Peer.open(broker.address())
    await peer.call("topic.create", topic=TOPIC, settings=dict(SETTINGS))
    await peer.call("group.create", topic=TOPIC, group=GROUP, settings={})
    await peer.close()
    tasks = [
        asyncio.create_task(play.repeat(work, f"{work.__name__.replace('_', '-')}-{i}"))
        for work in (
            play.produce_native,
            play.produce_http,
            play.produce_mqtt,
            play.consume_native,
            play.consume_http,
            play.consume_mqtt,
        )
        for i in range(2)
    ]
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(rng.uniform(1, 4))
            broker.kill()
            await asyncio.to_thread(broker.start)
            play.report.tried["kills"] += 1
            _raise_first(tasks)
        play.publishing = False
        await asyncio.sleep(0.5)
        play.wild = False
        play.seen_at = time.monotonic()
        while time.monotonic() - play.seen_at < QUIET_S:
            _raise_first(tasks)
            await asyncio.sleep(0.1)
    finally:
        play.over = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _raise_first(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error
