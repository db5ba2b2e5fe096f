"""``headrace pipeline``: the jobs that run on Spark.

The commands are made from the catalogue of jobs, which needs no Spark; Spark is imported when a job is run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any, Final

import click

from headrace.cli.output import displayed
from headrace.cli.place import DEFAULT_URL, Place, located
from headrace.cli.values import MOMENT, SPAN
from headrace.errors import HeadraceError, InvalidArgument
from headrace.names import DEFAULT_NAMESPACE

__all__ = ["pipeline"]

_EXTRA: Final = "jobs run on Spark, which is not installed: pip install 'headrace[spark]'"
_LINE: Final = 160


@click.group()
def pipeline() -> None:
    """Jobs on Spark: archive, replay, redrive, analyse."""


def _catalogue() -> Any:
    """The jobs; they are data, but live beside what needs Spark."""
    from importlib import import_module

    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise InvalidArgument(_EXTRA)
    return import_module("headrace.spark.jobs.catalogue")


@pipeline.command("list")
@click.option("--json", is_flag=True, help="One JSON value a line on stdout.")
def list_(json: bool) -> None:
    """Which jobs there are, and the tables they write."""
    from headrace.cli.output import Output

    out = Output(json=json)
    for job in _catalogue().JOBS.values():
        plain = {
            "name": job.name,
            "about": job.about,
            "options": [option.name for option in job.options],
            "tables": {table.name: table.columns for table in job.tables},
        }
        out.value(plain, f"{job.name:<13} {job.about}")


class Jobs(click.Group):
    """One command a job."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_catalogue().JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        job = _catalogue().JOBS.get(cmd_name)
        return None if job is None else _command(job)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            close = get_close_matches(args[0], known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
            ctx.fail(f"there is no job {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)


@pipeline.command("run", cls=Jobs)
def run() -> None:
    """Run a job: `headrace pipeline run JOB --help` shows what it can be told."""


def _command(job: Any) -> click.Command:
    """A job as a command with its options."""

    @click.pass_context
    def callback(ctx: click.Context, /, place: Place, **given: Any) -> None:
        _run(job, place, given)

    command: Any = located(callback)
    for option in reversed([*_common(job), *(_option(option) for option in job.options)]):
        command = option(command)
    tables = "\n\n".join(f"{table.name}: {table.about}." for table in job.tables)
    return click.command(job.name, help=f"{job.about}\n\nTables:\n\n{tables}")(command)


def _common(job: Any) -> list[Callable[[Any], Any]]:
    where = "Write tables and the report here: a directory, or an address such as s3://…"
    return [
        click.option("--topic", "topics", multiple=True, metavar="NAME", help="About this topic; repeatable."),
        click.option("--pattern", metavar="REGEX", help="About the topics whose whole name matches."),
        click.option("--out", metavar="DIR", help=where + ("" if job.out else " (not needed)")),
        click.option(
            "--away", "away_ns", type=SPAN, metavar="SPAN", help="How long a broker that is away is waited for (60s)."
        ),
        click.option("--dry-run", is_flag=True, help="Only say what would be done."),
        click.option("--master", metavar="URL", help="Spark's master: local[*] (without), spark://…, yarn, k8s://…"),
        click.option("--remote", metavar="URL", help="A Spark Connect server, sc://…, instead of a master."),
        click.option("--conf", "conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark's; repeatable."),
    ]


_KINDS: Final[dict[str, Any]] = {
    "text": str,
    "texts": str,
    "path": str,
    "time": MOMENT,
    "span": SPAN,
    "whole": int,
    "number": float,
}


def _option(option: Any) -> Callable[[Any], Any]:
    flag = "--" + option.name.replace("_", "-")
    about = option.help + (_otherwise(option) if option.otherwise is not None else "")
    if option.kind == "flag":
        return click.option(flag, option.name, is_flag=True, default=None, help=about)
    return click.option(
        flag,
        option.name,
        type=_KINDS[option.kind],
        metavar=option.kind.removesuffix("s").upper(),
        required=option.required,
        help=about,
        multiple=option.kind == "texts",
    )


def _otherwise(option: Any) -> str:
    shown = f"{option.otherwise / 1e9:g}s" if option.kind == "span" else f"{option.otherwise}"
    return f" ({shown})"


def _run(job: Any, place: Place, given: dict[str, Any]) -> None:
    from headrace.spark.jobs import run_job

    out = place.output
    conf = dict(_setting(text) for text in given.pop("conf"))
    common: dict[str, Any] = {
        name: given.pop(name) for name in ("topics", "pattern", "out", "dry_run", "master", "remote")
    }
    options: dict[str, Any] = {
        name: list(value) if isinstance(value, tuple) else value for name, value in given.items()
    }
    say = _say if sys.stderr.isatty() and not out.json else None
    try:
        report = run_job(
            job.name,
            server="" if place.embedded else place.server or DEFAULT_URL,
            data_dir=str(place.data_dir) if place.data_dir is not None else "",
            namespace=place.namespace or DEFAULT_NAMESPACE,
            token=place.token,
            ca_file=str(place.ca_file) if place.ca_file is not None else None,
            conf=conf,
            say=say,
            **common,
            **{name: value for name, value in options.items() if value is not None},
        )
    except HeadraceError:
        raise
    except Exception as error:
        raise InvalidArgument(_said(error)) from error
    finally:
        if say is not None:
            say("")
    out.value(report.plain(), report.text())


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--conf {text!r}: must be KEY=VALUE")
    return name, value


def _said(error: Exception) -> str:
    """What went wrong inside Spark, in one line: the last cause that says something, without the JVM's trace."""
    from headrace.spark.jobs.failure import told

    return told(error)


def _say(text: str) -> None:
    """One line on the terminal that is written over by the next."""
    sys.stderr.write(f"\r\x1b[K{displayed(text, _LINE)}")
    sys.stderr.flush()
