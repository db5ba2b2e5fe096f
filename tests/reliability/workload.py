"""A steady load whose messages can be checked byte by byte, and a ledger of what was confirmed.

The body of message ``n`` is made from ``n`` alone, so whoever gets it can tell whether it is right. The load goes on
until it is told to stop or the server goes away; ``Ledger.check`` then takes everything out of the next life of the
server and compares.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from functools import lru_cache
from typing import Any, Final, Self

from headrace.batch import Batch
from headrace.errors import HeadraceError
from headrace.wire import native
from integration.native_peer import Peer
from reliability.broker import BrokerProcess

__all__ = ["Ledger", "Load", "body_of", "make_topic", "number_of"]

TOPIC: Final = "load"
GROUP: Final = "default"
LEASE_NS: Final = 1_000_000_000
QUIET_S: Final = 6
SETTINGS: Final = {
    "ordering": "none",
    "lease": "1s",
    "retry.max_retries": 1_000_000,
    "retry.initial_backoff": "0s",
    "retry.total_timeout": "none",
    "dead_letters.enabled": False,
}


@lru_cache(maxsize=1 << 15)
def body_of(number: int, size_bytes: int = 0) -> bytes:
    """``number:size:`` and then bytes that follow from the number."""
    size = size_bytes or 20 + number * 7919 % 400
    return b"%d:%d:" % (number, size) + random.Random(number).randbytes(size)


def number_of(body: bytes) -> int:
    """Whose body it is; ValueError when it is nobody's."""
    head, size, _ = body.split(b":", 2)
    number = int(head)
    if body != body_of(number, int(size)):
        raise ValueError(f"the body of {number} is not as it was sent")
    return number


class Ledger:
    """What was asked for, and what was answered."""

    def __init__(self) -> None:
        self.next = 0
        self.sent: set[int] = set()
        self.confirmed: set[int] = set()
        self.ack_sent: set[int] = set()
        self.acked: set[int] = set()
        self.violations: list[str] = []
        self.last_confirm_ns = 0
        self.counts: Counter[str] = Counter()

    def takes(self, body: bytes) -> int | None:
        """A message came; its number."""
        try:
            number = number_of(body)
        except ValueError as error:
            self.violations.append(f"wrong body: {error} ({body[:40]!r})")
            return None
        self.counts["delivered"] += 1
        if number not in self.sent:
            self.violations.append(f"unknown: {number} was never sent")
        if number in self.acked:
            self.violations.append(f"resurrected: {number} came after its ack was confirmed")
        return number

    def missing(self) -> set[int]:
        """Confirmed, and neither here nor given away."""
        return self.confirmed - self.ack_sent

    async def drain(self, broker: BrokerProcess, *, quiet_s: float = QUIET_S) -> None:
        """Take out everything that is there, ack it, and say what is missing."""
        peer = await Peer.open(broker.address())
        quiet_at = time.monotonic()
        while time.monotonic() - quiet_at < quiet_s:
            leased = await peer.lease(TOPIC, 1000, wait_ns=200_000_000)
            if leased.runs:
                quiet_at = time.monotonic()
                await settle(peer, native.Scope("", TOPIC, GROUP, "c"), leased.runs, leased.batches, self)
            elif not self.missing():
                break
        await peer.close()
        if missing := self.missing():
            self.violations.append(f"lost: {len(missing)} were confirmed and are gone, such as {sorted(missing)[:10]}")
            self.ack_sent |= missing


async def settle(
    peer: Peer, scope: int | native.Scope, runs: Any, batches: Any, ledger: Ledger, ack_share: float = 1.0
) -> None:
    """Check what came and ack it."""
    numbers = [
        ledger.takes(batch.value(i))
        for buffer in batches
        for batch in [Batch.decode(bytes(buffer))]
        for i in range(batch.count)
    ]
    wanted = {number for number in numbers if number is not None}
    ledger.ack_sent |= wanted
    settled = await peer.ask(peer.session.send_ack(scope, [run[:4] for run in runs]))
    if not settled.refusals:
        ledger.acked |= wanted
        ledger.counts["acked"] += len(wanted)


async def make_topic(broker: BrokerProcess, **settings: Any) -> None:
    """The topic of the load, before there is any."""
    peer = await Peer.open(broker.address())
    await peer.call("topic.create", topic=TOPIC, settings={**SETTINGS, **settings})
    await peer.close()


class Load:
    """Producers and consumers over one topic, until the server goes or ``stop`` is set."""

    def __init__(
        self,
        broker: BrokerProcess,
        ledger: Ledger,
        *,
        seed: int,
        producers: int = 2,
        consumers: int = 1,
        size_bytes: int = 0,
    ) -> None:
        self.broker = broker
        self.ledger = ledger
        self.seed = seed
        self.counts = (producers, consumers)
        self.size_bytes = size_bytes
        self.refusals: Counter[str] = Counter()
        self.stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        producers, consumers = self.counts
        self._tasks = [asyncio.create_task(self._guarded(self._produce(number))) for number in range(producers)]
        self._tasks += [asyncio.create_task(self._guarded(self._consume(number))) for number in range(consumers)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop.set()
        if not self.broker.is_up:
            await asyncio.wait(self._tasks, timeout=5)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _guarded(self, work: Any) -> None:
        try:
            await work
        except HeadraceError as error:
            self.refusals[error.code] += 1
        except (OSError, TimeoutError):
            self.refusals["connection"] += 1

    async def publish_once(self, peer: Peer, count: int) -> None:
        ledger = self.ledger
        numbers = range(ledger.next, ledger.next + count)
        ledger.next += count
        ledger.sent.update(numbers)
        await peer.publish(TOPIC, [body_of(number, self.size_bytes) for number in numbers])
        ledger.confirmed.update(numbers)
        ledger.counts["confirmed"] += count
        ledger.last_confirm_ns = time.monotonic_ns()

    async def _produce(self, number: int) -> None:
        chance = random.Random(f"{self.seed}/{number}/{self.ledger.next}")
        peer = await Peer.open(self.broker.address())
        try:
            while not self.stop.is_set():
                await self.publish_once(peer, chance.randint(1, 30))
        finally:
            await peer.abandon()

    async def _consume(self, number: int) -> None:
        chance = random.Random(f"{self.seed}/consumer/{number}/{self.ledger.next}")
        peer = await Peer.open(self.broker.address())
        scope = native.Scope("", TOPIC, GROUP, f"c{number}")
        try:
            while not self.stop.is_set():
                leased = await peer.ask(peer.session.send_lease(scope, chance.randint(1, 40), wait_ns=50_000_000))
                if leased.runs:
                    await settle(peer, scope, leased.runs, leased.batches, self.ledger)
        finally:
            await peer.abandon()
