"""``python -m bench [WORKLOAD …] [--short] [--json FILE] [--list] [--no-probes]``"""

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
from bench.targets import Figure, Judged, judged, missing, targeted

PROJECT = Path(__file__).parents[1]
MARKS = {True: "ok", False: "BELOW", None: ""}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Probes of this machine, then workloads.")
    parser.add_argument("workload", nargs="*", help="a workload or the first part of its name; all when none is given")
    parser.add_argument("--json", type=Path, default=PROJECT / "bench" / "results" / "latest.json", metavar="FILE")
    parser.add_argument("--list", action="store_true", help="name the workloads and stop")
    parser.add_argument("--no-probes", action="store_true", help="leave the probes out (and the ratios with them)")
    parser.add_argument("--short", action="store_true", help="a tenth of the sizes: a look, not a result")
    options = parser.parse_args()

    failures = registry.discover()
    if options.list:
        print(*registry.WORKLOADS, *failures, sep="\n")
        return bool(failures)
    names = registry.chosen(options.workload)

    machine = Machine(PROJECT / "build" / "bench", short=options.short)
    results: dict[str, dict[str, Figure]] = {}
    spent: dict[str, dict[str, float]] = {}
    if not options.no_probes:
        print("machine", flush=True)
        for name, value in machine.measure().items():
            print(f"  {name:<28} {number(value):>14}")
    for name in names:
        print(f"\n{name}", flush=True)
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            results[name] = targeted(name, registry.WORKLOADS[name](machine))
        except Exception:  # noqa: BLE001 - one broken workload must not hide the others
            failures.append(name)
            traceback.print_exc()
            continue
        for figure_name, figure in results[name].items():
            print(line(figure_name, figure, machine.probes))
        for lost in missing(name, results[name]):
            failures.append(f"{name}: no figure {lost!r}, which bench/targets.py asks for")
        spent[name] = {"wall s": time.perf_counter() - wall, "processor s": time.process_time() - cpu}
        print(f"  ({spent[name]['wall s']:.1f} s, {spent[name]['processor s']:.1f} s of processor)", flush=True)

    rows = judged(results, machine.probes)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report(machine, results, spent, rows), indent=1) + "\n")
    print_targets(rows, machine.probes)
    print(f"\nwritten to {options.json}")
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
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


def print_targets(rows: list[Judged], probes: dict[str, float]) -> None:
    """What is promised, of what was run."""
    run = [row for row in rows if row.figure is not None]
    if not run:
        return
    reached = sum(row.reached is True for row in run)
    print(f"\ntargets: {reached} of {len(run)} reached, {len(rows) - len(run)} not run")
    area = ""
    for row in run:
        if row.area != area:
            area = row.area
            print(f"  {area}")
        print(target_line(row, probes))


def target_line(row: Judged, probes: dict[str, float]) -> str:
    """One promise: in words, what was measured, the bound, the mark, the probe beside it."""
    target, figure = row.target, row.figure
    value = "" if figure is None else f"{number(figure.value)} {figure.unit}"
    bounds = [f"≥ {number(target.at_least)}"] if target.at_least is not None else []
    bounds += [f"≤ {number(target.at_most)}"] if target.at_most is not None else []
    beside = f"({target.beside}: {number(probes[target.beside])})" if probes.get(target.beside) else ""
    return f"    {target.what:<86} {value:>20}  {', '.join(bounds):<14} {MARKS[row.reached]:<5}  {beside}".rstrip()


def number(value: float) -> str:
    """Three digits that matter, thousands separated."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def report(
    machine: Machine,
    results: dict[str, dict[str, Figure]],
    spent: dict[str, dict[str, float]],
    rows: list[Judged],
) -> dict[str, object]:
    probes = machine.probes
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "short": machine.short,
        "probes": probes,
        "targets": [
            {
                "area": row.area,
                **{field: value for field, value in row.target._asdict().items() if value not in (None, "")},
                "value": None if row.figure is None else row.figure.value,
                "unit": None if row.figure is None else row.figure.unit,
                "reached": row.reached,
                "probe": {row.target.beside: probes[row.target.beside]} if row.target.beside in probes else {},
            }
            for row in rows
        ],
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
        "spent": spent,
    }


if __name__ == "__main__":
    sys.exit(main())
