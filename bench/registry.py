"""What a workload is, and which there are.

A workload is a function in some ``bench/*_workloads.py`` that measures one thing and returns its figures by name:

    @workload("ids")
    def ids(machine: Machine) -> dict[str, Figure]:
        ...
        return {"one at a time": Figure(rate, "ids/s")}

A figure may name the probe of the machine that bounds it (``probe="write MiB/s"``, in the same unit); it is printed
as a share of that probe, and ``ratio_at_least`` or ``ratio_at_most`` is its target. Where the machine's limit moves
too much for a probe of minutes ago, a workload measures it in turns with its own work and gives the ratio as a figure.
What is promised, and so what a run is judged by, is the table in ``bench/targets.py``. Sizes go through
``machine.scaled``, so that a short run is short.

A module that registers nothing offers plain functions instead: those it lists as ``WORKLOADS``, or all its public ones
that can be called with nothing. They return numbers by name (or a list of such); the names tell the unit.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bench.targets import Figure, untargeted

if TYPE_CHECKING:
    from bench.machine import Machine


Workload = Callable[["Machine"], dict[str, Figure]]
WORKLOADS: dict[str, Workload] = {}


def workload(name: str) -> Callable[[Workload], Workload]:
    """Registers a function under a name; ``python -m bench NAME`` runs it and everything below ``NAME/``."""

    def register(function: Workload) -> Workload:
        if name in WORKLOADS:
            raise ValueError(f"two workloads are called {name!r}")
        WORKLOADS[name] = function
        return function

    return register


def discover() -> list[str]:
    """Imports every ``*_workloads`` module beside this file; what cannot be imported is returned, not fatal."""
    failures = []
    if WORKLOADS:
        return failures  # already done
    for path in sorted(Path(__file__).parent.glob("*_workloads.py")):
        try:
            before = len(WORKLOADS)
            module = importlib.import_module(f"bench.{path.stem}")
            if len(WORKLOADS) == before:
                for function in plain_functions(module):
                    name = f"{path.stem.removesuffix('_workloads')}/{function.__name__}"
                    workload(name)(adopted(function))
        except Exception as error:  # noqa: BLE001 - one broken file must not hide the others
            failures.append(f"{path.name}: {type(error).__name__}: {error}")
    return failures


def plain_functions(module: ModuleType) -> list[Callable[[], Any]]:
    """What a module offers without registering it."""
    listed = getattr(module, "WORKLOADS", None)
    if listed is not None:
        return list(listed)
    return [
        function
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if not name.startswith("_")
        and function.__module__ == module.__name__
        and all(
            parameter.default is not parameter.empty for parameter in inspect.signature(function).parameters.values()
        )
    ]


def adopted(function: Callable[[], Any]) -> Workload:
    """A plain function as a workload: every number it returns is a figure."""

    def run(machine: Machine) -> dict[str, Figure]:
        returned = function()
        figures = {}
        for row in returned if isinstance(returned, list) else [returned]:
            prefix = f"{row['workload']}: " if isinstance(returned, list) and "workload" in row else ""
            for key, value in row.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    figures[prefix + key] = untargeted(key)._replace(value=value)
        return figures

    return run


def chosen(names: list[str]) -> list[str]:
    """The registered workloads a command line means, in their order."""
    for name in names:
        if not any(known == name or known.startswith(f"{name}/") for known in WORKLOADS):
            raise SystemExit(f"no workload {name!r}; there are: {', '.join(WORKLOADS)}")
    return [
        known
        for known in WORKLOADS
        if not names or any(known == name or known.startswith(f"{name}/") for name in names)
    ]
