"""OpenTelemetry spans, one a batch, for those who switch them on (``tracing.enabled``).

A message carries its context as the header ``traceparent`` (W3C), put there by its producer; the broker passes it on
like any other header. With tracing on the broker adds spans of its own: ``send`` from a batch's arrival until it is
durable, ``receive`` when messages are handed out, ``settle``. A batch can come from many traces, so its span is a trace
of its own with a link to the context of each of its first SPAN_LINKS_MAX messages; a batch of one is a child instead.

A span costs some 30 µs, which is why it is one a batch and off by default. What happened to a message is recorded
anyway and costs nothing: ``trace``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace.batch import Batch
from headrace.broker.aio import Callback, Deliver, LoopBroker, Pull, Subscription
from headrace.broker.broker import Broker
from headrace.calls import LeasedBatch, Part, Run, Settle, Settled
from headrace.errors import HeadraceError, InvalidArgument
from headrace.limits import SPAN_LINKS_MAX

__all__ = ["TRACEPARENT", "TracingBroker", "export_spans"]

TRACEPARENT = "traceparent"


def export_spans(service: str) -> Callable[[], None]:
    """Have spans sent as the OTEL_… variables say (OTLP over HTTP); returns what ends that. Needs headrace[otel]."""
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise InvalidArgument(f"tracing.enabled needs the package {error.name}: pip install 'headrace[otel]'") from None
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    shutdown: Callable[[], None] = provider.shutdown  # typed whether the package is installed or not
    return shutdown


class TracingBroker(LoopBroker):
    """The broker of an event loop, with a span for what it does."""

    def __init__(self, broker: Broker, *, provider: Any = None, **more: Any) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        super().__init__(broker, **more)
        self._tracer = trace.get_tracer("headrace", tracer_provider=provider)
        self._extract = TraceContextTextMapPropagator().extract
        self._context_of = trace.get_current_span
        self._link = trace.Link
        self._wrong = trace.Status(trace.StatusCode.ERROR)

    # -- spans -------------------------------------------------------------------------------------------------------

    def _contexts(self, batches: Iterable[Batch]) -> list[Any]:
        """The contexts that the first messages carry."""
        found: list[Any] = []
        looked_at = 0
        for batch in batches:
            for index in range(min(batch.count, SPAN_LINKS_MAX - looked_at)):
                looked_at += 1
                parent = (batch.headers(index) or {}).get(TRACEPARENT)
                if isinstance(parent, str):
                    found.append(self._extract({TRACEPARENT: parent}))
        return found

    def _begin(self, verb: str, topic: str, batches: Iterable[Batch], **attributes: Any) -> Any:
        batches = list(batches)
        count = sum(batch.count for batch in batches)
        contexts = self._contexts(batches)
        links = [self._link(self._context_of(context).get_span_context()) for context in contexts]
        attributes |= {
            "messaging.system": "headrace",
            "messaging.operation.name": verb,
            "messaging.destination.name": topic,
        }
        if batches:
            attributes["messaging.batch.message_count"] = count
        if count == 1 and contexts:
            return self._tracer.start_span(f"{verb} {topic}", contexts[0], attributes=attributes)
        return self._tracer.start_span(f"{verb} {topic}", attributes=attributes, links=links)

    def _end(self, span: Any, reply: Any) -> None:
        if isinstance(reply, HeadraceError):
            span.set_attribute("error.type", reply.code)
            span.set_status(self._wrong)
        span.end()

    def _ending(self, span: Any, callback: Callback) -> Callback:
        def ended(reply: Any) -> None:
            self._end(span, reply)
            callback(reply)

        return ended

    # -- what is traced ----------------------------------------------------------------------------------------------

    async def publish(self, namespace: str, topic: str, partition: int, batch: Batch) -> list[Part]:
        span = self._begin("send", topic, [batch])
        try:
            parts = await super().publish(namespace, topic, partition, batch)
        except HeadraceError as error:
            self._end(span, error)
            raise
        self._end(span, None)
        return parts

    def publish_then(self, namespace: str, topic: str, partition: int, batch: Batch, callback: Callback) -> None:
        span = self._begin("send", topic, [batch])
        super().publish_then(namespace, topic, partition, batch, self._ending(span, callback))

    async def settle(self, namespace: str, topic: str, group: str, order: Settle) -> Settled:
        span = self._begin("settle", topic, (), **_group(group))
        try:
            settled = await super().settle(namespace, topic, group, order)
        except HeadraceError as error:
            self._end(span, error)
            raise
        self._end(span, None)
        return settled

    def settle_then(self, namespace: str, topic: str, group: str, order: Settle, callback: Callback) -> None:
        span = self._begin("settle", topic, (), **_group(group))
        super().settle_then(namespace, topic, group, order, self._ending(span, callback))

    async def lease_by_gid(
        self, gid: int, consumer: str, most: int, wait_ns: int, lease_ns: int | None
    ) -> list[LeasedBatch]:
        leased = await super().lease_by_gid(gid, consumer, most, wait_ns, lease_ns)
        group = self.core.state.groups.get(gid)
        if group is not None:
            self._handed_out(group.topic.name, group.name, leased)
        return leased

    def lease_then(
        self,
        namespace: str,
        topic: str,
        group: str,
        consumer: str,
        most: int,
        callback: Callback,
        *,
        wait_ns: int = 0,
        lease_ns: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Pull | None:
        def traced(reply: Any) -> None:
            if not isinstance(reply, HeadraceError):
                self._handed_out(topic, group, reply)
            callback(reply)

        return super().lease_then(
            namespace, topic, group, consumer, most, traced, wait_ns=wait_ns, lease_ns=lease_ns, options=options
        )

    def subscribe(
        self,
        namespace: str,
        topic: str,
        group: str,
        consumer: str,
        *,
        deliver: Deliver,
        lease_ns: int | None = None,
        options: Mapping[str, Any] | None = None,
        on_end: Callable[[HeadraceError], None] | None = None,
        held: Sequence[Run] | None = None,
    ) -> Subscription:
        def traced(leased: list[LeasedBatch]) -> None:
            self._handed_out(topic, group, leased)
            deliver(leased)

        return super().subscribe(
            *(namespace, topic, group, consumer),
            deliver=traced,
            lease_ns=lease_ns,
            options=options,
            on_end=on_end,
            held=held,
        )

    def _handed_out(self, topic: str, group: str, leased: list[LeasedBatch]) -> None:
        if leased:
            self._begin("receive", topic, [each.batch for each in leased], **_group(group)).end()


def _group(name: str) -> dict[str, Any]:
    return {"messaging.consumer.group.name": name}
