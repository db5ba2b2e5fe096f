"""Topics, groups, namespaces, schedules, dead letters over HTTP: everything that is not the hot path."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from integration.http_site import Site, http_site, refused


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with http_site() as opened:
        yield opened


async def call(site: Site, method: str, path: str, body: Any = None, status: int = 200) -> Any:
    answer = await site.client.request(method, path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


# -- topics ------------------------------------------------------------------------------------------------------------


async def test_a_topic_is_made_shown_changed_and_deleted(site: Site) -> None:
    settings = {"partitions": 4, "retry": {"max_retries": 3}, "lease": "1m"}
    made = await call(site, "POST", "/v1/topics", {"topic": "orders/eu", "settings": settings}, 201)
    assert (made["partitions"], made["groups"], made["depth"]) == (4, ["default"], 0)
    assert await call(site, "GET", "/v1/topics/orders%2Feu") == made
    assert await call(site, "GET", "/v1/topics") == {"topics": [made]}
    again = await site.client.post("/v1/topics", json={"topic": "orders/eu"})
    refused(again, 409, "already_exists")
    ensured = await call(site, "PUT", "/v1/topics/orders%2Feu", {"settings": {"lease": "1m"}})
    assert ensured == made, "it is there, with that"
    other = await site.client.put("/v1/topics/orders%2Feu", json={"settings": {"lease": "2m"}})
    assert "lease" in refused(other, 409, "duplicate_conflict")
    changed = await call(site, "PATCH", "/v1/topics/orders%2Feu", {"settings": {"retry.max_retries": 9}})
    assert (changed["settings"]["retry"]["max_retries"], changed["settings"]["lease"]) == (9, "1m")
    config = await call(site, "PUT", "/v1/topics/orders%2Feu/config", {"lease": "5s"})
    assert (config["lease"], config["retry"]["max_retries"]) == ("5s", 9)
    assert await call(site, "GET", "/v1/topics/orders%2Feu/config") == config
    assert (await call(site, "PATCH", "/v1/topics/orders%2Feu/config", {"lease": "6s"}))["lease"] == "6s"
    assert await call(site, "DELETE", "/v1/topics/orders%2Feu") == {"deleted": "orders/eu"}
    refused(await site.client.get("/v1/topics/orders%2Feu"), 404, "unknown_topic")


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("POST", "/v1/topics", {"topic": "a", "settings": {"partitons": 3}}, "partitions"),
        ("POST", "/v1/topics", {"topic": "a", "settings": {"partitions": 0}}, "partitions"),
        ("POST", "/v1/topics", {"topic": "a", "settings": {"lease": "30"}}, "30s"),
        ("POST", "/v1/topics", {"topic": "a", "settings": {"retry": {"max_retrys": 1}}}, "max_retries"),
        ("POST", "/v1/topics", {"topic": ""}, "length >= 1"),
        ("POST", "/v1/topics", {"topic": "x" * 256}, "length <= 255"),
        ("POST", "/v1/topics", {"topic": "a\u0000b"}, "control"),
        ("POST", "/v1/topics", {"topic": "a", "setings": {}}, "did you mean 'settings'"),
        ("POST", "/v1/topics", {}, "topic"),
        ("PUT", "/v1/topics/%2B", {}, "+"),
        ("PUT", "/v1/topics/$SYS", {}, "$"),
        ("PUT", "/v1/topics/a%00b", {}, "control"),
        ("PUT", "/v1/topics/" + "x" * 256, {}, "255"),
        ("PUT", "/v1/namespaces/a%2F%23b/topics/a", {}, "#"),
    ],
)
async def test_a_bad_topic_is_refused_and_not_made(site: Site, method: str, path: str, body: Any, words: str) -> None:
    answer = await site.client.request(method, path, json=body)
    assert words in refused(answer, 400, "invalid_argument")
    assert await call(site, "GET", "/v1/topics") == {"topics": []}


CLIMBING = ("../../etc/passwd", "..", "/etc/passwd", "a/../../b", "..\\..\\boot.ini", "%2e%2e", "C:\\x", "~root")


async def test_a_name_is_never_a_path(site: Site) -> None:
    """Names may look like paths: they are stored as text, and lead nowhere."""
    from urllib.parse import quote

    for name in CLIMBING:
        spelled = quote(name, safe="").replace(".", "%2E")
        await call(site, "PUT", f"/v1/topics/{spelled}", {})
        assert (await call(site, "GET", f"/v1/topics/{spelled}"))["topic"] == name
    assert sorted(one["topic"] for one in (await call(site, "GET", "/v1/topics"))["topics"]) == sorted(CLIMBING)


@pytest.mark.feature("F224", "F225")
async def test_a_topic_is_purged_of_what_waits_for_one_group_or_of_everything(site: Site) -> None:
    await site.publish("orders", "a", "b", "c")
    await call(site, "POST", "/v1/topics/orders/groups", {"group": "audit"}, 201)
    assert await call(site, "POST", "/v1/topics/orders/purge", {"group": "default"}) == {"dropped": 3}
    assert await site.lease("orders") == []
    assert len(await site.lease("orders", "audit", max=2)) == 2
    assert (await call(site, "GET", "/v1/topics/orders"))["depth"] == 3
    await call(site, "POST", "/v1/topics/orders/purge")
    assert (await call(site, "GET", "/v1/topics/orders"))["depth"] == 2, "what is leased is its consumer's"


async def test_offsets_are_found_by_time(site: Site) -> None:
    await site.publish("orders", "a", "b")
    answer = await call(site, "GET", "/v1/topics/orders/offsets?time=2020-01-01T00:00:00Z")
    assert [(one["start"], one["end"], one["at"]) for one in answer["partitions"]] == [(0, 2, 0)]
    answer = await call(site, "GET", "/v1/topics/orders/offsets")
    assert "at" not in answer["partitions"][0]
    refused(await site.client.get("/v1/topics/orders/offsets?time=yesterday"), 400, "invalid_argument")


# -- groups ------------------------------------------------------------------------------------------------------------


async def test_a_group_is_made_changed_paused_moved_and_deleted(site: Site) -> None:
    await site.publish("orders", "a", "b", "c")
    path = "/v1/topics/orders/groups"
    made = await call(site, "POST", path, {"group": "billing", "settings": {"lease": "10s"}}, 201)
    assert (made["group"], made["ready"], made["lag"], made["drift"]) == ("billing", 3, 3, 0)
    refused(await site.client.post(path, json={"group": "billing"}), 409, "already_exists")
    late = await call(site, "POST", path, {"group": "late", "start": "latest"}, 201)
    assert late["ready"] == 0
    third = await call(site, "POST", path, {"group": "third", "start": {"offsets": {"0": 2}}}, 201)
    assert third["ready"] == 1
    timed = await call(site, "POST", path, {"group": "timed", "start": {"time": "2020-01-01T00:00:00Z"}}, 201)
    assert timed["ready"] == 3
    names = [one["group"] for one in (await call(site, "GET", path))["groups"]]
    assert sorted(names) == ["billing", "default", "late", "third", "timed"]
    changed = await call(site, "PATCH", f"{path}/billing", {"settings": {"max_in_flight": 2}})
    assert (changed["settings"]["max_in_flight"], changed["settings"]["lease"]) == (2, "10s")
    assert (await call(site, "PUT", f"{path}/billing", {"settings": {"lease": "20s"}}))["settings"]["lease"] == "20s"
    paused = await call(site, "POST", f"{path}/billing/pause", {"why": "deploy", "until": "2099-01-01T00:00:00Z"})
    assert (paused["paused"]["why"], paused["paused"]["until"]) == ("deploy", "2099-01-01T00:00:00Z")
    assert await site.lease("orders", "billing") == []
    resumed = await call(site, "POST", f"{path}/billing/resume")
    assert resumed["paused"] is None
    leased = await site.lease("orders", "billing", max=10)
    assert len(leased) == 2, "max_in_flight"
    await site.settle("orders", "billing", ack=[one["receipt"] for one in leased])
    moved = await call(site, "POST", f"{path}/billing/seek", {"start": "earliest"})
    assert moved["ready"] == 3
    moved = await call(site, "POST", f"{path}/billing/seek", {"start": {"offsets": {"0": 1}}, "until": {"0": 2}})
    assert moved["ready"] == 1
    assert await call(site, "DELETE", f"{path}/billing") == {"deleted": "billing"}
    refused(await site.client.get(f"{path}/billing"), 404, "unknown_group")


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "words"),
    [
        ("/v1/topics/orders/groups", {"group": "g", "start": "sometime"}, 400, "invalid_argument", "start"),
        ("/v1/topics/orders/groups", {"group": "g", "start": {"offset": 3}}, 400, "invalid_argument", "offsets"),
        ("/v1/topics/orders/groups", {"group": "g", "settings": {"leese": "1s"}}, 400, "invalid_argument", "lease"),
        ("/v1/topics/orders/groups", {"group": "g/#"}, 400, "invalid_argument", "#"),
        ("/v1/topics/orders/groups/nobody/seek", {}, 404, "unknown_group", "nobody"),
        ("/v1/topics/orders/groups/nobody/pause", {}, 404, "unknown_group", "nobody"),
        ("/v1/topics/orders/groups/default/pause", {"until": "soon"}, 400, "invalid_argument", "until"),
    ],
)
async def test_a_bad_group_is_refused(site: Site, path: str, body: Any, status: int, code: str, words: str) -> None:
    await site.publish("orders", "a")
    assert words in refused(await site.client.post(path, json=body), status, code)


@pytest.mark.feature("N05")
@pytest.mark.parametrize("space", ["/v1", "/v1/namespaces/team-a"])
async def test_what_a_worker_acked_is_handed_out_once_more(site: Site, space: str) -> None:
    path = f"{space}/topics/orders/groups/billing"
    await call(site, "PUT", f"{space}/topics/orders", {})
    await call(site, "POST", f"{space}/topics/orders/groups", {"group": "billing"}, 201)
    messages = [{"value": str(i), "key": f"k{i}", "headers": {"region": "eu"}} for i in range(6)]
    results = (await call(site, "POST", f"{space}/topics/orders/messages", {"messages": messages}))["results"]

    async def lease(group: str = path, **order: Any) -> list[Any]:
        return list((await call(site, "POST", f"{group}/lease", order))["deliveries"])

    before = datetime.now(UTC).isoformat()
    for consumer, count in (("id", 4), ("worker-2", 1)):
        done = await lease(max=count, consumer=consumer)
        await call(site, "POST", f"{path}/settle", {"ack": [one["receipt"] for one in done]})
    [bad] = await lease(consumer="worker-2")
    await call(site, "POST", f"{path}/settle", {"reject": [{"receipt": bad["receipt"], "error": "no such customer"}]})
    assert await lease(max=10) == []

    dry = await call(site, "POST", f"{path}/replay", {"where": {"consumer": "id"}, "dry_run": True})
    assert dry == {
        "topic": "orders",
        "group": "billing",
        "to": None,
        "dry_run": True,
        "matched": 4,
        "redriven": 0,
        "left": 0,
        "by_consumer": {"id": 4},
        "by_reason": {},
        "by_partition": {"0": 4},
        "sample": [one["id"] for one in results[:4]],
    }
    for where, count in (
        ({}, 5),
        ({"outcome": "dead"}, 1),
        ({"outcome": "dead", "error": "no such"}, 1),
        ({"outcome": "dead", "reason": "max_retries"}, 0),
        ({"outcome": "delivered"}, 6),
        ({"outcome": "dead", "min_attempts": 1}, 1),
        ({"outcome": "dead", "min_attempts": 2}, 0),
        ({"key_prefix": "k3"}, 1),
        ({"header": "region"}, 5),
        ({"header": {"region": "us"}}, 0),
        ({"ids": [results[0]["id"], results[5]["id"]]}, 1),
        ({"from_time": before}, 5),
        ({"to_time": before}, 0),
    ):
        report = await call(site, "POST", f"{path}/replay", {"where": where, "dry_run": True})
        assert (report["matched"], report["redriven"]) == (count, 0), where
    assert await lease(max=10) == [], "until now that was only talk"

    report = await call(site, "POST", f"{path}/replay", {"where": {"consumer": "id"}, "rate": 1000})
    assert (report["matched"], report["redriven"], report["dry_run"]) == (4, 4, False)
    again = await lease(max=10)
    assert ([one["value"] for one in again], {one["attempt"] for one in again}) == (["0", "1", "2", "3"], {1})
    report = await call(site, "POST", f"{path}/replay", {"where": {"consumer": "worker-2"}, "to": "repair"})
    assert (report["redriven"], report["to"]) == (1, "repair")
    assert [one["value"] for one in await lease(f"{space}/topics/repair/groups/default", max=10)] == ["4"]


@pytest.mark.parametrize(
    ("group", "order", "status", "code", "words"),
    [
        ("default", {"where": {"outcome": "happy"}}, 400, "invalid_argument", "'happy'"),
        ("default", {"where": {"consumr": "x"}}, 400, "invalid_argument", "did you mean 'consumer'"),
        ("default", {"where": {"min_attempts": 0}}, 400, "invalid_argument", "min_attempts"),
        ("default", {"where": {"ids": ["x"]}}, 400, "invalid_argument", "x"),
        ("default", {"where": {"from_time": "yesterday"}}, 400, "invalid_argument", "from_time"),
        ("default", {"rate": 0}, 400, "invalid_argument", "rate"),
        ("default", {"dryrun": True}, 400, "invalid_argument", "did you mean 'dry_run'"),
        ("nobody", {}, 404, "unknown_group", "nobody"),
    ],
)
async def test_a_bad_replay_is_refused(site: Site, group: str, order: Any, status: int, code: str, words: str) -> None:
    await site.publish("orders", "a")
    answer = await site.client.post(f"/v1/topics/orders/groups/{group}/replay", json=order)
    assert words in refused(answer, status, code)
    gone = await site.client.post("/v1/topics/nothing/groups/default/replay", json={})
    refused(gone, 404, "unknown_topic")


@pytest.mark.feature("N02")
async def test_limits_of_a_group_are_changed_while_it_runs(site: Site) -> None:
    path = "/v1/topics/jobs/groups/default"
    await site.publish("jobs", *[str(number) for number in range(40)])
    await call(site, "PATCH", path, {"settings": {"limits": {"concurrency": 5}}})
    first = await site.lease("jobs", max=100)
    assert len(first) == 5
    assert await site.lease("jobs", max=100) == []
    reasons = (await call(site, "GET", f"/v1/messages/{await waiting(site)}/explain"))["reasons"]
    assert "concurrency" in [reason["code"] for reason in reasons]
    await call(site, "PATCH", path, {"settings": {"limits": {"concurrency": 8}}})
    assert len(await site.lease("jobs", max=100)) == 3
    await site.settle("jobs", ack=[one["receipt"] for one in first])
    assert len(await site.lease("jobs", max=100)) == 5
    await call(site, "PATCH", path, {"settings": {"limits": {"concurrency": "none", "rate": 3}}})
    assert len(await site.lease("jobs", max=100)) == 3
    assert (await call(site, "GET", path))["settings"]["limits"] == {"rate": 3.0}


@pytest.mark.feature("N02")
async def test_twenty_workers_never_hold_more_of_a_key_than_it_may(site: Site) -> None:
    path = "/v1/topics/jobs/groups/default"
    await call(site, "PUT", "/v1/topics/jobs", {"settings": {"ordering": "none"}})
    await call(site, "PATCH", path, {"settings": {"limits": {"key_concurrency": 5}}})
    await site.publish(
        "jobs", *[{"value": "x", "key": "busy"}] * 120, *[{"value": "y", "key": f"k{n}"} for n in range(40)]
    )
    held: Counter[str] = Counter()
    most: Counter[str] = Counter()
    done: list[str] = []
    limit = 5

    async def work(number: int) -> None:
        nonlocal limit
        while len(done) < 160:
            leased = await site.lease("jobs", max=1, wait="50ms", consumer=f"w{number}")
            for one in leased:
                held[one["key"]] += 1
                most[one["key"]] = max(most[one["key"]], held[one["key"]])
                assert held[one["key"]] <= limit
                await asyncio.sleep(0)
                held[one["key"]] -= 1
                await site.settle("jobs", ack=[one["receipt"]])
                done.append(one["key"])
                if len(done) == 90:
                    limit = 9  # before it is, so that nobody is caught between the two
                    await call(site, "PATCH", path, {"settings": {"limits.key_concurrency": 9}})

    await asyncio.gather(*(work(number) for number in range(20)))
    assert done.count("busy") == 120
    assert max(done.index(f"k{n}") for n in range(40)) < 120, "the others did not wait for the busy one"
    [kept, *_] = await site.publish("jobs", *[{"value": "x", "key": "busy"}] * 10)
    await call(site, "PATCH", path, {"settings": {"limits": {"key_concurrency": 1, "key_rate": 100}}})
    assert len(await site.lease("jobs", max=10)) == 1
    explained = await call(site, "GET", f"/v1/messages/{int(kept['id']) + 5}/explain")
    assert [reason["code"] for reason in explained["reasons"] if reason["code"] != "no_consumer"] == ["key_concurrency"]


async def waiting(site: Site) -> str:
    """A message of the topic ``jobs`` that is ready and cannot be had."""
    rows = await call(site, "GET", "/v1/topics/jobs/messages?state=ready&limit=1")
    return str(rows["messages"][0]["id"])


# -- namespaces --------------------------------------------------------------------------------------------------------


@pytest.mark.feature("F159", "F160")
async def test_quotas_are_changed_while_it_runs_and_say_when_to_come_back(site: Site) -> None:
    space = "/v1/namespaces/team-a"
    answer = await call(site, "PUT", space, {"settings": {"quota": {"messages_per_minute": 3, "topics": 1}}})
    assert answer["settings"]["quota"]["messages_per_minute"] == 3
    publish = f"{space}/topics/orders/messages"
    assert (await site.client.post(publish, json={"messages": [{"value": "x"}] * 3})).status_code == 200
    over = await site.client.post(publish, json={"messages": [{"value": "x"}]})
    assert "3 messages a minute" in refused(over, 429, "quota_exceeded")
    assert 1 <= int(over.headers["retry-after"]) <= 60
    assert 0 < over.json()["error"]["retry_after_ms"] <= 60_000
    too_many = await site.client.post(publish, json={"messages": [{"value": "x"}] * 4})
    refused(too_many, 422, "limit_exceeded")
    second = await site.client.put(f"{space}/topics/more", json={})
    refused(second, 429, "quota_exceeded")
    assert (await site.client.post("/v1/topics/orders/messages", json={"messages": [{}] * 9})).status_code == 200
    await call(site, "PATCH", space, {"settings": {"quota.messages_per_minute": 100, "quota.topics": "none"}})
    assert (await site.client.post(publish, json={"messages": [{"value": "x"}]})).status_code == 200
    await call(site, "PUT", f"{space}/topics/more", {})
    shown = await call(site, "GET", space)
    assert (shown["topics"], shown["settings"]["quota"]["topics"]) == (2, "none")
    assert (await call(site, "GET", "/v1/namespaces"))["namespaces"] == ["default", "team-a"]
    bad = await site.client.patch(space, json={"settings": {"quota.message_per_minute": 1}})
    assert "quota.messages_per_minute" in refused(bad, 400, "invalid_argument")


async def test_bytes_are_a_quota_too(site: Site) -> None:
    await call(site, "PATCH", "/v1/namespaces/default", {"settings": {"quota": {"bytes_per_minute": "2KB"}}})
    await site.publish("orders", "x" * 1500)
    answer = await site.client.post("/v1/topics/orders/messages", json={"messages": [{"value": "x" * 1500}]})
    assert "bytes" in refused(answer, 429, "quota_exceeded")
    assert "retry-after" in answer.headers


# -- schedules ---------------------------------------------------------------------------------------------------------


async def test_what_is_scheduled_is_listed_moved_and_cancelled(site: Site) -> None:
    when = "2099-01-01T00:00:00Z"
    await call(site, "PUT", "/v1/topics/reminders", {"settings": {"max_delay": "none"}})
    first, second, third = await site.publish(
        "reminders",
        {"value": "a", "deliver_at": when, "key": "k"},
        {"value": "b", "delay": "1h", "headers": {"tag": "campaign"}},
        {"value": "c", "delay": "2h"},
    )
    path = "/v1/topics/reminders/schedule"
    found = await call(site, "GET", path)
    assert (found["scheduled"], [one["value"] for one in found["messages"]]) == (3, ["b", "c", "a"])
    one = await call(site, "GET", f"{path}/{first['id']}")
    assert (one["value"], one["due_at"], one["key"]) == ("a", when, "k")
    moved = await call(site, "POST", f"{path}/move", {"ids": [first["id"]], "deliver_at": "2098-01-01T00:00:00Z"})
    assert moved == {"moved": 1, "due_at": "2098-01-01T00:00:00Z"}
    assert await call(site, "POST", f"{path}/cancel", {"tag": "campaign"}) == {"cancelled": 1}
    assert await call(site, "DELETE", f"{path}/{third['id']}") == {"cancelled": 1}
    assert (await call(site, "GET", f"{path}?limit=1"))["scheduled"] == 1
    assert (await call(site, "POST", f"{path}/move", {"key": "k", "delay": "0s"}))["moved"] == 1
    [due] = await site.lease("reminders", wait="10s")
    assert due["value"] == "a"
    refused(await site.client.post(f"{path}/cancel", json={}), 400, "invalid_argument")
    refused(await site.client.post(f"{path}/cancel", json={"ids": ["x"]}), 400, "invalid_argument")
    refused(await site.client.get(f"{path}/{second['id']}"), 400, "invalid_argument")


# -- dead letters ------------------------------------------------------------------------------------------------------


async def test_dead_letters_are_found_looked_at_redriven_and_purged(site: Site) -> None:
    await site.publish("orders", *[{"value": str(i), "key": f"k{i}", "headers": {"region": "eu"}} for i in range(6)])
    leased = await site.lease("orders", max=6, consumer="worker-7")
    errors = ["timeout"] * 4 + ["bad"] * 2
    await site.settle(
        "orders",
        reject=[{"receipt": one["receipt"], "error": error} for one, error in zip(leased, errors, strict=True)],
    )
    path = "/v1/topics/orders/dead-letters"
    assert len((await call(site, "GET", path))["dead_letters"]) == 6
    for query, count in (
        ("error=timeout", 4),
        ("reason=rejected", 6),
        ("reason=max_retries", 0),
        ("key_prefix=k5", 1),
        ("header=region=eu", 6),
        ("header=region=us", 0),
        ("consumer=worker-7&limit=2", 2),
        ("from_time=2099-01-01T00:00:00Z", 0),
    ):
        assert len((await call(site, "GET", f"{path}?{query}"))["dead_letters"]) == count, query
    first = (await call(site, "GET", path))["dead_letters"][0]
    shown = await call(site, "GET", f"{path}/{first['id']}")
    assert (shown["value"], shown["error"], shown["attempts"]) == ("0", "timeout", 1)
    assert shown["origin"] == {
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "id": leased[0]["id"],
        "group": "default",
    }
    dry = await call(site, "POST", "/v1/topics/orders/redrive", {"where": {"error": "timeout"}, "dry_run": True})
    assert (dry["matched"], dry["redriven"], dry["by_error"]) == (4, 0, {"timeout": 4})
    done = await call(site, "POST", "/v1/topics/orders/redrive", {"where": {"error": "timeout"}, "rate": 1000})
    assert (done["matched"], done["redriven"]) == (4, 4)
    assert len(await site.lease("orders", max=10)) == 4
    other = await call(site, "POST", "/v1/topics/orders/redrive", {"where": {"key_prefix": "k5"}, "to": "other"})
    assert (other["redriven"], other["to"]) == (1, "other")
    assert [one["value"] for one in await site.lease("other")] == ["5"]
    assert await call(site, "POST", f"{path}/purge", {"where": {"error": "bad"}}) == {"dropped": 1}
    assert (await call(site, "GET", path))["dead_letters"] == []
    refused(await site.client.post("/v1/topics/orders/redrive", json={"where": {"eror": "x"}}), 400, "invalid_argument")
    refused(await site.client.get("/v1/topics/orders/redrive"), 405, "invalid_argument")


# -- one message -------------------------------------------------------------------------------------------------------


async def test_a_message_is_traced_and_explained(site: Site) -> None:
    [result] = await site.publish("orders", {"value": "x", "key": "k"})
    [one] = await site.lease("orders", consumer="me")
    explained = await call(site, "GET", f"/v1/messages/{result['id']}/explain")
    assert explained["state"] == "leased"
    await site.settle("orders", ack=[one["receipt"]])
    trace = await call(site, "GET", f"/v1/messages/{result['id']}/trace")
    assert [event["event"] for event in trace["events"]] == ["PUBLISHED", "DELIVERED", "ACKED", "RETAINED"]
    assert trace["events"][1]["consumer"] == "me"
    assert (await call(site, "GET", f"/v1/messages/{result['id']}/explain?group=default"))["state"] == "acked"
    refused(await site.client.get("/v1/messages/7/trace"), 400, "invalid_argument")
    refused(await site.client.get("/v1/messages/x/trace"), 400, "invalid_argument")
    refused(await site.client.get(f"/v1/messages/{result['id']}/explain?group=nobody"), 404, "unknown_group")
    elsewhere = await site.client.get(f"/v1/namespaces/other/messages/{result['id']}/trace")
    refused(elsewhere, 400, "invalid_argument")
