"""What a figure is, and the table of what each is to reach.

A workload may also say its target itself, beside the number; the table is for what is promised.
"""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """One measured number with its unit and what it should be."""

    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    probe: str | None = None
    ratio_at_least: float | None = None
    ratio_at_most: float | None = None
    note: str = ""

    def ratio(self, probes: dict[str, float]) -> float | None:
        if self.probe is None or not probes.get(self.probe):
            return None
        return self.value / probes[self.probe]

    def reached(self, probes: dict[str, float]) -> bool | None:
        """Whether every target is reached; None without one."""
        ratio = self.ratio(probes)
        checks = [
            self.value >= self.at_least if self.at_least is not None else None,
            self.value <= self.at_most if self.at_most is not None else None,
            ratio >= self.ratio_at_least if self.ratio_at_least is not None and ratio is not None else None,
            ratio <= self.ratio_at_most if self.ratio_at_most is not None and ratio is not None else None,
        ]
        told = [check for check in checks if check is not None]
        return all(told) if told else None


def at_least(value: float, unit: str) -> Figure:
    return Figure(0, unit, at_least=value)


def at_most(value: float, unit: str) -> Figure:
    return Figure(0, unit, at_most=value)


TARGETS: dict[tuple[str, str], Figure] = {
    # the batch
    ("batch/encode_single", "us"): at_most(5, "us"),
    ("batch/encode_single", "overhead_bytes"): at_most(90, "B"),
    ("batch/encode_many", "us_per_message"): at_most(0.5, "us"),
    ("batch/encode_many", "overhead_bytes_per_message"): at_most(16, "B"),
    ("batch/encode_many", "overhead_bytes_per_message_keyed"): at_most(16, "B"),
    ("batch/arrow", "us_to_arrow_1000"): at_most(20, "us"),
    ("batch/arrow", "us_to_arrow_4096"): at_most(20, "us"),
    ("batch/arrow", "us_to_arrow_every_column"): at_most(20, "us"),
    # the journal
    ("journal/batches", "messages"): at_least(1_000_000, "msg/s"),
    ("journal/batches", "share of a bare sequential write"): at_least(0.6, "x"),
    ("journal/singles", "messages"): at_least(150_000, "msg/s"),
    ("journal/one_at_a_time", "p50 beside a bare write and sync"): at_most(1.5, "x"),
    ("journal/recovery", "single frames, to the first read"): at_most(3, "s"),
    ("journal/recovery", "frames of 100, to the first read"): at_most(1, "s"),
    ("journal/recovery", "from a snapshot, to the first read"): at_most(1, "s"),
    ("journal/overhead", "a message in batches of 1,000"): at_most(16, "B"),
    ("journal/overhead", "a single message"): at_most(100, "B"),
    # what everything pays
    ("import", "import headrace"): at_most(0.15, "s"),
    ("import", "pyarrow modules after it"): at_most(0, ""),
    ("ids", "one at a time"): at_least(1_000_000, "ids/s"),
    ("ids", "100 at a time"): at_least(1_000_000, "ids/s"),
    # the delivery core
    ("delivery/lease_ack", "lease 100 + ack 100"): at_least(3_000_000, "msg/s"),
    ("delivery/lease_ack", "lease 1 + ack 1, one call each"): at_least(150_000, "msg/s"),
    ("delivery/lease_ack", "lease 1 + ack 1, 64 callers at once"): at_least(150_000, "msg/s"),
    ("delivery/keys", "lease 100 + ack 100"): at_least(500_000, "msg/s"),
    ("delivery/priorities", "lease 100"): at_least(500_000, "msg/s"),
    ("delivery/priorities", "lease 100 + ack 100"): at_least(500_000, "msg/s"),
    ("delivery/schedule", "schedule"): at_least(300_000, "msg/s"),
    ("delivery/schedule", "cancel, 500 of 1000 in one call"): at_least(300_000, "msg/s"),
    ("delivery/schedule", "fire"): at_least(300_000, "msg/s"),
    ("delivery/schedule", "memory of a scheduled message"): at_most(32, "B"),
    ("delivery/lateness", "p99"): at_most(5000, "us"),
    ("delivery/lateness", "earliest"): at_least(0, "us"),
    ("delivery/memory", "10,000,000 ready, published in batches of 1,000"): at_most(150, "MiB"),
    ("delivery/fanout", "10 groups"): at_least(1_000_000, "deliveries/s"),
    ("delivery/backlog", "lease 1 + ack 1, ratio"): at_most(1.5, "x"),
    ("delivery/backlog", "lease 100 + ack 100, ratio"): at_most(1.5, "x"),
    ("delivery/recovery", "published in batches of 100"): at_most(5, "s"),
    ("delivery/recovery", "published one by one"): at_most(5, "s"),
    # a server process
    ("server/idle", "resident, idle"): at_most(70, "MiB"),
    ("server/idle", "an idle connection"): at_most(20, "KiB"),
    ("server/backlog", "resident, all waiting"): at_most(200, "MiB"),
    ("server/backlog", "kill to first delivery"): at_most(5, "s"),
    ("server/publish_one", "p50 beside sync and round trip"): at_most(1.5, "x"),
    ("server/connects", "left behind"): at_most(8, "MiB"),
}
"""By workload and name of the number, what it is to reach; the value of each is a placeholder. A row whose number is
missing from a run of its workload is an error of the run."""


def targeted(name: str, figures: dict[str, Figure]) -> dict[str, Figure]:
    """The figures of a workload with what the table says of them; what a workload says itself goes before."""
    return {key: _targeted(figure, TARGETS.get((name, key))) for key, figure in figures.items()}


def _targeted(figure: Figure, row: Figure | None) -> Figure:
    if row is None:
        return figure
    told = {
        field: value
        for field, value in row._asdict().items()
        if field not in ("value", "unit") and value not in (None, "") and getattr(figure, field) in (None, "")
    }
    return figure._replace(**told)


def missing(name: str, figures: dict[str, Figure]) -> list[str]:
    """Rows of the table that a run of a workload has no number for."""
    return [key for workload, key in TARGETS if workload == name and key not in figures]


def untargeted(name: str) -> Figure:
    """A figure with the unit its name tells."""
    words = name.replace(":", " ").replace("_", " ").split()
    if words[-2:] == ["per", "s"]:
        return Figure(0, "/s")
    for word, unit in (("us", "us"), ("ms", "ms"), ("seconds", "s"), ("bytes", "B"), ("mib", "MiB")):
        if word in words:
            return Figure(0, unit)
    return Figure(0, "")
