"""Writes the pages of the reference that are tables in the code: ``python -m tools.reference_pages``.

A test compares them, so that they cannot fall behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace import errors
from headrace.config import GroupConfig, NamespaceConfig, ServerConfig, TopicConfig, settings_of, to_plain
from tools.http_page import http_page
from tools.metrics_page import metrics_page

PROJECT = Path(__file__).parents[1]
REFERENCE = PROJECT / "docs" / "reference"
FAMILIES = {
    errors.RequestError: "fix the request",
    errors.ConnectionFault: "open another connection",
    errors.RetryLater: "try again later",
    errors.ShardStopped: "the shard is stopped",
}

CONFIGURATION_HEAD = """\
# Configuration

Written by `tools/reference_pages.py` from the code.

Spans of time are written with a unit: `500ms`, `30s`, `5m`, `1h30m`, `7d`. Sizes too: `1MiB` is 1,048,576 bytes, `1MB`
a million. A limit is switched off with `none`.
"""

ERRORS_HEAD = """\
# Errors

Written by `tools/reference_pages.py` from the code.

Every refusal has a stable code and a message that says what was wrong, with the value, and what would be right.
What to do next is told by the family. In Python a code is a class of `headrace.errors`; natively a number.

`closed` also answers a request that a fault of the server's ended: the message says "internal error", and whether it
happened is unknown; over HTTP the status is 500. The server's log has it once (`a request failed`). The connection and
its other requests go on.
"""


SERVER_HEAD = """
## Server

From the file, the environment and flags. `log.level` is `HEADRACE_LOG__LEVEL` and `--log-level`.

"""

TOPIC_HEAD = """
## Topic

Given when a topic is created or changed. In the server's settings, under `topic_defaults`, they are the defaults of
topics that do not say otherwise.

"""

GROUP_HEAD = """
## Group

What a group does differently from its topic; what is not given is as the topic's.

"""


NAMESPACE_HEAD = """
## Namespace

Quotas and limits of a tenant, changed at run time; what is not given is without limit.

"""


def configuration_page() -> str:
    server, topic, group = table(ServerConfig, leave_out="topic_defaults."), table(TopicConfig), table(GroupConfig)
    space = table(NamespaceConfig)
    return "".join(
        [CONFIGURATION_HEAD, SERVER_HEAD, *server, TOPIC_HEAD, *topic, GROUP_HEAD, *group, NAMESPACE_HEAD, *space]
    )


def table(config_type: type[msgspec.Struct], leave_out: str = "\0") -> Iterator[str]:
    plain = to_plain(config_type())
    yield "| Key | Default | What | Values |\n|---|---|---|---|\n"
    for key, setting in settings_of(config_type).items():
        if key.startswith(leave_out):
            continue
        value: object = plain
        for name in key.split("."):
            value = value[name]  # type: ignore[index]
        default = "" if value is None else f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"
        yield f"| `{key}` | {default} | {setting.help} | {setting.kind.expected} |\n"


EXTRA_DOORS = ("http_port", "grpc_port")
"""Naming one asks for it, and it may not be installed."""
EXAMPLE_HEAD = """\
# Every setting of a server with its default: as it stands, this file changes nothing. Keep the lines you change.
# Written by tools/reference_pages.py from the code; what values may be is in docs/reference/configuration.md.
#
#     headrace serve --config headrace.yaml --print-config     shows what is in force, and where each value comes from
#
# The environment comes after the file (HEADRACE_LOG__LEVEL=warning), flags come last (--log-level warning).
"""


def example_file() -> str:
    """``examples/headrace.yaml``."""
    tree: dict[str, Any] = {}
    for key, setting in settings_of(ServerConfig).items():
        *parents, name = key.split(".")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = setting
    return EXAMPLE_HEAD + "".join(_example_lines(tree, to_plain(ServerConfig()), ""))


def _example_lines(tree: dict[str, Any], plain: dict[str, Any], indent: str) -> Iterator[str]:
    """Settings, then sections."""
    for name, setting in tree.items():
        if not isinstance(setting, dict):
            says = f"{'# ' * (name in EXTRA_DOORS)}{name}: {_as_yaml(plain[name])}"
            yield f"\n{indent}# {setting.help}: {setting.kind.expected}\n{indent}{says}\n"
    for name, section in tree.items():
        if isinstance(section, dict):
            yield f"\n{indent}{name}:\n"
            yield from _example_lines(section, plain[name], indent + "  ")


def _as_yaml(value: object) -> str:
    if value is None:
        return '""'
    text = msgspec.json.encode(value).decode()
    return text[1:-1] if text.startswith('"') and len(text) > 2 and not set(text) & set("#:*&!%@`{}[]") else text


def errors_page() -> str:
    rows = [
        f"| `{kind.code}` | {kind.__name__} | {family(kind)} "
        f"| {row.http} | {row.grpc} | 0x{row.mqtt:02X} | {row.native} |\n"
        for kind, row in errors.ROWS.items()
    ]
    head = "\n| Code | Class | Do | HTTP | gRPC | MQTT 5 | Native |\n|---|---|---|---|---|---|---|\n"
    return ERRORS_HEAD + head + "".join(rows)


def family(kind: type[errors.HeadraceError]) -> str:
    return next(text for root, text in FAMILIES.items() if issubclass(kind, root))


EXAMPLE = PROJECT / "examples" / "headrace.yaml"
PAGES = {
    "configuration.md": configuration_page,
    "errors.md": errors_page,
    "http.md": http_page,
    "metrics.md": metrics_page,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page())
    EXAMPLE.write_text(example_file())
