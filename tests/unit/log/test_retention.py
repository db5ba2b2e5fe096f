"""What leaves the log: by time, by bytes, when everybody is done; and what never does."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.log.harness import DAY, FILE_BYTES, SECOND, SealedWorld


def settle_all(world: SealedWorld, topic: str = "orders", group: str = "default") -> None:
    while leased := world.lease(topic, 10_000, group=group):
        world.settle(topic, leased, "ack whole", group=group)


def start(world: SealedWorld, topic: str = "orders") -> int:
    offset: int = world.log(topic).start
    return offset


@pytest.mark.feature("F113", "F115")
def test_settled_messages_leave_after_their_time_by_whole_files(world: SealedWorld) -> None:
    world.call("topic.create", topic="orders", settings={"retention": "7d"})
    for day in range(10):
        world.publish("orders", [b"%d" % day] * 10)
        settle_all(world)
        world.wait(DAY)
        world.seal()
    assert start(world) == 30
    assert world.read("orders")[0] == (30, b"3")
    world.clock.advance(600 * SECOND)
    world.seal()
    assert len(world.parquet()) == 7


@pytest.mark.feature("F113")
def test_what_was_never_sealed_leaves_too(data_dir: Path) -> None:
    world = SealedWorld(data_dir, behind_bytes=1 << 30)
    world.call("topic.create", topic="orders", settings={"retention": "1h"})
    world.publish("orders", [b"old"] * 5)
    world.wait(3601)
    world.publish("orders", [b"new"])
    settle_all(world)
    world.seal(everything=False)
    assert world.read("orders") == [(5, b"new")]
    world.close()


@pytest.mark.feature("F114")
def test_bytes_are_kept_within_their_limit_the_oldest_first(world: SealedWorld) -> None:
    world.call("topic.create", topic="orders", settings={"retention_bytes": "40KiB", "partitions": 2})
    for i in range(20):
        world.publish("orders", [b"%04d" % i + b"x" * 996] * 5, partition=i % 2)
        world.wait(1)
        if i % 3 == 2:
            settle_all(world)
            world.seal()
    settle_all(world)
    world.seal()
    kept = [sorted({int(v[:4]) for _, v in world.read("orders", partition=index)}) for index in range(2)]
    assert 34 <= 5 * sum(map(len, kept)) <= 56  # by whole files
    for index, numbers in enumerate(kept):
        assert numbers == list(range(numbers[0], 20 + index - 1, 2))
    assert abs(kept[0][0] - kept[1][0]) <= 3


def test_bytes_of_the_journal_are_let_go_of_to_the_batch(data_dir: Path) -> None:
    world = SealedWorld(data_dir, behind_bytes=1 << 30)
    world.call("topic.create", topic="orders", settings={"retention_bytes": "10KiB"})
    for i in range(20):
        world.publish("orders", [b"%d" % i + b"x" * 1000])
    settle_all(world)
    world.seal(everything=False)
    left = world.read("orders")
    assert 10 <= len(left) <= 11
    assert left[-1][0] == 19
    world.close()


def test_what_a_durable_group_has_not_settled_stays(world: SealedWorld) -> None:
    world.call("topic.create", topic="orders", settings={"retention": "1h", "message_ttl": "none"})
    world.call("group.create", topic="orders", group="slow")
    world.publish("orders", [b"%d" % i for i in range(10)])
    settle_all(world)
    world.settle("orders", world.lease("orders", 4, group="slow"), "ack", group="slow")
    world.wait(DAY)
    world.seal()
    world.seal()
    assert start(world) == 4
    assert [each.batch.values() for each in world.lease("orders", 1, group="slow")] == [[b"4"]]


def test_scheduled_messages_stay_whatever_their_age(world: SealedWorld) -> None:
    from headrace.batch import Message

    world.call("topic.create", topic="orders", settings={"retention": "1h", "max_delay": "none"})
    world.publish("orders", [Message(b"later", deliver_at_ns=world.now_ns + 30 * DAY * SECOND), b"now"])
    settle_all(world)
    world.wait(2 * DAY)
    world.seal()
    world.seal()
    assert start(world) == 0
    world.wait(30 * DAY)
    assert [each.batch.values() for each in world.lease("orders")] == [[b"later"]]


def test_a_topic_that_keeps_nothing_is_never_written_and_its_journal_stays_small(data_dir: Path) -> None:
    world = SealedWorld(data_dir)
    world.call("topic.create", topic="orders", settings={"retain_acked": False})
    most = 0
    for _ in range(60):
        world.publish("orders", [b"x" * 100] * 50)
        settle_all(world)
        world.seal(everything=False)
        most = max(most, world.journal.end_position - world.journal.first_position)
    world.seal()
    assert not list(Path(data_dir).rglob("*.parquet"))
    assert world.journal.end_position > 5 * FILE_BYTES
    assert most < 4 * FILE_BYTES
    assert world.read("orders") == []
    world.close()
    again = SealedWorld(data_dir)
    [part] = again.call("topic.offsets", topic="orders")["partitions"]
    assert part == {"partition": 0, "start": 3000, "end": 3000}
    assert again.publish("orders", [b"on"])
    assert again.read("orders") == [(3000, b"on")]
    again.close()


def test_of_a_topic_that_keeps_nothing_only_what_waits_is_sealed(world: SealedWorld) -> None:
    world.call("topic.create", topic="orders", settings={"retain_acked": False})
    world.publish("orders", [b"%d" % i for i in range(100)])
    world.settle("orders", world.lease("orders", 90), "ack whole")
    world.seal()
    assert world.sql("SELECT count(*), min(\"offset\") FROM messages WHERE topic = 'orders'") == [(10, 90)]
    settle_all(world)
    world.seal()
    world.clock.advance(600 * SECOND)
    world.seal()
    assert world.parquet() == []


def test_a_deleted_topic_takes_its_files_along(world: SealedWorld) -> None:
    world.publish("orders", [b"x"] * 10)
    world.seal()
    world.call("topic.delete", topic="orders")
    world.seal()
    assert not list(world.core.manifest.live_segments())
    assert len(world.parquet()) == 1  # somebody may still be reading it
    world.clock.advance(600 * SECOND)
    world.seal()
    assert world.parquet() == []
    assert not world.core.manifest.doomed


def test_events_of_a_group_that_started_over_leave_with_the_messages_they_speak_of(world: SealedWorld) -> None:
    """A seek speaks of everything from an offset on: of what was there, not of all that will ever come."""
    world.call("topic.create", topic="orders", settings={"retention": "1h"})
    world.publish("orders", [b"old"])
    world.call("group.seek", topic="orders", group="default", start="earliest")
    settle_all(world)
    world.seal()
    assert len(list(world.core.manifest.live_events())) == 1
    world.wait(7200)
    world.publish("orders", [b"new"])
    world.publish("orders", [b"newer"])
    world.seal()
    assert 0 not in [file.first_position for file in world.core.manifest.live_events()]
    assert world.read("orders") == [(1, b"new"), (2, b"newer")]
