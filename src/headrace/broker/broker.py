"""Topics and groups by name, messages as batches: what every door and the embedded API call.

Every method does its work at once and returns ``Done``: the result, and the journal position that must be durable
before it may leave (the hosts in ``headrace.shard`` wait for it). What cannot be done is raised.

One shard for now, and the names here do not show it: a topic's partition is asked for by name and index, so that
another process may own it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pyroaring import BitMap64

from headrace.batch import Batch
from headrace.broker.alerts import Alerts
from headrace.broker.messages import at_offsets
from headrace.broker.quotas import Quotas
from headrace.broker.templates import TopicTemplates
from headrace.calls import BY_KEY, Duplicate, LeasedBatch, Part, Place, Refusal, Run, Settle, Settled
from headrace.config import GroupConfig, TopicConfig, differences, with_settings
from headrace.config.kinds import shown
from headrace.delivery import (
    CreateGroup,
    CreateTopic,
    DeleteGroup,
    Forget,
    Grant,
    Group,
    Join,
    LeaseUpTo,
    Leave,
    Note,
    PublishDone,
    Receipts,
    SettleDone,
    SettleMany,
    Span,
    Start,
    Topic,
    check_lease,
    runs,
    span_of,
)
from headrace.errors import DuplicateConflict, HeadraceError, InvalidArgument, UnknownGroup, UnknownTopic
from headrace.histogram import SECONDS_BOUNDS_NS, Histogram
from headrace.limits import OFFSET_MAX, PARTITIONS_MAX, TIME_NS_MAX
from headrace.log import PartitionLog
from headrace.names import check_group_name, check_namespace_name, check_topic_name
from headrace.shard.core import Core, Done, done_of

__all__ = ["Broker", "gathered"]


Notes = Sequence[tuple[bytes, bytes]]
_DIGITS_MAX = len(str(PARTITIONS_MAX))


class _Place(NamedTuple):
    """Where a share of a batch went: a partition, and where in what was published there in one go."""

    pid: int
    first: int
    messages: int
    indexes: Sequence[int] | None


def _share_of(done: PublishDone, place: _Place) -> PublishDone:
    """What became of one share, by what became of all that was published into its partition."""
    if place.messages == done.count + len(done.duplicates):
        return done
    end = place.first + place.messages
    earlier = sum(1 for index, *_ in done.duplicates if index < place.first)
    own = [(i - place.first, mid, pid, offset) for i, mid, pid, offset in done.duplicates if place.first <= i < end]
    new_before = place.first - earlier
    return PublishDone(
        done.pid, done.base_offset + new_before, done.base_id + new_before, place.messages - len(own), own
    )


class Broker:
    """The façade over a shard."""

    def __init__(
        self,
        core: Core,
        *,
        topic_defaults: TopicConfig | None = None,
        topic_templates: Mapping[str, Any] | None = None,
        auto_create: bool = True,
    ) -> None:
        self.core = core
        self.templates = TopicTemplates(topic_defaults or TopicConfig(), topic_templates)
        self.auto_create = auto_create
        self.quotas = Quotas(core)
        self.alerts = Alerts(core)
        self.latencies: dict[int, Histogram] = {}  # by topic
        self._turn = 0
        self._first_lease_id = 0  # of this process

    def begin(self) -> None:
        """Take up a state that another process (or this one, earlier) left behind.

        Its consumers are gone with their connections: they are members no more, and groups that live as long as their
        consumers are over. What was leased stays leased until it is settled or its time is up; a consumer that comes
        back may still settle it.
        """
        self.alerts.start()
        self._first_lease_id = self.core.state.next_lease_id
        for group in list(self.core.state.groups.values()):
            if not group.durable:
                self.execute(DeleteGroup(group.gid))
            else:
                for consumer in list(group.members):
                    self.execute(Forget(group.gid, consumer))

    # -- names -------------------------------------------------------------------------------------------------------

    def find_topic(self, namespace: str, name: str) -> Topic:
        topic = self.core.state.by_name.get((namespace, name))
        if topic is None:
            raise UnknownTopic(f"topic {name!r} does not exist in namespace {namespace!r}")
        return topic

    def topic(self, namespace: str, name: str) -> Topic:
        """The topic, made with the defaults if it is new and topics may appear on first use."""
        topic = self.core.state.by_name.get((namespace, name))
        if topic is None:
            if not self.auto_create:
                raise UnknownTopic(
                    f"topic {name!r} does not exist in namespace {namespace!r}, and topics are not made on first use"
                )
            self.create_topic(namespace, name, self.templates.for_topic(name))
            topic = self.core.state.by_name[namespace, name]
        return topic

    def create_topic(self, namespace: str, name: str, settings: TopicConfig) -> Done:
        check_namespace_name(namespace)
        check_topic_name(name)
        return self.execute(CreateTopic(namespace, name, settings))

    def find_group(self, namespace: str, topic: str, group: str) -> Group:
        found = self.find_topic(namespace, topic).groups.get(group)
        if found is None:
            raise UnknownGroup(f"group {group!r} does not exist on topic {topic!r}")
        return found

    def group(self, namespace: str, topic: str, group: str, options: Mapping[str, Any] | None = None) -> Group:
        """The group, made if it is new (``options``: start, durable and settings of a new one).

        Where it begins matters to a new group only; settings must agree with those of one that exists.
        """
        found = self.topic(namespace, topic).groups.get(group)
        if found is None:
            self.create_group(namespace, topic, group, options or {})
            found = self.find_group(namespace, topic, group)
        elif options:
            given = {name: value for name, value in options.items() if name not in ("start", "durable")}
            differing = differences(found.settings, with_settings(found.settings, given))
            if differing:
                key, has, asked = differing[0]
                raise DuplicateConflict(
                    f"group {group!r} of topic {topic!r} exists with {key} = {has}, not {asked}; leave it out, or "
                    "change the group's settings"
                )
        return found

    def create_group(self, namespace: str, topic: str, group: str, options: Mapping[str, Any]) -> Done:
        check_group_name(group)
        given = dict(options)
        start = start_of(given.pop("start", "earliest"))
        durable = given.pop("durable", True)
        if not isinstance(durable, bool):
            raise InvalidArgument(f"durable is {shown(durable)}; it must be true or false")
        settings = with_settings(GroupConfig(), given)
        return self.execute(CreateGroup(self.topic(namespace, topic).tid, group, settings, durable, start))

    def execute(self, command: Any) -> Done:
        """Run a command; a refusal is raised."""
        done = self.core.execute(command)
        if isinstance(done.reply, HeadraceError):
            raise done.reply
        return done

    # -- publishing ----------------------------------------------------------------------------------------------------

    def publish(self, namespace: str, topic: str, partition: int, batch: Batch, notes: Notes = ()) -> Done:
        """Publish a batch into one partition, or by key; the reply is a list of ``Part``. ``notes``: what a protocol
        remembers in the same frame (of a batch that goes to several partitions: with its first part)."""
        metered = self.quotas.check(namespace, batch)
        found = self.core.state.by_name.get((namespace, topic)) or self.topic(namespace, topic)
        if len(found.partitions) > 1 or partition > 0 or partition < BY_KEY:
            done = self._publish(found, partition, batch, notes)
        else:
            done = self._publish_part(found, 0, batch, None, notes)
        if metered:
            self.quotas.charge(namespace, batch)
        return done

    def publish_value(self, namespace: str, topic: str, value: bytes) -> Place | None:
        """``publish`` for one value with no properties: where it lies, once what the journal holds by now is durable.
        None: nothing was done, and ``publish`` has to look at it."""
        core = self.core
        found = core.state.by_name.get((namespace, topic))
        if found is None or found.space.metered:
            return None
        count = len(found.partitions)
        index = (self._turn + 1) % count if count > 1 else 0
        batch = core.publish_value(found.partitions[index], value)
        if batch is None:
            return None
        if count > 1:
            self._turn = index
        return batch.base_id, index, batch.base_offset, False

    def note(self, notes: Notes) -> Done:
        """Remember something for a protocol, or (empty value) forget it."""
        return self.execute(Note(notes))

    def _publish(self, found: Topic, partition: int, batch: Batch, notes: Notes) -> Done:
        count = len(found.partitions)
        if partition != BY_KEY:
            if not 0 <= partition < count:
                raise InvalidArgument(f"partition {partition}: topic {found.name!r} has {count}, from 0 to {count - 1}")
            return self._publish_part(found, partition, batch, None, notes)
        shares = self._route(batch, count)
        if len(shares) == 1:
            return self._publish_part(found, next(iter(shares)), batch, None, notes)
        parts: list[Part] = []
        position = 0
        for index, indexes in sorted(shares.items()):
            done = self._publish_part(found, index, batch.select(indexes), indexes, () if parts else notes)
            parts += done.reply
            position = max(position, done.position)
        return Done(parts, position)

    def routes(self, namespace: str, topic: str, batch: Batch) -> dict[int, list[int]]:
        """Partition → indexes of the messages that go there (an empty list: all of them), for who wants to know which
        part of a batch was refused."""
        count = len(self.topic(namespace, topic).partitions)
        return self._route(batch, count) if count > 1 else {0: []}

    def _route(self, batch: Batch, count: int) -> dict[int, list[int]]:
        """Which messages go to which partition: by the hash of the key; those without one together, in turns.

        A producer's batch takes the turn its sequence says, so that it is found again where it was when it is repeated.
        """
        if batch.producer_id:
            turn = (batch.producer_id + batch.producer_seq) % count
        else:
            turn = self._turn = (self._turn + 1) % count
        hashes = batch.key_hashes()
        if hashes is None:
            return {turn: []}
        shares: dict[int, list[int]] = {}
        for i, key in enumerate(hashes):
            shares.setdefault(key % count if key else turn, []).append(i)
        return shares

    def _publish_part(
        self, topic: Topic, index: int, batch: Batch, indexes: Sequence[int] | None, notes: Notes
    ) -> Done:
        reply, position = self.core.publish(topic.partitions[index], batch, notes)
        if isinstance(reply, HeadraceError):
            raise reply
        if reply.duplicates:
            part = self._part(reply, indexes)
        else:
            part = Part(index, reply.count, reply.base_offset, reply.base_id, (), indexes)
        return done_of(([part], position))

    def _part(self, reply: PublishDone, indexes: Sequence[int] | None) -> Part:
        partitions = self.core.state.partitions
        duplicates = tuple(
            Duplicate(
                i if indexes is None else indexes[i],
                partitions[pid].index if pid in partitions else 0,
                offset,
                message_id,
            )
            for i, message_id, pid, offset in reply.duplicates
        )
        index = partitions[reply.pid].index
        return Part(index, reply.count, reply.base_offset, reply.base_id, duplicates, indexes)

    # -- consuming -----------------------------------------------------------------------------------------------------

    def join(
        self,
        namespace: str,
        topic: str,
        group: str,
        consumer: str,
        options: Mapping[str, Any] | None,
        lease_ns: int | None = None,
    ) -> Done:
        """Become a member. A lease that the group would never grant is refused here, not at the first message."""
        found = self.group(namespace, topic, group, options)
        if lease_ns is not None:
            check_lease(lease_ns, found.policy.max_lease_ns)
        done = self.execute(Join(found.gid, consumer))
        return Done(found.gid, done.position)

    def leave(self, gid: int, consumer: str, *, clean: bool = True) -> Done:
        return self.execute(Leave(gid, consumer, clean))

    def take_back(self, group: Group, consumer: str, held: Sequence[Run]) -> Done:
        """Give back, uncounted, what a consumer was leased before this process began, other than what it holds: it was
        written, and the process died before the consumer was told."""
        known: dict[tuple[int, int], list[Run]] = {}
        for run in held:
            known.setdefault((run.partition, run.lease_id), []).append(run)
        release: list[Receipts] = []
        for backlog in group.backlogs.values():
            partition = backlog.partition
            for lease in backlog.leases.values():
                if lease.consumer == consumer and lease.lease_id < self._first_lease_id:
                    bits = BitMap64(lease.span().bitmap())
                    for run in known.get((partition.index, lease.lease_id), ()):
                        bits.remove_range(run.first_offset, run.first_offset + run.count)
                    if bits:
                        span = span_of(bits)
                        release.append(Receipts(partition.pid, lease.lease_id, span.first, span.count, span.bits))
        return self.execute(SettleMany(group.gid, release=release)) if release else Done(None, 0)

    def lease(
        self,
        namespace: str,
        topic: str,
        group: str,
        consumer: str,
        most: int,
        lease_ns: int | None = None,
    ) -> Done:
        """Lease up to ``most`` messages; the reply is a list of ``LeasedBatch``."""
        return self.lease_from(self.group(namespace, topic, group), consumer, most, lease_ns)

    def lease_from(self, group: Group, consumer: str, most: int, lease_ns: int | None = None) -> Done:
        grants, position = self.lease_spans(group, consumer, most, lease_ns)
        leased: list[LeasedBatch] = []
        for grant in grants:
            leased += self.contents(grant)
        if leased:
            self._note_latency(group.topic.tid, leased)
        return Done(leased, position)

    def _note_latency(self, tid: int, leased: list[LeasedBatch]) -> None:
        """From being due to being handed out, of those that are handed out for the first time."""
        seen = self.latencies.get(tid)
        if seen is None:
            seen = self.latencies[tid] = Histogram(SECONDS_BOUNDS_NS)
        now_ns = self.core.clock.now_ns()
        for each in leased:
            batch, again = each.batch, each.attempts
            appended_ns, due = batch.append_time_ns, batch.deliver_ats()
            if due is None and not again:
                seen.observe(max(0, now_ns - appended_ns), batch.count)
                continue
            for i, offset in enumerate(batch.offsets()):
                if offset not in again:
                    at_ns = appended_ns if due is None else max(appended_ns, due[i])
                    seen.observe(max(0, now_ns - at_ns))

    def lease_spans(self, group: Group, consumer: str, most: int, lease_ns: int | None = None) -> Done:
        """The same without the messages: the reply is what was granted."""
        return self.execute(LeaseUpTo(group.gid, consumer, most, lease_ns))

    def contents(self, grant: Grant) -> Iterable[LeasedBatch]:
        """What a grant is about, batch by batch."""
        span, log = grant.span, self.core.log(grant.pid)
        if grant.order or span.bits is not None:
            chosen = gathered(log, grant.offsets())
        else:
            stored = log.batches(span.first, span.last + 1)
            chosen = (part for batch in stored if (part := _part_of(batch, span)) is not None)
        index = self.core.state.partitions[grant.pid].index
        for batch in chosen:
            yield LeasedBatch(index, grant.lease_id, batch, grant.deadline_ns, grant.attempts)

    # -- settling ------------------------------------------------------------------------------------------------------

    def settle(self, namespace: str, topic: str, group: str, order: Settle) -> Done:
        """Settle messages of a group; the reply is ``Settled``. One that settles nothing may publish to a new topic."""
        if order.publish and not (order.ack or order.nack or order.reject or order.release or order.extend):
            return self.settle_in(self.group(namespace, topic, group), namespace, order)
        return self.settle_in(self.find_group(namespace, topic, group), namespace, order)

    def settle_in(self, group: Group, namespace: str, order: Settle) -> Done:
        topic = group.topic
        pids = [partition.pid for partition in topic.partitions]

        def receipts(run: Run) -> Receipts:
            if not 0 <= run.partition < len(pids):
                raise InvalidArgument(f"partition {run.partition}: topic {topic.name!r} has {len(pids)}")
            return Receipts(pids[run.partition], run.lease_id, run.first_offset, run.count)

        command = SettleMany(
            group.gid,
            ack=[receipts(run) for run in order.ack],
            nack=[(receipts(run), delay_ns, error) for run, delay_ns, error in order.nack],
            reject=[(receipts(run), error) for run, error in order.reject],
            release=[receipts(run) for run in order.release],
            extend=[(receipts(run), by_ns) for run, by_ns in order.extend],
        )
        places: list[list[_Place]] = []
        charged: list[Batch] = []
        if order.publish:
            charged = [batch for _, _, batch in order.publish if self.quotas.check(namespace, batch)]
            command.publish = self._outputs(namespace, order.publish, places)
        if order.cancel:
            command.cancel = [entry for name, ids in order.cancel for entry in self.scheduled(namespace, name, ids)]
        done = self.execute(command)
        for batch in charged:
            self.quotas.charge(namespace, batch)
        return Done(self._settled(done.reply, places), done.position)

    def _outputs(
        self,
        namespace: str,
        publish: Sequence[tuple[str, int, Batch]],
        places: list[list[_Place]],
    ) -> list[tuple[int, Batch]]:
        """The batches of an atomic settle, one a partition; ``places`` remembers which became which."""
        shares: dict[int, list[Batch]] = {}
        for name, partition, batch in publish:
            topic = self.topic(namespace, name)
            count = len(topic.partitions)
            if partition != BY_KEY and not 0 <= partition < count:
                raise InvalidArgument(f"partition {partition}: topic {name!r} has {count}, from 0 to {count - 1}")
            routes: dict[int, list[int]] = {partition: []}
            if partition == BY_KEY:
                routes = self._route(batch, count) if count > 1 else {0: []}
            mine: list[_Place] = []
            for index, indexes in sorted(routes.items()):
                pid = topic.partitions[index].pid
                share = batch.select(indexes) if len(routes) > 1 else batch
                held = shares.setdefault(pid, [])
                first = sum(other.count for other in held)
                held.append(share)
                mine.append(_Place(pid, first, share.count, indexes if len(routes) > 1 else None))
            places.append(mine)
        return [(pid, batches[0] if len(batches) == 1 else Batch.concat(batches)) for pid, batches in shares.items()]

    def _settled(self, reply: SettleDone, places: list[list[_Place]]) -> Settled:
        partitions = self.core.state.partitions
        refused = tuple(
            Refusal(
                Run(
                    partitions[receipts.pid].index if receipts.pid in partitions else 0, receipts.lease_id, first, count
                ),
                error.code,
                error.message,
            )
            for receipts, error in reply.refused
            for first, count in _runs(receipts)
        )
        by_pid = {done.pid: done for done in reply.published}
        published = tuple(
            tuple(
                self._part(_share_of(by_pid[place.pid], place), place.indexes) for place in mine if place.pid in by_pid
            )
            for mine in places
        )
        return Settled(reply.settled, refused, published, reply.cancelled)

    # -- messages by id ------------------------------------------------------------------------------------------------

    def place_of(self, message_id: int, namespace: str | None = None) -> tuple[int, int]:
        """(pid, offset) of a message."""
        for pid, log in self.core.logs.items():
            offset = log.offset_of_id(message_id)
            if offset is not None:
                topic = self.core.state.partitions[pid].topic
                if namespace is None or topic.namespace == namespace:
                    return pid, offset
        raise InvalidArgument(f"no message has the id {message_id}")

    def scheduled(self, namespace: str, topic: str, ids: Sequence[int]) -> list[tuple[int, Span]]:
        """Ids as offsets by partition; ids that are not of this topic are passed over."""
        by_pid: dict[int, list[int]] = {}
        for partition in self.find_topic(namespace, topic).partitions:
            log = self.core.log(partition.pid)
            for message_id in ids:
                offset = log.offset_of_id(message_id)
                if offset is not None:
                    by_pid.setdefault(partition.pid, []).append(offset)
        return [(pid, span_of(offsets)) for pid, offsets in by_pid.items()]


def _part_of(batch: Batch, run: Span) -> Batch | None:
    """The messages of a stored batch that are in a run."""
    base = batch.base_offset
    first, last = max(base, run.first), min(base + batch.count, run.first + run.count)
    if first >= last:
        return None
    return batch if last - first == batch.count else batch.slice(first - base, last - base)


def gathered(log: PartitionLog, offsets: Iterable[int]) -> Iterator[Batch]:
    """Messages in the order given; those that follow each other in one stored batch stay together."""
    stored: Batch | None = None
    indexes: list[int] = []
    for _, batch, i in at_offsets(log, offsets):
        if stored is not None and (batch is not stored or i <= indexes[-1]):
            yield _select(stored, indexes)
            indexes = []
        stored = batch
        indexes.append(i)
    if stored is not None:
        yield _select(stored, indexes)


def _select(batch: Batch, indexes: list[int]) -> Batch:
    return batch if len(indexes) == batch.count else batch.select(indexes)


def _runs(receipts: Receipts) -> Iterable[tuple[int, int]]:
    return [(receipts.first, receipts.count)] if receipts.bits is None else runs(receipts.bits)


def start_of(given: Any) -> Start:
    """Where a group begins, as the doors say it: "earliest", "latest", {"offsets": …} or {"time_ns": …}."""
    if given in (None, "earliest"):
        return Start()
    if given == "latest":
        return Start(latest=True)
    if isinstance(given, Mapping):
        at_ns = given.get("time_ns")
        if type(at_ns) is int and 0 <= at_ns <= TIME_NS_MAX:
            return Start(time_ns=at_ns)
        if at_ns is None and given.get("offsets") is not None:
            return Start(offsets=by_partition("offsets", given["offsets"]))
    raise InvalidArgument(
        f'a start of {shown(given)}: must be "earliest", "latest", {{"offsets": {{"0": 42}}}} or {{"time_ns": …}}'
    )


def by_partition(what: str, given: Any) -> dict[int, int]:
    """Offsets by partition number, which is text where a door speaks JSON.

    >>> by_partition("offsets", {"0": 42, 1: 7})
    {0: 42, 1: 7}
    """
    found: dict[int, int] = {}
    for index, offset in given.items() if isinstance(given, Mapping) else [(given, None)]:
        number = index if type(index) is int else -1
        if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) <= _DIGITS_MAX:
            number = int(index)
        if not 0 <= number < PARTITIONS_MAX or type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
            raise InvalidArgument(
                f'{what}: {shown(index)}: {shown(offset)}; offsets are by partition, such as {{"0": 42}}'
            )
        found[number] = offset
    return found
