"""Alerts: a POST when messages die, whatever whoever takes it does."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from typing import Any

import pytest

from headrace.batch import Message, encode
from headrace.broker import alerts as module
from headrace.broker.embedded import EmbeddedPort, open_port
from headrace.calls import BY_KEY, Run, Settle

MS_NS = 1_000_000


class Sink:
    """Takes POSTs and answers as it is told; the last answer is repeated."""

    def __init__(self, *answers: int) -> None:
        sink = self
        self.posts: SimpleQueue[tuple[str, dict[str, str], Any]] = SimpleQueue()
        self.answers = list(answers) or [200]

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = sink.answers.pop(0) if len(sink.answers) > 1 else sink.answers[0]
                self.send_response(status)
                if status in (301, 307):
                    self.send_header("Location", f"{sink.url}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()
                sink.posts.put((self.path, dict(self.headers), json.loads(body)))

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def next(self) -> Any:
        return self.posts.get(timeout=20)[2]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def sink() -> Iterator[Callable[..., Sink]]:
    made: list[Sink] = []

    def make(*answers: int) -> Sink:
        made.append(Sink(*answers))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALERT_GATHER_NS", 5 * MS_NS)
    monkeypatch.setattr(module, "ALERT_BACKOFF_NS", 5 * MS_NS)


class House:
    def __init__(self, url: str, **settings: Any) -> None:
        self.port: EmbeddedPort = open_port(":memory:")
        self.port.call("topic.create", topic="orders", settings={"dead_letters.alert_webhook": url, **settings})
        self.consumer = self.port.consumer("default", "orders", "default", consumer="worker")

    @property
    def alerts(self) -> module.Alerts:
        return self.port.broker.alerts

    def kill(self, count: int = 1, error: str = "no good") -> None:
        """Publish messages and reject them."""
        self.port.publish("default", "orders", BY_KEY, encode([Message(b"v")] * count))
        for leased in self.consumer.receive(count, 0):
            run = Run(leased.partition, leased.lease_id, leased.batch.base_offset, leased.batch.count)
            assert self.consumer.settle(Settle(reject=[(run, error)])).settled == leased.batch.count

    def close(self) -> None:
        self.consumer.close()
        self.port.close()


@pytest.mark.feature("F062")
def test_a_death_is_told(sink: Callable[..., Sink]) -> None:
    taker = sink()
    house = House(f"{taker.url}/hook?team=a")
    house.kill()
    path, headers, alert = taker.posts.get(timeout=20)
    assert path == "/hook?team=a"
    assert headers["Content-Type"] == "application/json"
    assert (alert["alert"], alert["count"]) == ("dead_letters", 1)
    (topic,) = alert["topics"]
    assert (topic["namespace"], topic["topic"], topic["group"]) == ("default", "orders", "default")
    assert (topic["count"], topic["reasons"], topic["dead_letter_topic"]) == (1, {"rejected": 1}, "dlq/orders")
    (message,) = topic["messages"]
    assert (message["reason"], message["error"], message["attempts"]) == ("rejected", "no good", 1)
    (letter,) = house.port.call("dlq.list", topic="orders")
    assert message["dead_letter_id"] == str(letter["id"])
    house.close()
    assert (house.alerts.told, house.alerts.given_up) == (1, 0)


def test_a_storm_is_counted_whole_and_shown_in_part(sink: Callable[..., Sink], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALERT_GATHER_NS", 3600 * 10**9)
    taker = sink()
    house = House(taker.url)
    for _ in range(5):
        house.kill(100)
    house.close()  # which tells what has been gathered
    alert = taker.next()
    assert alert["count"] == alert["topics"][0]["count"] == 500
    assert len(alert["topics"][0]["messages"]) == 20
    assert taker.posts.empty()


def test_what_is_not_taken_is_told_again_with_what_came_since(
    sink: Callable[..., Sink], caplog: pytest.LogCaptureFixture
) -> None:
    taker = sink(500, 307, 200)
    house = House(taker.url)
    house.kill()
    assert [taker.next()["count"] for _ in range(3)] == [1, 1, 1]
    assert taker.posts.empty()  # the redirect was not followed
    taker.answers = [503, 200]
    house.kill()
    taker.next()
    house.kill(2)
    counts = 0
    while counts < 3:
        counts = taker.next()["count"] if counts == 0 else counts + taker.next()["count"]
    assert counts == 3  # in one POST or in two
    house.close()
    assert house.alerts.told == 4


def test_after_some_tries_it_is_given_up_and_delivery_goes_on(
    sink: Callable[..., Sink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ALERT_TRIES", 3)
    taker = sink(500)
    house = House(taker.url)
    house.kill(7)
    for _ in range(3):
        taker.next()
    house.kill(1)
    taker.next()
    assert house.alerts.given_up == 7
    monkeypatch.setattr(module, "ALERT_LAST_NS", 0)
    house.close()
    assert house.alerts.told == 0


def test_nobody_waits_for_whoever_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALERT_LAST_NS", 50 * MS_NS)
    monkeypatch.setattr(module, "ALERT_TIMEOUT_NS", 300 * MS_NS)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        house = House(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        house.kill()
        connection, _ = listener.accept()  # the POST is on its way, and will never be answered
        house.kill(50)
        assert house.port.call("stats")["topics"][0]["groups"][0]["dead"] == 51
        house.close()
        connection.close()
    assert house.alerts.told == 0


def test_what_could_not_be_told_before_the_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALERT_LAST_NS", 0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    house = House(f"http://127.0.0.1:{port}/")
    house.kill()
    refused = module._post(f"http://127.0.0.1:{port}/", b"{}", 1.0)
    assert refused is not None
    assert "refused" in refused
    house.close()
    assert (house.alerts.given_up, house.alerts.told) == (1, 0)


def test_without_an_address_there_is_no_thread() -> None:
    house = House("")
    house.kill(10)
    assert house.alerts._thread is None
    house.close()


def test_secrets_of_an_address_are_not_shown() -> None:
    assert module._without_secrets("https://user:pass@host.example:8443/T0/key?x=y") == "https://host.example:8443"


def test_waiting_alerts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALERT_GATHER_NS", 3600 * 10**9)
    monkeypatch.setattr(module, "ALERT_LAST_NS", 0)
    monkeypatch.setattr(module, "ALERT_ADDRESSES_MAX", 1)
    monkeypatch.setattr(module, "ALERT_GROUPS_MAX", 1)
    house = House("http://127.0.0.1:9/one")
    house.kill()
    for name, url in (("more", "http://127.0.0.1:9/one"), ("other", "http://127.0.0.1:9/two")):
        house.port.call("topic.create", topic=name, settings={"dead_letters.alert_webhook": url})
        house.port.publish("default", name, BY_KEY, encode([Message(b"v")]))
        consumer = house.port.consumer("default", name, "default", consumer="w")
        (leased,) = consumer.receive(1, 0)
        consumer.settle(Settle(reject=[(Run(0, leased.lease_id, leased.batch.base_offset), "x")]))
        consumer.close()
    (lot,) = house.alerts._lots.values()
    assert (lot.count, len(lot.groups), lot.left_out) == (2, 1, 1)
    house.close()
    assert house.alerts.given_up == 3
