"""The stage every test of delivery plays on; when the play is over, the laws of the journal are checked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from unit.delivery.harness import Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.curtain()
