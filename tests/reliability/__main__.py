"""The broker judged from outside: each goal is a series against real ``headrace serve`` processes, judged only by what
its clients saw. ``make reliability``, or ``python tests/reliability --goals 'R5 R8' --scale 0.1 --seed 7``.

Prints a line a goal (tried, violations, verdict, bound) and writes all of it as JSON. Exit code 1 when a goal was not
reached. A goal that this machine cannot try (no root, no strace) is skipped and says so.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from reliability import books, chaos, crowds, faults, full, kills, power, rot, soak, times
from reliability.report import Report, table

Series = Callable[[Path, int, float], Report]
GOALS: Final[dict[str, Series]] = {
    "R1": kills.kills,
    "R2": power.power_cuts,
    "R2-xfs": partial(power.power_cuts, kind="xfs"),
    "R5": chaos.chaos,
    "R8": times.lateness,
    "R9": faults.failed_calls,
    "R10": full.full_disks,
    "R11": rot.damage_at_rest,
    "R12": times.recovery,
    "R13": times.restart,
    "R14": soak.soak,
    "R17": crowds.half_open,
    "R18": crowds.stuck,
    "R19": crowds.storms,
    "books": books.books,
}
ALSO: Final = {"R4": "R1", "R6": "R5", "R7": "R5"}
"""Goals that are judged in the series of another."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/reliability", description=__doc__)
    parser.add_argument("--goals", default="", help=f"of {' '.join(GOALS)}; all when not given")
    parser.add_argument("--scale", type=float, default=1.0, help="1 is what the goals ask for, where a machine can")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--json", type=Path, default=Path("build/reliability.json"), help="where the reports go")
    parser.add_argument("--dir", type=Path, default=None, help="where data lies; a real disk")
    given = parser.parse_args()
    names = list(dict.fromkeys(ALSO.get(name, name) for name in given.goals.replace(",", " ").split())) or list(GOALS)
    if unknown := [name for name in names if name not in GOALS]:
        parser.error(f"no series {' '.join(unknown)}; there are {' '.join(GOALS)}")
    seed = int(time.time()) if given.seed is None else given.seed
    reports = []
    for name in names:
        began = time.monotonic()
        report = _run(name, given.dir, seed, given.scale)
        report.figures["took s"] = round(time.monotonic() - began)
        reports.append(report)
        sys.stdout.write(f"{table([report])}\n\n")
        sys.stdout.flush()
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps({"scale": given.scale, "goals": [each.as_dict() for each in reports]}, indent=2))
    sys.stdout.write(f"{table(reports)}\n\nseed {seed}, scale {given.scale:g}; {given.json}\n")
    return 0 if all(report.reached or report.skipped for report in reports) else 1


def _run(name: str, directory: Path | None, seed: int, scale: float) -> Report:
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f"headrace-{name}-", dir=directory))
    try:
        report = GOALS[name](place, seed, scale)
    except Exception as error:  # noqa: BLE001 - the other series are wanted all the same
        report = Report(name, "the series broke off", "", seed)
        report.violate(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    if report.violations:
        report.figures["left in"] = str(place)
    else:
        shutil.rmtree(place, ignore_errors=True)
    return report


if __name__ == "__main__":
    sys.exit(main())
