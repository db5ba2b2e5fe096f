"""What every test may rely on: the feature ids, a directory on a real disk, and how many random cases to try.

Random tests draw the same cases on every run, so that a red run says something about the change and not about luck.
``HEADRACE_SEEDS=n`` asks for n fresh cases of each instead (``make sim SEEDS=10000``); a failure prints how to
replay it.

``pytest --features`` runs nothing and lists which ids of ``tests/features.tsv`` have a test and which have none.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES_DEFAULT = 50
MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs", "overlay-tmpfs"}
FEATURE_LIST = Path(__file__).with_name("features.tsv")

_SLOW_MACHINE = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large]

hypothesis.settings.register_profile(
    "fixed",
    max_examples=EXAMPLES_DEFAULT,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=_SLOW_MACHINE,
)
hypothesis.settings.register_profile(
    "fresh",
    max_examples=max(1, int(os.environ.get("HEADRACE_SEEDS") or EXAMPLES_DEFAULT)),
    derandomize=False,
    deadline=None,
    print_blob=True,
    suppress_health_check=_SLOW_MACHINE,
)
hypothesis.settings.load_profile("fresh" if os.environ.get("HEADRACE_SEEDS") else "fixed")


@pytest.fixture(scope="session")
def seeds() -> range:
    """The seeds a simulation runs: a fixed few, or the first HEADRACE_SEEDS."""
    return range(int(os.environ.get("HEADRACE_SEEDS") or 20))


@pytest.fixture
def data_dir(tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[Path]:
    """An empty directory where fdatasync means something: pytest's own when it is on a disk, else one in the project.

    A durability test on a memory file system proves nothing.
    """
    if _file_system(tmp_path) not in MEMORY_FILE_SYSTEMS:
        directory = tmp_path / "data"
        directory.mkdir()
        yield directory
        return
    base = pytestconfig.rootpath / "build" / "tests"
    if _file_system(pytestconfig.rootpath) in MEMORY_FILE_SYSTEMS:
        pytest.skip("neither the temporary directory nor the project is on a disk")
    base.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(dir=base))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def _file_system(path: Path) -> str:
    """The type of the file system that holds ``path``; unknown where the kernel does not say."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return "unknown"
    best, kind = "", "unknown"
    target = f"{path.resolve()}/"
    for line in mounts.read_text().splitlines():
        _, mount_point, file_system, *_ = line.split(" ")
        prefix = mount_point.rstrip("/") + "/"
        if target.startswith(prefix) and len(prefix) >= len(best):
            best, kind = prefix, file_system
    return kind


# -- features ----------------------------------------------------------------------------------------------------------


def _feature_list() -> dict[str, tuple[str, str]]:
    rows = (line.split("\t") for line in FEATURE_LIST.read_text().splitlines() if not line.startswith("#"))
    return {feature: (kind, item) for feature, kind, item in rows}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--features", action="store_true", help="list the feature ids with and without a test; run nothing"
    )


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    known = _feature_list()
    proofs: dict[str, list[str]] = defaultdict(list)
    for item in items:
        for mark in item.iter_markers("feature"):
            for feature in mark.args:
                if feature not in known:
                    raise pytest.UsageError(
                        f"{item.nodeid} claims feature {feature!r}, which {FEATURE_LIST.name} lacks"
                    )
                proofs[feature].append(item.nodeid)
    if config.getoption("--features"):
        config.stash[_PROOFS] = proofs
        items.clear()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if session.config.getoption("--features") and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    proofs = config.stash.get(_PROOFS, None)
    if proofs is None:
        return
    known = _feature_list()
    write = terminalreporter.write_line
    write("")
    write(f"proven ({len(proofs)} of {len(known)}):")
    for feature in sorted(proofs):
        tests = proofs[feature]
        more = f" and {len(tests) - 1} more" if len(tests) > 1 else ""
        write(f"  {feature}  {known[feature][1]}")
        write(f"        {tests[0]}{more}")
    write("without a test:")
    for feature, (kind, item) in known.items():
        if feature not in proofs:
            write(f"  {feature}  {kind:8} {item}")


_PROOFS = pytest.StashKey[dict[str, list[str]]]()
