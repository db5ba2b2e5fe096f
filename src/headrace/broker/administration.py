"""Administrative calls by name: what operators, the command line and the doors' admin routes ask for.

A call takes plain arguments (what JSON or MessagePack can say) and answers with plain results, so that one table serves
every door. Times are nanoseconds since 1970, settings are what people write (``headrace.config``). A call that answers
with messages in bulk returns ``(result, batches)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from typing import Any, NamedTuple

from headrace.broker.arguments import TAKES, Kind, check_arguments
from headrace.broker.broker import Broker, start_of
from headrace.broker.dead_letters import DeadLetters
from headrace.broker.deaths import death_of, durable
from headrace.broker.history import History
from headrace.broker.lease_batches import LeaseBatches
from headrace.broker.messages import message_info
from headrace.broker.portions import Work, portioned
from headrace.broker.positions import Positions
from headrace.broker.reading import Reading
from headrace.broker.replays import Replays
from headrace.broker.schedules import Schedules
from headrace.broker.tracing import Tracing
from headrace.config import NamespaceConfig, differences, to_plain, with_settings
from headrace.config.kinds import shown
from headrace.delivery import (
    Backlog,
    ChangeGroup,
    ChangeNamespace,
    ChangeTopic,
    DeleteGroup,
    DeleteTopic,
    Group,
    Namespace,
    PauseGroup,
    Purge,
    ResumeGroup,
    Seek,
    Topic,
)
from headrace.delivery.explaining import due_ms_of
from headrace.errors import AlreadyExists, DuplicateConflict, InvalidArgument
from headrace.names import check_namespace_name
from headrace.shard.core import Done

__all__ = ["Administration", "message_info"]

_MS_NS = 1_000_000
Call = Callable[..., Done]


class _Known(NamedTuple):
    """A call, what it takes, and what of that has to be given."""

    call: Call
    takes: Mapping[str, Kind]
    required: tuple[str, ...]


class Administration:
    """The table of calls over a broker. ``call`` checks every argument (``headrace.broker.arguments``) first."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.core = broker.core
        self._calls: dict[str, _Known] = {}
        own: dict[str, Call] = {
            "topic.create": self.topic_create,
            "topic.ensure": self.topic_ensure,
            "topic.list": self.topic_list,
            "topic.show": self.topic_show,
            "topic.offsets": self.topic_offsets,
            "topic.config": self.topic_config,
            "topic.delete": self.topic_delete,
            "topic.purge": self.topic_purge,
            "namespace.list": self.namespace_list,
            "namespace.show": self.namespace_show,
            "namespace.config": self.namespace_config,
            "group.create": self.group_create,
            "group.list": self.group_list,
            "group.show": self.group_show,
            "group.config": self.group_config,
            "group.delete": self.group_delete,
            "group.seek": self.group_seek,
            "group.pause": self.group_pause,
            "group.resume": self.group_resume,
            "browse": self.browse,
            "stats": self.stats,
        }
        self.add(own)
        self.tracing = Tracing(broker)
        self.reading = Reading(broker)
        history = History(broker)
        for room in (
            self.tracing,
            self.reading,
            history,
            Replays(broker, history),
            Schedules(broker),
            DeadLetters(broker),
            LeaseBatches(broker),
            Positions(broker),
        ):
            self.add(room.calls())

    def add(self, calls: Mapping[str, Call], takes: Mapping[str, Mapping[str, Kind]] = TAKES) -> None:
        """More calls, from other rooms; ``takes`` says of each what it takes."""
        for method, call in calls.items():
            parameters = signature(call).parameters.values()
            required = tuple(one.name for one in parameters if one.default is one.empty)
            self._calls[method] = _Known(call, takes[method], required)

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(sorted(self._calls))

    def call(self, method: str, arguments: Mapping[str, Any]) -> Done:
        """Make the call; an unknown method is refused by name, and so is an argument that is not what it takes."""
        known = self._calls.get(str(method))
        if known is None:
            raise InvalidArgument(f"there is no call {shown(method)}; there are {', '.join(self.methods)}")
        if "namespace" not in known.takes:
            # Doors and clients say whose namespace they are in with every call; some calls are about none.
            arguments = {name: value for name, value in arguments.items() if name != "namespace"}
        checked = check_arguments(method, arguments, known.takes)
        missing = [name for name in known.required if name not in checked]
        if missing:
            raise InvalidArgument(
                f"{method} needs the argument {missing[0]!r}; it must be {known.takes[missing[0]].expected}"
            )
        return known.call(**checked)

    # -- topics ----------------------------------------------------------------------------------------------------

    def topic_create(self, topic: str, namespace: str = "default", settings: Mapping[str, Any] | None = None) -> Done:
        """Make a topic; one that exists is an error."""
        config = with_settings(self.broker.templates.for_topic(topic), settings or {})
        if (namespace, topic) in self.core.state.by_name:
            raise AlreadyExists(f"topic {topic!r} exists in namespace {namespace!r}")
        done = self.broker.create_topic(namespace, topic, config)
        return Done(self._topic_info(self.broker.find_topic(namespace, topic)), done.position)

    def topic_ensure(self, topic: str, namespace: str = "default", settings: Mapping[str, Any] | None = None) -> Done:
        """The topic, made if it is new; settings given must agree with one that exists."""
        found = self.core.state.by_name.get((namespace, topic))
        if found is None:
            return self.topic_create(topic, namespace, settings)
        wanted = with_settings(found.settings, settings or {})
        differing = differences(found.settings, wanted)
        if differing:
            key, has, asked = differing[0]
            raise DuplicateConflict(
                f"topic {topic!r} exists with {key} = {has}, not {asked}; leave it out, or change the topic's settings"
            )
        return Done(self._topic_info(found), self.core.journal.end_position)

    def topic_list(self, namespace: str | None = "default") -> Done:
        """The topics of a namespace (None: of all)."""
        topics = sorted(self._topics(namespace), key=lambda topic: (topic.namespace, topic.name))
        return Done([self._topic_info(topic) for topic in topics], 0)

    def topic_show(self, topic: str, namespace: str = "default") -> Done:
        return Done(self._topic_info(self.broker.find_topic(namespace, topic)), 0)

    def topic_offsets(
        self,
        topic: str,
        namespace: str = "default",
        time_ns: int | None = None,
        from_offsets: Mapping[int, int] | None = None,
        bytes_max: int | None = None,
    ) -> Done:
        """Where each partition begins and ends: [{"partition", "start", "end"}].

        With ``time_ns`` also ``at``: the first offset appended at or after that time. With ``from_offsets`` and
        ``bytes_max`` also ``within``: how far one gets from there, partition by partition, with so many bytes in all
        (to the nearest batch; what is sealed counts as nothing).
        """
        found = self.broker.find_topic(namespace, topic)
        parts: list[dict[str, Any]] = []
        for each in found.partitions:
            log = self.core.log(each.pid)
            part = {"partition": each.index, "start": log.start, "end": each.end}
            if time_ns is not None:
                part["at"] = log.offset_at(time_ns)
            if from_offsets is not None and bytes_max is not None:
                first = max(from_offsets.get(each.index, 0), log.start)
                share = max(1, bytes_max // len(found.partitions))
                within = log.offset_after_bytes(log.bytes_before(first) + share)
                part["within"] = min(max(within, first + 1), each.end)
            parts.append(part)
        # Where it ends has to be durable before a reader notes it as where he is.
        return Done({"created_ns": found.created_ns, "partitions": parts}, self.core.journal.end_position)

    def topic_config(self, topic: str, namespace: str = "default", settings: Mapping[str, Any] | None = None) -> Done:
        """Change settings; those not named stay."""
        found = self.broker.find_topic(namespace, topic)
        wanted = with_settings(found.settings, settings or {})
        done = self.broker.execute(ChangeTopic(found.tid, wanted)) if wanted != found.settings else Done(None, 0)
        return Done(self._topic_info(found), done.position)

    def topic_delete(self, topic: str, namespace: str = "default") -> Done:
        """Delete a topic with its messages and groups."""
        done = self.broker.execute(DeleteTopic(self.broker.find_topic(namespace, topic).tid))
        return Done({"deleted": topic}, done.position)

    def topic_purge(self, topic: str, namespace: str = "default", group: str | None = None) -> Done:
        """Drop what is waiting: of one group, or of all and for good."""
        found = self.broker.find_topic(namespace, topic)
        gid = self.broker.find_group(namespace, topic, group).gid if group is not None else -1
        dropped, position = self.broker.execute(Purge(found.tid, gid))
        return Done({"dropped": dropped}, position)

    def namespace_list(self) -> Done:
        spaces = (topic.namespace for topic in self._topics(None))
        return Done(sorted({"default", *self.core.state.namespaces, *spaces}), 0)

    def namespace_show(self, namespace: str = "default") -> Done:
        """What a namespace may use, and uses."""
        known = self.core.state.namespaces.get(namespace)
        if known is None:
            raise InvalidArgument(f"namespace {namespace!r} does not exist: it has no topics and no settings")
        return Done(self._namespace_info(known), 0)

    def namespace_config(self, namespace: str = "default", settings: Mapping[str, Any] | None = None) -> Done:
        """Change what a namespace may use; what is not named stays. The namespace need not exist."""
        check_namespace_name(namespace)
        known = self.core.state.namespaces.get(namespace)
        has = NamespaceConfig() if known is None else known.settings
        wanted = with_settings(has, settings or {})
        done = self.broker.execute(ChangeNamespace(namespace, wanted)) if wanted != has else Done(None, 0)
        return Done(self._namespace_info(self.core.state.namespace(namespace)), done.position)

    def _namespace_info(self, known: Namespace) -> dict[str, Any]:
        return {
            "namespace": known.name,
            "settings": to_plain(known.settings),
            "topics": known.topics_count,
            "leased": known.leased_count,
            "connections": self.broker.quotas.connections(known.name),
        }

    def _topics(self, namespace: str | None) -> Iterator[Topic]:
        for topic in self.core.state.topics.values():
            if namespace is None or topic.namespace == namespace:
                yield topic

    def _topic_info(self, topic: Topic) -> dict[str, Any]:
        return {
            "namespace": topic.namespace,
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "settings": to_plain(topic.settings),
            "created_ns": topic.created_ns,
            "groups": sorted(topic.groups),
            "depth": topic.depth,
            "messages": sum(partition.end - partition.start for partition in topic.partitions),
            "published": sum(partition.end for partition in topic.partitions),
        }

    # -- groups ----------------------------------------------------------------------------------------------------

    def group_create(
        self,
        topic: str,
        group: str,
        namespace: str = "default",
        settings: Mapping[str, Any] | None = None,
        start: Any = "earliest",
        durable: bool = True,
    ) -> Done:
        """Make a group that begins at ``start``."""
        options = {**(settings or {}), "start": start, "durable": durable}
        done = self.broker.create_group(namespace, topic, group, options)
        return Done(self._group_info(self.broker.find_group(namespace, topic, group)), done.position)

    def group_list(self, topic: str, namespace: str = "default") -> Done:
        groups = self.broker.find_topic(namespace, topic).groups
        return Done([self._group_info(groups[name]) for name in sorted(groups)], 0)

    def group_show(self, topic: str, group: str, namespace: str = "default") -> Done:
        return Done(self._group_info(self.broker.find_group(namespace, topic, group)), 0)

    def group_config(
        self, topic: str, group: str, namespace: str = "default", settings: Mapping[str, Any] | None = None
    ) -> Done:
        """Change a group's own settings; those not named stay."""
        found = self.broker.find_group(namespace, topic, group)
        wanted = with_settings(found.settings, settings or {})
        done = self.broker.execute(ChangeGroup(found.gid, wanted)) if wanted != found.settings else Done(None, 0)
        return Done(self._group_info(found), done.position)

    def group_delete(self, topic: str, group: str, namespace: str = "default") -> Done:
        done = self.broker.execute(DeleteGroup(self.broker.find_group(namespace, topic, group).gid))
        return Done({"deleted": group}, done.position)

    def group_seek(
        self,
        topic: str,
        group: str,
        namespace: str = "default",
        start: Any = "earliest",
        stops: Mapping[int, int] | None = None,
        stop_time_ns: int | None = None,
    ) -> Done:
        """Start the group over at ``start``; with ``stops`` or ``stop_time_ns`` it stops there."""
        found = self.broker.find_group(namespace, topic, group)
        done = self.broker.execute(Seek(found.gid, start_of(start), stops, stop_time_ns))
        return Done(self._group_info(found), done.position)

    def group_pause(
        self,
        topic: str,
        group: str,
        namespace: str = "default",
        by: str = "",
        why: str = "",
        until_ns: int = 0,
    ) -> Done:
        """Stop handing out messages, until resumed or until a time."""
        found = self.broker.find_group(namespace, topic, group)
        done = self.broker.execute(PauseGroup(found.gid, by, why, until_ns))
        return Done(self._group_info(found), done.position)

    def group_resume(self, topic: str, group: str, namespace: str = "default", by: str = "") -> Done:
        found = self.broker.find_group(namespace, topic, group)
        done = self.broker.execute(ResumeGroup(found.gid, by))
        return Done(self._group_info(found), done.position)

    def _group_info(self, group: Group) -> dict[str, Any]:
        backlogs = list(group.backlogs.values())
        leases = [lease for backlog in backlogs for lease in backlog.leases.values()]
        pause = group.pause
        return {
            "group": group.name,
            "topic": group.topic.name,
            "namespace": group.topic.namespace,
            "durable": group.durable,
            "settings": to_plain(group.settings, changed_only=True),
            **_books(backlogs),
            "lag": group.unsettled_count,
            "delivered": group.delivered,
            "redelivered": group.redelivered,
            "nacked": group.nacked,
            "oldest_unsettled_ns": self._oldest_unsettled_ns(backlogs),
            "paused": pause._asdict() if pause is not None else None,
            "consumers": sorted({*group.members, *(lease.consumer for lease in leases)}),
            "owners": {
                str(self.core.state.partitions[pid].index): owner for pid, owner in sorted(group.owners.items())
            },
            "starts": {str(backlog.partition.index): backlog.start for backlog in backlogs},
        }

    def _oldest_unsettled_ns(self, backlogs: list[Backlog]) -> int | None:
        oldest: list[int] = []
        for backlog in backlogs:
            offset = backlog.first_unsettled()
            if offset < backlog.end:
                oldest.append(backlog.partition.appended_ms(offset) * _MS_NS)
        return min(oldest, default=None)

    # -- looking at messages -----------------------------------------------------------------------------------------

    @portioned
    def browse(
        self,
        topic: str,
        namespace: str = "default",
        group: str = "default",
        state: str = "ready",
        limit: int = 100,
    ) -> Work:
        """Messages of a group in one state, oldest first, left as they are; with ``state``, ``attempts`` and
        ``last_error``, scheduled ones with ``due_ns``, dead ones with ``reason`` and ``died_ns``."""
        found = self.broker.find_group(namespace, topic, group)
        chosen: list[dict[str, Any]] = []
        for backlog in found.backlogs.values():
            for offset in _in_state(backlog, state):
                if len(chosen) >= limit:
                    break
                info = self._message(backlog.partition.pid, offset)
                if info is not None:
                    known = backlog.tries.get(offset)
                    info["state"] = state
                    info["attempts"] = known.attempts if known is not None else int(state == "leased")
                    info["last_error"] = known.error if known is not None else ""
                    if state == "scheduled":
                        due_ms = due_ms_of(backlog.partition, offset, info["deliver_at_ns"])
                        info["due_ns"] = (known.due_ms if offset in backlog.waiting and known else due_ms) * _MS_NS
                    chosen.append(info)
        if state == "dead" and chosen:
            yield from durable(self.core)
            pids = {each.index: each.pid for each in found.topic.partitions}
            for number, info in enumerate(chosen):
                if number:
                    yield 0
                died = yield from death_of(self.core, group, pids[info["partition"]], info["offset"])
                if died is not None:
                    info["attempts"], info["last_error"] = died["attempt"] or 0, died["error"] or ""
                    info["reason"], info["died_ns"] = died["reason"], died["at_ns"]
        return chosen

    def _message(self, pid: int, offset: int) -> dict[str, Any] | None:
        batch = self.core.log(pid).batch_at(offset)
        if batch is None:
            return None
        partition = self.core.state.partitions[pid]
        return message_info(partition.topic, partition.index, batch, offset - batch.base_offset)

    # -- numbers -------------------------------------------------------------------------------------------------------

    def stats(self, namespace: str | None = None, topic: str | None = None) -> Done:
        """Counts per topic and group, and of the journal."""
        topics = (
            [self.broker.find_topic(namespace or "default", topic)] if topic is not None else self._topics(namespace)
        )
        journal = self.core.journal
        return Done(
            {
                "topics": [
                    {
                        "namespace": each.namespace,
                        "topic": each.name,
                        "partitions": len(each.partitions),
                        "published": sum(partition.end for partition in each.partitions),
                        "depth": each.depth,
                        "groups": [
                            {
                                "group": group.name,
                                **_books(list(group.backlogs.values())),
                                "delivered": group.delivered,
                                "redelivered": group.redelivered,
                                "nacked": group.nacked,
                                "consumers": len(group.members),
                            }
                            for _, group in sorted(each.groups.items())
                        ],
                    }
                    for each in topics
                ],
                "journal": {
                    "first_position": journal.first_position,
                    "end_position": journal.end_position,
                    "durable_position": journal.durable_position,
                    "frames": journal.stats.frames,
                    "commits": journal.stats.commits,
                    "fsyncs": journal.stats.fsyncs,
                },
                "drift": self.core.backlog_drift(),
                "now_ns": self.core.clock.now_ns(),
            },
            0,
        )


def _books(backlogs: list[Backlog]) -> dict[str, int]:
    """The conservation identity of a group, term by term."""
    return {
        "published": sum(backlog.published_count for backlog in backlogs),
        "scheduled": sum(backlog.scheduled_count for backlog in backlogs),
        "ready": sum(backlog.ready_count for backlog in backlogs),
        "leased": sum(backlog.leased_count for backlog in backlogs),
        "acked": sum(backlog.acked_count for backlog in backlogs),
        "dead": sum(backlog.dead_count for backlog in backlogs),
        "expired": sum(backlog.expired_count for backlog in backlogs),
        "cancelled": sum(backlog.cancelled_count for backlog in backlogs),
        "dropped": sum(backlog.dropped_count for backlog in backlogs),
        "filtered": sum(backlog.filtered_count for backlog in backlogs),
        "drift": sum(backlog.drift() for backlog in backlogs),
    }


def _in_state(backlog: Backlog, state: str) -> Iterator[int]:
    if state == "ready":
        late = [offset for _, offset in backlog.ready_late()]
        yield from sorted([*backlog.ready_main(), *late])
    elif state == "scheduled":
        scheduled = [offset for offset in backlog.partition.scheduled if backlog.start <= offset < backlog.end]
        yield from sorted([*scheduled, *backlog.waiting])
    elif state == "leased":
        yield from backlog.leased_bits()
    elif state == "dead":
        yield from backlog.dead
