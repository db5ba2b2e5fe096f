"""The README's words in another shell: what it says to type at a server is typed at one, in order."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.server_process import ServerProcess

PROJECT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS_MAX = 300


def blocks() -> list[tuple[str, str]]:
    """What the tour has from the server on: (language, text)."""
    tour = (PROJECT / "README.md").read_text().partition("### As a server")[2]
    return BLOCK.findall(tour)


class Site:
    """A server on free ports, and a directory in which the words are typed."""

    def __init__(self, data_dir: Path) -> None:
        self.process = ServerProcess(data_dir, doors=("native", "http", "mqtt"))
        self._addresses = self.process.ready()
        self._directory = data_dir.parent
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")} | {
            "HEADRACE_URL": f"headrace://{self._addresses['native']}",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def here(self, text: str) -> str:
        """The README's addresses become this server's."""
        mqtt_port = str(self._addresses["mqtt"]).rpartition(":")[2]
        text = text.replace("127.0.0.1:7420", self._addresses["native"])
        text = text.replace("127.0.0.1:8080", self._addresses["http"])
        return re.sub(r"(mosquitto_\w+) ", rf"\1 -p {mqtt_port} ", text)

    def type(self, *command: str) -> str:
        run = subprocess.run(
            command,
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert run.returncode == 0, f"{command[-1]}\n{run.stdout}{run.stderr}"
        return run.stdout


@pytest.fixture
def site(data_dir: Path) -> Iterator[Site]:
    found = Site(data_dir)
    yield found
    assert found.process.stop() == 0


def matches(expected: str, found: str) -> bool:
    """Is it what the page shows, with … for what differs from run to run?"""
    pattern = ".*".join(map(re.escape, expected.strip().split("…")))
    return re.fullmatch(pattern, found.strip()) is not None


@pytest.mark.timeout(400)
@pytest.mark.feature("F259", "F266", "F304")
def test_the_tour_works_as_it_is_pasted(site: Site) -> None:
    said = ""
    kinds = []
    for language, text in blocks():
        kinds.append(language)
        if language == "text":
            assert matches(text, said), said
        elif language == "python" and "spark" not in text:
            said = site.type(sys.executable, "-W", "error", "-c", site.here(text))
        elif language == "sh":
            if "mosquitto" in text and shutil.which("mosquitto_pub") is None:
                continue
            said = site.type("bash", "-euo", "pipefail", "-c", site.here(text))
            assert said.strip()
    assert kinds == ["sh", "text", "sh", "python", "sh", "sh", "python"]
    counts = json.loads(site.type("headrace", "group", "show", "emails", "mailers", "--json"))
    assert counts["acked"] > 0
    assert (counts["acked"] + counts["ready"], counts["leased"]) == (10_000, 0)  # it stops at the last of one partition


def test_the_commands_it_names_are_targets_of_make() -> None:
    text = (PROJECT / "README.md").read_text()
    targets = (PROJECT / "Makefile").read_text()
    for name in set(re.findall(r"\bmake ([a-z]+)\b", text)) - {"up"}:
        assert re.search(rf"^{name}:", targets, re.MULTILINE), name


def test_every_page_it_points_to_is_there() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", (PROJECT / "README.md").read_text()):
        assert (PROJECT / target).exists(), target
