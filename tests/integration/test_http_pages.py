"""The curl commands of the pages do what the pages say, on a server of their own; and none of the calls is left out."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.frontends.http.table import all_routes
from integration.server_process import ServerProcess

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["guides/http.md", "guides/monitoring.md"]
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "\x1e"


def blocks(page: str) -> list[tuple[str, str, str]]:
    """(what is to be run, what it is marked with, the output that stands below it or nothing) in their order."""
    found: list[tuple[str, str, str]] = []
    whole = (DOCS / page).read_text()
    end = 0
    for fence in FENCE.finditer(whole):
        kind, marked, text = fence.groups()
        if kind == "sh":
            found.append((text, marked.strip(), ""))
        elif kind in ("json", "text") and found and not whole[end : fence.start()].strip():
            found[-1] = (*found[-1][:2], text)
        end = fence.end()
    return found


def fits(shown: str, said: str) -> bool:
    """Whether an output is the one that is shown; … stands for anything, and spaces do not count."""
    pattern = ".*".join(re.escape("".join(part.split())) for part in shown.split("…"))
    return re.fullmatch(pattern, "".join(said.split()), re.DOTALL) is not None


@pytest.mark.feature("F259", "F258")
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_do_what_it_says(data_dir: Path, tmp_path: Path, page: str) -> None:
    server = ServerProcess(data_dir, doors=("http",))
    try:
        address = server.ready()["http"]
        run = blocks(page)
        assert run
        script = "set -eu\n" + f"\nprintf '{MARK}'\n".join(text for text, _, _ in run)
        done = subprocess.run(
            ["bash", "-c", script.replace("localhost:8080", address)],
            cwd=tmp_path,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "no_proxy": "*"},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr
        for (text, marked, shown), said in zip(run, done.stdout.split(MARK), strict=True):
            assert ('{"error"' in said) == (marked == "refused"), text + said
            assert not shown or fits(shown, said), f"{text}\nshown: {shown}\nsaid:  {said}"
        assert server.stop() == 0
    finally:
        if server.process.poll() is None:
            server.kill()


def test_every_call_has_its_command() -> None:
    """Each route of the default namespace stands on the page as a curl command."""
    commands = [line for text, _, _ in blocks("guides/http.md") for line in text.replace("\\\n", " ").splitlines()]
    called = set()
    for line in commands:
        for match in re.finditer(r"curl ([^|]*?)['\"]?localhost:8080([^\s'\"?]*)", line.replace("\\$", "$")):
            method = re.search(r"-X (\w+)", match[1] + line)
            body = re.search(r" (-d|--data-binary) ", line)
            called.add(((method[1] if method else "POST" if body else "GET"), match[2]))
    missing = []
    for route in all_routes():
        if route.path.startswith("/v1/namespaces/{namespace}/"):
            continue
        pattern = re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(route.path)))
        if not any(method == route.method and pattern.fullmatch(path) for method, path in called):
            missing.append(f"{route.method} {route.path}")
    assert not missing
