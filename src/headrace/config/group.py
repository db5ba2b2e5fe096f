"""A consumer group's own settings: what it does differently from its topic, its filter, its limits.

None means "as the topic" and is written ``inherit`` or left out; overrides go field by field.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from headrace.config.kinds import Flag, Optional, Plain, Real, Text, Whole
from headrace.config.settings import Setting, check
from headrace.config.topic import (
    BACKOFF,
    BACKOFF_MULTIPLIER,
    JITTER,
    LEASE,
    MAX_IN_FLIGHT,
    MAX_RETRIES,
    ON_DEAD,
    ORDERING,
    PUSH,
    TOTAL_TIMEOUT,
    OnDead,
    Ordering,
    Push,
    RetryConfig,
    TopicConfig,
)
from headrace.errors import InvalidArgument
from headrace.limits import SETTING_COUNT_MAX
from headrace.names import check_topic_name

__all__ = ["GroupConfig", "RetryOverrides"]

RATE = Real(0, SETTING_COUNT_MAX, zero="none")
CONCURRENCY = Whole(1, SETTING_COUNT_MAX, zero="none")
DEAD_LETTERS_TOPIC = Text("a topic name", check=check_topic_name)
FILTER = Plain('a JSON object such as {"headers": {"region": "eu"}}')


class RetryOverrides(msgspec.Struct, frozen=True, kw_only=True):
    """The retry settings a group has of its own."""

    max_retries: Annotated[int | None, Setting(Optional(MAX_RETRIES))] = None
    initial_backoff_ns: Annotated[int | None, Setting(Optional(BACKOFF), "initial_backoff")] = None
    max_backoff_ns: Annotated[int | None, Setting(Optional(BACKOFF), "max_backoff")] = None
    backoff_multiplier: Annotated[float | None, Setting(Optional(BACKOFF_MULTIPLIER))] = None
    total_timeout_ns: Annotated[int | None, Setting(Optional(TOTAL_TIMEOUT), "total_timeout")] = None
    jitter: Annotated[float | None, Setting(Optional(JITTER))] = None

    def __post_init__(self) -> None:
        check(self)

    def over(self, topic: RetryConfig) -> RetryConfig:
        """The topic's retry settings with the group's own in their place."""
        own = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(topic, **own) if own else topic


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set for a group."""

    ordering: Annotated[Ordering | None, Setting(Optional(ORDERING), "", "as the topic's")] = None
    on_dead: Annotated[OnDead | None, Setting(Optional(ON_DEAD), "", "as the topic's")] = None
    lease_ns: Annotated[int | None, Setting(Optional(LEASE), "lease", "as the topic's")] = None
    retry: RetryOverrides = RetryOverrides()
    dead_letters: Annotated[bool | None, Setting(Optional(Flag()), "dead_letters.enabled", "as the topic's")] = None
    dead_letter_topic: Annotated[
        str | None, Setting(Optional(DEAD_LETTERS_TOPIC), "dead_letters.topic", "as the topic's")
    ] = None
    max_in_flight: Annotated[int | None, Setting(Optional(MAX_IN_FLIGHT), "", "as the topic's")] = None
    push: Annotated[Push | None, Setting(Optional(PUSH), "", "as the topic's")] = None
    auto_ack: Annotated[bool, Setting(Flag(), "", "settled when handed out: at most once")] = False
    filter: Annotated[
        dict[str, Any] | None, Setting(Optional(FILTER, "none"), "", "which messages of the topic the group wants")
    ] = None
    rate: Annotated[float, Setting(RATE, "limits.rate", "messages a second handed out to the group")] = 0.0
    concurrency: Annotated[int, Setting(CONCURRENCY, "limits.concurrency", "messages leased at a time")] = 0
    key_rate: Annotated[float, Setting(RATE, "limits.key_rate", "messages a second handed out of each key")] = 0.0
    key_concurrency: Annotated[
        int, Setting(CONCURRENCY, "limits.key_concurrency", "messages of each key leased at a time, ordering none")
    ] = 0

    def __post_init__(self) -> None:
        check(self)

    def over(self, topic: TopicConfig) -> TopicConfig:
        """What is in force for the group: the topic's settings with the group's own in their place.

        >>> GroupConfig(retry=RetryOverrides(max_retries=3)).over(TopicConfig()).retry.max_retries
        3
        """
        names = ("ordering", "on_dead", "lease_ns", "dead_letters", "dead_letter_topic", "max_in_flight", "push")
        own = {name: value for name in names if (value := getattr(self, name)) is not None}
        if topic.ordering == "strict":
            own.pop("ordering", None)  # a topic with one global order has no group without it
        elif own.get("ordering") == "strict" and topic.partitions != 1:
            raise InvalidArgument(f"ordering strict needs a topic of one partition; this one has {topic.partitions}")
        return msgspec.structs.replace(topic, retry=self.retry.over(topic.retry), **own)
