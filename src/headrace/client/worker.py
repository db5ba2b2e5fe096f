"""Functions that handle the messages of a topic, until they are told to stop.

One consumer a worker, shared by its threads, or by the tasks of one event loop when the function is ``async def``. A
handler that returns acks, one that raises nacks with the error's text (and the traceback goes to the log
``headrace.worker``). To stop is: take no more, let handlers finish, confirm, give back the rest.
"""

from __future__ import annotations

import inspect
import logging
import signal
from collections.abc import Callable, Coroutine
from threading import Event, Thread, current_thread, main_thread
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from headrace.client.arguments import Duration, whole
from headrace.client.consumer import Consumer, Delivery
from headrace.errors import HeadraceError, InvalidArgument
from headrace.limits import CLIENT_WORKER_STOP_NS, PREFETCH_MAX, SECOND_NS, WORKER_CONCURRENCY_MAX
from headrace.names import check_topic_name

if TYPE_CHECKING:
    import asyncio

    from headrace.client.handles import Headrace

__all__ = ["Handler", "Workers", "check_topic_of", "name_of"]

Handler: TypeAlias = Callable[[Any], Any]
F = TypeVar("F", bound=Handler)
_log = logging.getLogger("headrace.worker")


def name_of(handler: Handler) -> str:
    """What the log calls it."""
    return getattr(handler, "__qualname__", repr(handler))


def check_topic_of(topic: object) -> None:
    """A worker says whose messages it handles; the decorator without parentheses gives the function for the topic."""
    if callable(topic):
        raise InvalidArgument(
            f'a worker needs a topic: write @hr.worker("topic") above {name_of(topic)}, not @hr.worker alone'
        )
    check_topic_name(topic)


class _Worker:
    """One function and what it consumes."""

    def __init__(
        self,
        handler: Handler,
        topic: str,
        group: str,
        concurrency: int,
        prefetch: int | None,
        options: dict[str, Any],
    ) -> None:
        self.handler = handler
        self.topic = topic
        self.group = group
        self.concurrency = concurrency
        self.grows = prefetch is None
        self.prefetch = min(2 * concurrency, PREFETCH_MAX) if prefetch is None else prefetch
        self.options = options
        self.consumer: Consumer | None = None

    def open(self, client: Headrace) -> Consumer:
        self.consumer = client.topic(self.topic).consumer(self.group, prefetch=self.prefetch, **self.options)
        if self.grows:
            self.consumer.appetite.grow()
        return self.consumer


class Workers:
    """All workers of a client.

    >>> import headrace
    >>> with headrace.open(":memory:") as hr:
    ...     done = []
    ...     @hr.worker("emails", group="mailers", concurrency=2)
    ...     def send(d):
    ...         done.append(d.text)
    ...         workers.stop_soon()
    ...     _ = hr.topic("emails").publish("hello")
    ...     workers = hr.workers
    ...     hr.run_workers()
    ...     done
    ['hello']
    """

    def __init__(self, client: Headrace) -> None:
        self._client = client
        self._workers: list[_Worker] = []
        self._threads: list[Thread] = []
        self._stopping = Event()
        self._failure: BaseException | None = None
        self._running = False

    def add(
        self,
        topic: str,
        *,
        group: str,
        concurrency: int,
        lease: Duration | None,
        prefetch: int | None,
        options: dict[str, Any],
    ) -> Callable[[F], F]:
        """The decorator behind ``client.worker``."""
        check_topic_of(topic)
        whole("concurrency", concurrency, 1, WORKER_CONCURRENCY_MAX)
        if prefetch is not None:
            whole("prefetch", prefetch, 1, PREFETCH_MAX)
        given = {**options, **({} if lease is None else {"lease": lease})}

        def register(handler: F) -> F:
            if not callable(handler):
                raise InvalidArgument(f"a worker is a function that takes a delivery, not {handler!r}")
            worker = _Worker(handler, topic, group, concurrency, prefetch, given)
            self._workers.append(worker)
            if self._running:
                self._start(worker)
            return handler

        return register

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Start, wait until stopped (SIGTERM and SIGINT stop it, in the main thread), let handlers finish.

        Raises what made a worker stop by itself, such as a broker that is gone for good.
        """
        handlers: dict[signal.Signals, Any] = {}
        if not self._running:
            self._stopping = Event()
        asked = self._stopping
        if current_thread() is main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                handlers[number] = signal.signal(number, self._on_signal)
        try:
            self._start_all()  # a signal that comes now is obeyed when they have started
            while not asked.wait(1):
                pass  # in rounds, so that a signal is noticed on every platform
        finally:
            try:
                self.stop()
            finally:
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stopping.is_set():
            raise KeyboardInterrupt  # a second one: without waiting for handlers
        self._stopping.set()

    def start(self) -> Workers:
        """Start all of them and return."""
        if not self._running:
            self._stopping = Event()
        self._start_all()
        return self

    def _start_all(self) -> None:
        if not self._workers:
            raise InvalidArgument("there are no workers; declare some with @client.worker(topic)")
        if self._running:
            return
        self._running = True
        try:
            for worker in self._workers:
                self._start(worker)
        except BaseException:
            self.stop()
            raise

    def _start(self, worker: _Worker) -> None:
        consumer = worker.open(self._client)
        if inspect.iscoroutinefunction(worker.handler):
            targets: list[Callable[[], None]] = [lambda: self._handle_in_loop(worker, consumer)]
        else:
            targets = [lambda: self._handle_in_thread(worker, consumer)] * worker.concurrency
        for number, target in enumerate(targets):
            thread = Thread(target=self._guarded, args=(target,), name=f"headrace-{name_of(worker.handler)}-{number}")
            self._threads.append(thread)
            thread.start()

    def _guarded(self, target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001 - it is raised by run, or by stop
            self._failure = self._failure or error
            self._stopping.set()

    def _handle_in_thread(self, worker: _Worker, consumer: Consumer) -> None:
        for delivery in consumer:
            try:
                with delivery:
                    self._finish(delivery, worker.handler(delivery))
            except Exception:  # noqa: BLE001 - a handler may raise anything; the message is nacked with it
                _log.exception("%s failed on %r", name_of(worker.handler), delivery)

    def _handle_in_loop(self, worker: _Worker, consumer: Consumer) -> None:
        import asyncio

        with asyncio.Runner() as runner:
            runner.run(self._dispatch(worker, consumer))

    async def _dispatch(self, worker: _Worker, consumer: Consumer) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        free = asyncio.Semaphore(worker.concurrency)
        tasks: set[asyncio.Task[None]] = set()
        while True:
            await free.acquire()
            delivery = await loop.run_in_executor(None, next, consumer, None)
            if delivery is None:
                break
            task = loop.create_task(self._handle(worker, delivery, free))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if tasks:
            await asyncio.wait(tasks)

    async def _handle(self, worker: _Worker, delivery: Delivery, free: asyncio.Semaphore) -> None:
        work: Coroutine[Any, Any, Any] = worker.handler(delivery)
        try:
            with delivery:
                self._finish(delivery, await work)
        except Exception:  # noqa: BLE001 - as above
            _log.exception("%s failed on %r", name_of(worker.handler), delivery)
        finally:
            free.release()

    def _finish(self, delivery: Delivery, answer: Any) -> None:
        """Send the answer, in one record with the ack."""
        if answer is None or delivery.reply_to is None or delivery.settled:
            return
        from headrace.client.message import Message, message_of

        message = message_of(answer)
        if isinstance(message, Message) and delivery.correlation_id is not None:
            message.headers = {"correlation_id": delivery.correlation_id, **(message.headers or {})}
        self._client.settle(ack=[delivery], publish=[(delivery.reply_to, message)])

    # -- stopping ----------------------------------------------------------------------------------------------------

    def stop_soon(self) -> None:
        """Ask ``run`` to return; handlers may call it."""
        self._stopping.set()

    def stop(self) -> None:
        """Take no more, wait for handlers under way, confirm what they did, give back the rest."""
        if not self._running:
            return
        self._stopping.set()
        for worker in self._workers:
            if worker.consumer is not None:
                worker.consumer.stop()
        for thread in self._threads:
            if thread is not current_thread():
                thread.join(CLIENT_WORKER_STOP_NS / SECOND_NS)
        late = [thread.name for thread in self._threads if thread.is_alive() and thread is not current_thread()]
        if late:
            _log.warning("still running after %g s: %s", CLIENT_WORKER_STOP_NS / SECOND_NS, ", ".join(late))
        self._threads = []
        self._running = False
        failure: HeadraceError | None = None
        for worker in self._workers:
            consumer, worker.consumer = worker.consumer, None
            if consumer is not None:
                try:
                    consumer.close()
                except HeadraceError as error:
                    failure = failure or error
        if failure is not None and self._failure is None:
            self._failure = failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        failure, self._failure = self._failure, None
        if failure is not None and error is None:
            raise failure
