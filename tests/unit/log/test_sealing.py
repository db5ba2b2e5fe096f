"""The journal becomes Parquet: everything is there, readable by anybody, once, and the journal is let go of."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.batch import Batch, Message
from unit.log.harness import DAY, FILE_BYTES, SECOND, SealedWorld


def many(prefix: bytes, count: int, size: int = 100) -> list[bytes]:
    return [b"%s-%06d-" % (prefix, i) + b"x" * size for i in range(count)]


@pytest.mark.feature("N15", "F135", "F136", "F024")
def test_sealed_files_are_a_table_for_a_tool_that_knows_nothing_of_headrace(world: SealedWorld) -> None:
    world.call("topic.create", topic="shop/orders", settings={"partitions": 3})
    published: dict[int, list[tuple[bytes, bytes, str]]] = {0: [], 1: [], 2: []}
    for round_ in range(20):
        for partition in range(3):
            rows = [(b"k%d" % (i % 7), b"%d" % (round_ * 1000 + i), f"t{i % 3}") for i in range(50)]
            world.publish(
                "shop/orders",
                [Message(value, key=key, headers={"tenant": tenant}) for key, value, tenant in rows],
                partition=partition,
            )
            published[partition] += rows
    world.clock.advance(SECOND)
    done = world.seal()
    assert done.messages == 3000
    rows = world.sql(
        'SELECT partition, count(*), sum(CAST(CAST(value AS VARCHAR) AS BIGINT)), min("offset"), max("offset"),'
        " count(DISTINCT id) FROM messages WHERE ns = 'default' AND topic = 'shop/orders' GROUP BY 1 ORDER BY 1"
    )
    expected = [
        (partition, 1000, sum(int(value) for _, value, _ in rows_), 0, 999, 1000)
        for partition, rows_ in published.items()
    ]
    assert rows == expected
    in_order = world.sql('SELECT key, value, headers FROM messages WHERE partition = 1 ORDER BY "offset"')
    assert [(key, value, {"tenant": tenant.encode()}) for key, value, tenant in published[1]] == in_order
    assert world.sql("SELECT count(*) FROM messages WHERE headers['tenant'] = 't1'::BLOB") == [
        (sum(tenant == "t1" for rows_ in published.values() for _, _, tenant in rows_),)
    ]


@pytest.mark.feature("N15", "F130")
def test_events_are_a_table_too(world: SealedWorld) -> None:
    world.publish("orders", [b"a", b"b", b"c"])
    world.settle("orders", world.lease("orders", 2, consumer="w1"), "ack whole")
    world.settle("orders", world.lease("orders", 1, consumer="w2"), "reject")
    world.seal()
    rows = world.sql(
        "SELECT event, consumer, first_offset, last_offset, count, reason, to_topic"
        " FROM events WHERE topic = 'orders' ORDER BY position"
    )
    assert [row for row in rows if row[0] in ("published", "leased", "acked", "died", "sealed")] == [
        ("published", None, 0, 2, 3, None, None),
        ("leased", "w1", 0, 1, 2, None, None),
        ("acked", "w1", 0, 1, 2, None, None),
        ("leased", "w2", 2, 2, 1, None, None),
        ("died", "w2", 2, 2, 1, "rejected", "dlq/orders"),
        ("sealed", None, 0, 2, 3, None, None),
    ]


@pytest.mark.feature("F123", "F128", "F136", "F137")
def test_what_was_sealed_is_read_as_before_and_its_journal_is_gone(world: SealedWorld) -> None:
    published = many(b"m", 3000)
    for start in range(0, 3000, 30):
        world.publish("orders", published[start : start + 30])
    before = world.journal.end_position
    assert len(world.journal.files()) > 4
    world.seal()
    assert world.journal.first_position > before - 2 * FILE_BYTES
    assert world.read("orders") == list(enumerate(published))
    world.publish("orders", [b"after"])
    assert world.read("orders", from_offset=2_990) == [*list(enumerate(published))[2_990:], (3000, b"after")]
    assert [leased.batch.values()[0] for leased in world.lease("orders", 1)] == [published[0]]


@pytest.mark.feature("F267", "F140", "F129")
def test_a_restart_finds_everything(world: SealedWorld, data_dir: Path) -> None:
    published = many(b"m", 1000)
    ids = [one for start in range(0, 1000, 10) for one in world.publish("orders", published[start : start + 10])]
    world.seal()
    more = world.publish("orders", [b"live"])
    world.close()
    again = SealedWorld(data_dir)
    assert again.read("orders") == [*enumerate(published), (1000, b"live")]
    assert again.call("trace", id=ids[500])["offset"] == 500
    assert again.call("trace", id=more[0])["offset"] == 1000
    assert again.core.backlog_drift() == 0
    again.seal()
    assert again.read("orders") == [*enumerate(published), (1000, b"live")]
    again.close()
    world.sealer.stop()


def test_sealing_twice_changes_nothing(world: SealedWorld) -> None:
    world.publish("orders", many(b"m", 100))
    first = world.seal()
    names = world.parquet()
    second = world.seal()
    assert first.messages == 100
    assert second.messages == 0
    assert world.parquet() == names


def test_only_whole_files_far_enough_behind_are_sealed_by_themselves(data_dir: Path) -> None:
    world = SealedWorld(data_dir, behind_bytes=3 * FILE_BYTES)
    for _ in range(20):
        world.publish("orders", many(b"m", 100))
    world.seal(everything=False)
    ends = {file.first_position for file in world.journal.files()}
    assert world.core.manifest.sealed_to in ends
    left = world.journal.durable_position - world.core.manifest.sealed_to
    assert 3 * FILE_BYTES <= left < 5 * FILE_BYTES
    assert len(world.read("orders")) == 2000
    world.close()


def test_a_file_a_day(world: SealedWorld) -> None:
    for day in range(3):
        world.publish("orders", [b"%d" % day])
        world.wait(DAY)
    world.seal()
    assert [path.parent.name for path in world.parquet()] == ["date=2023-11-14", "date=2023-11-15", "date=2023-11-16"]
    assert [value for _, value in world.read("orders")] == [b"0", b"1", b"2"]


def test_names_that_are_no_file_names(world: SealedWorld) -> None:
    for name in ("..", "a/../b", "sp ace", "ü" * 100, "x" * 251):
        world.call("topic.create", topic=name)
        world.publish(name, [name.encode()])
    world.seal()
    for name in ("..", "a/../b", "sp ace", "ü" * 100, "x" * 251):
        assert world.read(name) == [(0, name.encode())]
    root = Path(world.directory).resolve() / "log"
    assert all(path.resolve().is_relative_to(root) for path in world.parquet())
    assert len(world.parquet()) == 5


def test_a_topic_made_anew_under_the_same_name(world: SealedWorld) -> None:
    world.publish("orders", [b"old"])
    world.seal()
    world.call("topic.delete", topic="orders")
    world.publish("orders", [b"new"])
    world.seal()
    assert world.read("orders") == [(0, b"new")]
    world.clock.advance(600 * SECOND)
    world.seal()
    assert world.read("orders") == [(0, b"new")]
    assert len(world.parquet()) == 1


def plain(batches: list[Batch]) -> list[tuple[object, ...]]:
    return [
        (*stamp, message.value, message.key, message.headers, message.priority, message.dedup_id, *times)
        for batch in batches
        for i, message in enumerate(batch)
        for stamp in [(message.id, message.offset, message.append_time_ns)]
        for times in [(batch.deliver_at(i), batch.expires_at(i), batch.timestamp(i), batch.producer_id)]
    ]


@pytest.mark.parametrize("batch", [1, 2, 40, 3000])
def test_every_column_comes_back(world: SealedWorld, batch: int) -> None:
    now_ns = world.now_ns
    messages = [
        Message(
            b"v%d" % i * (i % 5),
            key=b"k%d" % i if i % 3 else None,
            headers={"text": f"ä{i}", "raw": b"\xff%d" % i} if i % 2 else None,
            priority=i % 10,
            deliver_at_ns=now_ns + 3600 * SECOND + i if i % 4 == 0 else None,
            expires_at_ns=now_ns + 7200 * SECOND + i if i % 5 == 0 else None,
            dedup_id=b"d%d" % i if i % 6 == 0 else None,
            timestamp_ns=now_ns - i if i % 7 == 0 else None,
        )
        for i in range(batch * 3 if batch < 1000 else batch)
    ]
    for start in range(0, len(messages), batch):
        world.publish("orders", messages[start : start + batch])
        world.clock.advance(SECOND)
    _, before = world.call("read", topic="orders", limit=100_000)
    world.core.tail.__init__(world.core.tail.bytes_max)
    world.seal()
    _, after = world.call("read", topic="orders", limit=100_000)
    assert world.log("orders").journal_bytes == 0
    assert plain(after) == plain(before)
    assert len(plain(after)) == len(messages)


def test_the_gathered_events_name_consumers_of_leases_from_an_earlier_stretch(world: SealedWorld) -> None:
    [one] = world.publish("orders", [b"v"])
    leased = world.lease("orders", consumer="w7")
    world.seal()
    world.settle("orders", leased, "nack")
    world.seal()
    world.wait(6)
    leased = world.lease("orders", consumer="w8")
    world.seal()
    world.settle("orders", leased, "ack")
    world.seal()
    events = world.call("trace", id=one)["events"]
    assert [(each["event"], each.get("consumer"), each.get("attempt")) for each in events] == [
        ("PUBLISHED", None, None),
        ("DELIVERED", "w7", 1),
        ("SEALED", None, None),
        ("NACKED", "w7", None),
        ("DUE", None, None),
        ("REDELIVERED", "w8", 2),
        ("ACKED", "w8", None),
        ("RETAINED", None, None),
    ]


def test_small_files_are_put_together(world: SealedWorld) -> None:
    for i in range(6):
        world.publish("orders", [b"%d" % i])
        world.settle("orders", world.lease("orders"), "ack")
        world.seal()
    assert len(world.core.manifest.segments[world.pid("orders")]) < 4
    assert world.read("orders") == [(i, b"%d" % i) for i in range(6)]
    world.clock.advance(600 * SECOND)
    world.seal()
    assert len(world.parquet()) == len(world.core.manifest.segments[world.pid("orders")])
    everything = {path.relative_to(f"{world.directory}/log") for path in Path(f"{world.directory}/log").rglob("*.*")}
    live = {Path(each.path) for each in (*world.core.manifest.live_segments(), *world.core.manifest.live_events())}
    assert everything == live


def test_without_a_place_for_files_the_journal_is_let_go_of_by_retention(data_dir: Path) -> None:
    world = SealedWorld(data_dir, store=False)
    world.call("topic.create", topic="orders", settings={"retain_acked": False})
    for _ in range(20):
        world.publish("orders", many(b"m", 100))
    world.seal()
    assert world.journal.first_position == 0
    while leased := world.lease("orders", 1000):
        world.settle("orders", leased, "ack")
    world.seal()
    assert world.journal.end_position - world.journal.first_position < 3 * FILE_BYTES
    assert world.read("orders") == []
    world.close()
    again = SealedWorld(data_dir, store=False)
    assert again.call("topic.show", topic="orders")["messages"] == 0
    again.close()
