"""Lines of the process: structured, filtered, and never forged."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from headrace import diagnostics
from headrace.clock import ManualClock
from headrace.config import LogConfig


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def configured(**settings: str) -> io.StringIO:
    stream = io.StringIO()
    clock = ManualClock(wall_ns=1_735_689_600_123_456_789)
    diagnostics.configure(LogConfig(**settings), stream=stream, clock=clock)  # type: ignore[arg-type]
    return stream


@pytest.mark.feature("F245")
def test_a_line_is_one_json_object_with_time_level_event_and_what_was_bound() -> None:
    stream = configured(format="json")
    diagnostics.logger("http").info("listening", port=8080)
    assert json.loads(stream.getvalue()) == {
        "timestamp": "2025-01-01T00:00:00.123Z",
        "level": "info",
        "event": "listening",
        "area": "http",
        "port": 8080,
    }


@pytest.mark.feature("F245")
@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_lines_below_the_level_are_not_written(level: str, shown: list[str]) -> None:
    stream = configured(format="json", level=level)
    log = diagnostics.logger("x")
    for name in ("debug", "info", "warning", "error"):
        getattr(log, name)("said")
    assert [json.loads(line)["level"] for line in stream.getvalue().splitlines()] == shown


@pytest.mark.feature("F245")
def test_a_console_line_is_for_people() -> None:
    stream = configured(format="console")
    diagnostics.logger("http").warning("slow client", client="c1")
    line = stream.getvalue()
    assert "slow client" in line
    assert "client=c1" in line
    assert not line.startswith("{")


def test_what_is_not_a_terminal_gets_json() -> None:
    stream = configured(format="auto")
    diagnostics.logger("x").info("said")
    assert json.loads(stream.getvalue())["event"] == "said"


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize("by", ["value", "event", "library"])
def test_a_line_feed_or_escape_sequence_from_a_client_cannot_forge_a_line(form: str, by: str) -> None:
    stream = configured(format=form)
    evil = 'device\r\n\x1b[2J{"level":"info"}'
    match by:
        case "value":
            diagnostics.logger("mqtt").info("connected", client=evil)
        case "event":
            diagnostics.logger("mqtt").info(evil)
        case "library":
            logging.getLogger("uvicorn").warning("bad request from %s", evil)
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert "\r" not in text
    assert "\x1b[2J" not in text


def test_lines_of_libraries_come_out_in_the_same_form() -> None:
    stream = configured(format="json")
    logging.getLogger("uvicorn.error").warning("port %d is taken", 80)
    line = json.loads(stream.getvalue())
    assert (line["level"], line["event"], line["timestamp"]) == (
        "warning",
        "port 80 is taken",
        "2025-01-01T00:00:00.123Z",
    )


def test_an_exception_keeps_its_trace() -> None:
    stream = configured(format="json")
    try:
        raise ValueError("broken")
    except ValueError:
        diagnostics.logger("x").exception("failed")
    assert "ValueError: broken" in json.loads(stream.getvalue())["exception"]


def test_a_value_json_does_not_know_is_shown_as_python_shows_it() -> None:
    stream = configured(format="json")
    diagnostics.logger("x").info("said", kind=LogConfig)
    assert "LogConfig" in json.loads(stream.getvalue())["kind"]
