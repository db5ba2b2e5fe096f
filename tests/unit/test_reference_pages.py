"""The pages of the reference that are tables in the code say what the code says."""

from __future__ import annotations

import pytest

from tools import reference_pages


@pytest.mark.parametrize("name", reference_pages.PAGES)
def test_the_page_is_what_the_code_says(name: str) -> None:
    written = (reference_pages.REFERENCE / name).read_text()
    assert written == reference_pages.PAGES[name](), "run: python tools/reference_pages.py"
