"""An MQTT client of the smallest kind: our codec over a socket, packets awaited one by one; and a door to speak to.

Nothing is retried, nothing acknowledged by itself, so that a test sees what the server did.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from headrace.broker import Broker
from headrace.broker.aio import LoopBroker
from headrace.broker.embedded import open_core
from headrace.config import ServerConfig
from headrace.frontends import DoorSite, open_listener
from headrace.frontends.mqtt import MqttDoor
from headrace.wire.mqtt import (
    NEED_MORE,
    ConnAck,
    Connect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
    build,
    parse,
)

WAIT_S = 30
P = TypeVar("P", bound=Packet)
OpenDoor = Callable[..., Awaitable[MqttDoor]]


_opened: list[Peer] = []


class Ended(AssertionError):
    """The server closed the connection."""


class Peer:
    """One connection."""

    def __init__(self, version: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.version = version
        self.reader, self.writer = reader, writer
        self.connack: ConnAck | None = None
        self._data = b""
        self._next_id = 0
        _opened.append(self)

    @classmethod
    async def open(cls, address: str, version: int = 5, *, tls: ssl.SSLContext | None = None) -> Peer:
        """A socket, nothing sent."""
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(
            host, int(port), ssl=tls, server_hostname="localhost" if tls is not None else None
        )
        return cls(version, reader, writer)

    @classmethod
    async def connect(
        cls,
        address: str,
        client_id: str = "",
        version: int = 5,
        *,
        clean_start: bool = True,
        keep_alive_s: int = 0,
        will: Will | None = None,
        user_name: str | None = None,
        password: bytes | None = None,
        tls: ssl.SSLContext | None = None,
        **properties: Any,
    ) -> Peer:
        """CONNECT and its CONNACK (in ``connack``, whatever it says)."""
        peer = await cls.open(address, version, tls=tls)
        peer.send(
            Connect(
                client_id,
                version,
                clean_start,
                keep_alive_s,
                user_name,
                password,
                will,
                properties or None,  # type: ignore[arg-type]
            )
        )
        peer.connack = await peer.expect(ConnAck)
        return peer

    def send(self, *packets: Packet) -> None:
        self.writer.write(b"".join(build(packet, self.version) for packet in packets))

    def send_raw(self, data: bytes) -> None:
        self.writer.write(data)

    def packet_id(self) -> int:
        self._next_id += 1
        return self._next_id

    async def receive(self) -> Packet:
        """The next packet."""
        async with asyncio.timeout(WAIT_S):
            while True:
                packet, end = parse(self._data, 0, self.version)
                if packet is not NEED_MORE:
                    assert isinstance(packet, Packet), packet
                    self._data = self._data[end:]
                    return packet
                more = await self._read()
                if not more:
                    raise Ended("the server closed the connection")
                self._data += more

    async def _read(self) -> bytes:
        try:
            return await self.reader.read(1 << 16)
        except (ConnectionError, ssl.SSLError):
            return b""

    async def expect(self, kind: type[P]) -> P:
        """The next packet, which must be of this kind."""
        packet = await self.receive()
        assert isinstance(packet, kind), packet
        return packet

    async def ended(self) -> list[Packet]:
        """What still comes until the server closes."""
        packets: list[Packet] = []
        while True:
            try:
                packets.append(await self.receive())
            except Ended:
                return packets

    async def subscribe(self, topic_filter: str, qos: int = 0, *, wanted: int | None = None, **options: Any) -> SubAck:
        packet_id = self.packet_id()
        properties = {
            name: options.pop(name) for name in ("subscription_identifiers", "user_properties") if name in options
        }
        self.send(
            Subscribe(packet_id, (Subscription(topic_filter, qos, **options),), properties or None)  # type: ignore[arg-type]
        )
        suback = await self.expect(SubAck)
        assert suback.packet_id == packet_id
        if wanted is not None:
            assert suback.reasons == (wanted,)
        return suback

    async def unsubscribe(self, topic_filter: str) -> UnsubAck:
        self.send(Unsubscribe(self.packet_id(), (topic_filter,)))
        return await self.expect(UnsubAck)

    async def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, *, retain: bool = False, **properties: Any
    ) -> PubAck | PubRec | PubComp | None:
        """Through its whole handshake; the last answer."""
        packet_id = self.packet_id() if qos else 0
        self.send(Publish(topic, payload, qos, retain, packet_id=packet_id, properties=properties or None))  # type: ignore[arg-type]
        if qos == 0:
            return None
        if qos == 1:
            return await self.expect(PubAck)
        recorded = await self.expect(PubRec)
        if recorded.reason >= 0x80:
            return recorded
        self.send(PubRel(packet_id))
        return await self.expect(PubComp)

    async def message(self, *, ack: bool = True) -> Publish:
        """The next message, acknowledged as its QoS wants."""
        packet = await self.expect(Publish)
        if ack and packet.qos == 1:
            self.send(PubAck(packet.packet_id))
        elif ack and packet.qos == 2:
            self.send(PubRec(packet.packet_id))
            await self.expect(PubRel)
            self.send(PubComp(packet.packet_id))
        return packet

    async def nothing(self) -> None:
        """Everything that was on its way has come: nothing."""
        self.send(PingReq())
        await self.expect(PingResp)

    async def messages(self, count: int) -> list[Publish]:
        """So many messages, acknowledged while they come in whatever order the packets are."""
        found: list[Publish] = []
        open_ids: set[int] = set()
        while len(found) < count or open_ids:
            packet = await self.receive()
            if isinstance(packet, Publish):
                found.append(packet)
                if packet.qos == 1:
                    self.send(PubAck(packet.packet_id))
                elif packet.qos == 2:
                    self.send(PubRec(packet.packet_id))
                    open_ids.add(packet.packet_id)
            else:
                assert isinstance(packet, PubRel), packet
                self.send(PubComp(packet.packet_id))
                open_ids.discard(packet.packet_id)
        return found

    async def nothing_but_messages(self, numbers: set[int]) -> None:
        """Every message that was on its way, acknowledged; their payloads are numbers."""
        self.send(PingReq())
        while not isinstance(packet := await self.receive(), PingResp):
            assert isinstance(packet, Publish)
            numbers.add(int(packet.payload))
            if packet.qos:
                self.send(PubAck(packet.packet_id))

    async def close(self) -> None:
        """Cut, without a word."""
        self.writer.transport.abort()
        await asyncio.sleep(0)

    async def leave(self, reason: int = 0) -> None:
        from headrace.wire.mqtt import Disconnect

        self.send(Disconnect(reason))
        assert await self.ended() == []
        self.writer.close()


async def door_in_memory(
    *,
    authenticate: Any = None,
    passwords: Any = None,
    config: ServerConfig | None = None,
    tls: ssl.SSLContext | None = None,
    **options: Any,
) -> MqttDoor:
    """A door over a broker in memory, in this loop."""
    broker = LoopBroker(Broker(open_core(":memory:")))
    listener = open_listener("127.0.0.1", 0, name="mqtt")
    door = MqttDoor(
        DoorSite(
            broker,
            listener,
            config or ServerConfig(journal="memory"),
            authenticate=authenticate,
            passwords=passwords,
            tls=tls,
        ),
        **options,
    )
    await door.start()
    return door


async def close_door(door: MqttDoor) -> None:
    """And everybody who is still connected."""
    await door.close()
    await door.site.broker.close()
    await cut_all()


async def cut_all() -> None:
    """Every connection any peer has opened."""
    while _opened:
        writer = _opened.pop().writer
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop go round until something is so."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if holds():
                return
            await asyncio.sleep(0.001)
