"""Every packet of the annotated corpus: whole, cut at every byte, and with a tail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from headrace.wire import mqtt
from headrace.wire.mqtt import NEED_MORE, Failure, build, parse

CORPUS = Path(__file__).parents[3] / "corpus" / "mqtt"
NAMES = {name: getattr(mqtt, name) for name in mqtt.__all__}


class Case(NamedTuple):
    name: str
    version: int
    data: bytes
    expected: str
    is_canonical: bool


def cases(file: str) -> Iterator[object]:
    name, version, data = "", 0, b""
    for line in (CORPUS / file).read_text().splitlines():
        if head := re.fullmatch(r"== (.+) \[([45])\]", line):
            name, version, data = head[1], int(head[2]), b""
        elif line.startswith(("->", "~>")):
            yield pytest.param(Case(name, version, data, line[2:].strip(), line[0] == "-"), id=f"{name} [{version}]")
        else:
            data += bytes.fromhex(line.partition("#")[0])


@pytest.mark.parametrize("case", [*cases("valid.txt")])
@pytest.mark.feature("F183", "F184")
def test_valid_packet_is_read_however_it_is_cut(case: Case) -> None:
    expected = eval(case.expected, NAMES)  # noqa: S307 - the corpus is ours
    assert parse(case.data, 0, case.version) == (expected, len(case.data))
    for cut in range(len(case.data)):
        need, reach = parse(case.data[:cut], 0, case.version)
        assert need is NEED_MORE
        assert cut < reach <= len(case.data)
    tail = b"\xc0\x00\xff"
    assert parse(b"\x00" + case.data + tail, 1, case.version) == (expected, 1 + len(case.data))
    if case.is_canonical:
        assert build(expected, case.version) == case.data
    assert parse(build(expected, case.version), 0, case.version)[0] == expected


@pytest.mark.parametrize("case", [*cases("malformed.txt")])
def test_malformed_packet_is_refused_with_reason_and_clause(case: Case) -> None:
    reason, _, clause = case.expected.partition(" ")
    for data in (case.data, case.data + b"\xc0\x00\xff"):
        failure, position = parse(data, 0, case.version)
        assert isinstance(failure, Failure)
        assert (failure.reason, failure.clause) == (int(reason, 16), clause)
        assert failure.detail
        assert position == 0
    for cut in range(len(case.data)):
        result, _ = parse(case.data[:cut], 0, case.version)
        if result is not NEED_MORE:
            assert isinstance(result, Failure)
            assert (result.reason, result.clause) == (int(reason, 16), clause)
