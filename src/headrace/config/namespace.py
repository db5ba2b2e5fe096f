"""What a namespace may use: quotas at publish, limits at delivery. Everything is without limit until it is said."""

from __future__ import annotations

from typing import Annotated

import msgspec

from headrace.config.kinds import Real, Size, Whole
from headrace.config.settings import Setting, check
from headrace.limits import SETTING_COUNT_MAX

__all__ = ["NamespaceConfig"]

_COUNT = Whole(1, SETTING_COUNT_MAX, zero="none")


class NamespaceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set for a namespace."""

    messages_per_minute: Annotated[int, Setting(_COUNT, "quota.messages_per_minute", "messages published")] = 0
    bytes_per_minute: Annotated[
        int, Setting(Size(1, zero="none"), "quota.bytes_per_minute", "bytes published, as encoded batches")
    ] = 0
    topics: Annotated[int, Setting(_COUNT, "quota.topics", "topics, those of dead letters not counted")] = 0
    connections: Annotated[int, Setting(_COUNT, "quota.connections", "native and MQTT connections at a time")] = 0
    rate: Annotated[
        float,
        Setting(Real(0, SETTING_COUNT_MAX, zero="none"), "limits.rate", "messages a second handed out, all groups"),
    ] = 0.0
    concurrency: Annotated[int, Setting(_COUNT, "limits.concurrency", "messages leased at a time, all groups")] = 0

    def __post_init__(self) -> None:
        check(self)
