"""Errors as numbers and back, and the MessagePack of calls."""

from __future__ import annotations

from typing import Any, Final, TypeVar, overload

import msgspec

from headrace import errors
from headrace.wire.native.packets import Buffer, Close, Ended, Error

BY_NUMBER: Final[dict[int, type[errors.HeadraceError]]] = {row.native: kind for kind, row in errors.ROWS.items()}
NOTHING_WRONG: Final = 0
_OTHERWISE: Final = errors.ROWS[errors.Closed].native
"""For an error without a row: whether the request happened is unknown, as it is after a closed connection."""

T = TypeVar("T")


def number_of(error: errors.HeadraceError | None) -> int:
    """The code of ``error``; of the nearest ancestor with a row when its own class has none; 0 for None."""
    if error is None:
        return NOTHING_WRONG
    for kind in type(error).__mro__:
        row = errors.ROWS.get(kind)
        if row is not None:
            return row.native
    return _OTHERWISE


def retry_after_of(error: errors.HeadraceError | None) -> int:
    """``retry_after_ns`` as it travels: -1 when there is none."""
    return -1 if error is None or error.retry_after_ns is None else error.retry_after_ns


def error_of(packet: Error | Close | Ended) -> errors.HeadraceError | None:
    """The error a packet names; None when its code says nothing is wrong.

    >>> error_of(Error(1, 6, "topic 'orders' holds 10000000 messages", 250_000_000))
    QueueFull("topic 'orders' holds 10000000 messages")
    """
    if packet.code == NOTHING_WRONG:
        return None
    return error_from(packet.code, packet.message, packet.retry_after_ns)


def error_from(code: int, message: str, retry_after_ns: int = -1) -> errors.HeadraceError:
    """The error of a native number; an unknown number becomes the root class, never a crash."""
    kind = BY_NUMBER.get(code)
    retry = None if retry_after_ns < 0 else retry_after_ns
    if kind is None:
        return errors.HeadraceError(f"{message} (code {code})", retry_after_ns=retry)
    return kind(message, retry_after_ns=retry)


def pack(value: Any) -> bytes:
    """Arguments, options or a result as MessagePack."""
    try:
        return msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise errors.InvalidArgument(f"cannot be sent: {error}") from error


@overload
def unpack(buffer: Buffer, wanted: type[T]) -> T: ...
@overload
def unpack(buffer: Buffer) -> Any: ...
def unpack(buffer: Buffer, wanted: Any = Any) -> Any:
    """MessagePack from the peer as the type that is wanted, strictly; an empty buffer is an empty map.

    Raises InvalidArgument that says what is wrong where.
    """
    try:
        return msgspec.msgpack.decode(buffer if len(buffer) else b"\x80", type=wanted)
    except (ValueError, RecursionError, MemoryError) as error:
        raise errors.InvalidArgument(f"arguments: {error}") from error
