"""A crash drill: a real server on your disk, killed again and again under load, and the books checked afterwards.

    producers ──publish──►  headrace serve  ──deliver──►  consumers        all of them in this process, over the network
        │                     ▲ kill -9, start again                            │
        └──────────── Ledger: what was confirmed, what was seen ────────────────┘

The ledger believes nobody but the clients. It knows what the server confirmed and what came out, and holds it to:

    lost          confirmed as published, and never delivered
    resurrected   delivered after its ack was confirmed
    out of order  delivered after a later message of its key
    unknown       delivered, and never published
    drift         what the files of the server say of themselves, once everything is over

A message that comes twice without its ack having been confirmed is no violation: that is at least once, and counted.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Final

import headrace
from headrace.clock import SystemClock
from headrace.errors import HeadraceError, TimedOut
from headrace.limits import SECOND_NS

__all__ = ["Drill", "DrillReport", "Ledger"]

TOPIC: Final = "drill"
GROUP: Final = "crew"
KEYS: Final = 250
BATCH: Final = 50
NACKED: Final = 0.02
_STARTED_S: Final = 120
_QUIET_S: Final = 20
_CLOCK: Final = SystemClock()


class Ledger:
    """What clients saw; see the head of this file."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.sent: set[str] = set()
        self.confirmed: set[str] = set()
        self.delivered: Counter[str] = Counter()
        self.acked: set[str] = set()
        self.violations: list[str] = []
        self._latest: dict[str, int] = {}

    def sends(self, values: Iterable[str]) -> None:
        with self._lock:
            self.sent.update(values)

    def confirms(self, values: Iterable[str]) -> None:
        with self._lock:
            self.confirmed.update(values)

    def sees(self, value: str) -> None:
        """A message came."""
        key, _, number = value.rpartition(":")
        place = int(number)
        with self._lock:
            if value not in self.sent:
                self.violations.append(f"unknown: {value} was delivered and never published")
            if value in self.acked:
                self.violations.append(f"resurrected: {value} was delivered after its ack was confirmed")
            elif place < self._latest.get(key, 0):
                self.violations.append(f"out of order: {value} was delivered after {key}:{self._latest[key]}")
            self._latest[key] = max(place, self._latest.get(key, 0))
            self.delivered[value] += 1

    def acks(self, values: Iterable[str]) -> None:
        """An ack was confirmed."""
        with self._lock:
            self.acked.update(values)

    def missing(self) -> set[str]:
        """Confirmed, and not seen so far."""
        with self._lock:
            return self.confirmed - self.delivered.keys()


@dataclass
class DrillReport:
    """How it went; ``violations`` is empty when it went well."""

    seed: int
    kills: int = 0
    confirmed: int = 0
    acked: int = 0
    delivered_twice: int = 0
    lost: int = 0
    drift: int = 0
    restart_seconds: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.violations and not self.lost and not self.drift

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


class _Server:
    """``headrace serve`` on a port that stays the same over its lives."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ready = directory / "ready.json"
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._ready.unlink(missing_ok=True)
        doors = ("--http-port", "off", "--mqtt-port", "off", "--grpc-port", "off", "--native-port", str(self.port))
        self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [
                *(sys.executable, "-m", "headrace", "serve", "--data-dir", str(self._directory / "data")),
                *("--ready-file", str(self._ready), "--log-level", "error", *doors),
            ],
            stdout=subprocess.DEVNULL,
        )
        deadline_ns = _CLOCK.monotonic_ns() + _STARTED_S * SECOND_NS
        waiting = Event()
        while not self._ready.exists():
            if self.process.poll() is not None:
                raise TimedOut(f"the server ended with {self.process.returncode} before it was ready")
            if _CLOCK.monotonic_ns() > deadline_ns:
                raise TimedOut(f"the server was not ready in {_STARTED_S} s")
            waiting.wait(0.005)
        self.port = int(json.loads(self._ready.read_text())["native"].rpartition(":")[2])

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(_STARTED_S)


class Drill:
    """One drill in a directory that nothing else uses."""

    def __init__(
        self,
        directory: Path,
        *,
        kills: int = 10,
        producers: int = 2,
        consumers: int = 2,
        seed: int = 0,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.ledger = Ledger()
        self.report = DrillReport(seed)
        self._random = random.Random(seed)
        self._server = _Server(directory)
        self._data_dir = directory / "data"
        self._counts = (kills, producers, consumers)
        self._tell = tell
        self._published = Event()
        self._over = Event()
        self._broken: list[BaseException] = []

    def run(self) -> DrillReport:
        """Do it; the report says whether everything held."""
        kills, producers, consumers = self._counts
        self._server.start()
        url = f"headrace://127.0.0.1:{self._server.port}"
        try:
            with headrace.connect(url) as setup:
                setup.topic(TOPIC, lease="2s", retry={"max_retries": 1_000_000, "total_timeout": "none"}, max_depth=0)
            threads = [Thread(target=self._guarded, args=(self._produce, url, n)) for n in range(producers)]
            threads += [Thread(target=self._guarded, args=(self._consume, url, n)) for n in range(consumers)]
            for thread in threads:
                thread.start()
            try:
                self._kill_again_and_again(kills)
                self._published.set()
                self._wait_until_all_came()
            finally:
                self._published.set()
                self._over.set()
                for thread in threads:
                    thread.join()
            self._server.stop()
        finally:
            self._server.kill()
        if self._broken:
            raise self._broken[0]
        return self._closed_books()

    def _guarded(self, work: Callable[[str, int], None], url: str, number: int) -> None:
        try:
            work(url, number)
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits
            self._broken.append(error)
            self._published.set()
            self._over.set()

    def _kill_again_and_again(self, kills: int) -> None:
        for number in range(1, kills + 1):
            if self._over.wait(self._random.uniform(0.05, 0.6)):
                return
            self._server.kill()
            started_ns = _CLOCK.monotonic_ns()
            self._server.start()
            took_s = (_CLOCK.monotonic_ns() - started_ns) / SECOND_NS
            self.report.restart_seconds.append(round(took_s, 3))
            self.report.kills = number
            self._tell(
                f"kill {number} of {kills}: {len(self.ledger.confirmed):,} confirmed, {len(self.ledger.acked):,} acked"
            )

    def _wait_until_all_came(self) -> None:
        """As long as something still comes."""
        left, quiet_ns = len(self.ledger.missing()), _CLOCK.monotonic_ns()
        while left and not self._over.wait(0.05):
            now_left, now_ns = len(self.ledger.missing()), _CLOCK.monotonic_ns()
            if now_left != left:
                left, quiet_ns = now_left, now_ns
            elif now_ns - quiet_ns > _QUIET_S * SECOND_NS:
                return

    def _produce(self, url: str, number: int) -> None:
        chance = random.Random(f"{self.report.seed}/{number}")
        placed: Counter[str] = Counter()
        with headrace.connect(url, outage="60s") as client:
            topic = client.topic(TOPIC)
            while not self._published.is_set():
                values: list[str] = []
                messages: list[headrace.Message] = []
                for _ in range(chance.randint(1, BATCH)):
                    key = f"p{number}k{chance.randrange(KEYS)}"
                    placed[key] += 1
                    values.append(f"{key}:{placed[key]}")
                    messages.append(headrace.Message(values[-1].encode(), key=key))
                self.ledger.sends(values)
                try:
                    topic.publish_many(messages)
                except HeadraceError as error:
                    self._tell(f"a publish was refused: {error}")
                    continue
                self.ledger.confirms(values)

    def _consume(self, url: str, number: int) -> None:
        chance = random.Random(f"{self.report.seed}/consumer/{number}")
        with (
            headrace.connect(url, outage="60s") as client,
            client.topic(TOPIC).consumer(group=GROUP, lease="2s") as consumer,
        ):
            while not self._over.is_set():
                kept: list[headrace.Delivery] = []
                given_back: list[headrace.Delivery] = []
                for delivery in consumer.receive(100, wait="200ms"):
                    self.ledger.sees(delivery.value.decode())
                    (given_back if chance.random() < NACKED else kept).append(delivery)
                if not kept and not given_back:
                    continue
                try:
                    for delivery in given_back:
                        delivery.nack(delay=0)
                    consumer.ack(kept)
                    consumer.flush()
                except HeadraceError:
                    continue  # a lease that was lost with the server: it will come again
                self.ledger.acks(delivery.value.decode() for delivery in kept)

    def _closed_books(self) -> DrillReport:
        report, ledger = self.report, self.ledger
        report.confirmed, report.acked = len(ledger.confirmed), len(ledger.acked)
        report.delivered_twice = sum(times - 1 for times in ledger.delivered.values())
        missing = sorted(ledger.missing())
        report.lost = len(missing)
        report.violations = [*ledger.violations, *(f"lost: {value}" for value in missing[:20])]
        with headrace.open(self._data_dir) as left:
            report.drift = left.stats()["drift"]
        return report
