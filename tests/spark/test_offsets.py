"""Where a stream is, as the text Spark compares and as numbers."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.offsets import behind, forward, limited, parsed, written

places = st.dictionaries(
    st.sampled_from("abc"), st.dictionaries(st.integers(0, 11), st.integers(0, 1_000), max_size=12), max_size=3
)


@given(places, st.randoms())
def test_the_same_places_are_the_same_text_in_whatever_order_they_came(found: dict, random: object) -> None:  # type: ignore[type-arg]
    shuffled = {}
    for topic in sorted(found, reverse=True):
        parts = list(found[topic].items())
        random.shuffle(parts)  # type: ignore[attr-defined]
        shuffled[topic] = dict(parts)
    text = json.dumps(written(found))
    assert json.dumps(written(shuffled)) == text
    assert parsed(json.loads(text)) == found


@given(places, places, st.integers(1, 5_000))
def test_a_limited_batch_never_goes_back_never_passes_the_end_and_takes_what_it_may(
    start: dict,
    ahead: dict,
    rows: int,  # type: ignore[type-arg]
) -> None:
    end = forward(start, ahead)
    cut = limited(start, end, rows)
    waiting = behind(start, end)
    assert behind(start, cut) == min(rows, waiting)
    for topic, parts in cut.items():
        for index, place in parts.items():
            assert start.get(topic, {}).get(index, 0) <= place <= end[topic][index]


def test_a_partition_that_is_new_counts_from_its_beginning() -> None:
    assert behind({"a": {0: 5}}, {"a": {0: 7, 1: 3}, "b": {0: 1}}) == 6
