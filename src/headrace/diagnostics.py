"""What the process says about itself: structured lines on stderr, one event each.

Nothing a client sent reaches a terminal or a log file raw: control characters are escaped in every text, so that a name
with a line feed cannot forge a second line. Lines of libraries that use the standard logging go the same way. Below the
front-ends nothing logs: rooms there return, raise or count.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec
import structlog

from headrace.clock import Clock, SystemClock
from headrace.config import LogConfig

__all__ = ["configure", "logger"]

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_NS_PER_US = 1_000

Event = MutableMapping[str, Any]


def configure(config: LogConfig, *, stream: TextIO | None = None, clock: Clock | None = None) -> None:
    """Sets level and format for the whole process; call it once, before anything logs."""
    target = sys.stderr if stream is None else stream
    as_json = config.format == "json" or (config.format == "auto" and not target.isatty())
    prepare: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        _stamper(clock or SystemClock()),
        structlog.processors.format_exc_info,
        _escape,
    ]
    render: structlog.typing.Processor = (
        _render_json if as_json else structlog.dev.ConsoleRenderer(colors=target.isatty())
    )
    structlog.configure(
        processors=[*prepare, render],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[config.level]),
        logger_factory=structlog.PrintLoggerFactory(target),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*prepare],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _escape, render],
        )
    )
    logging.basicConfig(level=_LEVELS[config.level], handlers=[handler], force=True)


def logger(area: str) -> structlog.typing.FilteringBoundLogger:
    """A logger whose lines name their area: ``logger("http").info("listening", port=8080)``."""
    bound: structlog.typing.FilteringBoundLogger = structlog.get_logger(area=area)
    return bound


def _stamper(clock: Clock) -> Callable[[Any, str, Event], Event]:
    def stamp(_logger: Any, _method: str, event: Event) -> Event:
        seconds, rest_ns = divmod(clock.wall_ns(), 1_000_000_000)
        moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest_ns // _NS_PER_US)
        event["timestamp"] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return event

    return stamp


def _escape(_logger: Any, _method: str, event: Event) -> Event:
    for name, value in event.items():
        if name == "exception":
            continue  # many lines by nature; JSON escapes them, a terminal shows them
        if isinstance(value, str) and not value.isprintable():
            event[name] = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in value)
    return event


def _render_json(_logger: Any, _method: str, event: Event) -> str:
    ordered = {name: event.pop(name) for name in ("timestamp", "level", "event") if name in event}
    return msgspec.json.encode({**ordered, **event}, enc_hook=repr).decode()
