"""``spark_child.py`` from outside: start it, wait until its queries have stopped, kill it and everything it started."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS = 240


class DriverProcess:
    """A Spark driver in a process group of its own."""

    def __init__(self, queries: list[dict[str, Any]], *, master: str, conf: dict[str, str], log: Path) -> None:
        self.queries = queries
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(SECONDS)
        self._stopped: list[socket.socket] = []
        self.stopped: list[int] = []
        tell = self._listener.getsockname()[1]
        asked = json.dumps({"master": master, "conf": conf, "tell": tell, "queries": queries})
        self._log = log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("spark_child.py")), asked],
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self.log = log

    def told(self) -> str:
        """The next line it prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode().strip()
        assert line, f"the driver ended: {self.log.read_text()[-3_000:]}"
        return line

    def await_stops(self) -> None:
        """Until every query that is to stop has."""
        for _ in [each for each in self.queries if "stop" in each]:
            try:
                line, _ = self._listener.accept()
            except TimeoutError:
                raise AssertionError(f"it did not stop where it should: {self.log.read_text()[-3_000:]}") from None
            self._stopped.append(line)
            self.stopped.append(int(line.makefile().readline().split()[1]))

    def kill_executor(self) -> None:
        """The executor in which the first query stopped."""
        at = self.stopped[0]
        while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{at}/cmdline").read_bytes():
            at = _parent(at)
            assert at > 1, "it did not stop in an executor"
        os.kill(at, signal.SIGKILL)

    def finish(self) -> None:
        """Until its queries have ended by themselves."""
        assert self.process.wait(SECONDS) == 0, self.log.read_text()[-3_000:]

    def kill(self) -> None:
        """Everything of it at once, as a machine that loses power."""
        for place in Path("/proc").iterdir():
            if place.name.isdigit():
                try:
                    if os.getsid(int(place.name)) == self.process.pid:
                        os.kill(int(place.name), signal.SIGKILL)
                except ProcessLookupError:
                    continue  # it is gone already
        self.process.wait(SECONDS)
        for each in (*self._stopped, self._listener):
            each.close()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
