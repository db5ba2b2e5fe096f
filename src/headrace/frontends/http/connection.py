"""One HTTP/1.1 connection: bytes to requests, requests to handlers in turn, answers back in the order of the requests.

    bytes ──► llhttp (strict) ──► head: looked at by the door ──► body, bounded ──► handler ──► one write

The rules:

- llhttp refuses what proxies read differently (Content-Length beside Transfer-Encoding, ``+5``, bare line feeds, folded
  lines, spaces before the colon); what it lets through and is still ambiguous is refused here (two Hosts, a transfer
  coding other than ``chunked``, HTTP/0.9). After a malformed byte nothing more of that connection is believed.
- Everything that arrives is bounded before it is kept: the head, the number of headers, the body, all bodies together.
  A request that is refused by its head is answered before its body is read.
- Requests sent ahead wait in line; while there is a line, or the peer does not read its answers, it is not read either.
- A peer that drips or idles is found by the door's one timer (``sweep``), which costs nothing a byte.
- When the connection ends, what was waiting for it ends too: a long poll gives back what it got.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, cast

import httptools

from headrace import limits
from headrace.errors import Closed, HeadraceError, LimitExceeded, Malformed, Overloaded, PayloadTooLarge, TimedOut
from headrace.frontends.http.answers import STARTS, Declined
from headrace.frontends.http.request import Request
from headrace.frontends.http.stream import Stream

if TYPE_CHECKING:
    from headrace.frontends.http.door import HttpDoor

__all__ = ["HttpConnection"]

_ONCE: Final = frozenset(
    {b"authorization", b"content-encoding", b"content-length", b"content-type", b"host", b"origin"}
    | {b"transfer-encoding", b"upgrade"}
)
"""Headers whose repetition means that somebody on the way may have read another one."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpConnection(asyncio.Protocol):
    """See the head of this file."""

    __slots__ = (
        "_closing",
        "_current",
        "_eof",
        "_fault",
        "_head_bytes",
        "_head_done",
        "_headers",
        "_idle_ns",
        "_line",
        "_parser",
        "_progress",
        "_reading",
        "_request",
        "_room",
        "_served",
        "_silent_bytes",
        "_stalled_ns",
        "_task",
        "_transport",
        "_unsent_bytes",
        "_upgrading",
        "_writing_paused",
        "door",
        "lost",
        "peer",
    )

    def __init__(self, door: HttpDoor) -> None:
        self.door = door
        self.lost = False
        self.peer = ""
        self._transport: asyncio.Transport = None  # type: ignore[assignment] # set before anything else happens
        self._parser: Any = httptools.HttpRequestParser(self)  # None: what still comes is thrown away
        self._request: Request | None = None  # being received
        self._current: Request | None = None  # being answered
        self._line: deque[Request] | None = None  # received, waiting for its turn
        self._upgrading: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._fault: BaseException | None = None
        self._head_done = False
        self._head_bytes = 0
        self._headers = 0
        self._silent_bytes = 0
        self._progress = False
        self._reading = True
        self._writing_paused = False
        self._unsent_bytes = 0
        self._stalled_ns = 0
        self._closing = False
        self._eof = False
        self._served = False
        self._idle_ns = door.now_ns()

    # -- the transport -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # not an instance of it under uvloop
        self._transport = transport
        transport.set_write_buffer_limits(limits.WRITE_BYTES_HIGH, limits.WRITE_BYTES_LOW)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "local"
        refusal = self.door.came(self)
        if refusal is not None:
            self._refuse(refusal)

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            return
        self._progress = False
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._after_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(self._fault or Malformed(f"this is not HTTP/1.1 as RFC 9112 has it: {error}"))
        else:
            if self._progress:
                self._silent_bytes = 0
            elif self._request is not None and self._parser is not None:
                self._silent_bytes += len(data)
                if self._silent_bytes > limits.HTTP_HEAD_BYTES_MAX:
                    self._refuse(_head_too_large())

    def eof_received(self) -> bool:
        """The peer sends no more. One that only closed its half still gets the answer that is under way; whoever waits
        for messages or reads a stream is taken to be gone."""
        self._eof = True
        current = self._current
        if current is None or current.on_gone is not None or current.answered:
            return False
        return self._transport.get_extra_info("sslcontext") is None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._parser = None
        request, self._request = self._request, None
        current, self._current = self._current, None
        line, self._line = self._line, None
        for one in (request, current, *(line or ())):
            if one is not None and one.size_bytes:
                self.door.body_gone(one.size_bytes)
        if current is not None and current.on_gone is not None:
            current.on_gone()
        if self._task is not None:
            self._task.cancel()
        if self._room is not None and not self._room.done():
            self._room.set_exception(Closed("the connection is gone"))
            self._room.exception()  # it is nobody's fault when nobody waits
        self.door.gone(self)

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self._stalled_ns = self.door.now_ns()
        self._govern_reading()

    def resume_writing(self) -> None:
        self._writing_paused = False
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)
        if self._current is None:
            self._next()
        self._govern_reading()

    def _govern_reading(self) -> None:
        reading = not (self._writing_paused or self._line)
        if reading is self._reading or self._transport.is_closing():
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # -- what the parser found -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._parser is None:
            return
        request = self._request = Request(self)
        request.started_ns = self.door.now_ns()
        self._head_done = False
        self._head_bytes = self._headers = self._silent_bytes = 0
        self._progress = True

    def on_url(self, url: bytes) -> None:
        request = self._request
        if request is not None:
            request.target += url
            if len(request.target) > limits.HTTP_HEAD_BYTES_MAX:
                self._refuse(Declined(414, f"the address is longer than {limits.HTTP_HEAD_BYTES_MAX} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        request = self._request
        if request is None:
            return
        self._progress = True
        self._headers += 1
        self._head_bytes += len(name) + len(value) + 4
        if self._headers > limits.HTTP_HEADERS_MAX or self._head_bytes > limits.HTTP_HEAD_BYTES_MAX:
            self._refuse(_head_too_large())
        elif not self._head_done:
            name = name.lower()
            headers = request.headers
            if name not in headers:
                headers[name] = value
            elif name in _ONCE:
                self._refuse(Malformed(f"the header {name.decode('latin-1')} is there twice; send it once"))
            else:
                headers[name] += b", " + value

    def on_headers_complete(self) -> None:
        request = self._request
        if request is None:
            return
        self._head_done = True
        self._progress = True
        parser, headers = self._parser, request.headers
        request.method = parser.get_method().decode("latin-1")
        request.version = parser.get_http_version()
        request.keep_alive = parser.should_keep_alive()
        length = int(headers.get(b"content-length", b"0"))  # digits: llhttp has looked
        coding = headers.get(b"transfer-encoding")
        try:
            self._look_at_head(request, length, coding)
        except (HeadraceError, Declined) as error:
            request.refusal = error
            doubtful = isinstance(error, Malformed) or coding is not None or b"expect" in headers
            if doubtful or length > limits.HTTP_DISCARD_BYTES_MAX:
                self._refuse(error)
            return
        except Exception as error:  # noqa: BLE001 - one request must not take the process down
            self._refuse(error)
            return
        if b"expect" in headers and self._current is None:
            self._transport.write(_CONTINUE)

    def _look_at_head(self, request: Request, length: int, coding: bytes | None) -> None:
        if request.version not in ("1.1", "1.0"):
            self._refuse(Malformed(f"HTTP/{request.version} is not spoken here; use HTTP/1.1"))
            return
        if coding is not None and (coding.lower() != b"chunked" or request.version == "1.0"):
            raise Malformed(f"transfer-encoding {coding[:60]!r}: only chunked is taken, and only in HTTP/1.1")
        expect = request.headers.get(b"expect")
        if expect is not None and expect.lower() != b"100-continue":
            raise Declined(417, f"expect {expect[:60]!r}: only 100-continue can be met")
        if length > self.door.max_body_bytes:
            raise _body_too_large(length, self.door.max_body_bytes)
        if self.door.look_at(request):
            self._upgrading = request

    def on_body(self, data: bytes) -> None:
        request = self._request
        if request is None:
            return
        self._progress = True
        if request.refusal is not None:
            return
        if not request.body:
            request.body = data
            size = len(data)
        else:
            if type(request.body) is bytes:
                request.body = bytearray(request.body)
                request.size_bytes = len(request.body)
                self.door.body_came(request.size_bytes)
            request.body += data
            size = len(request.body)
            request.size_bytes += len(data)
            if not self.door.body_came(len(data)):
                self._refuse(Overloaded("too many large requests are being received; try again in a moment"))
                return
        if size > self.door.max_body_bytes:
            self._refuse(_body_too_large(size, self.door.max_body_bytes))

    def on_message_complete(self) -> None:
        request = self._request
        if request is None:
            return
        self._request = None
        self._progress = True
        if self._upgrading is None:
            self._take(request)

    def _refuse(self, error: BaseException) -> None:
        """Answer what was received so far, then this, then close: the rest of the bytes cannot be trusted."""
        self._parser = None
        request, self._request = self._request or Request(self), None
        if request.size_bytes:
            self.door.body_gone(request.size_bytes)
            request.size_bytes = 0
        request.body = b""
        request.refusal = error
        request.keep_alive = False
        self._take(request)

    # -- websockets and their like -------------------------------------------------------------------------------------

    def _after_upgrade(self, rest: bytes) -> None:
        """llhttp stops behind a request that asks for another protocol. Where we do not offer it, HTTP goes on."""
        request, self._upgrading = self._upgrading, None
        if request is None:
            if self._parser is not None:
                self._parser = httptools.HttpRequestParser(self)
                if rest:
                    self.data_received(rest)
            return
        if self._current is not None:
            request.refusal = Malformed("an upgrade waits for the answers before it")
            self._take(request)
            return
        protocol = self.door.upgrades[request.path.decode("latin-1")](request, self._transport)
        self._parser = None
        self.lost = True
        self.door.gone(self)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if rest:
            protocol.data_received(rest)

    # -- in turn -------------------------------------------------------------------------------------------------------

    def _take(self, request: Request) -> None:
        if self._current is None and not self._writing_paused and not self._closing:
            self._start(request)
            return
        if self._line is None:
            self._line = deque()
        if len(self._line) >= limits.HTTP_PIPELINE_MAX and request.refusal is None:
            self._line.append(request)
            request.refusal = LimitExceeded(f"more than {limits.HTTP_PIPELINE_MAX} requests were sent ahead")
            request.keep_alive = False
            self._parser = None
        else:
            self._line.append(request)
        self._govern_reading()

    def _start(self, request: Request) -> None:
        self._current = request
        if request.refusal is not None:
            request.fail(request.refusal)
            return
        try:
            request.route.run(request)
        except (HeadraceError, Declined) as error:
            request.fail(error)
        except Exception as error:  # noqa: BLE001 - one request must not take the process down
            request.fail(error)

    def _next(self) -> None:
        line = self._line
        if line and not self._writing_paused and not self._closing:
            self._start(line.popleft())

    def spawn(self, request: Request, work: Coroutine[Any, Any, None]) -> None:
        """The current request goes on in a task."""
        self._task = self.door.loop.create_task(self._run(request, work))

    async def _run(self, request: Request, work: Coroutine[Any, Any, None]) -> None:
        task = self._task
        try:
            await work
        except Exception as error:  # noqa: BLE001 - as in _start
            if self.lost:
                return
            if not request.answered:
                self._task = None
                request.fail(error)
            elif self._current is request:
                if not isinstance(error, HeadraceError):
                    self.door.note_failure(request, error)
                self.cut()
        finally:
            if self._task is task:
                self._task = None

    # -- writing -------------------------------------------------------------------------------------------------------

    def answer(self, request: Request, status: int, content_type: bytes, headers: bytes, body: bytes) -> None:
        """The whole answer of the current request."""
        if self.lost:
            return
        head = b"%b%bcontent-type: %b\r\ncontent-length: %d\r\n%b%b\r\n" % (
            STARTS[status],
            self.door.common_headers,
            content_type,
            len(body),
            headers,
            self._connection_headers(request),
        )
        if request.method == "HEAD":
            body = b""
        if len(body) <= limits.COALESCE_BYTES_MAX:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        self.door.note_answer(request, status)
        self.finished(request)

    def begin_stream(self, request: Request, content_type: bytes, headers: bytes) -> Stream:
        chunked = request.version == "1.1"
        if not chunked:
            request.keep_alive = False
        self._transport.write(
            b"%b%bcontent-type: %b\r\n%b%b%b\r\n"
            % (
                STARTS[200],
                self.door.common_headers,
                content_type,
                b"transfer-encoding: chunked\r\n" if chunked else b"",
                headers,
                self._connection_headers(request),
            )
        )
        self.door.note_answer(request, 200)
        return Stream(self, request, chunked=chunked)

    def _connection_headers(self, request: Request) -> bytes:
        if self.door.draining or self._eof:
            request.keep_alive = False
        lines = b""
        if not request.keep_alive:
            lines = b"connection: close\r\n"
        elif request.version == "1.0":
            lines = b"connection: keep-alive\r\n"
        origin = request.headers.get(b"origin")
        return lines if origin is None else lines + self.door.cors_headers(origin)

    def write_pieces(self, pieces: list[bytes | memoryview]) -> None:
        if sum(map(len, pieces)) <= limits.COALESCE_BYTES_MAX:
            self._transport.write(b"".join(pieces))
        else:
            self._transport.writelines(pieces)

    async def room(self) -> None:
        """Wait until the peer has read enough."""
        if self.lost:
            raise Closed("the connection is gone")
        if self._writing_paused:
            if self._room is None:
                self._room = self.door.loop.create_future()
            await self._room

    def finished(self, request: Request) -> None:
        """The current request is answered: on to the next one, or to the end."""
        if self._current is not request:
            return
        self._current = None
        self._served = True
        if request.size_bytes:
            self.door.body_gone(request.size_bytes)
        if self.lost:
            return
        if not request.keep_alive:
            self._close()
            return
        if self._line:
            self._next()
            self._govern_reading()
        elif self._eof:
            self._close()
        else:
            self._idle_ns = self.door.now_ns()

    def _close(self) -> None:
        """Let the last bytes out. What the peer still sends is read for a moment, or its kernel might throw away the
        answer together with what it could not deliver."""
        if self._closing or self._transport.is_closing():
            return
        self._closing = True
        unread = self._parser is None and not self._eof
        self._parser = None
        if unread and self._transport.can_write_eof():
            if not self._reading:
                self._reading = True
                self._transport.resume_reading()
            self._transport.write_eof()
            self.door.loop.call_later(limits.CLOSE_FLUSH_NS / 1e9, self._transport.abort)
        else:
            if self._transport.get_write_buffer_size():
                self.door.loop.call_later(self.door.request_timeout_ns / 1e9, self._transport.abort)
            self._transport.close()

    def cut(self) -> None:
        """End the socket now, whatever is unsent."""
        self._transport.abort()

    # -- time ----------------------------------------------------------------------------------------------------------

    def sweep(self, now_ns: int) -> None:
        """Once a second: end what drips, idles or does not read."""
        request = self._request
        door = self.door
        if request is not None:
            span_ns = now_ns - request.started_ns
            if not self._head_done:
                allowed_ns = min(limits.HTTP_HEAD_TIMEOUT_NS, door.request_timeout_ns)
            else:
                size_bytes = request.size_bytes or len(request.body)
                allowed_ns = door.request_timeout_ns + size_bytes * limits.SECOND_NS // limits.HTTP_REQUEST_RATE_MIN
            if span_ns > allowed_ns:
                what = "body" if self._head_done else "head"
                self._refuse(Declined(408, f"the {what} of this request did not arrive in {allowed_ns / 1e9:g} s"))
        elif self._current is None:
            allowed_ns = (
                door.idle_timeout_ns if self._served else min(limits.HTTP_HEAD_TIMEOUT_NS, door.idle_timeout_ns)
            )
            if now_ns - self._idle_ns > allowed_ns and not self._closing:
                self._transport.close()
        if self._writing_paused:
            unsent_bytes = self._transport.get_write_buffer_size()
            if unsent_bytes < self._unsent_bytes:
                self._stalled_ns = now_ns
            self._unsent_bytes = unsent_bytes
            if now_ns - self._stalled_ns > door.request_timeout_ns:
                self.cut()

    def drain(self) -> None:
        """The server is stopping: nobody waits for messages any longer, idle ones go."""
        current = self._current
        if current is None:
            if self._request is None and not self._closing:
                self._transport.close()
        elif current.on_gone is not None:
            current.on_gone()
            if not current.answered:
                current.fail(TimedOut("the server is stopping"))


def _head_too_large() -> Declined:
    return Declined(
        431,
        f"the request's head is larger than {limits.HTTP_HEAD_BYTES_MAX} bytes or has more than "
        f"{limits.HTTP_HEADERS_MAX} headers",
    )


def _body_too_large(size_bytes: int, most_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the body has {size_bytes} bytes or more, and {most_bytes} are taken (http.max_body); send fewer messages at "
        "a time"
    )
