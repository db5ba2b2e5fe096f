"""Saying of rows of the queue view what acking does not: they failed, they are hopeless, somebody else shall have them.

Inside ``foreachBatch``, before the batch is committed: what is nacked, rejected or released here is no longer part of
the lease batch, and the commit acks only what is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.calls import Run, Settle
from headrace.errors import InvalidArgument
from headrace.spark.options import Place, ReadOptions
from headrace.spark.reach import reach

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["settle"]

_VERBS: Final = ("nack", "reject", "release")
_PORTION: Final = 5_000
"""Runs in one settle."""


def settle(rows: DataFrame, verb: str, *, error: str = "", **options: Any) -> int:
    """Nack, reject or release rows; ``options`` are those of the stream. How many were settled.

    Rows need the columns partition, offset and lease_id, which the queue view gives.
    """
    if verb not in _VERBS:
        raise InvalidArgument(f"verb {verb!r}: must be one of {', '.join(_VERBS)}; acks come with Spark's commit")
    parsed = ReadOptions.parse(
        {**{name: str(value) for name, value in options.items()}, "view": "queue"}, streaming=True
    )
    (topic,) = parsed.topics
    # Three numbers a row, of one micro-batch at most: the driver says it all in a few calls.
    table = rows.select("partition", "lease_id", "offset").toArrow()
    places = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return _settle(parsed.place, topic, str(parsed.group), verb, error, places)


def _settle(place: Place, topic: str, group: str, verb: str, error: str, places: list[tuple[int, int, int]]) -> int:
    runs: list[Run] = []
    for partition, lease_id, offset in sorted(places):
        last = runs[-1] if runs else None
        if last is not None and (last.partition, last.lease_id, last.first_offset + last.count) == (
            partition,
            lease_id,
            offset,
        ):
            runs[-1] = Run(partition, lease_id, last.first_offset, last.count + 1)
        else:
            runs.append(Run(partition, lease_id, offset, 1))
    settled = 0
    for first in range(0, len(runs), _PORTION):
        portion = runs[first : first + _PORTION]
        order = Settle()
        if verb == "nack":
            order.nack = [(run, None, error) for run in portion]
        elif verb == "reject":
            order.reject = [(run, error) for run in portion]
        else:
            order.release = portion
        settled += _done(place, topic, group, order)
    return settled


def _done(place: Place, topic: str, group: str, order: Settle) -> int:
    return reach(place).do(lambda port: port.settle(place.namespace, topic, group, order)).settled
