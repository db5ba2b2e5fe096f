"""``headrace bench``: what it prints, what it leaves behind."""

from __future__ import annotations

import pytest

from unit.cli.conftest import Run

WORKLOADS = ["publish-one", "publish-many", "publisher", "consume", "latency"]


def test_every_workload_says_what_it_did_and_leaves_nothing(run: Run) -> None:
    ran = run("bench", "--messages", "1200", "--size", "1KiB", "--json")
    assert ran.code == 0, ran.err
    assert [row["workload"] for row in ran.json] == WORKLOADS
    assert [row["messages"] for row in ran.json] == [12, 1200, 1200, 1200, 12]
    for row in ran.json:
        assert row["per_second"] == round(row["messages"] * 1e9 / row["duration_ns"])
        assert ("p50_us" in row) is (row["messages"] == 12)
    assert run("topic", "list", "--json").json == []


def test_people_get_a_line_each(run: Run) -> None:
    ran = run("bench", "publish-one", "publisher", "--messages", "500")
    first, second = ran.text.splitlines()
    assert first.startswith("publish-one")
    assert " p50 " in first
    assert "500 messages" in second
    assert "p50" not in second


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("publsh",), "publsh"), (("--messages", "5"), "100"), (("--size", "many"), "size")],
)
def test_wrong_usage_of_bench_is_2(run: Run, arguments: tuple[str, ...], says: str) -> None:
    ran = run("bench", *arguments)
    assert ran.code == 2
    assert says in ran.err
