"""The tutorial is a notebook: every block of it runs, in order, in one place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "spark-tutorial.md"


@pytest.mark.timeout(900)
@pytest.mark.feature("F132", "F133")
def test_the_blocks_of_the_tutorial_run_one_after_the_other(
    spark: Any, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Spark itself has another idea of where it is.
    text = PAGE.read_text().replace('"checkpoint"', repr(str(tmp_path / "checkpoint")))
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 10
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks):
        source = block.replace("headrace://127.0.0.1:7420", world.url)
        exec(compile(source, f"{PAGE.name}, block {number + 1}", "exec"), names)  # noqa: S102 # it is our own page
    assert (tmp_path / "latency" / "report.html").exists()
