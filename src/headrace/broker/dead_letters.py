"""Dead letters: the calls ``dlq.list|show|standing|redrive|purge``.

The dead letters of a topic lie in a topic of their own (``dlq/<topic>`` unless configured), each with headers that say
where it comes from. Somebody's dead letters are those that are still there: neither redriven nor purged, nor settled by
that topic's group ``default`` (consuming dead letters is one way to deal with them). Where several topics share a place
for their dead letters, each sees its own. A filter (``where``) may have

    reason · error (a part of the text) · group · consumer (the last one) · min_attempts · key_prefix · header
    ids (of the dead letters, or of what died) · from_time_ns, to_time_ns (of the death, the end not included)
    runs (of offsets in the topic that holds them: [partition, first, count], for who chose them by other means)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from pyroaring import BitMap64

from headrace.batch import Batch
from headrace.broker.broker import Broker
from headrace.broker.messages import message_info
from headrace.broker.portions import Work, portioned
from headrace.broker.redriving import Pending, Run, redriven
from headrace.broker.scanning import scanned
from headrace.broker.selection import content_test
from headrace.delivery import FreeKey, Partition, Purge, Topic, span_of
from headrace.delivery.burying import origin_of, without_marks
from headrace.errors import InvalidArgument, UnknownTopic
from headrace.names import DEAD_LETTERS_PREFIX, DEFAULT_GROUP
from headrace.shard.core import Done

__all__ = ["DeadLetters"]

Letter = Callable[[int, Batch, int, Mapping[str, str]], bool]


class DeadLetters:
    """The calls over a broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.core = broker.core

    def calls(self) -> Mapping[str, Callable[..., Done]]:
        return {
            "dlq.list": self.find,
            "dlq.show": self.show,
            "dlq.redrive": self.redrive,
            "dlq.standing": self.standing,
            "dlq.purge": self.purge,
        }

    # -- the calls -----------------------------------------------------------------------------------------------------

    @portioned
    def find(
        self, topic: str, namespace: str = "default", where: Mapping[str, Any] | None = None, limit: int = 100
    ) -> Work:
        """Dead letters, oldest first: messages with ``origin``, ``reason``, ``error``, ``attempts``, ``consumer``,
        ``died_ns``, ``first_delivered_ns``, ``last_delivered_ns``; their headers without the broker's own."""
        letters: list[dict[str, Any]] = []

        def found(offset: int, batch: Batch, index: int, origin: Mapping[str, str]) -> bool:
            letters.append(_info(partition, batch, index, origin))
            return len(letters) < limit

        for partition in self._partitions(namespace, topic):
            if not (yield from self._scan(partition, topic, where, found)):
                break
        return letters

    @portioned
    def show(self, topic: str, id: int, namespace: str = "default") -> Work:
        """One dead letter, by its id or that of the message that died."""
        letters: list[dict[str, Any]] = []

        def found(offset: int, batch: Batch, index: int, origin: Mapping[str, str]) -> bool:
            letters.append(_info(partition, batch, index, origin))
            return False

        for partition in self._partitions(namespace, topic):
            if not (yield from self._scan(partition, topic, {"ids": frozenset([id])}, found)):
                break
        if not letters:
            raise InvalidArgument(f"topic {topic!r} has no dead letter {id}")
        return letters[0]

    def standing(self, topic: str, namespace: str = "default") -> Done:
        """Where dead letters still wait: [{"topic", "partition", "offsets": a portable 64-bit Roaring bitmap}].

        Of every topic whose letters lie there; for who reads the log of dead letters and wants to know which are left.
        """
        return Done(
            [
                {
                    "topic": partition.topic.name,
                    "partition": partition.index,
                    "offsets": self._there(partition, {}).serialize(),
                }
                for partition in self._partitions(namespace, topic)
            ],
            0,
        )

    @portioned
    def redrive(
        self,
        topic: str,
        namespace: str = "default",
        where: Mapping[str, Any] | None = None,
        to: str | None = None,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> Work:
        """Send dead letters back to work, with fresh attempts: to the group they died in, or to the topic ``to``.

        At most ``rate`` a second. {"matched", "redriven", "left", "to", "dry_run", "by_reason", "by_error", "by_group",
        "sample": ids}; ``left``: those that could not go back, because where they came from is gone.
        """
        run = Run(rate, ("reason", "error", "group"), dry_run, topic=topic, to=to)
        target = None
        if to is not None and not dry_run:
            target = self.broker.topic(namespace, to).tid
        pending: Pending = []

        def found(offset: int, batch: Batch, index: int, origin: Mapping[str, str]) -> bool:
            run.count(batch, index)
            for name, tally in run.tallies.items():
                tally.add(origin.get(name, ""))
            pending.append((offset, len(batch.value_view(index))))
            return True

        for partition in self._partitions(namespace, topic):
            for wait in self._scan(partition, topic, where, found):
                if dry_run:
                    pending.clear()
                yield from redriven(self.broker, partition, pending, run, tid=target)
                yield wait
            if not dry_run:
                yield from redriven(self.broker, partition, pending, run, tid=target)
            pending.clear()
        return run.report()

    @portioned
    def purge(self, topic: str, namespace: str = "default", where: Mapping[str, Any] | None = None) -> Work:
        """Drop dead letters for good. {"dropped": how many}. A key that was held by one of them goes on."""
        dropped = 0
        chosen = BitMap64()
        keys: set[FreeKey] = set()

        def found(offset: int, batch: Batch, index: int, origin: Mapping[str, str]) -> bool:
            chosen.add(offset)
            held = self._held(namespace, batch, index, origin)
            if held is not None:
                keys.add(held)
            return True

        def drop(partition: Partition) -> int:
            if not chosen:
                return 0
            only = {partition.pid: span_of(chosen.copy())}
            chosen.clear()
            count: int = self.broker.execute(Purge(partition.topic.tid, -1, only)).reply
            while keys:
                self.broker.execute(keys.pop())
            return count

        for partition in self._partitions(namespace, topic):
            for wait in self._scan(partition, topic, where, found):
                dropped += drop(partition)
                yield wait
            dropped += drop(partition)
        return {"dropped": dropped}

    def _held(self, namespace: str, batch: Batch, index: int, origin: Mapping[str, str]) -> FreeKey | None:
        """What lets the successors of a dead letter go on, where they wait for somebody to deal with it."""
        hashes = batch.key_hashes()
        topic = self.core.state.by_name.get((namespace, origin.get("topic", "")))
        group = topic.groups.get(origin.get("group", "")) if topic is not None else None
        number = _number(origin.get("partition"))
        if hashes is None or topic is None or group is None or number >= len(topic.partitions):
            return None
        pid = topic.partitions[number].pid
        return FreeKey(group.gid, pid, hashes[index]) if hashes[index] in group.backlogs[pid].held_keys else None

    # -- finding them --------------------------------------------------------------------------------------------------

    def _partitions(self, namespace: str, topic: str) -> Iterator[Partition]:
        """Where dead letters of a topic lie (or those of a dead-letter topic itself)."""
        for place in self._places(namespace, topic):
            yield from place.partitions

    def _places(self, namespace: str, topic: str) -> list[Topic]:
        by_name = self.core.state.by_name
        origin = by_name.get((namespace, topic))
        if topic.startswith(DEAD_LETTERS_PREFIX):
            if origin is None:
                raise UnknownTopic(f"topic {topic!r} does not exist in namespace {namespace!r}")
            return [origin]
        names = {DEAD_LETTERS_PREFIX + topic}
        if origin is not None:
            names |= {group.policy.dead_letter_topic for group in origin.groups.values()}
        found = [by_name[namespace, name] for name in sorted(names) if (namespace, name) in by_name]
        if origin is None and not found:
            raise UnknownTopic(f"topic {topic!r} does not exist in namespace {namespace!r}")
        return found

    def _scan(
        self, partition: Partition, topic: str, where: Mapping[str, Any] | None, found: Letter
    ) -> Generator[int, Any, bool]:
        """Call ``found`` for each dead letter of a topic in a partition; False when it ended the scan."""
        wanted = where or {}
        own = None if topic.startswith(DEAD_LETTERS_PREFIX) else topic
        content = content_test(wanted)

        def look(offset: int, batch: Batch, index: int) -> bool:
            origin = origin_of(batch.headers(index))
            mine = own is None or origin.get("topic") == own
            if mine and _matches(wanted, batch, index, origin) and (content is None or content(batch, index)):
                return found(offset, batch, index, origin)
            return True

        return scanned(self.core.log(partition.pid), self._there(partition, wanted), look)

    def _there(self, partition: Partition, where: Mapping[str, Any]) -> BitMap64:
        log = self.core.log(partition.pid)
        first, end = partition.start, partition.end
        if "from_time_ns" in where:
            first = max(first, log.offset_at(where["from_time_ns"]))
        if "to_time_ns" in where:
            end = min(end, log.offset_at(where["to_time_ns"]))
        there = BitMap64()
        there.add_range(first, max(first, end))
        if "runs" in where:
            there &= _chosen(where["runs"], partition.index, partition.start, partition.end)
        there -= partition.gone
        default = partition.topic.groups.get(DEFAULT_GROUP)
        if default is not None:
            there -= default.backlogs[partition.pid].done
        return there


def _chosen(runs: Sequence[Sequence[int]], index: int, first: int, end: int) -> BitMap64:
    """The offsets of one partition in a list of runs, as far as they are in [first, end)."""
    chosen = BitMap64()
    for partition, start, count in runs:
        if partition == index and start < end:
            chosen.add_range(max(first, start), max(first, min(start + count, end)))
    return chosen


def _matches(where: Mapping[str, Any], batch: Batch, index: int, origin: Mapping[str, str]) -> bool:
    for name in ("reason", "group", "consumer"):
        if name in where and origin.get(name) != where[name]:
            return False
    if "error" in where and where["error"] not in origin.get("error", ""):
        return False
    if "min_attempts" in where and _number(origin.get("attempts")) < where["min_attempts"]:
        return False
    if "ids" in where:
        mine = batch.base_id + batch.delta(index)
        return mine in where["ids"] or _number(origin.get("id")) in where["ids"]
    return True


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def _info(partition: Partition, batch: Batch, index: int, origin: Mapping[str, str]) -> dict[str, Any]:
    info = message_info(partition.topic, partition.index, batch, index)
    info["headers"] = without_marks(info["headers"])
    info["died_ns"] = info["published_ns"]
    info["origin"] = {
        "topic": origin.get("topic", ""),
        "partition": _number(origin.get("partition")),
        "offset": _number(origin.get("offset")),
        "id": _number(origin.get("id")),
        "group": origin.get("group", ""),
    }
    for name in ("reason", "error", "consumer"):
        info[name] = origin.get(name, "")
    info["attempts"] = _number(origin.get("attempts"))
    info["first_delivered_ns"] = _number(origin.get("first-delivery")) * 1_000_000
    info["last_delivered_ns"] = _number(origin.get("last-delivery")) * 1_000_000
    return info
