"""Publishes to queues: gathered for one round of the loop, one batch a topic, answered when they are durable.

Whatever comes in together from all connections shares a batch, so that the shard decides and the journal writes once. A
batch that is refused is tried message by message, so that a refusal meets the one it is about. A QoS 2 publish goes
alone, in one frame with its packet identifier.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.batch import Batch, Message, encode, encode_columns
from headrace.calls import BY_KEY
from headrace.errors import HeadraceError
from headrace.limits import BATCH_MESSAGES_MAX, MQTT_BATCH_BYTES

if TYPE_CHECKING:
    from headrace.broker.aio import LoopBroker
    from headrace.frontends.mqtt.connection import MqttConnection

__all__ = ["Publishing"]

_Waiting = list[tuple["MqttConnection", int]]


class _Gathered:
    """What came for one topic in this round: plain values, until one of them is more than that."""

    __slots__ = ("messages", "size_bytes", "values", "waiting")

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.messages: list[Message] | None = None
        self.waiting: _Waiting = []
        self.size_bytes = 0


class Publishing:
    """One for a door."""

    __slots__ = ("_broker", "_call_soon", "_gathered", "_namespace", "_planned")

    def __init__(self, broker: LoopBroker, namespace: str, call_soon: Any) -> None:
        self._broker = broker
        self._namespace = namespace
        self._call_soon = call_soon
        self._gathered: dict[str, _Gathered] = {}
        self._planned = False

    def add(self, topic: str, payload: bytes, message: Message | None, connection: MqttConnection, handle: int) -> None:
        """One publish; ``message`` when it is more than a payload."""
        gathered = self._gathered.get(topic)
        if gathered is None:
            gathered = self._gathered[topic] = _Gathered()
            if not self._planned:
                self._planned = True
                self._call_soon(self.flush)
        if message is not None and gathered.messages is None:
            gathered.messages = [Message(value) for value in gathered.values]
        if gathered.messages is not None:
            gathered.messages.append(message or Message(payload))
        else:
            gathered.values.append(payload)
        gathered.waiting.append((connection, handle))
        gathered.size_bytes += len(payload)
        if len(gathered.waiting) >= BATCH_MESSAGES_MAX or gathered.size_bytes > MQTT_BATCH_BYTES:
            del self._gathered[topic]
            self._send(topic, gathered)

    def flush(self) -> None:
        """The round is over."""
        self._planned = False
        everything, self._gathered = self._gathered, {}
        for topic, gathered in everything.items():
            self._send(topic, gathered)

    def add_once(
        self, topic: str, message: Message, note: tuple[bytes, bytes], connection: MqttConnection, handle: int
    ) -> None:
        """A QoS 2 publish: message and packet identifier in one frame."""
        self.flush()  # order: what came before goes before
        batch = encode([message])
        broker = self._broker.broker
        self._broker.host.then(
            lambda: broker.publish(self._namespace, topic, BY_KEY, batch, [note]),
            partial(_answer_all, [(connection, handle)]),
        )

    def _send(self, topic: str, gathered: _Gathered) -> None:
        messages, waiting = gathered.messages, gathered.waiting
        try:
            batch = encode(messages) if messages is not None else encode_columns(gathered.values)
        except HeadraceError as error:
            self._one_by_one(topic, gathered, error)
            return
        try:
            routes = self._broker.broker.routes(self._namespace, topic, batch)
        except HeadraceError as error:
            _answer_all(waiting, error)
            return
        for partition, indexes in routes.items():
            if len(routes) == 1:
                self._publish(topic, partition, batch, gathered)
            else:
                self._publish(topic, partition, batch.select(indexes), _share(gathered, indexes))

    def _publish(self, topic: str, partition: int, batch: Batch, gathered: _Gathered) -> None:
        """To one partition: all of it is stored, or nothing."""

        def done(reply: Any) -> None:
            if isinstance(reply, HeadraceError):
                self._one_by_one(topic, gathered, reply)
            else:
                _answer_all(gathered.waiting, None)

        self._broker.publish_then(self._namespace, topic, partition, batch, done)

    def _one_by_one(self, topic: str, gathered: _Gathered, error: HeadraceError) -> None:
        """A batch was refused: find out whom that is about."""
        waiting = gathered.waiting
        if len(waiting) == 1 or error.code in ("storage_failed", "closed", "overloaded", "draining"):
            _answer_all(waiting, error)
            return
        messages = gathered.messages or [Message(value) for value in gathered.values]
        for message, whom in zip(messages, waiting, strict=True):
            try:
                batch = encode([message])
            except HeadraceError as refusal:
                _answer_all([whom], refusal)
                continue
            self._broker.publish_then(self._namespace, topic, BY_KEY, batch, partial(_answer_all, [whom]))


def _share(gathered: _Gathered, indexes: list[int]) -> _Gathered:
    """What of it goes to one partition."""
    share = _Gathered()
    messages = gathered.messages
    if messages is not None:
        share.messages = [messages[i] for i in indexes]
    else:
        share.values = [gathered.values[i] for i in indexes]
    share.waiting = [gathered.waiting[i] for i in indexes]
    return share


def _answer_all(waiting: _Waiting, reply: Any) -> None:
    error = reply if isinstance(reply, HeadraceError) else None
    for connection, handle in waiting:
        connection.answer(handle, error)
