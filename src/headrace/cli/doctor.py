"""``headrace doctor``: is everything here as a broker needs it? A line for each check, and what to do where it is not.

ok      nothing to do
warn    it works, and could be better or could surprise
fail    a server would not start, or would not keep what it confirms
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import click

from headrace.cli.output import size, span_text
from headrace.cli.place import Place, located
from headrace.cli.probes import MEMORY_FILE_SYSTEMS, NETWORK_FILE_SYSTEMS, file_system_of, syncs
from headrace.errors import HeadraceError, InvalidArgument
from headrace.limits import CONNECTIONS_MAX, DESCRIPTORS_KEPT, GIB, MIB, MILLISECOND_NS

if TYPE_CHECKING:
    from headrace.config import ServerConfig

__all__ = ["Finding", "doctor"]

State = Literal["ok", "warn", "fail"]
_ROOM_FAIL_BYTES: Final = 256 * MIB
"""Two journal files and their spare."""
_ROOM_WARN_BYTES: Final = 2 * GIB
_MEMORY_WARN_BYTES: Final = 256 * MIB
_SYNC_SLOW_NS: Final = 10 * MILLISECOND_NS
_SYNC_UNBELIEVABLE_NS: Final = 10_000
"""No disk answers in 10 µs: a cache said yes."""
_CLOCK_UNSYNCHRONISED: Final = 5
"""TIME_ERROR of adjtimex(2)."""
_BASE: Final = ("msgspec", "pyroaring", "google-crc32c", "xxhash", "PyYAML", "click", "rich", "structlog")
_EXTRAS: Final = {
    "columns": (("pyarrow",), "Arrow, sealing into Parquet"),
    "http": (("httptools", "PyJWT", "cryptography"), "the HTTP door and tokens"),
    "spark": (("pyspark",), "the Spark source and sink"),
}


class Finding(NamedTuple):
    """What one check found."""

    check: str
    state: State
    found: str
    todo: str = ""


@dataclass(frozen=True)
class _Patient:
    """What is looked at."""

    config: ServerConfig
    data_dir: Path
    place: Place


@click.command()
@click.option("--config", "file", type=click.Path(path_type=Path), envvar="HEADRACE_CONFIG", help="A YAML file.")
@located
def doctor(place: Place, file: Path | None) -> int:
    """Check this machine, the data directory and the configuration; exit 1 when something would fail.

    The data directory and the ports are those of the configuration (./data); with --server that server is looked at,
    too.
    """
    from headrace.cli.serve import DEFAULT_FILE
    from headrace.config import ServerConfig
    from headrace.config.sources import load_server_config

    if file is None and Path(DEFAULT_FILE).is_file():
        file = Path(DEFAULT_FILE)
    config, findings = ServerConfig(), []
    try:
        config = load_server_config(file=file, environment=os.environ).config
        findings.append(Finding("configuration", "ok", str(file) if file is not None else "defaults and environment"))
    except InvalidArgument as error:
        findings.append(Finding("configuration", "fail", error.message, "correct it; `headrace serve --print-config`"))
    patient = _Patient(config, place.data_dir or Path(config.data_dir), place)
    for check in CHECKS:
        findings += check(patient)
    for finding in findings:
        text = f"{finding.state:5} {finding.check:14} {finding.found}"
        if finding.todo:
            text += f"\n{'':20} → {finding.todo}"
        place.output.value(finding._asdict(), text)
    failed = sum(finding.state == "fail" for finding in findings)
    warned = sum(finding.state == "warn" for finding in findings)
    if not place.output.json:
        place.output.line(f"{len(findings)} checks, {failed} failed, {warned} to look at")
    return 1 if failed else 0


# -- the machine -------------------------------------------------------------------------------------------------------


def _python(_: _Patient) -> Iterator[Finding]:
    found = (
        f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    )
    if not sys.platform.startswith("linux"):
        yield Finding("python", "warn", found, "the durability of the journal is tested on Linux only")
    else:
        yield Finding("python", "ok", found)


def _packages(_: _Patient) -> Iterator[Finding]:
    missing = [name for name in _BASE if _version(name) is None]
    if missing:
        yield Finding("packages", "fail", f"missing: {', '.join(missing)}", "pip install headrace")
    else:
        yield Finding("packages", "ok", f"headrace {_version('headrace')}, msgspec {_version('msgspec')}")
    if "google-crc32c" not in missing:
        import google_crc32c

        if google_crc32c.implementation != "c":
            yield Finding(
                "checksums",
                "warn",
                "google-crc32c runs in Python, a hundred times slower",
                "install its wheel for this platform",
            )
    for extra, (names, brings) in _EXTRAS.items():
        lacking = [name for name in names if _version(name) is None]
        if lacking:
            todo = f"pip install 'headrace[{extra}]' if you want it"
            yield Finding(f"[{extra}]", "warn", f"{', '.join(lacking)} not installed: without {brings}", todo)
        else:
            yield Finding(f"[{extra}]", "ok", ", ".join(f"{name} {_version(name)}" for name in names))
    if _version("uvloop") is None:
        yield Finding("event loop", "warn", "uvloop is not installed: asyncio's own is slower", "pip install uvloop")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _clock(_: _Patient) -> Iterator[Finding]:
    state = _kernel_clock()
    if state is None:
        yield Finding("clock", "ok", "this system does not say whether it is synchronised")
    elif state == _CLOCK_UNSYNCHRONISED:
        yield Finding(
            "clock",
            "warn",
            "not synchronised; schedules follow it, ids and intervals do not depend on it",
            "run chrony or systemd-timesyncd",
        )
    else:
        yield Finding("clock", "ok", "synchronised")


def _kernel_clock() -> int | None:
    """What adjtimex(2) says about the clock; None where it cannot be asked."""
    import ctypes

    try:
        found = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(512))
    except (OSError, AttributeError):
        return None
    return found if found >= 0 else None


def _limits(_: _Patient) -> Iterator[Finding]:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = CONNECTIONS_MAX + DESCRIPTORS_KEPT
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        yield Finding("descriptors", "ok", "enough for every connection a door takes")
    else:
        room = max(0, hard - DESCRIPTORS_KEPT)
        yield Finding("descriptors", "warn", f"at most {hard}: room for {room} connections", f"ulimit -Hn {wanted}")
    available = _available_bytes()
    if available is not None:
        state: State = "warn" if available < _MEMORY_WARN_BYTES else "ok"
        todo = "a server with a million waiting messages takes some 200 MiB" if state == "warn" else ""
        yield Finding("memory", state, f"{size(available)} available, {os.cpu_count()} cores", todo)


def _available_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


# -- the data directory ------------------------------------------------------------------------------------------------


def _directory(patient: _Patient) -> Iterator[Finding]:
    if patient.config.journal == "memory" and patient.place.data_dir is None:
        yield Finding("data directory", "warn", "journal is memory: nothing survives a restart", "--journal disk")
        return
    path = patient.data_dir
    there = path if path.exists() else next(parent for parent in path.resolve().parents if parent.exists())
    if not there.is_dir():
        yield Finding("data directory", "fail", f"{path} is not a directory", "name another with --data-dir")
        return
    if not os.access(there, os.W_OK | os.X_OK):
        yield Finding(
            "data directory", "fail", f"{there} is not writable", f"chown it to {os.geteuid()}, or another one"
        )
        return
    yield _content(path)
    yield _file_system(there)
    yield _room(there)
    yield _disk(there)


def _content(path: Path) -> Finding:
    from headrace.journal import verify

    if not (path / "identity").exists():
        return Finding("data directory", "ok", f"{path} is new")
    kept = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    try:
        wrong = verify(path)
    except HeadraceError as error:
        if "held by" in error.message:
            return Finding("data directory", "ok", f"{error.message.partition(';')[0]}; {size(kept)}")
        return Finding("data directory", "fail", error.message, "headrace verify says more")
    if wrong:
        return Finding(
            "data directory",
            "fail",
            f"{len(wrong)} damaged places, first {wrong[0].message}",
            "headrace verify says more",
        )
    return Finding("data directory", "ok", f"{path}, {size(kept)}, every byte reads as it was written")


def _file_system(there: Path) -> Finding:
    kind = file_system_of(there)
    if kind in MEMORY_FILE_SYSTEMS:
        return Finding("file system", "fail", f"{kind}: memory, gone with a restart", "use a directory on a disk")
    if kind in NETWORK_FILE_SYSTEMS:
        return Finding("file system", "warn", f"{kind}: its syncs and locks are not a disk's", "use a local disk")
    return Finding("file system", "ok", kind or "unknown")


def _room(there: Path) -> Finding:
    free = shutil.disk_usage(there).free
    if free < _ROOM_FAIL_BYTES:
        return Finding("room", "fail", f"{size(free)} free", "make room: publishes would be refused with storage_full")
    if free < _ROOM_WARN_BYTES:
        return Finding("room", "warn", f"{size(free)} free", "make room, or lower retention.bytes of the topics")
    return Finding("room", "ok", f"{size(free)} free")


def _disk(there: Path) -> Finding:
    try:
        found = syncs(there)
    except OSError as error:
        return Finding("disk", "fail", f"a write and sync failed: {error.strerror}", "look at the disk")
    text = f"a sync takes {span_text(found.p50_ns)} (median), {span_text(found.p99_ns)} (99 of 100)"
    if found.p50_ns < _SYNC_UNBELIEVABLE_NS:
        return Finding("disk", "warn", text, "that is faster than any disk: does a cache confirm what is not kept?")
    if found.p50_ns > _SYNC_SLOW_NS:
        return Finding(
            "disk", "warn", text, "each confirmation waits for one: publish in batches, or use a faster disk"
        )
    return Finding("disk", "ok", text)


# -- the doors ---------------------------------------------------------------------------------------------------------


def _doors(patient: _Patient) -> Iterator[Finding]:
    from importlib.util import find_spec

    from headrace.frontends import is_loopback, open_listener, server_context
    from headrace.server import DOORS

    config = patient.config
    if not is_loopback(config.host) and not config.auth.keys:
        yield Finding(
            "host",
            "fail",
            f"{config.host} can be reached from other machines, and no key is configured",
            "set auth.keys (headrace token key), or --host 127.0.0.1",
        )
    for kind in DOORS:
        port = getattr(config, kind.setting)
        if port is None or find_spec(kind.module) is None:
            yield Finding(f"{kind.name} port", "ok", "off" if port is None else "not part of this build")
            continue
        try:
            open_listener(config.host, port, name=kind.name).close()
        except InvalidArgument as error:
            reason, _, todo = error.message.partition(";")
            yield Finding(f"{kind.name} port", "warn", reason, todo.strip() or "fine, when it is your server")
        else:
            yield Finding(f"{kind.name} port", "ok", f"{config.host}:{port} is free")
    try:
        if server_context(config.tls) is not None:
            yield Finding("certificate", "ok", config.tls.certificate)
    except InvalidArgument as error:
        yield Finding("certificate", "fail", error.message, "correct tls.certificate and tls.key")


def _server(patient: _Patient) -> Iterator[Finding]:
    place = patient.place
    if place.server is None:
        return
    import time

    try:
        with place.open() as broker:
            broker.call("topic.list")
            began = time.perf_counter_ns()
            topics = broker.call("topic.list")
            took = time.perf_counter_ns() - began
    except HeadraceError as error:
        yield Finding("server", "fail", error.message, "start it: headrace serve")
    else:
        yield Finding("server", "ok", f"{place.server} answers in {span_text(took)}; {len(topics)} topics")


CHECKS: Final[tuple[Callable[[_Patient], Iterator[Finding]], ...]] = (
    _python,
    _packages,
    _clock,
    _limits,
    _directory,
    _doors,
    _server,
)
