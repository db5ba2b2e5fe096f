"""The memory journal and the disk journal agree on the same random operations."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from headrace.errors import InvalidArgument
from headrace.journal import DiskJournal, Journal, MemoryJournal
from headrace.testing import SimulatedDisk

if TYPE_CHECKING:
    from pathlib import Path


def agree(memory: Journal, disk: Journal, seed: int) -> None:
    """Run the same operations on both; positions may differ, their order and everything else may not."""
    rng = random.Random(seed)
    in_memory: list[int] = []
    on_disk: list[int] = []
    kept_from = 0
    for _ in range(rng.randint(10, 80)):
        match rng.choice(("append", "append", "many", "commit", "wait", "read", "peek", "snapshot", "truncate")):
            case "append":
                kind, parts = rng.randint(0, 239), [rng.randbytes(rng.choice((0, 10, 300, 20_000))) for _ in range(2)]
                in_memory.append(memory.append(kind, *parts))
                on_disk.append(disk.append(kind, *map(memoryview, parts)))
            case "many":
                frames = [(rng.randint(0, 239), rng.randbytes(rng.randint(0, 500))) for _ in range(rng.randint(0, 9))]
                in_memory += memory.append_many(frames)
                on_disk += disk.append_many(frames)
            case "commit":
                assert memory.commit() == memory.end_position
                assert disk.commit() == disk.end_position
            case "wait":
                if in_memory:
                    at = rng.randrange(len(in_memory))
                    for journal, positions in ((memory, in_memory), (disk, on_disk)):
                        journal.wait_durable(positions[at])
                        assert journal.durable_position > positions[at]
                for journal in (memory, disk):
                    with pytest.raises(InvalidArgument, match="was never appended"):
                        journal.wait_durable(journal.end_position + 1)
            case "read":
                memory.commit()
                disk.commit()
                if kept_from < len(in_memory):
                    at = rng.randrange(kept_from, len(in_memory))
                    assert content(memory, in_memory[at]) == content(disk, on_disk[at])
                    assert [frame.position for frame in memory.read(in_memory[at])] == in_memory[at:]
                    assert [frame.position for frame in disk.read(on_disk[at])] == on_disk[at:]
            case "peek":
                if kept_from < len(in_memory):
                    at = rng.randrange(kept_from, len(in_memory))
                    assert memory.read_frame(in_memory[at])[1:] == disk.read_frame(on_disk[at])[1:]
            case "snapshot":
                data = rng.randbytes(100)
                memory.save_snapshot(memory.end_position, data)
                disk.save_snapshot(disk.end_position, data)
            case _:
                assert (memory.load_snapshot() is None) == (disk.load_snapshot() is None)
                in_both = memory.load_snapshot(), disk.load_snapshot()
                if in_both[0] is not None and in_both[1] is not None:
                    assert in_both[0][1] == in_both[1][1]
                    kept_from = max(kept_from, sum(position < in_both[0][0] for position in in_memory))
                    memory.truncate_before(in_both[0][0])
                    disk.truncate_before(in_both[1][0])
    assert memory.stats.frames >= len(in_memory) - 1
    memory.close()
    disk.close()


def content(journal: Journal, position: int) -> list[tuple[int, bytes]]:
    return [(frame.kind, bytes(frame.body)) for frame in journal.read(position)]


@pytest.mark.feature("F143", "F144")
def test_memory_and_disk_agree(seeds: range) -> None:
    for seed in range(5 * len(seeds)):
        agree(MemoryJournal(), DiskJournal.open("/j", files=SimulatedDisk(), file_size_bytes=16_384), seed)


@pytest.mark.feature("F143", "F144")
def test_memory_and_a_real_disk_agree(seeds: range, data_dir: Path) -> None:
    for seed in seeds[:20]:
        agree(MemoryJournal(), DiskJournal.open(data_dir / str(seed), file_size_bytes=16_384), seed)
