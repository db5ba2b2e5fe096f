"""Routing workloads: how long one publish takes to find its subscribers."""

from __future__ import annotations

import random
import time

from headrace.routing import GroupFilter, SubscriptionTrie, compile_filter


def match_among_wildcards(
    filters: int = 100_000, publishes: int = 20_000, seed: int = 7
) -> dict[str, float | int | str]:
    """A device tree with `filters` wildcard filters; every publish goes to another topic: none is remembered."""
    rng = random.Random(seed)
    trie = SubscriptionTrie[int, int](cache_topics_max=0)
    shapes = ("s/{a}/+/{c}/#", "s/+/{b}/{c}", "s/{a}/{b}/+/x", "+/{a}/{b}/#", "s/{a}/#", "s/+/+/{c}/{a}")
    while len(trie) < filters:
        shape = shapes[len(trie) % len(shapes)]
        names = {k: f"{k}{rng.randrange(300)}" for k in "abc"}
        trie.add(shape.format(**names), len(trie), 1)
    topics = [f"s/a{rng.randrange(300)}/b{rng.randrange(300)}/c{rng.randrange(300)}/x" for _ in range(publishes)]
    found = 0
    start_ns = time.perf_counter_ns()
    for topic in topics:
        found += len(trie.match(topic))
    spent_ns = time.perf_counter_ns() - start_ns
    return {
        "workload": "mqtt_match_100k_wildcards",
        "filters": filters,
        "us_per_publish": round(spent_ns / publishes / 1000, 3),
        "subscribers_per_publish": round(found / publishes, 1),
    }


def match_remembered(publishes: int = 200_000) -> dict[str, float | int | str]:
    """The same topic again and again: the answer is remembered."""
    trie = SubscriptionTrie[int, int]()
    for subscriber in range(50):
        trie.add("sensors/+/temperature", subscriber, 1)
    start_ns = time.perf_counter_ns()
    for _ in range(publishes):
        trie.match("sensors/attic/temperature")
    spent_ns = time.perf_counter_ns() - start_ns
    return {"workload": "mqtt_match_remembered", "us_per_publish": round(spent_ns / publishes / 1000, 3)}


def group_filter_predicate(messages: int = 200_000) -> dict[str, float | int | str]:
    """One group filter with two header tests, per message."""
    wanted = compile_filter(
        GroupFilter.from_dict({"headers": {"region": {"in": ["eu", "us"]}, "sku": {"prefix": "A-"}}})
    )
    headers: dict[str, str | bytes] = {"region": "eu", "sku": "A-1", "other": "x"}
    start_ns = time.perf_counter_ns()
    for _ in range(messages):
        wanted(headers, None)
    spent_ns = time.perf_counter_ns() - start_ns
    return {"workload": "group_filter_predicate", "us_per_message": round(spent_ns / messages / 1000, 3)}


WORKLOADS = (match_among_wildcards, match_remembered, group_filter_predicate)
