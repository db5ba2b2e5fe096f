"""The disk journal, case by case, on the simulated disk; waiting and tasks on a real one."""

from __future__ import annotations

import asyncio
import errno
import threading
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from headrace.errors import (
    Closed,
    Corrupt,
    HeadraceError,
    InvalidArgument,
    PayloadTooLarge,
    StorageFailed,
    StorageFull,
    TimedOut,
    UnsupportedVersion,
)
from headrace.journal import DiskJournal, RealFiles
from headrace.testing import Fault, SimulatedDisk

if TYPE_CHECKING:
    from pathlib import Path

WHERE = "/journal"
FILE_BYTES = 16_384


def open_journal(disk: SimulatedDisk) -> DiskJournal:
    return DiskJournal.open(WHERE, files=disk, file_size_bytes=FILE_BYTES)


def bodies(journal: DiskJournal) -> list[bytes]:
    return [bytes(frame.body) for frame in journal.read()]


def filled(disk: SimulatedDisk, frames: int = 100) -> DiskJournal:
    """A journal of several files."""
    journal = open_journal(disk)
    for number in range(frames):
        journal.append(1, b"%d" % number * 300)
        journal.commit()
    return journal


# -- appending and reading ---------------------------------------------------------------------------------------------


@pytest.mark.feature("F135", "F141", "F144")
def test_frames_come_back_in_order_after_a_clean_stop() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    first = journal.append(3, b"hello")
    second = journal.append(4, memoryview(b"wor"), b"", b"ld")
    journal.close()
    journal = open_journal(disk)
    assert list(journal.read()) == [(first, 3, b"hello"), (second, 4, b"world")]
    assert [frame.position for frame in journal.read(second)] == [second]


@pytest.mark.feature("F142")
def test_pending_frames_are_read_by_position_and_not_by_read() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    small, large = journal.append(1, b"small"), journal.append(2, b"L" * 100_000)
    assert journal.read_frame(small) == (small, 1, b"small")
    assert journal.read_frame(large) == (large, 2, b"L" * 100_000)
    assert bodies(journal) == []
    journal.commit()
    assert journal.read_frame(large) == (large, 2, b"L" * 100_000)
    assert len(bodies(journal)) == 2


def test_a_frame_larger_than_a_file_gets_its_own() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    journal.append(1, b"before")
    journal.append(1, b"X" * 5 * FILE_BYTES)
    journal.append(1, b"after")
    journal.commit()
    assert len(journal.files()) == 3
    journal.close()
    assert bodies(open_journal(disk)) == [b"before", b"X" * 5 * FILE_BYTES, b"after"]


def test_files_join_without_a_gap() -> None:
    disk = SimulatedDisk()
    journal = filled(disk)
    files = journal.files()
    assert len(files) > 3
    assert all(file.end_position == following.first_position for file, following in pairwise(files))
    assert [file.sealed for file in files] == [True] * (len(files) - 1) + [False]
    assert files[-1].end_position == journal.durable_position


@pytest.mark.feature("F244")
def test_overhead_on_disk_and_counters() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    journal.append(1, b"x")
    journal.commit()
    before = journal.end_position
    journal.append(1, b"x" * 200)
    journal.commit()
    assert journal.end_position - before == 200 + 32
    stats = journal.stats
    assert (stats.frames, stats.commits, stats.fsyncs) == (2, 2, 2)
    assert stats.bytes == journal.end_position


def test_refusals_say_what_would_be_right(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    with pytest.raises(InvalidArgument, match="kind -1 is not between 0 and 239"):
        journal.append(-1, b"")
    with pytest.raises(InvalidArgument, match="kind 255"):
        journal.append_many([(255, b"")])
    with pytest.raises(InvalidArgument, match="no frame begins at position 12"):
        journal.read_frame(12)
    with pytest.raises(InvalidArgument, match="was never appended"):
        journal.wait_durable(1)
    with pytest.raises(InvalidArgument, match="is not durable"):
        journal.truncate_before(1)
    with pytest.raises(InvalidArgument, match="at least 4096"):
        DiskJournal.open(WHERE, files=disk, file_size_bytes=100)
    monkeypatch.setattr("headrace.journal.disk.JOURNAL_FRAME_BYTES_MAX", 50_000)
    with pytest.raises(PayloadTooLarge, match="50001 bytes is larger than 50000"):
        journal.append(1, b"x" * 50_001)
    journal.close()
    journal.close()
    for call in (lambda: journal.append(1, b""), journal.commit, lambda: journal.truncate_before(0)):
        with pytest.raises(Closed):
            call()


# -- snapshots and letting go ------------------------------------------------------------------------------------------


def test_truncated_files_are_used_again() -> None:
    disk = SimulatedDisk()
    journal = filled(disk)
    position = journal.end_position
    journal.save_snapshot(position, b"all ", b"of it")
    journal.truncate_before(position)
    assert len(journal.files()) == 1
    assert journal.first_position == journal.files()[0].first_position
    assert journal.stats.files_recycled == 1
    with pytest.raises(InvalidArgument, match="was truncated"):
        journal.read(0)
    with pytest.raises(InvalidArgument, match="no frame begins at position 80"):
        journal.read_frame(80)
    for number in range(200):
        journal.append(1, b"again %d" % number * 30)
    journal.commit()
    disk.kill()
    journal = open_journal(disk)
    assert journal.load_snapshot() == (position, b"all of it")
    assert [frame.body for frame in journal.read(position)] == [b"again %d" % number * 30 for number in range(200)]
    assert [name for name in disk.names(WHERE) if name.startswith("snapshot-")] == [f"snapshot-{position:020d}"]


# -- every case of the recovery table ----------------------------------------------------------------------------------


def test_unfinished_last_commit_is_cut_and_never_comes_back() -> None:
    disk = SimulatedDisk()
    journal = filled(disk, 3)
    end = journal.end_position
    path = journal.files()[-1].path
    first = journal.append(1, b"lost" * 50)
    second = journal.append(1, b"ghost" * 50)
    ghost = journal._pending[-1].frame(second)
    assert ghost is not None
    disk.kill()
    # Of the commit only the second frame reached the disk.
    disk.overwrite(path, second - journal.files()[-1].first_position, ghost)
    journal = open_journal(disk)
    assert journal.end_position == end
    assert journal.append(1, b"fill" * 50) == first
    journal.commit()
    disk.kill()
    assert bodies(open_journal(disk))[3:] == [b"fill" * 50]


def test_damage_before_a_durable_length_is_named() -> None:
    disk = SimulatedDisk()
    journal = filled(disk)
    files, position = journal.files(), next(iter(journal.read())).position
    journal.close()
    disk.flip_bit(files[0].path, 8 * (position + 40))
    journal = open_journal(disk)
    with pytest.raises(Corrupt) as caught:
        list(journal.read())
    assert f"{files[0].path} is damaged at byte {position} (position {position})" in str(caught.value)
    assert "headrace verify --data-dir DIR --salvage" in str(caught.value)
    with pytest.raises(Corrupt, match="does not match its checksum"):
        journal.read_frame(position)
    assert len(list(journal.read(files[1].first_position))) > 10, "the other files are read"


def test_damage_to_the_last_commit_is_seen_through_the_durable_mark() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    position = journal.append(1, b"confirmed")
    journal.commit()
    path = journal.files()[-1].path
    disk.kill()
    disk.flip_bit(path, 8 * (position + 14))
    with pytest.raises(Corrupt, match=f"damaged at byte {position} .*everything before position .* was durable"):
        open_journal(disk)


@pytest.mark.parametrize("which", [0, 1, -1])
def test_missing_file_is_named(which: int) -> None:
    disk = SimulatedDisk()
    journal = filled(disk)
    file = journal.files()[which]
    disk.kill().lose(file.path)
    with pytest.raises(Corrupt, match=r"lacks a journal file|is damaged at byte") as caught:
        list(open_journal(disk).read())
    assert WHERE in str(caught.value)


def test_all_files_missing_is_not_a_new_journal() -> None:
    disk = SimulatedDisk()
    journal = filled(disk, 2)
    disk.kill().lose(journal.files()[0].path)
    with pytest.raises(Corrupt, match="lacks a journal file: positions 0 to"):
        open_journal(disk)


def test_missing_identity_is_not_a_new_journal() -> None:
    disk = SimulatedDisk()
    filled(disk, 2).close()
    disk.lose(f"{WHERE}/identity")
    with pytest.raises(Corrupt, match="identity is missing beside 1 journal files"):
        open_journal(disk)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("mark", [True, False])
def test_truncated_last_file_is_reported(clean: bool, mark: bool) -> None:
    disk = SimulatedDisk()
    journal = filled(disk, 10)
    path = journal.files()[-1].path
    if clean:
        journal.close()
    disk.kill().truncate(path, 5000)
    if not mark:
        disk.lose(f"{WHERE}/durable")
    with pytest.raises(Corrupt, match=r"it was written with 16384 bytes and has 5000 \(truncated\)"):
        open_journal(disk)


def test_swapped_and_renamed_files_are_reported() -> None:
    disk = SimulatedDisk()
    journal = filled(disk)
    first, second = journal.files()[:2]
    disk.kill()
    swapped = disk.copy()
    swapped.swap(first.path, second.path)
    with pytest.raises(Corrupt, match="is not the file its name says: it begins at position"):
        open_journal(swapped)
    disk.rename(first.path, f"{WHERE}/{1:020d}.journal")
    with pytest.raises(Corrupt, match="is not the file its name says: it begins at position 0"):
        open_journal(disk)


def test_a_file_that_was_renamed_to_a_spare_is_not_deleted() -> None:
    disk = SimulatedDisk()
    journal = filled(disk)
    disk.kill().rename(journal.files()[1].path, f"{WHERE}/spare-00000077")
    with pytest.raises(Corrupt):
        list(open_journal(disk).read())
    assert "spare-00000077" in disk.names(WHERE)


def test_a_file_of_another_journal_is_reported() -> None:
    disk, other = SimulatedDisk(), SimulatedDisk()
    path = filled(disk, 5).files()[0].path
    filled(other, 5)
    disk.kill().overwrite(path, 0, other.content(path))
    with pytest.raises(Corrupt, match="belongs to another journal"):
        open_journal(disk)


def test_a_newer_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    monkeypatch.setattr("headrace.journal.layout.FORMAT_VERSION", 9)
    filled(disk, 2).close()
    monkeypatch.undo()
    with pytest.raises(UnsupportedVersion, match="/journal/identity was written in format version 9"):
        open_journal(disk)


def test_damaged_snapshot_is_reported_and_so_is_a_lost_one_that_is_needed() -> None:
    disk = SimulatedDisk()
    journal = filled(disk)
    position = journal.end_position
    journal.save_snapshot(position, b"state")
    journal.truncate_before(position)
    journal.close()
    path = f"{WHERE}/snapshot-{position:020d}"
    damaged = disk.copy()
    damaged.flip_bit(path, 8 * 53)
    with pytest.raises(Corrupt, match=f"{path} is damaged"):
        open_journal(damaged).load_snapshot()
    disk.lose(path)
    with pytest.raises(Corrupt, match=f"lacks the snapshot of position {position}"):
        open_journal(disk).load_snapshot()


def test_held_directory_is_one_sentence() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    with pytest.raises(StorageFailed, match="data directory /journal is held by this process already"):
        open_journal(disk)
    journal.close()
    open_journal(disk)


def test_unwritable_directory_is_one_sentence(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(RealFiles, "lock", refuse)
    with pytest.raises(StorageFailed, match="is not writable: Permission denied"):
        DiskJournal.open(data_dir)
    monkeypatch.undo()
    (data_dir / "file").write_text("")
    with pytest.raises(StorageFailed, match=r"cannot be opened: (Not a directory|File exists)"):
        DiskJournal.open(data_dir / "file" / "journal")


# -- full disk ---------------------------------------------------------------------------------------------------------


def fill(journal: DiskJournal) -> int:
    """Append until the disk is full; returns how many were accepted."""
    accepted = 0
    try:
        while True:
            journal.append(1, b"x" * 500)
            accepted += 1
    except StorageFull:
        return accepted


def test_full_disk_refuses_publishes_lets_settlements_through_and_resumes() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    journal.append(1, b"first")
    disk.room_total_bytes = disk.room_total_bytes - disk.room_bytes(WHERE)
    accepted = 1 + fill(journal)
    with pytest.raises(StorageFull, match="no room for 16384 more bytes in /journal: No space left on device"):
        journal.append(1, b"x" * 500)
    end = journal.end_position
    with pytest.raises(StorageFull):
        journal.append_many([(1, b"y" * 500)])
    assert journal.end_position == end, "nothing was buffered"
    settled = 0
    while settled < 20:
        journal.append(2, b"s" * 500, reserve=True)
        settled += 1
    journal.commit()
    with pytest.raises(StorageFull):
        journal.append(1, b"")
    assert len(bodies(journal)) == accepted + settled
    disk.room_total_bytes += 3 * FILE_BYTES
    journal.append(1, b"resumed")
    journal.commit()
    journal.close()
    assert bodies(open_journal(disk))[-1] == b"resumed"


def test_truncation_makes_room_on_a_full_disk() -> None:
    disk = SimulatedDisk()
    journal = filled(disk)
    disk.room_total_bytes -= disk.room_bytes(WHERE)
    fill(journal)
    journal.commit()
    journal.truncate_before(journal.durable_position)
    for _ in range(40):
        journal.append(1, b"x" * 500)
    journal.commit()


def test_full_disk_at_the_start() -> None:
    disk = SimulatedDisk()
    filled(disk, 5).close()
    journal = open_journal(disk)
    disk.room_total_bytes -= disk.room_bytes(WHERE)
    disk.kill()
    disk.lose(f"{WHERE}/spare-00000001")
    disk.room_total_bytes -= FILE_BYTES
    journal = open_journal(disk)
    assert len(bodies(journal)) == 5
    journal.append(2, b"settled", reserve=True)
    with pytest.raises(StorageFull):
        journal.append(1, b"")
    journal.commit()
    empty = SimulatedDisk(room_bytes=3000)
    with pytest.raises(StorageFull, match="no room"):
        open_journal(empty)


# -- failing -----------------------------------------------------------------------------------------------------------


def test_failure_ends_everything_and_tells_everybody() -> None:
    disk = SimulatedDisk()
    journal = filled(disk, 2)
    heard: list[tuple[int, HeadraceError | None]] = []
    journal.on_durable(lambda position, error: heard.append((position, error)))
    journal.append(1, b"x")
    durable = journal.durable_position
    disk.faults[disk.calls + 2] = Fault(errno.EIO)
    with pytest.raises(
        StorageFailed, match="committing to /journal failed: Input/output error; the journal is stopped"
    ):
        journal.commit()
    assert [position for position, _ in heard] == [durable]
    assert isinstance(heard[0][1], StorageFailed)
    for call in (
        lambda: journal.append(1, b""),
        lambda: journal.append_many([(1, b"")]),
        lambda: journal.append(1, b"x" * 100_000),
        lambda: journal.append(1, b"", reserve=True),
        journal.commit,
        journal.commit_soon,
        lambda: journal.wait_durable(0),
        lambda: journal.truncate_before(0),
        lambda: asyncio.run(journal.durable(0)),
    ):
        with pytest.raises(StorageFailed):
            call()
    calls = disk.calls
    journal.close()
    assert disk.calls == calls


# -- threads and tasks -------------------------------------------------------------------------------------------------


class Gate(RealFiles):
    """Holds the first sync of data until it is let go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()
        self.armed = False

    def sync_data(self, handle: int) -> None:
        if self.armed:
            self.reached.set()
            assert self.go.wait(30)
        super().sync_data(handle)


Gate.__slots__ = ()


def test_many_threads_share_a_sync(data_dir: Path) -> None:
    files = Gate()
    journal = DiskJournal.open(data_dir, files=files, file_size_bytes=1 << 20)
    journal.append(1, b"the first file")
    journal.commit()
    files.armed = True
    before = journal.stats.fsyncs
    position = journal.append(1, b"leader")
    leader = threading.Thread(target=journal.wait_durable, args=(position,))
    leader.start()
    assert files.reached.wait(30)
    positions = [journal.append(1, b"%d" % number) for number in range(20)]
    with pytest.raises(TimedOut):
        journal.wait_durable(positions[0], timeout=0)
    followers = [threading.Thread(target=journal.wait_durable, args=(position,)) for position in positions]
    for follower in followers:
        follower.start()
    assert journal.durable_position <= position
    files.go.set()
    for thread in (leader, *followers):
        thread.join(30)
        assert not thread.is_alive()
    assert journal.durable_position == journal.end_position
    assert journal.stats.fsyncs - before == 2
    journal.close()


async def test_many_tasks_share_a_sync_and_the_loop_runs_on(data_dir: Path) -> None:
    files = Gate()
    journal = DiskJournal.open(data_dir, files=files, file_size_bytes=1 << 20)
    journal.append(1, b"the first file")
    await journal.durable(journal.end_position)
    files.armed = True
    before = journal.stats.fsyncs
    first = asyncio.create_task(journal.durable(journal.append(1, b"leader")))
    await asyncio.to_thread(files.reached.wait, 30)
    rest = [asyncio.create_task(journal.durable(journal.append(1, b"%d" % number))) for number in range(50)]
    await asyncio.sleep(0)
    rest[7].cancel()
    assert not first.done()
    files.go.set()
    await asyncio.gather(first, *rest, return_exceptions=True)
    assert rest[7].cancelled()
    assert journal.durable_position == journal.end_position
    assert journal.stats.fsyncs - before == 2
    await journal.durable(journal.end_position)
    journal.close()


async def test_tasks_hear_of_a_failure() -> None:
    disk = SimulatedDisk()
    journal = filled(disk, 1)
    position = journal.append(1, b"x")
    disk.faults[disk.calls + 2] = Fault(errno.EIO)
    waiting = [asyncio.create_task(journal.durable(position)) for _ in range(3)]
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, StorageFailed)
    journal.close()


def test_commit_soon_calls_back(data_dir: Path) -> None:
    journal = DiskJournal.open(data_dir, file_size_bytes=1 << 20)
    done = threading.Event()
    journal.on_durable(lambda position, error: done.set() if position == journal.end_position else None)
    journal.append(1, b"x")
    journal.commit_soon()
    assert done.wait(30)
    journal.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-commit"]
