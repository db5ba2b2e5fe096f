"""The frozen batches: what was written once is read for ever, what was refused stays refused, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.batch import Batch, MessageView
from headrace.errors import HeadraceError, Malformed, from_code

HERE = Path(__file__).parent
VALID = sorted(path.stem for path in (HERE / "valid").glob("*.batch"))
REFUSED = sorted(path.stem for path in (HERE / "malformed").glob("*.batch"))


def test_the_corpus_is_there() -> None:
    assert len(VALID) >= 22
    assert len(REFUSED) >= 57


def _meaning(folder: str, name: str) -> dict[str, Any]:
    meaning: dict[str, Any] = json.loads((HERE / folder / f"{name}.json").read_text())
    return meaning


def _row(view: MessageView) -> dict[str, Any]:
    items = view.batch.header_items(view.index)
    return {
        "offset": view.offset,
        "id": view.id,
        "value": view.value.hex(),
        "key": view.key.hex() if view.key else None,
        "headers": [[name, item if isinstance(item, str) else {"hex": item.hex()}] for name, item in items],
        "priority": view.priority,
        "deliver_at": view.deliver_at_ns,
        "expires_at": view.expires_at_ns,
        "dedup_id": view.dedup_id.hex() if view.dedup_id else None,
        "timestamp": view.timestamp_ns,
    }


@pytest.mark.parametrize("name", VALID)
def test_a_frozen_batch_is_read_as_documented(name: str) -> None:
    raw = (HERE / "valid" / f"{name}.batch").read_bytes()
    meaning = _meaning("valid", name)
    for batch in (Batch.decode(raw), Batch.trusted(raw), Batch.trusted(memoryview(b"?" + raw)[1:])):
        assert [_row(view) for view in batch] == meaning["messages"]
        assert [batch.producer_id, batch.producer_seq] == meaning["producer"]
        assert batch.append_time_ns == meaning["append_time"]
        assert batch.to_bytes() == raw
        assert batch.size_bytes == len(raw)


@pytest.mark.parametrize("name", VALID)
def test_a_frozen_batch_cut_anywhere_or_with_a_tail_is_refused(name: str) -> None:
    raw = (HERE / "valid" / f"{name}.batch").read_bytes()
    for end in range(len(raw)):
        with pytest.raises(Malformed, match="cut short"):
            Batch.decode(raw[:end])
    with pytest.raises(Malformed, match=r"batch\.length .* bytes follow its end"):
        Batch.decode(raw + b"\0")


@pytest.mark.parametrize("name", VALID)
def test_a_frozen_batch_with_any_bit_flipped_is_refused(name: str) -> None:
    raw = (HERE / "valid" / f"{name}.batch").read_bytes()
    for at in range(min(len(raw), 400)):
        for bit in range(8):
            with pytest.raises(HeadraceError, match=r"batch\."):
                Batch.decode(raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :])


@pytest.mark.parametrize("name", REFUSED)
def test_a_malformed_batch_is_refused_by_name(name: str) -> None:
    raw = (HERE / "malformed" / f"{name}.batch").read_bytes()
    meaning = _meaning("malformed", name)
    with pytest.raises(HeadraceError) as caught:
        Batch.decode(raw)
    assert type(caught.value) is type(from_code(meaning["code"], ""))
    assert meaning["words"] in caught.value.message


@pytest.mark.parametrize("name", REFUSED)
def test_a_malformed_batch_cut_anywhere_or_with_a_tail_is_refused(name: str) -> None:
    raw = (HERE / "malformed" / f"{name}.batch").read_bytes()
    for other in [*(raw[:end] for end in range(len(raw))), raw + b"\0", raw + raw]:
        with pytest.raises(HeadraceError, match=r"batch\."):
            Batch.decode(other)
