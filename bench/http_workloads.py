"""The HTTP door of a server process from outside: publishes, leases, a replay, one at a time, a scrape.

The load comes from a process of its own (``bench/http_load.py``) on the same cores, so the figures are those of server
and load together; how much of a core the load took stands beside them.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.http_load import LENGTH, answer_of, publishing, request
from bench.machine import Machine, preallocated
from bench.registry import workload
from bench.server_workloads import MIB, Server, serving
from bench.targets import Figure

ROUNDS = 3
SECONDS = 3.0
TOPICS = 1000
ARROW = "application/vnd.apache.arrow.stream"


def load(address: tuple[str, int], kind: str, connections: int, seconds: float, size: int) -> dict[str, float]:
    """Run the load; what it did."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench.http_load", address[0], str(address[1]), kind, str(connections)),
            *(str(seconds), str(size)),
        ],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        check=True,
    )
    return dict(json.loads(done.stdout))


def rounds(server: Server, kind: str, connections: int, seconds: float, size: int) -> tuple[float, float, str]:
    """The best rate of some rounds, the server's processor µs for each unit over all of them, and a note."""
    address = server.address()
    load(address, kind, connections, 0.3, size)
    before = server.processor_seconds()
    seen = [load(address, kind, connections, seconds, size) for _ in range(ROUNDS)]
    used = server.processor_seconds() - before
    seen = [one for one in seen if one["done"]]
    found = max(seen, key=lambda one: one["done"] / one["seconds"])
    each_us = used / sum(one["done"] for one in seen) * 1e6
    return found["done"] / found["seconds"], each_us, f"load: {found['processor'] / found['seconds']:.2f} of a core"


@workload("http/publish")
def publish(machine: Machine) -> dict[str, Figure]:
    """Durable publishes of 200-byte values: one a request over 64 connections, 100 and 1,000 a request over 8."""
    seconds = SECONDS / 10 if machine.short else SECONDS
    figures = {}
    for name, connections, size, unit in (
        ("one message a request, 64 connections", 64, 1, "req/s"),
        ("100 messages a request", 8, 100, "msg/s"),
        ("1,000 messages a request", 8, 1000, "msg/s"),
    ):
        with machine.directory() as directory, serving(directory / "data", "http") as server:
            rate, each_us, note = rounds(server, "publish", connections, seconds, size)
            server.stop()
        figures[name] = Figure(rate, unit, note=note)
        figures[f"{name}: processor"] = Figure(each_us, "us each", note="of the server, in all its threads")
    return figures


@workload("http/consume")
def consume(machine: Machine) -> dict[str, Figure]:
    """Leases of 100, each settled by the receipts of its answer, over 8 connections."""
    seconds = SECONDS / 10 if machine.short else SECONDS
    with machine.directory() as directory, serving(directory / "data", "http") as server:
        address = server.address()
        load(address, "publish", 8, seconds * 2, 1000)  # more than is consumed, less than max_depth
        rate, each_us, note = rounds(server, "consume", 8, seconds / 2, 100)
        server.stop()
    return {
        "lease 100 + settle 100": Figure(rate, "msg/s", note=note),
        "lease 100 + settle 100: processor": Figure(each_us, "us each", note="of the server, in all its threads"),
    }


def get(address: tuple[str, int], path: str, accept: str = "*/*") -> socket.socket:
    line = socket.create_connection(address)
    line.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: {accept}\r\nConnection: close\r\n\r\n".encode())
    return line


def read_all(line: socket.socket) -> int:
    """How many bytes come until the end."""
    buffer, total = bytearray(MIB), 0
    with line:
        while got := line.recv_into(buffer):
            total += got
    return total


@workload("http/replay")
def replay(machine: Machine) -> dict[str, Figure]:
    """A topic of 1,000-byte values, published 1,000 at a time, as one Arrow stream."""
    count = machine.scaled(400_000)
    body = json.dumps({"messages": [{"value": "x" * 1000}] * 1000}).encode()
    with machine.directory() as directory, serving(directory / "data", "http") as server:
        address = server.address()
        with socket.create_connection(address) as line:
            for _ in range(count // 1000):
                line.sendall(request("messages", body))
                answer_of(line, line.recv(1 << 16))
        rates = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            size = read_all(get(address, "/v1/topics/bench/messages", ARROW))
            rates.append(size / (time.perf_counter() - began))
            assert size > count * 1000
        server.stop()
    return {"as an Arrow stream": Figure(max(rates) / 1e6, "MB/s", note=f"{count:,} of 1,000 B")}


@workload("http/publish_one")
def publish_one(machine: Machine) -> dict[str, Figure]:
    """One publish at a time over one kept connection, in turns with a bare write and sync."""
    rounds, each = 20, machine.scaled(100)
    spans: list[int] = []
    bare: list[int] = []
    with machine.directory() as directory, serving(directory / "data", "http") as server:
        probe = preallocated(directory / "probe", 8 * MIB)
        block = os.urandom(200)
        asked = publishing(1)
        with socket.create_connection(server.address()) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(rounds):
                for _ in range(each):
                    began = time.perf_counter_ns()
                    line.sendall(asked)
                    answer_of(line, line.recv(1 << 16))
                    spans.append(time.perf_counter_ns() - began)
                for i in range(each):
                    began = time.perf_counter_ns()
                    os.pwrite(probe, block, i * len(block))
                    os.fdatasync(probe)
                    bare.append(time.perf_counter_ns() - began)
        os.close(probe)
        server.stop()
    spans.sort()
    p50, sync = statistics.median(spans), statistics.median(bare)
    return {
        "p50": Figure(p50 / 1e6, "ms"),
        "p99": Figure(spans[len(spans) * 99 // 100] / 1e6, "ms"),
        "bare sync p50": Figure(sync / 1e6, "ms"),
        "p50 above a bare sync": Figure((p50 - sync) / 1e6, "ms"),
    }


@workload("http/metrics")
def metrics(machine: Machine) -> dict[str, Figure]:
    """A scrape of 1,000 topics that all have delivered something, and how long another request waits meanwhile."""
    count = machine.scaled(TOPICS)
    with machine.directory() as directory, serving(directory / "data", "http") as server:
        address = server.address()
        with socket.create_connection(address) as line:
            for number in range(count):
                body = b'{"messages":[{"value":"x"}]}'
                for asked in (request("messages", body), request("groups/default/lease", b"{}")):
                    line.sendall(asked.replace(b"/bench/", b"/t%d/" % number))
                    answer_of(line, line.recv(1 << 16))
        before = server.processor_seconds()
        scrapes = [scrape_ms(address) for _ in range(20)]
        used = server.processor_seconds() - before
        waits = [longest_wait_ms(address) for _ in range(10)]
        server.stop()
    return {
        "a scrape": Figure(statistics.median(scrapes), "ms", note=f"{count:,} topics"),
        "a scrape: processor": Figure(used / len(scrapes) * 1e3, "ms", note="of the server, in all its threads"),
        "the longest that another request waits": Figure(statistics.median(waits), "ms", note="median of 10 scrapes"),
    }


def scrape_ms(address: tuple[str, int]) -> float:
    began = time.perf_counter()
    assert read_all(get(address, "/metrics")) > 10_000
    return (time.perf_counter() - began) * 1e3


def longest_wait_ms(address: tuple[str, int]) -> float:
    """Health checks one after another while a scrape goes on: the slowest."""
    asked = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    longest = 0.0
    with socket.create_connection(address) as line, get(address, "/metrics") as scraping:
        scraping.setblocking(False)
        while True:
            began = time.perf_counter()
            line.sendall(asked)
            assert LENGTH in line.recv(1 << 16)
            longest = max(longest, time.perf_counter() - began)
            try:
                if not scraping.recv(MIB):
                    return longest * 1e3
            except BlockingIOError:
                pass
