"""The client's side of the network against a server session, connection after connection, on a clock of the test's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace import errors
from headrace.batch import Batch, encode_columns
from headrace.calls import Run, Settle
from headrace.client.asking import Asking
from headrace.client.channel import Channel
from headrace.client.line import Line
from headrace.limits import (
    CLIENT_BREAKS_IN_ALL_MAX,
    CLIENT_BREAKS_MAX,
    CLIENT_IDLE_NS,
    CLIENT_PRODUCER_WINDOW,
    CLIENT_RECONNECT_NS_MAX,
    HELD_RUNS_MAX,
    MILLISECOND_NS,
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

    def connect(self, *, welcome: bool = True, features: Sequence[str] = native.FEATURES) -> None:
        self.line.connected()
        self.server = native.ServerSession(now_ns=self.now)
        self.exchange()
        self.server.features = tuple(feature for feature in self.server.features if feature in features)
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
    assert [leased.batch.values() for leased in channel.take(2, peer.now)] == [[b"a", b"b"]]
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
    channel.take(1, peer.now)
    peer.exchange()
    assert server.subscriptions[consume.correlation].credit_messages == 0
    channel.take(1, peer.now)
    peer.exchange()
    assert server.subscriptions[consume.correlation].credit_messages == 2
    channel.take(10, peer.now)
    peer.exchange()
    assert server.subscriptions[consume.correlation].credit_messages == 4


# -- a program that does not ask ---------------------------------------------------------------------------------------

LEASE_NS = 30 * SECOND_NS


class Subscribed:
    """A channel that is subscribed, and what its server pushes."""

    def __init__(
        self, peer: Peer, *, credit: int = 8, features: Sequence[str] = native.FEATURES, information: bytes = b""
    ) -> None:
        peer.connect(features=features)
        self.peer = peer
        self.channel = peer.channel(credit)
        self.offset = 0
        self.answer_consume(information)

    def answer_consume(self, information: bytes = b"") -> native.Consume:
        peer = self.peer
        peer.exchange()
        (consume,) = (event for event in peer.asked if isinstance(event, native.Consume))
        peer.asked.remove(consume)
        assert peer.server is not None
        peer.server.send_subscribed(consume.correlation, LEASE_NS, information)
        peer.exchange()
        self.number = consume.correlation
        return consume

    def push(self, count: int = 1, lease_ns: int = LEASE_NS) -> None:
        batch = encode_columns([b"x"] * count).stamp(self.offset, 100 + self.offset, 1)
        runs = ((0, 7, self.offset, count, 1),)
        self.offset += count
        assert self.peer.server is not None
        self.peer.server.send_deliveries(self.number, runs, [batch.buffers()], lease_ns)
        self.peer.exchange()

    def pulled(self, count: int) -> None:
        """What a pull of ours brought."""
        batch = encode_columns([b"x"] * count).stamp(self.offset, 100 + self.offset, 1)
        packet = native.Leased(99, 0, LEASE_NS, [(0, 8, self.offset, count, 1)], [batch.to_bytes()])
        self.offset += count
        self.channel.put(packet, self.peer.now, pushed=False)

    def ask(self, most: int = 100, *, pulls: int = 0) -> int:
        """The program asks; how many messages it gets at once, with what a pull brings."""
        self.channel.ask(self.peer.now)
        if pulls:
            self.pulled(pulls)
        taken = self.channel.take(most, self.peer.now)
        self.channel.asked(self.peer.now)
        self.peer.exchange()
        return sum(leased.batch.count for leased in taken)

    def pass_time(self, span_ns: int) -> None:
        self.peer.now += span_ns
        self.peer.line.on_due()
        self.peer.exchange()

    def given_back(self) -> list[tuple[int, int]]:
        """What was released since this was asked last: first offset and count."""
        asked, self.peer.asked = self.peer.asked, []
        return [
            (run[2], run[3])
            for event in asked
            if isinstance(event, native.Settle)
            for action in event.actions
            if action.verb == native.Verb.RELEASE
            for run in action.runs
        ]

    @property
    def credit(self) -> int:
        """What the server may push."""
        assert self.peer.server is not None
        return self.peer.server.subscriptions[self.number].credit_messages


@pytest.mark.parametrize(("lease_ns", "idle_ns"), [(LEASE_NS, CLIENT_IDLE_NS), (SECOND_NS, SECOND_NS // 3)])
def test_what_a_program_does_not_ask_for_is_given_back_and_the_credit_with_it(
    peer: Peer, lease_ns: int, idle_ns: int
) -> None:
    mine = Subscribed(peer)
    mine.push(2, lease_ns)
    mine.push(1, lease_ns)
    assert peer.line.next_due_ns() == peer.now + idle_ns
    mine.pass_time(idle_ns - 1)
    assert mine.given_back() == []
    mine.pass_time(1)
    assert not mine.channel.waits
    assert mine.credit == 0
    assert mine.given_back() == [(0, 2), (2, 1)]


def test_without_that_feature_of_the_server_what_comes_while_nobody_asks_is_given_back_at_once(peer: Peer) -> None:
    mine = Subscribed(peer, features=())
    mine.pass_time(CLIENT_IDLE_NS)
    for n in range(8):
        mine.push()
        assert mine.given_back() == [(n, 1)]
    assert mine.credit == 0
    assert mine.ask() == 0


def test_a_program_that_asks_in_between_keeps_what_it_has_not_seen_for_so_long_only(peer: Peer) -> None:
    mine = Subscribed(peer)
    mine.push(8)
    mine.pass_time(CLIENT_IDLE_NS // 2)
    assert mine.ask(1) == 1
    mine.pass_time(CLIENT_IDLE_NS // 2)
    assert mine.given_back() == [(1, 7)]


def test_the_credit_comes_back_when_the_program_is_quick_again(peer: Peer) -> None:
    mine = Subscribed(peer)
    mine.push()
    mine.pass_time(CLIENT_IDLE_NS)
    peer.confirm()
    for _ in range(3):  # a slow program asks for one at a time
        assert mine.ask(pulls=1) == 1
        assert mine.channel.withheld
        mine.pass_time(CLIENT_IDLE_NS)
    for n in range(8):
        assert (mine.channel.withheld, mine.credit) == (True, 0)
        assert mine.ask(1, pulls=1) == 1, n
        mine.pass_time(MILLISECOND_NS)
    assert mine.ask() == 0
    assert not mine.channel.withheld
    assert mine.credit == 8
    mine.push(8)
    assert mine.ask() == 8


def test_what_comes_between_giving_back_and_its_answer_is_given_back_too(peer: Peer) -> None:
    mine = Subscribed(peer)
    server = peer.server
    assert server is not None
    mine.push(2)
    late = encode_columns([b"late"]).stamp(50, 150, 1)
    server.send_deliveries(mine.number, ((0, 9, 50, 1, 1),), [late.buffers()], LEASE_NS)  # under way
    mine.channel.asked_ns = peer.now + CLIENT_IDLE_NS
    mine.pass_time(CLIENT_IDLE_NS)  # by what came
    assert mine.given_back() == [(0, 2), (50, 1)]


def test_a_program_that_waits_gets_what_comes_while_it_waits(peer: Peer) -> None:
    mine = Subscribed(peer)
    mine.channel.ask(peer.now)
    mine.pass_time(60 * SECOND_NS)
    mine.push(2)
    assert sum(leased.batch.count for leased in mine.channel.take(5, peer.now)) == 2
    mine.channel.asked(peer.now)
    assert mine.given_back() == []


def test_what_ran_out_here_is_not_handed_out_and_its_credit_is_not_lost(peer: Peer) -> None:
    mine = Subscribed(peer)
    mine.channel.ask(peer.now)
    mine.push(8)
    peer.now += LEASE_NS  # this process was asleep
    assert mine.channel.take(8, peer.now) == []
    mine.channel.asked(peer.now)
    peer.exchange()
    assert mine.credit == 8


def test_a_hand_gives_back_together_with_what_came_after_it(peer: Peer) -> None:
    mine = Subscribed(peer)
    mine.push(4)
    assert mine.ask(2) == 2
    mine.channel.give_back([Run(0, 7, 1, 1)])
    peer.exchange()
    assert mine.channel.held == 1
    assert mine.given_back() == [(1, 1), (2, 2)]


def test_of_a_group_that_acks_by_itself_nothing_is_given_back_nor_lost(peer: Peer) -> None:
    mine = Subscribed(peer, information=native.pack({"auto_ack": True}))
    mine.push(2)
    mine.pass_time(2 * LEASE_NS)
    mine.push(1)
    peer.cut()
    peer.connect(features=native.FEATURES)
    mine.answer_consume(native.pack({"auto_ack": True}))
    assert mine.given_back() == []
    assert mine.ask() == 3


def test_a_new_subscription_of_a_program_that_does_not_ask_begins_without_credit(peer: Peer) -> None:
    mine = Subscribed(peer)
    peer.cut()
    peer.now += CLIENT_IDLE_NS
    peer.connect()
    assert mine.answer_consume().credit_messages == 0
    for n in (8, 0):
        assert mine.ask(pulls=n) == n
    assert mine.credit == 8


# -- a server that was started anew ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("features", "count", "told"),
    [
        (native.FEATURES, 2, [[0, 7, 0, 1], [0, 7, 5, 1]]),
        (native.FEATURES, HELD_RUNS_MAX + 1, None),
        ((), 2, None),
        (native.FEATURES, 0, []),
    ],
)
def test_what_is_held_is_told_when_a_consumer_comes_back_and_never_before(
    peer: Peer, features: Sequence[str], count: int, told: list[list[int]] | None
) -> None:
    peer.connect(features=features)
    channel = peer.asking.channel("default", "orders", "g", "c", None, 8, {"start": "latest"}, lambda: None)
    channel.tells_held = lambda: [Run(0, 7, 5 * n, 1) for n in range(count)]
    peer.line.open_channel(channel, peer.keep("channel"))
    for again in (False, True):
        peer.exchange()
        (consume,) = peer.asked
        options = native.unpack(consume.options, dict[str, Any])
        assert options.pop("start") == "latest"
        assert options == ({"held": told} if again and told is not None else {})
        assert peer.server is not None
        peer.server.send_subscribed(consume.correlation, LEASE_NS)
        peer.exchange()
        peer.cut()
        peer.connect(features=features)


def test_consumers_of_one_name_do_not_take_each_others_messages(peer: Peer) -> None:
    peer.connect(features=native.FEATURES)
    for n in range(2):
        channel = peer.channel(credit=0)
        channel.tells_held = lambda n=n: [Run(0, 7, 5 * n, 1)]  # type: ignore[misc] # the n of now
    peer.exchange()
    assert peer.server is not None
    for consume in peer.asked:
        peer.server.send_subscribed(consume.correlation, LEASE_NS)
    peer.exchange()
    peer.cut()
    peer.connect(features=native.FEATURES)
    told = [native.unpack(consume.options, dict[str, Any]) for consume in peer.asked]
    assert told == [{"held": [[0, 7, 0, 1], [0, 7, 5, 1]]}] * 2


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
