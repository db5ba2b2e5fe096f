"""Real power cuts: an ext4 on a loop device, shut down under a stopped process without its log or caches flushed.

What a kernel would have lost with the power is lost: dirty pages, and changes of names and sizes that no sync has
asked for. Needs root, loop devices and mkfs.ext4; ``HEADRACE_SEEDS`` makes the series longer.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from typing import TYPE_CHECKING, Final

import pytest

from headrace.errors import HeadraceError
from integration.journal_process import Child, check
from reliability.power import PowerDisk, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DISK_BYTES: Final = 64 << 20
ROUNDS_DEFAULT: Final = 4


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerDisk]:
    if reason := why_not():
        pytest.skip(reason)
    try:
        disk = PowerDisk(tmp_path, size_bytes=DISK_BYTES)
    except OSError as error:
        pytest.skip(f"no loop device can be mounted here: {error}")
    yield disk
    disk.remove()


def cut_under(child: Child, disk: PowerDisk) -> int:
    """Stop the process, cut the power, let the machine come back; up to where the process had confirmed."""
    os.killpg(child.process.pid, signal.SIGSTOP)
    disk.cut()
    child.kill()
    disk.unmount()
    disk.mount()
    return child.sure


@pytest.mark.feature("F004", "F155", "F289")
@pytest.mark.timeout(0)
def test_nothing_confirmed_is_lost_over_power_cuts(disk: PowerDisk) -> None:
    sure = 0
    for seed in range(int(os.environ.get("HEADRACE_SEEDS") or ROUNDS_DEFAULT)):
        rng = random.Random(seed)
        child = Child(disk.mounted / "data", seed)
        try:
            assert child.hear().startswith("open "), f"seed {seed}: {child.lines}"
            for _ in range(rng.randint(0, 60)):
                child.hear()
            sure = max(sure, cut_under(child, disk))
        finally:
            if child.process.poll() is None:
                child.kill()
        sure = max(sure, check(disk.mounted / "data", sure))
        if sure > 40_000:
            shutil.rmtree(disk.mounted / "data")
            sure = 0


def test_a_journal_that_confirms_before_it_syncs_is_caught(disk: PowerDisk) -> None:
    child = Child(disk.mounted / "data", 1, lies=True)
    try:
        while child.sure < 500:
            assert child.hear(), child.lines
        sure = cut_under(child, disk)
    finally:
        if child.process.poll() is None:
            child.kill()
    with pytest.raises((AssertionError, HeadraceError)):
        check(disk.mounted / "data", sure)
