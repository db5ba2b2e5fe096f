"""The server session: every flow of both versions, and what happens when a client breaks the rules."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import pytest

from headrace.errors import InvalidArgument
from headrace.wire.mqtt import (
    NEED_MORE,
    Acked,
    Auth,
    Cause,
    CodecLimits,
    ConnAck,
    Connect,
    Connected,
    Disconnect,
    Disconnected,
    Dropped,
    Event,
    Failed,
    OutgoingMessage,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    Published,
    PubRec,
    PubRel,
    Recorded,
    Released,
    Sent,
    ServerSession,
    SessionLimits,
    SessionState,
    State,
    SubAck,
    Subscribe,
    Subscribed,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Unsubscribed,
    Will,
    build,
    parse,
)
from headrace.wire.mqtt.states import HOLD, IGNORE, TABLE, Illegal

SECOND_NS = 1_000_000_000
E = TypeVar("E")


class Peer:
    """A client's end of the wire, without a wire."""

    def __init__(self, version: int = 5, limits: SessionLimits | None = None, **connect: Any) -> None:
        self.version = version
        self.now_ns = 0
        self.session = ServerSession(now_ns=0, **({"limits": limits} if limits else {}))
        self.connect = Connect(connect.pop("client_id", "ann"), version, **connect)
        self.left = b""

    def send(self, *packets: Packet) -> list[Event]:
        return self.send_bytes(b"".join(build(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> list[Event]:
        self.session.receive_bytes(data, self.now_ns)
        return self.session.events()

    def receive(self) -> list[Packet]:
        """Everything the server has for this client."""
        data = self.left
        while buffers := self.session.outgoing():
            data += b"".join(buffers)
        packets: list[Packet] = []
        pos = 0
        while pos < len(data):
            packet, stop = parse(data, pos, self.version)
            assert packet is not NEED_MORE, "the server sent half a packet"
            packets.append(packet)  # type: ignore[arg-type]  # a Failure shows in the comparison
            pos = stop
        return packets

    def open(self, state: SessionState | None = None, **accept: Any) -> Peer:
        assert [type(event) for event in self.send(self.connect)] == [Connected]
        assert self.session.accept(self.now_ns, state=state, **accept)
        self.connack = self.receive_one(ConnAck) if state is None else None
        return self

    def receive_one(self, kind: type[E]) -> E:
        (packet,) = self.receive()
        assert isinstance(packet, kind)
        return packet

    def publish(self, topic: str = "t", qos: int = 0, **more: Any) -> Sent:
        token = more.pop("token", None)
        retain = more.pop("retain", False)
        identifiers = more.pop("ids", ())
        message = OutgoingMessage(topic, more.pop("payload", b"x"), **more)
        return self.session.send_publish(
            message, qos, self.now_ns, token=token, retain=retain, subscription_identifiers=identifiers
        )


def opened(version: int = 5, **more: Any) -> Peer:
    accept = more.pop("accept", {})
    return Peer(version, **more).open(**accept)


def failed(events: list[Event]) -> Failed:
    (fault,) = [event for event in events if isinstance(event, Failed)]
    return fault


both = pytest.mark.parametrize("version", [4, 5])


# -- connecting --------------------------------------------------------------------------------------------------------


@both
@pytest.mark.feature("F183", "F184", "F255")
def test_connect_is_answered_with_connack_after_the_broker_accepts(version: int) -> None:
    peer = Peer(version)
    (event,) = peer.send(peer.connect)
    assert event == Connected(peer.connect)
    assert peer.receive() == []
    assert not peer.session.wants_bytes
    assert peer.session.accept(0)
    assert peer.session.wants_bytes
    connack = peer.receive_one(ConnAck)
    assert (connack.session_present, connack.reason) == (False, 0)
    if version == 5:
        assert connack.properties == {
            "receive_maximum": 1024,
            "maximum_packet_size": CodecLimits().packet_bytes_max,
            "topic_alias_maximum": 64,
        }
    assert not peer.session.accept(0), "there is one CONNACK [MQTT-3.2.0-2]"


@both
def test_packets_after_connect_wait_for_the_decision(version: int) -> None:
    peer = Peer(version)
    assert [type(e) for e in peer.send(peer.connect, Publish("a", b"1"), PingReq())] == [Connected]
    assert peer.send(Publish("a", b"2")) == []
    peer.session.accept(0)
    assert [event.message.payload for event in peer.session.events() if isinstance(event, Published)] == [b"1", b"2"]
    assert [type(packet) for packet in peer.receive()] == [ConnAck, PingResp]


@both
def test_packets_after_a_refused_connect_are_never_processed(version: int) -> None:
    peer = Peer(version, will=Will("w", b"bye"))
    peer.send(peer.connect, Publish("a", b"1"))
    assert peer.session.refuse(0x87, reason_string="no such user")
    (event,) = peer.session.events()
    assert event == Disconnected(Cause.SERVER, 0x87, None, 0)
    connack = peer.receive_one(ConnAck)
    assert connack.reason == (0x87 if version == 5 else 5)
    assert peer.session.close_planned
    assert not peer.session.refuse(0x87)
    assert peer.send(Publish("a", b"2")) == []


@both
@pytest.mark.parametrize("packet", [PingReq(), Publish("a", b""), Subscribe(1, (Subscription("a"),)), Disconnect()])
def test_first_packet_must_be_connect(version: int, packet: Packet) -> None:
    peer = Peer(version)
    assert failed(peer.send(packet)).clause == "MQTT-3.1.0-1"
    assert peer.session.close_planned
    assert peer.session.outgoing() == []


@both
def test_second_connect_ends_the_connection(version: int) -> None:
    peer = opened(version)
    assert failed(peer.send(peer.connect)).clause == "MQTT-3.1.0-2"
    assert [type(p) for p in peer.receive()] == ([Disconnect] if version == 5 else [])


def test_connect_that_drips_is_dropped_at_its_deadline() -> None:
    peer = Peer()
    data = build(peer.connect, 5)
    for second in range(9):
        peer.now_ns = second * SECOND_NS
        peer.send_bytes(data[second : second + 1])
        peer.session.on_due(peer.now_ns)
    assert not peer.session.close_planned
    assert peer.session.next_due_ns() == 10 * SECOND_NS
    peer.session.on_due(10 * SECOND_NS)
    assert peer.session.close_planned
    assert peer.session.next_due_ns() is None


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (bytes.fromhex("100d00044d5154540602000000 0000"), "20 03 00 84 00"),  # level 6: in the newest we speak
        (bytes.fromhex("100e00064d514973647003020000 0000"), "20 02 00 01"),  # MQTT 3.1
        (bytes.fromhex("100c000448545450040200000000"), ""),  # not MQTT: silence
        (bytes.fromhex("100d00044d51545404020000 0001ff"), ""),  # 3.1.1: no word for malformed
        (bytes.fromhex("100e00044d5154540502000000 0001ff"), "20 03 00 81 00"),
        (b"GET / HTTP/1.1\r\n\r\n", ""),
    ],
)
def test_bad_connect_is_answered_as_its_version_foresees(data: bytes, answer: str) -> None:
    session = ServerSession(now_ns=0)
    session.receive_bytes(data, 0)
    assert [type(event) for event in session.events()] == [Failed]
    assert b"".join(session.outgoing()) == bytes.fromhex(answer)
    assert session.close_planned


def test_too_large_connect_is_refused_by_its_length_alone() -> None:
    session = ServerSession(now_ns=0, limits=SessionLimits(connect_bytes_max=1000))
    session.receive_bytes(b"\x10\xff\x7f", 0)
    assert failed(session.events()).reason == 0x95
    assert session.close_planned


def test_enhanced_authentication_is_refused() -> None:
    peer = Peer(properties={"authentication_method": "SCRAM-SHA-1"})
    assert failed(peer.send(peer.connect)).clause == "MQTT-4.12.0-1"
    assert peer.receive_one(ConnAck).reason == 0x8C


def test_empty_client_id_of_311_needs_a_clean_session() -> None:
    peer = Peer(4, client_id="", clean_start=False)
    assert failed(peer.send(peer.connect)).reason == 0x85
    assert peer.receive_one(ConnAck).reason == 2


def test_empty_client_id_is_assigned_one() -> None:
    peer = Peer(client_id="")
    peer.send(peer.connect)
    with pytest.raises(InvalidArgument):
        peer.session.accept(0)
    peer.session.accept(0, assigned_client_id="auto-1")
    assert (peer.receive_one(ConnAck).properties or {})["assigned_client_identifier"] == "auto-1"
    assert peer.session.client_id == "auto-1"


def test_clean_start_cannot_resume() -> None:
    peer = Peer()
    peer.send(peer.connect)
    with pytest.raises(InvalidArgument):
        peer.session.accept(0, state=SessionState())


def test_session_expiry_is_the_shorter_one_and_is_told() -> None:
    peer = Peer(properties={"session_expiry_interval": 3600})
    peer.open(session_expiry_s=60)
    assert (peer.connack.properties or {})["session_expiry_interval"] == 60  # type: ignore[union-attr]
    assert peer.session.session_expiry_s == 60
    assert opened(4).session.session_expiry_s == 0
    assert Peer(4, clean_start=False).open().session.session_expiry_s == 0xFFFFFFFF


# -- keep alive, ping, goodbye -----------------------------------------------------------------------------------------


@both
def test_silence_of_one_and_a_half_keep_alive_ends_the_connection(version: int) -> None:
    will = Will("w", b"bye")
    peer = opened(version, keep_alive_s=10, will=will)
    assert peer.session.next_due_ns() == 15 * SECOND_NS
    peer.now_ns = 14 * SECOND_NS
    peer.send_bytes(b"\xc0")  # half a packet is no packet
    assert peer.session.next_due_ns() == 15 * SECOND_NS
    peer.send_bytes(b"\x00")
    assert peer.session.next_due_ns() == 29 * SECOND_NS
    peer.session.on_due(29 * SECOND_NS - 1)
    assert peer.session.events() == []
    peer.session.on_due(29 * SECOND_NS)
    fault, gone = peer.session.events()
    assert isinstance(fault, Failed)
    assert gone == Disconnected(Cause.KEEP_ALIVE, 0x8D, will, 0)
    assert [getattr(p, "reason", None) for p in peer.receive()][1:] == ([0x8D] if version == 5 else [])


def test_server_keep_alive_replaces_the_clients() -> None:
    peer = opened(keep_alive_s=0, accept={"server_keep_alive_s": 4})
    assert (peer.connack.properties or {})["server_keep_alive"] == 4  # type: ignore[union-attr]
    assert peer.session.next_due_ns() == 6 * SECOND_NS
    assert opened(keep_alive_s=0).session.next_due_ns() is None


def test_packet_that_never_ends_is_given_up() -> None:
    peer = opened()
    data = build(Publish("a", b"x" * 8192), 5)
    due_ns = 60 * SECOND_NS + len(data) * SECOND_NS // 4096
    for second in range(20):
        peer.now_ns = second * SECOND_NS
        peer.send_bytes(data[second : second + 1])
    assert peer.session.next_due_ns() == due_ns
    peer.session.on_due(due_ns)
    assert failed(peer.session.events()).reason == 0x96


@both
def test_disconnect_discards_the_will(version: int) -> None:
    peer = opened(version, will=Will("w", b""))
    assert peer.send(Disconnect()) == [Disconnected(Cause.CLIENT, 0, None, 0)]
    assert peer.session.close_planned
    assert peer.session.outgoing() == []
    peer.session.connection_lost(1)
    assert peer.session.events() == []


def test_disconnect_with_will_publishes_it_and_changes_the_expiry() -> None:
    will = Will("w", b"")
    peer = opened(will=will, properties={"session_expiry_interval": 5})
    properties: Properties = {"session_expiry_interval": 9}
    assert peer.send(Disconnect(4, properties)) == [Disconnected(Cause.CLIENT, 4, will, 9, properties)]


def test_session_that_was_to_end_cannot_be_kept_at_the_last_moment() -> None:
    peer = opened()
    assert failed(peer.send(Disconnect(0, {"session_expiry_interval": 9}))).clause == "§3.14.2.2.2"
    assert peer.receive_one(Disconnect).reason == 0x82


@both
def test_lost_connection_publishes_the_will_once(version: int) -> None:
    will = Will("w", b"")
    peer = opened(version, will=will)
    peer.session.connection_lost(5)
    peer.session.connection_lost(6)
    assert peer.session.events() == [Disconnected(Cause.LOST, 0x80, will, 0)]


def test_lost_before_connect_is_no_event_and_lost_before_accept_has_no_will() -> None:
    session = ServerSession(now_ns=0)
    session.connection_lost(1)
    assert session.events() == []
    peer = Peer(will=Will("w", b""))
    peer.send(peer.connect)
    peer.session.connection_lost(1)
    assert peer.session.events() == [Disconnected(Cause.LOST, 0x80, None, 0)]
    assert not peer.session.accept(2)


@both
def test_server_disconnect_says_why_in_5(version: int) -> None:
    peer = opened(version)
    assert peer.session.disconnect(0x8E, reason_string="taken over")
    assert not peer.session.disconnect(0x8E)
    expected = [Disconnect(0x8E, {"reason_string": "taken over"})] if version == 5 else []
    assert peer.receive() == expected
    assert peer.publish() is Sent.CLOSED


# -- the table ---------------------------------------------------------------------------------------------------------


def test_every_state_and_packet_type_has_an_entry_and_every_action_a_method() -> None:
    assert set(TABLE) == set(State)
    for row in TABLE.values():
        assert len(row) == 16
        for entry in row:
            assert isinstance(entry, Illegal) or entry in (HOLD, IGNORE) or hasattr(ServerSession, "_" + entry)


@both
@pytest.mark.parametrize(
    "packet", [ConnAck(), SubAck(1, (0,)), UnsubAck(1, (0,)), PingResp(), Auth(0x18, {"authentication_method": "m"})]
)
def test_packets_a_client_may_not_send_end_the_connection(version: int, packet: Packet) -> None:
    peer = opened(version)
    fault = failed(peer.send_bytes(build(packet, 5)))
    assert fault.reason in (0x81, 0x82)
    assert [type(p) for p in peer.receive()] == ([Disconnect] if version == 5 else [])


def test_illegal_packet_is_refused_from_its_first_byte() -> None:
    peer = opened()
    assert failed(peer.send_bytes(b"\x20")).reason == 0x82


@both
def test_malformed_packet_is_an_event_and_a_planned_close(version: int) -> None:
    peer = opened(version, will=Will("w", b""))
    fault, gone = peer.send_bytes(b"\x36\x07\x00\x03a/b\x00\x01")
    assert fault == Failed(0x81, "MQTT-3.3.1-4", "PUBLISH with QoS 3")
    assert isinstance(gone, Disconnected)
    assert gone.will is not None
    assert peer.send(PingReq()) == []


# -- messages from the client ------------------------------------------------------------------------------------------


@both
@pytest.mark.feature("F013")
def test_qos_0_needs_no_answer(version: int) -> None:
    peer = opened(version)
    assert peer.send(Publish("a", b"1", retain=True)) == [Published(Publish("a", b"1", retain=True), 0)]
    assert not peer.session.ack_publish(0)
    assert peer.receive() == []


@both
@pytest.mark.feature("F013")
def test_qos_1_is_acknowledged_when_the_broker_says_so(version: int) -> None:
    peer = opened(version)
    (event,) = peer.send(Publish("a", b"1", 1, packet_id=7))
    assert isinstance(event, Published)
    assert event.handle == 7
    assert peer.receive() == []
    assert peer.session.unanswered_count == 1
    assert peer.session.ack_publish(7)
    assert not peer.session.ack_publish(7)
    assert peer.receive() == [PubAck(7)]
    assert len(peer.send(Publish("a", b"2", 1, packet_id=7))) == 1, "the identifier is free again [MQTT-4.3.2-5]"


@both
@pytest.mark.feature("F013")
def test_qos_2_is_published_once_whatever_is_repeated(version: int) -> None:
    peer = opened(version)
    assert len(peer.send(Publish("a", b"1", 2, packet_id=7))) == 1
    assert peer.send(Publish("a", b"1", 2, dup=True, packet_id=7)) == []
    assert peer.receive() == []
    peer.session.ack_publish(7)
    assert peer.receive() == [PubRec(7)]
    assert peer.send(Publish("a", b"1", 2, dup=True, packet_id=7)) == []
    assert peer.receive() == [PubRec(7)]
    assert peer.send(PubRel(7)) == [Released(7)]
    assert peer.receive() == [PubComp(7)]
    assert peer.send(PubRel(7)) == []
    assert peer.receive() == [PubComp(7, 0x92 if version == 5 else 0)]
    assert len(peer.send(Publish("a", b"2", 2, packet_id=7))) == 1, "the identifier is free again [MQTT-4.3.3-12]"


def test_pubcomp_waits_for_the_broker_when_it_stores_sessions() -> None:
    peer = opened(limits=SessionLimits(holds_qos2=True))
    peer.send(Publish("a", b"1", 2, packet_id=7))
    peer.session.ack_publish(7)
    assert peer.receive() == [PubRec(7)]
    assert peer.send(PubRel(7)) == [Released(7)]
    assert peer.send(PubRel(7)) == []
    assert peer.receive() == []
    assert peer.session.export_state().received == [7]
    assert peer.session.complete_publish(7)
    assert not peer.session.complete_publish(7)
    assert peer.receive() == [PubComp(7)]
    assert peer.session.export_state().received == []


def test_refused_publish_carries_its_reason() -> None:
    peer = opened()
    peer.send(Publish("a", b"1", 1, packet_id=1), Publish("a", b"1", 2, packet_id=2))
    peer.session.ack_publish(1, 0x97, reason_string="full", user_properties=[("retry-after", "5")])
    peer.session.ack_publish(2, 0x87)
    assert peer.receive() == [
        PubAck(1, 0x97, {"reason_string": "full", "user_properties": [("retry-after", "5")]}),
        PubRec(2, 0x87),
    ]
    assert len(peer.send(Publish("a", b"1", 2, packet_id=2))) == 1, "free again after an error [MQTT-4.3.3-9]"


def test_reasons_are_not_told_to_a_client_that_does_not_want_them_or_cannot_take_them() -> None:
    for properties in ({"request_problem_information": 0}, {"maximum_packet_size": 30}):
        peer = opened(properties=properties)
        peer.send(Publish("a", b"1", 1, packet_id=1))
        peer.session.ack_publish(1, 0x97, reason_string="the queue is full " * 3)
        assert peer.receive() == [PubAck(1, 0x97)]


def test_refused_publish_ends_a_311_connection_unless_silently() -> None:
    peer = opened(4)
    peer.send(Publish("a", b"1", 1, packet_id=1), Publish("a", b"1", 1, packet_id=2))
    peer.session.ack_publish(1, 0x87, silently=True)
    assert peer.receive() == [PubAck(1)]
    assert peer.session.ack_publish(2, 0x97)
    assert peer.receive() == []
    assert peer.session.close_planned


def test_receive_maximum_is_enforced_in_5() -> None:
    peer = opened(limits=SessionLimits(receive_maximum=2))
    publishes = [Publish("a", b"", 1 + n % 2, packet_id=n + 1) for n in range(2)]
    peer.send(*publishes)
    peer.session.ack_publish(2)  # PUBREC does not free a place, PUBCOMP does
    assert failed(peer.send(Publish("a", b"", 1, packet_id=9))).reason == 0x93


def test_311_client_is_made_to_wait_instead() -> None:
    peer = opened(4, limits=SessionLimits(receive_maximum=2))
    events = peer.send(*[Publish("a", b"", 1, packet_id=n) for n in range(1, 6)])
    assert len(events) == 2
    assert not peer.session.wants_bytes
    peer.session.ack_publish(1)
    assert [event.handle for event in peer.session.events() if isinstance(event, Published)] == [3]
    for handle in (2, 3, 4, 5):
        assert peer.session.ack_publish(handle)
    assert peer.session.wants_bytes
    assert peer.receive() == [PubAck(n) for n in range(1, 6)]


@pytest.mark.parametrize(
    "second",
    [
        Publish("a", b"", 1, packet_id=1),
        Publish("a", b"", 2, packet_id=1),
        Subscribe(1, (Subscription("a"),)),
    ],
)
def test_identifier_in_use_is_a_protocol_error(second: Packet) -> None:
    peer = opened()
    assert failed(peer.send(Publish("a", b"", 1, packet_id=1), second)).clause == "MQTT-2.2.1-3"


def test_identifier_of_a_pending_subscribe_is_in_use() -> None:
    peer = opened()
    events = peer.send(Subscribe(1, (Subscription("a"),)), Publish("a", b"", 1, packet_id=1))
    assert failed(events).clause == "MQTT-2.2.1-3"


@both
def test_repeated_qos_1_publish_is_answered_once(version: int) -> None:
    peer = opened(version)
    events = peer.send(Publish("a", b"", 1, packet_id=1), Publish("a", b"", 1, dup=True, packet_id=1))
    assert len(events) == 1
    peer.session.ack_publish(1)
    assert peer.receive() == [PubAck(1)]


def test_pubrel_before_pubrec_is_a_protocol_error() -> None:
    peer = opened()
    peer.send(Publish("a", b"", 2, packet_id=1))
    assert failed(peer.send(PubRel(1))).reason == 0x82


def test_topic_alias_is_resolved_and_not_passed_on() -> None:
    peer = opened()
    events = peer.send(
        Publish("long/topic", b"1", properties={"topic_alias": 3}),
        Publish("", b"2", properties={"topic_alias": 3, "content_type": "c"}),
        Publish("other", b"3", properties={"topic_alias": 3}),
        Publish("", b"4", properties={"topic_alias": 3}),
    )
    assert [(e.message.topic, e.message.properties) for e in events if isinstance(e, Published)] == [
        ("long/topic", None),
        ("long/topic", {"content_type": "c"}),
        ("other", None),
        ("other", None),
    ]


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"topic_alias": 65}, 0x94),
        ({"topic_alias": 5}, 0x82),
        ({"subscription_identifiers": [1], "topic_alias": 1}, 0x82),
    ],
)
def test_bad_publish_properties_end_the_connection(properties: Properties, reason: int) -> None:
    peer = opened()
    assert failed(peer.send(Publish("", b"", properties=properties))).reason == reason
    assert peer.receive_one(Disconnect).reason == reason


# -- messages to the client --------------------------------------------------------------------------------------------


@both
def test_qos_1_to_the_client(version: int) -> None:
    peer = opened(version)
    assert peer.publish(qos=1, token="a") is Sent.SENT
    assert peer.receive() == [Publish("t", b"x", 1, packet_id=1)]
    assert peer.session.inflight_count == 1
    assert peer.send(PubAck(1)) == [Acked(1, "a", 0, None)]
    assert peer.send(PubAck(1)) == [], "a stray acknowledgement is not an error"
    assert peer.session.inflight_count == 0


@both
def test_qos_2_to_the_client(version: int) -> None:
    peer = opened(version)
    peer.publish(qos=2, token="a")
    assert peer.receive() == [Publish("t", b"x", 2, packet_id=1)]
    assert peer.send(PubRec(1)) == [Recorded(1, "a")]
    assert peer.receive() == [PubRel(1)]
    assert peer.send(PubRec(1)) == []
    assert peer.receive() == [PubRel(1)]
    assert peer.send(PubComp(1)) == [Acked(1, "a", 0, None)]
    assert peer.send(PubRec(1)) == []
    assert peer.receive() == [PubRel(1, 0x92 if version == 5 else 0)]


def test_pubrel_waits_for_the_broker_when_it_stores_sessions() -> None:
    peer = opened(limits=SessionLimits(holds_qos2=True))
    peer.publish(qos=2)
    peer.receive()
    peer.send(PubRec(1))
    assert peer.receive() == []
    assert failed(Peer.send(peer, PubComp(1))).reason == 0x82
    peer = opened(limits=SessionLimits(holds_qos2=True))
    peer.publish(qos=2)
    peer.receive()
    peer.send(PubRec(1))
    assert peer.session.release_publish(1)
    assert not peer.session.release_publish(1)
    assert peer.receive() == [PubRel(1)]


@pytest.mark.parametrize(("qos", "packet"), [(1, PubRec(1)), (2, PubAck(1)), (2, PubComp(1)), (1, PubComp(1))])
def test_acknowledgement_of_the_wrong_kind_ends_the_connection(qos: int, packet: Packet) -> None:
    peer = opened()
    peer.publish(qos=qos)
    assert failed(peer.send(packet)).reason == 0x82


def test_refusal_by_the_client_is_final() -> None:
    peer = opened()
    peer.publish(qos=2, token="a")
    peer.publish(qos=1, token="b")
    peer.receive()
    properties: Properties = {"reason_string": "no"}
    assert peer.send(PubRec(1, 0x83, properties)) == [Acked(1, "a", 0x83, properties)]
    assert peer.send(PubAck(2, 0x97)) == [Acked(2, "b", 0x97, None)]
    assert peer.session.inflight_count == 0


def test_window_is_the_clients_receive_maximum_and_the_queue_keeps_order() -> None:
    peer = opened(properties={"receive_maximum": 2})
    sent = [peer.publish(payload=b"%d" % n, qos=1 + n % 2) for n in range(5)]
    assert sent == [Sent.SENT, Sent.SENT, Sent.QUEUED, Sent.QUEUED, Sent.QUEUED]
    assert peer.publish(payload=b"q0") is Sent.SENT, "QoS 0 does not wait"
    assert [p.payload for p in peer.receive() if isinstance(p, Publish)] == [b"0", b"1", b"q0"]
    peer.send(PubRec(2))
    assert peer.receive() == [PubRel(2)]
    peer.send(PubComp(2))
    assert [p.payload for p in peer.receive() if isinstance(p, Publish)] == [b"2"]
    peer.send(PubAck(1), PubAck(3))
    assert [p.payload for p in peer.receive() if isinstance(p, Publish)] == [b"3", b"4"]
    assert peer.session.queued_count == 0


def test_queue_is_bounded_in_messages_and_bytes() -> None:
    limits = SessionLimits(inflight_max=1, queue_messages_max=2, queue_bytes_max=100)
    peer = opened(limits=limits)
    peer.publish(qos=1)
    assert [peer.publish(qos=1) for _ in range(3)] == [Sent.QUEUED, Sent.QUEUED, Sent.QUEUE_FULL]
    peer = opened(limits=limits)
    peer.publish(qos=1)
    assert [peer.publish(qos=1, payload=b"x" * 60) for _ in range(2)] == [Sent.QUEUED, Sent.QUEUE_FULL]
    assert peer.session.dropped_count == 1


def test_slow_reader_loses_qos_0_and_the_rest_waits() -> None:
    peer = opened(limits=SessionLimits(outgoing_bytes_max=100))
    assert peer.publish(payload=b"x" * 200) is Sent.SENT
    assert peer.publish() is Sent.DROPPED
    assert peer.publish(qos=1) is Sent.QUEUED
    packets = peer.receive()
    assert [(p.qos, len(p.payload)) for p in packets if isinstance(p, Publish)] == [(0, 200), (1, 1)]
    assert peer.publish() is Sent.SENT


def test_peer_that_asks_and_never_reads_is_no_longer_read() -> None:
    peer = opened(limits=SessionLimits(outgoing_bytes_max=10), keep_alive_s=10)
    peer.send(*[PingReq()] * 50)
    assert not peer.session.wants_bytes
    assert peer.session.next_due_ns() == 15 * SECOND_NS, "and is not alive either"
    assert len(peer.receive()) == 50
    assert peer.session.wants_bytes


@both
@pytest.mark.parametrize("packet", [PubRel(9), PubRec(9), Publish("a", b"", 2, dup=True, packet_id=7), PingReq()])
def test_answers_to_a_peer_that_never_reads_are_bounded(version: int, packet: Packet) -> None:
    peer = opened(version, limits=SessionLimits(outgoing_bytes_max=100))
    peer.send(Publish("a", b"", 2, packet_id=7))
    peer.session.ack_publish(7)
    flood = build(packet, version) * 400
    for _ in range(5):
        assert peer.send_bytes(flood) == []
    assert not peer.session.wants_bytes
    assert sum(map(len, peer.session.outgoing())) <= 210


def test_publishes_of_a_peer_that_never_reads_its_acknowledgements_are_no_longer_read() -> None:
    peer = opened(limits=SessionLimits(outgoing_bytes_max=100))
    acked = 0
    for n in range(1, 400):
        for event in peer.send(Publish("a", b"", 1, packet_id=n)):
            assert isinstance(event, Published)
            peer.session.ack_publish(event.handle)
            acked += 1
    assert acked < 60
    assert len(peer.receive()) == acked
    assert len(peer.session.events()) > 0, "what was held back is read when the output is taken"


def test_client_that_takes_no_connack_is_let_go() -> None:
    peer = Peer(properties={"maximum_packet_size": 5})
    peer.send(peer.connect)
    assert not peer.session.accept(0)
    assert peer.session.outgoing() == []
    assert peer.session.close_planned


def test_packets_larger_than_the_client_takes_are_not_sent() -> None:
    peer = opened(properties={"maximum_packet_size": 60, "receive_maximum": 1})
    assert peer.publish(payload=b"x" * 100) is Sent.TOO_LARGE
    assert peer.publish(payload=b"x" * 100, qos=1) is Sent.TOO_LARGE
    assert peer.session.inflight_count == 0
    peer.publish(qos=1)
    assert peer.publish(payload=b"x" * 100, qos=1, token="big") is Sent.QUEUED
    peer.publish(qos=1, token="small")
    peer.receive()
    acked, dropped = peer.send(PubAck(1))
    assert isinstance(acked, Acked)
    assert isinstance(dropped, Dropped)
    assert (dropped.token, dropped.reason) == ("big", 0x95)
    assert peer.receive_one(Publish).packet_id == 2


def test_expiry_is_told_as_what_is_left_and_applied_in_the_queue() -> None:
    peer = opened(properties={"receive_maximum": 1})
    assert peer.publish(expires_at_ns=0) is Sent.EXPIRED
    peer.publish(qos=1, expires_at_ns=90 * SECOND_NS)
    assert peer.receive_one(Publish).properties == {"message_expiry_interval": 90}
    peer.publish(qos=1, expires_at_ns=5 * SECOND_NS, token="late")
    peer.publish(qos=1, expires_at_ns=20 * SECOND_NS, token="in time")
    peer.now_ns = 10 * SECOND_NS + 1
    events = peer.send(PubAck(1))
    assert [e.token for e in events if isinstance(e, Dropped)] == ["late"]
    assert peer.receive_one(Publish).properties == {"message_expiry_interval": 10}
    peer4 = opened(4)
    peer4.publish(expires_at_ns=90 * SECOND_NS)
    assert peer4.receive_one(Publish).properties is None


def test_topic_aliases_are_used_only_as_far_as_the_client_allows() -> None:
    peer = opened(properties={"topic_alias_maximum": 1})
    for topic in ("a/long/topic", "a/long/topic", "another/topic", "short"):
        peer.publish(topic)
    assert [(p.topic, p.properties) for p in peer.receive() if isinstance(p, Publish)] == [
        ("a/long/topic", {"topic_alias": 1}),
        ("", {"topic_alias": 1}),
        ("another/topic", None),
        ("short", None),
    ]
    plain = opened()
    plain.publish("a/long/topic")
    assert plain.receive_one(Publish).properties is None


def test_subscription_identifiers_and_shared_properties_go_together() -> None:
    peer = opened()
    user: Properties = {"user_properties": [("message-id", "7")], "topic_alias": 9, "subscription_identifiers": [8]}
    peer.publish(qos=1, ids=(1, 300), properties=user, retain=True, expires_at_ns=SECOND_NS)
    assert peer.receive() == [
        Publish(
            "t",
            b"x",
            1,
            retain=True,
            packet_id=1,
            properties={
                "subscription_identifiers": [1, 300],
                "message_expiry_interval": 1,
                "user_properties": [("message-id", "7")],
            },
        )
    ]


def test_packet_identifiers_go_round_and_skip_those_in_use() -> None:
    state = SessionState(last_packet_id=65533)
    peer = Peer(clean_start=False).open(state=state)
    peer.receive()
    for _ in range(3):
        peer.publish(qos=1)
    assert [p.packet_id for p in peer.receive() if isinstance(p, Publish)] == [65534, 65535, 1]


# -- resume ------------------------------------------------------------------------------------------------------------


def through_storage(state: SessionState) -> SessionState:
    return SessionState.from_plain(msgspec.msgpack.decode(msgspec.msgpack.encode(state.to_plain())))


@both
def test_unacknowledged_messages_are_sent_again_in_order_after_a_resume(version: int) -> None:
    peer = Peer(version, clean_start=False).open()
    user: Properties | None = {"user_properties": [("k", "v")]} if version == 5 else None
    peer.publish(payload=b"1", qos=1, token=1, properties=user)
    peer.publish(payload=b"2", qos=2, token=2)
    peer.publish(payload=b"3", qos=2, token=3)
    peer.publish(payload=b"4", qos=1, token=4)
    peer.receive()
    peer.send(PubRec(2))
    peer.session.connection_lost(1)
    state = through_storage(peer.session.export_state())
    again = Peer(version, clean_start=False).open(state=state)
    connack, *packets = again.receive()
    assert isinstance(connack, ConnAck)
    assert connack.session_present
    assert packets == [
        PubRel(2),
        Publish("t", b"1", 1, dup=True, packet_id=1, properties=user),
        Publish("t", b"3", 2, dup=True, packet_id=3),
        Publish("t", b"4", 1, dup=True, packet_id=4),
    ]
    again.publish(payload=b"5", qos=1)
    assert again.receive() == [Publish("t", b"5", 1, packet_id=5)]
    events = again.send(PubAck(1), PubComp(2), PubRec(3), PubComp(3), PubAck(4))
    assert [e.token for e in events if isinstance(e, Acked)] == [1, 2, 3, 4]


def test_resume_respects_the_new_window_and_sends_old_before_new() -> None:
    peer = Peer(clean_start=False).open()
    for n in range(4):
        peer.publish(payload=b"%d" % n, qos=1)
    state = peer.session.export_state()
    again = Peer(clean_start=False, properties={"receive_maximum": 2}).open(state=state)
    assert again.publish(payload=b"new", qos=1) is Sent.QUEUED
    assert [p.payload for p in again.receive() if isinstance(p, Publish)] == [b"0", b"1"]
    again.send(PubAck(1), PubAck(2))
    assert [(p.payload, p.dup) for p in again.receive() if isinstance(p, Publish)] == [(b"2", True), (b"3", True)]
    again.send(PubAck(3))
    assert [(p.payload, p.dup) for p in again.receive() if isinstance(p, Publish)] == [(b"new", False)]


def test_acknowledgement_that_crosses_the_resend_counts() -> None:
    peer = Peer(clean_start=False).open()
    for n in range(3):
        peer.publish(payload=b"%d" % n, qos=1 + n % 2)
    again = Peer(clean_start=False, properties={"receive_maximum": 1}).open(state=peer.session.export_state())
    assert [p.payload for p in again.receive() if isinstance(p, Publish)] == [b"0"]
    again.send(PubRec(2), PubComp(2), PubAck(1))
    assert [p for p in again.receive() if isinstance(p, Publish)] == [Publish("t", b"2", 1, dup=True, packet_id=3)]
    assert again.session.inflight_count == 1


def test_queued_messages_survive_and_too_large_ones_are_told() -> None:
    peer = Peer(clean_start=False, properties={"receive_maximum": 1}).open()
    peer.publish(payload=b"x" * 100, qos=1, token="big")
    peer.publish(payload=b"2", qos=1)
    state = through_storage(peer.session.export_state())
    again = Peer(clean_start=False, properties={"maximum_packet_size": 90}).open(state=state)
    assert [e.token for e in again.session.events() if isinstance(e, Dropped)] == ["big"]
    assert [p.payload for p in again.receive() if isinstance(p, Publish)] == [b"2"]


@both
def test_qos_2_message_received_before_the_break_is_not_published_again(version: int) -> None:
    peer = Peer(version, clean_start=False).open()
    peer.send(Publish("a", b"1", 2, packet_id=7), Publish("a", b"2", 2, packet_id=8))
    peer.session.ack_publish(7)
    peer.session.connection_lost(1)
    assert not peer.session.ack_publish(8), "committed after the break: recorded, not told"
    state = through_storage(peer.session.export_state())
    assert state.received == [7, 8]
    again = Peer(version, clean_start=False, limits=SessionLimits(receive_maximum=1)).open(state=state)
    again.receive()
    assert again.send(Publish("a", b"2", 2, dup=True, packet_id=8)) == []
    assert again.receive() == [PubRec(8)]
    assert again.send(PubRel(7), PubRel(8)) == [Released(7), Released(8)]
    assert again.receive() == [PubComp(7), PubComp(8)]
    assert len(again.send(Publish("a", b"3", 2, packet_id=7))) == 1


def test_qos_1_message_unacknowledged_at_the_break_comes_again() -> None:
    peer = Peer(clean_start=False).open()
    peer.send(Publish("a", b"1", 1, packet_id=7))
    peer.session.connection_lost(1)
    assert not peer.session.ack_publish(7)
    again = Peer(clean_start=False).open(state=peer.session.export_state())
    assert len(again.send(Publish("a", b"1", 1, dup=True, packet_id=7))) == 1


def test_recorded_but_unreleased_message_is_offered_again_to_a_broker_that_holds() -> None:
    limits = SessionLimits(holds_qos2=True)
    peer = Peer(clean_start=False, limits=limits).open()
    peer.publish(qos=2, token="a")
    peer.receive()
    peer.send(PubRec(1))
    again = Peer(clean_start=False, limits=limits).open(state=through_storage(peer.session.export_state()))
    assert Recorded(1, "a") in again.session.events()
    assert [type(p) for p in again.receive()] == [ConnAck]
    again.session.release_publish(1)
    assert again.receive() == [PubRel(1)]


# -- subscriptions -----------------------------------------------------------------------------------------------------


@both
def test_subscribe_and_unsubscribe_are_answered_filter_by_filter(version: int) -> None:
    peer = opened(version)
    subscribe = Subscribe(5, (Subscription("a/+", 1), Subscription("$share/g/b", 2)))
    unsubscribe = Unsubscribe(6, ("a/+", "x"))
    assert peer.send(subscribe, unsubscribe) == [Subscribed(subscribe), Unsubscribed(unsubscribe)]
    assert not peer.session.send_suback(6, (0, 0)), "that one is an UNSUBSCRIBE"
    with pytest.raises(InvalidArgument):
        peer.session.send_suback(5, (1,))
    assert peer.session.send_unsuback(6, (0, 0x11))
    assert peer.session.send_suback(5, (1, 0x87))
    assert not peer.session.send_suback(5, (1, 0x87))
    expected = [UnsubAck(6, (0, 0x11)), SubAck(5, (1, 0x87))] if version == 5 else [UnsubAck(6), SubAck(5, (1, 0x80))]
    assert peer.receive() == expected


@pytest.mark.feature("F083")
def test_user_properties_of_a_subscribe_reach_the_broker() -> None:
    peer = opened()
    properties: Properties = {"user_properties": [("consumer-group", "mailers")], "subscription_identifiers": [9]}
    (event,) = peer.send(Subscribe(5, (Subscription("$queue/mail", 1),), properties))
    assert isinstance(event, Subscribed)
    assert event.packet.properties == properties


def test_requests_waiting_for_answers_are_bounded() -> None:
    peer = opened(limits=SessionLimits(requests_max=3))
    events = peer.send(*[Subscribe(n, (Subscription("a"),)) for n in range(1, 6)])
    assert len(events) == 3
    assert not peer.session.wants_bytes
    peer.session.send_suback(1, (0,))
    assert len(peer.session.events()) == 1
    assert failed(peer.send_bytes(b"x" * (2 * 1024 * 1024))).reason == 0x97


# -- the stream --------------------------------------------------------------------------------------------------------


@both
def test_stream_gives_the_same_events_however_it_is_split(version: int) -> None:
    user: Properties | None = {"user_properties": [("a", "b")]} if version == 5 else None
    packets: list[Packet] = [
        Publish("a/b", b"x" * 300),
        Subscribe(1, (Subscription("a"),)),
        Publish("c", b"", 1, packet_id=2, properties=user),
        PingReq(),
        Publish("d", b"y", 2, packet_id=3),
        Disconnect(),
    ]
    data = b"".join(build(packet, version) for packet in packets)
    whole = opened(version).send_bytes(data)
    for size in (1, 2, 3, 7, 100, 301):
        peer = opened(version)
        events: list[Event] = []
        for start in range(0, len(data), size):
            events += peer.send_bytes(data[start : start + size])
        assert events == whole
