"""An answer whose length is not known when it begins: chunks for HTTP/1.1, until the end of the connection for 1.0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import Closed

if TYPE_CHECKING:
    from headrace.frontends.http.connection import HttpConnection
    from headrace.frontends.http.request import Request

__all__ = ["Stream"]


class Stream:
    """Write to it as fast as ``write`` returns: it waits while the peer does not read."""

    __slots__ = ("_chunked", "_connection", "_request", "ended")

    def __init__(self, connection: HttpConnection, request: Request, *, chunked: bool) -> None:
        self._connection = connection
        self._request = request
        self._chunked = chunked
        self.ended = False

    def send(self, *pieces: bytes | memoryview) -> None:
        """Hand over without waiting."""
        if self._connection.lost:
            raise Closed("the connection is gone")
        if self._request.method == "HEAD":
            return
        size = sum(map(len, pieces))
        if size:
            if self._chunked:
                self._connection.write_pieces([b"%x\r\n" % size, *pieces, b"\r\n"])
            else:
                self._connection.write_pieces(list(pieces))

    async def write(self, *pieces: bytes | memoryview) -> None:
        """Hand over, and wait until there is room for more."""
        self.send(*pieces)
        await self._connection.room()

    def end(self) -> None:
        """The whole answer was sent."""
        if not self.ended:
            self.ended = True
            if self._chunked and not self._connection.lost and self._request.method != "HEAD":
                self._connection.write_pieces([b"0\r\n\r\n"])
            self._connection.finished(self._request)

    def break_off(self) -> None:
        """Something went wrong on the way: the peer must not take this for a whole answer."""
        if not self.ended:
            self.ended = True
            self._connection.cut()
