"""From the bytes of one whole frame to its packet, one function per kind; whatever is wrong with them is raised.

Each takes (frame, where its body begins, where it ends, flags, correlation). It validates wholly: a packet that comes
out needs no second look at its shape. Opaque bodies are slices, never copies. Only ``frames.decode_frame`` calls these;
it turns what they raise (``EXPECTED`` and errors) into a Failure.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, TypeAlias

import msgspec

from headrace import errors, limits
from headrace.wire.native.layouts import (
    ACTION,
    ATOMIC_FLAG,
    CALL,
    CONSUME,
    CREDIT,
    DELIVERED_RUN,
    DELIVERIES,
    DUPLICATE_ENTRY,
    EFFECT,
    ENDED,
    HELLO_MAGIC,
    LEASE,
    PART,
    PUBLISH,
    PUBLISHED,
    PUBLISHED_RUN,
    REFUSAL,
    REFUSED,
    RELAXED_FLAG,
    RESULT,
    RUN,
    SETTLE,
    SETTLED,
    U32,
    U64,
    WITHDRAW_FLAG,
)
from headrace.wire.native.packets import (
    BY_POLICY,
    DUPLICATE,
    Action,
    Buffer,
    Call,
    CancelEffect,
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
    HelloBody,
    Kind,
    Lease,
    Leased,
    Packet,
    Ping,
    Pong,
    Publish,
    Published,
    PublishEffect,
    Result,
    Scope,
    Settle,
    Settled,
    Subscribed,
    Unsubscribe,
    Verb,
    Welcome,
    WelcomeBody,
)

EXPECTED: Final = (struct.error, ValueError, RecursionError, OverflowError, MemoryError)
"""What unpacking, text and MessagePack raise for wrong bytes (msgspec's and Unicode's errors are ValueErrors)."""


def reason(error: BaseException) -> str:
    if isinstance(error, struct.error):
        return "the body ends too early"
    if isinstance(error, UnicodeDecodeError):
        return f"text that is not UTF-8 ({error.reason})"
    return str(error) or type(error).__name__


def _bad(message: str) -> errors.Malformed:
    return errors.Malformed(message)


def _text(view: memoryview, start: int, end: int) -> str:
    return str(view[start:end], "utf-8")


def _whole(what: str, at: int, end: int) -> None:
    if at != end:
        raise _bad(f"{what}: {end - at} bytes are left over" if at < end else f"{what}: {at - end} bytes are missing")


def _scope(view: memoryview, at: int, end: int) -> tuple[Scope, int]:
    a, b, c, d = view[at : at + 4]
    at += 4
    if at + a + b + c + d > end:
        raise _bad("names: they reach beyond the frame")
    topic, group, consumer = at + a, at + a + b, at + a + b + c
    stop = consumer + d
    return Scope(
        _text(view, at, topic), _text(view, topic, group), _text(view, group, consumer), _text(view, consumer, stop)
    ), stop


def _runs(layout: Struct, view: memoryview, at: int, count: int, end: int) -> tuple[list[Any], int]:
    stop = at + count * layout.size
    if stop > end:
        raise _bad(f"{count} entries of {layout.size} bytes do not fit the {end - at} bytes that are left")
    return list(layout.iter_unpack(view[at:stop])), stop


def _pieces(view: memoryview, at: int, count: int, gap: int, end: int) -> tuple[list[Buffer], int]:
    """``count`` buffers whose lengths stand at ``at`` and whose bytes begin ``gap`` bytes after the lengths."""
    if count > limits.NATIVE_ATTACHMENTS_MAX:
        raise errors.LimitExceeded(f"{count} buffers in one frame; at most {limits.NATIVE_ATTACHMENTS_MAX}")
    sizes = struct.unpack_from(f"<{count}I", view, at)
    at += 4 * count + gap
    pieces: list[Buffer] = []
    for size in sizes:
        pieces.append(view[at : at + size])
        at += size
    return pieces, at


def _decode_hello(view: memoryview, at: int, end: int, _flags: int, _correlation: int) -> Packet:
    if bytes(view[at : at + 4]) != HELLO_MAGIC:
        raise _bad(f"HELLO begins with {bytes(view[at : at + 4])!r}, not with {HELLO_MAGIC!r}")
    body = _HELLO_BODY.decode(view[at + 4 : end])
    if body.heartbeat_ns < 0 or 0 < body.frame_bytes_max < limits.NATIVE_FRAME_BYTES_MIN or body.frame_bytes_max < 0:
        raise _bad(f"HELLO: heartbeat {body.heartbeat_ns} ns, frames of {body.frame_bytes_max} bytes")
    return Hello(body)


def _decode_welcome(view: memoryview, at: int, end: int, _flags: int, _correlation: int) -> Packet:
    body = _WELCOME_BODY.decode(view[at:end])
    least = min(
        body.heartbeat_ns,
        body.frame_bytes_max - limits.NATIVE_FRAME_BYTES_MIN,
        body.requests_max,
        body.subscriptions_max,
        body.credit_messages_max,
        body.credit_bytes_max,
    )
    if least < 0:
        raise _bad("WELCOME: a limit too small to work with")
    return Welcome(body)


def _decode_ping(view: memoryview, at: int, end: int, _flags: int, _correlation: int) -> Packet:
    _whole("PING", at + 8, end)
    return Ping(U64.unpack_from(view, at)[0])


def _decode_pong(view: memoryview, at: int, end: int, _flags: int, _correlation: int) -> Packet:
    _whole("PONG", at + 8, end)
    return Pong(U64.unpack_from(view, at)[0])


def _decode_error(view: memoryview, at: int, end: int, _flags: int, correlation: int) -> Packet:
    code, zero, retry_after_ns = REFUSED.unpack_from(view, at)
    if zero or not code:
        raise _bad("ERROR: no code" if not code else "ERROR: a reserved field is not 0")
    return Error(correlation, code, _text(view, at + 12, end), retry_after_ns)


def _decode_close(view: memoryview, at: int, end: int, _flags: int, _correlation: int) -> Packet:
    code, zero, retry_after_ns = REFUSED.unpack_from(view, at)
    if zero:
        raise _bad("CLOSE: a reserved field is not 0")
    return Close(code, _text(view, at + 12, end), retry_after_ns)


def _decode_goaway(view: memoryview, at: int, end: int, _flags: int, _correlation: int) -> Packet:
    (deadline_ns,) = U64.unpack_from(view, at)
    return GoAway(deadline_ns, _text(view, at + 8, end))


def _decode_publish(view: memoryview, at: int, end: int, _flags: int, correlation: int) -> Packet:
    partition, durability, a, b, zero = PUBLISH.unpack_from(view, at)
    topic = at + 8 + a
    batch = topic + b
    if zero or durability > 1 or partition < -1:
        raise _bad(f"PUBLISH: partition {partition}, durability {durability}, reserved {zero}")
    if batch > end:
        raise _bad("PUBLISH: names reach beyond the frame")
    namespace = str(view[at + 8 : topic], "utf-8") if a else ""
    return Publish(correlation, namespace, str(view[topic:batch], "utf-8"), partition, durability, view[batch:end])


def _decode_published(view: memoryview, at: int, end: int, flags: int, correlation: int) -> Packet:
    if end - at == 32:  # the usual case: one run, no duplicates
        count, part_count, duplicate_count, *part = PUBLISHED_RUN.unpack_from(view, at)
        if part_count == 1 and not duplicate_count and part[1] == count:
            return Published(correlation, count, [tuple(part)], (), [], flags == RELAXED_FLAG)
    packet, stop = _published(view, at, end, correlation, relaxed=bool(flags & RELAXED_FLAG))
    _whole("PUBLISHED", stop, end)
    return packet


def _published(view: memoryview, at: int, end: int, correlation: int, *, relaxed: bool) -> tuple[Published, int]:
    count, part_count, duplicate_count = PUBLISHED.unpack_from(view, at)
    parts, at = _runs(PART, view, at + 8, part_count, end)
    indexes: Sequence[int] = ()
    if part_count > 1:
        indexes = struct.unpack_from(f"<{count}H", view, at)
        at += 2 * count
    duplicates, at = _runs(DUPLICATE_ENTRY, view, at, duplicate_count, end)
    if sum(part[1] for part in parts) + duplicate_count != count:
        raise _bad(f"PUBLISHED: parts and duplicates do not add up to {count} messages")
    if indexes:
        named = Counter(indexes)
        if [named[i] for i in range(part_count)] != [part[1] for part in parts]:
            raise _bad("PUBLISHED: the parts of the messages do not add up to the parts")
    last = -1
    for index, *_ in duplicates:
        if not last < index < count or (indexes and indexes[index] != DUPLICATE):
            raise _bad(f"PUBLISHED: a duplicate at index {index} of {count}, after {last}")
        last = index
    return Published(correlation, count, parts, indexes, duplicates, relaxed), at


def _decode_consume(view: memoryview, at: int, end: int, _flags: int, correlation: int) -> Packet:
    lease_ns, messages, size = CONSUME.unpack_from(view, at)
    scope, at = _scope(view, at + 20, end)
    return Consume(correlation, scope, lease_ns, messages, size, view[at:end])


def _decode_subscribed(view: memoryview, at: int, end: int, _flags: int, correlation: int) -> Packet:
    (lease_ns,) = U64.unpack_from(view, at)
    return Subscribed(correlation, lease_ns, view[at + 8 : end])


def _decode_unsubscribe(view: memoryview, at: int, end: int, _flags: int, correlation: int) -> Packet:
    _whole("UNSUBSCRIBE", at + 4, end)
    (subscription,) = U32.unpack_from(view, at)
    if not subscription:
        raise _bad("UNSUBSCRIBE: no subscription")
    return Unsubscribe(correlation, subscription)


def _decode_ended(view: memoryview, at: int, end: int, _flags: int, correlation: int) -> Packet:
    subscription, code, zero, retry_after_ns = ENDED.unpack_from(view, at)
    if zero or not subscription:
        raise _bad("ENDED: a reserved field is not 0" if zero else "ENDED: no subscription")
    return Ended(correlation, subscription, code, _text(view, at + 16, end), retry_after_ns)


def _decode_credit(view: memoryview, at: int, end: int, flags: int, _correlation: int) -> Packet:
    _whole("CREDIT", at + 16, end)
    subscription, messages, size_bytes = CREDIT.unpack_from(view, at)
    if flags & WITHDRAW_FLAG and (messages or size_bytes):
        raise _bad("CREDIT: withdraws credit and gives some")
    return Credit(subscription, messages, size_bytes, bool(flags & WITHDRAW_FLAG))


def _delivered(view: memoryview, at: int, end: int) -> tuple[int, int, list[DeliveredRun], list[Buffer]]:
    subscription, run_count, batch_count, lease_ns = DELIVERIES.unpack_from(view, at)
    if run_count > limits.NATIVE_RUNS_MAX:
        raise errors.LimitExceeded(f"{run_count} runs in one frame; at most {limits.NATIVE_RUNS_MAX}")
    at += 20
    stop = at + 28 * run_count
    runs = [DELIVERED_RUN.unpack_from(view, at)] if run_count == 1 else list(DELIVERED_RUN.iter_unpack(view[at:stop]))
    for run in runs:
        if not run[3] or not run[4]:
            raise _bad(f"a run of {run[3]} messages at attempt {run[4]}; both count from 1")
    if batch_count == 1:  # the usual case, without building a format
        batches: list[Buffer] = [view[stop + 4 : end]]
        if U32.unpack_from(view, stop)[0] != end - stop - 4:
            raise _bad("the batches do not fill the frame")
    else:
        batches, stop = _pieces(view, stop, batch_count, 0, end)
        _whole("batches", stop, end)
    if bool(batch_count) is not bool(run_count):
        raise _bad(f"{run_count} runs with {batch_count} batches")
    return subscription, lease_ns, runs, batches


def _decode_deliveries(view: memoryview, at: int, end: int, _flags: int, _correlation: int) -> Packet:
    subscription, lease_ns, runs, batches = _delivered(view, at, end)
    if not subscription or not runs:
        raise _bad("DELIVERIES without a subscription" if runs else "DELIVERIES without messages")
    return Deliveries(subscription, lease_ns, runs, batches)


def _decode_leased(view: memoryview, at: int, end: int, _flags: int, correlation: int) -> Packet:
    return Leased(correlation, *_delivered(view, at, end))


def _decode_lease(view: memoryview, at: int, end: int, _flags: int, correlation: int) -> Packet:
    subscription, messages_max, bytes_max, wait_ns, lease_ns = LEASE.unpack_from(view, at)
    at += 28
    scope: int | Scope = subscription
    if not subscription:
        scope, at = _scope(view, at, end)
    _whole("LEASE", at, end)
    if not messages_max:
        raise _bad("LEASE of 0 messages")
    return Lease(correlation, scope, messages_max, bytes_max, wait_ns, lease_ns)


def _decode_settle(view: memoryview, at: int, end: int, flags: int, correlation: int) -> Packet:
    action_count, effect_count = SETTLE.unpack_from(view, at)
    atomic = bool(flags & ATOMIC_FLAG)
    if not action_count and not effect_count:
        raise _bad("SETTLE that settles nothing")
    if effect_count and not atomic:
        raise _bad("SETTLE with effects must be atomic")
    at += 4
    actions: list[Action] = []
    messages = run_total = 0
    for _ in range(action_count):
        verb, zero, text_bytes, subscription, span_ns, run_count = ACTION.unpack_from(view, at)
        at += 20
        run_total += run_count
        if not 1 <= verb <= 5 or zero or not run_count:
            raise _bad(f"SETTLE: verb {verb} on {run_count} runs, reserved {zero}")
        if run_total > limits.NATIVE_RUNS_MAX:
            raise errors.LimitExceeded(f"a SETTLE of more than {limits.NATIVE_RUNS_MAX} runs")
        if span_ns < 0 and (span_ns < BY_POLICY or verb != Verb.NACK):
            raise _bad(f"SETTLE: a span of {span_ns} ns with verb {verb}")
        scope: int | Scope = subscription
        if not subscription:
            scope, at = _scope(view, at, end)
        error = ""
        if text_bytes:
            if at + text_bytes > end or text_bytes > limits.NATIVE_TEXT_BYTES_MAX:
                raise _bad(f"SETTLE: an error text of {text_bytes} bytes")
            error = str(view[at : at + text_bytes], "utf-8")
            at += text_bytes
        stop = at + 24 * run_count
        if stop > end:
            raise _bad("SETTLE: runs reach beyond the frame")
        runs = [RUN.unpack_from(view, at)] if run_count == 1 else list(RUN.iter_unpack(view[at:stop]))
        at = stop
        for run in runs:
            count = run[3]
            if not count:
                raise _bad("SETTLE: a run of 0 messages")
            messages += count
        actions.append(Action(verb, scope, runs, span_ns, error))
    if messages > limits.NATIVE_SETTLE_MESSAGES_MAX:
        raise errors.LimitExceeded(f"SETTLE of {messages} messages; at most {limits.NATIVE_SETTLE_MESSAGES_MAX}")
    effects: Sequence[Effect] = ()
    if effect_count:
        effects, at = _effects(view, at, effect_count, end)
    _whole("SETTLE", at, end)
    return Settle(correlation, actions, effects, atomic)


def _effects(view: memoryview, at: int, count: int, end: int) -> tuple[list[Effect], int]:
    heads = []
    for _ in range(count):
        kind, a, b, zero, partition, size = EFFECT.unpack_from(view, at)
        at += 12
        heads.append((kind, _text(view, at, at + a), _text(view, at + a, at + a + b), partition, size))
        at += a + b
        if zero or partition < -1 or at > end:
            raise _bad(f"SETTLE: an effect on partition {partition}, reserved {zero}")
    effects: list[Effect] = []
    for kind, namespace, topic, partition, size in heads:
        data = view[at : at + size]
        at += size
        if at > end:
            break
        if kind == EffectKind.PUBLISH:
            effects.append(PublishEffect(namespace, topic, partition, data))
        elif kind == EffectKind.CANCEL:
            if size % 8 or size > 8 * limits.NATIVE_RUNS_MAX:
                raise _bad(f"SETTLE: ids in {size} bytes")
            effects.append(CancelEffect(namespace, topic, struct.unpack(f"<{size // 8}Q", data)))
        else:
            raise _bad(f"SETTLE: an effect of the unknown kind {kind}")
    return effects, at


def _decode_settled(view: memoryview, at: int, end: int, _flags: int, correlation: int) -> Packet:
    refusal_count, published_count, counted = SETTLED.unpack_from(view, at)
    if counted > 1:
        raise _bad("SETTLED: a reserved field is neither 0 nor 1")
    if not refusal_count and not published_count and not counted:
        _whole("SETTLED", at + 8, end)
        return Settled(correlation, [], [])
    refusals, at = _runs(REFUSAL, view, at + 8, refusal_count, end)
    published = []
    for _ in range(published_count):
        (size,) = U32.unpack_from(view, at)
        at += 4
        if at + size > end:
            raise _bad("SETTLED: publish results reach beyond the frame")
        packet, stop = _published(view[at : at + size], 0, size, 0, relaxed=False)
        at += size
        _whole("SETTLED", stop, size)
        published.append(packet)
    cancelled = None
    if counted:
        (cancelled,) = U32.unpack_from(view, at)
        at += 4
    _whole("SETTLED", at, end)
    return Settled(correlation, refusals, published, cancelled)


def _decode_call(view: memoryview, at: int, end: int, _flags: int, correlation: int) -> Packet:
    method_bytes, size, count = CALL.unpack_from(view, at)
    if size > limits.NATIVE_ARGUMENTS_BYTES_MAX:
        raise errors.LimitExceeded(f"CALL with {size} bytes of arguments; at most {limits.NATIVE_ARGUMENTS_BYTES_MAX}")
    attachments, stop = _pieces(view, at + 9, count, method_bytes + size, end)
    _whole("CALL", stop, end)
    at += 9 + 4 * count
    method = _text(view, at, at + method_bytes)
    at += method_bytes
    return Call(correlation, method, view[at : at + size], attachments)


def _decode_result(view: memoryview, at: int, end: int, _flags: int, correlation: int) -> Packet:
    size, count = RESULT.unpack_from(view, at)
    attachments, stop = _pieces(view, at + 8, count, size, end)
    _whole("RESULT", stop, end)
    at += 8 + 4 * count
    return Result(correlation, view[at : at + size], attachments)


_HELLO_BODY: Final = msgspec.msgpack.Decoder(HelloBody)
_WELCOME_BODY: Final = msgspec.msgpack.Decoder(WelcomeBody)
Decoder: TypeAlias = Callable[[memoryview, int, int, int, int], Packet]
DECODERS: Final[dict[int, Decoder]] = {
    Kind.ERROR: _decode_error,
    Kind.HELLO: _decode_hello,
    Kind.WELCOME: _decode_welcome,
    Kind.PING: _decode_ping,
    Kind.PONG: _decode_pong,
    Kind.CLOSE: _decode_close,
    Kind.GOAWAY: _decode_goaway,
    Kind.PUBLISH: _decode_publish,
    Kind.PUBLISHED: _decode_published,
    Kind.CONSUME: _decode_consume,
    Kind.SUBSCRIBED: _decode_subscribed,
    Kind.UNSUBSCRIBE: _decode_unsubscribe,
    Kind.ENDED: _decode_ended,
    Kind.LEASE: _decode_lease,
    Kind.LEASED: _decode_leased,
    Kind.DELIVERIES: _decode_deliveries,
    Kind.CREDIT: _decode_credit,
    Kind.SETTLE: _decode_settle,
    Kind.SETTLED: _decode_settled,
    Kind.CALL: _decode_call,
    Kind.RESULT: _decode_result,
}
