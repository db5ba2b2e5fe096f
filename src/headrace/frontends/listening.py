"""Listening sockets, and one sentence when there cannot be one."""

from __future__ import annotations

import errno
import socket

from headrace.errors import InvalidArgument
from headrace.limits import LISTEN_BACKLOG

__all__ = ["open_listener", "spelled"]


def open_listener(host: str, port: int, *, name: str) -> socket.socket:
    """A bound, listening, non-blocking TCP socket; port 0 picks a free one. ``name`` is the door's, for the refusal."""
    setting = f"{name}_port"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidArgument(f"host {host!r} cannot be resolved: {error.strerror or error}") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(LISTEN_BACKLOG)
    except OSError as error:
        listener.close()
        raise InvalidArgument(_refusal(host, port, name, setting, error)) from None
    return listener


def _refusal(host: str, port: int, name: str, setting: str, error: OSError) -> str:
    flag = "--" + setting.replace("_", "-")
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is taken, {name} cannot listen there; stop what uses it, or choose another with "
            f"{flag} (0 picks a free one, off closes this door)"
        )
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs rights this process has not; choose one above 1023 with {flag}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"host {host} is no address of this machine; choose another with --host"
    return f"{name} cannot listen on {host}:{port}: {error.strerror or error}"


def spelled(listener: socket.socket) -> str:
    """A listener's address as ``host:port``."""
    host, port, *_ = listener.getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
