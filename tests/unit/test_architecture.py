"""The dependency rule, read from the source: who may import whom, what the pure rooms must not touch, what stays light.

`lint-imports` checks the layers as well; this test knows more: faces and insides, the standard library, and what is
imported when.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[2] / "src"
ROOT = "headrace"

LEAVES = {"errors", "limits", "clock", "ids", "names", "config", "histogram"}
FACTS = LEAVES - {"clock"}
"""What a pure room may use: everything of the leaves but the clock, because time comes in as an argument."""

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "limits": set(),
    "clock": set(),
    "histogram": set(),
    "ids": {"errors", "limits"},
    "names": {"errors", "limits"},
    "config": {"errors", "limits", "ids", "names"},
    "diagnostics": {"clock", "config"},
    "batch": FACTS,
    "routing": FACTS | {"batch"},
    "delivery": FACTS | {"batch", "routing"},
    "wire": FACTS | {"batch", "routing"},
    "calls": FACTS | {"batch"},
    "journal": LEAVES,
    "log": LEAVES | {"batch", "delivery", "journal"},
    "shard": LEAVES | {"batch", "routing", "delivery", "journal", "log"},
    "cluster": LEAVES | {"diagnostics", "batch", "journal", "shard"},
    "broker": LEAVES | {"diagnostics", "calls", "batch", "routing", "delivery", "journal", "log", "shard", "cluster"},
    "client": LEAVES | {"calls", "batch", "routing", "wire"},
}
"""The rooms below the doors. Rooms that are not listed (the doors, the command line, Spark, the console, what is
shipped for tests, the public faces) stand above and may import any of these; none of these may import them."""

PURE = ("batch", "delivery", "routing", "wire")
IMPURE_MODULES = set(
    """
    asyncio concurrent contextvars datetime fcntl glob http io logging mmap multiprocessing os pathlib queue random
    sched secrets select selectors shutil signal socket socketserver ssl structlog subprocess tempfile threading time
    urllib uuid uvloop
    """.split()  # noqa: SIM905 - a list of words
)
IMPURE_CALLS = {"open", "print", "input", "breakpoint"}
REAL_TIME_WAITS = {"headrace.journal.commit"}
"""Threads that wait for a sync with a time-out wait in real time, whatever clock the broker runs under."""
UNSAFE_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle"}
HEAVY_MODULES = {
    "asyncio", "click", "cryptography", "duckdb", "google.protobuf", "grpclib", "httptools", "jwt", "numpy",
    "pandas", "prometheus_client", "pyarrow", "pyspark", "rich", "sqlite3", "ssl", "starlette", "structlog",
    "uvicorn", "uvloop", "websockets", "yaml",
}  # fmt: skip


class Import(NamedTuple):
    importer: str
    imported: str
    line: int
    at_import_time: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


@cache
def modules() -> dict[str, ast.Module]:
    found = {}
    for path in sorted((SOURCE / ROOT).rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text(), str(path))
    return found


def is_package(name: str) -> bool:
    return (SOURCE / Path(*name.split("."))).is_dir()


def imports_of(name: str, tree: ast.Module) -> Iterator[Import]:
    deferred: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or is_type_checking(node):
            deferred |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        now = id(node) not in deferred
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(name, alias.name, node.lineno, now)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = name if is_package(name) else name.rpartition(".")[0]
                for _ in range(node.level - 1):
                    package = package.rpartition(".")[0]
                base = f"{package}.{base}".rstrip(".")
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                inside = whole in modules() and alias.name not in bound_by(base)
                yield Import(name, whole if inside else base, node.lineno, now)


def bound_by(package: str) -> set[str]:
    """The names a package's own face binds: a function may be called as the file it lives in."""
    if package not in modules():
        return set()
    return {
        alias.asname or alias.name
        for node in modules()[package].body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


@cache
def all_imports() -> list[Import]:
    return [found for name, tree in modules().items() for found in imports_of(name, tree)]


def inner_imports() -> list[Import]:
    return [found for found in all_imports() if found.imported.partition(".")[0] == ROOT]


def room(module: str) -> str:
    """The top folder or file a module belongs to; empty for the package itself."""
    return module.split(".")[1] if "." in module else ""


def test_the_rule_itself_has_no_cycle() -> None:
    assert set(TopologicalSorter(MAY_IMPORT).static_order()) == set(MAY_IMPORT)


def test_rooms_import_only_what_lies_below_them() -> None:
    wrong = [
        str(found)
        for found in inner_imports()
        if room(found.importer) in MAY_IMPORT
        and room(found.imported) != room(found.importer)
        and room(found.imported) not in MAY_IMPORT[room(found.importer)]
    ]
    assert wrong == []


def test_nothing_inside_imports_the_public_face_of_the_whole() -> None:
    wrong = [str(found) for found in inner_imports() if found.imported == ROOT and room(found.importer) in MAY_IMPORT]
    assert wrong == []


@pytest.mark.parametrize("pure", PURE)
def test_a_pure_room_is_entered_by_its_face_only(pure: str) -> None:
    wrong = [
        str(found)
        for found in inner_imports()
        if room(found.imported) == pure
        and room(found.importer) in PURE
        and room(found.importer) != pure
        and found.imported != f"{ROOT}.{pure}"
    ]
    assert wrong == []


def test_protocols_do_not_import_each_other() -> None:
    def protocol(module: str) -> str:
        return module.removeprefix(f"{ROOT}.wire.").partition(".")[0] if module.startswith(f"{ROOT}.wire.") else ""

    folders = {path.name for path in (SOURCE / ROOT / "wire").glob("*") if path.is_dir()}
    wrong = [
        str(found)
        for found in inner_imports()
        if protocol(found.importer) in folders
        and protocol(found.imported) in folders
        and protocol(found.importer) != protocol(found.imported)
    ]
    assert wrong == []


def test_no_module_imports_itself_over_others() -> None:
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for found in inner_imports():
        if found.at_import_time and found.imported not in {ROOT, found.importer}:
            graph[found.importer].add(found.imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as cycle:
        pytest.fail(" → ".join(reversed(cycle.args[1])))


@pytest.mark.parametrize("pure", PURE)
def test_a_pure_room_has_no_clock_no_randomness_and_no_outside_world(pure: str) -> None:
    wrong = [
        str(found)
        for found in all_imports()
        if room(found.importer) == pure and found.imported.partition(".")[0] in IMPURE_MODULES
    ]
    for name, tree in modules().items():
        if room(name) == pure:
            wrong += [
                f"{name}:{node.lineno} calls {node.func.id}()"
                for node in ast.walk(tree)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS
            ]
    assert wrong == []


def test_only_the_clock_reads_real_time() -> None:
    wrong = [
        str(found)
        for found in all_imports()
        if found.imported == "time"
        and room(found.importer) in set(MAY_IMPORT) - {"clock"}
        and found.importer not in REAL_TIME_WAITS
    ]
    assert wrong == []


@pytest.mark.parametrize("quiet", ["log", *sorted(LEAVES)])
def test_asyncio_stays_out_of_the_lower_rooms(quiet: str) -> None:
    wrong = [str(found) for found in all_imports() if found.imported == "asyncio" and room(found.importer) == quiet]
    assert wrong == []


def test_nothing_is_ever_unpickled() -> None:
    wrong = [str(found) for found in all_imports() if found.imported.partition(".")[0] in UNSAFE_MODULES]
    assert wrong == []


def test_columns_are_imported_when_asked_for_and_not_before() -> None:
    columnar = {
        found.importer
        for found in all_imports()
        if found.at_import_time and found.imported.partition(".")[0] == "pyarrow" and room(found.importer) in MAY_IMPORT
    }
    wrong = [
        str(found)
        for found in inner_imports()
        if found.at_import_time and found.imported in columnar and room(found.importer) != "spark"  # Arrow all through
    ]
    assert wrong == [], "these must import a module that needs pyarrow inside the function that needs it"


@pytest.mark.parametrize("module", [ROOT, *sorted(f"{ROOT}.{name}" for name in {*LEAVES, *PURE})])
def test_importing_stays_light(module: str) -> None:
    if module not in modules():
        pytest.skip(f"{module} does not exist")
    heavy = imported_by(f"import {module}") & HEAVY_MODULES
    assert heavy == set()


@pytest.mark.feature("F181")
def test_the_base_install_needs_no_service_and_no_server() -> None:
    wrong = [
        str(found)
        for found in all_imports()
        if found.at_import_time
        and room(found.importer) in MAY_IMPORT
        and found.imported.partition(".")[0] in {"psycopg", "asyncpg", "redis", "aetcd", "etcd3", "kafka", "pika"}
    ]
    assert wrong == []


def imported_by(statement: str) -> set[str]:
    """The modules a fresh interpreter holds after a statement, beyond those it started with."""
    script = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before), sep='\\n')"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


# -- the checks themselves catch what they are for ---------------------------------------------------------------------


def test_the_reader_sees_every_form_of_import() -> None:
    source = """
import os.path
from headrace import errors
from headrace.batch import Batch
from . import ids
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import asyncio
def late():
    import pyarrow
"""
    seen = {(found.imported, found.at_import_time) for found in imports_of("headrace.example", ast.parse(source))}
    assert {("os.path", True), ("headrace.errors", True), ("headrace.batch", True), ("headrace.ids", True)} <= seen
    assert {("asyncio", False), ("pyarrow", False)} <= seen


def test_a_heavy_import_would_be_seen() -> None:
    assert "asyncio" in imported_by("import asyncio")
