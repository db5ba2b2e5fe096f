"""A load generator for MQTT: raw sockets, packets encoded beforehand, answers counted by their bytes.

Run as a process of its own (``python -m bench.mqtt_load ADDRESS WORKLOAD SECONDS``); prints one JSON object. It does as
little as a client can, so that what is measured is the server: packets of one workload have one size each, so nothing
is parsed; acknowledgements are made by slices.
"""

from __future__ import annotations

import json
import re
import resource
import selectors
import socket
import sys
import time
from collections.abc import Callable

from headrace.wire.mqtt import (
    NEED_MORE,
    Connect,
    Packet,
    Subscribe,
    Subscription,
    build,
    build_publish,
    parse,
)

PAYLOAD = bytes(200)
TOPIC = "sensors/building-7/attic"
CHUNK = 100
"""Packets of one send."""
WARM_UP_S = 1.0
CONNECTS_AT_ONCE = 100


class Wire:
    """One connection."""

    def __init__(self, address: tuple[str, int], client_id: str, **properties: int) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""
        self.unsent = b""
        self.sent = 0
        self.received_bytes = 0
        self.ask(Connect(client_id, 5, properties=properties or None))  # type: ignore[arg-type]

    def ask(self, packet: Packet) -> Packet:
        """One packet and its answer, while the socket still blocks."""
        self.socket.sendall(build(packet, 5))
        while True:
            answer, end = parse(self.rest, 0, 5)
            if answer is not NEED_MORE:
                self.rest = self.rest[end:]
                assert isinstance(answer, Packet), answer
                return answer
            self.rest += self.socket.recv(65_536)

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self.ask(Subscribe(1, (Subscription(topic_filter, qos),)))

    def push(self, data: bytes = b"") -> bool:
        """Send, or keep for later; whether all of it is gone."""
        if self.unsent:
            data = self.unsent + data
        try:
            taken = self.socket.send(data) if data else 0
        except BlockingIOError:
            taken = 0
        self.unsent = data[taken:]
        return not self.unsent

    def take(self) -> bytes:
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return b""
        if not data:
            raise RuntimeError("the server has closed a connection")
        return data


def chunks(topic: str, qos: int, count: int) -> list[bytes]:
    """``count`` sends of `CHUNK` packets with identifiers of their own."""
    return [
        b"".join(
            build_publish(topic, PAYLOAD, qos, False, False, 1 + part * CHUNK + n if qos else 0, None, 5)
            for n in range(CHUNK)
        )
        for part in range(count)
    ]


def packet_bytes(topic: str, qos: int) -> int:
    return len(build_publish(topic, PAYLOAD, qos, False, False, 1 if qos else 0, None, 5))


class Publisher:
    """Keeps ``window`` messages on their way; ``done`` is how many came out at the other end (QoS 0) or were
    acknowledged (QoS 1)."""

    def __init__(self, wire: Wire, topic: str, qos: int, window: int) -> None:
        self.wire = wire
        self.parts = chunks(topic, qos, window // CHUNK)
        self.qos = qos
        self.window = window
        self.turn = 0
        self.done = 0

    def fill(self) -> None:
        wire = self.wire
        while not wire.unsent and wire.sent + CHUNK - self.done <= self.window:
            wire.push(self.parts[self.turn])
            self.turn = (self.turn + 1) % len(self.parts)
            wire.sent += CHUNK

    def acknowledged(self) -> None:
        """PUBACKs of four bytes each."""
        self.wire.received_bytes += len(self.wire.take())
        self.done = self.wire.received_bytes // 4


class Subscriber:
    """Counts messages of one size; with QoS 1 acknowledges them."""

    def __init__(self, wire: Wire, topic: str, qos: int) -> None:
        self.wire = wire
        self.qos = qos
        self.size = packet_bytes(topic, qos)
        self.at = self.size - len(PAYLOAD) - 3  # of the packet identifier; one byte of no properties follows it
        self.messages = 0

    def taken(self) -> None:
        wire, size = self.wire, self.size
        data = wire.take()
        if not self.qos:
            wire.received_bytes += len(data)
            self.messages = wire.received_bytes // size
            return
        data = wire.rest + data
        count = len(data) // size
        if count:
            acks = bytearray(b"\x40\x02\x00\x00" * count)
            acks[2::4] = data[self.at : count * size : size]
            acks[3::4] = data[self.at + 1 : count * size : size]
            wire.push(bytes(acks))
            self.messages += count
        wire.rest = data[count * size :]


def run(
    wires: dict[Wire, Callable[[], None]], fill: Callable[[], None], count: Callable[[], int], seconds: float
) -> float:
    """Serve all sockets for a while; what ``count`` grows by in a second, after a warm-up."""
    selector = selectors.DefaultSelector()
    for wire, taken in wires.items():
        wire.socket.setblocking(False)
        selector.register(wire.socket, selectors.EVENT_READ, (wire, taken))
    start = time.perf_counter() + WARM_UP_S
    end = start + seconds
    counted = -1
    began = 0.0
    while (now := time.perf_counter()) < end:
        if counted < 0 and now >= start:
            counted, began = count(), now
        fill()
        for key, _ in selector.select(0.002):
            wire, taken = key.data
            taken()
        for wire in wires:
            if wire.unsent:
                wire.push()
    return (count() - counted) / (time.perf_counter() - began)


def fan_in(address: tuple[str, int], qos: int, seconds: float, publishers: int = 20) -> dict[str, float]:
    """Many publishers, one subscriber."""
    reader = Wire(address, "reader", receive_maximum=65_535)
    reader.subscribe(TOPIC, qos)
    subscriber = Subscriber(reader, TOPIC, qos)
    window = 200 if qos else 400
    senders = [Publisher(Wire(address, f"p{n}"), TOPIC, qos, window) for n in range(publishers)]
    wires = {reader: subscriber.taken, **{sender.wire: sender.acknowledged for sender in senders}}

    def fill() -> None:
        if not qos:  # nothing says that one arrived but its arrival; a share for each
            done = subscriber.messages // publishers
            for sender in senders:
                sender.done = done
        elif sum(sender.wire.sent for sender in senders) - subscriber.messages > window * publishers:
            return
        for sender in senders:
            sender.fill()

    return {"messages": run(wires, fill, lambda: subscriber.messages, seconds)}


def fan_out(address: tuple[str, int], seconds: float, subscribers: int = 50) -> dict[str, float]:
    """One publisher, many subscribers, QoS 0."""
    readers = [Subscriber(Wire(address, f"s{n}"), TOPIC, 0) for n in range(subscribers)]
    for reader in readers:
        reader.wire.subscribe(TOPIC, 0)
    sender = Publisher(Wire(address, "p"), TOPIC, 0, 2_000)
    wires = {sender.wire: sender.acknowledged, **{reader.wire: reader.taken for reader in readers}}

    def fill() -> None:
        sender.done = min(reader.messages for reader in readers)
        sender.fill()

    return {"deliveries": run(wires, fill, lambda: sum(reader.messages for reader in readers), seconds)}


def queue_publish(address: tuple[str, int], seconds: float, publishers: int = 20) -> dict[str, float]:
    """Durable: counted by their acknowledgements."""
    senders = [Publisher(Wire(address, f"p{n}"), "$queue/bench", 1, 1_000) for n in range(publishers)]
    wires = {sender.wire: sender.acknowledged for sender in senders}

    def fill() -> None:
        for sender in senders:
            sender.fill()

    return {"messages": run(wires, fill, lambda: sum(sender.done for sender in senders), seconds)}


_IDS_BEGIN = b"\x00\x0amessage-id\x00\x12"
_IDS = re.compile(re.escape(_IDS_BEGIN) + rb"(\d{18})")


class Consumer:
    """Takes deliveries of a queue and settles each, with one publish or with as many ids as a publish may name."""

    def __init__(self, wire: Wire, topic: str, at_once: int) -> None:
        self.wire = wire
        self.topic = topic.encode()
        self.at_once = at_once
        self.settled = 0
        self.head = self._head(1)[:-18]
        self.ids: list[bytes] = []

    def _head(self, count: int) -> bytes:
        """Of a QoS 0 PUBLISH to ``$ack`` with so many ids of 18 digits."""
        properties: list[tuple[str, str]] = [("message-id", "0" * 18)] * count
        return build_publish(
            (self.topic + b"/$ack").decode(), b"", 0, False, False, 0, {"user_properties": properties}, 5
        )

    def taken(self) -> None:
        wire = self.wire
        data = wire.rest + wire.take()
        ids = _IDS.findall(data)  # no payload holds such bytes
        wire.rest = data[data.rfind(ids[-1]) + 18 :] if ids else data
        if self.at_once == 1:
            wire.push(b"".join([self.head + one for one in ids]))
            self.settled += len(ids)
            return
        self.ids += ids
        out = []
        while len(self.ids) >= self.at_once:
            now, self.ids = self.ids[: self.at_once], self.ids[self.at_once :]
            out.append(self._many(now))
            self.settled += len(now)
        wire.push(b"".join(out))

    def _many(self, ids: list[bytes]) -> bytes:
        frame = self._head(len(ids))
        return frame[: -len(ids) * 33] + b"".join(b"\x26\x00\x0amessage-id\x00\x12" + one for one in ids)


def queue_consume(address: tuple[str, int], at_once: int, seconds: float, consumers: int = 4) -> dict[str, float]:
    """A backlog, consumed at QoS 0 (the lease is what makes it safe) and settled."""
    filler = Publisher(Wire(address, "filler"), "$queue/work", 1, 1_000)
    backlog = 600_000

    def fill() -> None:
        if filler.wire.sent < backlog:
            filler.fill()

    filler.wire.socket.setblocking(False)
    while filler.done < backlog:
        fill()
        filler.wire.push()
        filler.acknowledged()
    workers = [
        Consumer(Wire(address, f"worker-{n}", receive_maximum=2_000), "$queue/work", at_once) for n in range(consumers)
    ]
    for worker in workers:
        worker.wire.subscribe("$queue/work", 0)
    wires = {worker.wire: worker.taken for worker in workers}
    rate = run(wires, lambda: None, lambda: sum(worker.settled for worker in workers), seconds)
    return {"messages": rate, "left": float(backlog - sum(worker.settled for worker in workers))}


def idle(address: tuple[str, int], count: int) -> dict[str, float]:
    """Connects, many at a time; stays until a line comes in."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 100:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count + 100, hard), hard))
    sockets: list[socket.socket] = []
    start = time.perf_counter()
    while len(sockets) < count:
        several = []
        for number in range(min(CONNECTS_AT_ONCE, count - len(sockets))):
            one = socket.create_connection(address)
            one.sendall(build(Connect(f"idle-{len(sockets) + number}", 5, keep_alive_s=3600), 5))
            several.append(one)
        for one in several:
            answer = one.recv(1024)
            if answer[:1] != b"\x20" or answer[3] != 0:
                raise RuntimeError(f"not let in: {answer!r}")
        sockets += several
    rate = len(sockets) / (time.perf_counter() - start)
    print(json.dumps({"connects": rate}), flush=True)
    sys.stdin.readline()
    return {}


def main(place: str, workload: str, amount: str) -> None:
    """What the command line asked for."""
    host, _, port = place.rpartition(":")
    address = (host, int(port))
    if workload == "idle":
        idle(address, int(amount))
        return
    seconds = float(amount)
    figures = {
        "fan_in_0": lambda: fan_in(address, 0, seconds),
        "fan_in_1": lambda: fan_in(address, 1, seconds),
        "fan_out": lambda: fan_out(address, seconds),
        "queue_publish": lambda: queue_publish(address, seconds),
        "queue_consume": lambda: queue_consume(address, 1, seconds),
        "queue_consume_many": lambda: queue_consume(address, 100, seconds),
    }[workload]()
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
