"""The journal's child process and the oracle that checks what it left, for tests that end it in every way."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

from headrace.journal import DiskJournal

CHILD = Path(__file__).with_name("journal_child.py")
FILE_BYTES = 1 << 16


class Child:
    """The process and what it said."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        *,
        before: list[str] | None = None,
        limit: int | None = None,
        lies: bool = False,
    ) -> None:
        def set_limit() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit or 0, limit or 0))

        self.process = subprocess.Popen(
            [*(before or []), sys.executable, str(CHILD), str(directory), str(seed), *(["lies"] if lies else [])],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=set_limit if limit else None,  # noqa: PLW1509 - no threads are running here
        )
        self.sure = 0
        self.lines: list[str] = []

    def hear(self) -> str:
        """One line, or nothing once it is gone."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if line:
            self.lines.append(line)
        if line.startswith("sure "):
            self.sure = int(line.split()[1])
        return line

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        while self.hear():
            pass
        self.end()

    def end(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process.wait()


def check(directory: Path, sure: int) -> int:
    """What was confirmed is there, in order, whole, and nothing between; returns how many there are."""
    with DiskJournal.open(directory, file_size_bytes=FILE_BYTES) as journal:
        number = 0
        for frame in journal.read():
            expected = b"%d " % number + bytes([number % 251]) * (number * 7919 % 900)
            assert frame.body == expected, f"frame {number} at {frame.position} is {bytes(frame.body)[:20]!r}"
            number += 1
        assert number >= sure, f"{sure - number} confirmed frames are gone"
        snapshot = journal.load_snapshot()
        assert snapshot is None or int(snapshot[1]) <= number
    return number
