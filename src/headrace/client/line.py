"""The client's side of the network, sans-io: requests that outlive connections.

A line has one connection at a time, or none. What is asked while there is none waits for the next one; what was under
way when a connection broke is asked again if that does no harm, and otherwise fails with an error that says that its
outcome is unknown. Publishes do no harm: each batch has a producer id and a sequence, and the broker stores it once.

    ask ──► queue ──► under way ──► reply            connection gone: under way ──► queue (front, in order)

The shell (``port``, ``aio_port``) connects when ``wants_connection`` says so and feeds what it reads:

    connected()   received(data)   ended()   outgoing()   next_due_ns()   on_due()   failed_to_connect(error)

Rules:

- Requests leave in the order they were asked; what is asked again keeps its place.
- A producer has at most CLIENT_PRODUCER_WINDOW batches under way, so that the broker still knows each when it comes
  again.
- What is under way each time the connection breaks may be what breaks it. After CLIENT_BREAKS_ALONE breaks it is asked
  with nothing beside it, so that it takes no other request along; after CLIENT_BREAKS_MAX with nothing else answered in
  between, or CLIENT_BREAKS_IN_ALL_MAX in all, it fails.
- Nobody waits longer than the outage allowed: what waits for a connection fails when it has been gone that long.
- A server that refuses us (a token, a version, a broken frame) ends the line: every request fails with that error.
- After GOAWAY nothing new is asked on that connection; it is closed once what is under way and what is held is settled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from headrace import errors
from headrace.calls import Run
from headrace.client.channel import Channel
from headrace.limits import (
    CLIENT_BREAKS_ALONE,
    CLIENT_BREAKS_IN_ALL_MAX,
    CLIENT_BREAKS_MAX,
    CLIENT_CREDIT_BYTES,
    CLIENT_OVERLOADED_NS,
    CLIENT_PRODUCER_WINDOW,
    CLIENT_RECONNECT_NS_MAX,
    HELD_RUNS_MAX,
    SECOND_NS,
)
from headrace.wire import native

__all__ = ["Line", "Reply", "Request"]

Reply = Callable[[Any], None]
"""Gets the packet that answers, or the error."""

_FATAL: Final = (
    errors.InvalidArgument,
    errors.Malformed,
    errors.NotAllowed,
    errors.ProtocolViolation,
    errors.Unauthenticated,
    errors.UnsupportedVersion,
)
"""What a server closes a connection with that would close the next one as well."""
_AGAIN: Final = (errors.Draining, errors.NotOwner)


class Request:
    """Something asked. ``send`` writes it into a session and returns its correlation; it may be called again.

    ``broken`` says what becomes of it when the connection breaks while it is under way: "again" (twice does no harm),
    "unknown" (it fails: it may have happened), "lost" (its answer is None), "forget" (nobody waits for it).
    ``refused_now`` is told that the server had no room for it, before it is sent again.
    """

    __slots__ = (
        "answers_then",
        "asked_ns",
        "breaks",
        "breaks_in_all",
        "broken",
        "number",
        "publishes",
        "refused_now",
        "reply",
        "send",
        "what",
    )

    def __init__(
        self,
        what: str,
        send: Callable[[native.ClientSession], int],
        reply: Reply,
        *,
        broken: Literal["again", "unknown", "lost", "forget"] = "again",
        publishes: bool = False,
        refused_now: Callable[[], None] | None = None,
    ) -> None:
        self.what = what
        self.send = send
        self.reply = reply
        self.broken = broken
        self.publishes = publishes
        self.refused_now = refused_now
        self.number = 0
        self.asked_ns = 0
        self.breaks = 0  # of connections while it was under way, with nothing else answered in between
        self.breaks_in_all = 0
        self.answers_then = -1  # of the line, at the last of them

    def broke(self, answers: int) -> bool:
        """The connection broke while it was under way; whether that was once too often."""
        self.breaks = self.breaks + 1 if answers == self.answers_then else 1
        self.answers_then = answers
        self.breaks_in_all += 1
        return self.breaks >= CLIENT_BREAKS_MAX or self.breaks_in_all >= CLIENT_BREAKS_IN_ALL_MAX


class Line:
    """See the head of this file. Not thread-safe: the shell has a lock, or a loop."""

    def __init__(
        self, *, where: str, client: str, token: str | None, namespace: str, outage_ns: int, now_ns: Callable[[], int]
    ) -> None:
        self.where = where
        self.now_ns = now_ns
        self.session: native.ClientSession | None = None
        self.up = False
        self.failure: errors.HeadraceError | None = None
        self.closing = False
        self.connections = 0
        self.trouble = ""
        self.worked = False
        """Whether the last connection was good for something: it answered what was asked, or stood for a while."""
        self._client = client
        self._token = token
        self._namespace = namespace
        self._outage_ns = outage_ns
        self._down_since_ns: int | None = now_ns()
        self._queue: deque[Request] = deque()
        self._under_way: dict[int, Request] = {}
        self._publishing = 0
        self._later: list[tuple[int, Request]] = []
        self._numbers = 0
        self._answers = 0
        self._alone: Request | None = None  # under way, and nothing may be beside it
        self._up_since_ns = 0
        self._resubscribing: dict[Channel, Request] = {}
        self._channels: dict[int, Channel] = {}  # by subscription
        self._standing: list[Channel] = []
        self._look_ns: int | None = None  # when something may have lain in a channel for too long
        self._looks_earlier = False

    # -- asking ------------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether there is anybody who would want to know what comes: a consumer, a request under way or waiting."""
        return bool(self._standing or self._under_way or self._queue or self._later)

    @property
    def lone(self) -> bool:
        """Whether one request is under way, and nothing else would want to know what comes."""
        return len(self._under_way) == 1 and not (self._standing or self._queue or self._later)

    def ask(self, request: Request) -> None:
        """Have it sent when it can be; ``reply`` is called exactly once."""
        if self.failure is not None:
            request.reply(self.failure)
            return
        self._numbers += 1
        request.number = self._numbers
        request.asked_ns = self.now_ns()
        self._queue.append(request)
        self._send_queue()

    def _send_queue(self) -> None:
        session, queue = self.session, self._queue
        if not self.up or session is None or self._alone is not None:
            return
        while queue and session.requests_free > 0:
            request = queue[0]
            if request.publishes and self._publishing >= CLIENT_PRODUCER_WINDOW:
                return
            suspect = request.breaks_in_all >= CLIENT_BREAKS_ALONE
            if suspect and self._under_way:
                return
            try:
                correlation = request.send(session)
            except (errors.Draining, errors.Closed):
                return  # for the next connection
            except errors.HeadraceError as error:
                queue.popleft()
                request.reply(error)
                continue
            queue.popleft()
            self._under_way[correlation] = request
            self._publishing += request.publishes
            if suspect:
                self._alone = request
                return

    def _put_back(self, requests: list[Request]) -> None:
        """To the front of the queue, in their order."""
        self._queue = deque(sorted([*requests, *self._queue], key=_by_number))

    def give_credit(self, channel: Channel, messages: int, size_bytes: int) -> None:
        """Let the server push so much more."""
        if self.session is not None and self.up and channel.number:
            try:
                self.session.send_credit(channel.number, messages, size_bytes)
            except (errors.Draining, errors.Closed):
                return  # the connection is ending, and all credit with it

    def withdraw_credit(self, channel: Channel) -> bool:
        """Let the server push nothing, if it knows how to; before what was pushed is given back."""
        session = self.session
        if session is None or not (self.up and channel.number and session.welcome):
            return False
        if native.WITHDRAW not in session.welcome.features:
            return False
        try:
            return session.send_withdraw(channel.number)
        except (errors.Draining, errors.Closed):
            return False  # the connection is ending, and all credit with it

    def credit_gone(self, channel: Channel) -> None:
        """What was asked after withdrawing it has been answered."""
        if self.session is not None:
            self.session.withdrawn(channel.number)

    # -- consumers ---------------------------------------------------------------------------------------------------

    def open_channel(self, channel: Channel, reply: Reply) -> None:
        """Subscribe, now and after every reconnection."""

        def answered(packet: Any) -> None:
            if isinstance(packet, errors.HeadraceError):
                self._standing.remove(channel)
            else:
                channel.stands = True
                channel.auto_ack = _says_auto_ack(packet)
            reply(packet)

        self._standing.append(channel)
        self.ask(Request("a subscription", lambda session: self._subscribe(session, channel), answered))

    def _subscribe(self, session: native.ClientSession, channel: Channel) -> int:
        welcome = session.welcome
        if welcome is None:
            raise errors.Closed("no WELCOME yet")
        options = dict(channel.options)
        if channel.stands and native.HELD in welcome.features:
            held = self._held_as(channel.scope)
            if held is not None:
                options["held"] = held
        number = session.send_consume(
            channel.scope,
            credit_messages=channel.credit_now(welcome.credit_messages_max, self.now_ns()),
            credit_bytes=min(CLIENT_CREDIT_BYTES, welcome.credit_bytes_max),
            lease_ns=channel.lease_ns,
            options=native.pack(options) if options else b"",
        )
        channel.number = number
        self._channels[number] = channel
        return number

    def _held_as(self, scope: native.Scope) -> list[Run] | None:
        """What the consumers of one name hold; None: not known, or more than may be told."""
        held: list[Run] = []
        for channel in self._standing:
            if channel.scope == scope:
                if channel.tells_held is None:
                    return None
                held += channel.tells_held()
        return held if len(held) <= HELD_RUNS_MAX else None

    def _subscribe_again(self, channel: Channel) -> None:
        """On a new connection, before anything else is asked there."""

        def send(session: native.ClientSession) -> int:
            if channel.number:
                raise errors.AlreadyExists("subscribed meanwhile")
            return self._subscribe(session, channel)

        def answered(packet: Any) -> None:
            self._resubscribing.pop(channel, None)
            if not isinstance(packet, errors.HeadraceError):
                channel.auto_ack = _says_auto_ack(packet)
            elif not isinstance(packet, errors.AlreadyExists):
                channel.error = channel.error or packet
                if channel in self._standing:
                    self._standing.remove(channel)
            channel.changed()

        request = Request("a subscription", send, answered, broken="forget")
        request.asked_ns = self.now_ns()
        before = self._resubscribing.get(channel)
        if before is not None:
            request.breaks, request.breaks_in_all = before.breaks, before.breaks_in_all
            request.answers_then = before.answers_then
        self._resubscribing[channel] = request
        self._queue.appendleft(request)

    def close_channel(self, channel: Channel, reply: Reply) -> None:
        """Unsubscribe; the server gives back what the consumer still holds."""
        if channel not in self._standing:
            reply(None)
            return
        self._standing.remove(channel)
        self._resubscribing.pop(channel, None)
        number = channel.number
        if not number or not self.up:
            reply(None)  # its subscription ended with its connection
            return

        def send(session: native.ClientSession) -> int:
            if channel.number != number:
                raise errors.LeaseLost("the subscription ended with its connection")
            self._channels.pop(number, None)
            return session.send_unsubscribe(number)

        self.ask(Request("the end of a subscription", send, reply, broken="unknown"))

    def look_at(self, at_ns: int) -> None:
        """What lies in the channels becomes too old at this time."""
        if self._look_ns is None or at_ns < self._look_ns:
            self._look_ns = at_ns
            self._looks_earlier = True

    def release(self, channel: Channel, runs: Sequence[native.ReceiptRun]) -> None:
        """Give back what was leased to a channel and not handed out."""
        channel.returning += 1
        action = native.Action(native.Verb.RELEASE, _group_of(channel.scope), runs)
        self.ask(Request("a release", lambda session: session.send_settle([action]), channel.given_back))

    def group_settled(self, topic: str, group: str, count: int) -> None:
        """Messages of a group were settled by its names."""
        for channel in self._standing:
            if channel.held and channel.scope.topic == topic and channel.scope.group == group:
                channel.settled(count)
                return

    # -- the shell's side --------------------------------------------------------------------------------------------

    @property
    def wants_connection(self) -> bool:
        return self.session is None and self.failure is None and not self.closing

    def connected(self) -> None:
        """There is a socket: say HELLO."""
        self.connections += 1
        self.session = native.ClientSession(
            client=self._client,
            token=self._token,
            namespace=self._namespace,
            now_ns=self.now_ns(),
        )

    def failed_to_connect(self, reason: str) -> None:
        """There is none."""
        self.trouble = reason
        self.on_due()

    def received(self, data: bytes) -> None:
        """Bytes came."""
        session = self.session
        if session is not None:
            session.receive_bytes(data, self.now_ns())
            self._react(session)

    def ended(self, reason: str = "") -> None:
        """The socket is gone."""
        session = self.session
        if session is not None:
            session.receive_eof(self.now_ns())
            self._react(session)
            self.trouble = reason or self.trouble  # why it ended says more than that it did

    def outgoing(self) -> list[native.Buffer]:
        """What to write."""
        session = self.session
        return [] if session is None else session.outgoing()

    @property
    def due_earlier(self) -> bool:
        """Whether `next_due_ns` may be earlier than when it was last asked for and ``due_seen``; mostly it is later."""
        session = self.session
        earlier = session is None or session.due_earlier or self._looks_earlier
        return earlier or bool(self._later) or self._down_since_ns is not None

    def due_seen(self) -> None:
        self._looks_earlier = False
        if self.session is not None:
            self.session.due_earlier = False

    def next_due_ns(self) -> int | None:
        """When `on_due` wants to be called."""
        due = [at for at, _ in self._later]
        if self.session is not None and (at := self.session.next_due_ns()) is not None:
            due.append(at)
        if self._look_ns is not None:
            due.append(self._look_ns)
        if self._down_since_ns is not None and (self._queue or self._later):
            due.append(max(self._down_since_ns, self._oldest_ns()) + self._outage_ns)
        return min(due, default=None)

    def _oldest_ns(self) -> int:
        return min((request.asked_ns for request in self._queue), default=0)

    def on_due(self) -> None:
        """Do what is due."""
        now_ns = self.now_ns()
        if self._look_ns is not None and self._look_ns <= now_ns:
            self._look_ns = None
            for channel in self._standing:
                if (again_ns := channel.rest(now_ns)) is not None:
                    self.look_at(again_ns)
        if self.session is not None:
            self.session.on_due(now_ns)
            self._react(self.session)
        if self._later:
            ripe = [request for at, request in self._later if at <= now_ns]
            self._later = [(at, request) for at, request in self._later if at > now_ns]
            if ripe:
                self._put_back(ripe)
                self._send_queue()
        down_ns = self._down_since_ns
        if down_ns is not None:
            late = [r for r in self._queue if max(down_ns, r.asked_ns) + self._outage_ns <= now_ns]
            if late:
                self._queue = deque(r for r in self._queue if r not in late)
                for request in late:
                    waited = self._outage_ns / SECOND_NS
                    request.reply(
                        errors.TimedOut(
                            f"no connection to {self.where} for {waited:g}s ({self.trouble}): {request.what}"
                        )
                    )

    def close(self, error: errors.HeadraceError | None = None) -> None:
        """Say goodbye; what is still waiting fails."""
        if not self.closing:
            self.closing = True
            if self.session is not None and self.session.close_planned is None:
                self.session.send_close()
            self._end_all(error or errors.Closed("the client was closed while a request was under way"))
            self.failure = error or errors.Closed("this client is closed; open or connect another one")

    def _end_all(self, error: errors.HeadraceError) -> None:
        self.failure = self.failure or error
        waiting = [*self._under_way.values(), *self._queue, *(request for _, request in self._later)]
        self._under_way, self._later, self._publishing = {}, [], 0
        self._queue.clear()
        for request in sorted(waiting, key=_by_number):
            request.reply(error)
        for channel in self._standing:
            channel.error = channel.error or error
            channel.changed()

    # -- reacting ----------------------------------------------------------------------------------------------------

    def _react(self, session: native.ClientSession) -> None:
        for event in session.events():
            if type(event) is native.Published:
                self._answered(event)
            elif isinstance(event, native.Deliveries):
                channel = self._channels.get(event.subscription)
                if channel is not None:
                    channel.put(event, self.now_ns(), pushed=True)
                    channel.changed()
            elif isinstance(event, native.Welcome):
                self._welcomed()
            elif isinstance(event, native.GoAway):
                self._start_leaving()
            elif isinstance(event, native.Closed):
                self._lost(event)
                return
            elif isinstance(event, native.Ended) and not event.correlation:
                self._channel_ended(event)
            else:
                self._answered(event)
        self._send_queue()
        if session.state is native.State.DRAINING:
            self._leave_if_done(session)

    def _welcomed(self) -> None:
        self.up = True
        self.worked = False
        self._up_since_ns = self.now_ns()
        self._down_since_ns = None
        self.trouble = ""
        for channel in reversed(self._standing):
            if channel.stands:
                self._subscribe_again(channel)

    def _answered(self, packet: Any) -> None:
        request = self._under_way.pop(packet.correlation, None)
        if request is None:
            return
        if request is self._alone:
            self._alone = None
        if request.broken != "forget":
            self._answers += 1
            self.worked = True
        self._publishing -= request.publishes
        if not isinstance(packet, native.Error):
            request.reply(packet)
            return
        error = native.error_of(packet) or errors.HeadraceError(packet.message)
        if isinstance(error, _AGAIN) and request.broken != "forget":
            self._put_back([request])
        elif isinstance(error, errors.Overloaded):
            if request.refused_now is not None:
                request.refused_now()
            pause_ns = error.retry_after_ns or CLIENT_OVERLOADED_NS
            self._later.append((self.now_ns() + pause_ns, request))
        else:
            request.reply(error)

    def _channel_ended(self, event: native.Ended) -> None:
        channel = self._channels.pop(event.subscription, None)
        if channel is not None and channel in self._standing:
            self._standing.remove(channel)
            channel.start_over()
            channel.error = native.error_of(event) or errors.Closed("the server ended the subscription")
            channel.changed()

    def _start_leaving(self) -> None:
        """GOAWAY: hand out nothing more of this connection."""
        for channel in self._standing:
            channel.start_over()
            channel.changed()

    def _leave_if_done(self, session: native.ClientSession) -> None:
        if not self._under_way and not any(channel.held for channel in self._standing):
            session.send_close()
            self._react(session)

    def _lost(self, closed: native.Closed) -> None:
        """The connection is over."""
        stood_ns = self.now_ns() - self._up_since_ns if self.up else 0
        self.worked = self.up and (self.worked or stood_ns >= CLIENT_RECONNECT_NS_MAX)
        self.session = None
        self._alone = None
        self.up = False
        if self._down_since_ns is None:
            self._down_since_ns = self.now_ns()
        if closed.error is not None:
            self.trouble = closed.error.message
        under_way, self._under_way, self._publishing = list(self._under_way.values()), {}, 0
        self._channels.clear()
        if self.closing:
            return
        if isinstance(closed.error, _FATAL):
            self._put_back(under_way)
            self._end_all(closed.error)
            return
        announced = closed.error is None or isinstance(closed.error, errors.Draining)
        hopeless = [] if announced else [each for each in under_way if each.broke(self._answers)]
        self._put_back([each for each in under_way if each.broken == "again" and each not in hopeless])
        for channel in self._standing:
            channel.start_over()
            channel.changed()
        for request in under_way:
            if request.broken == "unknown":
                request.reply(
                    errors.Closed(
                        f"the connection to {self.where} broke during {request.what}; whether it happened is unknown"
                    )
                )
            elif request.broken == "lost":
                request.reply(None)
            elif request in hopeless:
                request.reply(
                    errors.Closed(
                        f"the connection to {self.where} broke {request.breaks_in_all} times, each time while "
                        f"{request.what} was under way ({self.trouble}); it is not asked again, and whether it "
                        "happened is unknown"
                    )
                )


def _by_number(request: Request) -> int:
    return request.number


def _group_of(scope: native.Scope) -> native.Scope:
    return native.Scope(scope.namespace, scope.topic, scope.group)


def _says_auto_ack(packet: native.Subscribed) -> bool:
    told = native.unpack(packet.information, dict[str, Any])
    return bool(told.get("auto_ack"))
