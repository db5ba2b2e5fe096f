"""Real processes on a real directory: killed at any moment, failing disks, full disks, two at a time."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.errors import StorageFailed
from headrace.journal import DiskJournal
from integration.journal_process import FILE_BYTES, Child, check

if TYPE_CHECKING:
    from collections.abc import Iterator

KILLS_PER_SEED = 3
# strace counts calls by thread: this child commits in its main thread only.
LONELY_SEED = next(seed for seed in range(100) if random.Random(seed).randint(0, 3) == 0)


@pytest.fixture
def start() -> Iterator[object]:
    """Starts children and leaves none behind."""
    children: list[Child] = []

    def start_child(*args: object, **options: object) -> Child:
        children.append(Child(*args, **options))  # type: ignore[arg-type]
        return children[-1]

    yield start_child
    for child in children:
        if child.process.poll() is None:
            os.killpg(child.process.pid, signal.SIGKILL)
        child.end()


@pytest.mark.feature("F004", "F135", "F150", "F154", "F155", "F289", "F294")
def test_nothing_confirmed_is_lost_over_kills(data_dir: Path, start: type[Child], seeds: range) -> None:
    """One journal, killed again and again at random moments, the oracle in this process."""
    sure = 0
    for seed in range(KILLS_PER_SEED * len(seeds)):
        rng = random.Random(seed)
        child = start(data_dir, seed)
        assert child.hear().startswith("open "), f"seed {seed}: {child.lines}"
        assert int(child.lines[0].split()[1]) >= sure, f"seed {seed}: {child.lines[0]}, sure was {sure}"
        for _ in range(rng.randint(0, 60)):
            child.hear()
        child.kill()
        sure = max(sure, child.sure)
        if seed % 5 == 0:
            sure = check(data_dir, sure)
    assert check(data_dir, sure) > 1000


def test_a_kill_during_recovery_changes_nothing(data_dir: Path, start: type[Child]) -> None:
    child = start(data_dir, 1)
    while child.sure < 500:
        child.hear()
    child.kill()
    sure = child.sure
    for seed in range(5):
        # Killed before it said that it is open.
        child = start(data_dir, seed)
        os.sched_yield()
        child.kill()
        sure = max(sure, child.sure)
    check(data_dir, sure)


@pytest.mark.feature("F144")
def test_second_process_gets_one_clear_sentence(data_dir: Path, start: type[Child]) -> None:
    holder = start(data_dir, 1)
    holder.hear()
    second = start(data_dir, 2)
    sentence = f"data directory {data_dir} is held by another process (process {holder.process.pid}); "
    assert second.hear() == f"refused storage_failed {sentence}stop it or use another directory"
    with pytest.raises(StorageFailed, match="is held by another process"):
        DiskJournal.open(data_dir)
    holder.kill()
    check(data_dir, holder.sure)


def test_file_size_limit_of_the_process_is_a_full_disk(data_dir: Path, start: type[Child]) -> None:
    child = start(data_dir, 1, limit=FILE_BYTES // 2)
    assert child.hear().startswith("refused storage_full no room for 65536 more bytes")
    child.end()


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
@pytest.mark.parametrize(
    "call", ["fdatasync:error=EIO:when=3", "fdatasync:error=EIO:when=9", "pwrite64:error=EIO:when=12"]
)
def test_after_an_injected_failure_nothing_is_confirmed(data_dir: Path, start: type[Child], call: str) -> None:
    traced = call.split(":", maxsplit=1)[0]
    log = data_dir.parent / "strace.log"
    child = start(
        data_dir, LONELY_SEED, before=["strace", "-f", "-o", str(log), "-e", f"trace={traced}", "-e", f"inject={call}"]
    )
    while child.hear():
        pass
    child.end()
    if not child.lines and "ptrace" in log.read_text():
        pytest.skip("this process may not be traced")
    assert child.lines[-1].startswith("refused storage_failed"), child.lines
    assert "INJECTED" in log.read_text()
    calls_after = log.read_text().split("INJECTED")[1].count(f"{traced}(")
    assert calls_after == 0, "it was called again after it had failed"
    assert check(data_dir, child.sure) >= child.sure


def test_full_file_system_loses_nothing_and_resumes(tmp_path: Path, start: type[Child]) -> None:
    """A tmpfs of four megabytes: durability is not what is tested here, room is."""
    mounted = tmp_path / "small"
    mounted.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0 or libc.mount(b"tmpfs", bytes(mounted), b"tmpfs", 0, b"size=4m") != 0:
        pytest.skip("a small file system cannot be mounted here")
    try:
        ballast = mounted / "ballast"
        ballast.write_bytes(bytes(2 << 20))
        child = start(mounted / "data", 1)
        while child.hear() != "full":
            assert child.process.poll() is None, child.lines[-3:]
        for _ in range(3):
            assert child.hear().startswith("sure ")
        child.kill()
        ballast.unlink()
        again = check(mounted / "data", child.sure)
        child = start(mounted / "data", 2)
        while child.sure <= again:
            assert child.hear(), child.lines
        assert "full" not in child.lines
        child.kill()
        check(mounted / "data", child.sure)
    finally:
        libc.umount2(bytes(mounted), 2)
