"""A broker over the network, as threads see it: the sync port of ``headrace.calls`` around a line.

One lock guards the line. Whoever asks writes what it can at once, in its own thread; a thread of the port reads,
connects, and writes what did not fit into the socket. Nobody ever blocks in a send.

A lone caller. One who asks and waits, again and again, would pay for two switches between threads with every answer, as
much as a quick disk takes for its sync. So the one who waits may read the socket itself:

    thread reads ──an answer came for a lone caller──► parked ──CLIENT_PARKED_NS without a caller──► thread reads
                                                       │    ▲
                                     a caller who waits│    │has its answer
                                                       ▼    │
                                                      leading ──something else is under way, or the end──► thread reads

While it is parked the thread sleeps on its own pair of sockets and does what is due; nobody reads then, which is why it
lasts for a moment only and never while there is a consumer or an answer that nobody waits for. ``_parked`` and
``_leading`` are written with the lock held.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Condition, Event, RLock, Thread
from typing import TYPE_CHECKING, Any, Final

from headrace.batch import Batch, encode_plain
from headrace.calls import BY_KEY, LeasedBatch, Part, Place, Run, Settle, Settled, Tended, place_of
from headrace.client.address import Address, parse_address
from headrace.client.arguments import Duration, span_ns
from headrace.client.asking import (
    Asking,
    answer_or_raise,
    count_of,
    parts_of,
    result_of,
    runs_settled,
    settled_of,
    tended_of,
)
from headrace.client.line import Line, Request
from headrace.client.steady import steady
from headrace.client.tls import Plain, Secured, client_context
from headrace.clock import Clock, SystemClock
from headrace.errors import Closed, HeadraceError, LeaseLost, TimedOut, from_code
from headrace.limits import (
    CLIENT_CONNECT_TIMEOUT_NS,
    CLIENT_GOODBYE_NS,
    CLIENT_LEAD_NS,
    CLIENT_OUTAGE_NS_MAX,
    CLIENT_PARKED_NS,
    CLIENT_RECEIVE_BYTES,
    CLIENT_RECONNECT_NS,
    CLIENT_RECONNECT_NS_MAX,
    SECOND_NS,
)

if TYPE_CHECKING:
    import ssl

__all__ = ["NetworkConsumer", "NetworkPort", "open_port"]

_READ: Final = selectors.EVENT_READ
_BOTH: Final = selectors.EVENT_READ | selectors.EVENT_WRITE


def open_port(
    url: str,
    *,
    token: str | None = None,
    namespace: str | None = None,
    name: str = "",
    ca_file: str | Path | None = None,
    tls: ssl.SSLContext | None = None,
    connect_timeout: Duration | None = None,
    outage: Duration | None = None,
    clock: Clock | None = None,
) -> NetworkPort:
    """Connect; raises what is wrong when that does not succeed within ``connect_timeout``.

    Later outages are waited for, each request up to ``outage``.
    """
    address = parse_address(url, namespace=namespace, token=token)
    timeout_ns = CLIENT_CONNECT_TIMEOUT_NS if connect_timeout is None else span_ns("connect_timeout", connect_timeout)
    outage_ns = CLIENT_OUTAGE_NS_MAX if outage is None else span_ns("outage", outage)
    context = (tls or client_context(ca_file)) if address.tls or tls is not None or ca_file is not None else None
    port = NetworkPort(address, name, context, outage_ns, clock or SystemClock())
    try:
        port.await_connection(timeout_ns)
    except BaseException:
        port.close()
        raise
    return port


class _Answer:
    """What a request came to, once it has come to it. Put, with the port's lock held, by whoever reads."""

    __slots__ = ("_came", "_port", "_value", "is_there")

    def __init__(self, port: NetworkPort) -> None:
        self._port = port
        self._came: Event | None = None
        self._value: Any = None
        self.is_there = False

    def put(self, value: Any) -> None:
        self._value = value
        self.is_there = True
        if self._came is not None:
            self._came.set()

    def coming(self) -> Event:
        """What is set when it comes; with the port's lock held."""
        if self._came is None:
            self._came = Event()
        return self._came

    def get(self, timeout: float | None = None, what: str = "the request") -> Any:
        if not self.is_there and not self._port.wait_for(self, timeout):
            raise TimedOut(f"{what} was not answered within {timeout:g}s; it may still happen")
        return answer_or_raise(self._value)


class _PendingPublish:
    """A publish under way."""

    __slots__ = ("_answer",)

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer

    def result(self, timeout: float | None = None) -> list[Part]:
        return parts_of(self._answer.get(timeout, "a publish"))

    def done(self) -> bool:
        return self._answer.is_there


class NetworkPort:
    """See the head of this file."""

    def __init__(
        self, address: Address, name: str, context: ssl.SSLContext | None, outage_ns: int, clock: Clock
    ) -> None:
        self.address = address
        self.now_ns = steady(clock)
        """What deadlines of deliveries are in."""
        self._context = context
        self._lock = RLock()
        self.line = Line(
            where=str(address),
            client=name or "headrace-python",
            token=address.token,
            namespace=address.namespace,
            outage_ns=outage_ns,
            now_ns=self.now_ns,
        )
        self._asking = Asking(self.line, address.namespace)
        self._state = Condition(self._lock)
        self._socket: socket.socket | None = None
        self._bytes: Plain | Secured = Plain()
        self._unsent = bytearray()
        self._waker, self._wakened = socket.socketpair()
        self._wakened.setblocking(False)
        self._waker.setblocking(False)
        self._closing = False
        self._reading: socket.socket | None = None  # the same socket, for who leads: it may wait in it
        self._parked = False
        self._leading = False
        self._lone_calls = 0
        self._lone_calls_seen = 0
        self._thread = Thread(target=self._run, name="headrace-network", daemon=True)
        self._thread.start()

    # -- the calls ---------------------------------------------------------------------------------------------------

    def publish(self, namespace: str, topic: str, partition: int, batch: Batch) -> list[Part]:
        answer = _Answer(self)
        self._ask(self._asking.publish(namespace, topic, partition, batch, answer.put))
        return parts_of(answer.get())

    def publish_value(self, namespace: str, topic: str, value: bytes, key: bytes | None) -> Place:
        return place_of(self.publish(namespace, topic, BY_KEY, encode_plain(value, key)))

    def publish_begin(self, namespace: str, topic: str, partition: int, batch: Batch) -> _PendingPublish:
        answer = _Answer(self)
        with self._lock:
            self._ask(self._asking.publish(namespace, topic, partition, batch, answer.put))
            if self._parked and not self._leading:
                self._wake()  # nobody may come to wait for it
        return _PendingPublish(answer)

    def consumer(
        self,
        namespace: str,
        topic: str,
        group: str,
        *,
        consumer: str,
        lease_ns: int | None = None,
        prefetch: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> NetworkConsumer:
        return NetworkConsumer(self, self._asking, namespace, topic, group, consumer, lease_ns, prefetch, options)

    def settle(self, namespace: str, topic: str, group: str, order: Settle) -> Settled:
        answer = _Answer(self)
        self._ask(self._asking.settle(namespace, topic, group, order, answer.put))
        settled = settled_of(answer.get(), order)
        with self._lock:
            self.line.group_settled(topic, group, count_of(order))
        return settled

    def call(self, method: str, **arguments: Any) -> Any:
        answer = _Answer(self)
        self._ask(self._asking.call(method, arguments, answer.put))
        return result_of(method, answer.get())

    def _ask(self, request: Request) -> None:
        with self._lock:
            self.line.ask(request)
            self.flush()

    @property
    def lock(self) -> RLock:
        """What guards the line."""
        return self._lock

    # -- waiting -----------------------------------------------------------------------------------------------------

    def wait_for(self, answer: _Answer, timeout: float | None) -> bool:
        """Until an answer is there; False when it took longer than ``timeout`` seconds."""
        until_ns = None if timeout is None else self.now_ns() + int(timeout * SECOND_NS)
        while True:
            with self._lock:
                if answer.is_there:
                    return True
                if self.line.lone:
                    self._lone_calls += 1
                may_lead = self._parked and not self._leading and self._reading is not None
                coming = None if may_lead else answer.coming()
            if may_lead and not self._lead(answer, until_ns):
                return answer.is_there
            if coming is not None:
                return coming.wait(None if until_ns is None else max(0, until_ns - self.now_ns()) / SECOND_NS)

    def _lead(self, answer: _Answer, until_ns: int | None) -> bool:
        """Read until the answer is there; then, or when it is somebody else's turn to read, the lead is given up. False
        when time is up. The lead is taken where an interrupt cannot keep it from being given up."""
        reading = None
        try:
            with self._lock:
                came = answer.is_there
                if came or not self._parked or self._leading or self._reading is None:
                    return True
                reading = self._reading
                self._leading = True
            while True:
                try:
                    data: bytes | None = reading.recv(CLIENT_RECEIVE_BYTES)
                except TimeoutError:
                    data = None
                except OSError:
                    data = b""  # the thread finds out why
                with self._lock:
                    if data is not None and reading is self._reading:
                        if data:
                            self._received(data)
                            self.flush()
                        else:
                            self._parked = False
                    if answer.is_there or not self._parked or reading is not self._reading:
                        return True
                    if until_ns is not None and self.now_ns() >= until_ns:
                        return False
        finally:
            if reading is not None:
                self._stop_leading(reading)

    def _stop_leading(self, reading: socket.socket) -> None:
        with self._lock:
            self._leading = False
            if not self._parked or self.line.busy or self.line.session is None:
                self._parked = False
                self._wake()
            if reading is not self._reading:
                self._state.notify_all()  # the thread waits to close it

    # -- writing -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what the line has to say, as far as the socket takes it; with the lock held."""
        if self._socket is None or not self._bytes.ready:
            return
        buffers = self.line.outgoing()
        if buffers:
            self._write(self._bytes.seal(buffers))
        if self.line.due_earlier:
            self._change_due()

    def _write(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        sent = 0
        if self._socket is not None:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the reading thread finds out why
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]
            self._wake()

    def _change_due(self) -> None:
        """The thread sleeps until what was due when it went to sleep; wake it when something is due earlier."""
        self.line.due_seen()
        due_ns = self.line.next_due_ns()
        if due_ns is not None and due_ns < self._sleeps_until_ns:
            self._wake()

    _sleeps_until_ns = 0

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake anyway; closed: there is nobody to wake
            self._waker.send(b"\0")

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_ns = CLIENT_RECONNECT_NS
        while True:
            with self._lock:
                if self._closing or not self.line.wants_connection:
                    return
            try:
                found = self._connect()
            except OSError as error:
                with self._lock:
                    self.line.failed_to_connect(_reason(error, self.address))
                    self._state.notify_all()
            else:
                if self._converse(found):
                    pause_ns = CLIENT_RECONNECT_NS
            self._rest(pause_ns)
            pause_ns = min(2 * pause_ns, CLIENT_RECONNECT_NS_MAX)

    def _connect(self) -> socket.socket:
        found = socket.create_connection(
            (self.address.host, self.address.port), timeout=CLIENT_CONNECT_TIMEOUT_NS / SECOND_NS
        )
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found.setblocking(False)
        return found

    def _rest(self, pause_ns: int) -> None:
        """Between two tries to connect; ``close`` ends it."""
        with self._lock:
            until_ns = self.now_ns() + pause_ns
            while not self._closing and (left_ns := until_ns - self.now_ns()) > 0:
                self._state.wait(left_ns / SECOND_NS)
            self.line.on_due()

    def _converse(self, found: socket.socket) -> bool:
        """Speak over a socket until it ends; was that of any use?"""
        with self._lock:
            self._socket = found
            self._unsent = bytearray()
            self._bytes = Plain() if self._context is None else Secured(self._context, self.address.host)
            self._reading = found.dup()
            self._reading.settimeout(CLIENT_LEAD_NS / SECOND_NS)
            self._write(self._bytes.begin())
            self.line.connected()
            self.flush()
        reading, reason = self._reading, ""
        with selectors.DefaultSelector() as selector, selectors.DefaultSelector() as parked:
            parked.register(self._wakened, _READ)
            selector.register(self._wakened, _READ)
            selector.register(found, _READ)
            try:
                while self.line.session is not None:
                    self._wait(selector, parked, found)
            except OSError as error:
                reason = _reason(error, self.address)
        with self._lock:
            self._parked = False
            self._reading = None
            self.line.ended(reason)
            self._socket = None
            self._unsent = bytearray()
            self._state.notify_all()
        with contextlib.suppress(OSError):
            found.shutdown(socket.SHUT_RDWR)  # whoever leads returns
        found.close()
        with self._lock:
            while self._leading:
                self._state.wait()
        reading.close()
        return self.line.worked

    def _wait(self, selector: selectors.BaseSelector, parked: selectors.BaseSelector, found: socket.socket) -> None:
        with self._lock:
            due_ns = self.line.next_due_ns()
            now_ns = self.now_ns()
            self._sleeps_until_ns = now_ns + 3600 * SECOND_NS if due_ns is None else due_ns
            self._parked = self._leading or self._may_park()
            wait_ns = self._sleeps_until_ns - now_ns
            if self._parked:
                wait_ns = min(wait_ns, CLIENT_PARKED_NS)
            else:
                selector.modify(found, _BOTH if self._unsent else _READ)
            events_of = parked if self._parked else selector
        events = events_of.select(max(0, wait_ns) / SECOND_NS)
        readable = writable = False
        for key, mask in events:
            if key.fileobj is found:
                readable = readable or bool(mask & _READ)
                writable = writable or bool(mask & selectors.EVENT_WRITE)
            else:
                with contextlib.suppress(BlockingIOError):
                    self._wakened.recv(4096)
        data = found.recv(CLIENT_RECEIVE_BYTES) if readable else None
        with self._lock:
            if writable and self._unsent:
                sent = found.send(self._unsent)
                del self._unsent[:sent]
            if data is not None:
                self._received(data)
            if self.now_ns() >= self._sleeps_until_ns:
                self.line.on_due()
            self.flush()

    def _may_park(self) -> bool:
        """Whether to leave the socket to callers for a moment: there was a lone one since this was last asked, and
        nothing that comes now would be for anybody else."""
        came = self._lone_calls != self._lone_calls_seen
        self._lone_calls_seen = self._lone_calls
        return came and not self._unsent and not self.line.busy and self.line.up and self._reading is not None

    def _received(self, data: bytes) -> None:
        was_up = self.line.up
        said, answer = self._bytes.open(data)
        if answer:
            self._write(answer)
        if said:
            self.line.received(said)
        if not data:
            self.line.ended("the server closed the connection")
        if self.line.up is not was_up or self.line.failure is not None:
            self._state.notify_all()

    # -- the beginning and the end -----------------------------------------------------------------------------------

    def await_connection(self, timeout_ns: int) -> None:
        """Until the server has said WELCOME; raises why it does not."""
        with self._lock:
            until_ns = self.now_ns() + timeout_ns
            while not self.line.up:
                if self.line.failure is not None:
                    raise self.line.failure
                left_ns = until_ns - self.now_ns()
                if left_ns <= 0 or (self.line.connections == 0 and self.line.trouble):
                    raise TimedOut(f"cannot connect to {self.address}: {self.line.trouble or 'no answer'}")
                self._state.wait(left_ns / SECOND_NS)

    def close(self) -> None:
        """Say goodbye and let go of the socket; what is under way fails."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self.line.close()
            self.flush()
            self._state.notify_all()
        self._wake()
        self._thread.join(CLIENT_GOODBYE_NS / SECOND_NS)
        with self._lock:
            if self._socket is not None:
                self._socket.close()
        self._waker.close()
        self._wakened.close()


def _reason(error: OSError, address: Address) -> str:
    if isinstance(error, TimeoutError):
        return "no answer from there in time"
    return f"{error.strerror or error}"


class NetworkConsumer:
    """One consumer: the server pushes as far as its credit goes; what is asked for beyond that is pulled, and all of it
    while the credit is withheld (``channel.Channel``)."""

    def __init__(
        self,
        port: NetworkPort,
        asking: Asking,
        namespace: str,
        topic: str,
        group: str,
        consumer: str,
        lease_ns: int | None,
        prefetch: int,
        options: Mapping[str, Any] | None,
    ) -> None:
        self._port = port
        self._asking = asking
        self._names = (namespace, topic, group)
        self._line = port.line
        self._changed = Condition(port.lock)
        self._channel = asking.channel(
            namespace, topic, group, consumer, lease_ns, prefetch, options, self._changed.notify_all
        )
        self._pulling = False
        self._pull_again = False
        self._unanswered: dict[int, Settle] = {}
        self._unconfirmed = 0
        self._refusal: HeadraceError | None = None
        self._interrupted = False
        self._closed = False
        answer = _Answer(port)
        with port.lock:
            self._line.open_channel(self._channel, answer.put)
            port.flush()
        answer.get()

    @property
    def life(self) -> int:
        return self._channel.life

    @property
    def auto_ack(self) -> bool:
        return self._channel.auto_ack

    def receive(self, most: int, wait_ns: int) -> list[LeasedBatch]:
        channel, now_ns = self._channel, self._port.now_ns
        with self._port.lock:
            channel.ask(now_ns())
            try:
                return self._await(most, wait_ns)
            finally:
                channel.asked(now_ns())
                self._port.flush()

    def _await(self, most: int, wait_ns: int) -> list[LeasedBatch]:
        channel, now_ns = self._channel, self._port.now_ns
        until_ns = now_ns() + wait_ns
        pulled = False
        while True:
            if channel.waits:
                taken = channel.take(most, now_ns())
                if taken:
                    return taken
            if channel.error is not None:
                raise channel.error
            if self._interrupted:
                return []
            left_ns = until_ns - now_ns()
            if self._pull_again:
                self._pull_again = pulled = False
            if not (pulled or self._pulling or channel.returning) and (
                wait_ns == 0 or most > channel.credit or channel.withheld
            ):
                pulled = True
                pushed = channel.credit > 0 and not channel.withheld
                self._pull(most, 0 if pushed else max(left_ns, 0))
                continue
            if left_ns <= 0 and not self._pulling and (pulled or wait_ns > 0 or not channel.returning):
                return []
            self._changed.wait(left_ns / SECOND_NS if left_ns > 0 and not self._pulling else None)

    def _pull(self, most: int, wait_ns: int) -> None:
        self._pulling = True
        self._line.ask(self._asking.lease(self._channel, most, wait_ns, self._pulled))
        self._port.flush()

    def _pulled(self, answer: Any) -> None:
        self._pulling = False
        if isinstance(answer, HeadraceError):
            self._channel.error = self._channel.error or answer
        elif answer is not None:
            self._pull_again = not self._channel.put(answer, self._port.now_ns(), pushed=False)
        else:
            self._pull_again = True  # its connection broke, and what it brought came to nobody
        self._changed.notify_all()

    def settle(self, order: Settle) -> Settled:
        answer = _Answer(self._port)
        self._send(order, answer.put)
        return settled_of(answer.get(), order)

    def settle_soon(self, order: Settle) -> None:
        with self._port.lock:
            self._unconfirmed += 1
        self._send(order, lambda answer: self._settled_soon(answer, order))

    def _send(self, order: Settle, reply: Callable[[Any], None]) -> None:
        def answered(answer: Any) -> None:
            del self._unanswered[id(order)]
            reply(answer)

        with self._port.lock:
            self._channel.settled(count_of(order))
            self._unanswered[id(order)] = order
            self._line.ask(self._asking.settle(*self._names, order, answered))
            self._port.flush()

    def tend(self, order: Settle, tended: Tended) -> None:
        with self._port.lock:
            if order.extend:
                extend = Settle(extend=order.extend)
                self._line.ask(
                    self._asking.settle(*self._names, extend, lambda answer: tended(tended_of(answer, extend)))
                )
            if order.release:
                self._channel.give_back(order.release)
            self._port.flush()

    def tell_held(self, held: Callable[[], Sequence[Run]]) -> None:
        self._channel.tells_held = lambda: [*held(), *runs_settled(self._unanswered.values())]

    def _settled_soon(self, answer: Any, order: Settle) -> None:
        self._unconfirmed -= 1
        if isinstance(answer, HeadraceError):
            self._refusal = self._refusal or answer
        elif answer.refusals:
            refusal = settled_of(answer, order).refused[0]
            self._refusal = self._refusal or from_code(refusal.code, refusal.message)
        self._changed.notify_all()

    def flush(self) -> None:
        with self._port.lock:
            while self._unconfirmed:
                self._changed.wait()
            refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    def interrupt(self) -> None:
        with self._port.lock:
            self._interrupted = True
            self._changed.notify_all()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self.flush()
        finally:
            answer = _Answer(self._port)
            with self._port.lock:
                self._line.close_channel(self._channel, answer.put)
                self._port.flush()
            with contextlib.suppress(Closed, LeaseLost):  # the connection is gone, and the subscription with it
                answer.get()
