"""The error tree: every class has its code, its family and its row."""

from __future__ import annotations

import pytest

from headrace import errors

CODES = """
invalid_argument unknown_topic unknown_group already_exists payload_too_large queue_full quota_exceeded not_allowed
unauthenticated lease_lost duplicate_conflict malformed protocol_violation limit_exceeded not_owner overloaded draining
storage_full storage_failed corrupt unsupported_version timeout closed
""".split()  # noqa: SIM905 - reads as the documented list does
FAMILIES = (errors.RequestError, errors.ConnectionFault, errors.RetryLater, errors.ShardStopped)


def leaves(root: type[errors.HeadraceError] = errors.HeadraceError) -> set[type[errors.HeadraceError]]:
    """Every class of the project that can be raised with a code."""
    found: set[type[errors.HeadraceError]] = set()
    for kind in root.__subclasses__():
        if kind.__module__.startswith("headrace"):
            found |= leaves(kind) | ({kind} if kind.code else set())
    return found


def test_the_codes_are_the_documented_ones_in_their_frozen_order() -> None:
    by_number = sorted(errors.ROWS, key=lambda kind: errors.ROWS[kind].native)
    assert [kind.code for kind in by_number] == CODES


def test_every_class_has_a_row_and_every_row_a_class() -> None:
    assert leaves() == set(errors.ROWS)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_family_has_no_code_of_its_own(kind: type[errors.HeadraceError]) -> None:
    assert kind.code == ""
    assert kind not in errors.ROWS


@pytest.mark.parametrize("kind", errors.ROWS)
def test_a_class_belongs_to_exactly_one_family(kind: type[errors.HeadraceError]) -> None:
    assert sum(issubclass(kind, family) for family in FAMILIES) == 1


def test_native_numbers_are_unique_and_positive() -> None:
    numbers = [row.native for row in errors.ROWS.values()]
    assert len(set(numbers)) == len(numbers)
    assert min(numbers) == 1


@pytest.mark.parametrize(("kind", "row"), errors.ROWS.items())
def test_a_row_spells_an_error_on_every_protocol(kind: type[errors.HeadraceError], row: errors.Row) -> None:
    assert 400 <= row.http <= 599
    assert 1 <= row.grpc <= 16
    assert 0x80 <= row.mqtt <= 0xA2
    if issubclass(kind, errors.RequestError | errors.ConnectionFault):
        assert row.http < 500, "the caller's fault is a 4xx"
    if issubclass(kind, errors.ShardStopped):
        assert row.http >= 500


@pytest.mark.parametrize("kind", [kind for kind in errors.ROWS if issubclass(kind, errors.RetryLater)])
def test_what_may_be_retried_says_when(kind: type[errors.HeadraceError]) -> None:
    assert kind("busy").retry_after_ns is not None
    assert kind("busy", retry_after_ns=7).retry_after_ns == 7


@pytest.mark.parametrize("code", CODES)
def test_a_code_off_the_wire_becomes_its_class(code: str) -> None:
    error = errors.from_code(code, "what was wrong", retry_after_ns=5)
    assert error.code == code
    assert error.retry_after_ns == 5
    assert str(error) == error.message == "what was wrong"


def test_an_unknown_code_off_the_wire_becomes_the_root_class() -> None:
    error = errors.from_code("from_the_future", "something new")
    assert type(error) is errors.HeadraceError
    assert str(error) == "something new"


def test_every_class_is_exported() -> None:
    assert {kind.__name__ for kind in errors.ROWS} <= set(errors.__all__)
