"""Topic names and topic filters: which are well formed, which match, which covers which.

A topic name is a list of levels joined by ``/``. A topic filter is the same, with two wildcards:

    +   exactly one level, whatever it holds (an empty level too); must fill its level       [MQTT-4.7.1-2]
    #   this level's parent and everything below; must be the last level and fill it         [MQTT-4.7.1-1]

A wildcard in the first level never reaches a name that begins with ``$``                    [MQTT-4.7.2-1].
Names are compared character by character; nothing is normalised                             [MQTT-4.7.3-4].
``$share/<group>/<filter>`` is a subscription by a group of clients; what matches is the filter after it.
The names of durable topics are stricter and live in ``headrace.names``.

Faults are returned as text rather than raised: a protocol door turns them into its own reason code, and
``check_…`` raises for everyone else. Access rules never interpolate names that a client chose; they compare filters
with :func:`is_subset`, because "does this filter match that pattern as if it were a name" lets ``#`` through.
"""

from __future__ import annotations

from headrace.errors import InvalidArgument
from headrace.limits import TOPIC_BYTES_MAX, TOPIC_LEVELS_MAX

__all__ = [
    "check_topic",
    "check_topic_filter",
    "has_control_character",
    "is_subset",
    "matches",
    "share_fault",
    "split_share",
    "topic_filter_fault",
    "topic_name_fault",
]

SHARE_PREFIX = "$share/"


def has_control_character(text: str) -> bool:
    """C0 and C1 control characters and DEL; never legal in a name (they end up in log lines and access rules)."""
    if text.isprintable():
        return False
    return any(c < " " or "\x7f" <= c <= "\x9f" for c in text)


def _text_fault(text: str, levels_max: int) -> str | None:
    if not text:
        return "it is empty; at least one character is needed [MQTT-4.7.3-1]"
    if "\x00" in text:
        return "it holds the null character [MQTT-4.7.3-2]"
    if has_control_character(text):
        return "it holds a control character"
    try:
        size_bytes = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        return "it holds a lone surrogate, which UTF-8 cannot spell [MQTT-1.5.4-1]"
    if size_bytes > TOPIC_BYTES_MAX:
        return f"it is {size_bytes} bytes long; at most {TOPIC_BYTES_MAX} are allowed [MQTT-4.7.3-3]"
    if len(text) >= levels_max and text.count("/") >= levels_max:
        return f"it has {text.count('/') + 1} levels; at most {levels_max} are allowed"
    return None


def topic_name_fault(topic: str, levels_max: int = TOPIC_LEVELS_MAX) -> str | None:
    """What is wrong with a topic name, or None."""
    if "+" in topic or "#" in topic:
        return "it holds a wildcard; + and # belong in filters only [MQTT-4.7.0-1]"
    return _text_fault(topic, levels_max)


def topic_filter_fault(topic_filter: str, levels_max: int = TOPIC_LEVELS_MAX) -> str | None:
    """What is wrong with a topic filter (without a ``$share`` prefix), or None."""
    fault = _text_fault(topic_filter, levels_max)
    if fault is not None:
        return fault
    if "#" in topic_filter:
        if topic_filter.index("#") != len(topic_filter) - 1:
            return "# may only be its last character [MQTT-4.7.1-1]"
        if len(topic_filter) > 1 and topic_filter[-2] != "/":
            return "# must fill its whole level [MQTT-4.7.1-1]"
    if "+" in topic_filter:
        for level in topic_filter.split("/"):
            if "+" in level and level != "+":
                return f"+ must fill its whole level, here it is in {level!r} [MQTT-4.7.1-2]"
    return None


def split_share(topic_filter: str) -> tuple[str | None, str]:
    """``("g", "a/+")`` for ``$share/g/a/+``; ``(None, filter)`` for an ordinary one.

    The filter must be well formed (:func:`share_fault` is None).
    """
    if not topic_filter.startswith(SHARE_PREFIX):
        return None, topic_filter
    group, _, rest = topic_filter[len(SHARE_PREFIX) :].partition("/")
    return group, rest


def share_fault(topic_filter: str, levels_max: int = TOPIC_LEVELS_MAX) -> str | None:
    """What is wrong with a subscription's filter, ``$share`` prefix included, or None."""
    if topic_filter == "$share" or topic_filter.startswith(SHARE_PREFIX):
        group, slash, rest = topic_filter[len(SHARE_PREFIX) :].partition("/")
        if not group:
            return "$share/ must be followed by a group name [MQTT-4.8.2-1]"
        if "+" in group or "#" in group:
            return f"the group name {group!r} holds a wildcard [MQTT-4.8.2-2]"
        if not slash or not rest:
            return "the group name must be followed by / and a topic filter [MQTT-4.8.2-2]"
        if has_control_character(group):
            return "the group name holds a control character"
        topic_filter = rest
    return topic_filter_fault(topic_filter, levels_max)


def check_topic(topic: str) -> str:
    """The topic, or `InvalidArgument` that says what is wrong.

    >>> check_topic("sensors/attic/temperature")
    'sensors/attic/temperature'
    """
    fault = topic_name_fault(topic)
    if fault is not None:
        raise InvalidArgument(f"topic {topic!r}: {fault}")
    return topic


def check_topic_filter(topic_filter: str) -> str:
    """The filter (``$share/…`` allowed), or `InvalidArgument` that says what is wrong.

    >>> check_topic_filter("$share/workers/jobs/#")
    '$share/workers/jobs/#'
    """
    fault = share_fault(topic_filter)
    if fault is not None:
        raise InvalidArgument(f"topic filter {topic_filter!r}: {fault}")
    return topic_filter


def matches(topic_filter: str, topic: str) -> bool:
    """Whether one well-formed filter (without ``$share``) matches one well-formed name.

    >>> matches("sport/#", "sport"), matches("#", "$SYS/uptime")
    (True, False)
    """
    if topic_filter == topic:
        return True
    if topic[0] == "$" and topic_filter[0] in "+#":  # [MQTT-4.7.2-1]
        return False
    wanted = topic_filter.split("/")
    levels = topic.split("/")
    for index, want in enumerate(wanted):
        if want == "#":
            return True
        if index == len(levels) or (want != "+" and want != levels[index]):
            return False
    return len(wanted) == len(levels)


def is_subset(topic_filter: str, allowed: str) -> bool:
    """Whether every name that ``topic_filter`` can ever match is matched by ``allowed`` as well.

    ``topic_filter`` may be a name, a filter or a ``$share/…`` subscription (judged by the filter behind it).

    >>> is_subset("orders/+/eu", "orders/#"), is_subset("#", "orders/#"), is_subset("$share/g/secret/#", "orders/#")
    (True, False, False)
    """
    asked = split_share(topic_filter)[1].split("/")
    cover = ["#"] if allowed == "+/#" else allowed.split("/")  # the same set: every name has a first level
    if asked[0][:1] == "$" and cover[0] in ("+", "#"):  # what `allowed` does not reach by the $-rule
        return False
    for index, level in enumerate(cover):
        if level == "#":
            return True
        if index == len(asked):
            return False
        ask = asked[index]
        if ask == "#" or (level != "+" and level != ask):
            return False
    return len(asked) == len(cover)
