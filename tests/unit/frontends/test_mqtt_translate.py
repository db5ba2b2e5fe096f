"""What a delivery says: the quick way and the general one say the same bytes."""

from __future__ import annotations

import pytest

from headrace.batch import Message, encode
from headrace.frontends.mqtt.translate import delivery_properties, group_property, plain_delivery
from headrace.wire.mqtt.properties import property_bytes


@pytest.mark.parametrize("key", [None, b"user-1", "grüße".encode(), b"\xff\xfe", b"a\x00b", b"k" * 1000])
@pytest.mark.parametrize(("partition", "attempt", "group"), [(0, 1, "default"), (17, 12, "eu-mailer"), (3, 100, "ä")])
def test_both_ways_say_the_same(key: bytes | None, partition: int, attempt: int, group: str) -> None:
    batch = encode([Message(b"a"), Message(b"b", key=key)]).stamp(7_000_000, 381_917_590_341_029_888, 5)
    general = property_bytes(delivery_properties(batch, 1, partition, attempt, group), 3)
    offset, message_id = 7_000_001, 381_917_590_341_029_889
    assert plain_delivery(batch, 1, message_id, offset, partition, attempt, group_property(group)) == general


def test_what_has_more_to_say_goes_the_general_way() -> None:
    batch = encode([Message(b"a", headers={"h": "1"}), Message(b"b")]).stamp(0, 1, 5)
    assert plain_delivery(batch, 1, 2, 1, 0, 1, b"") is None
    batch = encode([Message(b"a", priority=1), Message(b"b")]).stamp(0, 1, 5)
    assert plain_delivery(batch, 0, 1, 0, 0, 1, b"") is None
    assert plain_delivery(batch, 1, 2, 1, 0, 1, b"") is not None
