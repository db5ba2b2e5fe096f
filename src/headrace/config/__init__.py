"""What can be set, in words people write: the server's, a topic's and a group's settings.

``headrace.config.sources`` (files, environment, flags) is imported by the command that needs it, not from here.
"""

from headrace.config.group import GroupConfig, RetryOverrides
from headrace.config.namespace import NamespaceConfig
from headrace.config.server import (
    AuthConfig,
    HttpConfig,
    LogConfig,
    MetricsConfig,
    MqttConfig,
    SealConfig,
    ServerConfig,
    TlsConfig,
)
from headrace.config.settings import (
    Assignment,
    Setting,
    apply,
    differences,
    from_plain,
    settings_of,
    to_plain,
    with_settings,
)
from headrace.config.topic import RetryConfig, TopicConfig
from headrace.config.units import format_duration, format_size, parse_duration_ns, parse_size_bytes

__all__ = [
    "Assignment",
    "AuthConfig",
    "GroupConfig",
    "HttpConfig",
    "LogConfig",
    "MetricsConfig",
    "MqttConfig",
    "NamespaceConfig",
    "RetryConfig",
    "RetryOverrides",
    "SealConfig",
    "ServerConfig",
    "Setting",
    "TlsConfig",
    "TopicConfig",
    "apply",
    "differences",
    "format_duration",
    "format_size",
    "from_plain",
    "parse_duration_ns",
    "parse_size_bytes",
    "settings_of",
    "to_plain",
    "with_settings",
]
