"""The stateless codec: bytes → packet | NEED_MORE | Failure, and packet → list of buffers.

    offset  size  field
    0       4     length       bytes that follow this field (6 + body)
    4       1     kind
    5       1     flags
    6       4     correlation
    10      …     body         drawn in docs/reference/native-protocol.md §4, numbers little-endian

Rules kept here:

- The length is judged from its four bytes (`frame_end`), before anybody buffers for it; so is the kind's own limit.
- What comes from outside never raises: a decoder may raise anything in ``EXPECTED`` and `decode_frame` turns it into a
  Failure, which carries the error to close with. What our own caller got wrong raises InvalidArgument (`build`).
- Bodies that are opaque are sliced, never copied: a received batch is a memoryview into its chunk, a sent one is the
  caller's own buffer, handed on.
- Whole validation at once: a packet that was decoded needs no second look at its shape, only at its sense.

Not here: which packet is legal when, limits that need memory of earlier frames (sessions).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import msgspec

from headrace import errors, limits
from headrace.wire.native.decoding import DECODERS, EXPECTED, reason
from headrace.wire.native.encoding import ENCODERS
from headrace.wire.native.layouts import (
    BODY_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    KNOWN_FLAGS,
    LENGTH,
    LENGTH_BYTES,
    UNCORRELATED,
)
from headrace.wire.native.packets import (
    Buffer,
    Kind,
    Packet,
)


class NeedMore(Enum):
    """The value that says: nothing is wrong, the frame is not whole yet."""

    NEED_MORE = "need more"


NEED_MORE: Final = NeedMore.NEED_MORE
_ROWS: Final = {int(kind): (DECODERS[kind], KNOWN_FLAGS.get(kind, 0), kind in UNCORRELATED) for kind in Kind}
"""What `decode_frame` asks of every frame, in one look."""


ORDINARY: Final = {
    int(kind): (DECODERS[kind], 6 + BODY_BYTES_MAX[kind])
    for kind in (Kind.PUBLISH, Kind.PUBLISHED, Kind.LEASE, Kind.LEASED, Kind.SETTLE, Kind.SETTLED, Kind.CALL)
}
"""Requests and replies, which carry a correlation: their decoder and their greatest length."""


class Failure(msgspec.Struct, frozen=True):
    """Bytes that are no frame: the error the connection closes with."""

    error: errors.HeadraceError


def frame_end(view: Buffer, start: int, frame_bytes_max: int) -> int | NeedMore | Failure:
    """Where the frame at ``start`` ends (it need not be there yet). Wants 4 bytes, uses the fifth when it is there."""
    if len(view) - start < LENGTH_BYTES:
        return NEED_MORE
    (length,) = LENGTH.unpack_from(view, start)
    if length > frame_bytes_max:
        return Failure(errors.PayloadTooLarge(f"a frame of {length} bytes; at most {frame_bytes_max} are accepted"))
    if length < HEADER_BYTES - LENGTH_BYTES:
        return Failure(errors.Malformed(f"a frame of {length} bytes; its header alone has 6"))
    if len(view) - start > LENGTH_BYTES:
        kind = view[start + LENGTH_BYTES]
        body_max = BODY_BYTES_MAX.get(kind)
        if body_max is None:
            return Failure(errors.Malformed(f"a frame of the unknown kind {kind}"))
        if length - 6 > body_max:
            name = Kind(kind).name
            return Failure(errors.PayloadTooLarge(f"{name} with a body of {length - 6} bytes; at most {body_max}"))
    return int(start + LENGTH_BYTES + length)


def decode_frame(view: memoryview, start: int, end: int) -> Packet | Failure:
    """The packet in ``view[start:end]``, which `frame_end` has measured and which is all there."""
    _, kind, flags, correlation = HEADER.unpack_from(view, start)
    row = _ROWS.get(kind)
    if row is None:
        return Failure(errors.Malformed(f"a frame of the unknown kind {kind}"))
    decoder, known_flags, uncorrelated = row
    if flags & ~known_flags:
        return Failure(errors.Malformed(f"{Kind(kind).name} with the flags {flags:#04x}, some without a name"))
    if (correlation == 0) is not uncorrelated and kind != Kind.ENDED:
        rule = "none belongs there" if correlation else "it must not be 0"
        return Failure(errors.ProtocolViolation(f"{Kind(kind).name} with correlation {correlation}: {rule}"))
    try:
        return decoder(view[start:end], HEADER_BYTES, end - start, flags, correlation)
    except errors.HeadraceError as error:
        return Failure(error)
    except EXPECTED as error:
        return Failure(errors.Malformed(f"{Kind(kind).name}: {reason(error)}"))


def decode(
    buffer: Buffer, start: int = 0, *, frame_bytes_max: int = limits.NATIVE_FRAME_BYTES_DEFAULT
) -> tuple[Packet, int] | NeedMore | Failure:
    """The packet that begins at ``start`` and where it ends.

    >>> from headrace.wire.native import Ping, encode
    >>> data = b"".join(encode(Ping(7)))
    >>> decode(data)
    (Ping(token=7), 18)
    >>> decode(data[:17])
    <NeedMore.NEED_MORE: 'need more'>
    """
    view = memoryview(buffer)
    end = frame_end(view, start, frame_bytes_max)
    if not isinstance(end, int):
        return end
    if end > len(view):
        return NEED_MORE
    packet = decode_frame(view, start, end)
    return packet if isinstance(packet, Failure) else (packet, end)


def encode(packet: Packet) -> list[Buffer]:
    """The frame of ``packet``, as buffers to be written one after another; opaque bodies are the packet's own.

    Raises errors.InvalidArgument when a field does not fit its place.
    """
    return build(ENCODERS[packet.kind], packet)


def build(encoder: Callable[..., list[Buffer]], *fields: Any) -> list[Buffer]:
    """Run one of the encoders below, turning what does not fit into InvalidArgument."""
    try:
        return encoder(*fields)
    except (struct.error, UnicodeEncodeError, msgspec.EncodeError, OverflowError) as error:
        raise errors.InvalidArgument(f"a field does not fit the native protocol: {error}") from error
