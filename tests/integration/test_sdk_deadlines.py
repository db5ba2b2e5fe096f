"""Who has no time: deadlines, cancellation, a server that does not answer, one that is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import headrace
from headrace import errors
from integration.server_process import ServerProcess

SECONDS_MAX = 60
pytestmark = pytest.mark.feature("F221")


@pytest.fixture
def server(data_dir: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(data_dir)
    yield process
    if process.process.poll() is None:
        process.process.send_signal(signal.SIGCONT)
        process.kill()


@pytest.fixture
def url(server: ServerProcess) -> str:
    return f"headrace://{server.ready()['native']}"


@contextmanager
def frozen(server: ServerProcess) -> Iterator[None]:
    """A server that is there and does nothing."""
    server.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


def test_a_receipt_waits_as_long_as_it_is_told_and_can_be_asked_again(server: ServerProcess, url: str) -> None:
    with headrace.connect(url) as hr, hr.topic("orders").publisher() as publisher:
        with frozen(server):
            receipt = publisher.publish(b"x")
            with pytest.raises(errors.TimedOut, match="may still"):
                receipt.result("100ms")
        assert receipt.result("60s").offset == 0


async def test_a_cancelled_publish_leaves_a_client_that_works(server: ServerProcess, url: str) -> None:
    async with headrace.aio.connect(url) as hr:
        orders = await hr.topic("orders")
        with frozen(server), pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await orders.publish(b"given up")
        place = await orders.publish(b"waited for")
        assert [record.value async for record in orders.read()] == [b"given up", b"waited for"]
        assert place.offset == 1


async def test_a_cancelled_call_and_receive_leave_a_client_that_works(server: ServerProcess, url: str) -> None:
    async with headrace.aio.connect(url) as hr:
        orders = await hr.topic("orders")
        async with orders.consumer() as consumer:
            with frozen(server):
                for call in (hr.stats(), consumer.receive(1), orders.depth()):
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.05):
                            await call
            await orders.publish(b"x")
            (d,) = await consumer.receive(wait="60s")
            await consumer.ack(d)
        assert await orders.depth() == 0


async def test_a_task_that_is_cancelled_inside_a_block_gives_its_message_back(url: str) -> None:
    async with headrace.aio.connect(url) as hr:
        orders = await hr.topic("orders")
        await orders.publish(b"x")
        async with orders.consumer() as consumer:
            began = asyncio.Event()

            async def handle() -> None:
                (d,) = await consumer.receive(wait="60s")
                async with d:
                    began.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(handle())
            await began.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            (again,) = await consumer.receive(wait="60s")
            assert again.attempt == 1
            await again.ack()


def test_a_request_nobody_answers_ends_at_its_deadline(url: str) -> None:
    with headrace.connect(url) as hr, pytest.raises(errors.TimedOut, match="no answer from 'void'"):
        hr.request("void", b"x", timeout="50ms")


def test_a_port_nobody_answers_on_is_told_in_time() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # the kernel connects, nobody speaks
        with pytest.raises(errors.TimedOut, match="no answer"):
            headrace.connect(f"headrace://127.0.0.1:{listener.getsockname()[1]}", connect_timeout="100ms")


def test_a_closed_port_is_told_at_once() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(errors.TimedOut, match=f"127.0.0.1:{port}.*refused"):
        headrace.connect(f"headrace://127.0.0.1:{port}")


def test_a_server_that_stays_away_fails_what_waits_for_it_after_the_outage(server: ServerProcess, url: str) -> None:
    with headrace.connect(url, outage="300ms") as hr:
        orders = hr.topic("orders")
        server.kill()
        with pytest.raises(errors.HeadraceError, match=r"gone|connect|server") as refused:
            orders.publish(b"x")
        assert refused.value.code in ("timeout", "closed")


async def test_the_same_for_asyncio(server: ServerProcess, url: str) -> None:
    async with headrace.aio.connect(url, outage="300ms") as hr:
        orders = await hr.topic("orders")
        server.kill()
        with pytest.raises(errors.HeadraceError) as refused:
            await orders.publish(b"x")
        assert refused.value.code in ("timeout", "closed")


def test_a_close_in_another_thread_ends_a_receive_that_waits(url: str) -> None:
    with headrace.connect(url) as hr:
        consumer = hr.topic("orders").consumer()
        found: list[object] = []
        waiter = threading.Thread(target=lambda: found.append(consumer.receive(1)))
        waiter.start()
        consumer.stop()
        waiter.join(SECONDS_MAX)
        assert found == [[]]


THREADS = """
with headrace.connect(sys.argv[1]) as hr:
    @hr.worker("jobs", group="work", concurrency=2)
    def handle(d):
        print(f"began {d.text}\\n", end="", flush=True)
        threading.Event().wait(float(sys.argv[2]))
        print(f"done {d.text}\\n", end="", flush=True)
    hr.run_workers()
print("stopped", flush=True)
"""

ASYNC_HANDLERS = THREADS.replace("    def handle(d):", "    async def handle(d):").replace(
    "        threading.Event().wait(", "        import asyncio; await asyncio.sleep("
)

ASYNCIO = """
import asyncio
async def main():
    async with headrace.aio.connect(sys.argv[1]) as hr:
        @hr.worker("jobs", group="work", concurrency=2)
        async def handle(d):
            print(f"began {d.text}\\n", end="", flush=True)
            await asyncio.sleep(float(sys.argv[2]))
            print(f"done {d.text}\\n", end="", flush=True)
        await hr.run_workers()
asyncio.run(main())
print("stopped", flush=True)
"""


@pytest.mark.parametrize("body", [THREADS, ASYNC_HANDLERS, ASYNCIO], ids=["threads", "async handlers", "asyncio"])
def test_sigterm_lets_handlers_finish_and_gives_back_what_was_not_begun(url: str, body: str) -> None:
    with headrace.connect(url) as hr:
        jobs = hr.topic("jobs", ordering="none")
        jobs.publish_many([b"%d" % n for n in range(10)])
        with subprocess.Popen(
            [sys.executable, "-W", "error", "-c", f"import sys, threading, headrace\n{body}", url, "0.5"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as worker:
            assert worker.stdout is not None
            lines = [worker.stdout.readline().split() for _ in range(2)]
            assert [line[0] for line in lines] == ["began", "began"]
            worker.send_signal(signal.SIGTERM)
            assert worker.stderr is not None
            out, err = worker.stdout.read(), worker.stderr.read()  # communicate() forgets what readline read ahead
        assert worker.returncode == 0, err
        rest = [line.split() for line in out.splitlines()]
        began = {line[1] for line in [*lines, *rest[:-1]] if line[0] == "began"}
        finished = {line[1] for line in rest[:-1] if line[0] == "done"}
        assert rest[-1] == ["stopped"]
        assert began == finished
        info = jobs.group("work").info()
        assert (info["acked"], info["leased"], info["ready"]) == (len(finished), 0, 10 - len(finished))
        with jobs.consumer(group="work") as consumer:
            assert {d.attempt for d in consumer.receive(10, wait="10s")} == {1}
