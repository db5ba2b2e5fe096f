"""Every program in examples/ runs as it says, and prints what it should."""

from __future__ import annotations

import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPECTED = {
    "basic": "published at offset 0\nb'user-1' wants one apple (shop eu, attempt 1)\n",
    "pubsub": "mail: rain in Rome\nmail: sun in Sydney\neu: rain in Rome\n",
    "persistent": "".join(f"after the restart: order {n}\n" for n in range(3)),
    "consumer_groups": "6 keys, 120 messages\nin order within each key: True\n",
    "delayed": "3 scheduled\n2 after one was cancelled\ndue: soon\n",
    "priority": "0 page the operator\n1 reset a password\n5 send the newsletter\n9 clean up\n",
    "worker": "mail to ann@example.org\nrecorded: mailed ann@example.org\n",
    "request_reply": (
        "user-1: yes\nuser-2: no\nno answer from 'auth/validate' within 0.05s; it may still be handled\n"
    ),
    "ordered_retries": (
        "ann 1 fails, attempt 1\nbob 1 works\nann 1 fails, attempt 2\nann 1 fails, attempt 3\nann 2 works\n"
        "dead: ann 1 (max_retries, no such address)\n"
    ),
}


@pytest.mark.feature("F268", "F305")
@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_prints_what_it_should(name: str) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, EXPECTED[name]), run.stderr


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {
        *EXPECTED, "web_app", "pipeline_demo",  # the last one in tests/spark
    }  # fmt: skip


def test_a_web_application_keeps_its_queue_in_itself(data_dir: Path) -> None:
    module = ModuleType("web_app")
    exec((EXAMPLES / "web_app.py").read_text(), module.__dict__)  # noqa: S102 - an example of ours, run as it stands
    app = module.App(str(data_dir), 0)
    serving = threading.Thread(target=app.serve)
    serving.start()
    try:
        url = f"http://127.0.0.1:{app.server.server_address[1]}/orders"
        for n in range(3):
            with urllib.request.urlopen(url, data=f"order {n}".encode(), timeout=30) as answer:
                assert answer.status == 202
                assert answer.read().startswith(b"order ")
        with app.progress:
            assert app.progress.wait_for(lambda: len(app.handled) == 3, 30)
        assert sorted(app.handled) == ["order 0", "order 1", "order 2"]
    finally:
        app.close()
        serving.join()
