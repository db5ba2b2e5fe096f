"""Routing against naive models: matching by definition, subset by enumeration, the trie by a list."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.routing import SubscriptionTrie, is_subset, matches, topic_filter_fault

LEVELS = ["a", "b", "", "$x"]
names = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=4).map("/".join).filter(bool)
filters = (
    st.tuples(st.lists(st.sampled_from([*LEVELS, "+", "+"]), min_size=0, max_size=3), st.booleans())
    .map(lambda t: "/".join([*t[0], *(["#"] if t[1] else [])]))
    .filter(bool)
)
ALL_NAMES = [
    n for size in range(1, 6) for n in map("/".join, itertools.product(["a", "b", "", "$x", "z"], repeat=size)) if n
]


def naive_matches(wanted: list[str], levels: list[str], at_start: bool = True) -> bool:
    if not wanted:
        return not levels
    if at_start and levels[0].startswith("$") and wanted[0] in ("+", "#"):
        return False
    if wanted[0] == "#":
        return True
    if not levels:
        return False
    return (wanted[0] == "+" or wanted[0] == levels[0]) and naive_matches(wanted[1:], levels[1:], False)


@given(filters, names)
def test_matches_agrees_with_the_definition(topic_filter: str, topic: str) -> None:
    assert topic_filter_fault(topic_filter) is None
    assert matches(topic_filter, topic) == naive_matches(topic_filter.split("/"), topic.split("/"))


@settings(max_examples=max(150, settings().max_examples), deadline=None)
@given(filters, filters)
def test_subset_is_exactly_that_no_name_escapes(topic_filter: str, allowed: str) -> None:
    escaped = next((n for n in ALL_NAMES if matches(topic_filter, n) and not matches(allowed, n)), None)
    assert is_subset(topic_filter, allowed) == (escaped is None)


class TrieAgainstList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.trie = SubscriptionTrie[int, int](cache_topics_max=3, cache_subscribers_max=8)
        self.model: dict[tuple[str, int], int] = {}

    @rule(topic_filter=filters, subscriber=st.integers(0, 3), value=st.integers(0, 9))
    def add(self, topic_filter: str, subscriber: int, value: int) -> None:
        assert self.trie.add(topic_filter, subscriber, value) == ((topic_filter, subscriber) not in self.model)
        self.model[topic_filter, subscriber] = value

    @rule(topic_filter=filters, subscriber=st.integers(0, 3))
    def remove(self, topic_filter: str, subscriber: int) -> None:
        assert self.trie.remove(topic_filter, subscriber) == (
            self.model.pop((topic_filter, subscriber), None) is not None
        )

    @rule(topic=names)
    def match(self, topic: str) -> None:
        expected = sorted((s, v) for (f, s), v in self.model.items() if naive_matches(f.split("/"), topic.split("/")))
        assert sorted(self.trie.match(topic)) == expected

    @invariant()
    def size_agrees(self) -> None:
        assert len(self.trie) == len(self.model)
        assert self.model or self.trie._root.is_empty()


TestTrieAgainstList = TrieAgainstList.TestCase
TestTrieAgainstList.settings = settings(stateful_step_count=40, deadline=None)
