"""Publish, lease, settle over HTTP: values in every form, order, waiting, receipts, atomic settles, repetition."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from integration.http_site import Site, http_site, refused, until


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with http_site() as opened:
        yield opened


@pytest.mark.feature("F002", "F003", "F006")
async def test_a_batch_is_answered_with_places_and_comes_back_in_its_order(site: Site) -> None:
    results = await site.publish("orders", *[f"m{i}" for i in range(50)])
    assert [result["offset"] for result in results] == list(range(50))
    assert len({result["id"] for result in results}) == 50
    assert not any(result["duplicate"] for result in results)
    leased = await site.lease("orders", max=100)
    assert [one["value"] for one in leased] == [f"m{i}" for i in range(50)]
    assert [one["id"] for one in leased] == [result["id"] for result in results]
    assert {one["attempt"] for one in leased} == {1}


@pytest.mark.feature("F008", "F011", "F012")
async def test_every_field_of_a_message_goes_in_and_comes_out(site: Site) -> None:
    raw = bytes(range(256))
    await site.publish(
        "fields",
        {
            "value": "grüße",
            "key": "user-1",
            "headers": {"a": "1"},
            "headers_base64": {"b": base64.b64encode(raw).decode()},
            "priority": "high",
            "dedup_id": "once",
            "timestamp": "2026-01-02T03:04:05.000006Z",
            "ttl": "1h",
            "correlation_id": "c-1",
            "reply_to": "answers",
            "content_type": "text/plain",
        },
        {"value_base64": base64.b64encode(raw).decode(), "key_base64": base64.b64encode(b"\xff").decode()},
        {"json": {"deep": [1, 2.5, None, "x"]}, "priority": 9},
        {},
    )
    leased = await site.lease("fields", max=4)
    by_offset = {one["offset"]: one for one in leased}
    first = by_offset[0]
    assert first["value"] == "grüße"
    assert first["key"] == "user-1"
    assert first["headers"] == {
        "a": "1",
        "correlation_id": "c-1",
        "reply_to": "answers",
        "content_type": "text/plain",
    }
    assert base64.b64decode(first["headers_base64"]["b"]) == raw
    assert first["priority"] == 1
    assert first["dedup_id"] == "once"
    assert first["timestamp"] == "2026-01-02T03:04:05.000006Z"
    assert first["expires_at"].endswith("Z")
    assert base64.b64decode(by_offset[1]["value_base64"]) == raw
    assert base64.b64decode(by_offset[1]["key_base64"]) == b"\xff"
    assert by_offset[2]["json"] == {"deep": [1, 2.5, None, "x"]}
    assert by_offset[2]["headers"] == {"content_type": "application/json"}
    assert by_offset[3]["value"] == ""
    assert [one["offset"] for one in leased] == [0, 1, 3, 2], "high before normal before low"


async def test_values_can_be_asked_for_in_base64(site: Site) -> None:
    await site.publish("forms", "text", {"json": 1})
    answer = await site.client.post("/v1/topics/forms/groups/default/lease?values=base64", json={"max": 2})
    assert [base64.b64decode(one["value_base64"]) for one in answer.json()["deliveries"]] == [b"text", b"1"]


@pytest.mark.feature("F118")
async def test_a_dedup_id_is_stored_once_and_answers_the_first_place(site: Site) -> None:
    first = await site.publish("dedup", {"value": "a", "dedup_id": "x"}, {"value": "b"})
    again = await site.publish("dedup", {"value": "c"}, {"value": "a", "dedup_id": "x"}, {"value": "d"})
    assert again[1] == {**first[0], "duplicate": True}
    assert [result["duplicate"] for result in again] == [False, True, False]
    assert [one["value"] for one in await site.lease("dedup", max=10)] == ["a", "b", "c", "d"]


@pytest.mark.feature("F096", "F097", "F098")
async def test_delayed_messages_are_scheduled_and_not_handed_out(site: Site) -> None:
    soon = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
    await site.publish("later", {"value": "a", "delay": "1h"}, {"value": "b", "deliver_at": soon})
    await site.publish("later", {"value": "now"})
    assert [one["value"] for one in await site.lease("later", max=10)] == ["now"]
    assert (await site.group("later"))["scheduled"] == 2


async def test_a_lease_waits_for_its_first_message(site: Site) -> None:
    await site.publish("wait", "first")
    await site.lease("wait")
    waiting = asyncio.ensure_future(site.lease("wait", wait="30s"))
    await until(lambda: site.broker._polls)
    await site.publish("wait", "second")
    assert [one["value"] for one in await waiting] == ["second"]


async def test_a_lease_that_finds_nothing_in_time_is_empty(site: Site) -> None:
    answer = await site.client.post("/v1/topics/empty/groups/default/lease", json={"wait": "20ms"})
    assert answer.json() == {"deliveries": [], "receipts": []}


async def test_what_a_caller_who_left_would_have_got_goes_to_the_next(site: Site) -> None:
    await site.publish("left", "x")
    [one] = await site.lease("left")
    gone = await site.raw()
    body = b'{"wait": "60s"}'
    gone.send(
        b"POST /v1/topics/left/groups/default/lease HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    await until(lambda: site.broker._polls)
    await gone.close()
    await until(lambda: not (site.door.connections_count > 1))
    assert not any(site.broker._polls.values())
    await site.settle("left", release=[one["receipt"]])
    assert [again["value"] for again in await site.lease("left")] == ["x"]


@pytest.mark.feature("F032", "F033", "F034")
async def test_every_verb_settles(site: Site) -> None:
    await site.publish("verbs", *[{"value": f"{i}"} for i in range(6)])
    one, two, three, four, five, six = await site.lease("verbs", max=6)
    told = await site.settle(
        "verbs",
        ack=[one["receipt"], two["receipt"]],
        nack=[{"receipt": three["receipt"], "delay": "0s", "error": "no luck"}],
        reject=[{"receipt": four["receipt"], "error": "bad"}],
        release=[five["receipt"]],
        extend=[{"receipt": six["receipt"], "by": "10m"}],
    )
    assert told == {"settled": 6}
    again = {one["value"]: one["attempt"] for one in await site.lease("verbs", max=6)}
    assert again == {"2": 2, "4": 1}
    books = await site.group("verbs")
    assert (books["acked"], books["dead"], books["leased"], books["drift"]) == (2, 1, 3, 0)
    letters = (await site.client.get("/v1/topics/verbs/dead-letters")).json()["dead_letters"]
    assert [(letter["value"], letter["reason"], letter["error"]) for letter in letters] == [("3", "rejected", "bad")]


async def test_the_receipts_of_a_lease_settle_all_of_it(site: Site) -> None:
    await site.publish("runs", *[f"{i}" for i in range(100)])
    answer = await site.client.post("/v1/topics/runs/groups/default/lease", json={"max": 100})
    assert len(answer.json()["receipts"]) == 1
    assert await site.settle("runs", ack=answer.json()["receipts"]) == {"settled": 100}
    assert (await site.group("runs"))["acked"] == 100


async def test_a_message_id_settles_what_it_is_leased_as(site: Site) -> None:
    await site.publish("ids", "a", "b")
    first, second = await site.lease("ids", max=2)
    assert await site.settle("ids", ack=[second["id"], first["receipt"]]) == {"settled": 2}
    assert await site.settle("ids", ack=[second["id"]]) == {"settled": 1}, "a second ack says yes"


async def test_a_stale_receipt_is_refused_and_changes_nothing(site: Site) -> None:
    await site.publish("stale", "a", "b")
    first, second = await site.lease("stale", max=2)
    await site.settle("stale", release=[first["receipt"]])
    answer = await site.client.post(
        "/v1/topics/stale/groups/default/settle", json={"nack": [first["receipt"]], "ack": [second["receipt"]]}
    )
    assert answer.status_code == 200
    assert answer.json()["settled"] == 1
    assert [(one["receipt"], one["code"]) for one in answer.json()["refused"]] == [(first["receipt"], "lease_lost")]
    answer = await site.client.post("/v1/topics/stale/groups/default/settle", json={"nack": [first["receipt"]]})
    refused(answer, 409, "lease_lost")


@pytest.mark.feature("N12")
async def test_a_settle_with_outputs_happens_as_a_whole_or_not_at_all(site: Site) -> None:
    await site.publish("in", "a", "b")
    await site.publish("plans", {"value": "p", "delay": "1h"})
    [planned] = (await site.client.get("/v1/topics/plans/schedule")).json()["messages"]
    first, second = await site.lease("in", max=2)
    told = await site.settle(
        "in",
        ack=[first["receipt"]],
        publish=[{"topic": "out", "messages": [{"value": "made"}, {"json": 2}]}],
        cancel=[{"topic": "plans", "ids": [planned["id"]]}],
    )
    assert told["settled"] == 1
    assert told["cancelled"] == 1
    assert [place["offset"] for place in told["published"][0]] == [0, 1]
    assert len(await site.lease("out", max=9)) == 2
    await site.settle("in", release=[second["receipt"]])
    answer = await site.client.post(
        "/v1/topics/in/groups/default/settle",
        json={"ack": [second["receipt"]], "publish": [{"topic": "out", "messages": [{"value": "never"}]}]},
    )
    refused(answer, 409, "lease_lost")
    assert await site.lease("out", max=9) == []


async def test_a_namespace_is_a_world_of_its_own(site: Site) -> None:
    path = "/v1/namespaces/team%2Fa/topics/orders"
    answer = await site.client.post(f"{path}/messages", json={"messages": [{"value": "theirs"}]})
    assert answer.status_code == 200
    await site.publish("orders", "ours")
    leased = (await site.client.post(f"{path}/groups/default/lease", json={"max": 9})).json()["deliveries"]
    assert [one["value"] for one in leased] == ["theirs"]
    assert (await site.client.get(path)).json()["namespace"] == "team/a"


async def test_names_with_slashes_and_spaces_are_percent_encoded(site: Site) -> None:
    await site.publish("tasks%2Feu%20west", "x")
    assert (await site.client.get("/v1/topics")).json()["topics"][0]["topic"] == "tasks/eu west"


@pytest.mark.feature("F134")
async def test_a_trace_context_travels_with_the_messages(site: Site) -> None:
    context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    other = "00-11111111111111111111111111111111-b7ad6b7169203331-01"
    await site.publish(
        "traced", "a", {"value": "b", "headers": {"traceparent": other}}, headers={"traceparent": context}
    )
    assert [one["headers"]["traceparent"] for one in await site.lease("traced", max=2)] == [context, other]


@pytest.mark.parametrize("coding", ["gzip", "zstd", "identity"])
async def test_a_compressed_body_is_read(site: Site, coding: str) -> None:
    import pyarrow as pa

    body = json.dumps({"messages": [{"value": "x" * 1000}] * 20}).encode()
    packed = {"gzip": gzip.compress(body), "zstd": pa.compress(body, "zstd", asbytes=True), "identity": body}[coding]
    answer = await site.client.post("/v1/topics/packed/messages", content=packed, headers={"content-encoding": coding})
    assert len(answer.json()["results"]) == 20


async def test_columns_are_published_as_an_arrow_stream(site: Site) -> None:
    import pyarrow as pa

    table = pa.table({"value": [b"a", b"b"], "key": [b"k", None]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    headers = {"content-type": "application/vnd.apache.arrow.stream"}
    answer = await site.client.post(
        "/v1/topics/columns/messages?partition=0", content=sink.getvalue().to_pybytes(), headers=headers
    )
    assert [place["offset"] for place in answer.json()["results"]] == [0, 1]
    assert [(one["value"], one.get("key")) for one in await site.lease("columns", max=2)] == [("a", "k"), ("b", None)]
    answer = await site.client.post("/v1/topics/columns/messages", content=b"rubbish", headers=headers)
    refused(answer, 400, "malformed")


BAD_MESSAGES: list[tuple[Any, str, str]] = [
    ({"messages": [{"value": 1}]}, "invalid_argument", "`$.messages[0].value`"),
    ({"messages": [{"valeu": "x"}]}, "invalid_argument", "did you mean 'value'"),
    ({"messages": [{"value": "x", "value_base64": "eA=="}]}, "invalid_argument", "more than one of value"),
    ({"messages": [{"value_base64": "*"}]}, "invalid_argument", "base64"),
    ({"messages": [{"key": "a", "key_base64": "YQ=="}]}, "invalid_argument", "both key and key_base64"),
    ({"messages": [{"delay": "5"}]}, "invalid_argument", "no unit"),
    ({"messages": [{"delay": "1s", "deliver_at": "2100-01-01T00:00:00Z"}]}, "invalid_argument", "both delay"),
    ({"messages": [{"ttl": "1s", "expires_at": "2100-01-01T00:00:00Z"}]}, "invalid_argument", "both ttl"),
    ({"messages": [{"deliver_at": "2100-01-01T00:00:00"}]}, "invalid_argument", "timezone"),
    ({"messages": [{"priority": 10}]}, "invalid_argument", "<= 9"),
    ({"messages": [{"priority": "urgent"}]}, "invalid_argument", "urgent"),
    ({"messages": []}, "invalid_argument", "length >= 1"),
    ({"messages": [{}] * 5000}, "invalid_argument", "length <= 4096"),
    ({"messages": [{"key": "k" * 2000}]}, "limit_exceeded", "1024"),
    ({"messages": [{"value": "x" * 1_100_000}]}, "payload_too_large", "1048576"),
    ({"messages": [{"value": "ok"}, {"value": "x", "dedup_id": "d" * 300}]}, "limit_exceeded", "256"),
    ({"messages": [{"value": "x"}], "partition": 7}, "invalid_argument", "partition 7"),
    ([], "invalid_argument", "Expected `object`"),
]


@pytest.mark.parametrize(("body", "code", "words"), BAD_MESSAGES)
async def test_a_bad_message_is_refused_and_nothing_stored(site: Site, body: Any, code: str, words: str) -> None:
    answer = await site.client.post("/v1/topics/bad/messages", json=body)
    message = refused(answer, {"payload_too_large": 413, "limit_exceeded": 422}.get(code, 400), code)
    assert words in message
    shown = await site.client.get("/v1/topics/bad")
    assert shown.status_code == 404 or shown.json()["messages"] == 0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"messages": [{"value": tru}]}', "byte 28"),
        (b'{"messages": [{"value": "x"', "byte 27"),
        (b'{"messages": [{"value": "\xff"}]}', "JSON"),
        (b'{"messages": [{"json": ' + b"[" * 100_000, "deep"),
        (b"\x00", "byte 0"),
    ],
)
async def test_what_is_not_json_is_refused_with_its_place(site: Site, body: bytes, words: str) -> None:
    answer = await site.client.post("/v1/topics/bad/messages", content=body)
    assert words in refused(answer, 400, "malformed")
    assert (await site.client.get("/v1/topics")).json() == {"topics": []}


@pytest.mark.parametrize(
    "receipt", ["", "1:2", "a:b:c", "0:1:2+", "0:1:2+0", "0:-1:2", "0:1:²", "0:1:2:3", f"0:{1 << 70}:1", "x" * 70]
)
async def test_a_bad_receipt_is_refused(site: Site, receipt: str) -> None:
    await site.publish("receipts", "x")
    answer = await site.client.post("/v1/topics/receipts/groups/default/settle", json={"ack": [receipt]})
    refused(answer, 400, "invalid_argument")


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ({"max": 0}, ">= 1"),
        ({"max": 100_000}, "<= 10000"),
        ({"wait": "10m"}, "300s"),
        ({"wait": "soon"}, "time span"),
        ({"lease": "0s"}, "1ms"),
        ({"consumr": "x"}, "did you mean 'consumer'"),
        ({"consumer": "x" * 300}, "length <= 255"),
    ],
)
async def test_a_bad_lease_is_refused(site: Site, order: dict[str, Any], words: str) -> None:
    answer = await site.client.post("/v1/topics/t/groups/default/lease", json=order)
    assert words in refused(answer, 400, "invalid_argument")


async def test_large_messages_come_in_answers_of_bounded_size(site: Site) -> None:
    for _ in range(12):
        await site.publish("large", "x" * 1_000_000)
    leased = await site.lease("large", max=12)
    assert 1 <= len(leased) <= 8
    rest = await site.lease("large", max=12)
    assert len(leased) + len(rest) == 12
    assert (await site.group("large"))["redelivered"] == 0
