"""The client's side of the network against a server session, connection after connection, on a clock of the test's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace import errors
from headrace.batch import Batch, encode_columns
from headrace.calls import Run, Settle
from headrace.client.asking import Asking
from headrace.client.line import Channel, Line
from headrace.limits import (
    CLIENT_BREAKS_IN_ALL_MAX,
    CLIENT_BREAKS_MAX,
    CLIENT_PRODUCER_WINDOW,
    CLIENT_RECONNECT_NS_MAX,
    SECOND_NS,
)
from headrace.wire import native

OUTAGE_NS = 10 * SECOND_NS


class Peer:
    """A line, and the server at the other end of each of its connections."""

    def __init__(self) -> None:
        self.now = 1_000 * SECOND_NS
        self.line = Line(
            where="test:7420",
            client="c",
            token=None,
            namespace="default",
            outage_ns=OUTAGE_NS,
            now_ns=lambda: self.now,
        )
        self.asking = Asking(self.line, "default")
        self.server: native.ServerSession | None = None
        self.asked: list[Any] = []
        self.replies: dict[str, Any] = {}

    # -- the client ----------------------------------------------------------------------------------------------------

    def keep(self, name: str) -> Callable[[Any], None]:
        def put(answer: Any) -> None:
            assert name not in self.replies, f"{name} was answered twice"
            self.replies[name] = answer

        return put

    def publish(self, name: str) -> None:
        batch = encode_columns([name.encode()])
        self.line.ask(self.asking.publish("default", "orders", -1, batch, self.keep(name)))

    def settle(self, name: str, order: Settle) -> None:
        self.line.ask(self.asking.settle("default", "orders", "g", order, self.keep(name)))

    def channel(self, credit: int = 10) -> Channel:
        found = self.asking.channel("default", "orders", "g", "c", None, credit, None, lambda: None)
        self.line.open_channel(found, self.keep(f"channel {id(found)}"))
        return found

    # -- the server ----------------------------------------------------------------------------------------------------

    def connect(self, *, welcome: bool = True) -> None:
        self.line.connected()
        self.server = native.ServerSession(now_ns=self.now)
        self.exchange()
        if welcome:
            self.server.send_welcome(server="headrace", server_id="n1")
            self.exchange()

    def exchange(self) -> None:
        """Carry bytes both ways until nothing is said."""
        server = self.server
        assert server is not None
        while True:
            up = b"".join(self.line.outgoing())
            if up:
                server.receive_bytes(up, self.now)
                self.asked += [event for event in server.events() if not isinstance(event, native.Hello)]
            down = b"".join(server.outgoing())
            if down:
                self.line.received(down)
            if not up and not down:
                return

    def cut(self) -> None:
        """The connection breaks; what the server has not answered it never will."""
        self.line.ended("reset by peer")
        self.server = None
        self.asked = []

    def stored(self) -> list[tuple[bytes, int, int]]:
        """The publishes that came, with their producer and sequence."""
        found = []
        for event in self.asked:
            if isinstance(event, native.Publish):
                batch = Batch.decode(event.batch)
                found.append((batch.value(0), batch.producer_id, batch.producer_seq))
        return found

    def confirm(self) -> None:
        """Answer every publish and settle that came."""
        assert self.server is not None
        asked, self.asked = self.asked, []
        for event in asked:
            if isinstance(event, native.Publish):
                self.server.send_published(event.correlation, 1, [(0, 1, 5, 9)])
            elif isinstance(event, native.Settle):
                self.server.send_settled(event.correlation)
        self.exchange()


@pytest.fixture
def peer() -> Peer:
    return Peer()


def test_what_is_asked_without_a_connection_waits_for_one_and_keeps_its_order(peer: Peer) -> None:
    for name in ("a", "b", "c"):
        peer.publish(name)
    assert peer.replies == {}
    assert peer.line.wants_connection
    peer.connect()
    assert [value for value, _, _ in peer.stored()] == [b"a", b"b", b"c"]
    peer.confirm()
    assert sorted(peer.replies) == ["a", "b", "c"]


def test_nothing_is_asked_before_the_welcome(peer: Peer) -> None:
    peer.publish("a")
    peer.connect(welcome=False)
    assert peer.asked == []


def test_unconfirmed_publishes_are_repeated_with_their_numbers_before_later_ones(peer: Peer) -> None:
    peer.connect()
    for name in ("a", "b"):
        peer.publish(name)
    peer.exchange()
    first = peer.stored()
    peer.cut()
    peer.publish("c")
    assert peer.replies == {}
    peer.connect()
    again = peer.stored()
    assert again[:2] == first
    assert [value for value, _, _ in again] == [b"a", b"b", b"c"]
    assert [sequence for _, _, sequence in again] == [1, 2, 3]
    peer.confirm()
    assert all(isinstance(answer, native.Published) for answer in peer.replies.values())


def test_what_was_confirmed_is_not_repeated(peer: Peer) -> None:
    peer.connect()
    peer.publish("a")
    peer.exchange()
    peer.confirm()
    peer.cut()
    peer.connect()
    assert peer.stored() == []


def test_no_more_batches_of_a_producer_are_under_way_than_the_broker_remembers(peer: Peer) -> None:
    peer.connect()
    for n in range(CLIENT_PRODUCER_WINDOW + 5):
        peer.publish(f"{n}")
    peer.exchange()
    assert len(peer.stored()) == CLIENT_PRODUCER_WINDOW
    peer.confirm()
    assert len(peer.stored()) == 5


def test_plain_acks_are_repeated_and_an_atomic_settle_that_may_have_happened_is_not(peer: Peer) -> None:
    peer.connect()
    peer.settle("ack", Settle(ack=[Run(0, 7, 0, 3)]))
    atomic = Settle(nack=[(Run(0, 7, 3, 1), None, "no")], publish=[("out", -1, encode_columns([b"x"]))])
    peer.settle("atomic", atomic)
    peer.exchange()
    peer.cut()
    assert isinstance(peer.replies.pop("atomic"), errors.Closed)
    assert peer.replies == {}
    peer.connect()
    (settle,) = peer.asked
    assert settle.actions[0].verb == native.Verb.ACK
    peer.confirm()
    assert isinstance(peer.replies["ack"], native.Settled)


def test_batches_in_atomic_settles_are_numbered_in_the_order_in_which_they_leave(peer: Peer) -> None:
    """Requests are made by many threads, and one that was made earlier may be asked later."""
    peer.connect()
    orders = [Settle(ack=[Run(0, 1, n)], publish=[("out", -1, encode_columns([b"%d" % n]))]) for n in range(3)]
    made = [peer.asking.settle("default", "orders", "g", order, peer.keep(f"s{n}")) for n, order in enumerate(orders)]
    for request in reversed(made):
        peer.line.ask(request)
    peer.exchange()
    batches = [Batch.decode(event.effects[0].batch) for event in peer.asked]
    assert [batch.value(0) for batch in batches] == [b"2", b"1", b"0"]
    numbers = [batch.producer_seq for batch in batches]
    assert numbers == sorted(numbers)
    peer.cut()
    peer.connect()
    again = [Batch.decode(event.effects[0].batch).producer_seq for event in peer.asked]
    assert again == numbers  # what may have happened keeps its number


def test_atomic_settles_that_publish_count_among_what_the_broker_remembers(peer: Peer) -> None:
    peer.connect()
    for n in range(CLIENT_PRODUCER_WINDOW + 5):
        peer.settle(f"s{n}", Settle(ack=[Run(0, 1, n)], publish=[("out", -1, encode_columns([b"x"]))]))
    peer.exchange()
    assert len(peer.asked) == CLIENT_PRODUCER_WINDOW
    peer.confirm()
    assert len(peer.replies) == CLIENT_PRODUCER_WINDOW


def test_nobody_waits_longer_than_the_outage(peer: Peer) -> None:
    peer.connect()
    peer.publish("a")
    peer.exchange()
    peer.cut()
    peer.now += OUTAGE_NS // 2
    peer.publish("b")
    peer.line.failed_to_connect("refused")
    assert peer.replies == {}
    assert peer.line.next_due_ns() == peer.now + OUTAGE_NS // 2
    peer.now += OUTAGE_NS // 2
    peer.line.on_due()
    assert isinstance(peer.replies["a"], errors.TimedOut)
    assert "refused" in str(peer.replies["a"])
    assert "b" not in peer.replies  # it has not waited that long
    peer.now += OUTAGE_NS // 2
    peer.line.on_due()
    assert isinstance(peer.replies["b"], errors.TimedOut)
    peer.connect()
    assert peer.stored() == []


def test_a_server_without_room_is_asked_again_later_with_a_new_number(peer: Peer) -> None:
    peer.connect()
    peer.publish("a")
    peer.exchange()
    (event,) = peer.asked
    assert peer.server is not None
    peer.server.send_error(event.correlation, errors.Overloaded("full", retry_after_ns=SECOND_NS))
    peer.asked = []
    peer.exchange()
    assert peer.replies == {}
    assert peer.line.next_due_ns() == peer.now + SECOND_NS
    peer.publish("b")
    peer.exchange()
    peer.now += SECOND_NS
    peer.line.on_due()
    peer.exchange()
    assert [(value, sequence) for value, _, sequence in peer.stored()] == [(b"b", 2), (b"a", 3)]


def test_a_refusal_is_answered_and_not_repeated(peer: Peer) -> None:
    peer.connect()
    peer.publish("a")
    peer.exchange()
    (event,) = peer.asked
    assert peer.server is not None
    peer.server.send_error(event.correlation, errors.QueueFull("max_depth of 2"))
    peer.exchange()
    assert isinstance(peer.replies["a"], errors.QueueFull)
    peer.cut()
    peer.connect()
    assert peer.stored() == []


@pytest.mark.parametrize("error", [errors.Unauthenticated("no token"), errors.UnsupportedVersion("too new")])
def test_a_server_that_will_never_have_us_ends_everything_with_its_reason(
    peer: Peer, error: errors.HeadraceError
) -> None:
    peer.publish("a")
    peer.connect(welcome=False)
    assert peer.server is not None
    peer.server.send_close(error)
    peer.exchange()
    assert peer.replies["a"].code == error.code
    assert not peer.line.wants_connection
    peer.publish("b")
    assert peer.replies["b"].code == error.code


def test_after_a_goaway_what_is_new_waits_for_the_next_connection(peer: Peer) -> None:
    peer.connect()
    peer.publish("a")
    peer.exchange()
    assert peer.server is not None
    peer.server.send_goaway("stopping", 5 * SECOND_NS, peer.now)
    peer.exchange()
    peer.publish("b")
    peer.exchange()
    assert [value for value, _, _ in peer.stored()] == [b"a"]
    peer.confirm()
    assert list(peer.replies) == ["a"]
    peer.line.ended()
    assert peer.line.wants_connection
    peer.connect()
    assert [value for value, _, _ in peer.stored()] == [b"b"]


def test_a_consumer_subscribes_again_on_every_connection_and_gives_back_what_it_had_not_handed_out(peer: Peer) -> None:
    peer.connect()
    channel = peer.channel(credit=10)
    peer.exchange()
    (consume,) = peer.asked
    peer.asked = []
    assert isinstance(consume, native.Consume)
    assert consume.credit_messages == 10
    server = peer.server
    assert server is not None
    number = consume.correlation
    server.send_subscribed(number, 30 * SECOND_NS)
    stamped = encode_columns([b"a", b"b", b"c"]).stamp(0, 100, 1)
    server.send_deliveries(number, ((0, 7, 0, 3, 1),), [stamped.buffers()], 30 * SECOND_NS)
    peer.exchange()
    assert channel.waits
    assert [leased.batch.values() for leased in channel.take(2)] == [[b"a", b"b"]]
    life = channel.life
    peer.cut()
    assert channel.life != life
    assert not channel.waits
    peer.connect()
    kinds = [type(event) for event in peer.asked]
    assert kinds == [native.Consume, native.Settle]
    (release,) = peer.asked[1].actions
    assert release.verb == native.Verb.RELEASE
    assert [(run[2], run[3]) for run in release.runs] == [(2, 1)]


def test_credit_goes_back_for_what_was_taken_and_never_for_more(peer: Peer) -> None:
    peer.connect()
    channel = peer.channel(credit=4)
    peer.exchange()
    (consume,) = peer.asked
    peer.asked = []
    server = peer.server
    assert server is not None
    server.send_subscribed(consume.correlation, 30 * SECOND_NS)
    stamped = encode_columns([b"%d" % n for n in range(4)]).stamp(0, 100, 1)
    server.send_deliveries(consume.correlation, ((0, 7, 0, 4, 1),), [stamped.buffers()], 30 * SECOND_NS)
    peer.exchange()
    channel.take(1)
    peer.exchange()
    assert server.subscriptions[consume.correlation].credit_messages == 0
    channel.take(1)
    peer.exchange()
    assert server.subscriptions[consume.correlation].credit_messages == 2
    channel.take(10)
    peer.exchange()
    assert server.subscriptions[consume.correlation].credit_messages == 4


def test_a_close_answers_everybody(peer: Peer) -> None:
    peer.connect()
    peer.publish("under way")
    peer.exchange()
    peer.cut()
    peer.publish("waiting")
    peer.line.close()
    assert {name: answer.code for name, answer in peer.replies.items()} == {"under way": "closed", "waiting": "closed"}
    peer.publish("late")
    assert peer.replies["late"].code == "closed"


# -- requests that break what carries them -----------------------------------------------------------------------------


def pause(peer: Peer, name: str = "pause") -> None:
    peer.line.ask(peer.asking.call("group.pause", {"topic": "t", "group": "g"}, peer.keep(name)))


def until_answered(peer: Peer, name: str, each: Callable[[], None] = lambda: None) -> int:
    """Connections that broke at the call until it failed."""
    for breaks in range(100):
        if name in peer.replies:
            return breaks
        peer.connect()
        for _ in range(10):
            if any(isinstance(event, native.Call) for event in peer.asked):
                break
            peer.confirm()
        each()
        peer.cut()
    raise AssertionError("it is asked for ever")


def test_a_request_during_which_every_connection_breaks_is_not_asked_for_ever(peer: Peer) -> None:
    pause(peer)
    assert until_answered(peer, "pause") == CLIENT_BREAKS_MAX
    assert isinstance(peer.replies["pause"], errors.Closed)
    message = str(peer.replies["pause"])
    assert (
        f"broke {CLIENT_BREAKS_MAX} times, each time while group.pause was under way (the connection ended" in message
    )
    peer.connect()
    assert peer.asked == []
    peer.publish("a")
    peer.exchange()
    peer.confirm()
    assert isinstance(peer.replies["a"], native.Published)


def test_what_is_asked_beside_a_request_that_breaks_connections_does_not_fail_with_it(peer: Peer) -> None:
    peer.publish("before")
    pause(peer)
    for number in range(CLIENT_PRODUCER_WINDOW):
        peer.publish(f"after {number}")
    until_answered(peer, "pause")
    peer.connect()
    while peer.asked:  # one by one, as long as one of them may be what breaks connections
        peer.confirm()
    del peer.replies["pause"]
    assert len(peer.replies) == CLIENT_PRODUCER_WINDOW + 1
    assert {type(answer) for answer in peer.replies.values()} == {native.Published}


def test_answers_in_between_give_a_request_more_chances_but_not_without_end(peer: Peer) -> None:
    pause(peer)

    def confirm_others() -> None:
        peer.line._answers += 1  # as one that was asked beside it would

    assert until_answered(peer, "pause", confirm_others) == CLIENT_BREAKS_IN_ALL_MAX


def test_a_server_that_says_goodbye_has_not_been_broken(peer: Peer) -> None:
    pause(peer)
    for _ in range(3 * CLIENT_BREAKS_IN_ALL_MAX):
        peer.connect()
        assert peer.server is not None
        peer.server.send_close(errors.Draining("going"))
        peer.exchange()
        peer.asked = []
    assert peer.replies == {}
    peer.connect()
    assert [type(event) for event in peer.asked] == [native.Call]


def test_a_subscription_that_breaks_every_connection_ends_its_consumer(peer: Peer) -> None:
    peer.connect()
    channel = peer.channel()
    peer.exchange()
    (consume,) = peer.asked
    assert peer.server is not None
    peer.server.send_subscribed(consume.correlation, SECOND_NS)
    peer.exchange()
    peer.cut()
    for _ in range(CLIENT_BREAKS_MAX):
        assert channel.error is None
        peer.connect()
        assert [type(event) for event in peer.asked] == [native.Consume]
        peer.cut()
    assert isinstance(channel.error, errors.Closed)
    peer.connect()
    assert peer.asked == []


def test_a_connection_worked_when_it_answered_something_or_stood_for_a_while(peer: Peer) -> None:
    peer.connect()
    peer.cut()
    assert not peer.line.worked, "a WELCOME alone is no reason to come back at once"
    peer.connect()
    peer.publish("a")
    peer.exchange()
    peer.confirm()
    peer.cut()
    assert peer.line.worked
    peer.connect(welcome=False)
    peer.now += 10 * CLIENT_RECONNECT_NS_MAX
    peer.cut()
    assert not peer.line.worked
    peer.connect()
    peer.now += CLIENT_RECONNECT_NS_MAX
    peer.cut()
    assert peer.line.worked
