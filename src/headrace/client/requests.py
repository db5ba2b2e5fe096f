"""Request and answer over topics, for threads.

A request carries ``reply_to`` (a topic) and a ``correlation_id`` that begins with the client's name. Answers of all
clients go to one topic; each client reads its own through a group that lives as long as the client and wants only
correlation ids with its name in front. An answer nobody fetched in time expires.
"""

from __future__ import annotations

from itertools import count
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Final

from headrace.client.message import Message
from headrace.errors import Closed, DuplicateConflict, HeadraceError, InvalidArgument, TimedOut
from headrace.limits import CLIENT_REQUESTS_TTL_NS, SECOND_NS

if TYPE_CHECKING:
    from headrace.client.consumer import Delivery
    from headrace.client.handles import Headrace

__all__ = ["REPLIES_TOPIC", "Requests", "replies_filter", "replies_settings", "request_message"]

REPLIES_TOPIC: Final = "headrace/replies"


def replies_settings() -> dict[str, Any]:
    """Of the topic answers come in: they are worth something to one client, and for a while."""
    span = f"{CLIENT_REQUESTS_TTL_NS // SECOND_NS}s"
    return {"message_ttl": span, "retention": span, "ordering": "none"}


def replies_filter(client_name: str) -> dict[str, Any]:
    """What of the answers a client wants."""
    return {"headers": {"correlation_id": {"prefix": f"{client_name}/"}}}


def request_message(value: Any, properties: dict[str, Any], correlation_id: str) -> Message:
    """A request, with what its answer must carry."""
    if not isinstance(value, Message):
        return Message(value, correlation_id=correlation_id, reply_to=REPLIES_TOPIC, **properties)
    if properties:
        raise InvalidArgument("a Message carries its own properties; set them on it, not beside it")
    made = Message(value.value)
    for slot in Message.__slots__:
        setattr(made, slot, getattr(value, slot))
    made.headers = {**(value.headers or {}), "correlation_id": correlation_id, "reply_to": REPLIES_TOPIC}
    return made


class _Waiting:
    __slots__ = ("answer", "came")

    def __init__(self) -> None:
        self.came = Event()
        self.answer: Delivery | HeadraceError = Closed("no answer came")

    def put(self, answer: Delivery | HeadraceError) -> None:
        self.answer = answer
        self.came.set()


class Requests:
    """The requests of one client that wait for their answers."""

    def __init__(self, client: Headrace) -> None:
        self._client = client
        self._lock = Lock()
        self._numbers = count(1)
        self._waiting: dict[str, _Waiting] = {}
        self._over: HeadraceError | None = None
        try:
            topic = client.topic(REPLIES_TOPIC, **replies_settings())
        except DuplicateConflict:
            topic = client.topic(REPLIES_TOPIC)  # somebody has other ideas about it
        self._consumer = topic.consumer(
            f"replies-{client.name}",
            name=client.name,
            start="latest",
            durable=False,
            auto_ack=True,
            filter=replies_filter(client.name),
        )
        self._thread = Thread(target=self._read, name="headrace-replies", daemon=True)
        self._thread.start()

    def request(self, topic: str, value: Any, timeout_ns: int, properties: dict[str, Any]) -> Delivery:
        """Publish, wait."""
        correlation_id = f"{self._client.name}/{next(self._numbers)}"
        message = request_message(value, properties, correlation_id)
        waiting = _Waiting()
        with self._lock:
            if self._over is not None:
                raise self._over
            self._waiting[correlation_id] = waiting
        try:
            self._client.topic(topic).publish(message)
            if not waiting.came.wait(timeout_ns / SECOND_NS):
                raise TimedOut(f"no answer from {topic!r} within {timeout_ns / SECOND_NS:g}s; it may still be handled")
        finally:
            with self._lock:
                self._waiting.pop(correlation_id, None)
        answer = waiting.answer
        if isinstance(answer, HeadraceError):
            raise answer
        return answer

    def _read(self) -> None:
        over: HeadraceError = Closed("the client was closed while a request waited for its answer")
        try:
            for answer in self._consumer:
                with self._lock:
                    waiting = self._waiting.pop(answer.correlation_id or "", None)
                if waiting is not None:
                    waiting.put(answer)
        except HeadraceError as error:
            over = error
        with self._lock:
            self._over = over
            unanswered, self._waiting = list(self._waiting.values()), {}
        for waiting in unanswered:
            waiting.put(over)

    def close(self) -> None:
        """Nobody waits any more."""
        self._consumer.stop()
        self._thread.join()
        self._consumer.close()
