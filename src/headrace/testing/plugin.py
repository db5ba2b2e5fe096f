"""pytest fixtures for those who use Headrace; pytest finds them. What they need is imported when one is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.testing.broker import MemoryBroker

__all__ = ["headrace_broker"]


@pytest.fixture
def headrace_broker() -> Iterator[MemoryBroker]:
    """A broker in memory for one test, on a clock that the test moves: ``headrace_broker.advance("5m")``."""
    from headrace.testing.broker import MemoryBroker

    with MemoryBroker() as broker:
        yield broker
