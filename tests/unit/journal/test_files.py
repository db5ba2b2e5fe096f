"""The file layer: short writes, and the real files."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from headrace.journal.files import RealFiles, write_all

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Stingy(RealFiles):
    """Takes three bytes at a time."""

    def write(self, handle: int, buffers: Sequence[bytes], offset: int) -> int:
        return super().write(handle, [b"".join(buffers)[:3]], offset)


class Stuck(RealFiles):
    def write(self, handle: int, buffers: Sequence[bytes], offset: int) -> int:
        return 0


@pytest.mark.parametrize("files", [RealFiles(), Stingy()])
def test_every_byte_is_written(files: RealFiles, data_dir: Path) -> None:
    handle = files.create(f"{data_dir}/f")
    buffers = [b"", b"ab", b"", b"cdefghi", *(bytes([number % 256]) for number in range(1500)), b""]
    assert write_all(files, handle, buffers, 5) == 1509
    assert files.read(handle, 9999, 0) == bytes(5) + b"".join(buffers)
    files.close(handle)


def test_a_write_without_progress_is_an_error(data_dir: Path) -> None:
    files = Stuck()
    handle = files.create(f"{data_dir}/f")
    with pytest.raises(OSError, match="took no bytes") as caught:
        write_all(files, handle, [b"x"], 0)
    assert caught.value.errno == errno.EIO
    files.close(handle)


def test_a_second_lock_is_refused_until_the_first_is_gone(data_dir: Path) -> None:
    files = RealFiles()
    handle = files.lock(f"{data_dir}/lock")
    with pytest.raises(BlockingIOError):
        files.lock(f"{data_dir}/lock")
    files.close(handle)
    files.close(files.lock(f"{data_dir}/lock"))
