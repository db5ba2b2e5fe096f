"""One subscription: the client's credit, handed to the broker in portions.

A client may allow 65,536 messages at once. If the broker were told, it would lease and push all of them in one round,
however large they are and however slowly the client reads. So the broker only ever gets a portion: about
``PUSH_PORTION_BYTES`` of messages of the size that was last seen, and the next portion when the one before has been
written and the connection takes more. That keeps byte credit (which the broker does not know), the write buffer and
the leases of a stuck client small, and costs nothing while the client keeps up.

    granted   what the broker may still deliver
    held      delivered by the broker, and not yet covered by the client's credit in bytes or not yet due to be written:
              of a delivery whose messages are larger than those before it only a write buffer's worth leaves at a time
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from headrace import errors
from headrace.calls import LeasedBatch
from headrace.frontends.leased import delivered_runs, pieces
from headrace.limits import PUSH_PORTION_BYTES, PUSH_PORTION_MESSAGES, PUSH_PORTION_MESSAGES_MAX

if TYPE_CHECKING:
    from headrace.frontends.native.connection import NativeConnection
    from headrace.frontends.native.translate import GroupName

__all__ = ["Push", "Source"]

_FRAME_MARGIN_BYTES: Final = 64 * 1024
"""Of a frame: its head and runs."""


class Source(Protocol):
    """A subscription as the broker sees it."""

    def credit(self, messages: int) -> None: ...

    def withdraw(self) -> None: ...

    def close(self, *, clean: bool = True) -> None: ...


class Push:
    """See the head of this file."""

    __slots__ = ("_connection", "_granted", "_held", "_portion", "consumer", "group", "number", "source")

    def __init__(self, connection: NativeConnection, number: int, group: GroupName, consumer: str) -> None:
        self.number = number
        self.group = group
        self.consumer = consumer
        self.source: Source | None = None
        self._connection = connection
        self._portion = PUSH_PORTION_MESSAGES
        self._granted = 0
        self._held: deque[LeasedBatch] = deque()

    def pump(self) -> None:
        """Send what is held and ask the broker for more, as far as credit and the socket allow."""
        connection = self._connection
        standing = connection.session.subscriptions.get(self.number)
        source = self.source
        if source is None or standing is None or not standing.active or standing.leaving:
            return
        if self._held and standing.credit_bytes > 0 and connection.may_push:
            held, self._held = list(self._held), deque()
            if not self._send(held):
                return
        if self._held or standing.credit_bytes <= 0 or not connection.may_push:
            return
        wanted = min(self._portion, standing.credit_messages) - self._granted
        if wanted > 0 and (self._granted == 0 or wanted * 2 >= self._portion):
            self._granted += wanted
            source.credit(wanted)

    def deliver(self, leased: list[LeasedBatch]) -> None:
        """The broker leased these for us."""
        count = size = 0
        for one in leased:
            count += one.batch.count
            size += one.batch.size_bytes
        self._granted = max(0, self._granted - count)
        if count:
            fitting = PUSH_PORTION_BYTES * count // max(size, 1)
            self._portion = min(max(fitting, 1), PUSH_PORTION_MESSAGES_MAX)
        if self._held:
            self._held.extend(leased)
        else:
            self._send(leased)
        self._connection.pump_soon(self)

    def stop(self) -> None:
        """No more pushes: take the credit back from the broker, give back what is held."""
        granted, self._granted = self._granted, 0
        if self.source is not None and granted:
            self.source.credit(-granted)
        held, self._held = list(self._held), deque()
        self._connection.give_back(self.group, held)

    def withdraw(self) -> None:
        """The client has taken its credit back; what the broker has leased for us meanwhile goes back when it comes."""
        self._granted = 0
        if self.source is not None:
            self.source.withdraw()
        held, self._held = list(self._held), deque()
        self._connection.give_back(self.group, held)

    def _send(self, leased: list[LeasedBatch]) -> bool:
        """Write within the credit and what may be unsent; the rest is held. False: the subscription is over."""
        connection = self._connection
        session = connection.session
        hard_bytes = session.peer_frame_bytes_max - _FRAME_MARGIN_BYTES
        portions = pieces(leased, PUSH_PORTION_BYTES, hard_bytes)
        for portion in portions:
            standing = session.subscriptions.get(self.number)
            if standing is not None and sum([one.batch.count for one in portion]) > standing.credit_messages:
                connection.give_back(self.group, portion)  # the credit was withdrawn
                continue
            no_credit = standing is not None and standing.credit_bytes <= 0
            if no_credit or self._held or not connection.may_push:
                self._held.extend(portion)
                if not no_credit:
                    connection.pump_soon(self)  # in the next round, should the socket take more by then
                continue
            runs = [run for one in portion for run in delivered_runs(one)]
            lease_ns = connection.span_until(min(one.deadline_ns for one in portion))
            connection.pushed(sum(one.batch.size_bytes for one in portion))
            try:
                sent = session.send_deliveries(self.number, runs, [one.batch.buffers() for one in portion], lease_ns)
            except errors.HeadraceError as error:
                connection.give_back(self.group, [*portion, *(one for more in portions for one in more)])
                connection.end_push(self, error)
                return False
            if not sent:
                connection.give_back(self.group, [*portion, *(one for more in portions for one in more)])
                return False
        connection.touch()
        return True
