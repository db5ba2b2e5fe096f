"""``python -m bench [WORKLOAD …] [--json FILE] [--list] [--no-probes]``"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

from bench import registry
from bench.machine import Machine
from bench.registry import Figure

PROJECT = Path(__file__).parents[1]
MARKS = {True: "ok", False: "BELOW", None: ""}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Probes of this machine, then workloads.")
    parser.add_argument("workload", nargs="*", help="a workload or the first part of its name; all when none is given")
    parser.add_argument("--json", type=Path, default=PROJECT / "bench" / "results" / "latest.json", metavar="FILE")
    parser.add_argument("--list", action="store_true", help="name the workloads and stop")
    parser.add_argument("--no-probes", action="store_true", help="leave the probes out (and the ratios with them)")
    options = parser.parse_args()

    failures = registry.discover()
    for failure in failures:
        print(f"cannot load {failure}", file=sys.stderr)
    if options.list:
        print(*registry.WORKLOADS, sep="\n")
        return bool(failures)
    names = registry.chosen(options.workload)

    machine = Machine(PROJECT / "build" / "bench")
    results: dict[str, dict[str, Figure]] = {}
    if not options.no_probes:
        print("machine", flush=True)
        for name, value in machine.measure().items():
            print(f"  {name:<28} {number(value):>14}")
    for name in names:
        started = time.perf_counter()
        print(f"\n{name}", flush=True)
        try:
            results[name] = registry.WORKLOADS[name](machine)
        except Exception:  # noqa: BLE001 - one broken workload must not hide the others
            failures.append(name)
            traceback.print_exc()
            continue
        for figure_name, figure in results[name].items():
            print(line(figure_name, figure, machine.probes))
        print(f"  ({time.perf_counter() - started:.1f} s)", flush=True)

    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report(machine.probes, results), indent=1) + "\n")
    print(f"\nwritten to {options.json}")
    below = [
        f"{name}: {figure_name}"
        for name, figures in results.items()
        for figure_name, figure in figures.items()
        if figure.reached(machine.probes) is False
    ]
    if below:
        print("below target: " + "; ".join(below))
    return bool(failures)


def line(name: str, figure: Figure, probes: dict[str, float]) -> str:
    """One row: name, value and unit, share of the probe, target, mark."""
    ratio = figure.ratio(probes)
    share = f"{ratio:.2f} × {figure.probe}" if ratio is not None else ""
    targets = []
    if figure.at_least is not None:
        targets.append(f"≥ {number(figure.at_least)}")
    if figure.at_most is not None:
        targets.append(f"≤ {number(figure.at_most)}")
    if figure.ratio_at_least is not None:
        targets.append(f"≥ {figure.ratio_at_least:g} ×")
    if figure.ratio_at_most is not None:
        targets.append(f"≤ {figure.ratio_at_most:g} ×")
    mark = MARKS[figure.reached(probes)]
    text = f"  {name:<44} {number(figure.value):>12} {figure.unit:<10} {share:<28} {', '.join(targets):<20} {mark}"
    return (f"{text}  {figure.note}" if figure.note else text).rstrip()


def number(value: float) -> str:
    """Three digits that matter, thousands separated."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def report(probes: dict[str, float], results: dict[str, dict[str, Figure]]) -> dict[str, object]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "probes": probes,
        "workloads": {
            name: {
                figure_name: {
                    **{field: value for field, value in figure._asdict().items() if value not in (None, "")},
                    "ratio": figure.ratio(probes),
                    "reached": figure.reached(probes),
                }
                for figure_name, figure in figures.items()
            }
            for name, figures in results.items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
