"""A broker over the network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.client.arguments import Duration
from headrace.client.handles import Headrace, consumer_name
from headrace.client.port import open_port

if TYPE_CHECKING:
    import ssl

__all__ = ["connect"]


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
) -> Headrace:
    """Connect to a server: ``headrace://host:port``, or ``headraces://`` for TLS.

    Raises what is wrong when there is no connection within ``connect_timeout`` (10s). Later, a server that is gone is
    waited for: a request fails when it has been gone for ``outage`` (2m). ``ca_file``: the authorities to trust instead
    of the system's; ``tls``: a context of your own, with a client certificate perhaps.
    """
    own = consumer_name(name)
    port = open_port(
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
