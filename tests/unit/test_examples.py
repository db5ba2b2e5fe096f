"""Every example in a docstring, in the README and in the documentation runs and gives what it shows."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import headrace

PROJECT = Path(__file__).parents[2]
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
NEEDS = {"headrace.spark": "pyspark", "headrace.cli.__main__": "", "headrace.__main__": ""}
"""Modules that need something installed first, or that run when imported (empty)."""

MODULES = [found.name for found in pkgutil.walk_packages(headrace.__path__, "headrace.", onerror=lambda _: None)]
PAGES = [PROJECT / "README.md", PROJECT / "ARCHITECTURE.md", *sorted((PROJECT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module(name: str) -> None:
    for prefix, needed in NEEDS.items():
        if name.startswith(prefix):
            pytest.skip("runs when imported") if not needed else pytest.importorskip(needed)
    result = doctest.testmod(importlib.import_module(name), optionflags=OPTIONS)
    assert result.failed == 0


@pytest.mark.parametrize("page", [str(page.relative_to(PROJECT)) for page in PAGES])
def test_examples_of_a_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (PROJECT / page).read_text().replace("\n```", "\n\n")  # a fence would be read as output
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(text, {}, page, page, 0)
    assert doctest.DocTestRunner(optionflags=OPTIONS).run(test).failed == 0
