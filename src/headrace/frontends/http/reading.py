"""What a request carries, made into structs: JSON, queries, compressed bodies. Refusals name the place.

A body is inflated step by step and given up as soon as it is larger than it may be, or larger than any honest
compression makes it. Unknown fields are refused with the nearest name that is known.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec

from headrace import limits
from headrace.errors import InvalidArgument, Malformed, PayloadTooLarge
from headrace.frontends.http.answers import Declined

if TYPE_CHECKING:
    from headrace.frontends.http.request import Request

__all__ = ["ARROW_STREAM", "JsonReader", "inflated", "media_type", "query_of"]

Given = TypeVar("Given", bound=msgspec.Struct)

ARROW_STREAM: Final = b"application/vnd.apache.arrow.stream"
_JSON_TYPES: Final = frozenset(
    {b"application/json", b"text/json", b"text/plain", b"application/x-www-form-urlencoded", b"", b"*/*"}
)
"""``curl -d`` says it sends a form; only JSON is ever meant here."""
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*?)`(?: - at `([^`]*)`)?$", re.DOTALL)


def media_type(value: bytes | None) -> bytes:
    """A content type without its parameters."""
    return (value or b"").partition(b";")[0].strip().lower()


class JsonReader:
    """Reads one type of body."""

    __slots__ = ("_decode", "_type")

    def __init__(self, kind: Any) -> None:
        self._type = kind
        self._decode = msgspec.json.Decoder(kind).decode

    def read(self, request: Request) -> Any:
        """The body of a request; an empty one is an empty object."""
        kind = request.headers.get(b"content-type")
        if kind is not None and kind != b"application/json":
            word = media_type(kind)
            if word not in _JSON_TYPES and not word.endswith(b"+json"):
                raise Declined(415, f"content-type {word[:80].decode('latin-1')!r}: send application/json")
        return self.parse(request.body or b"{}")

    def parse(self, body: bytes | bytearray) -> Any:
        try:
            return self._decode(body)
        except msgspec.ValidationError as error:
            raise InvalidArgument(_said(str(error), self._type)) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            where = f"it ends too early, at byte {len(body)}" if "truncated" in str(error) else str(error)
            raise Malformed(f"the body is not JSON: {where}") from None
        except RecursionError:
            raise Malformed("the body is not taken: it is nested too deeply") from None


def query_of(query: bytes, kind: type[Given]) -> Given:
    """What stands behind the question mark, as a struct; a field that is given twice is refused."""
    given: dict[str, str] = {}
    if query:
        try:
            fields = parse_qsl(
                query.decode("ascii"),
                keep_blank_values=True,
                strict_parsing=True,
                errors="strict",
                max_num_fields=limits.HTTP_QUERY_FIELDS_MAX,
            )
        except (ValueError, UnicodeDecodeError) as error:
            raise Malformed(f"the query {query[:80]!r} cannot be read: {error}") from None
        for name, value in fields:
            if name in given:
                raise InvalidArgument(f"the query has {name!r} twice; give it once")
            given[name] = value
    try:
        found = msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidArgument("query: " + _said(str(error), kind)) from None
    for name, value in given.items():  # what msgspec would also take where everything is text
        meant = getattr(found, name)
        if meant is None:
            raise InvalidArgument(f"query: {name} is {value[:80]!r}; leave it out, or give it a value")
        if isinstance(meant, datetime) and ":" not in value:
            raise InvalidArgument(f"query: {name} is {value[:80]!r}; write RFC 3339, such as 2030-01-31T12:00:00Z")
    return found


def _said(message: str, kind: Any) -> str:
    """msgspec's sentence; where a field is unknown, with the one that was probably meant."""
    found = _UNKNOWN.match(message)
    if found is None:
        return message[:1000]
    field, place = found.group(1), found.group(2) or "$"
    known = sorted(set(_fields(kind, set())))
    near = get_close_matches(field, known, n=1, cutoff=0.6)
    shown = field if len(field) <= 80 else field[:80] + "…"
    hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
    return f"unknown field {shown!r} at {place}{hint}"


def _fields(kind: Any, seen: set[Any]) -> Iterator[str]:
    """The names of all fields of a struct and of the structs in it."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if kind in seen:
            return
        seen.add(kind)
        for field in msgspec.structs.fields(cast("Any", kind)):
            yield field.encode_name
            yield from _fields(field.type, seen)
        return
    for inner in getattr(kind, "__args__", ()):
        yield from _fields(inner, seen)


# -- compressed bodies -------------------------------------------------------------------------------------------------


def inflated(body: bytes | bytearray, coding: bytes, bytes_max: int) -> bytes:
    """A compressed body in full. Never holds much more than ``bytes_max``."""
    if coding in (b"gzip", b"x-gzip"):
        pieces = _gunzipped(body)
    elif coding == b"zstd":
        pieces = _unzstded(body)
    else:
        raise Declined(
            415,
            f"content-encoding {coding[:60].decode('latin-1')!r}: send gzip, zstd or nothing of the kind",
            b"accept-encoding: gzip, zstd\r\n",
        )
    parts: list[bytes] = []
    size_bytes = 0
    for piece in pieces:
        size_bytes += len(piece)
        if size_bytes > bytes_max:
            raise PayloadTooLarge(f"the body inflates to more than {bytes_max} bytes (http.max_body)")
        if size_bytes > limits.HTTP_INFLATE_FREE_BYTES and size_bytes > len(body) * limits.HTTP_INFLATE_RATIO_MAX:
            raise PayloadTooLarge(
                f"the body inflates to more than {limits.HTTP_INFLATE_RATIO_MAX} times its size; that is no honest one"
            )
        parts.append(piece)
    return b"".join(parts)


def _gunzipped(body: bytes | bytearray) -> Iterator[bytes]:
    left: bytes = bytes(body)
    while left:
        inflater = zlib.decompressobj(wbits=31)
        while not inflater.eof:
            try:
                piece = inflater.decompress(left, limits.HTTP_INFLATE_STEP_BYTES)
            except zlib.error as error:
                raise Malformed(f"the body is not gzip: {error}") from None
            left = inflater.unconsumed_tail
            if piece:
                yield piece
            elif not left and not inflater.eof:
                raise Malformed("the body is not gzip: it ends too early")
        left = inflater.unused_data


def _unzstded(body: bytes | bytearray) -> Iterator[bytes]:
    for unzstd in (_by_zstd_module, _by_pyarrow):
        pieces = unzstd(body)
        if pieces is not None:
            yield from pieces
            return
    raise Declined(
        415,
        "content-encoding zstd needs the package backports.zstd or pyarrow on the server, and neither is installed "
        "there; send gzip",
        b"accept-encoding: gzip\r\n",
    )


def _by_zstd_module(body: bytes | bytearray) -> Iterator[bytes] | None:
    """Python's own from 3.14 on, its backport before."""
    import importlib

    for name in ("compression.zstd", "backports.zstd"):
        try:
            zstd = importlib.import_module(name)
        except ImportError:
            continue
        return _steps_of(zstd, bytes(body))
    return None


def _steps_of(zstd: Any, left: bytes) -> Iterator[bytes]:
    while left:
        inflater = zstd.ZstdDecompressor()
        while not inflater.eof:
            try:
                piece = inflater.decompress(left, limits.HTTP_INFLATE_STEP_BYTES)
            except zstd.ZstdError as error:
                raise Malformed(f"the body is not zstd: {error}") from None
            left = b""
            if piece:
                yield piece
            elif inflater.needs_input and not inflater.eof:
                raise Malformed("the body is not zstd: it ends too early")
        left = inflater.unused_data


def _by_pyarrow(body: bytes | bytearray) -> Iterator[bytes] | None:
    try:
        import pyarrow as pa
    except ImportError:
        return None
    return _steps_of_arrow(pa, bytes(body))


def _steps_of_arrow(pa: Any, body: bytes) -> Iterator[bytes]:
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
            while piece := stream.read(limits.HTTP_INFLATE_STEP_BYTES):
                yield piece
    except OSError as error:
        raise Malformed(f"the body is not zstd: {error}") from None
