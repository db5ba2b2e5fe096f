"""Every way a call can be refused, as one tree.

Four families, told apart by what the caller should do next:

    RequestError      fix the request; the same call will fail again
    ConnectionFault   this connection is over (it spoke out of turn); open another one
    RetryLater        nothing is wrong with the request; try again after ``retry_after_ns``
    ShardStopped      this shard is stopped and must be re-opened; other shards go on

Every class has a stable ``code`` (the word that travels on the wire, in JSON and in exit messages) and a row in
``ROWS``, which says how each protocol spells it. A message says what was wrong, with the value, and what would be
right.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

__all__ = [
    "BY_CODE",
    "ROWS",
    "AlreadyExists",
    "Closed",
    "ConnectionFault",
    "Corrupt",
    "Draining",
    "DuplicateConflict",
    "HeadraceError",
    "InvalidArgument",
    "LeaseLost",
    "LimitExceeded",
    "Malformed",
    "NotAllowed",
    "NotOwner",
    "Overloaded",
    "PayloadTooLarge",
    "ProtocolViolation",
    "QueueFull",
    "QuotaExceeded",
    "RequestError",
    "RetryLater",
    "Row",
    "ShardStopped",
    "StorageFailed",
    "StorageFull",
    "TimedOut",
    "Unauthenticated",
    "UnknownGroup",
    "UnknownTopic",
    "UnsupportedVersion",
    "from_code",
]


class HeadraceError(Exception):
    """The root: catch this to catch everything Headrace refuses."""

    code: ClassVar[str] = ""
    retry_after_ns: int | None = None

    def __init__(self, message: str, *, retry_after_ns: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        if retry_after_ns is not None:
            self.retry_after_ns = retry_after_ns


class RequestError(HeadraceError):
    """Fix the request."""


class ConnectionFault(HeadraceError):
    """Close that connection."""


class RetryLater(HeadraceError):
    """Try again, after ``retry_after_ns`` when it is given."""


class ShardStopped(HeadraceError):
    """This shard is stopped; what was not confirmed is unknown until it is re-opened."""


class InvalidArgument(RequestError):
    code = "invalid_argument"


class UnknownTopic(RequestError):
    code = "unknown_topic"


class UnknownGroup(RequestError):
    code = "unknown_group"


class AlreadyExists(RequestError):
    code = "already_exists"


class PayloadTooLarge(RequestError):
    code = "payload_too_large"


class NotAllowed(RequestError):
    code = "not_allowed"


class LeaseLost(RequestError):
    code = "lease_lost"


class DuplicateConflict(RequestError):
    code = "duplicate_conflict"


class LimitExceeded(RequestError):
    code = "limit_exceeded"


class UnsupportedVersion(RequestError):
    code = "unsupported_version"


class Unauthenticated(ConnectionFault):
    code = "unauthenticated"


class Malformed(ConnectionFault):
    code = "malformed"


class ProtocolViolation(ConnectionFault):
    code = "protocol_violation"


class QueueFull(RetryLater):
    code = "queue_full"
    retry_after_ns = 1_000_000_000


class QuotaExceeded(RetryLater):
    code = "quota_exceeded"
    retry_after_ns = 1_000_000_000


class NotOwner(RetryLater):
    code = "not_owner"
    retry_after_ns = 100_000_000


class Overloaded(RetryLater):
    code = "overloaded"
    retry_after_ns = 100_000_000


class Draining(RetryLater):
    code = "draining"
    retry_after_ns = 1_000_000_000


class StorageFull(RetryLater):
    code = "storage_full"
    retry_after_ns = 5_000_000_000


class TimedOut(RetryLater):
    code = "timeout"
    retry_after_ns = 0


class StorageFailed(ShardStopped):
    code = "storage_failed"


class Corrupt(ShardStopped):
    code = "corrupt"


class Closed(ShardStopped):
    code = "closed"


class Row(NamedTuple):
    """How one code is spelled on each protocol."""

    http: int
    grpc: int
    mqtt: int
    native: int


# gRPC numbers: 2 UNKNOWN 3 INVALID_ARGUMENT 4 DEADLINE_EXCEEDED 5 NOT_FOUND 6 ALREADY_EXISTS 7 PERMISSION_DENIED
# 8 RESOURCE_EXHAUSTED 9 FAILED_PRECONDITION 12 UNIMPLEMENTED 13 INTERNAL 14 UNAVAILABLE 15 DATA_LOSS
# 16 UNAUTHENTICATED.
# MQTT 5 reason codes: OASIS MQTT 5.0 §2.4. The native numbers are frozen: never reuse one.
ROWS: dict[type[HeadraceError], Row] = {
    InvalidArgument: Row(400, 3, 0x83, 1),
    UnknownTopic: Row(404, 5, 0x90, 2),
    UnknownGroup: Row(404, 5, 0x90, 3),
    AlreadyExists: Row(409, 6, 0x83, 4),
    PayloadTooLarge: Row(413, 3, 0x95, 5),
    QueueFull: Row(429, 8, 0x97, 6),
    QuotaExceeded: Row(429, 8, 0x97, 7),
    NotAllowed: Row(403, 7, 0x87, 8),
    Unauthenticated: Row(401, 16, 0x86, 9),
    LeaseLost: Row(409, 9, 0x92, 10),
    DuplicateConflict: Row(409, 6, 0x83, 11),
    Malformed: Row(400, 3, 0x81, 12),
    ProtocolViolation: Row(400, 3, 0x82, 13),
    LimitExceeded: Row(422, 8, 0x97, 14),
    NotOwner: Row(503, 14, 0x9D, 15),
    Overloaded: Row(503, 14, 0x89, 16),
    Draining: Row(503, 14, 0x8B, 17),
    StorageFull: Row(507, 8, 0x97, 18),
    StorageFailed: Row(500, 13, 0x83, 19),
    Corrupt: Row(500, 15, 0x83, 20),
    UnsupportedVersion: Row(400, 12, 0x84, 21),
    TimedOut: Row(504, 4, 0x80, 22),
    Closed: Row(503, 14, 0x8B, 23),
}

BY_CODE: dict[str, type[HeadraceError]] = {kind.code: kind for kind in ROWS}


def from_code(code: str, message: str, *, retry_after_ns: int | None = None) -> HeadraceError:
    """The error a peer named by its code; an unknown code becomes the root class, never a crash."""
    return BY_CODE.get(code, HeadraceError)(message, retry_after_ns=retry_after_ns)
