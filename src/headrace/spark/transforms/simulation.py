"""What would have been: recorded traffic of one group through the broker's own rules, on a clock that is moved.

The broker here is the broker: its core in memory, its decisions, its facts. What is replayed into it is what came from
outside: publishes, pulls and settlements. What each consumer did with a message at its n-th delivery is known from the
record, and so is how long it took; a pull that found too little waits for more, as its consumer would have.

    replayed   the recorded pulls, the recorded settings: must come out as it was
    eager      besides, every consumer pulls when something is ready and it holds less than it ever held
    changed    the same with other settings; compare it with eager

A message that gets further than it ever got does again what it did last (``beyond`` = fail), or is acked (ack). One
that was never delivered is acked after what is usual in the group.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from statistics import median
from typing import Any, Final, NamedTuple

from headrace.batch import Message, encode
from headrace.broker import Broker
from headrace.broker.embedded import MEMORY, EmbeddedPort, open_core
from headrace.calls import LeasedBatch, Run, Settle
from headrace.clock import ManualClock
from headrace.config import GroupConfig, RetryConfig, TopicConfig, from_plain
from headrace.delivery import backoff_ns
from headrace.limits import BATCH_MESSAGES_MAX, LEASE_MESSAGES_MAX

__all__ = ["Figures", "Trace", "recorded", "simulated"]

_MS_NS: Final = 1_000_000
_PLACE = tuple[int, int]
FINAL: Final = ("acked", "died", "expired", "dropped")
_CHANGED_BACKOFF_NS: Final = 2 * _MS_NS
"""Times of retries are kept in milliseconds: a backoff that differs by more was asked for by the consumer."""


class Handling(NamedTuple):
    """What a consumer did with a message at one delivery: how it ended and after how long; None: it did not."""

    ended: str | None
    hold_ns: int
    reason: str = ""
    error: str = ""
    retry_ns: int | None = None  # after its end; None: at once
    extended: tuple[tuple[int, int], ...] = ()  # after how long, by how much
    ran_out: bool = False


class Figures(NamedTuple):
    """How it went."""

    counts: dict[str, int]
    whole_ms: list[float]


class Trace:
    """The rows of one group (``recorded.COLUMNS``), read once.

    Messages that were published before the record begins are left out, with all that happened to them.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows = sorted(rows, key=lambda row: (row["position"], _RANK.get(row["event"], 9)))
        self.published: dict[_PLACE, Mapping[str, Any]] = {}
        self.due: dict[_PLACE, int] = {}
        self.lapsed: dict[_PLACE, int] = {}
        self.handled: dict[_PLACE, list[Handling]] = defaultdict(list)
        self.pulls: list[tuple[int, int, str, int, int]] = []  # at, position, consumer, how many, for how long
        self.most: Counter[str] = Counter()  # what a consumer held at most
        self.seen: dict[str, tuple[int, int]] = {}  # when a consumer was first and last heard of
        self._read()

    def _read(self) -> None:
        held: dict[_PLACE, tuple[Mapping[str, Any], list[tuple[int, int]]]] = {}
        holding: Counter[str] = Counter()
        pulls: Counter[tuple[int, int, str, int]] = Counter()
        for row in self.rows:
            event, place = row["event"], (row["partition"], row["offset"])
            if event == "published":
                self.published[place] = row
            if place not in self.published:
                continue
            if event == "due":
                self.due.setdefault(place, row["at_ns"])
            elif event == "lapsed":
                self.lapsed[place] = row["at_ns"]
            elif event == "leased":
                who = row["consumer"]
                held[place] = (row, [])
                pulls[row["at_ns"], row["position"], who, (row["until_ns"] or row["at_ns"]) - row["at_ns"]] += 1
                holding[who] += 1
                self.most[who] = max(self.most[who], holding[who])
                first, _ = self.seen.get(who, (row["at_ns"], 0))
                self.seen[who] = (first, row["at_ns"])
            elif event == "extended" and place in held:
                leased, more = held[place]
                more.append((row["at_ns"] - leased["at_ns"], row["until_ns"] - row["at_ns"]))
            elif event in _ENDS and place in held:
                leased, more = held.pop(place)
                who = leased["consumer"]
                holding[who] -= 1
                self.seen[who] = (self.seen[who][0], row["at_ns"])
                self.handled[place].append(_handling(leased, row, tuple(more)))
        for place, (_, more) in held.items():
            self.handled[place].append(Handling(None, 0, extended=tuple(more)))
        self.pulls = [(at, position, who, number, span) for (at, position, who, span), number in pulls.items()]

    @property
    def end_ns(self) -> int:
        return max((row["at_ns"] for row in self.rows), default=0)


_ENDS: Final = ("acked", "retried", "released", "died", "expired", "dropped")
_RANK: Final = {"published": 0, "due": 1, "leased": 2}


def _handling(leased: Mapping[str, Any], row: Mapping[str, Any], extended: tuple[tuple[int, int], ...]) -> Handling:
    hold_ns = row["at_ns"] - leased["at_ns"]
    deadline_ns = leased["at_ns"] + extended[-1][0] + extended[-1][1] if extended else leased["until_ns"] or 0
    ran_out = row["reason"] == "lease_expired" or (
        row["event"] == "died" and row["reason"] != "rejected" and 0 < deadline_ns <= row["at_ns"]
    )
    retry_ns = None
    if row["event"] == "retried" and row["until_ns"]:
        retry_ns = max(0, row["until_ns"] - row["at_ns"])
    return Handling(row["event"], hold_ns, row["reason"] or "", row["error"] or "", retry_ns, extended, ran_out)


def recorded(trace: Trace) -> Figures:
    """How it went, from the record."""
    return _figures(trace.rows, set(trace.published))


def _figures(rows: Sequence[Mapping[str, Any]], known: set[_PLACE]) -> Figures:
    counts: Counter[str] = Counter()
    born: dict[_PLACE, int] = {}
    over: set[_PLACE] = set()
    whole_ms: list[float] = []
    for row in rows:
        event, place = row["event"], (row["partition"], row["offset"])
        if place not in known:
            continue
        counts[_NAMES.get(event, event)] += 1
        if event in ("published", "due"):
            born[place] = row["at_ns"]
        elif event == "died":
            counts[row["reason"] or "unknown"] += 1
        elif event == "acked":
            whole_ms.append((row["at_ns"] - born[place]) / 1e6)
        if event in FINAL:
            over.add(place)
    counts["unsettled"] = len(known) - len(over)
    return Figures(dict(counts), whole_ms)


_NAMES: Final = {"leased": "delivered", "died": "dead"}


# -- the simulation ----------------------------------------------------------------------------------------------------


def simulated(
    trace: Trace,
    *,
    settings: Mapping[str, Any],
    recorded_settings: Mapping[str, Any],
    group_settings: Mapping[str, Any] | None = None,
    partitions: int = 1,
    eager: bool = False,
    beyond: str = "fail",
) -> Figures:
    """How it would have gone with the topic's ``settings``."""
    world = _World(trace, settings, recorded_settings, group_settings or {}, partitions, eager=eager, beyond=beyond)
    try:
        return world.run()
    finally:
        world.close()


class _World:
    TOPIC: Final = "topic"
    GROUP: Final = "group"

    def __init__(
        self,
        trace: Trace,
        settings: Mapping[str, Any],
        recorded_settings: Mapping[str, Any],
        group_settings: Mapping[str, Any],
        partitions: int,
        *,
        eager: bool,
        beyond: str,
    ) -> None:
        self.trace = trace
        self.eager = eager
        self.beyond = beyond
        own = {name: value for name, value in group_settings.items() if name != "filter"}
        if group_settings.get("filter"):
            # Which messages it wanted is known from what it got; headers, which the filter would ask, are not here.
            trace.published = {place: row for place, row in trace.published.items() if place in trace.handled}
        in_force = from_plain(GroupConfig, own).over(from_plain(TopicConfig, dict(recorded_settings)))
        self.retry, self.lease_ns = in_force.retry, in_force.lease_ns
        begin_ns = min((row["at_ns"] for row in trace.published.values()), default=1) - 1
        self.clock = ManualClock(wall_ns=begin_ns)
        self.core = open_core(MEMORY, clock=self.clock)
        self.port = EmbeddedPort(Broker(self.core), self.clock)
        # Its depth is not what is asked about, and messages of the other groups of the record do not exist here.
        given = {**settings, "partitions": partitions, "max_depth": 0}
        self.port.call("topic.create", topic=self.TOPIC, settings=given)
        self.port.call("group.create", topic=self.TOPIC, group=self.GROUP, settings=own)
        self.places: dict[_PLACE, _PLACE] = {}  # here → in the record
        self.deliveries: Counter[_PLACE] = Counter()
        self.holding: Counter[str] = Counter()
        self.short: dict[str, tuple[int, int]] = {}  # pulls that found too little: how many are missing
        self.queue: list[tuple[int, int, int, Any]] = []
        self.order = count()
        holds = [each.hold_ns for handled in trace.handled.values() for each in handled if each.ended == "acked"]
        self.usual_ns = int(median(holds)) if holds else _MS_NS

    def close(self) -> None:
        self.port.close()

    # -- what happens when ---------------------------------------------------------------------------------------------

    def run(self) -> Figures:
        for (at_ns, position), places in self._batches().items():
            self._at(at_ns, position, ("publish", places))
        for at_ns, position, who, number, span_ns in self.trace.pulls:
            self._at(at_ns, position, ("pull", (who, number, span_ns)))
        for row in self.trace.rows:
            if row["event"] in ("group_paused", "group_resumed"):
                self._at(row["at_ns"], row["position"], (row["event"], row))
        end_ns = self.trace.end_ns
        while True:
            wake_ns = self.core.state.wake_at_ns()
            next_ns = self.queue[0][0] if self.queue else None
            if next_ns is None and (wake_ns is None or wake_ns > end_ns):
                break
            if wake_ns is not None and wake_ns <= end_ns and (next_ns is None or wake_ns < next_ns):
                self._move(wake_ns)
                self.port.host.look(lambda core: None)
                self._serve()
                continue
            if next_ns is None or next_ns > end_ns:
                break
            at_ns, _, _, (what, more) = heappop(self.queue)
            self._move(at_ns)
            self._do(what, more)
        return self._over()

    def _at(self, at_ns: int, position: int, action: Any) -> None:
        heappush(self.queue, (at_ns, position, next(self.order), action))

    def _move(self, at_ns: int) -> None:
        self.clock.advance(max(0, at_ns - self.clock.wall_ns()))

    def _batches(self) -> dict[tuple[int, int], list[_PLACE]]:
        """Messages that were published together."""
        found: dict[tuple[int, int], list[_PLACE]] = defaultdict(list)
        for place, row in self.trace.published.items():
            found[row["at_ns"], row["position"]].append(place)
        return found

    def _do(self, what: str, more: Any) -> None:
        if what == "publish":
            self._publish(sorted(more))
            self._serve()
        elif what == "pull":
            who, number, span_ns = more
            missing = number - self._pull(who, number, span_ns)
            if missing:
                known, _ = self.short.get(who, (0, 0))
                self.short[who] = (known + missing, span_ns)
        elif what == "settle":
            self._settle(*more)
            self._serve()
        elif what == "group_paused":
            until_ns = more["until_ns"] or 0
            self.port.call("group.pause", topic=self.TOPIC, group=self.GROUP, until_ns=until_ns)
        elif what == "group_resumed":
            self.port.call("group.resume", topic=self.TOPIC, group=self.GROUP)
            self._serve()

    # -- publish, pull, settle -----------------------------------------------------------------------------------------

    def _publish(self, places: list[_PLACE]) -> None:
        by_partition: dict[int, list[_PLACE]] = defaultdict(list)
        for place in places:
            by_partition[place[0]].append(place)
        for partition, mine in by_partition.items():
            for first in range(0, len(mine), BATCH_MESSAGES_MAX):
                part = mine[first : first + BATCH_MESSAGES_MAX]
                batch = encode([self._message(place) for place in part])
                told = self.port.publish("default", self.TOPIC, partition, batch)
                offset = told[0].base_offset
                self.places.update({(partition, offset + number): place for number, place in enumerate(part)})

    def _message(self, place: _PLACE) -> Message:
        row = self.trace.published[place]
        now_ns = self.clock.wall_ns()
        due_ns, lapsed_ns = self.trace.due.get(place), self.trace.lapsed.get(place)
        return Message(
            b"",
            key=row["key"] or None,
            priority=5 if row["priority"] is None else row["priority"],
            deliver_at_ns=due_ns if due_ns is not None and due_ns > now_ns else None,
            expires_at_ns=lapsed_ns if lapsed_ns is not None and lapsed_ns > now_ns else None,
        )

    def _pull(self, who: str, number: int, span_ns: int) -> int:
        """Lease for a consumer; how many it got."""
        lease_ns = None if not span_ns or abs(span_ns - self.lease_ns) < _MS_NS else span_ns
        got = 0
        while got < number:
            leased = self._lease(who, min(number - got, LEASE_MESSAGES_MAX), lease_ns)
            if not leased:
                break
            for each in leased:
                for offset in each.batch.offsets():
                    self._delivered(who, (each.partition, int(offset)), each.lease_id)
                    got += 1
        self.holding[who] += got
        return got

    def _lease(self, who: str, most: int, lease_ns: int | None) -> list[LeasedBatch]:
        broker = self.port.broker
        leased: list[LeasedBatch] = self.port.host.run(
            lambda: broker.lease("default", self.TOPIC, self.GROUP, who, most, lease_ns=lease_ns)
        )
        return leased

    def _delivered(self, who: str, here: _PLACE, lease_id: int) -> None:
        """Plan what the consumer does with it."""
        place = self.places[here]
        number = self.deliveries[place]
        self.deliveries[place] += 1
        handling = self._handling(place, number)
        now_ns = self.clock.wall_ns()
        run = Run(here[0], lease_id, here[1])
        for after_ns, by_ns in handling.extended:
            self._at(now_ns + after_ns, 0, ("settle", (who, run, Handling("extended", 0, retry_ns=by_ns))))
        if handling.ended is not None:
            self._at(now_ns + handling.hold_ns, 0, ("settle", (who, run, handling)))

    def _handling(self, place: _PLACE, number: int) -> Handling:
        known = self.trace.handled.get(place, [])
        if number < len(known):
            return known[number]
        if not known:
            return Handling("acked", self.usual_ns)
        last = known[-1]
        if last.ended == "acked" or self.beyond == "ack":
            return Handling("acked", last.hold_ns or self.usual_ns)
        if last.ended == "died" and last.reason != "rejected":
            return last._replace(ended="retried", reason="lease_expired" if last.ran_out else "nack")
        return last

    def _settle(self, who: str, run: Run, handling: Handling) -> None:
        order = Settle()
        ended = handling.ended
        if ended == "extended":
            order.extend = [(run, handling.retry_ns or 0)]
        elif ended == "acked":
            order.ack = [run]
        elif ended == "released":
            order.release = [run]
        elif ended == "died" and handling.reason == "rejected":
            order.reject = [(run, handling.error)]
        elif ended in ("retried", "died") and not handling.ran_out:
            order.nack = [(run, self._delay(run, handling), handling.error)]
        if ended != "extended":
            self.holding[who] -= 1
        if order != Settle():
            # A lease that ran out by the changed settings is lost, as it would have been for the consumer.
            self.port.settle("default", self.TOPIC, self.GROUP, order)

    def _delay(self, run: Run, handling: Handling) -> int | None:
        """The delay the consumer asked for; None where it left it to the policy."""
        if handling.ended == "died":
            return None
        retry_ns = handling.retry_ns
        if handling.reason == "disconnect" or retry_ns is None:
            return retry_ns or 0
        place = self.places[run.partition, run.first_offset]
        done = self.deliveries[place] - 1
        failed = sum(each.ended == "retried" for each in self.trace.handled[place][:done])
        return None if _by_policy(self.retry, failed + 1, retry_ns) else retry_ns

    def _serve(self) -> None:
        """Consumers that wait for something get it: those whose pull was short, and the eager ones."""
        for who, (missing, span_ns) in list(self.short.items()):
            got = self._pull(who, missing, span_ns)
            if got == missing:
                del self.short[who]
            elif got:
                self.short[who] = (missing - got, span_ns)
        if not self.eager:
            return
        now_ns = self.clock.wall_ns()
        for who, most in self.trace.most.items():
            first_ns, last_ns = self.trace.seen[who]
            room = most - self.holding[who]
            if room > 0 and first_ns <= now_ns <= last_ns:
                self._pull(who, room, 0)

    # -- how it went ---------------------------------------------------------------------------------------------------

    def _over(self) -> Figures:
        """The simulated broker's own history, counted as the record was."""
        rows: list[dict[str, Any]] = []
        at = 0
        while True:
            told = self.port.call("log.events", topic=self.TOPIC, from_position=at)
            columns = told["columns"]
            for values in zip(*columns.values(), strict=True):
                row = dict(zip(columns, values, strict=True))
                if row["group"] in (None, self.GROUP) and row["last_offset"] is not None:
                    rows += _each(row)
            at = told["next_position"]
            if at >= told["end_position"]:
                break
        return _figures(rows, set(self.places))


def _each(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a message."""
    if row["event"] not in _COUNTED or row["first_offset"] is None:
        return []
    offsets = row["offsets"] or range(row["first_offset"], row["last_offset"] + 1)
    kept = {name: row[name] for name in ("event", "partition", "reason", "at_ns")}
    return [{**kept, "offset": offset} for offset in offsets]


_COUNTED: Final = ("published", "due", "leased", "extended", *_ENDS)


def _by_policy(retry: RetryConfig, attempt: int, given_ns: int) -> bool:
    plain_ns = backoff_ns(RetryConfig(
        max_retries=retry.max_retries,
        initial_backoff_ns=retry.initial_backoff_ns,
        backoff_multiplier=retry.backoff_multiplier,
        max_backoff_ns=retry.max_backoff_ns,
    ), attempt, 0)  # fmt: skip
    most_ns = plain_ns * (1 + (retry.jitter or 0))
    return plain_ns - _CHANGED_BACKOFF_NS <= given_ns <= most_ns + _CHANGED_BACKOFF_NS
