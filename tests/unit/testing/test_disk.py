"""The simulated disk: every image of a crash it builds is one that the rules allow, and it builds all of them."""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING, TypeVar

import pytest

from headrace.testing import Fault, PowerCut, SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
PAGE, SECTOR = 4096, 512
CRASHES = 200


@pytest.fixture(params=["strict", "ext4"])
def disk(request: pytest.FixtureRequest) -> SimulatedDisk:
    disk = SimulatedDisk(rule=request.param)
    disk.make_directory("/d")
    return disk


def written(disk: SimulatedDisk, path: str, data: bytes, offset: int = 0) -> int:
    handle = disk.create(path)
    disk.write(handle, [data], offset)
    return handle


def durable(disk: SimulatedDisk, path: str, data: bytes) -> int:
    handle = written(disk, path, data)
    disk.sync(handle)
    disk.sync_directory("/d")
    return handle


def outcomes(disk: SimulatedDisk, look: Callable[[SimulatedDisk], T]) -> set[T]:
    """What is seen after crashes at this moment."""
    return {look(disk.crash(random.Random(seed))) for seed in range(CRASHES)}


def names(disk: SimulatedDisk) -> tuple[str, ...]:
    return tuple(disk.names("/d"))


# -- names -------------------------------------------------------------------------------------------------------------


def test_without_a_sync_of_the_directory_new_names_last_in_any_combination_or_in_order() -> None:
    strict, ext4 = SimulatedDisk(rule="strict"), SimulatedDisk(rule="ext4")
    for disk in (strict, ext4):
        disk.make_directory("/d")
        for name in "ab":
            disk.sync_data(written(disk, f"/d/{name}", b"x"))
    assert outcomes(strict, names) == {(), ("a",), ("b",), ("a", "b")}
    assert outcomes(ext4, names) == {(), ("a",), ("a", "b")}


def test_after_a_sync_of_the_directory_names_are_certain(disk: SimulatedDisk) -> None:
    durable(disk, "/d/a", b"x")
    assert outcomes(disk, names) == {("a",)}
    disk.remove("/d/a")
    assert outcomes(disk, names) == {(), ("a",)}


def test_only_ext4_makes_names_last_with_a_sync_of_a_file() -> None:
    for rule, expected in (("strict", {(), ("a",)}), ("ext4", {("a",)})):
        disk = SimulatedDisk(rule=rule)  # type: ignore[arg-type]
        disk.make_directory("/d")
        disk.sync(written(disk, "/d/a", b"x"))
        assert outcomes(disk, names) == expected, rule


def test_a_rename_over_a_file_leaves_the_old_or_the_new_one_and_never_none(disk: SimulatedDisk) -> None:
    durable(disk, "/d/a", b"old")
    durable(disk, "/d/a.new", b"new")
    disk.rename("/d/a.new", "/d/a")
    assert outcomes(disk, lambda after: after.content("/d/a")) == {b"old", b"new"}


def test_the_halves_of_a_rename_last_on_their_own_under_the_strict_rule() -> None:
    disk = SimulatedDisk(rule="strict")
    disk.make_directory("/d")
    durable(disk, "/d/a", b"x")
    disk.rename("/d/a", "/d/b")
    assert outcomes(disk, names) == {("a",), ("b",), ("a", "b"), ()}


# -- contents ----------------------------------------------------------------------------------------------------------


def test_what_was_synced_is_there_and_stays(disk: SimulatedDisk) -> None:
    durable(disk, "/d/a", b"synced")
    assert outcomes(disk, lambda after: after.content("/d/a")) == {b"synced"}
    again = disk.crash(random.Random(1))
    assert outcomes(again, lambda after: after.content("/d/a")) == {b"synced"}


def test_unsynced_pages_reach_the_medium_in_any_order(disk: SimulatedDisk) -> None:
    handle = durable(disk, "/d/a", bytes(3 * PAGE))
    for page in range(3):
        disk.write(handle, [bytes([page + 1]) * PAGE], page * PAGE)
    seen = outcomes(disk, lambda after: tuple(after.content("/d/a")[page * PAGE] for page in range(3)))
    assert (0, 0, 3) in seen
    assert (1, 0, 3) in seen
    assert (0, 2, 0) in seen
    assert {first for first, _, _ in seen} == {0, 1}


def test_a_page_written_twice_may_be_any_of_its_versions(disk: SimulatedDisk) -> None:
    handle = durable(disk, "/d/a", bytes(PAGE))
    disk.write(handle, [b"\1" * PAGE], 0)
    disk.write(handle, [b"\2" * PAGE], 0)
    assert {byte for (byte, *_) in outcomes(disk, lambda after: after.content("/d/a")[:SECTOR])} == {0, 1, 2}


def test_the_last_write_is_torn_between_sectors_and_never_inside_one(disk: SimulatedDisk) -> None:
    handle = durable(disk, "/d/a", bytes(PAGE))
    disk.write(handle, [b"\1" * PAGE], 0)
    images = outcomes(disk, lambda after: after.content("/d/a"))
    for image in images:
        for at in range(0, PAGE, SECTOR):
            assert len(set(image[at : at + SECTOR])) == 1, "a sector is half old and half new"
    assert any(len(set(image)) == 2 for image in images), "no image was torn"


def test_a_size_that_was_not_synced_is_old_or_new(disk: SimulatedDisk) -> None:
    handle = durable(disk, "/d/a", b"1234")
    disk.write(handle, [b"5678"], 4)
    sizes = outcomes(disk, lambda after: len(after.content("/d/a")))
    assert sizes == {4, 8}
    assert all(content[:4] == b"1234" for content in outcomes(disk, lambda after: after.content("/d/a")))


# -- failures ----------------------------------------------------------------------------------------------------------


def test_after_a_failed_sync_the_next_one_succeeds_and_makes_nothing_of_it_durable(disk: SimulatedDisk) -> None:
    handle = durable(disk, "/d/a", bytes(PAGE))
    disk.write(handle, [b"\1" * PAGE], 0)
    disk.faults[disk.calls + 1] = Fault(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        disk.sync_data(handle)
    disk.sync_data(handle)
    assert disk.read(handle, 1, 0) == b"\1", "the cache keeps what was written"
    assert {content[0] for content in outcomes(disk, lambda after: after.content("/d/a"))} == {0, 1}
    disk.write(handle, [b"\1" * PAGE], 0)
    disk.sync_data(handle)
    assert outcomes(disk, lambda after: after.content("/d/a")) == {b"\1" * PAGE}


def test_a_fault_hits_the_call_it_was_planned_for_and_no_other(disk: SimulatedDisk) -> None:
    handle = disk.create("/d/a")
    disk.faults[2] = Fault(errno.ENOSPC)
    assert disk.write(handle, [b"one"], 0) == 3
    with pytest.raises(OSError, match="No space left"):
        disk.write(handle, [b"two"], 3)
    assert disk.write(handle, [b"three"], 3) == 5
    assert (disk.calls, disk.failed_calls, disk.content("/d/a")) == (3, 1, b"onethree")


def test_a_short_write_takes_half_and_at_least_a_byte(disk: SimulatedDisk) -> None:
    handle = disk.create("/d/a")
    disk.faults.update({1: Fault(short=True), 2: Fault(short=True)})
    assert disk.write(handle, [b"abc", b"def"], 0) == 3
    assert disk.write(handle, [b"x"], 3) == 1
    assert disk.content("/d/a") == b"abcx"


def test_a_full_disk_refuses_what_does_not_fit_and_takes_it_when_there_is_room() -> None:
    disk = SimulatedDisk(room_bytes=10)
    disk.make_directory("/d")
    written(disk, "/d/a", b"12345678")
    handle = disk.create("/d/b")
    with pytest.raises(OSError, match="No space left"):
        disk.write(handle, [b"123"], 0)
    assert disk.content("/d/b") == b""
    disk.remove("/d/a")
    assert disk.write(handle, [b"123"], 0) == 3
    assert disk.room_bytes("/d") == 7


def test_a_power_cut_is_no_error_that_anybody_handles(disk: SimulatedDisk) -> None:
    handle = disk.create("/d/a")
    disk.faults[1] = Fault(power_cut=True)
    with pytest.raises(PowerCut):
        disk.write(handle, [b"x"], 0)
    assert not issubclass(PowerCut, Exception)
    assert disk.content("/d/a") == b""


def test_a_kill_keeps_what_was_written_and_frees_locks(disk: SimulatedDisk) -> None:
    disk.lock("/d/lock")
    with pytest.raises(BlockingIOError):
        disk.lock("/d/lock")
    written(disk, "/d/a", b"unsynced")
    disk.kill()
    assert disk.content("/d/a") == b"unsynced"
    disk.lock("/d/lock")


# -- damage ------------------------------------------------------------------------------------------------------------


def test_damage_at_rest_is_durable(disk: SimulatedDisk) -> None:
    durable(disk, "/d/a", b"\0" * 2 * SECTOR)
    durable(disk, "/d/b", b"other")
    disk.flip_bit("/d/a", 8 * SECTOR + 1)
    assert outcomes(disk, lambda after: after.content("/d/a")[SECTOR]) == {2}
    disk.overwrite("/d/a", 0, b"xy")
    disk.zero_sector("/d/a", 1)
    assert outcomes(disk, lambda after: after.content("/d/a")) == {b"xy" + bytes(2 * SECTOR - 2)}
    disk.truncate("/d/a", 2)
    disk.swap("/d/a", "/d/b")
    assert outcomes(disk, lambda after: (after.content("/d/a"), after.content("/d/b"))) == {(b"other", b"xy")}
    disk.lose("/d/b")
    assert outcomes(disk, names) == {("a",)}
    with pytest.raises(FileNotFoundError):
        disk.content("/d/b")
