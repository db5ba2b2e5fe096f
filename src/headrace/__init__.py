"""Headrace: one log; queue, topic, schedule and table.

    hr = headrace.open("./data")                          a broker in this process
    hr = headrace.connect("headrace://localhost:7420")    the same object over the network
    headrace.aio.open, headrace.aio.connect               the same names, awaitable

Names are found when they are first used, so that the import costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace import aio, testing
    from headrace.client.connecting import connect
    from headrace.client.consumer import ArrowDeliveries, Consumer, Delivery
    from headrace.client.handles import Headrace, Topic
    from headrace.client.message import Message
    from headrace.client.published import Published
    from headrace.embedded import open  # noqa: A004 - it is called as headrace.open
    from headrace.errors import (
        AlreadyExists,
        Closed,
        ConnectionFault,
        Corrupt,
        Draining,
        DuplicateConflict,
        HeadraceError,
        InvalidArgument,
        LeaseLost,
        LimitExceeded,
        Malformed,
        NotAllowed,
        NotOwner,
        Overloaded,
        PayloadTooLarge,
        ProtocolViolation,
        QueueFull,
        QuotaExceeded,
        RequestError,
        RetryLater,
        ShardStopped,
        StorageFailed,
        StorageFull,
        TimedOut,
        Unauthenticated,
        UnknownGroup,
        UnknownTopic,
        UnsupportedVersion,
    )

_ERRORS = (
    "AlreadyExists", "Closed", "ConnectionFault", "Corrupt", "Draining", "DuplicateConflict", "HeadraceError",
    "InvalidArgument", "LeaseLost", "LimitExceeded", "Malformed", "NotAllowed", "NotOwner", "Overloaded",
    "PayloadTooLarge", "ProtocolViolation", "QueueFull", "QuotaExceeded", "RequestError", "RetryLater", "ShardStopped",
    "StorageFailed", "StorageFull", "TimedOut", "Unauthenticated", "UnknownGroup", "UnknownTopic",
    "UnsupportedVersion",
)  # fmt: skip
_HOMES = {
    "ArrowDeliveries": "headrace.client.consumer",
    "Consumer": "headrace.client.consumer",
    "Delivery": "headrace.client.consumer",
    "Headrace": "headrace.client.handles",
    "Message": "headrace.client.message",
    "Published": "headrace.client.published",
    "Topic": "headrace.client.handles",
    "connect": "headrace.client.connecting",
    "open": "headrace.embedded",
    **dict.fromkeys(_ERRORS, "headrace.errors"),
}
_MODULES = ("aio", "testing")

__all__ = [
    "AlreadyExists",
    "ArrowDeliveries",
    "Closed",
    "ConnectionFault",
    "Consumer",
    "Corrupt",
    "Delivery",
    "Draining",
    "DuplicateConflict",
    "Headrace",
    "HeadraceError",
    "InvalidArgument",
    "LeaseLost",
    "LimitExceeded",
    "Malformed",
    "Message",
    "NotAllowed",
    "NotOwner",
    "Overloaded",
    "PayloadTooLarge",
    "ProtocolViolation",
    "Published",
    "QueueFull",
    "QuotaExceeded",
    "RequestError",
    "RetryLater",
    "ShardStopped",
    "StorageFailed",
    "StorageFull",
    "TimedOut",
    "Topic",
    "Unauthenticated",
    "UnknownGroup",
    "UnknownTopic",
    "UnsupportedVersion",
    "aio",
    "connect",
    "open",
    "testing",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"headrace.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    found = getattr(importlib.import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
