"""What everything else pays: importing the package, making ids."""

from __future__ import annotations

import statistics
import subprocess
import sys

from bench.machine import Machine, rate
from bench.registry import Figure, workload
from headrace.ids import IdSource

IMPORT_ROUNDS = 11
TIMED_IMPORT = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"
WALL_NS = 1_735_689_600_000_000_000


@workload("import")
def importing(machine: Machine) -> dict[str, Figure]:
    """Time of an import in a fresh interpreter, files cached."""
    return {
        "import headrace": Figure(import_seconds("headrace"), "s"),
        "import headrace.config": Figure(import_seconds("headrace.config"), "s"),
        "pyarrow modules after it": Figure(pyarrow_modules(), ""),
    }


def pyarrow_modules() -> int:
    """How much of pyarrow an import of the package brings along; none, until columns are asked for."""
    asked = "import sys, headrace; print(sum(name.split('.')[0] == 'pyarrow' for name in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    return int(ran.stdout)


def import_seconds(module: str) -> float:
    command = [sys.executable, "-c", TIMED_IMPORT.format(module)]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(IMPORT_ROUNDS)]
    return statistics.median(float(run.stdout) for run in runs)


@workload("ids")
def ids(machine: Machine) -> dict[str, Figure]:
    """Ids a second on a clock that stands still: every one is borrowed."""

    def taking(count: int) -> float:
        take = IdSource(1).take

        def thousand_calls() -> int:
            for _ in range(1000):
                take(count, WALL_NS)
            return 1000 * count

        return rate(thousand_calls)

    return {
        "one at a time": Figure(taking(1), "ids/s"),
        "100 at a time": Figure(taking(100), "ids/s"),
    }
