"""``headrace serve``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from headrace.config.sources import Loaded
    from headrace.server import Server

DEFAULT_FILE = "headrace.yaml"


def _words(*words: str) -> click.Choice[str]:
    return click.Choice(words, case_sensitive=False)


@click.command()
@click.option("--config", "file", type=click.Path(path_type=Path), envvar="HEADRACE_CONFIG", help="A YAML file.")
@click.option("--data-dir", metavar="DIR", help="Where everything durable lives (./data).")
@click.option("--host", metavar="HOST", help="Where the doors listen (127.0.0.1).")
@click.option("--native-port", metavar="PORT", help="The native protocol (7420). 0 picks a free port, off closes it.")
@click.option("--http-port", metavar="PORT", help="HTTP, WebSocket and the console (8080).")
@click.option("--mqtt-port", metavar="PORT", help="MQTT 3.1.1 and 5 (1883).")
@click.option("--grpc-port", metavar="PORT", help="gRPC (9000).")
@click.option(
    "--journal", type=_words("disk", "memory"), metavar="disk|memory", help="memory keeps nothing over a restart."
)
@click.option("--node-id", metavar="N", help="Part of every message id, 0 to 1023; unique in a cluster.")
@click.option("--drain-timeout", metavar="SPAN", help="How long a stop waits for work in flight (30s).")
@click.option(
    "--log-format",
    type=_words("auto", "console", "json"),
    metavar="auto|console|json",
    help="Console on a terminal, JSON elsewhere (auto).",
)
@click.option(
    "--log-level",
    type=_words("debug", "info", "warning", "error"),
    metavar="LEVEL",
    help="debug, info, warning or error.",
)
@click.option("--ready-file", metavar="PATH", help="JSON written when every door accepts: addresses, pid, data_dir.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any other setting; may be repeated.")
@click.option("--print-config", is_flag=True, help="Print the effective configuration and where it came from.")
def serve(file: Path | None, settings: tuple[str, ...], print_config: bool, **given: str | None) -> int:
    """Start a server on a data directory, until SIGTERM or Ctrl-C.

    Settings come from defaults, headrace.yaml (or --config), HEADRACE_… variables, and flags; later ones win.
    """
    from headrace.config.sources import DEFAULT_ORIGIN, describe

    if file is None and Path(DEFAULT_FILE).is_file():
        file = Path(DEFAULT_FILE)
    flags: dict[str, object] = {_key(name): value for name, value in given.items() if value is not None}
    loaded = _load(file, flags, settings)
    if print_config:
        click.echo(describe(loaded), nl=False)
        return 0
    from headrace.diagnostics import configure
    from headrace.server import run

    configure(loaded.config.log)
    asked = [key for key, origin in loaded.origins.items() if origin != DEFAULT_ORIGIN]
    return run(loaded.config, asked=asked, announce=_announce)


def _load(file: Path | None, flags: dict[str, object], settings: tuple[str, ...]) -> Loaded:
    """The configuration. What is wrong with the flags alone is wrong usage."""
    from headrace.config.sources import load_server_config, parse_assignments
    from headrace.errors import InvalidArgument

    try:
        more = parse_assignments(settings)
    except InvalidArgument as wrong:
        raise click.UsageError(wrong.message) from None
    try:
        return load_server_config(file=file, environment=os.environ, flags=flags, more=more)
    except InvalidArgument as wrong:
        load_server_config(file=file, environment=os.environ)  # is it these?
        raise click.UsageError(wrong.message) from None


def _key(option: str) -> str:
    return option.replace("_", ".", 1) if option.startswith("log_") else option


def _announce(server: Server) -> None:
    """Where everything is, for whoever started it."""
    schemes = {"native": "headrace", "http": "http", "mqtt": "mqtt", "grpc": "grpc"}
    secure = "s" if server.config.tls.certificate else ""
    for name, address in server.addresses.items():
        click.echo(f"  {name:8} {schemes.get(name, name)}{secure}://{address}")
    if server.config.journal == "disk":
        click.echo(f"  {'data':8} {Path(server.config.data_dir).resolve()}")
    auth = server.config.auth
    allowed = [f"with a token of {auth.keys}"] if auth.keys else []
    if auth.passwords:
        allowed.append(f"by MQTT as a user of {auth.passwords}")
    who = " or ".join(allowed) or "from this machine only (no keys)"
    click.echo(f"  clients  {who}. Ctrl-C stops.")
    sys.stdout.flush()
