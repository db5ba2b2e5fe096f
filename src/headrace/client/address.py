"""Where a server is: ``headrace://host:port``, ``headraces://`` for TLS, and what a URL may say besides.

    headrace://[TOKEN@]HOST[:PORT][/NAMESPACE]

A token in a URL is for local use; a program gives it as an argument, because URLs are printed.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from headrace.client.arguments import shown
from headrace.errors import InvalidArgument
from headrace.names import DEFAULT_NAMESPACE, check_namespace_name

__all__ = ["Address", "parse_address"]

DEFAULT_PORT: Final = 7420
_SCHEMES: Final = {"headrace": False, "headraces": True}
_PORT_MAX: Final = 65_535


class Address(msgspec.Struct, frozen=True):
    """A server, and as whom to call there."""

    host: str
    port: int
    tls: bool
    namespace: str
    token: str | None = None

    def __str__(self) -> str:
        """Without the token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'headraces' if self.tls else 'headrace'}://{host}:{self.port}"

    __repr__ = __str__


def parse_address(url: str, *, namespace: str | None = None, token: str | None = None) -> Address:
    """The server of a URL; arguments override what it says.

    >>> parse_address("headrace://localhost/acme").namespace, parse_address("headraces://[::1]:7000")
    ('acme', headraces://[::1]:7000)
    """
    if not isinstance(url, str):
        raise InvalidArgument(f"the server is {shown(url)}; it must be a URL such as 'headrace://localhost:7420'")
    try:
        parts = urlsplit(url if "://" in url else f"headrace://{url}")
        port = parts.port
    except ValueError as error:
        raise InvalidArgument(f"the server {_safe(url)}: {error}") from None
    if parts.scheme not in _SCHEMES:
        raise InvalidArgument(
            f"the server {_safe(url)} has the scheme {parts.scheme!r}; it must be headrace:// or, with TLS, headraces://"
        )
    if not parts.hostname:
        raise InvalidArgument(f"the server {_safe(url)} names no host; it must be like 'headrace://localhost:7420'")
    if parts.query or parts.fragment:
        raise InvalidArgument(f"the server {_safe(url)}: nothing may follow the namespace; give it as an argument")
    if port is not None and not 0 < port <= _PORT_MAX:
        raise InvalidArgument(f"the server {_safe(url)}: port {port} must be from 1 to {_PORT_MAX}")
    named = unquote(parts.path.removeprefix("/"))
    chosen = namespace if namespace is not None else named or DEFAULT_NAMESPACE
    return Address(
        parts.hostname,
        port or DEFAULT_PORT,
        _SCHEMES[parts.scheme],
        check_namespace_name(chosen),
        token if token is not None else unquote(parts.username) if parts.username else None,
    )


def _safe(url: str) -> str:
    """A URL without what may be a token."""
    scheme, mark, rest = url.rpartition("://")
    return shown(f"{scheme}{mark}{rest.rpartition('@')[2]}")
