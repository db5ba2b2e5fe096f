"""Dead letters: one record, everything that is known of the death, an ordinary topic, and the way back."""

from __future__ import annotations

import msgspec
import pytest

from headrace.batch import Message
from headrace.delivery import Died, LeaseUpTo, Published, Redrive, Span, State, decode_facts, snapshot
from headrace.errors import InvalidArgument, UnknownTopic
from headrace.shard.core import FACTS
from unit.delivery.harness import MS, S, Stage, retry


@pytest.mark.feature("F059", "F060", "F063")
def test_a_dead_letter_keeps_the_message_and_says_what_happened_to_it(stage: Stage) -> None:
    stage.topic(partitions=3, retry=retry(max_retries=1))
    stage.publish("a", Message(b"hello", key=b"K", headers={"x": "1", "y": b"\xff"}, priority=2), partition=2)
    published_id = stage.publish("b", partition=2).base_id - 1
    first_ns = stage.now_ns
    held = next(d for d in stage.lease(9, consumer="one") if d.value == "hello")
    stage.nack(held, error="first error")
    stage.advance(5 * S)
    (again,) = stage.lease(9, consumer="two")
    last_ns = stage.now_ns
    stage.nack(again, error="second error")
    (letter,) = stage.lease(topic="dlq/t")
    assert (letter.value, letter.key, letter.priority) == ("hello", "K", 2)
    assert letter.headers == {
        "x": "1",
        "y": b"\xff",
        "headrace-dead-topic": "t",
        "headrace-dead-partition": "2",
        "headrace-dead-offset": "1",
        "headrace-dead-id": str(published_id),
        "headrace-dead-group": "default",
        "headrace-dead-reason": "max_retries",
        "headrace-dead-attempts": "2",
        "headrace-dead-first-delivery": str(first_ns // MS),
        "headrace-dead-last-delivery": str(last_ns // MS),
        "headrace-dead-error": "second error",
        "headrace-dead-consumer": "two",
    }


@pytest.mark.feature("F059")
def test_dying_and_being_buried_are_one_record(stage: Stage) -> None:
    stage.topic(retry=retry(max_retries=0))
    stage.publish("a")
    stage.nack(stage.take("a"))
    stage.journal.commit()
    frames = [decode_facts(frame.body)[0] for frame in stage.journal.read() if frame.kind == FACTS]
    (burial,) = [facts for facts in frames if any(isinstance(fact, Died) for fact in facts)]
    assert any(isinstance(fact, Published) for fact in burial)
    (died,) = [fact for fact in burial if isinstance(fact, Died)]
    assert (died.to_pid, died.to_offset) == (stage.partition(topic="dlq/t").pid, 0)


@pytest.mark.feature("F060", "F061")
def test_the_dead_letter_topic_is_made_with_the_first_death_and_has_its_name(stage: Stage) -> None:
    stage.topic("tasks/images", retry=retry(max_retries=0))
    stage.topic("orders", retry=retry(max_retries=0), dead_letter_topic="orders-dlq")
    for topic in ("tasks/images", "orders"):
        stage.publish("a", topic=topic)
        stage.nack(*stage.lease(topic=topic))
    assert {name for _, name in stage.state.by_name} == {"tasks/images", "dlq/tasks/images", "orders", "orders-dlq"}


def test_groups_can_have_dead_letter_topics_of_their_own_or_none(stage: Stage) -> None:
    stage.topic(retry=retry(max_retries=0))
    stage.group("own", dead_letter_topic="graveyard")
    stage.group("none", dead_letters=False)
    stage.publish("a")
    for group in ("default", "own", "none"):
        stage.nack(*stage.lease(group=group, topic="t"))
    assert {name for _, name in stage.state.by_name} == {"t", "dlq/t", "graveyard"}
    assert stage.the_group("none", "t").deaths == {"max_retries": 1}


def test_many_that_die_at_once_are_buried_together_in_order(stage: Stage) -> None:
    stage.topic(ordering="none", lease_ns=S, retry=retry(max_retries=0))
    stage.publish(*(f"m{n}" for n in range(3000)))
    stage.publish(*(f"m{n}" for n in range(3000, 6000)))
    stage.core.execute(LeaseUpTo(stage.the_group().gid, "c", 6000))
    stage.advance(2 * S)
    assert stage.backlog().dead_count == 6000
    letters = stage.core.log(stage.partition(topic="dlq/t").pid)
    assert [m.value.decode() for batch in letters.batches(0, 6000) for m in batch.messages()] == [
        f"m{n}" for n in range(6000)
    ]


@pytest.mark.feature("F064", "F292")
def test_the_dead_letter_topic_is_an_ordinary_topic(stage: Stage) -> None:
    stage.topic(retry=retry(max_retries=0))
    stage.publish("a", "b")
    stage.nack(stage.take("a"))
    stage.nack(stage.take("b"))
    stage.group("inspectors", topic="dlq/t")
    assert stage.values(9, topic="dlq/t") == stage.values(9, topic="dlq/t", group="inspectors") == ["a", "b"]
    stage.publish("by hand", topic="dlq/t")
    assert stage.values(9, topic="dlq/t") == ["by hand"]


def test_a_dead_letter_that_dies_again_stays_dead_where_it_is(stage: Stage) -> None:
    stage.topic(retry=retry(max_retries=0))
    stage.publish("a")
    stage.nack(stage.take("a"))
    letter = stage.take("a", topic="dlq/t")
    stage.reject(letter)
    stage.last = stage.named("dlq/t")
    assert stage.state_of(0) == State.DEAD
    assert {name for _, name in stage.state.by_name} == {"t", "dlq/t"}


@pytest.mark.feature("F064")
def test_a_full_topic_still_buries_its_dead(stage: Stage) -> None:
    stage.topic(retry=retry(max_retries=0), max_depth=2)
    for n in range(5):
        stage.publish(f"m{n}")
        stage.nack(*stage.lease(topic="t"))
        stage.last = stage.named("t")
    assert stage.partition(topic="dlq/t").end == 5


# -- redrive -----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("F066", "F292")
@pytest.mark.parametrize("with_snapshot", [None, False, True])
def test_a_redriven_message_starts_afresh_in_the_group_it_died_in(stage: Stage, with_snapshot: bool | None) -> None:
    stage.topic(retry=retry(max_retries=0))
    stage.group("other")
    stage.publish("A1")
    stage.ack(*stage.lease(group="other"))
    stage.nack(stage.take("A1"))
    stage.redrive(0, topic="dlq/t")
    if with_snapshot is not None:
        stage.restart(with_snapshot=with_snapshot)
    (again,) = stage.lease(9, topic="t")
    assert (again.value, again.key, again.attempt) == ("A1", "A", 1)
    assert again.headers == {"headrace-redriven-from": "dlq/t/0/0"}
    assert stage.values(9, group="other", topic="t") == []
    assert stage.values(9, topic="dlq/t") == []


def test_redriving_is_one_record_and_cannot_be_done_twice(stage: Stage) -> None:
    stage.topic(retry=retry(max_retries=0))
    stage.publish("a", "b")
    stage.nack(*stage.lease(2))
    done, span, lost = stage.redrive(0, 1, topic="dlq/t")
    assert (sum(each.count for each in done), span.count, lost) == (2, 2, [])
    done, span, lost = stage.redrive(0, 1, topic="dlq/t")
    assert (done, span.count, lost) == ([], 0, [])
    assert stage.values(9, topic="t") == ["a", "b"]


def test_redriving_to_another_topic_is_for_all_its_groups(stage: Stage) -> None:
    stage.topic("elsewhere")
    stage.group("second")
    stage.topic("t", retry=retry(max_retries=0))
    stage.publish("a")
    stage.nack(*stage.lease())
    stage.redrive(0, topic="dlq/t", to="elsewhere")
    assert stage.values(9, topic="elsewhere") == stage.values(9, topic="elsewhere", group="second") == ["a"]
    assert stage.values(9, topic="t") == []


def test_a_dead_letter_whose_topic_is_gone_stays(stage: Stage) -> None:
    stage.topic(retry=retry(max_retries=0))
    stage.publish("a")
    stage.nack(*stage.lease())
    stage.delete_topic("t")
    stage.last = stage.named("dlq/t")
    _, span, lost = stage.redrive(0, topic="dlq/t")
    assert (span.count, lost) == (0, [0])
    assert stage.values(9, topic="dlq/t") == ["a"]


def test_redriving_what_is_not_there_is_refused(stage: Stage) -> None:
    stage.topic(retry=retry(max_retries=0))
    stage.publish("a")
    stage.nack(*stage.lease())
    before = snapshot(stage.state)
    refusal = stage.redrive(0, 7, topic="dlq/t")
    assert isinstance(refusal, InvalidArgument)
    assert "0 to 7" in refusal.message
    assert isinstance(stage.do(Redrive(99, Span(0, 1))), UnknownTopic)
    assert snapshot(stage.state) == before


def test_an_earlier_death_is_not_told_of_a_later_one(stage: Stage) -> None:
    stage.topic(retry=retry(max_retries=0))
    stage.publish("a")
    stage.nack(*stage.lease(), error="one")
    stage.redrive(0, topic="dlq/t")
    (again,) = stage.lease(topic="t")
    assert not [name for name in again.headers if name.startswith("headrace-dead-")]
    stage.reject(again, error="two")
    letter = stage.lease(9, topic="dlq/t")[-1]
    assert letter.headers["headrace-dead-error"] == "two"
    assert letter.headers["headrace-dead-offset"] == "1"
    assert letter.headers["headrace-dead-attempts"] == "1"


def test_the_nack_that_kills_is_a_nack_and_a_reject_is_none(stage: Stage) -> None:
    topic = stage.topic(retry=retry(max_retries=0), lease_ns=10 * S)
    stage.publish("a", "b", "c", "d", "e")
    for _ in range(3):
        stage.nack(*stage.lease(1))
    assert topic.groups["default"].nacked == 3
    stage.reject(*stage.lease(1))
    assert topic.groups["default"].nacked == 3
    stage.lease(1)
    stage.advance(11 * S)
    assert topic.groups["default"].nacked == 4, "its lease ran out, and it had no other try"
    assert sum(topic.groups["default"].deaths.values()) == 5


def test_a_nack_after_the_end_of_a_lifetime_counts(stage: Stage) -> None:
    topic = stage.topic(lease_ns=10 * S)
    stage.publish(Message(b"a", ttl_ns=5 * S), Message(b"b", ttl_ns=5 * S))
    first, second = stage.lease(2)
    stage.advance(6 * S)
    stage.nack(first)
    stage.release(second)
    assert [stage.state_of(0), stage.state_of(1)] == [State.EXPIRED, State.EXPIRED]
    assert topic.groups["default"].nacked == 1


def test_deaths_in_a_journal_of_before_mean_what_they_meant() -> None:
    """Their facts do not say how the last attempt failed, and a snapshot that stands for them has not counted it."""
    old = [18, 1, 1, 7, 0, "max_retries", "boom", 1, 5, 2, 3]
    died = msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=Died)
    assert (died.to_offset, died.cause) == (3, "")
