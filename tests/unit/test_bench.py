"""The bench harness: targets, shares of a probe, what is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import __main__ as command
from bench import machine, registry
from bench.targets import TARGETS, Figure, judged, missing, targeted

PROBES = {"write MiB/s": 1000.0}


@pytest.mark.parametrize(
    ("figure", "reached"),
    [
        (Figure(5, "x"), None),
        (Figure(5, "x", at_least=5), True),
        (Figure(4, "x", at_least=5), False),
        (Figure(5, "x", at_most=4), False),
        (Figure(600, "MiB/s", probe="write MiB/s", ratio_at_least=0.6), True),
        (Figure(500, "MiB/s", probe="write MiB/s", ratio_at_least=0.6), False),
        (Figure(600, "MiB/s", at_least=700, probe="write MiB/s", ratio_at_least=0.6), False),
        (Figure(2, "us", probe="not measured", ratio_at_most=1), None),
    ],
)
def test_a_figure_reaches_all_its_targets_or_is_below(figure: Figure, reached: bool | None) -> None:
    assert figure.reached(PROBES) is reached


def test_a_row_shows_value_share_target_and_mark() -> None:
    row = command.line("append", Figure(1_234, "MiB/s", probe="write MiB/s", ratio_at_least=0.6), PROBES)
    assert " ".join(row.split()) == "append 1,234 MiB/s 1.23 × write MiB/s ≥ 0.6 × ok"


def test_a_plain_function_becomes_a_workload_of_its_numbers() -> None:
    run = registry.adopted(lambda: [{"workload": "a", "rate": 3, "fine": True}, {"rate": 4}])
    assert {name: figure.value for name, figure in run(None).items()} == {"a: rate": 3, "rate": 4}  # type: ignore[arg-type]


def test_a_figure_takes_its_bound_from_the_table_unless_it_brings_one() -> None:
    figures = targeted("ids", {"one at a time": Figure(5, "ids/s"), "else": Figure(1, "")})
    assert figures["one at a time"] == Figure(5, "ids/s", at_least=1_000_000)
    assert figures["else"] == Figure(1, "")
    assert targeted("ids", {"one at a time": Figure(5, "ids/s", at_least=4)})["one at a time"].at_least == 4


def test_a_promised_figure_that_a_run_lacks_is_noticed() -> None:
    assert missing("ids", {"something": Figure(5, "ids/s")}) == ["one at a time"]


def test_every_promise_is_of_a_workload_there_is_and_has_a_bound_and_a_known_probe() -> None:
    registry.discover()
    probes = (Path(machine.__file__).read_text(), *machine.SYNC_SIZES)
    for target in (target for targets in TARGETS.values() for target in targets):
        assert target.workload in registry.WORKLOADS, target
        assert (target.at_least is None) != (target.at_most is None), target
        assert not target.beside or target.beside.removeprefix("sync ").split(" p")[0] in " ".join(probes), target


def test_no_figure_is_promised_twice() -> None:
    promised = [(target.workload, target.figure) for targets in TARGETS.values() for target in targets]
    assert len(promised) == len(set(promised))


def test_promises_are_judged_in_words_with_the_probe_beside() -> None:
    results = {"journal/one_at_a_time": {"p50 beside a bare write and sync": Figure(2, "x", at_most=1.5)}}
    rows = {row.target.workload: row for row in judged(results, {})}
    assert rows["ids"].reached is None
    row = rows["journal/one_at_a_time"]
    assert row.reached is False
    line = command.target_line(row, {"sync 200 B p50 us": 250.0})
    assert " ".join(line.split()) == (
        "durable append of one message, p50 beside a bare write and sync 2 x ≤ 1.5 BELOW (sync 200 B p50 us: 250)"
    )


def test_every_workload_file_can_be_loaded_and_chosen_by_its_first_word() -> None:
    assert registry.discover() == []
    assert registry.chosen(["ids"]) == ["ids"]
    with pytest.raises(SystemExit, match="no workload 'idz'; there are: "):
        registry.chosen(["idz"])


FIGURES = {
    # Claims that are met on one machine; of F273 and F285 what is said of one node (the others need three machines).
    "F256": [("sdk/publish_many", "publish_many", 1), ("sdk/consume", "consume and ack, as it comes", 1)],
    "F272": [
        ("sdk/publisher", "single publishes", 50_000),
        ("sdk/consume", "consume and ack, as it comes", 50_000),
        ("sdk/end_to_end", "p99", 10),
    ],
    "F273": [
        ("sdk/partitions", "1 partitions, 1 consumers", 5_000),
        ("sdk/partitions", "10 partitions, 10 consumers", 50_000),
    ],
    "F274": [("sdk/publish_many", "publish_many", 50_000)],
    "F275": [("server/backlog", "resident, all waiting", 1_500)],
    "F276": [
        ("delivery/backlog", "lease 100 + ack 100, ratio", 1.5),
        ("delivery/backlog", "lease 1 + ack 1, ratio", 1.5),
    ],
    "F277": [("sdk/receive_one", "p50", 1_000)],
    "F278": [("sdk/publisher", "single publishes", 10_000), ("sdk/consume", "consume and ack, as it comes", 10_000)],
    "F279": [("sdk/end_to_end", "p99", 10)],
    "F280": [("embedded/disk", "publish one, p50", 1_000)],
    "F281": [("server/backlog", "kill to first delivery", 5)],
    "F282": [
        ("embedded/memory", "publish in batches of 1,000", 500_000),
        ("embedded/memory", "consume in batches", 450_000),
    ],
    "F283": [
        ("embedded/disk", "publish_many of 1,000", 50_000),
        ("sdk/consume", "consume and ack, as it comes", 45_000),
    ],
    "F284": [("sdk/fanout", "delivered to 10 groups", 100_000)],
    "F285": [
        ("sdk/batch_curve", "lists of 1", 320),
        ("sdk/publish_threads", "eight threads, one at a time each", 1_300),
        ("sdk/batch_curve", "lists of 100", 30_000),
        ("sdk/batch_curve", "lists of 1000", 220_000),
    ],
    "F286": [
        ("sdk/batch_curve", f"lists of {size}", rate)
        for size, rate in zip(
            (1, 10, 50, 100, 200, 500, 1000), (320, 3_000, 15_000, 30_000, 60_000, 130_000, 220_000), strict=True
        )
    ],
}


@pytest.mark.parametrize(
    "rows", [pytest.param(rows, marks=pytest.mark.feature(feature), id=feature) for feature, rows in FIGURES.items()]
)
def test_a_figure_that_others_claim_is_a_target_here_at_least_as_strict(rows: list[tuple[str, str, float]]) -> None:
    targets = {(target.workload, target.figure): target for area in TARGETS.values() for target in area}
    for workload, figure, claimed in rows:
        target = targets[workload, figure]
        if target.at_least is not None:
            assert target.at_least >= claimed
        else:
            assert target.at_most is not None
            assert target.at_most <= claimed


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["sdk/publisher", "sdk/consume", "sdk/fanout", "embedded/memory", "embedded/disk"])
def test_a_workload_of_the_sdk_measures_what_is_promised_of_it(name: str, tmp_path: Path) -> None:
    registry.discover()
    figures = registry.WORKLOADS[name](Tiny(tmp_path, short=True))
    assert missing(name, figures) == []
    assert all(figure.value > 0 for figure in figures.values())


class Tiny(machine.Machine):
    """A machine whose runs are over at once."""

    def scaled(self, count: int) -> int:
        return min(count, 2_000)
