"""What a program may write where, and what it is told when that is wrong: in the process and over the network alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import aio, errors
from headrace.broker.aio import LoopBroker
from headrace.client.handles import Headrace
from integration.server_thread import ServerThread


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    found = ServerThread()
    yield found
    found.stop()


@pytest.fixture(params=["embedded", "network"])
def hr(request: pytest.FixtureRequest) -> Iterator[Headrace]:
    if request.param == "embedded":
        with headrace.open(":memory:") as found:
            yield found
    else:
        namespace = f"n{abs(hash(request.node.name))}"
        with headrace.connect(request.getfixturevalue("server").url, namespace=namespace) as found:
            yield found
            assert found.port.line.connections == 1, "nothing broke the connection"  # type: ignore[attr-defined]


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("span", ["90s", timedelta(seconds=90), 90, 90.0])
def test_a_time_span_among_settings_is_text_a_timedelta_or_seconds(hr: Headrace, span: Any) -> None:
    nested = {"initial_backoff": span, "max_retries": 3}
    made = hr.topic("made", lease=span, retry=nested, **{"retry.max_backoff": span})
    assert hr.create_topic("created", lease=span, retry=nested)["settings"]["retry"]["initial_backoff"] == "90s"
    settings = made.info()["settings"]
    assert settings["lease"] == "90s"
    assert settings["retry"]["initial_backoff"] == settings["retry"]["max_backoff"] == "90s"
    assert settings["retry"]["max_retries"] == 3
    assert hr.topic("made", lease=span) is made, "which it has"
    assert made.configure(message_ttl=span)["settings"]["message_ttl"] == "90s"
    group = made.group("g")
    assert group.create(lease=span)["settings"] == {"lease": "90s"}
    assert group.configure(retry={"total_timeout": span})["settings"]["retry"] == {"total_timeout": "90s"}
    made.consumer("h", retry=nested).close()
    assert made.group("h").info()["settings"]["retry"]["initial_backoff"] == "90s"
    assert hr.call("topic.config", topic="made", settings={"lease": span})["settings"]["lease"] == "90s"


def test_a_time_span_that_cannot_be_is_refused_by_its_key(hr: Headrace) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"retry\.initial_backoff is -1; a time span must be 0 or more"):
        hr.topic("t", retry={"initial_backoff": -1})
    with pytest.raises(errors.InvalidArgument, match=r"max_depth is datetime\.timedelta.*; it must be a whole number"):
        hr.topic("t", max_depth=timedelta(seconds=3))
    with pytest.raises(errors.InvalidArgument, match="lease: True is not a time span"):
        hr.topic("t", lease=True)
    with pytest.raises(errors.InvalidArgument, match=r"leese is .*; no setting is called so"):
        hr.topic("t", leese=timedelta(seconds=3))


def test_the_defaults_of_topics_take_them_too() -> None:
    with headrace.open(":memory:", topic_defaults={"lease": timedelta(minutes=2)}, seal={"interval": 5}) as hr:
        assert hr.topic("t").info()["settings"]["lease"] == "2m"


# -- arguments ---------------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Callable[[Headrace], Any], str]] = {
    "pause by": (lambda hr: hr.topic("t").group().pause("x", by=6), "group.pause: by is 6; it must be text"),  # type: ignore[arg-type]
    "pause why": (lambda hr: hr.topic("t").group().pause(why=5), "group.pause: why is 5; it must be text"),  # type: ignore[arg-type]
    "redrive rate": (lambda hr: hr.topic("t").dead_letters.redrive(rate="10"), "rate is '10'; it must be messages"),  # type: ignore[arg-type]
    "redrive dry_run": (lambda hr: hr.topic("t").dead_letters.redrive(dry_run="yes"), "must be true or false"),  # type: ignore[arg-type]
    "replay rate": (lambda hr: hr.topic("t").group().replay(rate="x"), "group.replay: rate is 'x'; it must be"),  # type: ignore[arg-type]
    "cancel tag": (lambda hr: hr.topic("t").schedule.cancel(tag=5), "schedule.cancel: tag is 5; it must be text"),  # type: ignore[arg-type]
    "raw call": (lambda hr: hr.port.call("topic.create", topic="q", settings=5), "settings is 5; it must be settings"),
    "where": (lambda hr: hr.topic("t").dead_letters.list(where="x"), "where is 'x'; it must be a mapping such as"),  # type: ignore[arg-type]
    "where ids": (lambda hr: hr.topic("t").dead_letters.list({"ids": 5}), "where ids is 5; it must be a list"),
    "where reason": (lambda hr: hr.topic("t").dead_letters.list({"reason": "foo"}), "one of rejected, max_retries"),
    "seek offsets": (lambda hr: hr.topic("t").group().seek(offsets=[1]), "offsets is [1]; it must be a mapping"),  # type: ignore[arg-type]
    "seek offset": (lambda hr: hr.topic("t").group().seek(offset="1"), "offset is '1'; it must be a whole number"),  # type: ignore[arg-type]
    "seek stops": (lambda hr: hr.topic("t").group().seek("earliest", stop_offsets=5), "stop_offsets is 5; it must"),  # type: ignore[arg-type]
    "create durable": (lambda hr: hr.topic("t").group("g").create(durable="x"), "durable is 'x'; it must be true or"),  # type: ignore[arg-type]
    "consumer durable": (lambda hr: hr.topic("t").consumer("g", durable="x"), "durable is 'x'; it must be True or"),  # type: ignore[arg-type]
    "consumer name": (lambda hr: hr.topic("t").consumer(name=5), "consumer name 5: must be text, not int"),  # type: ignore[arg-type]
    "worker": (lambda hr: hr.worker(WRONG.get), 'write @hr.worker("topic") above'),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_told_and_nothing_else_happens(hr: Headrace, name: str) -> None:
    call, message = WRONG[name]
    hr.topic("t").publish(b"x")
    with pytest.raises(errors.InvalidArgument) as refused:
        call(hr)
    assert message in refused.value.message
    assert [d.value for d in hr.topic("t").consumer("others").receive()] == [b"x"]


def test_what_open_refuses() -> None:
    with pytest.raises(errors.InvalidArgument, match="auto_create is 'x'; it must be True or False"):
        headrace.open(":memory:", auto_create="x")  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgument, match="auto_create is 'x'; it must be True or False"):
        aio.open(":memory:", auto_create="x")  # type: ignore[arg-type]


def test_a_header_and_its_value_in_one_text_are_understood(hr: Headrace) -> None:
    topic = hr.topic("t")
    topic.publish(b"eu", headers={"shop": "eu"})
    topic.publish(b"us", headers={"shop": "us"})
    with topic.consumer() as consumer:
        consumer.reject(consumer.receive(2))
    assert [one["value"] for one in topic.dead_letters.list({"header": "shop:eu"})] == [b"eu"]
    assert len(topic.dead_letters.list({"header": "shop"})) == 2


def test_where_a_group_starts_is_taken_as_it_was_told(hr: Headrace) -> None:
    topic = hr.topic("t", partitions=2)
    topic.publish_many([b"%d" % n for n in range(6)], partition=1)
    group = topic.group()
    starts = group.seek(offsets={0: 0, 1: 4})["starts"]
    assert starts == {"0": 0, "1": 4}
    assert group.seek(offsets=starts)["lag"] == 2
    with pytest.raises(errors.InvalidArgument, match="a partition in offsets is '²'; it must be a whole number"):
        group.seek(offsets={"²": 1})  # type: ignore[dict-item]


# -- what is said ------------------------------------------------------------------------------------------------------


def test_a_closed_client_says_that_it_is_closed(server: ServerThread) -> None:
    for client in (headrace.open(":memory:"), headrace.connect(server.url, namespace="closed")):
        topic = client.topic("t")
        client.close()
        with pytest.raises(errors.Closed) as refused:
            topic.publish(b"x")
        assert "is closed" in refused.value.message
        assert "under way" not in refused.value.message


def test_a_lost_lease_is_told_in_words_of_the_topic() -> None:
    with headrace.open(":memory:") as hr:
        for name in ("first", "second"):
            hr.topic(name).publish(b"x")
        with hr.topic("second").consumer() as consumer:
            (delivery,) = consumer.receive()
            hr.topic("second").group().seek("latest")
            with pytest.raises(errors.LeaseLost, match="at offset 0 in partition 0 of topic 'second' is over"):
                consumer.ack([delivery])


def test_a_directory_that_this_process_has_open_is_said_to_be(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "d"), pytest.raises(errors.StorageFailed, match="is held by this process already"):
        headrace.open(tmp_path / "d")


def test_a_lease_that_is_extended_says_until_when_and_no_further_than_allowed(hr: Headrace) -> None:
    topic = hr.topic("t", lease="30s", max_lease="1h")
    topic.publish_many([b"a", b"b"])
    with topic.consumer() as consumer:
        one, other = consumer.receive(2)
        before = other.lease_until
        one.extend("5m")
        assert one.lease_until - before > timedelta(minutes=4)
        assert other.lease_until == before
        far = one.lease_until
        one.extend("5h")
        assert timedelta(minutes=54) < one.lease_until - far < timedelta(minutes=58), "max_lease from now"
        consumer.ack([one, other])


async def test_an_extended_lease_says_until_when_in_an_event_loop() -> None:
    async with aio.open(":memory:") as hr:
        topic = await hr.topic("t", max_lease="1h")
        await topic.publish(b"a")
        async with topic.consumer() as consumer:
            (one,) = await consumer.receive()
            before = one.lease_until
            await one.extend("5h")
            assert timedelta(minutes=58) < one.lease_until - before < timedelta(minutes=61)


def test_a_replay_is_read_once(hr: Headrace) -> None:
    topic = hr.topic("t")
    topic.publish_many([b"a", b"b"])
    replay = topic.read()
    assert [record.value for record in replay] == [b"a", b"b"]
    with pytest.raises(errors.InvalidArgument, match=r"was read already; ask topic\.read"):
        list(replay)
    with pytest.raises(errors.InvalidArgument, match="was read already"):
        replay.to_arrow()
    assert topic.read().to_arrow().num_rows == 2


async def test_workers_are_started_in_an_event_loop_by_the_same_name() -> None:
    async with aio.open(":memory:") as hr:
        done: asyncio.Queue[bytes] = asyncio.Queue()

        @hr.worker("emails")
        async def send(delivery: Any) -> None:
            await done.put(delivery.value)

        await (await hr.topic("emails")).publish(b"one")
        async with hr.start_workers() as workers:
            assert workers is hr.workers
            async with asyncio.timeout(60):
                assert await done.get() == b"one"
        workers = await hr.start_workers()
        await (await hr.topic("emails")).publish(b"two")
        async with asyncio.timeout(60):
            assert await done.get() == b"two"
        await workers.stop()
        with pytest.raises(errors.InvalidArgument, match=r'write @hr\.worker\("topic"\) above .*send'):
            hr.worker(send)  # type: ignore[arg-type]


def test_a_pull_that_the_server_fails_at_is_told_to_the_consumer(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise KeyError("a fault of the server's")

    with headrace.connect(server.url, namespace="faults") as hr:
        consumer = hr.topic("t").consumer(prefetch=1)
        with monkeypatch.context() as patched:
            patched.setattr(LoopBroker, "lease_then", broken)
            with pytest.raises(errors.Closed, match="internal error ended this request"):
                consumer.receive(100, wait=0)
        assert hr.topic("t").publish(b"the connection stands").offset == 0
        assert hr.port.line.connections == 1  # type: ignore[attr-defined]
