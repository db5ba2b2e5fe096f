"""What administrative calls answer, as JSON has it: instants and ids as text, bytes as base64 where they are no text.

created_ns     ──►  created_at "2030-01-31T12:00:00Z"         0 and None are left out
publish_to_ack_ns, a span  ──►  publish_to_ack_ms 12.5
id 7318…       ──►  id "7318…"
key b"user-1"  ──►  key "user-1", or key_base64 when it is no text
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from headrace.frontends.http.messages import spelled_instant, text_or_bytes

__all__ = ["spoken"]

_SPANS: Final = frozenset({"publish_to_ack_ns"})
_IDS: Final = frozenset({"id", "sample", "ids"})
_BYTES: Final = frozenset({"key", "value", "dedup_id"})
_WORDS: Final = frozenset({"until", "since"})
_VERBATIM: Final = frozenset({"settings", "by_reason", "by_error", "by_group", "by_consumer", "by_partition"})
"""Mappings whose names are the caller's, not ours."""


def spoken(plain: Any) -> Any:
    """The answer of a call, ready for JSON.

    >>> spoken({"id": 7, "created_ns": 1_700_000_000_000_000_000, "until_ns": 0, "key": b"k"})
    {'id': '7', 'created_at': '2023-11-14T22:13:20Z', 'key': 'k'}
    """
    if isinstance(plain, Mapping):
        told: dict[str, Any] = {}
        for name, value in plain.items():
            _put(told, name, value)
        return told
    if isinstance(plain, list | tuple):
        return [spoken(one) for one in plain]
    if isinstance(plain, bytes):
        return base64.b64encode(plain).decode()
    return plain


def _put(told: dict[str, Any], name: str, value: Any) -> None:
    if name.endswith("_ns"):
        base = name[:-3]
        if name in _SPANS:
            told[f"{base}_ms"] = None if value is None else value / 1_000_000
        elif value:
            told[base if base.endswith("_at") or base in _WORDS else f"{base}_at"] = spelled_instant(value)
    elif name in _IDS:
        told[name] = (
            [str(one) for one in value] if isinstance(value, list | tuple) else None if value is None else str(value)
        )
    elif name in _BYTES:
        _put_bytes(told, name, value)
    elif name == "headers":
        _put_headers(told, value or {})
    elif name in _VERBATIM:
        told[name] = value
    else:
        told[name] = spoken(value)


def _put_bytes(told: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, str):
        told[name] = value
        return
    text, raw = text_or_bytes(bytes(value))
    if text is not None:
        told[name] = text
    elif raw is not None:
        told[f"{name}_base64"] = base64.b64encode(raw).decode()


def _put_headers(told: dict[str, Any], headers: Mapping[str, Any]) -> None:
    texts = {name: item for name, item in headers.items() if isinstance(item, str)}
    others = {name: base64.b64encode(item).decode() for name, item in headers.items() if not isinstance(item, str)}
    if texts:
        told["headers"] = texts
    if others:
        told["headers_base64"] = others
