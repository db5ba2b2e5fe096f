"""The command line as people use it: processes, pipes and signals, at a real server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.server_process import ServerProcess

SECONDS_MAX = 60


@pytest.fixture
def server(data_dir: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(data_dir)
    yield process
    if process.process.poll() is None:
        process.kill()


class Shell:
    """Runs commands at one server."""

    def __init__(self, url: str) -> None:
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        self.environment["HEADRACE_URL"] = url

    def begin(self, *arguments: str, stdin: Any = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "headrace", *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )

    def run(self, *arguments: str, given: bytes = b"") -> tuple[int, bytes, str]:
        with self.begin(*arguments, stdin=subprocess.PIPE) as process:
            out, err = process.communicate(given, timeout=SECONDS_MAX)
            return process.returncode, out, err.decode()


@pytest.fixture
def shell(server: ServerProcess) -> Shell:
    return Shell(f"headrace://{server.ready()['native']}")


@pytest.mark.feature("F229", "F230")
def test_a_hundred_thousand_lines_go_through_a_pipe_and_come_out_in_order(shell: Shell) -> None:
    lines = b"".join(b"%d\n" % i for i in range(100_000))
    assert shell.run("publish", "n", "--lines", given=lines)[:2] == (0, b"published 100,000 to n\n")
    code, out, _ = shell.run("consume", "n", "--limit", "30000")
    assert code == 0
    rest = shell.run("consume", "n")[1]
    assert out + rest == lines
    assert shell.run("consume", "n", "--from-offset", "0:99998")[1] == b"99998\n99999\n"


def test_nothing_behind_a_line_that_is_too_large_is_published(shell: Shell) -> None:
    before = b"".join(b"%d\n" % i for i in range(20_000))
    behind = b"".join(b"%d\n" % i for i in range(20_000, 60_000))
    code, out, err = shell.run("publish", "refuse", "--lines", given=before + b"x" * 2_000_000 + b"\n" + behind)
    assert (code, out) == (1, b"")
    assert "line 20001: a message of 2000000 bytes" in err
    assert "the 20,000 messages before it are published, and none from line 20001 on" in err
    assert shell.run("publish", "refuse", "--lines", given=behind)[0] == 0
    assert shell.run("consume", "refuse")[1] == before + behind


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_following_acks_what_was_printed_and_nothing_else(shell: Shell, number: int, code: int) -> None:
    shell.run("publish", "t", "--lines", given=b"".join(b"%d\n" % i for i in range(3000)))
    with shell.begin("consume", "t", "--follow") as follower:
        assert follower.stdout is not None
        first = follower.stdout.readline()
        follower.send_signal(number)
        printed = first + follower.stdout.read()
        assert follower.stderr is not None
        assert follower.stderr.read() == b""
        assert follower.wait(SECONDS_MAX) == code
    count = len(printed.splitlines())
    (group,) = (json.loads(shell.run("group", "list", "t", "--json")[1].splitlines()[0]),)
    assert (group["acked"], group["leased"]) == (count, 0)
    assert printed + shell.run("consume", "t")[1] == b"".join(b"%d\n" % i for i in range(3000))


def test_a_stopped_publish_says_how_far_it_came(shell: Shell) -> None:
    with shell.begin("publish", "t", "--lines", stdin=subprocess.PIPE) as publisher:
        assert publisher.stdin is not None
        publisher.stdin.write(b"1\n2\n3\n")
        publisher.stdin.flush()
        while shell.run("consume", "t", "--limit", "3", "--wait", "1s", "--no-ack")[1] != b"1\n2\n3\n":
            pass  # the topic is not there yet, or not all of them
        publisher.send_signal(signal.SIGTERM)
        assert publisher.stderr is not None
        assert publisher.stderr.read() == b"published 3\n"
        assert publisher.wait(SECONDS_MAX) == 143


def test_a_data_directory_is_closed_on_sigterm(shell: Shell, data_dir: Path) -> None:
    place = ("--data-dir", str(data_dir / "own"))
    assert shell.run("publish", "t", "x", *place)[0] == 0
    with shell.begin("consume", "t", "--follow", *place) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"x\n"
        follower.send_signal(signal.SIGTERM)
        assert follower.wait(SECONDS_MAX) == 143
    group = json.loads(shell.run("group", "show", "t", "--json", *place)[1])
    assert (group["acked"], group["leased"], group["consumers"]) == (1, 0, [])


def test_a_pipe_sees_each_round_of_the_counts_when_it_comes(shell: Shell) -> None:
    shell.run("publish", "t", "x")
    with shell.begin("stats", "--watch", "--every", "100ms") as watching:
        assert watching.stdout is not None
        seen = 0
        while seen < 3:
            seen += b"acked/s" in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        watching.stdout.read()
        assert watching.wait(SECONDS_MAX) == 130


def test_a_reader_that_leaves_ends_the_command_quietly(shell: Shell) -> None:
    shell.run("publish", "t", "--lines", given=b"".join(b"%d\n" % i for i in range(50_000)))
    with shell.begin("consume", "t", "--json") as consumer:
        assert consumer.stdout is not None
        assert json.loads(consumer.stdout.readline())["value"] == "0"
        consumer.stdout.close()
        assert consumer.stderr is not None
        assert consumer.stderr.read() == b""
        assert consumer.wait(SECONDS_MAX) == 141
    group = json.loads(shell.run("group", "show", "t", "--json")[1])
    assert group["leased"] == 0
    assert group["acked"] + group["ready"] == 50_000


def test_a_follower_goes_on_over_a_restart_of_the_server(server: ServerProcess, data_dir: Path) -> None:
    address = server.ready()["native"]
    shell = Shell(f"headrace://{address}")
    shell.run("publish", "t", "before")
    with shell.begin("consume", "t", "--follow") as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"before\n"
        server.kill()
        again = ServerProcess(data_dir, "--native-port", address.rpartition(":")[2])
        try:
            again.ready()
            assert shell.run("publish", "t", "after")[0] == 0
            assert follower.stdout.readline() in (b"after\n", b"before\n"), "the last ack may not have been durable"
            follower.send_signal(signal.SIGINT)
            follower.stdout.read()
            assert follower.wait(SECONDS_MAX) == 130
        finally:
            again.kill()


def test_a_server_that_is_not_there_is_told_with_the_ways_out(tmp_path: Path) -> None:
    code, out, err = Shell("headrace://127.0.0.1:1").run("topic", "list")
    assert (code, out) == (1, b"")
    assert "127.0.0.1:1" in err
    assert "headrace serve" in err
    assert "--data-dir" in err
    code, _, err = Shell("http://127.0.0.1:1").run("topic", "list")
    assert code == 1
    assert "headrace://" in err


def test_the_commands_of_an_operator_work_over_the_network(shell: Shell) -> None:
    assert shell.run("topic", "create", "jobs", "--set", "retry.max_retries=0")[0] == 0
    identity = json.loads(shell.run("publish", "jobs", "x", "--json")[1])["id"]
    later = json.loads(shell.run("publish", "jobs", "y", "--delay", "1h", "--json")[1])["id"]
    assert shell.run("consume", "jobs", "--nack", "--error", "boom")[1] == b"x\n"
    assert b"DEAD_LETTERED" in shell.run("trace", identity)[1]
    assert b"it is not due until" in shell.run("explain", later)[1]
    assert b"boom" in shell.run("dlq", "list", "jobs")[1]
    assert shell.run("dlq", "redrive", "jobs")[1].startswith(b"redrove 1")
    assert shell.run("schedule", "cancel", "jobs", later)[1] == b"cancelled 1\n"
    code, _, err = shell.run("topic", "show", "job")
    assert code == 1
    assert "did you mean 'jobs'?" in err
    assert shell.run("doctor", "--json")[0] == 0
