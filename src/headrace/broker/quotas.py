"""What a namespace may put in: messages and bytes a minute, and connections at a time.

The settings are facts (``NamespaceConfig``); what is used up lives in memory only, so that a restart makes nobody
wait. A minute's worth may come at once, then it flows at its rate. A batch is let through whole or refused whole, with
the time after which it would fit; one that is larger than a whole minute's worth never would, and is told so.
"""

from __future__ import annotations

from headrace.batch import Batch
from headrace.config import NamespaceConfig
from headrace.delivery import Bucket
from headrace.errors import LimitExceeded, QuotaExceeded
from headrace.limits import SECOND_NS
from headrace.shard.core import Core

__all__ = ["Quotas"]

_MINUTE_S = 60


class _Used:
    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages = Bucket()
        self.bytes = Bucket()


class Quotas:
    """The quotas of every namespace of a broker."""

    __slots__ = ("_connections", "_core", "_used", "refused")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._used: dict[str, _Used] = {}
        self._connections: dict[str, int] = {}
        self.refused = 0

    def settings(self, namespace: str) -> NamespaceConfig | None:
        known = self._core.state.namespaces.get(namespace)
        return None if known is None else known.settings

    # -- publishing ----------------------------------------------------------------------------------------------------

    def check(self, namespace: str, batch: Batch) -> bool:
        """Whether there is a quota to ``charge``; QuotaExceeded when the batch does not fit into what is left."""
        known = self._core.state.namespaces.get(namespace)
        if known is None or not known.metered:
            return False
        settings = known.settings
        used = self._used.get(namespace)
        if used is None:
            used = self._used[namespace] = _Used()
        now_ns = self._core.clock.now_ns()
        self._fits(namespace, used.messages, batch.count, settings.messages_per_minute, "messages", now_ns)
        self._fits(namespace, used.bytes, batch.size_bytes, settings.bytes_per_minute, "bytes", now_ns)
        return True

    def _fits(self, namespace: str, bucket: Bucket, amount: int, most: int, what: str, now_ns: int) -> None:
        if not most:
            return
        if amount > most:
            raise LimitExceeded(
                f"{amount} {what} at once: namespace {namespace!r} may publish {most} a minute; send less at a time"
            )
        wait_ns = bucket.wait_ns(amount, most / _MINUTE_S, most, now_ns)
        if wait_ns:
            self.refused += 1
            raise QuotaExceeded(
                f"namespace {namespace!r} may publish {most} {what} a minute and has used them up",
                retry_after_ns=wait_ns,
            )

    def charge(self, namespace: str, batch: Batch) -> None:
        """Count a batch that was taken."""
        settings, used = self.settings(namespace), self._used[namespace]
        if settings is None:
            return
        now_ns = self._core.clock.now_ns()
        if settings.messages_per_minute:
            used.messages.spend(batch.count, settings.messages_per_minute / _MINUTE_S, now_ns)
        if settings.bytes_per_minute:
            used.bytes.spend(batch.size_bytes, settings.bytes_per_minute / _MINUTE_S, now_ns)

    # -- connections ---------------------------------------------------------------------------------------------------

    def enter(self, namespace: str) -> None:
        """Somebody connects; QuotaExceeded when too many have."""
        settings = self.settings(namespace)
        count = self._connections.get(namespace, 0)
        if settings is not None and settings.connections and count >= settings.connections:
            self.refused += 1
            raise QuotaExceeded(
                f"namespace {namespace!r} has {count} connections and may have {settings.connections}",
                retry_after_ns=SECOND_NS,
            )
        self._connections[namespace] = count + 1

    def leave(self, namespace: str) -> None:
        """Somebody who entered is gone."""
        left = self._connections.get(namespace, 0) - 1
        if left > 0:
            self._connections[namespace] = left
        else:
            self._connections.pop(namespace, None)

    def connections(self, namespace: str) -> int:
        return self._connections.get(namespace, 0)
