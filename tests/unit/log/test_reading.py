"""Reading the past: by offset and by time, over sealed files and the journal alike, as batches and as tables."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.errors import Corrupt, InvalidArgument
from unit.log.harness import DAY, SECOND, SealedWorld


def fill(world: SealedWorld, count: int, seconds_apart: int = 1, first: int = 0) -> list[int]:
    """One message each some seconds; when each was published."""
    times = []
    for i in range(first, first + count):
        world.clock.advance(seconds_apart * SECOND)
        times.append(world.now_ns)
        world.publish("orders", [b"%d" % i])
    return times


@pytest.mark.feature("F124", "F125", "F127", "F138")
def test_a_window_of_time_over_files_and_journal(world: SealedWorld) -> None:
    times = fill(world, 50)
    world.seal()
    times += fill(world, 50, first=50)
    for first, last in ((0, 99), (10, 20), (40, 60), (60, 61), (49, 50)):
        found = world.read("orders", from_time_ns=times[first], to_time_ns=times[last])
        assert [offset for offset, _ in found] == list(range(first, last))
    between = times[10] + SECOND // 2
    assert world.read("orders", from_time_ns=between, to_time_ns=times[12]) == [(11, b"11")]
    assert world.read("orders", from_time_ns=times[-1] + 1) == []
    assert len(world.read("orders", from_time_ns=0)) == 100


@pytest.mark.feature("F123")
@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_reading_on_gives_everything_once(world: SealedWorld, limit: int) -> None:
    fill(world, 30)
    world.seal()
    fill(world, 5, first=30)
    assert world.read("orders", limit=limit) == [(i, b"%d" % i) for i in range(35)]


def test_a_read_in_the_middle_of_sealed_batches(world: SealedWorld) -> None:
    world.publish("orders", [b"%d" % i for i in range(100)])
    world.publish("orders", [b"%d" % i for i in range(100, 200)])
    world.seal()
    assert world.read("orders", from_offset=50, to_offset=150) == [(i, b"%d" % i) for i in range(50, 150)]


def test_decoded_row_groups_are_kept_within_the_budget_and_used_again(world: SealedWorld) -> None:
    for _ in range(10):
        world.publish("orders", [b"x" * 200] * 50)
    world.seal()
    world.core.cold.cache_bytes = 1 << 20
    assert len(world.read("orders")) == 500
    held = world.core.cold.held_bytes
    assert 0 < held <= 1 << 20
    for path in world.parquet():
        path.unlink()
    assert len(world.read("orders")) == 500  # from memory
    world.core.cold.forget([segment.path for segment in world.core.manifest.live_segments()])
    with pytest.raises(Corrupt, match="cannot be read"):
        world.read("orders")


@pytest.mark.feature("F116", "F126")
def test_what_retention_let_go_of_is_read_from_the_archive(data_dir: Path) -> None:
    world = SealedWorld(data_dir / "data", archive=str(data_dir / "archive"))
    world.call("topic.create", topic="orders", settings={"retention": "1h"})
    times = fill(world, 10)
    while leased := world.lease("orders", 100):
        world.settle("orders", leased, "ack")
    world.seal()
    world.wait(2 * 3600)
    fill(world, 2, first=10)
    done = world.seal()
    assert done.left == 2  # messages and events
    assert [offset for offset, _ in world.read("orders")] == [10, 11]
    assert [offset for offset, _ in world.read("orders", include_deleted=True)] == list(range(12))
    assert world.read("orders", include_deleted=True, from_time_ns=times[3], to_time_ns=times[5]) == [
        (3, b"3"),
        (4, b"4"),
    ]
    shown = world.call("log.segments", topic="orders", include_deleted=True)
    assert [each["archived"] for each in shown["segments"]] == [True, False]
    assert Path(shown["segments"][0]["uri"].removeprefix("file://")).is_relative_to(data_dir / "archive")
    assert [each["archived"] for each in world.call("log.segments", topic="orders")["segments"]] == [False]
    world.clock.advance(600 * SECOND)
    world.seal()
    assert len(world.parquet()) == 1
    world.close()
    again = SealedWorld(data_dir / "data", archive=str(data_dir / "archive"))
    assert [offset for offset, _ in again.read("orders", include_deleted=True)] == list(range(12))
    again.close()
    without = SealedWorld(data_dir / "data")
    with pytest.raises(InvalidArgument, match="has none configured"):
        without.read("orders", include_deleted=True)
    without.close()


@pytest.mark.feature("N15")
def test_segments_tell_where_the_files_are_and_from_where_the_journal_has_the_rest(world: SealedWorld) -> None:
    world.call("topic.create", topic="a/b", settings={"partitions": 2})
    for partition in range(2):
        world.publish("a/b", [b"x"] * (3 + partition), partition=partition)
    world.seal()
    world.publish("a/b", [b"y"], partition=1)
    shown = world.call("log.segments", topic="a/b")
    assert [(each["partition"], each["first"], each["end"], each["rows"]) for each in shown["segments"]] == [
        (0, 0, 3, 3),
        (1, 0, 4, 4),
    ]
    assert shown["live_from"] == {"0": 3, "1": 4}
    assert shown["ends"] == {"0": 3, "1": 5}
    for each in shown["segments"]:
        file = Path(each["uri"].removeprefix("file://"))
        assert file.stat().st_size == each["size_bytes"]
        assert pq.read_metadata(file).num_rows == each["rows"]
    assert all(Path(each["uri"].removeprefix("file://")).exists() for each in shown["events"])


def test_tables_of_a_stretch_over_files_and_journal(world: SealedWorld) -> None:
    published = [b"%d" % i for i in range(500)]
    for start in range(0, 300, 50):
        world.publish("orders", published[start : start + 50])
    world.seal()
    for start in range(300, 500, 50):
        world.publish("orders", published[start : start + 50])
    for first, end in ((0, 500), (20, 480), (299, 301), (310, 320), (0, 1), (500, 500)):
        tables = list(world.port.tables("default", "orders", from_offset=first, to_offset=end))
        table = pa.concat_tables(tables) if tables else pa.table({"offset": [], "value": []})
        assert table.column("offset").to_pylist() == list(range(first, end))
        assert table.column("value").to_pylist() == published[first:end]
    [narrow, *_] = world.port.tables("default", "orders", columns=["offset", "timestamp"])
    assert narrow.column_names == ["offset", "timestamp"]


@pytest.mark.feature("F131", "F140")
def test_a_trace_of_a_message_sealed_long_ago(world: SealedWorld) -> None:
    ids = []
    for day in range(30):
        ids += world.publish("orders", [b"%d-%d" % (day, i) for i in range(20)])
        world.settle("orders", world.lease("orders", 20, consumer=f"w{day}"), "ack whole")
        world.wait(DAY // 8)
        world.seal()
    told = world.call("trace", id=ids[25])
    assert told["offset"] == 25
    assert [event["event"] for event in told["events"]] == ["PUBLISHED", "DELIVERED", "ACKED", "SEALED", "RETAINED"]
    assert told["events"][2]["consumer"] == "w1"
    assert world.call("explain", id=ids[25])["state"] == "acked"


def test_what_cannot_be_read_says_so(world: SealedWorld) -> None:
    world.publish("orders", [b"a"])
    with pytest.raises(InvalidArgument, match="partition 5: topic 'orders' has 1"):
        world.call("read", topic="orders", partition=5)
    with pytest.raises(InvalidArgument, match="at least 1"):
        world.call("read", topic="orders", limit=0)
    with pytest.raises(InvalidArgument, match="partition 1"):
        list(world.port.tables("default", "orders", partition=1))


def test_seal_as_a_call(world: SealedWorld) -> None:
    world.publish("orders", [b"a"] * 10)
    world.port.administration.reading.sealer = world.sealer
    done = world.call("log.seal")
    assert done["messages"] == 10
    assert done["files"] == 2
    world.port.administration.reading.sealer = None
    with pytest.raises(InvalidArgument, match="is not sealed here"):
        world.call("log.seal")


@pytest.mark.parametrize("at", ["first value", "last value", "footer"])
def test_a_flipped_bit_in_a_sealed_file_is_an_error_and_never_another_value(world: SealedWorld, at: str) -> None:
    """zstd leaves bytes that do not shrink as they are, so the decoder alone would not notice."""
    values = [Random(i).randbytes(500) for i in range(200)]
    world.publish("orders", values)
    world.seal()
    [path] = world.parquet()
    content = bytearray(path.read_bytes())
    footer = int.from_bytes(content[-8:-4], "little") + 8
    places = {"first value": [content.index(values[0][:16])], "last value": [content.index(values[-1][:16])]}
    for place in places.get(at, range(len(content) - footer, len(content))):
        damaged = bytearray(content)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        world.core.cold.forget([segment.path for segment in world.core.manifest.live_segments()])
        with pytest.raises(Corrupt, match="damaged"):
            world.read("orders")


def let_go_of(directory: Path, archive: Path) -> None:
    """A topic of which the first half is in the archive only."""
    with headrace.open(directory, seal={"archive": str(archive), "behind": "0B"}) as hr:
        orders = hr.topic("orders", retention_bytes="3KiB")
        for half in range(2):
            orders.publish_many([b"%d-%d" % (half, i) + b"x" * 300 for i in range(10)])
            with orders.consumer() as consumer:
                consumer.ack(consumer.receive(100))
            hr.call("log.seal")


@pytest.mark.feature("F116", "F126")
def test_a_client_reads_what_retention_let_go_of(data_dir: Path) -> None:
    archive = data_dir / "archive"
    let_go_of(data_dir / "data", archive)
    with headrace.open(data_dir / "data", seal={"archive": str(archive), "behind": "0B"}) as hr:
        orders = hr.topic("orders")
        hr.call("log.seal")
        assert [record.offset for record in orders.read()] == list(range(10, 20))
        assert [record.offset for record in orders.read(include_deleted=True)] == list(range(20))
        assert [r.offset for r in orders.read(include_deleted=True, from_offset=5, to_offset=12)] == list(range(5, 12))
    with pytest.raises(InvalidArgument, match="seal is 3; write settings"):
        headrace.open(data_dir / "other", seal=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="archve"):
        headrace.open(data_dir / "other", seal={"archve": "x"})


@pytest.mark.feature("F126")
def test_the_command_line_reads_it_too(data_dir: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any) -> None:
    from headrace.cli import main

    let_go_of(data_dir / "data", data_dir / "archive")
    monkeypatch.setenv("HEADRACE_SEAL__ARCHIVE", str(data_dir / "archive"))

    def printed(*options: str) -> list[bytes]:
        with pytest.raises(SystemExit) as ended:
            main(["consume", "orders", *options, "--data-dir", str(data_dir / "data")])
        assert ended.value.code == 0
        return [line[:3] for line in capfdbinary.readouterr().out.splitlines()]

    everything = [b"%d-%d" % (half, i) for half in range(2) for i in range(10)]
    assert printed("--include-deleted") == everything
    assert printed("--include-deleted", "--from-time", "2020-01-01T00:00:00Z") == everything
    assert printed("--include-deleted", "--from-offset", "0:8", "--limit", "4") == everything[8:12]
    assert printed("--from-offset", "0:0") == everything[10:]


@pytest.mark.feature("F124", "F125", "F128", "F129")
def test_a_bounded_replay_into_a_group_over_files_and_journal(world: SealedWorld) -> None:
    times = fill(world, 40)
    while leased := world.lease("orders", 100):
        world.settle("orders", leased, "ack")
    world.seal()
    times += fill(world, 20, first=40)

    def delivered(group: str) -> list[bytes]:
        found: list[bytes] = []
        while leased := world.lease("orders", 7, group=group):
            found += [value for each in leased for value in each.batch.values()]
            world.settle("orders", leased, "ack", group=group)
        return found

    world.call("group.create", topic="orders", group="again", start="latest")
    for first, last in ((10, 20), (30, 50), (45, 60), (0, 1)):
        seek = {"start": {"time_ns": times[first]}}
        if last < 60:
            seek["stop_time_ns"] = times[last]  # type: ignore[assignment]
        world.call("group.seek", topic="orders", group="again", **seek)
        assert delivered("again") == [b"%d" % i for i in range(first, last)]
    world.call("group.seek", topic="orders", group="again", start={"offsets": {"0": 38}}, stops={"0": 42})
    world.publish("orders", [b"later"])
    assert delivered("again") == [b"38", b"39", b"40", b"41"]  # and it ends there
    assert delivered("default") == [b"%d" % i for i in range(40, 60)] + [b"later"]


@pytest.mark.parametrize(
    ("seek", "wrong"),
    [
        ({"start": {"offsets": {"0": 3}}, "stops": {"0": 1}}, "a replay from 3 to 1 of partition 0: ends first"),
        ({"start": {"offsets": {"0": 99}}}, "offset 99 of partition 0: topic 'orders' has 0 to 5"),
        ({"start": {"offsets": {"7": 0}}}, "topic 'orders' has 0 to 0"),
        ({"start": "yesterday"}, "a start of 'yesterday'"),
    ],
)
def test_a_replay_that_cannot_be(world: SealedWorld, seek: dict[str, Any], wrong: str) -> None:
    fill(world, 5)
    with pytest.raises(InvalidArgument, match=wrong):
        world.call("group.seek", topic="orders", group="default", **seek)


def test_reads_outside_of_what_there_is(world: SealedWorld) -> None:
    times = fill(world, 5)
    world.call("topic.config", topic="orders", settings={"retention": "1h"})
    while leased := world.lease("orders", 100):
        world.settle("orders", leased, "ack")
    world.seal()
    world.wait(7200)
    times += fill(world, 3, first=5)
    world.seal()
    assert [offset for offset, _ in world.read("orders", from_offset=0)] == [5, 6, 7]  # from where there is something
    assert world.read("orders", from_time_ns=times[2], to_time_ns=times[1]) == []
    assert world.read("orders", from_offset=7, to_offset=6) == []
    assert world.read("orders", from_offset=1000) == []
    assert world.read("orders", from_time_ns=times[-1] + SECOND) == []


@pytest.mark.feature("F145", "F137")
def test_what_is_new_is_answered_from_memory_and_what_is_old_from_the_disk(
    world: SealedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world, 10)
    world.seal()
    world.publish("orders", [b"new"])
    monkeypatch.setattr(type(world.core.frames), "batches_at", None)  # the journal's files are not looked at
    monkeypatch.setattr(type(world.core.cold), "open", None)  # nor the sealed ones
    assert world.read("orders", from_offset=10) == [(10, b"new")]
    monkeypatch.undo()
    assert len(world.read("orders")) == 11
    assert world.core.tail.size_bytes <= world.core.tail.bytes_max
