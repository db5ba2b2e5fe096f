"""What clients and a disk may do to a server process without others noticing: real processes, sockets, a full disk."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from headrace import errors
from headrace.batch import Message
from headrace.wire import native
from integration.native_peer import Peer, batch_of, scope_of, values_of
from integration.server_process import ServerProcess

MIB = 1 << 20


@pytest.fixture
def server(data_dir: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(data_dir)
    yield process
    if process.process.poll() is None:
        process.kill()


async def raw(address: str) -> asyncio.StreamWriter:
    host, _, port = address.rpartition(":")
    return (await asyncio.open_connection(host, int(port)))[1]


@asynccontextmanager
async def worker(address: str) -> AsyncIterator[list[int]]:
    """A well-behaved client that publishes, leases and acks, round after round; counts its rounds."""
    peer = await Peer.open(address)
    rounds = [0]

    async def work() -> None:
        while True:
            await peer.publish("steady", [b"%d" % rounds[0]])
            leased = await peer.lease("steady", 10, wait_ns=10_000_000_000)
            assert values_of(leased) == [b"%d" % rounds[0]]
            assert not (await peer.ack(scope_of("steady"), leased.runs)).refusals
            rounds[0] += 1

    task = asyncio.create_task(work())
    try:
        yield rounds
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await peer.close()


async def passes(rounds: list[int], more: int) -> None:
    """Until the worker has done so many more rounds."""
    goal = rounds[0] + more
    async with asyncio.timeout(60):
        while True:
            if rounds[0] >= goal:
                return
            await asyncio.sleep(0.005)


async def test_a_worker_goes_on_among_clients_that_misbehave_and_memory_comes_back(server: ServerProcess) -> None:
    address = server.ready()["native"]
    half = b"".join(native.encode(native.Publish(1, "", "t", -1, 0, batch_of([bytes(500_000)]))))[:-1]
    async with worker(address) as rounds:
        await passes(rounds, 20)
        before = server.memory_bytes()
        writers: list[asyncio.StreamWriter] = []
        for i in range(100):
            writer = await raw(address)
            writer.write([b"GET / HTTP/1.1\r\n\r\n", bytes(4096), struct.pack("<IBBI", 0xFFFF_FFFF, 2, 0, 0)][i % 3])
            writers.append(writer)
        peers = [await Peer.open(address) for _ in range(60)]
        for peer in peers:
            peer.writer.write(half)  # 30 MB that are begun and do not end
        await passes(rounds, 20)
        assert server.memory_bytes() - before < 30 * MIB + 40 * MIB
        for writer in writers:
            writer.close()
        for peer in peers:
            await peer.abandon()
        for _ in range(20):
            sockets = await asyncio.gather(*(raw(address) for _ in range(100)))
            for i, writer in enumerate(sockets):
                writer.close() if i % 2 else writer.transport.abort()
        await passes(rounds, 20)
        descriptors = server.descriptors()
        while descriptors > 40:
            await passes(rounds, 1)
            descriptors = server.descriptors()
        assert server.memory_bytes() - before < 40 * MIB
    assert await asyncio.to_thread(server.stop) == 0


async def test_ten_that_do_not_read_cost_their_share_and_no_more(server: ServerProcess) -> None:
    address = server.ready()["native"]
    async with worker(address) as rounds:
        producer = await Peer.open(address)
        batch = [bytes(20_000)] * 50
        await passes(rounds, 5)
        before = server.memory_bytes()
        stuck = []
        for i in range(10):
            peer = await Peer.open(address)
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined] # a socket's transport
            peer.session.send_consume(
                scope_of("flood", f"g{i}", f"stuck-{i}"), credit_messages=60_000, credit_bytes=60 * MIB
            )
            peer.flush()
            stuck.append(peer)
        for _ in range(60):
            await producer.publish("flood", batch)  # 60 MB for each of the ten
        await passes(rounds, 20)
        grown = server.memory_bytes() - before
        assert grown < 64 * MIB, f"{grown / MIB:.0f} MiB"
        for peer in stuck:
            await peer.abandon()
        await producer.close()
    assert await asyncio.to_thread(server.stop) == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB; where it may be mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mount: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


async def test_a_full_disk_refuses_publishes_serves_the_rest_and_recovers_by_itself(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(20 * MIB))
    server = ServerProcess(small_disk / "data")
    try:
        peer = await Peer.open(server.ready()["native"])
        confirmed = 0

        async def publish_for_ever() -> None:
            nonlocal confirmed
            while True:
                await peer.publish("t", [Message(b"%08d" % confirmed + bytes(100_000))])
                confirmed += 1

        with pytest.raises(errors.StorageFull):
            await publish_for_ever()
        assert confirmed > 10
        leased = await peer.lease("t", 5)
        assert [value[:8] for value in values_of(leased)] == [b"%08d" % i for i in range(5)]
        assert not (await peer.ack(scope_of("t"), leased.runs)).refusals
        ballast.unlink()
        async with asyncio.timeout(60):
            while True:
                try:
                    await peer.publish("t", [Message(b"%08d" % confirmed + bytes(100_000))])
                    break
                except errors.StorageFull:
                    await asyncio.sleep(0.05)
        confirmed += 1
        await peer.abandon()
    finally:
        server.kill()
    server = ServerProcess(small_disk / "data")
    try:
        peer = await Peer.open(server.ready()["native"])
        got: list[bytes] = []
        while len(got) < confirmed - 5:
            leased = await peer.lease("t", 20)
            values = values_of(leased)
            assert values, f"{len(got)} of {confirmed - 5} are there"
            got += [value[:8] for value in values]
        assert got == [b"%08d" % i for i in range(5, confirmed)]
        await peer.close()
        assert await asyncio.to_thread(server.stop) == 0
    finally:
        if server.process.poll() is None:
            server.kill()
