"""Who may do what over HTTP and natively: every route, every kind of token."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

import headrace
from headrace.broker.embedded import open_core
from headrace.errors import HeadraceError, NotAllowed
from headrace.frontends.http.routes import Route
from headrace.frontends.http.table import all_routes
from headrace.log.cold import ColdLog
from integration.access import GRANTS, Tokens, allowed
from integration.http_site import Site, http_site
from integration.native_peer import Peer, batch_of, scope_of
from integration.server_thread import ServerThread

GUARDED = [route for route in all_routes() if route.verb is not None]
OPEN = {("GET", "/health"), ("GET", "/ready"), ("GET", "/openapi.json")}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return Tokens(tmp_path_factory.mktemp("keys"))


@pytest.fixture
async def site(tokens: Tokens) -> AsyncIterator[Site]:
    async with http_site(authenticate=tokens.check) as opened:
        yield opened


def label(route: Route) -> str:
    return f"{route.method} {route.path}"


BODIES: dict[str, Any] = {
    "/enqueue": [{"topic": "orders", "payload": "eA=="}],
    "/ack": {"topic": "orders", "id": "7"},
    "/nack": {"topic": "orders", "id": "7"},
    "/api/v1/queues": {"name": "orders"},
    "messages": {"messages": [{"value": "x"}]},
    "topics": {"topic": "orders"},
    "groups": {"group": "g"},
    "move": {"ids": ["7"], "delay": "1s"},
    "cancel": {"ids": ["7"]},
}
"""A body of the right form, for the routes that need one; the others take an empty one."""


async def ask(site: Site, route: Route, token: str | None, namespace: str = "default") -> Any:
    path = route.path
    names = {"namespace": namespace, "topic": "orders", "group": "default", "queue": "orders", "id": "7"}
    for name, value in names.items():
        path = path.replace(f"{{{name}}}", value)
    if path == "/dequeue":
        path += "?topic=orders"
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    body = None
    if route.method in ("POST", "PUT", "PATCH"):
        body = BODIES.get(path, BODIES.get(path.rpartition("/")[2], {}))
    return await site.client.request(route.method, path, json=body, headers=headers)


def test_only_what_must_be_is_open() -> None:
    assert {(route.method, route.path) for route in all_routes() if route.verb is None} == OPEN


@pytest.mark.feature("F161")
@pytest.mark.parametrize("route", GUARDED, ids=label)
async def test_no_route_lets_in_who_may_not(site: Site, tokens: Tokens, route: Route) -> None:
    """Without a token, with each forged one, with a good one for another namespace, topic or verb."""
    for kind, token in tokens.bad.items():
        answer = await ask(site, route, token)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated"), kind
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert token is None or token not in answer.text
    verbs = [verb for verb in ("publish", "consume", "admin") if verb != route.verb]
    for kind, token in (
        ("another namespace", tokens.good["admin of team-b"]),
        ("every verb but the one", tokens.make([{"verbs": verbs}])),
        ("another topic", tokens.make([{"verbs": ["publish", "consume", "admin"], "topics": ["another"]}])),
    ):
        answer = await ask(site, route, token)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_allowed"), kind
    assert site.broker.core.state.topics == {}, "nothing was made"
    assert site.broker.core.state.namespaces.keys() <= {"default"}


@pytest.mark.parametrize("route", GUARDED, ids=label)
async def test_every_route_lets_in_who_may(site: Site, tokens: Tokens, route: Route) -> None:
    site.client.headers["authorization"] = f"Bearer {tokens.good['root']}"
    await site.publish("orders", "x")
    if route.path.endswith("/events"):
        headers = {"authorization": f"Bearer {tokens.good['root']}"}
        path = route.path.replace("{namespace}", "default").replace("{topic}", "orders").replace("{group}", "g")
        async with site.client.stream("GET", path, headers=headers) as answer:
            assert answer.status_code == 200
        return
    answer = await ask(site, route, tokens.good["root"])
    assert answer.status_code not in (401, 403, 500), answer.text


async def test_the_document_says_which_calls_need_a_token(site: Site) -> None:
    document = (await site.client.get("/openapi.json")).json()
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    for route in all_routes():
        operation = document["paths"][route.path][route.method.lower()]
        assert operation.get("security") == ([{"token": []}] if route.verb is not None else None)


async def test_a_body_of_somebody_unknown_is_not_looked_at(site: Site) -> None:
    for path in ("/enqueue", "/ack", "/nack", "/api/v1/queues", "/v1/topics/orders/messages"):
        answer = await site.client.post(path, content=b"{" * 1000)
        assert answer.status_code == 401, path
        answer = await site.client.post(path, content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
        assert answer.status_code == 401, path


async def test_what_a_settle_publishes_and_a_redrive_moves_needs_its_own_right(site: Site, tokens: Tokens) -> None:
    site.client.headers["authorization"] = f"Bearer {tokens.good['root']}"
    await site.publish("orders%2Feu", "a", "b")
    [one] = await site.lease("orders%2Feu")
    path = "/v1/topics/orders%2Feu"
    consumer = {"authorization": f"Bearer {tokens.good['consumer of orders']}"}
    for more in (
        {"publish": [{"topic": "users", "messages": [{"value": "x"}]}]},
        {"cancel": [{"topic": "orders/eu", "ids": ["7"]}]},
    ):
        answer = await site.client.post(
            f"{path}/groups/default/settle", json={"ack": [one["receipt"]], **more}, headers=consumer
        )
        assert answer.status_code == 403
    assert (await site.group("orders%2Feu"))["leased"] == 1, "and nothing was settled"
    await site.settle("orders%2Feu", reject=[one["receipt"]])
    admin = {"authorization": f"Bearer {tokens.good['admin of orders']}"}
    answer = await site.client.post(f"{path}/redrive", json={"to": "users"}, headers=admin)
    assert answer.status_code == 403
    assert (await site.client.post(f"{path}/redrive", headers=admin)).json()["redriven"] == 1
    again = f"{path}/groups/default/replay"
    answer = await site.client.post(again, json={"where": {"outcome": "dead"}, "to": "users"}, headers=admin)
    assert answer.status_code == 403
    answer = await site.client.post(again, json={"where": {"outcome": "dead"}}, headers=admin)
    assert answer.json()["matched"] == 1


async def test_a_message_is_traced_by_who_may_consume_its_topic(site: Site, tokens: Tokens) -> None:
    site.client.headers["authorization"] = f"Bearer {tokens.good['root']}"
    [ours] = await site.publish("orders%2Feu", "a")
    [theirs] = await site.publish("users", "b")
    consumer = {"authorization": f"Bearer {tokens.good['consumer of orders']}"}
    for what in ("trace", "explain"):
        assert (await site.client.get(f"/v1/messages/{ours['id']}/{what}", headers=consumer)).status_code == 200
        for other in (theirs["id"], "7"):
            answer = await site.client.get(f"/v1/messages/{other}/{what}", headers=consumer)
            assert answer.status_code == 403, "what he may not see and what is not there look the same"


async def test_the_topic_of_a_sealed_message_is_looked_up_where_it_holds_nobody_up(
    tokens: Tokens, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids: dict[str, list[int]] = {"orders/eu": [], "users": []}
    with headrace.open(data_dir, seal={"behind": "0B"}) as hr:
        for _ in range(3):  # so that by the files' bounds alone a message may be of either topic
            for topic, mine in ids.items():
                mine.append(hr.topic(topic).publish(b"x").id)
        hr.call("log.seal")
    looked: list[threading.Thread] = []
    real = ColdLog.offset_of_id_in

    def noting(self: ColdLog, *arguments: Any) -> int | None:
        looked.append(threading.current_thread())
        return real(self, *arguments)

    monkeypatch.setattr(ColdLog, "offset_of_id_in", noting)
    consumer = {"authorization": f"Bearer {tokens.good['consumer of orders']}"}
    async with http_site(core=open_core(data_dir), authenticate=tokens.check) as site:
        for topic, status in (("orders/eu", 200), ("users", 403)):
            for what in ("trace", "explain"):
                looked.clear()
                answer = await site.client.get(f"/v1/messages/{ids[topic][1]}/{what}", headers=consumer)
                assert answer.status_code == status, answer.text
                assert looked
                assert threading.current_thread() not in looked


async def test_a_message_is_traced_natively_by_who_may_consume_its_topic(
    tokens: Tokens, both: Mapping[str, str]
) -> None:
    root = await Peer.open(both["native"], token=tokens.good["root"])
    consumer = await Peer.open(both["native"], token=tokens.good["consumer of orders"])
    try:
        found = {}
        for topic in ("orders/eu", "users"):
            published = await root.publish(topic, [b"x"])
            found[topic] = published.places()[0][2]
        for what in ("trace", "explain"):
            assert (await consumer.call(what, id=found["orders/eu"]))["topic"] == "orders/eu"
            for other in (found["users"], 7):
                with pytest.raises(NotAllowed):
                    await consumer.call(what, id=other)
    finally:
        await root.abandon()
        await consumer.abandon()


async def test_a_token_counts_for_each_request_of_a_connection(site: Site, tokens: Tokens) -> None:
    for name, status in (("root", 200), ("publisher of orders", 403), ("root", 200)):
        answer = await site.client.get("/v1/topics", headers={"authorization": f"Bearer {tokens.good[name]}"})
        assert answer.status_code == status
    assert (await site.client.get("/v1/topics")).status_code == 401
    basic = await site.client.get("/v1/topics", headers={"authorization": f"Basic {tokens.good['root']}"})
    assert basic.status_code == 401
    in_query = await site.client.get(f"/v1/topics?token={tokens.good['root']}")
    assert in_query.status_code == 401


async def test_with_keys_any_host_name_may_be_called_and_pages_of_others_still_not(site: Site, tokens: Tokens) -> None:
    headers = {"authorization": f"Bearer {tokens.good['root']}", "host": "queue.example"}
    assert (await site.client.get("/v1/topics", headers=headers)).status_code == 200
    headers["origin"] = "https://evil.example"
    assert (await site.client.get("/v1/topics", headers=headers)).status_code == 403


# -- the matrix --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Deed:
    """Something to do, and the right it needs."""

    verb: str
    namespace: str
    topic: str
    method: str = ""
    more: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return f"{self.method or self.verb} {self.namespace}:{self.topic or '#'}"


PLACES = [("default", "orders/eu"), ("default", "orders"), ("default", "users"), ("team-b", "users")]
DEEDS = [
    *[Deed("publish", *place) for place in PLACES],
    *[Deed("consume", *place) for place in PLACES],
    *[Deed("admin", *place, method="topic.config", more=(("settings", {"lease": "31s"}),)) for place in PLACES],
    *[Deed("consume", *place, method="topic.show") for place in PLACES],
    Deed("consume", "default", "", method="topic.list"),
    Deed("consume", "team-b", "", method="topic.list"),
    Deed("consume", "*", "", method="stats"),
    Deed("admin", "default", "", method="namespace.show"),
    Deed("publish", "default", "orders/new", method="topic.ensure"),
]
PEOPLE = [*GRANTS, "expired", "alg none", "RS as HS", "unknown kid", "none"]


def verdict(person: str, deed: Deed) -> str:
    if person not in GRANTS:
        return "unauthenticated"
    return "done" if allowed(GRANTS[person], deed.verb, deed.namespace, deed.topic) else "not_allowed"


@pytest.fixture(scope="module")
def both(tokens: Tokens) -> Iterator[Mapping[str, str]]:
    """A server with both doors; where they are."""
    thread = ServerThread(http_port=0, auth=tokens.config)
    addresses = thread.server.addresses
    for namespace, topic in PLACES:
        httpx.put(
            f"http://{addresses['http']}/v1/namespaces/{namespace}/topics/{topic.replace('/', '%2F')}",
            json={},
            headers={"authorization": f"Bearer {tokens.good['root']}"},
            trust_env=False,
        ).raise_for_status()
    yield addresses
    thread.stop()


def test_the_matrix_is_large_enough() -> None:
    assert len(PEOPLE) * len(DEEDS) >= 150
    verdicts = [verdict(person, deed) for person in PEOPLE for deed in DEEDS]
    assert min(map(verdicts.count, ("done", "not_allowed", "unauthenticated"))) > 40


async def http_deed(client: Any, deed: Deed) -> str:
    topic = deed.topic.replace("/", "%2F")
    space = f"/v1/namespaces/{deed.namespace}"
    match deed.method or deed.verb:
        case "publish":
            asked = ("POST", f"{space}/topics/{topic}/messages", {"messages": [{"value": "x"}]})
        case "consume":
            asked = ("POST", f"{space}/topics/{topic}/groups/default/lease", {"max": 1})
        case "topic.config":
            asked = ("PATCH", f"{space}/topics/{topic}", {"settings": {"lease": "31s"}})
        case "topic.show":
            asked = ("GET", f"{space}/topics/{topic}", None)
        case "topic.list":
            asked = ("GET", f"{space}/topics", None)
        case "stats":
            asked = ("GET", "/v1/stats", None)
        case "namespace.show":
            asked = ("GET", space, None)
        case _:
            asked = ("PUT", f"{space}/topics/{topic}", {})
    answer = await client.request(asked[0], asked[1], json=asked[2])
    return "done" if answer.status_code == 200 else str(answer.json()["error"]["code"])


async def native_deed(address: str, token: str | None, deed: Deed) -> str:
    """On a connection of its own, to the namespace the deed is about."""
    namespace = "default" if deed.namespace == "*" else deed.namespace
    peer = await Peer.open(address, token=token, namespace=namespace, welcome=False)
    try:
        await peer.welcomed
        match deed.method or deed.verb:
            case "publish":
                await peer.ask(peer.session.send_publish(deed.topic, batch_of([b"x"])))
            case "consume":
                await peer.ask(peer.session.send_lease(scope_of(deed.topic), 1))
            case method:
                named = {"topic": deed.topic} if deed.topic else {}
                where = None if deed.namespace == "*" else deed.namespace
                await peer.call(method, namespace=where, **named, **dict(deed.more))
    except HeadraceError as error:
        return error.code
    finally:
        await peer.abandon()
    return "done"


@pytest.mark.feature("F159", "F161")
@pytest.mark.parametrize("person", PEOPLE)
async def test_the_matrix_over_http(tokens: Tokens, both: Mapping[str, str], person: str) -> None:
    token = tokens.good.get(person) or tokens.bad.get(person)
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    base = f"http://{both['http']}"
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=60, trust_env=False) as client:
        seen = {str(deed): await http_deed(client, deed) for deed in DEEDS}
    assert seen == {str(deed): verdict(person, deed) for deed in DEEDS}


@pytest.mark.feature("F159", "F161")
@pytest.mark.parametrize("person", PEOPLE)
async def test_the_matrix_natively(tokens: Tokens, both: Mapping[str, str], person: str) -> None:
    token = tokens.good.get(person) or tokens.bad.get(person)
    seen = {str(deed): await native_deed(both["native"], token, deed) for deed in DEEDS}
    assert seen == {str(deed): verdict(person, deed) for deed in DEEDS}
