"""Spans: one a batch, joined to the traces that messages carry."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.batch import Message, encode
from headrace.broker.broker import Broker
from headrace.broker.embedded import open_core
from headrace.broker.spans import TracingBroker
from headrace.calls import BY_KEY, LeasedBatch, Run, Settle
from headrace.errors import LeaseLost, UnknownGroup

TRACES = [f"{number:032x}" for number in (0xA1, 0xB2, 0xC3)]


def parent(trace: str) -> dict[str, str | bytes]:
    return {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}


def traced(scenario: Callable[[TracingBroker], Awaitable[None]]) -> list[ReadableSpan]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def run() -> None:
        broker = TracingBroker(Broker(open_core(":memory:")), provider=provider)
        await scenario(broker)
        await broker.close()

    asyncio.run(run())
    provider.shutdown()
    return list(exporter.get_finished_spans())


def _attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def run_of(leased: LeasedBatch) -> Run:
    return Run(leased.partition, leased.lease_id, leased.batch.base_offset, leased.batch.count)


@pytest.mark.feature("F134")
def test_a_single_message_continues_the_trace_of_its_producer() -> None:
    async def scenario(broker: TracingBroker) -> None:
        await broker.publish("default", "orders", BY_KEY, encode([Message(b"v", headers=parent(TRACES[0]))]))
        (leased,) = await broker.lease("default", "orders", "default", "w", 10)
        assert leased.batch.headers(0) == parent(TRACES[0])  # and the consumer may continue it
        await broker.settle("default", "orders", "default", Settle(ack=[run_of(leased)]))

    send, receive, settle = traced(scenario)
    assert [span.name for span in (send, receive, settle)] == ["send orders", "receive orders", "settle orders"]
    for span in (send, receive):
        assert span.parent is not None
        assert f"{span.parent.trace_id:032x}" == TRACES[0]
    assert _attributes(send)["messaging.batch.message_count"] == 1
    assert _attributes(receive)["messaging.consumer.group.name"] == "default"


def test_a_batch_is_one_span_with_links() -> None:
    async def scenario(broker: TracingBroker) -> None:
        batch = encode([Message(b"v", headers=parent(trace)) for trace in TRACES] + [Message(b"v")] * 100)
        done = asyncio.get_running_loop().create_future()
        broker.publish_then("default", "orders", BY_KEY, batch, done.set_result)
        await done

    (send,) = traced(scenario)
    assert send.parent is None
    assert [f"{link.context.trace_id:032x}" for link in send.links] == TRACES
    assert _attributes(send)["messaging.batch.message_count"] == 103


def test_what_is_pushed_has_a_span() -> None:
    async def scenario(broker: TracingBroker) -> None:
        came = asyncio.get_running_loop().create_future()
        subscription = broker.subscribe("default", "orders", "g", "w", deliver=came.set_result)
        subscription.credit(10)
        await broker.publish("default", "orders", BY_KEY, encode([Message(b"v")] * 3))
        assert sum(leased.batch.count for leased in await came) == 3

    names = sorted(span.name for span in traced(scenario))
    assert names == ["receive orders", "send orders"]


def test_what_is_pulled_with_a_callback_has_a_span() -> None:
    """As the doors do it."""

    async def scenario(broker: TracingBroker) -> None:
        came = asyncio.get_running_loop().create_future()
        broker.lease_then("default", "orders", "default", "w", 10, came.set_result, wait_ns=30_000_000_000)
        await broker.publish("default", "orders", BY_KEY, encode([Message(b"v")]))
        assert sum(leased.batch.count for leased in await came) == 1
        nothing = asyncio.get_running_loop().create_future()
        broker.lease_then("default", "orders", "default", "w", 10, nothing.set_result)
        assert await nothing == []

    names = sorted(span.name for span in traced(scenario))
    assert names == ["receive orders", "send orders"]


def test_what_was_refused_is_marked() -> None:
    async def scenario(broker: TracingBroker) -> None:
        await broker.publish("default", "orders", BY_KEY, encode([Message(b"v")]))
        with pytest.raises(UnknownGroup):
            await broker.settle("default", "orders", "nobody", Settle(ack=[Run(0, 1, 0)]))
        refused = asyncio.get_running_loop().create_future()
        order = Settle(ack=[Run(0, 99, 0)], publish=[("other", BY_KEY, encode([Message(b"v")]))])
        broker.settle_then("default", "orders", "default", order, refused.set_result)
        assert isinstance(await refused, LeaseLost)

    _, one, other = traced(scenario)
    assert [_attributes(span)["error.type"] for span in (one, other)] == ["unknown_group", "lease_lost"]
    assert not one.status.is_ok
    assert not other.status.is_ok


def test_a_traceparent_that_is_none_does_no_harm() -> None:
    async def scenario(broker: TracingBroker) -> None:
        for wrong in ("", "00-zz-1-01", "x" * 5000, b"\xff"):
            await broker.publish("default", "t", BY_KEY, encode([Message(b"v", headers={"traceparent": wrong})]))

    assert len(traced(scenario)) == 4
