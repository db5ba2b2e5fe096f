"""A server inside the test's process, in a thread of its own: quick to start, shared by many tests, memory journal."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from headrace.config import ServerConfig
from headrace.server import Server


class ServerThread:
    """Starts at once and serves until ``stop``; ``url`` is where."""

    def __init__(self, **settings: Any) -> None:
        self._settings = {
            "native_port": 0,
            "http_port": None,
            "mqtt_port": None,
            "grpc_port": None,
            "journal": "memory",
            **settings,
        }
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - the test that started it must see it
            self._failure = error
            self._ready.set()

    async def _serve(self) -> None:
        server = Server(ServerConfig(**self._settings))
        await server.start()
        self._server, self._loop = server, asyncio.get_running_loop()
        self._ready.set()
        await server.wait()
        await server.stop()

    @property
    def server(self) -> Server:
        assert self._server is not None
        return self._server

    @property
    def url(self) -> str:
        return f"headrace://{self.server.addresses['native']}"

    def stop(self) -> None:
        assert self._loop is not None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.server.ask_to_stop)
        self._thread.join()
