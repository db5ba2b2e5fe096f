"""The pages of the reference that are tables in the code say what the code says."""

from __future__ import annotations

import pytest

from headrace.config import ServerConfig
from headrace.config.sources import load_server_config
from tools import reference_pages


@pytest.mark.parametrize("name", reference_pages.PAGES)
def test_the_page_is_what_the_code_says(name: str) -> None:
    written = (reference_pages.REFERENCE / name).read_text()
    assert written == reference_pages.PAGES[name](), "run: python -m tools.reference_pages"


@pytest.mark.feature("F254")
def test_the_example_file_names_every_setting_and_changes_nothing() -> None:
    assert reference_pages.EXAMPLE.read_text() == reference_pages.example_file(), "run: python -m tools.reference_pages"
    loaded = load_server_config(file=reference_pages.EXAMPLE, environment={})
    assert loaded.config == ServerConfig()
    said = {key for key, origin in loaded.origins.items() if reference_pages.EXAMPLE.name in origin}
    assert said == loaded.origins.keys() - set(reference_pages.EXTRA_DOORS)
