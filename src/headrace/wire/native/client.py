"""The client's side of a connection: what was asked, what is subscribed, what the server allows.

Events are the packets themselves: Welcome, then replies (Published, Subscribed, Ended, Leased, Settled, Result, or
Error for any of them) that carry the number ``send_…`` returned, Deliveries, Ended with correlation 0, GoAway, and at
last Closed. Requests that had no reply when Closed comes have an unknown outcome.

The number of a CONSUME names its subscription from then on. Deliveries that cross an UNSUBSCRIBE are dropped here:
the server releases them. Credit is the application's to give back, as it takes messages off its queue
(`send_credit`).

``send_…`` raises: Draining after GOAWAY (new work goes to another connection), Closed when there is no connection
(any more, or yet), Overloaded when `requests_free` is 0, PayloadTooLarge beyond the server's frame limit,
LimitExceeded beyond its other limits, InvalidArgument for what does not fit a field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace import errors, limits
from headrace.wire.native.encoding import ENCODERS, credit_frame, publish_frame, settle_frame
from headrace.wire.native.layouts import WITHDRAW_FLAG
from headrace.wire.native.packets import (
    BY_KEY,
    DURABLE,
    FEATURES,
    VERSION_MAX,
    VERSION_MIN,
    Action,
    Buffer,
    Call,
    Consume,
    Deliveries,
    Effect,
    Ended,
    Error,
    GoAway,
    Hello,
    HelloBody,
    Kind,
    Lease,
    Leased,
    Packet,
    Published,
    ReceiptRun,
    Scope,
    Settled,
    Subscribed,
    Unsubscribe,
    Verb,
    Welcome,
    WelcomeBody,
)
from headrace.wire.native.session import Limits, Session, Subscription
from headrace.wire.native.states import CLIENT, CLIENT_SENDS, REPLIES, State


class ClientSession(Session):
    """One connection to a server; HELLO is the first thing in `outgoing`."""

    __slots__ = ("_next", "_waiting", "welcome")

    def __init__(
        self,
        bounds: Limits | None = None,
        *,
        client: str,
        token: str | None = None,
        namespace: str = "default",
        features: Sequence[str] = FEATURES,
        heartbeat_ns: int = 0,
        now_ns: int,
    ) -> None:
        super().__init__(CLIENT, CLIENT_SENDS, bounds or Limits(frame_bytes_max=limits.NATIVE_FRAME_BYTES_MAX), now_ns)
        self.welcome: WelcomeBody | None = None
        self._next = 0
        self._waiting: dict[int, int] = {}  # correlation → kind of the request
        body = HelloBody(
            VERSION_MIN,
            VERSION_MAX,
            client,
            token,
            namespace,
            list(features),
            heartbeat_ns,
            self.limits.frame_bytes_max,
        )
        self._send(ENCODERS[Kind.HELLO], Hello(body))

    @property
    def in_flight(self) -> int:
        """Requests that wait for a reply."""
        return len(self._waiting)

    @property
    def requests_free(self) -> int:
        """How many more requests may wait at once; 0 before WELCOME."""
        return 0 if self.welcome is None else self.welcome.requests_max - len(self._waiting)

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _handle(self, packet: Packet, size_bytes: int) -> None:
        kind = packet.kind
        if type(packet) in _PLAIN_REPLIES:
            self._handle_reply(packet, kind, packet.correlation)  # type: ignore[attr-defined] # replies have one
        elif isinstance(packet, Deliveries):
            self._handle_deliveries(packet)
        elif isinstance(packet, Welcome):
            self._handle_welcome(packet)
        elif isinstance(packet, GoAway):
            self.state = State.DRAINING
            self._events.append(packet)
        elif isinstance(packet, Ended) and not packet.correlation:
            if self.subscriptions.pop(packet.subscription, None) is not None:
                self._events.append(packet)
        elif not self._handle_common(packet):
            self._handle_reply(packet, kind, packet.correlation)  # type: ignore[attr-defined] # all that is left are replies

    def _handle_welcome(self, packet: Welcome) -> None:
        body = packet.body
        if not VERSION_MIN <= body.version <= VERSION_MAX:
            text = f"the server chose version {body.version}; this client speaks {VERSION_MIN} to {VERSION_MAX}"
            self._fault(errors.UnsupportedVersion(text))
            return
        self.welcome = body
        self.state = State.OPEN
        self.peer_frame_bytes_max = body.frame_bytes_max
        self._frame_bytes_max = self.limits.frame_bytes_max
        self._heartbeat_ns = body.heartbeat_ns
        self._due_ns = None
        self.due_earlier = True
        self._events.append(packet)

    def _handle_reply(self, packet: Packet, kind: Kind, correlation: int) -> None:
        asked = self._waiting.pop(correlation, None)
        if asked is None or (kind != Kind.ERROR and REPLIES[asked] != kind):
            what = "no request" if asked is None else Kind(asked).name
            self._fault(errors.ProtocolViolation(f"{kind.name} with correlation {correlation} answers {what}"))
            return
        if isinstance(packet, Subscribed):
            self.subscriptions[correlation].active = True
        elif isinstance(packet, Ended):
            self.subscriptions.pop(packet.subscription, None)
        elif isinstance(packet, Error) and asked == Kind.CONSUME:
            self.subscriptions.pop(correlation, None)
        self._events.append(packet)

    def _handle_deliveries(self, packet: Deliveries) -> None:
        subscription = self.subscriptions.get(packet.subscription)
        if subscription is None or not subscription.active:
            self._fault(errors.ProtocolViolation(f"DELIVERIES for {packet.subscription}, which is no subscription"))
        elif subscription.leaving:
            return
        elif not subscription.spend(packet.count, packet.size_bytes):
            text = (
                f"DELIVERIES of {packet.count} messages for subscription {packet.subscription}, whose credit is "
                f"{subscription.credit_messages} messages, {subscription.credit_bytes} bytes"
            )
            self._fault(errors.ProtocolViolation(text))
        else:
            self._events.append(packet)

    def _overdue(self) -> errors.HeadraceError:
        return errors.TimedOut(f"no WELCOME within {self.limits.hello_timeout_ns / 1e9:.1f} s of the connection")

    # -- sending: each returns the correlation id its reply will carry -------------------------------------------------

    def send_publish(
        self,
        topic: str,
        batch: Buffer | Sequence[Buffer],
        *,
        namespace: str = "",
        partition: int = BY_KEY,
        durability: int = DURABLE,
    ) -> int:
        """Store a batch: one encoded batch, or its buffers."""
        return self._request(Kind.PUBLISH, publish_frame, namespace, topic, partition, durability, batch)

    def send_consume(
        self, scope: Scope, *, credit_messages: int, credit_bytes: int, lease_ns: int = 0, options: Buffer = b""
    ) -> int:
        """Subscribe; the number returned names the subscription. Credit 0: a consumer that only pulls."""
        welcome = self._welcomed(Kind.CONSUME)
        if len(self.subscriptions) >= welcome.subscriptions_max:
            raise errors.LimitExceeded(f"{welcome.subscriptions_max} subscriptions are open on this connection")
        self._check_credit(welcome, credit_messages, credit_bytes)
        correlation = self._request(
            Kind.CONSUME, _packet_frame, Consume, (scope, lease_ns, credit_messages, credit_bytes, options)
        )
        self.subscriptions[correlation] = Subscription(credit_messages, credit_bytes)
        return correlation

    def send_credit(self, subscription: int, messages: int, size_bytes: int) -> bool:
        """Let the server push that much more. False: the subscription has ended, nothing was sent."""
        welcome = self._welcomed(Kind.CREDIT)
        standing = self.subscriptions.get(subscription)
        if standing is None or standing.leaving:
            return False
        held_messages, held_bytes = standing.credit_messages + messages, standing.credit_bytes + size_bytes
        self._check_credit(welcome, held_messages, held_bytes)
        self._send(credit_frame, subscription, messages, size_bytes)
        standing.credit_messages, standing.credit_bytes = held_messages, held_bytes
        return True

    def send_withdraw(self, subscription: int) -> bool:
        """Let the server push nothing more. It may have pushed before it hears of it: the credit is counted as gone
        (`withdrawn`) when something that was asked after this has been answered."""
        self._welcomed(Kind.CREDIT)
        standing = self.subscriptions.get(subscription)
        if standing is None or standing.leaving:
            return False
        self._send(credit_frame, subscription, 0, 0, WITHDRAW_FLAG)
        return True

    def withdrawn(self, subscription: int) -> None:
        """The server has heard of it."""
        standing = self.subscriptions.get(subscription)
        if standing is not None:
            standing.credit_messages = 0

    def send_unsubscribe(self, subscription: int) -> int:
        """End a subscription; the server releases what it still holds."""
        correlation = self._request(Kind.UNSUBSCRIBE, _packet_frame, Unsubscribe, (subscription,))
        standing = self.subscriptions.get(subscription)
        if standing is not None:
            standing.leaving = True
        return correlation

    def send_lease(
        self, scope: int | Scope, messages_max: int, *, bytes_max: int = 0, wait_ns: int = 0, lease_ns: int = 0
    ) -> int:
        """Pull up to ``messages_max``, waiting ``wait_ns`` for the first."""
        return self._request(Kind.LEASE, _packet_frame, Lease, (scope, messages_max, bytes_max, wait_ns, lease_ns))

    def send_settle(self, actions: Sequence[Action], effects: Sequence[Effect] = (), *, atomic: bool = False) -> int:
        """Settle in bulk; effects make it atomic."""
        return self._request(Kind.SETTLE, settle_frame, actions, effects, atomic or bool(effects))

    def send_ack(self, scope: int | Scope, runs: Sequence[ReceiptRun]) -> int:
        """Settle with one ack: the usual case."""
        return self._request(Kind.SETTLE, settle_frame, (Action(Verb.ACK, scope, runs),), (), False)

    def send_call(self, method: str, arguments: Buffer = b"\x80", attachments: Sequence[Buffer] = ()) -> int:
        """An administrative call; ``arguments`` as `pack` makes them."""
        return self._request(Kind.CALL, _packet_frame, Call, (method, arguments, attachments))

    def _request(self, kind: Kind, encoder: Callable[..., list[Buffer]], *fields: Any) -> int:
        welcome = self._welcomed(kind)
        if len(self._waiting) >= welcome.requests_max:
            raise errors.Overloaded(f"{welcome.requests_max} requests wait on this connection already")
        correlation = self._next
        while True:
            correlation = (correlation + 1) & 0xFFFF_FFFF
            if correlation and correlation not in self._waiting and correlation not in self.subscriptions:
                break
        self._send(encoder, correlation, *fields)
        self._next = correlation
        self._waiting[correlation] = kind
        return correlation

    def _welcomed(self, kind: Kind) -> WelcomeBody:
        if self.welcome is not None and kind in CLIENT_SENDS[self.state]:
            return self.welcome
        if self.state is State.DRAINING:
            raise errors.Draining("the server is draining; connect again")
        raise errors.Closed(f"{kind.name} on a connection that is {self.state}")

    def _check_credit(self, welcome: WelcomeBody, messages: int, size_bytes: int) -> None:
        if messages > welcome.credit_messages_max or size_bytes > welcome.credit_bytes_max:
            raise errors.LimitExceeded(
                f"a credit of {messages} messages, {size_bytes} bytes; the server takes at most "
                f"{welcome.credit_messages_max} messages, {welcome.credit_bytes_max} bytes"
            )


_PLAIN_REPLIES = frozenset({Published, Leased, Settled})
"""What comes most, and changes nothing in a session but that a request is over."""


def _packet_frame(correlation: int, kind: Callable[..., Packet], fields: tuple[Any, ...]) -> list[Buffer]:
    packet = kind(correlation, *fields)
    return ENCODERS[packet.kind](packet)
