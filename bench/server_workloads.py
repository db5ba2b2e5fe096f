"""A whole server process, from outside: memory, connections, one durable publish, back after a kill."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.machine import Machine, RoundTrips, preallocated
from bench.registry import workload
from bench.targets import Figure
from headrace.batch import encode_columns
from headrace.wire import native

MIB = 1 << 20
IDLE_CONNECTIONS = 1000
READY_SECONDS = 60
DOORS = ("native", "http", "mqtt", "grpc")


class Server:
    """``headrace serve`` with one door open, on a free port."""

    def __init__(self, data_dir: Path, door: str = "native") -> None:
        self._door = door
        ports = [part for one in DOORS for part in (f"--{one}-port", "0" if one == door else "off")]
        self._ready_file = data_dir.with_name(f"{data_dir.name}.ready")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "headrace", "serve", "--data-dir", str(data_dir), *ports),
                *("--log-level", "warning", "--ready-file", str(self._ready_file)),
            ],
            env={name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
            stdout=subprocess.DEVNULL,
        )
        self._deadline = time.monotonic() + READY_SECONDS

    def address(self) -> tuple[str, int]:
        """Where it listens, once it does."""
        while not self._ready_file.exists():
            if self.process.poll() is not None or time.monotonic() > self._deadline:
                raise RuntimeError(f"the server did not start: {self.process.poll()}")
            time.sleep(0.002)
        host, _, port = json.loads(self._ready_file.read_text())[self._door].rpartition(":")
        return host, int(port)

    def memory_bytes(self) -> int:
        """Resident memory of its own, without pages of files that others share."""
        for line in Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Rss:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("the kernel does not say")

    def processor_seconds(self) -> float:
        """What it has used so far, in all its threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._ready_file.unlink(missing_ok=True)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


@contextmanager
def serving(data_dir: Path, door: str = "native") -> Iterator[Server]:
    server = Server(data_dir, door)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()


class Caller:
    """The plainest client: the sans-io session over a blocking socket."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.session = native.ClientSession(client="bench", now_ns=time.monotonic_ns())
        self._replies: dict[int, Any] = {}
        self.flush()
        while self.session.welcome is None:
            self._read()

    def flush(self) -> None:
        for buffer in self.session.outgoing():
            self._socket.sendall(buffer)

    def _read(self) -> None:
        data = self._socket.recv(1 << 20)
        if not data:
            raise RuntimeError("the server has closed")
        self.session.receive_bytes(data, time.monotonic_ns())
        for event in self.session.events():
            correlation = getattr(event, "correlation", 0)
            if correlation:
                self._replies[correlation] = event
        self.flush()

    def reply(self, correlation: int) -> Any:
        self.flush()
        while correlation not in self._replies:
            self._read()
        found = self._replies.pop(correlation)
        if isinstance(found, native.Error):
            raise RuntimeError(found.message)
        return found

    def close(self) -> None:
        self._socket.close()


def publish_backlog(caller: Caller, count: int, size_bytes: int) -> None:
    """So many messages, in batches of a thousand, eight under way."""
    batch = encode_columns([os.urandom(size_bytes) for _ in range(1000)]).to_bytes()
    waiting: list[int] = []
    for _ in range(count // 1000):
        waiting.append(caller.session.send_publish("backlog", batch))
        caller.flush()
        if len(waiting) == 8:
            caller.reply(waiting.pop(0))
    for correlation in waiting:
        caller.reply(correlation)


@workload("server/idle")
def idle(machine: Machine) -> dict[str, Figure]:
    """Memory of a server nobody uses, and of connections nobody uses."""
    with machine.directory() as directory, serving(directory / "data") as server:
        address = server.address()
        Caller(address).close()
        quiet = server.memory_bytes()
        callers = [Caller(address) for _ in range(IDLE_CONNECTIONS)]
        connected = server.memory_bytes()
        for caller in callers:
            caller.close()
        server.stop()
    return {
        "resident, idle": Figure(quiet / MIB, "MiB"),
        "an idle connection": Figure((connected - quiet) / IDLE_CONNECTIONS / 1024, "KiB"),
    }


@workload("server/backlog")
def backlog(machine: Machine) -> dict[str, Figure]:
    """A million waiting messages of 1 KB: memory, and the first delivery after a kill."""
    count = machine.scaled(1_000_000)
    with machine.directory() as directory:
        with serving(directory / "data") as server:
            caller = Caller(server.address())
            publish_backlog(caller, count, 1000)
            waiting = server.memory_bytes()
            server.kill()
            caller.close()
        began = time.perf_counter()
        with serving(directory / "data") as server:
            caller = Caller(server.address())
            scope = native.Scope("", "backlog", "default", "bench")
            leased = caller.reply(caller.session.send_lease(scope, 1, wait_ns=60_000_000_000))
            first = time.perf_counter() - began
            assert len(leased.runs) == 1
            caller.close()
            server.stop()
    return {
        "resident, all waiting": Figure(waiting / MIB, "MiB", note=f"{count:,} of 1 KB"),
        "kill to first delivery": Figure(first, "s"),
    }


@workload("server/restart")
def restart(machine: Machine) -> dict[str, Figure]:
    """A server that was killed with a small backlog: from the start of the process to the first confirmed publish."""
    took: list[float] = []
    batch = encode_columns([os.urandom(200)]).to_bytes()
    with machine.directory() as directory:
        with serving(directory / "data") as server:
            caller = Caller(server.address())
            publish_backlog(caller, 10_000, 200)
            server.kill()
            caller.close()
        for _ in range(5):
            began = time.perf_counter()
            with serving(directory / "data") as server:
                caller = Caller(server.address())
                caller.reply(caller.session.send_publish("backlog", batch))
                took.append(time.perf_counter() - began)
                server.kill()
                caller.close()
    return {"start to first confirm": Figure(statistics.median(took), "s", note=f"worst {max(took):.2f} s")}


@workload("server/publish_one")
def publish_one(machine: Machine) -> dict[str, Figure]:
    """One durable publish at a time over the loopback, in turns with a bare write and sync and a bare round trip."""
    rounds, each = 20, machine.scaled(100)
    spans: list[int] = []
    bare: list[int] = []
    with machine.directory() as directory, serving(directory / "data") as server:
        caller = Caller(server.address())
        batch = encode_columns([os.urandom(200)]).to_bytes()
        probe = preallocated(directory / "probe", 8 * MIB)
        block = os.urandom(200)
        trips = RoundTrips()
        gc.collect()
        for _ in range(rounds):
            for _ in range(each):
                began = time.perf_counter_ns()
                caller.reply(caller.session.send_publish("one", batch))
                spans.append(time.perf_counter_ns() - began)
            for i in range(each):
                began = time.perf_counter_ns()
                os.pwrite(probe, block, i * len(block))
                os.fdatasync(probe)
                bare.append(time.perf_counter_ns() - began)
            trips.measure(each)
        trips.close()
        os.close(probe)
        caller.close()
        server.stop()
    spans.sort()
    p50 = statistics.median(spans)
    return {
        "p50": Figure(p50 / 1e3, "us"),
        "p99": Figure(spans[len(spans) * 99 // 100] / 1e3, "us"),
        "bare sync p50": Figure(statistics.median(bare) / 1e3, "us"),
        "bare round trip p50": Figure(statistics.median(trips.spans_ns) / 1e3, "us"),
        "p50 beside sync and round trip": Figure(
            p50 / (statistics.median(bare) + statistics.median(trips.spans_ns)), "x"
        ),
    }


@workload("server/connects")
def connects(machine: Machine) -> dict[str, Figure]:
    """Connections opened and closed one after another, and what they leave behind."""
    with machine.directory() as directory, serving(directory / "data") as server:
        address = server.address()
        for _ in range(200):
            Caller(address).close()
        before = server.memory_bytes()
        count = machine.scaled(5000)
        began = time.perf_counter()
        for _ in range(count):
            Caller(address).close()
        took = time.perf_counter() - began
        after = server.memory_bytes()
        server.stop()
    return {
        "with a hello": Figure(count / took, "/s"),
        "left behind": Figure((after - before) / MIB, "MiB", note=f"by {count:,}"),
    }
