"""The broker for users' tests: the real one, on a clock that moves when it is told to."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from headrace import errors
from headrace.testing import AsyncMemoryBroker, MemoryBroker


def test_retries_come_when_the_clock_says_so() -> None:
    with MemoryBroker() as hr:
        orders = hr.topic("orders")
        orders.publish(b"a")
        with orders.consumer() as consumer:
            waits = []
            started = hr.now
            for _ in range(9):
                (d,) = consumer.receive(wait=0)
                d.nack(error="no")
                before = hr.now
                while not consumer._fetch(1, 0):
                    hr.advance("1s")
                waits.append((hr.now - before).total_seconds())
            assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]
            assert hr.now - started == timedelta(seconds=sum(waits))


def test_an_advance_passes_every_due_instant_on_the_way() -> None:
    with MemoryBroker() as hr:
        orders = hr.topic("orders", lease="30s", retry={"max_retries": 2, "initial_backoff": "5s"})
        orders.publish(b"a")
        with orders.consumer() as consumer:
            (d,) = consumer.receive(wait=0)
            hr.advance("1h")  # the lease ends after 30 s, the retry is due 5 s later
            (info,) = orders.browse("ready")
            assert info["attempts"] == 1
            with pytest.raises(errors.LeaseLost):
                consumer.ack(d)
            (again,) = consumer.receive(wait=0)
            assert again.attempt == 2


def test_a_settle_counts_at_the_time_it_was_made() -> None:
    with MemoryBroker() as hr:
        orders = hr.topic("orders")
        orders.publish(b"a")
        with orders.consumer() as consumer:
            consumer.receive(wait=0)[0].nack()
            hr.advance("5s")
            assert [d.attempt for d in consumer.receive(wait=0)] == [2]


def test_a_waiting_thread_sees_what_an_advance_brings() -> None:
    with MemoryBroker() as hr:
        orders = hr.topic("orders")
        orders.publish(b"later", delay="24h")
        came = threading.Event()

        def wait() -> None:
            with orders.consumer() as consumer:
                consumer.receive(wait="30s")[0].ack()
                came.set()

        thread = threading.Thread(target=wait)
        thread.start()
        hr.advance("24h")
        assert came.wait(30)
        thread.join()
        assert hr.messages("orders") == [b"later"]


async def test_the_same_for_asyncio() -> None:
    async with AsyncMemoryBroker.open() as hr:
        orders = await hr.topic("orders", retry={"initial_backoff": "1h"})
        await orders.publish(b"a")
        async with orders.consumer() as consumer:
            (d,) = await consumer.receive()
            await d.nack()
            started = hr.now
            await hr.advance("1h")
            (d,) = await consumer.receive(wait=0)
            assert (d.attempt, hr.now - started) == (2, timedelta(hours=1))
        assert await hr.messages("orders") == [b"a"]


def test_the_fixture_is_there_by_itself(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "def test_orders(headrace_broker):\n"
        "    orders = headrace_broker.topic('orders')\n"
        "    orders.publish(b'a', delay='1h')\n"
        "    headrace_broker.advance('1h')\n"
        "    with orders.consumer() as consumer:\n"
        "        assert [d.value for d in consumer.receive(wait=0)] == [b'a']\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "headrace.testing.plugin", "-p", "no:cacheprovider", "."]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 passed" in run.stdout


def test_the_plugin_costs_nothing_until_it_is_used() -> None:
    script = "import sys, headrace.testing.plugin; print([n for n in sys.modules if n.startswith('headrace.')])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['headrace.testing', 'headrace.testing.plugin']"
