"""The publisher for threads over a port and a keeper that a test drives: when batches leave, and who waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.batch import Batch
from headrace.calls import Part
from headrace.client.publisher import Publisher
from headrace.errors import Closed, HeadraceError, PayloadTooLarge, QueueFull, StorageFailed, TimedOut
from headrace.limits import (
    CLIENT_GATHER_ALONE_BYTES,
    CLIENT_GATHER_BYTES,
    CLIENT_GATHER_MESSAGES,
    CLIENT_PUBLISHER_MESSAGES_MAX,
    CLIENT_WINDOW,
    MILLISECOND_NS,
)

LINGER_NS = MILLISECOND_NS


class Pending:
    """A batch that the test answers."""

    def __init__(self, values: list[bytes], first: int) -> None:
        self.values = values
        self._first = first
        self._came = threading.Event()
        self._error: HeadraceError | None = None
        self.asked = threading.Event()

    def answer(self, error: HeadraceError | None = None) -> None:
        self._error = error
        self._came.set()

    def result(self, timeout: float | None = None) -> list[Part]:
        self.asked.set()
        if not self._came.wait(60 if timeout is None else timeout):
            raise TimedOut("not answered")
        if self._error is not None:
            raise self._error
        return [Part(0, len(self.values), self._first, 1_000 + self._first)]

    def done(self) -> bool:
        return self._came.is_set()


class Port:
    def __init__(self) -> None:
        self.sent: list[Pending] = []
        self.refuses: HeadraceError | None = None
        self.answers = False

    def publish_begin(self, namespace: str, topic: str, partition: int, batch: Batch) -> Pending:
        if self.refuses is not None:
            raise self.refuses
        pending = Pending(batch.values(), sum(len(each.values) for each in self.sent))
        self.sent.append(pending)
        if self.answers:
            pending.answer()
        return pending

    @property
    def sizes(self) -> list[int]:
        return [len(each.values) for each in self.sent]


class Keeper:
    """Time that the test moves, and the visits asked for."""

    def __init__(self) -> None:
        self.time_ns = 0
        self.visits: list[int] = []

    def now_ns(self) -> int:
        return self.time_ns

    def attend(self, at_ns: int) -> None:
        self.visits.append(at_ns)

    def add(self, kept: Any) -> None:
        self.kept = kept

    def remove(self, kept: Any) -> None:
        self.kept = None


@pytest.fixture
def port() -> Port:
    return Port()


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


@pytest.fixture
def publisher(port: Port, keeper: Keeper) -> Publisher:
    client = SimpleNamespace(
        port=port, keeper=keeper, namespace="default", remember=lambda kept: None, forget=lambda kept: None
    )
    return Publisher(client, "clicks", -1, LINGER_NS)  # type: ignore[arg-type]  # what it uses of a client


def visit(publisher: Publisher, keeper: Keeper) -> int | None:
    keeper.time_ns += LINGER_NS
    return publisher.keep(keeper.time_ns)


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_the_first_message_of_a_batch_asks_for_a_visit_after_the_linger(
    publisher: Publisher, port: Port, keeper: Keeper
) -> None:
    for n in range(3):
        publisher.publish(b"%d" % n)
    assert (keeper.visits, port.sent) == ([LINGER_NS], [])
    assert publisher.keep(LINGER_NS - 1) == LINGER_NS
    assert port.sent == []
    assert publisher.keep(LINGER_NS) is None
    assert [each.values for each in port.sent] == [[b"0", b"1", b"2"]]


def test_a_trickle_leaves_after_the_linger_however_many_were_sent_before(
    publisher: Publisher, port: Port, keeper: Keeper
) -> None:
    port.answers = True
    for _ in range(3 * CLIENT_WINDOW):
        publisher.publish(b"x")
        assert visit(publisher, keeper) is None
    assert port.sizes == [1] * 3 * CLIENT_WINDOW


def test_the_keeper_does_not_wait_for_a_window_that_is_full(publisher: Publisher, port: Port, keeper: Keeper) -> None:
    for _ in range(CLIENT_WINDOW):
        publisher.publish(b"x")
        visit(publisher, keeper)
    publisher.publish(b"late")
    assert visit(publisher, keeper) == keeper.time_ns + LINGER_NS
    assert len(port.sent) == CLIENT_WINDOW
    port.sent[0].answer()
    assert visit(publisher, keeper) is None
    assert port.sent[-1].values == [b"late"]


def test_a_full_batch_leaves_at_once(publisher: Publisher, port: Port) -> None:
    for _ in range(CLIENT_GATHER_MESSAGES + 1):
        publisher.publish(b"x")
    assert port.sizes == [CLIENT_GATHER_MESSAGES]


def test_a_batch_is_full_by_its_bytes_too(publisher: Publisher, port: Port) -> None:
    value = bytes(CLIENT_GATHER_ALONE_BYTES)
    for _ in range(CLIENT_GATHER_BYTES // len(value)):
        publisher.publish(value)
    assert port.sizes == [CLIENT_GATHER_BYTES // len(value)]


def test_a_large_value_leaves_in_a_batch_of_its_own(publisher: Publisher, port: Port) -> None:
    publisher.publish(b"small")
    publisher.publish(bytes(CLIENT_GATHER_ALONE_BYTES + 1))
    publisher.publish(b"after")
    assert port.sent[0].values == [b"small"]


@pytest.mark.feature("F005")
def test_a_publish_returns_before_it_is_durable_and_its_receipt_waits(publisher: Publisher, port: Port) -> None:
    receipts = [publisher.publish(b"%d" % n, "user-1") for n in range(3)]
    found: list[int] = []
    waiter = in_thread(lambda: found.append(receipts[1].result().offset))
    while not port.sent:
        waiter.join(0.001)  # asking for a receipt sends what has gathered
    assert port.sizes == [3]
    port.sent[0].answer()
    waiter.join()
    assert found == [1]
    assert [receipt.result().id for receipt in receipts] == [1_000, 1_001, 1_002]


def test_with_a_full_window_the_publishing_thread_waits_for_the_oldest(publisher: Publisher, port: Port) -> None:
    for _ in range(CLIENT_WINDOW * CLIENT_GATHER_MESSAGES):
        publisher.publish(b"x")
    assert len(port.sent) == CLIENT_WINDOW

    def fill() -> None:
        for _ in range(CLIENT_GATHER_MESSAGES):
            publisher.publish(b"y")

    blocked = in_thread(fill)
    assert port.sent[0].asked.wait(60)
    assert len(port.sent) == CLIENT_WINDOW
    port.sent[0].answer()
    blocked.join()
    assert len(port.sent) == CLIENT_WINDOW + 1
    assert CLIENT_WINDOW * CLIENT_GATHER_MESSAGES <= CLIENT_PUBLISHER_MESSAGES_MAX


def test_a_refusal_is_told_once_by_its_receipt_or_by_flush(publisher: Publisher, port: Port) -> None:
    asked = publisher.publish(b"x")
    in_thread(lambda: _answer_next(port, 0, QueueFull("full")))
    with pytest.raises(QueueFull):
        asked.result()
    publisher.flush()
    publisher.publish(b"y")
    in_thread(lambda: _answer_next(port, 1, QueueFull("full")))
    with pytest.raises(QueueFull):
        publisher.flush()
    publisher.flush()


def _answer_next(port: Port, index: int, error: HeadraceError) -> None:
    while len(port.sent) <= index:
        threading.Event().wait(0.001)
    port.sent[index].answer(error)


def test_a_batch_that_cannot_even_be_sent_fails_its_own_receipts(publisher: Publisher, port: Port) -> None:
    port.refuses = StorageFailed("the disk")
    receipt = publisher.publish(b"x")
    with pytest.raises(StorageFailed):
        receipt.result()
    port.refuses, port.answers = None, True
    assert publisher.publish(b"y").result().offset == 0


def test_a_timeout_of_a_receipt_is_not_a_verdict(publisher: Publisher, port: Port) -> None:
    receipt = publisher.publish(b"x")
    with pytest.raises(TimedOut):
        receipt.result("1ms")
    port.sent[0].answer()
    assert receipt.result().offset == 0


def test_a_value_too_large_for_any_broker_is_refused_before_it_gathers(publisher: Publisher, port: Port) -> None:
    port.answers = True
    publisher.publish(b"fine")
    with pytest.raises(PayloadTooLarge):
        publisher.publish(bytes(64 * 1024 * 1024 + 1))
    publisher.flush()
    assert [each.values for each in port.sent] == [[b"fine"]]


def test_a_closed_publisher_takes_nothing_and_closes_twice(publisher: Publisher, port: Port) -> None:
    port.answers = True
    publisher.publish(b"x")
    publisher.close()
    publisher.close()
    assert port.sizes == [1]
    with pytest.raises(Closed):
        publisher.publish(b"y")


@pytest.mark.feature("F222")
def test_many_threads_share_a_publisher_and_nothing_is_lost(publisher: Publisher, port: Port) -> None:
    port.answers = True
    places: list[int] = []

    def work(number: int) -> None:
        receipts = [publisher.publish(b"%d" % number) for _ in range(500)]
        places.extend(receipt.result().offset for receipt in receipts)

    crew = [in_thread(lambda n=n: work(n)) for n in range(8)]  # type: ignore[misc]  # n is bound
    for thread in crew:
        thread.join()
    assert sorted(places) == list(range(4_000))
