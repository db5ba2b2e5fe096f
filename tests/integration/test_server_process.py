"""The life of a server process: start, ready file, refusals, reload, drain, death."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace import errors
from headrace.wire import native
from integration.native_peer import Peer, scope_of, values_of
from integration.server_process import ServerProcess

Start = Callable[..., ServerProcess]


@pytest.fixture
def start(data_dir: Path) -> Iterator[Start]:
    """Starts servers on one data directory and leaves none behind."""
    servers: list[ServerProcess] = []

    def start_one(*arguments: str, doors: tuple[str, ...] = ("native",), **environment: str) -> ServerProcess:
        servers.append(ServerProcess(data_dir, *arguments, doors=doors, **environment))
        return servers[-1]

    yield start_one
    for server in servers:
        if server.process.poll() is None:
            server.kill()


@pytest.mark.feature("F215", "F228")
async def test_a_ready_server_says_where_it_listens_and_takes_a_message(start: Start, data_dir: Path) -> None:
    server = start()
    ready = server.ready()
    assert ready["pid"] == server.pid
    assert ready["data_dir"] == str(data_dir.resolve())  # noqa: ASYNC240  nothing waits for it
    assert set(ready) == {"native", "pid", "data_dir"}
    peer = await Peer.open(ready["native"])
    published = await peer.publish("orders", [b"first", b"second"])
    assert [offset for _, offset, _, _ in published.places()] == [0, 1]
    leased = await peer.lease("orders", 10)
    assert values_of(leased) == [b"first", b"second"]
    await peer.ack(scope_of("orders"), leased.runs)
    await peer.close()
    assert server.stop() == 0
    assert not server.ready_file.exists()


async def test_what_was_acked_is_gone_after_a_kill_and_the_rest_is_there(start: Start) -> None:
    server = start()
    peer = await Peer.open(server.ready()["native"])
    await peer.publish("orders", [b"%d" % i for i in range(10)])
    leased = await peer.lease("orders", 4)
    await peer.ack(scope_of("orders"), leased.runs)
    server.kill()
    assert (await peer.end()).by == "end"

    server = start()
    peer = await Peer.open(server.ready()["native"])
    leased = await peer.lease("orders", 100)
    assert values_of(leased) == [b"%d" % i for i in range(4, 10)]
    await peer.close()
    assert server.stop() == 0


@pytest.mark.feature("F156")
async def test_a_stop_lets_a_consumer_settle_what_it_holds(start: Start) -> None:
    server = start("--drain-timeout", "60s")
    peer = await Peer.open(server.ready()["native"])
    await peer.publish("orders", [b"one", b"two", b"three"])
    subscription = await peer.subscribe("orders", messages=2)
    held = [run for packet in await pushes(peer, 2) for run in packet.runs]
    server.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(30):
        await peer.going_away.wait()
    with pytest.raises(errors.Draining):
        await peer.publish("orders", [b"too late"])
    settled = await peer.ack(subscription, held)
    assert not settled.refusals
    await peer.close()
    assert await asyncio.to_thread(server.wait) == 0

    server = start()
    peer = await Peer.open(server.ready()["native"])
    assert values_of(await peer.lease("orders", 10)) == [b"three"]
    await peer.close()
    assert server.stop() == 0


async def pushes(peer: Peer, messages: int) -> list[native.Deliveries]:
    """Pushed packets until so many messages came."""
    found = []
    while messages > 0:
        found.append(await peer.pushed())
        messages -= found[-1].count
    return found


async def test_a_client_that_never_finishes_is_cut_when_the_drain_ends(start: Start) -> None:
    server = start("--drain-timeout", "200ms")
    peer = await Peer.open(server.ready()["native"])
    server.process.send_signal(signal.SIGTERM)
    closed = await peer.end()
    assert isinstance(closed.error, errors.Draining)
    assert await asyncio.to_thread(server.wait) == 0


async def test_a_second_signal_does_not_wait(start: Start) -> None:
    server = start("--drain-timeout", "1h")
    peer = await Peer.open(server.ready()["native"])
    server.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(30):
        await peer.going_away.wait()
    server.process.send_signal(signal.SIGINT)
    assert isinstance((await peer.end()).error, errors.Draining)
    assert await asyncio.to_thread(server.wait) == 0


def test_a_second_server_on_the_directory_is_refused_with_the_reason(start: Start) -> None:
    server = start()
    server.ready()
    other = start()
    assert other.wait() == 1
    said = "".join(line["event"] for line in other.rest())
    assert str(server.data_dir) in said
    assert "Traceback" not in said
    assert server.stop() == 0


def test_a_taken_port_is_refused_with_the_way_out(start: Start) -> None:
    server = start()
    port = server.ready()["native"].rpartition(":")[2]
    other = subprocess.run(
        [sys.executable, "-m", "headrace", "serve", "--journal", "memory", "--native-port", port],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert other.returncode == 1
    assert f"port {port} on 127.0.0.1 is taken" in other.stderr
    assert "--native-port" in other.stderr
    assert server.stop() == 0


def test_without_a_key_only_this_machine_may_be_served(start: Start) -> None:
    server = start("--host", "0.0.0.0")  # noqa: S104 - that is the point
    assert server.wait() == 1
    said = "".join(line["event"] for line in server.rest())
    assert "0.0.0.0" in said  # noqa: S104 - read, not bound
    assert "loopback" in said


def test_a_port_of_a_door_that_is_not_there_is_an_error_and_a_default_is_not(start: Start) -> None:
    server = start(doors=("native", "grpc"))
    if server.process.poll() is None and "grpc" in _doors_of_this_build():
        server.ready()
        assert server.stop() == 0
        return
    assert server.wait() == 1
    assert "grpc" in "".join(line["event"] for line in server.rest())


def _doors_of_this_build() -> set[str]:
    import importlib.util

    return {name for name in ("grpc", "http", "mqtt") if importlib.util.find_spec(f"headrace.frontends.{name}")}


async def test_the_memory_journal_needs_no_directory(start: Start, data_dir: Path) -> None:
    server = start("--journal", "memory")
    ready = server.ready()
    assert ready["data_dir"] == ":memory:"
    peer = await Peer.open(ready["native"])
    await peer.publish("t", [b"x"])
    await peer.close()
    assert os.listdir(data_dir) == []
    assert server.stop() == 0


async def test_settings_come_from_the_environment_too(start: Start) -> None:
    server = start(HEADRACE_TOPIC_DEFAULTS__MAX_MESSAGE_SIZE="4KiB", HEADRACE_NODE_ID="77")
    peer = await Peer.open(server.ready()["native"])
    published = await peer.publish("t", [b"x"])
    assert (published.places()[0][2] >> 12) & 1023 == 77
    with pytest.raises(errors.PayloadTooLarge, match=r"4096|4 ?KiB"):
        await peer.publish("t", [bytes(5000)])
    await peer.close()
    assert server.stop() == 0


# -- TLS ---------------------------------------------------------------------------------------------------------------


def certificate(directory: Path, name: str) -> Path:
    """A self-signed certificate with its key in one file."""
    key, cert = directory / f"{name}.key", directory / f"{name}.crt"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    both = directory / f"{name}.pem"
    both.write_bytes(cert.read_bytes() + key.read_bytes())
    return both


def trusting(*certificates: Path) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for one in certificates:
        context.load_verify_locations(one)
    return context


def name_of(peer: Peer) -> str:
    certificate = peer.writer.get_extra_info("peercert")
    return str(dict(pair[0] for pair in certificate["subject"])["commonName"])


async def test_a_certificate_is_exchanged_without_a_restart(start: Start, tmp_path: Path) -> None:
    first, second = certificate(tmp_path, "first"), certificate(tmp_path, "second")
    used = tmp_path / "used.pem"
    used.write_bytes(first.read_bytes())
    server = start("--set", f"tls.certificate={used}")
    address = server.ready()["native"]
    tls = trusting(first, second)

    old = await Peer.open(address, tls=tls)
    assert name_of(old) == "first"
    await old.publish("t", [b"before"])

    used.write_text("no certificate")
    server.process.send_signal(signal.SIGHUP)
    await asyncio.to_thread(server.hear, "the certificate was not exchanged")
    still = await Peer.open(address, tls=tls)
    assert name_of(still) == "first"

    used.write_bytes(second.read_bytes())
    server.process.send_signal(signal.SIGHUP)
    await asyncio.to_thread(server.hear, "certificate exchanged")
    new = await Peer.open(address, tls=tls)
    assert name_of(new) == "second"
    await old.publish("t", [b"after"])
    for peer in (old, still, new):
        await peer.close()
    assert server.stop() == 0


async def test_clear_text_on_a_tls_port_ends_that_connection_only(start: Start, tmp_path: Path) -> None:
    pem = certificate(tmp_path, "only")
    server = start("--set", f"tls.certificate={pem}")
    address = server.ready()["native"]
    with pytest.raises(errors.HeadraceError):
        await Peer.open(address)
    peer = await Peer.open(address, tls=trusting(pem))
    await peer.publish("t", [b"x"])
    await peer.close()
    assert server.stop() == 0


def test_a_key_that_does_not_fit_is_told_before_anything_is_opened(start: Start, tmp_path: Path) -> None:
    pem = certificate(tmp_path, "one")
    server = start("--set", f"tls.certificate={pem}", "--set", f"tls.key={tmp_path / 'nowhere.key'}")
    assert server.wait() == 1
    assert "nowhere.key" in "".join(line["event"] for line in server.rest())


# -- the disk ----------------------------------------------------------------------------------------------------------


@contextmanager
def failing_syncs(pid: int) -> Iterator[None]:
    """From some moment soon on, each fdatasync of the process fails."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    tracer = subprocess.Popen(
        [strace, "-f", "-qq", "-e", "inject=fdatasync:error=EIO", "-e", "trace=fdatasync", "-p", str(pid)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield
    tracer.kill()
    tracer.wait()


async def test_a_failing_disk_ends_the_process_and_confirms_nothing(start: Start) -> None:
    server = start()
    peer = await Peer.open(server.ready()["native"])
    await peer.publish("t", [b"kept"])
    confirmed = 1

    async def publish_for_ever() -> None:
        nonlocal confirmed
        while True:
            await peer.publish("t", [b"%d" % confirmed])
            confirmed += 1

    with failing_syncs(server.pid):
        with pytest.raises(errors.ShardStopped):
            await publish_for_ever()
        assert await asyncio.to_thread(server.wait) == 1
    assert any(line["event"] == "the storage failed; stopping" for line in server.rest())

    server = start()
    peer = await Peer.open(server.ready()["native"])
    found: list[bytes] = []
    while len(found) < confirmed:
        leased = await peer.lease("t", 10_000)
        assert leased.runs, f"{confirmed} were confirmed, {len(found)} are there"
        found += values_of(leased)
    assert found[:confirmed] == [b"kept", *(b"%d" % i for i in range(1, confirmed))]
    await peer.close()
    assert server.stop() == 0


def test_print_config_names_where_each_value_came_from(tmp_path: Path) -> None:
    file = tmp_path / "headrace.yaml"
    file.write_text("http_port: off\nlog:\n  level: warning\n")
    run = subprocess.run(
        [sys.executable, "-m", "headrace", "serve", "--config", str(file), "--native-port", "0", "--print-config"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "HEADRACE_NODE_ID": "9"},
    )
    assert f"{file}:1" in run.stdout
    assert "HEADRACE_NODE_ID" in run.stdout
    assert "--native-port" in run.stdout


def test_the_ready_file_is_one_line_of_json(start: Start) -> None:
    server = start()
    server.ready()
    assert json.loads(server.ready_file.read_text())["pid"] == server.pid
    assert server.stop() == 0
