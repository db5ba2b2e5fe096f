"""Which messages are meant: a filter as plain values, checked, and asked of one message after the other.

A filter is a mapping. What it may have depends on what is filtered (``DeadLetters``, ``Replays``); what is common:

    key_prefix      bytes that the key begins with
    header          a name the message must carry, or {name: value, …} that must all be so
    ids             message ids
    from_time_ns, to_time_ns     a stretch of time, the end not included
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from headrace.batch import Batch
from headrace.errors import InvalidArgument
from headrace.limits import BROWSE_MESSAGES_MAX, REPORT_KINDS_MAX

__all__ = ["Tally", "check_where", "content_test"]

Headers = Mapping[str, str | bytes]
Test = Callable[[Batch, int], bool]

_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "reason": (str,),
    "error": (str,),
    "group": (str,),
    "consumer": (str,),
    "outcome": (str,),
    "key_prefix": (bytes, str),
    "header": (str, Mapping),
    "ids": (Sequence,),
    "runs": (Sequence,),
    "from_time_ns": (int,),
    "to_time_ns": (int,),
    "min_attempts": (int,),
}


def check_where(where: Mapping[str, Any] | None, known: Sequence[str]) -> dict[str, Any]:
    """The filter, its values of the right kinds; what is None is left out."""
    found: dict[str, Any] = {}
    for name, value in (where or {}).items():
        if name not in known:
            raise InvalidArgument(f"where has no {name!r}; it can have {', '.join(known)}")
        if value is None:
            continue
        if not isinstance(value, _KINDS[name]) or (name == "ids" and isinstance(value, (str, bytes))):
            wanted = " or ".join(kind.__name__ for kind in _KINDS[name])
            raise InvalidArgument(f"where {name} is {value!r}: must be {wanted.lower()}")
        found[name] = value
    if "ids" in found:
        if len(found["ids"]) > BROWSE_MESSAGES_MAX:
            raise InvalidArgument(f"where ids: {len(found['ids'])} of them; at most {BROWSE_MESSAGES_MAX} at a time")
        if not all(isinstance(one, int) for one in found["ids"]):
            raise InvalidArgument("where ids: must be whole numbers")
        found["ids"] = frozenset(found["ids"])
    if isinstance(found.get("key_prefix"), str):
        found["key_prefix"] = found["key_prefix"].encode()
    if isinstance(found.get("header"), str):
        found["header"] = {found["header"]: None}
    return found


def content_test(where: Mapping[str, Any]) -> Test | None:
    """Whether a message's own content is as the filter wants it; None where it wants nothing of it."""
    prefix, wanted = where.get("key_prefix"), where.get("header")
    if prefix is None and wanted is None:
        return None

    def test(batch: Batch, index: int) -> bool:
        if prefix is not None and not (batch.key(index) or b"").startswith(prefix):
            return False
        if wanted is None:
            return True
        headers = batch.headers(index)
        return all(
            name in headers and (value is None or _text(headers[name]) == _text(value))
            for name, value in wanted.items()
        )

    return test


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class Tally:
    """Counts by name for a report: the most frequent ones, the others together."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        self._counts[name] += count
        if len(self._counts) > 100 * REPORT_KINDS_MAX:
            self._counts = Counter(dict(self._counts.most_common(50 * REPORT_KINDS_MAX)))

    def plain(self) -> dict[str, int]:
        return dict(self._counts.most_common(REPORT_KINDS_MAX))
