"""Writing a file of secrets: whole or not at all, and for its owner's eyes only."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import InvalidArgument

__all__ = ["save_private"]


def save_private(target: Path, document: Any, what: str) -> None:
    """Put a document into a file as JSON; ``what`` names the file where it cannot be written."""
    content = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InvalidArgument(f"{what} {target}: {error.strerror}") from None
