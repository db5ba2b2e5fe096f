"""What the principal of one connection may do with topics, remembered by topic.

A filter is allowed only when it is a subset of one allowed pattern. Answers are kept for the connection's lifetime and
forgotten together when rights change; how long a principal is good at all is the connection's affair.
"""

from __future__ import annotations

from typing import Final

from headrace.frontends.access import Principal, Verb
from headrace.routing import split_share

__all__ = ["TopicRights"]

_REMEMBERED_MAX: Final = 1024


class TopicRights:
    """Of a principal, in a namespace."""

    __slots__ = ("_known", "namespace", "principal")

    def __init__(self, principal: Principal, namespace: str) -> None:
        self.principal = principal
        self.namespace = namespace
        self._known: dict[tuple[Verb, str], bool] = {}

    def forget(self) -> None:
        """The principal's rights are not what they were."""
        self._known.clear()

    def may_write(self, topic: str) -> bool:
        return self._may("publish", topic)

    def may_read(self, topic: str) -> bool:
        return self._may("consume", topic)

    def may_administer(self, topic: str) -> bool:
        return self._may("admin", topic)

    def may_subscribe(self, topic_filter: str) -> bool:
        inner = split_share(topic_filter)[1]
        return self.principal.filter_refusal("consume", self.namespace, inner) is None

    def _may(self, verb: Verb, topic: str) -> bool:
        known = self._known.get((verb, topic))
        if known is None:
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            known = self._known[verb, topic] = self.principal.refusal(verb, self.namespace, topic) is None
        return known
