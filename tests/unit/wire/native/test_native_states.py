"""The legality tables: complete, symmetrical, obeyed, and printed in the documentation as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace import errors
from headrace.wire.native import (
    CLIENT,
    CLIENT_SENDS,
    REPLIES,
    SERVER,
    SERVER_SENDS,
    ClientSession,
    Kind,
    Rule,
    ServerSession,
    State,
)

PAGE = (Path(__file__).parents[4] / "docs" / "reference" / "native-protocol.md").read_text()
CORPUS = Path(__file__).parents[3] / "corpus" / "native"


def valid_frames() -> dict[int, bytes]:
    frames: dict[int, bytes] = {}
    for path in sorted(CORPUS.glob("valid-*.txt")):
        rows = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        data = b"".join(bytes.fromhex(re.split(r" {2,}", row, maxsplit=1)[0]) for row in rows)
        frames.setdefault(data[4], data)
    return frames


FRAMES = valid_frames()
SERVER_STATES = [(state, kind) for state in SERVER for kind in Kind]
CLIENT_STATES = [(state, kind) for state in CLIENT for kind in Kind]


def server_in(state: State) -> ServerSession:
    session = ServerSession(now_ns=0)
    if state is not State.OPENING:
        session.receive_bytes(FRAMES[Kind.HELLO], 0)
    if state in (State.OPEN, State.DRAINING):
        session.send_welcome(server="headrace", server_id="n1")
    if state is State.DRAINING:
        session.send_goaway("restart", 10**9, 0)
    session.events()
    session.outgoing()
    assert session.state is state
    return session


def client_in(state: State) -> ClientSession:
    session = ClientSession(client="test", now_ns=0)
    if state is not State.OPENING:
        session.receive_bytes(FRAMES[Kind.WELCOME], 0)
    if state is State.DRAINING:
        session.receive_bytes(FRAMES[Kind.GOAWAY], 0)
    session.events()
    session.outgoing()
    assert session.state is state
    return session


def test_every_state_says_something_about_every_kind() -> None:
    for table in (SERVER, CLIENT):
        for row in table.values():
            assert set(row) == set(Kind)


def test_what_one_side_sends_in_the_open_the_other_takes() -> None:
    assert {kind for kind, rule in SERVER[State.OPEN].items() if rule is Rule.TAKE} == CLIENT_SENDS[State.OPEN]
    assert {kind for kind, rule in CLIENT[State.OPEN].items() if rule is Rule.TAKE} == SERVER_SENDS[State.OPEN]
    assert {kind for kind, rule in SERVER[State.DRAINING].items() if rule is Rule.TAKE} == CLIENT_SENDS[State.DRAINING]


def test_a_reply_is_its_request_plus_one() -> None:
    assert {request + 1 for request in REPLIES} == set(REPLIES.values())
    assert set(map(int, REPLIES.values())) == {int(request) + 1 for request in REPLIES}


@pytest.mark.parametrize(("state", "kind"), SERVER_STATES)
def test_server_does_what_its_table_says(state: State, kind: Kind) -> None:
    session = server_in(state)
    session.receive_bytes(FRAMES[kind], 1)
    closed = session.close_planned
    match SERVER[state][kind]:
        case Rule.VIOLATION:
            assert closed is not None
            assert isinstance(closed.error, errors.ProtocolViolation)
            assert b"".join(session.outgoing())[4] == Kind.CLOSE
        case Rule.REFUSE:
            assert closed is None
            assert session.events() == []
            assert b"".join(session.outgoing())[4] == Kind.ERROR
        case Rule.TAKE:
            assert closed is None or closed.by == "peer"


@pytest.mark.parametrize(("state", "kind"), CLIENT_STATES)
def test_client_does_what_its_table_says(state: State, kind: Kind) -> None:
    session = client_in(state)
    session.receive_bytes(FRAMES[kind], 1)
    closed = session.close_planned
    if CLIENT[state][kind] is Rule.VIOLATION:
        assert closed is not None
        assert "not legal" in str(closed.error)
    elif closed is not None and closed.by == "us":  # replies nobody asked for
        assert "not legal" not in str(closed.error)


@pytest.mark.parametrize("kind", [kind for kind in Kind if SERVER[State.OPENING][kind] is Rule.VIOLATION])
def test_illegal_frame_is_refused_before_its_body_is_buffered(kind: Kind) -> None:
    session = server_in(State.OPENING)
    session.receive_bytes(FRAMES[kind][:5], 0)
    assert session.close_planned is not None
    assert session.buffered_bytes == 0


def test_documentation_prints_the_tables_as_they_are() -> None:
    for table in (SERVER, CLIENT):
        for kind in Kind:
            cells = [row[kind].value for row in table.values()]
            line = f"| {kind.name} | " + " | ".join(cells) + " |"
            assert (line in PAGE) is (set(cells) != {"·"}), line


def test_documentation_lists_every_kind_and_every_code() -> None:
    for kind in Kind:
        assert f"| {kind.name} | {kind.value} |" in PAGE
    for error, row in errors.ROWS.items():
        assert f"| {row.native} | {error.code} |" in PAGE
