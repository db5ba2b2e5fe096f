"""Queues over MQTT live in rooms of their own: the ordinary broker knows nothing of them, nor the queues of MQTT."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src" / "headrace"


def imported(path: Path) -> set[str]:
    """Every module of ours that a file names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return {name for name in found if name.startswith("headrace.")}


@pytest.mark.feature("F302")
def test_the_ordinary_broker_knows_no_queue() -> None:
    allowed = ("headrace.pubsub", "headrace.routing", "headrace.wire.mqtt", "headrace.limits")
    for path in (SOURCE / "pubsub").glob("*.py"):
        assert all(name.startswith(allowed) for name in imported(path)), path


@pytest.mark.feature("F302")
@pytest.mark.parametrize("room", ["batch", "delivery", "journal", "log", "shard", "broker", "routing"])
def test_the_queue_knows_no_mqtt(room: str) -> None:
    for path in (SOURCE / room).rglob("*.py"):
        assert not any(".mqtt" in name or name.startswith("headrace.pubsub") for name in imported(path)), path
