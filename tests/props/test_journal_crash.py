"""Crashes of the disk journal on a simulated disk, checked against a ledger; and canaries that must be caught.

Each seed is one long life of a journal: random operations, ends by power cut (at an operation or in the middle of a
commit), by kill, by a failed call or cleanly; after each end several legal disk images are opened and checked, and the
life goes on with one of them. A failure names the seed.
"""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING, Any

import pytest

from headrace.errors import HeadraceError, StorageFailed, StorageFull
from headrace.journal import DiskJournal, recovery
from headrace.testing import Fault, JournalLedger, PowerCut, SimulatedDisk, Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.journal import FileLayer

WHERE = "/journal"
FILE_BYTES = 16 * 1024
SPANS = 12
IMAGES = 3
LIVES_PER_SEED = 4
CANARY_LIVES = 100


def plain(disk: SimulatedDisk) -> FileLayer:
    return disk


class Life:
    """One journal over many crashes, under one seed."""

    def __init__(self, seed: int, wrap: Callable[[SimulatedDisk], FileLayer] = plain) -> None:
        self.rng = random.Random(seed)
        self.wrap = wrap
        self.disk = SimulatedDisk(rule=self.rng.choice(("strict", "ext4")))
        self.ledger = JournalLedger()
        self.identity = self.rng.randbytes(16)

    def open(self, disk: SimulatedDisk) -> DiskJournal:
        return DiskJournal.open(
            WHERE, files=self.wrap(disk), file_size_bytes=FILE_BYTES, new_identity=lambda: self.identity
        )

    def run(self) -> None:
        for _ in range(SPANS):
            self._plan_fault()
            try:
                journal = self.open(self.disk)
                self.ledger.check(journal)
                self._operate(journal)
            except PowerCut:
                self._after_power_cut()
                continue
            except (StorageFailed, StorageFull):
                if not self.disk.failed_calls:
                    raise
                self._after_failure()
                continue
            self._end(journal)

    def _plan_fault(self) -> None:
        self.disk.faults.clear()
        self.disk.failed_calls = 0
        choice = self.rng.random()
        at = self.disk.calls + self.rng.randint(1, 40)
        if choice < 0.4:
            self.disk.faults[at] = Fault(power_cut=True)
        elif choice < 0.6:
            self.disk.faults[at] = Fault(self.rng.choice((errno.EIO, errno.ENOSPC)))
        for _ in range(3):
            self.disk.faults.setdefault(self.disk.calls + self.rng.randint(1, 40), Fault(short=True))

    def _operate(self, journal: DiskJournal) -> None:
        rng, ledger = self.rng, self.ledger
        for _ in range(rng.randint(1, 40)):
            match rng.choice(("append", "append", "append", "many", "commit", "wait", "snapshot", "truncate", "peek")):
                case "append":
                    kind, body = rng.randint(0, 239), rng.randbytes(rng.choice((0, 1, 50, 200, 200, 3000, 20_000)))
                    ledger.appended(journal.append(kind, body, reserve=rng.random() < 0.3), kind, body)
                case "many":
                    frames = [
                        (rng.randint(0, 239), rng.randbytes(rng.randint(0, 400))) for _ in range(rng.randint(1, 20))
                    ]
                    for position, (kind, body) in zip(journal.append_many(frames), frames, strict=True):
                        ledger.appended(position, kind, body)
                case "commit":
                    ledger.confirmed(journal.commit())
                case "wait":
                    if ledger.frames:
                        position = rng.choice(ledger.frames[-5:]).position
                        journal.wait_durable(position)
                        ledger.confirmed(position + 1)
                case "snapshot":
                    self._snapshot(journal)
                case "truncate":
                    self._truncate(journal)
                case _:
                    kept = [frame for frame in ledger.frames[-50:] if frame.position >= journal.first_position]
                    if kept:
                        frame = rng.choice(kept)
                        if journal.read_frame(frame.position) != frame:
                            raise Violation(f"read_frame({frame.position}) is not what was appended")

    def _snapshot(self, journal: DiskJournal) -> None:
        position, data = journal.end_position, self.rng.randbytes(self.rng.choice((0, 100, 9000)))
        self.ledger.snapshot_begun(position, data)
        journal.save_snapshot(position, data[:50], data[50:])
        self.ledger.snapshot_done()
        self.ledger.confirmed(position)

    def _truncate(self, journal: DiskJournal) -> None:
        if self.ledger.snapshot is not None:
            self.ledger.released(self.ledger.snapshot[0])
            journal.truncate_before(self.ledger.snapshot[0])

    def _end(self, journal: DiskJournal) -> None:
        ending = self.rng.choice(("cut", "cut", "kill", "close"))
        try:
            if ending == "close":
                journal.close()
                self.ledger.confirmed(journal.end_position)
        except PowerCut:
            ending = "cut"
        except StorageFailed:
            if not self.disk.failed_calls:
                raise
            self._after_failure()
            return
        if ending == "kill":
            self.disk.kill()
        else:
            self._after_power_cut()

    def _after_power_cut(self) -> None:
        """Check several images of the same cut, and go on with the last one."""
        for _ in range(IMAGES):
            disk = self.disk.crash(self.rng)
            ledger = self._copy_of_ledger()
            journal = self.open(disk)
            ledger.check(journal)
            # What a recovery has handed out must outlive the next cut.
            disk = disk.crash(self.rng)
            ledger.check(self.open(disk))
        self.disk = disk.kill()
        self.ledger = ledger

    def _after_failure(self) -> None:
        """The process stops after a failed call; the machine may go on or lose power later."""
        self.disk.kill()
        if self.rng.random() < 0.5:
            self._after_power_cut()

    def _copy_of_ledger(self) -> JournalLedger:
        copy = JournalLedger()
        copy.__dict__.update(self.ledger.__dict__)
        copy.frames = list(self.ledger.frames)
        return copy


def test_what_was_confirmed_survives_every_crash_and_nothing_else_appears(seeds: range) -> None:
    for seed in range(LIVES_PER_SEED * len(seeds)):
        try:
            Life(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


@pytest.mark.feature("F004", "F155")
def test_after_any_failed_call_nothing_is_confirmed_and_nothing_confirmed_is_lost() -> None:
    """Each of the first 200 write and sync calls fails once, in turn."""
    for call in range(1, 201):
        rng = random.Random(call)
        life = Life(call)
        disk, ledger = life.disk, life.ledger
        disk.faults[call] = Fault(errno.EIO)
        journal = None
        try:
            journal = life.open(disk)
            while disk.calls <= 260:
                body = rng.randbytes(rng.choice((10, 200, 2000)))
                ledger.appended(journal.append(1, body), 1, body)
                if rng.random() < 0.4:
                    ledger.confirmed(journal.commit())
                if rng.random() < 0.05:
                    life._snapshot(journal)
                    life._truncate(journal)
        except StorageFailed as error:
            assert "Input/output error" in str(error)
        assert disk.failed_calls == 1, f"call {call} was not reached"
        if journal is not None:
            calls = disk.calls
            with pytest.raises(StorageFailed):
                journal.append(1, b"after the failure")
            with pytest.raises(StorageFailed):
                journal.commit()
            with pytest.raises(StorageFailed):
                journal.wait_durable(0)
            assert disk.calls == calls, "it went on writing"
        disk.kill()
        if call % 2:
            life._after_power_cut()
        else:
            ledger.check(life.open(disk))
            disk.kill()
            life._after_power_cut()


# -- canaries: a journal with one rule broken must be caught by the same lives -----------------------------------------


class Wrapped:
    """A file layer with one call replaced."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


class ConfirmsBeforeItSyncs(Wrapped):
    def sync_data(self, handle: int) -> None:
        pass


class SkipsDirectorySyncs(Wrapped):
    def sync_directory(self, path: str) -> None:
        pass


class GoesOnAfterAFailedSync(Wrapped):
    def sync_data(self, handle: int) -> None:
        try:
            self._disk.sync_data(handle)
        except OSError:
            self._disk.sync_data(handle)


class GoesOnAfterAFailedWrite(Wrapped):
    def write(self, handle: int, buffers: Sequence[bytes], offset: int) -> int:
        try:
            return self._disk.write(handle, buffers, offset)
        except OSError:
            return sum(map(len, buffers))


@pytest.mark.parametrize(
    "canary", [ConfirmsBeforeItSyncs, SkipsDirectorySyncs, GoesOnAfterAFailedSync, GoesOnAfterAFailedWrite]
)
def test_canary_is_caught(canary: Callable[[SimulatedDisk], FileLayer]) -> None:
    assert any(caught(seed, canary) for seed in range(CANARY_LIVES))


def test_canary_that_trusts_what_a_recovery_finds_in_the_cache_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither rewrites the last commit nor clears what lies after it."""
    monkeypatch.setattr(recovery, "_settle_tail", lambda *_: None)
    assert any(caught(seed) for seed in range(CANARY_LIVES))


def caught(seed: int, wrap: Callable[[SimulatedDisk], FileLayer] = plain) -> bool:
    try:
        Life(seed, wrap).run()
    except (Violation, HeadraceError, FileNotFoundError):
        return True
    return False
