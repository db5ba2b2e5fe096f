"""The table of commands, and how every one of them ends.

Exit codes: 0 done; 1 the operation failed, one sentence on stderr says what, why and what to do; 2 wrong usage; 130,
141 and 143 (128 + the signal) when Ctrl-C, a closed pipe or SIGTERM ended it. Results go to stdout, everything else to
stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple, NoReturn

import click

from headrace.errors import HeadraceError, RetryLater

__all__ = ["COMMANDS", "Terminated", "app", "main"]

INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141
TERMINATED: Final = 143


class Entry(NamedTuple):
    """Where a command is found, and its line in the list."""

    place: str
    help: str


COMMANDS: Final[dict[str, Entry]] = {
    "serve": Entry("headrace.cli.serve:serve", "Start a server on a data directory."),
    "topic": Entry("headrace.cli.topic:topic", "Make, look at, change and remove topics."),
    "publish": Entry("headrace.cli.publish:publish", "Publish a message, or each line of the input."),
    "consume": Entry("headrace.cli.consume:consume", "Print messages and ack them, or replay them."),
    "browse": Entry("headrace.cli.browse:browse", "Look at messages without taking them."),
    "trace": Entry("headrace.cli.trace:trace", "What happened to a message, event by event."),
    "explain": Entry("headrace.cli.trace:explain", "Why a message is, or is not, delivered now."),
    "group": Entry("headrace.cli.group:group", "The consumer groups of a topic: create, seek, pause …"),
    "schedule": Entry("headrace.cli.schedule:schedule", "Messages that are not due yet: list, cancel, move."),
    "dlq": Entry("headrace.cli.dlq:dlq", "Dead letters: list, redrive, purge."),
    "namespace": Entry("headrace.cli.namespace:namespace", "Namespaces, and what each may use."),
    "stats": Entry("headrace.cli.stats:stats", "Counts of topics and groups; --watch shows rates."),
    "pipeline": Entry("headrace.cli.pipeline:pipeline", "Jobs on Spark: archive, replay, redrive, analyse."),
    "doctor": Entry("headrace.cli.doctor:doctor", "Is everything here as a broker needs it?"),
    "verify": Entry("headrace.cli.verify:verify", "Read every byte of a data directory, and recount the books."),
    "drill": Entry("headrace.cli.drill:drill", "Kill a server again and again, and check that nothing is lost."),
    "bench": Entry("headrace.cli.bench:bench", "Measure what this place does in a second."),
    "token": Entry("headrace.cli.token:token", "Make keys and tokens, and look into them."),
    "completion": Entry("headrace.cli.completion:completion", "Complete commands in bash, zsh or fish."),
}


class _PipeClosed(Exception):
    """Whoever read our output has had enough."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: everything as with Ctrl-C, but for the exit code."""


class _Interrupted(Exception):
    """Ctrl-C, or SIGTERM."""

    def __init__(self, stopped: KeyboardInterrupt) -> None:
        super().__init__()
        self.exit_code = TERMINATED if isinstance(stopped, Terminated) else INTERRUPTED


class Table(click.Group):
    """A group whose commands are imported when they are named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, name = entry.place.partition(":")
        command = getattr(import_module(module), name)
        return command if isinstance(command, click.Command) else None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _PipeClosed from None  # click would end with 1, as if something had failed
        except KeyboardInterrupt as stopped:
            raise _Interrupted(stopped) from None  # click would write an empty line into whatever stderr is

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(name, COMMANDS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(COMMANDS)}"
            ctx.fail(f"there is no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"headrace {version('headrace')}")
        ctx.exit()


@click.group(cls=Table, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print the version."
)
def app() -> None:
    """One log: queue, topic, schedule and table.

    `headrace serve` starts a server; every other command talks to one (--server, $HEADRACE_URL), or opens a data
    directory itself (--data-dir).
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit as the head of this file says."""
    try:
        code = app.main(arguments, prog_name="headrace", standalone_mode=False)
        _flush()
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Exit as ended:
        sys.exit(ended.exit_code)
    except click.ClickException as wrong:
        wrong.show()
        sys.exit(wrong.exit_code)
    except (_Interrupted, click.Abort, KeyboardInterrupt) as stopped:
        _silence()
        if sys.stderr.isatty():
            click.echo(err=True)  # after the ^C
        sys.exit(stopped.exit_code if isinstance(stopped, _Interrupted) else INTERRUPTED)
    except (_PipeClosed, BrokenPipeError):
        _silence()
        sys.exit(PIPE_CLOSED)
    except HeadraceError as error:
        click.echo(f"headrace: {sentence(error)}", err=True)
        sys.exit(1)


def sentence(error: HeadraceError) -> str:
    """What went wrong, and how long to wait when that is all there is to do."""
    wait_ns = error.retry_after_ns
    if isinstance(error, RetryLater) and wait_ns and "again" not in error.message:
        return f"{error.message}; try again in {wait_ns / 1e9:g} s"
    return error.message


def _flush() -> None:
    sys.stdout.flush()


def _silence() -> None:
    """Nothing more can be said on stdout: what is still buffered must not fail again at exit."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
