"""Places for sealed files: a local disk, and whatever pyarrow opens; the same broker over each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem

from headrace.errors import Corrupt, InvalidArgument, StorageFailed, StorageFull
from headrace.log.store import ArrowStore, LocalStore, Store, open_store
from headrace.shard.verifying import verify
from unit.log.harness import SealedWorld

BUCKET = "cold-log"


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket of an S3 server in this process, as the options of a URI."""
    server_module = pytest.importorskip("moto.server", reason="moto's S3 server is not installed")
    import logging

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = f"endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    file_system, _ = FileSystem.from_uri(f"s3://key:secret@{BUCKET}?{options}&allow_bucket_creation=true")
    file_system.create_dir(BUCKET)
    yield options
    server.stop()


class Stocked(SealedWorld):
    """A world whose sealed files (and, if given, archive) lie in stores of one's own."""

    def __init__(self, directory: Path, store: Store, archive: Store | None = None) -> None:
        super().__init__(directory)
        self.core.cold.store = store
        self.core.cold.archive = archive


def lived(world: SealedWorld, count: int = 60) -> None:
    world.call("topic.create", topic="orders", settings={"retention": "1h"})
    for i in range(count):
        world.publish("orders", [b"%d" % i])
    while leased := world.lease("orders", 100):
        world.settle("orders", leased, "ack")


def test_sealed_into_s3_read_traced_archived_and_verified(data_dir: Path, bucket: str) -> None:
    live = open_store(f"s3://key:secret@{BUCKET}/live?{bucket}")
    archive = open_store(f"s3://key:secret@{BUCKET}/archive?{bucket}")
    world = Stocked(data_dir, live, archive)
    lived(world)
    world.seal()
    assert [value for _, value in world.read("orders")] == [b"%d" % i for i in range(60)]
    shown = world.call("log.segments", topic="orders")
    assert shown["location"] == f"s3://{BUCKET}/live"  # without key and secret
    assert "secret" not in str(shown)
    [segment] = shown["segments"]
    file_system, _ = FileSystem.from_uri(f"s3://key:secret@{BUCKET}/live?{bucket}")
    table = pq.read_table(segment["uri"].removeprefix("s3://"), filesystem=file_system, partitioning=None)
    assert table.column("value").to_pylist() == [b"%d" % i for i in range(60)]
    world.wait(7200)
    world.publish("orders", [b"new"])
    world.seal()
    assert [value for _, value in world.read("orders")] == [b"new"]
    assert len(world.read("orders", include_deleted=True)) == 61
    world.close()
    report = verify(data_dir, store=live, archive=archive)
    assert report.problems == []
    assert report.archived_files == 2


def test_what_an_object_store_refuses_is_told_and_tried_again(data_dir: Path, bucket: str) -> None:
    nowhere = open_store(f"s3://key:secret@no-such-bucket/live?{bucket}")
    world = Stocked(data_dir, nowhere)
    lived(world)
    with pytest.raises(StorageFailed, match=r"s3://no-such-bucket/live/.*\.parquet failed"):
        world.seal()
    assert len(world.read("orders")) == 60  # out of the journal
    world.core.cold.store = open_store(f"s3://key:secret@{BUCKET}/later?{bucket}")
    assert world.seal().messages == 60
    assert len(world.read("orders")) == 60
    world.close()


@pytest.fixture(params=["local", "local through pyarrow", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return LocalStore(str(tmp_path / "place"))
    if request.param == "memory":
        return open_store("mock:///deep/place")
    return ArrowStore(LocalFileSystem(), str(tmp_path / "place"), "elsewhere://place")


def test_a_file_is_there_whole_or_not_at_all(store: Store) -> None:
    assert store.size_bytes("a/b/x.parquet") is None
    assert store.names("a/b") == []
    with pytest.raises(FileNotFoundError):
        store.read("a/b/x.parquet")
    store.write("a/b/x.parquet", [b"hello ", memoryview(b"you")])
    assert store.read("a/b/x.parquet") == b"hello you"
    with store.open("a/b/x.parquet") as source:
        assert source.read() == b"hello you"
    store.write("a/b/x.parquet", [b"again"])
    assert store.size_bytes("a/b/x.parquet") == 5
    assert store.names("a/b") == ["x.parquet"]
    store.delete("a/b/x.parquet")
    store.delete("a/b/x.parquet")
    assert store.names("a/b") == []


def test_a_whole_broker_over_any_of_them(data_dir: Path, store: Store) -> None:
    world = Stocked(data_dir, store)
    lived(world)
    for _ in range(5):
        world.publish("orders", [b"more"])
        world.seal()  # and put together
    assert len(world.read("orders")) == 65
    [tables] = [list(world.port.tables("default", "orders"))]
    assert pa.concat_tables(tables).num_rows == 65
    world.close()
    assert verify(data_dir, store=store).ok


def test_leftovers_of_a_write_that_failed_go_with_the_file(tmp_path: Path) -> None:
    """Pyarrow's own local file system stands for HDFS: files are written beside and renamed."""
    store = ArrowStore(LocalFileSystem(), str(tmp_path), "elsewhere://place")

    def failing() -> Iterator[bytes]:
        yield b"half"
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageFull):
        store.write("a/x.parquet", failing())  # type: ignore[arg-type]
    assert store.size_bytes("a/x.parquet") is None
    assert [info.base_name for info in LocalFileSystem().get_file_info(FileSelector(f"{tmp_path}/a"))] == [
        "x.parquet.new"
    ]
    store.delete("a/x.parquet")
    assert LocalFileSystem().get_file_info(FileSelector(f"{tmp_path}/a")) == []


@pytest.mark.parametrize(
    ("uri", "wrong"),
    [
        ("", "must be a directory or a URI"),
        ("file://", "must be a directory or a URI"),
        ("nowhere://place", "nowhere"),
        ("s3://key:secret@bucket/x?colour=red", "colour"),
    ],
)
def test_a_place_that_cannot_be_says_what_is_wrong_with_it(uri: str, wrong: str) -> None:
    with pytest.raises(InvalidArgument, match=wrong) as refused:
        open_store(uri)
    assert "secret" not in str(refused.value)


def test_a_sealed_file_that_is_gone_is_named(data_dir: Path, tmp_path: Path) -> None:
    world = Stocked(data_dir, open_store("mock:///place"))
    lived(world)
    world.seal()
    world.core.cold.store = open_store(str(tmp_path / "other"))
    with pytest.raises(Corrupt, match=r"messages/ns=default/topic=orders/.* cannot be read"):
        world.read("orders")
    world.close()


def test_without_a_place_what_was_sealed_says_so(data_dir: Path) -> None:
    world = SealedWorld(data_dir)
    lived(world)
    world.seal()
    cold: Any = world.core.cold
    cold.store = None
    with pytest.raises(InvalidArgument, match="was sealed: reading it needs the place"):
        world.read("orders")
    world.close()


def test_a_log_opened_with_another_place_is_neither_added_to_nor_deleted_from(data_dir: Path, tmp_path: Path) -> None:
    """Half of the files here and half of them there would be a log that neither of the two can read."""
    right, wrong = LocalStore(str(tmp_path / "right")), LocalStore(str(tmp_path / "wrong"))
    world = Stocked(data_dir, right)
    lived(world)
    world.seal()
    world.close()
    other = Stocked(data_dir, wrong)
    other.publish("orders", [b"live"])
    with pytest.raises(StorageFailed, match=r"wrong does not hold what was sealed .* seal\.location has to say where"):
        other.seal()
    assert not (tmp_path / "wrong").exists()
    other.close()
    again = Stocked(data_dir, right)
    again.seal()
    assert len(again.read("orders")) == 61
    again.close()
