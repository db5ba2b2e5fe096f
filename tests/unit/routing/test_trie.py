"""The subscription trie: what a caller sees, and that it gives memory back."""

from __future__ import annotations

from headrace.routing import SubscriptionTrie


def test_subscriber_with_two_matching_filters_is_found_twice() -> None:
    trie = SubscriptionTrie[str, int]()
    trie.add("a/+", "ann", 1)
    trie.add("a/#", "ann", 2)
    assert sorted(trie.match("a/b")) == [("ann", 1), ("ann", 2)]


def test_adding_again_replaces_the_value() -> None:
    trie = SubscriptionTrie[str, int]()
    assert trie.add("a", "ann", 1)
    assert trie.match("a") == (("ann", 1),)
    assert not trie.add("a", "ann", 2)
    assert trie.match("a") == (("ann", 2),)
    assert len(trie) == 1
    assert trie.get("a", "ann") == 2
    assert trie.get("a/b", "ann") is None
    assert trie.get("a", "bob") is None


def test_removal_prunes_every_empty_node() -> None:
    trie = SubscriptionTrie[str, None]()
    filters = ["a/b/c", "a/+/c", "a/#", "+/+/#", "#", "$SYS/x"]
    for topic_filter in filters:
        trie.add(topic_filter, "ann", None)
    for topic_filter in filters:
        assert trie.remove(topic_filter, "ann")
        assert not trie.remove(topic_filter, "ann")
    assert len(trie) == 0
    assert trie._root.is_empty()


def test_removing_what_was_never_there_changes_nothing() -> None:
    trie = SubscriptionTrie[str, None]()
    trie.add("a/b", "ann", None)
    generation = trie.generation
    for topic_filter in ("a", "a/b/c", "a/+", "a/#", "b"):
        assert not trie.remove(topic_filter, "ann")
    assert not trie.remove("a/b", "bob")
    assert (len(trie), trie.generation) == (1, generation)


def test_leading_wildcards_do_not_reach_dollar_topics() -> None:
    trie = SubscriptionTrie[str, None]()
    for topic_filter in ("#", "+", "+/x", "+/#"):
        trie.add(topic_filter, topic_filter, None)
    assert trie.match("$SYS") == ()
    assert trie.match("$SYS/x") == ()
    assert len(trie.match("a/x")) == 3


def test_answers_are_remembered_until_a_change_and_bounded() -> None:
    trie = SubscriptionTrie[int, None](cache_topics_max=4, cache_subscribers_max=6)
    for subscriber in range(3):
        trie.add("#", subscriber, None)
    assert trie.match("a") is trie.match("a")
    for topic in "bcdefgh":
        trie.match(topic)
        assert len(trie._cache) <= 4
        assert trie._cached_subscribers <= 6
    for subscriber in range(3, 10):
        trie.add("#", subscriber, None)
    assert trie._cache == {}
    trie.match("a")
    assert trie._cache == {}, "an answer larger than the whole cache is not kept"


def test_generation_rises_with_every_change() -> None:
    trie = SubscriptionTrie[str, None]()
    trie.add("a", "x", None)
    trie.remove("a", "x")
    assert trie.generation == 2
