"""Who is calling and what he may do: the one check behind every door.

A door hands the credential it was given to ``authenticate(token, namespace)`` and gets a principal, or Unauthenticated
is raised. Before each call it asks ``guard(principal, verb, namespace, topic)``. Without a configured key there is no
``authenticate``, the principal is None and may do everything; the server then listens on loopback only.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

from headrace.errors import HeadraceError
from headrace.names import DEFAULT_NAMESPACE

__all__ = ["VERBS", "Authenticate", "Principal", "Verb", "guard", "guard_call", "is_loopback", "verb_of"]

Verb: TypeAlias = Literal["publish", "consume", "admin"]
VERBS: Final[tuple[Verb, ...]] = get_args(Verb)


class Principal(Protocol):
    """Somebody who was let in."""

    @property
    def name(self) -> str: ...

    def refusal(self, verb: Verb, namespace: str, topic: str) -> HeadraceError | None:
        """NotAllowed (or Unauthenticated once the token has expired), or None when it may. No topic: all of them."""
        ...

    def filter_refusal(self, verb: Verb, namespace: str, topic_filter: str) -> HeadraceError | None:
        """The same for everything an MQTT topic filter can match."""
        ...


Authenticate: TypeAlias = Callable[[str | None, str], Principal]
"""(token, namespace) → principal; raises Unauthenticated or NotAllowed."""


def guard(principal: Principal | None, verb: Verb, namespace: str, topic: str) -> None:
    """Raise when ``principal`` may not do ``verb`` there."""
    if principal is not None:
        refusal = principal.refusal(verb, namespace, topic)
        if refusal is not None:
            raise refusal


async def guard_call(
    principal: Principal | None,
    method: str,
    arguments: Mapping[str, Any],
    topic_of: Callable[[str, int], Awaitable[str | None]],
) -> None:
    """``guard`` for an administrative call. ``topic_of(namespace, id)``: the topic of a message that is named by id.

    A namespace of None means all of them, a missing topic all topics: only a token for all of them may ask.
    """
    if principal is None:
        return
    given = arguments.get("namespace", DEFAULT_NAMESPACE)
    namespace = "*" if given is None else str(given)
    topic = arguments.get("topic") or ""
    number = arguments.get("id")
    if not topic and type(number) is int:
        topic = await topic_of(namespace, number) or ""
    guard(principal, verb_of(method), namespace, str(topic))
    if arguments.get("to"):
        guard(principal, "publish", namespace, str(arguments["to"]))


_CONSUMERS_CALLS = frozenset(
    {"browse", "explain", "group.list", "group.show", "read", "schedule.count", "schedule.list", "schedule.show"}
    | {"stats", "topic.list", "topic.offsets", "topic.show", "trace"}
    | {"group.commit", "group.position", "log.events", "log.segments"}
    | {"lease_batch.extend", "lease_batch.messages", "lease_batch.settle", "lease_batch.show", "lease_batch.take"}
)
_PRODUCERS_CALLS = frozenset({"schedule.cancel", "schedule.move", "topic.ensure", "topic.producers"})


def verb_of(method: str) -> Verb:
    """Which right an administrative call needs; one that is not named here needs ``admin``.

    >>> verb_of("topic.delete"), verb_of("browse")
    ('admin', 'consume')
    """
    if method in _CONSUMERS_CALLS:
        return "consume"
    return "publish" if method in _PRODUCERS_CALLS else "admin"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on ``host``.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
