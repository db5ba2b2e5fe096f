"""What both sides of a connection share: reassembly, legality, heartbeats, closing.

The face, the same as every protocol session's (the shell feeds it and does what it says):

    receive_bytes(data, now_ns)   bytes came            receive_eof(now_ns)   no more will come
    events()                      what they meant       send_…()              say something
    outgoing()                    buffers to write      next_due_ns()         when to call on_due(now_ns)
    close_planned                 write outgoing(), then close the socket

Rules:

- Nothing that comes from the peer raises. A fault is: CLOSE with its error, one `Closed` event, ``close_planned``;
  later bytes are not looked at. What the caller of ``send_…`` got wrong raises one of ``errors``.
- Every connection ends in exactly one `Closed` event, whoever ended it.
- A frame that lies whole in one chunk is read where it lies. One that does not is gathered in a bytearray that grows
  by what came, not by what was claimed, after its length, kind and legality have been judged; it is read there, not
  copied again.
- Time is an argument; it must not go back. Any received byte is a sign of life.
- Backpressure: while ``reading_paused`` the shell stops reading; it also stops while its own write buffer is full, so
  that a peer that does not read cannot make replies pile up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import msgspec

from headrace import errors, limits
from headrace.wire.native.codes import error_of, number_of, retry_after_of
from headrace.wire.native.decoding import EXPECTED
from headrace.wire.native.encoding import ENCODERS
from headrace.wire.native.frames import NEED_MORE, ORDINARY, Failure, build, decode_frame, frame_end
from headrace.wire.native.layouts import HEADER, HEADER_BYTES, LENGTH_BYTES
from headrace.wire.native.packets import Buffer, Close, Kind, Packet, Ping, Pong
from headrace.wire.native.states import Rule, State, Table


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one side allows its peer; the reasons stand beside the defaults in ``limits``."""

    hello_bytes_max: int = limits.NATIVE_HELLO_BYTES_MAX
    frame_bytes_max: int = limits.NATIVE_FRAME_BYTES_DEFAULT
    requests_max: int = limits.NATIVE_REQUESTS_MAX
    request_bytes_max: int = limits.NATIVE_REQUEST_BYTES_MAX
    subscriptions_max: int = limits.NATIVE_SUBSCRIPTIONS_MAX
    credit_messages_max: int = limits.NATIVE_CREDIT_MESSAGES_MAX
    credit_bytes_max: int = limits.NATIVE_CREDIT_BYTES_MAX
    hello_timeout_ns: int = limits.NATIVE_HELLO_TIMEOUT_NS
    heartbeat_ns: int = limits.NATIVE_HEARTBEAT_NS
    heartbeat_ns_min: int = limits.NATIVE_HEARTBEAT_NS_MIN
    heartbeat_ns_max: int = limits.NATIVE_HEARTBEAT_NS_MAX
    frame_timeout_ns: int = limits.NATIVE_FRAME_TIMEOUT_NS
    frame_rate_min: int = limits.NATIVE_FRAME_RATE_MIN


By: TypeAlias = Literal["us", "peer", "end"]


class Closed(msgspec.Struct, frozen=True):
    """The last event of a connection; ``error`` is None when nothing was wrong. ``end``: it ended without CLOSE."""

    error: errors.HeadraceError | None
    by: By


Event: TypeAlias = Packet | Closed

_PREFIX_BYTES: Final = 5
"""Length and kind: enough to judge a frame."""


class Subscription:
    """One subscription's credit, as both sides count it. ``active`` since SUBSCRIBED, ``leaving`` since UNSUBSCRIBE."""

    __slots__ = ("active", "credit_bytes", "credit_messages", "leaving")

    def __init__(self, credit_messages: int, credit_bytes: int) -> None:
        self.active = False
        self.leaving = False
        self.credit_messages = credit_messages
        self.credit_bytes = credit_bytes

    def spend(self, messages: int, size_bytes: int) -> bool:
        """Take a delivery from the credit; False (and nothing taken) when it is not covered."""
        if messages > self.credit_messages or self.credit_bytes <= 0:
            return False
        self.credit_messages -= messages
        self.credit_bytes -= size_bytes
        return True


class Session:
    """See the head of this file; `ServerSession` and `ClientSession` say what the packets mean."""

    __slots__ = (
        "_began_ns",
        "_due_ns",
        "_events",
        "_frame_bytes_max",
        "_frame_due_ns",
        "_heard_ns",
        "_heartbeat_ns",
        "_out",
        "_pending",
        "_pinged_ns",
        "_sends",
        "_table",
        "close_planned",
        "due_earlier",
        "limits",
        "peer_frame_bytes_max",
        "state",
        "subscriptions",
    )

    def __init__(self, table: Table, sends: dict[State, frozenset[Kind]], bounds: Limits, now_ns: int) -> None:
        least, most = limits.NATIVE_FRAME_BYTES_MIN, limits.NATIVE_FRAME_BYTES_MAX
        if not least <= bounds.frame_bytes_max <= most:
            raise errors.InvalidArgument(f"frame_bytes_max is {bounds.frame_bytes_max}; it can be {least} to {most}")
        self._table = table
        self._sends = sends
        self.limits = bounds
        self.state = State.OPENING
        self.close_planned: Closed | None = None
        self.due_earlier = True
        """Whether ``next_due_ns`` may have become earlier since the shell last asked and cleared this."""
        self.subscriptions: dict[int, Subscription] = {}
        self.peer_frame_bytes_max = limits.NATIVE_HELLO_BYTES_MAX
        self._frame_bytes_max = bounds.hello_bytes_max
        self._heartbeat_ns = 0
        self._pending = bytearray()
        self._events: list[Event] = []
        self._out: list[Buffer] = []
        self._heard_ns = now_ns
        self._pinged_ns: int | None = None
        self._began_ns = now_ns
        self._frame_due_ns = 0
        self._due_ns: int | None = now_ns + bounds.hello_timeout_ns  # of the opening; later of the draining

    # -- the face ------------------------------------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return len(self._pending)

    def events(self) -> list[Event]:
        """What has happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def outgoing(self) -> list[Buffer]:
        """Buffers to write, in order; they are handed over once."""
        out, self._out = self._out, []
        return out

    def receive_bytes(self, data: Buffer, now_ns: int) -> None:
        """Take what the peer sent. ``bytes`` are read in place; other buffers are copied, they may change."""
        if self.close_planned is not None:
            return
        self._heard_ns = now_ns
        self._pinged_ns = None
        view = memoryview(data if isinstance(data, bytes) else bytes(data))
        at = self._continue(view) if self._pending else 0
        end = len(view)
        while at < end and self.close_planned is None:
            if end - at >= HEADER_BYTES and (stop := self._take_ordinary(view, at, end)):
                at = stop
                continue
            stop = self._judge(view, at)
            if stop < 0:
                return
            if stop == 0 or stop > end:
                self._begin(view[at:], stop - at, now_ns)
                return
            self._take(view, at, stop)
            at = stop

    def receive_eof(self, now_ns: int) -> None:
        """The peer's stream has ended."""
        if self.close_planned is None:
            self._heard_ns = now_ns
            self._end(Closed(errors.Closed("the connection ended without CLOSE"), "end"))

    def next_due_ns(self) -> int | None:
        """When `on_due` wants to be called; None: never (closing)."""
        if self.close_planned is not None:
            return None
        due_ns = self._due_ns
        if self._pending and (due_ns is None or self._frame_due_ns < due_ns):
            due_ns = self._frame_due_ns
        if self._heartbeat_ns:
            if self._pinged_ns is None:
                beat_ns = self._heard_ns + self._heartbeat_ns
            else:
                beat_ns = self._pinged_ns + self._heartbeat_ns * 3 // 2
            if due_ns is None or beat_ns < due_ns:
                due_ns = beat_ns
        return due_ns

    def on_due(self, now_ns: int) -> None:
        """Do what is due; calling early does nothing."""
        if self.close_planned is not None:
            return
        if self._due_ns is not None and now_ns >= self._due_ns:
            self._fault(self._overdue())
        elif self._pending and now_ns >= self._frame_due_ns:
            waited_ns = now_ns - self._began_ns
            self._fault(errors.TimedOut(f"a frame was begun {_seconds(waited_ns)} ago and is not whole"))
        elif self._heartbeat_ns:
            self._beat(now_ns)

    def send_close(self, error: errors.HeadraceError | None = None) -> None:
        """End the connection: CLOSE is the last frame. Nothing happens when it is closing already."""
        self._fault(error)

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _take_ordinary(self, view: memoryview, at: int, end: int) -> int:
        """Take the frame at ``at`` in one go, if it is all there and nothing about it wants a word: where it ends. 0:
        nothing was done, it has to be judged step by step."""
        length, kind, flags, correlation = HEADER.unpack_from(view, at)
        stop: int = at + LENGTH_BYTES + length
        row = ORDINARY.get(kind)
        if row is None or stop > end or flags or not correlation:
            return 0
        decoder, length_max = row
        if not 6 <= length <= length_max or length > self._frame_bytes_max:
            return 0
        if self._table[self.state][kind] is not Rule.TAKE:
            return 0
        try:
            packet = decoder(view[at:stop], HEADER_BYTES, stop - at, 0, correlation)
        except (errors.HeadraceError, *EXPECTED):
            return 0
        self._handle(packet, stop - at)
        return stop

    def _judge(self, buffer: memoryview | bytearray, at: int) -> int:
        """Where the frame at ``at`` ends; 0: too little is there to say; -1: it was a fault."""
        stop = frame_end(buffer, at, self._frame_bytes_max)
        if stop is NEED_MORE:
            return 0
        if isinstance(stop, Failure):
            self._fault(self._explain(stop.error, bytes(buffer[at : at + 4])))
            return -1
        if len(buffer) - at >= _PREFIX_BYTES:
            kind = buffer[at + 4]
            if self._table[self.state][kind] is Rule.VIOLATION:
                name = Kind(kind).name
                self._fault(errors.ProtocolViolation(f"{name} is not legal while the connection is {self.state}"))
                return -1
        return stop

    def _begin(self, part: memoryview, length: int, now_ns: int) -> None:
        """Keep the beginning of a frame."""
        self.due_earlier = True
        self._pending += part
        self._began_ns = now_ns
        self._set_frame_due(length)

    def _set_frame_due(self, length: int) -> None:
        allowance_ns = max(0, length) * limits.SECOND_NS // self.limits.frame_rate_min
        self._frame_due_ns = self._began_ns + self.limits.frame_timeout_ns + allowance_ns

    def _continue(self, view: memoryview) -> int:
        """Add to the begun frame what it lacks and take it when it is whole; how much of ``view`` was used."""
        pending = self._pending
        at = 0
        if len(pending) < _PREFIX_BYTES:
            at = min(_PREFIX_BYTES - len(pending), len(view))
            pending += view[:at]
        stop = self._judge(pending, 0)
        if stop <= 0:
            return len(view)
        self._set_frame_due(stop)
        more = min(stop - len(pending), len(view) - at)
        pending += view[at : at + more]
        if len(pending) == stop:
            self._pending = bytearray()
            self._take(memoryview(pending), 0, stop)
        return at + more

    def _take(self, view: memoryview, start: int, stop: int) -> None:
        packet = decode_frame(view, start, stop)
        if isinstance(packet, Failure):
            self._fault(packet.error)
        else:
            self._handle(packet, stop - start)

    def _handle(self, packet: Packet, size_bytes: int) -> None:
        raise NotImplementedError

    def _explain(self, error: errors.HeadraceError, first: bytes) -> errors.HeadraceError:
        """A better word for a frame that cannot be one, when the peer has not said anything sensible yet."""
        if self.state is not State.OPENING:
            return error
        return errors.Malformed(
            f"the first bytes, {first!r}, begin no native frame (TLS or HTTP on this port?): {error}"
        )

    def _handle_common(self, packet: Packet) -> bool:
        """PING, PONG and CLOSE mean the same on both sides."""
        if isinstance(packet, Ping):
            self._send(ENCODERS[Kind.PONG], Pong(packet.token))
        elif isinstance(packet, Close):
            self._end(Closed(error_of(packet), "peer"))
        else:
            return isinstance(packet, Pong)
        return True

    # -- time ----------------------------------------------------------------------------------------------------------

    def _overdue(self) -> errors.HeadraceError:
        raise NotImplementedError

    def _beat(self, now_ns: int) -> None:
        if self._pinged_ns is None:
            if now_ns - self._heard_ns >= self._heartbeat_ns:
                self._pinged_ns = now_ns
                self._send(ENCODERS[Kind.PING], Ping(now_ns & 0xFFFF_FFFF_FFFF_FFFF))
        elif now_ns - self._pinged_ns >= self._heartbeat_ns * 3 // 2:
            self._fault(errors.TimedOut(f"nothing was received for {_seconds(now_ns - self._heard_ns)}"))

    # -- sending and closing -------------------------------------------------------------------------------------------

    def _send(self, encoder: Callable[..., list[Buffer]], *fields: Any) -> int:
        """Queue one frame; its size. Raises, and queues nothing, when it does not fit a layout or the peer's limit."""
        buffers = build(encoder, *fields)
        size = sum(map(len, buffers))
        if size - 4 > self.peer_frame_bytes_max:
            raise errors.PayloadTooLarge(f"a frame of {size - 4} bytes; the peer takes {self.peer_frame_bytes_max}")
        self._out += buffers
        return size

    def _may_send(self, kind: Kind) -> bool:
        return kind in self._sends[self.state]

    def _fault(self, error: errors.HeadraceError | None) -> None:
        """Say CLOSE, and mean it."""
        if self.close_planned is not None:
            return
        message = "" if error is None else error.message
        self._out += build(ENCODERS[Kind.CLOSE], Close(number_of(error), message, retry_after_of(error)))
        self._end(Closed(error, "us"))

    def _end(self, closed: Closed) -> None:
        self.state = State.CLOSING
        self.close_planned = closed
        self._pending = bytearray()
        self._events.append(closed)


def _seconds(span_ns: int) -> str:
    return f"{span_ns / limits.SECOND_NS:.1f} s"
