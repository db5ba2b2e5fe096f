"""The dictionary between JSON and batches. No rules live here: the broker decides what may be stored.

value "text"   value_base64   json    ──►  bytes; of json as it was written, with content_type application/json
key dedup_id headers …                ──►  the columns of a batch
a stored message                      ──►  ``json`` when its content type says so and it is, else text, else base64
a delivery                            ──►  the same with its receipt, partition:lease:offset
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import UNSET

from headrace.batch import Batch, encode_columns, encode_one
from headrace.calls import LeasedBatch, Part, Run
from headrace.config import parse_duration_ns
from headrace.errors import InvalidArgument
from headrace.frontends.http import shapes
from headrace.limits import SPAN_NS_MAX, TIME_NS_MAX

__all__ = [
    "batch_of",
    "deliveries_of",
    "instant_ns",
    "messages_of",
    "results_of",
    "run_of",
    "runs_of",
    "span_ns",
    "spelled_instant",
    "spelled_run",
]

_NAMED: Final = {"high": 1, "normal": 5, "low": 9}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_JSON_TYPE: Final = "application/json"
_PLACE_MAX: Final = 1 << 62
"""Beyond any partition, lease or offset there is."""


# -- times -------------------------------------------------------------------------------------------------------------


def span_ns(name: str, text: str) -> int:
    """A span as nanoseconds; ``name`` is the field's, for the refusal.

    >>> span_ns("wait", "1m30s")
    90000000000
    """
    try:
        found = parse_duration_ns(text)
    except InvalidArgument as refused:
        raise InvalidArgument(f"{name}: {refused.message}") from None
    if found > SPAN_NS_MAX:
        raise InvalidArgument(f"{name}: {text!r} is longer than 73 years")
    return found


def instant_ns(name: str, moment: datetime) -> int:
    """An instant as nanoseconds since 1970."""
    found = (moment - _EPOCH) // _MICROSECOND * 1000
    if not 0 < found <= TIME_NS_MAX:
        raise InvalidArgument(f"{name}: {moment.isoformat()} does not lie between 1970 and 2116")
    return found


def spelled_instant(at_ns: int) -> str:
    """Nanoseconds since 1970 as RFC 3339, as exact as they are.

    >>> spelled_instant(1_700_000_000_123_456_789), spelled_instant(1_700_000_000_000_000_000)
    ('2023-11-14T22:13:20.123456789Z', '2023-11-14T22:13:20Z')
    """
    seconds, rest = divmod(at_ns, 1_000_000_000)
    text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{rest:09d}".rstrip("0") + "Z" if rest else f"{text}Z"


# -- to batches --------------------------------------------------------------------------------------------------------


def batch_of(messages: Sequence[shapes.NewMessage], traceparent: str | None = None) -> Batch:
    """The messages of a publish as one batch; ``traceparent`` is for those that bring none."""
    if len(messages) == 1:
        one = messages[0]
        deliver, expire = _times(one)
        return encode_one(
            _value(one),
            key=_key(one),
            headers=_headers(one, traceparent),
            priority=_priority(one),
            delay_ns=deliver[0],
            deliver_at_ns=deliver[1],
            ttl_ns=expire[0],
            expires_at_ns=expire[1],
            dedup_id=one.dedup_id.encode() if one.dedup_id is not None else None,
            timestamp_ns=instant_ns("timestamp", one.timestamp) if one.timestamp is not None else None,
        )
    columns: dict[str, Any] = {}
    if traceparent is not None or _any(
        messages, "headers", "headers_base64", "json", "correlation_id", "reply_to", "content_type"
    ):
        columns["headers"] = [_headers(one, traceparent) for one in messages]
    if _any(messages, "key", "key_base64"):
        columns["keys"] = [_key(one) for one in messages]
    if set(map(attrgetter("priority"), messages)) != {5}:
        columns["priorities"] = [_priority(one) for one in messages]
    if _any(messages, "dedup_id"):
        columns["dedup_ids"] = [one.dedup_id.encode() if one.dedup_id is not None else None for one in messages]
    if _any(messages, "timestamp"):
        columns["timestamps_ns"] = [
            instant_ns("timestamp", one.timestamp) if one.timestamp is not None else None for one in messages
        ]
    if _any(messages, "delay", "deliver_at", "ttl", "expires_at"):
        times = [_times(one) for one in messages]
        columns["delays_ns"] = [deliver[0] for deliver, _ in times]
        columns["deliver_ats_ns"] = [deliver[1] for deliver, _ in times]
        columns["ttls_ns"] = [expire[0] for _, expire in times]
        columns["expires_ats_ns"] = [expire[1] for _, expire in times]
    return encode_columns([_value(one) for one in messages], **columns)


def _any(messages: Sequence[shapes.NewMessage], *names: str) -> bool:
    """Whether one of them has one of these; what is empty counts as not there."""
    return any(any(map(attrgetter(name), messages)) for name in names)


def _value(one: shapes.NewMessage) -> bytes:
    value, raw, json = one.value, one.value_base64, one.json
    if value is not UNSET:
        if raw is UNSET and json is UNSET:
            return value.encode()
    elif raw is UNSET:
        return b"" if json is UNSET else bytes(json)
    elif json is UNSET:
        return raw
    raise InvalidArgument("a message has more than one of value, value_base64 and json; give one of them")


def _key(one: shapes.NewMessage) -> bytes | None:
    if one.key_base64 is None:
        return one.key.encode() if one.key is not None else None
    if one.key is not None:
        raise InvalidArgument("a message has both key and key_base64; give one of them")
    return one.key_base64


def _priority(one: shapes.NewMessage) -> int:
    priority = one.priority
    return priority if isinstance(priority, int) else _NAMED[priority]


def _headers(one: shapes.NewMessage, traceparent: str | None) -> dict[str, str | bytes] | None:
    found: dict[str, str | bytes] = {}
    if one.headers is not None:
        found.update(one.headers)
    if one.headers_base64 is not None:
        found.update(one.headers_base64)
    if one.correlation_id is not None:
        found["correlation_id"] = one.correlation_id
    if one.reply_to is not None:
        found["reply_to"] = one.reply_to
    if one.content_type is not None:
        found["content_type"] = one.content_type
    elif one.json is not UNSET:
        found.setdefault("content_type", _JSON_TYPE)
    if traceparent is not None:
        found.setdefault("traceparent", traceparent)
    return found or None


_Times = tuple[tuple[int | None, int | None], tuple[int | None, int | None]]


def _times(one: shapes.NewMessage) -> _Times:
    """((delay, deliver_at), (ttl, expires_at)) in nanoseconds."""
    if one.delay is None and one.deliver_at is None and one.ttl is None and one.expires_at is None:
        return (None, None), (None, None)
    if one.delay is not None and one.deliver_at is not None:
        raise InvalidArgument(f"a message has both delay ({one.delay!r}) and deliver_at; give one of them")
    if one.ttl is not None and one.expires_at is not None:
        raise InvalidArgument(f"a message has both ttl ({one.ttl!r}) and expires_at; give one of them")
    return (
        (
            span_ns("delay", one.delay) if one.delay is not None else None,
            instant_ns("deliver_at", one.deliver_at) if one.deliver_at is not None else None,
        ),
        (
            span_ns("ttl", one.ttl) if one.ttl is not None else None,
            instant_ns("expires_at", one.expires_at) if one.expires_at is not None else None,
        ),
    )


# -- places ------------------------------------------------------------------------------------------------------------


def results_of(count: int, parts: Iterable[Part]) -> list[shapes.Published]:
    """One result for each message of a batch, in their order."""
    results: list[shapes.Published | None] = [None] * count
    make = shapes.Published
    for part in parts:
        duplicates = {duplicate.index: duplicate for duplicate in part.duplicates}
        message_id, offset, partition = part.base_id, part.base_offset, part.partition
        if not duplicates and part.indexes is None:
            return [make(str(message_id + i), partition, offset + i, False) for i in range(count)]
        for index in part.indexes if part.indexes is not None else range(count):
            duplicate = duplicates.get(index)
            if duplicate is None:
                results[index] = make(str(message_id), partition, offset, False)
                message_id += 1
                offset += 1
            else:
                results[index] = make(str(duplicate.id), duplicate.partition, duplicate.offset, True)
    return cast("list[shapes.Published]", results)


# -- from batches ------------------------------------------------------------------------------------------------------

_AnyMessage = TypeVar("_AnyMessage", bound=shapes.Message)


def deliveries_of(leased: LeasedBatch, *, as_base64: bool = False) -> list[shapes.Delivery]:
    """Leased messages as JSON has them."""
    found = _messages(shapes.Delivery, leased.partition, leased.batch, as_base64=as_base64)
    before = f"{leased.partition}:{leased.lease_id}:"
    until = spelled_instant(leased.deadline_ns)
    attempts = leased.attempts
    for delivery in found:
        delivery.receipt = before + str(delivery.offset)
        delivery.attempt = attempts.get(delivery.offset, 1) if attempts else 1
        delivery.leased_until = until
    return found


def messages_of(partition: int, batch: Batch, *, as_base64: bool = False) -> list[shapes.Message]:
    """Stored messages as JSON has them."""
    return _messages(shapes.Message, partition, batch, as_base64=as_base64)


def _messages(kind: type[_AnyMessage], partition: int, batch: Batch, *, as_base64: bool) -> list[_AnyMessage]:
    at = spelled_instant(batch.append_time_ns)
    found: list[_AnyMessage] = []
    for message_id, offset, value in zip(batch.ids(), batch.offsets(), batch.values(), strict=True):
        one = kind(str(message_id), partition, offset, at)
        if as_base64:
            one.value_base64 = value
        else:
            try:
                one.value = value.decode()
            except UnicodeDecodeError:
                one.value_base64 = value
        found.append(one)
    _put_columns(batch, found, as_base64=as_base64)
    return found


def _put_columns(batch: Batch, found: Sequence[shapes.Message], *, as_base64: bool) -> None:
    """What only some batches have."""
    keys = batch.keys()
    if keys is not None:
        for one, key in zip(found, keys, strict=True):
            if key:
                one.key, one.key_base64 = text_or_bytes(key)
    priorities = batch.priorities()
    if priorities is not None:
        for one, priority in zip(found, priorities, strict=True):
            one.priority = priority
    dedup_ids = batch.dedup_ids()
    if dedup_ids is not None:
        for one, dedup_id in zip(found, dedup_ids, strict=True):
            if dedup_id:
                one.dedup_id, one.dedup_id_base64 = text_or_bytes(dedup_id)
    for name, column in (
        ("deliver_at", batch.deliver_ats()),
        ("expires_at", batch.expires_ats()),
        ("timestamp", batch.timestamps()),
    ):
        if column is not None:
            for one, at_ns in zip(found, column, strict=True):
                if at_ns:
                    setattr(one, name, spelled_instant(at_ns))
    if batch.has_headers:
        for index, one in enumerate(found):
            _put_headers(one, batch.headers(index), as_base64=as_base64)


def _put_headers(one: shapes.Message, headers: dict[str, str | bytes], *, as_base64: bool) -> None:
    if not headers:
        return
    texts: dict[str, str] = {}
    others: dict[str, bytes] = {}
    for name, item in headers.items():
        if isinstance(item, str):
            texts[name] = item
        else:
            others[name] = item
    one.headers, one.headers_base64 = texts or None, others or None
    content_type = texts.get("content_type", "")
    if not as_base64 and one.value is not UNSET and _says_json(content_type):
        raw = _json_of(one.value)
        if raw is not None:
            one.json, one.value = raw, UNSET


def text_or_bytes(value: bytes) -> tuple[str | None, bytes | None]:
    """Bytes as text where they are text."""
    try:
        return value.decode(), None
    except UnicodeDecodeError:
        return None, value


def _says_json(content_type: str) -> bool:
    word = content_type.partition(";")[0].strip().lower()
    return word == _JSON_TYPE or word.endswith("+json")


_look_through: Final = msgspec.json.Decoder(msgspec.Raw).decode


def _json_of(text: str) -> msgspec.Raw | None:
    """The text as a piece of JSON, or None when it is none."""
    try:
        return _look_through(text)
    except (msgspec.DecodeError, RecursionError):
        return None


# -- receipts ----------------------------------------------------------------------------------------------------------


def run_of(receipt: str) -> Run:
    """What a receipt is about.

    >>> run_of("0:17:4711"), run_of("2:17:4711+100").count
    (Run(partition=0, lease_id=17, first_offset=4711, count=1), 100)
    """
    partition, _, rest = receipt.partition(":")
    lease_id, _, offset = rest.partition(":")
    first, plus, count = offset.partition("+")
    if receipt.isascii() and partition.isdecimal() and lease_id.isdecimal() and first.isdecimal():
        if not plus:
            run = Run(int(partition), int(lease_id), int(first))
        else:
            run = Run(int(partition), int(lease_id), int(first), int(count) if count.isdecimal() else 0)
        if run.count > 0 and max(run.partition, run.lease_id, run.first_offset, run.count) < _PLACE_MAX:
            return run
    raise InvalidArgument(f"receipt {receipt[:80]!r}: a receipt is partition:lease:offset, as a lease gave it")


def runs_of(receipts: Iterable[str]) -> list[Run]:
    """The runs of receipts; those that follow each other become one."""
    runs: list[Run] = []
    for receipt in receipts:
        run = run_of(receipt)
        if runs:
            last = runs[-1]
            if (
                last.lease_id == run.lease_id
                and last.partition == run.partition
                and last.first_offset + last.count == run.first_offset
            ):
                runs[-1] = Run(last.partition, last.lease_id, last.first_offset, last.count + run.count)
                continue
        runs.append(run)
    return runs


def spelled_run(partition: int, lease_id: int, first: int, count: int) -> str:
    """The receipt of a run."""
    return f"{partition}:{lease_id}:{first}" if count == 1 else f"{partition}:{lease_id}:{first}+{count}"
