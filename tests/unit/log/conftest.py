"""A broker on a real disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.log.harness import SealedWorld


@pytest.fixture
def world(data_dir: Path) -> Iterator[SealedWorld]:
    found = SealedWorld(data_dir)
    yield found
    found.close()
