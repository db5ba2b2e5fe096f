"""A caller who asks and waits reads the socket for itself: no switch between threads, and nothing else may differ."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import headrace
from headrace.batch import encode_plain
from headrace.calls import BY_KEY
from headrace.client.port import NetworkPort
from headrace.errors import Closed
from integration.server_process import ServerProcess
from integration.server_thread import ServerThread

PATIENCE_S = 60


@pytest.fixture
def server() -> Iterator[ServerThread]:
    thread = ServerThread()
    yield thread
    thread.stop()


def port_of(hr: headrace.Headrace) -> NetworkPort:
    assert isinstance(hr.port, NetworkPort)
    return hr.port


def park(hr: headrace.Headrace, topic: Any) -> None:
    """Publish until the thread has left the socket to us, and we hold the lock no more."""
    port = port_of(hr)
    for _ in range(10_000):
        topic.publish(b"x")
        with port.lock:
            if port._parked:
                return
    raise AssertionError("the thread never left the socket to its lone caller")


def sleeps_of(thread: Thread) -> int:
    """How often a thread went to sleep: it was awake once more."""
    for line in Path(f"/proc/self/task/{thread.native_id}/status").read_text().splitlines():
        if line.startswith("voluntary_ctxt_switches"):
            return int(line.split()[1])
    raise AssertionError("the kernel does not say")


def test_the_thread_of_a_client_sleeps_while_its_only_caller_asks_and_waits(server: ServerThread) -> None:
    with headrace.connect(server.url) as hr:
        topic = hr.topic("lone")
        fewest = 500
        for _ in range(5):  # a machine that stops for a while lets the thread have the socket back
            park(hr, topic)
            before = sleeps_of(port_of(hr)._thread)
            for _ in range(500):
                topic.publish(b"v")
            fewest = min(fewest, sleeps_of(port_of(hr)._thread) - before)
        assert fewest < 250


def test_an_answer_that_nobody_waits_for_is_read_all_the_same(server: ServerThread) -> None:
    with headrace.connect(server.url) as hr:
        topic = hr.topic("later")
        park(hr, topic)
        port = port_of(hr)
        pending = port.publish_begin("default", "later", BY_KEY, encode_plain(b"v"))
        with port.lock:
            coming = None if pending.done() else pending._answer.coming()
        assert coming is None or coming.wait(PATIENCE_S)


def test_a_consumer_that_opens_meanwhile_is_pushed_to(server: ServerThread) -> None:
    with headrace.connect(server.url) as hr, headrace.connect(server.url) as other:
        topic = hr.topic("pushed")
        park(hr, topic)
        with topic.consumer("g", start="latest") as consumer:
            other.topic("pushed").publish(b"for you")
            assert [d.value for d in consumer.receive(1, wait=PATIENCE_S)] == [b"for you"]


def test_many_callers_of_one_client_all_get_their_answers(server: ServerThread) -> None:
    with headrace.connect(server.url) as hr:
        topic = hr.topic("crowd")
        park(hr, topic)
        base = topic.depth()
        with ThreadPoolExecutor(8) as crowd:
            places = [
                place
                for found in crowd.map(lambda n: [topic.publish(b"%d" % n) for _ in range(50)], range(8))
                for place in found
            ]
        assert len({place.id for place in places}) == 400
        assert topic.depth() == base + 400


def test_a_caller_who_reads_hears_what_he_was_refused_with(server: ServerThread) -> None:
    with headrace.connect(server.url) as hr:
        topic = hr.topic("small", max_message_size="1KiB")
        park(hr, topic)
        with pytest.raises(headrace.PayloadTooLarge, match="takes up to 1024"):
            topic.publish(bytes(2000))
        assert topic.publish(b"fits").duplicate is False


class Interrupted:
    """A socket in which Ctrl-C comes once."""

    def __init__(self, inner: socket.socket) -> None:
        self._inner = inner
        self.times = 0

    def recv(self, size_bytes: int) -> bytes:
        self.times += 1
        if self.times == 1:
            raise KeyboardInterrupt
        return self._inner.recv(size_bytes)


def test_a_caller_who_is_interrupted_while_it_reads_gives_the_lead_up(server: ServerThread) -> None:
    with headrace.connect(server.url) as hr:
        topic, port = hr.topic("interrupted"), port_of(hr)
        park(hr, topic)
        with port.lock:
            assert port._reading is not None
            port._reading = inner = Interrupted(port._reading)  # type: ignore[assignment]
        interrupted = 0
        while not interrupted:
            try:
                topic.publish(b"v")
            except KeyboardInterrupt:
                interrupted = inner.times
        assert interrupted == 1
        assert not port._leading
        before = topic.depth()
        topic.publish(b"after it")
        assert topic.depth() == before + 1


def test_a_caller_who_reads_at_a_frozen_server_ends_with_the_client(tmp_path: Path) -> None:
    """Closed by another thread: whoever waits is told, wherever it waits."""
    server = ServerProcess(tmp_path / "data")
    try:
        url = f"headrace://{server.ready()['native']}"
        hr = headrace.connect(url)
        topic = hr.topic("frozen")
        park(hr, topic)
        os.kill(server.pid, signal.SIGSTOP)
        raised: list[BaseException] = []

        def publish() -> None:
            try:
                while True:
                    topic.publish(b"v")
            except BaseException as error:  # noqa: BLE001 - it is looked at below
                raised.append(error)

        caller = Thread(target=publish)
        caller.start()
        hr.close()
        caller.join(PATIENCE_S)
        assert not caller.is_alive()
        assert isinstance(raised[0], Closed)
    finally:
        os.kill(server.pid, signal.SIGCONT)
        server.stop()


def test_a_lone_caller_outlives_servers_that_are_killed_under_it(tmp_path: Path) -> None:
    """Nothing that was confirmed is lost, nothing is stored twice, and it need not know."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]
    arguments = ("--native-port", str(number))
    server = ServerProcess(tmp_path / "data", *arguments)
    server.ready()
    confirmed: list[bytes] = []
    try:
        with headrace.connect(f"headrace://127.0.0.1:{number}") as hr:
            topic = hr.topic("kept")
            for life in range(3):
                park(hr, topic)
                for n in range(50):
                    topic.publish(b"%d-%d" % (life, n))
                    confirmed.append(b"%d-%d" % (life, n))
                server.kill()
                server = ServerProcess(tmp_path / "data", *arguments)
                topic.publish(b"%d-across" % life)
                confirmed.append(b"%d-across" % life)
            stored = [record.value for record in topic.read() if record.value != b"x"]
        assert stored == confirmed
    finally:
        server.kill()
