"""Brokers that are away, tokens without rights, encryption: said clearly, or waited out."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import NotAllowed, TimedOut, Unauthenticated
from headrace.spark.log_reader import LogReader
from headrace.spark.log_stream import LogStream
from headrace.spark.options import Place, ReadOptions
from headrace.spark.reach import Reach
from headrace.spark.rows import Layout
from integration.server_process import ServerProcess
from spark.conftest import Drained, World
from spark.test_log_batch import numbered

LAYOUT = Layout(["value", "offset"])


def reader(**options: str) -> LogReader:
    """The driver's side of a batch read, without a Spark around it."""
    return LogReader(ReadOptions.parse(options, streaming=False), LAYOUT)


def values(found: LogReader) -> list[bytes]:
    return [value for split in found.planned() for record in found.read(split) for value in record["value"].to_pylist()]


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address at which nobody listens, and nobody will."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        yield f"headrace://127.0.0.1:{kept.getsockname()[1]}"


def test_a_broker_that_is_not_there_is_named_with_how_long_it_was_waited_for(nowhere: str) -> None:
    with pytest.raises(TimedOut, match=rf"{nowhere} could not be used for 0.3 s .awayTimeout.*refused"):
        reader(server=nowhere, subscribe="orders", awayTimeout="300ms").planned()


def test_a_broker_that_comes_back_in_time_is_waited_for_by_readers_and_streams(data_dir: Path) -> None:
    server = ServerProcess(data_dir / "data")
    world = World(server)
    url = world.url
    topic = world.topic()
    world.publish(topic, numbered(0, 10))
    found = reader(server=url, subscribe=topic)
    stream = LogStream(ReadOptions.parse({"server": url, "subscribe": topic}, streaming=True), LAYOUT)
    start = stream.initialOffset()
    assert values(found) == numbered(0, 10)
    world.hr.close()
    server.kill()
    answers: list[Any] = []
    asking = [
        threading.Thread(target=lambda: answers.append(values(found))),
        threading.Thread(target=lambda: answers.append(stream.latestOffset(start, stream.getDefaultReadLimit()))),
    ]
    for thread in asking:
        thread.start()
    again = ServerProcess(data_dir / "data", "--native-port", url.rpartition(":")[2])
    again.ready()
    for thread in asking:
        thread.join(60)
    assert numbered(0, 10) in answers
    assert start in answers
    stream.stop()
    world.way.close()
    again.stop()


def test_a_running_query_rides_out_a_restart(spark: Any, data_dir: Path, drain: Callable[..., Drained]) -> None:
    server = ServerProcess(data_dir / "data")
    world = World(server)
    url = world.url
    topic = world.topic()
    world.publish(topic, numbered(0, 30))
    lives = [server]

    def restart(_batch: Any, number: int) -> None:
        if number == 1:
            lives[-1].kill()
            lives.append(ServerProcess(data_dir / "data", "--native-port", url.rpartition(":")[2]))

    frame = spark.readStream.format("headrace").options(
        server=url, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="10"
    )
    assert drain(frame.load(), work=restart).values == numbered(0, 30)
    lives[-1].ready()
    world.hr.close()
    world.way.close()
    lives[-1].stop()


# -- who may -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Callable[..., str]]]:
    """A broker that lets in who has a token, and what makes tokens."""
    pytest.importorskip("jwt")
    from headrace.frontends.keys import make_key, save_keys

    where = tmp_path_factory.mktemp("guarded")
    keys = where / "keys.json"
    save_keys(keys, make_key("ES256", "k"))
    server = ServerProcess(where / "data", "--set", f"auth.keys={keys}")
    url = f"headrace://{server.ready()['native']}"

    def token(*verbs: str, topic: str = "#") -> str:
        told = subprocess.run(
            [
                *(
                    sys.executable,
                    "-m",
                    "headrace",
                    "token",
                    "create",
                    "--keys",
                    str(keys),
                    "--subject",
                    "t",
                    "--topic",
                    topic,
                ),
                *(part for verb in verbs for part in ("--verb", verb)),
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        return told.stdout.strip()

    yield url, token
    server.stop()


def test_a_token_opens_what_it_is_for_and_nothing_else(spark: Any, guarded: tuple[str, Callable[..., str]]) -> None:
    url, token = guarded
    admin = token("publish", "consume", "admin")
    way = Reach(Place(server=url, token=admin))
    for topic in ("orders", "secret"):
        way.call("topic.create", topic=topic)
    frame = spark.sql("select 'v' value")
    frame.write.format("headrace").options(server=url, token=admin, topic="orders").mode("append").save()
    narrow = token("consume", topic="orders")
    read = spark.read.format("headrace").options(server=url, subscribe="orders", token=narrow).load()
    assert [bytes(row.value) for row in read.collect()] == [b"v"]
    with pytest.raises(NotAllowed, match="secret"):
        reader(server=url, subscribe="secret", token=narrow).planned()
    with pytest.raises(NotAllowed):
        reader(server=url, subscribePattern=".*", token=narrow).planned()
    with pytest.raises(Unauthenticated):
        reader(server=url, subscribe="orders").planned()
    with pytest.raises(Exception, match=r"(?s)may not publish|not_allowed|publish") as caught:
        frame.write.format("headrace").options(server=url, token=narrow, topic="orders").mode("append").save()
    assert narrow not in str(caught.value)
    way.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not here, and makes the certificate")
def test_an_encrypted_broker_is_read_by_who_trusts_it(data_dir: Path) -> None:
    pem = data_dir / "server.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", str(data_dir / "key.pem"), "-out", str(data_dir / "cert.pem")),
        ],
        check=True,
        capture_output=True,
    )
    pem.write_bytes((data_dir / "cert.pem").read_bytes() + (data_dir / "key.pem").read_bytes())
    server = ServerProcess(data_dir / "data", "--set", f"tls.certificate={pem}")
    url = f"headraces://localhost:{server.ready()['native'].rpartition(':')[2]}"
    trusting = {"server": url, "caFile": str(data_dir / "cert.pem")}
    way = Reach(Place(server=url, ca_file=trusting["caFile"]))
    way.call("topic.create", topic="orders")
    assert values(reader(**trusting, subscribe="orders")) == []
    with pytest.raises(TimedOut, match=r"(?i)certificate"):
        reader(server=url, subscribe="orders", awayTimeout="200ms").planned()
    way.close()
    server.stop()
