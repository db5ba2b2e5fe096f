"""MQTT over WebSocket, at /mqtt of the HTTP port: frames that are shorter and longer than packets, and wrong ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from headrace import limits
from headrace.wire.mqtt import (
    NEED_MORE,
    ConnAck,
    Connect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    build,
    parse,
)
from integration.mqtt_clients import make
from integration.server_thread import ServerThread

WAIT_S = 30


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    running = ServerThread(mqtt_port=0, http_port=0)
    yield running
    running.stop()


@pytest.fixture
def url(server: ServerThread) -> str:
    return f"ws://{server.server.addresses['http']}/mqtt"


class WebSocketPeer:
    """One connection: bytes out as they are given, packets in however they are framed."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self._data = b""

    async def send(self, *packets: Packet) -> None:
        """All in one message."""
        await self.socket.send(b"".join(build(packet, 5) for packet in packets))

    async def receive(self) -> Packet:
        async with asyncio.timeout(WAIT_S):
            while True:
                packet, end = parse(self._data, 0, 5)
                if packet is not NEED_MORE:
                    assert isinstance(packet, Packet), packet
                    self._data = self._data[end:]
                    return packet
                more = await self.socket.recv()
                assert isinstance(more, bytes)  # [MQTT-6.0.0-1]
                self._data += more


def opened(url: str) -> connect:
    return connect(url, subprotocols=["mqtt"], max_size=None, compression=None)


@pytest.mark.parametrize("piece", [1, 7, 100_000])
async def test_frames_need_not_be_packets(url: str, piece: int) -> None:
    async with opened(url) as socket:
        assert socket.subprotocol == "mqtt"  # [MQTT-6.0.0-4]
        peer = WebSocketPeer(socket)
        stream = b"".join(
            build(packet, 5)
            for packet in (
                Connect(f"ws-{piece}", 5),
                Subscribe(1, (Subscription(f"ws/{piece}", 1),)),
                Publish(f"ws/{piece}", b"x" * 300, 1, packet_id=2),
                PingReq(),
            )
        )
        for at in range(0, len(stream), piece):
            await socket.send(stream[at : at + piece])
        got = [await peer.receive() for _ in range(5)]
        assert isinstance(got[0], ConnAck)
        assert {type(packet) for packet in got[1:]} == {SubAck, Publish, PubAck, PingResp}


async def test_large_messages_pass_both_ways(url: str) -> None:
    async with opened(url) as socket:
        peer = WebSocketPeer(socket)
        await peer.send(Connect("ws-large", 5), Subscribe(1, (Subscription("ws/large", 0),)))
        await peer.receive(), await peer.receive()
        body = bytes(range(256)) * 3_000
        await peer.send(Publish("ws/large", body))
        message = await peer.receive()
        assert isinstance(message, Publish)
        assert message.payload == body


async def test_text_ends_the_connection(url: str) -> None:
    async with opened(url) as socket:
        await socket.send("CONNECT please")
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1003


async def test_a_message_beyond_the_limit_ends_the_connection(url: str) -> None:
    async with opened(url) as socket:
        with suppress(ConnectionClosed):  # it may be closed before all of it is sent
            await socket.send(bytes(limits.WEBSOCKET_FRAME_BYTES_MAX + 1))
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is None or closed.value.rcvd.code == 1009


@pytest.mark.parametrize(("protocols", "status"), [(None, 400), (["chat"], 400)])
async def test_the_subprotocol_must_be_offered(url: str, protocols: list[str] | None, status: int) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await connect(url, subprotocols=protocols)  # type: ignore[arg-type]
    assert refused.value.response.status_code == status
    assert b"subprotocol mqtt" in (refused.value.response.body or b"")


async def test_a_goodbye_closes_the_websocket_and_a_breach_says_why(url: str) -> None:
    async with opened(url) as socket:
        await socket.send(b"\x00\x00garbage")
        with pytest.raises(ConnectionClosed):
            await socket.recv()
    async with opened(url) as socket:
        peer = WebSocketPeer(socket)
        await peer.send(Connect("ws-bye", 5))
        await peer.receive()
        await socket.send(b"\xe0\x00")
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000


async def test_a_page_of_another_site_is_refused(url: str) -> None:
    with pytest.raises(InvalidStatus):
        await connect(url, subprotocols=["mqtt"], origin="https://evil.example")  # type: ignore[list-item]


async def test_mqtt_js_speaks_it(url: str) -> None:
    client = make("mqtt.js 5")
    await client.connect(url, "ws-js")
    await client.subscribe("ws/js", 1)
    await client.publish("ws/js", b"hello", 1)
    assert (await client.message()).payload == b"hello"
    await client.close()


async def test_paho_speaks_it(server: ServerThread) -> None:
    from paho.mqtt.client import CallbackAPIVersion, Client

    loop, got = asyncio.get_running_loop(), asyncio.Queue[bytes]()
    client = Client(CallbackAPIVersion.VERSION2, "ws-paho", transport="websockets")
    client.ws_set_options(path="/mqtt")
    client.on_connect = lambda c, *_: c.subscribe("ws/paho", 1)
    client.on_subscribe = lambda c, *_: c.publish("ws/paho", b"hello", 1)
    client.on_message = lambda _c, _u, m: loop.call_soon_threadsafe(got.put_nowait, m.payload)
    host, _, port = server.server.addresses["http"].rpartition(":")
    client.connect(host, int(port))
    client.loop_start()
    async with asyncio.timeout(WAIT_S):
        assert await got.get() == b"hello"
    client.disconnect()
    await asyncio.to_thread(client.loop_stop)
