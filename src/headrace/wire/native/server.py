"""The server's side of a connection: who may come in, which requests wait, how much may be pushed.

Events are the packets themselves: Hello (answer with `send_welcome`, or `send_close(errors.Unauthenticated(…))`),
Publish, Consume, Unsubscribe, Lease, Settle, Call (each wants exactly one reply or `send_error`, in any order),
Credit, and at last Closed. What the session settles by itself and nobody else sees: versions, legality, limits,
heartbeats, requests while draining (ERROR `draining`), credit for subscriptions that have ended.

Replies to a connection that is closing are dropped and say so by False: the answer has nowhere to go. A reply nobody
waits for is the caller's fault and raises InvalidArgument.

Left to the broker: whether names are good, what is in a batch, whether a subscription named in a SETTLE or LEASE is
one of this connection's (``subscriptions``); receipts of one that has ended are `lease_lost`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace import errors
from headrace.wire.native.codes import number_of, retry_after_of
from headrace.wire.native.encoding import ENCODERS, delivered_frame, published_run_frame, settled_frame
from headrace.wire.native.frames import build
from headrace.wire.native.packets import (
    CANCELLED,
    FEATURES,
    VERSION_MAX,
    VERSION_MIN,
    Buffer,
    Consume,
    Credit,
    DeliveredRun,
    Duplicate,
    Ended,
    Error,
    GoAway,
    Hello,
    HelloBody,
    Kind,
    Packet,
    Part,
    Published,
    Refusal,
    Result,
    Subscribed,
    Unsubscribe,
    Welcome,
    WelcomeBody,
)
from headrace.wire.native.session import Limits, Session, Subscription
from headrace.wire.native.states import REPLIES, SERVER, SERVER_SENDS, Rule, State


class ServerSession(Session):
    """One accepted connection.

    >>> from headrace.wire.native import ClientSession, ServerSession
    >>> client, server = ClientSession(client="example", now_ns=0), ServerSession(now_ns=0)
    >>> server.receive_bytes(b"".join(client.outgoing()), 0)
    >>> [type(event).__name__ for event in server.events()]
    ['Hello']
    >>> server.send_welcome(server="headrace", server_id="n1")
    True
    >>> client.receive_bytes(b"".join(server.outgoing()), 0)
    >>> client.state
    <State.OPEN: 'open'>
    """

    __slots__ = ("_in_flight", "features", "hello", "in_flight_bytes", "version")

    def __init__(self, bounds: Limits | None = None, *, now_ns: int) -> None:
        super().__init__(SERVER, SERVER_SENDS, bounds or Limits(), now_ns)
        self.hello: HelloBody | None = None
        self.features: tuple[str, ...] = ()
        """The optional behaviours that both sides know."""
        self.version = 0
        self.in_flight_bytes = 0
        self._in_flight: dict[int, tuple[int, int]] = {}  # correlation → kind, bytes

    @property
    def in_flight(self) -> int:
        """Requests that wait for a reply."""
        return len(self._in_flight)

    def waits(self, correlation: int) -> bool:
        """Whether that request has no reply yet."""
        return correlation in self._in_flight

    @property
    def reading_paused(self) -> bool:
        """The waiting requests are as large as is wise: stop reading until this is False again."""
        return self.in_flight_bytes > self.limits.request_bytes_max

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _handle(self, packet: Packet, size_bytes: int) -> None:
        kind = packet.kind
        if kind in REPLIES:
            self._handle_request(packet, kind, packet.correlation, size_bytes)  # type: ignore[attr-defined] # requests have one
        elif isinstance(packet, Credit):
            self._handle_credit(packet)
        elif isinstance(packet, Hello):
            self._handle_hello(packet)
        else:
            self._handle_common(packet)

    def _handle_hello(self, packet: Hello) -> None:
        body = packet.body
        version = min(body.version_max, VERSION_MAX)
        if version < max(body.version_min, VERSION_MIN):
            self._fault(
                errors.UnsupportedVersion(
                    f"the client speaks versions {body.version_min} to {body.version_max} of the native protocol; "
                    f"this server {VERSION_MIN} to {VERSION_MAX}"
                )
            )
            return
        self.version = version
        self.hello = body
        self.features = tuple(feature for feature in FEATURES if feature in body.features)
        self.state = State.JUDGING
        self._events.append(packet)

    def _handle_request(self, packet: Packet, kind: Kind, correlation: int, size_bytes: int) -> None:
        if correlation in self._in_flight or correlation in self.subscriptions:
            self._fault(errors.ProtocolViolation(f"{kind.name}: the correlation id {correlation} is in use"))
            return
        if len(self._in_flight) >= self.limits.requests_max:
            self._fault(errors.LimitExceeded(f"more than {self.limits.requests_max} requests wait on this connection"))
            return
        self._in_flight[correlation] = (kind, size_bytes)
        self.in_flight_bytes += size_bytes
        if self._table[self.state][kind] is Rule.REFUSE:
            self.send_error(correlation, errors.Draining("the server is draining; connect again"))
        elif isinstance(packet, Consume):
            self._handle_consume(packet)
        elif isinstance(packet, Unsubscribe):
            self._handle_unsubscribe(packet)
        else:
            self._events.append(packet)

    def _handle_consume(self, packet: Consume) -> None:
        bounds = self.limits
        if len(self.subscriptions) >= bounds.subscriptions_max:
            text = f"{bounds.subscriptions_max} subscriptions are open on this connection; no more are allowed"
            self.send_error(packet.correlation, errors.LimitExceeded(text))
        elif packet.credit_messages > bounds.credit_messages_max or packet.credit_bytes > bounds.credit_bytes_max:
            text = (
                f"a credit of {packet.credit_messages} messages, {packet.credit_bytes} bytes; at most "
                f"{bounds.credit_messages_max} messages, {bounds.credit_bytes_max} bytes"
            )
            self.send_error(packet.correlation, errors.LimitExceeded(text))
        else:
            self.subscriptions[packet.correlation] = Subscription(packet.credit_messages, packet.credit_bytes)
            self._events.append(packet)

    def _handle_unsubscribe(self, packet: Unsubscribe) -> None:
        subscription = self.subscriptions.get(packet.subscription)
        if subscription is None or subscription.leaving:
            self._send_reply(
                packet.correlation, Kind.ENDED, ENCODERS[Kind.ENDED], Ended(packet.correlation, packet.subscription)
            )
            return
        subscription.leaving = True
        self._events.append(packet)

    def _handle_credit(self, packet: Credit) -> None:
        subscription = self.subscriptions.get(packet.subscription)
        if subscription is None or subscription.leaving:
            return
        if packet.withdraw:
            subscription.credit_messages = 0
        subscription.credit_messages += packet.messages
        subscription.credit_bytes += packet.bytes
        bounds = self.limits
        if (
            subscription.credit_messages > bounds.credit_messages_max
            or subscription.credit_bytes > bounds.credit_bytes_max
        ):
            text = (
                f"subscription {packet.subscription} would hold a credit of {subscription.credit_messages} messages, "
                f"{subscription.credit_bytes} bytes; at most {bounds.credit_messages_max}, {bounds.credit_bytes_max}"
            )
            self._fault(errors.LimitExceeded(text))
            return
        self._events.append(packet)

    def _overdue(self) -> errors.HeadraceError:
        if self.state is State.DRAINING:
            return errors.Draining("the server has stopped; connect again")
        what = "no HELLO" if self.hello is None else "no decision about HELLO"
        return errors.TimedOut(f"{what} within {self.limits.hello_timeout_ns / 1e9:.1f} s of the connection")

    # -- sending -------------------------------------------------------------------------------------------------------

    def send_welcome(
        self,
        *,
        server: str,
        server_id: str,
        namespace: str | None = None,
        features: Sequence[str] = (),
        wall_ns: int = 0,
    ) -> bool:
        """Let the client in; ``namespace`` overrides the one it asked for."""
        if not self._may_send(Kind.WELCOME) or self.hello is None:
            return False
        bounds = self.limits
        self.peer_frame_bytes_max = self.hello.frame_bytes_max or bounds.frame_bytes_max
        wish_ns = self.hello.heartbeat_ns
        beat_ns = bounds.heartbeat_ns
        if wish_ns:
            beat_ns = min(max(wish_ns, bounds.heartbeat_ns_min), bounds.heartbeat_ns_max)
        body = WelcomeBody(
            version=self.version,
            server=server,
            server_id=server_id,
            namespace=self.hello.namespace if namespace is None else namespace,
            features=[*self.features, *features],
            heartbeat_ns=beat_ns,
            frame_bytes_max=bounds.frame_bytes_max,
            requests_max=bounds.requests_max,
            subscriptions_max=bounds.subscriptions_max,
            credit_messages_max=bounds.credit_messages_max,
            credit_bytes_max=bounds.credit_bytes_max,
            wall_ns=wall_ns,
        )
        self._send(ENCODERS[Kind.WELCOME], Welcome(body))
        self.state = State.OPEN
        self._frame_bytes_max = bounds.frame_bytes_max
        self._heartbeat_ns = beat_ns
        self._due_ns = None
        self.due_earlier = True
        return True

    def send_published(
        self,
        correlation: int,
        count: int,
        parts: Sequence[Part],
        indexes: Sequence[int] = (),
        duplicates: Sequence[Duplicate] = (),
        *,
        relaxed: bool = False,
    ) -> bool:
        """Answer a PUBLISH; see `Published`."""
        packet = Published(correlation, count, parts, indexes, duplicates, relaxed)
        return self._send_reply(correlation, Kind.PUBLISHED, ENCODERS[Kind.PUBLISHED], packet)

    def send_published_run(self, correlation: int, partition: int, count: int, base_offset: int, base_id: int) -> bool:
        """Answer a PUBLISH that went to one partition and held nothing that was there already: the usual case."""
        if self.close_planned is not None:
            return False
        kind, size_bytes = self._in_flight.get(correlation, (0, 0))
        if kind != Kind.PUBLISH:
            raise errors.InvalidArgument(f"PUBLISHED for {correlation}: no PUBLISH of that number waits")
        self._out += build(published_run_frame, correlation, partition, count, base_offset, base_id)
        del self._in_flight[correlation]
        self.in_flight_bytes -= size_bytes
        return True

    def send_subscribed(self, correlation: int, lease_ns: int, information: Buffer = b"") -> bool:
        """Answer a CONSUME; from now on `send_deliveries` may push to it, within its credit."""
        packet = Subscribed(correlation, lease_ns, information)
        sent = self._send_reply(correlation, Kind.SUBSCRIBED, ENCODERS[Kind.SUBSCRIBED], packet)
        if sent:
            self.subscriptions[correlation].active = True
        return sent

    def send_deliveries(
        self,
        subscription: int,
        runs: Sequence[DeliveredRun],
        batches: Sequence[Buffer | Sequence[Buffer]],
        lease_ns: int,
    ) -> bool:
        """Push messages within the credit.

        False: the subscription has ended or is leaving, or the connection takes no new work. Release them then.
        """
        standing = self.subscriptions.get(subscription)
        if standing is None or not standing.active or standing.leaving or not self._may_send(Kind.DELIVERIES):
            return False
        messages = sum([run[3] for run in runs])
        if messages > standing.credit_messages or standing.credit_bytes <= 0:
            raise errors.InvalidArgument(
                f"a push of {messages} messages to subscription {subscription}, whose credit is "
                f"{standing.credit_messages} messages, {standing.credit_bytes} bytes"
            )
        size = self._send(delivered_frame, Kind.DELIVERIES, 0, subscription, lease_ns, runs, batches)
        standing.spend(messages, size - 30 - 28 * len(runs) - 4 * len(batches))
        return True

    def send_leased(
        self,
        correlation: int,
        runs: Sequence[DeliveredRun],
        batches: Sequence[Buffer | Sequence[Buffer]],
        lease_ns: int,
        *,
        subscription: int = 0,
    ) -> bool:
        """Answer a LEASE; no runs: nothing came within the wait."""
        return self._send_reply(
            correlation, Kind.LEASED, delivered_frame, Kind.LEASED, correlation, subscription, lease_ns, runs, batches
        )

    def send_settled(
        self,
        correlation: int,
        refusals: Sequence[Refusal] = (),
        published: Sequence[Published] = (),
        cancelled: int | None = None,
    ) -> bool:
        """Answer a SETTLE: everything was done except the refusals. ``cancelled`` is told to those who know it."""
        told = cancelled if CANCELLED in self.features else None
        return self._send_reply(correlation, Kind.SETTLED, settled_frame, correlation, refusals, published, told)

    def send_ended(self, subscription: int, correlation: int = 0, error: errors.HeadraceError | None = None) -> bool:
        """A subscription is over: answers an UNSUBSCRIBE, or (correlation 0) tells that the server ended it."""
        message = "" if error is None else error.message
        packet = Ended(correlation, subscription, number_of(error), message, retry_after_of(error))
        if correlation:
            sent = self._send_reply(correlation, Kind.ENDED, ENCODERS[Kind.ENDED], packet)
        else:
            sent = self._may_send(Kind.ENDED) and subscription in self.subscriptions
            if sent:
                self._send(ENCODERS[Kind.ENDED], packet)
        if sent:
            self.subscriptions.pop(subscription, None)
        return sent

    def send_result(self, correlation: int, result: Buffer, attachments: Sequence[Buffer] = ()) -> bool:
        """Answer a CALL."""
        packet = Result(correlation, result, attachments)
        return self._send_reply(correlation, Kind.RESULT, ENCODERS[Kind.RESULT], packet)

    def send_error(self, correlation: int, error: errors.HeadraceError) -> bool:
        """Refuse any request."""
        kind, _ = self._in_flight.get(correlation, (0, 0))
        packet = Error(correlation, number_of(error), error.message, retry_after_of(error))
        sent = self._send_reply(correlation, Kind.ERROR, ENCODERS[Kind.ERROR], packet)
        if sent and kind == Kind.CONSUME:
            self.subscriptions.pop(correlation, None)
        return sent

    def send_goaway(self, reason: str, deadline_ns: int, now_ns: int) -> bool:
        """Take no new work; close when the client has, at the latest after the span ``deadline_ns``."""
        if not self._may_send(Kind.GOAWAY):
            return False
        self._send(ENCODERS[Kind.GOAWAY], GoAway(deadline_ns, reason))
        self.state = State.DRAINING
        self._due_ns = now_ns + deadline_ns
        self.due_earlier = True
        return True

    def _send_reply(self, correlation: int, kind: Kind, encoder: Callable[..., list[Buffer]], *fields: Any) -> bool:
        if self.close_planned is not None:
            return False
        asked = self._in_flight.get(correlation)
        if asked is None:
            raise errors.InvalidArgument(f"{kind.name} for {correlation}: no such request waits")
        if kind != Kind.ERROR and REPLIES[asked[0]] != kind:
            raise errors.InvalidArgument(f"{kind.name} does not answer {Kind(asked[0]).name}")
        self._send(encoder, *fields)
        del self._in_flight[correlation]
        self.in_flight_bytes -= asked[1]
        return True
