"""Where the server's settings come from: defaults, then the file, the environment, the flags; later wins.

    headrace.yaml      log:              key log.level, reported as headrace.yaml:2
                         level: debug
    environment        HEADRACE_LOG__LEVEL=debug
    flag               --log-level debug

YAML is read as a tree of nodes, not of values: every scalar is taken as the text that was written, and the setting
decides what it means. So ``mqtt_port: off`` closes a door and ``30s`` is half a minute, whatever YAML thinks of them,
and each problem can be told with its line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.config.server import ServerConfig
from headrace.config.settings import Assignment, apply, nearest_key, settings_of, takes_mapping, to_plain
from headrace.errors import InvalidArgument
from headrace.limits import CONFIG_FILE_BYTES_MAX, SETTINGS_DEPTH_MAX

__all__ = [
    "Loaded",
    "describe",
    "environment_assignments",
    "load_server_config",
    "parse_assignments",
    "yaml_assignments",
]

PREFIX: Final = "HEADRACE_"
NOT_SETTINGS: Final = frozenset({"CA_FILE", "CONFIG", "NAMESPACE", "SEEDS", "TOKEN", "URL"})
"""Variables of the same prefix that other commands and the tests read."""
DEFAULT_ORIGIN: Final = "default"


class Loaded(NamedTuple):
    """The effective configuration, and for each key where its value came from."""

    config: ServerConfig
    origins: dict[str, str]


def load_server_config(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    more: Iterable[Assignment] = (),
) -> Loaded:
    """The settings of a server process. ``flags`` maps keys to what was given on the command line (None: not given),
    ``more`` is what was given there as ``--set``."""
    assignments: list[Assignment] = []
    if file is not None:
        assignments += yaml_assignments(_read(file), str(file))
    assignments += environment_assignments(environment or {})
    assignments += [Assignment(key, value, flag_name(key)) for key, value in (flags or {}).items() if value is not None]
    assignments += more
    config = apply(ServerConfig(), assignments)
    origins = dict.fromkeys(settings_of(ServerConfig), DEFAULT_ORIGIN)
    origins.update((assignment.key, assignment.where) for assignment in assignments)
    return Loaded(config, origins)


def flag_name(key: str) -> str:
    """How a setting is spelled on the command line."""
    return "--" + key.replace(".", "-").replace("_", "-")


def describe(loaded: Loaded) -> str:
    """The effective configuration as a YAML file, each line with where its value came from."""
    lines = list(_lines(to_plain(loaded.config), "", loaded.origins))
    width = max(len(text) for text, origin in lines if origin)
    return "".join(f"{text.ljust(width)}  # {origin}\n" if origin else f"{text}\n" for text, origin in lines)


def _lines(plain: Mapping[str, Any], prefix: str, origins: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    indent = "  " * prefix.count(".")
    for name, value in plain.items():
        if isinstance(value, dict) and prefix + name not in origins:
            yield f"{indent}{name}:", ""
            yield from _lines(value, f"{prefix}{name}.", origins)
        else:
            yield f"{indent}{name}: {_yaml_scalar(value)}", origins[prefix + name]


def _yaml_scalar(value: object) -> str:
    if isinstance(value, str) and value.replace("_", "").replace(".", "").isalnum():
        return value
    return json.dumps(value, ensure_ascii=False)  # JSON's scalars are YAML's


def parse_assignments(texts: Iterable[str], *, where: str = "--set") -> list[Assignment]:
    """``key=value`` texts of a repeated flag.

    >>> parse_assignments(["retry.max_retries=3"])
    [Assignment(key='retry.max_retries', value='3', where='--set')]
    """
    assignments = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InvalidArgument(f"{where} {text!r}: expected key=value, such as retry.max_retries=3")
        assignments.append(Assignment(key.strip(), value.strip(), where))
    return assignments


def environment_assignments(environment: Mapping[str, str]) -> list[Assignment]:
    """The settings among the variables; an unknown one of our prefix is an error with the variable that was meant."""
    assignments, problems = [], []
    known = settings_of(ServerConfig)
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable.removeprefix(PREFIX) in NOT_SETTINGS:
            continue
        key = variable.removeprefix(PREFIX).lower().replace("__", ".")
        if key in known:
            assignments.append(Assignment(key, environment[variable], f"environment variable {variable}"))
            continue
        meant = nearest_key(key, known)
        hint = f"; did you mean {PREFIX}{meant.upper().replace('.', '__')}?" if meant else ""
        problems.append(f"unknown environment variable {variable}{hint}")
    if problems:
        raise InvalidArgument("\n".join(problems))
    return assignments


def yaml_assignments(text: str, file_name: str) -> list[Assignment]:
    """The settings of a YAML file, each with its line."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        root = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InvalidArgument(f"{file_name}:{line}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidArgument(f"{file_name}: not valid YAML: {str(error).splitlines()[0]}") from None
    if root is None or root.tag == "tag:yaml.org,2002:null":
        return []
    if not isinstance(root, yaml.MappingNode):
        line = root.start_mark.line + 1
        raise InvalidArgument(f"{file_name}:{line}: expected settings such as 'http_port: 8080'")
    return list(_walk(root, "", file_name, 0))


def _walk(node: Any, prefix: str, file_name: str, depth: int) -> Iterator[Assignment]:
    import yaml

    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        where = f"{file_name}:{line}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise InvalidArgument(f"{where}: a key must be a word, such as http_port")
        key = f"{prefix}{key_node.value}"
        if key in seen:
            raise InvalidArgument(f"{where}: {key} is already set in line {seen[key]}")
        seen[key] = line
        if isinstance(value_node, yaml.MappingNode):
            if takes_mapping(settings_of(ServerConfig).get(key)):
                yield Assignment(key, _mapping(value_node, file_name, depth + 1), where)
                continue
            if depth >= SETTINGS_DEPTH_MAX:
                raise InvalidArgument(f"{where}: sections are at most {SETTINGS_DEPTH_MAX} deep")
            yield from _walk(value_node, f"{key}.", file_name, depth + 1)
        elif isinstance(value_node, yaml.ScalarNode):
            value = None if value_node.tag == "tag:yaml.org,2002:null" else value_node.value
            yield Assignment(key, value, where)
        else:
            raise InvalidArgument(f"{where}: {key}: expected one value, not a list")


def _mapping(node: Any, file_name: str, depth: int) -> dict[str, Any]:
    """A mapping that is one setting's value: of texts, and of mappings of texts."""
    import yaml

    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        where = f"{file_name}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode) or key_node.value in found:
            raise InvalidArgument(f"{where}: a key must be a word that is not there yet")
        if depth > SETTINGS_DEPTH_MAX or isinstance(value_node, yaml.SequenceNode):
            raise InvalidArgument(f"{where}: {key_node.value}: expected one value, or settings that are not too deep")
        inner = isinstance(value_node, yaml.MappingNode)
        found[key_node.value] = _mapping(value_node, file_name, depth + 1) if inner else value_node.value
    return found


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(CONFIG_FILE_BYTES_MAX + 1)
        if len(content) > CONFIG_FILE_BYTES_MAX:
            raise InvalidArgument(f"{file}: larger than {CONFIG_FILE_BYTES_MAX} bytes; is this a configuration file?")
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{file}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise InvalidArgument(f"configuration file {file}: {error.strerror}") from None
