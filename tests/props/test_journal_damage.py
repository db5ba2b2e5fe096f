"""Damage at rest: whatever happens to the bytes of a journal, nothing is skipped in silence and no wrong body is read.

A thousand seeded damages over journals that were stopped cleanly, killed, or had their power cut. Each is either
reported, with the path of the file, or harmless: then everything that was confirmed is there. The same trials must
catch a journal that cuts at the first bad record.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from headrace.errors import Corrupt, UnsupportedVersion
from headrace.journal import DiskJournal, recovery
from headrace.testing import JournalLedger, SimulatedDisk, Violation

if TYPE_CHECKING:
    from collections.abc import Callable

WHERE = "/journal"
FILE_BYTES = 16 * 1024
JOURNALS = 12
DAMAGES_PER_SEED = 60


class Rest(NamedTuple):
    """A journal at rest and what it confirmed."""

    disk: SimulatedDisk
    ledger: JournalLedger


def open_journal(disk: SimulatedDisk) -> DiskJournal:
    return DiskJournal.open(WHERE, files=disk, file_size_bytes=FILE_BYTES, new_identity=lambda: b"i" * 16)


def at_rest(seed: int) -> Rest:
    rng = random.Random(seed)
    disk, ledger = SimulatedDisk(), JournalLedger()
    journal = open_journal(disk)
    for _ in range(rng.randint(5, 150)):
        body = rng.randbytes(rng.choice((0, 20, 200, 200, 1500, 18_000)))
        ledger.appended(journal.append(7, body), 7, body)
        if rng.random() < 0.5:
            ledger.confirmed(journal.commit())
        if rng.random() < 0.04:
            ledger.snapshot_begun(journal.end_position, b"state" * 50)
            journal.save_snapshot(journal.end_position, b"state" * 50)
            ledger.snapshot_done()
            ledger.confirmed(journal.durable_position)
            if rng.random() < 0.5:
                ledger.released(journal.durable_position)
                journal.truncate_before(journal.durable_position)
    ledger.confirmed(journal.commit())
    if seed % 3 == 0:
        journal.close()
    # A power cut after the durable mark reached the disk leaves the same as a kill: the image is what there is.
    return Rest(disk.kill().copy(), ledger)


def damage(disk: SimulatedDisk, rng: random.Random) -> str:
    """Do one thing to one file, or two; returns what, for the message."""
    paths = [f"{WHERE}/{name}" for name in disk.names(WHERE) if name != "lock"]
    journals = [path for path in paths if path.endswith(".journal")]
    path = rng.choice(journals) if rng.random() < 0.7 else rng.choice(paths)
    size = len(disk.content(path))
    used = len(disk.content(path).rstrip(b"\0")) or 1
    match rng.choice(("bit", "bit", "bit", "sector", "sector", "bytes", "truncate", "swap", "lose", "rename")):
        case "bit":
            bit = rng.randrange(8 * (used if rng.random() < 0.9 else size))
            disk.flip_bit(path, bit)
            return f"bit {bit} of {path} flipped"
        case "sector":
            sector = rng.randrange((used + 511) // 512)
            disk.zero_sector(path, sector)
            return f"sector {sector} of {path} zeroed"
        case "bytes":
            at = rng.randrange(used)
            disk.overwrite(path, at, rng.randbytes(min(rng.randint(1, 64), size - at)))
            return f"bytes at {at} of {path} overwritten"
        case "truncate":
            to = rng.randrange(size)
            disk.truncate(path, to)
            return f"{path} truncated from {size} to {to}"
        case "swap":
            other = rng.choice(paths)
            disk.swap(path, other)
            return f"{path} swapped with {other}"
        case "lose":
            disk.lose(path)
            return f"{path} lost"
        case _:
            name = rng.choice(journals).removesuffix(".journal")
            renamed = f"{name[:-3]}{rng.randrange(1000):03d}.journal"
            disk.rename(path, renamed)
            return f"{path} renamed to {renamed}"


def silent(rest: Rest, disk: SimulatedDisk) -> str | None:
    """What was passed over in silence after a damage; None when it was reported or did no harm."""
    ledger = JournalLedger()
    ledger.__dict__.update(rest.ledger.__dict__)
    ledger.frames = list(rest.ledger.frames)
    try:
        journal = open_journal(disk)
        if journal.first_position == 0 and journal.load_snapshot() is None:
            # Nothing was let go: without its snapshot the journal is read from the beginning.
            ledger.snapshot = None
        ledger.check(journal)
    except Violation as violation:
        return str(violation)
    except (Corrupt, UnsupportedVersion) as error:
        return None if WHERE in str(error) else f"the report names no file: {error}"
    return None


@pytest.mark.feature("F154", "F294")
def test_damage_is_reported_or_harmless(seeds: range) -> None:
    rests = [at_rest(seed) for seed in range(JOURNALS)]
    for seed in range(DAMAGES_PER_SEED * len(seeds)):
        rng = random.Random(seed)
        rest = rests[seed % JOURNALS]
        disk = rest.disk.copy()
        what = damage(disk, rng)
        found = silent(rest, disk)
        assert found is None, f"seed {seed}: {what}: {found}"


def cuts_at_the_first_bad_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "find_commit_record", lambda *_: None)
    monkeypatch.setattr(recovery, "read_mark", lambda *_: None)


def does_not_keep_a_durable_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "read_mark", lambda *_: None)


@pytest.mark.parametrize("canary", [cuts_at_the_first_bad_record, does_not_keep_a_durable_mark])
def test_canary_is_caught(canary: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    rests = [at_rest(seed) for seed in range(JOURNALS)]
    canary(monkeypatch)

    def caught(seed: int) -> bool:
        rest = rests[seed % JOURNALS]
        disk = rest.disk.copy()
        damage(disk, random.Random(seed))
        return silent(rest, disk) is not None

    assert any(caught(seed) for seed in range(400))


def test_commit_records_alone_prove_damage_inside_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a durable mark, only damage to the very last commit can look unfinished."""
    disk = SimulatedDisk()
    journal = open_journal(disk)
    positions = []
    for number in range(20):
        positions.append(journal.append(1, bytes([number]) * 100))
        journal.commit()
    path = journal.files()[-1].path
    disk.kill()
    monkeypatch.setattr(recovery, "read_mark", lambda *_: None)
    for position in positions[:-1]:
        damaged = disk.copy()
        damaged.flip_bit(path, 8 * (position + 50))
        with pytest.raises(Corrupt, match=rf"{path} is damaged at byte {position} \(position {position}\).*--salvage"):
            open_journal(damaged)
    damaged = disk.copy()
    damaged.flip_bit(path, 8 * (positions[-1] + 50))
    assert len(list(open_journal(damaged).read())) == 19
