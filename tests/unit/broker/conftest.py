"""A broker in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from unit.broker.harness import World


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.close()
