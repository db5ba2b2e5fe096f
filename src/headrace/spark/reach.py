"""Reaching the broker from wherever Spark runs our code: the driver's planning processes, the executors' workers.

Nothing here travels: what travels is a ``Place``, and each process opens a connection of its own when it first needs
one and keeps it, so that the tasks of a worker share it. A broker that is away is waited for as long as the place says
(a restart is ridden out); a broker that refuses is not asked again.

A place may also be a data directory (``directory.py``): read by all, written to by one task after the other.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.calls import Port
from headrace.errors import Closed, HeadraceError, RetryLater, StorageFailed, TimedOut, Unauthenticated
from headrace.limits import SECOND_NS, SPARK_RETRY_NS
from headrace.spark.options import Place

__all__ = ["Reach", "reach"]

if TYPE_CHECKING:
    from headrace.spark.directory import Directory

T = TypeVar("T")
_LOCK = threading.Lock()
_REACHED: dict[tuple[int, Place, bool], Reach] = {}


class Reach:
    """One process's way to a broker. Calls are made one at a time; ``call`` rides out a broker that is away."""

    def __init__(self, place: Place, *, writes: bool = False) -> None:
        self.place = place
        self.writes = writes
        self._port: Port | None = None
        self._directory: Directory | None = None
        self._lock = threading.RLock()

    def call(self, method: str, **arguments: Any) -> Any:
        """An administrative call in the place's namespace."""
        arguments.setdefault("namespace", self.place.namespace)
        return self.do(lambda port: port.call(method, **arguments))

    def messages(self, method: str, **arguments: Any) -> tuple[Any, list[Any]]:
        """A call that answers with messages: its result and the batches."""
        answer = self.call(method, **arguments)
        return answer if isinstance(answer, tuple) else (answer, [])

    def do(self, work: Callable[[Port], T]) -> T:
        """Something on the connection; after a loss of the connection it is done again on a new one.

        What is done must be harmless to repeat: reads are, publishes carry producer and sequence, settles are
        idempotent.
        """
        if self.place.data_dir and not self.writes:
            return self._look(work)
        until_ns = time.monotonic_ns() + self.place.away_ns
        with self._lock:
            while True:
                try:
                    if self._port is None:
                        self._port = self._open()
                    return work(self._port)
                except (Closed, RetryLater, OSError) as error:
                    lost = not isinstance(error, RetryLater) or isinstance(error, TimedOut)
                    if isinstance(error, Unauthenticated):
                        raise
                    if lost:
                        self._drop()
                    if time.monotonic_ns() >= until_ns:
                        away_s = self.place.away_ns / 1e9
                        raise TimedOut(
                            f"{self.place.name} could not be used for {away_s:g} s (awayTimeout): {_said(error)}"
                        ) from error
                    pause_ns = max(SPARK_RETRY_NS, getattr(error, "retry_after_ns", None) or 0)
                time.sleep(min(pause_ns, max(0, until_ns - time.monotonic_ns())) / 1e9)

    def _look(self, work: Callable[[Port], T]) -> T:
        with self._lock:
            if self._directory is None:
                self._directory = import_module("headrace.spark.directory").Directory(self.place.data_dir)
            with self._directory.port() as port:
                return work(port)

    def _open(self) -> Port:
        place = self.place
        if place.data_dir:
            return self._open_for_writing()
        given = {"token": place.token, "namespace": place.namespace, "ca_file": place.ca_file}
        arguments: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        arguments["outage"] = max(place.away_ns, SPARK_RETRY_NS) / SECOND_NS
        port: Port = import_module("headrace.client.port").open_port(place.server, **arguments)
        return port

    def _open_for_writing(self) -> Port:
        """Another task may have the directory: it is over soon."""
        until_ns = time.monotonic_ns() + self.place.away_ns
        while True:
            try:
                port: Port = import_module("headrace.spark.directory").open_for_writing(self.place.data_dir)
                return port
            except StorageFailed as error:
                if " is held by " not in error.message or time.monotonic_ns() >= until_ns:
                    raise
            time.sleep(SPARK_RETRY_NS / 1e9)

    def _drop(self) -> None:
        port, self._port = self._port, None
        if port is not None:
            try:
                port.close()
            except (HeadraceError, OSError):
                pass  # it is lost already; the next one counts

    def close(self) -> None:
        """Let go of the connection; the next call makes another one."""
        with self._lock:
            self._drop()
            if self._directory is not None:
                self._directory.close()
                self._directory = None


def reach(place: Place, *, writes: bool = False) -> Reach:
    """This process's way to a place, made when it is first asked for. A forked process makes its own."""
    key = (os.getpid(), place, writes and bool(place.data_dir))
    with _LOCK:
        found = _REACHED.get(key)
        if found is None:
            found = _REACHED[key] = Reach(place, writes=writes)
        return found


def _said(error: BaseException) -> str:
    return error.message if isinstance(error, HeadraceError) else str(error)
