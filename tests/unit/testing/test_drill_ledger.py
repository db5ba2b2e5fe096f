"""The ledger of a drill notices each thing it is there to notice."""

from __future__ import annotations

from headrace.testing.drill import DrillReport, Ledger


def ledger(*values: str) -> Ledger:
    made = Ledger()
    made.sends(values)
    made.confirms(values)
    return made


def test_what_goes_well_is_no_violation() -> None:
    books = ledger("k:1", "k:2", "j:1")
    for value in ("k:1", "j:1", "k:1", "k:2"):
        books.sees(value)
    books.acks(["k:1", "k:2", "j:1"])
    assert books.violations == []
    assert books.missing() == set()
    assert books.delivered["k:1"] == 2


def test_a_confirmed_message_that_never_came_is_missing() -> None:
    books = ledger("k:1", "k:2")
    books.sends(["k:3"])  # never confirmed: nobody promised anything
    books.sees("k:1")
    assert books.missing() == {"k:2"}


def test_a_message_that_nobody_sent_is_noticed() -> None:
    books = ledger("k:1")
    books.sees("k:7")
    assert "unknown" in books.violations[0]


def test_a_delivery_after_a_confirmed_ack_is_noticed() -> None:
    books = ledger("k:1")
    books.sees("k:1")
    books.acks(["k:1"])
    books.sees("k:1")
    assert "resurrected" in books.violations[0]


def test_a_delivery_after_a_later_one_of_its_key_is_noticed() -> None:
    books = ledger("k:1", "k:2")
    books.sees("k:2")
    books.sees("k:1")
    assert "out of order" in books.violations[0]


def test_a_report_with_anything_wrong_in_it_has_not_passed() -> None:
    assert DrillReport(0).passed
    assert not DrillReport(0, lost=1).passed
    assert not DrillReport(0, drift=1).passed
    assert not DrillReport(0, violations=["x"]).passed
