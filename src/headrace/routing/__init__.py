"""Which topics and groups a message reaches: topic filters, the subscription trie, group filters. Pure."""

from headrace.routing.group_filter import Condition, GroupFilter, Predicate, compile_filter
from headrace.routing.patterns import TopicPatterns
from headrace.routing.topics import (
    check_topic,
    check_topic_filter,
    has_control_character,
    is_subset,
    matches,
    share_fault,
    split_share,
    topic_filter_fault,
    topic_name_fault,
)
from headrace.routing.trie import SubscriptionTrie

__all__ = [
    "Condition",
    "GroupFilter",
    "Predicate",
    "SubscriptionTrie",
    "TopicPatterns",
    "check_topic",
    "check_topic_filter",
    "compile_filter",
    "has_control_character",
    "is_subset",
    "matches",
    "share_fault",
    "split_share",
    "topic_filter_fault",
    "topic_name_fault",
]
