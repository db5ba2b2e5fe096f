"""Answers that go on: replay as pages, NDJSON and Arrow; messages and numbers as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

import headrace
from headrace import limits
from headrace.broker.embedded import open_core
from headrace.config import SealConfig
from integration.http_site import Site, http_site, refused, until

NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with http_site() as opened:
        yield opened


# -- replay ------------------------------------------------------------------------------------------------------------


async def lines(site: Site, query: str, topic: str = "orders") -> list[Any]:
    answer = await site.client.get(f"/v1/topics/{topic}/messages?{query}", headers={"accept": NDJSON})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == NDJSON
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_a_page_says_where_to_go_on(site: Site) -> None:
    await site.publish("orders", *[str(number) for number in range(7)])
    found: list[str] = []
    query = "limit=3"
    for _ in range(4):
        page = (await site.client.get(f"/v1/topics/orders/messages?{query}")).json()
        found += [one["value"] for one in page["messages"]]
        if not page.get("next_offsets"):
            break
        query = f"limit=3&partition=0&from_offset={page['next_offsets']['0']}"
    assert found == [str(number) for number in range(7)]


async def test_lines_are_all_messages_between_two_places(site: Site) -> None:
    await site.publish("orders", *[str(number) for number in range(10)])
    between = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    await site.publish("orders", {"json": {"n": 10}})
    assert len(await lines(site, "")) == 11
    assert [one["value"] for one in await lines(site, "from_offset=3&to_offset=5")] == ["3", "4"]
    assert [one["offset"] for one in await lines(site, f"from_time={between}")] == [10]
    assert len(await lines(site, f"to_time={between}")) == 10
    assert [one["offset"] for one in await lines(site, "limit=2")] == [0, 1]
    assert (await lines(site, "from_offset=10"))[0]["json"] == {"n": 10}
    assert (await lines(site, "from_offset=10&values=base64"))[0]["value_base64"]
    assert await lines(site, "from_offset=11") == []


async def test_a_replay_does_not_disturb_any_group_and_ends_where_the_log_did(site: Site) -> None:
    await site.publish("orders", *["x"] * 5)
    await lines(site, "")
    assert (await site.group("orders"))["ready"] == 5


async def test_columns_come_as_one_arrow_stream(site: Site) -> None:
    await site.client.put("/v1/topics/orders", json={"settings": {"partitions": 3}})
    for start in range(0, 300, 100):
        await site.publish(
            "orders",
            *[{"value": f"v{n}", "key": f"k{n}", "headers": {"n": str(n)}} for n in range(start, start + 100)],
        )
    await site.publish("orders", {"value_base64": "/wA=", "priority": 1, "delay": "1h", "dedup_id": "d"})
    answer = await site.client.get("/v1/topics/orders/messages", headers={"accept": ARROW})
    assert answer.headers["content-type"] == ARROW
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table.num_rows == 301
    rows = {row["value"]: row for row in table.to_pylist()}
    assert {rows[f"v{n}".encode()]["key"] for n in range(300)} == {f"k{n}".encode() for n in range(300)}
    assert rows[b"v7"]["headers"] == [("n", b"7")]
    last = rows[b"\xff\x00"]
    assert (last["priority"], last["dedup_id"], last["deliver_at_ns"] > last["append_time_ns"]) == (1, b"d", True)
    assert sorted(set(table["partition"].to_pylist())) == [0, 1, 2]
    part = await site.client.get("/v1/topics/orders/messages?partition=1&limit=5", headers={"accept": ARROW})
    assert pa.ipc.open_stream(part.content).read_all().num_rows == 5


async def test_an_empty_replay_is_an_empty_stream_with_a_schema(site: Site) -> None:
    await site.client.put("/v1/topics/orders", json={})
    answer = await site.client.get("/v1/topics/orders/messages", headers={"accept": ARROW})
    table = pa.ipc.open_stream(answer.content).read_all()
    assert (table.num_rows, table.schema.names[:3]) == (0, ["partition", "offset", "id"])
    assert await lines(site, "") == []


async def columns(site: Site, query: str) -> list[int]:
    answer = await site.client.get(f"/v1/topics/orders/messages?{query}", headers={"accept": ARROW})
    offsets: list[int] = pa.ipc.open_stream(answer.content).read_all()["offset"].to_pylist()
    return offsets


@pytest.mark.feature("F116", "F126")
async def test_what_retention_let_go_of_is_read_from_the_archive(data_dir: Path) -> None:
    archive = {"archive": str(data_dir / "archive"), "behind": "0B"}
    with headrace.open(data_dir / "data", seal=archive) as hr:
        orders = hr.topic("orders", retention_bytes="3KiB")
        for half in range(2):
            orders.publish_many([b"%d-%d" % (half, i) + b"x" * 300 for i in range(10)])
            with orders.consumer() as consumer:
                consumer.ack(consumer.receive(100))
            hr.call("log.seal")
        hr.call("log.seal")
        assert [record.offset for record in orders.read()] == list(range(10, 20))
    seal = SealConfig(archive=archive["archive"])
    async with http_site(core=open_core(data_dir / "data", seal=seal)) as site:
        assert [one["offset"] for one in await lines(site, "")] == list(range(10, 20))
        assert [one["offset"] for one in await lines(site, "include_deleted=false")] == list(range(10, 20))
        assert [one["offset"] for one in await lines(site, "include_deleted=true")] == list(range(20))
        assert await columns(site, "") == list(range(10, 20))
        assert await columns(site, "include_deleted=true") == list(range(20))
        assert await columns(site, "include_deleted=true&from_offset=5&to_offset=12") == list(range(5, 12))
        found: list[int] = []
        query = "from_offset=0"
        while query:  # page after page, over the end of the archive
            path = f"/v1/namespaces/default/topics/orders/messages?limit=7&include_deleted=true&{query}"
            page = (await site.client.get(path)).json()
            found += [one["offset"] for one in page["messages"]]
            going_on = page.get("next_offsets")
            query = f"partition=0&from_offset={going_on['0']}" if going_on else ""
        assert found == list(range(20))
    async with http_site(core=open_core(data_dir / "data")) as site:
        assert [one["offset"] for one in await lines(site, "")] == list(range(10, 20))
        for accept in ("application/json", NDJSON, ARROW):
            path = "/v1/topics/orders/messages?include_deleted=true"
            answer = await site.client.get(path, headers={"accept": accept})
            assert "has none configured" in refused(answer, 400, "invalid_argument")


@pytest.mark.parametrize("state", ["ready", "scheduled", "leased", "dead"])
async def test_a_group_is_looked_into_by_state(site: Site, state: str) -> None:
    await site.publish("orders", *["x"] * 4, {"value": "later", "delay": "1h"})
    leased = await site.lease("orders", max=2)
    await site.settle("orders", reject=[leased[0]["receipt"]])
    answer = (await site.client.get(f"/v1/topics/orders/messages?state={state}&limit=10")).json()
    assert len(answer["messages"]) == {"ready": 2, "scheduled": 1, "leased": 1, "dead": 1}[state]
    assert {one["state"] for one in answer["messages"]} == {state}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("limit=0", "limit"),
        ("limit=ten", "limit"),
        ("from_offset=-1", "from_offset"),
        ("from_time=2026-01-01", "from_time"),
        ("from_time=2026-01-01T00:00:00", "timezone"),
        ("partition=7", "partition"),
        ("state=ready&from_offset=1", "state"),
        ("state=ready&include_deleted=true", "include_deleted"),
        ("include_deleted=perhaps", "bool"),
        ("include_deleted", "query"),
        ("state=lost", "state"),
        ("from_ofset=1", "did you mean 'from_offset'"),
        ("limit", "query"),
        ("to_time=null", "leave it out"),
        ("limit=Null", "leave it out"),
        ("a=%zz%", "unknown field"),
    ],
)
@pytest.mark.parametrize("accept", ["application/json", NDJSON, ARROW])
async def test_a_bad_replay_is_refused_before_it_begins(site: Site, query: str, words: str, accept: str) -> None:
    await site.publish("orders", "x")
    answer = await site.client.get(f"/v1/topics/orders/messages?{query}", headers={"accept": accept})
    assert answer.status_code == 400, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert words in answer.json()["error"]["message"]


async def test_too_many_streams_are_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.frontends.http.replay.HTTP_STREAMS_MAX", 1)
    await site.publish("orders", "x")
    async with events(site, "/v1/topics/orders/groups/g/events"):
        answer = await site.client.get("/v1/topics/orders/messages", headers={"accept": NDJSON})
        refused(answer, 503, "overloaded")
    await until(lambda: site.door.streams == 0)
    assert len(await lines(site, "")) == 1


async def test_a_replay_larger_than_any_buffer_comes_whole_and_in_order(site: Site) -> None:
    value = "x" * 10_000
    for _ in range(20):
        await site.publish("large", *[value] * 50)
    seen = 0
    async with site.client.stream("GET", "/v1/topics/large/messages", headers={"accept": NDJSON}) as answer:
        async for line in answer.aiter_lines():
            assert json.loads(line)["offset"] == seen
            seen += 1
    assert seen == 1000
    assert max(c._transport.get_write_buffer_size() for c in site.door.connections) == 0


# -- events ------------------------------------------------------------------------------------------------------------


class Events:
    """Reads server-sent events one at a time."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.aiter_lines()

    async def next(self) -> tuple[str, Any]:
        name, data = "", ""
        async with asyncio.timeout(30):
            async for line in self._lines:
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    data = value
                elif not line and name:
                    return name, json.loads(data)
        raise AssertionError("the stream ended")


@asynccontextmanager
async def events(site: Site, path: str) -> AsyncIterator[Events]:
    async with site.client.stream("GET", path, headers={"accept": "text/event-stream"}) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"] == "text/event-stream"
        yield Events(answer)


async def test_messages_are_pushed_up_to_the_credit_and_go_on_when_settled(site: Site) -> None:
    await site.publish("orders", *[str(number) for number in range(5)])
    async with events(site, "/v1/topics/orders/groups/g/events?credit=2&consumer=me&start=earliest") as stream:
        name, opened = await stream.next()
        assert (name, opened) == ("open", {"consumer": "me", "credit": 2})
        got = [await stream.next() for _ in range(2)]
        assert [(name, one["value"], one["attempt"]) for name, one in got] == [
            ("delivery", "0", 1),
            ("delivery", "1", 1),
        ]
        assert (await site.group("orders", "g"))["leased"] == 2, "no more than the credit"
        await site.settle("orders", "g", ack=[one["receipt"] for _, one in got])
        more = [(await stream.next())[1] for _ in range(2)]
        assert [one["value"] for one in more] == ["2", "3"]
        await site.settle("orders", "g", nack=[{"receipt": more[0]["receipt"], "delay": "0s"}])
        again = (await stream.next())[1]
        assert (again["value"], again["attempt"]) in (("2", 2), ("4", 1))
    await until(lambda: site.door.streams == 0)


async def test_what_a_stream_held_goes_to_others_when_it_ends(site: Site) -> None:
    await site.publish("orders", "a")
    async with events(site, "/v1/topics/orders/groups/g/events") as stream:
        await stream.next()
        _, one = await stream.next()
    [again] = await site.lease("orders", "g", wait="20s")
    assert (again["id"], again["attempt"]) == (one["id"], 2)
    assert not site.door.event_streams


async def test_messages_published_later_are_pushed_at_once(site: Site) -> None:
    await site.client.put("/v1/topics/orders", json={})
    async with events(site, "/v1/topics/orders/groups/g/events") as stream:
        await stream.next()
        await site.publish("orders", {"value": "new", "key": "k"})
        name, one = await stream.next()
        assert (name, one["value"], one["key"]) == ("delivery", "new", "k")


async def test_a_stream_of_a_topic_that_is_deleted_says_so_and_ends(site: Site) -> None:
    await site.client.put("/v1/topics/orders", json={})
    async with events(site, "/v1/topics/orders/groups/g/events") as stream:
        await stream.next()
        await site.client.delete("/v1/topics/orders")
        name, refusal = await stream.next()
        assert name == "error"
        assert refusal["error"]["code"] in ("unknown_topic", "unknown_group")


async def test_a_silent_stream_shows_that_it_lives(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_EVENTS_LOOK_NS", 1_000_000)
    monkeypatch.setattr(limits, "HTTP_EVENTS_HEARTBEAT_NS", 2_000_000)
    async with events(site, "/v1/topics/orders/groups/g/events") as stream:
        await stream.next()
        async with asyncio.timeout(30):
            async for line in stream._lines:
                if line.startswith(":"):
                    break


async def test_leases_that_ran_out_give_their_credit_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_EVENTS_LOOK_NS", 10_000_000)
    await site.client.put("/v1/topics/orders", json={"settings": {"retry.initial_backoff": "0s"}})
    await site.publish("orders", "a")
    async with events(site, "/v1/topics/orders/groups/g/events?credit=1&lease=50ms") as stream:
        await stream.next()
        attempts = [(await stream.next())[1]["attempt"] for _ in range(3)]
        assert attempts == [1, 2, 3]


async def test_bad_streams_are_refused_as_anything_else(site: Site) -> None:
    for query in ("credit=0", "credit=99999", "lease=x", "start=sometime", "kredit=3"):
        answer = await site.client.get(f"/v1/topics/orders/groups/g/events?{query}")
        refused(answer, 400, "invalid_argument")
    assert (await site.client.head("/v1/topics/orders/groups/g/events")).status_code == 405


async def test_a_drain_ends_the_streams(site: Site) -> None:
    async with events(site, "/v1/topics/orders/groups/g/events") as stream:
        await stream.next()
        draining = asyncio.ensure_future(site.door.drain(30 * limits.SECOND_NS))
        async with asyncio.timeout(30):
            async for _ in stream._lines:
                pass
    await site.client.aclose()
    await draining


@pytest.mark.feature("F226")
async def test_numbers_are_read_once_or_as_they_change(site: Site) -> None:
    await site.publish("orders", "a")
    once = (await site.client.get("/v1/topics/orders/stats")).json()
    assert (once["topics"][0]["topic"], once["drift"]) == ("orders", 0)
    async with events(site, "/v1/topics/orders/stats?interval=250ms") as stream:
        name, first = await stream.next()
        assert (name, first["topics"][0]["published"]) == ("stats", 1)
        await site.publish("orders", "b")
        async with asyncio.timeout(30):
            while (await stream.next())[1]["topics"][0]["published"] != 2:
                pass
    for path in ("/v1/stats", "/v1/namespaces/default/stats", "/v1/namespaces/default/topics/orders/stats"):
        assert (await site.client.get(path)).json()["topics"][0]["published"] == 2
    refused(await site.client.get("/v1/topics/nobody/stats"), 404, "unknown_topic")
    refused(await site.client.get("/v1/topics/orders/stats?interval=often"), 400, "invalid_argument")
