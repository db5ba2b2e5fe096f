"""The rules in force for a group: its topic's settings with its own in their place.

The core never sees a string it has to interpret: ``headrace.config`` has turned every duration into nanoseconds.
"""

from __future__ import annotations

import msgspec

from headrace.config import GroupConfig, RetryConfig, TopicConfig
from headrace.config.topic import OnDead, Ordering, Push
from headrace.names import DEAD_LETTERS_PREFIX, dead_letters_topic

__all__ = ["Policy", "backoff_ns", "policy_of"]


class Policy(msgspec.Struct, frozen=True):
    """What is in force."""

    ordering: Ordering
    on_dead: OnDead
    lease_ns: int
    max_lease_ns: int
    retry: RetryConfig
    dead_letters: bool
    dead_letter_topic: str
    max_in_flight: int
    auto_ack: bool
    aging_ns: int
    rate: float
    concurrency: int
    key_rate: float
    key_concurrency: int
    push: Push
    frees: bool  # a settled message may let another one go: the next of its key, one that a limit held back
    plain: bool  # any ready message may go to any consumer, and no limit but max_in_flight stands in the way

    @property
    def keyed(self) -> bool:
        return self.ordering == "key"

    @property
    def limits_keys(self) -> bool:
        return bool(self.key_rate or self.key_concurrency)

    @property
    def fifo(self) -> bool:
        return self.ordering in ("partition", "strict")


def policy_of(topic: TopicConfig, topic_name: str, group: GroupConfig) -> Policy:
    """What is in force for a group of a topic."""
    own = group.over(topic)
    # A dead letter that dies again would only move in a circle: it stays where it is, dead.
    dead_letters = own.dead_letters and not topic_name.startswith(DEAD_LETTERS_PREFIX)
    return Policy(
        ordering=own.ordering,
        on_dead=own.on_dead,
        lease_ns=own.lease_ns,
        max_lease_ns=own.max_lease_ns,
        retry=own.retry,
        dead_letters=dead_letters,
        dead_letter_topic=(own.dead_letter_topic or dead_letters_topic(topic_name)) if dead_letters else "",
        max_in_flight=own.max_in_flight,
        auto_ack=group.auto_ack,
        aging_ns=own.aging_ns,
        rate=group.rate,
        concurrency=group.concurrency,
        key_rate=0.0 if own.ordering in ("partition", "strict") else group.key_rate,
        key_concurrency=group.key_concurrency if own.ordering == "none" else 0,  # by key it is one at a time anyway
        push=own.push,
        frees=own.ordering != "none" or bool(group.concurrency or group.key_concurrency),
        plain=own.ordering in ("none", "key")
        and not (own.aging_ns or group.auto_ack or group.rate or group.concurrency)
        and not (group.key_rate or group.key_concurrency),
    )


def backoff_ns(retry: RetryConfig, attempt: int, spread: int) -> int:
    """How long attempt number ``attempt`` waits after it failed; ``spread`` is any 64-bit number of the message's.

    >>> [backoff_ns(RetryConfig(), attempt, 0) // 10**9 for attempt in range(1, 9)]
    [5, 10, 20, 40, 80, 160, 300, 300]
    """
    base = float(retry.max_backoff_ns)
    if attempt <= 64:  # beyond that the power would overflow what any cap allows
        base = min(base, retry.initial_backoff_ns * retry.backoff_multiplier ** (attempt - 1))
    if retry.jitter:
        # Only ever later: a jittered backoff must not fire before the plain one.
        base += base * retry.jitter * ((spread * 0x9E3779B97F4A7C15 + attempt) % 1024 / 1024)
    return int(base)
