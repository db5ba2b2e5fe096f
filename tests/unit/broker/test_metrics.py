"""What /metrics says, read by the parser of those who scrape it."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.batch import Message, encode
from headrace.broker import metrics as module
from headrace.broker.broker import Broker
from headrace.broker.embedded import open_core
from headrace.broker.metrics import FAMILIES, Metrics
from headrace.calls import BY_KEY, Run, Settle
from headrace.clock import ManualClock
from headrace.limits import SECOND_NS

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class House:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.broker = Broker(open_core(":memory:", clock=self.clock))
        self.metrics = Metrics(self.broker)

    def publish(self, count: int, topic: str = "orders", namespace: str = "default", **fields: object) -> None:
        self.broker.publish(namespace, topic, BY_KEY, encode([Message(value=b"v", **fields)] * count))

    def lease(self, most: int, topic: str = "orders") -> Run:
        (leased,) = self.broker.lease("default", topic, "default", "worker", most).reply
        return Run(leased.partition, leased.lease_id, leased.batch.base_offset, leased.batch.count)

    def settle(self, order: Settle, topic: str = "orders") -> None:
        self.broker.settle("default", topic, "default", order)

    def scrape(self) -> Samples:
        samples: Samples = {}
        for family in text_string_to_metric_families("".join(self.metrics.expose())):
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                assert key not in samples, f"{key} is there twice"
                samples[key] = sample.value
        return samples

    def value(self, name: str, **labels: str) -> float:
        return self.scrape()[name, tuple(sorted(labels.items()))]


@pytest.fixture
def house() -> House:
    return House()


OURS = {"namespace": "default", "topic": "orders", "group": "default"}


@pytest.mark.feature("F225", "F233", "F234", "F235", "F236", "F237", "F239", "F240", "F241", "F246")
def test_the_numbers_are_those_of_what_happened(house: House) -> None:
    house.publish(10)
    house.publish(2, deliver_at_ns=house.clock.wall_ns() + 60 * SECOND_NS)
    run = house.lease(6)
    first = run.first_offset
    house.settle(
        Settle(
            ack=[Run(run.partition, run.lease_id, first, 2)],
            nack=[(Run(run.partition, run.lease_id, first + 2), None, "no")],
            reject=[(Run(run.partition, run.lease_id, first + 3), "never")],
        )
    )
    house.broker.join("default", "orders", "default", "worker", None)
    seen = house.scrape()

    def ours(name: str, **more: str) -> float:
        return seen[name, tuple(sorted({**OURS, **more}.items()))]

    assert [ours("headrace_messages", state=state) for state in ("scheduled", "ready", "leased")] == [3, 4, 2]
    assert seen["headrace_published_total", (("namespace", "default"), ("topic", "orders"))] == 12
    assert [ours(f"headrace_{name}_total") for name in ("delivered", "acked", "nacked", "redelivered")] == [6, 2, 1, 0]
    assert ours("headrace_dead_total", reason="rejected") == 1
    assert ours("headrace_group_lag") == 9
    assert ours("headrace_group_consumers") == 1
    assert seen["headrace_published_total", (("namespace", "default"), ("topic", "dlq/orders"))] == 1
    assert seen["headrace_books_drift", ()] == 0
    queue = (("queue", "orders"),)
    assert seen["mqtt_queue_depth", queue] == 9
    assert seen["mqtt_queue_enqueue_total", queue] == 12
    assert seen["mqtt_queue_dequeue_total", queue] == 6
    assert seen["mqtt_queue_ack_total", queue] == 2
    assert seen["mqtt_queue_nack_total", queue] == 1
    assert seen["mqtt_queue_dlq_total", (("queue", "orders"), ("reason", "rejected"))] == 1
    assert seen["mqtt_queue_active_consumers", (("group", "default"), ("queue", "orders"))] == 1


@pytest.mark.feature("F238")
def test_latency_is_from_due_to_handed_out(house: House) -> None:
    house.publish(99)
    house.clock.advance(3_000_000)  # 3 ms
    house.lease(99)
    house.publish(1, deliver_at_ns=house.clock.wall_ns() + SECOND_NS)
    house.clock.advance(2 * SECOND_NS)
    house.lease(1)
    topic = {"namespace": "default", "topic": "orders"}
    name = "headrace_delivery_latency_seconds"
    assert house.value(f"{name}_count", **topic) == 100
    assert house.value(f"{name}_bucket", **topic, le="0.0025") == 0
    assert house.value(f"{name}_bucket", **topic, le="0.005") == 99
    assert house.value(f"{name}_bucket", **topic, le="1") == 100
    assert house.value(f"{name}_sum", **topic) == pytest.approx(99 * 0.003 + 1)
    median = house.value("mqtt_queue_delivery_latency_seconds", queue="orders", quantile="0.5")
    assert 0.0025 < median <= 0.005


def test_a_redelivery_is_no_latency(house: House) -> None:
    house.publish(2)
    run = house.lease(2)
    house.settle(Settle(nack=[(run, 0, "again")]))
    house.clock.advance(50 * SECOND_NS)
    house.lease(2)
    assert house.value("headrace_delivery_latency_seconds_count", namespace="default", topic="orders") == 2


def test_the_age_of_the_oldest_is_looked_up_once_an_interval(house: House) -> None:
    house.publish(1)
    house.clock.advance(5 * SECOND_NS)
    assert house.value("headrace_group_oldest_seconds", **OURS) == pytest.approx(5, abs=0.01)
    house.clock.advance(5 * SECOND_NS)
    assert house.value("headrace_group_oldest_seconds", **OURS) == pytest.approx(5, abs=0.01)
    house.clock.advance(5 * SECOND_NS)
    assert house.value("headrace_group_oldest_seconds", **OURS) == pytest.approx(15, abs=0.01)
    house.settle(Settle(ack=[house.lease(1)]))
    house.clock.advance(10 * SECOND_NS)
    assert house.value("headrace_group_oldest_seconds", **OURS) == 0


def test_series_are_bounded_and_what_is_left_out_is_summed_up(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "METRICS_GROUPS_MAX", 3)
    for number in range(10):
        house.publish(1, topic=f"t{number}")
    seen = house.scrape()
    topics = {dict(labels).get("topic") for name, labels in seen if name == "headrace_group_lag"}
    assert topics == {"t0", "t1", "t2", "(other)"}
    assert seen["headrace_group_lag", (("group", "(other)"), ("namespace", "(other)"), ("topic", "(other)"))] == 7


def test_it_comes_in_pieces(house: House) -> None:
    for number in range(60):
        house.publish(1, topic=f"t{number}")
    pieces = list(house.metrics.expose())
    assert pieces[:2] == ["", ""]


def test_names_that_need_it_are_escaped(house: House) -> None:
    house.publish(1, topic='a"b\\c')
    assert house.value("mqtt_queue_depth", queue='a"b\\c') == 1


def test_every_family_is_declared_and_nothing_else_is_said(house: House) -> None:
    house.metrics.connections["native"] = lambda: 3
    house.publish(1)
    house.settle(Settle(reject=[(house.lease(1), "no")]))
    declared = {line.split()[2] for line in "".join(house.metrics.expose()).splitlines() if line.startswith("# TYPE")}
    assert declared == set(FAMILIES)
    assert house.value("headrace_connections", door="native") == 3
    assert house.value("headrace_resident_memory_bytes") > 1_000_000
