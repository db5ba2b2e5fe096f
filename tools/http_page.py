"""The reference of the HTTP door, from its OpenAPI document: calls by what they are about, and the forms they use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from headrace import limits
from headrace.frontends.http.openapi import document
from headrace.frontends.http.routes import Route
from headrace.frontends.http.table import all_routes

__all__ = ["http_page"]

HEAD = """\
# HTTP

Written by `tools/reference_pages.py` from the code. `GET /openapi.json` says the same for programs (OpenAPI 3.1);
the [guide](../guides/http.md) goes through every call with curl.

## Rules

- **Paths.** `/v1/…` is about the namespace `default`; `/v1/namespaces/{namespace}/…` is the same call for any other.
  Names are percent-encoded: `orders%2Feu`. A name is text and never a path.
- **Values.** A message's value is one of `value` (text), `value_base64` (any bytes) and `json` (any JSON, kept as it
  was written, with content type `application/json`). It comes back as `json` when its content type says so, as `value`
  when it is text, else as `value_base64`; `values=base64` asks for base64 always. Keys and headers have `…_base64`
  twins too.
- **Spans** are text with a unit (`500ms`, `30s`, `1h30m`, `7d`), instants RFC 3339 with an offset, ids decimal text.
- **Bodies** are JSON, whatever `curl -d` says of them; `Content-Encoding: gzip` or `zstd`. Unknown fields are refused.
- **Receipts** are `partition:lease:offset`, or `partition:lease:offset+count` for a run. A message id stands for the
  delivery it is leased as. A second ack of the same message says yes; a stale receipt is `lease_lost` and changes
  nothing.
- **Durable** means answered after the disk has it. There is no other mode.
- **Repeating.** A publish with `dedup_id` may be repeated: the second one answers the first one's place, with
  `duplicate: true`.
- **Tracing.** A request's `traceparent` (W3C) is put into the headers of what it publishes, where they have none.

## Refusals

`{"error": {"code": "…", "message": "…", "retry_after_ms": …}}` with the status of the [table of errors](errors.md).
`429` and `503` come with `Retry-After`, `401` with `WWW-Authenticate`. What HTTP itself has a status for is
`invalid_argument`: `404` nothing is there, `405` not with this method, `408` the request did not arrive in time, `414`
and `431` its head is too large, `415` nobody reads this form, `417` an expectation that cannot be met.

## Pages in browsers

No origin but the server's own may call it; `http.cors_origins` names those that may. Without keys the `Host` of a
request must be an address or `localhost`. Nothing is taken from cookies.

## Limits

| What | Limit |
|---|---|
"""
LIMITS = {
    "head of a request": f"{limits.HTTP_HEAD_BYTES_MAX // 1024} KiB and {limits.HTTP_HEADERS_MAX} headers",
    "body, before and after it is inflated": f"`http.max_body`, {limits.HTTP_BODY_BYTES_DEFAULT // 2**20} MiB",
    "inflated beside compressed": f"{limits.HTTP_INFLATE_RATIO_MAX} times",
    "messages in a publish": f"{limits.HTTP_MESSAGES_MAX:,}",
    "messages in a lease": f"{limits.HTTP_LEASE_MESSAGES_MAX:,}, and {limits.HTTP_LEASE_BYTES // 2**20} MiB of them",
    "time for a head": f"{limits.HTTP_HEAD_TIMEOUT_NS // 10**9} s",
    "time for a body": f"`http.request_timeout`, and a second per {limits.HTTP_REQUEST_RATE_MIN // 1024} KiB",
    "requests sent ahead on a connection": f"{limits.HTTP_PIPELINE_MAX}",
    "streams (replays, events) at a time": f"{limits.HTTP_STREAMS_MAX}",
    "messages of an event stream that are not settled": f"{limits.HTTP_EVENTS_CREDIT_MAX:,}",
    "a wait of a lease": f"{limits.WAIT_NS_MAX // 10**9} s",
}
TITLES = {
    "publish": "Publishing",
    "consume": "Consuming",
    "read": "Reading",
    "groups": "Groups",
    "topics": "Topics",
    "namespaces": "Namespaces",
    "numbers": "Numbers",
    "schedule": "Schedules",
    "dead letters": "Dead letters",
    "server": "The server",
    "other names": "Other names",
    "queues": "Queues of MQTT brokers",
}


def http_page() -> str:
    bounds = "".join(f"| {what} | {most} |\n" for what, most in LIMITS.items())
    return HEAD + bounds + "".join(_calls()) + "".join(_forms())


def _calls() -> Iterator[str]:
    routes = [route for route in all_routes() if not route.path.startswith("/v1/namespaces/{namespace}/")]
    for tag, title in TITLES.items():
        yield f"\n## {title}\n\n| Call | What | Needs | Takes | Gives |\n|---|---|---|---|---|\n"
        for route in routes:
            if route.tag == tag:
                yield _call(route)
    left = {route.tag for route in routes} - set(TITLES)
    if left:
        raise RuntimeError(f"tags without a title: {left}")


def _call(route: Route) -> str:
    takes = _name_of(route.body) or (f"query: {_name_of(route.query)}" if route.query is not None else "")
    gives = _name_of(route.answer)
    others = [media for media in route.media if media != "application/json"]
    if others:
        word = " or " if "application/json" in route.media else " as " if gives else ""
        gives += word + ", ".join(f"`{one}`" for one in others)
    forms = [media for media in route.body_media if media != "application/json"]
    if forms:
        takes += " or " + ", ".join(f"`{one}`" for one in forms)
    return f"| `{route.method} {route.path}` | {route.summary} | {route.verb or 'nothing'} | {takes} | {gives} |\n"


def _name_of(kind: Any) -> str:
    if kind is None or kind is str:
        return ""
    found = re.findall(r"[A-Z]\w+", getattr(kind, "__name__", "") or repr(kind))
    known = [name for name in found if name in _SCHEMAS]
    if not known:
        inner = [_name_of(one) for one in getattr(kind, "__args__", ()) if isinstance(one, type)]
        known = [name for name in inner if name]
        return f"a list of {known[0]}" if known and "list" in repr(kind) else "settings" if "dict" in repr(kind) else ""
    return f"[{known[-1]}](#{known[-1].lower()})"


_SCHEMAS: dict[str, Any] = json.loads(document(all_routes(), with_tokens=False))["components"]["schemas"]


def _forms() -> Iterator[str]:
    yield "\n## Forms\n"
    for name, schema in sorted(_SCHEMAS.items()):
        if "properties" not in schema:
            continue
        yield f"\n### {name}\n\n"
        if schema.get("description"):
            yield schema["description"].replace("\n", " ") + "\n\n"
        if not schema["properties"]:
            continue
        yield "| Field | Type | What |\n|---|---|---|\n"
        for field, inner in schema["properties"].items():
            needed = " (needed)" if field in schema.get("required", ()) else ""
            default = inner.get("default")
            shown = f" Default `{json.dumps(default)}`." if default not in (None, "", [], {}) else ""
            yield f"| `{field}` | {_type_of(inner)}{needed} | {_said(inner)}{shown} |\n"


def _said(schema: dict[str, Any]) -> str:
    """What a field is; of one that may be left out it stands with what it is otherwise."""
    described = (one["description"] for one in (schema, *schema.get("anyOf", ())) if "description" in one)
    found: str = next(described, "")
    return found


def _type_of(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type_of(one) for one in schema["anyOf"] if one.get("type") != "null"))
    if "enum" in schema:
        return " ".join(f"`{one}`" for one in schema["enum"])
    match schema.get("type"):
        case "array":
            inner = _type_of(schema.get("items", {}))
            return f"list of {inner}"
        case "object":
            of = schema.get("additionalProperties")
            return f"object of {_type_of(of)}" if isinstance(of, dict) and of else "object"
        case "string":
            return _kind_of_text(schema)
        case "integer" | "number" as kind:
            return kind + "".join(
                f", {word} {schema[key]:,}"
                for key, word in (("minimum", "from"), ("maximum", "to"))
                if key in schema and abs(schema[key]) < 1 << 40
            )
        case None:
            return "any JSON"
        case kind:
            return str(kind)


def _kind_of_text(schema: dict[str, Any]) -> str:
    if schema.get("format") == "date-time":
        return "instant"
    if schema.get("contentEncoding") == "base64":
        return "base64"
    if "ns|us" in schema.get("pattern", ""):
        return "span"
    most = schema.get("maxLength")
    return f"text, at most {most}" if most is not None else "text"
