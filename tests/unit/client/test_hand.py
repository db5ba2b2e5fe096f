"""What a consumer holds: the order of handing out, leases that ran out, renewals, verdicts as runs."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.batch import encode_columns
from headrace.calls import LeasedBatch, Refusal, Run, Settle
from headrace.client.hand import Hand, order_for, refusal_of
from headrace.client.leased import DeliveryFields
from headrace.errors import InvalidArgument, LeaseLost
from headrace.limits import CLIENT_IDLE_NS, SECOND_NS

SPAN_NS = 30 * SECOND_NS


def leased(
    count: int, *, first: int = 0, lease_id: int = 7, until_ns: int = SPAN_NS, partition: int = 0
) -> LeasedBatch:
    batch = encode_columns([b"%d" % n for n in range(first, first + count)]).stamp(first, 100 + first, 1)
    return LeasedBatch(partition, lease_id, batch, until_ns, {})


@pytest.fixture
def hand() -> Hand[DeliveryFields]:
    return Hand(object(), DeliveryFields)


def in_order(runs: list[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: run.first_offset)


def values(found: list[DeliveryFields]) -> list[bytes]:
    return [d.value for d in found]


def test_messages_are_handed_out_in_the_order_they_came(hand: Hand[DeliveryFields]) -> None:
    hand.put([leased(2), leased(2, first=9)], 0)
    assert hand.waiting == 4
    assert values(hand.take(3, 0)) == [b"0", b"1", b"9"]
    assert values(hand.take(3, 0)) == [b"10"]
    assert hand.next(0) is None
    assert hand.waiting == 0


@pytest.mark.parametrize("now_ns", [SPAN_NS, SPAN_NS // 2])
def test_a_message_of_whose_lease_less_than_half_is_left_is_given_back_and_not_handed_out(
    hand: Hand[DeliveryFields], now_ns: int
) -> None:
    hand.put([leased(3)], 0)
    hand.take(1, now_ns - 1 if now_ns < SPAN_NS else 0)
    assert hand.next(now_ns) is None
    assert hand.take(10, now_ns) == []
    assert hand.take_whole(10, now_ns) == []
    assert hand.drop_old(now_ns) == [Run(0, 7, 1, 2)]
    assert hand.waiting == 0
    hand.put([leased(1, until_ns=now_ns + SPAN_NS)], now_ns)
    assert hand.drop_old(now_ns) == []
    assert values(hand.take(1, now_ns)) == [b"0"]


def test_what_has_lain_on_its_way_here_for_a_while_does_not_shorten_the_lease(hand: Hand[DeliveryFields]) -> None:
    hand.put([leased(1)], 0)
    hand.take(1, 0)
    hand.put([leased(1, first=1, until_ns=SPAN_NS)], SPAN_NS // 3)
    hand.asked_ns = SPAN_NS // 3
    assert hand.renewals(SPAN_NS // 3 + 1) == Settle(extend=[(Run(0, 7, 1, 1), SPAN_NS)])
    hand.put([leased(1, first=2, until_ns=SECOND_NS)], 0)  # the group's lease was changed
    assert values(hand.take(1, 1)) == [b"1"]
    assert values(hand.take(1, SECOND_NS // 3)) == [b"2"]


def test_whole_batches_are_split_only_where_the_count_ends(hand: Hand[DeliveryFields]) -> None:
    hand.put([leased(5), leased(5, first=5)], 0)
    assert [holding.count for holding in hand.take_whole(7, 0)] == [5, 2]
    assert [holding.count for holding in hand.take_whole(7, 0)] == [3]


def test_dropping_names_what_was_not_handed_out(hand: Hand[DeliveryFields]) -> None:
    hand.put([leased(3), leased(2, first=8, lease_id=9)], 0)
    hand.take(1, 0)
    assert hand.drop() == [Run(0, 7, 1, 2), Run(0, 9, 8, 2)]
    assert hand.drop() == []


# -- renewals ----------------------------------------------------------------------------------------------------------


def test_a_held_message_is_renewed_after_a_third_of_its_lease_and_again(hand: Hand[DeliveryFields]) -> None:
    hand.put([leased(1)], 0)
    (d,) = hand.take(1, 0)
    assert hand.hold(d) == SPAN_NS // 3
    assert hand.renewals(SPAN_NS // 3 - 1) is None
    assert hand.renewals(SPAN_NS // 3) == Settle(extend=[(Run(0, 7, 0, 1), SPAN_NS)])
    assert hand.renewals(SPAN_NS // 3) is None
    assert hand.next_renewal_ns() == SPAN_NS // 3 + SPAN_NS // 3
    hand.let_go(d)
    assert hand.next_renewal_ns() is None


def test_a_settled_message_is_not_renewed(hand: Hand[DeliveryFields]) -> None:
    hand.put([leased(1)], 0)
    (d,) = hand.take(1, 0)
    hand.hold(d)
    order_for("ack", d)
    assert hand.renewals(SPAN_NS // 2) is None


def test_what_waits_is_renewed_while_the_program_asks(hand: Hand[DeliveryFields]) -> None:
    hand.put([leased(4)], 0)
    now_ns = SPAN_NS // 2 - 1
    hand.take(1, now_ns)
    order = hand.renewals(now_ns)
    assert order == Settle(extend=[(Run(0, 7, 1, 3), SPAN_NS)])
    assert hand.renewals(now_ns) is None  # it is under way
    assert hand.take(1, SPAN_NS // 2) == []  # and not confirmed
    hand.tended(order, [])
    (d,) = hand.take(1, SPAN_NS // 2)
    assert d._holding.deadline_of(d._index) == now_ns + SPAN_NS


def test_what_was_not_renewed_is_not_handed_out(hand: Hand[DeliveryFields]) -> None:
    hand.put([leased(4), leased(2, first=4, lease_id=8)], 0)
    hand.asked_ns = SPAN_NS // 3
    order = hand.renewals(SPAN_NS // 3)
    assert order is not None
    hand.tended(order, [Run(0, 7, 0, 1), Run(0, 7, 2, 1)])  # settled, purged or given to somebody else
    assert hand.waiting == 4
    assert values(hand.take(10, SPAN_NS // 2)) == [b"1", b"3", b"4", b"5"]


def test_a_renewal_that_failed_is_tried_again(hand: Hand[DeliveryFields]) -> None:
    hand.put([leased(1)], 0)
    hand.asked_ns = SPAN_NS // 3
    order = hand.renewals(SPAN_NS // 3)
    assert order is not None
    hand.tended(order, None)
    assert hand.renewals(SPAN_NS // 3) == order


@pytest.mark.parametrize(("span_ns", "idle_ns"), [(SPAN_NS, CLIENT_IDLE_NS), (SECOND_NS, SECOND_NS // 3)])
def test_what_waits_is_given_back_when_the_program_does_not_ask(
    hand: Hand[DeliveryFields], span_ns: int, idle_ns: int
) -> None:
    hand.put([leased(4, until_ns=span_ns)], 0)
    (d,) = hand.take(1, 0)
    assert hand.next_renewal_ns(8) == idle_ns
    assert hand.renewals(idle_ns - 1, 8) is None
    hand.hold(d)  # it may work on this one for long
    order = hand.renewals(idle_ns, 8)
    assert order is not None
    assert order.release == [Run(0, 7, 1, 3)]
    assert hand.waiting == 0


def test_a_prefetch_that_was_asked_for_is_kept_while_something_is_held_and_no_longer(
    hand: Hand[DeliveryFields],
) -> None:
    hand.put([leased(100)], 0)
    (d,) = hand.take(1, 0)
    hand.hold(d)
    assert hand.next_renewal_ns(None) == SPAN_NS // 3
    order = hand.renewals(SPAN_NS // 3, None)
    assert order == Settle(extend=[(Run(0, 7, 0, 1), SPAN_NS), (Run(0, 7, 1, 99), SPAN_NS)])
    hand.let_go(d)
    assert hand.renewals(SPAN_NS // 3, None) == Settle(extend=[], release=[Run(0, 7, 1, 99)])


def test_whoever_waits_for_messages_asks(hand: Hand[DeliveryFields]) -> None:
    hand.put([leased(1)], 0)
    hand.asking += 1
    assert hand.renewals(SPAN_NS // 4) is None
    assert not hand.next(SPAN_NS)
    assert not hand.rested
    hand.asking -= 1
    assert hand.next(2 * SPAN_NS) is None
    assert hand.rested


def test_what_is_too_much_for_a_handler_is_given_back_instead_of_renewed(hand: Hand[DeliveryFields]) -> None:
    hand.put([leased(6), leased(5, first=6), leased(2, first=20)], 0)
    now_ns = SPAN_NS // 2 - 1
    hand.take(2, now_ns)
    order = hand.renewals(now_ns, 7)
    assert order is not None
    assert order.release == [Run(0, 7, 9, 2), Run(0, 7, 20, 2)]
    assert order.extend == [(Run(0, 7, 2, 4), SPAN_NS), (Run(0, 7, 6, 3), SPAN_NS)]
    hand.tended(order, [])
    assert hand.waiting == 7
    assert values(hand.take(20, SPAN_NS // 2)) == [b"%d" % n for n in range(2, 9)]


def test_what_is_settled_when_it_comes_is_kept_for_good(hand: Hand[DeliveryFields]) -> None:
    hand.kept = True
    hand.put([leased(3)], 0)
    assert hand.next_renewal_ns(8) is None
    assert hand.renewals(5 * SPAN_NS, 1) is None
    assert hand.drop_old(5 * SPAN_NS) == []
    assert values(hand.take(1, 5 * SPAN_NS)) == [b"0"]
    assert [holding.count for holding in hand.take_whole(5, 5 * SPAN_NS)] == [2]


# -- what is told to a broker that was started anew --------------------------------------------------------------------


def test_what_is_here_or_in_the_program_and_undecided_is_held(hand: Hand[DeliveryFields]) -> None:
    hand.put([leased(4), leased(3, first=4, lease_id=8), leased(2, first=9, lease_id=9, until_ns=SECOND_NS)], 0)
    found = hand.take(6, 0)
    order_for("ack", found[1])
    assert in_order(hand.in_program(0)) == [Run(0, 7, 0, 1), Run(0, 7, 2, 2), Run(0, 8, 4, 3), Run(0, 9, 9, 2)]
    del found[:4]  # the first of them is forgotten for good: nobody can settle it any more
    assert in_order(hand.in_program(SECOND_NS)) == [Run(0, 8, 4, 3)]
    rest = hand.take_whole(10, 0)
    del found[:]
    assert in_order(hand.in_program(0)) == [Run(0, 8, 6, 1), Run(0, 9, 9, 2)]
    del rest
    assert hand.in_program(0) == []


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_single_acks_leave_as_runs(hand: Hand[DeliveryFields]) -> None:
    hand.put([leased(10)], 0)
    found = hand.take(10, 0)
    for d in [*found[3:6], *found[:2], found[9]]:
        hand.verdicts.ack(d._holding, d._index)
    assert hand.verdicts.take() == Settle(ack=[Run(0, 7, 0, 2), Run(0, 7, 3, 3), Run(0, 7, 9, 1)])
    assert hand.verdicts.take() is None


def test_verbs_with_the_same_detail_travel_together(hand: Hand[DeliveryFields]) -> None:
    hand.put([leased(4)], 0)
    found = hand.take(4, 0)
    for d, error in zip(found, ("a", "a", "b", "a"), strict=True):
        hand.verdicts.other("nack", d._holding, d._index, (None, error))
    order = hand.verdicts.take()
    assert order is not None
    assert order.nack == [(Run(0, 7, 0, 2), None, "a"), (Run(0, 7, 3, 1), None, "a"), (Run(0, 7, 2, 1), None, "b")]


def test_a_delivery_is_settled_once_and_a_second_ack_is_fine(hand: Hand[DeliveryFields]) -> None:
    hand.put([leased(1)], 0)
    (d,) = hand.take(1, 0)
    assert order_for("ack", [d]).ack == [Run(0, 7, 0, 1)]
    assert order_for("ack", d) == Settle()
    for verb, detail in (("nack", (None, "")), ("reject", ("",)), ("release", (None,))):
        with pytest.raises(InvalidArgument, match="settled already"):
            order_for(verb, d, detail)


@pytest.mark.parametrize("given", [5, None, ["a"], [None]])
def test_what_is_no_delivery_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument, match="delivery"):
        order_for("ack", given)


def test_several_refusals_are_one_error_that_counts_them() -> None:
    refusals = [Refusal(Run(0, 7, 0, 2), "lease_lost", "too late"), Refusal(Run(0, 7, 5, 1), "lease_lost", "gone")]
    settled = type("Settled", (), {"refused": refusals})()
    error = refusal_of(settled)
    assert isinstance(error, LeaseLost)
    assert str(error) == "3 messages were not settled; the first: too late"
