"""What a new topic starts with: the settings of the first template whose pattern its name matches, or the defaults.

Patterns are topic filters in MQTT's spelling. A template says what it does differently from the defaults; what a topic
is created with goes on top. Templates are looked at when a topic is made, never afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.config import TopicConfig, with_settings
from headrace.errors import InvalidArgument
from headrace.limits import TOPIC_PATTERNS_MAX
from headrace.routing import matches, topic_filter_fault

__all__ = ["TopicTemplates"]


class TopicTemplates:
    """Templates by pattern, in order.

    >>> templates = TopicTemplates(TopicConfig(), {"jobs/slow/#": {"lease": "10m"}, "jobs/#": {"lease": "1m"}})
    >>> [templates.for_topic(name).lease_ns // 10**9 for name in ("jobs/slow/video", "jobs/mail", "orders")]
    [600, 60, 30]
    """

    __slots__ = ("_templates", "defaults")

    def __init__(self, defaults: TopicConfig, templates: Mapping[str, Any] | None = None) -> None:
        self.defaults = defaults
        if len(templates or {}) > TOPIC_PATTERNS_MAX:
            raise InvalidArgument(f"topic_templates: {len(templates or {})} of them; at most {TOPIC_PATTERNS_MAX}")
        self._templates = [(pattern, self._template(pattern, own)) for pattern, own in (templates or {}).items()]

    def _template(self, pattern: str, own: Any) -> TopicConfig:
        fault = topic_filter_fault(pattern)
        if fault is not None:
            raise InvalidArgument(f"topic_templates: pattern {pattern!r}: {fault}")
        if not isinstance(own, Mapping):
            raise InvalidArgument(
                f"topic_templates: {pattern!r} must have settings, such as {{lease: 1m}}; it has {own!r}"
            )
        try:
            return with_settings(self.defaults, own)
        except InvalidArgument as error:
            raise InvalidArgument(f"topic_templates: {pattern!r}: {error.message}") from None

    def for_topic(self, name: str) -> TopicConfig:
        """The settings of a new topic that says none itself."""
        for pattern, settings in self._templates:
            if matches(pattern, name):
                return settings
        return self.defaults
