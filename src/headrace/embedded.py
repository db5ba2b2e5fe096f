"""A broker inside the process: no server, no sockets, one directory (or none)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.broker.embedded import open_port
from headrace.client.arguments import shown, whole, yes_or_no
from headrace.client.handles import Headrace
from headrace.client.settings import written
from headrace.config import SealConfig, TopicConfig, with_settings
from headrace.errors import InvalidArgument
from headrace.ids import NODE_ID_MAX
from headrace.names import DEFAULT_NAMESPACE, check_namespace_name

__all__ = ["checked", "open", "sealing_of"]


def open(  # noqa: A001 - the name of the public function
    path: str | Path,
    *,
    namespace: str = DEFAULT_NAMESPACE,
    name: str | None = None,
    node_id: int = 1,
    topic_defaults: Mapping[str, Any] | None = None,
    auto_create: bool = True,
    seal: Mapping[str, Any] | None = None,
) -> Headrace:
    """Open a data directory (made if it is new), or ``":memory:"`` for one that is gone with the process.

    One process at a time: another one gets an error that says who has it. ``topic_defaults`` are settings of topics
    made from now on; with ``auto_create=False`` a publish does not make the topic it names. ``seal``: how and where the
    log is sealed, the settings of that section (``{"archive": "/mnt/archive"}``).

    >>> import headrace
    >>> with headrace.open(":memory:", topic_defaults={"lease": "1m"}) as hr:
    ...     hr.topic("orders").info()["settings"]["lease"]
    '1m'
    """
    check_namespace_name(namespace)
    defaults = checked(path, node_id, topic_defaults, auto_create)
    sealing = sealing_of(seal)
    port = open_port(path, node_id=node_id, topic_defaults=defaults, auto_create=auto_create, seal=sealing)
    return Headrace(port, namespace=namespace, name=name, now_ns=port.now_ns)


def checked(path: object, node_id: object, topic_defaults: object, auto_create: object) -> TopicConfig:
    """What both kinds of ``open`` refuse before they touch anything; the defaults of topics."""
    if not isinstance(path, str | Path) or not str(path):
        raise InvalidArgument(f"the path is {shown(path)}; it must name a directory, or be ':memory:'")
    whole("node_id", node_id, 0, NODE_ID_MAX)
    yes_or_no("auto_create", auto_create)
    if topic_defaults is not None and not isinstance(topic_defaults, Mapping):
        raise InvalidArgument(f"topic_defaults is {shown(topic_defaults)}; write settings, such as {{'lease': '1m'}}")
    return with_settings(TopicConfig(), written(TopicConfig, topic_defaults or {}))


def sealing_of(seal: object) -> SealConfig | None:
    """Settings of the section ``seal``; None for the usual ones."""
    if seal is None:
        return None
    if not isinstance(seal, Mapping):
        raise InvalidArgument(f"seal is {shown(seal)}; write settings, such as {{'archive': '/mnt/archive'}}")
    return with_settings(SealConfig(), written(SealConfig, seal))
