"""The series of ``tests/reliability`` in short: a few seconds against a real server, judged by what clients saw.

What is asserted is what must never happen. How long things took is in the report and asserted nowhere: that is for
``make reliability`` on a quiet machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import headrace
from reliability import books, chaos, crowds, faults, full, history, power, rot, soak, times
from reliability.broker import BrokerProcess
from reliability.report import Report, table

Series = Callable[[Path, int, float], Report]


def run(series: Series, directory: Path, scale: float, seed: int = 1) -> Report:
    report = series(directory, seed, scale)
    if report.skipped:
        pytest.skip(report.skipped)
    assert not report.violations, table([report])
    return report


@pytest.mark.feature("F118", "F155", "F290", "F292", "F296")
@pytest.mark.timeout(600)
def test_order_times_tries_and_duplicates_hold_among_pauses_kills_and_clock_jumps(data_dir: Path) -> None:
    report = run(chaos.chaos, data_dir, 0.06)
    assert report.tried["settled"] > 0
    assert report.tried["confirmed"] > 0


@pytest.mark.parametrize("hours", [1, -1])
def test_a_wall_clock_that_is_set_is_noted_and_not_obeyed(data_dir: Path, hours: int) -> None:
    with BrokerProcess(data_dir, skewed=True) as broker, headrace.connect(broker.url) as client:
        topic = client.topic("t", lease="1h")
        topic.publish("later", delay="30m")
        with topic.consumer() as consumer:
            topic.publish("now")
            [held] = consumer.receive(1, wait="30s")
            broker.set_clock(hours * 3600 * 1_000_000_000)
            while not (noted := [line for line in broker.lines() if line["event"] == "the wall clock was set"]):
                assert broker.is_up
            assert abs(noted[0]["by_s"] - hours * 3600) < 60
            assert consumer.receive(10, wait="100ms") == []  # neither what is delayed nor what is leased
            consumer.ack(held)
            topic.publish("still")
            [again] = consumer.receive(1, wait="30s")
            assert again.value == b"still"
            assert again.id > held.id
            consumer.ack(again)


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
@pytest.mark.timeout(600)
def test_nothing_confirmed_is_lost_over_power_cuts_under_a_server(tmp_path: Path, kind: str) -> None:
    report = run(partial(power.power_cuts, kind=kind), tmp_path, 0.01)
    assert report.tried["cuts"] == 2


@pytest.mark.feature("F155")
@pytest.mark.timeout(600)
def test_a_server_ends_at_a_failed_call_and_what_it_confirmed_is_there(data_dir: Path) -> None:
    report = run(faults.failed_calls, data_dir, 0.02)
    assert report.tried["confirmed"] > 0


@pytest.mark.timeout(600)
def test_a_disk_that_fills_up_under_a_sealing_server_costs_nothing(tmp_path: Path) -> None:
    report = run(full.full_disks, tmp_path, 0.04)
    assert report.tried["refused"] == 2


@pytest.mark.timeout(600)
def test_damage_in_any_file_is_never_handed_out_nor_passed_over(data_dir: Path) -> None:
    report = run(rot.damage_at_rest, data_dir, 0.01)
    assert report.tried["trials"] == 10


@pytest.mark.timeout(600)
def test_delays_are_never_early_at_a_thousand_a_second(data_dir: Path) -> None:
    assert run(times.lateness, data_dir, 0.01).tried["delayed"] == 2000


@pytest.mark.timeout(600)
def test_a_killed_server_has_every_message_again(data_dir: Path) -> None:
    assert run(times.recovery, data_dir, 0.02).tried["messages"] == 20_000


@pytest.mark.timeout(600)
def test_half_open_and_dripping_clients_are_dropped_on_every_door(data_dir: Path) -> None:
    run(crowds.half_open, data_dir, 0.02)


@pytest.mark.timeout(600)
def test_stuck_subscribers_cost_their_share(data_dir: Path) -> None:
    run(crowds.stuck, data_dir, 0.02)


@pytest.mark.timeout(600)
def test_connections_that_come_and_go_leave_nothing_behind(data_dir: Path) -> None:
    run(crowds.storms, data_dir, 0.01)


@pytest.mark.timeout(600)
def test_the_books_balance_over_every_door_and_kills(data_dir: Path) -> None:
    report = run(books.books, data_dir, 0.05)
    assert report.tried["acked"] > 0
    assert report.tried["kills"] > 0


@pytest.mark.timeout(600)
def test_memory_descriptors_and_disk_stay_bounded_under_load(data_dir: Path) -> None:
    run(soak.soak, data_dir, 0.001)


# -- a judge that never complains proves nothing -----------------------------------------------------------------------

RULES = history.TopicRules("t", "continue", 1, 1000, 100, ("g",))
MS = 1_000_000


def seen(*given: dict[str, Any], texts: tuple[str, ...] = ("k:1", "k:2")) -> list[str]:
    """What the judge says of these deliveries; the texts were published and confirmed one after another."""
    past = history.History([RULES])
    for place, text in enumerate(texts):
        past.sends(history.Sent("t", text, 0, 500))
        past.confirms(past.sent["t", text], (0, place, place), 1)
    for each in given:
        text = each.pop("text", "k:1")
        where = each.pop("place", (0, texts.index(text), texts.index(text)))
        one = history.Given(
            each.pop("lease", 1), each.pop("attempt", 1), "c", each.pop("asked", 600), each.pop("came", 600), 1600
        )
        for name, value in each.items():
            setattr(one, name, value)
        past.gives("t", "g", text, where, one)
    return [violation.partition(":")[0] for violation in past.judge(held_back=False)]


ACKED = {"verb": "ack", "verb_ns": 700, "answered_ns": 800}


@pytest.mark.parametrize(
    ("given", "violation"),
    [
        ([ACKED, {"text": "k:2", "lease": 2}], None),
        ([{"came": 499}], "early"),
        ([{}, {"lease": 2, "attempt": 2, "came": 1599}], "double"),
        ([{}, {"lease": 2, "attempt": 2, "came": 1600}], None),
        ([{"verb": "nack", "verb_ns": 700, "again_ns": 900}, {"lease": 2, "attempt": 2, "came": 899}], "early"),
        ([ACKED, {"lease": 2, "attempt": 2, "asked": 900, "came": 1700}], "resurrected"),
        ([{"text": "k:2"}, {"text": "k:1", "lease": 2}], "overtaken"),
        ([{}, {"lease": 2, "attempt": 1, "came": 1700}], "tries"),
        ([{"attempt": 3}], "tries"),
        ([{"attempt": 2, "verb": "nack", "verb_ns": 700, "answered_ns": 800}], "tries"),
        ([{"place": (0, 7, 7)}], "twice stored"),
    ],
)
def test_the_judge_sees_what_is_wrong(given: list[dict[str, Any]], violation: str | None) -> None:
    found = seen(*(dict(each) for each in given))
    assert found == ([violation] if violation else [])


def test_the_judge_misses_what_was_confirmed_and_never_came() -> None:
    past = history.History([RULES])
    past.sends(history.Sent("t", "k:1", 0))
    past.confirms(past.sent["t", "k:1"], (0, 0, 0), 1)
    assert [violation.partition(":")[0] for violation in past.judge()] == ["lost"]


def test_a_body_that_was_changed_is_nobodys() -> None:
    from reliability.workload import body_of, number_of

    body = body_of(7)
    assert number_of(body) == 7
    with pytest.raises(ValueError, match="not as it was sent"):
        number_of(body[:-1] + bytes([body[-1] ^ 1]))


def test_a_series_that_was_violated_is_not_reached(tmp_path: Path) -> None:
    report = Report("R0", "something", "0")
    assert report.reached
    report.in_time(False, "too late")
    assert report.verdict == "too slow"
    report.hold(False, "it went wrong")
    assert report.verdict == "VIOLATED"
    assert not report.reached
    assert "it went wrong" in table([report])


@pytest.fixture(autouse=True)
def _tidy(tmp_path: Path) -> Any:
    yield
    shutil.rmtree(tmp_path, ignore_errors=True)
