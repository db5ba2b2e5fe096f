"""MQTT end to end: a server process, and a load generator of raw sockets in another one (``bench/mqtt_load.py``)."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.machine import Machine
from bench.registry import workload
from bench.targets import Figure
from headrace.pubsub import Exchange
from headrace.wire.mqtt import OutgoingMessage, Subscription

READY_SECONDS = 60
SECONDS = 6
IDLE_CONNECTIONS = 10_000
FILTERS = 100_000


class MqttServer:
    """``headrace serve`` with the MQTT door alone, on a free port."""

    def __init__(self, data_dir: Path) -> None:
        ready_file = data_dir.with_name(f"{data_dir.name}.ready")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "headrace", "serve", "--data-dir", str(data_dir), "--mqtt-port", "0"),
                *("--http-port", "off", "--native-port", "off", "--grpc-port", "off", "--log-level", "warning"),
                *("--ready-file", str(ready_file), "--set", "seal.enabled=false"),
            ],
            env={name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + READY_SECONDS
        while not ready_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start: {self.process.poll()}")
            time.sleep(0.002)
        self.address: str = json.loads(ready_file.read_text())["mqtt"]

    def memory_bytes(self) -> int:
        """Resident memory."""
        for line in Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Rss:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("the kernel does not say")


@contextmanager
def serving(machine: Machine) -> Iterator[MqttServer]:
    with machine.directory() as directory:
        server = MqttServer(directory / "data")
        try:
            yield server
        finally:
            server.process.kill()
            server.process.wait()


def _load(server: MqttServer, name: str, amount: float) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.mqtt_load", server.address, name, str(amount)],
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,
    )
    return dict(json.loads(done.stdout))


def _measure(machine: Machine, name: str) -> dict[str, float]:
    with serving(machine) as server:
        return _load(server, name, max(1.0, SECONDS * machine.scaled(100) / 100))


@workload("mqtt_server/fan_in")
def fan_in(machine: Machine) -> dict[str, Figure]:
    """20 publishers, one subscriber, 200 bytes: what comes out at the subscriber."""
    return {
        "QoS 0": Figure(_measure(machine, "fan_in_0")["messages"], "messages/s"),
        "QoS 1": Figure(_measure(machine, "fan_in_1")["messages"], "messages/s"),
    }


@workload("mqtt_server/fan_out")
def fan_out(machine: Machine) -> dict[str, Figure]:
    """One publisher, 50 subscribers, QoS 0, 200 bytes."""
    return {"QoS 0": Figure(_measure(machine, "fan_out")["deliveries"], "deliveries/s")}


@workload("mqtt_server/queue")
def queue(machine: Machine) -> dict[str, Figure]:
    """A durable queue: 20 publishers with QoS 1; then 4 consumers of a backlog, settling one by one, or 100 at once."""
    return {
        "publish": Figure(_measure(machine, "queue_publish")["messages"], "messages/s"),
        "consume and ack": Figure(_measure(machine, "queue_consume")["messages"], "messages/s"),
        "consume and ack 100 at once": Figure(_measure(machine, "queue_consume_many")["messages"], "messages/s"),
    }


@workload("mqtt_server/idle")
def idle(machine: Machine) -> dict[str, Figure]:
    """Connections that do nothing."""
    count = machine.scaled(IDLE_CONNECTIONS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(count + 1_000, hard)), hard))
    with serving(machine) as server:
        _load(server, "idle", 10)  # everything is imported and allocated once
        before = server.memory_bytes()
        client = subprocess.Popen(
            [sys.executable, "-m", "bench.mqtt_load", server.address, "idle", str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        if client.stdout is None or client.stdin is None:
            raise RuntimeError("no pipes")
        rate = json.loads(client.stdout.readline())["connects"]
        after = server.memory_bytes()
        client.stdin.close()
        client.wait()
    return {
        "each": Figure((after - before) / count / 1000, "KB"),
        "connects": Figure(rate, "connects/s"),
    }


@workload("mqtt_server/matching")
def matching(machine: Machine) -> dict[str, Figure]:
    """A publish among 100,000 filters, half with wildcards, of clients that are away: the plan of a topic and its walk.

    ``new topics``: each is published to once, so nothing is remembered; ``the same topics``: 1,000, again and again.
    """
    count = machine.scaled(FILTERS)
    exchange = Exchange(publish_will=lambda *_: None)
    clients = 1_000
    for number in range(clients):
        found = exchange.open(f"c{number}", "", False, 3600, None, 0)
        if found is None:
            raise RuntimeError("no room")
        for index in range(number, count, clients):
            site, device = index // 100, index % 100
            shape = index % 4
            topic_filter = (
                f"site/{site}/+/{device}/state",
                f"site/{site}/device/{device}/state",
                f"site/{site}/device/{device}/#",
                f"+/{site}/device/{device}/alarm",
            )[shape]
            exchange.subscribe(found[0], Subscription(topic_filter, 0), 0, 0)
    sites = count // 100 or 1
    topics = [f"site/{n % sites}/device/{n // sites % 100}/state" for n in range(min(50_000, sites * 100))]
    random.Random(1).shuffle(topics)  # each is another one, in no order
    exchange.bounds = exchange.bounds.__class__(plans_max=1)

    def spent(some: list[str]) -> float:
        start_ns = time.perf_counter_ns()
        for topic in some:
            exchange.publish(OutgoingMessage(topic, b"x"), 0, False, None, 0)
        return (time.perf_counter_ns() - start_ns) / len(some) / 1000

    new_us = spent(topics)
    exchange.bounds = exchange.bounds.__class__()
    spent(topics[:1_000])
    return {
        "new topics": Figure(new_us, "us a publish"),
        "the same topics": Figure(spent(topics[:1_000] * 20), "us a publish"),
    }
