"""The names under ``$queue/`` and ``$admin/``, taken apart.

    $queue/<topic>                                   publish to, or consume, the durable queue <topic>
    $queue/<topic>/$group/<group>                    consume in that group
    $queue/<topic>[/$group/<group>]/$ack[/<id>]      settle: $ack $nack $reject $release $extend
    $queue/<topic>[/$group/<group>]/$nack/<id>/<span>      with a delay; $extend/<id>/<span>: for so long
    $queue/<topic>/$id/<id>                          where a 3.1.1 client gets a delivery that it must settle by id
    $admin/queue/create                              $admin/queue/<topic>/config    $admin/queue/<topic>/stats

A topic may have levels; none of them begins with ``$``, so the first that does ends it. Wildcards are refused: a queue
is consumed by its name.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.errors import InvalidArgument
from headrace.ids import parse_id
from headrace.names import check_group_name, check_topic_name

__all__ = ["ADMIN", "QUEUE", "VERBS", "AdminAddress", "QueueAddress", "admin_address", "queue_address"]

QUEUE: Final = "$queue/"
ADMIN: Final = "$admin/"
VERBS: Final = frozenset({"ack", "nack", "reject", "release", "extend"})


class QueueAddress(NamedTuple):
    topic: str
    group: str = ""
    verb: str = ""
    message_id: int = 0
    span: str = ""


class AdminAddress(NamedTuple):
    verb: str
    """create, config or stats"""
    topic: str = ""


def queue_address(name: str) -> QueueAddress:
    """A name under ``$queue/``; raises what is wrong with it.

    >>> queue_address("$queue/orders/eu/$group/billing/$ack/7318624812441698304")
    QueueAddress(topic='orders/eu', group='billing', verb='ack', message_id=7318624812441698304, span='')
    """
    topic, dollar, rest = name[len(QUEUE) :].partition("/$")
    if "+" in topic or "#" in topic:
        raise InvalidArgument(f"{name!r}: a queue is named without wildcards; consume each by its own name")
    check_topic_name(topic)
    group = verb = span = ""
    message_id = 0
    if dollar:
        word, _, rest = rest.partition("/")
        if word == "group":
            group, dollar, rest = rest.partition("/$")
            check_group_name(group)
            word, _, rest = rest.partition("/")
        if dollar:
            if word not in VERBS:
                raise InvalidArgument(
                    f"{name!r}: ${word} is not known here; $group, $ack, $nack, $reject, $release and $extend are"
                )
            verb = word
            rest, slash, span = rest.partition("/")
            message_id = parse_id(rest) if rest or slash else 0
            if slash and verb not in ("nack", "extend"):
                raise InvalidArgument(f"{name!r}: ${verb}/<id> is all; only $nack and $extend take a span after it")
    return QueueAddress(topic, group, verb, message_id, span)


def admin_address(name: str) -> AdminAddress:
    """A name under ``$admin/``; raises what is wrong with it.

    >>> admin_address("$admin/queue/orders/eu/stats")
    AdminAddress(verb='stats', topic='orders/eu')
    """
    area, _, rest = name[len(ADMIN) :].partition("/")
    if area == "queue":
        if rest == "create":
            return AdminAddress("create")
        topic, _, verb = rest.rpartition("/")
        if verb in ("config", "stats") and topic:
            return AdminAddress(verb, check_topic_name(topic))
    raise InvalidArgument(
        f"{name!r}: $admin/queue/create, $admin/queue/<topic>/config and $admin/queue/<topic>/stats are known"
    )
