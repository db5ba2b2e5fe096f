"""Sealing interrupted at each of its steps: nothing is lost, nothing is there twice, no file is left behind."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from headrace.batch import Message
from headrace.clock import ManualClock
from headrace.errors import Closed, HeadraceError, InvalidArgument, StorageFailed, StorageFull
from headrace.log.store import LocalStore
from headrace.shard import sealing
from headrace.testing import Fault, SimulatedDisk
from headrace.testing.disk import PowerCut
from unit.log.harness import FILE_BYTES, SECOND, SealedWorld

WHERE = "/data"


def on(disk: SimulatedDisk, clock: ManualClock | None = None) -> SealedWorld:
    return SealedWorld(WHERE, files=disk, clock=clock)


def lived() -> SimulatedDisk:
    """A disk on which a broker has worked and stopped: two topics, several sealed files, more to seal."""
    disk = SimulatedDisk()
    world = on(disk)
    world.call("topic.create", topic="orders", settings={"partitions": 2})
    for turn in range(5):
        for partition in range(2):
            world.publish("orders", [b"%d-%d" % (turn, i) * 20 for i in range(60)], partition=partition)
        world.publish("bills", [Message(b"%d" % turn, key=b"k")])
        world.settle("orders", world.lease("orders", 40), "ack whole")
        world.settle("bills", world.lease("bills"), "reject")
        if turn < 3:
            world.seal()
    world.crash()
    world.sealer.stop()
    return disk.kill()


BASE = lived()
TOPICS = (("orders", 0), ("orders", 1), ("bills", 0), ("dlq/bills", 0))


def content(world: SealedWorld) -> list[Any]:
    found: list[Any] = [world.read(topic, partition=partition) for topic, partition in TOPICS]
    for topic in ("orders", "bills"):
        info = world.call("group.show", topic=topic, group="default")
        found.append({name: info[name] for name in ("ready", "scheduled", "acked", "dead")})
    return found


def sealed_away(world: SealedWorld) -> None:
    """Sealing, putting together, and (after a while) deleting what is no longer live."""
    world.seal()
    world.clock.advance(600 * SECOND)
    world.seal()


def stored(disk: SimulatedDisk) -> set[str]:
    """Every file there is in the place for sealed ones."""
    root = f"{WHERE}/log/"
    return {
        f"{at}/{name}".removeprefix(root) for at in disk._directories for name in disk.names(at) if root in f"{at}/"
    }


def live(world: SealedWorld) -> set[str]:
    return {file.path for file in (*world.core.manifest.live_segments(), *world.core.manifest.live_events())}


def expected() -> list[Any]:
    world = on(BASE.copy())
    found = content(world)
    world.crash()
    return found


EXPECTED = expected()


def calls() -> int:
    disk = BASE.copy()
    world = on(disk)
    before = disk.calls
    sealed_away(world)
    world.crash()
    return disk.calls - before


CALLS = calls()


def check(disk: SimulatedDisk) -> None:
    """A new life finds everything, seals it, and leaves nothing behind."""
    world = on(disk)
    assert content(world) == EXPECTED
    sealed_away(world)
    sealed_away(world)
    assert content(world) == EXPECTED
    assert stored(disk) == live(world)
    assert world.log("orders").journal_start == world.log("orders").end
    assert world.core.backlog_drift() == 0
    world.crash()


def test_there_are_steps_to_interrupt() -> None:
    assert 30 < CALLS < 400
    check(BASE.copy())


@pytest.mark.parametrize(("rule", "part", "parts"), [*(("strict", part, 4) for part in range(4)), ("ext4", 0, 5)])
def test_the_power_is_cut_at_each_step(rule: Any, part: int, parts: int) -> None:
    for step in range(1 + part, CALLS + 1, parts):
        disk = BASE.copy()
        disk.rule = rule
        world = on(disk)
        disk.faults = {disk.calls + step: Fault(power_cut=True)}
        with pytest.raises(PowerCut):
            sealed_away(world)
        check(disk.crash(random.Random(step)))


@pytest.mark.parametrize("part", range(4))
def test_each_call_fails_once(part: int) -> None:
    """What fails in writing a file is tried again in the same life; what fails in the journal ends it."""
    survived = 0
    for step in range(1 + part, CALLS + 1, 4):
        disk = BASE.copy()
        world = on(disk)
        disk.faults = {disk.calls + step: Fault(errno.EIO)}
        try:
            sealed_away(world)
        except HeadraceError as error:
            assert isinstance(error, StorageFailed), error
        try:
            world.publish("late", [b"x"])
            sealed_away(world)
            sealed_away(world)
            survived += 1
            assert content(world) == EXPECTED
            assert stored(disk) == live(world)
        except (StorageFailed, Closed):
            check(disk.crash(random.Random(step)))
    assert survived


@pytest.mark.feature("F136")
def test_a_full_disk_ends_a_round_and_nothing_else() -> None:
    disk = BASE.copy()
    world = on(disk)
    disk.room_total_bytes = disk._used_bytes() + 700
    with pytest.raises(StorageFull, match=r"writing /data/log/.*\.parquet"):
        world.seal()
    assert content(world) == EXPECTED
    leased = world.lease("orders", 5)
    world.settle("orders", leased, "ack")  # settlements have their reserve
    world.settle("orders", world.lease("orders", 5), "release")
    with pytest.raises(StorageFull):
        world.seal()
    assert not [name for name in stored(disk) if name.endswith(".new")]  # nothing half takes room
    disk.room_total_bytes = 1 << 40
    sealed_away(world)
    sealed_away(world)
    assert stored(disk) == live(world)
    assert [world.read(topic, partition=partition) for topic, partition in TOPICS] == EXPECTED[:4]
    world.crash()


def test_sealing_is_the_same_whenever_it_happens(data_dir: Path) -> None:
    """Sealed in one go, or bit by bit with restarts between: the same rows."""
    rows = []
    for restarts in (False, True):
        directory = data_dir / str(restarts)
        world = SealedWorld(directory)
        for turn in range(6):
            world.publish("orders", [b"%d-%d" % (turn, i) for i in range(30)])
            world.settle("orders", world.lease("orders", 20), "ack whole")
            world.settle("orders", world.lease("orders", 2), "nack")
            world.clock.advance(SECOND)
            if restarts:
                world.seal()
                world.close()
                world = SealedWorld(directory, clock=world.clock)
        sealed_away(world)
        rows.append(
            (
                world.sql('SELECT "offset", value, append_time_ns FROM messages ORDER BY 1'),
                world.sql(
                    "SELECT event, consumer, first_offset, last_offset, count, attempt, reason, at_ns FROM events"
                    " WHERE event IN ('published', 'leased', 'acked', 'retried') ORDER BY position, first_offset"
                ),
            )
        )
        world.close()
    assert len(rows[0][0]) == 180
    assert rows[0] == rows[1]


def test_a_damaged_file_keeps_nothing_else_from_going_on(data_dir: Path) -> None:
    world = SealedWorld(data_dir)
    for turn in range(3):
        world.publish("orders", [b"%d" % turn] * 5)
        world.seal()
    path = world.parquet()[0]
    path.write_bytes(path.read_bytes()[:-8])
    for turn in range(30):
        world.publish("bills", [b"%d" % turn * 1000] * 5)
        world.publish("orders", [b"%d" % turn])
        world.seal()
    assert world.told == ["small sealed files are not put together"]
    assert world.journal.end_position - world.journal.first_position < 3 * FILE_BYTES
    assert len(world.read("bills")) == 150
    assert [offset for offset, _ in world.read("orders", from_offset=5)] == list(range(5, 45))
    world.close()


class TestInTheBackground:
    def test_a_round_that_fails_is_told_once_and_tried_again(self) -> None:
        disk = BASE.copy()
        world = on(disk)
        world.sealer._config = type(world.sealer._config)(behind_bytes=0, interval_ns=SECOND)
        failing = [True]
        real = LocalStore.write

        class Broken(LocalStore):
            def write(self, path: str, pieces: Any) -> None:
                if failing[0]:
                    raise StorageFailed(f"writing {path} failed: no luck")
                real(self, path, pieces)

        world.core.cold.store = Broken(f"{WHERE}/log", disk)
        for _ in range(20):
            world.publish("orders", [b"x" * 1000] * 10, partition=0)
        told: list[str] = []
        world.sealer._tell = lambda level, event, **more: told.append(f"{level} {event} {more}")
        for _ in range(3):
            world.sealer._nudged.set()
            with pytest.raises(StorageFailed):
                world.sealer.round(throttled=True)
        failing[0] = False
        assert world.sealer.round(throttled=True).messages
        world.crash()

    def test_it_takes_its_share_and_no_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """At a share of a quarter, three times as long as it worked is waited between two pieces of work."""
        disk = BASE.copy()
        clock = ManualClock()
        world = on(disk, clock)
        world.sealer._config = type(world.sealer._config)(behind_bytes=0, share=0.25)
        waited: list[float] = []

        def wait(seconds: float) -> bool:
            waited.append(seconds)
            return False

        monkeypatch.setattr(world.sealer._stopping, "wait", wait)
        world.sealer._throttled = True
        world.sealer._worked_ns = clock.monotonic_ns()
        clock.advance(1_000_000)
        world.sealer._pace()  # too little to pause for
        clock.advance(9_000_000)
        world.sealer._pace()
        assert waited == [pytest.approx(0.03)]
        world.sealer._throttled = False
        clock.advance(SECOND)
        world.sealer._pace()
        assert len(waited) == 1
        world.crash()

    def test_a_stop_gives_a_round_up_at_once(self) -> None:
        disk = BASE.copy()
        world = on(disk)
        world.sealer.stop()
        assert world.seal().files == []
        assert content(world) == EXPECTED
        world.crash()


class TestWithoutPyarrow:
    def test_the_journal_stays_until_retention_and_that_is_said_once(
        self, data_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sealing, "find_spec", lambda name: None)
        world = SealedWorld(data_dir)
        world.call("topic.create", topic="orders", settings={"retention": "1h"})
        for _ in range(10):
            world.publish("orders", [b"x" * 1000] * 20)
        for _ in range(3):
            world.seal(everything=False)
        assert len(world.told) == 1
        assert "pyarrow is not installed" in world.told[0]
        assert world.journal.first_position == 0
        assert len(world.read("orders")) == 200
        while leased := world.lease("orders", 1000):
            world.settle("orders", leased, "ack whole")
        world.wait(7200)
        world.publish("orders", [b"new"])
        world.seal(everything=False)
        assert world.journal.first_position > 2 * FILE_BYTES
        assert [value for _, value in world.read("orders")] == [b"new"]
        assert world.parquet() == []
        monkeypatch.undo()  # it is installed later
        assert world.seal().messages == 1
        world.close()

    def test_what_was_sealed_before_says_what_is_missing(self, data_dir: Path) -> None:
        world = SealedWorld(data_dir)
        world.publish("orders", [b"a"])
        world.seal()
        world.publish("orders", [b"b"])
        world.close()
        program = f"""
            import sys
            sys.modules["pyarrow"] = None  # as if it were not installed
            import headrace
            from headrace.errors import InvalidArgument
            with headrace.open({str(data_dir)!r}) as hr:
                orders = hr.topic("orders")
                print([record.value for record in orders.read(from_offset=1)])
                try:
                    list(orders.read())
                except InvalidArgument as error:
                    print(error.message)
                orders.publish(b"c")
                print(orders.info()["messages"])
        """
        ran = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
        assert ran.returncode == 0, ran.stderr
        first, second, third = ran.stdout.splitlines()
        assert first == "[b'b']"
        assert "needs pyarrow, `pip install headrace[columns]`" in second
        assert third == "3"

    def test_a_place_that_needs_it_is_refused_at_the_start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from headrace.log.store import open_store

        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(InvalidArgument, match="needs pyarrow"):
            open_store("s3://bucket/x")
