"""The background thread of a sync client: it comes when it was asked to, and forgets who is gone."""

from __future__ import annotations

import gc
import threading

from headrace.client.keeper import Keeper
from headrace.clock import SystemClock
from headrace.errors import Closed
from headrace.limits import SECOND_NS

SECONDS_MAX = 60


class Guest:
    """Notes its visits; ``again`` are the answers it gives."""

    def __init__(self, *again: int | Exception | None) -> None:
        self._again = list(again)
        self.visits: list[int] = []
        self.enough = threading.Event()

    def keep(self, now_ns: int) -> int | None:
        self.visits.append(now_ns)
        answer = self._again.pop(0) if self._again else None
        if not self._again:
            self.enough.set()
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_it_starts_when_it_is_first_needed_and_comes_at_the_time() -> None:
    before = set(threading.enumerate())
    keeper, guest = Keeper(SystemClock()), Guest()
    keeper.add(guest)
    assert set(threading.enumerate()) <= before
    due_ns = keeper.now_ns() + SECOND_NS // 100
    keeper.attend(due_ns)
    assert guest.enough.wait(SECONDS_MAX)
    keeper.close()
    assert guest.visits[0] >= due_ns


def test_it_comes_again_as_often_as_it_is_told_also_after_an_error() -> None:
    keeper = Keeper(SystemClock())
    guest = Guest(0, Closed("for now"), 0, None)
    keeper.add(guest)
    keeper.attend(keeper.now_ns())
    assert guest.enough.wait(SECONDS_MAX)
    keeper.close()
    assert len(guest.visits) == 4


def test_who_was_dropped_is_forgotten() -> None:
    keeper, guest = Keeper(SystemClock()), Guest()
    keeper.add(guest)
    keeper.add(Guest())
    gc.collect()
    assert keeper.kept() == [guest]
    keeper.remove(guest)
    assert keeper.kept() == []
    keeper.close()


def test_a_closed_keeper_ends_its_thread_and_starts_none() -> None:
    keeper, guest = Keeper(SystemClock()), Guest()
    keeper.add(guest)
    keeper.attend(keeper.now_ns() + 3_600 * SECOND_NS)
    keeper.close()
    keeper.attend(keeper.now_ns())
    assert guest.visits == []
