"""Which partition a message goes to: by the hash of its key; without one, in turns."""

from __future__ import annotations

from collections import Counter

import pytest
import xxhash

from headrace.batch import Message, encode
from headrace.broker.broker import Broker
from headrace.calls import BY_KEY
from headrace.clock import ManualClock
from headrace.config import TopicConfig
from headrace.delivery import CreateTopic
from headrace.errors import InvalidArgument
from headrace.journal import MemoryJournal
from headrace.shard import Core

PARTITIONS = 6


@pytest.fixture
def broker() -> Broker:
    core = Core(MemoryJournal(), ManualClock())
    core.execute(CreateTopic("default", "t", TopicConfig(partitions=PARTITIONS)))
    return Broker(core)


def placed(broker: Broker, *messages: Message) -> list[int]:
    """The partition of each message, in the order in which they were sent."""
    found: dict[int, int] = {}
    for part in broker.publish("default", "t", BY_KEY, encode(messages)).reply:
        indexes = range(len(messages)) if part.indexes is None else part.indexes
        found |= dict.fromkeys(indexes, part.partition)
    return [found[index] for index in range(len(messages))]


@pytest.mark.feature("F071", "F072", "F074")
def test_a_key_goes_to_the_partition_its_hash_says_always(broker: Broker) -> None:
    keys = [b"user-%d" % n for n in range(200)]
    first = placed(broker, *(Message(b"", key=key) for key in keys))
    assert first == [xxhash.xxh3_64_intdigest(key) % PARTITIONS for key in keys]
    assert placed(broker, *(Message(b"again", key=key) for key in reversed(keys))) == first[::-1]
    assert set(first) == set(range(PARTITIONS))


@pytest.mark.feature("F073")
def test_messages_without_a_key_are_spread_evenly(broker: Broker) -> None:
    counts: Counter[int] = Counter()
    for _ in range(20 * PARTITIONS):
        counts.update(placed(broker, Message(b"")))
    assert counts == dict.fromkeys(range(PARTITIONS), 20)


@pytest.mark.feature("F073")
def test_a_batch_without_keys_stays_together(broker: Broker) -> None:
    assert len(set(placed(broker, *(Message(b"%d" % n) for n in range(50))))) == 1


def test_a_producers_batch_goes_where_it_went_when_it_is_sent_again(broker: Broker) -> None:
    def send() -> tuple[int, int, int]:
        batch = encode([Message(b"a"), Message(b"b")], producer_id=7, producer_seq=4)
        (part,) = broker.publish("default", "t", BY_KEY, batch).reply
        return part.partition, part.count, len(part.duplicates)

    partition, *first = send()
    placed(broker, Message(b"between"))
    assert send() == (partition, 0, 2)
    assert first == [2, 0]


@pytest.mark.parametrize("partition", [PARTITIONS, -2, 1 << 40])
def test_a_partition_that_does_not_exist_is_refused_with_those_that_do(broker: Broker, partition: int) -> None:
    with pytest.raises(InvalidArgument, match="from 0 to 5"):
        broker.publish("default", "t", partition, encode([Message(b"a")]))
