"""``verify`` finds a flipped bit, a missing file, a gap and an imbalance, and nothing where nothing is wrong."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace.batch import Message
from headrace.clock import ManualClock
from headrace.delivery import snapshot
from headrace.journal import DiskJournal, FrozenJournal
from headrace.log.manifest import Dropped, Replaced
from headrace.log.store import LocalStore
from headrace.shard.core import Core
from headrace.shard.verifying import Report, verify
from unit.log.harness import FILE_BYTES, SECOND, SealedWorld


def looked_over(directory: Path, archive: Path | None = None) -> Report:
    store = LocalStore(str(archive)) if archive is not None else None
    return verify(directory, store=LocalStore(f"{directory}/log"), archive=store)


def kinds(report: Report) -> list[str]:
    return [problem.kind for problem in report.problems]


def live(directory: Path, what: str) -> Path:
    """A sealed file that the manifest names."""
    with FrozenJournal(directory) as journal:
        manifest = Core(journal, ManualClock()).manifest
    files = manifest.live_segments() if what == "messages" else manifest.live_events()
    return directory / "log" / next(file.path for file in files)


@pytest.fixture
def busy(data_dir: Path) -> Path:
    """A directory with messages in every state, sealed and not."""
    world = SealedWorld(data_dir)
    world.call("topic.create", topic="orders", settings={"partitions": 2})
    world.call("group.create", topic="orders", group="audit")
    for round_ in range(12):
        for partition in range(2):
            values = [Message(b"%d-%d" % (round_, i) + b"x" * 100, key=b"k%d" % i) for i in range(40)]
            world.publish("orders", values, partition=partition)
        world.publish("orders", [Message(b"later", deliver_at_ns=world.now_ns + 3600 * SECOND)])
        world.settle("orders", world.lease("orders", 10), "ack")
        world.settle("orders", world.lease("orders", 2), "reject")
        world.settle("orders", world.lease("orders", 2), "nack")
        world.lease("orders", 3)
        world.settle("orders", world.lease("orders", 5, group="audit"), "ack whole", group="audit")
        world.clock.advance(SECOND)
        if round_ in (2, 5, 8):
            world.seal()
    world.call("schedule.cancel", topic="orders", ids=[world.call("schedule.list", topic="orders")[0]["id"]])
    world.close()
    return data_dir


def test_a_directory_with_everything_in_it_is_sound(busy: Path) -> None:
    before = {path: path.read_bytes() for path in busy.rglob("*") if path.is_file() and path.name != "lock"}
    report = looked_over(busy)
    assert report.problems == []
    assert report.unread == []
    assert report.ok
    assert report.messages == 12 * 81 + 24  # and 24 dead letters
    assert report.segments
    assert report.event_files
    assert 0 < report.sealed_messages < report.messages + 1
    after = {path: path.read_bytes() for path in busy.rglob("*") if path.is_file() and path.name != "lock"}
    assert after == before  # nothing was changed, not even the journal's end


def test_a_crash_leaves_nothing_to_complain_about(data_dir: Path) -> None:
    world = SealedWorld(data_dir)
    for i in range(30):
        world.publish("orders", [b"%d" % i * 50] * 20)
    world.seal()
    world.publish("orders", [b"live"])
    world.crash()
    assert looked_over(data_dir).ok
    world.sealer.stop()


@pytest.mark.parametrize("what", ["messages", "events"])
def test_a_flipped_bit_in_a_sealed_file(busy: Path, what: str) -> None:
    path = live(busy, what)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    report = looked_over(busy)
    assert kinds(report) == ["damage"]
    assert str(path) in report.problems[0].place
    assert "does not match its checksum" in report.problems[0].message


def test_a_flipped_bit_in_the_journal(busy: Path) -> None:
    path = min(busy.glob("*.journal"))
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    report = looked_over(busy)
    assert kinds(report) == ["damage"]
    assert path.name in report.problems[0].message
    assert any("has to be readable" in each for each in report.unread)


def test_a_missing_file(busy: Path) -> None:
    path = live(busy, "messages")
    path.unlink()
    report = looked_over(busy)
    assert kinds(report) == ["missing"]
    assert str(path) in report.problems[0].place


def test_a_file_that_was_cut_short(busy: Path) -> None:
    path = live(busy, "messages")
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-10])
    [problem] = looked_over(busy).problems
    assert f"was written with {size} bytes and has {size - 10}" in problem.message


def test_a_missing_journal_file(data_dir: Path) -> None:
    world = SealedWorld(data_dir, store=False)
    for _ in range(30):
        world.publish("orders", [b"x" * 1000] * 10)
    world.close()
    files = sorted(data_dir.glob("*.journal"))
    assert len(files) > 3
    files[1].unlink()
    report = verify(data_dir)
    assert set(kinds(report)) == {"missing"}
    assert f"positions {FILE_BYTES}" in report.problems[0].message


def test_a_gap_between_sealed_files(data_dir: Path) -> None:
    world = SealedWorld(data_dir)
    for i in range(3):
        world.publish("orders", [b"%d" % i] * 10)
        world.seal()
    [_, middle, _] = world.core.manifest.segments[world.pid("orders")]
    world.core.enter([Dropped([middle.path], 0)])
    world.close()
    [problem] = looked_over(data_dir).problems
    assert problem == ("gap", "default/orders, partition 0", problem.message)
    assert "offsets 10 to 19 are neither" in problem.message


def test_a_manifest_that_says_something_else_than_the_file(data_dir: Path) -> None:
    world = SealedWorld(data_dir)
    world.publish("orders", [b"%d" % i for i in range(10)])
    world.seal()
    [segment] = world.core.manifest.segments[world.pid("orders")]
    wrong = msgspec.structs.replace(segment, end=9, last_id=segment.last_id - 1)
    world.core.enter([Replaced([segment.path], [wrong], [], 0)])
    world.close()
    assert sorted(kinds(looked_over(data_dir))) == ["gap", "imbalance"]


def test_books_that_do_not_balance(busy: Path) -> None:
    world = SealedWorld(busy)
    backlog = world.core.state.by_name["default", "orders"].groups["default"].backlogs[world.pid("orders")]
    backlog.acked_count += 1
    position, _ = world.core.take_snapshot()
    logs = [log.dump() for log in world.core.logs.values()]
    data = msgspec.msgpack.encode([snapshot(world.core.state), logs, world.core.manifest.dump()])
    world.core.save_snapshot(position, data)
    world.close()
    found = looked_over(busy).problems
    assert {(problem.kind, problem.place) for problem in found} == {
        ("imbalance", "default/orders, partition 0, group default")
    }
    told = [problem.message for problem in found]
    assert "published" in told[0]
    assert "acked" in told[0]
    assert "counted as acked" in told[-1]


def test_the_archive_is_looked_at_when_it_is_named(data_dir: Path) -> None:
    world = SealedWorld(data_dir / "data", archive=str(data_dir / "archive"))
    world.call("topic.create", topic="orders", settings={"retention": "1h"})
    world.publish("orders", [b"old"])
    world.settle("orders", world.lease("orders"), "ack")
    world.seal()
    world.wait(2 * 3600)
    world.publish("orders", [b"new"])
    world.seal()
    world.close()
    report = looked_over(data_dir / "data", data_dir / "archive")
    assert report.ok
    assert report.archived_files == 2
    assert looked_over(data_dir / "data").unread == ["2 archived files: say where they are"]
    next((data_dir / "archive").rglob("*.parquet")).unlink()
    assert kinds(looked_over(data_dir / "data", data_dir / "archive")) == ["missing"]


def test_a_directory_that_a_broker_has_open(busy: Path) -> None:
    from headrace.errors import StorageFailed

    world = SealedWorld(busy)
    with pytest.raises(StorageFailed, match="is held by this process already"):
        looked_over(busy)
    world.close()


def test_a_frozen_journal_reads_what_an_open_one_does(data_dir: Path) -> None:
    with DiskJournal.open(data_dir, file_size_bytes=FILE_BYTES) as journal:
        positions = [journal.append(1, b"%d" % i * 5000) for i in range(40)]
        journal.commit()
        journal.save_snapshot(positions[20], b"state")
        journal.truncate_before(positions[20])
        wanted = list(journal.read())
        first, end, files = journal.first_position, journal.end_position, journal.files()
    with FrozenJournal(data_dir) as frozen:
        assert list(frozen.read()) == wanted
        assert (frozen.first_position, frozen.end_position) == (first, end)
        assert [each[:3] for each in frozen.files()] == [each[:3] for each in files]
        assert frozen.load_snapshot() == (positions[20], b"state")
        assert frozen.read_frame(positions[30]).body == b"30" * 5000
