"""Looking over a journal offline, and saving the rest of a damaged one."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from headrace.errors import Corrupt, StorageFailed
from headrace.journal import DiskJournal, Frame, salvage, verify
from headrace.testing import SimulatedDisk

if TYPE_CHECKING:
    from pathlib import Path

WHERE = "/journal"


def filled(disk: SimulatedDisk) -> list[Frame]:
    journal = open_journal(disk)
    for number in range(120):
        journal.append(1, b"%d" % number * 300)
        if number % 3 == 0:
            journal.commit()
    journal.commit()
    frames = list(journal.read())
    disk.kill()
    return frames


def open_journal(disk: SimulatedDisk) -> DiskJournal:
    return DiskJournal.open(WHERE, files=disk, file_size_bytes=16_384)


def test_a_sound_journal_has_no_findings() -> None:
    disk = SimulatedDisk()
    filled(disk)
    assert verify(WHERE, files=disk) == []
    assert salvage(WHERE, files=disk) == []


def test_salvage_loses_what_is_unreadable_and_nothing_else(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        disk = SimulatedDisk()
        frames = filled(disk)
        paths = [f"{WHERE}/{name}" for name in disk.names(WHERE) if name.endswith(".journal")]
        lost = set()
        for frame in rng.sample(frames, rng.randint(1, 4)):
            path = max(path for path in paths if int(path[len(WHERE) + 1 : -8]) <= frame.position)
            disk.flip_bit(
                path, 8 * (frame.position - int(path[len(WHERE) + 1 : -8]) + rng.randrange(len(frame.body) + 16))
            )
            lost.add(frame.position)
        found = verify(WHERE, files=disk)
        assert found, f"seed {seed}"
        assert all(any(finding.start <= position < finding.end for finding in found) for position in lost)
        assert salvage(WHERE, files=disk) == found
        assert verify(WHERE, files=disk) == [], f"seed {seed}"
        assert sum(name.startswith("damaged-") for name in disk.names(WHERE)) == len(
            {finding.path for finding in found}
        )
        kept = list(open_journal(disk).read())
        assert kept == [frame for frame in frames if frame.position not in lost], f"seed {seed}"


def test_an_unfinished_commit_is_no_finding() -> None:
    disk = SimulatedDisk()
    frames = filled(disk)
    journal = open_journal(disk)
    file = journal.files()[-1]
    journal.append(1, b"torn")
    later = journal.append(1, b"there")
    record = journal._pending[-1].frame(later)
    assert record is not None
    disk.kill()
    disk.overwrite(file.path, later - file.first_position, record)
    assert salvage(WHERE, files=disk) == []
    assert list(open_journal(disk).read()) == frames


def test_what_cannot_be_closed_is_named() -> None:
    disk = SimulatedDisk()
    filled(disk)
    names = [name for name in disk.names(WHERE) if name.endswith(".journal")]
    headless = disk.copy()
    headless.zero_sector(f"{WHERE}/{names[1]}", 0)
    assert [finding.path for finding in salvage(WHERE, files=headless)] == [f"{WHERE}/{names[1]}"]
    with pytest.raises(Corrupt):
        open_journal(headless)
    disk.lose(f"{WHERE}/identity")
    assert verify(WHERE, files=disk)[0].message == "/journal/identity is missing"


def test_a_held_or_absent_directory_is_refused(data_dir: Path) -> None:
    with DiskJournal.open(data_dir), pytest.raises(StorageFailed, match="is held by this process already"):
        verify(data_dir)
    assert verify(data_dir) == []
    with pytest.raises(StorageFailed, match="does not exist"):
        verify(data_dir / "absent")
