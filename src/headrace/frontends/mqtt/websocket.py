"""MQTT over WebSocket: the handshake, and a transport that puts what an MQTT connection writes into binary messages.

HTTP's door has read the request; from here on the bytes are frames. A packet may be split over messages and a message
may hold many packets [MQTT-6.0.0-2]: the payloads are one stream of bytes to the MQTT session, which does not know. A
text message ends the connection [MQTT-6.0.0-1]. The client must offer the subprotocol ``mqtt`` [MQTT-6.0.0-3] and is
told so [MQTT-6.0.0-4]. Nothing is compressed, so that nothing can inflate.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import TYPE_CHECKING, Any, cast

from headrace import limits

if TYPE_CHECKING:
    from headrace.frontends.http.request import Request
    from headrace.frontends.mqtt.connection import MqttConnection

__all__ = ["WebSocketStream"]

_SUBPROTOCOLS = (b"mqtt", b"mqttv3.1")


class WebSocketStream(asyncio.Protocol):
    """One upgraded connection: a protocol to its socket, a transport to its MQTT connection."""

    def __init__(self, request: Request, connection: MqttConnection) -> None:
        self._connection = connection
        self._answer, self._is_refused = _handshake(request)
        self._transport: asyncio.Transport = None  # type: ignore[assignment] # set before anything else happens
        self._frames: Any = None
        self._is_closing = False

    # -- from the socket -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        from websockets.protocol import Protocol, Side

        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._answer)
        if self._is_refused:
            self._is_closing = True
            self._transport.close()
            return
        self._frames = Protocol(Side.SERVER, max_size=limits.WEBSOCKET_FRAME_BYTES_MAX)
        self._connection.connection_made(cast("asyncio.BaseTransport", self))

    def data_received(self, data: bytes) -> None:
        if self._is_refused or self._is_closing:
            return
        frames = self._frames
        frames.receive_data(data)
        for frame in frames.events_received():
            self._take(frame)
        self._send()
        if frames.close_expected() and not self._is_closing:
            self.close()

    def _take(self, frame: Any) -> None:
        from websockets.frames import CloseCode, Opcode

        if frame.opcode in (Opcode.BINARY, Opcode.CONT):
            if frame.data and not self._is_closing:
                self._connection.data_received(bytes(frame.data))
        elif frame.opcode is Opcode.TEXT:
            self._frames.fail(CloseCode.UNSUPPORTED_DATA, "MQTT comes in binary messages")

    def _send(self) -> None:
        for data in self._frames.data_to_send():
            if data:
                self._transport.write(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._frames is not None:
            self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    # -- as a transport ------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """One binary message."""
        if not self._is_closing and self._frames.state.name == "OPEN":
            self._frames.send_binary(data)
            self._send()

    def writelines(self, buffers: list[bytes]) -> None:
        """What is written together is one message."""
        self.write(b"".join(buffers))

    def close(self) -> None:
        """The closing handshake, of which only our half is waited for."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._frames.state.name == "OPEN":
            self._frames.send_close(1000)
            self._send()
        self._transport.close()

    def abort(self) -> None:
        self._is_closing = True
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)


def _handshake(request: Request) -> tuple[bytes, bool]:
    """The answer to the upgrade, and whether it is a refusal."""
    from websockets.utils import accept_key

    headers = request.headers
    offered = [part.strip() for part in headers.get(b"sec-websocket-protocol", b"").split(b",")]
    chosen = next((name for name in offered if name.lower() in _SUBPROTOCOLS), None)
    key = headers.get(b"sec-websocket-key", b"").strip()
    if headers.get(b"sec-websocket-version") != b"13":
        return _refusal(426, "Upgrade Required", "WebSocket version 13 is spoken here", "Sec-WebSocket-Version: 13\r\n")
    if not _is_key(key) or b"upgrade" not in headers.get(b"connection", b"").lower():
        return _refusal(400, "Bad Request", "this is no WebSocket handshake")
    if chosen is None:
        return _refusal(400, "Bad Request", "the subprotocol mqtt must be offered (Sec-WebSocket-Protocol: mqtt)")
    accept = accept_key(key.decode("ascii"))
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: %b\r\nSec-WebSocket-Protocol: %b\r\n\r\n" % (accept.encode(), chosen)
    ), False


def _is_key(key: bytes) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


def _refusal(status: int, phrase: str, message: str, more: str = "") -> tuple[bytes, bool]:
    body = f'{{"error":{{"code":"invalid_argument","message":"{message}"}}}}'
    head = (
        f"HTTP/1.1 {status} {phrase}\r\n{more}Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return (head + body).encode(), True
