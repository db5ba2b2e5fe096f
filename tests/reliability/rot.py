"""R11: damage at rest over a whole data directory: journal, snapshot, marks, manifest, sealed files.

A directory is made by a server that publishes, settles, seals and snapshots. Each trial copies it, damages one file
(a bit, a block, the end, the whole of it) and looks at it as an operator would: ``verify``, then a start and a reader.

    wrong body    a reader was handed bytes that nobody sent: never
    silent loss   the start succeeds, every read succeeds, verify finds nothing wrong, and something is missing: never
    unfound       a start or a read fails, or something is missing, and verify finds nothing wrong: never
"""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Final

import headrace
from headrace.broker.embedded import SEALED
from headrace.errors import HeadraceError
from headrace.log.store import open_store
from headrace.shard.verifying import verify
from headrace.wire import native
from integration.native_peer import Peer
from reliability.broker import BrokerProcess, DidNotStart
from reliability.report import Report
from reliability.workload import TOPIC, Ledger, Load, make_topic, number_of, settle

__all__ = ["damage_at_rest"]

SENT: Final = 1200
BODY_BYTES: Final = 600
DAMAGES: Final = ("bit", "bits", "zeroes", "noise", "cut", "longer", "gone", "emptied", "old block")
BY_SERVER_EVERY: Final = 10


def damage_at_rest(directory: Path, seed: int, scale: float = 1) -> Report:
    """R11; ``scale`` 1 is 1,000 trials, a tenth of them with a server process."""
    report = Report("R11", "damage at rest, in any file", "0 wrong bodies, 0 silent losses", seed)
    original = directory / "original"
    confirmed = asyncio.run(_make(directory / "maker", original))
    rng = random.Random(seed)
    for number in range(max(10, round(1000 * scale))):
        damaged = directory / "damaged"
        shutil.rmtree(damaged, ignore_errors=True)
        _copy(original, damaged)
        what = _damage(damaged, rng)
        told = not verify(damaged, store=open_store(f"{damaged}/{SEALED}")).ok
        trial = _by_server if number % BY_SERVER_EVERY == BY_SERVER_EVERY - 1 else _in_process
        found, wrong, said, refused = trial(directory, damaged)
        report.tried["trials"] += 1
        report.hold(not wrong, f"trial {number}: {what}: wrong bodies: {wrong[:2]}")
        missing = confirmed - found
        if refused:
            report.tried["start refused"] += 1
        elif missing:
            if said or told:
                report.tried["said"] += 1
            else:
                report.violate(f"trial {number}: {what}: {len(missing)} are missing and nobody said so")
        else:
            report.tried["whole"] += 1
        report.hold(
            told or not (refused or missing),
            f"trial {number}: {what}: verify finds nothing; the server: {refused or said}",
        )
    return report


async def _make(place: Path, original: Path) -> set[int]:
    """A directory with something of everything, and the numbers that lie in it."""
    ledger = Ledger()
    broker = BrokerProcess(place, settings=("seal.behind=64KiB", "seal.interval=1s", "seal.share=1")).start()
    try:
        await make_topic(broker, partitions=2)
        load = Load(broker, ledger, seed=0, size_bytes=BODY_BYTES)
        peer = await Peer.open(broker.address())
        while ledger.next < SENT:
            await load.publish_once(peer, 50)
            leased = await peer.lease(TOPIC, 20)
            await settle(peer, native.Scope("", TOPIC, "default", "c"), leased.runs, leased.batches, ledger)
        await peer.call("log.seal")
        while ledger.next < SENT + 500:
            await load.publish_once(peer, 20)
        await peer.close()
        broker.kill()  # a kill, so that the mark is not one of a clean stop
    finally:
        broker.kill()
    broker.data.rename(original)
    for path in original.glob("spare-*"):
        path.unlink()
    return set(ledger.confirmed)


def _copy(original: Path, damaged: Path) -> None:
    import subprocess

    subprocess.run(["cp", "-r", "--sparse=always", str(original), str(damaged)], check=True)


def _damage(damaged: Path, rng: random.Random) -> str:
    files = sorted(path for path in damaged.rglob("*") if path.is_file() and path.name != "lock")
    path = rng.choice(files)
    how = rng.choice(DAMAGES)
    name = f"{how} in {path.relative_to(damaged)}"
    with path.open("r+b") as file:
        size = file.seek(0, 2)
        used = _used_bytes(path, size)
        at = rng.randrange(max(1, used))
        match how:
            case "gone":
                path.unlink()
            case "emptied":
                file.truncate(0)
            case "cut":
                file.truncate(at)
            case "longer":
                file.write(rng.randbytes(rng.randint(1, 5000)))
            case "bit" | "bits":
                for _ in range(1 if how == "bit" else rng.randint(2, 20)):
                    at = rng.randrange(max(1, used))
                    file.seek(at)
                    old = file.read(1) or b"\0"
                    file.seek(at)
                    file.write(bytes([old[0] ^ 1 << rng.randrange(8)]))
            case "zeroes" | "noise":
                length = rng.choice((1, 8, 512, 4096))
                file.seek(at)
                file.write(bytes(length) if how == "zeroes" else rng.randbytes(length))
            case "old block":
                length, source = rng.choice((512, 4096)), rng.randrange(max(1, used))
                file.seek(source - source % length)
                block = file.read(length)
                file.seek(at - at % length)
                file.write(block)
    return f"{name} at {at} of {used}"


def _used_bytes(path: Path, size: int) -> int:
    """Up to the last byte that is not zero: beyond, a journal file is only reserved."""
    if path.suffix != ".journal":
        return size
    data = path.read_bytes().rstrip(b"\0")
    return len(data)


def _in_process(directory: Path, damaged: Path) -> tuple[set[int], list[str], str, str]:
    """Numbers found, wrong bodies, what was said while reading, why it did not open."""
    try:
        opened = headrace.open(damaged)
    except HeadraceError as error:
        return set(), [], "", f"{error.code}: {error.message}"
    with opened as broker:
        found, wrong, said = _read(broker)
    return found, wrong, said, ""


def _by_server(directory: Path, damaged: Path) -> tuple[set[int], list[str], str, str]:
    broker = BrokerProcess(directory / "server", data=damaged, settings=("seal.interval=1h",))
    try:
        broker.start()
    except DidNotStart as error:
        broker.kill()
        return set(), [], "", str(error)
    try:
        with headrace.connect(broker.url) as client:
            found, wrong, said = _read(client)
    finally:
        broker.kill()
    return found, wrong, said, ""


def _read(client: headrace.Headrace) -> tuple[set[int], list[str], str]:
    """Everything that can be read of the log, a piece at a time, so that one error does not hide the rest."""
    found: set[int] = set()
    wrong: list[str] = []
    said = ""

    def look(body: bytes) -> None:
        try:
            found.add(number_of(body))
        except ValueError as error:
            wrong.append(f"{error} {body[:30]!r}")

    topic = client.topic(TOPIC)
    for partition in (0, 1):
        try:
            for message in topic.read(partition=partition):
                look(message.value)
        except HeadraceError as error:
            said = f"{error.code}: {error.message}"
    try:
        with topic.consumer(group="default", lease="1h") as consumer:
            while deliveries := consumer.receive(500, wait=0):
                for delivery in deliveries:
                    look(delivery.value)
                consumer.ack(deliveries)
    except HeadraceError as error:
        said = said or f"{error.code}: {error.message}"
    return found, wrong, said
