"""Clients that others made, each through the same story: what works with a broker works with us."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from integration.mqtt_clients import KINDS, MosquittoTools, RealClient, make
from integration.server_process import ServerProcess
from integration.server_thread import ServerThread

pytestmark = [
    pytest.mark.parametrize("kind", KINDS),
    # Clients whose own teardown leaves a socket or a task to the garbage collector; it is not ours they leave.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    running = ServerThread(mqtt_port=0)
    yield running
    running.stop()


@pytest.fixture
def address(server: ServerThread) -> str:
    return server.server.addresses["mqtt"]


@pytest.fixture
def name() -> str:
    """Of topics and clients that no other test uses."""
    return f"t{next(_numbers)}"


@pytest.fixture
async def client(kind: str) -> AsyncIterator[Callable[[], RealClient]]:
    opened: list[RealClient] = []

    def new() -> RealClient:
        opened.append(make(kind))
        return opened[-1]

    yield new
    for one in opened:
        if one.is_connected:
            await one.close()


async def dropped(one: RealClient) -> None:
    await one.drop()
    one.is_connected = False


@pytest.mark.feature("F183", "F184", "F255")
async def test_messages_of_each_qos_arrive(address: str, name: str, client: Callable[[], RealClient]) -> None:
    reader, writer = client(), client()
    await reader.begin(address, f"{name}-reader")
    await reader.subscribe(f"{name}/+/x", 2)
    await writer.begin(address, f"{name}-writer")
    for qos in (0, 1, 2):
        await writer.publish(f"{name}/{qos}/x", b"%d" % qos, qos)
    got = [await reader.message() for _ in range(3)]
    assert [(m.topic, m.payload, m.qos, m.retain) for m in sorted(got)] == [
        (f"{name}/{qos}/x", b"%d" % qos, qos, False) for qos in (0, 1, 2)
    ]


@pytest.mark.feature("F017")
async def test_a_retained_message_greets(address: str, name: str, client: Callable[[], RealClient]) -> None:
    writer, reader = client(), client()
    await writer.begin(address, f"{name}-writer")
    await writer.publish(f"{name}/state", b"on", 1, retain=True)
    await reader.begin(address, f"{name}-reader")
    await reader.subscribe(f"{name}/#", 1)
    message = await reader.message()
    assert (message.topic, message.payload, message.retain) == (f"{name}/state", b"on", True)


async def test_a_will_is_published_for_who_is_cut_off(
    address: str, name: str, client: Callable[[], RealClient]
) -> None:
    watcher, mortal = client(), client()
    await watcher.begin(address, f"{name}-watcher")
    await watcher.subscribe(f"{name}/gone", 1)
    await mortal.begin(address, f"{name}-mortal", will=(f"{name}/gone", b"bye"))
    await dropped(mortal)
    assert (await watcher.message()).payload == b"bye"


@pytest.mark.feature("F017", "F195")
async def test_members_of_a_share_divide_the_messages(
    address: str, name: str, client: Callable[[], RealClient]
) -> None:
    members = [client(), client()]
    for number, member in enumerate(members):
        await member.begin(address, f"{name}-{number}")
        await member.subscribe(f"$share/{name}/{name}/jobs", 1)
    writer = client()
    await writer.begin(address, f"{name}-writer")
    for number in range(8):
        await writer.publish(f"{name}/jobs", b"%d" % number, 1)
    got = [[await member.message() for _ in range(4)] for member in members]
    assert sorted(int(m.payload) for part in got for m in part) == list(range(8))


@pytest.mark.feature("F255", "F185", "F186", "F194", "F303")
async def test_a_queue_is_worked_off(address: str, name: str, client: Callable[[], RealClient]) -> None:
    worker, writer = client(), client()
    await writer.begin(address, f"{name}-writer")
    await writer.publish(f"$queue/{name}", b"job", 1)
    await worker.begin(address, f"{name}-1")
    await worker.subscribe(f"$queue/{name}/$group/{name}", 1)
    message = await worker.message()
    assert message.payload == b"job"
    if worker.version == 4:
        message_id = message.topic.removeprefix(f"$queue/{name}/$id/")
        assert message_id.isdecimal()
        await writer.publish(f"$queue/{name}/$group/{name}/$reject/{message_id}", b"not held by this one", 0)
        if not settles_alone(worker):
            await worker.publish(f"$queue/{name}/$ack/{message_id}", b"", 1)
    elif not settles_alone(worker):
        await worker.publish(f"$queue/{name}/$ack", b"", 1)  # the only one it holds


def settles_alone(client: RealClient) -> bool:
    """mosquitto_pub is another client than mosquitto_sub, so it may not settle for it."""
    return isinstance(client, MosquittoTools)


async def test_a_session_is_resumed_after_the_server_was_killed(
    name: str, client: Callable[[], RealClient], data_dir: Path
) -> None:
    server = ServerProcess(data_dir / "data", doors=("mqtt",))
    try:
        where = server.ready()["mqtt"]
        reader = client()
        await reader.begin(where, f"{name}-reader", lasts=True)
        await reader.subscribe(f"{name}/#", 1)
        await dropped(reader)
        writer = client()
        await writer.begin(where, f"{name}-writer")
        for number in range(5):
            await writer.publish(f"{name}/n", b"%d" % number, 1)
        await writer.publish(f"{name}/kept", b"kept", 1, retain=True)
        await writer.close()
        writer.is_connected = False
        server.kill()
        server = ServerProcess(data_dir / "data", doors=("mqtt",))
        reader = client()
        await reader.begin(server.ready()["mqtt"], f"{name}-reader", lasts=True)
        assert [(await reader.message()).payload for _ in range(6)] == [b"0", b"1", b"2", b"3", b"4", b"kept"]
        await dropped(reader)
    finally:
        server.kill()
