"""Where a command does its work: at a server, or in a data directory that this process opens itself.

Ctrl-C, and SIGTERM, which is what containers send and does the same. At a server it may come at any time: the server
finishes or forgets what was asked. In a data directory this process *is* the broker, and an operation must not be left
in its middle: there a signal is kept until the operation is over (``Broker.pause`` looks for it, and so does the end of
the command). A second one ends the process on the spot, which the journal survives like any crash.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from headrace.cli.app import Terminated
from headrace.cli.output import Output
from headrace.errors import Closed, HeadraceError, InvalidArgument, TimedOut, UnknownGroup, UnknownTopic
from headrace.names import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from headrace.client.handles import Headrace

__all__ = ["DEFAULT_URL", "Broker", "Place", "located"]

DEFAULT_URL: Final = "headrace://127.0.0.1:7420"
_CONNECT_TIMEOUT: Final = "3s"
"""Somebody is waiting; long enough for a server that is just starting."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_BY_SIGNAL: Final = 128
"""Exit codes above it say which signal it was."""
F = TypeVar("F", bound=Callable[..., Any])


def _raise(number: int, _frame: FrameType | None) -> None:
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """The handler of both signals; another thread than the main one gets none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = [(number, signal.signal(number, handler)) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, before in kept:
            signal.signal(number, before)


class Broker:
    """An open place: the client, calls by name in its namespace, and better words for names that do not exist."""

    def __init__(self, client: Headrace, *, embedded: bool) -> None:
        self.client = client
        self.port = client.port
        self.namespace = client.namespace
        self.embedded = embedded
        self._interrupted = 0

    def call(self, method: str, **arguments: Any) -> Any:
        """An administrative call; arguments that are None are left out."""
        given = {name: value for name, value in arguments.items() if value is not None}
        with self.hints(given.get("topic")):
            return self.port.call(method, namespace=self.namespace, **given)

    def call_all(self, method: str, **arguments: Any) -> Any:
        """A call that is about no namespace."""
        return self.port.call(method, **arguments)

    @contextmanager
    def hints(self, topic: str | None) -> Iterator[None]:
        """Names the topic or group that was probably meant."""
        try:
            yield
        except (UnknownTopic, UnknownGroup) as error:
            hint = self._nearest(error, topic)
            if not hint:
                raise
            raise type(error)(f"{error.message}; {hint}") from None

    def _nearest(self, error: HeadraceError, topic: str | None) -> str:
        if topic is None:
            return ""
        try:
            if isinstance(error, UnknownTopic):
                known = [one["topic"] for one in self.port.call("topic.list", namespace=self.namespace)]
                close = get_close_matches(topic, known, n=1)
                if not known:
                    return f"namespace {self.namespace!r} has no topics"
                return f"did you mean {close[0]!r}?" if close else "see `headrace topic list`"
            groups = self.port.call("group.list", namespace=self.namespace, topic=topic)
            return f"it has {', '.join(repr(one['group']) for one in groups)}"
        except HeadraceError:
            return ""  # the first error is the one to tell

    # -- Ctrl-C --------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Between two operations: Ctrl-C takes effect here."""
        number, self._interrupted = self._interrupted, 0
        if number:
            _raise(number, None)

    def interrupt(self, number: int, _frame: FrameType | None) -> None:
        """The signals' handler while an operation must not be cut in two; a second one does not wait."""
        if self._interrupted:
            os._exit(_BY_SIGNAL + number)
        self._interrupted = number

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """Around work whose steps belong together (printing a message and acking it): Ctrl-C waits for ``pause``."""
        if self.embedded:
            yield  # where this process is the broker it is so all the time
            return
        with _handled(self.interrupt):
            yield
            self.pause()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Around a wait that is no operation of the broker (reading a pipe): Ctrl-C takes effect at once."""
        if not self.embedded:
            yield
            return
        with _handled(_raise):
            self.pause()
            yield


@dataclass(frozen=True)
class Place:
    """What the options that every command takes say."""

    server: str | None
    data_dir: Path | None
    namespace: str | None
    token: str | None
    ca_file: Path | None
    output: Output

    @property
    def embedded(self) -> bool:
        return self.data_dir is not None

    @contextmanager
    def open(self, *, create: bool = False) -> Iterator[Broker]:
        """The broker; a data directory that does not exist is made only by a command that may ``create``."""
        if self.data_dir is None:
            with _handled(_raise), self._connected() as broker:
                yield broker
            return
        if not create and not self.data_dir.is_dir():
            raise InvalidArgument(
                f"there is no data directory {self.data_dir}; `headrace serve`, `headrace publish` and `headrace topic "
                "create` make one"
            )
        with self._opened(self.data_dir) as broker:
            yield broker

    @contextmanager
    def _opened(self, data_dir: Path) -> Iterator[Broker]:
        import headrace

        # The places of sealed files that a server on this directory would be told of in the same way.
        given = {name: os.environ.get(f"HEADRACE_SEAL__{name.upper()}") for name in ("location", "archive")}
        seal = {name: place for name, place in given.items() if place} or None
        client = headrace.open(data_dir, namespace=self.namespace or DEFAULT_NAMESPACE, seal=seal)
        broker = Broker(client, embedded=True)
        with _handled(broker.interrupt):
            try:
                yield broker
                broker.pause()
            finally:
                client.close()

    @contextmanager
    def _connected(self) -> Iterator[Broker]:
        import headrace

        url = self.server or DEFAULT_URL
        try:
            client = headrace.connect(
                url,
                token=self.token,
                namespace=self.namespace,
                ca_file=self.ca_file,
                connect_timeout=_CONNECT_TIMEOUT,
            )
        except (TimedOut, Closed) as error:
            raise type(error)(
                f"{error.message}; start a server with `headrace serve`, name another with --server or $HEADRACE_URL, "
                "or work in a data directory with --data-dir"
            ) from None
        with client:
            yield Broker(client, embedded=False)


def located(command: F) -> F:
    """Gives a command the options that say where it works and how it answers, as one ``place``."""

    @functools.wraps(command)
    def run(
        *args: Any,
        server: str | None,
        data_dir: Path | None,
        namespace: str | None,
        token: str | None,
        ca_file: Path | None,
        json: bool,
        **kwargs: Any,
    ) -> Any:
        if data_dir is not None and server is not None:
            source = click.get_current_context().get_parameter_source("server")
            if source is not None and source.name == "COMMANDLINE":
                raise click.UsageError("--server and --data-dir are two places; give one of them")
            server = None
        return command(*args, place=Place(server, data_dir, namespace, token, ca_file, Output(json=json)), **kwargs)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run  # type: ignore[return-value] # click reads the parameters from the wrapper


_OPTIONS: Final = (
    click.option(
        "--server", metavar="URL", envvar="HEADRACE_URL", help=f"The server ($HEADRACE_URL, else {DEFAULT_URL})."
    ),
    click.option(
        "--data-dir",
        metavar="DIR",
        type=click.Path(path_type=Path, file_okay=False),
        help="Work in this data directory, without a server.",
    ),
    click.option(
        "--namespace",
        metavar="NS",
        envvar="HEADRACE_NAMESPACE",
        help="The namespace ($HEADRACE_NAMESPACE, else the URL's, else default).",
    ),
    click.option("--token", metavar="TEXT", envvar="HEADRACE_TOKEN", help="A token, where the server asks for one."),
    click.option(
        "--ca-file",
        metavar="FILE",
        envvar="HEADRACE_CA_FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        help="With headraces://: the authorities to trust instead of the system's ($HEADRACE_CA_FILE).",
    ),
    click.option("--json", is_flag=True, help="One JSON value a line on stdout."),
)
