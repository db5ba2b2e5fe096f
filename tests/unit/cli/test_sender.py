"""Where a stream of lines stops, and whether what is said about it is so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headrace.batch import Batch, Message, encode, encode_columns
from headrace.calls import BY_KEY, Part
from headrace.cli.output import Output
from headrace.cli.sender import Lines, Sender
from headrace.errors import Closed, HeadraceError, NotAllowed, PayloadTooLarge, QueueFull, TimedOut, UnknownTopic


class _Answer:
    def __init__(self, answer: HeadraceError | list[Part]) -> None:
        self._answer = answer

    def done(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> list[Part]:
        if isinstance(self._answer, HeadraceError):
            raise self._answer
        return self._answer


class _Server:
    """A broker far away: it takes what ``refusal`` has nothing against, and answers when it is asked."""

    embedded = False
    namespace = "default"

    def __init__(self, **info: Any) -> None:
        self.stored: list[bytes] = []
        self.asked: list[list[bytes]] = []
        self.info = info
        self.port = self

    def refusal(self, values: list[bytes]) -> HeadraceError | None:
        raise NotImplementedError

    def call(self, method: str, **_names: Any) -> dict[str, Any]:
        assert method == "topic.show"
        if not self.info:
            raise NotAllowed("this token may publish only")
        settings = {"max_message_size": "1MiB", "max_depth": "none"}
        return {"partitions": 1, "settings": settings, **self.info}

    def publish_begin(self, _namespace: str, _topic: str, _partition: int, batch: Batch) -> _Answer:
        values = batch.values()
        self.asked.append(values)
        refused = self.refusal(values)
        if refused is not None:
            return _Answer(refused)
        self.stored += values
        return _Answer([Part(0, len(values), 0, 1)])

    def pause(self) -> None:
        pass

    @contextmanager
    def hints(self, _topic: str) -> Iterator[None]:
        yield


def lines_of(first: int, count: int) -> Lines:
    return Lines(encode_columns([b"%d" % n for n in range(first, first + count)]), range(first, first + count))


def published(server: Any, *batches: Lines, partition: int = BY_KEY) -> str:
    """The message of the failure, or nothing."""
    sender = Sender(server, "t", partition, Output(json=False))
    try:
        for each in batches:
            sender.send(each)
        sender.finish()
    except HeadraceError as error:
        return error.message
    return ""


class _Picky(_Server):
    """Refuses one message."""

    def refusal(self, values: list[bytes]) -> HeadraceError | None:
        return PayloadTooLarge("too large") if b"25" in values else None


def test_a_refused_batch_is_taken_apart_until_it_stands_at_the_line() -> None:
    server = _Picky(partitions=1)
    said = published(server, lines_of(1, 20), lines_of(21, 20))
    assert said == "line 25: too large; the 24 messages before it are published, and none from line 25 on"
    assert server.stored == [b"%d" % n for n in range(1, 25)]


def test_what_was_stored_behind_a_refused_batch_is_named_and_the_batch_is_left_alone() -> None:
    server = _Picky(partitions=1)
    said = published(server, lines_of(1, 20), lines_of(21, 20), lines_of(41, 10), lines_of(51, 5))
    assert said == (
        "lines 21 to 40: too large; the 20 messages before it are published; so are, behind it, lines 41 to 55; "
        "lines 21 to 40 are not; nothing behind line 55 was sent"
    )
    assert server.stored == [b"%d" % n for n in (*range(1, 21), *range(41, 56))]
    assert len(server.asked) == 4, "sending them again now would be out of order"


class _Full(_Server):
    """Has room for some, and for more of them later."""

    room = 30
    later = 0

    def refusal(self, values: list[bytes]) -> HeadraceError | None:
        if len(values) > self.room:
            self.room += self.later
            return QueueFull("no room")
        self.room -= len(values)
        return None


def test_what_fits_gets_in_and_room_that_comes_meanwhile_is_used() -> None:
    server = _Full(partitions=1)
    said = published(server, lines_of(1, 20), lines_of(21, 20))
    assert said == "line 31: no room; the 30 messages before it are published, and none from line 31 on"
    server = _Full(partitions=1)
    server.later = 10
    assert published(server, lines_of(1, 20), lines_of(21, 20)) == ""
    assert server.stored == [b"%d" % n for n in range(1, 41)]


def test_a_batch_is_never_larger_than_the_depth_of_the_topic() -> None:
    server = _Full(settings={"max_message_size": "1MiB", "max_depth": 7})
    assert published(server, lines_of(1, 20)) == ""
    assert [len(values) for values in server.asked] == [7, 7, 6]


def test_whoever_may_only_publish_stands_at_the_line_as_well() -> None:
    said = published(_Picky(), lines_of(21, 20))
    assert said == "line 25: too large; the 4 messages before it are published, and none from line 25 on"


class _Away(_Server):
    def refusal(self, values: list[bytes]) -> HeadraceError | None:
        return TimedOut("no answer") if b"25" in values else Closed("gone") if b"45" in values else None


def test_what_nobody_knows_about_is_said_so() -> None:
    said = published(_Away(partitions=1), lines_of(1, 20), lines_of(21, 20), lines_of(41, 20))
    assert said == (
        "lines 21 to 40: no answer; the 20 messages before it are published; whether lines 21 to 60 are published is "
        "not known; nothing behind line 60 was sent"
    )


@pytest.mark.parametrize("info", [{"partitions": 3}, {}])
def test_a_batch_over_several_partitions_may_be_in_partly(info: dict[str, Any]) -> None:
    batch = encode([Message(b"%d" % n, key=b"k%d" % n) for n in range(21, 31)])
    said = published(_Picky(**info), Lines(batch, range(21, 31)))
    assert "whether lines 21 to 30 are published is not known" in said
    said = published(_Picky(**info), Lines(batch, range(21, 31)), partition=2)
    assert said.startswith("line 25: too large; the 4 messages")


def test_a_refusal_that_is_about_no_message_is_not_tried_in_parts() -> None:
    class Unknown(_Server):
        def refusal(self, values: list[bytes]) -> HeadraceError | None:
            return UnknownTopic("no such topic")

    server = Unknown(partitions=1)
    assert published(server, lines_of(1, 20)) == "lines 1 to 20: no such topic; nothing was published"
    assert len(server.asked) == 1
