"""Settling: ack, nack, release, reject, extend; receipts that are good, stale, foreign and made up."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from headrace.delivery import Receipts, SettleMany, State, snapshot
from headrace.errors import InvalidArgument, LeaseLost, LimitExceeded, UnknownGroup
from headrace.limits import SETTLE_ENTRIES_MAX
from unit.delivery.harness import DAY, HOUR, MINUTE, Delivery, S, Stage, retry


def refusals(reply: object) -> list[tuple[Receipts, LeaseLost]]:
    refused = list(reply.refused)  # type: ignore[attr-defined]
    assert all(isinstance(error, LeaseLost) for _, error in refused)
    return refused


@pytest.mark.feature("F032", "F038", "F039", "F296")
@pytest.mark.parametrize("with_snapshot", [False, True])
def test_an_acked_message_is_not_delivered_again_not_even_by_another_process(stage: Stage, with_snapshot: bool) -> None:
    stage.topic()
    stage.publish("a", "b")
    stage.ack(stage.take("a"))
    assert stage.the_group().leased_count == 0
    stage.restart(with_snapshot=with_snapshot)
    stage.advance(HOUR)
    assert stage.values(9) == ["b"]
    assert stage.state_of(0) == State.ACKED


@pytest.mark.feature("F032")
def test_acking_again_is_fine_and_changes_nothing(stage: Stage) -> None:
    stage.topic()
    stage.publish("a")
    held = stage.take("a")
    assert stage.ack(held).settled == 1
    before = snapshot(stage.state)
    again = stage.ack(held)
    assert (again.settled, list(again.refused)) == (1, [])
    assert snapshot(stage.state) == before


@pytest.mark.feature("F033", "F057", "F296")
def test_a_nacked_message_comes_back_after_its_backoff(stage: Stage) -> None:
    stage.topic()
    stage.publish("a")
    stage.nack(stage.take("a"), error="no such user")
    assert stage.state_of(0) == State.SCHEDULED
    stage.advance(5 * S - 1)
    assert stage.values() == []
    stage.advance(1)
    (again,) = stage.lease()
    assert (again.value, again.attempt) == ("a", 2)


@pytest.mark.feature("F033")
def test_a_nack_without_delay_comes_back_at_once_and_counts(stage: Stage) -> None:
    stage.topic()
    stage.publish("a")
    stage.nack(stage.take("a"), delay=0)
    (again,) = stage.lease()
    assert again.attempt == 2


def test_a_nack_with_a_delay_of_its_own_waits_for_that(stage: Stage) -> None:
    stage.topic()
    stage.publish("a")
    stage.nack(stage.take("a"), delay=3 * DAY)
    stage.advance(3 * DAY - 1)
    assert stage.values() == []
    stage.advance(1)
    assert stage.values() == ["a"]


@pytest.mark.parametrize("ordering", ["none", "key", "partition", "strict"])
def test_a_released_message_comes_back_at_once_in_its_place_and_uncounted(stage: Stage, ordering: str) -> None:
    stage.topic(ordering=ordering)
    stage.publish("a", "b", "c")
    held = stage.lease(2)
    stage.release(held[0])
    again = stage.lease(9)
    assert again[0].value == "a"
    assert all(d.attempt == 1 for d in again)
    assert {d.value for d in [*again, held[1]]} == {"a", "b", "c"}


@pytest.mark.feature("F034")
def test_a_rejected_message_dies_without_another_try(stage: Stage) -> None:
    stage.topic()
    stage.publish("a")
    stage.reject(stage.take("a"), error="not for us")
    assert stage.state_of(0) == State.DEAD
    (letter,) = stage.lease(topic="dlq/t")
    assert letter.headers["headrace-dead-reason"] == "rejected"
    assert letter.headers["headrace-dead-error"] == "not for us"
    assert letter.headers["headrace-dead-attempts"] == "1"


def test_extending_moves_the_deadline_from_now_on(stage: Stage) -> None:
    stage.topic(lease_ns=30 * S)
    stage.publish("a")
    held = stage.take("a")
    stage.advance(20 * S)
    stage.extend(held, by=MINUTE)
    stage.advance(MINUTE - 1)
    assert stage.state_of(0) == State.LEASED
    stage.advance(S)
    assert stage.state_of(0) == State.SCHEDULED


def test_extending_never_goes_beyond_the_longest_lease(stage: Stage) -> None:
    stage.topic(lease_ns=30 * S, max_lease_ns=HOUR)
    stage.publish("a")
    stage.extend(stage.take("a"), by=DAY)
    stage.advance(HOUR + S)
    assert stage.state_of(0) == State.SCHEDULED


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_one_message_of_a_lease_can_be_extended_alone(stage: Stage, with_snapshot: bool) -> None:
    stage.topic(ordering="none", lease_ns=30 * S)
    stage.publish("a", "b", "c")
    _, slow, _ = stage.lease(3)
    stage.extend(slow, by=HOUR)
    stage.restart(with_snapshot=with_snapshot)
    stage.advance(31 * S)
    assert [stage.state_of(n) for n in range(3)] == [State.SCHEDULED, State.LEASED, State.SCHEDULED]
    stage.advance(HOUR)
    assert stage.state_of(1) != State.LEASED


def test_a_lease_can_be_shortened_by_extending_it_by_less(stage: Stage) -> None:
    stage.topic(lease_ns=HOUR)
    stage.publish("a")
    stage.extend(stage.take("a"), by=S)
    stage.advance(2 * S)
    assert stage.state_of(0) == State.SCHEDULED


@pytest.mark.feature("F037")
def test_a_batch_of_any_mix_is_settled_in_one_record(stage: Stage) -> None:
    stage.topic(ordering="none", lease_ns=30 * S)
    stage.publish(*"abcde")
    a, b, c, d, e = (delivery.receipt for delivery in stage.lease(5))
    frames = len(list(stage.journal.read()))
    stage.journal.commit()
    frames = len(list(stage.journal.read()))
    reply = stage.settle(ack=[a], nack=[(b, 0, "again")], reject=[(c, "bad")], release=[d], extend=[(e, HOUR)])
    assert (reply.settled, list(reply.refused)) == (5, [])
    stage.journal.commit()
    assert len(list(stage.journal.read())) == frames + 1
    assert [stage.state_of(n) for n in range(5)] == [
        State.ACKED,
        State.READY,
        State.DEAD,
        State.READY,
        State.LEASED,
    ]


@pytest.mark.feature("F037")
def test_runs_and_sets_of_one_lease_can_be_settled_part_by_part(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.publish(*"abcdefgh")
    held = stage.lease(8)
    pid, lease = held[0].pid, held[0].lease_id
    assert stage.settle(ack=[Receipts(pid, lease, 2, 3)]).settled == 3
    assert stage.settle(ack=[Receipts(pid, lease, 0, 3, BitMap64([0, 5, 7]))]).settled == 3
    assert [offset for offset, state in stage.states().items() if state == State.LEASED] == [1, 6]
    assert stage.settle(ack=[Receipts(pid, lease, 1, 2, BitMap64([1, 6]))]).settled == 2
    assert set(stage.states().values()) == {State.ACKED}


# -- receipts that are not good ----------------------------------------------------------------------------------------


def after_expiry(stage: Stage, held: Delivery) -> Receipts:
    stage.advance(MINUTE)
    return held.receipt


def after_a_nack(stage: Stage, held: Delivery) -> Receipts:
    stage.nack(held)
    return held.receipt


def after_a_seek(stage: Stage, held: Delivery) -> Receipts:
    stage.seek()
    return held.receipt


def after_it_was_leased_again(stage: Stage, held: Delivery) -> Receipts:
    stage.nack(held, delay=0)
    stage.lease()
    return held.receipt


def of_another_partition(stage: Stage, held: Delivery) -> Receipts:
    return Receipts(held.pid + 1, held.lease_id, held.offset)


def of_a_made_up_lease(stage: Stage, held: Delivery) -> Receipts:
    return Receipts(held.pid, 1 << 60, held.offset)


def of_a_message_the_lease_never_had(stage: Stage, held: Delivery) -> Receipts:
    return Receipts(held.pid, held.lease_id, 1)


def of_a_message_that_does_not_exist(stage: Stage, held: Delivery) -> Receipts:
    return Receipts(held.pid, held.lease_id, 1 << 50)


BAD = [
    after_expiry,
    after_a_nack,
    after_a_seek,
    after_it_was_leased_again,
    of_another_partition,
    of_a_made_up_lease,
    of_a_message_the_lease_never_had,
    of_a_message_that_does_not_exist,
]
VERBS = {
    "ack": lambda r: {"ack": [r]},
    "nack": lambda r: {"nack": [(r, None, "")]},
    "reject": lambda r: {"reject": [(r, "")]},
    "release": lambda r: {"release": [r]},
    "extend": lambda r: {"extend": [(r, S)]},
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.__name__)
def test_a_receipt_that_is_not_good_is_refused_and_changes_nothing(stage: Stage, bad: object, verb: str) -> None:
    stage.topic(partitions=2, lease_ns=30 * S)
    stage.publish("A1", "B1")
    receipts = bad(stage, stage.lease(1)[0])  # type: ignore[operator]
    stage.core.tick()
    before = snapshot(stage.state)
    reply = stage.settle(**VERBS[verb](receipts))
    assert reply.settled == 0
    ((refused, error),) = refusals(reply)
    assert refused == receipts
    assert "the lease of the message at offset" in error.message
    assert snapshot(stage.state) == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_receipt_of_another_group_is_refused(stage: Stage, verb: str) -> None:
    stage.topic()
    stage.group("other")
    stage.publish("a")
    held = stage.take("a")
    before = snapshot(stage.state)
    ((_, error),) = refusals(stage.settle("other", **VERBS[verb](held.receipt)))
    assert "is not this group's" in error.message
    assert snapshot(stage.state) == before
    stage.ack(held)


def test_good_and_stale_receipts_in_one_run_are_told_apart(stage: Stage) -> None:
    stage.topic(ordering="none")
    stage.publish(*"abcd")
    held = stage.lease(4)
    stage.nack(held[1])
    reply = stage.settle(ack=[Receipts(held[0].pid, held[0].lease_id, 0, 4)])
    assert reply.settled == 3
    ((refused, error),) = refusals(reply)
    assert (refused.first, refused.count) == (1, 1)
    assert "message at offset 1 " in error.message
    assert stage.state_of(1) == State.SCHEDULED


def test_the_same_message_twice_in_one_call_is_refused_whole(stage: Stage) -> None:
    stage.topic()
    stage.publish("a")
    held = stage.take("a").receipt
    before = snapshot(stage.state)
    for entries in (
        {"ack": [held, held]},
        {"ack": [held], "nack": [(held, 0, "")]},
        {"release": [held], "extend": [(held, S)]},
    ):
        refusal = stage.settle(**entries)
        assert isinstance(refusal, InvalidArgument)
        assert "twice" in refusal.message
        assert snapshot(stage.state) == before


@pytest.mark.parametrize(
    "receipts",
    [
        Receipts(1, 1, 0, 0),
        Receipts(1, 1, 0, -1),
        Receipts(1, 1, -1, 1),
        Receipts(1, 1, 0, 1 << 40),
        Receipts(1, 1, 1 << 62, 1),
        Receipts(1, 1, 0, 2, BitMap64([0])),
        Receipts(1, 1, 1, 1, BitMap64([0])),
    ],
    ids=str,
)
def test_receipts_that_make_no_sense_are_refused(stage: Stage, receipts: Receipts) -> None:
    stage.topic()
    stage.publish("a")
    stage.lease()
    before = snapshot(stage.state)
    assert isinstance(stage.settle(ack=[receipts]), InvalidArgument)
    assert snapshot(stage.state) == before


@pytest.mark.parametrize("delay_ns", [-1, -HOUR, 1 << 62])
def test_a_nack_with_an_absurd_delay_is_refused(stage: Stage, delay_ns: int) -> None:
    stage.topic()
    stage.publish("a")
    held = stage.take("a").receipt
    before = snapshot(stage.state)
    assert isinstance(stage.settle(nack=[(held, delay_ns, "")]), InvalidArgument)
    assert snapshot(stage.state) == before


@pytest.mark.parametrize("by_ns", [0, -S])
def test_extending_by_nothing_is_refused(stage: Stage, by_ns: int) -> None:
    stage.topic()
    stage.publish("a")
    held = stage.take("a").receipt
    assert isinstance(stage.settle(extend=[(held, by_ns)]), InvalidArgument)


def test_too_many_receipts_in_one_call_are_refused(stage: Stage) -> None:
    stage.topic()
    many = [Receipts(1, 1, n) for n in range(SETTLE_ENTRIES_MAX + 1)]
    refusal = stage.settle(ack=many)
    assert isinstance(refusal, LimitExceeded)
    assert str(SETTLE_ENTRIES_MAX) in refusal.message


def test_settling_for_a_group_of_another_shard_is_refused(stage: Stage) -> None:
    stage.topic()
    assert isinstance(stage.do(SettleMany(99, ack=[Receipts(1, 1, 0)])), UnknownGroup)


def test_a_long_error_text_is_cut_not_refused(stage: Stage) -> None:
    stage.topic(retry=retry(max_retries=0))
    stage.publish("a")
    stage.nack(stage.take("a"), error="x" * 100_000)
    (letter,) = stage.lease(topic="dlq/t")
    assert letter.headers["headrace-dead-error"] == "x" * 1024
