"""Positions kept for others: where a reader of the log stands, and what a producer has sent last.

A reader that keeps its own offsets (a Spark stream) may still want the broker to know them: shown as lag, and nothing
it has not read is let go of. Its group is moved, not consumed from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.broker.broker import Broker
from headrace.delivery import Seek, Start
from headrace.errors import InvalidArgument
from headrace.shard.core import Done

__all__ = ["Positions"]


class Positions:
    """The calls, by name."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def calls(self) -> Mapping[str, Callable[..., Done]]:
        return {
            "group.commit": self.commit,
            "group.position": self.position,
            "topic.producers": self.producers,
        }

    def commit(self, topic: str, group: str, offsets: Mapping[int, int], namespace: str = "default") -> Done:
        """Move a group to offsets by partition (made there if it is new): {"offsets"} as they are now."""
        found = self._broker.find_topic(namespace, topic)
        places: dict[int, int] = {}
        for number, offset in offsets.items():
            if number >= len(found.partitions):
                raise InvalidArgument(f"offsets name partition {number}: topic {topic!r} has {len(found.partitions)}")
            end = found.partitions[number].end
            if offset > end:
                raise InvalidArgument(f"offset {offset} of partition {number}: topic {topic!r} has 0 to {end}")
            places[number] = offset
        known = found.groups.get(group)
        if known is None:
            start: dict[str, Any] = {"offsets": {str(index): offset for index, offset in places.items()}}
            done = self._broker.create_group(namespace, topic, group, {"start": start})
        else:
            done = self._broker.execute(Seek(known.gid, Start(offsets=places), None, None))
        return Done(self.position(topic, group, namespace).reply, done.position)

    def position(self, topic: str, group: str, namespace: str = "default") -> Done:
        """The first offset of each partition that a group has not settled: {"offsets"}, None for no such group."""
        found = self._broker.find_topic(namespace, topic).groups.get(group)
        if found is None:
            return Done({"offsets": None}, 0)
        offsets = {str(each.partition.index): each.first_unsettled() for each in found.backlogs.values()}
        return Done({"offsets": offsets}, 0)

    def producers(self, topic: str, producer_ids: Sequence[int], namespace: str = "default") -> Done:
        """The last sequence of each producer by partition, where one is remembered: {"partitions", "sequences"}."""
        found = self._broker.find_topic(namespace, topic)
        sequences = [
            {str(each.index): seen[-1].sequence for each in found.partitions if (seen := each.producers.get(producer))}
            for producer in producer_ids
        ]
        return Done({"partitions": len(found.partitions), "sequences": sequences}, 0)
