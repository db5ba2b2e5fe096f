"""Schedules as objects: the calls ``schedule.list|count|show|cancel|move``.

What is scheduled is one bitmap a partition, so counting looks at nothing. Messages are chosen by id, by key (found by
the keys' hashes, which are in memory) or by tag, their header ``tag`` (found by reading them, portion by portion). A
message that comes due meanwhile is no longer scheduled, and is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any, Final

from pyroaring import BitMap64

from headrace.batch import Batch, encode_one
from headrace.broker.broker import Broker
from headrace.broker.messages import message_info
from headrace.broker.portions import Work, portioned
from headrace.broker.scanning import scanned
from headrace.delivery import Backlog, Cancel, Move, Partition, span_of
from headrace.errors import InvalidArgument
from headrace.limits import PORTION_MESSAGES, TIME_NS_MAX
from headrace.shard.core import Done

__all__ = ["TAG", "Schedules"]

TAG: Final = "tag"
"""The header that names a schedule, for all messages that belong together."""
_MS_NS: Final = 1_000_000
Act = Callable[[int, BitMap64], int]


class Schedules:
    """The calls over a broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.core = broker.core

    def calls(self) -> Mapping[str, Callable[..., Done]]:
        return {
            "schedule.list": self.find,
            "schedule.count": self.count,
            "schedule.show": self.show,
            "schedule.cancel": self.cancel,
            "schedule.move": self.move,
        }

    # -- looking -------------------------------------------------------------------------------------------------------

    def find(self, topic: str, namespace: str = "default", limit: int = 100, group: str | None = None) -> Done:
        """What is scheduled, the next first: messages with ``due_ns``, ``attempts`` and ``last_error``.

        With a group also its retries that wait for their backoff (``attempts`` above 0).
        """
        found = self.broker.find_topic(namespace, topic)
        backlogs = self.broker.find_group(namespace, topic, group).backlogs if group is not None else {}
        streams = []
        for partition in found.partitions:
            streams.append(_next_of(partition))
            if partition.pid in backlogs:
                streams.append(_retries_of(backlogs[partition.pid]))
        chosen = islice(merge(*streams, key=lambda entry: entry[0]), limit)
        rows = [self._info(partition, offset, due_ms, backlogs) for due_ms, offset, partition in chosen]
        return Done([row for row in rows if row is not None], 0)

    def _info(
        self, partition: Partition, offset: int, due_ms: int, backlogs: Mapping[int, Backlog]
    ) -> dict[str, Any] | None:
        batch = self.core.log(partition.pid).batch_at(offset)
        if batch is None:
            return None
        info = message_info(partition.topic, partition.index, batch, offset - batch.base_offset)
        backlog = backlogs.get(partition.pid)
        known = backlog.tries.get(offset) if backlog is not None else None
        info["due_ns"] = due_ms * _MS_NS
        info["attempts"] = known.attempts if known is not None else 0
        info["last_error"] = known.error if known is not None else ""
        return info

    def count(self, topic: str, namespace: str = "default") -> Done:
        """{"scheduled": how many, "next_due_ns": when the first of them is due}."""
        found = self.broker.find_topic(namespace, topic)
        scheduled = sum(len(partition.scheduled) for partition in found.partitions)
        firsts = [partition.schedule.first(partial(_is_live, partition)) for partition in found.partitions]
        due = [entry[0] * _MS_NS for entry in firsts if entry is not None]
        return Done({"scheduled": scheduled, "next_due_ns": min(due, default=None)}, 0)

    def show(self, topic: str, id: int, namespace: str = "default") -> Done:
        """One scheduled message."""
        pid, offset = self._place(namespace, topic, id)
        partition = self.core.state.partitions[pid]
        batch = self.core.log(pid).batch_at(offset)
        if offset not in partition.scheduled or batch is None:
            raise InvalidArgument(f"message {id} of topic {topic!r} is not scheduled (`explain` says where it is)")
        deliver_at_ns = batch.deliver_at(offset - batch.base_offset) or 0
        due_ms = partition.moved.get(offset, -(-deliver_at_ns // _MS_NS))
        return Done(self._info(partition, offset, due_ms, {}), 0)

    def _place(self, namespace: str, topic: str, message_id: int) -> tuple[int, int]:
        for partition in self.broker.find_topic(namespace, topic).partitions:
            offset = self.core.log(partition.pid).offset_of_id(message_id)
            if offset is not None:
                return partition.pid, offset
        raise InvalidArgument(f"topic {topic!r} has no message with the id {message_id}")

    # -- changing ------------------------------------------------------------------------------------------------------

    @portioned
    def cancel(
        self,
        topic: str,
        namespace: str = "default",
        ids: Sequence[int] | None = None,
        key: bytes | None = None,
        tag: str | None = None,
    ) -> Work:
        """Take messages out of the schedule; they are never delivered. {"cancelled": how many}."""

        def act(pid: int, offsets: BitMap64) -> int:
            cancelled: int = self.broker.execute(Cancel(pid, span_of(offsets))).reply
            return cancelled

        return {"cancelled": (yield from self._each(namespace, topic, ids, key, tag, act))}

    @portioned
    def move(
        self,
        topic: str,
        namespace: str = "default",
        ids: Sequence[int] | None = None,
        key: bytes | None = None,
        tag: str | None = None,
        deliver_at_ns: int | None = None,
        delay_ns: int | None = None,
    ) -> Work:
        """Give messages another time, ``deliver_at_ns`` or ``delay_ns`` from now. {"moved": how many, "due_ns"}."""
        if (deliver_at_ns is None) == (delay_ns is None):
            raise InvalidArgument("schedule.move needs one of deliver_at_ns and delay_ns")
        due_ns = deliver_at_ns if deliver_at_ns is not None else self.core.clock.now_ns() + (delay_ns or 0)
        if not 0 <= due_ns <= TIME_NS_MAX:
            raise InvalidArgument(f"schedule.move to {due_ns}: a time is from 0 to {TIME_NS_MAX} ns since 1970")

        def act(pid: int, offsets: BitMap64) -> int:
            moved: int = self.broker.execute(Move(pid, span_of(offsets), due_ns)).reply
            return moved

        return {"moved": (yield from self._each(namespace, topic, ids, key, tag, act)), "due_ns": due_ns}

    def _each(
        self,
        namespace: str,
        topic: str,
        ids: Sequence[int] | None,
        key: bytes | None,
        tag: str | None,
        act: Act,
    ) -> Generator[int, Any, int]:
        """Act on the scheduled messages that are chosen; what it came to in all."""
        if (ids is not None) + (key is not None) + (tag is not None) != 1:
            raise InvalidArgument("say which messages: ids, key or tag (one of them)")
        found = self.broker.find_topic(namespace, topic)
        done = 0
        if ids is not None:
            for start in range(0, len(ids), PORTION_MESSAGES):
                if start:
                    yield 0
                for pid, span in self.broker.scheduled(namespace, topic, ids[start : start + PORTION_MESSAGES]):
                    done += act(pid, span.bitmap())
            return done
        for partition in found.partitions:
            if key is not None:
                done += yield from self._by_key(partition, key, act)
            else:
                done += yield from self._by_tag(partition, tag or "", act)
        return done

    def _by_key(self, partition: Partition, key: bytes, act: Act) -> Generator[int, Any, int]:
        hashes = encode_one(b"", key=key).key_hashes()
        wanted = hashes[0] if hashes is not None else 0
        candidates = BitMap64()
        for at, column in enumerate(list(partition.columns)):
            keys = column.keys
            if keys is not None and keys.count(wanted):
                candidates.update([column.base + i for i, held in enumerate(keys) if held == wanted])
            if at % PORTION_MESSAGES == PORTION_MESSAGES - 1:
                yield 0
        candidates &= partition.scheduled
        return (yield from self._matching(partition, candidates, lambda batch, i: batch.key(i) == key, None, act))

    def _by_tag(self, partition: Partition, tag: str, act: Act) -> Generator[int, Any, int]:
        raw = tag.encode()

        def tagged(batch: Batch, i: int) -> bool:
            return batch.headers(i).get(TAG) in (tag, raw)

        def worth(batch: Batch) -> bool:
            return any(raw in bytes(buffer) for buffer in batch.buffers())

        return (yield from self._matching(partition, partition.scheduled.copy(), tagged, worth, act))

    def _matching(
        self,
        partition: Partition,
        candidates: BitMap64,
        matches: Callable[[Batch, int], bool],
        worth: Callable[[Batch], bool] | None,
        act: Act,
    ) -> Generator[int, Any, int]:
        chosen = BitMap64()

        def found(offset: int, batch: Batch, i: int) -> bool:
            if matches(batch, i):
                chosen.add(offset)
            return True

        done = 0
        scan = scanned(self.core.log(partition.pid), candidates, found, worth=worth)
        for wait in scan:
            if chosen:
                done += act(partition.pid, chosen)
                chosen.clear()
            yield wait
        return done + (act(partition.pid, chosen) if chosen else 0)


def _is_live(partition: Partition, due_ms: int, offset: int) -> bool:
    """Whether an entry of the index is what holds: not cancelled, nor moved to another time."""
    return offset in partition.scheduled and partition.moved.get(offset, due_ms) == due_ms


def _next_of(partition: Partition) -> Any:
    """(due_ms, offset, partition) of what is scheduled, the next first."""
    before = (-1, -1)
    for due_ms, offset in partition.schedule.entries():
        if _is_live(partition, due_ms, offset) and (due_ms, offset) != before:
            before = due_ms, offset
            yield due_ms, offset, partition


def _retries_of(backlog: Backlog) -> Any:
    waiting, tries = backlog.waiting, backlog.tries
    before = (-1, -1)
    for due_ms, offset in backlog.backoffs.entries():
        if offset in waiting and tries[offset].due_ms == due_ms and (due_ms, offset) != before:
            before = due_ms, offset
            yield due_ms, offset, backlog.partition
