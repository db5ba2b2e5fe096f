"""Ids rise, never repeat, never wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import ids
from headrace.errors import InvalidArgument, LimitExceeded
from headrace.ids import IdSource
from headrace.limits import BATCH_MESSAGES_MAX

WALL_NS = 1_735_689_600_000_000_000
MS_NS = 1_000_000
HOUR_NS = 3_600_000_000_000

counts = st.integers(1, ids.SEQUENCE_COUNT)
steps_ns = st.one_of(st.integers(0, 3 * MS_NS), st.integers(-HOUR_NS, HOUR_NS))
nodes = st.integers(0, ids.NODE_ID_MAX)


def test_a_batch_has_as_many_messages_as_a_millisecond_has_ids() -> None:
    assert BATCH_MESSAGES_MAX == ids.SEQUENCE_COUNT


@pytest.mark.feature("F007")
@given(node=nodes, calls=st.lists(st.tuples(counts, steps_ns), min_size=1, max_size=40))
def test_ids_rise_and_stay_in_their_millisecond_whatever_the_clock_does(
    node: int, calls: list[tuple[int, int]]
) -> None:
    source = IdSource(node)
    wall_ns, last = WALL_NS, 0
    for count, step_ns in calls:
        wall_ns += step_ns
        base = source.take(count, wall_ns)
        end = base + count - 1
        assert base > last
        assert ids.id_time_ms(base) == ids.id_time_ms(end)
        assert ids.id_node(base) == ids.id_node(end) == node
        last = end


@pytest.mark.feature("F007")
@given(node=nodes, other=nodes, before=st.lists(counts, min_size=1, max_size=10), step_ns=steps_ns)
def test_a_restart_goes_on_above_the_highest_id_even_under_another_node_number_and_a_clock_set_back(
    node: int, other: int, before: list[int], step_ns: int
) -> None:
    source = IdSource(node)
    highest = max(source.take(count, WALL_NS) + count - 1 for count in before)
    assert IdSource(node, highest).take(1, WALL_NS + step_ns) > highest
    assert IdSource(other, highest).take(1, WALL_NS + step_ns) > highest


@given(count=counts, times=st.lists(st.integers(0, 5), min_size=1, max_size=50))
def test_two_nodes_never_give_the_same_id(count: int, times: list[int]) -> None:
    one, two = IdSource(1), IdSource(2)
    given_ids: set[int] = set()
    for ms in times:
        for source in (one, two):
            base = source.take(count, WALL_NS + ms * MS_NS)
            fresh = {base, base + count - 1}
            assert given_ids.isdisjoint(fresh)
            given_ids |= fresh


@pytest.mark.feature("F007")
def test_a_full_millisecond_borrows_the_next_instead_of_waiting() -> None:
    source = IdSource(0)
    first = source.take(ids.SEQUENCE_COUNT, WALL_NS)
    assert ids.id_time_ms(first) == WALL_NS // MS_NS
    assert ids.id_time_ms(source.take(1, WALL_NS)) == WALL_NS // MS_NS + 1


def test_what_does_not_fit_the_rest_of_a_millisecond_starts_the_next() -> None:
    source = IdSource(0)
    source.take(3000, WALL_NS)
    base = source.take(3000, WALL_NS)
    assert ids.id_time_ms(base) == WALL_NS // MS_NS + 1
    assert base & (ids.SEQUENCE_COUNT - 1) == 0


@pytest.mark.feature("F007")
def test_a_million_ids_of_one_second_stay_inside_that_second() -> None:
    source = IdSource(3)
    last = 0
    for number in range(10_000):
        last = source.take(100, WALL_NS + number * 100_000) + 99
    assert ids.id_time_ms(last) < WALL_NS // MS_NS + 1000


def test_the_clock_catches_up_with_what_was_borrowed() -> None:
    source = IdSource(0)
    for _ in range(10):
        source.take(ids.SEQUENCE_COUNT, WALL_NS)
    assert ids.id_time_ms(source.take(1, WALL_NS + 50 * MS_NS)) == WALL_NS // MS_NS + 50


def test_a_clock_before_the_epoch_still_gives_positive_rising_ids() -> None:
    source = IdSource(0)
    assert 0 < source.take(1, 0) < source.take(4096, -HOUR_NS)


def test_a_clock_beyond_the_last_id_is_refused_and_changes_nothing() -> None:
    source = IdSource(0)
    before = source.take(1, WALL_NS)
    with pytest.raises(LimitExceeded, match="clock"):
        source.take(1, 1 << 70)
    assert source.take(1, WALL_NS) == before + 1


@pytest.mark.parametrize("node_id", [-1, 1024, 1.5, "1", True, None])
def test_a_bad_node_id_is_refused_with_its_value(node_id: object) -> None:
    with pytest.raises(InvalidArgument, match="0 to 1023") as refused:
        IdSource(node_id)  # type: ignore[arg-type]
    assert repr(node_id) in refused.value.message


@pytest.mark.parametrize("count", [0, -1, 4097])
def test_a_count_outside_one_millisecond_is_refused(count: int) -> None:
    with pytest.raises(InvalidArgument, match="1 to 4096"):
        IdSource(0).take(count, WALL_NS)


@pytest.mark.parametrize("last_id", [-1, 1 << 63])
def test_a_last_id_outside_the_range_is_refused(last_id: int) -> None:
    with pytest.raises(InvalidArgument, match="last id"):
        IdSource(0, last_id)


@given(st.integers(1, ids.ID_MAX))
def test_an_id_survives_its_text(message_id: int) -> None:
    assert ids.parse_id(ids.format_id(message_id)) == message_id


@pytest.mark.parametrize(
    "text", ["", "0", "01", "-5", "+5", "1_000", " 1", "1\n", "abc", "٣", "9223372036854775808", "9" * 5000]
)
def test_a_text_that_is_no_id_is_refused_in_a_short_message(text: str) -> None:
    with pytest.raises(InvalidArgument, match="message id") as refused:
        ids.parse_id(text)
    assert len(refused.value.message) < 200


@given(node=nodes, ms=st.integers(0, 10**6))
def test_the_first_id_of_a_time_is_not_above_any_id_made_then(node: int, ms: int) -> None:
    wall_ns = WALL_NS + ms * MS_NS
    made = IdSource(node).take(1, wall_ns)
    assert ids.first_id_at_ms(wall_ns // MS_NS) <= made < ids.first_id_at_ms(wall_ns // MS_NS + 1)


def test_the_first_id_of_a_time_out_of_range_is_the_nearest_end() -> None:
    assert ids.first_id_at_ms(0) == 0
    assert ids.first_id_at_ms(1 << 60) <= ids.ID_MAX
