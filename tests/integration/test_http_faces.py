"""The same calls by the names that people bring from elsewhere: /enqueue and its like, and /api/v1/queues."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from integration.http_site import Site, http_site, refused


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with http_site() as opened:
        yield opened


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def enqueue(site: Site, *items: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await site.client.post("/enqueue", json=list(items))
    assert answer.status_code == 200, answer.text
    return list(answer.json()["results"])


async def dequeue(site: Site, query: str) -> list[dict[str, Any]]:
    answer = await site.client.get(f"/dequeue?{query}")
    assert answer.status_code == 200, answer.text
    return list(answer.json())


# -- /enqueue, /dequeue, /ack, /nack -----------------------------------------------------------------------------------


@pytest.mark.feature("F207", "F208", "F209", "F002", "F008")
async def test_items_are_enqueued_dequeued_and_acked(site: Site) -> None:
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    results = await enqueue(
        site,
        {"namespace": "team-a", "topic": "orders", "priority": 9, "payload": b64("last")},
        {"namespace": "team-a", "topic": "orders", "priority": 1, "payload": b64("first"), "headers": {"a": "1"}},
        {"namespace": "team-a", "topic": "orders", "payload": b64("not yet"), "deliver_after": later},
        {"namespace": "team-b", "topic": "orders", "payload": b64("elsewhere")},
    )
    assert len({result["id"] for result in results}) == 4, "in the order of the items, over topics and namespaces"
    found = await dequeue(site, "namespace=team-a&topic=orders&limit=10")
    assert [base64.b64decode(one["payload"]) for one in found] == [b"first", b"last"]
    assert [one["id"] for one in found] == [results[1]["id"], results[0]["id"]]
    assert (found[0]["priority"], found[0]["headers"], found[0]["attempt"]) == (1, {"a": "1"}, 1)
    for one in found:
        body = {"id": one["id"], "namespace": "team-a", "topic": "orders"}
        assert (await site.client.post("/ack", json=body)).json() == {"settled": 1}
    assert await dequeue(site, "namespace=team-a&topic=orders") == []
    assert len(await dequeue(site, "namespace=team-b&topic=orders&limit=10")) == 1


@pytest.mark.feature("F209")
async def test_an_item_can_be_nacked_by_id_or_receipt_and_comes_again(site: Site) -> None:
    await enqueue(site, {"topic": "jobs", "payload": b64("x")})
    [one] = await dequeue(site, "topic=jobs")
    answer = await site.client.post("/nack", json={"topic": "jobs", "id": int(one["id"]), "delay": "0s", "error": "no"})
    assert answer.json() == {"settled": 1}
    [again] = await dequeue(site, "topic=jobs")
    assert (again["id"], again["attempt"]) == (one["id"], 2)
    answer = await site.client.post("/nack", json={"topic": "jobs", "receipt": again["receipt"], "delay": "0s"})
    assert answer.json() == {"settled": 1}
    [third] = await dequeue(site, "topic=jobs")
    trace = (await site.client.get(f"/v1/messages/{one['id']}/trace")).json()
    assert [event.get("error") for event in trace["events"] if event["event"] == "NACKED"] == ["no", None]
    assert third["attempt"] == 3


async def test_an_id_that_was_forgotten_is_looked_for(site: Site) -> None:
    await enqueue(site, {"topic": "jobs"}, {"topic": "jobs"})
    first, second = await dequeue(site, "topic=jobs&limit=2&group=mailers&wait=1s&lease=1m&consumer=me")
    site.door.handed_out._runs.clear()
    for one in (first, second):
        answer = await site.client.post("/ack", json={"topic": "jobs", "id": one["id"], "group": "mailers"})
        assert answer.json() == {"settled": 1}
    answer = await site.client.post("/ack", json={"topic": "jobs", "id": first["id"], "group": "mailers"})
    assert answer.json() == {"settled": 1}, "a second ack says yes"


@pytest.mark.parametrize(
    ("path", "body", "code", "words"),
    [
        ("/enqueue", [], "invalid_argument", "length >= 1"),
        ("/enqueue", {"topic": "t"}, "invalid_argument", "Expected `array`"),
        ("/enqueue", [{"payload": "aaaa"}], "invalid_argument", "missing required field `topic`"),
        ("/enqueue", [{"topic": "t", "payload": "!"}], "invalid_argument", "base64"),
        ("/enqueue", [{"topic": "t", "priority": 10}], "invalid_argument", "priority"),
        ("/enqueue", [{"topic": "t", "playload": ""}], "invalid_argument", "did you mean 'payload'"),
        ("/enqueue", [{"topic": "t", "deliver_after": "tomorrow"}], "invalid_argument", "deliver_after"),
        ("/enqueue", [{"topic": "a/#"}], "invalid_argument", "#"),
        ("/enqueue", [{"topic": "t"}, {"topic": "../+"}], "invalid_argument", "+"),
        ("/ack", {"topic": "t"}, "invalid_argument", "name the item"),
        ("/ack", {"id": "1", "topic": "nobody"}, "unknown_topic", "nobody"),
        ("/nack", {"id": -1, "topic": "t"}, "invalid_argument", "id"),
        ("/nack", {"receipt": "x", "topic": "t"}, "invalid_argument", "receipt"),
    ],
)
async def test_what_is_wrong_with_an_item_is_said_and_nothing_stored(
    site: Site, path: str, body: Any, code: str, words: str
) -> None:
    answer = await site.client.post(path, json=body)
    assert words in refused(answer, 404 if code == "unknown_topic" else 400, code)
    topics = (await site.client.get("/v1/topics")).json()["topics"]
    assert sum(topic["published"] for topic in topics) == 0


async def test_a_bad_dequeue_is_refused(site: Site) -> None:
    for query, words in (
        ("", "topic"),
        ("topic=t&limit=0", "limit"),
        ("topic=t&limit=x", "limit"),
        ("topic=t&topic=u", "twice"),
        ("topic=t&lim=3", "did you mean 'limit'"),
        ("topic=t&wait=5", "unit"),
        ("topic=%ff", "query"),
    ):
        answer = await site.client.get(f"/dequeue?{query}")
        assert answer.status_code == 400, query
        assert words in answer.json()["error"]["message"], query


@pytest.mark.feature("F212", "F011")
async def test_one_message_is_published_with_key_value_and_delay(site: Site) -> None:
    answer = await site.client.post(
        "/v1/topics/orders/publish", json={"key": "user-1", "value": b64("now"), "priority": "high", "ttl": "1h"}
    )
    [result] = answer.json()["results"]
    assert result["offset"] == 0
    answer = await site.client.post("/v1/topics/orders/publish", json={"value": b64("later"), "delay": "5m"})
    assert answer.status_code == 200
    [one] = await site.lease("orders", max=10)
    assert (one["value"], one["key"], one["priority"]) == ("now", "user-1", 1)
    [scheduled] = (await site.client.get("/v1/topics/orders/schedule")).json()["messages"]
    assert scheduled["value"] == "later"
    both = {"delay": "5m", "deliver_at": "2030-01-01T00:00:00Z"}
    refused(await site.client.post("/v1/topics/orders/publish", json=both), 400, "invalid_argument")


# -- /api/v1/queues ----------------------------------------------------------------------------------------------------

DOCUMENT = {
    "name": "$queue/tasks/image",
    "partitions": 3,
    "ordering": "partition",
    "retry_policy": {
        "max_retries": 2,
        "initial_backoff": "1s",
        "max_backoff": "1m",
        "backoff_multiplier": 3.0,
        "total_timeout": "1h",
    },
    "dlq_config": {"enabled": True, "topic": "$queue/dlq/tasks/image", "alert_webhook": "http://127.0.0.1:9/alert"},
    "limits": {"max_message_size": 1048576, "max_queue_depth": 100000, "message_ttl": "7d"},
    "performance": {"delivery_timeout": "30s", "batch_size": 100},
}
SPELLINGS = ("$queue$tasks$image", "%24queue%2Ftasks%2Fimage", "tasks%2Fimage")


async def make(site: Site, **more: Any) -> dict[str, Any]:
    answer = await site.client.post("/api/v1/queues", json={**DOCUMENT, **more})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


@pytest.mark.feature("F196", "F197", "F198", "F247")
async def test_a_queue_is_made_from_its_document_and_shown_by_any_spelling(site: Site) -> None:
    made = await make(site)
    assert made["name"] == "tasks/image"
    assert (made["partitions"], made["ordering"]) == (3, "partition")
    assert made["retry_policy"] == DOCUMENT["retry_policy"]
    assert made["dlq_config"]["topic"] == "dlq/tasks/image"
    assert made["limits"]["max_queue_depth"] == 100000
    assert made["performance"]["delivery_timeout"] == "30s"
    for spelling in SPELLINGS:
        assert (await site.client.get(f"/api/v1/queues/{spelling}")).json() == made
    assert (await site.client.get("/api/v1/queues")).json() == [made]
    topic = (await site.client.get("/v1/topics/tasks%2Fimage/config")).json()
    assert (topic["ordering"], topic["retry"]["max_retries"], topic["lease"]) == ("key", 2, "30s")
    again = await site.client.post("/api/v1/queues", json={"name": "tasks/image"})
    refused(again, 409, "already_exists")


@pytest.mark.feature("F199", "F200")
async def test_a_queue_is_changed_and_deleted(site: Site) -> None:
    await make(site)
    answer = await site.client.put(
        "/api/v1/queues/$queue$tasks$image/config", json={"retry_policy": {"max_retries": 7}}
    )
    assert answer.json()["retry_policy"]["max_retries"] == 7
    assert answer.json()["retry_policy"]["max_backoff"] == "1m", "what is not named stays"
    wrong = await site.client.put("/api/v1/queues/tasks%2Fimage/config", json={"retry_policy": {"max_retrys": 7}})
    assert "did you mean 'max_retries'" in refused(wrong, 400, "invalid_argument")
    assert (await site.client.delete("/api/v1/queues/$queue$tasks$image")).status_code == 200
    for path in ("", "/stats", "/consumers", "/dlq"):
        refused(await site.client.get(f"/api/v1/queues/tasks%2Fimage{path}"), 404, "unknown_topic")


@pytest.mark.feature("F201", "F202", "F225", "F226")
async def test_a_queues_numbers_and_consumers(site: Site) -> None:
    await make(site)
    await site.publish("tasks%2Fimage", *[{"value": str(i), "key": str(i)} for i in range(10)])
    await site.publish("tasks%2Fimage", {"value": "later", "delay": "1h"})
    leased = await site.lease("tasks%2Fimage", max=4, consumer="worker-1")
    await site.settle("tasks%2Fimage", ack=[leased[0]["receipt"]], nack=[leased[1]["receipt"]])
    numbers = (await site.client.get("/api/v1/queues/$queue$tasks$image/stats")).json()
    assert numbers == {
        "name": "tasks/image",
        "depth": 10,
        "ready": 6,
        "inflight": 2,
        "scheduled": 2,
        "enqueued": 11,
        "dequeued": 4,
        "acked": 1,
        "nacked": 1,
        "dlq": 0,
        "consumers": numbers["consumers"],
    }
    consumers = (await site.client.get("/api/v1/queues/tasks%2Fimage/consumers")).json()
    assert {"group": "default", "consumer": "worker-1", "inflight": 2} in consumers


@pytest.mark.feature("F203", "F224")
async def test_a_queue_is_purged(site: Site) -> None:
    await make(site)
    await site.publish("tasks%2Fimage", "a", "b", "c")
    answer = await site.client.post("/api/v1/queues/$queue$tasks$image/purge")
    assert answer.json() == {"dropped": 3}
    assert await site.lease("tasks%2Fimage") == []


@pytest.mark.feature("F204", "F205")
async def test_a_dead_letter_is_looked_at_and_sent_back(site: Site) -> None:
    await make(site)
    await site.publish("tasks%2Fimage", {"value": "bad", "key": "k"}, {"value": "worse", "key": "l"})
    leased = await site.lease("tasks%2Fimage", max=2)
    await site.settle("tasks%2Fimage", reject=[{"receipt": one["receipt"], "error": "boom"} for one in leased])
    dead = (await site.client.get("/api/v1/queues/$queue$tasks$image/dlq")).json()["dead_letters"]
    assert sorted((one["value"], one["reason"], one["error"]) for one in dead) == [
        ("bad", "rejected", "boom"),
        ("worse", "rejected", "boom"),
    ]
    number = next(one["id"] for one in dead if one["value"] == "bad")
    report = (await site.client.post(f"/api/v1/queues/$queue$tasks$image/dlq/{number}/retry")).json()
    assert (report["matched"], report["redriven"]) == (1, 1)
    [back] = await site.lease("tasks%2Fimage", max=10)
    assert (back["value"], back["attempt"]) == ("bad", 1)
    answer = await site.client.post(f"/api/v1/queues/tasks%2Fimage/dlq/{number}/retry")
    refused(answer, 404, "invalid_argument")
    answer = await site.client.post("/api/v1/queues/tasks%2Fimage/dlq/x/retry")
    refused(answer, 400, "invalid_argument")


async def test_an_ack_all_the_way_from_one_face_to_another(site: Site) -> None:
    """What one face hands out is settled through another: they are one queue."""
    await make(site)
    await enqueue(site, {"topic": "tasks/image", "payload": b64("x")})
    [one] = await dequeue(site, "topic=tasks/image")
    assert await site.settle("tasks%2Fimage", ack=[one["receipt"]]) == {"settled": 1}
    assert (await site.client.get("/api/v1/queues/tasks%2Fimage/stats")).json()["acked"] == 1
