"""``headrace completion``: what a shell needs to complete commands, options and their values."""

from __future__ import annotations

import click

__all__ = ["completion"]

_HOW = {
    "bash": 'eval "$(headrace completion bash)"          in ~/.bashrc',
    "zsh": 'eval "$(headrace completion zsh)"           in ~/.zshrc, after compinit',
    "fish": "headrace completion fish | source           in ~/.config/fish/config.fish",
}


@click.command(epilog="\b\n" + "\n".join(_HOW.values()))
@click.argument("shell", type=click.Choice(list(_HOW)))
def completion(shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    from headrace.cli.app import app

    kind = get_completion_class(shell)
    if kind is not None:  # the choices are those that click knows
        click.echo(kind(app, {}, "headrace", "_HEADRACE_COMPLETE").source())
