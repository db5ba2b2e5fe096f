"""The OpenAPI 3.1 document, made from the table of routes and the structs that read and write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

import msgspec

from headrace.frontends.http import shapes
from headrace.frontends.http.answers import ErrorAnswer, encode_json
from headrace.frontends.http.hot import RefusedAnswer
from headrace.frontends.http.routes import Route

__all__ = ["document"]

_REFERENCE: Final = "#/components/schemas/{name}"
_BINARY: Final = {"type": "string", "format": "binary"}
_NAMES: Final = {
    "namespace": shapes.Name,
    "topic": shapes.Name,
    "group": shapes.Name,
    "queue": shapes.Name,
    "id": shapes.Id,
}
_NAMES_SAID: Final = {
    "namespace": "A tenant's name.",
    "topic": "A topic's name, percent-encoded.",
    "group": "A group's name, percent-encoded.",
    "queue": "A queue's name, percent-encoded, or with $ in place of slashes: $queue$tasks$image.",
    "id": "A message id.",
}


def document(routes: Sequence[Route], *, with_tokens: bool) -> bytes:
    """The document as JSON. ``with_tokens``: a key is configured, so calls need one."""
    kinds = _kinds(routes)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    schema_of = {_key(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of, components)
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": version("headrace"),
            "description": "Publish, lease, settle, replay, trace and administer. Every refusal has the same form, "
            "with a code from the table of errors.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components},
    }
    if with_tokens:
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
        for route in routes:
            if route.verb is not None:
                paths[route.path][route.method.lower()]["security"] = [{"token": []}]
    return encode_json(made)


def _kinds(routes: Sequence[Route]) -> list[Any]:
    found: dict[str, Any] = {_key(kind): kind for kind in (ErrorAnswer, RefusedAnswer, *_NAMES.values())}
    for route in routes:
        for kind in (route.body, route.query, route.answer):
            if kind is not None:
                found[_key(kind)] = kind
    return list(found.values())


def _key(kind: Any) -> str:
    return repr(kind)


def _operation(route: Route, schema_of: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "tags": [route.tag],
        "responses": {
            str(route.status): {"description": "Done.", "content": _answers(route, schema_of)},
            "default": {
                "description": "Refused.",
                "content": {"application/json": {"schema": schema_of[_key(ErrorAnswer)]}},
            },
        },
    }
    if route.path in ("/health", "/ready"):
        made["responses"]["503"] = {"description": "Not so.", "content": _answers(route, schema_of)}
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": schema_of[_key(_NAMES[name])],
            "description": _NAMES_SAID[name],
        }
        for name in route.names
    ]
    if route.query is not None:
        parameters += _parameters(schema_of[_key(route.query)], components)
    if parameters:
        made["parameters"] = parameters
    if route.body is not None:
        made["requestBody"] = {
            "required": _is_needed(schema_of[_key(route.body)], components),
            "content": {
                media: {"schema": schema_of[_key(route.body)] if media == "application/json" else _BINARY}
                for media in route.body_media
            },
        }
    return made


def _operation_id(route: Route) -> str:
    words = re.findall(r"[a-zA-Z0-9]+", route.path)
    return "_".join([route.method.lower(), *words]) or route.method.lower()


def _answers(route: Route, schema_of: dict[str, Any]) -> dict[str, Any]:
    return {
        media: {"schema": schema_of[_key(route.answer)] if media == "application/json" else {"type": "string"}}
        for media in route.media
    }


def _resolved(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    found: dict[str, Any] = components[reference.rpartition("/")[2]] if reference is not None else schema
    return found


def _is_needed(schema: dict[str, Any], components: dict[str, Any]) -> bool:
    return bool(_resolved(schema, components).get("required"))


def _parameters(schema: dict[str, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields of a query; what is null when left out is left out of the document, because a query has no null."""
    resolved = _resolved(schema, components)
    needed = resolved.get("required", ())
    found = []
    for name, field in resolved["properties"].items():
        choices = [one for one in field.get("anyOf", ()) if one.get("type") != "null"]
        if "anyOf" in field:
            rest = {key: value for key, value in field.items() if key not in ("anyOf", "default")}
            field = {**choices[0], **rest} if len(choices) == 1 else {**rest, "anyOf": choices}
        description = field.get("description", "")
        found.append(
            {
                "name": name,
                "in": "query",
                "required": name in needed,
                "schema": {key: value for key, value in field.items() if key != "description" and value is not None},
                **({"description": description} if description else {}),
            }
        )
    return found
