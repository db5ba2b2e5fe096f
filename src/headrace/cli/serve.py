"""``headrace serve``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from headrace.server import Server

DEFAULT_FILE = "headrace.yaml"


@click.command()
@click.option("--config", "file", type=click.Path(path_type=Path), envvar="HEADRACE_CONFIG", help="A YAML file.")
@click.option("--data-dir", metavar="DIR", help="Where everything durable lives (./data).")
@click.option("--host", metavar="HOST", help="Where the doors listen (127.0.0.1).")
@click.option("--native-port", metavar="PORT", help="The native protocol (7420). 0 picks a free port, off closes it.")
@click.option("--http-port", metavar="PORT", help="HTTP, WebSocket and the console (8080).")
@click.option("--mqtt-port", metavar="PORT", help="MQTT 3.1.1 and 5 (1883).")
@click.option("--grpc-port", metavar="PORT", help="gRPC (9000).")
@click.option("--journal", metavar="disk|memory", help="memory keeps nothing over a restart.")
@click.option("--node-id", metavar="N", help="Part of every message id, 0 to 1023; unique in a cluster.")
@click.option("--drain-timeout", metavar="SPAN", help="How long a stop waits for work in flight (30s).")
@click.option("--log-format", metavar="auto|console|json", help="Console on a terminal, JSON elsewhere (auto).")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--ready-file", metavar="PATH", help="JSON written when every door accepts: addresses, pid, data_dir.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any other setting; may be repeated.")
@click.option("--print-config", is_flag=True, help="Print the effective configuration and where it came from.")
def serve(file: Path | None, settings: tuple[str, ...], print_config: bool, **given: str | None) -> int:
    """Start a server on a data directory, until SIGTERM or Ctrl-C.

    Settings come from defaults, headrace.yaml (or --config), HEADRACE_… variables, and flags; later ones win.
    """
    from headrace.config.sources import DEFAULT_ORIGIN, describe, load_server_config, parse_assignments

    if file is None and Path(DEFAULT_FILE).is_file():
        file = Path(DEFAULT_FILE)
    flags: dict[str, object] = {_key(name): value for name, value in given.items() if value is not None}
    flags.update({one.key: one.value for one in parse_assignments(settings)})
    loaded = load_server_config(file=file, environment=os.environ, flags=flags)
    if print_config:
        click.echo(describe(loaded), nl=False)
        return 0
    from headrace.diagnostics import configure
    from headrace.server import run

    configure(loaded.config.log)
    asked = [key for key, origin in loaded.origins.items() if origin != DEFAULT_ORIGIN]
    return run(loaded.config, asked=asked, announce=_announce)


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
