"""JSON schema, the part of it that payloads are checked with, as plain Python: compiled once, asked for each value.

Known: type, enum, const, required, properties, additionalProperties, patternProperties, minProperties, maxProperties,
items, minItems, maxItems, uniqueItems, minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf, minLength,
maxLength, pattern, format (date-time, date, uuid, email), allOf, anyOf, oneOf, not, $ref into $defs. Another keyword
that would restrict something is refused when the schema is read: a check that is silently left out is none.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from headrace.errors import InvalidArgument

__all__ = ["Problem", "compiled"]


class Problem(NamedTuple):
    """What is wrong: where in the value, by which rule, in words without the value's own content."""

    path: str
    rule: str
    text: str


Check = Callable[[Any, str], Iterator[Problem]]
_TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
    ),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
_SAYS_NOTHING: Final = {
    "$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "deprecated",
    "readOnly", "writeOnly",
}  # fmt: skip


def compiled(schema: Any) -> Callable[[Any], list[Problem]]:
    """A schema as a function from a value to what is wrong with it.

    >>> check = compiled({"type": "object", "required": ["sum"], "properties": {"sum": {"minimum": 0}}})
    >>> check({"sum": 3}), [problem.path for problem in check({"sum": -1})], check([])[0].text
    ([], ['$.sum'], 'is an array, must be object')
    """
    check = _Compiler(schema).check(schema, "schema")
    return lambda value: list(check(value, "$"))


class _Compiler:
    def __init__(self, root: Any) -> None:
        self.root = root
        self.known: dict[str, Check] = {}

    def check(self, schema: Any, where: str) -> Check:
        if schema is True:
            return lambda value, path: iter(())
        if schema is False:
            return lambda value, path: iter([Problem(path, "false", "must not be there")])
        if not isinstance(schema, Mapping):
            raise InvalidArgument(f"{where}: {schema!r} is no schema; a schema is an object, true or false")
        checks = [self._rule(name, schema, f"{where}.{name}") for name in schema if name not in _SAYS_NOTHING]
        kept = [check for check in checks if check is not None]

        def run(value: Any, path: str) -> Iterator[Problem]:
            for check in kept:
                yield from check(value, path)

        return run

    def _rule(self, name: str, schema: Mapping[str, Any], where: str) -> Check | None:
        if name == "additionalProperties":
            return self._additional(schema, where)
        build = getattr(self, "_" + name.lstrip("$").lower() + "_rule", None)
        if build is not None:
            return build(schema[name], where)  # type: ignore[no-any-return]
        simple = _SIMPLE.get(name)
        if simple is None:
            raise InvalidArgument(
                f"{where}: this keyword is not checked here, and leaving it out would let wrong payloads pass"
            )
        kind, test, text = simple
        limit = schema[name]
        if (isinstance(limit, bool) and name != "uniqueItems") or not isinstance(limit, int | float):
            raise InvalidArgument(f"{where}: {limit!r} must be a number")

        def run(value: Any, path: str) -> Iterator[Problem]:
            if _TYPES[kind](value) and not test(value, limit):
                yield Problem(path, name, text.format(limit))

        return run

    # -- one builder a keyword -----------------------------------------------------------------------------------------

    def _type_rule(self, wanted: Any, where: str) -> Check:
        names = [wanted] if isinstance(wanted, str) else list(wanted)
        for name in names:
            if name not in _TYPES:
                raise InvalidArgument(f"{where}: there is no type {name!r}; there are {', '.join(_TYPES)}")
        tests = [_TYPES[name] for name in names]

        def run(value: Any, path: str) -> Iterator[Problem]:
            if not any(test(value) for test in tests):
                yield Problem(path, "type", f"is {_named(value)}, must be {' or '.join(names)}")

        return run

    def _enum_rule(self, values: Any, where: str) -> Check:
        if not isinstance(values, list) or not values:
            raise InvalidArgument(f"{where}: must be a list of values")
        known = {_frozen(value) for value in values}
        return lambda value, path: iter(
            () if _frozen(value) in known else [Problem(path, "enum", f"must be one of {json.dumps(values)}")]
        )

    def _const_rule(self, only: Any, where: str) -> Check:
        return self._enum_rule([only], where)

    def _required_rule(self, names: Any, where: str) -> Check:
        if not isinstance(names, list):
            raise InvalidArgument(f"{where}: must be a list of names")

        def run(value: Any, path: str) -> Iterator[Problem]:
            if isinstance(value, dict):
                for name in names:
                    if name not in value:
                        yield Problem(f"{path}.{name}", "required", "is missing")

        return run

    def _properties_rule(self, properties: Mapping[str, Any], where: str) -> Check:
        checks = {name: self.check(schema, f"{where}.{name}") for name, schema in properties.items()}

        def run(value: Any, path: str) -> Iterator[Problem]:
            if isinstance(value, dict):
                for name, check in checks.items():
                    if name in value:
                        yield from check(value[name], f"{path}.{name}")

        return run

    def _patternproperties_rule(self, properties: Mapping[str, Any], where: str) -> Check:
        checks = [(_pattern(name, where), self.check(schema, where)) for name, schema in properties.items()]

        def run(value: Any, path: str) -> Iterator[Problem]:
            if isinstance(value, dict):
                for pattern, check in checks:
                    for name in value:
                        if pattern.search(name):
                            yield from check(value[name], f"{path}.{name}")

        return run

    def _additional(self, schema: Mapping[str, Any], where: str) -> Check:
        known = set(schema.get("properties", {}))
        patterns = [_pattern(name, where) for name in schema.get("patternProperties", {})]
        rest = schema["additionalProperties"]
        check = self.check(rest, where)

        def run(value: Any, path: str) -> Iterator[Problem]:
            if isinstance(value, dict):
                for name in value:
                    if name not in known and not any(pattern.search(name) for pattern in patterns):
                        if rest is False:
                            yield Problem(path, "additionalProperties", "has a property that is not in the schema")
                            return
                        yield from check(value[name], f"{path}.*")

        return run

    def _items_rule(self, schema: Any, where: str) -> Check:
        check = self.check(schema, where)

        def run(value: Any, path: str) -> Iterator[Problem]:
            if isinstance(value, list):
                for each in value:
                    yield from check(each, f"{path}[]")

        return run

    def _uniqueitems_rule(self, wanted: Any, where: str) -> Check | None:
        if not wanted:
            return None
        return lambda value, path: iter(
            [Problem(path, "uniqueItems", "has an item twice")]
            if isinstance(value, list) and len({_frozen(each) for each in value}) < len(value)
            else ()
        )

    def _pattern_rule(self, text: Any, where: str) -> Check:
        pattern = _pattern(text, where)
        return lambda value, path: iter(
            [Problem(path, "pattern", f"does not match {text}")]
            if isinstance(value, str) and not pattern.search(value)
            else ()
        )

    def _format_rule(self, name: Any, where: str) -> Check:
        test = _FORMATS.get(name)
        if test is None:
            raise InvalidArgument(f"{where}: format {name!r} is not checked here; there are {', '.join(_FORMATS)}")

        def run(value: Any, path: str) -> Iterator[Problem]:
            if isinstance(value, str):
                try:
                    fine = test(value)
                except ValueError:
                    fine = False
                if not fine:
                    yield Problem(path, "format", f"is no {name}")

        return run

    def _several(self, schemas: Any, where: str) -> list[Check]:
        if not isinstance(schemas, list) or not schemas:
            raise InvalidArgument(f"{where}: must be a list of schemas")
        return [self.check(schema, where) for schema in schemas]

    def _allof_rule(self, schemas: Any, where: str) -> Check:
        checks = self._several(schemas, where)

        def run(value: Any, path: str) -> Iterator[Problem]:
            for check in checks:
                yield from check(value, path)

        return run

    def _anyof_rule(self, schemas: Any, where: str) -> Check:
        checks = self._several(schemas, where)
        return lambda value, path: iter(
            ()
            if any(next(check(value, path), None) is None for check in checks)
            else [Problem(path, "anyOf", "is as none of the schemas wants it")]
        )

    def _oneof_rule(self, schemas: Any, where: str) -> Check:
        checks = self._several(schemas, where)

        def run(value: Any, path: str) -> Iterator[Problem]:
            fits = sum(next(check(value, path), None) is None for check in checks)
            if fits != 1:
                yield Problem(path, "oneOf", f"fits {fits} of the schemas, must fit one")

        return run

    def _not_rule(self, schema: Any, where: str) -> Check:
        check = self.check(schema, where)
        return lambda value, path: iter(
            [Problem(path, "not", "is as it must not be")] if next(check(value, path), None) is None else ()
        )

    def _ref_rule(self, reference: Any, where: str) -> Check:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise InvalidArgument(f"{where}: {reference!r} must point into this schema, as #/$defs/address does")
        if reference not in self.known:
            found = self.root
            for part in reference.lstrip("#/").split("/") if reference != "#" else []:
                if not isinstance(found, Mapping) or part not in found:
                    raise InvalidArgument(f"{where}: {reference!r} points at nothing")
                found = found[part]
            # Known before it is built: a schema may speak of itself.
            self.known[reference] = _never
            self.known[reference] = self.check(found, reference)

        def run(value: Any, path: str) -> Iterator[Problem]:
            yield from self.known[reference](value, path)

        return run


def _never(value: Any, path: str) -> Iterator[Problem]:
    raise InvalidArgument("a schema that is nothing but itself")


_SIMPLE: Final[dict[str, tuple[str, Callable[[Any, Any], bool], str]]] = {
    "minimum": ("number", lambda value, limit: value >= limit, "is below {}"),
    "maximum": ("number", lambda value, limit: value <= limit, "is above {}"),
    "exclusiveMinimum": ("number", lambda value, limit: value > limit, "is not above {}"),
    "exclusiveMaximum": ("number", lambda value, limit: value < limit, "is not below {}"),
    "multipleOf": (
        "number",
        lambda value, limit: math.isclose(value / limit, round(value / limit), abs_tol=1e-9),
        "is no multiple of {}",
    ),
    "minLength": ("string", lambda value, limit: len(value) >= limit, "is shorter than {}"),
    "maxLength": ("string", lambda value, limit: len(value) <= limit, "is longer than {}"),
    "minItems": ("array", lambda value, limit: len(value) >= limit, "has fewer than {} items"),
    "maxItems": ("array", lambda value, limit: len(value) <= limit, "has more than {} items"),
    "minProperties": ("object", lambda value, limit: len(value) >= limit, "has fewer than {} properties"),
    "maxProperties": ("object", lambda value, limit: len(value) <= limit, "has more than {} properties"),
}

_FORMATS: Final[dict[str, Callable[[str], Any]]] = {
    "date-time": lambda text: "T" in text.upper() and datetime.fromisoformat(text).tzinfo is not None,
    "date": lambda text: len(text) == 10 and date.fromisoformat(text) is not None,
    "uuid": lambda text: len(text) == 36 and UUID(text) is not None,
    "email": lambda text: re.fullmatch(r"[^@\s]+@[^@\s]+\.[^@\s]+", text) is not None,
}


def _pattern(text: Any, where: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, TypeError) as error:
        raise InvalidArgument(f"{where}: {text!r} is no regular expression: {error}") from None


def _named(value: Any) -> str:
    for name, test in _TYPES.items():
        if name != "number" and test(value):
            return {"object": "an object", "array": "an array", "integer": "an integer", "null": "null"}.get(
                name, f"a {name}"
            )
    return "a number"


def _frozen(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
