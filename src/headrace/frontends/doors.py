"""What a door is: the one shape that the server starts, drains and closes, whatever is spoken through it.

    site = DoorSite(broker, listener, …)     the server binds the port and says what stands behind it
    door = NativeDoor(site)                  nothing happens yet
    await door.start()                       from here on it accepts
    door.address                             "127.0.0.1:7420", with the real port when 0 was asked for
    await door.drain(deadline_ns)            no new work; returns when what was under way has ended, or at the deadline
    await door.close()                       what is left is cut; the socket is gone. Also without start or drain

The listener is bound (and listening) before a door is made, so that a port that is taken is told before anything else
is opened, and every door of a server is refused or none.

``drain`` and ``close`` never raise. A door does not stop the server: a failure of the storage reaches the server from
the broker; a failure of the door itself is the door's to log.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from headrace.clock import Clock, SystemClock
from headrace.config import ServerConfig
from headrace.frontends.access import Authenticate
from headrace.names import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.aio import LoopBroker
    from headrace.broker.metrics import Metrics
    from headrace.frontends.passwords import PasswordCheck
    from headrace.journal import Journal

__all__ = ["Door", "DoorSite"]


@dataclass(frozen=True, slots=True)
class DoorSite:
    """Where a door stands: the broker behind it, the socket in front of it, who may come in."""

    broker: LoopBroker
    listener: socket.socket
    config: ServerConfig = field(default_factory=ServerConfig)
    clock: Clock = field(default_factory=SystemClock)
    authenticate: Authenticate | None = None
    """None: no key is configured. Everybody who reaches the socket may do everything, and the socket is on loopback."""
    tls: ssl.SSLContext | None = None
    namespace: str = DEFAULT_NAMESPACE
    metrics: Metrics | None = None
    """None: switched off."""
    passwords: PasswordCheck | None = None
    """Users with passwords, for protocols whose clients have those; None: there are none."""
    open_journal: Callable[[str], Journal] | None = None
    """A durable record of the door's own, by its name. It may block. None: nothing survives the process."""


class Door(Protocol):
    """See the head of this file."""

    @property
    def address(self) -> str: ...

    @property
    def connections_count(self) -> int: ...

    async def start(self) -> None: ...

    async def drain(self, deadline_ns: int) -> None: ...

    async def close(self) -> None: ...
