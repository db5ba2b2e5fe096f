"""The server about itself: health, readiness, metrics, the OpenAPI document and whether it is true."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.broker.metrics import FAMILIES, Metrics
from headrace.config import MetricsConfig
from headrace.errors import StorageFailed
from headrace.frontends.http.table import all_routes
from integration.http_site import Site, http_site, refused
from integration.server_process import ServerProcess
from integration.server_thread import ServerThread


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with http_site() as opened:
        yield opened


# -- health and readiness ----------------------------------------------------------------------------------------------


@pytest.mark.feature("F210")
async def test_a_server_is_alive_and_ready(site: Site) -> None:
    for path, status in (("/health", "ok"), ("/ready", "ready")):
        answer = await site.client.get(path)
        assert (answer.status_code, answer.json()) == (200, {"status": status})


async def test_a_draining_server_is_alive_and_not_ready(site: Site) -> None:
    site.door.draining = True
    answer = await site.client.get("/ready")
    assert (answer.status_code, answer.json()) == (503, {"status": "draining"})
    assert (await site.client.get("/health")).status_code == 200


async def test_a_failed_storage_is_said_by_both(site: Site) -> None:
    site.broker.host.failure = StorageFailed("fdatasync of 000017.journal: Input/output error")
    for path in ("/health", "/ready"):
        answer = await site.client.get(path)
        assert answer.status_code == 503
        assert answer.json() == {"status": "failed", "reason": "fdatasync of 000017.journal: Input/output error"}
    site.broker.host.failure = None


# -- metrics -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    thread = ServerThread(http_port=0)
    yield thread
    thread.stop()


@pytest.fixture
def client(server: ServerThread) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{server.server.addresses['http']}", timeout=60, trust_env=False) as opened:
        yield opened


@pytest.mark.feature("F211", "F233", "F234", "F235", "F236", "F237", "F238", "F239", "F240", "F241")
def test_what_happened_is_counted_under_both_names(client: httpx.Client) -> None:
    topic = "/v1/topics/counted"
    client.put(topic, json={"settings": {"retry.max_retries": 1}}).raise_for_status()
    client.post(f"{topic}/messages", json={"messages": [{"value": str(n)} for n in range(10)]}).raise_for_status()
    leased = client.post(f"{topic}/groups/default/lease", json={"max": 6, "consumer": "c"}).json()["deliveries"]
    receipts = [one["receipt"] for one in leased]
    nack = {"receipt": receipts[3], "delay": "0s"}
    order = {"ack": receipts[:3], "nack": [nack], "reject": [receipts[4]]}
    client.post(f"{topic}/groups/default/settle", json=order).raise_for_status()
    more = client.post(f"{topic}/groups/default/lease", json={"max": 10, "wait": "20s"}).json()["deliveries"]
    order = {"nack": [one["receipt"] for one in more if one["attempt"] == 2]}
    client.post(f"{topic}/groups/default/settle", json=order).raise_for_status()
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.text))
    samples = {
        (sample.name, *(f"{k}={v}" for k, v in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }
    ours = ("group=default", "namespace=default", "topic=counted")
    assert samples["headrace_published_total", "namespace=default", "topic=counted"] == 10
    assert samples[("headrace_messages", *ours[:2], "state=ready", ours[2])] == 0
    assert samples[("headrace_messages", *ours[:2], "state=leased", ours[2])] == 5
    assert samples[("headrace_delivered_total", *ours)] == 11
    assert samples[("headrace_acked_total", *ours)] == 3
    assert samples[("headrace_nacked_total", *ours)] == 2, "the one that killed, too"
    assert samples[("headrace_dead_total", *ours[:2], "reason=max_retries", ours[2])] == 1
    assert samples[("headrace_dead_total", *ours[:2], "reason=rejected", ours[2])] == 1
    assert samples[("headrace_group_lag", *ours)] == 5
    assert samples["headrace_books_drift",] == 0
    assert samples["headrace_commits_total",] >= 2
    assert samples["headrace_connections", "door=http"] >= 1
    assert samples["headrace_resident_memory_bytes",] > 1_000_000
    assert samples["mqtt_queue_depth", "queue=counted"] == 5
    assert samples["mqtt_queue_enqueue_total", "queue=counted"] == 10
    assert samples["mqtt_queue_dequeue_total", "queue=counted"] == 11
    assert samples["mqtt_queue_ack_total", "queue=counted"] == 3
    assert samples["mqtt_queue_nack_total", "queue=counted"] == 2
    assert samples["mqtt_queue_dlq_total", "queue=counted", "reason=max_retries"] == 1
    assert ("mqtt_queue_active_consumers", "group=default", "queue=counted") in samples
    assert ("mqtt_queue_delivery_latency_seconds", "quantile=0.5", "queue=counted") in samples
    assert ("mqtt_queue_delivery_latency_seconds", "quantile=0.99", "queue=counted") in samples
    latency = [key for key in samples if key[0] == "headrace_delivery_latency_seconds_bucket"]
    assert latency
    assert {family.name.removesuffix("_total") for family in families} <= {
        name.removesuffix("_total") for name in FAMILIES
    }


@pytest.mark.feature("F242")
async def test_metrics_can_be_switched_off_and_their_interval_set(site: Site) -> None:
    assert "metrics.enabled" in refused(await site.client.get("/metrics"), 404, "invalid_argument")
    assert MetricsConfig(enabled=False, interval_ns=5_000_000_000).interval_ns == 5_000_000_000


def test_a_server_without_metrics_says_so() -> None:
    thread = ServerThread(http_port=0, metrics=MetricsConfig(enabled=False))
    try:
        answer = httpx.get(f"http://{thread.server.addresses['http']}/metrics", trust_env=False)
        assert answer.status_code == 404
    finally:
        thread.stop()


async def test_a_scrape_of_many_topics_lets_others_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told by turns and not by time: a request that came while a scrape was going on is answered before it ends."""
    async with http_site() as site:
        object.__setattr__(site.door.site, "metrics", Metrics(site.broker.broker))
        for number in range(200):
            await site.broker.call("topic.ensure", {"topic": f"t{number}"})
        scraper, other = await site.raw(), await site.raw()
        order: list[str] = []
        note = site.door.note_answer
        monkeypatch.setattr(site.door, "note_answer", lambda r, s: (order.append(r.path.decode()), note(r, s)))
        scraper.send(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        other.send(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert (await other.answer()).status == 200
        answer = await scraper.answer()
        assert answer.body.count(b"headrace_group_lag{") == 200
        assert order[-1] == "/metrics"
        for raw in (scraper, other):
            await raw.close()


# -- the document ------------------------------------------------------------------------------------------------------


def test_the_document_has_every_route_and_nothing_else(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    told = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert told == {(route.method, route.path) for route in all_routes()}
    names = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(names) == len(set(names))
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert references <= set(document["components"]["schemas"])
    parameters = document["paths"]["/v1/topics/{topic}/messages"]["get"]["parameters"]
    [values] = [one for one in parameters if one["name"] == "values"]
    form = document["components"]["schemas"]["MessagesQuery"]["properties"]["values"]
    assert values["description"] == form["description"] != "", "what a field means stands in both"


SURFACE = """
GET /health
GET /ready
GET /metrics
GET /openapi.json
POST /enqueue
GET /dequeue
POST /ack
POST /nack
POST /v1/topics/{topic}/messages
GET /v1/topics/{topic}/messages
POST /v1/topics/{topic}/groups/{group}/lease
POST /v1/topics/{topic}/groups/{group}/settle
GET /v1/topics
POST /v1/topics
GET /v1/topics/{topic}
PUT /v1/topics/{topic}
PATCH /v1/topics/{topic}
DELETE /v1/topics/{topic}
GET /v1/topics/{topic}/config
PUT /v1/topics/{topic}/config
PATCH /v1/topics/{topic}/config
GET /v1/topics/{topic}/stats
POST /v1/topics/{topic}/purge
GET /v1/topics/{topic}/schedule
GET /v1/topics/{topic}/dead-letters
POST /v1/topics/{topic}/redrive
GET /v1/topics/{topic}/groups
POST /v1/topics/{topic}/groups
GET /v1/topics/{topic}/groups/{group}
DELETE /v1/topics/{topic}/groups/{group}
POST /v1/topics/{topic}/groups/{group}/seek
POST /v1/topics/{topic}/groups/{group}/pause
POST /v1/topics/{topic}/groups/{group}/resume
GET /v1/messages/{id}/trace
GET /v1/messages/{id}/explain
POST /v1/topics/{topic}/publish
"""


def test_the_routes_that_others_rely_on_are_there(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    for line in SURFACE.split("\n")[1:-1]:
        method, path = line.split(" ")
        assert method.lower() in paths[path], line
        if path.startswith("/v1/"):
            assert method.lower() in paths["/v1/namespaces/{namespace}/" + path.removeprefix("/v1/")], line


# -- is it true --------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", ["/v1/namespaces", "others"])
def test_the_document_is_true(data_dir: Path, tmp_path: Path, part: str) -> None:
    """A tester reads the document and sends thousands of right and wrong requests to a server process: nothing that
    comes back may be an internal error, a status, type or form the document lacks, or a wrong request taken."""
    server = ServerProcess(data_dir, doors=("http",))
    try:
        base = f"http://{server.ready()['http']}"
        document = httpx.get(f"{base}/openapi.json", trust_env=False).json()
        document["paths"] = {
            path: item
            for path, item in document["paths"].items()
            if path.startswith("/v1/namespaces") == (part == "/v1/namespaces") and not path.endswith(ENDLESS)
        }
        told = tmp_path / "openapi.json"
        told.write_text(json.dumps(document).replace('"30s"', '"1ms"'))  # an example of a wait, which would be waited
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", str(told), "--url", base, "--no-color"),
                *("--phases", "examples,coverage,fuzzing", "--max-examples", "5", "--seed", "1"),
                # a request of the right form may still name a topic that does not exist
                *("--exclude-checks", "positive_data_acceptance", "--request-timeout", "60"),
                *("--continue-on-failure", "--generation-deterministic"),
            ],
            cwd=tmp_path,
            env={**os.environ, "NO_PROXY": "*", "SCHEMATHESIS_HOOKS": ""},
            capture_output=True,
            text=True,
            timeout=570,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        generated = re.search(r"([0-9,]+) generated", done.stdout)
        assert generated is not None
        assert int(generated[1].replace(",", "")) > 500, done.stdout[-2000:]
        assert httpx.get(f"{base}/health", trust_env=False).json() == {"status": "ok"}
        assert server.stop() == 0
        assert not [line for line in server.rest() if line.get("level") == "error"]
    finally:
        if server.process.poll() is None:
            server.kill()


ENDLESS = "/events"
