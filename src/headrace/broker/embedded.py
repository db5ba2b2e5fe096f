"""A broker inside the process: the ports of ``headrace.calls`` over a shard, without sockets.

The sync port needs no event loop: the calling thread does the work and shares the sync with all others
(``headrace.shard.threads``). The asyncio port lives in the loop that opened it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.batch import Batch, encode_plain
from headrace.broker.administration import Administration
from headrace.broker.broker import Broker
from headrace.broker.portions import Portions
from headrace.calls import BY_KEY, LeasedBatch, Part, Place, Run, Settle, Settled, Tended, place_of
from headrace.clock import Clock, SystemClock
from headrace.config import SealConfig, TopicConfig
from headrace.errors import Closed, HeadraceError, from_code
from headrace.journal import DiskJournal, Journal, MemoryJournal
from headrace.limits import PREFETCH_MAX
from headrace.log.store import open_store
from headrace.shard.core import Core, Done
from headrace.shard.sealing import Sealer
from headrace.shard.threads import ThreadHost

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.delivery import Group

__all__ = ["EmbeddedConsumer", "EmbeddedPort", "open_core", "open_port"]

MEMORY = ":memory:"


SEALED: Final = "log"
"""Where sealed files go in a data directory, unless configured."""


def open_core(
    path: str | Path,
    *,
    clock: Clock | None = None,
    node_id: int = 1,
    journal: Journal | None = None,
    seal: SealConfig | None = None,
) -> Core:
    """The shard of a data directory, or of none (``":memory:"``), with the places of its sealed files."""
    seal = seal or SealConfig()
    memory = str(path) == MEMORY
    store = open_store(seal.location or f"{path}/{SEALED}") if seal.location or not memory else None
    archive = open_store(seal.archive) if seal.archive else None
    if journal is None:
        journal = MemoryJournal() if memory else DiskJournal.open(str(path))
    try:
        return Core(journal, clock or SystemClock(), node_id=node_id, store=store, archive=archive)
    except BaseException:
        journal.close()
        raise


def open_port(
    path: str | Path,
    *,
    clock: Clock | None = None,
    node_id: int = 1,
    topic_defaults: TopicConfig | None = None,
    auto_create: bool = True,
    seal: SealConfig | None = None,
) -> EmbeddedPort:
    """Open a data directory for the threads of this process; its log is sealed in the background."""
    clock = clock or SystemClock()
    core = open_core(path, clock=clock, node_id=node_id, seal=seal)
    port = EmbeddedPort(Broker(core, topic_defaults=topic_defaults, auto_create=auto_create), clock, seal)
    port.sealer.start()
    return port


class PendingPublish:
    """A publish that is in the journal and perhaps not yet durable."""

    __slots__ = ("_done", "_host")

    def __init__(self, host: ThreadHost, done: Done) -> None:
        self._host = host
        self._done = done

    def result(self, timeout: float | None = None) -> list[Part]:
        if timeout is not None and self._done.position:
            self._host.core.journal.wait_durable(self._done.position, timeout)
        parts: list[Part] = self._host.finish(self._done)
        return parts

    def done(self) -> bool:
        journal = self._host.core.journal
        if journal.durable_position >= self._done.position:
            return True
        journal.commit_soon()
        return False


class EmbeddedPort:
    """The broker as the threads of its own process see it."""

    def __init__(self, broker: Broker, clock: Clock, seal: SealConfig | None = None) -> None:
        broker.begin()
        self.broker = broker
        self.host = ThreadHost(broker.core, clock)
        self.sealer = Sealer(broker.core, self.host.run, seal or SealConfig(), clock, tell_logging)
        self.administration = Administration(broker)
        self.administration.reading.sealer = self.sealer
        self.now_ns = broker.core.clock.now_ns
        """The broker's own time, which deadlines are in."""

    def publish(self, namespace: str, topic: str, partition: int, batch: Batch) -> list[Part]:
        parts: list[Part] = self.host.run(self.broker.publish, namespace, topic, partition, batch)
        return parts

    def publish_value(self, namespace: str, topic: str, value: bytes, key: bytes | None) -> Place:
        place = None if key else self.host.publish_value(self.broker.publish_value, namespace, topic, value)
        if place is None:
            return place_of(self.publish(namespace, topic, BY_KEY, encode_plain(value, key)))
        return place

    def publish_begin(self, namespace: str, topic: str, partition: int, batch: Batch) -> PendingPublish:
        done = self.host.begin(self.broker.publish, namespace, topic, partition, batch)
        return PendingPublish(self.host, done)

    def consumer(
        self,
        namespace: str,
        topic: str,
        group: str,
        *,
        consumer: str,
        lease_ns: int | None = None,
        prefetch: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> EmbeddedConsumer:
        gid = self.host.run(lambda: self.broker.join(namespace, topic, group, consumer, options, lease_ns))
        return EmbeddedConsumer(self, namespace, gid, consumer, lease_ns)

    def settle(self, namespace: str, topic: str, group: str, order: Settle) -> Settled:
        settled: Settled = self.host.run(lambda: self.broker.settle(namespace, topic, group, order))
        return settled

    def call(self, method: str, **arguments: Any) -> Any:
        reply = self.host.run(lambda: self.administration.call(method, arguments))
        while isinstance(reply, Portions):
            reply.run_aside()
            if reply.wait_ns:
                self.host.pause(reply.wait_ns)
            reply = self.host.run(reply.step)
        return reply

    def tables(self, namespace: str, topic: str, **stretch: Any) -> Iterator[pa.Table]:
        """A stretch of a partition's log as Arrow tables; see ``headrace.broker.reading.Reading.tables``."""
        return self.administration.reading.tables(namespace, topic, self.host.run, **stretch)

    def close(self) -> None:
        self.broker.alerts.close()
        self.sealer.stop()
        self.host.close()


def tell_logging(level: str, event: str, **more: Any) -> None:
    """What an operator should know, through the standard library's logging: inside somebody's process it is theirs."""
    told = ", ".join(f"{name}: {value}" for name, value in more.items())
    logging.getLogger("headrace").log(
        logging.getLevelNamesMapping()[level.upper()], "%s%s", event, f" ({told})" * bool(told)
    )


class EmbeddedConsumer:
    """A consumer that leases when it is asked; nothing lies around in between, so there is nothing to prefetch into."""

    life = 0
    """Nothing comes between a consumer and a broker in one process."""

    def __init__(self, port: EmbeddedPort, namespace: str, gid: int, consumer: str, lease_ns: int | None) -> None:
        self._host = port.host
        self._broker = port.broker
        self._namespace = namespace
        self._gid = gid
        self._consumer = consumer
        self._lease_ns = lease_ns
        self._unconfirmed: list[Done] = []
        self._refusal: HeadraceError | None = None
        self._interrupted = False
        self._closed = False

    def _group(self) -> Group:
        group = self._broker.core.state.groups.get(self._gid)
        if group is None:
            raise Closed(f"the group of consumer {self._consumer!r} was deleted")
        return group

    @property
    def auto_ack(self) -> bool:
        group = self._broker.core.state.groups.get(self._gid)
        return group is not None and group.policy.auto_ack

    def receive(self, most: int, wait_ns: int) -> list[LeasedBatch]:
        most = min(most, PREFETCH_MAX)
        leased: list[LeasedBatch] = self._host.run_until(
            lambda: self._broker.lease_from(self._group(), self._consumer, most, self._lease_ns),
            wait_ns,
            lambda: self._interrupted,
        )
        return leased

    def settle(self, order: Settle) -> Settled:
        settled: Settled = self._host.run(lambda: self._broker.settle_in(self._group(), self._namespace, order))
        return settled

    def settle_soon(self, order: Settle) -> None:
        done = self._host.begin(lambda: self._broker.settle_in(self._group(), self._namespace, order))
        self._unconfirmed = [done]  # positions only rise: the last one covers all
        for refusal in done.reply.refused:
            self._refusal = self._refusal or from_code(refusal.code, refusal.message)

    def tend(self, order: Settle, tended: Tended) -> None:
        try:
            done = self._host.begin(lambda: self._broker.settle_in(self._group(), self._namespace, order))
        except HeadraceError:  # a broker or a group that is gone: the next receive says so
            tended(None)
        else:
            self._unconfirmed = [done]
            tended([refusal.run for refusal in done.reply.refused])

    def tell_held(self, held: Callable[[], Sequence[Run]]) -> None:
        """A broker in this process is not started anew behind a consumer's back."""

    def flush(self) -> None:
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        for done in unconfirmed:
            self._host.finish(done)
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    def interrupt(self) -> None:
        self._interrupted = True
        self._host.wake()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self.flush()
        finally:
            if self._gid in self._broker.core.state.groups:
                self._host.run(lambda: self._broker.leave(self._gid, self._consumer))
