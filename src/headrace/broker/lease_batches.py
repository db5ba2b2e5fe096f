"""Lease batches: leases taken under a number that the broker can be asked for again.

A reader that checkpoints (Spark) keeps only a number. What belongs to batch 7 of a reader is what the consumer
``<reader>#7`` holds: the leases themselves, which are in the journal, so that the same messages come after a crash of
either side, as long as nobody settled them and their time is not up. Whoever asks for the batch after 6 again gets
batch 7 again.

    take     the next batch: leased now, or found where an earlier try left it
    show     what is in a batch, as runs of offsets with their attempts
    messages the messages of some runs
    settle   ack what is left of a batch and of those before it
    extend   more time for all batches of the reader
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from headrace.batch import Batch
from headrace.broker.broker import Broker, gathered
from headrace.delivery import Group, Receipts, SettleMany
from headrace.delivery.backlog import Lease
from headrace.errors import InvalidArgument
from headrace.limits import READ_BATCHES_MAX, READ_BYTES_MAX
from headrace.shard.core import Done

__all__ = ["LeaseBatches"]

_MARK = "#"


class LeaseBatches:
    """The calls, by name."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def calls(self) -> Mapping[str, Callable[..., Done]]:
        return {
            "lease_batch.take": self.take,
            "lease_batch.show": self.show,
            "lease_batch.messages": self.messages,
            "lease_batch.settle": self.settle,
            "lease_batch.extend": self.extend,
        }

    def take(
        self,
        topic: str,
        group: str,
        reader: str,
        after: int,
        most: int,
        namespace: str = "default",
        lease_ns: int | None = None,
    ) -> Done:
        """The batch after ``after``: {"batch", "count"}; the same number and count 0 when nothing is ready."""
        found = self._broker.group(namespace, topic, group)
        _check(reader)
        name = _consumer(reader, after + 1)
        held = sum(lease.count for lease in _leases(found, {name}))
        position = self._broker.core.journal.end_position if held else 0
        while held < most:
            grants, position = self._broker.lease_spans(found, name, most - held, lease_ns)
            count = sum(grant.span.count for grant in grants)
            if not count:
                break
            held += count
        return Done({"batch": after + 1 if held else after, "count": held}, position)

    def show(self, topic: str, group: str, reader: str, batch: int, namespace: str = "default") -> Done:
        """What a batch still holds: [{"partition", "lease_id", "runs": [[first, count, attempt]]}]."""
        found = self._broker.find_group(namespace, topic, group)
        _check(reader)
        parts = []
        for lease in _leases(found, {_consumer(reader, batch)}):
            tries = lease.backlog.tries
            runs: list[list[int]] = []
            for first, count in _stretches(lease):
                if not tries:
                    runs.append([first, count, 1])
                    continue
                for offset in range(first, first + count):
                    known = tries.get(offset)
                    attempt = known.attempts if known is not None else 1
                    last = runs[-1] if runs else None
                    if last is not None and last[0] + last[1] == offset and last[2] == attempt:
                        last[1] += 1
                    else:
                        runs.append([offset, 1, attempt])
            parts.append({"partition": lease.backlog.partition.index, "lease_id": lease.lease_id, "runs": runs})
        return Done(sorted(parts, key=lambda part: (part["partition"], part["lease_id"])), 0)

    def messages(self, topic: str, partition: int, runs: Sequence[Sequence[int]], namespace: str = "default") -> Done:
        """The messages at some offsets ([first, count] each), and how many runs and messages of the next one came."""
        found = self._broker.find_topic(namespace, topic)
        if not 0 <= partition < len(found.partitions):
            raise InvalidArgument(f"partition {partition}: topic {topic!r} has {len(found.partitions)}")
        log = self._broker.core.log(found.partitions[partition].pid)
        batches: list[Batch] = []
        size_bytes = given = 0
        for batch in gathered(log, _offsets(runs)):
            batches.append(batch)
            size_bytes += batch.size_bytes
            given += batch.count
            if size_bytes >= READ_BYTES_MAX or len(batches) >= READ_BATCHES_MAX:
                break
        return Done(({"messages": given}, batches), 0)

    def settle(self, topic: str, group: str, reader: str, upto: int, namespace: str = "default") -> Done:
        """Ack what batches up to ``upto`` still hold: {"acked"}; what is no longer leased to them is left alone."""
        found = self._broker.find_group(namespace, topic, group)
        _check(reader)
        receipts = [
            Receipts(lease.backlog.partition.pid, lease.lease_id, lease.first, lease.count, lease.bits)
            for lease in _leases_of(found, reader)
            if _number(lease.consumer, reader) <= upto
        ]
        if not receipts:
            return Done({"acked": 0}, 0)
        done = self._broker.execute(SettleMany(found.gid, ack=receipts))
        return Done({"acked": done.reply.settled}, done.position)

    def extend(self, topic: str, group: str, reader: str, by_ns: int, namespace: str = "default") -> Done:
        """More time for everything the reader's batches hold: {"extended"}."""
        found = self._broker.find_group(namespace, topic, group)
        _check(reader)
        extend = [
            (Receipts(lease.backlog.partition.pid, lease.lease_id, lease.first, lease.count, lease.bits), by_ns)
            for lease in _leases_of(found, reader)
        ]
        if not extend:
            return Done({"extended": 0}, 0)
        done = self._broker.execute(SettleMany(found.gid, extend=extend))
        return Done({"extended": done.reply.settled}, done.position)


def _check(reader: str) -> None:
    if _MARK in reader:
        raise InvalidArgument(f"reader {reader!r}: a name without {_MARK!r}")


def _consumer(reader: str, batch: int) -> str:
    return f"{reader}{_MARK}{batch}"


def _number(consumer: str, reader: str) -> int:
    """The number of a reader's batch; beyond all numbers for other consumers."""
    name, _, number = consumer.rpartition(_MARK)
    return int(number) if name == reader and number.isdigit() else 1 << 62


def _leases(group: Group, consumers: set[str]) -> list[Lease]:
    return [
        lease
        for backlog in group.backlogs.values()
        for lease in backlog.leases.values()
        if lease.consumer in consumers and lease.count
    ]


def _leases_of(group: Group, reader: str) -> list[Lease]:
    return [
        lease
        for backlog in group.backlogs.values()
        for lease in backlog.leases.values()
        if _number(lease.consumer, reader) < 1 << 62 and lease.count
    ]


def _stretches(lease: Lease) -> Iterable[tuple[int, int]]:
    from headrace.delivery import runs

    return [(lease.first, lease.count)] if lease.bits is None else runs(lease.bits)


def _offsets(runs: Sequence[Sequence[int]]) -> Iterable[int]:
    for first, count in runs:
        yield from range(first, first + count)
