"""From a packet to the buffers of its frame, one function per kind, to be written one after another.

Opaque bodies are the caller's own buffers, handed on without a copy. The ``…_frame`` functions do the same for the
frames that go out most often, without a packet in between. A field that does not fit raises what struct, Unicode or
msgspec raise; ``frames.build`` turns that into InvalidArgument.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from headrace import errors, limits
from headrace.wire.native.layouts import (
    ACTION,
    ATOMIC_FLAG,
    CALL,
    CONSUME,
    CREDIT_FRAME,
    DELIVERED_RUN,
    DELIVERIES_HEAD,
    DUPLICATE_ENTRY,
    EFFECT,
    ENDED,
    HEADER,
    HELLO_MAGIC,
    LEASE,
    PART,
    PUBLISH_HEAD,
    PUBLISHED,
    PUBLISHED_RUN_FRAME,
    REFUSAL,
    REFUSED,
    RELAXED_FLAG,
    RESULT,
    RUN,
    SETTLE,
    SETTLED,
    TOKEN_FRAME,
    U32,
    U64,
    WITHDRAW_FLAG,
)
from headrace.wire.native.packets import (
    Action,
    Buffer,
    Call,
    Close,
    Consume,
    Credit,
    DeliveredRun,
    Deliveries,
    Effect,
    EffectKind,
    Ended,
    Error,
    GoAway,
    Hello,
    Kind,
    Lease,
    Leased,
    Ping,
    Pong,
    Publish,
    Published,
    PublishEffect,
    Refusal,
    Result,
    Scope,
    Settle,
    Settled,
    Subscribed,
    Unsubscribe,
    Welcome,
)

_BYTES: Final = {bytes}


def _buffers(body: Buffer | Sequence[Buffer]) -> tuple[list[Buffer], int]:
    """``body`` as byte buffers, and how many bytes they are together."""
    if isinstance(body, bytes):
        return [body], len(body)
    if isinstance(body, bytearray | memoryview):
        body = _flat(body)
        return [body], len(body)
    buffers = [piece if isinstance(piece, bytes) else _flat(piece) for piece in body]
    return buffers, sum(map(len, buffers))


def _flat(piece: Any) -> Buffer:
    """A buffer whose len() is its size in bytes: columns may be arrays of wider items."""
    view = memoryview(piece)
    return view if view.format == "B" and view.ndim == 1 and view.contiguous else view.cast("B")


def _frame(kind: Kind, correlation: int, body: bytes, flags: int = 0) -> list[Buffer]:
    return [HEADER.pack(6 + len(body), kind, flags, correlation) + body]


def _clip(text: str) -> bytes:
    """An error text, cut between characters where it is too long."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limits.NATIVE_TEXT_BYTES_MAX:
        return data
    return data[: limits.NATIVE_TEXT_BYTES_MAX].decode("utf-8", "ignore").encode()


def _names(scope: Scope) -> bytes:
    names = [scope.namespace.encode(), scope.topic.encode(), scope.group.encode(), scope.consumer.encode()]
    return bytes(map(_name_length, names)) + b"".join(names)


def _name_length(name: bytes) -> int:
    if len(name) > limits.NAME_BYTES_MAX:
        raise errors.InvalidArgument(f"a name of {len(name)} bytes; at most {limits.NAME_BYTES_MAX}")
    return len(name)


def _encode_hello(packet: Hello) -> list[Buffer]:
    return _frame(Kind.HELLO, 0, HELLO_MAGIC + msgspec.msgpack.encode(packet.body))


def _encode_welcome(packet: Welcome) -> list[Buffer]:
    return _frame(Kind.WELCOME, 0, msgspec.msgpack.encode(packet.body))


def _encode_ping(packet: Ping) -> list[Buffer]:
    return [TOKEN_FRAME.pack(14, Kind.PING, 0, 0, packet.token)]


def _encode_pong(packet: Pong) -> list[Buffer]:
    return [TOKEN_FRAME.pack(14, Kind.PONG, 0, 0, packet.token)]


def _encode_error(packet: Error) -> list[Buffer]:
    body = REFUSED.pack(packet.code, 0, packet.retry_after_ns) + _clip(packet.message)
    return _frame(Kind.ERROR, packet.correlation, body)


def _encode_close(packet: Close) -> list[Buffer]:
    return _frame(Kind.CLOSE, 0, REFUSED.pack(packet.code, 0, packet.retry_after_ns) + _clip(packet.message))


def _encode_goaway(packet: GoAway) -> list[Buffer]:
    return _frame(Kind.GOAWAY, 0, U64.pack(packet.deadline_ns) + _clip(packet.reason))


def _encode_publish(packet: Publish) -> list[Buffer]:
    return publish_frame(
        packet.correlation, packet.namespace, packet.topic, packet.partition, packet.durability, packet.batch
    )


def publish_frame(
    correlation: int,
    namespace: str,
    topic: str,
    partition: int,
    durability: int,
    batch: Buffer | Sequence[Buffer],
) -> list[Buffer]:
    """PUBLISH without a packet in between."""
    a, b = namespace.encode(), topic.encode()
    if type(batch) is list and set(map(type, batch)) == _BYTES:
        buffers, size = batch, sum(map(len, batch))
    else:
        buffers, size = _buffers(batch)
    if len(a) > limits.NAME_BYTES_MAX or len(b) > limits.NAME_BYTES_MAX:
        raise errors.InvalidArgument(f"a name of {max(len(a), len(b))} bytes; at most {limits.NAME_BYTES_MAX}")
    length = 14 + len(a) + len(b) + size
    head = PUBLISH_HEAD.pack(length, 16, 0, correlation, partition, durability, len(a), len(b), 0)
    return [head + a + b, *buffers]


def published_run_frame(
    correlation: int, partition: int, count: int, base_offset: int, base_id: int, flags: int = 0
) -> list[Buffer]:
    """PUBLISHED of one run and no duplicates, without a packet in between."""
    return [PUBLISHED_RUN_FRAME.pack(38, 17, flags, correlation, count, 1, 0, partition, count, base_offset, base_id)]


def _encode_published(packet: Published) -> list[Buffer]:
    flags = RELAXED_FLAG if packet.relaxed else 0
    if len(packet.parts) == 1 and not packet.duplicates and packet.parts[0][1] == packet.count:
        return published_run_frame(packet.correlation, *packet.parts[0], flags)
    return _frame(Kind.PUBLISHED, packet.correlation, _published_body(packet), flags)


def _published_body(packet: Published) -> bytes:
    parts, duplicates = packet.parts, packet.duplicates
    body = [PUBLISHED.pack(packet.count, len(parts), len(duplicates))]
    body += [PART.pack(*part) for part in parts]
    if len(parts) > 1:
        if len(packet.indexes) != packet.count:
            raise errors.InvalidArgument(f"PUBLISHED: {len(packet.indexes)} indexes for {packet.count} messages")
        body.append(struct.pack(f"<{packet.count}H", *packet.indexes))
    body += [DUPLICATE_ENTRY.pack(*duplicate) for duplicate in duplicates]
    return b"".join(body)


def _encode_consume(packet: Consume) -> list[Buffer]:
    head = CONSUME.pack(packet.lease_ns, packet.credit_messages, packet.credit_bytes)
    return _frame(Kind.CONSUME, packet.correlation, head + _names(packet.scope) + bytes(packet.options))


def _encode_subscribed(packet: Subscribed) -> list[Buffer]:
    return _frame(Kind.SUBSCRIBED, packet.correlation, U64.pack(packet.lease_ns) + bytes(packet.information))


def _encode_unsubscribe(packet: Unsubscribe) -> list[Buffer]:
    return _frame(Kind.UNSUBSCRIBE, packet.correlation, U32.pack(packet.subscription))


def _encode_ended(packet: Ended) -> list[Buffer]:
    head = ENDED.pack(packet.subscription, packet.code, 0, packet.retry_after_ns)
    return _frame(Kind.ENDED, packet.correlation, head + _clip(packet.message))


def _encode_credit(packet: Credit) -> list[Buffer]:
    return credit_frame(packet.subscription, packet.messages, packet.bytes, WITHDRAW_FLAG if packet.withdraw else 0)


def credit_frame(subscription: int, messages: int, size_bytes: int, flags: int = 0) -> list[Buffer]:
    """CREDIT without a packet in between."""
    return [CREDIT_FRAME.pack(22, 41, flags, 0, subscription, messages, size_bytes)]


def _encode_deliveries(packet: Deliveries) -> list[Buffer]:
    return delivered_frame(Kind.DELIVERIES, 0, packet.subscription, packet.lease_ns, packet.runs, packet.batches)


def _encode_leased(packet: Leased) -> list[Buffer]:
    return delivered_frame(
        Kind.LEASED, packet.correlation, packet.subscription, packet.lease_ns, packet.runs, packet.batches
    )


def delivered_frame(
    kind: int,
    correlation: int,
    subscription: int,
    lease_ns: int,
    runs: Sequence[DeliveredRun],
    batches: Sequence[Buffer | Sequence[Buffer]],
) -> list[Buffer]:
    """DELIVERIES or LEASED without a packet in between; a batch may be one buffer or the list of its buffers."""
    bodies: list[Buffer] = []
    sizes = b""
    total = 0
    for batch in batches:
        buffers, size = _buffers(batch)
        bodies += buffers
        sizes += U32.pack(size)
        total += size
    length = 26 + 28 * len(runs) + len(sizes) + total
    head = DELIVERIES_HEAD.pack(length, kind, 0, correlation, subscription, len(runs), len(batches), lease_ns)
    if len(runs) == 1:
        return [head + DELIVERED_RUN.pack(*runs[0]) + sizes, *bodies]
    return [head + b"".join([DELIVERED_RUN.pack(*run) for run in runs]) + sizes, *bodies]


def _encode_lease(packet: Lease) -> list[Buffer]:
    scope = packet.scope
    subscription, names = (scope, b"") if isinstance(scope, int) else (0, _names(scope))
    head = LEASE.pack(subscription, packet.messages_max, packet.bytes_max, packet.wait_ns, packet.lease_ns)
    return _frame(Kind.LEASE, packet.correlation, head + names)


def _encode_settle(packet: Settle) -> list[Buffer]:
    return settle_frame(packet.correlation, packet.actions, packet.effects, packet.atomic)


def settle_frame(correlation: int, actions: Sequence[Action], effects: Sequence[Effect], atomic: bool) -> list[Buffer]:
    """SETTLE without a packet in between."""
    body = [SETTLE.pack(len(actions), len(effects))]
    for action in actions:
        scope, runs = action.scope, action.runs
        error = _clip(action.error) if action.error else b""
        subscription, names = (scope, b"") if isinstance(scope, int) else (0, _names(scope))
        head = ACTION.pack(action.verb, 0, len(error), subscription, action.span_ns, len(runs))
        if len(runs) == 1:
            body.append(head + names + error + RUN.pack(*runs[0]))
        else:
            body.append(head + names + error + b"".join([RUN.pack(*run) for run in runs]))
    data: list[Buffer] = []
    for effect in effects:
        a, b = effect.namespace.encode(), effect.topic.encode()
        if isinstance(effect, PublishEffect):
            kind, partition = EffectKind.PUBLISH, effect.partition
            buffers, size = _buffers(effect.batch)
        else:
            kind, partition = EffectKind.CANCEL, 0
            buffers, size = [struct.pack(f"<{len(effect.ids)}Q", *effect.ids)], 8 * len(effect.ids)
        body.append(EFFECT.pack(kind, _name_length(a), _name_length(b), 0, partition, size) + a + b)
        data += buffers
    control = b"".join(body)
    length = 6 + len(control) + (sum(map(len, data)) if data else 0)
    return [HEADER.pack(length, 48, ATOMIC_FLAG if atomic else 0, correlation) + control, *data]


def _encode_settled(packet: Settled) -> list[Buffer]:
    return settled_frame(packet.correlation, packet.refusals, packet.published, packet.cancelled)


def settled_frame(
    correlation: int, refusals: Sequence[Refusal], published: Sequence[Published], cancelled: int | None = None
) -> list[Buffer]:
    """SETTLED without a packet in between."""
    body = [SETTLED.pack(len(refusals), len(published), cancelled is not None)]
    body += [REFUSAL.pack(*refusal) for refusal in refusals]
    for packet in published:
        part = _published_body(packet)
        body.append(U32.pack(len(part)) + part)
    if cancelled is not None:
        body.append(U32.pack(cancelled))
    return _frame(Kind.SETTLED, correlation, b"".join(body))


def _sizes(buffers: Sequence[Buffer]) -> bytes:
    if len(buffers) > limits.NATIVE_ATTACHMENTS_MAX:
        raise errors.InvalidArgument(f"{len(buffers)} attachments; at most {limits.NATIVE_ATTACHMENTS_MAX}")
    return struct.pack(f"<{len(buffers)}I", *map(len, buffers))


def _encode_call(packet: Call) -> list[Buffer]:
    attachments, total = _buffers(packet.attachments)
    method = packet.method.encode()
    head = CALL.pack(len(method), len(packet.arguments), len(attachments)) + _sizes(attachments)
    control = head + method + bytes(packet.arguments)
    return [HEADER.pack(6 + len(control) + total, Kind.CALL, 0, packet.correlation) + control, *attachments]


def _encode_result(packet: Result) -> list[Buffer]:
    attachments, total = _buffers(packet.attachments)
    control = RESULT.pack(len(packet.result), len(attachments)) + _sizes(attachments)
    length = 6 + len(control) + len(packet.result) + total
    return [HEADER.pack(length, Kind.RESULT, 0, packet.correlation) + control, packet.result, *attachments]


ENCODERS: Final[dict[Kind, Callable[[Any], list[Buffer]]]] = {
    Kind.ERROR: _encode_error,
    Kind.HELLO: _encode_hello,
    Kind.WELCOME: _encode_welcome,
    Kind.PING: _encode_ping,
    Kind.PONG: _encode_pong,
    Kind.CLOSE: _encode_close,
    Kind.GOAWAY: _encode_goaway,
    Kind.PUBLISH: _encode_publish,
    Kind.PUBLISHED: _encode_published,
    Kind.CONSUME: _encode_consume,
    Kind.SUBSCRIBED: _encode_subscribed,
    Kind.UNSUBSCRIBE: _encode_unsubscribe,
    Kind.ENDED: _encode_ended,
    Kind.LEASE: _encode_lease,
    Kind.LEASED: _encode_leased,
    Kind.DELIVERIES: _encode_deliveries,
    Kind.CREDIT: _encode_credit,
    Kind.SETTLE: _encode_settle,
    Kind.SETTLED: _encode_settled,
    Kind.CALL: _encode_call,
    Kind.RESULT: _encode_result,
}
