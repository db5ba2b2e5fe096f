"""What a protocol remembers in the frame of a publish: there or not there together, after a restart too."""

from __future__ import annotations

from headrace.batch import encode_one
from headrace.delivery import Note, Publish, PublishDone
from unit.delivery.harness import Stage


def test_a_note_is_in_the_frame_of_its_message_and_goes_when_told(stage: Stage) -> None:
    pid = stage.topic().partitions[0].pid
    frames = stage.core.journal.stats.frames
    stage.do(Publish(pid, encode_one(b"x"), [(b"client/7", b"\x01")]))
    assert stage.core.journal.stats.frames == frames + 1
    assert stage.core.state.notes == {b"client/7": b"\x01"}
    stage.do(Note([(b"client/7", b""), (b"never", b"")]))
    assert stage.core.journal.stats.frames == frames + 2
    assert stage.core.state.notes == {}


def test_a_publish_that_is_there_already_is_noted_all_the_same(stage: Stage) -> None:
    pid = stage.topic().partitions[0].pid
    stage.do(Publish(pid, encode_one(b"x", dedup_id=b"once")))
    reply = stage.do(Publish(pid, encode_one(b"x", dedup_id=b"once"), [(b"k", b"v")]))
    assert isinstance(reply, PublishDone)
    assert reply.duplicates
    assert stage.core.state.notes == {b"k": b"v"}


def test_a_refused_publish_leaves_no_note(stage: Stage) -> None:
    settings = stage.topic().settings
    stage.do(Publish(stage.partition().pid, encode_one(bytes(settings.max_message_bytes + 1)), [(b"k", b"v")]))
    assert stage.core.state.notes == {}
