"""One consumer on the line: what came and was not yet taken, and the credit that goes back for it.

A program *asks* for messages, and between two times it may be busy, or have forgotten us. What lies here must not
become too old to be handed out meanwhile, nor be kept from others:

- What lies here untaken for the idle span (``CLIENT_IDLE_NS``, or a third of the lease), or since it was asked for
  last, is given back, uncounted; so is, at once, what comes when it has not asked for that long.
- From then on nothing is pushed (*withheld* credit; the server is told that it is withdrawn): when it is asked for,
  it is pulled. Once it takes as much as its credit within one idle span, and asks again, the credit goes back.
- What comes between giving back and the answer to it is given back as well. It was leased before the broker knew,
  and where order is by partition the broker took it back together with what it comes after.

Of a group with ``auto_ack`` nothing is given back: what is here is settled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace import errors
from headrace.batch import HIGHEST_LIMITS, Batch
from headrace.calls import LeasedBatch, Run, runs_within
from headrace.limits import CLIENT_IDLE_NS
from headrace.wire import native

if TYPE_CHECKING:
    from headrace.client.line import Line

__all__ = ["Channel", "leased_batches"]


class Channel:
    """See the head of this file."""

    __slots__ = (
        "_full",
        "_inbox",
        "_line",
        "_owed_bytes",
        "_owed_messages",
        "_span_ns",
        "_taken",
        "_taken_since_ns",
        "_withdrawn",
        "asked_ns",
        "asking",
        "auto_ack",
        "changed",
        "credit",
        "error",
        "held",
        "lease_ns",
        "life",
        "number",
        "options",
        "returning",
        "scope",
        "stands",
        "tells_held",
        "withheld",
    )

    def __init__(
        self,
        line: Line,
        scope: native.Scope,
        *,
        lease_ns: int,
        credit: int,
        options: Mapping[str, Any],
        changed: Callable[[], None],
    ) -> None:
        self._line = line
        self.scope = scope
        self.lease_ns = lease_ns
        self.credit = credit
        self.options = options
        self.changed = changed
        self.number = 0  # of the subscription on this connection
        self.stands = False  # it was subscribed once
        self.life = 0
        self.held = 0  # messages taken and not settled, as far as is known here
        self.tells_held: Callable[[], Sequence[Run]] | None = None
        self.auto_ack = False
        self.error: errors.HeadraceError | None = None
        self.asking = 0  # by how many threads or tasks
        self.asked_ns = line.now_ns()
        self.returning = 0  # releases without an answer
        self.withheld = False
        self._inbox: deque[tuple[LeasedBatch, bool, int]] = deque()  # pushed, and when it came
        self._owed_messages = 0
        self._owed_bytes = 0
        self._span_ns = lease_ns
        self._taken = 0  # while credit is withheld, since then
        self._taken_since_ns = 0
        self._full = credit  # as much as the server takes
        self._withdrawn = False  # and not only not given back

    # -- the program asks ----------------------------------------------------------------------------------------------

    def ask(self, now_ns: int) -> None:
        """Somebody wants messages, until `asked`."""
        self.rest(now_ns)
        self.asking += 1
        quick = self._taken >= self.credit and now_ns - self._taken_since_ns < self.idle_ns
        if self.withheld and quick and not self.returning:
            self.withheld = self._withdrawn = False
            self._give_credit()

    def asked(self, now_ns: int) -> None:
        """It has them, or does not want them any more."""
        self.asking -= 1
        self.asked_ns = now_ns
        self._plan_rest()

    @property
    def idle_ns(self) -> int:
        """What lies here for longer was not wanted."""
        return min(CLIENT_IDLE_NS, self._span_ns // 3) if self._span_ns else CLIENT_IDLE_NS

    def idles(self, now_ns: int) -> bool:
        """Has the program not asked for that long?"""
        return not self.asking and now_ns - self.asked_ns >= self.idle_ns

    @property
    def waits(self) -> bool:
        """Is there something to take?"""
        return bool(self._inbox)

    def take(self, most: int, now_ns: int) -> list[LeasedBatch]:
        """Up to ``most`` messages whose lease is not over; the credit of those that were pushed goes back."""
        inbox = self._inbox
        taken: list[LeasedBatch] = []
        total = 0
        while inbox and total < most:
            first, pushed, came_ns = inbox.popleft()
            count = first.batch.count
            if total + count > most:
                inbox.appendleft((_part(first, most - total, count), pushed, came_ns))
                first = _part(first, 0, most - total)
                count = most - total
            if pushed:
                self._owed_messages += count
                self._owed_bytes += first.batch.size_bytes
            if first.deadline_ns <= now_ns and not self.auto_ack:
                continue
            total += count
            taken.append(first)
        self.held += total
        if self.withheld:
            if now_ns - self._taken_since_ns >= self.idle_ns:
                self._taken, self._taken_since_ns = 0, now_ns
            self._taken += total
        elif self._owed_messages and (not inbox or self._owed_messages * 2 >= self.credit):
            self._give_credit()
        return taken

    def _give_credit(self) -> None:
        messages, size_bytes = self._owed_messages, self._owed_bytes
        self._owed_messages = self._owed_bytes = 0
        if messages:
            self._line.give_credit(self, messages, size_bytes)

    def settled(self, count: int) -> None:
        """So many were settled."""
        self.held = max(0, self.held - count)

    # -- what the server leased ----------------------------------------------------------------------------------------

    def put(self, packet: native.Deliveries | native.Leased, now_ns: int, *, pushed: bool) -> bool:
        """Take in what the server leased to it; False: it was not wanted, and is given back."""
        came = leased_batches(packet, now_ns)
        if not came:
            return True
        self._span_ns = packet.lease_ns
        self._inbox.extend([(leased, pushed, now_ns) for leased in came])
        if not self.auto_ack and (self.returning or self.idles(now_ns)):
            self.give_back()
            return False
        if not self.asking:
            self._plan_rest()
        return True

    def give_back(self, untaken: Sequence[Run] = ()) -> None:
        """Release everything here, and these, which were taken and not handed out."""
        runs = [(run.partition, run.lease_id, run.first_offset, run.count) for run in untaken]
        self.settled(sum(run.count for run in untaken))
        for leased, pushed, _ in self._inbox:
            runs += _receipts(leased)
            if pushed:
                self._owed_messages += leased.batch.count
                self._owed_bytes += leased.batch.size_bytes
        self._inbox.clear()
        self._taken = 0
        if runs:
            if not self.withheld and self.credit:
                self.withheld = True
                self._withdrawn = self._line.withdraw_credit(self)
            self._line.release(self, runs)

    def given_back(self, _answer: Any) -> None:
        """The server knows; if it was released or gone already is all the same."""
        self.returning -= 1
        if not self.returning and self._withdrawn:
            self._owed_messages = self._full
            self._line.credit_gone(self)
        self.changed()

    def rest(self, now_ns: int) -> int | None:
        """Give back what has lain here for too long; when to look again."""
        due_ns = self._rests_at_ns()
        if due_ns is not None and due_ns <= now_ns:
            self.give_back()
            return None
        return due_ns

    def _rests_at_ns(self) -> int | None:
        if not self._inbox or self.auto_ack:
            return None
        came_ns = self._inbox[0][2]
        return (came_ns if self.asking else min(came_ns, self.asked_ns)) + self.idle_ns

    def _plan_rest(self) -> None:
        due_ns = self._rests_at_ns()
        if due_ns is not None:
            self._line.look_at(due_ns)

    # -- connections ---------------------------------------------------------------------------------------------------

    def credit_now(self, most: int, now_ns: int) -> int:
        """What a new subscription begins with: nothing, while the program does not ask."""
        self._full = min(self.credit, most)
        self.withheld = self.idles(now_ns) and self._full > 0
        self._withdrawn = False
        self._owed_messages, self._owed_bytes = (self._full if self.withheld else 0), 0
        self._taken = 0
        return 0 if self.withheld else self._full

    def start_over(self) -> None:
        """The connection is gone, or will be: what came and was not taken is given back."""
        if not self.auto_ack:
            self.give_back()
        self.withheld = self._withdrawn = False
        self._owed_messages = self._owed_bytes = 0
        self.number = 0
        self.life += 1


def _part(leased: LeasedBatch, start: int, stop: int) -> LeasedBatch:
    batch = leased.batch.slice(start, stop)
    return LeasedBatch(leased.partition, leased.lease_id, batch, leased.deadline_ns, leased.attempts)


def leased_batches(packet: native.Deliveries | native.Leased, now_ns: int) -> list[LeasedBatch]:
    """The batches of a delivery with their receipts: the messages of the runs are those of the batches, in order."""
    deadline_ns = now_ns + packet.lease_ns
    found: list[LeasedBatch] = []
    runs = iter(packet.runs)
    partition = lease_id = attempt = left = 0
    for buffer in packet.batches:
        batch = Batch.decode(buffer, limits=HIGHEST_LIMITS)
        missing = batch.count
        attempts: dict[int, int] = {}
        offsets: Sequence[int] | None = None
        while missing:
            if not left:
                partition, lease_id, _, left, attempt = next(runs)
            covered = min(left, missing)
            if attempt != 1:
                offsets = batch.offsets() if offsets is None else offsets
                start = batch.count - missing
                attempts.update(dict.fromkeys(offsets[start : start + covered], attempt))
            left -= covered
            missing -= covered
        found.append(LeasedBatch(partition, lease_id, batch, deadline_ns, attempts))
    return found


def _receipts(leased: LeasedBatch) -> list[native.ReceiptRun]:
    return [(leased.partition, leased.lease_id, first, count) for first, count in runs_within(leased.batch.offsets())]
