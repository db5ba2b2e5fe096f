"""Which messages are meant: a filter as plain values, asked of one message after the other.

A filter is a mapping, checked before it comes here (``headrace.broker.arguments``). What it may have depends on what is
filtered (``DeadLetters``, ``Replays``); what is common:

    key_prefix      bytes that the key begins with
    header          a name the message must carry, or {name: value, …} that must all be so
    ids             message ids
    from_time_ns, to_time_ns     a stretch of time, the end not included
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from headrace.batch import Batch
from headrace.limits import REPORT_KINDS_MAX

__all__ = ["Tally", "content_test"]

Headers = Mapping[str, str | bytes]
Test = Callable[[Batch, int], bool]


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
