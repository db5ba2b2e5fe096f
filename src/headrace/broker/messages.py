"""Messages as plain mappings, and many of them by their offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from headrace.batch import Batch
from headrace.delivery import Topic
from headrace.log import PartitionLog

__all__ = ["at_offsets", "message_info"]


def message_info(topic: Topic, index: int, batch: Batch, i: int) -> dict[str, Any]:
    """One message as a plain mapping."""
    message = batch.message(i)
    return {
        "id": message.id,
        "namespace": topic.namespace,
        "topic": topic.name,
        "partition": index,
        "offset": message.offset,
        "key": message.key,
        "value": message.value,
        "headers": message.headers,
        "priority": message.priority,
        "published_ns": message.append_time_ns,
        "deliver_at_ns": message.deliver_at_ns,
        "expires_at_ns": message.expires_at_ns,
        "dedup_id": message.dedup_id,
        "timestamp_ns": message.timestamp_ns,
    }


def at_offsets(log: PartitionLog, offsets: Iterable[int]) -> Iterator[tuple[int, Batch, int]]:
    """(offset, batch, index in it) of messages; those that are gone are left out. Rising offsets cost least."""
    batch: Batch | None = None
    for offset in offsets:
        if batch is None or not batch.base_offset <= offset < batch.base_offset + batch.count:
            batch = log.batch_at(offset)
        if batch is not None:
            yield offset, batch, offset - batch.base_offset
