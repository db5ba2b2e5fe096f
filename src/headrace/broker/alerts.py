"""Telling somebody when messages die: a POST with JSON to the topic's ``dead_letters.alert_webhook``.

    {"alert": "dead_letters", "count": 3, "first_died_at": "…Z", "last_died_at": "…Z",
     "topics": [{"namespace", "topic", "group", "count", "reasons": {"max_retries": 3},
                 "dead_letter_topic": "dlq/orders",
                 "messages": [{"partition", "offset", "reason", "error", "attempts", "died_at", "dead_letter_id"}]}]}

The rules:

- Nobody waits for it. Deaths are noted as they happen, one thread posts them, and what happens to a POST changes
  nothing for delivery.
- What died within ALERT_GATHER_NS goes into one POST, and all that died while a POST failed goes into the next one. A
  storm is counted whole and shown in part: the first ALERT_MESSAGES_MAX messages of each topic and group.
- Only deaths that are durable are told.
- Anything but a 2xx is tried again with a growing wait, ALERT_TRIES times; then this lot is given up, with a line in
  the log and in ``given_up``. Redirects are not followed: the address is the operator's, not that of who answers there.
- An alert can be told twice (the answer got lost) or not at all (the process ended while it waited). The truth is in
  the dead-letter topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from headrace.clock import Clock, SystemClock
from headrace.delivery import Died, Published
from headrace.diagnostics import logger
from headrace.errors import HeadraceError
from headrace.limits import (
    ALERT_ADDRESSES_MAX,
    ALERT_BACKOFF_MAX_NS,
    ALERT_BACKOFF_NS,
    ALERT_ERROR_CHARS,
    ALERT_GATHER_NS,
    ALERT_GROUPS_MAX,
    ALERT_LAST_NS,
    ALERT_MESSAGES_MAX,
    ALERT_TIMEOUT_NS,
    ALERT_TRIES,
    SECOND_NS,
)

if TYPE_CHECKING:
    from headrace.batch import Batch
    from headrace.shard.core import Core

__all__ = ["Alerts"]

_log = logger("alerts")
_ANSWER_BYTES_MAX: Final = 4096


Place = tuple[str, str, str]  # namespace, topic, group


class _Lot:
    """What has died and was not told yet, for one address."""

    __slots__ = ("count", "due_ns", "first_ns", "groups", "last_ns", "left_out", "position", "tries")

    def __init__(self, due_ns: int) -> None:
        self.due_ns = due_ns
        self.tries = 0
        self.count = 0
        self.first_ns = self.last_ns = 0
        self.position = 0
        self.groups: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.left_out = 0

    def add(
        self, place: Place, dead_letter_topic: str | None, partition: int, fact: Died, letter_id: int | None
    ) -> None:
        self.count += 1
        self.first_ns = self.first_ns or fact.at_ns
        self.last_ns = max(self.last_ns, fact.at_ns)
        group = self.groups.get(place)
        if group is None:
            if len(self.groups) >= ALERT_GROUPS_MAX:
                self.left_out += 1
                return
            group = self.groups[place] = {
                "count": 0,
                "reasons": Counter(),
                "dead_letter_topic": dead_letter_topic,
                "messages": [],
            }
        group["count"] += 1
        group["reasons"][fact.reason] += 1
        if len(group["messages"]) < ALERT_MESSAGES_MAX:
            group["messages"].append(
                {
                    "partition": partition,
                    "offset": fact.offset,
                    "reason": fact.reason,
                    "error": fact.error[:ALERT_ERROR_CHARS],
                    "attempts": fact.attempts,
                    "died_at": _shown(fact.at_ns),
                    "dead_letter_id": None if letter_id is None else str(letter_id),
                }
            )

    def body(self) -> bytes:
        return msgspec.json.encode(
            {
                "alert": "dead_letters",
                "count": self.count,
                "first_died_at": _shown(self.first_ns),
                "last_died_at": _shown(self.last_ns),
                "topics": [
                    {"namespace": namespace, "topic": topic, "group": group, **what}
                    for (namespace, topic, group), what in self.groups.items()
                ],
                "not_shown": self.left_out,
            }
        )


class Alerts:
    """Posts what a shard's dead letters are told to; ``start`` hooks it in, ``close`` ends it."""

    def __init__(self, core: Core, clock: Clock | None = None) -> None:
        self._core = core
        self._clock = clock or SystemClock()
        self._changed = Condition()
        self._lots: dict[str, _Lot] = {}
        self._closing_ns: int | None = None
        self._thread: Thread | None = None
        self.told = 0
        self.given_up = 0

    def start(self) -> None:
        """Be told of deaths from now on."""
        self._core.on_deaths = self._died

    def _died(self, facts: Sequence[Any], batches: Sequence[Batch], position: int) -> None:
        """In the thread of the shard: note and go on."""
        state = self._core.state
        letters = list(zip((fact.pid for fact in facts if type(fact) is Published), batches, strict=True))
        for fact in facts:
            if type(fact) is not Died:
                continue
            group = state.groups[fact.gid]
            url = group.topic.settings.alert_webhook
            if not url:
                continue
            to = state.partitions.get(fact.to_pid)
            place = (group.topic.namespace, group.topic.name, group.name)
            with self._changed:
                lot = self._lot(url)
                if lot is not None:
                    partition, topic = state.partitions[fact.pid].index, None if to is None else to.topic.name
                    lot.add(place, topic, partition, fact, _letter_id(fact, letters))
                    lot.position = position

    def _lot(self, url: str) -> _Lot | None:
        """What waits for an address, with a thread that will see to it."""
        lot = self._lots.get(url)
        if lot is None:
            if len(self._lots) >= ALERT_ADDRESSES_MAX or self._closing_ns is not None:
                self.given_up += 1
                return None
            lot = self._lots[url] = _Lot(self._clock.monotonic_ns() + ALERT_GATHER_NS)
            if self._thread is None:
                self._thread = Thread(target=self._serve, name="headrace-alerts", daemon=True)
                self._thread.start()
            self._changed.notify()
        return lot

    # -- the thread --------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            found = self._next()
            if found is None:
                return
            url, lot = found
            try:
                self._core.journal.wait_durable(lot.position)  # by now it has long been synced
            except HeadraceError:
                return  # the storage failed, and what it holds is for the next life to tell
            refusal = _post(url, lot.body(), self._timeout_s())
            if refusal is None:
                self.told += lot.count
            else:
                self._again(url, lot, refusal)

    def _next(self) -> tuple[str, _Lot] | None:
        """The next lot whose time has come; None when it is over."""
        with self._changed:
            while True:
                closing, now_ns = self._closing_ns, self._clock.monotonic_ns()
                if closing is not None and (not self._lots or now_ns >= closing):
                    for lot in self._lots.values():
                        self.given_up += lot.count
                    return None
                wait_ns = None
                for url, lot in self._lots.items():
                    left_ns = 0 if closing is not None and not lot.tries else lot.due_ns - now_ns
                    if left_ns <= 0:
                        del self._lots[url]
                        return url, lot
                    wait_ns = left_ns if wait_ns is None else min(wait_ns, left_ns)
                if closing is not None:
                    wait_ns = min(wait_ns or 0, closing - now_ns)
                self._changed.wait(None if wait_ns is None else wait_ns / SECOND_NS)

    def _timeout_s(self) -> float:
        closing = self._closing_ns
        if closing is None:
            return ALERT_TIMEOUT_NS / SECOND_NS
        return max(0.1, min(ALERT_TIMEOUT_NS, closing - self._clock.monotonic_ns()) / SECOND_NS)

    def _again(self, url: str, lot: _Lot, refusal: str) -> None:
        lot.tries += 1
        address = _without_secrets(url)
        if lot.tries >= ALERT_TRIES:
            self.given_up += lot.count
            _log.error("an alert was given up", address=address, tries=lot.tries, deaths=lot.count, reason=refusal)
            return
        _log.warning("an alert was not taken", address=address, tries=lot.tries, deaths=lot.count, reason=refusal)
        wait_ns = min(ALERT_BACKOFF_NS * 2 ** (lot.tries - 1), ALERT_BACKOFF_MAX_NS)
        with self._changed:
            lot.due_ns = self._clock.monotonic_ns() + wait_ns
            newer = self._lots.get(url)
            if newer is not None:
                _merge(lot, newer)
            self._lots[url] = lot

    def close(self) -> None:
        """Tell what is left, as far as ALERT_LAST_NS allows, and stop."""
        self._core.on_deaths = None
        with self._changed:
            self._closing_ns = self._clock.monotonic_ns() + ALERT_LAST_NS
            thread, self._thread = self._thread, None
            self._changed.notify()
        if thread is not None:
            thread.join()


def _letter_id(fact: Died, letters: Sequence[tuple[int, Batch]]) -> int | None:
    """The id of the dead letter, which the same frame published."""
    for pid, batch in letters:
        if pid == fact.to_pid and batch.base_offset <= fact.to_offset < batch.base_offset + batch.count:
            return batch.base_id + fact.to_offset - batch.base_offset
    return None


def _merge(lot: _Lot, newer: _Lot) -> None:
    lot.count += newer.count
    lot.last_ns = max(lot.last_ns, newer.last_ns)
    lot.position = max(lot.position, newer.position)
    lot.left_out += newer.left_out
    for place, what in newer.groups.items():
        mine = lot.groups.get(place)
        if mine is None:
            if len(lot.groups) < ALERT_GROUPS_MAX:
                lot.groups[place] = what
            else:
                lot.left_out += what["count"]
            continue
        mine["count"] += what["count"]
        mine["reasons"].update(what["reasons"])
        mine["messages"] += what["messages"][: ALERT_MESSAGES_MAX - len(mine["messages"])]


def _post(url: str, body: bytes, timeout_s: float) -> str | None:
    """None when it was taken, else why it was not."""
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Content-Type": "application/json", "User-Agent": "headrace"}
    if parts.username is not None:
        from base64 import b64encode

        secret = f"{parts.username}:{parts.password or ''}".encode()
        headers["Authorization"] = f"Basic {b64encode(secret).decode()}"
    try:
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
        try:
            connection.request("POST", target, body, headers)
            answer = connection.getresponse()
            answer.read(_ANSWER_BYTES_MAX)
        finally:
            connection.close()
    except (OSError, HTTPException, ValueError) as error:
        return str(error) or type(error).__name__
    return None if 200 <= answer.status < 300 else f"HTTP status {answer.status}"


def _without_secrets(url: str) -> str:
    """Scheme, host and port: paths and queries of webhooks are often their secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")


def _shown(at_ns: int) -> str:
    moment = datetime.fromtimestamp(at_ns // SECOND_NS, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ns % SECOND_NS // 1_000_000:03d}Z"
