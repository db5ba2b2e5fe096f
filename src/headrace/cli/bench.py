"""``headrace bench``: what this place does in a second.

Each workload makes a topic of its own and removes it; values are random, every confirmation is durable unless the place
is not. Meant for comparing places and settings, and as a first look at a new machine; what is promised is measured by
``make bench``, beside probes of the machine.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from headrace.cli.output import Progress, count, span_text
from headrace.cli.place import Place, located
from headrace.cli.values import SIZE
from headrace.limits import SECOND_NS

if TYPE_CHECKING:
    from headrace.client.handles import Headrace, Topic

__all__ = ["bench"]

_LIST: Final = 1_000


class _Run(NamedTuple):
    """What one workload did. ``spans_ns``: of single calls, where they were taken."""

    messages: int
    took_ns: int
    spans_ns: list[int]


class _Bench:
    """A client, a size, and a clock."""

    def __init__(self, client: Headrace, messages: int, size_bytes: int, progress: Progress) -> None:
        self.client = client
        self.messages = messages
        self.progress = progress
        self.value = os.urandom(size_bytes)
        self.now_ns = client.keeper.now_ns

    @contextmanager
    def topic(self) -> Iterator[Topic]:
        """A topic for one workload."""
        topic = self.client.topic(f"bench/{secrets.token_hex(4)}")
        try:
            yield topic
        finally:
            topic.delete()

    def fill(self, topic: Topic) -> int:
        """A backlog; how many."""
        values = [self.value] * _LIST
        done = 0
        while done < self.messages:
            topic.publish_many(values[: self.messages - done])
            done += _LIST
            self.progress.at(min(done, self.messages))
        return self.messages

    def one(self) -> _Run:
        """publish, one after another, each waited for."""
        wanted = max(1, self.messages // 100)
        spans = []
        with self.topic() as topic:
            began = self.now_ns()
            for done in range(wanted):
                start = self.now_ns()
                topic.publish(self.value)
                spans.append(self.now_ns() - start)
                self.progress.at(done)
            return _Run(wanted, self.now_ns() - began, spans)

    def publish(self) -> _Run:
        """publish_many of 1,000."""
        with self.topic() as topic:
            began = self.now_ns()
            return _Run(self.fill(topic), self.now_ns() - began, [])

    def publisher(self) -> _Run:
        """Single publishes through a publisher, until all are confirmed."""
        with self.topic() as topic:
            began = self.now_ns()
            with topic.publisher() as publisher:
                for done in range(self.messages):
                    publisher.publish(self.value)
                    if not done % _LIST:
                        self.progress.at(done)
            return _Run(self.messages, self.now_ns() - began, [])

    def consume(self) -> _Run:
        """A backlog, message by message, each acked."""
        with self.topic() as topic:
            self.fill(topic)
            done = 0
            began = self.now_ns()
            with topic.consumer() as consumer:
                for d in consumer.until_idle("1s"):
                    d.ack()
                    done += 1
                    if not done % _LIST:
                        self.progress.at(done)
                    if done == self.messages:
                        break
                consumer.flush()
                took = self.now_ns() - began
            return _Run(done, took, [])

    def latency(self) -> _Run:
        """From publish to the consumer's hands, one at a time."""
        wanted = max(1, self.messages // 100)
        spans = []
        with self.topic() as topic, topic.consumer() as consumer:
            began = self.now_ns()
            for done in range(wanted):
                start = self.now_ns()
                topic.publish(self.value)
                (d,) = consumer.receive(wait="60s")
                spans.append(self.now_ns() - start)
                d.ack()
                self.progress.at(done)
            return _Run(wanted, self.now_ns() - began, spans)


WORKLOADS: Final[Mapping[str, Callable[[_Bench], _Run]]] = {
    "publish-one": _Bench.one,
    "publish-many": _Bench.publish,
    "publisher": _Bench.publisher,
    "consume": _Bench.consume,
    "latency": _Bench.latency,
}


@click.command()
@click.argument("workloads", nargs=-1, type=click.Choice(list(WORKLOADS)), metavar="[WORKLOAD ...]")
@click.option("--messages", type=click.IntRange(100), default=100_000, show_default=True, help="How many, each.")
@click.option("--size", "size_bytes", type=SIZE, default="200", metavar="SIZE", help="Bytes of a value (200).")
@located
def bench(place: Place, workloads: tuple[str, ...], messages: int, size_bytes: int) -> None:
    """Measure this place: publish-one, publish-many, publisher, consume, latency; all when none is named.

    Those that wait for each message do a hundredth of --messages.
    """
    with place.open(create=True) as broker:
        for name in workloads or WORKLOADS:
            with Progress(name, total=messages) as progress:
                run = WORKLOADS[name](_Bench(broker.client, messages, size_bytes, progress))
            place.output.value(_figures(name, run), _text(name, run))
            broker.pause()


def _figures(name: str, run: _Run) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "workload": name,
        "messages": run.messages,
        "duration_ns": run.took_ns,
        "per_second": round(run.messages * SECOND_NS / run.took_ns),
    }
    if run.spans_ns:
        figures |= {"p50_us": _quantile(run, 50) // 1000, "p99_us": _quantile(run, 99) // 1000}
    return figures


def _quantile(run: _Run, percent: int) -> int:
    spans = sorted(run.spans_ns)
    return spans[min(len(spans) - 1, len(spans) * percent // 100)]


def _text(name: str, run: _Run) -> str:
    said = f"{name:<14} {count(run.messages):>10} messages {count(run.messages * SECOND_NS / run.took_ns):>12}/s"
    if run.spans_ns:
        said += f"   p50 {span_text(_quantile(run, 50))}, p99 {span_text(_quantile(run, 99))}"
    return said
