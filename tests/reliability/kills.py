"""R1, R4: kill -9 under load, by the drill that users have too (``headrace drill``)."""

from __future__ import annotations

from pathlib import Path

from headrace.testing.drill import Drill
from reliability.report import Report

__all__ = ["kills"]


def kills(directory: Path, seed: int, scale: float = 1) -> Report:
    """R1 and R4; ``scale`` 1 is 1,000 kills."""
    report = Report("R1 R4", "confirmed publishes lost, confirmed acks forgotten over kill -9", "0 in 1,000", seed)
    came_to = Drill(directory, kills=max(2, round(1000 * scale)), seed=seed).run()
    report.violations += came_to.violations
    report.hold(not came_to.lost, f"{came_to.lost} confirmed messages are lost")
    report.hold(not came_to.drift, f"the books are off by {came_to.drift}")
    report.tried.update(kills=came_to.kills, confirmed=came_to.confirmed, acked=came_to.acked)
    report.figures["delivered twice"] = came_to.delivered_twice
    report.figures["median restart, s"] = sorted(came_to.restart_seconds)[len(came_to.restart_seconds) // 2]
    return report
