"""The journal of MQTT sessions when its disk is full, slow or broken."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker import Broker
from headrace.broker.aio import LoopBroker
from headrace.broker.embedded import open_core
from headrace.config import ServerConfig
from headrace.errors import HeadraceError, StorageFailed, StorageFull
from headrace.frontends import DoorSite, open_listener
from headrace.frontends.mqtt import MqttDoor
from headrace.journal import DiskJournal, Journal, MemoryJournal
from headrace.wire.mqtt import PubAck, Publish
from integration.mqtt_peer import Peer, close_door, until

LONG = 3600


class Sick(MemoryJournal):
    """A journal whose appends fail as they are told."""

    __slots__ = ("trouble",)

    def __init__(self) -> None:
        super().__init__()
        self.trouble: HeadraceError | None = None

    def append(self, kind: int, *buffers: bytes | memoryview, reserve: bool = False) -> int:
        if self.trouble is not None:
            raise self.trouble
        return super().append(kind, *buffers, reserve=reserve)


Open = Callable[..., Any]


@pytest.fixture
async def open_door() -> AsyncIterator[Open]:
    opened: list[MqttDoor] = []

    async def open_one(open_journal: Callable[[str], Journal], failures: list[HeadraceError] | None = None) -> MqttDoor:
        told = failures if failures is not None else []
        broker = LoopBroker(Broker(open_core(":memory:")), on_failure=told.append)
        site = DoorSite(
            broker,
            open_listener("127.0.0.1", 0, name="mqtt"),
            ServerConfig(journal="memory"),
            open_journal=open_journal,
        )
        opened.append(MqttDoor(site))
        await opened[-1].start()
        return opened[-1]

    yield open_one
    for door in opened:
        await close_door(door)


async def test_a_full_disk_refuses_what_needs_room_and_goes_on_when_there_is_some(open_door: Open) -> None:
    journal = Sick()
    door = await open_door(lambda _: journal)
    reader = await Peer.connect(door.address, "reader", session_expiry_interval=LONG)
    await reader.subscribe("t", 1)
    writer = await Peer.connect(door.address, "writer")
    journal.trouble = StorageFull("no room")
    writer.send(Publish("t", b"held", 1, packet_id=100))  # accepted before the disk was found full: held, not answered
    await until(lambda: not door.exchange.ledger.has_room)
    refused = await writer.publish("t", b"refused", 1)
    assert isinstance(refused, PubAck)
    assert refused.reason == 0x97
    await writer.publish("t", b"plain", 0)  # needs nothing of the disk
    assert (await reader.message()).payload == b"plain"
    await reader.nothing()
    journal.trouble = None
    assert (await writer.expect(PubAck)).packet_id == 100
    assert (await reader.message()).payload == b"held"
    assert isinstance(answer := await writer.publish("t", b"after", 1), PubAck)
    assert answer.reason == 0
    assert (await reader.message()).payload == b"after"


async def test_a_broken_disk_confirms_nothing_and_stops_the_server(open_door: Open) -> None:
    journal, failures = Sick(), []
    door = await open_door(lambda _: journal, failures)
    reader = await Peer.connect(door.address, "reader", session_expiry_interval=LONG)
    await reader.subscribe("t", 1)
    writer = await Peer.connect(door.address, "writer")
    journal.trouble = StorageFailed("broken")
    writer.send(Publish("t", b"x", 1, packet_id=1))
    await until(lambda: bool(failures))
    await writer.nothing()
    await reader.nothing()
    assert [error.code for error in failures] == ["storage_failed"]


async def test_a_damaged_record_of_sessions_is_told_at_the_start(open_door: Open, data_dir: Path) -> None:
    directory = data_dir / "mqtt"
    directory.mkdir()
    with DiskJournal.open(directory, file_size_bytes=1 << 20) as journal:
        journal.wait_durable(journal.append(1, b"\xc1 no facts"))
    with pytest.raises(HeadraceError, match="MQTT sessions at position"):
        await open_door(lambda _: DiskJournal.open(directory, file_size_bytes=1 << 20))


async def test_everything_noted_is_there_after_a_clean_stop(open_door: Open, data_dir: Path) -> None:
    directory = data_dir / "mqtt"
    directory.mkdir()

    def journal(_: str) -> Journal:
        return DiskJournal.open(directory, file_size_bytes=1 << 20)

    door = await open_door(journal)
    peer = await Peer.connect(door.address, "ann", session_expiry_interval=LONG)
    await peer.subscribe("t", 1)
    await peer.leave()
    writer = await Peer.connect(door.address, "writer")
    for n in range(100):
        writer.send(Publish("t", b"%d" % n, 1, packet_id=n + 1))
    for _ in range(100):
        await writer.expect(PubAck)
    await writer.close()
    await until(lambda: door.connections_count == 0)
    await door.close()
    again = await open_door(journal)
    peer = await Peer.connect(again.address, "ann", clean_start=False, session_expiry_interval=LONG)
    assert [int(m.payload) for m in await peer.messages(100)] == list(range(100))
