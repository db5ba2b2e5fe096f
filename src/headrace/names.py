"""Names of namespaces, topics, groups: what is allowed, and the reserved prefix of dead letters.

A name is 1 to 255 bytes of UTF-8 without control characters. It may have levels, separated by ``/``; no level starts
with ``+``, ``#`` or ``$``, which MQTT gives a meaning. Names never become file names.
"""

from __future__ import annotations

from typing import Final

from headrace.errors import InvalidArgument
from headrace.limits import NAME_BYTES_MAX

__all__ = [
    "DEAD_LETTERS_PREFIX",
    "DEFAULT_GROUP",
    "DEFAULT_NAMESPACE",
    "check_consumer_name",
    "check_group_name",
    "check_namespace_name",
    "check_topic_name",
    "dead_letters_topic",
]

DEFAULT_NAMESPACE: Final = "default"
DEFAULT_GROUP: Final = "default"
"""Every topic has this group from its creation."""
DEAD_LETTERS_PREFIX: Final = "dlq/"
"""Topics under it belong to the topic named after it."""

_LEVEL_STARTS_REFUSED: Final = ("+", "#", "$")
_SHOWN_CHARACTERS: Final = 60


def check_topic_name(name: object) -> str:
    """The name, or InvalidArgument that says what is wrong with it.

    >>> check_topic_name("orders/eu")
    'orders/eu'
    """
    return _check("topic", name)


def check_group_name(name: object) -> str:
    """As ``check_topic_name``, for a consumer group."""
    return _check("group", name)


def check_consumer_name(name: object) -> str:
    """As ``check_topic_name``, for a consumer."""
    return _check("consumer", name)


def check_namespace_name(name: object) -> str:
    """As ``check_topic_name``, for a namespace."""
    return _check("namespace", name)


def dead_letters_topic(topic: str) -> str:
    """Where the dead letters of a topic go when its configuration names no other topic.

    >>> dead_letters_topic("orders")
    'dlq/orders'
    """
    name = DEAD_LETTERS_PREFIX + topic
    if len(name.encode()) > NAME_BYTES_MAX:
        raise InvalidArgument(
            f"topic name {_shown(topic)} is too long for its dead-letter topic {DEAD_LETTERS_PREFIX}…: shorten it to "
            f"{NAME_BYTES_MAX - len(DEAD_LETTERS_PREFIX)} bytes, set dead_letters.topic or dead_letters.enabled=false"
        )
    return name


def _check(what: str, name: object) -> str:
    if not isinstance(name, str):
        raise InvalidArgument(f"{what} name {_shown(name)}: must be text, not {type(name).__name__}")
    if not name:
        raise InvalidArgument(f"{what} name is empty: must be 1 to {NAME_BYTES_MAX} bytes")
    try:
        size_bytes = len(name) if name.isascii() else len(name.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} name {_shown(name)}: must be valid UTF-8, and holds a lone surrogate") from None
    if size_bytes > NAME_BYTES_MAX:
        raise InvalidArgument(
            f"{what} name {_shown(name)} has {size_bytes} bytes: at most {NAME_BYTES_MAX} are allowed"
        )
    if not name.isprintable():
        for place, character in enumerate(name):
            if character < " " or "\x7f" <= character <= "\x9f":
                raise InvalidArgument(
                    f"{what} name {_shown(name)}: control character U+{ord(character):04X} at place {place}"
                )
    if name[0] in _LEVEL_STARTS_REFUSED or "/+" in name or "/#" in name or "/$" in name:
        level = next(level for level in name.split("/") if level.startswith(_LEVEL_STARTS_REFUSED))
        raise InvalidArgument(f"{what} name {_shown(name)}: level {_shown(level)} must not start with +, # or $")
    return name


def _shown(name: object) -> str:
    text = ascii(name)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
