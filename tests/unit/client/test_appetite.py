"""How much a loop asks for, by how quickly what came was handled."""

from __future__ import annotations

import pytest

from headrace.client.appetite import Appetite
from headrace.errors import InvalidArgument
from headrace.limits import CLIENT_APPETITE_NS, CLIENT_PREFETCH_DEFAULT, CLIENT_PREFETCH_GROWN, MILLISECOND_NS


def sizes(appetite: Appetite, handled_ns: int, rounds: int) -> list[int]:
    """What is asked for when all that comes takes so long."""
    found, now_ns = [], 0
    for _ in range(rounds):
        found.append(appetite.next(now_ns))
        appetite.came(found[-1], now_ns)
        now_ns += handled_ns
    return found


def test_a_quick_handler_is_given_more_up_to_a_limit() -> None:
    assert sizes(Appetite(), MILLISECOND_NS, 8) == [8, 16, 32, 64, 128, 256, 512, 512]
    assert CLIENT_PREFETCH_GROWN == 512


def test_a_slow_handler_keeps_few() -> None:
    assert sizes(Appetite(), 60 * CLIENT_APPETITE_NS, 4) == [CLIENT_PREFETCH_DEFAULT // 2] * 4


def test_a_handler_that_slows_down_is_given_less_again() -> None:
    appetite = Appetite()
    sizes(appetite, 0, 8)
    assert sizes(appetite, 5 * CLIENT_APPETITE_NS, 4) == [512, 256, 128, 64]


def test_between_quick_and_slow_it_stays() -> None:
    assert sizes(Appetite(), 2 * CLIENT_APPETITE_NS, 3) == [8, 8, 8]


def test_a_few_messages_say_nothing() -> None:
    appetite = Appetite()
    for _ in range(5):
        appetite.came(7, 0)
        assert appetite.next(1) == 8


def test_a_prefetch_that_was_asked_for_is_kept() -> None:
    appetite = Appetite(500)
    assert appetite.prefetch == 500
    assert sizes(appetite, 0, 3) == [250, 250, 250]
    assert sizes(Appetite(1), 0, 2) == [1, 1]


def test_a_worker_starts_small_and_may_grow() -> None:
    appetite = Appetite(2)
    appetite.grow()
    assert sizes(appetite, 0, 4) == [1, 2, 4, 8]


@pytest.mark.parametrize("given", [0, -1, 10_001, 1.5, "many", True])
def test_a_prefetch_outside_its_bounds_is_refused(given: object) -> None:
    with pytest.raises(InvalidArgument, match="prefetch"):
        Appetite(given)  # type: ignore[arg-type]  # that is the point


def test_what_may_grow_keeps_little_for_long_and_shrinks_when_it_was_too_much() -> None:
    appetite = Appetite()
    sizes(appetite, 0, 8)
    assert appetite.keeps == 8
    appetite.shrink()
    assert appetite.next(0) == 8
    assert Appetite(500).keeps is None


def test_after_a_rest_it_begins_with_one_and_is_what_it_was() -> None:
    for appetite in (Appetite(), Appetite(500)):
        sizes(appetite, 0, 8)
        before = appetite.next(0)
        assert appetite.next(0, rested=True) == 1
        appetite.came(1, 0)
        assert appetite.next(0) == before
