"""Orders on their way: what they are about until they are answered, and what came of renewals."""

from __future__ import annotations

from headrace.calls import Run, Settle
from headrace.client.asking import runs_settled, tended_of
from headrace.errors import BY_CODE, Closed, LeaseLost
from headrace.wire import native


def test_what_is_settled_is_held_until_there_is_an_answer() -> None:
    runs = [Run(0, 7, n, 1) for n in range(6)]
    order = Settle([runs[0]], [(runs[1], None, "no")], [(runs[2], "never")], [runs[3]], [(runs[4], 5)])
    assert sorted(run.first_offset for run in runs_settled([order, Settle(ack=[runs[5]])])) == [0, 1, 2, 3, 4, 5]
    assert runs_settled([]) == []


def test_what_was_refused_of_renewals_is_known_and_when_nothing_is() -> None:
    order = Settle(extend=[(Run(0, 7, 0, 4), 5)])
    lost = native.number_of(BY_CODE[LeaseLost.code]("gone"))
    assert tended_of(native.Settled(1, [(0, lost, 0, 7, 2, 1)]), order) == [Run(0, 7, 2, 1)]
    assert tended_of(native.Settled(1), order) == []
    assert tended_of(Closed("no connection"), order) is None
