"""A group's filter: which messages of its topic a group wants.

As a plain dict (what is stored, sent and shown):

    {"topic": "orders/+/eu",                                   an MQTT filter over the topic's name, optional
     "headers": {"region":  {"equals": "eu"},                  "eu" alone is short for {"equals": "eu"}
                 "tier":    {"in": ["gold", "silver"]},
                 "trace":   {"exists": true},                  false: must be absent
                 "sku":     {"prefix": "A-", "exists": true}}, several tests of one header: all must hold
     "key": {"prefix": "user-"}}                               the same four tests on the message's key

Everything given must hold. An absent header satisfies only ``exists: false``. A text value and the bytes of its UTF-8
form are the same value; bytes that are no text are written ``{"base64": "…"}``. An empty filter wants everything.
The topic test is not part of the predicate: a partition has one topic, so it is asked once, by ``matches_topic``.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from headrace.errors import InvalidArgument
from headrace.limits import GROUP_FILTER_TESTS_MAX, GROUP_FILTER_VALUE_BYTES_MAX, GROUP_FILTER_VALUES_MAX
from headrace.routing.topics import matches, topic_filter_fault

__all__ = ["Condition", "GroupFilter", "Predicate", "compile_filter"]

Predicate = Callable[[Mapping[str, str | bytes] | None, bytes | None], bool]
_Test = Callable[[bytes | None], bool]

_TESTS: Final = ("equals", "in", "exists", "prefix")


class Condition(msgspec.Struct, frozen=True):
    """The tests on one header (or on the key); None means that this test is not asked."""

    equals: bytes | None = None
    any_of: tuple[bytes, ...] | None = None
    exists: bool | None = None
    prefix: bytes | None = None


class GroupFilter(msgspec.Struct, frozen=True):
    """A validated filter. Build it with :meth:`from_dict`."""

    topic: str | None = None
    headers: tuple[tuple[str, Condition], ...] = ()
    key: Condition | None = None

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> GroupFilter:
        """Validates; `InvalidArgument` names the place and what would be right.

        >>> GroupFilter.from_dict({"headers": {"region": "eu"}}).to_dict()
        {'headers': {'region': {'equals': 'eu'}}}
        """
        if not isinstance(plain, Mapping):
            raise InvalidArgument(f"filter: a mapping is needed, got {type(plain).__name__}")
        _only(plain, ("topic", "headers", "key"), "filter")
        topic = plain.get("topic")
        if topic is not None:
            if not isinstance(topic, str):
                raise InvalidArgument(f"filter.topic: text is needed, got {topic!r}")
            fault = topic_filter_fault(topic)
            if fault is not None:
                raise InvalidArgument(f"filter.topic {topic!r}: {fault}")
        headers = plain.get("headers")
        if headers is None:
            headers = {}
        if not isinstance(headers, Mapping):
            raise InvalidArgument(f"filter.headers: a mapping of header name to tests is needed, got {headers!r}")
        if len(headers) > GROUP_FILTER_TESTS_MAX:
            raise InvalidArgument(
                f"filter.headers: {len(headers)} headers; at most {GROUP_FILTER_TESTS_MAX} are allowed"
            )
        conditions = []
        for name, tests in headers.items():
            if not isinstance(name, str) or not name:
                raise InvalidArgument(f"filter.headers: {name!r} is no header name")
            conditions.append((name, _condition(tests, f"filter.headers[{name!r}]")))
        key = plain.get("key")
        return cls(topic, tuple(conditions), None if key is None else _condition(key, "filter.key"))

    def to_dict(self) -> dict[str, Any]:
        """The plain form; ``from_dict(f.to_dict()) == f``."""
        plain: dict[str, Any] = {}
        if self.topic is not None:
            plain["topic"] = self.topic
        if self.headers:
            plain["headers"] = {name: _plain_condition(condition) for name, condition in self.headers}
        if self.key is not None:
            plain["key"] = _plain_condition(self.key)
        return plain

    def matches_topic(self, topic: str) -> bool:
        """Whether messages of this topic are wanted at all."""
        return self.topic is None or matches(self.topic, topic)

    def wants_everything(self) -> bool:
        """True when the predicate need not be asked."""
        return not self.headers and self.key is None


def compile_filter(group_filter: GroupFilter) -> Predicate:
    """A function ``(headers, key) -> bool`` for the header and key tests.

    >>> wanted = compile_filter(GroupFilter.from_dict({"headers": {"region": {"in": ["eu", "us"]}}}))
    >>> wanted({"region": "eu"}, None), wanted({"region": b"asia"}, None), wanted(None, None)
    (True, False, False)
    """
    header_tests = tuple((name, _compile_condition(condition)) for name, condition in group_filter.headers)
    key_test = None if group_filter.key is None else _compile_condition(group_filter.key)

    def wanted(headers: Mapping[str, str | bytes] | None, key: bytes | None) -> bool:
        if key_test is not None and not key_test(key or None):
            return False
        for name, test in header_tests:
            value = None if headers is None else headers.get(name)
            if not test(value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value):
                return False
        return True

    return wanted


def _compile_condition(condition: Condition) -> _Test:
    tests: list[_Test] = []
    if condition.exists is not None:
        tests.append((lambda v: v is not None) if condition.exists else (lambda v: v is None))
    if condition.equals is not None:
        equals = condition.equals
        tests.append(lambda v: v == equals)
    if condition.any_of is not None:
        any_of = frozenset(condition.any_of)
        tests.append(lambda v: v in any_of)
    if condition.prefix is not None:
        prefix = condition.prefix
        tests.append(lambda v: v is not None and v.startswith(prefix))
    if len(tests) == 1:
        return tests[0]
    asked = tuple(tests)
    return lambda v: all(test(v) for test in asked)


def _condition(plain: Any, where: str) -> Condition:
    if not isinstance(plain, Mapping) or (len(plain) == 1 and "base64" in plain):
        return Condition(equals=_value(plain, where))
    _only(plain, _TESTS, where)
    if not plain:
        raise InvalidArgument(f"{where}: no test given; one of {', '.join(_TESTS)} is needed")
    exists = plain.get("exists")
    if "exists" in plain and not isinstance(exists, bool):
        raise InvalidArgument(f"{where}.exists: true or false is needed, got {exists!r}")
    if exists is False and len(plain) > 1:
        raise InvalidArgument(f"{where}: exists false cannot hold together with another test of the same value")
    any_of: tuple[bytes, ...] | None = None
    if "in" in plain:
        values = plain["in"]
        if not isinstance(values, list | tuple) or not values:
            raise InvalidArgument(f"{where}.in: a list of at least one value is needed, got {values!r}")
        if len(values) > GROUP_FILTER_VALUES_MAX:
            raise InvalidArgument(f"{where}.in: {len(values)} values; at most {GROUP_FILTER_VALUES_MAX} are allowed")
        any_of = tuple(_value(value, f"{where}.in") for value in values)
    return Condition(
        equals=_value(plain["equals"], f"{where}.equals") if "equals" in plain else None,
        any_of=any_of,
        exists=exists,
        prefix=_value(plain["prefix"], f"{where}.prefix") if "prefix" in plain else None,
    )


def _value(plain: Any, where: str) -> bytes:
    if isinstance(plain, str):
        try:
            value = plain.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"{where}: {plain!r} holds a lone surrogate, which UTF-8 cannot spell") from None
    elif isinstance(plain, bytes):
        value = plain
    elif isinstance(plain, Mapping) and len(plain) == 1 and isinstance(plain.get("base64"), str):
        try:
            value = binascii.a2b_base64(plain["base64"], strict_mode=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidArgument(f"{where}: {plain['base64']!r} is not base64 ({error})") from None
    else:
        raise InvalidArgument(f"{where}: text, bytes or {{'base64': text}} is needed, got {plain!r}")
    if len(value) > GROUP_FILTER_VALUE_BYTES_MAX:
        raise InvalidArgument(f"{where}: {len(value)} bytes; at most {GROUP_FILTER_VALUE_BYTES_MAX} are allowed")
    return value


def _plain_condition(condition: Condition) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    if condition.equals is not None:
        plain["equals"] = _plain_value(condition.equals)
    if condition.any_of is not None:
        plain["in"] = [_plain_value(value) for value in condition.any_of]
    if condition.exists is not None:
        plain["exists"] = condition.exists
    if condition.prefix is not None:
        plain["prefix"] = _plain_value(condition.prefix)
    return plain


def _plain_value(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": binascii.b2a_base64(value, newline=False).decode()}


def _only(plain: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in plain:
        if name not in known:
            raise InvalidArgument(f"{where}: unknown field {name!r}; known are {', '.join(known)}")
