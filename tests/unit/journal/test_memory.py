"""What is particular to the journal without a disk."""

from __future__ import annotations

import pytest

from headrace.errors import Closed, HeadraceError, InvalidArgument
from headrace.journal import MemoryJournal


@pytest.mark.feature("F143")
def test_frames_are_read_once_they_are_durable() -> None:
    journal = MemoryJournal()
    first = journal.append(1, b"a", b"b")
    assert list(journal.read()) == []
    assert journal.read_frame(first).body == b"ab"
    assert journal.durable_position < first
    journal.wait_durable(first)
    assert [frame.body for frame in journal.read()] == [b"ab"]
    assert journal.durable_position == journal.end_position > first
    assert journal.stats.commits == 1


async def test_tasks_are_served_at_once_and_callbacks_called() -> None:
    journal = MemoryJournal()
    heard: list[tuple[int, HeadraceError | None]] = []
    journal.on_durable(lambda position, error: heard.append((position, error)))
    journal.append(1, b"a")
    await journal.durable(journal.end_position)
    journal.commit_soon()
    assert heard == [(journal.end_position, None)]


def test_refusals_say_what_would_be_right() -> None:
    journal = MemoryJournal()
    with pytest.raises(InvalidArgument, match="kind 240 is not between 0 and 239"):
        journal.append(240, b"")
    with pytest.raises(InvalidArgument, match="no frame begins at position 5"):
        journal.read_frame(5)
    with pytest.raises(InvalidArgument, match="is not durable"):
        journal.truncate_before(1)
    with pytest.raises(InvalidArgument, match="was never appended"):
        journal.save_snapshot(1, b"")
    position = journal.append(1, b"x")
    journal.commit()
    journal.truncate_before(journal.end_position)
    with pytest.raises(InvalidArgument, match="was truncated"):
        journal.read(position)
    with journal:
        pass
    with pytest.raises(Closed):
        journal.append(1, b"")
    with pytest.raises(Closed):
        journal.commit()
