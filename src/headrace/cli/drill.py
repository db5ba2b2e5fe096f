"""``headrace drill``: does this machine keep what Headrace promises?"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click


@click.command()
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), help="Where (a new directory; default: temporary)."
)
@click.option(
    "--kills", type=click.IntRange(0, 100_000), default=10, show_default=True, help="Times to kill the server."
)
@click.option("--producers", type=click.IntRange(1, 64), default=2, show_default=True, help="Threads that publish.")
@click.option("--consumers", type=click.IntRange(1, 64), default=2, show_default=True, help="Threads that consume.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed, the same load.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def drill(directory: Path | None, kills: int, producers: int, consumers: int, seed: int, as_json: bool) -> int:
    """Kill a server again and again under load, on your disk, and check that nothing confirmed was lost.

    Exit code 0 when everything held, 1 when not.
    """
    import msgspec

    from headrace.errors import InvalidArgument
    from headrace.testing.drill import Drill

    def tell(line: str) -> None:
        if not as_json:
            click.echo(f"  {line}", err=True)

    with tempfile.TemporaryDirectory(prefix="headrace-drill-") as temporary:
        place = directory or Path(temporary)
        if directory is not None:
            try:
                directory.mkdir(parents=True)
            except OSError as error:
                raise InvalidArgument(f"--dir {directory}: {error.strerror}; it must be new") from None
        report = Drill(place, kills=kills, producers=producers, consumers=consumers, seed=seed, tell=tell).run()
    if as_json:
        click.echo(msgspec.json.encode(report.as_dict()).decode())
    else:
        restarts = sorted(report.restart_seconds)
        click.echo(f"killed         {report.kills} times")
        if restarts:
            click.echo(f"ready again    {restarts[len(restarts) // 2]} s in the middle, {restarts[-1]} s at most")
        click.echo(f"confirmed      {report.confirmed:,} published, {report.acked:,} acked")
        click.echo(f"came again     {report.delivered_twice:,} (delivered, and the ack not confirmed)")
        click.echo(f"lost           {report.lost:,}")
        click.echo(f"drift          {report.drift:,}")
        for violation in report.violations:
            click.echo(f"violation      {violation}")
        click.echo("everything held" if report.passed else "NOT everything held")
    return 0 if report.passed else 1
