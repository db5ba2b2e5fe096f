"""What a figure is, and the targets of workloads that return plain numbers."""

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


TARGETS: dict[tuple[str, str], Figure] = {
    ("batch/encode_single", "us"): Figure(0, "us", at_most=5),
    ("batch/encode_single", "overhead_bytes"): Figure(0, "B", at_most=90),
    ("batch/encode_many", "us_per_message"): Figure(0, "us", at_most=0.5),
    ("batch/encode_many", "overhead_bytes_per_message"): Figure(0, "B", at_most=16),
    ("batch/encode_many", "overhead_bytes_per_message_keyed"): Figure(0, "B", at_most=16),
    ("batch/arrow", "us_to_arrow_1000"): Figure(0, "us", at_most=20),
    ("batch/arrow", "us_to_arrow_4096"): Figure(0, "us", at_most=20),
}
"""By workload and name of the number; the value of each is a placeholder."""


def untargeted(name: str) -> Figure:
    """A figure with the unit its name tells."""
    words = name.replace(":", " ").replace("_", " ").split()
    if words[-2:] == ["per", "s"]:
        return Figure(0, "/s")
    for word, unit in (("us", "us"), ("ms", "ms"), ("seconds", "s"), ("bytes", "B"), ("mib", "MiB")):
        if word in words:
            return Figure(0, unit)
    return Figure(0, "")
