"""Message ids: 64-bit, time-ordered, made without asking anybody.

    bit 63   62 ............... 22   21 ....... 12   11 ........ 0
    zero     milliseconds since      node 0–1023     sequence
             2024-01-01 UTC (41)     (10)            0–4095 (12)

An id is a positive signed 64-bit integer and is printed as decimal text. The milliseconds last until 2093.

The rules. Ids of one source only ever rise: a wall clock that steps back is ignored until it has caught up. A source
never waits: when a millisecond's 4,096 are used up it borrows from the next one, and its ids run ahead of the clock
until the clock has caught up (a source that gives out fewer than 4,096 a millisecond never runs ahead). The ids of one
batch are contiguous and share one millisecond, so that a batch needs to store only its first. After a restart the
source is told the highest id that may have been given out and starts above it. Two nodes never give the same id because
the node number is part of it; that numbers are not shared by two nodes is up to whoever assigns them.

An id's time is when it was made, as far as the clock told; order within a partition is the offset's business.
"""

from __future__ import annotations

from typing import Final

from headrace.errors import InvalidArgument, LimitExceeded

__all__ = [
    "EPOCH_MS",
    "ID_MAX",
    "NODE_ID_MAX",
    "SEQUENCE_COUNT",
    "IdSource",
    "first_id_at_ms",
    "format_id",
    "id_node",
    "id_time_ms",
    "parse_id",
]

EPOCH_MS: Final = 1_704_067_200_000
"""2024-01-01T00:00:00Z in Unix milliseconds."""
NODE_BITS: Final = 10
SEQUENCE_BITS: Final = 12
MS_BITS: Final = 41
NODE_ID_MAX: Final = (1 << NODE_BITS) - 1
SEQUENCE_COUNT: Final = 1 << SEQUENCE_BITS
"""Ids in one millisecond of one node, and so the most a batch can hold."""
ID_MAX: Final = (1 << 63) - 1

_MS_SHIFT: Final = NODE_BITS + SEQUENCE_BITS
_SEQUENCE_MASK: Final = SEQUENCE_COUNT - 1
_TICK_MAX: Final = (1 << (MS_BITS + SEQUENCE_BITS)) - 1
_NS_PER_MS: Final = 1_000_000
_DIGITS_MAX: Final = len(str(ID_MAX))


class IdSource:
    """Gives out the ids of one node; one owner, no lock.

    >>> source = IdSource(node_id=7)
    >>> wall_ns = 1_735_689_600_000_000_000          # 2025-01-01
    >>> first = source.take(100, wall_ns)            # first … first + 99
    >>> source.take(1, wall_ns) - first
    100
    >>> source.take(1, wall_ns - 3_600_000_000_000) - first   # the clock stepped back an hour
    101
    """

    __slots__ = ("_node_bits", "_tick", "node_id")

    def __init__(self, node_id: int, last_id: int = 0) -> None:
        if type(node_id) is not int or not 0 <= node_id <= NODE_ID_MAX:
            raise InvalidArgument(f"node id {node_id!r}: must be a whole number from 0 to {NODE_ID_MAX}")
        if not 0 <= last_id <= ID_MAX:
            raise InvalidArgument(f"last id {last_id}: must be from 0 to {ID_MAX}")
        self.node_id = node_id
        self._node_bits = node_id << SEQUENCE_BITS
        # The next free place: milliseconds and sequence side by side, without the node between them. 0 is never given.
        last_tick = (last_id >> _MS_SHIFT) << SEQUENCE_BITS | (last_id & _SEQUENCE_MASK)
        if last_id and id_node(last_id) != node_id:
            last_tick |= _SEQUENCE_MASK  # another node's id: only the next millisecond is sure to lie above it
        self._tick = last_tick + 1

    def take(self, count: int, wall_ns: int) -> int:
        """The first of ``count`` contiguous ids, all above every id given before."""
        if not 1 <= count <= SEQUENCE_COUNT:
            raise InvalidArgument(f"{count} ids in one call: must be from 1 to {SEQUENCE_COUNT}")
        tick = (wall_ns // _NS_PER_MS - EPOCH_MS) << SEQUENCE_BITS
        if tick < self._tick:
            tick = self._tick
            if (tick & _SEQUENCE_MASK) + count > SEQUENCE_COUNT:
                tick = (tick | _SEQUENCE_MASK) + 1
        if tick > _TICK_MAX:
            raise LimitExceeded(
                f"ids end {1 << MS_BITS} ms after 2024-01-01 and the clock says {wall_ns} ns since 1970: "
                "set the machine's clock right"
            )
        self._tick = tick + count
        return (tick >> SEQUENCE_BITS) << _MS_SHIFT | self._node_bits | (tick & _SEQUENCE_MASK)


def id_time_ms(message_id: int) -> int:
    """When the id was made, in Unix milliseconds."""
    return (message_id >> _MS_SHIFT) + EPOCH_MS


def id_node(message_id: int) -> int:
    """The node that made the id."""
    return message_id >> SEQUENCE_BITS & NODE_ID_MAX


def first_id_at_ms(wall_ms: int) -> int:
    """The lowest id any node can make in that Unix millisecond; 0 for a time before the first."""
    return max(0, min(wall_ms - EPOCH_MS, (1 << MS_BITS) - 1)) << _MS_SHIFT


def format_id(message_id: int) -> str:
    """An id as people and protocols see it."""
    return str(message_id)


def parse_id(text: str) -> int:
    """The id of a decimal text, and of nothing else.

    >>> parse_id("7318624812441698304")
    7318624812441698304
    """
    if not (0 < len(text) <= _DIGITS_MAX and text.isascii() and text.isdigit()) or text[0] == "0":
        raise InvalidArgument(
            f"message id {text[:40]!r}: must be 1 to {_DIGITS_MAX} decimal digits, as a publish returns it"
        )
    message_id = int(text)
    if message_id > ID_MAX:
        raise InvalidArgument(f"message id {text!r}: must not be above {ID_MAX}")
    return message_id
