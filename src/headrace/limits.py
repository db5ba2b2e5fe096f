"""Every limit has a name and a reason. Sizes in bytes, spans in nanoseconds."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
SECOND_NS: Final = 1_000_000_000

# -- message (3-semantics §1: the numbers every door enforces) ---------------------------------------------------------
NAME_BYTES_MAX: Final = 255
"""A namespace, topic or group name."""
KEY_BYTES_MAX: Final = 1 * KIB
"""A key is hashed and compared, never stored as a document."""
HEADERS_BYTES_MAX: Final = 64 * KIB
"""All headers of one message together, names included."""
DEDUP_ID_BYTES_MAX: Final = 256
"""A deduplication id is kept in memory for its whole window."""
MESSAGE_BYTES_DEFAULT: Final = 1 * MIB
"""`max_message_size` of a topic that does not say."""
MESSAGE_BYTES_MAX: Final = 64 * MIB
"""The highest `max_message_size` that may be configured: one message must fit a frame and a reply buffer."""
PRIORITY_MAX: Final = 9
"""Lanes 0–9, lower is first."""

# -- batch ------------------------------------------------------------------------------------------------------------
BATCH_MESSAGES_MAX: Final = 4096
"""A batch's ids are contiguous inside one millisecond's 12-bit id sequence."""
BATCH_BYTES_MAX: Final = 64 * MIB + 256 * KIB
"""One message of the highest size with its key, headers and overhead."""
