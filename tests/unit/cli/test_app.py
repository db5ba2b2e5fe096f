"""The frame of the command line: names, hints, exit codes, places, completion."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from headrace.cli.app import COMMANDS, app
from headrace.errors import HeadraceError, QueueFull
from unit.cli.conftest import Run


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_and_explains_itself(run: Run, name: str) -> None:
    command = app.get_command(click.Context(app), name)
    assert command is not None
    ran = run(name, "--help", place=())
    assert ran.code == 0
    assert command.help is not None
    assert COMMANDS[name].help in run("--help", place=()).text.replace("\n" + " " * 14, " ")


def every_command() -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []

    def collect(path: str, command: click.Command) -> None:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                collect(f"{path} {name}".strip(), inner)
        else:
            found.append((path, command))

    collect("", app)
    return found


def test_every_command_and_option_has_help() -> None:
    for path, command in every_command():
        assert command.help, path
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{path} {parameter.name}"


def test_every_command_and_option_is_in_the_reference() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/cli.md").read_text()
    for path, command in every_command():
        assert f"headrace {path}" in page, path
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.opts[0] in page, f"{path} {parameter.opts[0]}"


def test_names_and_options_with_a_slip_get_a_hint(run: Run) -> None:
    ran = run("consum", place=())
    assert ran.code == 2
    assert "did you mean 'consume'?" in ran.err
    ran = run("consume", "t", "--folow")
    assert ran.code == 2
    assert "--follow" in ran.err


def test_a_data_directory_that_is_not_there_is_not_made_by_looking(run: Run, tmp_path: Path) -> None:
    ran = run("topic", "list", place=("--data-dir", str(tmp_path / "typo")))
    assert ran.code == 1
    assert "there is no data directory" in ran.err
    assert not (tmp_path / "typo").exists()


def test_two_places_are_wrong_usage_but_the_variable_gives_way(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run("topic", "list", "--server", "headrace://localhost:1")
    assert ran.code == 2
    assert "give one of them" in ran.err
    run("publish", "t", "x")
    monkeypatch.setenv("HEADRACE_URL", "headrace://localhost:1")
    assert run("topic", "list").code == 0


def test_a_second_process_on_the_directory_is_told_who_has_it(run: Run, data_dir: Path) -> None:
    from headrace.broker.embedded import open_port

    port = open_port(data_dir)
    try:
        ran = run("topic", "list")
    finally:
        port.close()
    assert ran.code == 1
    assert str(os.getpid()) in ran.err or "another" in ran.err


def test_a_refusal_that_passes_says_when_to_try_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise QueueFull("topic 't' is full")

    monkeypatch.setattr("headrace.cli.place.Broker.call", full)
    run("publish", "t", "x")
    assert run("topic", "list").err == "headrace: topic 't' is full; try again in 1 s\n"


def test_ctrl_c_in_a_data_directory_waits_for_the_operation(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.cli.place import Broker

    called = Broker.call
    over: list[str] = []

    def interrupted(self: Broker, method: str, **arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        result = called(self, method, **arguments)
        over.append(method)
        return result

    monkeypatch.setattr(Broker, "call", interrupted)
    ran = run("topic", "create", "t")
    assert ran.code == 130
    assert over == ["topic.create"]
    monkeypatch.undo()
    assert [one["topic"] for one in run("topic", "list", "--json").json] == ["t"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_a_shell(run: Run, shell: str) -> None:
    assert "_HEADRACE_COMPLETE" in run("completion", shell, place=()).text


def test_a_shell_is_told_commands_options_and_values(data_dir: Path) -> None:
    def completed(words: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-c", "from headrace.cli import main; main()"],
            env={
                **os.environ,
                "_HEADRACE_COMPLETE": "bash_complete",
                "COMP_WORDS": words,
                "COMP_CWORD": str(words.count(" ")),
            },
            capture_output=True,
            timeout=60,
            check=False,
        )
        return ran.stdout.decode()

    assert "plain,consume" in completed("headrace con")
    assert "plain,--follow" in completed("headrace consume --fo")


def test_the_command_line_starts_light() -> None:
    program = "import sys; from headrace.cli.app import app; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60).stdout.split()
    assert not {b"pyarrow", b"rich", b"asyncio", b"structlog", b"headrace.broker", b"yaml"} & set(loaded)


def test_the_table_names_only_what_can_be_imported() -> None:
    for name in COMMANDS:
        assert app.get_command(click.Context(app), name) is not None


def test_errors_are_one_sentence() -> None:
    from headrace.cli.app import sentence

    assert sentence(HeadraceError("went wrong")) == "went wrong"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("topic", "create", "x", "--ordering", "fifo"), "'fifo' is not one of 'none', 'key', 'partition', 'strict'"),
        (("topic", "create", "x", "--set", "foo"), "expected key=value"),
        (("topic", "config", "x", "--set", "foo"), "expected key=value"),
        (("group", "config", "x", "g", "--set", "=1"), "expected key=value"),
        (("serve", "--native-port", "99999"), "--native-port: native_port: '99999'"),
        (("serve", "--log-level", "loud"), "'loud' is not one of"),
        (("serve", "--journal", "ssd"), "'ssd' is not one of"),
        (("serve", "--drain-timeout", "5"), "'5' has no unit"),
        (("serve", "--set", "foo"), "expected key=value"),
        (("serve", "--set", "foo=1"), "--set: unknown key 'foo'"),
        (("token", "create", "--keys", "k", "--subject", "s", "--verb", "publish", "--ttl", "30"), "'30' has no unit"),
    ],
)
def test_what_was_typed_wrong_is_wrong_usage(run: Run, arguments: tuple[str, ...], says: str) -> None:
    ran = run(*arguments, place=())
    assert (ran.code, ran.out) == (2, b"")
    assert says in ran.err


def test_a_configuration_file_that_is_wrong_is_no_wrong_usage(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "headrace.yaml"
    file.write_text("http_prot: 1\n")
    ran = run("serve", "--config", str(file), "--native-port", "99999", place=())
    assert ran.code == 1
    assert "http_prot" in ran.err


def completions(line: str) -> set[str]:
    from click.shell_completion import ShellComplete

    *words, incomplete = line.split(" ")
    found = ShellComplete(app, {}, "headrace", "_HEADRACE_COMPLETE").get_completions(words, incomplete)
    return {each.value for each in found}


def test_values_are_completed() -> None:
    assert completions("topic create x --ordering ") == {"none", "key", "partition", "strict"}
    assert completions("publish x --priority ") == {"high", "normal", "low", *map(str, range(10))}
    assert completions("publish x --priority h") == {"high"}
    assert completions("serve --log-level ") == {"debug", "info", "warning", "error"}
    assert completions("browse x --state d") == {"dead"}


def test_the_orderings_are_those_of_the_configuration() -> None:
    from headrace.config.topic import ORDERING

    assert completions("topic create x --ordering ") == set(ORDERING.words)
