"""Group commit: who is woken by whose rounds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from headrace.journal.commit import GroupCommit


class Rounds:
    """A journal's part of it: what was appended, and rounds that make it durable."""

    def __init__(self, handle: int) -> None:
        self.end = 0
        self.handle = handle
        self.commit = GroupCommit(self.run, 0)

    def run(self) -> int:
        os.pwrite(self.handle, b"x", 0)
        os.fdatasync(self.handle)  # lets other threads run, as every round does
        return self.end

    def append(self) -> int:
        self.end += 1
        return self.end


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[int]:
    handle = os.open(tmp_path / "rounds", os.O_RDWR | os.O_CREAT)
    yield handle
    os.close(handle)


def sleeps_of(thread_id: int) -> int:
    """How often a thread went to sleep: it was awake once more."""
    for line in Path(f"/proc/self/task/{thread_id}/status").read_text().splitlines():
        if line.startswith("voluntary_ctxt_switches"):
            return int(line.split()[1])
    raise AssertionError("the kernel does not say")


def test_the_commit_thread_sleeps_through_rounds_that_others_lead(handle: int) -> None:
    """It was woken after each of them, found nothing to do, and took the interpreter from who had."""
    rounds = Rounds(handle)
    durable = Event()
    rounds.commit.on_durable(lambda position, error: durable.set())
    rounds.commit.soon(rounds.append())
    assert durable.wait(60)
    thread = rounds.commit._thread
    assert thread is not None
    assert thread.native_id is not None
    before = sleeps_of(thread.native_id)
    for _ in range(200):
        rounds.commit.wait(rounds.append())
    assert sleeps_of(thread.native_id) - before < 20
    rounds.commit.close()


def test_what_is_left_after_a_round_that_somebody_else_led_is_committed_by_the_thread(handle: int) -> None:
    """Wanted while a round was under way: the leader goes home, the thread has to be woken."""
    rounds = Rounds(handle)
    reached, both = Event(), Event()

    def run() -> int:
        end = rounds.end
        if not reached.is_set():
            reached.set()
            rounds.commit.soon(rounds.append())  # in the middle of the first round
        return end

    def told(position: int, error: object) -> None:
        if position == 2:
            both.set()

    rounds.commit = GroupCommit(run, 0)
    rounds.commit.on_durable(told)
    rounds.commit.wait(rounds.append())
    assert both.wait(60)
    rounds.commit.close()
