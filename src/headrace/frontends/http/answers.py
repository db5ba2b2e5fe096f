"""Answers as bytes: the head, JSON, and every error with the status of its row in ``headrace.errors``."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

import msgspec

from headrace.errors import BY_CODE, ROWS, Closed, HeadraceError, InvalidArgument

__all__ = ["JSON", "STARTS", "Declined", "ErrorAnswer", "ErrorDetail", "encode_json", "error_parts"]

JSON: Final = b"application/json"
STARTS: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}

encode_json = msgspec.json.Encoder(uuid_format="canonical", decimal_format="string").encode


class ErrorDetail(msgspec.Struct, omit_defaults=True):
    """What was wrong."""

    code: str
    message: str
    retry_after_ms: int | None = None


class ErrorAnswer(msgspec.Struct):
    """Every refusal looks like this."""

    error: ErrorDetail


class Declined(Exception):
    """A refusal whose status HTTP names more exactly than the table of errors: no such route, no such method, a body
    in a form nobody reads."""

    def __init__(self, status: int, message: str, headers: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.error: HeadraceError = InvalidArgument(message)


def error_parts(error: BaseException) -> tuple[int, ErrorAnswer, bytes]:
    """Status, body and further header lines of a refusal."""
    if isinstance(error, Declined):
        return error.status, ErrorAnswer(ErrorDetail(error.error.code, error.error.message)), error.headers
    if not isinstance(error, HeadraceError):
        error = Closed("an internal error ended this request; see the server's log")
        return 500, ErrorAnswer(ErrorDetail(error.code, error.message)), b""
    status = ROWS[BY_CODE.get(error.code, Closed)].http
    headers = b'www-authenticate: Bearer realm="headrace"\r\n' if status == 401 else b""
    retry_after_ms: int | None = None
    if error.retry_after_ns is not None:
        retry_after_ms = error.retry_after_ns // 1_000_000
        headers += b"retry-after: %d\r\n" % -(-error.retry_after_ns // 1_000_000_000)
    return status, ErrorAnswer(ErrorDetail(error.code, error.message, retry_after_ms)), headers


def plain(value: Any) -> Any:
    """A value as JSON has it, for what has no struct."""
    return msgspec.to_builtins(value)
