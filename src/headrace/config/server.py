"""The server's settings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from headrace.config.kinds import Choice, Duration, Flag, Plain, Port, Real, Size, Text, Whole
from headrace.config.settings import Setting, check
from headrace.config.topic import TopicConfig
from headrace.errors import InvalidArgument
from headrace.ids import NODE_ID_MAX
from headrace.limits import (
    HTTP_BODY_BYTES_DEFAULT,
    HTTP_BODY_BYTES_MAX,
    MQTT_PACKET_BYTES_MAX,
    MQTT_QUEUE_BYTES_MAX,
    MQTT_QUEUE_MESSAGES_MAX,
    MQTT_RECEIVE_MAXIMUM,
    MQTT_SESSION_EXPIRY_S_MAX,
    SEAL_BEHIND_BYTES,
    SEAL_SHARE,
    SECOND_NS,
)
from headrace.names import check_namespace_name

__all__ = [
    "AuthConfig",
    "ClientCertificates",
    "HttpConfig",
    "JournalBackend",
    "LogConfig",
    "LogFormat",
    "LogLevel",
    "MetricsConfig",
    "MqttConfig",
    "SealConfig",
    "ServerConfig",
    "SlowConsumer",
    "TlsConfig",
    "TracingConfig",
]

JournalBackend = Literal["disk", "memory"]
ClientCertificates = Literal["required", "optional"]
SlowConsumer = Literal["disconnect", "drop"]
LogFormat = Literal["auto", "console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


def parse_namespace_quotas(text: str) -> dict[str, int]:
    """Namespace → messages a minute; ValueError when it is not of that form.

    >>> parse_namespace_quotas("team-a:1000, team-b:500")
    {'team-a': 1000, 'team-b': 500}
    """
    quotas: dict[str, int] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = entry.rpartition(":")
        quotas[check_namespace_name(name)] = int(number)
        if quotas[name] < 1:
            raise ValueError(f"{entry}: at least 1 a minute")
    return quotas


def check_namespace_quotas(text: str) -> bool:
    """Whether a text names quotas."""
    try:
        parse_namespace_quotas(text)
    except (ValueError, InvalidArgument):
        return False
    return True


class LogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the process says about itself on stderr."""

    level: Annotated[
        LogLevel, Setting(Choice("debug", "info", "warning", "error"), "", "least important line shown")
    ] = "info"
    format: Annotated[
        LogFormat, Setting(Choice("auto", "console", "json"), "", "auto is console on a terminal and json elsewhere")
    ] = "auto"

    def __post_init__(self) -> None:
        check(self)


class MetricsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the process counts."""

    enabled: Annotated[bool, Setting(Flag(), "", "serve /metrics")] = True
    interval_ns: Annotated[int, Setting(Duration(SECOND_NS), "interval", "how often costly gauges are refreshed")] = (
        10 * SECOND_NS
    )

    def __post_init__(self) -> None:
        check(self)


class TracingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """OpenTelemetry; where spans go is said by the OTEL_… variables of its own."""

    enabled: Annotated[bool, Setting(Flag(), "", "a span for each batch; needs headrace[otel]")] = False
    service: Annotated[str, Setting(Text("a name"), "", "service.name of the spans")] = "headrace"

    def __post_init__(self) -> None:
        check(self)


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Encryption of the doors; without a certificate they speak in the clear."""

    certificate: Annotated[
        str, Setting(Text("a file name", empty=True), "", "certificate chain, PEM; read again on SIGHUP")
    ] = ""
    key: Annotated[
        str, Setting(Text("a file name", empty=True), "", "its private key, PEM; may stand in the same file")
    ] = ""
    client_ca: Annotated[
        str,
        Setting(Text("a file name", empty=True), "", "authorities of clients' certificates, PEM; none: not asked for"),
    ] = ""
    client_certificates: Annotated[
        ClientCertificates,
        Setting(Choice("required", "optional"), "", "whether a client may come without one, when client_ca is set"),
    ] = "required"

    def __post_init__(self) -> None:
        check(self)


class AuthConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Who may come in; without keys everybody on this machine, and nobody else."""

    keys: Annotated[
        str, Setting(Text("a file name", empty=True), "", "JSON Web Key set that tokens are checked with; see security")
    ] = ""
    passwords: Annotated[
        str, Setting(Text("a file name", empty=True), "", "users of MQTT with hashed passwords; see security")
    ] = ""
    issuer: Annotated[str, Setting(Text("text"), "", "the iss a token must name")] = "headrace"
    audience: Annotated[str, Setting(Text("text"), "", "the aud a token must name")] = "headrace"
    leeway_ns: Annotated[int, Setting(Duration(0, 300 * SECOND_NS), "leeway", "how far clocks may be apart")] = 0

    def __post_init__(self) -> None:
        check(self)


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP door."""

    max_body_bytes: Annotated[
        int, Setting(Size(1024, HTTP_BODY_BYTES_MAX), "max_body", "largest request, before and after it is inflated")
    ] = HTTP_BODY_BYTES_DEFAULT
    request_timeout_ns: Annotated[
        int,
        Setting(Duration(SECOND_NS), "request_timeout", "for a whole request to arrive, plus its length at 16 KiB/s"),
    ] = 30 * SECOND_NS
    idle_timeout_ns: Annotated[
        int, Setting(Duration(SECOND_NS), "idle_timeout", "before a connection that asks nothing is closed")
    ] = 75 * SECOND_NS
    cors_origins: Annotated[
        str, Setting(Text("origins separated by commas", empty=True), "", "web pages that may call; none by default")
    ] = ""

    def __post_init__(self) -> None:
        check(self)


class MqttConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The MQTT door."""

    max_packet_bytes: Annotated[
        int, Setting(Size(1024, 64 * MQTT_PACKET_BYTES_MAX), "max_packet", "largest packet that is read")
    ] = MQTT_PACKET_BYTES_MAX
    receive_maximum: Annotated[
        int, Setting(Whole(1, 65_535), "", "publishes a client may have unanswered; told in CONNACK")
    ] = MQTT_RECEIVE_MAXIMUM
    keep_alive_max_ns: Annotated[
        int,
        Setting(
            Duration(0, 65_535 * SECOND_NS),
            "keep_alive_max",
            "longest keep alive of a 5.0 client, also of one that asks for none; 0s: as asked",
        ),
    ] = 0
    session_expiry_max_ns: Annotated[
        int, Setting(Duration(SECOND_NS), "session_expiry_max", "longest a session waits for its client")
    ] = MQTT_SESSION_EXPIRY_S_MAX * SECOND_NS
    queue_messages: Annotated[
        int, Setting(Whole(1, 10_000_000), "", "messages of ordinary topics that wait for one client")
    ] = MQTT_QUEUE_MESSAGES_MAX
    queue_bytes: Annotated[int, Setting(Size(1024, 1 << 40), "queue_size", "and their bytes")] = MQTT_QUEUE_BYTES_MAX
    slow_consumer: Annotated[
        SlowConsumer,
        Setting(
            Choice("disconnect", "drop"),
            "",
            "what a client meets for which more waits: its end, or gaps (QoS 0 always)",
        ),
    ] = "disconnect"

    def __post_init__(self) -> None:
        check(self)


class SealConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the journal becomes Parquet files."""

    enabled: Annotated[bool, Setting(Flag(), "", "turn old journal files into Parquet; needs pyarrow")] = True
    location: Annotated[
        str,
        Setting(Text("a directory or a URI", empty=True), "", "where the files go; <data_dir>/log when not given"),
    ] = ""
    archive: Annotated[
        str,
        Setting(
            Text("a directory or a URI", empty=True), "", "where files go that retention lets go of; none: nowhere"
        ),
    ] = ""
    behind_bytes: Annotated[int, Setting(Size(0), "behind", "newest bytes of the journal that are not sealed yet")] = (
        SEAL_BEHIND_BYTES
    )
    interval_ns: Annotated[int, Setting(Duration(SECOND_NS), "interval", "between looks for something to do")] = (
        5 * SECOND_NS
    )
    share: Annotated[float, Setting(Real(0.01, 1), "", "part of one core it takes while it works")] = SEAL_SHARE

    def __post_init__(self) -> None:
        check(self)


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set for a server process."""

    data_dir: Annotated[str, Setting(Text("a directory"), "", "where everything durable lives")] = "./data"
    journal: Annotated[JournalBackend, Setting(Choice("disk", "memory"), "", "memory keeps nothing over a restart")] = (
        "disk"
    )
    node_id: Annotated[int, Setting(Whole(0, NODE_ID_MAX), "", "part of every message id; unique in a cluster")] = 1
    host: Annotated[str, Setting(Text("a host name or address"), "", "where the doors listen")] = "127.0.0.1"
    native_port: Annotated[int | None, Setting(Port(), "", "the native protocol")] = 7420
    http_port: Annotated[int | None, Setting(Port(), "", "HTTP, WebSocket and the console")] = 8080
    mqtt_port: Annotated[int | None, Setting(Port(), "", "MQTT 3.1.1 and 5")] = 1883
    grpc_port: Annotated[int | None, Setting(Port(), "", "gRPC")] = 9000
    ready_file: Annotated[
        str, Setting(Text("a file name", empty=True), "", "written when every door accepts: addresses, pid, data_dir")
    ] = ""
    drain_timeout_ns: Annotated[
        int, Setting(Duration(), "drain_timeout", "how long a stop waits for work in flight")
    ] = 30 * SECOND_NS
    auto_create: Annotated[bool, Setting(Flag(), "", "topics appear on first use")] = True
    log: LogConfig = LogConfig()
    seal: SealConfig = SealConfig()
    metrics: MetricsConfig = MetricsConfig()
    tracing: TracingConfig = TracingConfig()
    tls: TlsConfig = TlsConfig()
    auth: AuthConfig = AuthConfig()
    http: HttpConfig = HttpConfig()
    mqtt: MqttConfig = MqttConfig()
    namespace_quotas: Annotated[
        str,
        Setting(
            Text("names with a number, such as team-a:1000,team-b:500", empty=True, check=check_namespace_quotas),
            "",
            "messages a minute of namespaces, set at each start; other quotas are set with namespace.config",
        ),
    ] = ""
    topic_templates: Annotated[
        dict[str, Any],
        Setting(
            Plain('topic patterns with settings, such as {"jobs/#": {"lease": "1m"}}'),
            "",
            "what new topics start with whose name matches; the first match counts",
        ),
    ] = {}
    topic_defaults: TopicConfig = TopicConfig()

    def __post_init__(self) -> None:
        check(self)
