"""``headrace verify``: does everything in a data directory read as it was written, and do the books balance?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.output import Output, Progress, count, size
from headrace.cli.place import Place, located
from headrace.errors import InvalidArgument

if TYPE_CHECKING:
    from headrace.config import ServerConfig
    from headrace.shard.verifying import Report

__all__ = ["verify"]


@click.command()
@click.option("--config", "file", type=click.Path(path_type=Path), envvar="HEADRACE_CONFIG", help="A YAML file.")
@click.option("--sealed", metavar="URI", help="Where the sealed files are (as configured, else DIR/log).")
@click.option("--archive", metavar="URI", help="Where the archive is (as configured).")
@click.option("--salvage", is_flag=True, help="First close what is unreadable in the journal; the rest is saved.")
@located
def verify(place: Place, file: Path | None, sealed: str | None, archive: str | None, salvage: bool) -> int:
    """Read the journal and every sealed file, and recount the books; no server may have the directory open.

    Exit code 0 when everything is as it was written and adds up, 1 when not. Nothing is changed, except by --salvage:
    it copies each damaged journal file to damaged-… before it closes what is unreadable in it.
    """
    from headrace.broker.embedded import SEALED
    from headrace.log.store import open_store
    from headrace.shard.verifying import verify as look_over

    source = click.get_current_context().get_parameter_source("server")
    if source is not None and source.name == "COMMANDLINE":
        raise click.UsageError("verify reads the files of a server that is stopped: give --data-dir, not --server")
    config = _config(file)
    directory = place.data_dir or Path(config.data_dir)
    if not (directory / "identity").exists():
        raise InvalidArgument(f"there is no journal in {directory}; name the data directory with --data-dir")
    if salvage:
        _salvage(place.output, directory)
    store = open_store(sealed or config.seal.location or f"{directory}/{SEALED}")
    old = archive or config.seal.archive
    with Progress("files looked at") as progress:
        report = look_over(
            directory,
            store=store,
            archive=open_store(old) if old else None,
            tell=lambda done, total: progress.at(done),
        )
    _tell(place.output, report)
    return 0 if report.ok else 1


def _config(file: Path | None) -> ServerConfig:
    from headrace.cli.serve import DEFAULT_FILE
    from headrace.config.sources import load_server_config

    if file is None and Path(DEFAULT_FILE).is_file():
        file = Path(DEFAULT_FILE)
    return load_server_config(file=file, environment=os.environ).config


def _salvage(out: Output, directory: Path) -> None:
    from headrace.journal import salvage

    for finding in salvage(directory):
        lost = f"closed, {count(finding.end - finding.start)} bytes are lost" if finding.end > 0 else "stays"
        out.note(f"{finding.message}: {lost}")


def _tell(out: Output, report: Report) -> None:
    if out.json:
        out.value(report.plain())
        return
    for problem in report.problems:
        out.line(f"{problem.kind:10} {problem.place}: {problem.message}")
    for each in report.unread:
        out.line(f"not looked at: {each}")
    rows: dict[str, Any] = {
        "journal": size(report.journal_bytes),
        "sealed": f"{count(report.segments)} files of messages ({count(report.sealed_messages)} messages, "
        f"{size(report.sealed_bytes)}), {count(report.event_files)} of events",
        "kept": f"{count(report.messages)} messages of {count(report.topics)} topics, {count(report.groups)} groups",
    }
    for name, text in rows.items():
        out.line(f"{name:10} {text}")
    if report.ok:
        out.line("everything reads as it was written, and the books balance")
    else:
        out.line(f"{count(len(report.problems))} things are wrong")
