"""The connection: what is HTTP and what is not, limits, order, time, the end. Bytes over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace import limits
from headrace.config import HttpConfig
from integration.http_site import Raw, Site, http_site, refused, until

GET = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HEAD = b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n"
BODY = b'{"messages":[{"value":"x"}]}'
PUBLISH = HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with http_site() as opened:
        yield opened


@pytest.fixture
async def raw(site: Site) -> AsyncIterator[Raw]:
    opened = await site.raw()
    yield opened
    await opened.close()


# -- shapes ------------------------------------------------------------------------------------------------------------

SMUGGLING = {
    "length and chunks": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "plus in the length": HEAD + b"Content-Length: +5\r\n\r\nhello",
    "minus in the length": HEAD + b"Content-Length: -5\r\n\r\nhello",
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "a list of lengths": HEAD + b"Content-Length: 5, 5\r\n\r\nhello",
    "bare line feeds": PUBLISH.replace(b"\r\n", b"\n"),
    "one bare line feed": PUBLISH.replace(b"127.0.0.1\r\n", b"127.0.0.1\n"),
    "two hosts": GET.replace(b"\r\n\r\n", b"\r\nHost: localhost\r\n\r\n"),
    "a folded line": GET.replace(b"\r\n\r\n", b"\r\nX: a\r\n b\r\n\r\n"),
    "a space before the colon": PUBLISH.replace(b"Content-Length:", b"Content-Length :"),
    "a coding in disguise": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "two codings": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": HEAD.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a chunk with a bare line feed": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
    "a chunk in hexadecimal with 0x": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "a NUL": GET.replace(b"\r\n\r\n", b"\r\nX: a\x00b\r\n\r\n"),
    "no host": GET.replace(b"Host: 127.0.0.1\r\n", b""),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET /health\r\n\r\n",
    "an unknown method": GET.replace(b"GET", b"BREW"),
    "TLS in the clear": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "garbage": b"\x00\xff\x00\xff" * 10,
    "two content types": PUBLISH.replace(
        b"Content-Length", b"Content-Type: a/b\r\nContent-Type: c/d\r\nContent-Length"
    ),
    "a path that climbs": GET.replace(b"/health", b"/v1/../health"),
}


@pytest.mark.parametrize("name", SMUGGLING)
async def test_what_could_be_read_in_two_ways_is_refused_and_ends_the_connection(site: Site, name: str) -> None:
    raw = await site.raw()
    raw.send(SMUGGLING[name] + GET)
    answer = await raw.answer()
    refused(answer, 400, "malformed")
    if name != "a path that climbs":
        assert answer.headers["connection"] == "close"
        assert await raw.ended() == b"", "nothing after it is believed"
    await raw.close()
    assert (await site.client.get("/v1/topics")).json() == {"topics": []}, "nothing was stored"


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_requests_arrive_in_any_pieces(raw: Raw, size: int) -> None:
    chunked = (
        HEAD
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (BODY[:5], BODY[5:6], BODY[6:]))
    )
    data = PUBLISH + chunked + b"0\r\nX-Trailer: ignored\r\n\r\n" + GET
    for start in range(0, len(data), size):
        raw.send(data[start : start + size])
        await asyncio.sleep(0)
    offsets = [(await raw.answer()).json()["results"][0]["offset"] for _ in range(2)]
    assert offsets == [0, 1]
    assert (await raw.answer()).json() == {"status": "ok"}


async def test_requests_sent_ahead_are_answered_in_their_order(raw: Raw) -> None:
    raw.send(b"".join([PUBLISH, GET] * 8))
    for number in range(8):
        assert (await raw.answer()).json()["results"][0]["offset"] == number
        assert (await raw.answer()).json() == {"status": "ok"}


async def test_too_many_requests_sent_ahead_end_the_connection(raw: Raw) -> None:
    raw.send(PUBLISH * 200)
    answers = []
    while True:
        answers.append(await raw.answer())
        if answers[-1].status != 200:
            break
    assert 1 < len(answers) < 100
    refused(answers[-1], 422, "limit_exceeded")
    await raw.ended()


async def test_garbage_behind_a_request_leaves_its_answer_intact(raw: Raw) -> None:
    raw.send(PUBLISH + b"\x00\x01garbage\r\n\r\n")
    assert (await raw.answer()).status == 200
    refused(await raw.answer(), 400, "malformed")


async def test_http_1_0_is_answered_and_closed_unless_asked_otherwise(site: Site) -> None:
    raw = await site.raw()
    raw.send(GET.replace(b"1.1", b"1.0").replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n"))
    assert (await raw.answer()).headers["connection"] == "keep-alive"
    raw.send(GET.replace(b"1.1", b"1.0"))
    assert (await raw.answer()).headers["connection"] == "close"
    assert await raw.ended() == b""
    await raw.close()


async def test_a_request_may_ask_to_close(raw: Raw) -> None:
    raw.send(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert (await raw.answer()).status == 200
    assert await raw.ended() == b""


async def test_a_half_closed_connection_still_gets_its_answer(raw: Raw) -> None:
    raw.send(PUBLISH)
    raw.writer.write_eof()
    assert (await raw.answer()).status == 200
    assert await raw.ended() == b""


async def test_a_body_is_asked_for_before_it_is_sent(raw: Raw) -> None:
    head = HEAD + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % len(BODY)
    raw.send(head)
    assert (await raw.answer()).status == 100
    raw.send(BODY)
    assert (await raw.answer()).status == 200
    raw.send(head.replace(b"/messages", b"/nothing"))
    assert (await raw.answer()).status == 404, "and not when it is refused anyway"


async def test_an_expectation_we_cannot_meet_is_refused(raw: Raw) -> None:
    raw.send(HEAD + b"Content-Length: 1\r\nExpect: miracles\r\n\r\n")
    refused(await raw.answer(), 417, "invalid_argument")


async def test_an_absolute_address_is_a_path(raw: Raw) -> None:
    raw.send(GET.replace(b"/health", b"http://127.0.0.1/health"))
    assert (await raw.answer()).status == 200
    raw.send(GET.replace(b"/health", b"health"))
    refused(await raw.answer(), 400, "malformed")


async def test_another_protocol_that_is_not_offered_is_ignored(raw: Raw) -> None:
    raw.send(GET.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n") + GET)
    assert (await raw.answer()).status == 200
    assert (await raw.answer()).status == 200


async def test_a_connection_can_be_handed_to_another_protocol(site: Site) -> None:
    class Echo(asyncio.Protocol):
        def __init__(self, target: bytes) -> None:
            self.target = target

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport: asyncio.WriteTransport = transport  # type: ignore[assignment]
            self.transport.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + self.target)

        def data_received(self, data: bytes) -> None:
            self.transport.write(data.upper())

        def eof_received(self) -> None:
            self.transport.close()

    site.door.upgrades["/mqtt"] = lambda request, _: Echo(request.target)
    raw = await site.raw()
    raw.send(b"GET /mqtt?x=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nrest")
    raw.send(b" more")
    raw.writer.write_eof()
    assert await raw.ended() == b"HTTP/1.1 101 Switching Protocols\r\n\r\n/mqtt?x=1REST MORE"
    await raw.close()


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        GET[:-2] + b"".join(b"X-%d: y\r\n" % i for i in range(limits.HTTP_HEADERS_MAX + 1)) + b"\r\n",
        GET[:-2] + b"X: " + b"y" * (limits.HTTP_HEAD_BYTES_MAX + 1) + b"\r\n\r\n",
        GET[:-2] + b"X: " + b"y" * (8 * limits.HTTP_HEAD_BYTES_MAX),  # that never ends
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"T: " + b"y" * (8 * limits.HTTP_HEAD_BYTES_MAX),
    ],
)
async def test_a_head_that_is_too_large_is_refused(raw: Raw, data: bytes) -> None:
    for start in range(0, len(data), 8192):
        raw.send(data[start : start + 8192])
        await asyncio.sleep(0)
    refused(await raw.answer(), 431, "invalid_argument")


async def test_an_address_that_is_too_long_is_refused(raw: Raw) -> None:
    raw.send(b"GET /" + b"a" * (limits.HTTP_HEAD_BYTES_MAX + 1) + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert (await raw.answer()).status in (414, 431)


async def test_a_body_that_is_announced_too_large_is_refused_unread(raw: Raw) -> None:
    raw.send(HEAD + b"Content-Length: 99999999999\r\n\r\n")
    refused(await raw.answer(), 413, "payload_too_large")
    await raw.ended()


async def test_a_body_that_grows_too_large_is_refused_where_it_does() -> None:
    async with http_site(http=HttpConfig(max_body_bytes=10_000)) as site:
        raw = await site.raw()
        raw.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(11):
            raw.send(b"3e8\r\n" + b" " * 1000 + b"\r\n")
        refused(await raw.answer(), 413, "payload_too_large")
        await raw.close()
        assert site.door._bodies_bytes == 0


async def test_bodies_of_all_connections_together_are_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_BODIES_BYTES_MAX", 100_000)
    raws = [await site.raw() for _ in range(3)]
    for raw in raws:
        raw.send(HEAD + b"Content-Length: 90000\r\n\r\n" + b" " * 40_000)
        await asyncio.sleep(0.01)
        raw.send(b" " * 100)
    answer = await raws[-1].answer()
    refused(answer, 503, "overloaded")
    assert answer.headers["retry-after"] == "1"
    for raw in raws:
        await raw.close()
    await until(lambda: not (site.door.connections_count))
    assert site.door._bodies_bytes == 0


@pytest.mark.parametrize(
    ("coding", "status", "code"),
    [("gzip", 413, "payload_too_large"), ("zstd", 413, "payload_too_large"), ("br", 415, "invalid_argument")],
)
async def test_a_body_that_inflates_too_far_is_refused(site: Site, coding: str, status: int, code: str) -> None:
    import zlib

    import pyarrow as pa

    zeros = b"0" * 60_000_000
    bomb = zlib.compress(zeros, wbits=31) if coding == "gzip" else pa.compress(zeros, "zstd", asbytes=True)
    answer = await site.client.post("/v1/topics/t/messages", content=bomb, headers={"content-encoding": coding})
    refused(answer, status, code)


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
async def test_a_body_that_is_not_what_it_says_is_refused(site: Site, coding: str) -> None:
    for body in (b"no such thing", b"\x1f\x8b\x08\x00", b"\x28\xb5\x2f\xfd"):
        answer = await site.client.post("/v1/topics/t/messages", content=body, headers={"content-encoding": coding})
        refused(answer, 400, "malformed")


async def test_a_content_type_nobody_reads_is_refused(site: Site) -> None:
    answer = await site.client.post("/v1/topics/t/messages", content=b"<a/>", headers={"content-type": "text/xml"})
    refused(answer, 415, "invalid_argument")


async def test_one_connection_too_many_is_told_so() -> None:
    async with http_site(connections_max=2) as site:
        first, second, third = [await site.raw() for _ in range(3)]
        refused(await third.answer(), 503, "overloaded")
        await first.close()
        second.send(GET)
        assert (await second.answer()).status == 200
        for raw in (second, third):
            await raw.close()


# -- time --------------------------------------------------------------------------------------------------------------


async def test_what_drips_idles_or_does_not_read_is_found_by_the_sweep(site: Site) -> None:
    """The sweep is called with a later time instead of waiting for it."""
    silent, dripping_head, dripping_body, idle, busy = [await site.raw() for _ in range(5)]
    dripping_head.send(GET[:20])
    dripping_body.send(PUBLISH[:-5])
    idle.send(GET)
    assert (await idle.answer()).status == 200
    busy.send(
        b'POST /v1/topics/t/groups/g/lease HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 14\r\n\r\n{"wait":"60s"}'
    )
    await until(lambda: site.broker._polls and sum(c._request is not None for c in site.door.connections) >= 2)

    def sweep(after_s: float) -> None:
        now_ns = site.door.now_ns() + int(after_s * 1e9)
        for connection in list(site.door.connections):
            connection.sweep(now_ns)

    sweep(8)
    assert site.door.connections_count == 5
    sweep(11)
    refused(await dripping_head.answer(), 408, "invalid_argument")
    assert await silent.ended() == b""
    sweep(31)
    refused(await dripping_body.answer(), 408, "invalid_argument")
    sweep(76)
    assert await idle.ended() == b""
    await until(lambda: not (site.door.connections_count > 1))
    [left] = site.door.connections
    assert left._current is not None, "who waits for messages may wait"
    for raw in (silent, dripping_head, dripping_body, idle, busy):
        await raw.close()


async def test_a_peer_that_does_not_read_stops_being_read_and_is_cut(site: Site) -> None:
    await site.publish("large", *["x" * 500_000] * 12)
    raw = await site.raw()
    raw.send(b"GET /v1/topics/large/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/x-ndjson\r\n\r\n" * 20)
    await until(lambda: any(connection._writing_paused for connection in site.door.connections))
    [stuck] = [connection for connection in site.door.connections if connection._writing_paused]
    assert not stuck._reading
    assert stuck._transport.get_write_buffer_size() < 8 * limits.MIB
    stuck.sweep(site.door.now_ns() + 31 * limits.SECOND_NS)
    await until(lambda: stuck not in site.door.connections)
    await raw.close()


# -- the end -----------------------------------------------------------------------------------------------------------


async def test_a_drain_answers_what_is_under_way_and_lets_the_waiting_go(site: Site) -> None:
    idle, waiting = await site.raw(), await site.raw()
    idle.send(GET)
    assert (await idle.answer()).status == 200
    waiting.send(
        b'POST /v1/topics/t/groups/g/lease HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 14\r\n\r\n{"wait":"60s"}'
    )
    await until(lambda: site.broker._polls)
    await site.client.aclose()
    await site.door.drain(30 * limits.SECOND_NS)
    answer = await waiting.answer()
    assert (answer.status, answer.json()["deliveries"], answer.headers["connection"]) == (200, [], "close")
    assert await idle.ended() == b""
    assert site.door.connections_count == 0
    for raw in (idle, waiting):
        await raw.close()


async def test_a_draining_server_takes_settles_and_nothing_new(site: Site) -> None:
    await site.publish("orders", "a")
    [one] = await site.lease("orders")
    raw = await site.raw()
    raw.send(PUBLISH[:-3])
    await until(lambda: any(connection._request is not None for connection in site.door.connections))
    site.door.draining = True
    assert (await site.client.get("/ready")).json() == {"status": "draining"}
    refused(await site.client.post("/v1/topics/t/messages", json={"messages": [{}]}), 503, "draining")
    told = await site.client.post("/v1/topics/orders/groups/default/settle", json={"ack": [one["receipt"]]})
    assert (told.status_code, told.headers["connection"]) == (200, "close")
    raw.send(PUBLISH[-3:])
    assert (await raw.answer()).status == 200, "what had begun is finished"
    await raw.close()


# -- pages of other sites ----------------------------------------------------------------------------------------------


async def test_a_page_of_another_site_may_not_call(site: Site) -> None:
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        answer = await site.client.post(
            "/v1/topics/t/messages", json={"messages": [{}]}, headers={"origin": origin, "content-type": "text/plain"}
        )
        refused(answer, 403, "not_allowed")
    ours = await site.client.get("/health", headers={"origin": site.base})
    assert ours.status_code == 200
    assert "access-control-allow-origin" not in ours.headers


async def test_a_name_that_was_made_to_point_here_is_refused(site: Site) -> None:
    for host in ("evil.example", "evil.example:8080", "127.0.0.1.evil.example"):
        refused(await site.client.get("/health", headers={"host": host}), 403, "not_allowed")
    for host in ("localhost", "127.0.0.1", "[::1]:8080", "LOCALHOST:1"):
        assert (await site.client.get("/health", headers={"host": host})).status_code == 200


async def test_allowed_origins_get_what_a_browser_needs() -> None:
    async with http_site(http=HttpConfig(cors_origins="https://app.example, https://other.example")) as site:
        headers = {"origin": "https://app.example", "access-control-request-method": "POST"}
        answer = await site.client.request("OPTIONS", "/v1/topics/t/messages", headers=headers)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert "authorization" in answer.headers["access-control-allow-headers"]
        answer = await site.client.get("/health", headers={"origin": "https://evil.example"})
        refused(answer, 403, "not_allowed")


async def test_a_method_that_is_not_there_is_told_which_are(site: Site) -> None:
    answer = await site.client.delete("/v1/topics/t/messages")
    refused(answer, 405, "invalid_argument")
    assert answer.headers["allow"] == "GET, OPTIONS, POST"
    answer = await site.client.request("OPTIONS", "/v1/topics/t/messages")
    assert answer.json() == {"allow": ["GET", "POST"]}
    head = await site.client.head("/health")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "15")
    refused(await site.client.get("/v2/topics"), 404, "invalid_argument")
