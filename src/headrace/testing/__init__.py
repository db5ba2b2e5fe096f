"""Helpers for tests of Headrace and of what is built on it. Names are found when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.testing.broker import AsyncMemoryBroker, MemoryBroker
    from headrace.testing.disk import Fault, PowerCut, SimulatedDisk
    from headrace.testing.ledger import JournalLedger, Violation

_HOMES = {
    "AsyncMemoryBroker": "broker",
    "Fault": "disk",
    "JournalLedger": "ledger",
    "MemoryBroker": "broker",
    "PowerCut": "disk",
    "SimulatedDisk": "disk",
    "Violation": "ledger",
}

__all__ = [
    "AsyncMemoryBroker",
    "Fault",
    "JournalLedger",
    "MemoryBroker",
    "PowerCut",
    "SimulatedDisk",
    "Violation",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"headrace.testing.{home}"), name)
