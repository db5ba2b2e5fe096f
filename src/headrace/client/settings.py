"""Settings as programs give them: a time span may be text, a ``timedelta`` or seconds, as everywhere in the SDK.

The broker takes what people write (text with a unit), from every door alike; it is made of the other two here, so that
a program says the same thing in the process and over the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec

from headrace.client.arguments import shown, span_ns
from headrace.config import GroupConfig, NamespaceConfig, TopicConfig, format_duration, settings_of
from headrace.config.kinds import Duration, Optional
from headrace.config.settings import KnownSetting, takes_mapping
from headrace.errors import InvalidArgument
from headrace.limits import SETTINGS_DEPTH_MAX

__all__ = ["call_arguments", "written"]

_OF_CALLS: Final[dict[str, type[msgspec.Struct]]] = {
    "topic": TopicConfig,
    "group": GroupConfig,
    "namespace": NamespaceConfig,
}


def written(config_type: type[msgspec.Struct], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, nested or dotted, with their time spans as text.

    >>> written(TopicConfig, {"lease": 90, "retry": {"initial_backoff": timedelta(milliseconds=5)}, "max_depth": 10})
    {'lease': '90s', 'retry': {'initial_backoff': '5ms'}, 'max_depth': 10}
    """
    return _written(settings_of(config_type), settings, "", 0)


def call_arguments(method: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a call by name, with the settings among them written."""
    config_type = _OF_CALLS.get(str(method).partition(".")[0])
    settings = arguments.get("settings")
    if config_type is None or not isinstance(settings, Mapping):
        return arguments
    return {**arguments, "settings": written(config_type, settings)}


def _written(known: Mapping[str, KnownSetting], given: Mapping[str, Any], prefix: str, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in given.items():
        key = f"{prefix}{name}"
        setting = known.get(key)
        if isinstance(value, Mapping) and depth < SETTINGS_DEPTH_MAX and not takes_mapping(setting):
            found[name] = _written(known, value, f"{key}.", depth + 1)
        elif setting is not None and _is_span(setting) and type(value) in (int, float, timedelta):
            found[name] = format_duration(span_ns(key, value))
        elif isinstance(value, timedelta):
            expected = f"it must be {setting.kind.expected}" if setting is not None else "no setting is called so"
            raise InvalidArgument(f"{key} is {shown(value)}; {expected}")
        else:
            found[name] = value
    return found


def _is_span(setting: KnownSetting) -> bool:
    kind = setting.kind.kind if isinstance(setting.kind, Optional) else setting.kind
    return isinstance(kind, Duration)
