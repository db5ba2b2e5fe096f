"""Annotated frames: each means what its head says, whole, byte by byte, and with a tail; valid ones encode back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.wire.native import NEED_MORE, Failure, Kind, decode, encode

CORPUS = Path(__file__).parents[3] / "corpus" / "native"
CASES = sorted(CORPUS.glob("*.txt"))
REENCODED_DIFFERENTLY = {
    "valid-hello",
    "valid-hello-later-version",
}  # defaults are written out, unknown fields are gone


def read_case(path: Path) -> tuple[str, bytes]:
    expect = ""
    data = bytearray()
    for line in path.read_text().splitlines():
        if line.startswith("# expect: "):
            expect = line.removeprefix("# expect: ")
        elif line and not line.startswith("#"):
            data += bytes.fromhex(re.split(r" {2,}", line, maxsplit=1)[0])
    return expect, bytes(data)


def outcome(data: bytes) -> str:
    result = decode(data)
    if isinstance(result, Failure):
        return result.error.code
    return "need more" if result is NEED_MORE else type(result[0]).__name__


def ids(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("path", CASES, ids=ids)
def test_frame_means_what_its_head_says(path: Path) -> None:
    expect, data = read_case(path)
    assert outcome(data) == expect


@pytest.mark.parametrize("path", CASES, ids=ids)
def test_frame_byte_by_byte_needs_more_until_it_is_judged(path: Path) -> None:
    expect, data = read_case(path)
    said = [outcome(data[:size]) for size in range(min(len(data), 400))]
    said.append(outcome(data))
    judged = said.index(expect)
    assert set(said[:judged]) <= {"need more"}
    assert set(said[judged:]) == {expect}


@pytest.mark.parametrize("path", CASES, ids=ids)
@pytest.mark.parametrize("tail", [b"\x00", b"\xff" * 64], ids=["zero", "ones"])
def test_frame_with_a_tail_means_the_same_and_leaves_the_tail(path: Path, tail: bytes) -> None:
    expect, data = read_case(path)
    assert outcome(data + tail) == expect
    result = decode(data + tail)
    if isinstance(result, tuple):
        assert result[1] == len(data)
        assert result[0] == decode(data)[0]  # type: ignore[index] # it decoded a line above


@pytest.mark.parametrize("path", [p for p in CASES if p.stem.startswith("valid")], ids=ids)
def test_valid_frame_encodes_back_to_its_bytes(path: Path) -> None:
    _, data = read_case(path)
    result = decode(data)
    assert isinstance(result, tuple)
    again = b"".join(encode(result[0]))
    if path.stem in REENCODED_DIFFERENTLY:
        assert decode(again) == (result[0], len(again))
    else:
        assert again == data


def test_every_kind_has_a_valid_frame() -> None:
    kinds = {data[4] for expect, data in map(read_case, CASES) if expect[0].isupper()}
    assert kinds == set(Kind)
