"""Who is calling and what he may do: the one check behind every door.

A door hands the credential it was given to ``authenticate(token, namespace)`` and gets a principal, or Unauthenticated
is raised. Before each call it asks ``guard(principal, verb, namespace, topic)``. Without a configured key there is no
``authenticate``, the principal is None and may do everything; the server then listens on loopback only.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

from headrace.errors import HeadraceError

__all__ = ["Authenticate", "Principal", "Verb", "guard", "is_loopback", "verb_of"]

Verb: TypeAlias = Literal["publish", "consume", "admin"]


class Principal(Protocol):
    """Somebody who was let in."""

    @property
    def name(self) -> str: ...

    def refusal(self, verb: Verb, namespace: str, topic: str) -> HeadraceError | None:
        """NotAllowed (or Unauthenticated once the token has expired), or None when it may."""
        ...


Authenticate: TypeAlias = Callable[[str | None, str], Principal]
"""(token, namespace) → principal; raises Unauthenticated or NotAllowed."""


def guard(principal: Principal | None, verb: Verb, namespace: str, topic: str) -> None:
    """Raise when ``principal`` may not do ``verb`` there."""
    if principal is not None:
        refusal = principal.refusal(verb, namespace, topic)
        if refusal is not None:
            raise refusal


_CONSUMERS_CALLS = frozenset(
    {"browse", "explain", "group.list", "group.show", "read", "schedule.count", "schedule.list", "schedule.show"}
    | {"stats", "topic.list", "topic.offsets", "topic.show", "trace"}
)
_PRODUCERS_CALLS = frozenset({"schedule.cancel", "schedule.move", "topic.ensure"})


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
