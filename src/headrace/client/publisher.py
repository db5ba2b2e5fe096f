"""Publishing one by one without waiting for each, from any number of threads.

Messages gather into a batch; it leaves when it is full, when its first message has waited for the linger, or when
somebody waits for one of its receipts. Batches leave in order, a few at a time; when as many are under way as may be,
``publish`` waits for the oldest: that is the back-pressure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import Lock, RLock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headrace.calls import Part, Pending
from headrace.client.arguments import Duration, Key, Value, span_ns
from headrace.client.gathering import Gathering
from headrace.client.message import Message
from headrace.client.published import Published, places
from headrace.errors import Closed, HeadraceError
from headrace.limits import (
    CLIENT_PUBLISHER_BYTES_MAX,
    CLIENT_PUBLISHER_MESSAGES_MAX,
    CLIENT_WINDOW,
    SECOND_NS,
)

if TYPE_CHECKING:
    from headrace.client.handles import Headrace

__all__ = ["Publisher", "Receipt"]


class _Batch(Gathering):
    """A gathering on its way."""

    __slots__ = ("_error", "_lock", "_places", "pending", "publisher", "seen", "since_ns")

    def __init__(self, publisher: Publisher) -> None:
        super().__init__()
        self.publisher = publisher
        self.since_ns = 0
        self.pending: Pending | None = None
        self.seen = False
        self._lock = Lock()
        self._places: Sequence[Published] | None = None
        self._error: HeadraceError | None = None

    def wait(self, timeout: float | None = None) -> list[Part]:
        """Until it is durable; raises what it was refused with."""
        if self._error is not None:
            raise self._error
        pending = self.pending or self.publisher.send(self)
        try:
            return pending.result(timeout)
        except HeadraceError as error:
            if error.code != "timeout":
                self._error = error
            raise

    def place(self, index: int, timeout: float | None) -> Published:
        self.seen = True
        parts = self.wait(timeout)
        with self._lock:
            if self._places is None:
                self._places = places(parts, self.count)
            return self._places[index]


class Receipt:
    """One message under way."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: _Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    def result(self, timeout: Duration | None = None) -> Published:
        """Wait until it is durable; where it lies. Raises what it was refused with, TimedOut when it took longer."""
        return self._batch.place(self._index, None if timeout is None else span_ns("timeout", timeout) / SECOND_NS)


class Publisher:
    """See the head of this file; made by ``topic.publisher()``.

    >>> import headrace
    >>> with headrace.open(":memory:") as hr:
    ...     with hr.topic("clicks").publisher() as clicks:
    ...         receipts = [clicks.publish(f"click {n}", key="user-1") for n in range(1000)]
    ...     receipts[999].result().offset
    999
    """

    def __init__(self, client: Headrace, topic_name: str, partition: int, linger_ns: int) -> None:
        self._client = client
        self.topic_name = topic_name
        self._partition = partition
        self._linger_ns = linger_ns
        self._now_ns = client.keeper.now_ns
        self._lock = RLock()
        self._gathering = _Batch(self)
        self._under_way: deque[_Batch] = deque()
        self._messages_under_way = 0
        self._bytes_under_way = 0
        self._failure: HeadraceError | None = None
        self._closed = False
        client.keeper.add(self)
        client.remember(self)

    def publish(self, value: Value | Message | None = None, key: Key | None = None, **properties: Any) -> Receipt:
        """Take a message (arguments as those of ``topic.publish``); it is durable when its receipt's result is there,
        or after ``flush`` or ``close``."""
        with self._lock:
            if self._closed:
                raise Closed("this publisher is closed")
            batch = self._gathering
            if batch.count and Gathering.is_large(value):
                self._send()
                batch = self._gathering
            index = batch.add(value, key, properties)
            if index == 0:
                batch.since_ns = self._now_ns()
                if self._linger_ns:
                    self._client.keeper.attend(batch.since_ns + self._linger_ns)
                else:
                    self._send()
            elif batch.full or (not index & 31 and self._now_ns() - batch.since_ns >= self._linger_ns):
                self._send()
            return Receipt(batch, index)

    # -- sending -----------------------------------------------------------------------------------------------------

    def send(self, batch: _Batch) -> Pending:
        """Somebody waits for it."""
        with self._lock:
            if batch.pending is None:
                self._send()
            return batch.pending or _Refused(Closed("this publisher is closed"))

    def _send(self) -> None:
        """Send what has gathered, once there is room."""
        batch = self._gathering
        if not batch.count:
            return
        while self._under_way and (
            len(self._under_way) >= CLIENT_WINDOW
            or self._messages_under_way + batch.count > CLIENT_PUBLISHER_MESSAGES_MAX
            or self._bytes_under_way + batch.bytes > CLIENT_PUBLISHER_BYTES_MAX
        ):
            self._await_oldest()
        self._gathering = _Batch(self)
        client = self._client
        try:
            batch.pending = client.port.publish_begin(client.namespace, self.topic_name, self._partition, batch.batch())
        except HeadraceError as error:
            batch.pending = _Refused(error)
        self._under_way.append(batch)
        self._messages_under_way += batch.count
        self._bytes_under_way += batch.bytes

    def _await_oldest(self) -> None:
        batch = self._under_way.popleft()
        self._messages_under_way -= batch.count
        self._bytes_under_way -= batch.bytes
        try:
            batch.wait()
        except HeadraceError as error:
            if not batch.seen:
                self._failure = self._failure or error

    def keep(self, now_ns: int) -> int | None:
        """The keeper's visit: send what has waited long enough."""
        with self._lock:
            batch = self._gathering
            if self._closed:
                return None
            due_ns = batch.since_ns + self._linger_ns
            if batch.count and due_ns > now_ns:
                return due_ns
            while self._under_way and _is_done(self._under_way[0]):
                self._await_oldest()
            if batch.count:
                if len(self._under_way) >= CLIENT_WINDOW:
                    return now_ns + self._linger_ns  # the publishing thread, or a receipt, will wait; not this one
                self._send()
            if self._under_way:
                _is_done(self._under_way[-1])  # a broker in this process syncs when it is asked
            return None

    # -- the end -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Wait until everything published so far is durable; raises the first refusal that no receipt was asked for."""
        with self._lock:
            self._send()
            while self._under_way:
                self._await_oldest()
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Flush, and take no more."""
        if self._closed:
            return
        try:
            self.flush()
        finally:
            self._closed = True
            self._client.keeper.remove(self)
            self._client.forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<publisher to {self.topic_name!r}>"


def _is_done(batch: _Batch) -> bool:
    return batch.pending is not None and batch.pending.done()


class _Refused:
    """A batch that could not even be sent."""

    __slots__ = ("_error",)

    def __init__(self, error: HeadraceError) -> None:
        self._error = error

    def result(self, timeout: float | None = None) -> list[Part]:
        raise self._error

    def done(self) -> bool:
        return True
