"""What a series came to: a line of the table, a value of the JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["Report", "table"]

_SHOWN: Final = 20
"""Violations of one series that are told in words."""


@dataclass
class Report:
    """One series. ``bound`` and ``reached`` are texts; ``failed`` is what decides."""

    goal: str
    what: str
    bound: str
    seed: int = 0
    tried: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    """Bounds in seconds that were missed: said apart, because they depend on what else the machine does."""
    figures: dict[str, Any] = field(default_factory=dict)
    skipped: str = ""

    def violate(self, text: str) -> None:
        self.violations.append(text)

    def hold(self, holds: bool, text: str) -> None:
        """Count ``text`` as a violation unless ``holds``."""
        if not holds:
            self.violations.append(text)

    def in_time(self, holds: bool, text: str) -> None:
        """Count ``text`` as too slow unless ``holds``."""
        if not holds:
            self.slow.append(text)

    @property
    def reached(self) -> bool:
        return not (self.violations or self.slow or self.skipped)

    @property
    def verdict(self) -> str:
        return "VIOLATED" if self.violations else "too slow" if self.slow else "skipped" if self.skipped else "reached"

    def as_dict(self) -> dict[str, Any]:
        return {
            "goal": self.goal,
            "what": self.what,
            "bound": self.bound,
            "seed": self.seed,
            "tried": dict(self.tried),
            "violations": len(self.violations),
            "first_violations": self.violations[:_SHOWN],
            "slow": self.slow[:_SHOWN],
            "figures": self.figures,
            "skipped": self.skipped,
            "reached": self.reached,
        }


def table(reports: list[Report]) -> str:
    """All series, a line each; below it what went wrong."""
    lines = [f"{'goal':12} {'tried':44} {'violations':>10}  {'verdict':12} bound"]
    for each in reports:
        tried = ", ".join(f"{count:,} {name}" for name, count in each.tried.items())
        lines.append(f"{each.goal:12} {tried:44} {len(each.violations):>10}  {each.verdict:12} {each.bound}")
        if each.figures:
            lines.append(" " * 13 + ", ".join(f"{name} {value}" for name, value in each.figures.items()))
        if each.skipped:
            lines.append(" " * 13 + f"skipped: {each.skipped}")
    for each in reports:
        wrong = (each.violations + each.slow)[:_SHOWN]
        lines += [f"{each.goal} (seed {each.seed}): {text}" for text in wrong]
    return "\n".join(lines)
