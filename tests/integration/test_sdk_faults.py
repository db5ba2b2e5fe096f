"""A server that is killed and started again under working clients, over and over.

Four producers and four consumers, threads and asyncio, one by one and in batches. An independent ledger keeps what
clients saw: what was confirmed, in which order it came, when it was acked for sure. HEADRACE_KILLS says how often the
server dies (6 in the suite, 50 in a long run).
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import LeaseLost
from headrace.limits import SECOND_NS
from integration.awaited import Awaited
from integration.native_peer import Peer
from integration.server_process import ServerProcess

KILLS = int(os.environ.get("HEADRACE_KILLS") or 6)
KEYS_EACH = 5
BATCH = 20
LEASE = "2s"
BACKLOG = 2_000
"""Where producers wait for the consumers: a key has one message out at a time, and there are twenty keys."""
PATIENCE_S = 60
OUTAGE = "40s"
CREW = 8


class Ledger:
    """What clients saw, in the order they saw it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.confirmed: dict[tuple[bytes, int], int] = {}  # (key, number) -> offset
        self.delivered: dict[tuple[bytes, int], set[int]] = defaultdict(set)  # -> offsets it came with
        self.acked: set[tuple[bytes, int]] = set()
        self.unsure: set[tuple[bytes, int]] = set()  # acked together with some that were refused
        self.reached: dict[bytes, int] = defaultdict(lambda: -1)  # key -> highest number delivered
        self.wrong: list[str] = []
        self.stop_producing = threading.Event()
        self.stop_consuming = threading.Event()
        self.arrived = 0

    def published(self, key: bytes, first: int, offsets: list[int]) -> None:
        with self.changed:
            for number, offset in enumerate(offsets, first):
                self.confirmed[key, number] = offset
            self.changed.notify_all()

    def came(self, d: Any) -> None:
        what = (d.key, int(d.value))
        with self.changed:
            self.delivered[what].add(d.offset)
            if what in self.acked:
                self.wrong.append(f"{what} was delivered after its ack was confirmed (attempt {d.attempt})")
            if what[1] < self.reached[d.key]:
                self.wrong.append(f"{what} came after {self.reached[d.key]} of its key (attempt {d.attempt})")
            self.reached[d.key] = max(self.reached[d.key], what[1])

    def done(self, ds: list[Any], *, sure: bool) -> None:
        with self.changed:
            (self.acked if sure else self.unsure).update((d.key, int(d.value)) for d in ds)
            self.changed.notify_all()

    def arrive(self) -> None:
        """One more client has connected; nobody is killed before all have."""
        with self.changed:
            self.arrived += 1
            self.changed.notify_all()

    def await_arrival(self) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.arrived == CREW, PATIENCE_S), f"{self.arrived} of {CREW} came"

    def goes_on(self) -> bool:
        """Should a producer publish more? Waits while a good deal is not acked yet."""
        with self.changed:
            self.changed.wait_for(
                lambda: self.stop_producing.is_set() or len(self.confirmed) - len(self.acked) < BACKLOG, PATIENCE_S
            )
        return not self.stop_producing.is_set()

    def stop(self) -> None:
        """Producers end."""
        self.stop_producing.set()
        with self.changed:
            self.changed.notify_all()

    @property
    def all_done(self) -> bool:
        return self.confirmed.keys() <= self.acked | self.unsure

    def await_progress(self) -> None:
        """Until a good deal more was published and acked than now."""
        with self.changed:
            publishes, acks = len(self.confirmed) + 200, len(self.acked) + 150
            assert self.changed.wait_for(
                lambda: len(self.confirmed) >= publishes and len(self.acked) >= acks, PATIENCE_S
            ), f"{len(self.confirmed)} of {publishes} confirmed, {len(self.acked)} of {acks} acked"


def _messages(key: bytes, first: int) -> list[headrace.Message]:
    return [headrace.Message(b"%d" % number, key=key) for number in range(first, first + BATCH)]


def publish_one_by_one(url: str, ledger: Ledger, name: str) -> None:
    with headrace.connect(url, outage=OUTAGE) as hr:
        orders = hr.topic("orders")
        ledger.arrive()
        numbers: dict[bytes, int] = defaultdict(int)
        while ledger.goes_on():
            for n in range(KEYS_EACH):
                key = f"{name}-{n}".encode()
                place = orders.publish(b"%d" % numbers[key], key=key)
                ledger.published(key, numbers[key], [place.offset])
                numbers[key] += 1


def publish_many(url: str, ledger: Ledger, name: str) -> None:
    with headrace.connect(url, outage=OUTAGE) as hr:
        orders = hr.topic("orders")
        ledger.arrive()
        first = 0
        while ledger.goes_on():
            for n in range(KEYS_EACH):
                key = f"{name}-{n}".encode()
                places = orders.publish_many(_messages(key, first))
                ledger.published(key, first, [place.offset for place in places])
            first += BATCH


def publish_pipelined(url: str, ledger: Ledger, name: str) -> None:
    with headrace.connect(url, outage=OUTAGE) as hr, hr.topic("orders").publisher() as publisher:
        ledger.arrive()
        first = 0
        while ledger.goes_on():
            receipts = {
                f"{name}-{n}".encode(): [
                    publisher.publish(b"%d" % number, f"{name}-{n}") for number in range(first, first + BATCH)
                ]
                for n in range(KEYS_EACH)
            }
            for key, mine in receipts.items():
                ledger.published(key, first, [receipt.result().offset for receipt in mine])
            first += BATCH


def publish_in_a_loop(url: str, ledger: Ledger, name: str) -> None:
    async def run() -> None:
        async with headrace.aio.connect(url, outage=OUTAGE) as hr:
            orders = await hr.topic("orders")
            ledger.arrive()
            first = 0
            while await asyncio.to_thread(ledger.goes_on):
                keys = [f"{name}-{n}".encode() for n in range(KEYS_EACH)]
                found = await asyncio.gather(*(orders.publish_many(_messages(key, first)) for key in keys))
                for key, places in zip(keys, found, strict=True):
                    ledger.published(key, first, [place.offset for place in places])
                first += BATCH

    asyncio.run(run())


def consume(url: str, ledger: Ledger, name: str) -> None:
    with (
        headrace.connect(url, outage=OUTAGE) as hr,
        hr.topic("orders").consumer("work", lease=LEASE, prefetch=40) as consumer,
    ):
        ledger.arrive()
        while not ledger.stop_consuming.is_set():
            ds = consumer.receive(20, wait="200ms")
            for d in ds:
                ledger.came(d)
            try:
                consumer.ack(ds)
            except LeaseLost:
                ledger.done(ds, sure=False)  # some of them come again
            else:
                ledger.done(ds, sure=True)


def consume_in_a_loop(url: str, ledger: Ledger, name: str) -> None:
    async def run() -> None:
        async with headrace.aio.connect(url, outage=OUTAGE) as hr:
            orders = await hr.topic("orders")
            async with orders.consumer("work", lease=LEASE, prefetch=40) as consumer:
                ledger.arrive()
                while not ledger.stop_consuming.is_set():
                    ds = []
                    async for d in consumer.until_idle("200ms"):
                        ledger.came(d)
                        await d.ack()
                        ds.append(d)
                        if len(ds) >= 20:
                            break
                    try:
                        await consumer.flush()
                    except LeaseLost:
                        ledger.done(ds, sure=False)
                    else:
                        ledger.done(ds, sure=True)

    asyncio.run(run())


class Crew:
    """Threads whose failures are the test's."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self.failures: list[BaseException] = []

    def start(self, work: Callable[..., None], *arguments: Any) -> None:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:  # noqa: BLE001 - it is raised by join
                self.failures.append(error)

        thread = threading.Thread(target=run, name=work.__name__)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert not [thread.name for thread in self._threads if thread.is_alive()]


def await_all_acked(group: Any, ledger: Ledger) -> dict[str, Any]:
    """Until every message was acked; what is known of the group then."""
    with ledger.changed:
        assert ledger.changed.wait_for(lambda: ledger.all_done, PATIENCE_S), (
            f"{len(ledger.confirmed.keys() - ledger.acked - ledger.unsure)} confirmed messages were never acked"
        )
    deadline = time.monotonic() + PATIENCE_S
    while True:
        info: dict[str, Any] = group.info()
        if info["acked"] == info["published"]:
            return info
        assert time.monotonic() < deadline, info
        with ledger.changed:
            ledger.changed.wait(0.2)  # the rest comes when its lease is over


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.timeout(60 + 15 * KILLS)
def test_nothing_confirmed_is_lost_when_the_server_is_killed_again_and_again(data_dir: Path) -> None:
    port = free_port()
    url = f"headrace://127.0.0.1:{port}"
    ledger, producers, consumers, kills = Ledger(), Crew(), Crew(), 0
    server = ServerProcess(data_dir, "--native-port", str(port))
    try:
        server.ready()
        with headrace.connect(url) as hr:
            orders = hr.topic("orders", retry={"initial_backoff": "0s", "max_retries": 1_000_000})
            orders.group("work").create()
        for n, work in enumerate((publish_one_by_one, publish_many, publish_pipelined, publish_in_a_loop)):
            producers.start(work, url, ledger, f"p{n}")
        for n, work in enumerate((consume, consume, consume_in_a_loop, consume_in_a_loop)):
            consumers.start(work, url, ledger, f"c{n}")
        ledger.await_arrival()
        for _ in range(KILLS):
            ledger.await_progress()
            assert not producers.failures
            assert not consumers.failures
            server.kill()
            server = ServerProcess(data_dir, "--native-port", str(port))
            server.ready()
            kills += 1
        assert kills == KILLS
        ledger.await_progress()
        ledger.stop()
        producers.join()
        with headrace.connect(url) as hr:
            info = await_all_acked(hr.topic("orders").group("work"), ledger)
        ledger.stop_consuming.set()
        consumers.join()
    finally:
        ledger.stop()
        ledger.stop_consuming.set()
        server.kill()
        producers.join()
        consumers.join()
    assert producers.failures == []
    assert consumers.failures == []
    assert ledger.wrong == []
    assert {what for what, offsets in ledger.delivered.items() if len(offsets) > 1} == set()
    assert all(ledger.delivered[what] == {offset} for what, offset in ledger.confirmed.items())
    assert info["published"] == len(ledger.delivered) == len(ledger.confirmed)
    assert (info["acked"], info["drift"]) == (info["published"], 0)


async def leased_by_nobody(address: str, consumer: str, count: int) -> Peer:
    """Somebody of this name is leased messages and never hears of anything again."""
    peer = await Peer.open(address)
    leased = await peer.lease("orders", count, consumer=consumer, lease_ns=3_600 * SECOND_NS)
    assert leased.count == count
    return peer


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
async def test_what_a_killed_server_had_leased_and_never_sent_comes_at_once(data_dir: Path, kind: str) -> None:
    port = free_port()
    arguments = ("--native-port", str(port))
    server = ServerProcess(data_dir, *arguments)
    try:
        address = server.ready()["native"]
        url = f"headrace://{address}"
        opened = headrace.aio.connect(url) if kind == "asyncio" else to_be_awaited(lambda: headrace.connect(url))
        async with await opened as hr:
            orders = await hr.topic("orders", ordering="none")
            await orders.publish_many([b"%d" % n for n in range(5)])
            async with orders.consumer(name="c", lease="1h", prefetch=1) as consumer:
                (held,) = await consumer.receive(1, wait="60s")
                await leased_by_nobody(address, "c", 4)
                server.kill()
                server = ServerProcess(data_dir, *arguments)
                server.ready()
                found: list[Any] = []
                while len(found) < 4:
                    ds = await consumer.receive(4, wait="30s")
                    assert ds, "it stays leased to nobody"
                    found += ds
                assert {(d.value, d.attempt) for d in found} == {(b"%d" % n, 1) for n in range(1, 5)}
                await consumer.ack([held, *found])  # what was held before is held still
            assert (await orders.group().info())["acked"] == 5
    finally:
        server.kill()


async def to_be_awaited(make: Callable[[], Any]) -> Awaited:
    return Awaited(await asyncio.to_thread(make))
