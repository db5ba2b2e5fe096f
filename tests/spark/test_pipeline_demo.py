"""The demo, from the first order to the page: what it shows is what happened."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "pipeline_demo.py"


class Page(HTMLParser):
    """What a browser would load from elsewhere, and what is open at the end."""

    VOID = ("meta", "line", "rect", "circle", "polyline", "link")

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [str(value) for name, value in attrs if name == "src" or (tag == "link" and name == "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.timeout(900)
@pytest.mark.feature("F243")
def test_the_demo_ends_in_one_page_that_needs_nothing_else(spark: Any, world: Any, tmp_path: Path) -> None:
    demo = ModuleType("pipeline_demo")
    exec(compile(DEMO.read_text(), str(DEMO), "exec"), demo.__dict__)  # noqa: S102 # an example of ours
    demo.lived(world.url, 150)
    page = demo.reported(world.url, tmp_path / "tables", spark, tmp_path / "report.html").read_text()
    reader = Page()
    reader.feed(page)
    assert (reader.loads, reader.open) == ([], [])
    assert page.count("<svg") >= 6
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert [title.split()[0] for title in titles] == ["Archive", "Latency", "Dead", "Redrive", "Redrive", "Dead"]
    [books] = [each for each in world.call("group.list", topic="orders") if each["group"] == "default"]
    assert f"{books['acked']:,} acked in the end" in page
    assert world.call("dlq.list", topic="orders", where={"error": "warehouse"}) == []
