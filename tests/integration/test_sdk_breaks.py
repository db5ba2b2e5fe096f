"""A server that says WELCOME and breaks the connection at the first call: it is not hammered, nobody waits for ever."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from threading import Thread
from typing import Any

import pytest

import headrace
from headrace import aio, errors
from headrace.client import aio_port
from headrace.client.port import NetworkPort
from headrace.limits import CLIENT_BREAKS_MAX, CLIENT_RECONNECT_NS, SECOND_NS
from headrace.wire import native

PAUSES_NS = [CLIENT_RECONNECT_NS << n for n in range(CLIENT_BREAKS_MAX - 1)]


class Breaking:
    """Serves one connection after another, in a thread."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"headrace://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                found, _ = self._listener.accept()
            except OSError:
                return
            with closing(found):
                self._converse(found)

    def _converse(self, found: socket.socket) -> None:
        session = native.ServerSession(now_ns=time.monotonic_ns())
        while data := found.recv(1 << 16):
            session.receive_bytes(data, time.monotonic_ns())
            for event in session.events():
                if isinstance(event, native.Hello):
                    session.send_welcome(server="headrace", server_id="n1")
                elif isinstance(event, native.Call):
                    self.asked.append(event.method)
                    return
                else:
                    return
            for buffer in session.outgoing():
                found.sendall(buffer)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)


@pytest.fixture
def server() -> Iterator[Breaking]:
    found = Breaking()
    yield found
    found.close()


def test_a_call_that_breaks_its_connection_each_time_fails_and_the_pauses_between_grow(
    server: Breaking, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[int] = []
    monkeypatch.setattr(NetworkPort, "_rest", lambda _self, pause_ns: pauses.append(pause_ns))
    with headrace.connect(server.url) as hr:
        with pytest.raises(errors.Closed, match=rf"broke {CLIENT_BREAKS_MAX} times, .* group\.show was under way"):
            hr.port.call("group.show", topic="t", group="g")
        assert server.asked == ["group.show"] * CLIENT_BREAKS_MAX
        assert pauses[: len(PAUSES_NS)] == PAUSES_NS


async def test_the_same_in_an_event_loop(server: Breaking, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    class Impatient:
        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        async def sleep(self, pause: float) -> None:
            pauses.append(pause)
            await asyncio.sleep(0)

    monkeypatch.setattr(aio_port, "asyncio", Impatient())
    async with aio.connect(server.url) as hr:
        with pytest.raises(errors.Closed, match=rf"broke {CLIENT_BREAKS_MAX} times, .* group\.show was under way"):
            await hr.port.call("group.show", topic="t", group="g")
        assert server.asked == ["group.show"] * CLIENT_BREAKS_MAX
        assert pauses[: len(PAUSES_NS)] == [pause_ns / SECOND_NS for pause_ns in PAUSES_NS]
