"""A ``headrace serve`` with many lives: killed, paused and started again on the same data and ports."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

__all__ = ["BrokerProcess", "DidNotStart", "verify"]

DOORS: Final = ("native", "http", "mqtt", "grpc")
START_S: Final = 120
_LOOK_S: Final = 0.002
_SKEWED: Final = Path(__file__).with_name("skewed.py")


class DidNotStart(AssertionError):
    """The server ended, or was not ready in time."""


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class BrokerProcess:
    """``data`` lies in ``directory`` unless it is given; stderr goes to ``server.log`` beside it."""

    def __init__(
        self,
        directory: Path,
        *,
        doors: tuple[str, ...] = ("native",),
        data: Path | None = None,
        settings: tuple[str, ...] = (),
        skewed: bool = False,
        before: tuple[str, ...] = (),
    ) -> None:
        self.directory = directory
        self.data = data or directory / "data"
        self.log = directory / "server.log"
        self.ports = {door: _free_port() for door in doors}
        self.process: subprocess.Popen[bytes] | None = None
        self.lives = 0
        self.born_ns: list[int] = []
        self.restart_seconds: list[float] = []
        self._ready = directory / "ready.json"
        self._skew = directory / "skew"
        self._skewed = skewed
        self._before = before
        self._settings = [part for setting in settings for part in ("--set", setting)]
        directory.mkdir(parents=True, exist_ok=True)
        self.set_clock(0)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def address(self, door: str = "native") -> str:
        return f"127.0.0.1:{self.ports[door]}"

    @property
    def url(self) -> str:
        return f"headrace://{self.address()}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    # -- lives -------------------------------------------------------------------------------------------------------

    def begin(self) -> Self:
        """Start without waiting."""
        self._ready.unlink(missing_ok=True)
        ports = [part for door in DOORS for part in (f"--{door}-port", str(self.ports.get(door, "off")))]
        program = [sys.executable, str(_SKEWED)] if self._skewed else [sys.executable, "-m", "headrace"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *self._before,
                    *program,
                    *("serve", "--data-dir", str(self.data), "--ready-file", str(self._ready)),
                    *("--log-format", "json", *ports, *self._settings),
                ],
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**environment, "SKEW_FILE": str(self._skew)} if self._skewed else environment,
            )
        self.lives += 1
        self.born_ns.append(time.monotonic_ns())
        return self

    def await_ready(self) -> Self:
        assert self.process is not None
        deadline = time.monotonic() + START_S
        while not self._ready.exists():
            if self.process.poll() is not None:
                raise DidNotStart(f"the server ended with {self.process.returncode}: {self.last_words()}")
            if time.monotonic() > deadline:
                raise DidNotStart(f"the server was not ready in {START_S} s: {self.last_words()}")
            time.sleep(_LOOK_S)
        return self

    def start(self) -> Self:
        began = time.monotonic()
        self.begin().await_ready()
        self.restart_seconds.append(time.monotonic() - began)
        return self

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self, seconds: float = 60) -> int:
        """Ask it to stop; its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(seconds)

    # -- what is done to it ------------------------------------------------------------------------------------------

    def pause(self) -> None:
        if self.is_up:
            os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        if self.is_up:
            os.kill(self.pid, signal.SIGCONT)

    def set_clock(self, skew_ns: int) -> None:
        """How wrong its wall clock is from now on (``skewed`` only)."""
        if not self._skew.exists():
            self._skew.write_bytes(bytes(8))
        with self._skew.open("r+b") as file:
            file.write(struct.pack("<q", skew_ns))

    # -- what can be seen of it --------------------------------------------------------------------------------------

    def memory_bytes(self) -> int:
        """Resident memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def lines(self) -> list[dict[str, Any]]:
        """What it has said so far, in all its lives."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                found.append(dict(json.loads(line)))
            except ValueError:
                found.append({"event": line})
        return found

    def last_words(self) -> str:
        return " | ".join(str(line.get("reason") or line.get("event")) for line in self.lines()[-6:])

    def disk_bytes(self) -> int:
        """What its directory takes on the disk."""
        found = 0
        for place, _, names in os.walk(self.data):
            for name in names:
                try:
                    found += os.stat(os.path.join(place, name)).st_blocks * 512
                except FileNotFoundError:
                    continue  # let go of meanwhile
        return found


def verify(data: Path) -> tuple[bool, str]:
    """What ``headrace verify`` says of a directory that nobody has open."""
    ran = subprocess.run(
        [sys.executable, "-m", "headrace", "verify", "--data-dir", str(data), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.returncode == 0, (ran.stdout + ran.stderr).strip()
