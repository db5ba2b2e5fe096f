"""Sockets: one folder a protocol. A front-end feeds a session from ``headrace.wire`` and does what it says."""

from headrace.frontends.access import Authenticate, Principal, guard, guard_call, is_loopback
from headrace.frontends.doors import Door, DoorSite
from headrace.frontends.listening import open_listener, spelled
from headrace.frontends.tls import reload_certificate, server_context

__all__ = [
    "Authenticate",
    "Door",
    "DoorSite",
    "Principal",
    "guard",
    "guard_call",
    "is_loopback",
    "open_listener",
    "reload_certificate",
    "server_context",
    "spelled",
]
