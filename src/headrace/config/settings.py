"""Settings by their dotted keys: which there are, how a new value gets into a frozen struct, how a struct is shown.

A configuration struct annotates each field with ``Annotated[type, Setting(kind, key, help)]``; a field that is itself
such a struct is a section. Everything that comes from outside (a file, the environment, a flag, ``--set``, JSON) is
turned into assignments ``key = value`` with the place they came from, and goes through ``apply``: one place that knows
unknown keys, nearest names and wrong values, and reports all of them at once.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from headrace.config.kinds import Kind, Optional, Plain, shown
from headrace.errors import InvalidArgument
from headrace.limits import SETTING_PROBLEMS_SHOWN_MAX, SETTINGS_DEPTH_MAX

__all__ = [
    "Assignment",
    "KnownSetting",
    "Setting",
    "apply",
    "check",
    "differences",
    "from_plain",
    "nearest_key",
    "settings_of",
    "takes_mapping",
    "to_plain",
    "with_settings",
]

Config = TypeVar("Config", bound=msgspec.Struct)

OTHER_NAMES = {
    "ack_timeout": "lease",
    "default_ttl": "message_ttl",
    "delivery_timeout": "lease",
    "dlq_enabled": "dead_letters.enabled",
    "dlq_topic": "dead_letters.topic",
    "max_attempts": "retry.max_retries",
    "max_queue_depth": "max_depth",
    "max_size": "max_depth",
    "ttl": "message_ttl",
    "visibility_timeout": "lease",
}
"""What other systems call a setting of ours; used for the hint only."""


class Setting(NamedTuple):
    """What a field of a configuration struct is to people. An empty key: the field's own name."""

    kind: Kind
    key: str = ""
    help: str = ""


class KnownSetting(NamedTuple):
    """One setting of a struct, found by its whole key."""

    key: str
    path: tuple[str, ...]
    kind: Kind
    help: str


class Assignment(NamedTuple):
    """``key = value``, and where that was said."""

    key: str
    value: object
    where: str = ""


@cache
def settings_of(config_type: type[msgspec.Struct]) -> dict[str, KnownSetting]:
    """Every setting of a configuration struct by its dotted key, in the order of its fields."""
    found: dict[str, KnownSetting] = {}
    hints = typing.get_type_hints(config_type, include_extras=True)
    for attribute in config_type.__struct_fields__:
        hint = hints[attribute]
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            for inner in settings_of(hint).values():
                key = f"{attribute}.{inner.key}"
                found[key] = KnownSetting(key, (attribute, *inner.path), inner.kind, inner.help)
            continue
        if typing.get_origin(hint) is not Annotated:
            raise TypeError(f"{config_type.__name__}.{attribute} is annotated with no Setting")
        setting = next(extra for extra in hint.__metadata__ if isinstance(extra, Setting))
        key = setting.key or attribute
        found[key] = KnownSetting(key, (attribute,), setting.kind, setting.help)
    return found


def apply(config: Config, assignments: Iterable[Assignment]) -> Config:
    """A new configuration with the assignments made in turn; InvalidArgument names every problem, one a line."""
    known = settings_of(type(config))
    problems: list[str] = []
    changes: dict[tuple[str, ...], Any] = {}
    for key, value, where in assignments:
        place = f"{where}: " if where else ""
        setting = known.get(key)
        if setting is None:
            problems.append(place + _unknown(key, known))
            continue
        try:
            changes[setting.path] = setting.kind.parse(value)
        except InvalidArgument as refused:
            problems.append(f"{place}{key}: {refused.message}")
    if not problems:
        try:
            return _replaced(config, changes)
        except InvalidArgument as refused:
            problems.append(refused.message)
    left_out = len(problems) - SETTING_PROBLEMS_SHOWN_MAX
    if left_out > 0:
        problems[SETTING_PROBLEMS_SHOWN_MAX:] = [f"and {left_out} more"]
    raise InvalidArgument("\n".join(problems))


def with_settings(config: Config, given: Mapping[str, object], *, where: str = "") -> Config:
    """``apply`` for a mapping: nested, dotted or mixed.

    >>> from headrace.config import TopicConfig
    >>> with_settings(TopicConfig(), {"retry.max_retries": "3", "dead_letters": {"enabled": False}}).retry.max_retries
    3
    """
    return apply(config, _flat(given, settings_of(type(config)), where, "", 0))


def from_plain(config_type: type[Config], plain: Mapping[str, object]) -> Config:
    """The configuration ``to_plain`` described; what it leaves out has its default."""
    return with_settings(config_type(), plain)


def to_plain(config: msgspec.Struct, *, changed_only: bool = False) -> dict[str, Any]:
    """The configuration as people write it: nested mappings of text, numbers and booleans, ready for JSON or YAML."""
    defaults = type(config)() if changed_only else None
    plain: dict[str, Any] = {}
    for key, setting in settings_of(type(config)).items():
        held = _held(config, setting.path)
        if defaults is not None and held == _held(defaults, setting.path):
            continue
        *sections, name = key.split(".")
        inner = plain
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = setting.kind.format(held)
    return plain


def differences(one: Config, other: Config) -> list[tuple[str, Any, Any]]:
    """(key, one's value, the other's value) of every setting in which they differ, as people write them."""
    return [
        (key, setting.kind.format(a), setting.kind.format(b))
        for key, setting in settings_of(type(one)).items()
        if (a := _held(one, setting.path)) != (b := _held(other, setting.path))
    ]


def check(config: msgspec.Struct) -> None:
    """InvalidArgument when a value given in Python is not one its setting may have; for ``__post_init__``."""
    for setting in settings_of(type(config)).values():
        if len(setting.path) == 1 and not setting.kind.fits(held := _held(config, setting.path)):
            raise InvalidArgument(f"{setting.key}: {shown(held)} is not valid; expected {setting.kind.expected}")


def nearest_key(key: str, known: Iterable[str]) -> str | None:
    """The known key that was probably meant."""
    from difflib import get_close_matches

    names = list(known)
    word = key.lower().replace("-", "_")
    if word in names:
        return word
    meant = OTHER_NAMES.get(word.rpartition(".")[2], "")
    for name in names:
        if meant and (name == meant or name.endswith(f".{meant}")):
            return name
    if close := get_close_matches(word, names, n=1, cutoff=0.7):
        return close[0]
    last_words = {name.rpartition(".")[2]: name for name in reversed(names)}
    if close := get_close_matches(word.rpartition(".")[2], last_words, n=1, cutoff=0.7):
        return last_words[close[0]]
    close = get_close_matches(word, names, n=1, cutoff=0.5)
    return close[0] if close else None


def _unknown(key: str, known: Mapping[str, KnownSetting]) -> str:
    inside = [name for name in known if name.startswith(f"{key}.")]
    if inside:
        return f"{key} is a section, not a setting; its keys are {', '.join(inside)}"
    if (outer := key.rpartition(".")[0]) in known:
        return f"unknown key {shown(key)}: {outer} is a setting and has no keys of its own"
    if meant := nearest_key(key, known):
        return f"unknown key {shown(key)}; did you mean {meant!r}?"
    sections = dict.fromkeys(name.partition(".")[0] for name in known)
    return f"unknown key {shown(key)}; known are {', '.join(sections)}"


def _flat(
    given: Mapping[str, object], known: Mapping[str, KnownSetting], where: str, prefix: str, depth: int
) -> Iterator[Assignment]:
    for name, value in given.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and depth < SETTINGS_DEPTH_MAX and not takes_mapping(known.get(key)):
            yield from _flat(value, known, where, f"{key}.", depth + 1)
        else:
            yield Assignment(key, value, where)


def takes_mapping(setting: KnownSetting | None) -> bool:
    """Whether the value of a setting is itself a mapping, whose keys are not settings."""
    if setting is None:
        return False
    kind = setting.kind.kind if isinstance(setting.kind, Optional) else setting.kind
    return isinstance(kind, Plain)


def _held(config: msgspec.Struct, path: tuple[str, ...]) -> Any:
    held: Any = config
    for attribute in path:
        held = getattr(held, attribute)
    return held


def _replaced(config: Config, changes: Mapping[tuple[str, ...], Any]) -> Config:
    fields: dict[str, Any] = {}
    sections: dict[str, dict[tuple[str, ...], Any]] = {}
    for (attribute, *rest), value in changes.items():
        if rest:
            sections.setdefault(attribute, {})[tuple(rest)] = value
        else:
            fields[attribute] = value
    for attribute, inner in sections.items():
        fields[attribute] = _replaced(getattr(config, attribute), inner)
    return msgspec.structs.replace(config, **fields)
