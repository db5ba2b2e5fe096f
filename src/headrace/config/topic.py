"""A topic's settings and their defaults, which are those of the documented semantics.

Attributes carry their unit (``lease_ns``), keys do not (``lease``), because their values do (``30s``). Zero switches a
limit off and is written ``none``. One partition is the default: messages are handed out one by one and order is per
key, whatever the number of partitions; they are storage, and parallelism between shards (docs/decisions/0001).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from headrace.config.kinds import Choice, Duration, Flag, Lanes, Real, Size, Text, Whole
from headrace.config.settings import Setting, check
from headrace.errors import InvalidArgument
from headrace.limits import (
    MESSAGE_BYTES_DEFAULT,
    MESSAGE_BYTES_MAX,
    MILLISECOND_NS,
    PARTITIONS_MAX,
    SECOND_NS,
    SETTING_COUNT_MAX,
)
from headrace.names import check_topic_name

__all__ = ["OnDead", "Ordering", "Push", "RetryConfig", "TopicConfig", "check_webhook"]

Ordering = Literal["none", "key", "partition", "strict"]
OnDead = Literal["continue", "hold", "follow"]
Push = Literal["round_robin", "least_busy", "random"]
MqttSettle = Literal["explicit", "puback"]

ORDERING = Choice("none", "key", "partition", "strict")
ON_DEAD = Choice("continue", "hold", "follow")
PUSH = Choice("round_robin", "least_busy", "random")
LEASE = Duration(MILLISECOND_NS)
MAX_RETRIES = Whole(0, SETTING_COUNT_MAX)
BACKOFF = Duration()
BACKOFF_MULTIPLIER = Real(1, 1_000)
TOTAL_TIMEOUT = Duration(zero="none")
JITTER = Real(0, 1, zero="off")
MAX_IN_FLIGHT = Whole(1, SETTING_COUNT_MAX)
LANE_WAIT_DEFAULT_NS = 60 * SECOND_NS


def check_webhook(url: str) -> bool:
    """Whether a text can be posted to."""
    scheme, _, rest = url.partition("://")
    return scheme in {"http", "https"} and bool(rest.partition("/")[0]) and " " not in url


DEAD_LETTERS_TOPIC = Text("a topic name", empty=True, check=check_topic_name)
WEBHOOK = Text("an http:// or https:// address", empty=True, check=check_webhook)


class RetryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """When and how often a failed message comes back."""

    max_retries: Annotated[int, Setting(MAX_RETRIES, "", "times a message is tried again before it is dead")] = 10
    initial_backoff_ns: Annotated[int, Setting(BACKOFF, "initial_backoff", "wait after the first failure")] = (
        5 * SECOND_NS
    )
    max_backoff_ns: Annotated[int, Setting(BACKOFF, "max_backoff", "longest wait between attempts")] = 300 * SECOND_NS
    backoff_multiplier: Annotated[float, Setting(BACKOFF_MULTIPLIER, "", "growth of the wait per failure")] = 2.0
    total_timeout_ns: Annotated[
        int, Setting(TOTAL_TIMEOUT, "total_timeout", "time after which a failing message is dead, tries left or not")
    ] = 10_800 * SECOND_NS
    jitter: Annotated[float, Setting(JITTER, "", "random part of the wait, from 0 to 1")] = 0.0

    def __post_init__(self) -> None:
        check(self)


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set for a topic.

    >>> TopicConfig(ordering="strict", partitions=6).partitions
    1
    """

    partitions: Annotated[int, Setting(Whole(1, PARTITIONS_MAX), "", "logs the topic is stored in")] = 1
    ordering: Annotated[Ordering, Setting(ORDERING, "", "what is delivered in order; strict forces one partition")] = (
        "key"
    )
    on_dead: Annotated[OnDead, Setting(ON_DEAD, "", "what the successors of a dead message of the same key do")] = (
        "continue"
    )
    lease_ns: Annotated[int, Setting(LEASE, "lease", "time a consumer has for a message")] = 30 * SECOND_NS
    max_lease_ns: Annotated[int, Setting(LEASE, "max_lease", "the furthest a lease can be extended")] = (
        43_200 * SECOND_NS
    )
    retry: RetryConfig = RetryConfig()
    dead_letters: Annotated[
        bool, Setting(Flag(), "dead_letters.enabled", "keep what died in the dead-letter topic")
    ] = True
    dead_letter_topic: Annotated[
        str, Setting(DEAD_LETTERS_TOPIC, "dead_letters.topic", "its name; dlq/<topic> when not given")
    ] = ""
    alert_webhook: Annotated[
        str, Setting(WEBHOOK, "dead_letters.alert_webhook", "address told by POST when messages die")
    ] = ""
    message_ttl_ns: Annotated[
        int, Setting(Duration(zero="none"), "message_ttl", "life of a message that says none, from when it is due")
    ] = 604_800 * SECOND_NS
    max_message_bytes: Annotated[
        int, Setting(Size(1, MESSAGE_BYTES_MAX), "max_message_size", "largest value of a message")
    ] = MESSAGE_BYTES_DEFAULT
    max_depth: Annotated[
        int, Setting(Whole(1, SETTING_COUNT_MAX, zero="none"), "", "unsettled messages before publishes are refused")
    ] = 10_000_000
    max_delay_ns: Annotated[
        int,
        Setting(Duration(MILLISECOND_NS, zero="none"), "max_delay", "the furthest ahead a message can be scheduled"),
    ] = 604_800 * SECOND_NS
    max_in_flight: Annotated[int, Setting(MAX_IN_FLIGHT, "", "messages of one group leased at a time")] = 100_000
    retention_ns: Annotated[
        int, Setting(Duration(SECOND_NS, zero="none"), "retention", "time a settled message stays readable")
    ] = 604_800 * SECOND_NS
    retention_bytes: Annotated[
        int, Setting(Size(1, zero="none"), "", "bytes of settled messages that stay readable")
    ] = 10 * 1024**3
    retain_acked: Annotated[bool, Setting(Flag(), "", "keep messages that every group has settled")] = True
    dedup_window_ns: Annotated[
        int, Setting(Duration(zero="off"), "dedup_window", "how long a dedup id is remembered")
    ] = 300 * SECOND_NS
    aging_ns: Annotated[
        int, Setting(Lanes(LANE_WAIT_DEFAULT_NS), "lanes", "how priorities are served: strict, or aging:<longest wait>")
    ] = 0
    push: Annotated[Push, Setting(PUSH, "", "which consumer with credit gets the next message")] = "round_robin"
    mqtt_settle: Annotated[
        MqttSettle,
        Setting(Choice("explicit", "puback"), "mqtt.settle", "how MQTT consumers ack: by $ack, or by PUBACK alone"),
    ] = "explicit"

    def __post_init__(self) -> None:
        check(self)
        if self.ordering == "strict" and self.partitions != 1:
            msgspec.structs.force_setattr(self, "partitions", 1)
        if self.lease_ns > self.max_lease_ns:
            raise InvalidArgument(
                f"lease: {self.lease_ns / SECOND_NS:g}s is above max_lease, {self.max_lease_ns / SECOND_NS:g}s; "
                "shorten the one or raise the other"
            )
