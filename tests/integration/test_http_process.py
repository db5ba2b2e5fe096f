"""HTTP of a whole server process: encryption and keys exchanged while it runs, what survives a kill, alerts, abuse."""

from __future__ import annotations

import http.server
import json
import queue
import signal
import socket
import ssl
import subprocess
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.limits import MIB
from integration.access import GRANTS, Tokens
from integration.server_process import ServerProcess

Start = Callable[..., ServerProcess]


@pytest.fixture
def start(data_dir: Path) -> Iterator[Start]:
    """Starts servers on one data directory and leaves none behind."""
    servers: list[ServerProcess] = []

    def start_one(*arguments: str, **environment: str) -> ServerProcess:
        servers.append(ServerProcess(data_dir, *arguments, doors=("http",), **environment))
        return servers[-1]

    yield start_one
    for server in servers:
        if server.process.poll() is None:
            server.kill()


def caller(server: ServerProcess, token: str | None = None) -> httpx.Client:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return httpx.Client(base_url=f"http://{server.ready()['http']}", headers=headers, timeout=60, trust_env=False)


# -- encryption and keys -----------------------------------------------------------------------------------------------


def certificate(path: Path, organisation: str) -> Path:
    """A self-signed certificate for localhost with its key, in one file."""
    pem = path / f"{organisation}.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(pem), "-out", str(pem) + ".crt", "-days", "2"),
            *("-subj", f"/O={organisation}/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    pem.write_text(pem.read_text() + Path(str(pem) + ".crt").read_text())
    return pem


@pytest.mark.feature("F162")
def test_a_certificate_is_exchanged_while_it_runs(start: Start, tmp_path: Path) -> None:
    first, second = certificate(tmp_path, "first"), certificate(tmp_path, "second")
    used = tmp_path / "used.pem"
    used.write_bytes(first.read_bytes())
    server = start("--set", f"tls.certificate={used}")
    host, _, port = server.ready()["http"].rpartition(":")

    def shown() -> str:
        """The organisation of the certificate that a new connection sees; and that it answers."""
        trust = ssl.create_default_context()
        trust.load_verify_locations(first)
        trust.load_verify_locations(second)
        plain = socket.create_connection((host, int(port)), timeout=60)
        with plain, trust.wrap_socket(plain, server_hostname="localhost") as line:
            line.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert line.recv(100).startswith(b"HTTP/1.1 200 OK")
            subject: Any = line.getpeercert()["subject"]  # type: ignore[index]
            return str(dict(one[0] for one in subject)["organizationName"])

    assert shown() == "first"
    used.write_bytes(second.read_bytes())
    assert shown() == "first", "not before it is told to"
    server.process.send_signal(signal.SIGHUP)
    server.hear("certificate exchanged")
    assert shown() == "second"
    used.write_text("no certificate")
    server.process.send_signal(signal.SIGHUP)
    server.hear("the certificate was not exchanged")
    assert shown() == "second"
    with socket.create_connection((host, int(port)), timeout=60) as clear:
        clear.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            assert not clear.recv(1000).startswith(b"HTTP/1.1 200"), "nothing is answered in the clear"
        except ConnectionResetError:
            pass
    assert server.stop() == 0


@pytest.mark.feature("F161")
def test_keys_are_exchanged_while_it_runs(start: Start, tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    old, new = tokens.good["root"], tokens.make(GRANTS["root"], algorithm="ES256")
    server = start("--set", f"auth.keys={tokens.file}")
    with caller(server) as client:

        def status(token: str) -> int:
            return client.get("/v1/topics", headers={"authorization": f"Bearer {token}"}).status_code

        assert (status(old), status(new)) == (200, 200), "several keys are good at a time"
        keys = json.loads(tokens.file.read_text())["keys"]
        tokens.file.write_text(json.dumps({"keys": [key for key in keys if key["kid"] != "EdDSA"]}))
        server.process.send_signal(signal.SIGHUP)
        server.hear("keys exchanged")
        assert (status(old), status(new)) == (401, 200)
        tokens.file.write_text("{")
        server.process.send_signal(signal.SIGHUP)
        server.hear("the keys were not exchanged")
        assert (status(old), status(new)) == (401, 200)
    assert server.stop() == 0


# -- what survives -----------------------------------------------------------------------------------------------------


@pytest.mark.feature("F003", "F160", "N02")
def test_what_was_answered_survives_a_kill(start: Start) -> None:
    """Messages, quotas, limits of a group."""
    server = start("--set", "namespace_quotas=team-b:500")
    with caller(server) as client:
        body = {"messages": [{"value": str(number)} for number in range(100)]}
        results = client.post("/v1/topics/orders/messages", json=body).json()["results"]
        client.patch("/v1/namespaces/team-a", json={"settings": {"quota.messages_per_minute": 2}}).raise_for_status()
        limits = {"settings": {"limits": {"concurrency": 7}}}
        client.patch("/v1/topics/orders/groups/default", json=limits).raise_for_status()
    server.kill()
    server = start()
    with caller(server) as client:
        lease = client.post("/v1/topics/orders/groups/default/lease", json={"max": 50}).json()
        assert [one["id"] for one in lease["deliveries"]] == [one["id"] for one in results[:7]]
        over = {"messages": [{}] * 3}
        assert client.post("/v1/namespaces/team-a/topics/t/messages", json=over).status_code == 422
        assert client.post("/v1/namespaces/team-a/topics/t/messages", json={"messages": [{}] * 2}).status_code == 200
        answer = client.post("/v1/namespaces/team-a/topics/t/messages", json={"messages": [{}]})
        assert (answer.status_code, "retry-after" in answer.headers) == (429, True)
        quota = client.get("/v1/namespaces/team-b").json()["settings"]["quota"]
        assert quota["messages_per_minute"] == 500
    assert server.stop() == 0


# -- alerts ------------------------------------------------------------------------------------------------------------


class Listener:
    """Somebody who is told; refuses as often as asked to, and answers when let."""

    def __init__(self, refusals: int = 0) -> None:
        self.told: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.refused = threading.Event()
        self.release = threading.Event()
        self.release.set()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                nonlocal refusals
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.release.wait(60)
                refusals -= 1
                self.send_response(500 if refusals >= 0 else 204)
                self.send_header("content-length", "0")
                self.end_headers()
                if refusals >= 0:
                    outer.refused.set()
                else:
                    outer.told.put(body)

            def log_message(self, *_: object) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/alerts"

    def close(self) -> None:
        self.release.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.mark.feature("F062")
def test_deaths_are_told_again_and_together_and_never_in_the_way(start: Start) -> None:
    listener = Listener(refusals=1)
    server = start()
    try:
        with caller(server) as client:
            settings = {"settings": {"dead_letters.alert_webhook": listener.url}}
            client.put("/v1/topics/jobs", json=settings).raise_for_status()

            def kill(count: int) -> None:
                client.post("/v1/topics/jobs/messages", json={"messages": [{"value": "x"}] * count}).raise_for_status()
                lease = client.post("/v1/topics/jobs/groups/default/lease", json={"max": count}).json()
                order = {"reject": [{"receipt": one, "error": "boom"} for one in lease["receipts"]]}
                client.post("/v1/topics/jobs/groups/default/settle", json=order).raise_for_status()

            listener.release.clear()
            for _ in range(5):
                kill(100)  # nobody answers the alert, and nothing waits for it
            listener.release.set()
            assert listener.refused.wait(60)
            alerts = [listener.told.get(timeout=60)]
            while sum(alert["count"] for alert in alerts) < 500:
                alerts.append(listener.told.get(timeout=60))
            assert len(alerts) <= 3, "a storm is a few alerts"
            first = alerts[0]["topics"][0]
            assert (first["topic"], first["group"], first["dead_letter_topic"]) == ("jobs", "default", "dlq/jobs")
            assert first["reasons"].keys() == {"rejected"}
            assert len(first["messages"]) <= 20
            assert first["messages"][0]["error"] == "boom"
        assert server.stop() == 0
    finally:
        listener.close()


# -- abuse -------------------------------------------------------------------------------------------------------------


def test_memory_stays_where_it_is_under_what_is_refused(start: Start) -> None:
    """Bombs, endless heads and bodies, and half requests on many connections: a typed answer or an end, and nothing
    stored."""
    server = start("--set", "http.max_body=1MiB")
    with caller(server) as client:
        host, _, port = str(client.base_url.netloc.decode()).rpartition(":")
        bomb = zlib.compress(b"0" * 60_000_000, wbits=31)
        chunked = [b"x" * 65536] * 64

        def abuse(rounds: int) -> None:
            for _ in range(rounds):
                answer = client.post("/v1/topics/t/messages", content=bomb, headers={"content-encoding": "gzip"})
                assert answer.status_code == 413
                answer = client.post("/v1/topics/t/messages", content=b"[" * 900_000)
                assert answer.status_code == 400
                with socket.create_connection((host, int(port)), timeout=60) as line:
                    line.sendall(b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n")
                    line.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
                    try:
                        for piece in chunked:
                            line.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
                        assert b" 413 " in line.recv(100)
                    except ConnectionError:
                        pass  # cut while we still sent

        abuse(3)
        lines = [socket.create_connection((host, int(port)), timeout=60) for _ in range(200)]
        for line in lines:
            line.sendall(b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: " + b"y" * 1000)
        before = server.memory_bytes()
        abuse(10)
        assert server.memory_bytes() - before < 48 * MIB
        assert client.get("/v1/topics").json() == {"topics": []}
        for line in lines:
            line.close()
        descriptors = server.descriptors()
        assert client.get("/health").json() == {"status": "ok"}
        assert descriptors < 400
    assert server.stop() == 0
    assert not [line for line in server.rest() if line.get("level") == "error"]


@pytest.mark.feature("F245")
def test_what_clients_send_never_becomes_a_log_line(start: Start) -> None:
    server = start("--log-level", "debug")
    with caller(server) as client:
        client.get("/v1/topics/a%0aINJECTED%20level=error%0a")
        client.get("/nowhere", headers={"user-agent": "x"})
        client.get("/v1/topics", headers={"authorization": "Bearer secret-token"})
    assert server.stop() == 0
    said = server.rest()
    assert [line for line in said if line["event"] == "request"]
    assert not [line for line in said if line["event"].startswith("INJECTED")]
    assert "secret-token" not in json.dumps(said)
