"""The server process: a data directory, the broker over it, and the doors in front.

    listeners bound  →  data directory opened  →  broker  →  doors accept  →  ready file
    SIGTERM, SIGINT  →  doors drain  →  broker drains  →  journal closed  →  exit 0      a second one: without waiting
    SIGHUP           →  keys and certificate are read again
    storage fails    →  doors cut  →  exit 1 (within a second; what is durable is found by the next start)

Which doors there are is a table (``DOORS``): a name, the setting with its port, and where its class is found. A door
that is not part of this build or whose packages are not installed stays closed and says so; when its port was asked
for by name it is an error. Names of concrete doors and journals appear here and in the command line only.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
import os
import signal
import socket
import ssl
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from headrace.broker import Broker
from headrace.broker.aio import LoopBroker
from headrace.broker.embedded import MEMORY, open_core
from headrace.broker.metrics import Metrics
from headrace.clock import SystemClock
from headrace.config import ServerConfig
from headrace.config.server import parse_namespace_quotas
from headrace.diagnostics import logger
from headrace.errors import HeadraceError, InvalidArgument
from headrace.frontends import (
    Authenticate,
    Door,
    DoorSite,
    is_loopback,
    open_listener,
    reload_certificate,
    server_context,
)
from headrace.frontends.passwords import PasswordCheck, no_tokens
from headrace.frontends.tokens import TokenCheck
from headrace.journal import DiskJournal, Journal
from headrace.limits import (
    CLOCK_JUMP_NS,
    CLOCK_LOOK_NS,
    CONNECTIONS_MAX,
    DESCRIPTORS_KEPT,
    MQTT_LEDGER_FILE_BYTES,
    SECOND_NS,
)
from headrace.shard import Core

__all__ = ["DOORS", "DoorKind", "Server", "run"]

_log = logger("server")
_FAILED: Final = 1
_FAILED_STOP_NS: Final = SECOND_NS // 2
"""After a failure of the storage: for the last answers to leave."""


class DoorKind(NamedTuple):
    """One line of the table of doors."""

    name: str
    module: str
    attribute: str
    needs: str = ""
    """The extra that brings its packages."""

    @property
    def setting(self) -> str:
        return f"{self.name}_port"


DOORS: Final = (
    DoorKind("native", "headrace.frontends.native", "NativeDoor"),
    DoorKind("http", "headrace.frontends.http", "HttpDoor", "http"),
    DoorKind("mqtt", "headrace.frontends.mqtt", "MqttDoor"),
    DoorKind("grpc", "headrace.frontends.grpc", "GrpcDoor", "grpc"),
)

MakeDoor = Callable[[DoorSite], Door]


class Server:
    """Everything between ``start`` and ``stop``; ``run`` puts signals around it.

    ``asked``: names of settings that were given and not defaulted; a door whose port is among them must open.
    """

    def __init__(
        self, config: ServerConfig, *, asked: Collection[str] = (), authenticate: Authenticate | None = None
    ) -> None:
        self.config = config
        self.broker: LoopBroker | None = None
        self.doors: dict[str, Door] = {}
        self.failure: HeadraceError | None = None
        self._asked = frozenset(asked)
        self._tokens = TokenCheck(config.auth) if config.auth.keys and authenticate is None else None
        self._passwords = PasswordCheck(config.auth.passwords) if config.auth.passwords else None
        self._authenticate = authenticate or self._tokens or (no_tokens if self._passwords is not None else None)
        self._tls: ssl.SSLContext | None = None
        self._stopping = asyncio.Event()
        self._started = False
        self._end_spans: Callable[[], None] | None = None
        self._clock_timer: asyncio.TimerHandle | None = None
        self._clock_off_ns = 0  # when last looked at: how far the wall clock is from the time the shard goes by

    @property
    def addresses(self) -> Mapping[str, str]:
        """Door → host:port."""
        return {name: door.address for name, door in self.doors.items()}

    # -- starting ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open everything, or nothing: raises one sentence and leaves nothing open."""
        config = self.config
        if self._authenticate is None and not is_loopback(config.host):
            raise InvalidArgument(
                f"host {config.host} can be reached from other machines, and no key is configured to check who calls; "
                "without one the server listens on loopback only: use --host 127.0.0.1"
            )
        self._tls = server_context(config.tls)
        if config.tracing.enabled:
            from headrace.broker.spans import export_spans

            self._end_spans = await asyncio.get_running_loop().run_in_executor(
                None, export_spans, config.tracing.service
            )
        makers = self._find_doors()
        listeners: dict[str, socket.socket] = {}
        try:
            for name in makers:
                port = getattr(config, f"{name}_port")
                listeners[name] = open_listener(config.host, port, name=name)
            self._clear_ready_file()
            core = await asyncio.get_running_loop().run_in_executor(None, self._open_core)
        except BaseException:
            for listener in listeners.values():
                listener.close()
            raise
        broker = Broker(
            core,
            topic_defaults=config.topic_defaults,
            topic_templates=config.topic_templates,
            auto_create=config.auto_create,
        )
        if config.tracing.enabled:
            from headrace.broker.spans import TracingBroker

            self.broker = TracingBroker(broker, on_failure=self._storage_failed, seal=config.seal, tell=_tell)
        else:
            self.broker = LoopBroker(broker, on_failure=self._storage_failed, seal=config.seal, tell=_tell)
        self.broker.sealer.start()
        for namespace, most in parse_namespace_quotas(config.namespace_quotas).items():
            await self.broker.call(
                "namespace.config", {"namespace": namespace, "settings": {"quota.messages_per_minute": most}}
            )
        try:
            metrics = Metrics(broker, interval_ns=config.metrics.interval_ns) if config.metrics.enabled else None
            for name, make in makers.items():
                door = self.doors[name] = make(
                    DoorSite(
                        self.broker,
                        listeners[name],
                        config,
                        SystemClock(),
                        self._authenticate,
                        self._tls,
                        metrics=metrics,
                        passwords=self._passwords,
                        open_journal=self._open_journal if config.journal == "disk" else None,
                    )
                )
                if metrics is not None:
                    metrics.connections[name] = partial(getattr, door, "connections_count")
            for door in self.doors.values():
                await door.start()
            self._join_websockets()
            self._write_ready_file()
        except BaseException:
            for listener in listeners.values():
                listener.close()
            await self._close()
            raise
        self._started = True
        self._clock_off_ns = core.clock.wall_jump_ns()
        self._watch_clock()
        for name, address in self.addresses.items():
            _log.info("listening", door=name, address=address)

    def _watch_clock(self) -> None:
        """A wall clock that was set is not obeyed while the server lives, and the operator is told so."""
        if self.broker is None:
            return
        off_ns = self.broker.core.clock.wall_jump_ns()
        moved_ns = off_ns - self._clock_off_ns
        if abs(moved_ns) >= CLOCK_JUMP_NS:
            _log.warning(
                "the wall clock was set",
                by_s=round(moved_ns / SECOND_NS, 3),
                off_s=round(off_ns / SECOND_NS, 3),
                consequence="leases and delays go on by the old time; instants to come are off until a restart",
            )
        self._clock_off_ns = off_ns
        loop = asyncio.get_running_loop()
        self._clock_timer = loop.call_later(CLOCK_LOOK_NS / SECOND_NS, self._watch_clock)

    def reload(self) -> None:
        """Read keys, users and the certificate again; the old ones stay when there is something wrong with the files.
        Doors look again at who is connected."""
        auth = self.config.auth
        exchanged = self._exchange("keys", auth.keys, self._tokens)
        exchanged = self._exchange("users", auth.passwords, self._passwords) or exchanged
        if exchanged:
            for door in self.doors.values():
                look_again = getattr(door, "reload", None)
                if look_again is not None:
                    look_again()
        if self._tls is None:
            if self._tokens is None and self._passwords is None:
                _log.info("nothing to reload: neither keys nor a certificate are configured")
            return
        try:
            reload_certificate(self._tls, self.config.tls)
        except InvalidArgument as error:
            _log.error("the certificate was not exchanged", reason=error.message)
        else:
            _log.info("certificate exchanged", certificate=self.config.tls.certificate)

    def _exchange(self, what: str, file: str, check: TokenCheck | PasswordCheck | None) -> bool:
        if check is None:
            return False
        try:
            check.reload()
        except InvalidArgument as error:
            _log.error(f"the {what} were not exchanged", reason=error.message)
            return False
        _log.info(f"{what} exchanged", **{what: file})
        return True

    def _find_doors(self) -> dict[str, MakeDoor]:
        """The doors that are open by configuration and present in this build."""
        found: dict[str, MakeDoor] = {}
        for kind in DOORS:
            if getattr(self.config, kind.setting) is None:
                continue
            if importlib.util.find_spec(kind.module) is None:
                reason = f"{kind.name} is not part of this build"
            else:
                try:
                    found[kind.name] = getattr(importlib.import_module(kind.module), kind.attribute)
                    continue
                except ModuleNotFoundError as error:
                    if not kind.needs or (error.name or "").startswith("headrace"):
                        raise
                    reason = f"{kind.name} needs the package {error.name}: pip install 'headrace[{kind.needs}]'"
            if kind.setting in self._asked:
                flag = "--" + kind.setting.replace("_", "-")
                raise InvalidArgument(f"{reason}; leave {flag} out, or say {flag} off")
            _log.debug("door closed", door=kind.name, reason=reason)
        return found

    def _open_core(self) -> Core:
        config = self.config
        path = MEMORY if config.journal == "memory" else config.data_dir
        core = open_core(path, clock=SystemClock(), node_id=config.node_id, seal=config.seal)
        gc.collect()
        gc.freeze()  # what recovery built stays: later collections need not look through it
        return core

    def _open_journal(self, name: str) -> Journal:
        """A journal of a door's own, beside the shard's."""
        directory = Path(self.config.data_dir) / name
        directory.mkdir(exist_ok=True)
        return DiskJournal.open(directory, file_size_bytes=MQTT_LEDGER_FILE_BYTES)

    def _join_websockets(self) -> None:
        """MQTT over WebSocket comes in by the HTTP port, at /mqtt."""
        http: Any = self.doors.get("http")
        mqtt: Any = self.doors.get("mqtt")
        if http is not None and mqtt is not None:
            http.upgrades["/mqtt"] = mqtt.websocket

    # -- the ready file ------------------------------------------------------------------------------------------------

    def _clear_ready_file(self) -> None:
        if self.config.ready_file:
            try:
                Path(self.config.ready_file).unlink(missing_ok=True)
            except OSError as error:
                raise InvalidArgument(f"ready file {self.config.ready_file}: {error.strerror}") from None

    def _write_ready_file(self) -> None:
        if not self.config.ready_file:
            return
        target = Path(self.config.ready_file)
        data_dir = MEMORY if self.config.journal == "memory" else str(Path(self.config.data_dir).resolve())
        content = msgspec.json.encode({**self.addresses, "pid": os.getpid(), "data_dir": data_dir})
        try:
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
            with os.fdopen(handle, "wb") as file:
                file.write(content + b"\n")
            Path(name).replace(target)
        except OSError as error:
            raise InvalidArgument(f"ready file {target}: {error.strerror}") from None

    # -- stopping ------------------------------------------------------------------------------------------------------

    def _storage_failed(self, error: HeadraceError) -> None:
        self.failure = error
        _log.error("the storage failed; stopping", code=error.code, reason=error.message)
        self._stopping.set()

    def ask_to_stop(self) -> None:
        """Begin to stop; a second time: without waiting for anybody."""
        if self._stopping.is_set():
            for door in self.doors.values():
                _keep(asyncio.ensure_future(door.close()))
        self._stopping.set()

    async def wait(self) -> None:
        """Until somebody asked to stop, or the storage failed."""
        await self._stopping.wait()

    async def stop(self) -> None:
        """Finish what is under way, then close. After a failure: close at once."""
        if self.failure is None:
            deadline_ns = self.config.drain_timeout_ns
            _log.info("draining", timeout_s=deadline_ns / SECOND_NS)
            await asyncio.gather(*(door.drain(deadline_ns) for door in self.doors.values()))
        await self._close()
        if self._started:
            try:
                self._clear_ready_file()
            except InvalidArgument as error:
                _log.warning("left behind", reason=error.message)
        _log.info("stopped")

    async def _close(self) -> None:
        if self._clock_timer is not None:
            self._clock_timer.cancel()
        await asyncio.gather(*(door.close() for door in self.doors.values()))
        if self.broker is None:
            return
        if self.failure is not None:
            return  # nothing can be saved: the journal is left as a crash would leave it
        await self.broker.close()
        if self._end_spans is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._end_spans)


def _tell(level: str, event: str, **more: Any) -> None:
    getattr(logger("seal"), level)(event, **more)


_kept: set[asyncio.Future[Any]] = set()


def _keep(task: asyncio.Future[Any]) -> None:
    _kept.add(task)
    task.add_done_callback(_kept.discard)


def _raise_descriptors() -> None:
    """As many files as the system allows us; each connection is one."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + DESCRIPTORS_KEPT
    if soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )


async def _serve(server: Server, announce: Callable[[Server], None] | None) -> int:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.ask_to_stop)
    loop.add_signal_handler(signal.SIGHUP, server.reload)
    await server.start()
    _log.info("ready", version=version("headrace"), data_dir=server.config.data_dir, journal=server.config.journal)
    if announce is not None:
        announce(server)
    await server.wait()
    try:
        if server.failure is None:
            await server.stop()
        else:
            async with asyncio.timeout(_FAILED_STOP_NS / SECOND_NS):
                await server.stop()
    except TimeoutError:
        pass
    if server.failure is not None:
        _exit_failed()
    return 0


def _exit_failed() -> NoReturn:
    """Leave at once: a thread may hang in a write that never ends, and there is nothing left to save."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_FAILED)


def run(
    config: ServerConfig,
    *,
    asked: Collection[str] = (),
    authenticate: Authenticate | None = None,
    announce: Callable[[Server], None] | None = None,
) -> int:
    """Serve until a signal; 0. Raises one sentence when it cannot start; a failed storage ends the process with 1."""
    _raise_descriptors()
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        factory = None

    async def main() -> int:
        return await _serve(Server(config, asked=asked, authenticate=authenticate), announce)

    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main())
