"""The broker inside a process: no server, no sockets, no event loop; many threads, and ends that nobody planned."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

import headrace
from headrace import errors

SECONDS_MAX = 60


def program(text: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", text, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(text: str, *arguments: object) -> str:
    with program(text, *arguments) as process:
        out, err = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 0, err
    return out


@pytest.mark.feature("F217")
def test_topics_are_made_found_listed_and_removed(data_dir: Path) -> None:
    with headrace.open(data_dir, topic_defaults={"message_ttl": "1d"}, auto_create=False) as hr:
        hr.create_topic("orders", partitions=2)
        hr.create_topic("mails")
        assert hr.topic("orders").info()["settings"]["partitions"] == 2
        assert hr.topic("mails").info()["settings"]["message_ttl"] == "24h"
        assert [each["topic"] for each in hr.topics()] == ["mails", "orders"]
        hr.topic("mails").delete()
        with pytest.raises(errors.UnknownTopic, match="mails"):
            hr.settle(publish=[("mails", b"x")])
    with headrace.open(data_dir) as again:
        assert [each["topic"] for each in again.topics()] == ["orders"]
    with pytest.raises(errors.Closed):
        again.topics()


@pytest.mark.feature("F218", "F260")
def test_the_sync_broker_needs_no_socket_and_no_event_loop(data_dir: Path) -> None:
    said = run(
        """
import sys
def no_sockets(event, arguments):
    if event.startswith("socket."):
        raise AssertionError(event)
sys.addaudithook(no_sockets)
import headrace
with headrace.open(sys.argv[1]) as hr:
    jobs = hr.topic("jobs")
    jobs.publish("payload", key="k")
    with jobs.consumer() as consumer:
        (first,) = consumer.receive(wait="10s")
        first.nack(delay=0, error="not yet")
        (again,) = consumer.receive(wait="10s")
        print(again.text, again.attempt)
        again.ack()
import asyncio
assert asyncio._get_running_loop() is None
""",
        data_dir,
    )
    assert said == "payload 2\n"


@pytest.mark.feature("F260")
def test_nothing_of_a_broker_in_memory_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with headrace.open(":memory:") as hr:
        hr.topic("orders").publish(b"x")
    assert list(tmp_path.iterdir()) == []
    with headrace.open(":memory:") as hr:
        assert hr.topics() == []


@pytest.mark.feature("F222")
def test_eight_threads_share_a_broker_and_each_message_is_handled_once(data_dir: Path) -> None:
    threads, each = 4, 300
    handled: Counter[bytes] = Counter()
    done = threading.Condition()
    with headrace.open(data_dir) as hr:
        orders = hr.topic("orders", partitions=3)

        def produce(number: int) -> None:
            for n in range(each):
                orders.publish(b"%d/%d" % (number, n), key=f"{number}-{n % 7}")

        def consume() -> None:
            for d in consumer:
                with d, done:
                    handled[d.value] += 1
                    done.notify_all()

        with orders.consumer(group="work") as consumer:
            crew = [threading.Thread(target=produce, args=(n,)) for n in range(threads)]
            crew += [threading.Thread(target=consume) for _ in range(threads)]
            for thread in crew:
                thread.start()
            with done:
                assert done.wait_for(lambda: len(handled) == threads * each, SECONDS_MAX)
            consumer.stop()
            for thread in crew:
                thread.join()
        info = orders.group("work").info()
    assert set(handled.values()) == {1}
    assert (info["acked"], info["ready"], info["leased"]) == (threads * each, 0, 0)


def test_another_process_is_told_who_has_the_directory(data_dir: Path) -> None:
    opener = program(
        """
import sys, headrace
hr = headrace.open(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
hr.close()
""",
        data_dir,
    )
    with opener:
        assert opener.stdout is not None
        assert opener.stdin is not None
        assert opener.stdout.readline() == "open\n"
        with pytest.raises(errors.HeadraceError, match=rf"{opener.pid}"):
            headrace.open(data_dir)
        opener.stdin.write("\n")
        opener.stdin.flush()
        assert opener.wait(SECONDS_MAX) == 0
    headrace.open(data_dir).close()


@pytest.mark.parametrize("end", ["sys.exit()", "os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_a_close_that_was_forgotten_loses_nothing_confirmed(data_dir: Path, end: str) -> None:
    with program(
        f"""
import os, sys, headrace
hr = headrace.open(sys.argv[1])
orders = hr.topic("orders")
orders.publish_many([b"%d" % n for n in range(100)])
consumer = orders.consumer()
consumer.ack(consumer.receive(40, wait="10s"))
held = consumer.receive(10, wait="10s")
print(orders.publish(b"last").offset, flush=True)
{end}
""",
        data_dir,
    ) as process:
        out, err = process.communicate(timeout=SECONDS_MAX)
        assert out == "100\n", err
        assert process.returncode in (0, 3, -signal.SIGKILL)
    with headrace.open(data_dir) as hr:
        info = hr.topic("orders").group().info()
        assert (info["published"], info["acked"]) == (101, 40)


@pytest.mark.feature("F156")
def test_a_close_confirms_what_was_gathered_and_gives_back_the_rest(data_dir: Path) -> None:
    hr = headrace.open(data_dir)
    orders = hr.topic("orders")
    publisher = orders.publisher(linger="1h")
    receipts = [publisher.publish(b"%d" % n) for n in range(10)]
    consumer = orders.consumer()
    publisher.flush()
    ds = consumer.receive(10, wait="10s")
    for d in ds[:6]:
        d.ack()
    publisher.publish(b"late")
    hr.close()
    hr.close()
    assert [receipt.result().offset for receipt in receipts] == list(range(10))
    with headrace.open(data_dir) as again:
        info = again.topic("orders").group().info()
        assert (info["published"], info["acked"], info["ready"], info["leased"]) == (11, 6, 5, 0)
        with again.topic("orders").consumer() as consumer:
            assert [d.attempt for d in consumer.receive(10, wait="10s")] == [1] * 5


@pytest.mark.feature("F182")
def test_a_node_is_part_of_every_id(data_dir: Path) -> None:
    with headrace.open(data_dir, node_id=7) as hr:
        assert hr.topic("orders").publish(b"x").id >> 12 & 1023 == 7
    with pytest.raises(errors.InvalidArgument, match="1024"):
        headrace.open(":memory:", node_id=1024)


@pytest.mark.parametrize("path", [5, None, "", b"bytes"])
def test_a_path_that_is_none_is_refused(path: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for opening in (headrace.open, headrace.aio.open):
        with pytest.raises(errors.InvalidArgument, match="the path"):
            opening(path)  # type: ignore[arg-type]  # that is the point
    assert list(tmp_path.iterdir()) == []


def test_options_that_cannot_be_are_refused_before_anything_is_opened(data_dir: Path) -> None:
    wrong = {"node_id": ("seven", -1, 1024), "topic_defaults": (5, {"leas": "1m"}), "namespace": (5, "a\nb")}
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(errors.InvalidArgument):
                headrace.open(data_dir, **{name: value})
    assert list(data_dir.iterdir()) == []
