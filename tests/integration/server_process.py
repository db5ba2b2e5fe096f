"""A real ``headrace serve`` for tests: port 0, a ready file, its log lines, and no way to be left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

DOORS = ("native", "http", "mqtt", "grpc")
SECONDS_MAX = 60


class ServerProcess:
    """Starts at once; ``ready`` waits until every door accepts. Only the doors named are open."""

    def __init__(
        self, data_dir: Path, *arguments: str, doors: tuple[str, ...] = ("native",), **environment: str
    ) -> None:
        self.data_dir = data_dir
        self.ready_file = data_dir.with_name(f"{data_dir.name}.ready")
        ports = [part for door in DOORS for part in (f"--{door}-port", "0" if door in doors else "off")]
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "headrace", "serve", "--data-dir", str(data_dir)),
                *("--ready-file", str(self.ready_file), "--log-format", "json", *ports, *arguments),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**{k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}, **environment},
        )
        self.said: list[dict[str, Any]] = []
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line.decode())
        self._lines.put("")

    def hear(self, event: str) -> dict[str, Any]:
        """The next log line with this event."""
        while True:
            try:
                line = self._lines.get(timeout=SECONDS_MAX)
            except Empty:
                raise AssertionError(f"{event!r} was not said in {SECONDS_MAX} s; before: {self.said[-5:]}") from None
            if not line:
                raise AssertionError(f"the server ended before it said {event!r}: {self.said[-5:]}")
            try:
                self.said.append(json.loads(line))
            except ValueError:
                self.said.append({"event": line.rstrip()})
            if self.said[-1]["event"] == event:
                return self.said[-1]

    def ready(self) -> dict[str, Any]:
        """What the ready file says."""
        self.hear("ready")
        return dict(json.loads(self.ready_file.read_text()))

    @property
    def pid(self) -> int:
        return self.process.pid

    def memory_bytes(self) -> int:
        """Resident memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def stop(self) -> int:
        """Ask it to stop; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        code = self.process.wait(SECONDS_MAX)
        self._reader.join(SECONDS_MAX)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None and not stream.closed:
                stream.close()
        return code

    def rest(self) -> list[dict[str, Any]]:
        """Everything it said until it ended."""
        while True:
            try:
                line = self._lines.get_nowait()
            except Empty:
                return self.said
            if line:
                try:
                    self.said.append(json.loads(line))
                except ValueError:
                    self.said.append({"event": line.rstrip()})
