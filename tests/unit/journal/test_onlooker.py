"""Looking at a data directory: everything a journal does works, and nothing on the disk changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace.errors import StorageFailed
from headrace.journal import DiskJournal
from headrace.journal.onlooker import Onlooker, held_shared

FILE_BYTES = 64 * 1024


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def written(data_dir: Path) -> Path:
    with DiskJournal.open(data_dir, file_size_bytes=FILE_BYTES) as journal:
        for number in range(300):
            journal.append(1, b"%d" % number * 200)
        journal.commit()
        journal.save_snapshot(journal.durable_position, b"a snapshot")
    return data_dir


def looked_at(directory: Path) -> list[bytes]:
    files = Onlooker()
    with DiskJournal.open(directory, files=files, file_size_bytes=FILE_BYTES) as journal:
        found = [bytes(frame.body) for frame in journal.read()]
        position = journal.append(1, b"x" * FILE_BYTES)
        journal.wait_durable(position)
        journal.save_snapshot(journal.durable_position, b"another")
        assert (journal.load_snapshot() or (0, b""))[1] == b"another"
        assert bytes(journal.read_frame(position).body) == b"x" * FILE_BYTES
    files.release()
    return found


def test_a_journal_is_read_and_even_written_to_and_the_directory_stays_as_it_was(written: Path) -> None:
    before = content(written)
    assert looked_at(written) == [b"%d" % number * 200 for number in range(300)]
    assert content(written) == before


def test_an_unfinished_commit_is_cut_for_the_onlooker_alone(written: Path) -> None:
    stopped = written.with_name("killed")
    with DiskJournal.open(written, file_size_bytes=FILE_BYTES) as journal:
        journal.append(1, b"last")
        journal.commit()
        shutil.copytree(written, stopped)  # as a kill leaves it: the mark does not say that it was stopped
    before = content(stopped)
    assert looked_at(stopped)[-1] == b"last"
    assert content(stopped) == before


def test_many_look_while_nobody_writes(written: Path) -> None:
    with held_shared(written), held_shared(written), pytest.raises(StorageFailed, match="is held by"):
        DiskJournal.open(written)
    with DiskJournal.open(written), pytest.raises(StorageFailed, match=r"held by another process \(process \d+\)"):
        held_shared(written).__enter__()


def test_a_directory_without_a_journal_is_no_data_directory(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="is not a data directory"):
        held_shared(tmp_path).__enter__()
