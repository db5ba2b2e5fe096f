"""The same names for asyncio: ``headrace.aio.open`` and ``headrace.aio.connect``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.broker.aio import open_async_port
from headrace.client import aio_port
from headrace.client.aio_consumer import ArrowDeliveries, Consumer, Delivery
from headrace.client.aio_handles import Headrace, Topic
from headrace.client.arguments import Duration
from headrace.client.awaiting import Opening
from headrace.client.handles import consumer_name
from headrace.embedded import checked, sealing_of
from headrace.names import DEFAULT_NAMESPACE, check_namespace_name

if TYPE_CHECKING:
    import ssl

__all__ = ["ArrowDeliveries", "Consumer", "Delivery", "Headrace", "Topic", "connect", "open"]


def open(  # noqa: A001 - the name of the public function
    path: str | Path,
    *,
    namespace: str = DEFAULT_NAMESPACE,
    name: str | None = None,
    node_id: int = 1,
    topic_defaults: Mapping[str, Any] | None = None,
    auto_create: bool = True,
    seal: Mapping[str, Any] | None = None,
) -> Opening[Headrace]:
    """Open a data directory for this event loop: ``await`` it, or ``async with`` it. Arguments as `headrace.open`.

    >>> import asyncio
    >>> async def main():
    ...     async with open(":memory:") as hr:
    ...         return (await (await hr.topic("orders")).publish(b"one apple")).offset
    >>> asyncio.run(main())
    0
    """
    check_namespace_name(namespace)
    defaults = checked(path, node_id, topic_defaults, auto_create)
    sealing = sealing_of(seal)

    async def start() -> Headrace:
        port = await open_async_port(
            path, node_id=node_id, topic_defaults=defaults, auto_create=auto_create, seal=sealing
        )
        return Headrace(port, namespace=namespace, name=name, now_ns=port.now_ns)

    return Opening(start)


def connect(
    url: str = "headrace://127.0.0.1:7420",
    *,
    token: str | None = None,
    namespace: str | None = None,
    name: str | None = None,
    ca_file: str | Path | None = None,
    tls: ssl.SSLContext | None = None,
    connect_timeout: Duration | None = None,
    outage: Duration | None = None,
) -> Opening[Headrace]:
    """Connect to a server: ``await`` it, or ``async with`` it. Arguments as `headrace.connect`."""
    own = consumer_name(name)

    async def start() -> Headrace:
        port = await aio_port.open_async_port(
            url,
            token=token,
            namespace=namespace,
            name=own,
            ca_file=ca_file,
            tls=tls,
            connect_timeout=connect_timeout,
            outage=outage,
        )
        return Headrace(port, namespace=port.address.namespace, name=own, now_ns=port.now_ns)

    return Opening(start)
