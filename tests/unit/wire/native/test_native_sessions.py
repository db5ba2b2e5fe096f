"""Two sessions talking in memory: handshake, deadlines, heartbeats, requests, credit, draining, faults."""

from __future__ import annotations

import array
import struct
from typing import Any

import pytest

from headrace import errors, limits
from headrace.limits import SECOND_NS
from headrace.wire.native import (
    BY_POLICY,
    DUPLICATE,
    Action,
    Call,
    CancelEffect,
    ClientSession,
    Closed,
    Consume,
    Credit,
    Deliveries,
    Ended,
    Error,
    GoAway,
    Hello,
    HelloBody,
    Kind,
    Leased,
    Limits,
    Ping,
    Publish,
    Published,
    PublishEffect,
    Result,
    Scope,
    ServerSession,
    Settle,
    Settled,
    Subscribed,
    Unsubscribe,
    Verb,
    Welcome,
    decode,
    encode,
    error_from,
    error_of,
    number_of,
    pack,
    unpack,
)

ORDERS = Scope("", "orders", "billing", "c1")
RUN = (0, 77, 40, 100)


class Line:
    """A client and a server with nothing but memory between them."""

    def __init__(self, bounds: Limits | None = None, *, piece_bytes: int = 1 << 20, **hello: Any) -> None:
        self.now_ns = 0
        self.piece_bytes = piece_bytes
        self.client = ClientSession(client="test", now_ns=0, **hello)
        self.server = ServerSession(bounds, now_ns=0)

    def to_server(self) -> list[Any]:
        self._carry(self.client, self.server)
        return self.server.events()

    def to_client(self) -> list[Any]:
        self._carry(self.server, self.client)
        return self.client.events()

    def _carry(self, source: ClientSession | ServerSession, target: ClientSession | ServerSession) -> None:
        data = b"".join(source.outgoing())
        for at in range(0, len(data), self.piece_bytes):
            target.receive_bytes(data[at : at + self.piece_bytes], self.now_ns)


def opened(bounds: Limits | None = None, **kwargs: Any) -> Line:
    line = Line(bounds, **kwargs)
    line.to_server()
    line.server.send_welcome(server="headrace 1.0", server_id="n1")
    line.to_client()
    return line


def subscribed(line: Line, messages: int = 200, size_bytes: int = 1 << 20) -> int:
    number = line.client.send_consume(ORDERS, credit_messages=messages, credit_bytes=size_bytes)
    line.to_server()
    line.server.send_subscribed(number, 30 * SECOND_NS)
    line.to_client()
    return number


def last_error(session: ClientSession | ServerSession) -> errors.HeadraceError:
    assert session.close_planned is not None
    assert session.close_planned.error is not None
    return session.close_planned.error


# -- handshake ---------------------------------------------------------------------------------------------------------


def test_hello_tells_who_is_there_and_welcome_what_is_allowed() -> None:
    line = Line(Limits(requests_max=7), token="t0k", namespace="shop", heartbeat_ns=2 * SECOND_NS)
    (hello,) = line.to_server()
    assert isinstance(hello, Hello)
    assert (hello.body.client, hello.body.token, hello.body.namespace) == ("test", "t0k", "shop")
    assert line.server.send_welcome(server="headrace 1.0", server_id="n1", wall_ns=5)
    (welcome,) = line.to_client()
    assert isinstance(welcome, Welcome)
    assert welcome.body.requests_max == line.client.requests_free == 7
    assert (welcome.body.namespace, welcome.body.heartbeat_ns, welcome.body.wall_ns) == ("shop", 2 * SECOND_NS, 5)


def test_client_that_knows_no_common_version_is_told_both_ranges() -> None:
    server = ServerSession(now_ns=0)
    server.receive_bytes(b"".join(encode(Hello(HelloBody(2, 9, "future")))), 0)
    assert isinstance(last_error(server), errors.UnsupportedVersion)
    assert "2 to 9" in str(last_error(server))
    assert [type(event) for event in server.events()] == [Closed]


def test_refused_client_learns_why() -> None:
    line = Line()
    line.to_server()
    line.server.send_close(errors.Unauthenticated("the token has expired"))
    (closed,) = line.to_client()
    assert closed.by == "peer"
    assert isinstance(closed.error, errors.Unauthenticated)
    assert str(closed.error) == "the token has expired"


@pytest.mark.parametrize("sent", [0, 3, 20])
def test_connection_without_a_whole_hello_ends_at_the_deadline(sent: int) -> None:
    line = Line()
    hello = b"".join(line.client.outgoing())
    for at in range(sent):
        line.server.receive_bytes(hello[at : at + 1], at * SECOND_NS // 10)
    due_ns = line.server.next_due_ns()
    assert due_ns == limits.NATIVE_HELLO_TIMEOUT_NS
    line.server.on_due(due_ns - 1)
    assert line.server.close_planned is None
    line.server.on_due(due_ns)
    assert isinstance(last_error(line.server), errors.TimedOut)
    assert line.server.next_due_ns() is None


def test_hello_nobody_decides_about_ends_at_the_deadline_too() -> None:
    line = Line()
    line.to_server()
    line.server.on_due(limits.NATIVE_HELLO_TIMEOUT_NS)
    assert "no decision" in str(last_error(line.server))


def test_client_gives_up_on_a_server_that_does_not_answer() -> None:
    client = ClientSession(client="test", now_ns=0)
    client.on_due(limits.NATIVE_HELLO_TIMEOUT_NS)
    assert isinstance(last_error(client), errors.TimedOut)


def test_request_line_of_another_protocol_is_named_in_the_fault() -> None:
    server = ServerSession(now_ns=0)
    server.receive_bytes(b"GET / HTTP/1.1\r\n", 0)
    assert isinstance(last_error(server), errors.Malformed)
    assert "b'GET '" in str(last_error(server))


def test_nothing_can_be_asked_before_welcome() -> None:
    client = ClientSession(client="test", now_ns=0)
    with pytest.raises(errors.Closed):
        client.send_publish("orders", b"batch")


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece_bytes", [1, 3, 64, 1 << 20])
def test_batch_arrives_as_it_was_sent_however_it_is_cut(piece_bytes: int) -> None:
    line = opened(piece_bytes=piece_bytes)
    number = line.client.send_publish("orders", [b"abc", memoryview(b"defg"), bytearray(b"hi")], partition=3)
    (publish,) = line.to_server()
    assert isinstance(publish, Publish)
    assert (publish.correlation, publish.topic, publish.partition) == (number, "orders", 3)
    assert bytes(publish.batch) == b"abcdefghi"  # type: ignore[arg-type] # received: one buffer
    assert line.server.send_published(number, 2, [(3, 2, 10, 1000)])
    (published,) = line.to_client()
    assert published.places() == [(3, 10, 1000, False), (3, 11, 1001, False)]
    assert line.client.in_flight == line.server.in_flight == line.server.in_flight_bytes == 0


def test_wide_columns_count_as_bytes() -> None:
    line = opened()
    column = array.array("Q", [1, 2, 3])
    line.client.send_publish("orders", [b"x", memoryview(column)])
    (publish,) = line.to_server()
    assert len(publish.batch) == 25


def test_replies_may_come_in_any_order() -> None:
    line = opened()
    numbers = [line.client.send_publish("orders", b"batch") for _ in range(3)]
    assert len(line.to_server()) == 3
    for number in reversed(numbers):
        line.server.send_published(number, 1, [(0, 1, number, number)])
    assert [event.correlation for event in line.to_client()] == numbers[::-1]


def test_places_of_a_split_batch_with_duplicates() -> None:
    published = Published(1, 4, [(0, 1, 10, 100), (1, 2, 20, 101)], (1, DUPLICATE, 0, 1), [(1, 4, 2, 55)])
    assert published.places() == [(1, 20, 101, False), (4, 2, 55, True), (0, 10, 100, False), (1, 21, 102, False)]


def test_refusal_carries_its_code_and_when_to_come_back() -> None:
    line = opened()
    number = line.client.send_publish("orders", b"batch")
    line.to_server()
    line.server.send_error(number, errors.QueueFull("the topic is full", retry_after_ns=250))
    (error,) = line.to_client()
    assert isinstance(error, Error)
    raised = error_of(error)
    assert isinstance(raised, errors.QueueFull)
    assert raised.retry_after_ns == 250
    assert line.client.in_flight == 0


def test_announced_number_of_requests_is_kept_by_the_client_and_enforced_by_the_server() -> None:
    line = opened(Limits(requests_max=2))
    line.client.send_publish("orders", b"1")
    line.client.send_publish("orders", b"2")
    with pytest.raises(errors.Overloaded):
        line.client.send_publish("orders", b"3")
    line.to_server()
    line.server.receive_bytes(b"".join(encode(Publish(9, "", "orders", -1, 0, b"3"))), 0)
    assert isinstance(last_error(line.server), errors.LimitExceeded)


def test_server_pauses_reading_while_waiting_requests_are_large() -> None:
    line = opened(Limits(request_bytes_max=1000))
    first = line.client.send_publish("orders", bytes(800))
    line.to_server()
    assert not line.server.reading_paused
    second = line.client.send_publish("orders", bytes(800))
    line.to_server()
    assert line.server.reading_paused
    line.server.send_published(first, 1, [(0, 1, 0, 0)])
    assert not line.server.reading_paused
    line.server.send_published(second, 1, [(0, 1, 1, 1)])
    assert line.server.in_flight_bytes == 0


def test_batch_beyond_the_servers_limit_is_refused_where_it_is_sent() -> None:
    line = opened(Limits(frame_bytes_max=limits.NATIVE_FRAME_BYTES_MIN))
    with pytest.raises(errors.PayloadTooLarge):
        line.client.send_publish("orders", bytes(limits.NATIVE_FRAME_BYTES_MIN))
    assert line.client.outgoing() == []
    assert line.client.in_flight == 0


def test_correlation_id_in_use_is_a_violation() -> None:
    line = opened()
    frame = b"".join(encode(Publish(9, "", "orders", -1, 0, b"x")))
    line.server.receive_bytes(frame + frame, 0)
    assert isinstance(last_error(line.server), errors.ProtocolViolation)


def test_reply_nobody_waits_for_is_the_servers_own_fault() -> None:
    line = opened()
    with pytest.raises(errors.InvalidArgument):
        line.server.send_published(5, 1, [(0, 1, 0, 0)])
    number = line.client.send_publish("orders", b"x")
    line.to_server()
    with pytest.raises(errors.InvalidArgument):
        line.server.send_settled(number)


def test_reply_that_answers_nothing_ends_the_client() -> None:
    line = opened()
    line.client.receive_bytes(b"".join(encode(Settled(5))), 0)
    assert isinstance(last_error(line.client), errors.ProtocolViolation)


def test_settle_of_a_whole_delivery_is_58_bytes() -> None:
    line = opened()
    number = line.client.send_ack(5, [RUN])
    assert sum(map(len, line.client.outgoing())) == 58
    frame = b"".join(encode(Settle(number, [Action(Verb.ACK, 5, [RUN])])))
    line.server.receive_bytes(frame, 0)
    (settle,) = line.server.events()
    assert settle.count == 100
    line.server.send_settled(number, [(0, number_of(errors.LeaseLost("")), *RUN)])
    (settled,) = line.to_client()
    assert settled.refusals == [(0, 10, 0, 77, 40, 100)]


def test_atomic_settle_carries_publishes_and_cancels() -> None:
    line = opened()
    actions = [Action(Verb.ACK, ORDERS, [RUN]), Action(Verb.NACK, 5, [RUN], BY_POLICY, "boom")]
    number = line.client.send_settle(actions, [PublishEffect("", "out", -1, b"batch"), CancelEffect("", "later", (7,))])
    (settle,) = line.to_server()
    assert settle.atomic
    assert settle.actions == actions
    assert settle.effects == [PublishEffect("", "out", -1, memoryview(b"batch")), CancelEffect("", "later", (7,))]
    line.server.send_settled(number, published=[Published(0, 1, [(0, 1, 5, 9)])])
    (settled,) = line.to_client()
    assert settled.published[0].places() == [(0, 5, 9, False)]


def test_how_many_were_cancelled_is_told_to_a_client_that_knows_it_and_to_no_other() -> None:
    for hello, told in (({}, 1), ({"features": ()}, None), ({"features": ("else",)}, None)):
        line = opened(**hello)
        assert line.client.welcome is not None
        assert ("cancelled" in line.client.welcome.features) is (told is not None)
        number = line.client.send_settle([], [CancelEffect("", "later", (7, 8))])
        line.to_server()
        line.server.send_settled(number, cancelled=1)
        (settled,) = line.to_client()
        assert settled.cancelled == told


def test_call_carries_arguments_and_attachments_both_ways() -> None:
    line = opened()
    number = line.client.send_call("topic.create", pack({"name": "orders"}), [b"a", b"bc"])
    (call,) = line.to_server()
    assert isinstance(call, Call)
    assert (call.method, unpack(call.arguments, dict[str, str])) == ("topic.create", {"name": "orders"})
    assert [bytes(piece) for piece in call.attachments] == [b"a", b"bc"]
    line.server.send_result(number, pack([1, 2]), [b"batch"])
    (result,) = line.to_client()
    assert isinstance(result, Result)
    assert unpack(result.result) == [1, 2]
    assert [bytes(piece) for piece in result.attachments] == [b"batch"]


def test_arguments_of_the_wrong_shape_are_an_invalid_argument() -> None:
    assert unpack(b"") == {}
    for wrong in (b"\xc1", b"\x91" * 10_000, pack({"name": 5}), pack({"name": "x"}) + b"\x00"):
        with pytest.raises(errors.InvalidArgument):
            unpack(wrong, dict[str, str])
    with pytest.raises(errors.InvalidArgument):
        pack({"x": object()})


# -- subscriptions and credit ------------------------------------------------------------------------------------------


def test_server_pushes_within_the_credit_and_no_further() -> None:
    line = opened()
    number = subscribed(line, messages=150)
    runs = [(0, 77, 40, 100, 1)]
    assert line.server.send_deliveries(number, runs, [[b"ab", b"c"], b"de"], 30 * SECOND_NS)
    (push,) = line.to_client()
    assert isinstance(push, Deliveries)
    assert (push.count, [bytes(batch) for batch in push.batches]) == (100, [b"abc", b"de"])
    with pytest.raises(errors.InvalidArgument):
        line.server.send_deliveries(number, runs, [b"x"], SECOND_NS)
    assert line.client.send_credit(number, 50, 5)
    assert line.to_server() == [Credit(number, 50, 5)]
    assert line.server.subscriptions[number].credit_messages == line.client.subscriptions[number].credit_messages == 100
    assert line.server.subscriptions[number].credit_bytes == line.client.subscriptions[number].credit_bytes == 1 << 20
    assert line.server.send_deliveries(number, runs, [b"x"], SECOND_NS)


def test_withdrawn_credit_is_gone_for_the_server_at_once_and_for_the_client_when_it_knows() -> None:
    line = opened()
    number = subscribed(line, messages=150)
    assert line.client.send_withdraw(number)
    crossing = [(0, 77, 40, 100, 1)]
    assert line.server.send_deliveries(number, crossing, [b"x"], SECOND_NS)  # before it is heard of
    assert line.to_server() == [Credit(number, 0, 0, True)]
    assert line.server.subscriptions[number].credit_messages == 0
    (push,) = line.to_client()
    assert isinstance(push, Deliveries)
    line.client.withdrawn(number)
    assert line.client.send_credit(number, 150, 0)
    line.to_server()
    assert line.server.subscriptions[number].credit_messages == line.client.subscriptions[number].credit_messages == 150


def test_bytes_of_credit_may_be_overrun_once() -> None:
    line = opened()
    number = subscribed(line, size_bytes=10)
    assert line.server.send_deliveries(number, [(0, 1, 0, 1, 1)], [bytes(100)], SECOND_NS)
    assert len(line.to_client()) == 1
    with pytest.raises(errors.InvalidArgument):
        line.server.send_deliveries(number, [(0, 1, 1, 1, 1)], [b"x"], SECOND_NS)


def test_client_ends_a_server_that_pushes_beyond_the_credit() -> None:
    line = opened()
    number = subscribed(line, messages=99)
    line.client.receive_bytes(b"".join(encode(Deliveries(number, 0, [(0, 1, 0, 100, 1)], [b"x"]))), 0)
    assert isinstance(last_error(line.client), errors.ProtocolViolation)


def test_server_ends_a_client_that_hoards_credit() -> None:
    line = opened(Limits(credit_messages_max=300))
    number = subscribed(line)
    with pytest.raises(errors.LimitExceeded):
        line.client.send_credit(number, 101, 0)
    line.server.receive_bytes(b"".join(encode(Credit(number, 101, 0))), 0)
    assert isinstance(last_error(line.server), errors.LimitExceeded)


def test_subscription_beyond_the_limit_is_refused_and_the_connection_goes_on() -> None:
    line = opened(Limits(subscriptions_max=1))
    subscribed(line)
    with pytest.raises(errors.LimitExceeded):
        line.client.send_consume(ORDERS, credit_messages=1, credit_bytes=1)
    line.server.receive_bytes(b"".join(encode(Consume(9, ORDERS, 0, 1, 1))), 0)
    assert line.server.events() == []
    assert line.server.close_planned is None
    assert line.server.in_flight == 0


def test_refused_consume_leaves_no_subscription_on_either_side() -> None:
    line = opened()
    number = line.client.send_consume(ORDERS, credit_messages=1, credit_bytes=1)
    line.to_server()
    line.server.send_error(number, errors.UnknownTopic("no topic 'orders'"))
    line.to_client()
    assert line.client.subscriptions == line.server.subscriptions == {}


def test_nothing_is_pushed_before_the_subscription_stands_or_after_it_was_left() -> None:
    line = opened()
    number = line.client.send_consume(ORDERS, credit_messages=9, credit_bytes=9)
    line.to_server()
    run = [(0, 1, 0, 1, 1)]
    assert not line.server.send_deliveries(number, run, [b"x"], SECOND_NS)
    line.server.send_subscribed(number, SECOND_NS)
    assert [type(event) for event in line.to_client()] == [Subscribed]
    assert line.server.send_deliveries(number, run, [b"x"], SECOND_NS)  # crosses the UNSUBSCRIBE
    leaving = line.client.send_unsubscribe(number)
    assert line.to_client() == []
    assert [type(event) for event in line.to_server()] == [Unsubscribe]
    assert not line.server.send_deliveries(number, run, [b"x"], SECOND_NS)
    assert line.server.send_ended(number, leaving)
    assert line.to_client() == [Ended(leaving, number)]
    assert not line.client.send_credit(number, 1, 1)
    assert line.client.subscriptions == line.server.subscriptions == {}


def test_server_may_end_a_subscription_and_late_frames_for_it_are_harmless() -> None:
    line = opened()
    number = subscribed(line)
    line.server.send_ended(number, error=errors.UnknownTopic("deleted"))
    line.client.send_credit(number, 1, 1)
    line.client.send_unsubscribe(number)
    assert line.to_server() == []
    ended, answered = line.to_client()
    assert isinstance(error_of(ended), errors.UnknownTopic)
    assert (ended.correlation, answered.subscription, error_of(answered)) == (0, number, None)


def test_pull_that_found_nothing_is_empty() -> None:
    line = opened()
    number = line.client.send_lease(ORDERS, 100, wait_ns=SECOND_NS)
    (lease,) = line.to_server()
    assert (lease.scope, lease.messages_max, lease.wait_ns) == (ORDERS, 100, SECOND_NS)
    line.server.send_leased(number, [], [], 0)
    assert line.to_client() == [Leased(number, 0, 0, [], [])]


# -- time --------------------------------------------------------------------------------------------------------------


def test_idle_sides_ping_each_other_and_stay() -> None:
    line = opened()
    beat_ns = limits.NATIVE_HEARTBEAT_NS
    for _ in range(5):
        line.now_ns += beat_ns
        assert line.server.next_due_ns() == line.now_ns
        line.server.on_due(line.now_ns)
        line.client.on_due(line.now_ns)
        assert line.to_client() == line.to_server() == []
        line.to_client()
    assert line.server.close_planned is line.client.close_planned is None


@pytest.mark.parametrize("side", ["client", "server"])
def test_half_open_connection_is_noticed(side: str) -> None:
    session = getattr(opened(), side)
    beat_ns = limits.NATIVE_HEARTBEAT_NS
    session.on_due(beat_ns)
    (ping,) = session.outgoing()
    assert isinstance(decode(ping)[0], Ping)
    assert session.next_due_ns() == beat_ns * 5 // 2
    session.on_due(beat_ns * 5 // 2 - 1)
    assert session.close_planned is None
    session.on_due(beat_ns * 5 // 2)
    assert isinstance(last_error(session), errors.TimedOut)


def test_dripping_inside_a_frame_ends_although_bytes_keep_coming() -> None:
    line = opened()
    line.client.send_publish("orders", bytes(1000))
    data = b"".join(line.client.outgoing())
    at = 0
    while line.server.close_planned is None:
        line.server.receive_bytes(data[at : at + 1], at * SECOND_NS)
        due_ns = line.server.next_due_ns()
        at += 1
        if due_ns is not None and due_ns <= at * SECOND_NS:
            line.server.on_due(at * SECOND_NS)
    assert at == 31
    assert isinstance(last_error(line.server), errors.TimedOut)


# -- draining and closing ----------------------------------------------------------------------------------------------


def test_goaway_lets_what_is_in_flight_finish_and_nothing_new_begin() -> None:
    line = opened()
    number = subscribed(line)
    publishing = line.client.send_publish("orders", b"x")
    line.to_server()
    line.server.send_goaway("upgrade", 30 * SECOND_NS, now_ns=0)
    crossing = line.client.send_publish("orders", b"y")  # the client does not know yet
    assert line.to_server() == []
    assert not line.server.send_deliveries(number, [(0, 1, 0, 1, 1)], [b"x"], SECOND_NS)
    line.server.send_published(publishing, 1, [(0, 1, 0, 0)])
    goaway, refused, published = line.to_client()
    assert goaway == GoAway(30 * SECOND_NS, "upgrade")
    assert (refused.correlation, type(error_of(refused))) == (crossing, errors.Draining)
    assert published.correlation == publishing
    with pytest.raises(errors.Draining):
        line.client.send_publish("orders", b"z")
    line.client.send_ack(number, [RUN])
    assert [type(event) for event in line.to_server()] == [Settle]
    line.client.send_close()
    (closed,) = line.to_server()
    assert closed == Closed(None, "peer")


def test_drain_ends_at_its_deadline() -> None:
    line = opened()
    line.server.send_goaway("upgrade", 5 * SECOND_NS, now_ns=0)
    assert line.server.next_due_ns() == 5 * SECOND_NS
    line.server.on_due(5 * SECOND_NS)
    *_, closed = line.to_client()
    assert isinstance(closed.error, errors.Draining)


def test_every_connection_ends_in_one_closed_event_and_then_is_silent() -> None:
    line = opened()
    number = line.client.send_publish("orders", b"x")
    line.to_server()
    line.server.receive_eof(1)
    line.server.receive_eof(1)
    line.server.send_close()
    line.server.receive_bytes(b"anything", 1)
    (closed,) = line.server.events()
    assert (closed.by, closed) == ("end", line.server.close_planned)
    assert not line.server.send_published(number, 1, [(0, 1, 0, 0)])
    assert not line.server.send_error(number, errors.Overloaded("x"))
    assert line.server.outgoing() == []
    with pytest.raises(errors.InvalidArgument):
        ServerSession(Limits(frame_bytes_max=1), now_ns=0)


def test_length_of_4_gib_is_refused_from_its_four_bytes() -> None:
    line = opened()
    line.server.receive_bytes(struct.pack("<I", 0xFFFFFFFF), 0)
    assert isinstance(last_error(line.server), errors.PayloadTooLarge)
    assert line.server.buffered_bytes == 0


def test_every_error_travels_as_its_number_and_comes_back_as_itself() -> None:
    for kind, row in errors.ROWS.items():
        assert number_of(kind("x")) == row.native
        assert type(error_from(row.native, "x")) is kind
    assert number_of(None) == 0
    assert number_of(errors.HeadraceError("x")) == errors.ROWS[errors.Closed].native
    assert type(error_from(999, "x")) is errors.HeadraceError


def test_error_text_is_cut_between_characters() -> None:
    (frame,) = encode(Error(1, 1, "é" * 5000))
    packet, _ = decode(frame)  # type: ignore[misc] # it is whole
    assert isinstance(packet, Error)
    assert packet.message == "é" * 2048


@pytest.mark.parametrize(
    "packet",
    [
        Publish(1, "", "x" * 256, -1, 0, b""),
        Publish(1 << 32, "", "x", -1, 0, b""),
        Settle(1, [Action(Verb.ACK, Scope("", "t", "g" * 300), [RUN])]),
        Settle(1, [Action(Verb.ACK, 1, [(0, -1, 0, 1)])]),
        Published(1, 3, [(0, 1, 0, 0), (1, 2, 0, 0)], (0,)),
        Ping(-1),
    ],
)
def test_field_that_does_not_fit_is_an_invalid_argument(packet: Any) -> None:
    with pytest.raises(errors.InvalidArgument):
        encode(packet)


def test_kinds_of_the_hot_path_are_the_numbers_written_out_in_their_frames() -> None:
    assert (Kind.PUBLISH, Kind.PUBLISHED, Kind.CREDIT, Kind.SETTLE) == (16, 17, 41, 48)


def test_usual_short_forms_decode_to_the_same_values_as_the_long_ones() -> None:
    for packet in (Settled(1, [], []), Published(1, 5, [(0, 5, 9, 9)], (), [])):
        assert decode(b"".join(encode(packet)))[0] == packet  # type: ignore[index] # it is whole
