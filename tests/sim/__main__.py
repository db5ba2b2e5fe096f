"""Run many lives: ``python tests/sim --seeds 100..200 --steps 150``. A failure prints its seed and the run goes on."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sim.play import play

STEPS_DEFAULT = 150


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tests/sim", description=__doc__)
    parser.add_argument("--seeds", default="0..100", help="a range, first..end, or one seed")
    parser.add_argument("--steps", type=int, default=STEPS_DEFAULT)
    parser.add_argument("--stop", type=int, default=20, help="stop after this many failures")
    parser.add_argument("--short", action="store_true", help="one line a failure")
    parser.add_argument("--tell", action="store_true", help="tell every command and what it brought about")
    given = parser.parse_args(arguments)
    first, _, end = given.seeds.partition("..")
    seeds = range(int(first), int(end) if end else int(first) + 1)
    counts: Counter[str] = Counter()
    failures: list[int] = []
    started = time.monotonic()
    run = 0
    for seed in seeds:
        run += 1
        try:
            counts += play(seed, given.steps, tell=_say) if given.tell else play(seed, given.steps)
        except Exception as error:  # noqa: BLE001  every failure is wanted, with its seed
            failures.append(seed)
            sys.stdout.write(f"seed {seed}: {type(error).__name__}: {str(error)[:600]}\n")
            if not given.short:
                sys.stdout.write(traceback.format_exc() + "\n")
            sys.stdout.flush()
            if len(failures) >= given.stop:
                break
    took = time.monotonic() - started
    facts = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    sys.stdout.write(f"{run} seeds, {len(failures)} failed {failures}, {took:.0f}s\n{facts}\n")
    return 1 if failures else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
