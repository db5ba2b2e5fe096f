"""Runs commands in this process, as ``main`` does, over bytes."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.cli import main


class Ran(NamedTuple):
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Ran]


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> Run:
    """``run("topic", "list")`` on a data directory of its own; ``place=()`` leaves the place to the arguments."""
    for name in ("HEADRACE_URL", "HEADRACE_NAMESPACE", "HEADRACE_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def run_one(
        *arguments: str,
        stdin: bytes | io.BufferedIOBase = b"",
        terminal: bool = False,
        place: tuple[str, ...] = ("--data-dir", str(data_dir)),
        out: io.BytesIO | None = None,
    ) -> Ran:
        raw, err = out if out is not None else io.BytesIO(), io.StringIO()
        source = io.BytesIO(stdin) if isinstance(stdin, bytes) else stdin
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdin", (_Terminal if terminal else io.TextIOWrapper)(source))  # type: ignore[arg-type]
            patched.setattr(sys, "stdout", io.TextIOWrapper(raw, write_through=True))
            patched.setattr(sys, "stderr", err)
            with pytest.raises(SystemExit) as ended:
                main([*arguments, *place])
            code = ended.value.code
            sys.stdout.detach()  # what was written stays readable
        return Ran(code if isinstance(code, int) else 0, raw.getvalue() if not raw.closed else b"", err.getvalue())

    return run_one
