"""What may not be said is refused before it is sent, and the message of a received PUBLISH is passed on as it came."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import InvalidArgument
from headrace.wire.mqtt import (
    Auth,
    Connect,
    OutgoingMessage,
    PubAck,
    Publish,
    Subscribe,
    Unsubscribe,
    build,
    build_publish,
    parse,
)
from headrace.wire.mqtt.fields import CodecLimits, Failure, write_varint
from headrace.wire.mqtt.reasons import Reason, connack_3


@pytest.mark.parametrize(
    "packet",
    [
        Publish("x" * 70_000, b""),
        Publish("a", b"", 1),
        Publish("a", b"", 3, packet_id=1),
        PubAck(0),
        PubAck(70_000),
        Subscribe(1, ()),
        Unsubscribe(1, ()),
        Connect("\ud800"),
        Connect("x" * 70_000),
        PubAck(1, 0, {"topic_alias": 1}),
        PubAck(1, 0, {"reason": "x"}),  # type: ignore[typeddict-unknown-key]
        Publish("a", b"", properties={"topic_alias": 0}),
        Publish("a", b"", properties={"payload_format_indicator": 2}),
        Publish("a", b"", properties={"message_expiry_interval": -1}),
        Publish("a", b"", properties={"subscription_identifiers": [0]}),
        Publish("a", b"", properties={"user_properties": [("a", "\ud800")]}),
        Publish("a", b"", properties={"user_properties": [("a", "x" * 70_000)]}),
    ],
)
def test_packet_that_no_one_may_send_is_refused(packet: Any) -> None:
    with pytest.raises(InvalidArgument):
        build(packet, 5)


def test_auth_does_not_exist_in_311() -> None:
    with pytest.raises(InvalidArgument):
        build(Auth(), 4)


@pytest.mark.parametrize("value", [1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455])
def test_variable_byte_integers_at_their_edges(value: int) -> None:
    data = b"\x30" + write_varint(value)
    _, reach = parse(data, 0, 5, CodecLimits(packet_bytes_max=1 << 30))
    assert reach == len(data) + value


def test_variable_byte_integer_above_its_maximum_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        write_varint(268_435_456)


@pytest.mark.feature("F012", "F193")
def test_message_of_a_received_publish_is_passed_on_as_it_came() -> None:
    pairs = [("message-id", "7"), ("partition-key", "user-1"), ("message-id", "8")]
    packet = Publish(
        "a",
        b"x",
        1,
        packet_id=3,
        properties={
            "message_expiry_interval": 60,
            "content_type": "c",
            "response_topic": "r",
            "correlation_data": b"d",
            "payload_format_indicator": 1,
            "user_properties": pairs,
        },
    )
    message = OutgoingMessage.of(packet, 1_000_000_000)
    assert message.seconds_left(1_000_000_001) == 60
    assert message.seconds_left(61_000_000_000) == -1
    again, _ = parse(b"".join(message.frames(5, 0, expiry_s=59)), 0, 5)
    assert isinstance(again, Publish)
    assert again.properties == {**(packet.properties or {}), "message_expiry_interval": 59}
    assert packet.properties is not None
    assert packet.properties["message_expiry_interval"] == 60, "the received packet is left alone"
    assert OutgoingMessage.of(Publish("a", b""), 5).seconds_left(10**18) is None


@pytest.mark.parametrize(
    ("limits", "packet", "reason"),
    [
        (CodecLimits(user_properties_max=2), Publish("a", b"", properties={"user_properties": [("a", "b")] * 3}), 0x97),
        (CodecLimits(user_properties_bytes_max=9), PubAck(1, 0, {"user_properties": [("abc", "defg")]}), 0x97),
        (CodecLimits(topic_levels_max=3), Publish("a/b/c/d", b""), 0x90),
        (CodecLimits(topic_levels_max=3), Unsubscribe(1, ("a/b/c/#",)), 0x8F),
        (CodecLimits(filters_max=2), Unsubscribe(1, ("a", "b", "c")), 0x97),
        (CodecLimits(filters_max=2), Publish("a", b"", properties={"subscription_identifiers": [1, 2, 3]}), 0x97),
        (CodecLimits(packet_bytes_max=20), Publish("a", bytes(20)), 0x95),
    ],
)
def test_limits_of_one_packet_have_their_reasons(limits: CodecLimits, packet: Any, reason: int) -> None:
    failure, _ = parse(build(packet, 5), 0, 5, limits)
    assert isinstance(failure, Failure)
    assert failure.reason == reason


def test_topic_at_its_level_limit_is_accepted() -> None:
    limits = CodecLimits(topic_levels_max=3)
    assert isinstance(parse(build_publish("a/b/c", b""), 0, 5, limits)[0], Publish)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Reason.SUCCESS, 0),
        (Reason.UNSUPPORTED_VERSION, 1),
        (Reason.CLIENT_ID_NOT_VALID, 2),
        (Reason.SERVER_UNAVAILABLE, 3),
        (Reason.BAD_USER_NAME_OR_PASSWORD, 4),
        (Reason.BANNED, 5),
    ],
)
def test_reason_has_a_return_code_in_311(reason: Reason, code: int) -> None:
    assert connack_3(reason) == code
